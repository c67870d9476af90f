// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a scenario is: data. Which stations send what and when, on which medium, with which
//! configuration of giveway; what is expected of the numbers; what is drawn.
//! `runner` interprets it; nothing here runs anything.

pub mod chain;
pub mod deadline;
pub mod foreground;
pub mod response;
pub mod switch_cost;
pub mod turmoil;

use anyhow::Result;

use serde::{Deserialize, Serialize};

use crate::guest::Guest;
use crate::parameters::{Kind, Parameter, Parameters};
use chain::Chain;
use deadline::{AdmissionCost, Deadline, QdiscCost};
use foreground::{Foreground, Gate};
use response::{Runaway, Starts, Wakeup};
use switch_cost::SwitchCost;
use turmoil::Turmoil;

pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    /// How many stations are on the access point by default; none: it is not about the air.
    pub stations: Option<u64>,
    /// Defaults of the parameters that every scenario has.
    pub seconds: u64,
    pub warmup_s: u64,
    /// Parameters of its own.
    pub parameters: &'static [Parameter],
    pub plan: fn(&Parameters) -> Result<Plan>,
}

/// A scenario at given parameters.
pub struct Plan {
    pub variants: Vec<Variant>,
    pub checks: Vec<Check>,
    pub plots: Vec<Plot>,
    /// Metrics shown in the table for people, in this order.
    pub columns: &'static [&'static str],
}

pub struct Variant {
    pub name: String,
    /// The machine that it needs; none: this one.
    pub guest: Option<Guest>,
    pub experiment: Experiment,
}

/// Stations on one emulated access point, with a server behind it.
#[derive(Clone, Copy)]
pub struct AccessPoint {
    pub medium: &'static str,
    pub rtt_ms: u64,
    pub stations: usize,
    /// What the daemon on every station does; none runs without it.
    pub giveway: Option<Cap>,
}

/// The daemon's policy in the lab.
#[derive(Clone, Copy)]
pub enum Cap {
    /// P1's formula with P1's values, at this RTT.
    Formula { rtt_ms: u64 },
    /// The same number of segments whoever else sends (P1, figure 6).
    Segments(u64),
}

pub enum Experiment {
    OnAir(AccessPoint, OnAir),
    Cost(Cost),
    Chain(Chain),
    Deadline(Deadline),
    Foreground(Foreground),
    AdmissionCost(AdmissionCost),
    QdiscCost(QdiscCost),
    Turmoil(Turmoil),
    Gate(Gate),
    SwitchCost(SwitchCost),
    Wakeup(Wakeup),
    Starts(Starts),
    Runaway(Runaway),
}

/// What stations and server do.
pub enum OnAir {
    Transfer(Transfer),
    Converge(Converge),
    Crash(Crash),
    Lift(Lift),
}

/// Endless transfers from stations to the server (iperf3).
pub struct Transfer {
    pub protocol: Protocol,
    pub senders: Vec<Span>,
    pub warmup_s: f64,
    pub seconds: f64,
    /// Give each station's goodput too, as points `VARIANT/1`, `VARIANT/2`...
    pub per_station: bool,
    /// Keep every daemon's log, for the caps over time.
    pub record: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// One station's transfer, in seconds since the traffic began.
pub struct Span {
    pub station: usize,
    pub from_s: f64,
    pub to_s: f64,
}

/// How long until every neighbour's cap is right.
pub enum Converge {
    /// The number of senders walks from 2 to all and back; points `start` and `stop`.
    StartStop { events: u64, settle_s: f64 },
    /// A sender vanishes: daemon, guardian and traffic killed, station off the air.
    Death { events: u64, settle_s: f64 },
}

/// The daemon is killed at random moments while traffic runs.
pub struct Crash {
    pub kills: u64,
    /// The cap that the daemon holds, far below what a station gets without one.
    pub cap_segments: u64,
    /// The guardian dies too, and `giveway revert` has to clean up.
    pub guardian_too: bool,
}

/// What the daemon costs that watches. Not on the air: two namespaces and a wire.
pub struct Cost {
    /// Established connections of the watched namespace.
    pub sockets: u64,
    /// Of these, how many send.
    pub active: u64,
    /// A group key, and another daemon at the wire's other end.
    pub neighbour: bool,
    pub warmup_s: f64,
    pub seconds: f64,
}

/// What becomes of a connection whose cap is lifted, beside others that never had one.
pub struct Lift {
    pub repetitions: u64,
    /// What the first station's daemon holds until it ends; none: the first station never has a cap either.
    pub cap_segments: Option<u64>,
    pub warmup_s: f64,
    /// How long the cap is held each time.
    pub held_s: f64,
    /// How long is looked at after the lift, and as long before it.
    pub seconds: f64,
}

/// A number that the project promises (`Bound`) or strives for (`Goal`).
pub struct Check {
    pub name: String,
    pub kind: CheckKind,
    pub of: Quantity,
    pub holds: Relation,
    pub at: At,
}

#[derive(Clone, Copy, PartialEq)]
pub enum CheckKind {
    Bound,
    Goal,
}

pub enum Quantity {
    Metric {
        variant: String,
        metric: &'static str,
    },
    /// The metric of one variant over that of another.
    Ratio {
        variant: String,
        over: String,
        metric: &'static str,
    },
    /// The metric of one variant less that of another.
    Difference {
        variant: String,
        over: String,
        metric: &'static str,
    },
    /// Sum of one metric over the sum of another, over several variants.
    Pooled {
        variants: Vec<String>,
        metric: &'static str,
        over: &'static str,
    },
}

#[derive(Clone, Copy)]
pub enum Relation {
    Exactly(f64),
    Within { of: f64, tolerance: f64 },
    Between(f64, f64),
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

/// A bound belongs to given parameters.
#[derive(Clone, Copy, PartialEq)]
pub enum At {
    /// Holds whatever is set.
    Anything,
    /// Stated for the scenario's own stations, RTT and events, and at least its length.
    Defaults,
}

pub enum Plot {
    /// A metric over the number at the end of the variants' names; `levels` are drawn across.
    Sweep {
        file: &'static str,
        title: &'static str,
        x: &'static str,
        /// The metric, and how the axis says it.
        y: (&'static str, &'static str),
        lines: Vec<(&'static str, &'static str)>,
        levels: Vec<(&'static str, &'static str)>,
    },
    /// Each station's goodput, one group of bars a variant.
    Stations {
        file: String,
        title: String,
        variants: Vec<String>,
    },
    /// Something of every station over time, one chart a variant.
    Timeline { of: Trace, variants: Vec<String> },
    /// How many wake-ups were so late or later, on axes in powers of ten.
    Tail {
        file: String,
        title: String,
        points: Vec<String>,
    },
    /// The share of events that were over within the time on the axis; `axes` are named by what they show.
    Distribution {
        file: String,
        title: String,
        axes: (&'static str, &'static str),
        points: Vec<String>,
    },
}

#[derive(Clone, Copy, Deserialize, PartialEq, Serialize)]
pub enum Trace {
    Goodput,
    Cwnd,
    Cap,
}

pub const FIXED54: &str = "fixed54";
pub const ARF_LOSSY: &str = "arf-lossy";
const MEDIA: &[&str] = &[FIXED54, "arf", ARF_LOSSY];

/// The medium of this name, which `--set medium` has checked.
pub fn medium(name: &str) -> &'static str {
    MEDIA.iter().find(|medium| **medium == name).copied().unwrap_or(FIXED54)
}

impl Scenario {
    pub fn all_parameters(&self) -> Vec<Parameter> {
        let count = |name, default, least, most, about| Parameter {
            name,
            kind: Kind::Count { default, least, most },
            about,
        };
        let all = Kind::List { default: "" };
        let mut parameters = vec![
            count("seconds", self.seconds, 1, 86_400, "measured time of a variant"),
            count(
                "warmup_s",
                self.warmup_s,
                0,
                3_600,
                "time before it that is not measured",
            ),
            count("repeats", 1, 1, 100, "rounds; a metric is the mean over them"),
            count(
                "seed",
                1,
                0,
                u32::MAX.into(),
                "of the medium and of every random choice",
            ),
            Parameter {
                name: "variants",
                kind: all,
                about: "only these, or those below them",
            },
        ];
        if let Some(stations) = self.stations {
            parameters.extend([
                count("stations", stations, 1, 16, "stations on the access point"),
                count("rtt_ms", 256, 2, 2_000, "round trip behind the access point"),
                Parameter {
                    name: "medium",
                    kind: Kind::Choice { of: MEDIA },
                    about: "instead of the scenario's own",
                },
            ]);
        }
        // A scenario may have its own default of what every scenario has.
        parameters.retain(|parameter| self.parameters.iter().all(|own| own.name != parameter.name));
        parameters.extend(self.parameters);
        parameters
    }

    /// Whether this run is one that the scenario's bounds were stated for.
    pub fn is_at_defaults(&self, parameters: &Parameters) -> bool {
        let own = |p: &Parameter| match (p.name, p.kind) {
            ("seconds", Kind::Count { default, .. }) => parameters.count("seconds") >= default,
            ("warmup_s", Kind::Count { default, .. }) => parameters.count("warmup_s") >= default,
            ("seed" | "repeats" | "medium" | "variants", _) => true,
            (name, Kind::Count { default, .. }) => parameters.count(name) == default,
            _ => true,
        };
        self.all_parameters().iter().all(own)
    }
}

impl Transfer {
    /// The first `senders` stations send all the time, for as long as the user set.
    pub fn steady(parameters: &Parameters, protocol: Protocol, senders: usize) -> Self {
        let seconds = |name| parameters.count(name) as f64;
        Self::of(protocol, senders, seconds("warmup_s"), seconds("seconds"))
    }

    pub fn of(protocol: Protocol, senders: usize, warmup_s: f64, seconds: f64) -> Self {
        let span = |station| Span {
            station,
            from_s: 0.0,
            to_s: warmup_s + seconds,
        };
        Self {
            protocol,
            senders: (0..senders).map(span).collect(),
            warmup_s,
            seconds,
            per_station: false,
            record: false,
        }
    }
}

impl Check {
    /// A bound on one metric of one variant or point, named after both.
    pub fn metric(variant: &str, metric: &'static str, holds: Relation) -> Self {
        let of = Quantity::Metric {
            variant: variant.into(),
            metric,
        };
        Self::of(format!("{variant} {metric}"), of, holds)
    }

    /// A bound at the scenario's defaults.
    pub fn of(name: String, of: Quantity, holds: Relation) -> Self {
        Self {
            name,
            kind: CheckKind::Bound,
            of,
            holds,
            at: At::Defaults,
        }
    }

    pub fn goal(self) -> Self {
        let kind = CheckKind::Goal;
        Self { kind, ..self }
    }

    /// Holds whatever is set.
    pub fn always(self) -> Self {
        let at = At::Anything;
        Self { at, ..self }
    }
}

impl Variant {
    /// On this machine's kernel.
    pub fn on_air(name: String, access_point: AccessPoint, what: OnAir) -> Self {
        Self {
            name,
            guest: None,
            experiment: Experiment::OnAir(access_point, what),
        }
    }

    pub fn access_point(&self) -> Option<&AccessPoint> {
        match &self.experiment {
            Experiment::OnAir(access_point, _) => Some(access_point),
            _ => None,
        }
    }
}

impl Experiment {
    /// Roughly how long it takes, for the progress line.
    pub fn estimated_s(&self) -> f64 {
        const RAISE_AND_REPORT: f64 = 6.0;
        RAISE_AND_REPORT
            + match self {
                Experiment::OnAir(access_point, what) => what.estimated_s(access_point.stations),
                Experiment::Cost(cost) => cost.warmup_s + cost.seconds * 1.3 + cost.sockets as f64 * 1e-3,
                Experiment::Chain(chain) => chain.estimated_s(),
                Experiment::Deadline(deadline) => deadline.estimated_s(),
                Experiment::Foreground(foreground) => foreground.estimated_s(),
                Experiment::AdmissionCost(_) => 5.0,
                Experiment::QdiscCost(cost) => cost.bursts as f64 * 0.05,
                Experiment::Turmoil(turmoil) => turmoil.seconds + 60.0,
                Experiment::Gate(gate) => gate.estimated_s(),
                Experiment::SwitchCost(cost) => cost.estimated_s(),
                Experiment::Wakeup(wakeup) => wakeup.estimated_s(),
                Experiment::Starts(starts) => starts.estimated_s(),
                Experiment::Runaway(runaway) => runaway.estimated_s(),
            }
    }
}

impl OnAir {
    fn estimated_s(&self, stations: usize) -> f64 {
        match self {
            OnAir::Transfer(transfer) => transfer.warmup_s + transfer.seconds,
            OnAir::Converge(Converge::StartStop { events, settle_s }) => {
                *events as f64 * 2.0 * (settle_s + 0.5) + stations as f64 / 2.0
            }
            OnAir::Converge(Converge::Death { events, settle_s }) => *events as f64 * (settle_s + 6.5),
            OnAir::Crash(crash) => crash.kills as f64 * 1.6,
            OnAir::Lift(lift) => lift.warmup_s + lift.repetitions as f64 * (lift.held_s + lift.seconds + 2.0),
        }
    }
}

impl Cap {
    /// The cap of a lone connection while `senders` stations send.
    ///
    /// P1, section 2.3: floor((capacity x RTT - margin) / (segment x N)); with 20 Mbit/s, 120 kB
    /// and 1,500 bytes it gives the paper's table 2. The margin is at most a fifth of
    /// capacity x RTT and the floor 4 segments (giveway's own limits).
    pub fn segments(&self, senders: u64) -> u64 {
        match self {
            Cap::Segments(segments) => *segments,
            Cap::Formula { rtt_ms } => {
                let in_flight_bytes = PAPER_CAPACITY_MBIT * 1_000_000 / 8 * rtt_ms / 1_000;
                let margin_bytes = PAPER_MARGIN_BYTES.min(in_flight_bytes / 5);
                let share = (in_flight_bytes - margin_bytes) / (PAPER_SEGMENT_BYTES * senders);
                share.max(4)
            }
        }
    }
}

pub const PAPER_CAPACITY_MBIT: u64 = 20;
pub const PAPER_MARGIN_BYTES: u64 = 120_000;
pub const PAPER_SEGMENT_BYTES: u64 = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_gives_the_papers_table_2() {
        let cap = Cap::Formula { rtt_ms: 256 };
        assert_eq!([5, 6, 7, 8].map(|n| cap.segments(n)), [69, 57, 49, 43]);
    }

    #[test]
    fn a_short_path_keeps_four_fifths_and_four_segments() {
        assert_eq!(Cap::Formula { rtt_ms: 100 }.segments(2), 66);
        assert_eq!(Cap::Formula { rtt_ms: 2 }.segments(8), 4);
    }
}
