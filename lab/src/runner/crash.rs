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
use serde_json::Value;

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
/// When nothing more will happen by itself. Also, how long cwnd may take to pass the cap that it had: by one segment a
/// round trip, which behind the other station's queue lasts up to a second.
const PATIENCE: Duration = Duration::from_secs(5);
const VICTIM: usize = 0;
const NAME_PREFIX: &str = "gw_";
const STRUCT_OPS: &str = "struct_ops";

#[derive(Deserialize)]
struct Loaded {
    id: u64,
    /// A word, or the number of a kind that this bpftool does not know yet.
    #[serde(rename = "type", default)]
    kind: Value,
    #[serde(default)]
    name: String,
}

/// Something in the kernel, and by which kind of number /proc names it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Piece {
    kind: &'static str,
    id: u64,
    name: String,
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
    let before = pieces(&[])?;
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
    let after_s = loop {
        check()?;
        let left = left_over(station, &before, &ours)?;
        let after = killed.elapsed();
        match left {
            None => break after.as_secs_f64(),
            Some(left) if after > PATIENCE => {
                eprintln!("killed {} ms after its start, giveway left {left}", delay.as_millis());
                giveway::revert(station)?;
                break f64::INFINITY;
            }
            Some(_) => {}
        }
    };
    if !outgrows(station, crash.cap_segments)? {
        eprintln!(
            "killed {} ms after its start, giveway left cwnd held",
            delay.as_millis()
        );
        return Ok((f64::INFINITY, had_caps));
    }
    Ok((after_s, had_caps))
}

/// What giveway should have taken away; nothing when it has.
fn left_over(station: &Namespace, before: &BTreeSet<Piece>, ours: &[i32]) -> Result<Option<String>> {
    let pieces: Vec<_> = pieces(ours)?.difference(before).cloned().collect();
    let caps = giveway::caps_found(station)?;
    let controls = sockets(station)?.matches(NAME_PREFIX).count();
    let is_clean = caps == 0 && pieces.is_empty() && controls == 0;
    Ok((!is_clean).then(|| format!("{caps} caps, {controls} congestion controls, and in the kernel {pieces:?}")))
}

/// The victim's connections to the server, as `ss` shows them.
fn sockets(station: &Namespace) -> Result<String> {
    let mut ss = station.command("ss")?;
    ss.args(["-tinOH", "dst", SERVER_ADDRESS]);
    Ok(String::from_utf8_lossy(&run_command(ss)?.stdout).into_owned())
}

/// Whether the victim's cwnd passes the cap that it had: what the kernel does, whatever giveway says.
fn outgrows(station: &Namespace, cap_segments: u64) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        check()?;
        let said = sockets(station)?;
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

/// Giveway's programs and congestion controls in the kernel, but for those that other processes hold. (The programs
/// of a congestion control belong to it: no process holds them, and they live while a socket uses it.)
fn pieces(ours: &[i32]) -> Result<BTreeSet<Piece>> {
    let is_program = |piece: &Loaded| piece.name.starts_with(NAME_PREFIX) && piece.kind != STRUCT_OPS;
    let programs = loaded("prog")?
        .into_iter()
        .filter(is_program)
        .map(|piece| ("prog_id", piece));
    let controls = loaded("link")?.into_iter().filter(|piece| piece.kind == STRUCT_OPS);
    let pieces = programs.chain(controls.map(|piece| ("link_id", piece)));
    let pieces: BTreeSet<Piece> = pieces
        .map(|(kind, piece)| Piece {
            kind,
            id: piece.id,
            name: piece.name,
        })
        .collect();
    let held = held_by_others(ours)?;
    Ok(pieces
        .into_iter()
        .filter(|piece| !held.contains(&(piece.kind, piece.id)))
        .collect())
}

fn loaded(what: &str) -> Result<Vec<Loaded>> {
    let mut command = Command::new("bpftool");
    command.args(["-j", what, "show"]);
    let said = run_command(command)?.stdout;
    serde_json::from_slice(&said).with_context(|| format!("bpftool's list of every {what} is not readable"))
}

/// Programs and links that a living process not among `ours` has open. Processes come and go while this reads.
fn held_by_others(ours: &[i32]) -> Result<BTreeSet<(&'static str, u64)>> {
    let mut held = BTreeSet::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_string_lossy().parse::<i32>();
        let is_other = pid.is_ok_and(|pid| !ours.contains(&pid));
        let Ok(descriptors) = std::fs::read_dir(entry.path().join("fdinfo")) else {
            continue;
        };
        for descriptor in descriptors.flatten().filter(|_| is_other) {
            let about = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
            for kind in ["prog_id", "link_id"] {
                let id = |line: &str| line.strip_prefix(kind)?.strip_prefix(':')?.trim().parse().ok();
                held.extend(about.lines().filter_map(id).map(|id| (kind, id)));
            }
        }
    }
    Ok(held)
}
