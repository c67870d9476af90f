// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A thread or a process that waits in the kernel for good, so that not even SIGKILL ends it: it is in a frozen cgroup of
//! version 1. It goes on when this is dropped.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::lab::run;
use super::wait::until;

pub struct Frozen {
    group: PathBuf,
    mounted: Option<PathBuf>,
}

impl Frozen {
    /// All threads of this process, or the one of this name.
    pub fn new(pid: u32, thread: Option<&str>) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("gw-frozen-{}-{number}", std::process::id());
        let (mount, mounted) = mount(&name);
        let this = Self {
            group: mount.join(&name),
            mounted,
        };
        fs::create_dir(&this.group).unwrap();
        let (file, id) = match thread {
            Some(name) => ("tasks", thread_of(pid, name)),
            None => ("cgroup.procs", pid),
        };
        fs::write(this.group.join(file), id.to_string()).unwrap();
        this.set("FROZEN");
        this
    }

    fn set(&self, state: &str) {
        let file = self.group.join("freezer.state");
        until(state, || {
            let _ = fs::write(&file, state);
            fs::read_to_string(&file).is_ok_and(|found| found.trim() == state)
        });
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.set("THAWED");
        let root = self.group.parent().unwrap().join("tasks");
        // What lives on leaves the group, and the dead are collected.
        until("the group is empty", || {
            let tasks = fs::read_to_string(self.group.join("tasks")).unwrap_or_default();
            tasks.lines().for_each(|task| drop(fs::write(&root, task)));
            fs::remove_dir(&self.group).is_ok()
        });
        if let Some(mount) = &self.mounted {
            run(&format!("umount {}", mount.display()));
            fs::remove_dir(mount).unwrap();
        }
    }
}

/// Where the controller is mounted, or a mount of the test's own.
fn mount(name: &str) -> (PathBuf, Option<PathBuf>) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let rows = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut freezers = rows.filter(|row| row[2] == "cgroup" && row[3].split(',').any(|option| option == "freezer"));
    if let Some(row) = freezers.next() {
        return (row[1].into(), None);
    }
    let own = std::env::temp_dir().join(name);
    fs::create_dir(&own).unwrap();
    run(&format!("mount -t cgroup -o freezer freezer {}", own.display()));
    (own.clone(), Some(own))
}

fn thread_of(pid: u32, name: &str) -> u32 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let is_it = |comm: String| comm.trim_end() == name;
    let mut found = threads.filter(|thread| fs::read_to_string(thread.path().join("comm")).is_ok_and(is_it));
    let found = found
        .next()
        .unwrap_or_else(|| panic!("process {pid} has no thread {name}"));
    found.file_name().to_str().unwrap().parse().unwrap()
}
