// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The slack test of `bpf/slack.h`, compiled for this machine: the very code that admission runs, without BPF.
//! Input: what is promised and given back. Output: when the link has to begin at the latest. Times in nanoseconds.

use std::ffi::c_void;
use std::ptr::NonNull;

#[repr(C)]
pub struct Latest {
    /// For the packet's own sake, and for that of all others.
    pub own_ns: i64,
    pub others_ns: i64,
    /// Of a quarter of the time, so that a quarter is left to others.
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
    /// The deadlines that count as one.
    pub safe fn lab_slack_slot(deadline_ns: u64) -> u64;
}
