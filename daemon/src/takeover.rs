// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes a network namespace over from a daemon and a watchdog that are dead, or are to end. Input: the state folder.
//! Output: the lock, once nobody else acts here.
//!
//! A watchdog undoes what its dead daemon left behind whether or not it has the lock, which a stuck thread may keep for good.
//! So whoever comes next waits for the watchdog, and ends it if need be, before anything is touched.

use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};

use crate::holder::Holder;
use crate::kernel::process::end::{ProcessIdentity, is_over, is_over_within, kill};
use crate::place::{EndedDaemon, Lock, Place};
use crate::presence::{self, Folder, Role, announce};
use crate::undo;

/// A daemon that was asked to end, or has just died, gives the namespace up within this time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Its watchdog is done within this time, unless it is stopped or stuck.
const PATIENCE_WITH_WATCHDOG: Duration = Duration::from_secs(2);
/// A daemon that is starting, or ending, and was asked to end does so within this time, or is killed.
const PATIENCE_WITH_START: Duration = Duration::from_secs(5);
/// One that was killed has left the lock within this time: the kernel takes its programs apart first.
const PATIENCE_WITH_DEATH: Duration = Duration::from_secs(5);

/// For what a process takes the namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TakeoverPurpose {
    Daemon,
    /// Ends nobody, and takes nothing from the dead.
    DryRun,
    /// Ends a daemon that is starting or ending, too.
    Revert,
}

/// Takes the namespace for this process.
///
/// # Errors
/// When a daemon lives here, naming its pid, or may live; one with another /run, too. In a dry run, when a watchdog is
/// still at work.
pub fn take_over(place: &Place, what_for: TakeoverPurpose) -> Result<Lock> {
    let role = match what_for {
        TakeoverPurpose::Revert => Role::Revert,
        TakeoverPurpose::Daemon | TakeoverPurpose::DryRun => Role::Daemon,
    };
    let mut folder = place.folder()?;
    // First, so that two with another /run each never both find nobody.
    let mut announced = announce(role, folder)?;
    let mut lock = lock(place, folder, what_for)?;
    // Another process may have cleared the folder meanwhile.
    let now = place.folder()?;
    if now != folder {
        (folder, announced) = (now, announce(role, now)?);
    }
    lock.announced = Some(announced);
    end_watchdog(lock.before, what_for)?;
    let removed = check_others(place, folder, what_for)?;
    lock.ended = lock.ended.or(removed.map(EndedDaemon::Removed));
    lock.name(None);
    Ok(lock)
}

fn lock(place: &Place, folder: Folder, what_for: TakeoverPurpose) -> Result<Lock> {
    let is_revert = what_for == TakeoverPurpose::Revert;
    let begun = place.holder().daemon;
    let error = match place.lock_within(if is_revert { PATIENCE_WITH_START } else { PATIENCE }) {
        Ok(mut lock) => {
            lock.ended = begun
                .filter(|_| is_revert && lock.waited)
                .map(|daemon| EndedDaemon::Alone(daemon.pid));
            return Ok(lock);
        }
        Err(error) => error,
    };
    let holder = place.holder();
    let starting = || here(Role::Daemon, folder).into_iter().next();
    let daemon = holder
        .daemon
        .or_else(|| Some(()).filter(|()| is_revert).and_then(|()| starting()));
    let Some(daemon) = daemon.filter(|_| what_for != TakeoverPurpose::DryRun) else {
        return Err(error);
    };
    let mut killed = None;
    match is_over(daemon) {
        Ok(true) => {}
        Ok(false) if is_revert => {
            kill(daemon)?;
            killed = Some(EndedDaemon::Killed(daemon.pid));
        }
        Ok(false) => return Err(error),
        Err(reason) => bail!("{error:#}. Cannot find out whether it is still running: {reason:#}"),
    }
    end_watchdog(holder, what_for)?;
    let patience = if killed.is_some() {
        PATIENCE_WITH_DEATH
    } else {
        PATIENCE
    };
    let mut lock = place.lock_within(patience).or_else(|_| {
        let mut undone = undo::links(daemon.pid);
        undone.lines.append(&mut undone.failed);
        undone.lines.iter().for_each(|line| tracing::warn!("{line}"));
        place.replace_lock(holder)
    })?;
    lock.ended = killed;
    Ok(lock)
}

/// Of this folder, or of one in its place that was removed, and others than this process; those of whom the kernel tells.
fn here(role: Role, folder: Folder) -> Vec<ProcessIdentity> {
    let found = presence::all().unwrap_or_default().into_iter();
    let own = ProcessIdentity::own().ok();
    let processes = found
        .filter(|one| one.role == role && one.is_here(folder))
        .filter_map(|one| one.process);
    processes.filter(|process| Some(*process) != own).collect()
}

/// Nobody else acts on this network namespace: with another /run, by a lock that was removed, or as a watchdog that its
/// daemon's lock does not name yet. The caller has the lock. Returns the number of a daemon that had to be killed because
/// its lock was removed.
fn check_others(place: &Place, folder: Folder, what_for: TakeoverPurpose) -> Result<Option<u32>> {
    let mut killed = None;
    // One that has not got the lock ends by itself.
    for daemon in here(Role::Daemon, folder) {
        if is_over_within(daemon, PATIENCE_WITH_WATCHDOG)? {
            continue;
        }
        ensure!(
            what_for == TakeoverPurpose::Revert,
            "another giveway runs in this network namespace (pid {}), whose lock was removed from {}; `giveway revert` ends it",
            daemon.pid,
            place.folder_path().display()
        );
        kill(daemon)?;
        killed = Some(daemon.pid);
        is_over_within(daemon, PATIENCE_WITH_DEATH)?;
    }
    for watchdog in here(Role::Watchdog, folder) {
        let watchdog = Some(watchdog);
        end_watchdog(Holder { daemon: None, watchdog }, what_for)?;
    }
    let mut all = match presence::all() {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!("a giveway of this network namespace with another /run would not be noticed: {error:#}");
            return Ok(killed);
        }
    };
    all.sort_by_key(|one| one.role);
    for other in all {
        if other.process.is_some() && other.is_here(folder) {
            continue;
        }
        let shown = other.shown(place.netns_inum());
        match other.process {
            // One that is over keeps its socket only where a thread of it waits in the kernel for good.
            Some(process) if is_over_within(process, PATIENCE)? => {}
            // Whoever makes a name up keeps nothing from being undone.
            None if what_for == TakeoverPurpose::Revert => {
                tracing::warn!("{shown}; what the journals of this /run say is undone all the same");
            }
            _ => bail!(
                "{shown}, which is not this /run. It was not touched and nothing was changed: end it there, \
                 or use it"
            ),
        }
    }
    Ok(killed)
}

/// Ends a daemon that does not answer; returns its number. What it changed is left to its watchdog, or to the next undo.
pub fn end_silent(place: &Place) -> Result<u32> {
    let daemon = place.holder().daemon;
    let daemon = daemon.ok_or_else(|| {
        anyhow!("the daemon does not answer, and its lock does not name its process: kill it by hand")
    })?;
    kill(daemon)?;
    Ok(daemon.pid)
}

fn end_watchdog(holder: Holder, what_for: TakeoverPurpose) -> Result<()> {
    let Some(watchdog) = holder.watchdog else { return Ok(()) };
    // One that cannot be ended from here finds that the lock is another's, and touches nothing.
    if !watchdog.is_of_this_namespace()? || is_over_within(watchdog, PATIENCE_WITH_WATCHDOG)? {
        return Ok(());
    }
    ensure!(
        what_for != TakeoverPurpose::DryRun,
        "the watchdog of a daemon that died (pid {}) is not done, and a dry run ends nobody; try again, or `giveway revert`",
        watchdog.pid
    );
    kill(watchdog)?;
    // It may wait in the kernel for who changes links.
    ensure!(
        is_over_within(watchdog, PATIENCE_WITH_WATCHDOG)?,
        "the watchdog of a daemon that died (pid {}) does not end",
        watchdog.pid
    );
    Ok(())
}
