// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways in which a limit can fail to reach a packet. A command is given 2 Mbit/s and offers 10: what arrives at the other
//! end, and, where that is more, where giveway says so and in which words. Neither is a failed check.

mod ring;
pub mod sender;
mod stage;
pub mod tunnel;

use anyhow::Result;

use crate::experiment::{Run, pause};
use crate::guest::Guest;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use sender::SocketKind;
use stage::ReachTestbed;

pub const SCENARIO: Scenario = Scenario {
    name: "reach",
    about: "Ways in which a limit can fail to reach a packet (tunnels, namespaces, unusual sockets, a missing daemon): it holds, or giveway says that it does not",
    seconds: 4,
    warmup_s: 2,
    parameters: &[],
    plan: &plan,
};

const LIMIT_MBIT: f64 = 2.0;
const OFFERED_MBIT: f64 = 10.0;
/// What arrives, of the limit, where that holds.
const HOLDS: f64 = 1.1;
/// Less would be a sender that did not send.
const SENDS: f64 = 0.2;

/// What stands between the command and the link.
#[derive(Clone, Copy, PartialEq)]
enum SendingPath {
    /// Nothing.
    Link,
    /// The command goes on in a network namespace that has a link of its own.
    OtherNamespace,
    /// A program that carries what it reads from a TUN device, in UDP of its own.
    Tunnel,
    WireGuard,
    /// The limit is a rule's, for what WireGuard's own socket in the kernel sends.
    KernelSocket,
    /// It leaves by another link than the managed one.
    Unmanaged,
    /// The link's root qdisc is another tool's.
    NoQueue,
    /// The connection was made by a process without a limit, which keeps it open.
    Shared,
    /// The command goes on in a namespace whose packets this machine forwards.
    Forwarded,
    DryRun,
    Paused,
    NoDaemon,
    /// giveway is started again while the command runs.
    Restarted,
    /// As many commands have a limit as may.
    TooMany,
    Loopback,
    Macvlan,
    /// The link has the default route of a table of its own, and nothing names it.
    SecondUplink,
    /// The packets' source address is rewritten on their way out.
    Snat,
}

const CELLS: [(&str, SendingPath, SocketKind); 25] = [
    ("tcp", SendingPath::Link, SocketKind::Tcp),
    ("udp", SendingPath::Link, SocketKind::Udp),
    ("udp-not-connected", SendingPath::Link, SocketKind::UdpNotConnected),
    ("raw-socket", SendingPath::Link, SocketKind::Raw),
    ("packet-socket", SendingPath::Link, SocketKind::Packet),
    ("io-uring", SendingPath::Link, SocketKind::IoUring),
    ("mptcp", SendingPath::Link, SocketKind::Mptcp),
    ("shared-connection", SendingPath::Shared, SocketKind::Tcp),
    ("other-namespace", SendingPath::OtherNamespace, SocketKind::Tcp),
    ("forwarded", SendingPath::Forwarded, SocketKind::Tcp),
    ("tun", SendingPath::Tunnel, SocketKind::Udp),
    ("wireguard", SendingPath::WireGuard, SocketKind::Udp),
    ("kernel-socket", SendingPath::KernelSocket, SocketKind::Udp),
    ("unmanaged-link", SendingPath::Unmanaged, SocketKind::Tcp),
    (
        "unmanaged-link-udp",
        SendingPath::Unmanaged,
        SocketKind::UdpNotConnected,
    ),
    ("no-queue", SendingPath::NoQueue, SocketKind::Tcp),
    ("macvlan", SendingPath::Macvlan, SocketKind::Tcp),
    ("second-uplink", SendingPath::SecondUplink, SocketKind::Tcp),
    ("snat", SendingPath::Snat, SocketKind::Tcp),
    ("loopback", SendingPath::Loopback, SocketKind::Tcp),
    ("dry-run", SendingPath::DryRun, SocketKind::Tcp),
    ("paused", SendingPath::Paused, SocketKind::Tcp),
    ("no-daemon", SendingPath::NoDaemon, SocketKind::Tcp),
    ("restarted", SendingPath::Restarted, SocketKind::Tcp),
    ("too-many", SendingPath::TooMany, SocketKind::Tcp),
];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    for (name, way, kind) in CELLS {
        // The host's kernel need not have it.
        let guest = matches!(way, SendingPath::WireGuard | SendingPath::KernelSocket).then_some(Guest::VIRTUAL);
        let act = move |run: &Run| send(way, kind, warmup_s, seconds, run);
        let variant = Variant::new(name, guest, 6.0 + warmup_s + seconds, act);
        variants.push(variant.with(&["wg"]));
        let metric = |metric, holds| Check::metric(name, metric, holds).always();
        checks.extend([
            metric("arrived_of_limit", Relation::AtLeast(SENDS)),
            metric("silently_exceeded", Relation::Exactly(0.0)),
        ]);
        if way == SendingPath::Link && !matches!(kind, SocketKind::Raw | SocketKind::Packet) {
            // Nor is it said where it is not so.
            checks.push(metric("reported", Relation::Exactly(0.0)));
            checks.push(metric("arrived_of_limit", Relation::AtMost(HOLDS)));
        }
        if way == SendingPath::KernelSocket {
            // A rule that a packet alone can match needs no process.
            checks.push(metric("arrived_of_limit", Relation::AtMost(HOLDS)));
        }
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![],
        columns: "arrived_of_limit holds reported silently_exceeded",
    })
}

fn send(way: SendingPath, kind: SocketKind, warmup_s: f64, seconds: f64, run: &Run) -> Result<Outcome> {
    let mut stage = ReachTestbed::raise(way, run)?;
    stage.start_daemon(run)?;
    stage.disturb_before()?;
    stage.start_sender(kind, run)?;
    stage.disturb_after(run)?;
    run.progress.tick("sending");
    pause(warmup_s)?;
    let before = stage.arrived()?;
    pause(seconds)?;
    let mbit = (stage.arrived()? - before) as f64 * 8e-6 / seconds;
    let said = stage.said(run)?;
    let mut outcome = Outcome::default();
    let of_limit = mbit / LIMIT_MBIT;
    let holds = of_limit <= HOLDS;
    outcome.set(run.name, "arrived_of_limit", of_limit);
    outcome.set(run.name, "holds", f64::from(u8::from(holds)));
    outcome.set(run.name, "reported", said.len() as f64);
    let is_silent = !holds && said.is_empty();
    outcome.set(run.name, "silently_exceeded", f64::from(u8::from(is_silent)));
    let arrived = format!("{mbit:.2} of {LIMIT_MBIT} Mbit/s arrive");
    outcome.note(run.name, if holds { "holds" } else { "beyond" }, &arrived);
    for (place, words) in &said {
        outcome.note(run.name, place, words);
    }
    stage.end()?;
    Ok(outcome)
}
