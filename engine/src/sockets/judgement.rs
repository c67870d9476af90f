// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flow's verdict, and its basis.

use std::sync::Arc;

use crate::class::{Meant, Verdict};
use crate::model::{Flow, Process};

/// A flow's verdict, and its basis.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    pub verdict: Verdict,
    pub by: Option<Basis>,
    /// The step of the verdict.
    pub at: u64,
}

#[derive(Clone, Debug)]
pub struct Basis {
    pub generation: u64,
    pub active: Arc<Meant>,
    pub process: Option<Arc<Process>>,
    pub cgroup: Option<Arc<str>>,
    pub priority: u32,
    pub dscp: u8,
    pub ifindex: u32,
}

impl Basis {
    /// The process's, or if that is unknown, the socket's.
    pub fn cgroup(&self) -> &str {
        match &self.process {
            Some(process) => &process.cgroup,
            None => self.cgroup.as_deref().unwrap_or_default(),
        }
    }

    pub fn is(&self, other: &Self) -> bool {
        let process = |basis: &Self| basis.process.as_ref().map(Arc::as_ptr);
        let rest = |basis: &Self| (basis.generation, basis.priority, basis.dscp, basis.ifindex);
        let is_meant_the_same = Arc::ptr_eq(&self.active, &other.active);
        is_meant_the_same && process(self) == process(other) && rest(self) == rest(other) && self.cgroup == other.cgroup
    }
}

/// The user of the process counts, not the socket's creator: a listener may be root's, and the connections that it
/// accepts others'.
pub fn uid_of(flow: &Flow, process: Option<&Process>) -> u32 {
    process.map_or(flow.user(), |process| process.uid)
}
