// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway-lab medium`: an emulated Wi-Fi access point between real TCP stacks.
//!
//! Input: standard input, whose first line describes the stations, the server and the medium (`spec`), and whose later
//! lines ask for counters or remove a station from the channel. Output: a TAP in each namespace, `{"ready":true}` and
//! one line of counters per request on standard output. docs/contributing/medium.md describes the model.
//!
//! `dcf` is the model and does no I/O; `driver` runs it against the clock; the rest serves one or the other.

mod access;
pub mod address;
pub mod airtime;
mod contender;
pub mod dcf;
mod driver;
mod lines;
mod marking;
pub mod rate;
pub mod report;
mod sender;
mod spec;
mod tap;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::calls::set_nice;
use crate::scheduling;
use driver::Driver;
use lines::Lines;
use spec::Spec;

/// An error of the caller: unreadable input.
#[derive(Debug, thiserror::Error)]
#[error("standard input")]
struct Malformed;

/// Runs until standard input ends: exit code 0, 2 for unreadable input, 1 for everything else.
pub fn run() -> ExitCode {
    match emulate() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("giveway-lab medium: {error:#}");
            ExitCode::from(if error.is::<Malformed>() { 2 } else { 1 })
        }
    }
}

fn emulate() -> Result<()> {
    let mut commands = Lines::new();
    let first = commands
        .first()
        .context(Malformed)?
        .context("it is empty, and should begin with a description")
        .context(Malformed)?;
    let spec = Spec::parse(&first).context(Malformed)?;
    let driver = Driver::new(&spec)?;
    wake_up_on_time();
    driver.run(commands)
}

/// Takes the lowest real-time priority, or else a negative nice value. Without either the medium is only later, which
/// its lateness counter shows, so a refusal is no error.
fn wake_up_on_time() {
    if scheduling::take_fifo(1).is_err() {
        let _ = set_nice(0, -10);
    }
    let _ = nix::sys::prctl::set_timerslack(1);
}
