// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway why`: the changes of one process, connection or device, oldest first, with rule, evidence and time.

use std::io::IsTerminal as _;
use std::net::SocketAddr;

use anyhow::Result;
use giveway_engine::change::{KEPT, Latest, Setting, Subject};
use giveway_engine::class::Class;
use giveway_engine::model::Cookie;
use giveway_engine::network::queue::traffic::Refusal;
use giveway_engine::status::FlowView;
use serde::Serialize;
use serde_json::json;

use crate::cli::WhyArgs;
use crate::commands::wrapped;
use crate::control::client;
use crate::place::Place;

/// Columns of a line on a terminal, without the indent; elsewhere lines are whole.
const COLUMNS: usize = 74;

pub fn run(args: &WhyArgs) -> Result<()> {
    let mut status = client::status(&Place::here()?)?;
    let mut classes = Vec::new();
    if let Some(subject) = &args.subject {
        let flows = &status.network.flows;
        let concerned = flows.iter().filter(|view| is_flow(subject, view));
        classes.extend(concerned.map(Classified::of));
        status.changes.retain(|latest| concerns(subject, latest, flows));
        status.network.refusals.retain(|refusal| is_of(subject, refusal));
    }
    let (changes, refusals) = (status.changes, status.network.refusals);
    if args.output.json {
        let answer = json!({ "changes": changes, "refusals": refusals, "classes": classes });
        println!("{answer}");
        return Ok(());
    }
    if changes.is_empty() && refusals.is_empty() {
        println!("giveway has changed nothing there (up to {KEPT} settings are remembered)");
    }
    let on_terminal = std::io::stdout().is_terminal();
    for class in &classes {
        println!("{}", shown(&class.line(), on_terminal));
    }
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
    let of_subject = match &change.subject {
        Subject::Socket { cookie } => {
            let flow = flows.iter().find(|view| view.flow.cookie == *cookie);
            cookie.0.to_string() == subject || flow.is_some_and(|view| is_flow(subject, view))
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

/// Whether it is the flow's process, executable, address, port or socket.
fn is_flow(subject: &str, view: &FlowView) -> bool {
    let flow = &view.flow;
    let owner = flow.owner.as_ref().map(|owner| owner.pid.to_string());
    let ends = [flow.local, flow.remote];
    owner.as_deref() == Some(subject)
        || view.exe.as_deref() == Some(subject)
        || flow.cookie.0.to_string() == subject
        || ends
            .iter()
            .any(|end| end.to_string() == subject || end.port().to_string() == subject)
}

/// A flow's class, and why it has it.
#[derive(Serialize)]
struct Classified<'a> {
    cookie: Cookie,
    local: SocketAddr,
    remote: SocketAddr,
    class: Class,
    rule: &'a str,
    why: &'a str,
}

impl<'a> Classified<'a> {
    fn of(view: &'a FlowView) -> Self {
        Self {
            cookie: view.flow.cookie,
            local: view.flow.local,
            remote: view.flow.remote,
            class: view.class,
            rule: &view.class_rule,
            why: &view.class_why,
        }
    }

    fn line(&self) -> String {
        format!(
            "socket {}, {} to {}, is {} now; rule {}: {}",
            self.cookie.0,
            self.local,
            self.remote,
            self.class.name(),
            self.rule,
            self.why
        )
    }
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
