// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where this network namespace's giveway lives: its lock, its control socket and its journal.
//!
//! The journal holds every clamp value that giveway was ever about to put on a socket here, written before
//! it is used. A clamp with one of these values is ours to lift; that is how a later process undoes the
//! work of one that died, whatever moment it died at. What a device's queue was before giveway touched it stands in
//! a journal of its own, a JSON object a line.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::actuate::queue::Before;

const ROOT: &str = "/run/giveway";
const PINS: &str = "/sys/fs/bpf";
const PIN_PREFIX: &str = "giveway-netns-";

/// The paths of one network namespace.
#[derive(Clone, Debug)]
pub struct Place {
    directory: PathBuf,
    netns_inum: u32,
}

impl Place {
    /// The calling process's namespace. Touches nothing.
    pub fn here() -> Result<Self> {
        Ok(Self::of(crate::kernel::own_netns()?))
    }

    fn of(netns_inum: u32) -> Self {
        Self {
            directory: Path::new(ROOT).join(format!("netns-{netns_inum}")),
            netns_inum,
        }
    }

    pub fn netns_inum(&self) -> u32 {
        self.netns_inum
    }

    pub fn control_socket(&self) -> PathBuf {
        self.directory.join("control")
    }

    fn journal(&self) -> PathBuf {
        self.directory.join("caps")
    }

    fn queue_journal(&self) -> PathBuf {
        self.directory.join("queues")
    }

    /// Where real time is written down (`actuate/schedule`).
    pub fn realtime_journal(&self) -> PathBuf {
        self.directory.join("realtime")
    }

    /// Of what the receiving side has changed.
    pub fn receive_journal(&self) -> PathBuf {
        self.directory.join("receive")
    }

    fn create(&self) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.directory)
            .with_context(|| format!("cannot create {}: giveway needs root", self.directory.display()))
    }

    /// Takes the namespace for this process until the lock is dropped.
    ///
    /// # Errors
    /// When another daemon holds it, naming its pid.
    pub fn lock(&self) -> Result<Lock> {
        self.create()?;
        let path = self.directory.join("lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        // Whoever can open it can hold it.
        file.set_permissions(Permissions::from_mode(0o600))
            .with_context(|| format!("cannot close {} to others", path.display()))?;
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((mut file, _)) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                bail!(
                    "giveway already runs in this network namespace (pid {}); it goes on unharmed. \
                     Ask it with `giveway status`, or end it with `giveway revert`",
                    pid.trim()
                );
            }
        };
        lock.set_len(0)
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .context("cannot write the lock")?;
        Ok(Lock(lock))
    }

    /// Takes the namespace as soon as a daemon that has just died is really gone: the kernel closes a dying
    /// process's files one by one, the lock not first.
    pub fn lock_within(&self, patience: Duration) -> Result<Lock> {
        let start = Instant::now();
        loop {
            match self.lock() {
                Err(_) if start.elapsed() < patience => std::thread::sleep(Duration::from_millis(5)),
                outcome => return outcome,
            }
        }
    }

    /// Opens the journal for writing, with what it already holds.
    pub fn open_journal(&self) -> Result<Journal> {
        self.create()?;
        let file = OpenOptions::new().append(true).create(true).open(self.journal());
        Ok(Journal {
            known: self.journalled()?,
            file: file.context("cannot open the journal")?,
        })
    }

    /// The clamp values that are ours to lift.
    pub fn journalled(&self) -> Result<BTreeSet<u32>> {
        match fs::read_to_string(self.journal()) {
            // A line cut short by a crash was never put to use.
            Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.journal().display())),
        }
    }

    /// Writes down what a queue was, before it is changed.
    pub fn journal_queue(&self, before: &Before) -> Result<()> {
        self.create()?;
        let line = format!("{}\n", serde_json::to_string(before)?);
        let mut file = OpenOptions::new().append(true).create(true).open(self.queue_journal());
        file.as_mut()
            .map_err(|error| std::io::Error::from(error.kind()))
            .and_then(|file| file.write_all(line.as_bytes()))
            .context("cannot write down what the queue was, so it is not changed")
    }

    /// The queues that giveway may have changed, as they were before.
    pub fn journalled_queues(&self) -> Result<Vec<Before>> {
        match fs::read_to_string(self.queue_journal()) {
            // A line cut short by a crash was never put to use.
            Ok(text) => Ok(text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.queue_journal().display())),
        }
    }

    /// Where the qdisc is pinned; None where no BPF file system is mounted (`ip netns exec` hides it).
    pub fn qdisc_pin(&self) -> Option<PathBuf> {
        let mounted = statfs(PINS).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC);
        mounted.then(|| Path::new(PINS).join(format!("{PIN_PREFIX}{}", self.netns_inum)))
    }

    /// Takes away the pins of other namespaces that no daemon and no guardian looks after any more. A qdisc that is up
    /// serves on without its pin; and a namespace that is gone would leave its own for ever.
    pub fn remove_orphaned_pins(&self) {
        let own = self.qdisc_pin();
        let pins = own
            .iter()
            .flat_map(|_| fs::read_dir(PINS).into_iter().flatten().flatten());
        for pin in pins.filter(|pin| Some(pin.path()) != own) {
            let name = pin.file_name();
            let netns_inum = name
                .to_str()
                .and_then(|name| name.strip_prefix(PIN_PREFIX)?.parse().ok());
            if netns_inum.is_some_and(|netns_inum| Self::of(netns_inum).lock().is_ok()) {
                let _ = fs::remove_file(pin.path());
            }
        }
    }

    /// Forgets the queues, once each is what it was.
    pub fn clear_queue_journal(&self) -> Result<()> {
        remove(&self.queue_journal())
    }

    /// Forgets the journal, once nothing that it names is left on any socket.
    pub fn clear_journal(&self) -> Result<()> {
        remove(&self.journal())
    }
}

fn remove(journal: &Path) -> Result<()> {
    match fs::remove_file(journal) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context("cannot clear the journal"),
        _ => Ok(()),
    }
}

/// Held for as long as the daemon runs.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not read: closing the file releases the lock")] Flock<File>);

/// Append-only: a value is in it before any socket carries it.
#[derive(Debug)]
pub struct Journal {
    known: BTreeSet<u32>,
    file: File,
}

impl Journal {
    /// Makes sure that the values are written down.
    pub fn add(&mut self, values: impl IntoIterator<Item = u32>) -> Result<()> {
        let mut lines = String::new();
        for value in values {
            if self.known.insert(value) {
                lines.push_str(&format!("{value}\n"));
            }
        }
        self.file
            .write_all(lines.as_bytes())
            .context("cannot write down a change before it is made, so it is not made")
    }
}
