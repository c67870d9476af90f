// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/tasks.bpf.c: what the kernel knows of processes, threads and cgroups. It opens no file, so nothing that a user does
//! to a directory keeps the caller waiting. It changes nothing.
//!
//! A process may end, or execute something else, at any moment: the caller holds it by a pidfd ([`super::process`]).

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context as _, Result, ensure};
use giveway_engine::enforcement::elsewhere::Elsewhere;
use giveway_engine::model::{Choice, ChosenLimit, Class, Fingerprint, Idleness, Inherited, Nice, ProcessId, Rates};
use libbpf_rs::libbpf_sys::{self, bpf_iter_link_info, bpf_link_create_opts};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapHandle, Program, ProgramMut};

use super::ids::{FileId, start_of};
use super::libbpf_log::explain;
use super::records::{Record, read_all};
use super::skeletons::tasks as skeleton;
use crate::pins::{Pins, THREADS};
use skeleton::types;

/// Others than the owner may write to it. The rights that an access list gives beyond the owner's, if any, are those of
/// the group here: its mask.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The loaded programs. [`Self::process`] and [`Self::cgroup`] are for one thread alone; the others are for any.
pub struct Tasks {
    list_processes: OwnedFd,
    list_prints: OwnedFd,
    list_elsewhere: OwnedFd,
    pub threads: Threads,
    show_process: OwnedFd,
    show_cgroup: OwnedFd,
    /// By which [`Self::process`] tells what was chosen and inherited (bpf/inherit.h).
    pub records: MapHandle,
    /// By which it tells giveway's doing from the user's word (bpf/nice.h).
    pub saved_tasks: MapHandle,
}

/// The one that lists threads. It stays loaded while any process has it.
pub struct Threads(OwnedFd);

/// A process in a few words.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEntry {
    pub pid: u32,
    /// Of its executable.
    pub inode: u64,
    /// The inode of the directory that this executable had its name in, where it has it no more.
    pub gone_from: Option<u64>,
    pub uid: u32,
}

/// A thread as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    pub tid: u32,
    /// When its process was started, as [`ProcessId`] has it.
    pub start_ns: u64,
    pub cpu: Duration,
    /// It runs, or would.
    pub is_awake: bool,
    /// It is stopped by a signal, or frozen.
    pub is_held: bool,
    /// It runs no code of its own any more, and never will: it ends, or its process has been killed, which may take for
    /// ever where a thread of that waits in the kernel.
    pub is_ending: bool,
    /// Threads of its process.
    pub tasks: u32,
}

/// A process as it is now.
#[derive(Clone, Debug)]
pub struct ProcessFacts {
    pub id: ProcessId,
    /// Another one after each exec, but for one that is long gone.
    pub image: u64,
    /// So often it has executed something.
    pub execs: u64,
    pub file: FileId,
    pub file_owner: u32,
    pub file_name: FileName,
    /// Owned by root, and nobody else may write to it.
    pub file_is_roots: bool,
    pub exe: String,
    pub uid: u32,
    pub euid: u32,
    pub parent: u32,
    pub tasks: u32,
    pub netns_inum: u32,
    /// In cgroup v2. Of one that is nested too deep the outer part, which ends in `/...`.
    pub cgroup: String,
    pub idleness: Idleness,
    pub chosen: Option<Choice>,
    pub by_hand: u64,
    pub inherited: Option<Inherited>,
    pub share: Option<RealtimeGroup>,
}

/// Of an executable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FileName {
    /// By its inode.
    pub directory: u64,
    pub name: String,
    /// It has this name no more, and another file may.
    pub is_gone: bool,
}

/// The group by which the scheduler shares real time out (CONFIG_RT_GROUP_SCHED).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RealtimeGroup {
    /// Its real time in each period.
    V1 {
        group: String,
        runtime_us: i64,
    },
    V2 {
        group: String,
    },
}

/// Of version 2.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cgroup {
    /// Of one that is nested too deep the outer part, which ends in `/...`.
    pub path: String,
    /// Whose directory it is.
    pub uid: u32,
}

enum TaskSelector {
    All,
    Process(u32),
    Thread(u32),
    Cgroup(u64),
}

impl Tasks {
    /// `netns_inum`: where processes are listed.
    pub fn load(netns_inum: u32) -> Result<Self> {
        Self::load_with(netns_inum, None)
    }

    /// The same, with records that there are already.
    pub fn load_with(netns_inum: u32, records: Option<&MapHandle>) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::TasksSkelBuilder::default();
        let mut open = explain("open the list of processes", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the list of processes has no constants")?
            .netns_inum = netns_inum;
        if let Some(records) = records {
            explain("use the map of records", || {
                open.maps.gw_records_3.reuse_fd(records.as_fd())
            })?;
        }
        let skeleton = explain("load the list of processes", || open.load())?;
        let keep = |program: &ProgramMut<'_>| program.as_fd().try_clone_to_owned();
        Ok(Self {
            list_processes: keep(&skeleton.progs.gw_list_processes)?,
            list_prints: keep(&skeleton.progs.gw_list_prints)?,
            list_elsewhere: keep(&skeleton.progs.gw_list_elsewhere)?,
            threads: Threads(keep(&skeleton.progs.gw_list_threads)?),
            show_process: keep(&skeleton.progs.gw_show_process)?,
            show_cgroup: keep(&skeleton.progs.gw_show_cgroup)?,
            records: MapHandle::try_from(&skeleton.maps.gw_records_3).context("cannot keep the map of records")?,
            saved_tasks: MapHandle::try_from(&skeleton.maps.gw_saved_tasks).context("cannot keep the saved state")?,
        })
    }

    /// Those of the namespace that have an executable.
    pub fn processes(&self) -> Result<Vec<ProcessEntry>> {
        let all = run::<types::gw_thread>(&self.list_processes, &TaskSelector::All).context("cannot list processes")?;
        let listed = |found: types::gw_thread| ProcessEntry {
            pid: found.tgid,
            inode: found.inode,
            gone_from: (found.gone_from > 0).then_some(found.gone_from),
            uid: found.uid,
        };
        Ok(all.into_iter().map(listed).collect())
    }

    /// The same ones.
    pub fn fingerprints(&self) -> Result<Vec<Fingerprint>> {
        let all =
            run::<types::gw_fingerprint>(&self.list_prints, &TaskSelector::All).context("cannot list processes")?;
        let fingerprint = |found: types::gw_fingerprint| Fingerprint {
            id: ProcessId {
                pid: found.tgid,
                start_ns: start_of(found.start_ns),
            },
            uid: found.uid,
            image: found.image,
            cgroup_id: found.cgroup_id,
            idleness: found.idleness,
            chosen: found.chosen,
            inherited: (found.inherited > 0).then_some((found.inherited, found.inherited_from)),
            by_hand: found.by_hand,
            names: (found.named > 0).then_some(found.named),
            nice: (found.nice_by > 0).then_some(Nice {
                by: found.nice_by,
                cause: found.nice_cause,
            }),
        };
        Ok(all.into_iter().map(fingerprint).collect())
    }

    /// Those that something was chosen for, and that are in another network namespace by now.
    pub fn elsewhere(&self) -> Result<Vec<Elsewhere>> {
        let all =
            run::<types::gw_elsewhere>(&self.list_elsewhere, &TaskSelector::All).context("cannot list processes")?;
        let elsewhere = |found: types::gw_elsewhere| Elsewhere {
            id: ProcessId {
                pid: found.tgid,
                start_ns: start_of(found.start_ns),
            },
            command: text(&found.command),
            netns_inum: found.netns_inum,
            uid: found.uid,
        };
        Ok(all.into_iter().map(elsewhere).collect())
    }

    /// None where there is none of this number, or it is a thread of the kernel.
    ///
    /// # Errors
    /// Where that cannot be told now, here and below.
    pub fn process(&self, pid: u32) -> Result<Option<ProcessFacts>> {
        let found = run::<types::gw_process>(&self.show_process, &TaskSelector::Thread(pid))
            .context("cannot read a process")?;
        Ok(found.first().map(facts))
    }

    /// The same of a process whose main thread has ended, and others not. Any of them speaks for it.
    pub fn process_without_main_thread(&self, pid: u32) -> Result<Option<ProcessFacts>> {
        let found = run::<types::gw_process>(&self.show_process, &TaskSelector::Process(pid))
            .context("cannot read a process")?;
        Ok(found.first().map(facts))
    }

    /// By its id; None for one that is gone.
    pub fn cgroup(&self, id: u64) -> Option<Cgroup> {
        let found = run::<types::gw_cgroup>(&self.show_cgroup, &TaskSelector::Cgroup(id)).ok()?;
        let found = found.first()?;
        Some(Cgroup {
            path: path_of(&found.names)?,
            uid: found.uid,
        })
    }
}

impl Threads {
    /// The program of this number, which another process has loaded.
    pub fn of_number(number: u32) -> Result<Self> {
        Ok(Self(Program::fd_from_id(number)?))
    }

    /// For who may open nothing by its number, which takes CAP_SYS_ADMIN.
    pub fn pin(&self, pins: &Pins) -> Result<()> {
        pins.make(|folder| {
            let path = folder.join(THREADS);
            let _ = fs::remove_file(&path);
            let name = CString::new(path.as_os_str().as_bytes())?;
            // SAFETY: the path ends with a zero.
            let pinned = unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), name.as_ptr()) };
            ensure!(
                pinned == 0,
                "cannot pin {}: {}",
                path.display(),
                io::Error::from_raw_os_error(-pinned)
            );
            Ok(())
        })
    }

    pub fn pinned(pins: &Pins) -> Result<Option<Self>> {
        let found = pins.with_existing(|folder| Ok(Program::fd_from_pinned_path(folder.join(THREADS)).ok()))?;
        Ok(found.flatten().map(Self))
    }

    pub fn number(&self) -> Result<u32> {
        Program::id_from_fd(self.0.as_fd()).context("the list of threads has no number")
    }

    /// Those of a process, at this moment; none once it has ended.
    pub fn of(&self, pid: u32) -> Result<Vec<Thread>> {
        self.list(&TaskSelector::Process(pid))
    }

    /// None once it has ended.
    pub fn thread(&self, tid: u32) -> Result<Option<Thread>> {
        Ok(self.list(&TaskSelector::Thread(tid))?.pop())
    }

    fn list(&self, of: &TaskSelector) -> Result<Vec<Thread>> {
        let found = run::<types::gw_thread>(&self.0, of).context("cannot list threads")?;
        let thread = |found: types::gw_thread| {
            let is = |state: types::gw_thread_state| found.state.0 & state.0 != 0;
            Thread {
                tid: found.tid,
                start_ns: start_of(found.start_ns),
                cpu: Duration::from_nanos(found.cpu_ns),
                is_awake: is(types::gw_thread_state::GW_AWAKE),
                is_held: is(types::gw_thread_state::GW_STOPPED),
                is_ending: is(types::gw_thread_state::GW_ENDING),
                tasks: found.tasks,
            }
        };
        Ok(found.into_iter().map(thread).collect())
    }
}

/// Runs an iterator over all tasks once.
pub fn run_over_all<T: Record>(program: &OwnedFd) -> Result<Vec<T>> {
    run(program, &TaskSelector::All)
}

/// The same over the threads of a process.
pub fn run_over_process<T: Record>(program: &OwnedFd, pid: u32) -> Result<Vec<T>> {
    run(program, &TaskSelector::Process(pid))
}

/// Runs an iterator over this once.
fn run<T: Record>(program: &OwnedFd, of: &TaskSelector) -> Result<Vec<T>> {
    let mut info = bpf_iter_link_info::default();
    match of {
        // To the kernel it means all.
        TaskSelector::Process(0) | TaskSelector::Thread(0) => return Ok(Vec::new()),
        TaskSelector::All => {}
        TaskSelector::Process(pid) => info.task.pid = *pid,
        TaskSelector::Thread(tid) => info.task.tid = *tid,
        TaskSelector::Cgroup(id) => {
            info.cgroup.order = libbpf_sys::BPF_CGROUP_ITER_SELF_ONLY;
            info.cgroup.cgroup_id = *id;
        }
    }
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        iter_info: &raw mut info,
        iter_info_len: size_of::<bpf_iter_link_info>() as _,
        ..Default::default()
    };
    // SAFETY: the options and what they point to outlive the call.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            0,
            libbpf_sys::BPF_TRACE_ITER,
            std::ptr::from_ref(&options),
        )
    };
    let link = owned(link)?;
    // SAFETY: takes no pointers.
    let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?;
    let mut records = Vec::new();
    read_all(&mut std::fs::File::from(iterator), &mut Vec::new(), |record| {
        records.push(record);
    })?;
    Ok(records)
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a descriptor that is not negative was just opened for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn facts(found: &types::gw_process) -> ProcessFacts {
    let group = path_of(&found.share).unwrap_or_default();
    let share = match found.share_kind {
        types::gw_share_kind::GW_SHARE_V1 => Some(RealtimeGroup::V1 {
            group,
            runtime_us: found.share_us,
        }),
        types::gw_share_kind::GW_SHARE_V2 => Some(RealtimeGroup::V2 { group }),
        _ => None,
    };
    ProcessFacts {
        id: ProcessId {
            pid: found.tgid,
            start_ns: start_of(found.start_ns),
        },
        image: found.image,
        execs: found.execs,
        file: FileId {
            device: found.device,
            inode: found.inode,
            owner: found.exe_uid,
        },
        file_owner: found.exe_uid,
        file_name: file_name(found),
        file_is_roots: found.exe_uid == 0 && found.exe_mode & WRITABLE_BY_OTHERS == 0,
        exe: shown(&text(&found.exe)),
        uid: found.uid,
        euid: found.euid,
        parent: found.parent,
        tasks: found.tasks,
        netns_inum: found.netns_inum,
        cgroup: path_of(&found.cgroup).unwrap_or_default(),
        idleness: idleness_of(found.idleness),
        chosen: choice_of(found),
        by_hand: found.by_hand,
        inherited: inherited_of(&found.inherited),
        share,
    }
}

fn file_name(found: &types::gw_process) -> FileName {
    let exe = text(&found.exe);
    let name = exe.rsplit('/').next().unwrap_or_default();
    let is_gone = found.is_gone > 0;
    FileName {
        directory: found.directory,
        name: name
            .strip_suffix(" (deleted)")
            .filter(|_| is_gone)
            .unwrap_or(name)
            .to_owned(),
        is_gone,
    }
}

fn choice_of(found: &types::gw_process) -> Option<Choice> {
    let class = class_of(found.chosen);
    let rate = |rate: u64| (rate > 0).then_some(rate);
    let limit = (found.chosen_limit > 0).then_some(ChosenLimit {
        number: u16::try_from(found.chosen_limit).ok()?,
        rates: Rates {
            up: rate(found.chosen_rates.up),
            down: rate(found.chosen_rates.down),
        },
    });
    (class.is_some() || limit.is_some()).then_some(Choice {
        class,
        uid: found.chosen_by,
        limit,
    })
}

/// As a record has it.
pub fn class_of(number: u32) -> Option<Class> {
    let class = usize::try_from(number.checked_sub(1)?).ok()?;
    Class::ALL.get(class).copied()
}

fn inherited_of(found: &types::gw_by_rule) -> Option<Inherited> {
    (found.rule > 0).then(|| Inherited {
        rule: found.rule,
        from: ProcessId {
            pid: found.pid,
            start_ns: start_of(found.start_ns),
        },
        name: shown(&text(&found.name)),
        uid: found.uid,
    })
}

fn idleness_of(found: types::gw_idleness) -> Idleness {
    let is = |way: types::gw_idleness| found.0 & way.0 != 0;
    Idleness {
        nice_19: is(types::gw_idleness::GW_NICE_19),
        sched_idle: is(types::gw_idleness::GW_SCHED_IDLE),
        io_idle: is(types::gw_idleness::GW_IO_IDLE),
        group_idle: is(types::gw_idleness::GW_GROUP_IDLE),
    }
}

/// Any process may choose its names; it must not choose what a terminal does.
pub fn shown(text: &str) -> String {
    text.replace(char::is_control, "?")
}

fn text(bytes: &[i8]) -> String {
    let bytes: Vec<u8> = bytes
        .iter()
        .map(|byte| byte.cast_unsigned())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `/` for the root.
fn path_of(cgroup: &types::gw_cgroup_names) -> Option<String> {
    let names = cgroup.names.get(..cgroup.bytes as usize)?;
    let mut path = String::new();
    let names = names.strip_suffix(&[0]).unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        path.push('/');
        path.push_str(&text(name));
    }
    Some(if path.is_empty() { "/".to_owned() } else { path })
}
