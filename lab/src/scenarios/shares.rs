// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies side by side in model time (`model_time`): plain TCP, the paper's fixed cap, the best equal cap and the
//! capacity found by the devices, over four radios and so many stations; then a radio whose rate changes, paths of
//! different length, a sender that wants little, and stations without giveway. It judges nothing: what it finds is to be
//! measured live.

use anyhow::Result;

use crate::access_point::{PAPER_CAPACITY_MBIT, PAPER_MARGIN_BYTES};
use crate::experiment::Run;
use crate::medium::rate::RateControl;
use crate::model_time::connection::Application;
use crate::model_time::experiment::{CellMeasurement, RadioModel, bulk, cell, run};
use crate::model_time::oracle::{best_equal_cap, bound_ms};
use crate::model_time::world::WorldOptions;
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Plan, Scenario, Variant};

pub const SCENARIO: Scenario = Scenario {
    name: "shares",
    about: "Policies for a shared capacity in model time: the real engine and a model of TCP on the emulated channel, by RADIO/STATIONS/POLICY",
    seconds: 40,
    warmup_s: 15,
    parameters: &[
        Parameter::list("stations", "2,3,5,8,12", "one cell each on every radio"),
        Parameter::range("rtt_ms", 256, 2, 2_000, "round trip behind the access point"),
    ],
    plan: &plan,
};

/// What limits the stations of a cell.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Plain,
    FixedCap,
    Oracle,
    /// The engine's policy "estimated", with this preference.
    Found(&'static str),
}

const POLICIES: [(&str, Policy); 6] = [
    ("plain", Policy::Plain),
    ("fixed-cap", Policy::FixedCap),
    ("oracle", Policy::Oracle),
    ("balanced", Policy::Found("balanced")),
    ("delay", Policy::Found("delay")),
    ("throughput", Policy::Found("throughput")),
];

impl Policy {
    /// `air`: where the oracle is asked.
    fn apply(self, cell: WorldOptions, radio: RadioModel, rtt_ms: u64) -> Result<WorldOptions> {
        let stations = cell.stations;
        Ok(match self {
            Self::Plain => cell,
            Self::FixedCap => cell.managed(&format!(
                "[cap]\ncapacity_mbit = {PAPER_CAPACITY_MBIT}\nmargin_bytes = {PAPER_MARGIN_BYTES}\nrtt_ms = {rtt_ms}\n"
            )),
            Self::Found(prefer) => cell.managed(&format!("[cap]\npolicy = \"estimated\"\nprefer = \"{prefer}\"\n")),
            Self::Oracle => cell.limited(best_equal_cap(radio, stations, rtt_ms)?, None),
        })
    }
}

/// Of a variant that is not about a steady cell: eight stations on `fixed54`.
const STATIONS: usize = 8;

/// The rate falls to 6 Mbit/s and rises again at these times.
const FALLS_S: f64 = 20.0;
const RISES_S: f64 = 40.0;
const STEP_ENDS_S: f64 = 60.0;

fn step_rate(seed: u64, rtt_ms: u64) -> WorldOptions {
    WorldOptions {
        steps: vec![(FALLS_S, RateControl::Fixed6), (RISES_S, RateControl::Fixed54)],
        ..cell(RadioModel::Fixed54, STATIONS, rtt_ms, seed)
    }
}

/// Four round-trip times, two stations each.
fn rtt_mix(seed: u64) -> WorldOptions {
    const RTTS_MS: [u64; 4] = [20, 60, 150, 300];
    let rtt_ms = |station: usize| RTTS_MS[station % RTTS_MS.len()];
    WorldOptions {
        connections: (0..STATIONS).map(|station| bulk(station, rtt_ms(station))).collect(),
        ..cell(RadioModel::Fixed54, STATIONS, RTTS_MS[0], seed)
    }
}

/// One station wants 0.5 Mbit/s, the others what they can get.
fn demand(seed: u64, rtt_ms: u64) -> WorldOptions {
    let mut cell = cell(RadioModel::Fixed54, STATIONS, rtt_ms, seed);
    cell.connections[0].application = Application::Rates(vec![(0.0, 0.5)]);
    cell
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let mut variants = Vec::new();
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let rtt_ms = parameters.count("rtt_ms");
    let estimated_s = (warmup_s + seconds) / 50.0;
    for radio in RadioModel::ALL {
        for stations in parameters.counts("stations")? {
            for (name, policy) in POLICIES {
                let act = move |of: &Run| {
                    let cell = policy.apply(cell(radio, stations as usize, rtt_ms, of.seed), radio, rtt_ms)?;
                    let mut outcome = outcome(of.name, &run(&cell, warmup_s, seconds)?);
                    let cap = cell.connections.first().and_then(|connection| connection.clamp);
                    outcome.set(of.name, "cap_segments", cap.map(f64::from));
                    Ok(outcome)
                };
                let name = format!("{}/{stations}/{name}", radio.name());
                variants.push(Variant::new(name, None, estimated_s, act));
            }
        }
    }
    for (name, policy) in POLICIES.into_iter().filter(|(_, policy)| *policy != Policy::Oracle) {
        let act = move |of: &Run| {
            let cell = policy.apply(step_rate(of.seed, rtt_ms), RadioModel::Fixed54, rtt_ms)?;
            Ok(follow(of.name, &run(&cell, 0.0, STEP_ENDS_S)?, rtt_ms as f64))
        };
        variants.push(Variant::new(format!("step-rate/{name}"), None, estimated_s, act));
        let mut steady = |what: &str, describe: fn(u64, u64) -> WorldOptions| {
            let act = move |of: &Run| {
                let cell = policy.apply(describe(of.seed, rtt_ms), RadioModel::Fixed54, rtt_ms)?;
                Ok(outcome(of.name, &run(&cell, warmup_s, seconds)?))
            };
            variants.push(Variant::new(format!("{what}/{name}"), None, estimated_s, act));
        };
        steady("rtt-mix", |seed, _| rtt_mix(seed));
        steady("demand", demand);
    }
    for radio in [RadioModel::Fixed54, RadioModel::ArfLossy] {
        for without_giveway in [1, 3, 5, 7] {
            for (name, policy) in [POLICIES[0], POLICIES[3]] {
                let act = move |of: &Run| {
                    let mut cell = policy.apply(cell(radio, STATIONS, rtt_ms, of.seed), radio, rtt_ms)?;
                    cell.engines[..without_giveway].fill(None);
                    Ok(beside(of.name, &run(&cell, warmup_s, seconds)?, without_giveway))
                };
                let name = format!("mixed/{}/{without_giveway}/{name}", radio.name());
                variants.push(Variant::new(name, None, estimated_s, act));
            }
        }
    }
    Ok(Plan {
        variants,
        checks: Vec::new(),
        plots: Vec::new(),
        columns: "goodput_mbit jain retransmits retransmits_percent rtt_p50_ms rtt_p99_ms cap_segments down_s up_s without_mbit with_mbit",
    })
}

fn outcome(point: &str, measured: &CellMeasurement) -> Outcome {
    let mut outcome = Outcome::default();
    for (metric, value) in [
        ("goodput_mbit", measured.goodput_mbit),
        ("jain", measured.jain),
        ("retransmits", measured.retransmits),
        (
            "retransmits_percent",
            100.0 * measured.retransmits / measured.segments.max(1.0),
        ),
        ("rtt_p50_ms", measured.rtt_p50_ms),
        ("rtt_p99_ms", measured.rtt_p99_ms),
        ("rtt_mean_ms", measured.rtt_mean_ms),
    ] {
        outcome.set(point, metric, value);
    }
    for (index, share_mbit) in measured.shares_mbit.iter().enumerate() {
        outcome.set(&format!("{point}/{}", index + 1), "goodput_mbit", *share_mbit);
    }
    outcome
}

/// What each station gets in the mean: the first ones, without giveway, and the others.
fn beside(point: &str, measured: &CellMeasurement, without_giveway: usize) -> Outcome {
    let mut outcome = outcome(point, measured);
    let (theirs, ours) = measured.shares_mbit.split_at(without_giveway);
    let mean = |shares: &[f64]| shares.iter().sum::<f64>() / shares.len().max(1) as f64;
    outcome.set(point, "without_mbit", mean(theirs));
    outcome.set(point, "with_mbit", mean(ours));
    outcome
}

/// How long after each step of the rate what was right before it is right again: on the way down the mean RTT within
/// its bound, on the way up 90% of what was moved before the first step.
fn follow(point: &str, measured: &CellMeasurement, rtt_ms: f64) -> Outcome {
    let mut outcome = outcome(point, measured);
    let seconds = |sample: usize| (sample + 1) as f64 / 2.0;
    let mean_rtt = |row: &[(f64, f64)]| row.iter().map(|(_, rtt_ms)| rtt_ms).sum::<f64>() / row.len() as f64;
    let total = |row: &[(f64, f64)]| row.iter().map(|(mbit, _)| mbit).sum::<f64>();
    let rows: Vec<_> = measured
        .series
        .iter()
        .enumerate()
        .map(|(at, row)| (seconds(at), row))
        .collect();
    let between = |from_s: f64, to_s: f64| rows.iter().filter(move |(at_s, _)| from_s < *at_s && *at_s <= to_s);
    let before: Vec<f64> = between(FALLS_S / 2.0, FALLS_S).map(|(_, row)| total(row)).collect();
    let before_mbit = before.iter().sum::<f64>() / before.len().max(1) as f64;
    // The last moment at which it was not.
    let too_long = between(FALLS_S, RISES_S).rfind(|(_, row)| mean_rtt(row) > bound_ms(rtt_ms));
    outcome.set(point, "down_s", too_long.map_or(0.0, |(at_s, _)| at_s - FALLS_S));
    let enough = between(RISES_S, STEP_ENDS_S).find(|(_, row)| total(row) >= 0.9 * before_mbit);
    outcome.set(point, "up_s", enough.map(|(at_s, _)| at_s - RISES_S));
    outcome
}
