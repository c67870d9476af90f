// SPDX-License-Identifier: Apache-2.0 OR MIT
//! By what processes and files are known, whatever tells of them.

use serde::{Deserialize, Serialize};

/// The kernel shows starts in units of this (USER_HZ, the same on every machine).
pub const TICK_NS: u64 = 10_000_000;

/// A start as /proc shows it, of one in nanoseconds. Whatever tells of a process must name it alike.
pub fn start_of(start_ns: u64) -> u64 {
    start_ns - start_ns % TICK_NS
}

/// A file, whatever name it goes by. On btrfs device and inode are not enough: each subvolume numbers its files anew, and any
/// user makes subvolumes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FileId {
    /// Of its file system, as mountinfo numbers it: major << 20 | minor.
    pub device: u32,
    pub inode: u64,
    /// So that no user's file is taken for somebody else's. Where an idmapped mount shows another owner by the path than the
    /// file has, the rule does not match.
    pub owner: u32,
}
