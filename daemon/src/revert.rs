// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway revert`: undo everything, now. A running daemon is asked to undo its work and end; whatever a
//! dead one left behind is found by the journal and lifted here.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::actuate::cap::lift::{Lift, Lifted};
use crate::cli::RevertArgs;
use crate::control::client;
use crate::place::Place;

/// A daemon that was asked to end, or has just died, gives the namespace up within this time.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Lifts every cap that the journal knows, or in a dry run only finds them. Returns how many there were. The caller
/// holds the lock.
pub fn lift(place: &Place, dry_run: bool) -> Result<usize> {
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
pub fn lift_after_death(place: &Place) -> Result<usize> {
    let lock = place.lock_within(PATIENCE);
    if lock.is_err() && client::status(place).is_ok() {
        return Ok(0);
    }
    lift(place, false)
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
        let found = caps(&place, true)?.len();
        if args.output.json {
            println!("{}", json!({ "caps_found": found }));
        } else {
            println!("{found} sockets carry a cap of giveway's; nothing was changed");
        }
        return Ok(());
    }
    let stopped = client::stop_daemon(&place)?;
    let _lock = place.lock_within(PATIENCE)?;
    let lifted = lift(&place, false)?;
    if args.output.json {
        println!("{}", json!({ "daemon_stopped": stopped, "caps_lifted": lifted }));
        return Ok(());
    }
    match stopped {
        Some(pid) => println!("the daemon (pid {pid}) has undone its work and ended"),
        None => println!("no daemon runs in this network namespace"),
    }
    println!("{lifted} left-over caps lifted; nothing of giveway's is in force");
    Ok(())
}
