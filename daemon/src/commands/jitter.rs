// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway jitter`: how late this machine wakes up, and why. Threads wake up periodically, beside the loads that were
//! asked for. Output: the distribution and the worst wake-ups with what made them late. Needs no daemon, and
//! changes nothing that lasts longer than itself.

pub mod args;
mod cause;
mod chart;
pub mod distribution;
pub mod load;
mod machine;
mod policy;
mod recorder;
mod report;
mod terminal;
mod waker;

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use args::JitterArgs;
use distribution::Distribution;
use load::Loads;
use recorder::Recorder;
pub use report::JitterReport;
use terminal::ProgressLines;
use waker::{Wakers, Wakeup, now_ns};

use crate::commands::print_json;

/// How often wake-ups are taken over and shown.
const LOOK_EVERY_MS: u8 = 200;

/// What has been measured so far.
#[derive(Debug, Default)]
pub struct JitterMeasurement {
    pub distribution: Distribution,
    pub missed: u64,
    pub elapsed: Duration,
    /// The latest ones, latest first.
    pub worst: Vec<Wakeup>,
}

impl JitterMeasurement {
    fn add(&mut self, wakeup: Wakeup, keep: usize) {
        self.distribution.add(wakeup.late_ns());
        self.missed += wakeup.missed;
        let place = self.worst.partition_point(|worse| worse.late_ns() >= wakeup.late_ns());
        if place < keep {
            self.worst.truncate(keep - 1);
            self.worst.insert(place, wakeup);
        }
    }

    /// What is less late than this is not among the worst.
    fn worst_from_ns(&self, keep: usize) -> u64 {
        match self.worst.last() {
            _ if keep == 0 => u64::MAX,
            Some(last) if self.worst.len() >= keep => last.late_ns(),
            _ => 0,
        }
    }
}

pub fn run(args: &JitterArgs) -> Result<()> {
    args.check()?;
    let interrupt = interrupt()?;
    let mut loads = Loads::start(&args.loads(), args.expected())?;
    let _steady = machine::hold_steady(args.deep_idle);
    let steal_before_ms = machine::steal_ms()?;
    let recorder = (!args.no_causes).then(|| Recorder::open().map(Arc::new)).transpose();
    let recorder = recorder.context("the causes cannot be looked for (--no-causes measures without them)")?;
    let wakers = Wakers::start(args, recorder.as_ref())?;
    let is_watched = !args.json && std::io::stdout().is_terminal();
    let mut screen = ProgressLines::new(args, is_watched);
    let measured = measure(args, &wakers, &interrupt, &mut screen)?;
    let installed = wakers
        .threads
        .iter()
        .map(|thread| policy::of(*thread))
        .collect::<Result<_>>()?;
    loads.check()?;
    drop(loads);
    ensure!(
        measured.distribution.count() > 0,
        "interrupted before the first wake-up"
    );
    let steal_ms = machine::steal_ms()?.saturating_sub(steal_before_ms);
    let report = JitterReport::new(args, &wakers, &measured, installed, steal_ms);
    if let Some(path) = &args.svg {
        chart::draw(&measured.distribution, &report.title(args), path)
            .with_context(|| format!("cannot draw {}", path.display()))?;
    }
    if args.json {
        print_json(&report)?;
    } else {
        screen.finish(&measured, &report)?;
    }
    Ok(())
}

/// Ctrl-C ends the measurement, not the report.
fn interrupt() -> Result<SignalFd> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block().context("cannot hold signals back")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context("cannot wait for signals")
}

fn measure(
    args: &JitterArgs,
    wakers: &Wakers,
    interrupt: &SignalFd,
    screen: &mut ProgressLines,
) -> Result<JitterMeasurement> {
    let mut measured = JitterMeasurement::default();
    let keep = usize::from(args.worst);
    let length = args.wakeups.map_or(args.expected(), |_| Duration::MAX);
    let is_within = |wakeup: &Wakeup| u128::from(wakeup.planned_ns - wakers.started_ns) < length.as_nanos();
    loop {
        let mut waited = [PollFd::new(interrupt.as_fd(), PollFlags::POLLIN)];
        let is_interrupted = poll(&mut waited, LOOK_EVERY_MS).context("cannot wait")? > 0;
        let elapsed = Duration::from_nanos(now_ns().saturating_sub(wakers.started_ns));
        measured.elapsed = elapsed.min(length);
        for wakeup in wakers.wakeups.try_iter().filter(is_within) {
            measured.add(wakeup, keep);
        }
        wakers
            .worth_explaining_ns
            .store(measured.worst_from_ns(keep), Ordering::Relaxed);
        screen.show(&measured);
        let is_enough = match args.wakeups {
            Some(wakeups) => measured.distribution.count() >= wakeups,
            None => elapsed >= length,
        };
        if is_enough || is_interrupted {
            return Ok(measured);
        }
    }
}
