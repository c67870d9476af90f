// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One random operation after the other, on a stage where anything may have happened before.
//! In: a stage, a seed. Out: what was done, how often giveway's qdisc was found in place, and what did not add up. An
//! operation that the kernel refuses was done all the same: it is the trying that may break something.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::json;

use super::leaks::{BandCounters, counters};
use super::stage::Stage;
use crate::air::STATION_DEVICE;
use crate::giveway::{self, Daemon};
use crate::interrupt::pause_until;
use crate::scenario::turmoil::Operation;
use crate::traffic::hostile::{BACKGROUND_PORT, RULE_PORT, below, is_one_in, pick};

const LONGEST_PAUSE_MS: u64 = 300;
/// From a daemon's first answer until its qdisc is up.
const QDISC_LIMIT: Duration = Duration::from_secs(2);
/// While the senders stand still; the queue's backlog may stay, but its counters may not differ.
const QUIET_LIMIT: Duration = Duration::from_secs(5);

#[derive(Default)]
pub struct Happened {
    pub operations: BTreeMap<Operation, u64>,
    /// Operations before which giveway's qdisc was at the root.
    pub found_ours: u64,
    pub daemon_starts: u64,
    /// Of itself.
    pub daemon_deaths: u64,
    pub slow_ends: u64,
    pub comparisons: u64,
    /// Packets by which the qdisc's counters differed, the most at any comparison.
    pub imbalance: u64,
    pub queued_packets: u64,
}

pub struct Operator<'a> {
    stage: &'a mut Stage,
    daemon: Option<Daemon>,
    random: ChaCha8Rng,
    raw: PathBuf,
    /// Operations yet to come.
    pack: Vec<Operation>,
    happened: Happened,
    /// The latest counters of every map, for the sum at the end.
    counted: BTreeMap<(u64, u64), BandCounters>,
}

impl<'a> Operator<'a> {
    pub fn new(stage: &'a mut Stage, seed: u64, raw: &Path) -> Self {
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
    pub fn next(&mut self) -> Result<Operation> {
        self.recover()?;
        let operation = self.draw().context("there is no operation")?;
        self.happened.found_ours += u64::from(self.stage.our_qdisc().is_some());
        *self.happened.operations.entry(operation).or_default() += 1;
        self.perform(operation).with_context(|| operation.name())?;
        let pause = below(&mut self.random, LONGEST_PAUSE_MS);
        pause_until(Instant::now() + Duration::from_millis(pause))?;
        Ok(operation)
    }

    /// From a shuffled pack that holds each as often as it weighs; so none is left out for long.
    fn draw(&mut self) -> Option<Operation> {
        if self.pack.is_empty() {
            let cards = Operation::WEIGHTS.iter();
            let cards = cards.flat_map(|(operation, weight)| std::iter::repeat_n(*operation, *weight));
            self.pack.extend(cards);
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
        giveway::revert(&self.stage.near)?;
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
            && daemon.has_ended()?
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

    fn perform(&mut self, operation: Operation) -> Result<()> {
        match operation {
            Operation::QdiscReplaced => self.replace_qdisc(),
            Operation::QdiscDeleted => self.tc(&format!("delete dev {STATION_DEVICE} root")),
            Operation::QdiscTwice => self.put_up_twice(),
            Operation::UnderMq => self.put_under_mq(),
            Operation::OnAnotherDevice => self.put_elsewhere(),
            Operation::LinkFlapped => self.flap(),
            Operation::MtuChanged => self.change_mtu(),
            Operation::OffloadsChanged => self.change_offloads(),
            Operation::DeviceRecreated => self.recreate_device(),
            Operation::NamespaceRecreated => self.recreate_namespace(),
            Operation::Reverted => self.revert(),
            Operation::Reconfigured => self.restart_daemon(),
            Operation::DaemonKilled => self.kill_daemon(false),
            Operation::BothKilled => self.kill_daemon(true),
            Operation::BackgroundFlow => self.change_background(),
            Operation::Quiet => self.compare(),
        }
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

    fn put_up_twice(&mut self) -> Result<()> {
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
        self.stage.ip_near("link add gwother type dummy");
        self.tc(&format!("add dev {elsewhere} {ours}"))?;
        self.stage.ip_near("link delete gwother");
        // What was refused there must not have touched what is in force here.
        self.compare()
    }

    fn flap(&mut self) -> Result<()> {
        let is_near = is_one_in(&mut self.random, 2);
        let set = |stage: &Stage, state: &str| {
            let line = format!("link set {STATION_DEVICE} {state}");
            if is_near {
                stage.ip_near(&line)
            } else {
                stage.ip_far(&line)
            }
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
        self.stage.ip_near(&format!("link set {STATION_DEVICE} mtu {mtu}"));
        if is_one_in(&mut self.random, 2) {
            self.stage.ip_far(&format!("link set {STATION_DEVICE} mtu {mtu}"));
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
        self.stage.ip_near(&line);
        Ok(())
    }

    fn any_queues(&mut self) -> u64 {
        pick(&mut self.random, &[1, 2, 2, 12])
    }

    fn recreate_device(&mut self) -> Result<()> {
        self.stage.ip_near(&format!("link delete {STATION_DEVICE}"));
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
        giveway::revert(&self.stage.near)?;
        self.stop_daemon();
        Ok(())
    }

    fn stop_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take()
            && let Err(error) = daemon.stop()
        {
            // Killed instead: emulated, it may take longer to load its programs than it was given to end.
            eprintln!("{error:#}");
            self.happened.slow_ends += 1;
        }
    }

    fn restart_daemon(&mut self) -> Result<()> {
        self.stop_daemon();
        let file = self.raw.join("turmoil.toml");
        let text = toml::to_string(&self.any_configuration())?;
        fs::write(&file, text)?;
        let mut daemon = Daemon::start(&self.stage.near, &file, self.raw.join("turmoil.log"))?;
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
        let (admission, drop_late, gate) = (yes(), yes(), yes());
        let rate = pick(random, &[0.4, 1.0, 10.0, 50.0, 100.0, 1_000.0]);
        let mut link = json!({"rate_mbit": rate});
        if is_one_in(random, 3) {
            link["driver_bytes"] = json!(pick(random, &[1_514, 8_000, 100_000]));
        }
        json!({
            "cap": {"policy": "none"},
            "link": link,
            "queue": {
                "backend": pick(random, &["qdisc", "qdisc", "auto", "htb"]),
                "admission": admission,
                "drop_late": drop_late,
                "gate": gate,
                "realtime_percent": 1 + below(random, 100),
                "trickle_kbit": pick(random, &[0, 0, 10, 1_000]),
                "guard_us": pick(random, &[0, 100, 3_000]),
            },
            "deadline": [{"port": RULE_PORT, "deadline_ms": pick(random, &[0.1, 10.0, 1_000.0])}],
            "background": [{"address": "10.77.2.2", "port": BACKGROUND_PORT}],
        })
    }

    fn signal_daemon(&self, signal: Signal) -> Result<()> {
        self.daemon.as_ref().map_or(Ok(()), |daemon| daemon.signal(signal))
    }

    fn kill_daemon(&mut self, guardian_too: bool) -> Result<()> {
        if guardian_too {
            self.kill_both()?;
            // Else the next start undoes it.
            if is_one_in(&mut self.random, 2) {
                giveway::revert(&self.stage.near)?;
            }
            return Ok(());
        }
        self.kill_only_daemon()
    }

    fn kill_only_daemon(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.kill())
    }

    /// Stopped first: it must not replace a guardian that dies before it.
    fn kill_both(&mut self) -> Result<()> {
        let Some(mut daemon) = self.daemon.take() else {
            return Ok(());
        };
        daemon.signal(Signal::SIGSTOP)?;
        if let Some(guardian) = daemon.guardian() {
            kill(Pid::from_raw(guardian), Signal::SIGKILL)?;
        }
        daemon.kill()
    }

    fn change_background(&mut self) -> Result<()> {
        let verb = pick(&mut self.random, &["add", "remove"]);
        let port = pick(&mut self.random, &[RULE_PORT, BACKGROUND_PORT, 9]);
        let line = format!("lbe {verb} 10.77.2.2 {port}");
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
            let waiting = |bands: &BTreeMap<(u64, u64), BandCounters>| {
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
        if imbalance > self.happened.imbalance {
            eprintln!("the qdisc's counters differ by {imbalance} packets: {found}");
        }
        self.happened.comparisons += 1;
        self.happened.imbalance = self.happened.imbalance.max(imbalance);
        self.stage.signal_senders(Signal::SIGCONT)
    }
}
