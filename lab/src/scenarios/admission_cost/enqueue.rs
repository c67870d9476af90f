// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of one packet with a deadline behind a backlog: the role `realtime-enqueue` keeps a number of packets in
//! the queue and sends one more, again and again. Input: the numbers, how often. Out, in JSON: for each number the run
//! time of the two BPF programs for that packet, packet by packet, and beside it the two tests alone, over as many
//! promises, in this process and by the same clock: the exact scan, and the slack test with the update that keeps it
//! O(log n).

use std::hint::black_box;
use std::net::UdpSocket;

use anyhow::{Context, Result, bail, ensure};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::exact_scan::{Promise, Promises};
use super::slack::{lab_slack_add, lab_slack_latest, lab_slack_new};
use crate::bpf_objects::{Nothing, Program, enable_statistics};
use crate::channel::STATION_DEVICE;
use crate::link::wire::NOBODY_ADDRESS;
use crate::proc::number;
use crate::traffic::realtime::sender::{self, DeadlineFlow};
use crate::traffic::realtime::{monotonic_ns, sleep_until};

/// Far enough that the link can send the whole backlog until then, and within the time that admission looks ahead.
const DEADLINE_US: (u64, u64) = (220_000, 260_000);
const LOOK_EVERY_NS: u64 = 20_000;
const LOOKS: u64 = 100_000;
const MORE: u64 = 4;
const DECISIONS: u64 = 20;
/// In /proc/net/dev.
const SENT_PACKETS: usize = 9;

#[derive(Deserialize, Serialize)]
pub struct Enqueue {
    /// Increasing.
    pub queued: Vec<u64>,
    pub packets: u64,
    pub seed: u64,
}

/// At this backlog.
#[derive(Default, Deserialize, Serialize)]
pub struct EnqueueCost {
    pub queued: u64,
    /// Of each packet.
    pub admission_ns: Vec<u64>,
    pub enqueue_ns: Vec<u64>,
    /// The part of the kernel's own clock.
    pub clock_ns: Vec<u64>,
    pub scan_ns: f64,
    pub tree_ns: f64,
}

/// The role `realtime-enqueue`.
pub fn run(what: Enqueue) -> Result<Vec<EnqueueCost>> {
    let mut queue = Queue::open(what.seed)?;
    let mut costs = Vec::new();
    for &queued in &what.queued {
        costs.push(queue.measure(queued, what.packets)?);
    }
    // The link must not send meanwhile: its interrupts would be in the time.
    queue.drain()?;
    for cost in &mut costs {
        (cost.scan_ns, cost.tree_ns) = decision_ns(cost.queued, &mut queue.random)?;
    }
    Ok(costs)
}

struct Queue {
    flow: DeadlineFlow,
    socket: UdpSocket,
    random: ChaCha8Rng,
    sent: u64,
    left_before: u64,
    admit: Program,
    enqueue: Program,
    nothing: Nothing,
    _statistics: std::os::fd::OwnedFd,
}

impl Queue {
    fn open(seed: u64) -> Result<Self> {
        let flow = DeadlineFlow {
            seed,
            deadline_us: DEADLINE_US,
            ..DeadlineFlow::default()
        };
        Ok(Self {
            socket: sender::open(&flow, NOBODY_ADDRESS)?,
            flow,
            random: ChaCha8Rng::seed_from_u64(seed),
            sent: 0,
            left_before: packets_left()?,
            admit: Program::find("gw_admit")?,
            enqueue: Program::find("gw_enqueue")?,
            nothing: Nothing::load()?,
            _statistics: enable_statistics()?,
        })
    }

    fn queued(&self) -> Result<u64> {
        Ok((self.sent + self.left_before).saturating_sub(packets_left()?))
    }

    fn send(&mut self) -> Result<()> {
        let deadline_ns = monotonic_ns()? + 1_000 * draw(&mut self.random, DEADLINE_US);
        let is_refused = sender::send(&self.socket, &self.flow, self.sent as u32, deadline_ns)?;
        ensure!(
            !is_refused,
            "packet {} was refused: the queue cannot be filled",
            self.sent
        );
        self.sent += 1;
        Ok(())
    }

    /// Fills the queue to so many, or a few more: the link sends meanwhile.
    fn hold(&mut self, queued: u64) -> Result<()> {
        let began = (monotonic_ns()?, self.sent);
        // As many as leave during one check and the sending after it.
        let mut leave = MORE / 2;
        for _ in 0..LOOKS {
            let now = self.queued()?;
            if (queued..=queued + MORE).contains(&now) {
                return Ok(());
            }
            if now > queued {
                leave = leave.saturating_sub(1);
                sleep_until(monotonic_ns()? + LOOK_EVERY_NS)?;
                continue;
            }
            for _ in now..queued + leave {
                self.send()?;
            }
            leave += 1;
        }
        let sent = self.sent - began.1;
        bail!(
            "the queue does not come to hold {queued} packets: it holds {} after {sent} in {} us",
            self.queued()?,
            (monotonic_ns()? - began.0) / 1_000
        )
    }

    fn drain(&self) -> Result<()> {
        for _ in 0..LOOKS {
            if self.queued()? == 0 {
                return Ok(());
            }
            sleep_until(monotonic_ns()? + LOOK_EVERY_NS)?;
        }
        bail!("the queue does not become empty")
    }

    fn measure(&mut self, queued: u64, packets: u64) -> Result<EnqueueCost> {
        let mut cost = EnqueueCost {
            queued,
            ..EnqueueCost::default()
        };
        for _ in 0..packets {
            self.hold(queued)?;
            let before = self.runs()?;
            self.send()?;
            let after = self.runs()?;
            let took = |which: usize| after[which].time_ns - before[which].time_ns;
            for (which, after) in after.iter().enumerate() {
                ensure!(
                    after.count == before[which].count + 1,
                    "others send too: the cost is not of one packet"
                );
            }
            cost.admission_ns.push(took(0));
            cost.enqueue_ns.push(took(1));
            cost.clock_ns.push(took(2));
        }
        Ok(cost)
    }

    fn runs(&self) -> Result<[crate::bpf_objects::Runs; 3]> {
        Ok([self.admit.runs()?, self.enqueue.runs()?, self.nothing.program.runs()?])
    }
}

fn draw(random: &mut ChaCha8Rng, (least, most): (u64, u64)) -> u64 {
    least + random.next_u64() % (most - least + 1)
}

/// Packets that the queue has handed to the device, in this process's namespace.
fn packets_left() -> Result<u64> {
    Ok(number("/proc/self/net/dev", &format!("{STATION_DEVICE}:"), SENT_PACKETS)? as u64)
}

/// One decision of the exact scan that admits, and so visits every promise; and one of the slack test, which adds the
/// new promise.
fn decision_ns(queued: u64, random: &mut ChaCha8Rng) -> Result<(f64, f64)> {
    let now_ns = monotonic_ns()?;
    let mut promise = |number| Promise {
        deadline_ns: now_ns + 1_000 * draw(random, DEADLINE_US),
        work_ns: 1,
        number,
    };
    let tree = lab_slack_new(now_ns).context("no memory for the slack tree")?;
    let mut promises = Promises::default();
    for number in 0..queued {
        let promise = promise(number);
        promises.add(promise);
        lab_slack_add(tree, promise.deadline_ns, promise.work_ns as i64);
    }
    let packets: Vec<_> = (0..DECISIONS).map(promise).collect();
    let walked_ns = monotonic_ns()?;
    for &packet in &packets {
        ensure!(
            black_box(&promises).admits(0, packet),
            "the scan refused a packet that is easily in time"
        );
    }
    let climbed_ns = monotonic_ns()?;
    for packet in &packets {
        let latest = lab_slack_latest(tree, packet.deadline_ns, packet.work_ns as i64);
        ensure!(
            latest.own_ns.min(latest.others_ns) > 0,
            "the tree refused what is easily in time"
        );
        lab_slack_add(tree, packet.deadline_ns, packet.work_ns as i64);
    }
    let done_ns = monotonic_ns()?;
    let each = |ns: u64| ns as f64 / DECISIONS as f64;
    Ok((each(climbed_ns - walked_ns), each(done_ns - climbed_ns)))
}
