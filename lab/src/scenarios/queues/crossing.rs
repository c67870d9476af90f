// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two devices that meet in a router which neither of them controls, on their way to the same remote host.
//! Input: what the router does with what exceeds its link. Output: four namespaces, connected; gone when dropped. All
//! of the round trip's delay is on the way back, so whatever a packet waits on its way out it waits in the router.

use anyhow::Result;
use strum::IntoStaticStr;

use crate::channel::STATION_DEVICE;
use crate::namespace::Namespace;
use crate::network::join_router;
use crate::uplink::PACKET_BYTES;

pub const FAR_ADDRESS: &str = "10.79.3.2";
/// Of the second device.
pub const SECOND_ADDRESS: &str = "10.79.2.2";
/// The router's device towards the remote host.
const CORE: &str = "core";
/// More than what can be under way: the way back never drops.
const BACK_LIMIT_PACKETS: u64 = 10_000;
const POLICER_BYTES: u64 = 60_000;

/// What the router does with what exceeds its link.
#[derive(Clone, Copy, Debug, IntoStaticStr, PartialEq)]
pub enum RouterQueue {
    #[strum(serialize = "fifo-50")]
    Fifo50,
    #[strum(serialize = "fifo-100")]
    Fifo100,
    #[strum(serialize = "fifo-250")]
    Fifo250,
    #[strum(serialize = "fifo-1000")]
    Fifo1000,
    #[strum(serialize = "codel")]
    Codel,
    #[strum(serialize = "fq-codel")]
    FqCodel,
    #[strum(serialize = "policer")]
    Policer,
    /// As `Fifo100`, and one packet of a hundred is lost whatever waits.
    #[strum(serialize = "loss")]
    Loss,
}

impl RouterQueue {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// How long the last packet waits where the queue is one for all and nothing else is lost.
    pub fn fifo_ms(self) -> Option<u64> {
        match self {
            Self::Fifo50 => Some(50),
            Self::Fifo100 => Some(100),
            Self::Fifo250 => Some(250),
            Self::Fifo1000 => Some(1000),
            _ => None,
        }
    }

    /// Lines for `tc`.
    fn lines(self, mbit: f64) -> Vec<String> {
        let bytes = |ms: u64| (mbit * 125.0) as u64 * ms;
        let rate = format!("rate {mbit}mbit");
        let link =
            |limit: u64| format!("qdisc add dev {CORE} root handle 1: tbf {rate} burst {PACKET_BYTES} limit {limit}");
        let inner = |qdisc: String| vec![link(bytes(100)), format!("qdisc add dev {CORE} parent 1:1 {qdisc}")];
        match (self, self.fifo_ms()) {
            (_, Some(ms)) => vec![link(bytes(ms))],
            (Self::Codel, _) => inner("codel".to_owned()),
            (Self::FqCodel, _) => inner("fq_codel".to_owned()),
            (Self::Policer, _) => vec![
                format!("qdisc add dev {CORE} clsact"),
                format!(
                    "filter add dev {CORE} egress matchall action police {rate} burst {POLICER_BYTES} \
                     conform-exceed drop/ok"
                ),
            ],
            _ => inner(format!("netem loss 1% limit {}", bytes(100) / PACKET_BYTES)),
        }
    }
}

/// The router's link towards the remote host.
#[derive(Clone, Copy, Debug)]
pub struct RouterLink {
    pub queue: RouterQueue,
    pub mbit: f64,
    pub rtt_ms: u64,
}

/// Fields go in this order: the middle last, as its ends are pairs with the others'.
pub struct Crossing {
    pub devices: [Namespace; 2],
    pub far: Namespace,
    router: Namespace,
}

impl Crossing {
    pub fn raise(RouterLink { queue, mbit, rtt_ms }: RouterLink) -> Result<Self> {
        let crossing = Self {
            devices: [Namespace::create("device1")?, Namespace::create("device2")?],
            far: Namespace::create("far")?,
            router: Namespace::create("router")?,
        };
        let [first, second] = &crossing.devices;
        for (number, end, device) in [(1, first, "first"), (2, second, "second"), (3, &crossing.far, CORE)] {
            join_router(&crossing.router, number, end, device)?;
        }
        crossing.router.run("sysctl", "-qw net.ipv4.ip_forward=1")?;
        let back = format!("qdisc add dev {STATION_DEVICE} root netem delay {rtt_ms}ms limit {BACK_LIMIT_PACKETS}");
        crossing.far.tc(&back)?;
        for line in queue.lines(mbit) {
            crossing.router.tc(&line)?;
        }
        Ok(crossing)
    }
}
