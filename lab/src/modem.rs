// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device behind a modem with a deep queue: the link's rate is the modem's, and the device does not know it. Input:
//! the device's qdisc, the round trip, and the link's rate over time. Output: three namespaces, connected; removed when
//! dropped. All of the round trip's delay is on the way back, so a packet's waiting time on its way out is in a queue.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::channel::STATION_DEVICE;
use crate::interrupt::pause_until;
use crate::namespace::Namespace;
use crate::network::join_router;
use crate::uplink::PACKET_BYTES;

pub const FAR_ADDRESS: &str = "10.79.3.2";
/// The modem's device towards the remote host.
const CORE: &str = "core";
/// The modem's queue in packets: Linux's own default for a device.
const MODEM_PACKETS: u64 = 1_000;
/// More than can be in flight: the way back never drops.
const BACK_LIMIT_PACKETS: u64 = 10_000;
/// The trace changes its rate this often, ...
pub const STEP_S: f64 = 0.5;
/// ... within these.
pub const LEAST_MBIT: f64 = 1.0;
const MOST_MBIT: f64 = 20.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModemLink {
    Steady(f64),
    Trace,
    /// From these seconds on, the first being 0, so many Mbit/s.
    Steps([(f64, f64); 3]),
}

/// Field order matters: the middle last, since its ends are pairs with the others'.
pub struct Modem {
    pub device: Namespace,
    pub far: Namespace,
    modem: Namespace,
    /// From when on, seconds.
    rates_mbit: Vec<(f64, f64)>,
}

impl ModemLink {
    fn rates_mbit(self, seed: u64, seconds: f64) -> Vec<(f64, f64)> {
        match self {
            Self::Steady(mbit) => vec![(0.0, mbit)],
            Self::Trace => (0..=(seconds / STEP_S).ceil() as u32)
                .map(|step| f64::from(step) * STEP_S)
                .zip(trace(seed))
                .collect(),
            Self::Steps(rates_mbit) => rates_mbit.to_vec(),
        }
    }
}

/// Each step multiplies the rate by 2 to the power of a uniform random number between -1 and 1, and reflects it at its
/// limits: it halves or doubles within a second, and crosses its range in some seconds, like an LTE uplink in motion.
/// The random numbers are SplitMix64's.
fn trace(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    };
    let most = (MOST_MBIT / LEAST_MBIT).log2();
    let mut at = most / 2.0;
    std::iter::repeat_with(move || {
        at = (at + 2.0 * random() - 1.0).abs();
        at = most - (most - at).abs();
        LEAST_MBIT * at.exp2()
    })
}

impl Modem {
    /// `queue`: a line for `tc` for the device's own qdisc.
    pub fn raise(queue: Option<&str>, rtt_ms: u64, link: ModemLink, (seed, seconds): (u64, f64)) -> Result<Self> {
        let modem = Self {
            device: Namespace::create("device")?,
            far: Namespace::create("far")?,
            modem: Namespace::create("modem")?,
            rates_mbit: link.rates_mbit(seed, seconds),
        };
        join_router(&modem.modem, 1, &modem.device, "lan")?;
        join_router(&modem.modem, 3, &modem.far, CORE)?;
        modem.modem.run("sysctl", "-qw net.ipv4.ip_forward=1")?;
        let back = format!("qdisc add dev {STATION_DEVICE} root netem delay {rtt_ms}ms limit {BACK_LIMIT_PACKETS}");
        modem.far.tc(&back)?;
        modem.set_rate("add", modem.rates_mbit[0].1)?;
        if let Some(queue) = queue {
            modem
                .device
                .tc(&format!("qdisc add dev {STATION_DEVICE} root {queue}"))?;
        }
        Ok(modem)
    }

    /// Waits for so much time since `begun`, while the link changes its rate.
    pub fn pass(&self, begun: Instant, from_s: f64, to_s: f64) -> Result<()> {
        let at = |s: f64| begun + Duration::from_secs_f64(s);
        for (step_s, mbit) in self.rates_mbit.iter().skip(1) {
            if (from_s..to_s).contains(step_s) {
                pause_until(at(*step_s))?;
                self.set_rate("change", *mbit)?;
            }
        }
        pause_until(at(to_s))
    }

    /// Of the link, so long after its start.
    pub fn rate_mbit(&self, at_s: f64) -> Option<f64> {
        let since = self.rates_mbit.iter().rev().find(|(from_s, _)| *from_s <= at_s);
        since.map(|(_, mbit)| *mbit)
    }

    fn set_rate(&self, verb: &str, mbit: f64) -> Result<()> {
        let (kbit, limit) = ((mbit * 1e3) as u64, MODEM_PACKETS * PACKET_BYTES);
        let bucket = format!("root handle 1: tbf rate {kbit}kbit burst {PACKET_BYTES} limit {limit}");
        self.modem.tc(&format!("qdisc {verb} dev {CORE} {bucket}")).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_moves_between_its_limits_within_seconds() {
        let mbit: Vec<f64> = trace(1).take(1_000).collect();
        let (least, most) = mbit
            .iter()
            .fold((f64::MAX, 0.0), |(a, b), m| (f64::min(a, *m), f64::max(b, *m)));
        assert!(
            (LEAST_MBIT..1.1).contains(&least) && (18.0..=MOST_MBIT).contains(&most),
            "{least} {most}"
        );
        assert!(
            mbit.windows(2)
                .all(|pair| (0.499..=2.001).contains(&(pair[1] / pair[0])))
        );
    }
}
