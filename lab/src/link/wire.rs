// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sender's and the receiver's namespaces and the wire (veth) between them, which delays and drops nothing; and the
//! qdisc of the sender's device. Removed when dropped.

use anyhow::Result;
use serde_json::{Value, json};

use crate::channel::STATION_DEVICE;
use crate::namespace::Namespace;
use crate::network::{End, join};

pub const SENDER_ADDRESS: &str = "10.77.2.1";
pub const RECEIVER_ADDRESS: &str = "10.77.2.2";
/// Nobody has this address: the receiver's device drops packets to it as not its own, as a network card would, which
/// makes traffic cheap that only has to be sent.
pub const NOBODY_ADDRESS: &str = "10.77.2.3";

pub struct Wire {
    pub sender: Namespace,
    pub receiver: Namespace,
}

/// The qdisc of the sender's device.
#[derive(Clone, Debug)]
pub enum WireQueue {
    /// The kernel's own: each line is what follows `tc qdisc replace dev DEVICE`.
    Kernel {
        lines: Vec<String>,
        marking: Marking,
    },
    Giveway {
        admission: bool,
    },
}

/// How the sender's sockets mark their packets for the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Marking {
    /// Not at all.
    None,
    /// SO_PRIORITY and the TOS byte: 6 and EF with a deadline, 1 and LE for background.
    Classes,
    /// As `Classes`, and the deadline in the clock that `etf` asks for.
    ClassesAndTai,
}

impl WireQueue {
    pub fn marking(&self) -> Marking {
        match self {
            WireQueue::Kernel { marking, .. } => *marking,
            WireQueue::Giveway { .. } => Marking::None,
        }
    }
}

/// A token bucket that hands packets over one at a time, at this rate; its child is to be replaced.
pub fn paced(rate_mbit: u64) -> String {
    format!("root handle 1: tbf rate {rate_mbit}mbit burst 1514 limit 10000000")
}

/// For a daemon that only queues, at the rate of the link below.
pub fn queue_configuration(rate_mbit: u64, admission: bool) -> Value {
    json!({
        "cap": {"policy": "none"},
        "link": {"rate_mbit": rate_mbit as f64},
        // Without admission late packets have to reach the link.
        "queue": {"admission": admission, "drop_late": admission},
    })
}

impl Wire {
    pub fn create() -> Result<Self> {
        let (sender, receiver) = (Namespace::create("sender")?, Namespace::create("receiver")?);
        join([
            End::new(&sender, STATION_DEVICE, "02:00:00:00:02:01", &["10.77.2.1/24"]),
            End::new(&receiver, STATION_DEVICE, "02:00:00:00:02:02", &["10.77.2.2/24"]),
        ])?;
        let nobody = format!("{NOBODY_ADDRESS} lladdr 02:00:00:00:02:03");
        sender.ip(&format!(
            "neighbour replace {nobody} dev {STATION_DEVICE} nud permanent"
        ))?;
        Ok(Self { sender, receiver })
    }

    /// The addresses of the sender and the receiver by IPv6, assigned here.
    pub fn add_ipv6(&self) -> Result<[&'static str; 2]> {
        const ENDS: [&str; 2] = ["fd77:2::1", "fd77:2::2"];
        for (at, address) in [&self.sender, &self.receiver].into_iter().zip(ENDS) {
            at.allow_ipv6(true)?;
            at.ip(&format!("address add {address}/64 dev {STATION_DEVICE} nodad"))?;
        }
        Ok(ENDS)
    }

    pub fn set_queue(&self, lines: &[String]) -> Result<()> {
        let replace = |line| self.sender.tc(&format!("qdisc replace dev {STATION_DEVICE} {line}"));
        lines.iter().try_for_each(|line| replace(line).map(drop))
    }
}
