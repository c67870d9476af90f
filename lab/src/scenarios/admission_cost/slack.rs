// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The slack test of `bpf/slack.h`, compiled for this machine: the code that admission runs, without BPF. Input:
//! promises given and returned. Output: the latest start of the link. Times in nanoseconds.

use std::ffi::c_void;
use std::ptr::NonNull;

#[repr(C)]
pub struct Latest {
    /// For the packet itself, and for all others.
    pub own_ns: i64,
    pub others_ns: i64,
    /// Within a quarter of the time, so that the rest is left to others.
    pub crowd_ns: i64,
}

/// Made by `lab_slack_new` only, and never freed: a run makes one. One thread has it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SlackTree(NonNull<c_void>);

// SAFETY: these are the functions of `c/slack.c`; a tree is valid for ever, and any deadline and work stay within it.
unsafe extern "C" {
    /// None: no memory for it.
    pub safe fn lab_slack_new(now_ns: u64) -> Option<SlackTree>;
    pub safe fn lab_slack_advance(tree: SlackTree, now_ns: u64);
    pub safe fn lab_slack_latest(tree: SlackTree, deadline_ns: u64, work_ns: i64) -> Latest;
    pub safe fn lab_slack_add(tree: SlackTree, deadline_ns: u64, work_ns: i64);
    pub safe fn lab_slack_remove(tree: SlackTree, deadline_ns: u64, work_ns: i64);
    /// Deadlines of one slot count as equal.
    pub safe fn lab_slack_slot(deadline_ns: u64) -> u64;
}
