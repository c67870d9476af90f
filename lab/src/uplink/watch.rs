// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at the device and its link (`bpf/uplink.bpf.c`): the foreground packets' waits, what the link carries, and
//! how long the processors work.
//! Input: where the link ends, and the ports that tell foreground from background; the device is the caller's own
//! network namespace. Output: readings, which cost no system call but the clock's: what is measured is not the
//! measuring.

use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use serde::{Deserialize, Serialize};

use crate::records::now;
use crate::traffic::realtime::monotonic_ns;
use skeleton::types;

skeleton!("uplink");

pub use types::waits as Waits;

/// Loaded for as long as the process lives.
pub struct LinkWatch {
    skeleton: skeleton::UplinkSkel<'static>,
    processors: usize,
}

/// Where the link's packets come out, and when.
#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct LinkEnd {
    /// The inode of its network namespace
    pub netns: u32,
    pub ifindex: i32,
    /// After the last bit was sent
    pub delay_ns: u64,
    pub ns_per_byte: u64,
}

/// Since the watch began.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
pub struct LinkReading {
    pub busy_ns: u64,
    /// Carried by the link, for the foreground and everything else that is not the background.
    pub foreground_bytes: u64,
    pub background_bytes: u64,
}

impl LinkWatch {
    pub fn begin(link: &LinkEnd, foreground_port: u16, background_port: u16) -> Result<Self> {
        let processors = std::thread::available_parallelism()?.get();
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = skeleton::UplinkSkelBuilder::default().open(storage)?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the watch has no constants")?;
        let own = std::fs::metadata("/proc/self/ns/net").context("cannot look at this network namespace")?;
        constants.device_netns = u32::try_from(own.ino())?;
        constants.link_netns = link.netns;
        constants.link_ifindex = link.ifindex;
        constants.link_delay_ns = link.delay_ns;
        constants.link_ns_per_byte = link.ns_per_byte;
        constants.foreground_port = foreground_port;
        constants.background_port = background_port;
        let mut skeleton = open.load().context("cannot load the watch of the uplink")?;
        skeleton.attach().context("cannot attach the watch of the uplink")?;
        let watch = Self { skeleton, processors };
        ensure!(
            processors <= watch.counters()?.halted_ns.len(),
            "more processors than the watch has room for"
        );
        Ok(watch)
    }

    pub fn reading(&self) -> Result<LinkReading> {
        let counters = self.counters()?;
        let now_ns = monotonic_ns()?;
        let halted_ns = (0..self.processors).map(|cpu| {
            let since = counters.halted_since_ns[cpu];
            let halting_ns = if since > 0 { now_ns.saturating_sub(since) } else { 0 };
            counters.halted_ns[cpu] + halting_ns
        });
        Ok(LinkReading {
            busy_ns: (now_ns * self.processors as u64).saturating_sub(halted_ns.sum()),
            foreground_bytes: counters.foreground.bytes,
            background_bytes: counters.background.bytes,
        })
    }

    /// Of the packets since `forget_waits`.
    pub fn waits(&self) -> Result<Waits> {
        Ok(self.counters()?.waits)
    }

    pub fn forget_waits(&mut self) -> Result<()> {
        let counters = self
            .skeleton
            .maps
            .bss_data
            .as_deref_mut()
            .context("the watch has no counters")?;
        counters.waits = Waits::default();
        Ok(())
    }

    fn counters(&self) -> Result<types::bss> {
        let counters = self
            .skeleton
            .maps
            .bss_data
            .as_deref()
            .context("the watch has no counters")?;
        Ok(now(counters))
    }
}
