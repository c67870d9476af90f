// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway why`: the changes of one process, connection or device, oldest first, with rule, evidence and time.

use std::net::SocketAddr;

use anyhow::Result;
use giveway_engine::change::{KEPT, Latest, Setting, Subject};
use giveway_engine::class::Class;
use giveway_engine::config::Dscp;
use giveway_engine::model::Cookie;
use giveway_engine::network::queue::links::LinkView;
use giveway_engine::network::queue::traffic::Refusal;
use giveway_engine::status::FlowView;
use serde::Serialize;
use serde_json::json;

use crate::cli::WhyArgs;
use crate::commands::{hanging, print, print_json, terminal_columns};
use crate::control::client;
use crate::place::Place;

pub fn run(args: &WhyArgs) -> Result<()> {
    let mut status = client::status(&Place::here()?)?;
    let mut classes = Vec::new();
    let mut rates = Vec::new();
    if let Some(subject) = &args.subject {
        let links = status.network.links.iter().filter(|link| is_link(subject, link));
        rates.extend(links.filter_map(|link| Some((link.interface.clone(), link.queue.measured?))));
        let datagrams = &status.network.datagrams;
        let flows: Vec<&FlowView> = status.network.flows.iter().chain(datagrams).collect();
        let concerned = flows.iter().copied().filter(|view| is_flow(subject, view));
        classes.extend(concerned.map(Classified::of));
        status.changes.retain(|latest| concerns(subject, latest, &flows));
        status.network.refusals.retain(|refusal| is_of(subject, refusal));
    }
    let (changes, refusals) = (status.changes, status.network.refusals);
    if args.output.json {
        let answer = json!({ "changes": changes, "refusals": refusals, "classes": classes, "rates": rates });
        return print_json(&answer);
    }
    if changes.is_empty() && refusals.is_empty() && classes.is_empty() && rates.is_empty() {
        return print(&nothing(args.subject.as_deref()));
    }
    let columns = terminal_columns();
    let lines = alike(&refusals)
        .into_iter()
        .map(|(latest, times)| refusal_line(latest, times));
    let lines = classes.iter().map(Classified::line).chain(lines);
    let rates = rates
        .iter()
        .map(|(interface, rate)| format!("{interface}: {}", rate.shown()));
    let lines = rates.chain(lines).chain(changes.iter().map(change_line));
    let text: String = lines.map(|line| hanging("", 4, &line, columns) + "\n").collect();
    print(&text)
}

fn nothing(subject: Option<&str>) -> String {
    match subject {
        Some(subject) => format!(
            "giveway knows of no change of `{subject}`; `giveway why` alone shows all that it remembers, \
             the latest {KEPT}\n"
        ),
        None => "giveway has changed nothing\n".to_owned(),
    }
}

/// The latest of those that differ in nothing but time, and how many they are: a sender that is refused asks again at once.
fn alike(refusals: &[Refusal]) -> Vec<(&Refusal, usize)> {
    let mut alike: Vec<(&Refusal, usize)> = Vec::new();
    let of = |refusal: &Refusal| (refusal.remote, refusal.cookie, refusal.reason);
    for refusal in refusals {
        match alike.iter_mut().find(|(latest, _)| of(latest) == of(refusal)) {
            Some((latest, times)) => (*latest, *times) = (refusal, *times + 1),
            None => alike.push((refusal, 1)),
        }
    }
    alike
}

/// Whether it is the rule, the process, the socket, one of its addresses, or the device.
fn concerns(subject: &str, latest: &Latest, flows: &[&FlowView]) -> bool {
    let change = &latest.change;
    let of_subject = match &change.subject {
        Subject::Socket { cookie } => {
            let flow = flows.iter().find(|view| view.flow.cookie == *cookie);
            cookie.0.to_string() == subject
                || flow.is_some_and(|view| is_flow(subject, view))
                || is_named(subject, &change.name)
        }
        Subject::Process { id } => id.pid.to_string() == subject,
        Subject::Thread { tid } => tid.to_string() == subject,
        Subject::Interface { name } => name == subject,
        Subject::Destination { remote, .. } => remote.to_string() == subject,
        Subject::Cgroup { path } => path == subject,
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

/// Whether it is the process, address or port in the name of a socket, which may have been closed: `iperf3 (77) to 192.0.2.1:873`.
fn is_named(subject: &str, name: &str) -> bool {
    let Some((process, remote)) = name.split_once(" to ") else {
        return false;
    };
    remote == subject || remote.ends_with(&format!(":{subject}")) || process.ends_with(&format!("({subject})"))
}

fn is_link(subject: &str, link: &LinkView) -> bool {
    subject == "queue" || link.interface == subject
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
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<Dscp>,
    rule: &'a str,
    why: &'a str,
    #[serde(skip)]
    shown_remote: String,
}

impl<'a> Classified<'a> {
    fn of(view: &'a FlowView) -> Self {
        Self {
            cookie: view.flow.cookie,
            local: view.flow.local,
            remote: view.flow.remote,
            class: view.class,
            mark: view.mark,
            rule: &view.class_rule,
            why: &view.class_why,
            shown_remote: view.flow.shown_remote(),
        }
    }

    fn line(&self) -> String {
        let marked = self.mark.map(|dscp| format!("; its packets are marked {dscp}"));
        format!(
            "socket {}, {} to {}, is {} now; rule {}: {}{}",
            self.cookie.0,
            self.local,
            self.shown_remote,
            self.class.name(),
            self.rule,
            self.why,
            marked.unwrap_or_default()
        )
    }
}

/// Whether it came from this socket, by its cookie or one of its addresses or ports.
fn is_of(subject: &str, refusal: &Refusal) -> bool {
    let ends = [refusal.local, refusal.remote];
    subject == "queue"
        || refusal.cookie.is_some_and(|cookie| cookie.0.to_string() == subject)
        || ends
            .iter()
            .flatten()
            .any(|end| end.to_string() == subject || end.port().to_string() == subject)
}

fn change_line(latest: &Latest) -> String {
    format!("{}: {}", when(latest.t_ns, latest.times), latest.change)
}

fn when(t_ns: u64, times: u64) -> String {
    let of_all = match times {
        1 => String::new(),
        times => format!(" (the latest of {times} times)"),
    };
    format!("{:.3} s since boot{of_all}", t_ns as f64 / 1e9)
}

fn refusal_line(refusal: &Refusal, times: usize) -> String {
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
        "{}: a packet {packet} was not sent because {}: {} us were left, {} us is its work for the link",
        when(refusal.t_ns, times as u64),
        refusal.reason.shown(),
        left_ns / 1000,
        refusal.work_ns / 1000,
    )
}

#[cfg(test)]
mod tests;
