// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sender's and the receiver's namespaces and the wire (veth) between them, which delays and drops nothing.
//! In: what queues at the sender's device, as `tc` is told it. Gone when dropped.

use anyhow::Result;

use crate::air::STATION_DEVICE;
use crate::namespace::{Namespace, ip};
use crate::process::run;

pub const RECEIVER_ADDRESS: &str = "10.77.2.2";
/// Nobody has this address: the receiver's device drops what is sent there as not its own, as a network card would,
/// which makes traffic that only has to be sent cheap.
pub const NOBODY_ADDRESS: &str = "10.77.2.3";

pub struct Wire {
    pub sender: Namespace,
    pub receiver: Namespace,
}

impl Wire {
    pub fn create() -> Result<Self> {
        let wire = Self {
            sender: Namespace::create("sender")?,
            receiver: Namespace::create("receiver")?,
        };
        let (sender, receiver, device) = (wire.sender.name(), wire.receiver.name(), STATION_DEVICE);
        let add = format!(
            "link add {device} netns {sender} address 02:00:00:00:02:01 numtxqueues 1 numrxqueues 1 type veth \
             peer name {device} netns {receiver} address 02:00:00:00:02:02 numtxqueues 1 numrxqueues 1"
        );
        run(ip(&words(&add)))?;
        for (namespace, address) in [(&wire.sender, "10.77.2.1/24"), (&wire.receiver, "10.77.2.2/24")] {
            wire.offloads_off(namespace)?;
            for what in [
                format!("address add {address} dev {device}"),
                "link set lo up".into(),
                format!("link set {device} up"),
            ] {
                run(ip(&[&["-n", namespace.name()], &words(&what)[..]].concat()))?;
            }
        }
        for (address, lladdr) in [
            (RECEIVER_ADDRESS, "02:00:00:00:02:02"),
            (NOBODY_ADDRESS, "02:00:00:00:02:03"),
        ] {
            let neighbour =
                format!("-n {sender} neighbour replace {address} lladdr {lladdr} dev {device} nud permanent");
            run(ip(&words(&neighbour)))?;
        }
        Ok(wire)
    }

    /// Each line is what follows `tc qdisc replace dev DEVICE`.
    pub fn set_queue(&self, lines: &[String]) -> Result<()> {
        for line in lines {
            let mut tc = std::process::Command::new("tc");
            tc.args(["-n", self.sender.name(), "qdisc", "replace", "dev", STATION_DEVICE]);
            tc.args(line.split_whitespace());
            run(tc)?;
        }
        Ok(())
    }

    /// Without this one packet of the model would stand for many.
    fn offloads_off(&self, namespace: &Namespace) -> Result<()> {
        let mut ethtool = namespace.command("ethtool")?;
        ethtool.args(["-K", STATION_DEVICE, "gso", "off", "tso", "off", "gro", "off"]);
        run(ethtool).map(drop)
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}
