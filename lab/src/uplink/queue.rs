// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What queues in the device, by the kernel's own means.
//! Input: the device's namespace and the shape of its uplink. Output: qdiscs on the device's interface, and for a
//! thread per priority a second stage before it. giveway installs its own: here it gets an untouched interface.
//!
//! A token bucket hands packets down at the link's rate, and B bytes at once after a pause. The link behind it is as
//! fast and serial, so under load it never gets rid of those B bytes: the burst is what the driver holds, and one
//! packet's burst is a driver queue of one packet.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::{DEVICE_MAC, PACKET_BYTES, Shape, UplinkQueue};
use crate::calls::set_nice;
use crate::channel::STATION_DEVICE;
use crate::namespace::{Namespace, ip};
use crate::network::{End, add_pair};
use crate::process::run;
use crate::traffic::http::SINK_PORT;

pub fn install(device: &Namespace, shape: &Shape) -> Result<()> {
    let rate = format!("{}kbit", shape.up_kbit);
    match shape.queue {
        UplinkQueue::Giveway { .. } => Ok(()),
        UplinkQueue::Cake => add(device, &format!("root cake bandwidth {rate} diffserv4 raw")),
        UplinkQueue::Fifo => {
            bucket(device, &rate, shape.driver_bytes)?;
            add(device, "parent 1:1 pfifo limit 1000")
        }
        UplinkQueue::Priorities => priorities(device, &rate, shape),
        UplinkQueue::Threads => {
            priorities(device, &rate, shape)?;
            threads(device)
        }
    }
}

fn priorities(device: &Namespace, rate: &str, shape: &Shape) -> Result<()> {
    bucket(device, rate, shape.driver_bytes)?;
    // SO_PRIORITY 1 is the last band of the default map, 0 the one before it.
    add(device, "parent 1:1 prio")
}

fn bucket(device: &Namespace, rate: &str, driver_bytes: u64) -> Result<()> {
    let burst = driver_bytes.max(PACKET_BYTES);
    // The limit is that of an inner queue which is replaced at once.
    add(
        device,
        &format!("root handle 1: tbf rate {rate} burst {burst} limit 1000000"),
    )
}

fn add(device: &Namespace, qdisc: &str) -> Result<()> {
    device.tc(&format!("qdisc add dev {STATION_DEVICE} {qdisc}")).map(drop)
}

const STACK: &str = "stack";
const INNER: &str = "inner";
const QUEUE_BY_PRIORITY: &str = "num_tc 2 map 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 1@1 hw 0";

/// The nearest that today's kernel has to Tokuda's task for each priority: between the stack and the interface stands
/// a pair of devices with two queues each, and each queue's packets are handled by a threaded NAPI instance, a kernel
/// thread of its own with its own nice value. `mqprio` chooses the queue by priority on the way out; on the way in a
/// filter on the background's port gives the priority first.
fn threads(device: &Namespace) -> Result<()> {
    let end = |name, mac| End::new(device, name, mac, &[]);
    add_pair([end(STACK, DEVICE_MAC), end(INNER, "02:00:00:00:01:03")], 2)?;
    for end in [STACK, INNER] {
        // Receiving through NAPI is what a veth does with GRO on.
        device.run("ethtool", &format!("-K {end} gso off tso off gro on"))?;
        device.ip(&format!("link set {end} up"))?;
        device.tc(&format!("qdisc add dev {end} root mqprio {QUEUE_BY_PRIORITY}"))?;
        thread_per_queue(device, end)?;
    }
    redirect(device)?;
    // From now on the device's own stack uses the pair.
    device.ip(&format!("address flush dev {STATION_DEVICE}"))?;
    let [mac, address] = ["02:00:00:00:01:01", "10.78.1.1"];
    End::new(device, STACK, DEVICE_MAC, &["10.78.1.2/24"]).set_up(&[(address, mac)])
}

/// The pair's inner end and the interface are one wire. A packet loses its priority in the pair, and one from outside
/// has none yet: either gets it by the port of the upload's sink.
fn redirect(device: &Namespace) -> Result<()> {
    for (from, to, port) in [(INNER, STATION_DEVICE, "dst_port"), (STATION_DEVICE, INNER, "src_port")] {
        device.tc(&format!("qdisc add dev {from} clsact"))?;
        let pass = format!("action mirred egress redirect dev {to}");
        let background =
            format!("protocol ip flower ip_proto tcp {port} {SINK_PORT} action skbedit priority 1 pipe {pass}");
        for (order, filter) in [("1", background), ("2", format!("matchall {pass}"))] {
            device.tc(&format!("filter add dev {from} ingress pref {order} {filter}"))?;
        }
    }
    Ok(())
}

/// Threads of the device's queues, in their order; the last one's is the background's.
fn thread_per_queue(device: &Namespace, end: &str) -> Result<()> {
    work_in_threads(device, end)?;
    let threads = kernel_threads(&format!("napi/{end}-"))?;
    let [_, last] = threads[..] else {
        bail!(
            "{end} has {} NAPI threads, not one for each of two queues",
            threads.len()
        );
    };
    set_nice(last, 19).context("cannot make a NAPI thread nice")
}

/// Kernel threads `napi/DEVICE-ID` do the device's packet work from now on, in place of the softirq.
pub fn work_in_threads(at: &Namespace, device: &str) -> Result<()> {
    let switch = format!("echo 1 > /sys/class/net/{device}/threaded");
    // `ip netns exec` shows the namespace's own /sys.
    run(ip(&["netns", "exec", at.name(), "sh", "-c", &switch])).map(drop)
}

/// Those whose names are this and a number, in the order of the numbers; NAPI's are given in the order of the queues.
pub fn kernel_threads(name: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path: PathBuf = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else {
            continue;
        };
        let comm = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
        let number = comm
            .trim()
            .strip_prefix(name)
            .and_then(|number| number.parse::<u32>().ok());
        found.extend(number.map(|number| (number, pid)));
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, pid)| pid).collect())
}
