// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway why`: the changes of one process, connection or device, oldest first, with rule, evidence and time.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Result, bail};
use clap::Args;
use giveway_engine::change::{KEPT, Latest, Setting, Subject};
use giveway_engine::enforcement::Enforcement;
use giveway_engine::enforcement::elsewhere::ElsewhereView;
use giveway_engine::enforcement::view::LimitsView;
use giveway_engine::model::{Class, Cookie, Dscp, ProcessId};
use giveway_engine::queue::links::LinkView;
use giveway_engine::queue::measured::MeasuredView;
use giveway_engine::queue::traffic::Refusal;
use giveway_engine::status::{FlowView, Status};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::args::Json;
use crate::commands::clock::moment;
use crate::commands::{hanging, print, print_json, terminal_columns};
use crate::control::client;
use crate::kernel::ids::start_of;
use crate::kernel::process::thread_start;
use crate::place::Place;

/// Characters of a name that is told as near another.
const LEAST_NEAR: usize = 3;
const MOST_NEAR: usize = 5;
/// Of a process's name the kernel keeps so much (TASK_COMM_LEN, without the NUL).
const COMM_BYTES: usize = 15;

#[derive(Args)]
pub struct WhyArgs {
    /// A process or thread id, a process's name, an executable, an address with or without port, a port, a socket cookie,
    /// an interface, a rule's name, `queue`, or `receive` ([receive] and chains); everything if absent
    #[arg(value_name = "PID|TID|NAME|ADDRESS|PORT|RULE")]
    pub subject: Option<String>,
    #[command(flatten)]
    pub output: Json,
}

/// Whose changes are asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum About {
    All,
    /// In a user's words: whatever goes by them.
    Word(String),
    Socket(Cookie),
    Process(u32),
}

/// All that is known of it.
#[derive(JsonSchema, Serialize)]
pub struct Explanation<'a> {
    changes: Vec<&'a Latest>,
    refusals: Vec<&'a Refusal>,
    classes: Vec<ClassifiedFlow<'a>>,
    rates: Vec<(&'a str, MeasuredView)>,
    elsewhere: Vec<&'a ElsewhereView>,
    #[serde(skip)]
    dry_run: bool,
}

pub fn run(args: &WhyArgs) -> Result<()> {
    let status = client::status(&Place::here()?)?;
    let about = args.subject.clone().map_or(About::All, About::Word);
    let explanation = Explanation::of(&status, &about);
    let mut lines = explanation.lines();
    let is_unknown = lines.is_empty();
    if args.output.json {
        print_json(&explanation)?;
    }
    match &args.subject {
        Some(subject) if is_unknown => bail!(nothing(subject, &status)),
        _ if args.output.json => return Ok(()),
        _ => {}
    }
    if let Some(paused) = &status.daemon.paused {
        let pid = paused.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        let line = format!("paused by uid {}{pid}: all changes are undone for now", paused.uid);
        lines.insert(0, line);
    }
    if is_unknown {
        lines.push("giveway has changed nothing".to_owned());
    }
    let columns = terminal_columns();
    let lines = lines.iter().map(|line| hanging("", 4, line, columns) + "\n");
    print(&lines.collect::<String>())
}

impl<'a> Explanation<'a> {
    pub fn of(status: &'a Status, about: &About) -> Self {
        let network = &status.network;
        let flows = network.flows.iter().chain(&network.datagrams);
        let flows: Vec<&FlowView> = flows.filter(|view| about.is_flow(view)).collect();
        let mut cookies: Vec<Cookie> = flows.iter().map(|view| view.flow.cookie).collect();
        cookies.sort_unstable();
        let links = network.links.iter().filter(|link| about.is_link(link));
        Self {
            changes: status
                .changes
                .iter()
                .filter(|latest| about.concerns(latest, &cookies))
                .collect(),
            refusals: network
                .refusals
                .iter()
                .filter(|refusal| about.is_refused(refusal))
                .collect(),
            classes: flows.into_iter().map(ClassifiedFlow::of).collect(),
            rates: links
                .filter_map(|link| Some((link.interface.as_str(), link.queue.estimate?)))
                .collect(),
            elsewhere: network
                .elsewhere
                .iter()
                .filter(|process| about.is_elsewhere(process))
                .collect(),
            dry_run: network.policy.dry_run,
        }
    }

    /// None where nothing is known.
    pub fn lines(&self) -> Vec<String> {
        let rates = self
            .rates
            .iter()
            .map(|(interface, rate)| format!("{interface}: {}", rate.shown()));
        let classes = self.classes.iter().map(ClassifiedFlow::line);
        let refusals = alike(&self.refusals)
            .into_iter()
            .map(|(latest, times)| refusal_line(latest, times));
        let changes = self.changes.iter().map(|latest| change_line(latest, self.dry_run));
        let elsewhere = self.elsewhere.iter().map(|process| {
            format!(
                "process {} ({}): class or limit of `giveway exec` not enforced: {}",
                process.pid, process.command, process.reason
            )
        });
        rates
            .chain(elsewhere)
            .chain(classes)
            .chain(refusals)
            .chain(changes)
            .collect()
    }
}

impl About {
    /// `concerned`: the open sockets that it is about, in order.
    fn concerns(&self, latest: &Latest, concerned: &[Cookie]) -> bool {
        let change = &latest.change;
        match (self, &change.subject) {
            (Self::All, _) => true,
            (Self::Word(word), _) => concerns(word, latest, concerned),
            (Self::Socket(wanted), Subject::Socket { cookie }) => cookie == wanted,
            (Self::Process(pid), Subject::Process { id }) => id.pid == *pid,
            (Self::Process(pid), Subject::Thread { tid }) => tid == pid,
            (Self::Process(pid), Subject::Socket { cookie }) => {
                concerned.binary_search(cookie).is_ok() || is_named_process(*pid, &change.name)
            }
            _ => false,
        }
    }

    fn is_flow(&self, view: &FlowView) -> bool {
        match self {
            // `status` lists what is open.
            Self::All => false,
            Self::Word(word) => is_flow(word, view),
            Self::Socket(cookie) => view.flow.cookie == *cookie,
            Self::Process(pid) => view.flow.owner.as_ref().is_some_and(|owner| owner.pid == *pid),
        }
    }

    fn is_elsewhere(&self, process: &ElsewhereView) -> bool {
        match self {
            Self::Word(word) => *word == process.command || *word == process.pid.to_string(),
            Self::Process(pid) => *pid == process.pid,
            Self::All | Self::Socket(_) => false,
        }
    }

    fn is_link(&self, link: &LinkView) -> bool {
        matches!(self, Self::Word(word) if is_link(word, link))
    }

    fn is_refused(&self, refusal: &Refusal) -> bool {
        match self {
            Self::All => true,
            Self::Word(word) => is_of(word, refusal),
            Self::Socket(cookie) => refusal.cookie == Some(*cookie),
            Self::Process(_) => false,
        }
    }
}

fn nothing(subject: &str, status: &Status) -> String {
    let network = &status.network;
    let owners = network.flows.iter().chain(&network.datagrams).filter_map(|view| {
        let owner = view.flow.owner.as_ref()?;
        Some((owner.command.as_str(), format!("{} ({})", owner.command, owner.pid)))
    });
    let processes = status.changes.iter().filter_map(|latest| {
        let Subject::Process { id } = &latest.change.subject else {
            return None;
        };
        let exe = latest.change.name.as_str();
        Some((exe.rsplit('/').next()?, format!("{exe} ({})", id.pid)))
    });
    let links = network
        .links
        .iter()
        .map(|link| (link.interface.as_str(), link.interface.clone()));
    let near = near(subject, owners.chain(processes).chain(links));
    let near = match near.is_empty() {
        true => String::new(),
        false => format!(" Similar: {}.", near.join(", ")),
    };
    format!(
        "nothing found for `{subject}`: no open connection, process, link or rule, and no recorded \
         change.{near} `giveway status` lists open connections; `giveway why` alone shows the latest \
         {KEPT} changes"
    )
}

/// Of what is known by a name: how that is shown whose name is a part of the subject, or has it as a part.
fn near<'a>(subject: &str, known: impl Iterator<Item = (&'a str, String)>) -> Vec<String> {
    let subject = subject.to_lowercase();
    let is_near = |name: &str| {
        let name = name.to_lowercase();
        name.len().min(subject.len()) >= LEAST_NEAR && (name.contains(&subject) || subject.contains(&name))
    };
    let mut near: Vec<String> = known
        .filter(|(name, _)| is_near(name))
        .map(|(_, shown)| shown)
        .collect();
    near.sort_unstable();
    near.dedup();
    near.truncate(MOST_NEAR);
    near
}

/// The latest of those that differ in nothing but time, and how many they are: a sender that is refused asks again at once.
fn alike<'a>(refusals: &[&'a Refusal]) -> Vec<(&'a Refusal, usize)> {
    let mut alike: Vec<(&Refusal, usize)> = Vec::new();
    let of = |refusal: &Refusal| (refusal.remote, refusal.cookie, refusal.reason);
    for refusal in refusals.iter().copied() {
        match alike.iter_mut().find(|(latest, _)| of(latest) == of(refusal)) {
            Some((latest, times)) => (*latest, *times) = (refusal, *times + 1),
            None => alike.push((refusal, 1)),
        }
    }
    alike
}

/// Whether it is the rule, the process, the socket, one of its addresses, or the device.
fn concerns(subject: &str, latest: &Latest, concerned: &[Cookie]) -> bool {
    let change = &latest.change;
    let of_subject = match &change.subject {
        Subject::Socket { cookie } => {
            cookie.0.to_string() == subject
                || concerned.binary_search(cookie).is_ok()
                || is_named(subject, &change.name)
        }
        Subject::Process { id } => id.pid.to_string() == subject || is_called(subject, *id, &change.name),
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

/// Whether it is the name of the process: of its executable, or what ps shows while it runs, which is a script's own name.
fn is_called(subject: &str, id: ProcessId, exe: &str) -> bool {
    let is_base = |path: &str| !subject.is_empty() && path.rsplit('/').next() == Some(subject);
    if is_base(exe) {
        return true;
    }
    let runs = || thread_start(id.pid, id.pid).is_ok_and(|start| start == Some(start_of(id.start_ns)));
    let comm = fs::read(format!("/proc/{}/comm", id.pid)).unwrap_or_default();
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    let cut = &subject.as_bytes()[..subject.len().min(COMM_BYTES)];
    !comm.is_empty() && comm == cut && runs()
}

/// Whether it is the process, address or port in the name of a socket, which may have been closed: `iperf3 (77) to 192.0.2.1:873`.
fn is_named(subject: &str, name: &str) -> bool {
    let Some((process, remote)) = name.split_once(" to ") else {
        return false;
    };
    let goes_by = |end: SocketAddr| is_end(subject, end);
    let (command, number) = process.rsplit_once(" (").unwrap_or((process, ""));
    remote.parse().is_ok_and(goes_by) || command == subject || number.strip_suffix(')') == Some(subject)
}

/// Whether it is this address with its port, or one of the two.
fn is_end(subject: &str, end: SocketAddr) -> bool {
    [end.to_string(), end.ip().to_string(), end.port().to_string()].contains(&subject.to_owned())
}

fn is_named_process(pid: u32, name: &str) -> bool {
    name.split_once(" to ")
        .is_some_and(|(process, _)| process.ends_with(&format!("({pid})")))
}

fn is_link(subject: &str, link: &LinkView) -> bool {
    subject == "queue" || link.interface == subject
}

/// Whether it is the flow's process by number or name, its executable, an address, port or socket.
fn is_flow(subject: &str, view: &FlowView) -> bool {
    let flow = &view.flow;
    let owner = flow.owner.as_ref().map(|owner| owner.pid.to_string());
    let ends = [flow.local, flow.remote];
    owner.as_deref() == Some(subject)
        || flow.owner.as_ref().is_some_and(|owner| owner.command == subject)
        || view
            .exe
            .as_deref()
            .is_some_and(|exe| exe == subject || exe.rsplit('/').next() == Some(subject))
        || flow.cookie.0.to_string() == subject
        || ends.iter().any(|end| is_end(subject, *end))
}

/// A flow's class, and why it has it.
#[derive(JsonSchema, Serialize)]
struct ClassifiedFlow<'a> {
    cookie: Cookie,
    local: SocketAddr,
    remote: SocketAddr,
    class: Class,
    #[serde(skip_serializing_if = "Option::is_none")]
    mark: Option<Dscp>,
    rule: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a LimitsView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class_enforcement: Option<&'a Enforcement>,
    #[serde(skip)]
    shown_enforcement: Vec<String>,
    #[serde(skip)]
    shown_remote: String,
}

impl<'a> ClassifiedFlow<'a> {
    fn of(view: &'a FlowView) -> Self {
        Self {
            cookie: view.flow.cookie,
            local: view.flow.local,
            remote: view.flow.remote,
            class: view.class,
            mark: view.mark,
            rule: &view.class_rule,
            reason: &view.class_reason,
            limit: view.limit.as_ref(),
            class_enforcement: view.class_enforcement.as_ref(),
            shown_enforcement: view.enforcement_shown(),
            shown_remote: view.flow.shown_remote(),
        }
    }

    fn line(&self) -> String {
        let marked = self.mark.map(|dscp| format!("; DSCP {dscp}"));
        let enforced: String = self.shown_enforcement.iter().map(|line| format!("; {line}")).collect();
        format!(
            "socket {}, {} to {}: class {}, rule {}: {}{}{enforced}",
            self.cookie.0,
            self.local,
            self.shown_remote,
            self.class.name(),
            self.rule,
            self.reason,
            marked.unwrap_or_default()
        )
    }
}

/// Whether it came from this socket, by its cookie or one of its addresses or ports.
fn is_of(subject: &str, refusal: &Refusal) -> bool {
    let ends = [refusal.local, refusal.remote];
    subject == "queue"
        || refusal.cookie.is_some_and(|cookie| cookie.0.to_string() == subject)
        || ends.iter().flatten().any(|end| is_end(subject, *end))
}

fn change_line(latest: &Latest, dry_run: bool) -> String {
    format!("{}: {}", when(latest.t_ns, latest.times), latest.change.shown(dry_run))
}

fn when(t_ns: u64, times: u64) -> String {
    let of_all = match times {
        1 => String::new(),
        times => format!(" (latest of {times})"),
    };
    format!("{}{of_all}", moment(t_ns))
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
        "{}: refused a packet {packet} because {}: {} us left, {} us needed on the link",
        when(refusal.t_ns, times as u64),
        refusal.reason.shown(),
        left_ns / 1000,
        refusal.work_ns / 1000,
    )
}

#[cfg(test)]
mod tests;
