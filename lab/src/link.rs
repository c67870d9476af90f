// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The modelled link below the sender's device (`bpf/link.bpf.c`): serial, at one rate, with its own clock. Input: the
//! sender's namespace, the rate, the number of packets with deadlines. Output: when each of them was queued, handed to
//! the link, and gone; and what else was sent. Delays and drops nothing.

mod layout;
pub mod wire;

use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::namespace::Namespace;
use crate::records::record;

/// Since the link was loaded.
pub use skeleton::types::bss as Passed;
pub use skeleton::types::{payload as Payload, stamps as Stamps};

skeleton!("link");

/// `PAYLOAD_MAGIC` of link.bpf.c.
pub const PAYLOAD_MAGIC: u32 = 0x6777_6c62;
pub const BEST_EFFORT_PORT: u16 = 5_006;
pub const BACKGROUND_PORT: u16 = 5_007;
const STAMPS_AT_ONCE: u32 = 4_096;

/// The loaded model; dropping it takes it out of the kernel.
pub struct Link {
    stamps: MapHandle,
    state: MapHandle,
    packets_of_flow: usize,
    _tracing: Vec<libbpf_rs::Link>,
}

impl Passed {
    pub fn bytes(&self) -> u64 {
        [self.best_effort, self.background, self.with_deadline, self.others]
            .iter()
            .map(|sums| sums.bytes)
            .sum()
    }
}

impl Link {
    pub fn load(sender: &Namespace, rate_bytes_per_s: u64, flows: u32, packets_of_flow: u32) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let mut open = skeleton::LinkSkelBuilder::default().open(&mut storage)?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .context("the link has no constants")?;
        constants.netns_inum = sender.number()?;
        constants.rate_bytes_per_s = rate_bytes_per_s;
        constants.packets_of_flow = packets_of_flow;
        constants.best_effort_port = BEST_EFFORT_PORT;
        constants.background_port = BACKGROUND_PORT;
        open.maps.stamps.set_max_entries(flows * packets_of_flow)?;
        let mut link = open.load().context("cannot load the model of the link")?;
        link.attach().context("cannot attach the model of the link")?;
        let tracing = [link.links.lab_note_queued.take(), link.links.lab_pass_link.take()];
        Ok(Self {
            stamps: MapHandle::try_from(&link.maps.stamps)?,
            state: MapHandle::try_from(&link.maps.bss)?,
            packets_of_flow: packets_of_flow as usize,
            _tracing: tracing.into_iter().flatten().collect(),
        })
    }

    pub fn passed(&self) -> Result<Passed> {
        let bytes = self.state.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)?;
        record(&bytes.context("the link has no state")?)
    }

    /// Of every queued packet, by flow.
    pub fn stamps(&self) -> Result<Vec<Vec<Stamps>>> {
        let entries = self.stamps.lookup_batch(STAMPS_AT_ONCE, MapFlags::ANY, MapFlags::ANY)?;
        let all = entries
            .map(|(_, value)| record(&value))
            .collect::<Result<Vec<Stamps>>>()?;
        let queued = |flow: &[Stamps]| flow.iter().filter(|stamps| stamps.queued_ns > 0).copied().collect();
        Ok(all.chunks(self.packets_of_flow).map(queued).collect())
    }
}

/// The payload that these bytes begin with, if it is one.
pub fn read_payload(bytes: &[u8]) -> Option<Payload> {
    let payload: Payload = record(bytes.get(..size_of::<Payload>())?).ok()?;
    (payload.magic == PAYLOAD_MAGIC).then_some(payload)
}
