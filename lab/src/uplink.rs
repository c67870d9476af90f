// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device behind a narrow uplink, as P0's phone is: the queue forms inside the device, and nothing behind it has
//! one worth the name.
//! In: the rates, the round trip, and what queues in the device. Out: three namespaces, connected: the device, the
//! radio (the link itself, serial and with its delay both ways) and the far end; gone when dropped.
//! Starts no traffic and no daemon.

pub mod queue;
pub mod watch;

use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::air::STATION_DEVICE;
use crate::namespace::{Namespace, ip};
use crate::process::run;
use crate::scenario::foreground::Shape;

use watch::LinkEnd;

pub const FAR_ADDRESS: &str = "10.78.2.2";
/// What a full packet takes on the link: the MTU and the Ethernet header, which the kernel's qdiscs count too.
pub const PACKET_BYTES: u64 = 1_514;
pub const DEVICE_ADDRESS: &str = "10.78.1.2";
const RADIO_TO_DEVICE: (&str, &str) = ("wlan", "10.78.1.1");
const RADIO_TO_FAR: (&str, &str) = ("core", "10.78.2.1");
/// More than what can be under way: the link itself never drops.
const LINK_LIMIT_PACKETS: u64 = 10_000;

/// Fields go in this order: the middle last, as its ends are pairs with the others'.
pub struct Uplink {
    pub device: Namespace,
    pub far: Namespace,
    radio: Namespace,
}

impl Uplink {
    pub fn raise(shape: &Shape) -> Result<Self> {
        let uplink = Self {
            device: Namespace::create("device")?,
            far: Namespace::create("far")?,
            radio: Namespace::create("radio")?,
        };
        uplink.wire(&uplink.device, RADIO_TO_DEVICE.0)?;
        uplink.wire(&uplink.far, RADIO_TO_FAR.0)?;
        let face = queue::put_up(&uplink.device, shape)?;
        uplink.address(&uplink.device, (face, DEVICE_ADDRESS), RADIO_TO_DEVICE)?;
        uplink.address(&uplink.far, (STATION_DEVICE, FAR_ADDRESS), RADIO_TO_FAR)?;
        let mut forward = uplink.radio.command("sysctl")?;
        forward.args(["-qw", "net.ipv4.ip_forward=1"]);
        run(forward)?;
        uplink.delay(RADIO_TO_FAR.0, shape.up_kbit, shape.rtt_ms)?;
        uplink.delay(RADIO_TO_DEVICE.0, shape.down_kbit, shape.rtt_ms)?;
        Ok(uplink)
    }

    /// Where to see what the uplink has carried.
    pub fn link_end(&self, shape: &Shape) -> Result<LinkEnd> {
        Ok(LinkEnd {
            netns: watch::inode(&format!("/run/netns/{}", self.radio.name()))?,
            ifindex: show(&self.radio, RADIO_TO_FAR.0)?.ifindex,
            delay_ns: shape.rtt_ms * 500_000,
            ns_per_byte: 8_000_000 / shape.up_kbit,
        })
    }

    fn wire(&self, end: &Namespace, middle: &str) -> Result<()> {
        let (near, radio) = (end.name(), self.radio.name());
        run(ip(&[
            "link",
            "add",
            STATION_DEVICE,
            "netns",
            near,
            "type",
            "veth",
            "peer",
            "name",
            middle,
            "netns",
            radio,
        ]))?;
        for (namespace, device) in [(end, STATION_DEVICE), (&self.radio, middle)] {
            start(namespace, device)?;
        }
        Ok(())
    }

    /// The end's way to everything through the radio; neighbours are known, so that none has to be asked for.
    fn address(&self, end: &Namespace, near: (&str, &str), radio: (&str, &str)) -> Result<()> {
        for (at, (device, address), to, (remote, other)) in
            [(end, near, &self.radio, radio), (&self.radio, radio, end, near)]
        {
            let at = at.name();
            run(ip(&[
                "-n",
                at,
                "address",
                "add",
                &format!("{address}/24"),
                "dev",
                device,
            ]))?;
            let lladdr = show(to, remote)?.address;
            run(ip(&[
                "-n",
                at,
                "neighbour",
                "replace",
                other,
                "lladdr",
                &lladdr,
                "dev",
                device,
                "nud",
                "permanent",
            ]))?;
        }
        run(ip(&["-n", end.name(), "route", "add", "default", "via", radio.1])).map(drop)
    }

    /// One direction of the link: packets one after the other at its rate, then half of the round trip.
    fn delay(&self, device: &str, kbit: u64, rtt_ms: u64) -> Result<()> {
        let (rate, delay) = (format!("{kbit}kbit"), format!("{}us", rtt_ms * 500));
        let limit = LINK_LIMIT_PACKETS.to_string();
        tc(
            &self.radio,
            &[
                "qdisc", "add", "dev", device, "root", "netem", "rate", &rate, "delay", &delay, "limit", &limit,
            ],
        )
    }
}

/// Without offloads, with which one packet of the model would stand for many.
fn start(namespace: &Namespace, device: &str) -> Result<()> {
    let mut offloads = namespace.command("ethtool")?;
    offloads.args(["-K", device, "gso", "off", "tso", "off", "gro", "off"]);
    run(offloads)?;
    run(ip(&["-n", namespace.name(), "link", "set", device, "up"])).map(drop)
}

/// A device as `ip -j link` shows it.
#[derive(Deserialize)]
struct Shown {
    ifindex: i32,
    address: String,
}

fn show(namespace: &Namespace, device: &str) -> Result<Shown> {
    let shown = run(ip(&["-n", namespace.name(), "-j", "link", "show", "dev", device]))?.stdout;
    let shown: Vec<Shown> = serde_json::from_slice(&shown).context("`ip -j link` is not readable")?;
    shown
        .into_iter()
        .next()
        .with_context(|| format!("`ip` shows no {device}"))
}

fn tc(namespace: &Namespace, words: &[&str]) -> Result<()> {
    let mut command = Command::new("tc");
    command.args(["-n", namespace.name()]).args(words);
    run(command).map(drop)
}
