// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway jitter`: how late this machine wakes up, and why. Threads wake up periodically, beside the loads that were
//! asked for; out come the distribution and the worst wake-ups with what made them late. Needs no daemon, and
//! changes nothing that lasts longer than itself.

pub mod args;
mod distribution;
pub mod load;
mod machine;
mod policy;
mod report;
mod terminal;
mod waker;

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use args::{JitterArgs, Plan, Until};
use distribution::Distribution;
use load::Loads;
use report::Report;
use terminal::Screen;
use waker::{Wakers, now_ns};

/// How often wake-ups are taken over and shown.
const LOOK_EVERY_MS: u8 = 200;

/// What has been measured so far.
#[derive(Debug, Default)]
pub struct Measured {
    pub distribution: Distribution,
    pub missed: u64,
    pub elapsed: Duration,
}

pub fn run(args: &JitterArgs) -> Result<()> {
    let plan = Plan::new(args)?;
    let interrupt = interrupt()?;
    let mut loads = Loads::start(&plan.loads, plan.expected())?;
    let _steady = machine::hold_steady(args.deep_idle);
    let steal_before_ms = machine::steal_ms()?;
    let wakers = Wakers::start(&plan)?;
    let is_watched = !args.json && std::io::stdout().is_terminal();
    let mut screen = Screen::new(&plan, is_watched);
    let measured = measure(&plan, &wakers, &interrupt, &mut screen)?;
    let in_force = wakers
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
    let report = Report::new(&plan, &measured, in_force, steal_ms);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        screen.finish(&measured, &report);
    }
    Ok(())
}

/// Ctrl-C ends the measurement, not the report.
fn interrupt() -> Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block().context("cannot hold signals back")?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).context("cannot wait for signals")
}

fn measure(plan: &Plan, wakers: &Wakers, interrupt: &SignalFd, screen: &mut Screen) -> Result<Measured> {
    let mut measured = Measured::default();
    loop {
        let mut waited = [PollFd::new(interrupt.as_fd(), PollFlags::POLLIN)];
        let is_interrupted = poll(&mut waited, LOOK_EVERY_MS).context("cannot wait")? > 0;
        measured.elapsed = Duration::from_nanos(now_ns().saturating_sub(wakers.started_ns));
        for wakeup in wakers.wakeups.try_iter() {
            measured.distribution.add(wakeup.late_ns());
            measured.missed += wakeup.missed;
        }
        screen.show(&measured);
        let is_enough = match plan.until {
            Until::Elapsed(duration) => measured.elapsed >= duration,
            Until::Wakeups(wakeups) => measured.distribution.count() >= wakeups,
        };
        if is_enough || is_interrupted {
            return Ok(measured);
        }
    }
}
