// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A rule's limit in one and in many connections: what leaves the limit's device in every window of ten seconds, how the
//! connections share it, and what a new one gets before it is known. For what is received by TCP and CUBIC; and at some limits
//! for what is sent, for both at once, by BBR, IPv6, and UDP that does not slow down.
//!
//! On this machine the round trip is that of a wire without a delay; with one, which takes netem, in the guest.

mod path;

use std::time::Duration;

use anyhow::Result;
use giveway_engine::enforcement::limit_use::LimitUse;
use giveway_engine::model::Flow;
use serde_json::{Value, json};
use strum::IntoStaticStr;

use super::passed::{Limit, Samples, counted, sample, stays_near};
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::guest::Guest;
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::process::Process;
use crate::role::Role;
use crate::scenario::{Check, Plot, Relation, Variant};
use crate::statistics::jain;
use crate::traffic::endless::{Arrivals, start_datagrams, start_sender, start_sink, start_sink_v6};
use path::{Endpoint, Path};

const LIMITS_MBIT: [f64; 4] = [0.5, 2.5, 20.0, 200.0];
/// Of uploads and of other transports.
const SOME_LIMITS_MBIT: [f64; 2] = [0.5, 20.0];
/// An emulated processor passes no more on.
const GUEST_LIMITS_MBIT: [f64; 3] = [0.5, 2.5, 20.0];
const CONNECTIONS: [usize; 3] = [1, 4, 16];
const FEW_AND_MANY: [usize; 2] = [1, 16];
const RTTS_MS: [u64; 2] = [40, 200];
/// Where the queue inside a limit is fair.
const JAIN: f64 = 0.9;
/// Of the limit, in the first second of a connection.
const FIRST_SECOND: f64 = 1.5;
/// Of the limit, what is sent of UDP that does not slow down.
const TOO_MUCH: f64 = 2.0;
const INSTALL_WITHIN: Duration = Duration::from_secs(30);

/// What differs from a download by CUBIC.
#[derive(Clone, Copy, IntoStaticStr, PartialEq)]
#[strum(serialize_all = "lowercase")]
enum TransferKind {
    Down,
    Up,
    Both,
    Bbr,
    Ipv6,
    Udp,
}

#[derive(Clone, Copy, PartialEq)]
enum LimitDirection {
    Down,
    Up,
}

#[derive(Clone, Copy)]
struct Trial {
    kind: TransferKind,
    limit_mbit: f64,
    connections: usize,
    /// None: a wire on this machine.
    rtt_ms: Option<u64>,
    warmup_s: f64,
    seconds: f64,
}

/// What comes through a limit, and what counts it.
struct Stream<'a> {
    way: LimitDirection,
    from: Endpoint<'a>,
    to: Endpoint<'a>,
    sink: Role,
    senders: Vec<Process>,
}

impl TransferKind {
    /// Beside downloads.
    const OTHERS: [Self; 5] = [Self::Up, Self::Both, Self::Bbr, Self::Ipv6, Self::Udp];

    fn name(self) -> &'static str {
        self.into()
    }

    fn ways(self) -> &'static [LimitDirection] {
        match self {
            Self::Up => &[LimitDirection::Up],
            Self::Both => &[LimitDirection::Down, LimitDirection::Up],
            _ => &[LimitDirection::Down],
        }
    }

    /// Where a way's figures are in the report.
    fn point(self, name: &str, way: LimitDirection) -> String {
        match self {
            Self::Both => format!("{name}/{}", way.name()),
            _ => name.to_owned(),
        }
    }
}

impl LimitDirection {
    fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
        }
    }

    fn device(self) -> &'static str {
        match self {
            Self::Down => "giveway-down",
            Self::Up => "giveway-up",
        }
    }

    /// Where it is received.
    fn port(self) -> u16 {
        match self {
            Self::Down => 5301,
            Self::Up => 5302,
        }
    }

    fn rule(self, limit_mbit: f64) -> Value {
        match self {
            Self::Down => json!({"local_port": self.port(), "class": "standard", "download_limit_mbit": limit_mbit}),
            Self::Up => json!({"port": self.port(), "class": "standard", "upload_limit_mbit": limit_mbit}),
        }
    }
}

pub fn variants(parameters: &Parameters) -> Result<Vec<Variant>> {
    let variant = |(place, rtt_ms, kind, connections, limit_mbit): (String, _, TransferKind, _, _)| {
        let beside = (kind != TransferKind::Down).then(|| format!("/{}", kind.name()));
        let name = format!("{place}/{connections}/{limit_mbit}{}", beside.unwrap_or_default());
        let trial = Trial {
            kind,
            limit_mbit,
            connections,
            rtt_ms,
            warmup_s: parameters.seconds("warmup_s"),
            seconds: parameters.seconds("seconds"),
        };
        let checks = trial.checks(&name);
        trial.variant(name).expect(checks)
    };
    Ok(cells().into_iter().map(variant).collect())
}

pub fn figures() -> Vec<Plot> {
    let labels = ["1 connection", "4 connections", "16 connections"];
    let lines = labels.into_iter().zip(CONNECTIONS.map(|count| format!("host/{count}")));

    let title = "What a rule's flows receive together, beside its limit";
    let y = ("passed_of_limit", "received, of the limit");
    vec![Plot::sweep("download-limit", title, "limit, Mbit/s", y, lines)]
}

/// Place, round trip, kind, connections and limit of each.
fn cells() -> Vec<(String, Option<u64>, TransferKind, usize, f64)> {
    let host = ("host".to_owned(), None);
    let guests = RTTS_MS.map(|rtt_ms| (format!("guest-{rtt_ms}ms"), Some(rtt_ms)));
    let mut cells = Vec::new();
    let mut add = |(place, rtt_ms): &(String, _), kind, connections: &[usize], limits_mbit: &[f64]| {
        for connections in connections {
            cells.extend(
                limits_mbit
                    .iter()
                    .map(|limit| (place.clone(), *rtt_ms, kind, *connections, *limit)),
            );
        }
    };
    add(&host, TransferKind::Down, &CONNECTIONS, &LIMITS_MBIT);
    for guest in &guests {
        add(guest, TransferKind::Down, &CONNECTIONS, &GUEST_LIMITS_MBIT);
    }
    for kind in TransferKind::OTHERS {
        add(&host, kind, &FEW_AND_MANY, &SOME_LIMITS_MBIT);
        add(&guests[0], kind, &FEW_AND_MANY, &SOME_LIMITS_MBIT);
    }
    cells
}

impl Trial {
    fn checks(&self, name: &str) -> Vec<Check> {
        let is_possible = self.kind != TransferKind::Bbr && (self.limit_mbit, self.connections) != (0.5, 16);
        let mut checks = Vec::new();
        for point in self.kind.ways().iter().map(|way| self.kind.point(name, *way)) {
            // BBR, and less than three packets a second for each connection: what is possible.
            checks.extend(stays_near(&point).map(|check| if is_possible { check } else { check.goal() }));
            let first = Check::metric(&point, "first_second_of_limit", Relation::AtMost(FIRST_SECOND));
            checks.push(first.always());
            // Eight queues chosen by a hash are fair only by chance: wanted, and reported.
            if self.connections > 1 && self.kind != TransferKind::Udp {
                checks.push(Check::metric(&point, "jain", Relation::AtLeast(JAIN)).goal());
            }
        }
        checks
    }

    fn variant(self, name: String) -> Variant {
        let guest = self.rtt_ms.map(|_| Guest::VIRTUAL);
        let seconds = self.warmup_s + self.seconds + 3.0;
        Variant::new(name, guest, seconds, move |run| self.run(run))
    }

    /// Transfers under a rule that was there before them.
    fn run(self, run: &Run) -> Result<Outcome> {
        let path = Path::raise(self.rtt_ms)?;
        let ends = if self.kind == TransferKind::Ipv6 {
            path.ends_v6()?
        } else {
            path.ends()
        };
        let (device, ways) = (ends[0].at, self.kind.ways());
        let rules: Vec<Value> = ways.iter().map(|way| way.rule(self.limit_mbit)).collect();
        let configuration = json!({"cap": {"policy": "none"}, "queue": {"backend": "none"}, "rule": rules});
        let mut daemon = Daemon::raise(device, &configuration, &run.file(""))?;
        wait_until("the limits' devices", INSTALL_WITHIN, || {
            let network = answers::status(device)?.network;
            let are_up = |way: &LimitDirection| match way {
                LimitDirection::Down => !network.downloads.links.is_empty(),
                LimitDirection::Up => !network.uploads.links.is_empty(),
            };
            Ok(ways.iter().all(are_up))
        })?;
        let streams = ways.iter().map(|way| Stream::start(*way, ends, self));
        let mut streams: Vec<Stream> = streams.collect::<Result<_>>()?;
        run.progress.tick("transferring");
        pause(1.0)?;
        for stream in &mut streams {
            let others = (1..self.connections).map(|_| stream.sender(self));
            let others: Vec<_> = others.collect::<Result<_>>()?;
            stream.senders.extend(others);
        }
        pause(self.warmup_s)?;
        let transferred = |way| transferred_bytes(device, way);
        let before: Vec<_> = ways.iter().map(|way| transferred(*way)).collect::<Result<_>>()?;
        let passed_bytes = |way: &LimitDirection| counted(device, way.device(), "rx/bytes");
        let passed = sample(self.seconds, || ways.iter().map(passed_bytes).collect())?;
        let after: Vec<_> = ways.iter().map(|way| transferred(*way)).collect::<Result<_>>()?;
        run.keep(&passed)?;
        let dropped = dropped(&answers::status(device)?.network.limits);
        let mut outcome = Outcome::default();
        for (index, stream) in streams.into_iter().enumerate() {
            let point = self.kind.point(run.name, stream.way);
            let first_mbit = stream.first_second_mbit()?;
            self.set_metrics(&mut outcome, &point, &passed[index], first_mbit)?;
            let shares = after[index].iter().zip(&before[index]);
            let shares: Vec<f64> = shares.map(|(after, before)| (after - before) as f64).collect();
            outcome.set(&point, "jain", jain(&shares));
        }
        outcome.set(run.name, "dropped_packets", dropped);
        daemon.stop()?;
        Ok(outcome)
    }

    fn set_metrics(self, outcome: &mut Outcome, point: &str, passed: &Samples, first_mbit: Option<f64>) -> Result<()> {
        let limit = Limit {
            mbit: self.limit_mbit,
            seconds: self.seconds,
        };
        limit.set_metrics(outcome, point, "passed_of_limit", passed)?;
        let of_limit = first_mbit.map(|mbit| mbit / self.limit_mbit);
        outcome.set(point, "first_second_of_limit", of_limit);
        Ok(())
    }
}

impl<'a> Stream<'a> {
    /// With one connection.
    fn start(way: LimitDirection, [device, far]: [Endpoint<'a>; 2], trial: Trial) -> Result<Self> {
        let (from, to) = match way {
            LimitDirection::Down => (far, device),
            LimitDirection::Up => (device, far),
        };
        let start = if trial.kind == TransferKind::Ipv6 {
            start_sink_v6
        } else {
            start_sink
        };
        let mut stream = Self {
            way,
            from,
            to,
            sink: start(to.at, &[way.port()])?,
            senders: Vec::new(),
        };
        stream.senders.push(stream.sender(trial)?);
        Ok(stream)
    }

    fn sender(&self, trial: Trial) -> Result<Process> {
        let (from, to, port) = (self.from.at, self.to.address, self.way.port());
        match trial.kind {
            TransferKind::Udp => {
                start_datagrams(from, to, port, TOO_MUCH * trial.limit_mbit / trial.connections as f64)
            }
            TransferKind::Bbr => start_sender(from, to, port, "bbr"),
            _ => start_sender(from, to, port, "cubic"),
        }
    }

    /// With headers, from the first that came.
    fn first_second_mbit(self) -> Result<Option<f64>> {
        const SECOND_NS: u64 = 1_000_000_000;
        drop(self.senders);
        let (port, arrivals): (u16, Arrivals) = (self.way.port(), self.sink.finish()?);
        let first_ns = arrivals.first_ns(port, 0);
        Ok(first_ns.map(|first_ns| arrivals.mbit(port, (first_ns, first_ns + SECOND_NS))))
    }
}

/// Payload of each connection, as the kernel counts it, in the order of their cookies.
fn transferred_bytes(device: &Namespace, way: LimitDirection) -> Result<Vec<u64>> {
    let status = answers::status(device)?;
    let mut flows: Vec<_> = status.network.flows.iter().map(|view| &view.flow).collect();
    flows.retain(|flow| {
        let end = match way {
            LimitDirection::Down => flow.local,
            LimitDirection::Up => flow.remote,
        };
        end.port() == way.port()
    });
    flows.sort_by_key(|flow| flow.cookie);
    let bytes = |flow: &&Flow| match way {
        LimitDirection::Down => flow.received_bytes,
        LimitDirection::Up => flow.acked_bytes,
    };
    Ok(flows.iter().map(bytes).collect())
}

fn dropped(limits: &[LimitUse]) -> Option<f64> {
    let ways = limits
        .iter()
        .flat_map(|limit| [&limit.download, &limit.upload])
        .flatten();
    let queues = ways.filter_map(|way| way.queue.map(|queue| queue.passed.dropped_packets as f64));
    queues.reduce(|a, b| a + b)
}
