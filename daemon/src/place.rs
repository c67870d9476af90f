// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state folder of this network namespace: its lock, its control socket, its journals and its pins. Input: the
//! calling process's namespace. Output: paths, and the lock that makes one daemon of it. It never puts anything back.
//!
//! The folder is named by the namespace's inode number, which programs see but the kernel uses again for a new
//! namespace. So it holds the namespace's cookie too, which is never used again until the machine is started anew, and the
//! name of that boot: /run may be on a disk.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::files::{FOLDER_MODE, is_private, is_unwritten_by_others, private};
use crate::holder::Holder;
use crate::journal::register::JournalFile;
use crate::journal::{left_of, remove};
use crate::kernel::process::end::is_over;
use crate::kernel::{boot, random};
use crate::pins::Pins;
use crate::presence::{Announcement, Folder};

const ROOT: &str = "/run/giveway";
const PREFIX: &str = "netns-";
/// What else than journals is in a state folder.
const LOCK: &str = "lock";
const CONTROL: &str = "control";
const ROOTS_CONTROL: &str = "control-root";
const COOKIE: &str = "cookie";
const BOOT: &str = "boot";
const REQUEST: &str = "reverted";
const REPORT: &str = "undone";
const MOUNT: &str = "bpf";
const BY_HAND: &str = "by-hand";
/// A line of the folder's own.
const LONGEST_TEXT: u64 = 128;
const LONGEST_REPORT: u64 = 1 << 16;
const LONGEST_BY_HAND: u64 = 1 << 20;
const NO_JOURNALS: [&str; 9] = [
    LOCK,
    CONTROL,
    ROOTS_CONTROL,
    COOKIE,
    BOOT,
    REQUEST,
    REPORT,
    MOUNT,
    BY_HAND,
];
/// Who began to start before a request to end has seen it within this time. Until then the request stays.
const REQUEST_STAYS: Duration = Duration::from_secs(600);
/// Where the kernel does not tell whether a namespace is gone, what waits there for its next daemon is kept for so long.
const KEPT_FOR: Duration = Duration::from_secs(3600);

/// What the folder's journals speak of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JournalOrigin {
    This,
    /// Of its threads alone, which are the machine's.
    AnotherNamespace,
    /// Nothing that is there any more.
    AnotherBoot,
}

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
        self.directory.join(file.name())
    }

    pub fn pins(&self) -> Pins {
        Pins::new(&format!("giveway-{PREFIX}{}", self.netns_inum), &self.directory)
    }

    /// Who left the folder behind: its journals may not mean this namespace, or this boot.
    pub fn left_by(&self) -> JournalOrigin {
        if self.is_of_another_boot() {
            return JournalOrigin::AnotherBoot;
        }
        match (self.claimed_by(), self.cookie) {
            (Some(found), Some(own)) if found != own => JournalOrigin::AnotherNamespace,
            _ => JournalOrigin::This,
        }
    }

    fn is_of_another_boot(&self) -> bool {
        self.own_text(BOOT)
            .is_some_and(|written| boot::is_another(written.trim()))
    }

    /// Asks whoever starts a daemon here, and has begun before now, to give it up. The request stays: one that has not got as
    /// far as to take the lock sees it when it has.
    pub fn request_end(&self) -> Result<()> {
        self.create()
            .and_then(|()| {
                let unique: String = random()
                    .map_err(std::io::Error::other)?
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                self.write(REQUEST, &unique)
            })
            .with_context(|| {
                format!(
                    "cannot write {}, so a starting daemon is not stopped",
                    self.directory.join(REQUEST).display()
                )
            })
    }

    /// The last request of that kind; None where there was none.
    pub fn last_request(&self) -> Option<String> {
        self.own_text(REQUEST)
    }

    /// Leaves what a watchdog has undone to the `giveway revert` that ended its daemon.
    pub fn write_report(&self, undone: &str) -> std::io::Result<()> {
        self.write(REPORT, undone)
    }

    /// The last of these, which is removed.
    pub fn take_report(&self) -> Option<String> {
        let report = self.text(REPORT, LONGEST_REPORT);
        let _ = remove(&self.directory.join(REPORT));
        report.map(|report| report.trim_end().to_owned())
    }

    /// What is set by hand, for the next daemon of this boot.
    pub fn keep_by_hand(&self, text: &str) -> Result<()> {
        self.write(BY_HAND, text).with_context(|| {
            let path = self.directory.join(BY_HAND);
            format!("cannot write {}, by which it outlives this daemon", path.display())
        })
    }

    pub fn kept_by_hand(&self) -> Option<String> {
        self.text(BY_HAND, LONGEST_BY_HAND)
    }

    pub fn forget_by_hand(&self) -> Result<()> {
        let path = self.directory.join(BY_HAND);
        remove(&path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// As a whole or not at all, for root alone.
    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        let (path, new) = (self.directory.join(name), self.directory.join(format!("{name}.new")));
        remove(&new)?;
        let mut file = private().write(true).create_new(true).open(&new)?;
        writeln!(file, "{text}")?;
        fs::rename(&new, &path)
    }

    fn claimed_by(&self) -> Option<u64> {
        self.own_text(COOKIE)?.trim().parse().ok()
    }

    /// None where it does not say, or where somebody else could have written it.
    fn own_text(&self, name: &str) -> Option<String> {
        self.text(name, LONGEST_TEXT)
    }

    fn text(&self, name: &str, longest: u64) -> Option<String> {
        let file = private().read(true).open(self.directory.join(name)).ok()?;
        is_unwritten_by_others(&file.metadata().ok()?).then_some(())?;
        std::io::read_to_string(file.take(longest)).ok()
    }

    pub fn folder_path(&self) -> &Path {
        &self.directory
    }

    /// The state folder, which is made where it is not there.
    pub fn folder(&self) -> Result<Folder> {
        self.create().with_context(|| {
            let needs = if geteuid().is_root() {
                ""
            } else {
                ": giveway needs root"
            };
            format!("cannot create {}{needs}", self.directory.display())
        })?;
        Folder::of(&self.directory)
    }

    /// Takes the namespace for this process until the lock is dropped.
    ///
    /// # Errors
    /// When another daemon holds it, naming its pid.
    pub fn lock(&self) -> Result<Lock> {
        self.folder()?;
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
            waited: false,
            ended: None,
            announced: None,
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
            waited: false,
            ended: None,
            announced: None,
        })
    }

    /// The lock's file, for who only asks who holds it.
    pub fn open_lock(&self) -> Result<File> {
        let path = self.directory.join(LOCK);
        File::open(&path).with_context(|| format!("cannot open {}", path.display()))
    }

    /// Whether this is the lock's file still.
    pub fn has_lock(&self, file: &File) -> bool {
        is_at(file, &self.directory.join(LOCK))
    }

    pub fn holder(&self) -> Holder {
        self.open_lock()
            .map_or_else(|_| Holder::default(), |lock| Holder::read(&lock))
    }

    /// Takes the namespace as soon as a daemon that has just died is really gone: the kernel closes a dying
    /// process's files one by one, the lock not first.
    pub fn lock_within(&self, patience: Duration) -> Result<Lock> {
        let (start, mut waited) = (Instant::now(), false);
        loop {
            match self.lock() {
                Err(_) if start.elapsed() < patience => std::thread::sleep(Duration::from_millis(5)),
                outcome => return outcome.map(|lock| Lock { waited, ..lock }),
            }
            waited = true;
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
        let left_by = self.left_by();
        let (gone, whose) = match left_by {
            JournalOrigin::This => ("", ""),
            JournalOrigin::AnotherNamespace => ("a network namespace that is gone", "link and sockets"),
            JournalOrigin::AnotherBoot => ("an earlier boot", "links, sockets and threads"),
        };
        if left_by != JournalOrigin::This {
            tracing::info!(
                "removed {}, left behind by {gone} (about its {whose})",
                self.directory.display()
            );
            let is_moot = |file: &JournalFile| left_by == JournalOrigin::AnotherBoot || !file.is_machines();
            for journal in JournalFile::ALL
                .into_iter()
                .filter(is_moot)
                .map(|file| self.journal(file))
            {
                for file in [left_of(&journal), journal] {
                    remove(&file).with_context(|| format!("cannot remove {}", file.display()))?;
                }
            }
            if let Err(error) = self.forget_pins().and(self.forget_by_hand()) {
                tracing::warn!("{error:#}");
            }
        }
        let own_boot = boot::id().filter(|own| self.own_text(BOOT).is_none_or(|written| written.trim() != *own));
        let own_cookie = self.cookie.filter(|own| self.claimed_by() != Some(*own));
        let written = own_boot.map(|own| (BOOT, own.to_owned()));
        for (name, text) in written
            .into_iter()
            .chain(own_cookie.map(|own| (COOKIE, own.to_string())))
        {
            self.write(name, &text)
                .with_context(|| format!("cannot write {}", self.directory.join(name).display()))?;
        }
        Ok(())
    }

    /// Removes the state folders and pins of other namespaces that have no daemon and no watchdog, and where nothing is left
    /// to be restored, and nothing waits for their next daemon: of one that is gone only threads, which `restore_threads` does. A qdisc that is up
    /// serves on without its pin.
    pub fn remove_orphans(&self, restore_threads: impl Fn(&Self)) {
        for entry in fs::read_dir(ROOT).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let inum = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            let other = inum
                .filter(|inum| *inum != self.netns_inum)
                .map(|inum| Self::of(inum, None));
            if let Some(other) = other
                && let Err(error) = other.remove_if_orphaned(&restore_threads)
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

    /// Something is kept there, and its daemon has ended not so long ago.
    fn waits_for_its_daemon(&self) -> bool {
        let ended = fs::metadata(&self.directory).and_then(|about| about.modified());
        let is_new = ended.is_ok_and(|ended| ended.elapsed().is_ok_and(|ago| ago < KEPT_FOR));
        is_new && (self.kept_by_hand().is_some() || self.pins().have_records())
    }

    fn remove_if_orphaned(&self, restore_threads: &impl Fn(&Self)) -> Result<()> {
        let lock = File::open(self.directory.join(LOCK))?;
        let Ok(_lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else {
            bail!("a daemon holds it");
        };
        if self.is_of_another_boot() {
            return Ok(fs::remove_dir_all(&self.directory)?);
        }
        let cookie = self.claimed_by();
        let is_gone = cookie.is_some_and(|cookie| crate::kernel::is_netns_gone(self.netns_inum, cookie));
        if is_gone {
            restore_threads(self);
        }
        let asked = fs::metadata(self.directory.join(REQUEST)).and_then(|about| about.modified());
        let is_new = asked.is_ok_and(|asked| asked.elapsed().is_ok_and(|ago| ago < REQUEST_STAYS));
        ensure!(
            is_gone || !is_new,
            "a daemon that was starting there may still have to see that it was asked to end"
        );
        let of_namespace = JournalFile::ALL.into_iter().filter(|file| !file.is_machines());
        let moot: Vec<PathBuf> = of_namespace.map(|file| self.journal(file)).collect();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let is_journal = !NO_JOURNALS.map(Some).contains(&entry.file_name().to_str());
            let is_moot = is_gone && moot.contains(&entry.path().with_extension(""));
            if is_journal && !is_moot && entry.metadata()?.len() > 0 {
                bail!("something is left to be restored");
            }
        }
        ensure!(
            is_gone || !self.waits_for_its_daemon(),
            "what was set or chosen there waits for its next daemon"
        );
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
        "giveway already runs in this network namespace (pid {pid}) and was not touched: see `giveway \
         status`, or end it with `giveway revert`"
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
    /// Somebody else had it first.
    pub waited: bool,
    /// Who was made to give it up.
    pub ended: Option<EndedDaemon>,
    /// To those with another /run.
    pub announced: Option<Announcement>,
}

/// A daemon that had to end so that another process has the lock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EndedDaemon {
    /// It was starting, or ending, and did so by itself.
    Alone(u32),
    Killed(u32),
    /// It was killed because its lock was removed, and with it maybe all by which it could be asked.
    Removed(u32),
}

impl Lock {
    /// Writes down that this process holds it, with its watchdog. A full file system must not keep anything from being
    /// undone.
    pub fn name(&self, watchdog: Option<u32>) {
        let written = Holder::own(watchdog).and_then(|own| Ok(own.write(&self.file)?));
        if let Err(error) = written {
            tracing::debug!("cannot record the lock's holder: {error:#}");
        }
    }
}
