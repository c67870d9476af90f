// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The slack test of `bpf/slack.h`, compiled for this machine: the very code that admission runs, without BPF.
//! In: what is promised and given back. Out: when the link has to begin at the latest. Times in nanoseconds.

use std::ptr::NonNull;

use anyhow::{Context, Result};

#[repr(C)]
pub struct Latest {
    /// For the packet's own sake, and for that of all others.
    pub own_ns: i64,
    pub others_ns: i64,
}

#[repr(C)]
struct Opaque {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn lab_slack_new(now_ns: u64) -> *mut Opaque;
    fn lab_slack_free(tree: *mut Opaque);
    fn lab_slack_advance(tree: *mut Opaque, now_ns: u64);
    fn lab_slack_latest(tree: *mut Opaque, deadline_ns: u64, work_ns: i64) -> Latest;
    fn lab_slack_add(tree: *mut Opaque, deadline_ns: u64, work_ns: i64);
    fn lab_slack_remove(tree: *mut Opaque, deadline_ns: u64, work_ns: i64);
    safe fn lab_slack_slot(deadline_ns: u64) -> u64;
}

pub struct Tree(NonNull<Opaque>);

impl Tree {
    pub fn new(now_ns: u64) -> Result<Self> {
        // SAFETY: it only allocates.
        let tree = unsafe { lab_slack_new(now_ns) };
        NonNull::new(tree).map(Self).context("no memory for the slack tree")
    }

    pub fn advance(&mut self, now_ns: u64) {
        // SAFETY: the tree lives, and nobody else has it.
        unsafe { lab_slack_advance(self.0.as_ptr(), now_ns) }
    }

    pub fn latest(&mut self, deadline_ns: u64, work_ns: i64) -> Latest {
        // SAFETY: as above; any deadline and work stay within the tree.
        unsafe { lab_slack_latest(self.0.as_ptr(), deadline_ns, work_ns) }
    }

    pub fn add(&mut self, deadline_ns: u64, work_ns: i64) {
        // SAFETY: as above.
        unsafe { lab_slack_add(self.0.as_ptr(), deadline_ns, work_ns) }
    }

    pub fn remove(&mut self, deadline_ns: u64, work_ns: i64) {
        // SAFETY: as above.
        unsafe { lab_slack_remove(self.0.as_ptr(), deadline_ns, work_ns) }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // SAFETY: it is ours, and this is its last use.
        unsafe { lab_slack_free(self.0.as_ptr()) }
    }
}

/// The deadlines that count as one.
pub fn slot(deadline_ns: u64) -> u64 {
    lab_slack_slot(deadline_ns)
}
