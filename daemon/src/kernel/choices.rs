// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/choices.bpf.c: classes that were chosen for processes, which what they start inherits. Input: a process by its
//! pidfd, and a class. [`super::tasks`] tells what was chosen; this only writes it down, and changes no process.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result};
use giveway_engine::class::LimitNumber;
use giveway_engine::matcher::Choice;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags};

use super::libbpf_log::explain;
use super::records::bytes_of;
use super::skeletons::choices as skeleton;
use super::tasks::{Tasks, run_over_all};
use skeleton::types;

/// What makes new tasks inherit; dropping it ends that.
pub struct Choices {
    _inherit: [Link; 2],
    list_limits: OwnedFd,
}

impl Choices {
    /// Of what is written into these tasks' map.
    pub fn open(tasks: &Tasks) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::ChoicesSkelBuilder::default();
        let mut open = explain("open the inheritance of classes", || builder.open(&mut storage))?;
        explain("use the map of choices", || {
            open.maps.choices.reuse_fd(tasks.choices.as_fd())
        })?;
        let skeleton = explain("load the inheritance of classes", || open.load())?;
        let attach = || {
            Ok([
                skeleton.progs.gw_inherit.attach()?,
                skeleton.progs.gw_inherit_late.attach()?,
            ])
        };
        Ok(Self {
            _inherit: explain("attach to the tracepoints task_newtask and sched_wakeup_new", attach)?,
            list_limits: skeleton.progs.gw_list_limits.as_fd().try_clone_to_owned()?,
        })
    }

    /// The rate limits that any task has.
    pub fn limits(&self) -> Result<BTreeSet<LimitNumber>> {
        let found = run_over_all::<types::gw_chosen_limit>(&self.list_limits).context("cannot list rate limits")?;
        let number = |found: types::gw_chosen_limit| LimitNumber::try_from(found.number).ok();
        Ok(found.into_iter().filter_map(number).collect())
    }

    pub fn choose(&self, tasks: &Tasks, pidfd: BorrowedFd<'_>, choice: Choice) -> Result<()> {
        let value = types::gw_choice {
            class: 1 + choice.class as u32,
            uid: choice.uid,
            limit: choice.limit.map_or(0, |limit| limit.number.into()),
            reserved: 0,
            bytes_per_s: choice.limit.map_or(0, |limit| limit.bytes_per_s),
        };
        tasks
            .choices
            .update(&pidfd.as_raw_fd().to_ne_bytes(), bytes_of(&value), MapFlags::ANY)
            .context("the kernel keeps no class for the process")
    }
}
