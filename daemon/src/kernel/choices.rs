// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/choices.bpf.c: classes that were chosen for processes, which what they start inherits. Input: a process by its
//! pidfd, and a class. [`super::tasks`] tells what was chosen; this only writes it down, and changes no process.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use anyhow::{Context as _, Result};
use giveway_engine::matcher::Choice;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags};

use super::libbpf_log::explain;
use super::records::bytes_of;
use super::skeletons::choices as skeleton;
use super::tasks::Tasks;
use skeleton::types;

/// What makes new tasks inherit; dropping it ends that.
pub struct Choices {
    _inherit: Link,
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
        let attach = || skeleton.progs.gw_inherit.attach();
        Ok(Self {
            _inherit: explain("attach to the tracepoint task_newtask", attach)?,
        })
    }

    pub fn choose(&self, tasks: &Tasks, pidfd: BorrowedFd<'_>, choice: Choice) -> Result<()> {
        let value = types::gw_choice {
            class: 1 + choice.class as u32,
            uid: choice.uid,
        };
        tasks
            .choices
            .update(&pidfd.as_raw_fd().to_ne_bytes(), bytes_of(&value), MapFlags::ANY)
            .context("the kernel keeps no class for the process")
    }
}
