// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway why`: the changes of one process, connection or device, oldest first, with rule, evidence and time.

use std::io::IsTerminal as _;

use anyhow::Result;
use giveway_engine::change::{KEPT, Latest, Setting, Subject};
use giveway_engine::network::queue::traffic::Refusal;
use giveway_engine::status::FlowView;
use serde_json::json;

use crate::cli::WhyArgs;
use crate::commands::wrapped;
use crate::control::client;
use crate::place::Place;

/// Columns of a line on a terminal, without the indent; elsewhere lines are whole.
const COLUMNS: usize = 74;

pub fn run(args: &WhyArgs) -> Result<()> {
    let mut status = client::status(&Place::here()?)?;
    if let Some(subject) = &args.subject {
        let flows = &status.network.flows;
        status.changes.retain(|latest| concerns(subject, latest, flows));
        status.network.refusals.retain(|refusal| is_of(subject, refusal));
    }
    let (changes, refusals) = (status.changes, status.network.refusals);
    if args.output.json {
        let answer = json!({ "changes": changes, "refusals": refusals });
        println!("{answer}");
        return Ok(());
    }
    if changes.is_empty() && refusals.is_empty() {
        println!("giveway has changed nothing there (up to {KEPT} settings are remembered)");
    }
    let on_terminal = std::io::stdout().is_terminal();
    for refusal in &refusals {
        println!("{}", shown(&refusal_line(refusal), on_terminal));
    }
    for latest in &changes {
        println!("{}", shown(&change_line(latest), on_terminal));
    }
    Ok(())
}

/// Whether it is the rule, the process, the socket, one of its addresses, or the device.
fn concerns(subject: &str, latest: &Latest, flows: &[FlowView]) -> bool {
    let change = &latest.change;
    let of_flow = |view: &FlowView| {
        let flow = &view.flow;
        flow.remote.to_string() == subject
            || flow.local.to_string() == subject
            || flow
                .owner
                .as_ref()
                .is_some_and(|owner| owner.pid.to_string() == subject)
            || view.exe.as_deref() == Some(subject)
    };
    let of_subject = match &change.subject {
        Subject::Socket { cookie } => {
            let flow = flows.iter().find(|view| view.flow.cookie == *cookie);
            cookie.0.to_string() == subject || flow.is_some_and(of_flow)
        }
        Subject::Process { id } => id.pid.to_string() == subject,
        Subject::Thread { tid } => tid.to_string() == subject,
        Subject::Interface { name } => name == subject,
        Subject::Destination { remote, .. } => remote.to_string() == subject,
        Subject::Kernel => false,
    };
    let of_setting = match &change.setting {
        Setting::Queue => subject == "queue",
        Setting::File(path) => path == subject,
        _ => false,
    };
    let of_rule = match subject {
        "receive" => ["[receive]", "[[chain]]"].contains(&change.rule.as_str()),
        _ => change.rule == subject,
    };
    of_subject || of_setting || of_rule || change.name == subject || change.name.ends_with(&format!(" port {subject}"))
}

/// Whether it came from this socket, by its cookie or one of its addresses.
fn is_of(subject: &str, refusal: &Refusal) -> bool {
    let ends = [refusal.local, refusal.remote];
    subject == "queue"
        || refusal.cookie.is_some_and(|cookie| cookie.0.to_string() == subject)
        || ends.iter().flatten().any(|address| address.to_string() == subject)
}

fn change_line(latest: &Latest) -> String {
    let times = match latest.times {
        1 => String::new(),
        times => format!(" ({times} times, lately)"),
    };
    format!("{:.3} s since boot{times}: {}", latest.t_ns as f64 / 1e9, latest.change)
}

fn refusal_line(refusal: &Refusal) -> String {
    let packet = match (refusal.remote, refusal.cookie) {
        (Some(remote), Some(cookie)) => format!("to {remote}, socket {}", cookie.0),
        (Some(remote), None) => format!("to {remote}"),
        _ => "with a deadline".to_owned(),
    };
    let left_ns = refusal
        .deadline_t_ns
        .cast_signed()
        .wrapping_sub(refusal.t_ns.cast_signed());
    format!(
        "{:.3} s since boot: a packet {packet} was not sent because {}: {} us were left, {} us is its work for the link",
        refusal.t_ns as f64 / 1e9,
        refusal.reason.shown(),
        left_ns / 1000,
        refusal.work_ns / 1000,
    )
}

/// On a terminal the line is broken, and what follows is indented.
fn shown(line: &str, on_terminal: bool) -> String {
    if on_terminal {
        wrapped(line, COLUMNS).join("\n    ")
    } else {
        line.to_owned()
    }
}

#[cfg(test)]
mod tests;
