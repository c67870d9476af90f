// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where what is limited arrives and leaves, and the other end: a wire on this machine, or one with a delay.

use anyhow::Result;

use crate::link::wire::{RECEIVER_ADDRESS, SENDER_ADDRESS, Wire};
use crate::namespace::Namespace;
use crate::uplink::{DEVICE_ADDRESS, FAR_ADDRESS, PACKET_BYTES, Shape, Uplink, UplinkQueue};

/// Far above every limit.
const LINK_KBIT: u64 = 1_000_000;

pub enum Path {
    Wire(Wire),
    Delayed(Uplink),
}

/// One end, and where the other reaches it.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    pub at: &'a Namespace,
    pub address: &'static str,
}

impl Path {
    /// `rtt_ms`: None without a delay.
    pub fn raise(rtt_ms: Option<u64>) -> Result<Self> {
        let Some(rtt_ms) = rtt_ms else {
            return Ok(Self::Wire(Wire::create()?));
        };
        let shape = Shape {
            up_kbit: LINK_KBIT,
            down_kbit: LINK_KBIT,
            rtt_ms,
            queue: UplinkQueue::Fifo,
            driver_bytes: PACKET_BYTES,
        };
        Ok(Self::Delayed(Uplink::raise(&shape)?))
    }

    /// The device and the remote host.
    pub fn ends(&self) -> [Endpoint<'_>; 2] {
        let end = |at, address| Endpoint { at, address };
        match self {
            Self::Wire(wire) => [end(&wire.sender, SENDER_ADDRESS), end(&wire.receiver, RECEIVER_ADDRESS)],
            Self::Delayed(uplink) => [end(&uplink.device, DEVICE_ADDRESS), end(&uplink.far, FAR_ADDRESS)],
        }
    }

    /// The same ends by IPv6.
    pub fn ends_v6(&self) -> Result<[Endpoint<'_>; 2]> {
        let addresses = match self {
            Self::Wire(wire) => wire.add_ipv6()?,
            Self::Delayed(uplink) => uplink.add_ipv6()?,
        };
        let [device, far] = self.ends();
        let [own, fars] = addresses;
        Ok([Endpoint { address: own, ..device }, Endpoint { address: fars, ..far }])
    }
}
