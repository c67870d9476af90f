// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway revert`: undo everything, now. A running daemon is asked to undo its work and end; whatever a
//! dead one left behind is found by the journals and undone here.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::actuate::cap::lift::{Lift, Lifted};
use crate::actuate::{queue, receive, schedule};
use crate::cli::RevertArgs;
use crate::control::client;
use crate::place::Place;
use crate::run::realtime::leave_priority;

/// A daemon that was asked to end, or has just died, gives the namespace up within this time.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// What was undone, or in a dry run found.
#[derive(Debug, Default)]
pub struct Undone {
    pub caps: usize,
    /// A line for each.
    pub queues: Vec<String>,
    /// A line for each process that had real time.
    pub realtime: Vec<String>,
    /// A line for each thread and setting of the receiving side.
    pub received: Vec<String>,
}

impl Undone {
    pub fn is_nothing(&self) -> bool {
        self.caps == 0 && self.queues.is_empty() && self.realtime.is_empty() && self.received.is_empty()
    }
}

impl Display for Undone {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} caps", self.caps)?;
        let lines = self.realtime.iter().chain(&self.queues).chain(&self.received);
        lines.into_iter().try_for_each(|line| write!(f, ", {line}"))
    }
}

/// Undoes everything that the journals know, or in a dry run only finds it. The caller holds the lock.
pub fn undo(place: &Place, dry_run: bool) -> Result<Undone> {
    // None may keep the others from being undone; and what runs before everything comes first.
    let realtime = schedule::undo(place, dry_run);
    let received = receive::undo(&place.receive_journal(), dry_run);
    let queues = queue::undo(place, dry_run);
    let caps = lift(place, dry_run);
    Ok(Undone {
        caps: caps?,
        queues: queues.context("a queue may be left behind; try `giveway revert` again")?,
        realtime: realtime?,
        received: received.context("the receiving side may be changed still; try `giveway revert` again")?,
    })
}

fn lift(place: &Place, dry_run: bool) -> Result<usize> {
    let found = caps(place, dry_run).context(
        "caps may be left on sockets of this network namespace (they vanish with each socket); try `giveway revert` again",
    )?;
    if let Some(errno) = found.iter().find_map(|lifted| lifted.error) {
        bail!("the kernel refused to lift a cap (errno {errno}); try `giveway revert` again");
    }
    if !dry_run {
        place.clear_journal()?;
    }
    Ok(found.len())
}

/// Undoes what a daemon left behind that has died. Nothing is done where a new one answers: it has done so.
pub fn undo_after_death(place: &Place) -> Result<Undone> {
    let lock = place.lock_within(PATIENCE);
    if lock.is_err() && client::status(place).is_ok() {
        return Ok(Undone::default());
    }
    let realtime = schedule::undo(place, false);
    // What spins does not do so any more; the rest is no reason to come before everybody.
    leave_priority();
    let mut undone = undo(place, false)?;
    undone.realtime.extend(realtime?);
    Ok(undone)
}

fn caps(place: &Place, dry_run: bool) -> Result<Vec<Lifted>> {
    let values: Vec<u32> = place.journalled()?.into_iter().collect();
    if values.is_empty() {
        return Ok(Vec::new());
    }
    Lift::open(place.netns_inum())?.run(&values, dry_run)
}

pub fn run(args: &RevertArgs) -> Result<()> {
    let place = Place::here()?;
    if args.dry_run {
        let found = undo(&place, true)?;
        if args.output.json {
            println!(
                "{}",
                json!({
                    "caps_found": found.caps,
                    "queues_found": found.queues,
                    "realtime_found": found.realtime,
                    "received_found": found.received,
                })
            );
        } else {
            println!("{} sockets carry a cap of giveway's; nothing was changed", found.caps);
            let lines = found.queues.iter().chain(&found.realtime).chain(&found.received);
            lines.for_each(|line| println!("to be put back: {line}"));
        }
        return Ok(());
    }
    let stopped = client::stop_daemon(&place)?;
    let _lock = place.lock_within(PATIENCE)?;
    let left_over = undo(&place, false)?;
    place.remove_orphaned_pins();
    if args.output.json {
        println!(
            "{}",
            json!({
                "daemon_stopped": stopped,
                "caps_lifted": left_over.caps,
                "queues_put_back": left_over.queues,
                "realtime_taken_back": left_over.realtime,
            })
        );
        return Ok(());
    }
    match stopped {
        Some(pid) => println!("the daemon (pid {pid}) has undone its work and ended"),
        None => println!("no daemon runs in this network namespace"),
    }
    let lines = left_over
        .queues
        .iter()
        .chain(&left_over.realtime)
        .chain(&left_over.received);
    lines.for_each(|line| println!("left over: {line}"));
    println!(
        "{} left-over caps lifted; nothing of giveway's is in force",
        left_over.caps
    );
    Ok(())
}
