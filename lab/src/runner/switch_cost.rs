// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a switch to packet work costs (P0, table 1).
//! In: who works on the packets, and how many there are. Out: instructions, from a process of its own (`trial`) in a
//! namespace with a pair of devices. Needs virtual time: one nanosecond is one instruction.

pub mod trial;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Run;
use crate::guest::Clock;
use crate::interrupt::pause_until;
use crate::namespace::{Namespace, ip};
use crate::outcome::{Metrics, Outcome};
use crate::process;
use crate::scenario::switch_cost::{SwitchCost, Worker};
use crate::uplink::queue::work_in_threads;
use trial::{FROM, NETWORK, SENDER, TAKER, TO};

pub fn run(cost: &SwitchCost, run: &Run) -> Result<Outcome> {
    let is_virtual = run.variant.guest.is_some_and(|guest| guest.clock == Clock::Virtual);
    ensure!(is_virtual, "instructions are counted in virtual time only");
    let place = Namespace::create("switch")?;
    wire(&place)?;
    if cost.to == Worker::NapiThread {
        work_in_threads(&place, TO)?;
    }
    run.progress.tick("warming up");
    pause_until(Instant::now() + Duration::from_secs_f64(cost.warmup_s))?;
    run.progress.tick("handing packets over");
    let mut trial = place.command(std::env::current_exe()?)?;
    trial.arg("hand-over").args(trial::Trial::of(cost).arguments());
    let said = process::run(trial)?.stdout;
    let metrics: Metrics = serde_json::from_slice(&said).context("the trial's answer is not readable")?;
    let mut outcome = Outcome::default();
    for (metric, value) in &metrics {
        outcome.set(&run.variant.name, metric, *value);
    }
    Ok(outcome)
}

/// What goes into the one end comes to the other, through NAPI as in a real device.
fn wire(place: &Namespace) -> Result<()> {
    let at = |words: &str| {
        let words: Vec<_> = ["-n", place.name()].into_iter().chain(words.split(' ')).collect();
        process::run(ip(&words))
    };
    at(&format!("link add {FROM} type veth peer name {TO}"))?;
    for end in [FROM, TO] {
        at(&format!("link set {end} up"))?;
    }
    at(&format!("address add {SENDER}/{NETWORK} dev {FROM}"))?;
    // Whose address it is does not matter: nothing gets that far.
    at(&format!(
        "neighbour replace {TAKER} lladdr 02:00:00:00:00:01 dev {FROM} nud permanent"
    ))?;
    // Only then does a pair of devices work through NAPI, and not through the backlog.
    for (end, feature, state) in [(FROM, "tso", "off"), (TO, "gro", "on")] {
        let mut feature_of = place.command("ethtool")?;
        feature_of.args(["-K", end, feature, state]);
        process::run(feature_of)?;
    }
    Ok(())
}
