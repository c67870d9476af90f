// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/qdisc.bpf.c: registers the qdisc under a name of its own and puts it up. Input: what admission shares with it.
//! Output: the bands' counters. Kernels from 6.16 on; elsewhere the reason is told before anything is loaded.
//!
//! Registered for as long as the process lives; a pin keeps it so until what the process did has been undone.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result};
use giveway_engine::queue::traffic::{ByQdisc, Served};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle};

use super::admission::Shared;
use super::sojourn::percentile_us;
use super::{BANDS, HANDLE};
use crate::kernel::bpf::attach_to_tracepoint;
use crate::kernel::libbpf_log::explain;
use crate::kernel::netlink::{NLM_F_CREATE, NLM_F_REPLACE, Netlink, RTM_NEWQDISC};
use crate::kernel::qdisc::{self, ROOT, tcmsg};
use crate::kernel::records::lookup;
use crate::kernel::skeletons::qdisc as skeleton;
use skeleton::types;

const _: () = assert!(types::gw_band::GW_BANDS.0 as usize == BANDS);
/// What all our names begin with, so that a later process knows them.
pub const KIND_PREFIX: &str = "gw";

/// Registered until it is dropped, unless it is pinned.
pub struct BpfQdisc {
    kind: String,
    registered: Link,
    /// It sees what runs on each CPU; where it is not attached the gate is always open.
    cpu_gate_program: OwnedFd,
    /// Attached while a queue stands: it costs something at each switch between tasks.
    cpu_gate: Option<Result<OwnedFd>>,
    counters: MapHandle,
}

impl BpfQdisc {
    /// Loads and registers it for the namespace of this number, which must be the caller's own.
    pub fn register(netns_inum: u32, shared: &Shared, local_waits: Option<&MapHandle>) -> Result<Self> {
        // Names are machine-wide and have at most 15 characters. The process's number sets the qdisc of a new daemon
        // apart from that of one that has just died.
        let kind = format!("{KIND_PREFIX}{netns_inum:08x}{:05x}", std::process::id() & 0xf_ffff);
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::QdiscSkelBuilder::default();
        let mut open = explain("open the qdisc", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the qdisc has no constants")?
            .netns_inum = netns_inum;
        open.struct_ops
            .gw_qdisc_mut()
            .id
            .iter_mut()
            .zip(kind.bytes().chain([0]))
            .for_each(|(to, byte)| *to = byte.cast_signed());
        for (name, map) in shared.by_name() {
            let ours = match name {
                "link_state" => &mut open.maps.link_state,
                "link_config" => &mut open.maps.link_config,
                _ => &mut open.maps.queue_events,
            };
            explain(&format!("share the map {name}"), || ours.reuse_fd(map))?;
        }
        if let Some(map) = local_waits {
            explain("share the local waits", || open.maps.local_waits.reuse_fd(map.as_fd()))?;
        }
        let mut skeleton = explain("load the qdisc", || open.load())?;
        let registered = explain("register the qdisc", || skeleton.maps.gw_qdisc.attach_struct_ops())?;
        let cpu_gate_program = skeleton.progs.gw_cpu_gate.as_fd().try_clone_to_owned();
        Ok(Self {
            kind,
            registered,
            cpu_gate_program: cpu_gate_program.context("cannot keep the program that watches the CPUs")?,
            cpu_gate: None,
            counters: MapHandle::try_from(&skeleton.maps.band_counters).context("cannot keep the qdisc's counters")?,
        })
    }

    /// Why background cannot be held for the CPU's sake; None if it can.
    pub fn gate_missing(&self) -> Option<String> {
        let cpu_gate = self.cpu_gate.as_ref()?;
        cpu_gate.as_ref().err().map(|error| format!("{error:#}"))
    }

    /// While a queue of ours stands on any link.
    pub fn watch_cpus(&mut self, is_wanted: bool) {
        if is_wanted == self.cpu_gate.is_some() {
            return;
        }
        self.cpu_gate =
            is_wanted.then(|| attach_to_tracepoint(&self.cpu_gate_program).context("cannot watch what the CPUs run"));
    }

    /// Puts it up at the root, unless it stands there. The link must have been configured before.
    pub fn install(&self, netlink: &mut Netlink, ifindex: u32) -> Result<()> {
        let now = qdisc::root(netlink, ifindex)?.qdisc;
        if now.handle == HANDLE && now.kind == self.kind {
            return Ok(());
        }
        let message = tcmsg(ifindex, HANDLE, ROOT).text(qdisc::KIND, &self.kind);
        netlink
            .change(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &message)
            .context("cannot put the BPF qdisc up")
    }

    /// Keeps it registered beyond this process's end, in place of what is pinned there.
    pub fn pin(&mut self, path: &Path) -> Result<()> {
        if self.registered.pin_path().is_some() {
            return Ok(());
        }
        let _ = fs::remove_file(path);
        self.registered
            .pin(path)
            .with_context(|| format!("cannot pin the qdisc at {}", path.display()))
    }

    /// Of the link of this number, in the order of service.
    pub fn bands(&self, link: u32) -> Result<[Served; BANDS]> {
        let mut bands = [Served::default(); BANDS];
        for (band, served) in bands.iter_mut().enumerate() {
            let index = link * BANDS as u32 + band as u32;
            let counters = lookup(&self.counters, index, "a band's counters")?.context("a band has no counters")?;
            *served = served_of(&counters);
        }
        Ok(bands)
    }

    /// What was counted on a link that had this number before is not the next one's.
    pub fn forget(&self, link: u32) -> Result<()> {
        let nothing = vec![0; self.counters.value_size() as usize];
        for band in 0..BANDS as u32 {
            let index = (link * BANDS as u32 + band).to_ne_bytes();
            self.counters
                .update(&index, &nothing, MapFlags::ANY)
                .context("cannot count from the beginning")?;
        }
        Ok(())
    }
}

fn served_of(counters: &types::gw_band_counters) -> Served {
    let sojourn_max_us = counters.sojourn_max_ns.div_ceil(1000);
    Served {
        sent_packets: counters.sent_packets,
        sent_bytes: counters.sent_bytes,
        dropped_full: counters.dropped_full,
        backlog_packets: counters.backlog_packets,
        backlog_bytes: counters.backlog_bytes,
        more: Some(ByQdisc {
            queued_packets: counters.queued_packets,
            queued_bytes: counters.queued_bytes,
            tcp_sent_bytes: counters.tcp_sent_bytes,
            tcp_backlog_bytes: counters.tcp_backlog_bytes,
            dropped_sojourn: counters.dropped_sojourn,
            dropped_late: counters.dropped_late,
            dropped_reset: counters.dropped_reset,
            cpu_gate_closed: counters.cpu_gate_closed,
            sojourn_p50_us: percentile_us(&counters.sojourn, 50).min(sojourn_max_us),
            sojourn_p99_us: percentile_us(&counters.sojourn, 99).min(sojourn_max_us),
            sojourn_max_us,
        }),
    }
}
