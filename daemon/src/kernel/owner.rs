// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose a socket is. Input: a process and the id of a cgroup, as sockets name them. Output: what is known of the
//! process now, and the cgroup's path. Remembers nothing; the engine asks only once for each.

use std::sync::Arc;

use anyhow::Result;
use giveway_engine::matcher::{Process, ProcessId};

use super::process::{Handle, Wanted};
use super::tasks::Tasks;

pub struct OwnerReader(Tasks);

impl OwnerReader {
    pub fn open(netns_inum: u32) -> Result<Self> {
        Tasks::load(netns_inum).map(Self)
    }

    /// None where it has ended, or its number is another's now.
    pub fn process(&self, id: ProcessId) -> Option<Arc<Process>> {
        let found = Handle::open(id.pid).ok()?.read(&self.0, &Wanted::default()).ok()?;
        (found.started.id == id).then(|| Arc::new(found.started.process))
    }

    pub fn tasks(&self) -> &Tasks {
        &self.0
    }

    pub fn cgroup(&self, id: u64) -> Option<Arc<str>> {
        self.0.cgroup(id).map(Into::into)
    }
}
