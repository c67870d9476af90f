// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches processes start, in one network namespace: reports execs of the files and by the users that are watched, and
//! execs, new threads and ends of the processes that are held. Everything else is filtered in the kernel. It never looks at
//! a process by itself and never changes one.

use giveway_engine::model::ProcessId;
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use super::ids::start_of;
use super::libbpf_log::explain;
use super::namespace;
use super::process::cmdline;
use super::records;
use super::ring::Ring;
use super::skeletons::task_watch as skeleton;
use skeleton::types;

/// The initial pid namespace has this number on every kernel (PROC_PID_INIT_INO).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Handed over in one go, so that a flood does not keep the caller from its other work.
const EVENTS_AT_ONCE: usize = 32;

/// Something that a process did.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskEvent {
    /// CLOCK_MONOTONIC.
    pub at: Duration,
    pub id: ProcessId,
    pub what: TaskChange,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TaskChange {
    /// It runs another program now.
    Exec(Arguments),
    /// It has this thread more.
    Thread { tid: u32 },
    /// Its last thread has ended; so much CPU time was used by all. May be reported twice.
    Exit { cpu: Duration },
}

/// What a program was started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    /// The program's, as [`super::tasks::ProcessFacts`] has it.
    pub image: u64,
    /// With blanks between them. None where they could not be read.
    pub text: Option<String>,
}

/// The loaded programs; dropping it takes them out of the kernel.
pub struct TaskWatch {
    events: Ring<TaskEvent>,
    counters: MapHandle,
    files: MirroredSet<u64>,
    users: MirroredSet<u32>,
    held: MapHandle,
    _tracing: Vec<Link>,
}

impl TaskWatch {
    /// Loads and attaches the watch for the network namespace of this number. Reports nothing yet.
    pub fn open(netns_inum: u32) -> Result<Self> {
        ensure!(
            in_initial_pid_namespace(),
            "the kernel numbers processes otherwise than this pid namespace does: run giveway in the machine's own"
        );
        super::check_requirements()?;
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::TaskWatchSkelBuilder::default();
        let mut open = explain("open the watch over processes", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the watch over processes has no constants")?
            .netns_inum = netns_inum;
        let skeleton = explain("load the watch over processes", || open.load())?;
        let (programs, maps) = (&skeleton.progs, &skeleton.maps);
        let keep = |map| MapHandle::try_from(map).context("cannot keep a map of the watch over processes");
        Ok(Self {
            events: Ring::parsed_by(event, "processes", &maps.events)?,
            counters: keep(&maps.bss)?,
            files: MirroredSet::new(keep(&maps.watched_files)?),
            users: MirroredSet::new(keep(&maps.watched_uids)?),
            held: keep(&maps.watched_tasks)?,
            _tracing: [
                ("sched_process_exec", &programs.gw_see_exec),
                ("task_newtask", &programs.gw_see_thread),
                ("sched_process_exit", &programs.gw_see_exit),
            ]
            .into_iter()
            .map(|(point, program)| explain(&format!("attach to the tracepoint {point}"), || program.attach()))
            .collect::<Result<_>>()?,
        })
    }

    /// From now on the execs of files with these inode numbers and of these real users are reported, and no others.
    pub fn watch(&mut self, inodes: BTreeSet<u64>, uids: BTreeSet<u32>) -> Result<()> {
        self.files
            .set(inodes, u64::to_ne_bytes)
            .and_then(|()| self.users.set(uids, u32::to_ne_bytes))
            .context("cannot say which starts are to be watched")
    }

    /// From now on every exec, new thread and the end of this process are reported.
    pub fn hold(&self, pid: u32) -> Result<()> {
        self.held
            .update(&pid.to_ne_bytes(), &[1], MapFlags::ANY)
            .with_context(|| format!("cannot watch process {pid}"))
    }

    /// And no longer.
    pub fn release(&self, pid: u32) {
        // Not being held is what was wanted.
        let _ = self.held.delete(&pid.to_ne_bytes());
    }

    /// Readable when events wait.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// The events that wait, oldest first, up to 32; more may wait for the next call.
    pub fn events(&mut self) -> Result<Vec<TaskEvent>> {
        self.events.take(EVENTS_AT_ONCE)
    }

    /// Events that were lost since the start, because they were not read in time.
    pub fn lost_events(&self) -> Result<u64> {
        let counters: types::bss = records::counters(&self.counters, "processes")?;
        Ok(counters.lost_events)
    }
}

fn in_initial_pid_namespace() -> bool {
    namespace::pid().is_ok_and(|namespace| namespace == INITIAL_PID_NAMESPACE)
}

/// A set that a map of the kernel mirrors.
struct MirroredSet<T> {
    map: MapHandle,
    known: BTreeSet<T>,
}

impl<T: Copy + Ord> MirroredSet<T> {
    fn new(map: MapHandle) -> Self {
        Self {
            map,
            known: BTreeSet::new(),
        }
    }

    fn set<const N: usize>(&mut self, wanted: BTreeSet<T>, key: impl Fn(T) -> [u8; N]) -> libbpf_rs::Result<()> {
        // What was done before something fails is known, so that the next call begins there.
        for gone in self.known.extract_if(.., |known| !wanted.contains(known)) {
            self.map.delete(&key(gone))?;
        }
        for new in wanted {
            if !self.known.contains(&new) {
                self.map.update(&key(new), &[1], MapFlags::ANY)?;
                self.known.insert(new);
            }
        }
        Ok(())
    }
}

/// A kind that this build does not know is left out.
fn event(bytes: &[u8]) -> Option<TaskEvent> {
    let (first, rest) = bytes.split_at_checked(size_of::<types::gw_task_event>())?;
    let e: types::gw_task_event = records::record(first)?;
    let what = match e.kind {
        types::gw_task_event_kind::GW_TASK_EXEC => TaskChange::Exec(Arguments {
            image: e.image,
            text: rest.get(..e.arguments_bytes as usize).map(cmdline),
        }),
        types::gw_task_event_kind::GW_TASK_THREAD => TaskChange::Thread { tid: e.tid },
        types::gw_task_event_kind::GW_TASK_EXIT => TaskChange::Exit {
            cpu: Duration::from_nanos(e.cpu_ns),
        },
        _ => return None,
    };
    Some(TaskEvent {
        at: Duration::from_nanos(e.t_ns),
        id: ProcessId {
            pid: e.tgid,
            start_ns: start_of(e.start_ns),
        },
        what,
    })
}
