// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state folder of this network namespace: its lock, its control socket, its journals and its pins. Input: the
//! calling process's namespace. Output: paths, and the lock that makes one daemon of it. It never puts anything back.
//!
//! The folder is named by the namespace's inode number, which programs see but the kernel uses again for a new
//! namespace. So it holds the namespace's cookie too, which is never used again.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::files::{is_private, is_unwritten_by_others, private};
use crate::holder::Holder;
use crate::journal::{left_of, remove};
use crate::kernel::process::end::is_over;
use crate::pins::Pins;

const ROOT: &str = "/run/giveway";
const PREFIX: &str = "netns-";
/// What else than journals is in a state folder.
const LOCK: &str = "lock";
const CONTROL: &str = "control";
const ROOTS_CONTROL: &str = "control-root";
const COOKIE: &str = "cookie";
const MOUNT: &str = "bpf";
/// A number and its line's end.
const LONGEST_COOKIE: u64 = 64;
/// Others may reach the control socket, and list nothing: who may read a folder can hold its lock for as long as they like,
/// and nothing in it could be written or removed meanwhile.
const FOLDER_MODE: u32 = 0o711;

/// One writer each.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum JournalFile {
    /// Threads of `[[realtime]]`.
    Realtime,
    /// Handlers of `[[chain]]`.
    Chains,
    /// The kernel's threads that take packets in.
    Napi,
    /// Background processes and what they start.
    Nice,
    Settings,
    Queue,
    Sockets,
}

/// What these name belongs to one network namespace, and ends with it. Threads are the machine's.
const OF_NAMESPACE: [JournalFile; 3] = [JournalFile::Settings, JournalFile::Queue, JournalFile::Sockets];

/// The paths of one network namespace.
#[derive(Clone, Debug)]
pub struct Place {
    directory: PathBuf,
    netns_inum: u32,
    /// None before Linux 5.14.
    cookie: Option<u64>,
}

impl Place {
    /// The calling thread's namespace. Touches nothing.
    pub fn here() -> Result<Self> {
        let cookie = crate::kernel::own_netns_cookie().ok();
        Ok(Self::of(crate::kernel::own_netns()?, cookie))
    }

    fn of(netns_inum: u32, cookie: Option<u64>) -> Self {
        Self {
            directory: Path::new(ROOT).join(format!("{PREFIX}{netns_inum}")),
            netns_inum,
            cookie,
        }
    }

    pub fn netns_inum(&self) -> u32 {
        self.netns_inum
    }

    pub fn control_socket(&self) -> PathBuf {
        self.directory.join(CONTROL)
    }

    /// Nobody else can fill the row of those that wait before it.
    pub fn roots_socket(&self) -> PathBuf {
        self.directory.join(ROOTS_CONTROL)
    }

    pub fn journal(&self, file: JournalFile) -> PathBuf {
        self.directory.join(match file {
            JournalFile::Realtime => "realtime",
            JournalFile::Chains => "chains",
            JournalFile::Napi => "napi",
            JournalFile::Nice => "nice",
            JournalFile::Settings => "settings",
            JournalFile::Queue => "queue",
            JournalFile::Sockets => "sockets",
        })
    }

    pub fn pins(&self) -> Pins {
        Pins::new(&format!("giveway-{PREFIX}{}", self.netns_inum), &self.directory)
    }

    /// Whether the folder was left behind by a namespace that is gone, so that its journals do not mean this one.
    pub fn is_stale(&self) -> bool {
        matches!((self.claimed_by(), self.cookie), (Some(found), Some(own)) if found != own)
    }

    /// None where it does not say, or where somebody else could have written it.
    fn claimed_by(&self) -> Option<u64> {
        let cookie = private().read(true).open(self.directory.join(COOKIE)).ok()?;
        is_unwritten_by_others(&cookie.metadata().ok()?).then_some(())?;
        std::io::read_to_string(cookie.take(LONGEST_COOKIE))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// Takes the namespace for this process until the lock is dropped.
    ///
    /// # Errors
    /// When another daemon holds it, naming its pid.
    pub fn lock(&self) -> Result<Lock> {
        self.create().with_context(|| {
            let needs = if geteuid().is_root() {
                ""
            } else {
                ": giveway needs root"
            };
            format!("cannot create {}{needs}", self.directory.display())
        })?;
        let path = self.directory.join(LOCK);
        let file = open_lock(&path)?;
        if !is_private(&file.metadata()?) {
            self.replace_open_lock(&path)?;
            return self.lock();
        }
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((file, _)) => {
                bail!(already_runs(Holder::read(&file)));
            }
        };
        if !is_at(&file, &path) {
            // Another daemon has cleared the folder between our opening the file and our holding it.
            return self.lock();
        }
        Ok(Lock {
            before: Holder::read(&file),
            file,
        })
    }

    /// Puts another lock in the place of one that somebody else could open, as an earlier version made it for a moment: they
    /// could hold it for good.
    fn replace_open_lock(&self, path: &Path) -> Result<()> {
        let _turn = Flock::lock(File::open(&self.directory)?, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| errno)
            .context("another process is replacing giveway's lock")?;
        let open = open_lock(path)?;
        if is_private(&open.metadata()?) {
            return Ok(());
        }
        let holder = Holder::read(&open);
        let is_held = Flock::lock(open, FlockArg::LockExclusiveNonblock);
        if is_held.is_err()
            && holder
                .daemon
                .is_some_and(|daemon| is_over(daemon).is_ok_and(|is_over| !is_over))
        {
            bail!(already_runs(holder));
        }
        let new = self.directory.join("lock.new");
        remove(&new)?;
        open_lock(&new)?;
        fs::rename(&new, path).with_context(|| format!("cannot replace {}", path.display()))
    }

    /// Takes the namespace from a holder that is dead but keeps its lock. The caller makes sure of that.
    pub fn replace_lock(&self, dead: Holder) -> Result<Lock> {
        let (path, new) = (self.directory.join(LOCK), self.directory.join("lock.new"));
        let lock = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno);
        let _turn = lock(File::open(&self.directory)?).context("another process is taking giveway's lock over")?;
        ensure!(self.holder() == dead, "another process has taken giveway's lock over");
        remove(&new)?;
        let file = lock(open_lock(&new)?).with_context(|| format!("cannot lock {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("cannot replace {}", path.display()))?;
        Ok(Lock {
            file,
            before: Holder::default(),
        })
    }

    /// The lock's file, for who only asks who holds it.
    pub fn open_lock(&self) -> Result<File> {
        let path = self.directory.join(LOCK);
        File::open(&path).with_context(|| format!("cannot open {}", path.display()))
    }

    pub fn holder(&self) -> Holder {
        self.open_lock()
            .map_or_else(|_| Holder::default(), |lock| Holder::read(&lock))
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

    fn create(&self) -> std::io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(FOLDER_MODE).create(&self.directory)?;
        // An earlier version's may be open to others.
        [Path::new(ROOT), &self.directory]
            .into_iter()
            .try_for_each(|folder| fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE)))
    }

    /// Makes the folder this namespace's. With the lock, and before anything is journalled, so that no journal is taken
    /// for another's.
    pub fn claim(&self) -> Result<()> {
        if self.is_stale() {
            tracing::info!(
                "{} was left behind by a network namespace that is gone; what it says of that one's link and sockets is \
                 thrown away",
                self.directory.display()
            );
            for journal in OF_NAMESPACE.map(|file| self.journal(file)) {
                for file in [left_of(&journal), journal] {
                    remove(&file).with_context(|| format!("cannot remove {}", file.display()))?;
                }
            }
            if let Err(error) = self.forget_pins() {
                tracing::warn!("{error:#}");
            }
        }
        let Some(cookie) = self.cookie.filter(|own| self.claimed_by() != Some(*own)) else {
            return Ok(());
        };
        let (path, new) = (self.directory.join(COOKIE), self.directory.join("cookie.new"));
        remove(&new)
            .and_then(|()| private().write(true).create_new(true).open(&new))
            .and_then(|mut file| writeln!(file, "{cookie}"))
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the state folders and pins of other namespaces that have no daemon and no guardian, and where
    /// nothing is left to be put back: of one that is gone only threads, which `put_back_threads` does. A qdisc that is up
    /// serves on without its pin.
    pub fn remove_orphans(&self, put_back_threads: impl Fn(&Self)) {
        for entry in fs::read_dir(ROOT).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let inum = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            let other = inum
                .filter(|inum| *inum != self.netns_inum)
                .map(|inum| Self::of(inum, None));
            if let Some(other) = other
                && let Err(error) = other.remove_if_orphaned(&put_back_threads)
            {
                tracing::debug!("{} stays: {error:#}", other.directory.display());
            }
        }
    }

    /// Those of records, too.
    fn forget_pins(&self) -> Result<()> {
        let pins = self.pins();
        pins.remove_records()?;
        pins.remove()
    }

    fn remove_if_orphaned(&self, put_back_threads: &impl Fn(&Self)) -> Result<()> {
        let lock = File::open(self.directory.join(LOCK))?;
        let Ok(_lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else {
            bail!("a daemon holds it");
        };
        let cookie = self.claimed_by();
        let is_gone = cookie.is_some_and(|cookie| crate::kernel::is_netns_gone(self.netns_inum, cookie));
        if is_gone {
            put_back_threads(self);
        }
        let moot = OF_NAMESPACE.map(|file| self.journal(file));
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let is_journal = ![LOCK, CONTROL, ROOTS_CONTROL, COOKIE, MOUNT]
                .map(Some)
                .contains(&entry.file_name().to_str());
            let is_moot = is_gone && moot.contains(&entry.path().with_extension(""));
            if is_journal && !is_moot && entry.metadata()?.len() > 0 {
                bail!("something is left to be put back");
            }
        }
        self.forget_pins()?;
        Ok(fs::remove_dir_all(&self.directory)?)
    }
}

/// A process that can open it can hold it: nobody else can, from the moment on in which it is made.
fn open_lock(path: &Path) -> Result<File> {
    let file = private().read(true).write(true).create(true).truncate(false).open(path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

fn already_runs(holder: Holder) -> String {
    let pid = holder.daemon.map_or("unknown".to_owned(), |id| id.pid.to_string());
    format!(
        "giveway already runs in this network namespace (pid {pid}); it goes on unharmed. Ask it with `giveway status`, or \
         end it with `giveway revert`"
    )
}

fn is_at(file: &File, path: &Path) -> bool {
    let id = |about: std::io::Result<fs::Metadata>| about.ok().map(|about| (about.dev(), about.ino()));
    id(file.metadata()) == id(fs::metadata(path))
}

/// Held for as long as the daemon runs.
#[derive(Debug)]
pub struct Lock {
    file: Flock<File>,
    /// Who held it last.
    pub before: Holder,
}

impl Lock {
    /// Writes down that this process holds it, with its guardian. A full file system must not keep anything from being
    /// undone.
    pub fn name(&self, guardian: Option<u32>) {
        let written = Holder::own(guardian).and_then(|own| Ok(own.write(&self.file)?));
        if let Err(error) = written {
            tracing::debug!("cannot write down who holds the lock: {error:#}");
        }
    }
}
