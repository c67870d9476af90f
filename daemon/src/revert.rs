// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway revert`: undo everything, now. A running daemon is asked to undo its work and end; whatever a
//! dead one left behind is found by the journal and lifted here.

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::cli::RevertArgs;
use crate::control::client;
use crate::kernel::Lift;
use crate::place::Place;

/// Lifts every cap that the journal knows. Returns how many there were.
pub fn lift(place: &Place) -> Result<usize> {
    let values = place.journalled()?;
    if values.is_empty() {
        return Ok(0);
    }
    let lifted = Lift::run(place.netns_inum(), &values, false).context(
        "caps may be left on sockets of this network namespace (they vanish with each socket); try `giveway revert` again",
    )?;
    place.clear_journal()?;
    Ok(lifted.len())
}

pub fn run(args: &RevertArgs) -> Result<()> {
    let place = Place::here()?;
    if args.dry_run {
        let values = place.journalled()?;
        let found = if values.is_empty() { 0 } else { Lift::run(place.netns_inum(), &values, true)?.len() };
        if args.output.json {
            println!("{}", json!({ "caps_found": found }));
        } else {
            println!("{found} sockets carry a cap of giveway's; nothing was changed");
        }
        return Ok(());
    }
    let stopped = client::stop_daemon(&place)?;
    let lifted = lift(&place)?;
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
