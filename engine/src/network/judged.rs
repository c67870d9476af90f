// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flow's verdict, and what it was judged by.

use std::sync::Arc;

use crate::class::{Meant, Verdict};
use crate::model::{Flow, Process};

/// A flow's verdict, and what it was judged by.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    pub verdict: Verdict,
    pub(super) by: Option<Basis>,
    /// In which step.
    pub(super) at: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Basis {
    pub(super) generation: u64,
    pub(super) active: Arc<Meant>,
    pub(super) process: Option<Arc<Process>>,
    pub(super) cgroup: Option<Arc<str>>,
    pub(super) priority: u32,
    pub(super) dscp: u8,
    pub(super) ifindex: u32,
}

impl Basis {
    /// Of the process, or where that is not known, of the socket.
    pub(super) fn cgroup(&self) -> &str {
        match &self.process {
            Some(process) => &process.cgroup,
            None => self.cgroup.as_deref().unwrap_or_default(),
        }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        let process = |basis: &Self| basis.process.as_ref().map(Arc::as_ptr);
        let rest = |basis: &Self| (basis.generation, basis.priority, basis.dscp, basis.ifindex);
        let is_meant_the_same = Arc::ptr_eq(&self.active, &other.active);
        is_meant_the_same && process(self) == process(other) && rest(self) == rest(other) && self.cgroup == other.cgroup
    }
}

/// Who has a process, not who made its socket, counts: a listener may be root's, and those that it accepts are strangers'.
pub(super) fn uid_of(flow: &Flow, process: Option<&Process>) -> u32 {
    process.map_or(flow.user(), |process| process.uid)
}
