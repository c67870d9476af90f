// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway why`: the changes of one process or socket, oldest first, with rule, evidence and time.

use anyhow::Result;
use giveway_engine::queue::traffic::Refusal;
use giveway_engine::realtime::Change;
use giveway_engine::snapshot::{ChangeView, FlowView, QueueChangeView};
use serde_json::json;

use crate::cli::WhyArgs;
use crate::control::client;
use crate::place::Place;

pub fn run(args: &WhyArgs) -> Result<()> {
    let status = client::status(&Place::here()?)?;
    let flow_of = |change: &ChangeView| {
        status
            .snapshot
            .flows
            .iter()
            .find(|f| f.flow.cookie == change.change.cookie)
    };
    let changes: Vec<&ChangeView> = status
        .snapshot
        .changes
        .iter()
        .filter(|c| {
            args.subject
                .as_deref()
                .is_none_or(|subject| concerns(subject, c, flow_of(c)))
        })
        .collect();
    let of_queue = |view: &&QueueChangeView| {
        let subject = args.subject.as_deref();
        subject.is_none_or(|subject| subject == "queue" || subject == view.change.interface)
    };
    let queue: Vec<&QueueChangeView> = status.snapshot.queue_changes.iter().filter(of_queue).collect();
    let of_refusal = |refusal: &&Refusal| {
        let subject = args.subject.as_deref();
        subject.is_none_or(|subject| subject == "queue" || is_of(subject, refusal))
    };
    let refusals: Vec<&Refusal> = status.snapshot.refusals.iter().filter(of_refusal).collect();
    let realtime = status.realtime.as_ref().map_or(&[][..], |view| &view.changes);
    let of_process = |change: &&Change| {
        let subject = args.subject.as_deref();
        subject
            .is_none_or(|subject| [&change.pid.to_string(), &change.exe, &change.rule].contains(&&subject.to_owned()))
    };
    let realtime: Vec<&Change> = realtime.iter().filter(of_process).collect();
    let receive = status.receive.about(args.subject.as_deref());
    if args.output.json {
        println!(
            "{}",
            json!({ "caps": changes, "queue": queue, "refusals": refusals, "realtime": realtime, "receive": receive })
        );
        return Ok(());
    }
    let receive = receive.shown();
    if changes.is_empty() && queue.is_empty() && refusals.is_empty() && realtime.is_empty() && receive.is_empty() {
        println!("giveway has changed nothing there (the latest 256 changes were looked at)");
    }
    for view in queue {
        print!("{}", render_queue(view));
    }
    for refusal in refusals {
        print!("{}", render_refusal(refusal));
    }
    print!("{receive}");
    for change in realtime {
        print!("{}", render_realtime(change));
    }
    for change in changes {
        print!("{}", render(change, flow_of(change)));
    }
    Ok(())
}

fn concerns(subject: &str, change: &ChangeView, flow: Option<&FlowView>) -> bool {
    let of_flow = |f: &FlowView| {
        f.flow.remote.to_string() == subject
            || f.flow.local.to_string() == subject
            || f.flow.owner.as_ref().is_some_and(|o| o.pid.to_string() == subject)
    };
    change.change.cookie.0.to_string() == subject || flow.is_some_and(of_flow)
}

/// Whether it came from this socket, by its cookie or one of its addresses.
fn is_of(subject: &str, refusal: &Refusal) -> bool {
    let ends = [refusal.local, refusal.remote];
    refusal.cookie.is_some_and(|cookie| cookie.0.to_string() == subject)
        || ends.iter().flatten().any(|address| address.to_string() == subject)
}

fn render_refusal(refusal: &Refusal) -> String {
    let who = match (refusal.remote, refusal.cookie) {
        (Some(remote), Some(cookie)) => format!("to {remote}, socket {}", cookie.0),
        (Some(remote), None) => format!("to {remote}"),
        _ => "with a deadline".to_owned(),
    };
    let left_us = refusal
        .deadline_t_ns
        .cast_signed()
        .wrapping_sub(refusal.t_ns.cast_signed())
        / 1000;
    format!(
        "{:.3} s since boot: a packet {who} was not sent\n  because {}: {left_us} us were left, {} us is its work for the link\n",
        refusal.t_ns as f64 / 1e9,
        refusal.reason.shown(),
        refusal.work_ns / 1000,
    )
}

fn render_queue(view: &QueueChangeView) -> String {
    let change = &view.change;
    format!(
        "{:.3} s since boot: the queue of {}\n  {} -> {}{}, rule {}\n  because {}\n",
        view.t_ns as f64 / 1e9,
        change.interface,
        change.old,
        change.new,
        if change.made { "" } else { " (not made)" },
        change.rule,
        change.why,
    )
}

fn render_realtime(change: &Change) -> String {
    format!(
        "{:.3} s since boot: {} ({})\n  {} -> {}{}, rule {}\n  because {}\n",
        change.t_ns as f64 / 1e9,
        change.exe,
        change.pid,
        change.old,
        change.new,
        if change.made { "" } else { " (not made: dry run)" },
        change.rule,
        change.why,
    )
}

fn render(view: &ChangeView, flow: Option<&FlowView>) -> String {
    let change = &view.change;
    let shown = |cap: Option<u32>| cap.map_or("none".to_owned(), |c| c.to_string());
    let who = flow.map_or("a socket that is gone".to_owned(), |f| {
        let process = f
            .flow
            .owner
            .as_ref()
            .map_or("?".to_owned(), |o| format!("{} ({})", o.command, o.pid));
        format!("{process} to {}", f.flow.remote)
    });
    format!(
        "{:.3} s since boot: {who}, socket {}\n  cap {} -> {}{}, rule {}\n  because {}\n",
        view.t_ns as f64 / 1e9,
        change.cookie.0,
        shown(change.old),
        shown(change.new),
        if change.made { "" } else { " (not made: dry run)" },
        change.rule,
        change.why,
    )
}
