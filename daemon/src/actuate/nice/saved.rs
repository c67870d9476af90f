// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The programs of bpf/nice.bpf.c: the saved state of tasks, kept up to date and inherited. Input: orders for processes, and the
//! causes active. Output: what is to be set on which thread.

use giveway_engine::model::ProcessId;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, MapType};

use crate::kernel::ids::start_of;
use crate::kernel::libbpf_log::explain;
use crate::kernel::records::bytes_of;
use crate::kernel::skeletons::nice as skeleton;
use crate::kernel::tasks::{run_over_all, run_over_process};
use crate::pins::{Pins, SAVED_TASKS, UNSAVED_TASKS};
use skeleton::types;

pub use types::gw_nice_task as Task;
pub use types::gw_nice_wanted as Thread;

pub const NICE: u32 = types::gw_niceness::GW_NICE.0;
pub const IO_CLASS: u32 = types::gw_niceness::GW_IO_CLASS.0;

/// The loaded programs.
pub struct Programs {
    want: OwnedFd,
    settle: OwnedFd,
    orders: MapHandle,
    causes: MapHandle,
}

/// With those that copy the saved state to new tasks, for as long as this or its pin is there.
pub struct SavedTasks {
    programs: Programs,
    /// In the order of [`crate::pins::NICE_LINKS`].
    pub inherit: [Link; 2],
    /// How many tasks were left without saved state.
    pub unsaved: MapHandle,
}

struct Constants {
    most_of_user: u32,
    is_end: bool,
    dry_run: bool,
}

impl SavedTasks {
    pub fn load(map: &MapHandle, most_of_user: u32) -> Result<Self> {
        let constants = Constants {
            most_of_user,
            is_end: false,
            dry_run: false,
        };
        let (programs, inherit) = load(map, &constants, true)?;
        let (inherit, unsaved) = inherit.context("the saved state is not inherited")?;
        Ok(Self {
            programs,
            inherit,
            unsaved,
        })
    }

    /// For who undoes: no cause is active.
    pub fn load_to_end(map: &MapHandle, dry_run: bool) -> Result<Programs> {
        let constants = Constants {
            most_of_user: u32::MAX,
            is_end: true,
            dry_run,
        };
        Ok(load(map, &constants, false)?.0)
    }

    pub fn set_causes(&self, causes: &BTreeSet<u32>) -> Result<()> {
        let map = &self.programs.causes;
        let known: Vec<Vec<u8>> = map.keys().collect();
        for cause in causes {
            map.update(&cause.to_ne_bytes(), &[1], MapFlags::ANY)
                .context("cannot say by what processes are reniced")?;
        }
        let is_over = |key: &&Vec<u8>| causes.iter().all(|cause| cause.to_ne_bytes() != key[..]);
        for key in known.iter().filter(is_over) {
            map.delete(key).context("cannot say that a rule is no more")?;
        }
        Ok(())
    }

    /// Notes for all threads of a process that they are wanted nice, or (None) no longer; tells of each.
    pub fn order(&self, process: ProcessId, cause: Option<u32>) -> Result<Vec<Thread>> {
        let order = types::gw_nice_order {
            start_ns: process.start_ns,
            cause: cause.unwrap_or_default(),
            reserved: 0,
        };
        self.programs
            .orders
            .update(&0u32.to_ne_bytes(), bytes_of(&order), MapFlags::ANY)
            .context("cannot order niceness")?;
        run_over_process(&self.programs.want, process.pid).context("cannot save the state of a process")
    }

    pub fn scan(&self) -> Result<Vec<Task>> {
        self.programs.scan()
    }
}

impl Programs {
    /// What is to be done, of all tasks of the machine.
    pub fn scan(&self) -> Result<Vec<Task>> {
        run_over_all(&self.settle).context("cannot look for nice tasks")
    }
}

/// The programs that copy the saved state to new tasks, and the count of tasks without.
type NoteInheritance = ([Link; 2], MapHandle);

fn load(map: &MapHandle, constants: &Constants, inherits: bool) -> Result<(Programs, Option<NoteInheritance>)> {
    let mut storage = MaybeUninit::uninit();
    let builder = skeleton::NiceSkelBuilder::default();
    let mut open = explain("open the saved state of reniced tasks", || builder.open(&mut storage))?;
    let to = open
        .maps
        .rodata_data
        .as_deref_mut()
        .context("the saved state of reniced tasks has no constants")?;
    to.most_of_user = constants.most_of_user;
    to.is_end = constants.is_end.into();
    to.dry_run = constants.dry_run.into();
    explain("use the saved state", || open.maps.gw_saved_tasks.reuse_fd(map.as_fd()))?;
    let skeleton = explain("load the saved state of reniced tasks", || open.load())?;
    let attach = || {
        Ok([
            skeleton.progs.gw_inherit_nice.attach()?,
            skeleton.progs.gw_inherit_late.attach()?,
        ])
    };
    let inherit = inherits.then(|| explain("attach to the tracepoints task_newtask and sched_wakeup_new", attach));
    let keep = |map| MapHandle::try_from(map).context("cannot keep a map of niceness");
    let inherit = match inherit {
        Some(links) => Some((links?, keep(&skeleton.maps.nice_unsaved)?)),
        None => None,
    };
    let programs = Programs {
        want: skeleton.progs.gw_want_nice.as_fd().try_clone_to_owned()?,
        settle: skeleton.progs.gw_settle_nice.as_fd().try_clone_to_owned()?,
        orders: keep(&skeleton.maps.nice_orders)?,
        causes: keep(&skeleton.maps.nice_causes)?,
    };
    Ok((programs, inherit))
}

/// Whether this kernel can: changes nothing.
pub fn probe() -> Result<()> {
    let tasks = crate::kernel::tasks::Tasks::load(0)?;
    SavedTasks::load(&tasks.saved_tasks, 0).map(drop)
}

pub fn is_saved_tasks(map: &MapHandle) -> bool {
    map.map_type() == MapType::TaskStorage && map.name() == OsStr::new(SAVED_TASKS)
}

/// The count of a daemon, as long as anybody holds it.
pub fn unsaved_of(pins: &Pins, map_id: u32) -> Result<Option<MapHandle>> {
    let is_count = |map: &MapHandle| map.map_type() == MapType::Array && map.name() == OsStr::new("nice_unsaved");
    Ok(pins.map(map_id, UNSAVED_TASKS)?.filter(is_count))
}

pub fn count_of(unsaved: &MapHandle) -> u64 {
    let found = unsaved.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
    found
        .and_then(|value| value.try_into().ok())
        .map_or(0, u64::from_ne_bytes)
}

impl Task {
    pub fn process(&self) -> ProcessId {
        ProcessId {
            pid: self.tgid,
            start_ns: start_of(self.start_ns),
        }
    }
}
