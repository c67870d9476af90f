// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a daemon and its watchdog hold at one moment, and how that differs in the end.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::bpf_objects::{ObjectKind, all, held_by};
use crate::giveway::Daemon;
use crate::interrupt::pause_until;
use crate::meter::resident_mb;

/// The kernel frees what nobody holds a little later.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Whose folder it is, and since which start of the machine: they stay for the next daemon there.
const STAY: [&str; 3] = ["boot", "cookie", "lock"];

#[derive(Debug, Serialize)]
pub struct ResourceSample {
    pub at_s: f64,
    /// Of the daemon and its watchdog.
    pub resident_mb: f64,
    pub descriptors: u64,
    pub objects: u64,
    /// In the BPF file system.
    pub pins: u64,
    /// In the folder of its state.
    pub files: u64,
}

impl ResourceSample {
    /// `number`: of the daemon's network namespace.
    pub fn of(daemon: &Daemon, number: u32, at_s: f64) -> Result<Self> {
        let pid = daemon.process.id();
        let watchdog = daemon.watchdog().context("the daemon has no watchdog")?;
        Ok(Self {
            at_s,
            resident_mb: resident_mb(pid)? + resident_mb(watchdog)?,
            descriptors: files_in(Path::new(&format!("/proc/{pid}/fd"))),
            objects: held(pid).len() as u64,
            pins: files_in(&pins_of(number)),
            files: files_in(&state_of(number)),
        })
    }
}

/// Programs, maps and links, by kind and number.
pub fn held(pid: i32) -> BTreeSet<(ObjectKind, u32)> {
    let of = |kind| held_by(pid, kind).into_iter().map(move |id| (kind, id));
    [ObjectKind::Program, ObjectKind::Map, ObjectKind::Link]
        .into_iter()
        .flat_map(of)
        .collect()
}

fn pins_of(number: u32) -> PathBuf {
    format!("/sys/fs/bpf/giveway-netns-{number}").into()
}

fn state_of(number: u32) -> PathBuf {
    format!("/run/giveway/netns-{number}").into()
}

/// In this folder and those below it; 0 where there is none.
fn files_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_in(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// Of what the daemon held, what the kernel still has once it is gone; with its pins and files.
pub fn left(held: &BTreeSet<(ObjectKind, u32)>, number: u32) -> Result<u64> {
    let end = Instant::now() + GONE_WITHIN;
    loop {
        let there: BTreeSet<(ObjectKind, u32)> = all().into_iter().map(|object| (object.kind, object.id)).collect();
        let objects = held.intersection(&there).count() as u64;
        let stay = STAY.iter().filter(|name| state_of(number).join(name).exists()).count() as u64;
        let left = objects + files_in(&pins_of(number)) + files_in(&state_of(number)) - stay;
        if left == 0 || Instant::now() > end {
            return Ok(left);
        }
        pause_until(Instant::now() + Duration::from_millis(100))?;
    }
}

/// By how much the last quarter is above the second, in percent of that: medians.
pub fn growth_percent(samples: &[&ResourceSample]) -> Option<f64> {
    let quarter = samples.len() / 4;
    let median = |of: &[&ResourceSample]| {
        let mut sorted: Vec<f64> = of.iter().map(|sample| sample.resident_mb).collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    let second = median(samples.get(quarter..2 * quarter)?)?;
    let last = median(samples.get(3 * quarter..)?)?;
    Some(100.0 * (last / second - 1.0))
}

/// The most of the first quarter, and the least of the last one: what comes and goes is no growth.
pub fn most_and_least(samples: &[&ResourceSample], of: impl Fn(&ResourceSample) -> u64) -> (u64, u64) {
    let quarter = samples.len().div_ceil(4);
    let first = samples.iter().take(quarter).map(|sample| of(sample)).max();
    let last = samples.iter().rev().take(quarter).map(|sample| of(sample)).min();
    (first.unwrap_or_default(), last.unwrap_or_default())
}
