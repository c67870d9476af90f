// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Detaches the BPF links that a dead process still holds, because a thread of it waits in the kernel for good. Links to cgroups,
//! interfaces and struct_ops detach; tracing and iterators do not, which is why their programs change nothing by themselves.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

use libbpf_rs::libbpf_sys::{bpf_link_detach, bpf_link_get_fd_by_id};

/// Returns a line about those that were detached, if there were any.
pub fn detach_all_of(pid: u32) -> Option<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    // Threads that share a table of files show the same; those that have ended show none.
    let mut held = threads.map(|thread| links_of(&thread.path().join("fdinfo")));
    let held = held.find(|links| !links.is_empty()).unwrap_or_default();
    let detached = held.into_iter().filter(|link| detach(*link)).count();
    (detached > 0).then(|| format!("{detached} links of process {pid}, which cannot end, detached"))
}

fn links_of(descriptors: &Path) -> BTreeSet<u32> {
    let link = |text: String| {
        text.lines()
            .find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok())
    };
    let descriptors = fs::read_dir(descriptors).into_iter().flatten().flatten();
    descriptors
        .filter_map(|one| fs::read_to_string(one.path()).ok().and_then(link))
        .collect()
}

fn detach(id: u32) -> bool {
    // SAFETY: takes no pointers.
    let link = unsafe { bpf_link_get_fd_by_id(id) };
    if link < 0 {
        return false;
    }
    // SAFETY: a descriptor that is not negative was just opened for us.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    // SAFETY: takes no pointers; the descriptor is open.
    unsafe { bpf_link_detach(link.as_raw_fd()) == 0 }
}
