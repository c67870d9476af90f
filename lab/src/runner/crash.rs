// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is left of giveway after it was killed, and for how long.
//! In: how many kills. Out: the worst time until no cap and no program of it was left, and how many
//! times something was left after the limit. That a cap is gone is believed only when cwnd, which the
//! cap held far below what the air carries, grows past it.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Deserialize;

use super::Run;
use crate::cell::Cell;
use crate::giveway;
use crate::interrupt::{check, pause_until};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::process::run as run_command;
use crate::scenario::Crash;
use crate::statistics::percentile;
use crate::topology::SERVER_ADDRESS;
use crate::traffic::stream::{Source, start_sink};

/// Kills come at any moment of the daemon's first two seconds: loading, first caps, steady state.
const LATEST_KILL_MS: u32 = 2_000;
/// Longer than this and the kill is a failure.
const LIMIT: Duration = Duration::from_secs(1);
/// When nothing more will happen by itself.
const PATIENCE: Duration = Duration::from_secs(5);
const VICTIM: usize = 0;
const PROGRAM_PREFIX: &str = "gw_";

#[derive(Deserialize)]
struct Loaded {
    id: u64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    pids: Vec<Holder>,
}

#[derive(Deserialize)]
struct Holder {
    pid: i32,
}

pub fn run(cell: &mut Cell, crash: &Crash, run: &Run) -> Result<Outcome> {
    let _sink = start_sink(cell.server())?;
    let connect = |station| Source::connect(cell.station(station));
    let mut sources: Vec<_> = (0..cell.stations()).map(connect).collect::<Result<_>>()?;
    for source in &mut sources {
        source.start()?;
    }
    cell.take_daemon(VICTIM)?.stop()?;
    let mut random = ChaCha8Rng::seed_from_u64(run.seed);
    let mut seconds = Vec::new();
    let mut found_caps = 0.0;
    for number in 1..=crash.kills {
        let delay = Duration::from_millis(u64::from(random.next_u32() % LATEST_KILL_MS));
        let (after_s, had_caps) = one_kill(cell, crash, delay)?;
        seconds.push(after_s);
        found_caps += f64::from(u8::from(had_caps));
        run.progress.tick(&format!("{number} of {} kills", crash.kills));
    }
    let name = &run.variant.name;
    let late = seconds.iter().filter(|s| **s > LIMIT.as_secs_f64()).count();
    let mut outcome = Outcome::default();
    outcome.set(name, "kills", seconds.len() as f64);
    outcome.set(name, "kills_with_caps", found_caps);
    outcome.set(name, "failures", late as f64);
    outcome.set(name, "revert_p50_s", percentile(&seconds, 50.0));
    outcome.set(
        name,
        "revert_max_s",
        percentile(&seconds, 100.0).filter(|s| s.is_finite()),
    );
    outcome.samples.insert(name.clone(), seconds);
    Ok(outcome)
}

/// Seconds until nothing was left (infinite: never), and whether there was a cap to take away.
fn one_kill(cell: &mut Cell, crash: &Crash, delay: Duration) -> Result<(f64, bool)> {
    let before = programs(&[])?;
    cell.start_daemon(VICTIM)?;
    let mut daemon = cell.take_daemon(VICTIM)?;
    pause_until(Instant::now() + delay)?;
    // Stopped first: it must not replace a guardian that dies before it.
    daemon.signal(Signal::SIGSTOP)?;
    let station = cell.station(VICTIM);
    let had_caps = giveway::caps_found(station)? > 0;
    let guardian = daemon.guardian();
    let ours: Vec<_> = [Some(daemon.id()), guardian].into_iter().flatten().collect();
    if let Some(guardian) = guardian.filter(|_| crash.guardian_too) {
        kill(Pid::from_raw(guardian), Signal::SIGKILL)?;
    }
    daemon.kill()?;
    let killed = Instant::now();
    if crash.guardian_too {
        giveway::revert(station)?;
    }
    let is_clean = || anyhow::Ok(giveway::caps_found(station)? == 0 && programs(&ours)?.is_subset(&before));
    let after_s = loop {
        check()?;
        let clean = is_clean()?;
        let after = killed.elapsed();
        if clean {
            break after.as_secs_f64();
        }
        if after > PATIENCE {
            giveway::revert(station)?;
            break f64::INFINITY;
        }
    };
    Ok(if outgrows(station, crash.cap_segments)? {
        (after_s, had_caps)
    } else {
        (f64::INFINITY, had_caps)
    })
}

/// Whether the victim's cwnd passes the cap that it had: what the kernel does, whatever giveway says.
fn outgrows(station: &Namespace, cap_segments: u64) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        check()?;
        let mut ss = station.command("ss")?;
        ss.args(["-tinOH", "dst", SERVER_ADDRESS]);
        let said = run_command(ss)?.stdout;
        let said = String::from_utf8_lossy(&said);
        let cwnd = said
            .split_whitespace()
            .find_map(|word| word.strip_prefix("cwnd:")?.parse::<u64>().ok());
        if cwnd.is_some_and(|cwnd| cwnd > cap_segments) {
            return Ok(true);
        }
        pause_until(Instant::now() + Duration::from_millis(50))?;
    }
    Ok(false)
}

/// Giveway's BPF programs that nobody holds open, or one of `ours` does: those of other daemons on
/// this machine are held by them.
fn programs(ours: &[i32]) -> Result<BTreeSet<u64>> {
    let mut command = Command::new("bpftool");
    command.args(["-j", "prog", "show"]);
    let said = run_command(command)?.stdout;
    let loaded: Vec<Loaded> = serde_json::from_slice(&said).context("bpftool's list of programs is not readable")?;
    let is_left = |program: &&Loaded| {
        program.name.starts_with(PROGRAM_PREFIX)
            && (program.pids.is_empty() || program.pids.iter().any(|p| ours.contains(&p.pid)))
    };
    Ok(loaded.iter().filter(is_left).map(|program| program.id).collect())
}
