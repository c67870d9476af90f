// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/ingress.bpf.c on the managed link's way in: packets of background flows are processed by threads of the idle
//! scheduling class. Input: the map of these flows that admission keeps. It vanishes with the process, and packets
//! go the usual way again.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::actuate::thread::attributes::Attributes;
use crate::kernel::libbpf_log::explain;
use crate::kernel::skeletons::ingress as skeleton;
use crate::kernel::tcx::{self, Way};

/// Packets that wait for a thread: as many as the kernel's own backlog has by default.
const QUEUE_PACKETS: u32 = 1000;

/// Attached until it is dropped.
pub struct Ingress {
    _attached: OwnedFd,
    _threads: MapHandle,
}

impl Ingress {
    pub fn attach(ifindex: u32, background_answers: BorrowedFd<'_>) -> Result<Self> {
        let cpus = u32::try_from(libbpf_rs::num_possible_cpus()?)?;
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::IngressSkelBuilder::default();
        let mut open = explain("open the ingress program", || builder.open(&mut storage))?;
        explain("share the background flows", || {
            open.maps.background_answers.reuse_fd(background_answers)
        })?;
        explain("size the map of threads", || {
            open.maps.background_threads.set_max_entries(cpus)
        })?;
        let skeleton = explain("load the ingress program", || open.load())?;
        let threads =
            MapHandle::try_from(&skeleton.maps.background_threads).context("cannot keep the map of threads")?;
        start_threads(&threads, cpus)?;
        Ok(Self {
            _attached: tcx::attach(skeleton.progs.gw_defer.as_fd(), ifindex, Way::Xdp)?,
            _threads: threads,
        })
    }
}

/// The kernel starts a thread for each entry; CPUs that are not there have none.
fn start_threads(map: &MapHandle, cpus: u32) -> Result<()> {
    // bpf_cpumap_val: the length of its queue, and no second program.
    let mut value = [0; 8];
    value[..4].copy_from_slice(&QUEUE_PACKETS.to_ne_bytes());
    for cpu in 0..cpus {
        let _ = map.update(&cpu.to_ne_bytes(), &value, MapFlags::ANY);
    }
    let suffix = format!("/map:{}", map.info()?.info.id);
    let mut found = 0;
    for entry in fs::read_dir("/proc").context("cannot look for the threads")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("cpumap/") && name.trim_end().ends_with(&suffix) {
            Attributes::idle()
                .set(pid)
                .with_context(|| format!("cannot lower the thread {}", name.trim_end()))?;
            found += 1;
        }
    }
    ensure!(found > 0, "the kernel started no thread for background packets");
    Ok(())
}
