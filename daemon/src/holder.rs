// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who holds a network namespace: the daemon and its watchdog, as the lock's file names them. Input and output: that file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use anyhow::Result;

use crate::kernel::boot;
use crate::kernel::process::end::ProcessIdentity;

const LONGEST: usize = 256;
/// The line that says in which boot the others were written.
const BOOT: &str = "boot ";

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Holder {
    pub daemon: Option<ProcessIdentity>,
    pub watchdog: Option<ProcessIdentity>,
}

impl Holder {
    /// Nobody where the file does not say, or was written before the machine was started anew.
    pub fn read(lock: &File) -> Self {
        let mut bytes = [0; LONGEST];
        // Once more where it fails: the watchdog would take the dead daemon's lock for somebody else's, and undo nothing.
        let read = lock.read_at(&mut bytes, 0).or_else(|_| lock.read_at(&mut bytes, 0));
        let length = read.unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&bytes[..length]))
    }

    fn parse(text: &str) -> Self {
        let boot = text.lines().find_map(|line| line.strip_prefix(BOOT));
        if boot.is_some_and(boot::is_another) {
            return Self::default();
        }
        let process = |line: &str| {
            let words: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
            ProcessIdentity::from_words(words.ok()?.try_into().ok()?)
        };
        let mut lines = text.lines().map(process);
        Self {
            daemon: lines.next().flatten(),
            watchdog: lines.next().flatten(),
        }
    }

    /// This process, with its watchdog.
    pub fn own(watchdog: Option<u32>) -> Result<Self> {
        Ok(Self {
            daemon: Some(ProcessIdentity::own()?),
            watchdog: watchdog.map(ProcessIdentity::of).transpose()?.flatten(),
        })
    }

    pub fn write(&self, lock: &File) -> io::Result<()> {
        let both = [self.daemon, self.watchdog].into_iter().flatten();
        let line = |named: ProcessIdentity| named.to_words().map(|word| word.to_string()).join(" ") + "\n";
        let boot = boot::id().map(|id| format!("{BOOT}{id}\n"));
        // Its place is after both of them.
        let text: String = both.map(line).chain(boot).collect();
        lock.write_all_at(text.as_bytes(), 0)?;
        lock.set_len(text.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_it_is_read_back_and_garbage_names_nobody() {
        let file = tempfile::tempfile().unwrap();
        let holder = Holder::own(Some(1)).unwrap();
        Holder {
            watchdog: holder.daemon,
            ..holder
        }
        .write(&file)
        .unwrap();
        holder.write(&file).unwrap();
        assert!(Holder::read(&file) == holder && holder.watchdog.is_some());
        let in_this = format!("7 8 1 9\n{BOOT}{}\n", boot::id().unwrap());
        for (text, named) in [
            (in_this.as_str(), true),
            ("7 8 1 9\nboot 6f2c8a1e-0000-4000-8000-000000000000\n", false),
            ("", false),
            ("77\n", false),
            ("7 8 1 x\n", false),
            ("7 8 3 9\n", false),
            ("7 8 1 9\n9", true),
            ("\n7 8 2 9\n", false),
        ] {
            let found = Holder::parse(text);
            assert_eq!(
                (found.daemon.is_some(), found.watchdog.is_some()),
                (named, text.starts_with('\n')),
                "{text:?}"
            );
        }
    }
}
