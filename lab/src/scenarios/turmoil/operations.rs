// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One random operation after the other, on a stage where anything may have happened before.
//! Input: a stage, a seed. Output: what was done, how often giveway's qdisc was found in place, and what did not add
//! up. An operation that the kernel refuses was done all the same: it is the trying that may break something.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;
use serde_json::json;

use super::leaks::{BandCounters, counters};
use super::stage::TurmoilTestbed;
use crate::channel::STATION_DEVICE;
use crate::giveway::{self, Daemon, answers};
use crate::interrupt::pause_until;
use crate::traffic::hostile::{BACKGROUND_PORT, RULE_PORT, below, is_one_in, pick};

const LONGEST_PAUSE_MS: u64 = 300;
/// From a daemon's first answer until its qdisc is up.
const QDISC_LIMIT: Duration = Duration::from_secs(2);
/// While the senders stand still; the queue's backlog may stay, but its counters may not differ.
const QUIET_LIMIT: Duration = Duration::from_secs(5);

type Act = fn(&mut Operator) -> Result<()>;

/// What may happen, and how often in a pack of all. Those more often after which the daemon need not be started again:
/// its programs take seconds to load here.
pub const OPERATIONS: [(&str, usize, Act); 16] = [
    // Another tool's qdisc at the root.
    ("qdisc_replaced", 1, |operator| operator.replace_qdisc()),
    ("qdisc_deleted", 1, |operator| {
        operator.tc(&format!("delete dev {STATION_DEVICE} root"))
    }),
    // Ours, put there once more by another tool: two instances for a moment.
    ("qdisc_twice", 6, |operator| operator.install_twice()),
    // Ours below `mq`, an instance for each queue of the device.
    ("under_mq", 2, |operator| operator.put_under_mq()),
    // Ours where it refuses to be.
    ("on_another_device", 4, |operator| operator.put_elsewhere()),
    ("link_flapped", 6, |operator| operator.flap()),
    ("mtu_changed", 6, |operator| operator.change_mtu()),
    ("offloads_changed", 4, |operator| operator.change_offloads()),
    ("device_recreated", 1, |operator| operator.recreate_device()),
    // The network namespace deleted, with or without a living daemon.
    ("namespace_recreated", 2, |operator| operator.recreate_namespace()),
    ("reverted", 1, |operator| operator.revert()),
    // The daemon ended and started with another configuration.
    ("reconfigured", 1, |operator| operator.restart_daemon()),
    ("daemon_killed", 1, |operator| operator.kill_only_daemon()),
    // With its watchdog. Unless it is reverted, the next start undoes what is left.
    ("both_killed", 2, |operator| {
        operator.kill_both()?;
        match is_one_in(&mut operator.random, 2) {
            true => answers::revert(&operator.stage.near),
            false => Ok(()),
        }
    }),
    ("background_flow", 4, |operator| operator.change_background()),
    // The senders stop, and what was counted is compared.
    ("quiet", 4, |operator| operator.compare()),
];

#[derive(Default, Serialize)]
pub struct Happened {
    #[serde(skip)]
    pub operations: BTreeMap<&'static str, u64>,
    /// Operations before which giveway's qdisc was at the root.
    #[serde(skip)]
    pub found_ours: u64,
    pub daemon_starts: u64,
    /// Of itself.
    pub daemon_deaths: u64,
    pub daemon_slow_ends: u64,
    pub comparisons: u64,
    /// Packets by which the qdisc's counters differed, the most at any comparison.
    pub miscounted_packets: u64,
    pub queued_packets: u64,
}

pub struct Operator<'a> {
    stage: &'a mut TurmoilTestbed,
    daemon: Option<Daemon>,
    random: ChaCha8Rng,
    raw: PathBuf,
    /// Operations yet to come.
    pack: Vec<(&'static str, Act)>,
    happened: Happened,
    /// The latest counters of every map, for the sum at the end.
    counted: BTreeMap<(u32, u32), BandCounters>,
}

impl<'a> Operator<'a> {
    pub fn new(stage: &'a mut TurmoilTestbed, seed: u64, raw: &Path) -> Self {
        Self {
            stage,
            daemon: None,
            random: ChaCha8Rng::seed_from_u64(seed),
            raw: raw.to_owned(),
            pack: Vec::new(),
            happened: Happened::default(),
            counted: BTreeMap::new(),
        }
    }

    /// Puts right what the last one left undone, mostly, and does another.
    pub fn next(&mut self) -> Result<&'static str> {
        self.recover()?;
        let (operation, act) = self.draw().context("there is no operation")?;
        self.happened.found_ours += u64::from(self.stage.our_qdisc().is_some());
        *self.happened.operations.entry(operation).or_default() += 1;
        act(self).context(operation)?;
        let pause = below(&mut self.random, LONGEST_PAUSE_MS);
        pause_until(Instant::now() + Duration::from_millis(pause))?;
        Ok(operation)
    }

    /// From a shuffled pack that holds each as often as it weighs; so none is left out for long.
    fn draw(&mut self) -> Option<(&'static str, Act)> {
        if self.pack.is_empty() {
            let cards = |(name, weight, act)| std::iter::repeat_n((name, act), weight);
            self.pack.extend(OPERATIONS.into_iter().flat_map(cards));
            for last in (1..self.pack.len()).rev() {
                let other = below(&mut self.random, last as u64 + 1) as usize;
                self.pack.swap(last, other);
            }
        }
        self.pack.pop()
    }

    /// Ends everything as an administrator would.
    pub fn finish(mut self) -> Result<Happened> {
        self.stage.stop_senders();
        self.stop_daemon();
        answers::revert(&self.stage.near)?;
        self.happened.queued_packets = self.counted.values().map(|band| band.queued_packets).sum();
        Ok(self.happened)
    }

    /// Senders always; a daemon mostly, and mostly one that has its queue up.
    fn recover(&mut self) -> Result<()> {
        if !self.stage.is_sending()? {
            self.stage.stop_senders();
            let seed = below(&mut self.random, 1 << 32);
            self.stage.start_senders(seed)?;
        }
        if let Some(daemon) = &mut self.daemon
            && daemon.process.exit()?.is_some()
        {
            self.happened.daemon_deaths += 1;
            self.daemon = None;
        }
        let is_idle = self.daemon.is_none() || self.stage.our_qdisc().is_none();
        if is_idle && !is_one_in(&mut self.random, 4) {
            self.stage
                .near_does("tc", &format!("qdisc delete dev {STATION_DEVICE} root"))?;
            self.restart_daemon()?;
        }
        Ok(())
    }

    fn tc(&mut self, line: &str) -> Result<()> {
        self.stage.near_does("tc", &format!("qdisc {line}")).map(drop)
    }

    fn replace_qdisc(&mut self) -> Result<()> {
        let others = [
            "pfifo limit 50",
            "fq_codel",
            "prio",
            "tbf rate 20mbit burst 5000 limit 30000",
            "fq",
            "noqueue",
        ];
        let other = pick(&mut self.random, &others);
        self.tc(&format!("replace dev {STATION_DEVICE} root {other}"))
    }

    fn install_twice(&mut self) -> Result<()> {
        let Some(ours) = self.stage.our_qdisc() else {
            return Ok(());
        };
        let handle = pick(&mut self.random, &["", "handle 5:", "handle 6777:"]);
        self.tc(&format!("replace dev {STATION_DEVICE} root {handle} {ours}"))?;
        self.compare()
    }

    /// While the daemon stands still, which would step back at once.
    fn put_under_mq(&mut self) -> Result<()> {
        let Some(ours) = self.stage.our_qdisc() else {
            return Ok(());
        };
        self.signal_daemon(Signal::SIGSTOP)?;
        self.tc(&format!("replace dev {STATION_DEVICE} root handle 8: mq"))?;
        for queue in 1..=pick(&mut self.random, &[2, 2, 12]) {
            self.tc(&format!("replace dev {STATION_DEVICE} parent 8:{queue:x} {ours}"))?;
        }
        let while_it_runs = below(&mut self.random, 1_500);
        pause_until(Instant::now() + Duration::from_millis(while_it_runs))?;
        self.compare()?;
        self.signal_daemon(Signal::SIGCONT)
    }

    fn put_elsewhere(&mut self) -> Result<()> {
        let Some(ours) = self.stage.our_qdisc() else {
            return Ok(());
        };
        let elsewhere = pick(&mut self.random, &["lo root", "gwother root", "lo parent 1:1"]);
        let _ = self.stage.near.ip("link add gwother type dummy");
        self.tc(&format!("add dev {elsewhere} {ours}"))?;
        let _ = self.stage.near.ip("link delete gwother");
        // What was refused there must not have touched what is active here.
        self.compare()
    }

    fn flap(&mut self) -> Result<()> {
        let is_near = is_one_in(&mut self.random, 2);
        let set = |stage: &TurmoilTestbed, state: &str| {
            let end = if is_near { &stage.near } else { &stage.far };
            let _ = end.ip(&format!("link set {STATION_DEVICE} {state}"));
        };
        set(self.stage, "down");
        let down_for = below(&mut self.random, 200);
        pause_until(Instant::now() + Duration::from_millis(down_for))?;
        set(self.stage, "up");
        self.stage.know_addresses();
        Ok(())
    }

    fn change_mtu(&mut self) -> Result<()> {
        let any = 68 + below(&mut self.random, 9_000 - 68 + 1);
        let mtu = pick(&mut self.random, &[any, any, 1_500, 1_280, 68, 9_000]);
        let _ = self.stage.near.ip(&format!("link set {STATION_DEVICE} mtu {mtu}"));
        if is_one_in(&mut self.random, 2) {
            let _ = self.stage.far.ip(&format!("link set {STATION_DEVICE} mtu {mtu}"));
        }
        // IPv6 leaves a link below 1,280 bytes, with its addresses.
        self.stage.know_addresses();
        Ok(())
    }

    fn change_offloads(&mut self) -> Result<()> {
        let [gso, tso, checksums] = [0; 3].map(|_: u8| pick(&mut self.random, &["on", "off"]));
        let line = format!("-K {STATION_DEVICE} gso {gso} tso {tso} tx {checksums}");
        self.stage.near_does("ethtool", &line)?;
        let (segments, packets) = (1 + below(&mut self.random, 64), pick(&mut self.random, &[0, 1, 1_000]));
        let line = format!("link set {STATION_DEVICE} gso_max_segs {segments} txqueuelen {packets}");
        let _ = self.stage.near.ip(&line);
        Ok(())
    }

    fn any_queues(&mut self) -> u64 {
        pick(&mut self.random, &[1, 2, 2, 12])
    }

    fn recreate_device(&mut self) -> Result<()> {
        let _ = self.stage.near.ip(&format!("link delete {STATION_DEVICE}"));
        let queues = self.any_queues();
        self.stage.add_device(queues)
    }

    /// The namespace goes while the qdisc is attached and holds packets.
    fn recreate_namespace(&mut self) -> Result<()> {
        match below(&mut self.random, 3) {
            0 => {}
            1 => self.kill_only_daemon()?,
            _ => self.kill_both()?,
        }
        self.stage.stop_senders();
        let queues = self.any_queues();
        self.stage.recreate_near(queues)?;
        self.stop_daemon();
        Ok(())
    }

    fn revert(&mut self) -> Result<()> {
        answers::revert(&self.stage.near)?;
        self.stop_daemon();
        Ok(())
    }

    fn stop_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take()
            && let Err(error) = daemon.stop()
        {
            // Killed instead: emulated, it may take longer to load its programs than it was given to end.
            eprintln!("{error:#}");
            self.happened.daemon_slow_ends += 1;
        }
    }

    fn restart_daemon(&mut self) -> Result<()> {
        self.stop_daemon();
        let configuration = self.any_configuration();
        let mut daemon = Daemon::launch(&self.stage.near, &configuration, &self.raw.join("turmoil"))?;
        self.happened.daemon_starts += 1;
        if is_one_in(&mut self.random, 8) {
            // What comes next finds it half started.
            self.daemon = Some(daemon);
            return Ok(());
        }
        daemon.wait_until_up(&self.stage.near)?;
        self.daemon = Some(daemon);
        // Not every configuration has one.
        let deadline = Instant::now() + QDISC_LIMIT;
        while self.stage.our_qdisc().is_none() && Instant::now() < deadline {
            pause_until(Instant::now() + Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Any that is valid.
    fn any_configuration(&mut self) -> serde_json::Value {
        let random = &mut self.random;
        let mut yes = || is_one_in(random, 2);
        let (admission, drop_late, cpu_gate) = (yes(), yes(), yes());
        let rate = pick(random, &[0.4, 1.0, 10.0, 50.0, 100.0, 1_000.0]);
        let mut link = json!({"rate_mbit": rate});
        if is_one_in(random, 3) {
            link["driver_bytes"] = json!(pick(random, &[1_514, 8_000, 100_000]));
        }
        json!({
            "cap": {"policy": "none"},
            "link": link,
            "queue": {
                "backend": pick(random, &["bpf", "bpf", "auto", "htb"]),
                "admission": admission,
                "drop_late": drop_late,
                "cpu_gate": cpu_gate,
                "realtime_percent": 1 + below(random, 100),
                "background_min_kbit": pick(random, &[0, 0, 10, 1_000]),
                "guard_us": pick(random, &[0, 100, 3_000]),
            },
            "deadline": [{"port": RULE_PORT, "deadline_ms": pick(random, &[0.1, 10.0, 1_000.0])}],
            "background": [{"address": "10.77.2.2", "port": BACKGROUND_PORT}],
        })
    }

    fn signal_daemon(&self, signal: Signal) -> Result<()> {
        self.daemon
            .as_ref()
            .map_or(Ok(()), |daemon| daemon.process.signal(signal))
    }

    fn kill_only_daemon(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.process.kill())
    }

    fn kill_both(&mut self) -> Result<()> {
        self.daemon
            .take()
            .map_or(Ok(()), |mut daemon| daemon.kill_with_watchdog())
    }

    fn change_background(&mut self) -> Result<()> {
        let verb = pick(&mut self.random, &["set", "clear"]);
        let port = pick(&mut self.random, &[RULE_PORT, BACKGROUND_PORT, 9]);
        let class = if verb == "set" { " background" } else { "" };
        let line = format!("class {verb} 10.77.2.2:{port}{class}");
        let program = giveway::binary()?;
        self.stage.near_does(&program.to_string_lossy(), &line).map(drop)
    }

    /// With the senders stopped, everything that was queued is sent, dropped or waits, and the kernel thinks so too. The
    /// queue may still be draining, and the kernel sends something of its own now and then: what it says lies between
    /// what the counters say before and after.
    fn compare(&mut self) -> Result<()> {
        self.stage.signal_senders(Signal::SIGSTOP)?;
        let deadline = Instant::now() + QUIET_LIMIT;
        let (imbalance, found) = loop {
            let (before, queued, now) = (counters()?, self.stage.queued()?, counters()?);
            let lost: u64 = now.iter().map(|((_, place), band)| band.imbalance(*place)).sum();
            let waiting = |bands: &BTreeMap<(u32, u32), BandCounters>| {
                bands.values().map(|band| band.backlog_packets).sum::<u64>()
            };
            let (low, high) = (waiting(&before).min(waiting(&now)), waiting(&before).max(waiting(&now)));
            let imbalance = lost + queued.saturating_sub(high) + low.saturating_sub(queued);
            let found = format!(
                "{} unaccounted for; {} waited, then {}; the kernel says {queued}",
                lost,
                waiting(&before),
                waiting(&now)
            );
            self.counted.extend(now);
            if imbalance == 0 || Instant::now() > deadline {
                break (imbalance, found);
            }
            pause_until(Instant::now() + Duration::from_millis(100))?;
        };
        if imbalance > self.happened.miscounted_packets {
            eprintln!("the qdisc's counters differ by {imbalance} packets: {found}");
        }
        self.happened.comparisons += 1;
        self.happened.miscounted_packets = self.happened.miscounted_packets.max(imbalance);
        self.stage.signal_senders(Signal::SIGCONT)
    }
}
