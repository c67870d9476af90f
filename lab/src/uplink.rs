// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device behind a narrow uplink, as P0's phone is: the queue forms inside the device, and nothing behind it has
//! one worth the name.
//! Input: the rates, the round trip, and what queues in the device. Output: three namespaces, connected: the device,
//! the radio (the link itself, serial and with its delay both ways) and the remote host; gone when dropped. Starts no
//! traffic and no daemon.

pub mod queue;
pub mod watch;

use anyhow::{Context, Result};

use crate::channel::STATION_DEVICE;
use crate::namespace::Namespace;
use crate::network::{End, join};
use watch::LinkEnd;

pub const FAR_ADDRESS: &str = "10.78.2.2";
/// What a full packet takes on the link: the MTU and the Ethernet header, which the kernel's qdiscs count too.
pub const PACKET_BYTES: u64 = 1_514;
pub const DEVICE_ADDRESS: &str = "10.78.1.2";
const DEVICE_MAC: &str = "02:00:00:00:01:02";
/// The radio's devices: towards the device, towards the remote host.
const WLAN: &str = "wlan";
const CORE: &str = "core";
/// More than what can be under way: the link itself never drops.
const LINK_LIMIT_PACKETS: u64 = 10_000;

/// The device's uplink, with a downlink that is never in the way.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub up_kbit: u64,
    pub down_kbit: u64,
    pub rtt_ms: u64,
    pub queue: UplinkQueue,
    /// What the driver holds of packets that the queue has let go.
    pub driver_bytes: u64,
}

/// What queues in the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UplinkQueue {
    /// One queue of 1,000 packets for all.
    Fifo,
    /// Strict priority by SO_PRIORITY.
    Priorities,
    /// CAKE at the link's rate, by DSCP.
    Cake,
    /// Strict priority, and a kernel thread for each priority that does the packet work.
    Threads,
    /// giveway's.
    Giveway {
        cpu_gate: bool,
        /// Of background's segments.
        short: bool,
    },
}

/// Fields go in this order: the middle last, as its ends are pairs with the others'.
pub struct Uplink {
    pub device: Namespace,
    pub far: Namespace,
    radio: Namespace,
}

impl Uplink {
    pub fn raise(shape: &Shape) -> Result<Self> {
        let [device, far, radio] = [
            Namespace::create("device")?,
            Namespace::create("far")?,
            Namespace::create("radio")?,
        ];
        let uplink = Self { device, far, radio };
        uplink.wire(
            &uplink.device,
            (DEVICE_MAC, "10.78.1.2/24"),
            (WLAN, "02:00:00:00:01:01", "10.78.1.1/24"),
        )?;
        uplink.wire(
            &uplink.far,
            ("02:00:00:00:02:02", "10.78.2.2/24"),
            (CORE, "02:00:00:00:02:01", "10.78.2.1/24"),
        )?;
        uplink.radio.run("sysctl", "-qw net.ipv4.ip_forward=1")?;
        queue::install(&uplink.device, shape)?;
        for (end, gateway) in [(&uplink.device, "10.78.1.1"), (&uplink.far, "10.78.2.1")] {
            end.ip(&format!("route add default via {gateway}"))?;
        }
        uplink.delay(CORE, shape.up_kbit, shape.rtt_ms)?;
        uplink.delay(WLAN, shape.down_kbit, shape.rtt_ms)?;
        Ok(uplink)
    }

    /// The addresses of the device and the remote host by IPv6, which they have from now on.
    pub fn add_ipv6(&self) -> Result<[&'static str; 2]> {
        const ENDS: [&str; 2] = ["fd78:1::2", "fd78:2::2"];
        for (at, device, address) in [
            (&self.device, STATION_DEVICE, ENDS[0]),
            (&self.radio, WLAN, "fd78:1::1"),
            (&self.radio, CORE, "fd78:2::1"),
            (&self.far, STATION_DEVICE, ENDS[1]),
        ] {
            at.allow_ipv6(true)?;
            at.ip(&format!("address add {address}/64 dev {device} nodad"))?;
        }
        self.radio.run("sysctl", "-qw net.ipv6.conf.all.forwarding=1")?;
        for (end, gateway) in [(&self.device, "fd78:1::1"), (&self.far, "fd78:2::1")] {
            end.ip(&format!("-6 route add default via {gateway}"))?;
        }
        Ok(ENDS)
    }

    /// Where to see what the uplink has carried.
    pub fn link_end(&self, shape: &Shape) -> Result<LinkEnd> {
        let shown = self.radio.run("ip", &format!("-o link show dev {CORE}"))?.stdout;
        let shown = String::from_utf8(shown)?;
        let ifindex = shown.split(':').next().and_then(|number| number.parse().ok());
        Ok(LinkEnd {
            netns: self.radio.number()?,
            ifindex: ifindex.with_context(|| format!("`ip` shows no index of {CORE}"))?,
            delay_ns: shape.rtt_ms * 500_000,
            ns_per_byte: 8_000_000 / shape.up_kbit,
        })
    }

    fn wire(&self, end: &Namespace, near: (&str, &str), radio: (&str, &str, &str)) -> Result<()> {
        join([
            End::new(end, STATION_DEVICE, near.0, &[near.1]),
            End::new(&self.radio, radio.0, radio.1, &[radio.2]),
        ])
    }

    /// One direction of the link: packets one after the other at its rate, then half of the round trip.
    fn delay(&self, device: &str, kbit: u64, rtt_ms: u64) -> Result<()> {
        let delay = format!("rate {kbit}kbit delay {}us limit {LINK_LIMIT_PACKETS}", rtt_ms * 500);
        self.radio
            .tc(&format!("qdisc add dev {device} root netem {delay}"))
            .map(drop)
    }
}
