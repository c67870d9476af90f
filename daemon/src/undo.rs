// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Undoes what a daemon left behind, by what it journalled before each change: for the watchdog, for `giveway revert`, for
//! the next start, and at the daemon's own end. Input: the journals of this network namespace. Output: one list of what
//! was restored, and one of what could not be.
//!
//! The journals are read first and cleared last; between, nothing touches a file that is not the kernel's. What somebody may keep
//! from answering is waited for, but not for ever.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::fcntl::OFlag;

use crate::actuate::nice::UnsavedCount;
use crate::actuate::queue::undo::take_down_unjournalled;
use crate::actuate::receive::settings;
use crate::actuate::sockets::cap::saved;
use crate::actuate::thread::attributes::Attributes;
use crate::actuate::{download, nice, queue, thread, upload};
use crate::journal::register::{JournalFile, UndoHandler};
use crate::journal::{self, JournalContents, UndoReport, UnrestoredEntries, contents};
use crate::kernel::links::detach_all_of;
use crate::kernel::scanner::{self, SocketProtocol};
use crate::life::LONG_WORK;
use crate::place::{JournalOrigin, Place};
use crate::presence;

/// For reading the journals, and for clearing up.
const PATIENCE: Duration = Duration::from_secs(2);
/// For the kernel, which may have to scan over many sockets; for each journal of [`QUEUE`] and [`REST`].
const PATIENCE_WITH_KERNEL: Duration = Duration::from_secs(4);
/// Who undoes gives no sign of life meanwhile.
const _: () = assert!(
    2 * PATIENCE.as_secs() + (QUEUE.len() + REST.len()) as u64 * PATIENCE_WITH_KERNEL.as_secs() < LONG_WORK.as_secs()
);
/// What runs before everything comes first.
const THREADS: [UndoHandler; 3] = [thread::REALTIME, thread::CHAINS, thread::NAPI];
/// Of these, what its thread gives that ends before the rest of the daemon may.
const REALTIME: [UndoHandler; 2] = [thread::REALTIME, thread::NAPI];
const QUEUE: [UndoHandler; 3] = [download::UNDO, upload::UNDO, queue::undo::UNDO];
/// Users start processes as fast as they can: they delay nothing but this, which is the last.
const REST: [UndoHandler; 3] = [saved::UNDO, settings::UNDO, nice::UNDO];

/// Undoes everything that the journals know, or in a dry run only finds it. The caller holds the lock, unless it is a dry
/// run.
pub fn undo(place: &Place, dry_run: bool) -> UndoReport {
    let mut undoing = UndoRun::begin(place, dry_run);
    undoing.threads();
    let begun = Instant::now();
    undoing.queue();
    undoing.queues_in_no_journal(PATIENCE_WITH_KERNEL.saturating_sub(begun.elapsed()));
    undoing.rest();
    undoing.files()
}

/// How many tasks were left without saved state; None where nothing was reniced, or files do not let themselves be read.
pub fn unsaved(place: &Place) -> Option<UnsavedCount> {
    let place = place.clone();
    within(PATIENCE, move || UnsavedCount::of(&place)).ok().flatten()
}

/// What the real-time thread gave, for when it ends before the rest of the daemon.
pub fn realtime(place: &Place) -> UndoReport {
    at_once(place, &REALTIME, false)
}

/// What is the machine's and not the namespace's.
pub fn threads(place: &Place, dry_run: bool) -> UndoReport {
    let mut undone = at_once(place, &THREADS, dry_run);
    undone.extend(at_once(place, &[nice::UNDO], dry_run));
    undone
}

/// The links of a dead process that keeps them, because a thread of it waits in the kernel for good.
pub fn links(pid: u32) -> UndoReport {
    let mut undone = UndoReport::default();
    match within(PATIENCE, move || detach_all_of(pid)) {
        Ok(line) => undone.lines.extend(line),
        Err(_) => undone.fail(format!("what process {pid} has attached does not let itself be listed")),
    }
    undone
}

fn at_once(place: &Place, journals: &[UndoHandler], dry_run: bool) -> UndoReport {
    let mut undone = UndoReport::default();
    for UndoHandler { file, restore } in journals {
        undone.extend(journal::undo(&place.journal(*file), *restore, dry_run));
    }
    undone
}

/// An undo that is under way, step by step.
pub struct UndoRun {
    place: Place,
    dry_run: bool,
    written: HashMap<JournalFile, JournalContents>,
    left: Vec<UnrestoredEntries>,
    /// What a later undo needs them for is not done.
    pins_stay: bool,
    /// No process is nice by giveway any more, so that nothing has to follow what they start.
    nobody_is_nice: bool,
    pub undone: UndoReport,
}

/// The files of the journals as they were seen last, for when one is removed by another than giveway. A writer that clears a
/// journal empties its file.
#[derive(Default)]
pub struct OpenJournals(HashMap<JournalFile, Vec<File>>);

impl OpenJournals {
    /// Call it often: what was not seen is not held.
    pub fn follow(&mut self, place: &Place) {
        for file in JournalFile::ALL {
            let held = self.0.entry(file).or_default();
            let is_left = |file: &File| file.metadata().is_ok_and(|about| about.nlink() > 0 || about.len() > 0);
            held.retain(is_left);
            let mut options = File::options();
            let Ok(now) = options
                .read(true)
                .custom_flags(OFlag::O_NONBLOCK.bits())
                .open(place.journal(file))
            else {
                continue;
            };
            let id = |file: &File| file.metadata().map(|about| (about.dev(), about.ino())).ok();
            if !held.iter().any(|known| id(known) == id(&now)) {
                held.push(now);
            }
        }
    }

    fn removed(&self) -> impl Iterator<Item = (JournalFile, Vec<u8>)> {
        self.0.iter().flat_map(|(file, held)| {
            let is_removed = |held: &&File| held.metadata().is_ok_and(|about| about.nlink() == 0);
            let contents = held.iter().filter(is_removed).filter_map(|held| contents(held).ok());
            contents.map(|bytes| (*file, bytes)).collect::<Vec<_>>()
        })
    }
}

enum Read {
    LeftBy(JournalOrigin),
    Journal(JournalFile, JournalContents),
}

impl UndoRun {
    /// Reads what there is. What does not let itself be read keeps nothing else from being undone.
    pub fn begin(place: &Place, dry_run: bool) -> Self {
        let all = THREADS.into_iter().chain(QUEUE).chain(REST);
        let files: Vec<JournalFile> = all.map(|undo| undo.file).collect();
        let mut undoing = Self {
            place: place.clone(),
            dry_run,
            written: HashMap::new(),
            left: Vec::new(),
            pins_stay: false,
            nobody_is_nice: false,
            undone: UndoReport::default(),
        };
        let (sender, receiver) = mpsc::channel();
        let (of, wanted) = (place.clone(), files.clone());
        in_background(move |under_way| {
            // Whoever has waited too long hears nothing more.
            let _ = sender.send(Read::LeftBy(of.left_by()));
            for file in wanted {
                let _ = sender.send(Read::Journal(file, JournalContents::read(of.journal(file))));
            }
            drop(under_way);
        });
        let (end, mut left_by) = (Instant::now() + PATIENCE, JournalOrigin::This);
        while let Ok(read) = receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
            match read {
                Read::LeftBy(whose) => left_by = whose,
                Read::Journal(file, written) => drop(undoing.written.insert(file, written)),
            }
        }
        for file in files.iter().filter(|file| !undoing.written.contains_key(file)) {
            // What was not read is undone by the next try, which needs the saved state.
            undoing.pins_stay = true;
            let path = place.journal(*file);
            undoing
                .undone
                .fail(format!("{} does not let itself be read; try again", path.display()));
        }
        if left_by != JournalOrigin::This {
            let stays = |file: &JournalFile| left_by == JournalOrigin::AnotherNamespace && file.is_machines();
            undoing.written.retain(|file, _| stays(file));
            undoing.pins_stay = true;
        }
        undoing
    }

    /// And by journals whose files were removed.
    pub fn with(mut self, held: &OpenJournals) -> Self {
        for (file, bytes) in held.removed() {
            let written = self.written.entry(file);
            let empty = || JournalContents::empty(self.place.journal(file));
            written.or_insert_with(empty).add_removed(&bytes);
        }
        self
    }

    /// Not where a journal could not be read, or one of its entries is still to be restored.
    fn queues_in_no_journal(&mut self, patience: Duration) {
        if self.dry_run || !self.undone.failed.is_empty() {
            return;
        }
        // They may be those of one that cannot be seen from here, as its pins.
        let take_down = || match presence::is_any_unseen() {
            true => Ok(None),
            false => take_down_unjournalled().map(Some),
        };
        match within(patience, take_down) {
            Ok(Ok(Some(lines))) => self.undone.lines.extend(lines),
            Ok(Ok(None)) => self.pins_stay = true,
            Ok(Err(error)) => self.undone.fail(format!("{error:#}")),
            Err(_) => self
                .undone
                .fail("the qdiscs do not let themselves be listed".to_owned()),
        }
    }

    /// What the real-time thread gave. The journals stay, for the daemon that may live on.
    pub fn realtime(mut self) -> UndoReport {
        REALTIME.into_iter().for_each(|undo| self.restore(undo));
        self.undone
    }

    pub fn threads(&mut self) {
        THREADS.into_iter().for_each(|undo| self.restore(undo));
    }

    pub fn queue(&mut self) {
        QUEUE.into_iter().for_each(|undo| self.restore_within(undo));
    }

    /// All but threads and the queue.
    pub fn rest(&mut self) {
        REST.into_iter().for_each(|undo| self.restore_within(undo));
    }

    /// Clears up what is no longer needed.
    pub fn files(self) -> UndoReport {
        let Self {
            place,
            dry_run,
            left,
            pins_stay,
            nobody_is_nice,
            mut undone,
            ..
        } = self;
        if dry_run {
            return undone;
        }
        let folder = place.control_socket();
        let clear = move || {
            let mut undone = UndoReport::default();
            left.into_iter().for_each(|left| undone.extend(left.keep()));
            // A journal that stays is undone again by the next start, which needs the saved state to see that nothing is left.
            let is_cleared = undone.failed.is_empty();
            let removed = match !pins_stay && is_cleared {
                true => place.pins().remove(),
                false if nobody_is_nice => place.pins().remove_programs(),
                false => Ok(()),
            };
            if let Err(error) = removed {
                undone.fail(format!("{error:#}"));
            }
            // Whoever asks now is told at once that nobody runs. The next daemon makes its own.
            for socket in [place.control_socket(), place.roots_socket()] {
                let _ = journal::remove(&socket);
            }
            undone
        };
        match within(PATIENCE, clear) {
            Ok(cleared) => undone.extend(cleared),
            Err(none) => {
                undone.goes_on |= none == RecvTimeoutError::Timeout;
                undone.fail(format!(
                    "the folder of {} does not let itself be cleared up",
                    folder.display()
                ));
            }
        }
        undone
    }

    fn restore(&mut self, UndoHandler { file, restore }: UndoHandler) {
        if let Some(written) = self.written.remove(&file) {
            self.note(file, restore(written, self.dry_run));
        }
    }

    fn restore_within(&mut self, UndoHandler { file, restore }: UndoHandler) {
        let Some(written) = self.written.remove(&file) else {
            return;
        };
        let dry_run = self.dry_run;
        match within(PATIENCE_WITH_KERNEL, move || restore(written, dry_run)) {
            Ok(outcome) => self.note(file, outcome),
            Err(none) => {
                self.pins_stay = true;
                self.undone.goes_on |= none == RecvTimeoutError::Timeout;
                let path = self.place.journal(file);
                self.undone.fail(format!(
                    "the kernel does not take back what {} says; try again",
                    path.display()
                ));
            }
        }
    }

    fn note(&mut self, file: JournalFile, (mut undone, left): (UndoReport, UnrestoredEntries)) {
        if file == JournalFile::Sockets {
            undone.sockets = undone.lines.len();
        }
        self.nobody_is_nice |= file == JournalFile::Nice && undone.failed.is_empty();
        let is_threads = THREADS.iter().any(|undo| undo.file == file);
        self.pins_stay |= !is_threads && !undone.failed.is_empty();
        self.undone.extend(undone);
        self.left.push(left);
    }
}

/// An error where there is no outcome: it takes too long and goes on, or its thread has died.
fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RecvTimeoutError> {
    let (sender, receiver) = mpsc::channel();
    in_background(move |under_way| {
        let done = work();
        drop(under_way);
        let _ = sender.send(done);
    });
    receiver.recv_timeout(patience)
}

/// Threads that were not waited for to their end.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Something that took too long still goes on in this process, and ends with it; or somebody keeps a socket locked, so that it
/// is too soon to try again.
pub fn goes_on() -> bool {
    UNDER_WAY.load(Ordering::Acquire) > 0 || scanner::check(SocketProtocol::Tcp).is_err()
}

/// In a thread that may get stuck, with the priority of this one; in this one only where no other can be had. It lets go of
/// [`InProgress`] before it gives its last answer: who has that finds nothing that goes on.
fn in_background(work: impl FnOnce(InProgress) + Send + 'static) {
    // It must not have to run to get it: something without end may be computing.
    let own = Attributes::of(0).ok().filter(Attributes::is_realtime);
    let set = |attributes: Option<Attributes>| {
        // Where it is refused, this thread would not have it.
        let _ = attributes.map(|attributes| attributes.set(0));
    };
    set(own.map(Attributes::for_children_too));
    UNDER_WAY.fetch_add(1, Ordering::AcqRel);
    let work = Arc::new(Mutex::new(Some(work)));
    let other = Arc::clone(&work);
    let started = std::thread::Builder::new().spawn(move || do_once(&other));
    set(own);
    if started.is_err() {
        do_once(&work);
    }
}

fn do_once(work: &Mutex<Option<impl FnOnce(InProgress)>>) {
    let taken = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(work) = taken {
        work(InProgress);
    }
}

/// While a thread has this it is under way; it lets go also where it panics.
struct InProgress;

impl Drop for InProgress {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Undoes everything, as a result.
///
/// # Errors
/// Where something could not be undone.
pub fn undo_all(place: &Place) -> Result<UndoReport> {
    let undone = undo(place, false);
    anyhow::ensure!(
        undone.failed.is_empty(),
        "not everything was undone: {}",
        undone.failed.join("; ")
    );
    Ok(undone)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a watchdog that has undone everything takes it for something that goes on, and stays.
    #[test]
    fn who_has_an_answer_finds_nothing_under_way() {
        for _ in 0..1000 {
            within(Duration::from_secs(10), || ()).unwrap();
            assert_eq!(UNDER_WAY.load(Ordering::Acquire), 0);
        }
    }
}
