// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway revert`: undo everything, now. A running daemon is asked to undo its work and end; whatever a
//! dead one left behind is found by the journals and undone here. One that does not answer is killed.

use anyhow::{Result, bail, ensure};
use clap::Args;
use nix::unistd::geteuid;
use schemars::JsonSchema;
use serde::Serialize;

use crate::actuate::nice::UnsavedCount;
use crate::commands::args::Json;
use crate::commands::{counted, print, print_json, print_output};
use crate::control::client::{self, NoAnswer};
use crate::inherited::raise_limits;
use crate::journal::UndoReport;
use crate::place::{EndedDaemon, Place};
use crate::say::print_line;
use crate::takeover::{TakeoverPurpose, end_silent, take_over};
use crate::undo::{threads, undo, unsaved};

#[derive(Args)]
pub struct RevertArgs {
    /// Only say what would be undone
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub output: Json,
}

/// What was undone.
#[derive(Debug, JsonSchema, Serialize)]
pub struct RevertReport {
    daemon_stopped: Option<u32>,
    daemon_killed: Option<u32>,
    watchdog_undid: Option<String>,
    sockets_restored: u64,
    undone: Vec<String>,
    failed: Vec<String>,
}

/// What would be undone.
#[derive(Debug, JsonSchema, Serialize)]
pub struct RevertPlan {
    sockets_found: u64,
    found: Vec<String>,
    failed: Vec<String>,
}

pub fn run(args: &RevertArgs) -> Result<()> {
    // Without the right to look, everything would seem to have gone.
    ensure!(
        geteuid().is_root(),
        "only root can see and undo giveway's changes; nothing was done. Try: sudo giveway revert"
    );
    raise_limits();
    let place = Place::here()?;
    if args.dry_run {
        return show_found(&place, args.output.json);
    }
    // First: a daemon that is starting has no socket, and maybe no lock yet.
    let asked = place.request_end();
    // The daemon, and its watchdog, tell their log alone.
    let unsaved = unsaved(&place);
    let (mut stopped, mut killed) = match client::stop_daemon(&place) {
        Err(error) if error.is::<NoAnswer>() => (None, Some(end_silent(&place)?)),
        stopped => (stopped?, None),
    };
    // One that nobody has asked for is of an earlier end.
    let _ = place.take_report();
    let lock = take_over(&place, TakeoverPurpose::Revert)?;
    let by_watchdog = place.take_report();
    let is_removed = matches!(lock.ended, Some(EndedDaemon::Removed(_)));
    match lock.ended.filter(|_| (stopped, killed) == (None, None)) {
        Some(EndedDaemon::Alone(pid)) => stopped = Some(pid),
        Some(EndedDaemon::Killed(pid) | EndedDaemon::Removed(pid)) => killed = Some(pid),
        None => {}
    }
    let undone = undo_rest(&place, asked, unsaved);
    if args.output.json {
        print_json(&RevertReport {
            daemon_stopped: stopped,
            daemon_killed: killed,
            watchdog_undid: by_watchdog,
            sockets_restored: undone.sockets as u64,
            undone: undone.lines.clone(),
            failed: undone.failed.clone(),
        })?;
    } else {
        print_ended(stopped, killed, is_removed, by_watchdog.as_ref())?;
        print(&lines("left over", &undone.lines))?;
    }
    if !undone.failed.is_empty() {
        bail!(
            "not everything could be undone; try `giveway revert` again: {}",
            undone.failed.join("; ")
        );
    }
    if !args.output.json {
        let left_over = match undone.sockets {
            0 => String::new(),
            sockets => format!("{} restored; ", counted(sockets, "left-over socket")),
        };
        print_line(format_args!("{left_over}no change of giveway is active"))?;
    }
    Ok(())
}

/// What the daemon and its watchdog have not undone, and what a start would go on from.
fn undo_rest(place: &Place, asked: Result<()>, unsaved: Option<UnsavedCount>) -> UndoReport {
    let mut undone = undo(place, false);
    if let Err(error) = asked {
        undone.fail(format!("{error:#}"));
    }
    if let Some(doubt) = unsaved
        .and_then(|unsaved| unsaved.doubt())
        .filter(|_| undone.failed.is_empty())
    {
        undone.fail(doubt);
    }
    // What the next start would go on from.
    let pins = place.pins();
    let forgotten = match undone.failed.is_empty() {
        true => pins.remove_records().and_then(|()| pins.remove()),
        false => pins.remove_records(),
    };
    if let Err(error) = forgotten.and(place.forget_by_hand()) {
        undone.fail(format!("{error:#}"));
    }
    if let Err(error) = place.claim() {
        tracing::warn!("{error:#}");
    }
    place.remove_orphans(|other| drop(threads(other, false)));
    undone
}

fn print_ended(
    stopped: Option<u32>,
    killed: Option<u32>,
    is_removed: bool,
    by_watchdog: Option<&String>,
) -> Result<()> {
    match (stopped, killed) {
        (Some(pid), _) => print_line(format_args!("daemon (pid {pid}) stopped, its changes undone"))?,
        (None, Some(pid)) if is_removed => print_line(format_args!(
            "daemon (pid {pid}) killed: its state folder was removed, so it could not be asked to stop"
        ))?,
        (None, Some(pid)) => print_line(format_args!("daemon (pid {pid}) killed: it did not answer"))?,
        (None, None) => print_line("no daemon is running in this network namespace")?,
    }
    match by_watchdog {
        Some(undone) => print_line(format_args!("restored by its watchdog: {undone}"))?,
        None if is_removed => print_line("the daemon's log lists what its watchdog restored")?,
        None => {}
    }
    Ok(())
}

fn show_found(place: &Place, json: bool) -> Result<()> {
    let found = undo(place, true);
    let plan = RevertPlan {
        sockets_found: found.sockets as u64,
        found: found.lines,
        failed: found.failed,
    };
    print_output(json, &plan, || {
        format!(
            "{} sockets have a setting of giveway's; dry run, nothing changed\n{}{}",
            plan.sockets_found,
            lines("to be restored", &plan.found),
            lines("cannot be restored", &plan.failed)
        )
    })
}

fn lines(what: &str, found: &[String]) -> String {
    found.iter().map(|line| format!("{what}: {line}\n")).collect()
}
