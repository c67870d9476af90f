// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packets with deadlines beside an upload, behind a modem whose rate nobody has told: on a link of one rate and on one that
//! moves within seconds. Late is what arrives at the remote host after its deadline, or never though it was not refused.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::super::modem_queue::start_queue;
use crate::experiment::{Run, pause};
use crate::giveway::answers;
use crate::guest::Guest;
use crate::modem::{FAR_ADDRESS, LEAST_MBIT, Modem, ModemLink};
use crate::outcome::Outcome;
use crate::role::Role;
use crate::scenario::{Check, Relation, Variant};
use crate::traffic::endless::{start_observed_sender, start_sink};
use crate::traffic::realtime::monotonic_ns;
use crate::traffic::realtime::receiver::Delivered;
use crate::traffic::realtime::sender::{DeadlineFlow, SenderCounts};

const GUEST: Guest = Guest::VIRTUAL;
const RTT_MS: u64 = 60;
const UPLOAD: u16 = 5_501;
/// Until the rate is found, and was for as long as it is promised by.
const WARMUP_S: f64 = 25.0;
/// Of packets with deadlines.
const SECONDS: f64 = 60.0;
const DRAINS_S: f64 = 3.0;
/// What giveway states: the rate and the wait below hold for nine tenths of the time.
const CONFIDENCE_PERCENT: f64 = 90.0;
const STEADY_MBIT: f64 = 10.0;
/// Every so often so many packets of 1,442 bytes, due so much later: a control loop, and a camera.
const FLOWS: [(u64, u64, u64); 2] = [(20_000, 1, 60_000), (100_000, 4, 250_000)];

#[derive(Clone, Copy, PartialEq)]
enum Rate {
    /// giveway is told it; on the trace the least.
    Configured,
    Estimated,
}

const LINKS: [(&str, ModemLink); 2] = [("10", ModemLink::Steady(STEADY_MBIT)), ("trace", ModemLink::Trace)];
const RATES: [(&str, Rate); 2] = [("configured", Rate::Configured), ("auto", Rate::Estimated)];

pub fn variants() -> Vec<Variant> {
    let variant = |(link_name, link): (&str, ModemLink), (how, rate): (&str, Rate)| {
        let run = move |run: &Run| experiment(run, link, rate);
        Variant::new(format!("{how}/{link_name}"), Some(GUEST), WARMUP_S + SECONDS, run)
    };
    let on = |link| RATES.map(|rate| variant(link, rate));
    LINKS.into_iter().flat_map(on).collect()
}

pub fn bounds() -> Vec<Check> {
    let mut checks = Vec::new();
    for (link, _) in LINKS {
        for (how, rate) in RATES {
            let name = format!("{how}/{link}");
            for metric in ["refused_miscounted", "promised_miscounted"] {
                checks.push(Check::metric(&name, metric, Relation::Exactly(0.0)).always());
            }
            if rate == Rate::Estimated {
                let late = Relation::AtMost(100.0 - CONFIDENCE_PERCENT);
                checks.push(Check::metric(&name, "late_percent", late));
            }
        }
    }
    // A promise that is hardly ever given is none.
    let steady = Check::metric("auto/10", "promised_percent", Relation::AtLeast(95.0));
    let varying = Check::metric("auto/trace", "promised_percent", Relation::AtLeast(50.0)).goal();
    checks.extend([steady, varying]);
    checks
}

fn experiment(run: &Run, link: ModemLink, rate: Rate) -> Result<Outcome> {
    let end_s = WARMUP_S + SECONDS + DRAINS_S;
    let modem = Modem::raise(None, RTT_MS, link, (run.seed, end_s))?;
    let rate: Value = match (rate, link) {
        (Rate::Estimated, _) => json!("auto"),
        (Rate::Configured, ModemLink::Steady(mbit)) => json!(mbit),
        (Rate::Configured, _) => json!(LEAST_MBIT),
    };
    let mut daemon = start_queue(&modem, rate, run)?;
    let _sink = start_sink(&modem.far, &[UPLOAD])?;
    let receiver = Role::start(&modem.far, "realtime-receiver", &())?;
    let begun = Instant::now();
    let _upload = start_observed_sender(&modem.device, FAR_ADDRESS, UPLOAD, "cubic")?;
    run.progress.tick("estimating the rate");
    modem.pass(begun, 0.0, WARMUP_S)?;
    run.progress.tick("packets with deadlines");
    let first_ns = monotonic_ns()? + 200_000_000;
    let send = |(number, (every_us, burst, deadline_us)): (usize, (u64, u64, u64))| {
        let flow = DeadlineFlow {
            flow: number as u32,
            packets: (SECONDS * 1e6) as u64 / every_us * burst,
            burst,
            every_ns: every_us * 1_000,
            first_ns,
            deadline_us: (deadline_us, deadline_us),
            to: Some(FAR_ADDRESS.into()),
            ..DeadlineFlow::default()
        };
        Role::spawn(&modem.device, "realtime-sender", &flow)
    };
    let senders: Vec<_> = FLOWS.into_iter().enumerate().map(send).collect::<Result<_>>()?;
    modem.pass(begun, WARMUP_S, WARMUP_S + SECONDS)?;
    let counts: Vec<SenderCounts> = senders.into_iter().map(Role::finish).collect::<Result<_>>()?;
    pause(DRAINS_S)?;
    let counted = answers::queue_counters(&modem.device)?;
    let delivered: Vec<Delivered> = receiver.finish()?;
    run.keep(&json!({"counts": counts, "delivered": delivered}))?;
    daemon.stop()?;
    let mut outcome = Outcome::default();
    let (mut all, mut all_in_time) = (SenderCounts::default(), 0);
    for (number, counts) in counts.iter().enumerate() {
        let in_time = delivered.iter().filter(|packet| packet.flow == number as u32);
        let in_time = in_time.filter(|packet| packet.at_ns <= packet.deadline_ns).count() as u64;
        describe(&mut outcome, &format!("{}/{}", run.name, number + 1), *counts, in_time);
        (all.sent, all.refused) = (all.sent + counts.sent, all.refused + counts.refused);
        all_in_time += in_time;
    }
    describe(&mut outcome, run.name, all, all_in_time);
    // What was promised is what giveway says that it promised, and not what it did not refuse.
    for (metric, counted, told) in [
        ("refused_miscounted", counted.refused.total, all.refused),
        ("promised_miscounted", counted.admitted, all.sent - all.refused),
    ] {
        outcome.set(run.name, metric, counted.abs_diff(told) as f64);
    }
    Ok(outcome)
}

fn describe(outcome: &mut Outcome, point: &str, counts: SenderCounts, in_time: u64) {
    let promised = counts.sent - counts.refused;
    let late = promised.saturating_sub(in_time) as f64;
    outcome.set(point, "sent", counts.sent as f64);
    outcome.set(point, "refused_notified", counts.refused as f64);
    outcome.set(point, "late", late);
    outcome.set(point, "late_percent", 100.0 * late / promised.max(1) as f64);
    let promised_percent = 100.0 * promised as f64 / counts.sent.max(1) as f64;
    outcome.set(point, "promised_percent", promised_percent);
}
