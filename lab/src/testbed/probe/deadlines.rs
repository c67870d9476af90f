// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets with deadlines over the modelled link, whatever queues before it.
//! Input: the flows and how many packets. Output: how many were sent, refused, reported as refused and late; P3's five
//! stages; what the floods got. Late is what the link says, never the receiver.

mod stages;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::super::place::{Network, Place};
use super::super::{Load, Testbed, Topology};
use super::{Measure, Probe};
use crate::experiment::Run;
use crate::giveway::answers;
use crate::interrupt::pause_until;
use crate::link::wire::{Marking, WireQueue};
use crate::link::{BACKGROUND_PORT, BEST_EFFORT_PORT, Link, Passed};
use crate::outcome::Outcome;
use crate::role::Role;
use crate::traffic::realtime::flood::Flood;
use crate::traffic::realtime::sender::{DeadlineFlow, SenderCounts};
use crate::traffic::realtime::{FRAME_BYTES, PACKET_BYTES, monotonic_ns};

/// SO_PRIORITY and the TOS byte: what the kernel's priomap puts first, Expedited Forwarding (RFC 3246).
const REALTIME_MARKS: (i32, i32) = (6, 0xb8);
/// Below best effort in the kernel's priomap; Lower Effort (RFC 8622).
pub const BACKGROUND_MARKS: (i32, i32) = (1, 0x04);
/// Just below the 1,000 packets that pfifo_fast holds, so that the flood waits for the queue and never spins.
const BEST_EFFORT_FLOODS: usize = 2;
const PACKETS_OF_BEST_EFFORT: usize = 450;
const PACKETS_OF_BACKGROUND: usize = 64;
/// From the start of the processes to the first packet with a deadline; the floods have filled the queue by then.
const HEAD_START: Duration = Duration::from_secs(1);
/// After the last one was sent; longer than any queue here.
const DRAIN: Duration = Duration::from_secs(1);

/// Packets with deadlines; needs a wire.
pub struct Deadlines {
    pub flows: Vec<RealtimeFlow>,
    /// At least so many packets with deadlines in all.
    pub packets: u64,
}

/// A burst of packets again and again.
#[derive(Clone, Copy, Debug)]
pub struct RealtimeFlow {
    pub name: &'static str,
    pub burst: u64,
    pub every_us: u64,
    /// Its first burst.
    pub after_us: u64,
    /// After the burst begins; anew for each packet where the two differ.
    pub deadline_us: (u64, u64),
}

/// The floods that P3 has beside its packets. Background says what it is to every queue; whether that means anything
/// there is the queue's affair.
pub fn floods() -> Vec<Load> {
    let best_effort = Flood {
        port: BEST_EFFORT_PORT,
        marking: None,
        packets: PACKETS_OF_BEST_EFFORT,
    };
    let background = Flood {
        port: BACKGROUND_PORT,
        marking: Some(BACKGROUND_MARKS),
        packets: PACKETS_OF_BACKGROUND,
    };
    let floods = std::iter::repeat_n(best_effort, BEST_EFFORT_FLOODS).chain([background]);
    floods.map(Load::Flood).collect()
}

struct Sending<'a> {
    deadlines: &'a Deadlines,
    rate_mbit: u64,
    queue: &'a WireQueue,
    link: Link,
    receiver: Role,
    counts: Vec<SenderCounts>,
    /// What the link had carried, and when: before and after.
    passed: Option<[(Passed, u64); 2]>,
}

impl Deadlines {
    /// As often as the longest needs.
    fn bursts(&self) -> u64 {
        let cycle: u64 = self.flows.iter().map(|flow| flow.burst).sum();
        self.packets.div_ceil(cycle.max(1))
    }
}

impl Probe for Deadlines {
    fn estimated_s(&self, _testbed: &Testbed) -> f64 {
        let packets_per_s: f64 = self
            .flows
            .iter()
            .map(|flow| 1e6 * flow.burst as f64 / flow.every_us as f64)
            .sum();
        2.0 + self.packets as f64 / packets_per_s
    }

    fn prepare<'a>(&'a self, testbed: &'a Testbed, place: &mut Place, _run: &Run) -> Result<Box<dyn Measure + 'a>> {
        let (Network::Wire(wire), Topology::Wire { rate_mbit, queue }) = (&place.network, &testbed.topology) else {
            bail!("packets with deadlines need the topology of a wire");
        };
        let most = self.flows.iter().map(|flow| flow.burst * self.bursts()).max();
        let most = u32::try_from(most.context("there is nothing to send")?)?;
        let link = Link::load(&wire.sender, rate_mbit * 125_000, self.flows.len() as u32, most)?;
        Ok(Box::new(Sending {
            deadlines: self,
            rate_mbit: *rate_mbit,
            queue,
            link,
            receiver: Role::start(&wire.receiver, "realtime-receiver", &())?,
            counts: Vec::new(),
            passed: None,
        }))
    }
}

impl Measure for Sending<'_> {
    fn measure(&mut self, place: &mut Place, run: &Run) -> Result<()> {
        let first = Instant::now() + HEAD_START;
        let first_ns = monotonic_ns()? + HEAD_START.as_nanos() as u64;
        let senders = self.start_senders(place, run.seed, first_ns)?;
        run.progress.tick("the queue fills");
        pause_until(first)?;
        let before = (self.link.passed()?, monotonic_ns()?);
        run.progress.tick("packets with deadlines");
        self.counts = senders.into_iter().map(Role::finish).collect::<Result<_>>()?;
        self.passed = Some([before, (self.link.passed()?, monotonic_ns()?)]);
        Ok(())
    }

    fn report(self: Box<Self>, place: &mut Place, run: &Run, outcome: &mut Outcome) -> Result<()> {
        let name = run.name;
        pause_until(Instant::now() + DRAIN)?;
        let delivered: Vec<_> = self.receiver.finish()?;
        let flows = &self.deadlines.flows;
        stages::summarize(outcome, name, flows, &self.counts, &self.link.stamps()?, &delivered);
        let [(before, begun_ns), (after, ended_ns)] = self.passed.context("nothing was measured")?;
        describe_others(outcome, name, &before, &after, (ended_ns - begun_ns) as f64);
        let rate_bytes_per_ns = self.rate_mbit as f64 / 8e3;
        let driver_max_bytes = after.longest_wait_ns as f64 * rate_bytes_per_ns;
        outcome.set(name, "driver_max_bytes", driver_max_bytes);
        if matches!(self.queue, WireQueue::Giveway { .. }) {
            compare_counts(outcome, name, place, &self.counts)?;
        }
        Ok(())
    }
}

impl Sending<'_> {
    fn start_senders(&self, place: &Place, seed: u64, first_ns: u64) -> Result<Vec<Role>> {
        let marking = self.queue.marking();
        let bursts = self.deadlines.bursts();
        let at = place.sender(0)?.at;
        let start = |(number, flow): (usize, &RealtimeFlow)| {
            let flow = DeadlineFlow {
                flow: number as u32,
                packets: flow.burst * bursts,
                burst: flow.burst,
                every_ns: flow.every_us * 1_000,
                first_ns: first_ns + flow.after_us * 1_000,
                deadline_us: flow.deadline_us,
                seed: seed.wrapping_add(number as u64),
                marking: (marking != Marking::None).then_some(REALTIME_MARKS),
                in_tai: marking == Marking::ClassesAndTai,
                to: None,
            };
            Role::spawn(at, "realtime-sender", &flow)
        };
        self.deadlines.flows.iter().enumerate().map(start).collect()
    }
}

/// What the floods got while packets with deadlines were sent.
fn describe_others(outcome: &mut Outcome, point: &str, before: &Passed, after: &Passed, elapsed_ns: f64) {
    let payload = PACKET_BYTES as f64 / FRAME_BYTES as f64;
    let mbit = |before: u64, after: u64| (after - before) as f64 * 8e3 / elapsed_ns;
    let best_effort = mbit(before.best_effort.bytes, after.best_effort.bytes);
    let background = mbit(before.background.bytes, after.background.bytes);
    outcome.set(point, "best_effort_goodput_mbit", best_effort * payload);
    outcome.set(point, "background_goodput_mbit", background * payload);
    outcome.set(point, "link_mbit", mbit(before.bytes(), after.bytes()));
}

/// The daemon's own count of refusals, beside what was reported to the senders.
fn compare_counts(outcome: &mut Outcome, point: &str, place: &Place, counts: &[SenderCounts]) -> Result<()> {
    let counted = answers::queue_counters(place.sender(0)?.at)?;
    let reported: u64 = counts.iter().map(|counts| counts.refused).sum();
    let refused = counted.refused.total;
    outcome.set(point, "refused_counted", refused as f64);
    outcome.set(point, "refused_miscounted", refused.abs_diff(reported) as f64);
    outcome.set(point, "dropped_late", counted.late as f64);
    Ok(())
}
