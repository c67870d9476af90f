// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two namespaces joined by a wire (veth), in which nothing limits or delays.
//! Out: the watched `device` and its `peer`, with addresses; gone when dropped.

use anyhow::Result;

use crate::air::STATION_DEVICE;
use crate::namespace::{Namespace, ip};
use crate::process::run;

pub const PEER_ADDRESS: &str = "10.77.1.2";
const DEVICE_ADDRESS: &str = "10.77.1.1";

pub struct Pair {
    pub device: Namespace,
    pub peer: Namespace,
}

impl Pair {
    pub fn create() -> Result<Self> {
        let pair = Self {
            device: Namespace::create("device")?,
            peer: Namespace::create("peer")?,
        };
        let (device, peer) = (pair.device.name(), pair.peer.name());
        let end = STATION_DEVICE;
        let words = [
            "link", "add", end, "netns", device, "type", "veth", "peer", "name", end, "netns", peer,
        ];
        run(ip(&words))?;
        for (namespace, address) in [(device, DEVICE_ADDRESS), (peer, PEER_ADDRESS)] {
            let address = format!("{address}/24");
            run(ip(&[
                "-n",
                namespace,
                "address",
                "add",
                &address,
                "broadcast",
                "+",
                "dev",
                end,
            ]))?;
            run(ip(&["-n", namespace, "link", "set", "lo", "up"]))?;
            run(ip(&["-n", namespace, "link", "set", end, "up"]))?;
        }
        Ok(pair)
    }
}
