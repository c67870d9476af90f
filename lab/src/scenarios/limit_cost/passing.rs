// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unlimited connections at the machine's full speed, while one limit exists and while none does: by turns, in the same
//! connections. The limit is that of a program that is connected and sends nothing.

use std::cell::Cell;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::flows::{Flows, start_far};
use super::place::{LoadedDevice, UsageInterval, UsageTotals, configuration};
use crate::bpf_objects::{Nothing, enable_statistics};
use crate::experiment::{Run, pause};
use crate::giveway::{Daemon, answers};
use crate::interrupt::{wait_for, wait_until};
use crate::outcome::Outcome;
use crate::role::Role;
use crate::statistics::percentile;
use crate::traffic::Direction;

const PORT: u16 = 5_701;
const SILENT_PORT: u16 = 5_702;
const LIMIT_KBIT: u64 = 1_000;
/// The client's message when the daemon does not answer in time.
const UNANSWERED: &str = "did not answer within";
const SWITCHED_WITHIN: Duration = Duration::from_secs(120);
/// For new connections, and after each change.
const BEGIN_S: f64 = 1.0;
const SETTLE_S: f64 = 0.1;

#[derive(Clone, Copy)]
pub struct Passing {
    pub way: Direction,
    pub gro: bool,
    pub connections: usize,
    /// Of both states; 0: only their programs are measured.
    pub rounds: u64,
    pub window_s: f64,
}

/// By name: whether there is a limit, which none of the traffic has.
pub const STATES: [(&str, bool); 2] = [("no-limit", false), ("one-limit", true)];

/// The device under load.
struct LoadedPlace<'a> {
    place: &'a LoadedDevice,
    daemon: &'a Daemon,
    silent: &'a Role,
    passing: Passing,
    is_limited: bool,
    /// How often the daemon did not answer in time.
    unanswered: Cell<u32>,
}

/// Mbit/s in each state.
#[derive(Clone, Copy, Serialize)]
struct Round {
    no_limit_mbit: f64,
    one_limit_mbit: f64,
}

impl Passing {
    pub fn run(self, run: &Run) -> Result<Outcome> {
        let place = LoadedDevice::raise()?;
        place.set_offloads(self.way, self.gro)?;
        let _far = start_far(&place.peer, &[(PORT, Some(self.way)), (SILENT_PORT, None)])?;
        let mut daemon = Daemon::raise(&place.device, &configuration(), &run.file(""))?;
        let start = |port, connections, way| Flows { port, connections, way }.start(&place.device);
        let silent = start(SILENT_PORT, 1, None)?;
        let _flows = start(PORT, self.connections, Some(self.way))?;
        pause(BEGIN_S)?;
        let mut load = LoadedPlace {
            place: &place,
            daemon: &daemon,
            silent: &silent,
            passing: self,
            is_limited: false,
            unanswered: Cell::new(0),
        };
        let mut outcome = Outcome::default();
        load.compare(run, &mut outcome)?;
        load.measure_programs(run, &mut outcome)?;
        outcome.set(run.name, "unanswered", f64::from(load.unanswered.get()));
        daemon.stop()?;
        Ok(outcome)
    }
}

impl LoadedPlace<'_> {
    /// Each round begins with the state that the round before has ended with.
    fn compare(&mut self, run: &Run, outcome: &mut Outcome) -> Result<()> {
        let mut rounds = Vec::new();
        for number in 0..self.passing.rounds {
            run.progress
                .tick(&format!("round {} of {}", number + 1, self.passing.rounds));
            rounds.push(self.round()?);
        }
        run.keep(&rounds)?;
        let ratios: Vec<_> = rounds
            .iter()
            .map(|round| round.one_limit_mbit / round.no_limit_mbit)
            .collect();
        for (state, is_limited) in STATES {
            let mbit: Vec<_> = rounds.iter().map(|round| round.of(is_limited)).collect();
            let point = format!("{}/{}", run.name, state);
            outcome.set(&point, "mbit", percentile(&mbit, 50.0));
        }
        outcome.percentiles(run.name, "ratio_*", &ratios, &[0, 25, 50, 75, 100]);
        Ok(())
    }

    fn round(&mut self) -> Result<Round> {
        let first = self.is_limited;
        let [of_first, of_other] = [self.mbit_in(first)?, self.mbit_in(!first)?];
        let (no_limit_mbit, one_limit_mbit) = if first {
            (of_other, of_first)
        } else {
            (of_first, of_other)
        };
        Ok(Round {
            no_limit_mbit,
            one_limit_mbit,
        })
    }

    fn mbit_in(&mut self, is_limited: bool) -> Result<f64> {
        self.switch(is_limited)?;
        Ok(self.period()?.mbit())
    }

    fn period(&self) -> Result<UsageInterval> {
        let before = UsageTotals::read(self.daemon, self.passing.way)?;
        pause(self.passing.window_s)?;
        Ok(UsageTotals::read(self.daemon, self.passing.way)?.since(&before))
    }

    /// The programs' run time in each state, apart from the rounds: the kernel's counting costs something itself.
    fn measure_programs(&mut self, run: &Run, outcome: &mut Outcome) -> Result<()> {
        for (state, is_limited) in STATES {
            run.progress.tick(&format!("programs, {}", state));
            self.switch(is_limited)?;
            let _statistics = enable_statistics()?;
            let nothing = Nothing::load()?;
            let before = nothing.program.runs()?;
            let period = self.period()?;
            let clock = nothing.program.runs()? - before;
            let clock_ns = clock.time_ns as f64 / clock.count.max(1) as f64;
            let point = format!("{}/{}", run.name, state);
            set_metrics(outcome, &point, &period, clock_ns);
            let attached = self.place.attached(self.daemon)?;
            for (what, count) in attached {
                outcome.set(&point, what, count as f64);
            }
            let all: usize = attached.iter().map(|(_, count)| count).sum();
            outcome.set(&point, "attached", all as f64);
        }
        Ok(())
    }

    /// A daemon on a busy machine may not answer in time: it is asked again, and that is counted. Any other error is
    /// one.
    fn insist<T>(&self, what: &str, ask: impl Fn() -> Result<T>) -> Result<T> {
        wait_for(what, SWITCHED_WITHIN, || match ask() {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if format!("{error:#}").contains(UNANSWERED) => {
                self.unanswered.set(self.unanswered.get() + 1);
                Ok(None)
            }
            Err(error) => Err(error),
        })
    }

    fn switch(&mut self, is_limited: bool) -> Result<()> {
        if is_limited == self.is_limited {
            return Ok(());
        }
        let kbit = is_limited.then_some(LIMIT_KBIT);
        let device = &self.place.device;
        self.insist("the limit to be taken", || {
            answers::limit_by_hand(device, self.silent.id(), kbit)
        })?;
        wait_until("the limit to be installed or taken down", SWITCHED_WITHIN, || {
            let network = self.insist("the status", || answers::status(device))?.network;
            let held = [network.downloads, network.uploads].map(|view| !view.links.is_empty());
            Ok(held == [is_limited; 2])
        })?;
        self.is_limited = is_limited;
        pause(SETTLE_S)
    }
}

impl Round {
    fn of(self, is_limited: bool) -> f64 {
        if is_limited {
            self.one_limit_mbit
        } else {
            self.no_limit_mbit
        }
    }
}

fn set_metrics(outcome: &mut Outcome, point: &str, period: &UsageInterval, clock_ns: f64) {
    outcome.set(point, "clock_ns", clock_ns);
    outcome.set(point, "limits_ns_per_packet", period.limits_ns_per_packet(clock_ns));
    outcome.set(point, "limits_runs_per_packet", period.limits_runs_per_packet());
    outcome.set(point, "all_ns_per_packet", period.all_ns_per_packet(clock_ns));
    for (name, runs) in period.of_limits() {
        let each = runs.net_ns(clock_ns) / runs.count as f64;
        outcome.set(point, &format!("{name}_ns"), each);
    }
}
