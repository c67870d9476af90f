// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who holds a network namespace: the daemon and its guardian, as the lock's file names them. Taking it over from those
//! that are dead. Input: the state folder. Output: the lock, once nobody else acts here.
//!
//! A guardian undoes what its dead daemon left behind whether or not it has the lock, which a stuck thread may keep for good.
//! So whoever comes next waits for the guardian, and ends it if need be, before anything is touched.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};

use crate::kernel::process::end::{Named, is_over, is_over_within, kill};
use crate::place::{Lock, Place};
use crate::undo;

/// A daemon that was asked to end, or has just died, gives the namespace up within this time.
const PATIENCE: Duration = Duration::from_millis(500);
/// Its guardian is done within this time, unless it is stopped or stuck.
const PATIENCE_WITH_GUARDIAN: Duration = Duration::from_secs(2);
const LONGEST: usize = 256;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Holder {
    pub daemon: Option<Named>,
    pub guardian: Option<Named>,
}

impl Holder {
    /// Nobody where the file does not say.
    pub fn read(lock: &File) -> Self {
        let mut bytes = [0; LONGEST];
        // Once more where it fails: the guardian would take the dead daemon's lock for somebody else's, and undo nothing.
        let read = lock.read_at(&mut bytes, 0).or_else(|_| lock.read_at(&mut bytes, 0));
        let length = read.unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&bytes[..length]))
    }

    fn parse(text: &str) -> Self {
        let process = |line: &str| {
            let words: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
            Named::from_words(words.ok()?.try_into().ok()?)
        };
        let mut lines = text.lines().map(process);
        Self {
            daemon: lines.next().flatten(),
            guardian: lines.next().flatten(),
        }
    }

    /// This process, with its guardian.
    pub fn own(guardian: Option<u32>) -> Result<Self> {
        Ok(Self {
            daemon: Some(Named::own()?),
            guardian: guardian.map(Named::of).transpose()?.flatten(),
        })
    }

    pub fn write(&self, lock: &File) -> io::Result<()> {
        let both = [self.daemon, self.guardian].into_iter().flatten();
        let line = |named: Named| named.to_words().map(|word| word.to_string()).join(" ") + "\n";
        let text: String = both.map(line).collect();
        lock.write_all_at(text.as_bytes(), 0)?;
        lock.set_len(text.len() as u64)
    }
}

/// Takes the namespace for this process. A dry run ends nobody, and takes nothing from the dead.
///
/// # Errors
/// When a daemon lives here, naming its pid, or may live; in a dry run, when a guardian is still at work.
pub fn take_over(place: &Place, dry_run: bool) -> Result<Lock> {
    let lock = match place.lock_within(PATIENCE) {
        Ok(lock) => lock,
        Err(error) => {
            let holder = place.holder();
            let Some(daemon) = holder.daemon.filter(|_| !dry_run) else {
                return Err(error);
            };
            match is_over(daemon) {
                Ok(true) => {}
                Ok(false) => return Err(error),
                Err(why) => bail!("{error:#}. Whether it still lives cannot be told from here: {why:#}"),
            }
            end_guardian(holder, dry_run)?;
            place.lock_within(PATIENCE).or_else(|_| {
                let mut undone = undo::links(daemon.pid);
                undone.lines.append(&mut undone.failed);
                undone.lines.iter().for_each(|line| tracing::warn!("{line}"));
                place.replace_lock(holder)
            })?
        }
    };
    end_guardian(lock.before, dry_run)?;
    lock.name(None);
    Ok(lock)
}

/// Ends a daemon that does not answer; returns its number. What it changed is left to its guardian, or to the next undo.
pub fn end_silent(place: &Place) -> Result<u32> {
    let daemon = place.holder().daemon;
    let daemon = daemon
        .ok_or_else(|| anyhow!("the daemon does not answer, and its lock does not say who it is; end it by hand"))?;
    kill(daemon)?;
    Ok(daemon.pid)
}

fn end_guardian(holder: Holder, dry_run: bool) -> Result<()> {
    let Some(guardian) = holder.guardian else { return Ok(()) };
    // One that cannot be ended from here finds that the lock is another's, and touches nothing.
    if !guardian.is_of_this_namespace()? || is_over_within(guardian, PATIENCE_WITH_GUARDIAN)? {
        return Ok(());
    }
    ensure!(
        !dry_run,
        "the guardian of a daemon that died (pid {}) is not done, and a dry run ends nobody; try again, or `giveway revert`",
        guardian.pid
    );
    kill(guardian)?;
    // It may wait in the kernel for who changes links.
    ensure!(
        is_over_within(guardian, PATIENCE_WITH_GUARDIAN)?,
        "the guardian of a daemon that died (pid {}) does not end",
        guardian.pid
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_it_is_read_back_and_garbage_names_nobody() {
        let file = tempfile::tempfile().unwrap();
        let holder = Holder::own(Some(1)).unwrap();
        Holder {
            guardian: holder.daemon,
            ..holder
        }
        .write(&file)
        .unwrap();
        holder.write(&file).unwrap();
        assert!(Holder::read(&file) == holder && holder.guardian.is_some());
        for (text, named) in [
            ("", false),
            ("77\n", false),
            ("7 8 1 x\n", false),
            ("7 8 3 9\n", false),
            ("7 8 1 9\n9", true),
            ("\n7 8 2 9\n", false),
        ] {
            let found = Holder::parse(text);
            assert_eq!(
                (found.daemon.is_some(), found.guardian.is_some()),
                (named, text.starts_with('\n')),
                "{text:?}"
            );
        }
    }
}
