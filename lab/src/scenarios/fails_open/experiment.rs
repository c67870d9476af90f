// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What remains of giveway after its end, and for how long. Input: how it ends, and how often. Output: the worst time
//! until no cap, no program and no other change remained, and how often something remained after the limit. A cap
//! counts as gone only when cwnd, which the cap held far below the channel's capacity, grows past it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::access_point::Cap;
use crate::bpf_objects::{Object, ObjectKind, all, attached_links, held_by};
use crate::cell::{Cell, connections, station_address};
use crate::experiment::Run;
use crate::giveway::{Daemon, answers};
use crate::interrupt::{check, pause_until};
use crate::namespace::Namespace;
use crate::outcome::Outcome;

use super::CAP_SEGMENTS;
use super::changes::{Changes, Installed};
use super::ending::Ending;

/// Half of the kills come in the daemon's first two seconds (loading, first changes), the others later.
const EARLY_MS: u32 = 2_000;
const LATEST_MS: u32 = 20_000;
/// How long after its limit something may still happen by itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long cwnd may take to pass its former cap. After a loss with the removed queue it starts at a few segments and
/// grows by one a round trip, which lasts up to a second behind the other station's queue. A capped one never passes
/// it.
const GROWTH: Duration = Duration::from_secs(30);
const VICTIM: usize = 0;
const NAME_PREFIX: &str = "gw_";

/// The daemon ends at random times while traffic runs.
pub fn end_repeatedly(cell: &mut Cell, kills: u64, ending: Ending, run: &Run) -> Result<Outcome> {
    let _traffic = cell.saturate()?;
    cell.take_daemon(VICTIM)?.stop()?;
    let cap = Cap::Segments(CAP_SEGMENTS);
    let (address, server) = (station_address(VICTIM), cell.server());
    let changes = Changes::prepare(cell.station(VICTIM), &address, server, cap, run.raw)?;
    let mut random = ChaCha8Rng::seed_from_u64(run.seed);
    let mut seconds = Vec::new();
    let mut had: Vec<Had> = Vec::new();
    for number in 1..=kills {
        let delay_ms = match number % 2 {
            0 => random.next_u32() % EARLY_MS,
            _ => EARLY_MS + random.next_u32() % (LATEST_MS - EARLY_MS),
        };
        let (after_s, what) = one_end(cell, ending, &changes, Duration::from_millis(delay_ms.into()))?;
        seconds.push(after_s);
        had.push(what);
        run.progress.tick(&format!("{number} of {} kills", kills));
    }
    let name = run.name;
    let limit_s = ending.limit().as_secs_f64();
    let late = seconds.iter().filter(|s| **s > limit_s).count();
    let mut outcome = Outcome::default();
    outcome.set(name, "kills", seconds.len() as f64);
    let kills_with = |was_there: fn(&Had) -> bool| had.iter().filter(|had| was_there(had)).count() as f64;
    outcome.set(name, "kills_with_caps", kills_with(|had| had.caps));
    outcome.set(name, "kills_with_queue", kills_with(|had| had.others.queue));
    outcome.set(name, "kills_with_control", kills_with(|had| had.others.control));
    outcome.set(name, "kills_with_rule", kills_with(|had| had.others.rule));
    outcome.set(name, "kills_with_chain", kills_with(|had| had.others.chain));
    outcome.set(name, "kills_with_nice", kills_with(|had| had.others.nice));
    outcome.set(name, "kills_with_limits", kills_with(|had| had.others.limits));
    let replaced_s: Vec<_> = had.iter().filter_map(|had| had.replaced_s).collect();
    outcome.percentiles(name, "replaced_*_s", &replaced_s, &[100]);
    outcome.set(name, "failures", late as f64);
    outcome.percentiles(name, "revert_*_s", &seconds, &[50, 100]);
    outcome.samples.insert(name.into(), seconds);
    Ok(outcome)
}

/// The changes before the end, and how long the watchdog took to be replaced.
struct Had {
    caps: bool,
    others: Installed,
    replaced_s: Option<f64>,
}

/// Seconds until everything was undone (infinite: never).
fn one_end(cell: &Cell, ending: Ending, changes: &Changes, delay: Duration) -> Result<(f64, Had)> {
    let station = cell.station(VICTIM);
    let before = objects(&[])?;
    let state = ending.prepare(station)?;
    let mut daemon = Daemon::launch(station, &changes.configuration, &cell.file(VICTIM, "killed"))?;
    pause_until(Instant::now() + delay)?;
    let watchdog = daemon.watchdog();
    let mut had = Had {
        caps: answers::caps_found(station)? > 0,
        others: changes.installed(station)?,
        replaced_s: None,
    };
    let mut ended = ending.bring_about(&mut daemon, station, state.as_ref())?;
    had.replaced_s = ended.replaced_s;
    if ending.needs_revert() {
        answers::revert(station)?;
    }
    let holders: Vec<_> = [Some(daemon.process.id()), watchdog].into_iter().flatten().collect();
    let held = ended.stuck.map_or(Holders::ByThese(&holders), Holders::By);
    let mut after_s = until_nothing_is_left(ended.at, &ending, || {
        daemon.process.exit()?;
        left_over(station, changes, &before, held)
    })?;
    if ended.group.take().is_some() {
        // What a stuck thread kept open goes with its death.
        let freed = until_nothing_is_left(Instant::now(), &ending, || {
            daemon.process.exit()?;
            left_over(station, changes, &before, Holders::ByThese(&holders))
        })?;
        after_s = if freed.is_finite() { after_s } else { freed };
    }
    if !after_s.is_finite() {
        eprintln!("(it ended {} ms after its start)", delay.as_millis());
        daemon.process.kill()?;
        drop(state);
        answers::revert(station)?;
    }
    if !outgrows(station)? {
        let held = connections(station)?;
        eprintln!(
            "ended {} ms after its start, giveway left cwnd held: {held}",
            delay.as_millis()
        );
        return Ok((f64::INFINITY, had));
    }
    Ok((after_s, had))
}

/// Seconds since then (infinite: never).
fn until_nothing_is_left(
    since: Instant,
    ending: &Ending,
    mut left: impl FnMut() -> Result<Option<String>>,
) -> Result<f64> {
    let mut last = String::new();
    loop {
        check()?;
        let left = left()?;
        let after = since.elapsed();
        match left {
            None => {
                if after > ending.limit() {
                    eprintln!("giveway left until {:.2} s: {last}", after.as_secs_f64());
                }
                return Ok(after.as_secs_f64());
            }
            Some(left) if after > ending.limit() + PATIENCE => {
                eprintln!("giveway left {left}");
                return Ok(f64::INFINITY);
            }
            Some(left) => last = left,
        }
    }
}

/// Kernel objects that a process holds are not left over, unless it is one of these; those that a stuck thread holds
/// are not either, but their attachments must be detached.
#[derive(Clone, Copy)]
pub enum Holders<'a> {
    ByThese(&'a [i32]),
    By(i32),
}

/// What giveway should have removed; empty if it has.
pub fn left_over(
    station: &Namespace,
    changes: &Changes,
    before: &BTreeSet<Object>,
    held: Holders,
) -> Result<Option<String>> {
    let now = match held {
        Holders::ByThese(ours) => objects(ours)?,
        Holders::By(stuck) => without_held_by(stuck, objects(&[])?),
    };
    let mut objects: Vec<_> = now.difference(before).cloned().collect();
    if let Holders::By(stuck) = held {
        objects.extend(attached_links(&held_by(stuck, ObjectKind::Link)));
    }
    let caps = answers::caps_found(station)?;
    let controls = connections(station)?.matches(NAME_PREFIX).count();
    let Installed {
        queue,
        control,
        rule,
        chain,
        nice,
        limits,
    } = changes.installed(station)?;
    let is_changed = queue || control || rule || chain || nice || limits;
    let is_clean = caps == 0 && objects.is_empty() && controls == 0 && !is_changed;
    let left = || {
        format!(
            "{caps} caps, {controls} congestion controls, queue: {queue}, a rule's priority: {rule}, a chain's: {chain}, \
             nice: {nice}, limits: {limits}, and in the kernel {objects:?}"
        )
    };
    Ok((!is_clean).then(left))
}

/// Whether the victim's cwnd passes its former cap: the kernel's behaviour, whatever giveway says.
fn outgrows(station: &Namespace) -> Result<bool> {
    let deadline = Instant::now() + GROWTH;
    while Instant::now() < deadline {
        let said = connections(station)?;
        let words = said.split_whitespace();
        let mut cwnds = words.filter_map(|word| word.strip_prefix("cwnd:")?.parse::<u64>().ok());
        // The background connection sends too little to show it.
        if cwnds.any(|cwnd| cwnd > CAP_SEGMENTS) {
            return Ok(true);
        }
        pause_until(Instant::now() + Duration::from_millis(50))?;
    }
    Ok(false)
}

/// Giveway's programs and congestion controls in the kernel, except those that processes not among `ours` have open.
/// (The programs of a congestion control belong to it: no process holds them, and they live while a socket uses it.)
pub fn objects(ours: &[i32]) -> Result<BTreeSet<Object>> {
    let is_giveways = |object: &Object| match object.kind {
        ObjectKind::Program => object.name.starts_with(NAME_PREFIX) && !object.is_struct_ops,
        ObjectKind::Link => object.is_struct_ops,
        ObjectKind::SocketFilter | ObjectKind::Map => false,
    };
    let mut objects = all();
    objects.retain(is_giveways);
    let pids = std::fs::read_dir("/proc")?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<i32>().ok());
    for pid in pids.filter(|pid| !ours.contains(pid)) {
        objects = without_held_by(pid, objects);
    }
    Ok(objects)
}

fn without_held_by(task: i32, mut objects: BTreeSet<Object>) -> BTreeSet<Object> {
    for kind in [ObjectKind::Program, ObjectKind::Link] {
        let held = held_by(task, kind);
        objects.retain(|object| object.kind != kind || !held.contains(&object.id));
    }
    objects
}
