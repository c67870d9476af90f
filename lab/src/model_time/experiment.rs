// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One cell of a table: a medium, a number of stations, their limits, a seed. Output: the figures that the live lab
//! reports, by the same rules (srtt every half second of every connection; goodput at the receivers).

use anyhow::Result;
use strum::IntoStaticStr;

use super::connection::ConnectionPlan;
use super::world::{World, WorldOptions};
use crate::medium::rate::RateControl;
use crate::statistics::{jain, percentile};

const SAMPLE_NS: u64 = 500_000_000;
const STAGGER_S: f64 = 0.035;

#[derive(Clone, Copy, Debug, IntoStaticStr, PartialEq)]
#[strum(serialize_all = "kebab-case")]
pub enum RadioModel {
    Fixed54,
    Arf,
    ArfLossy,
    ArfClassic,
}

impl RadioModel {
    pub const ALL: [Self; 4] = [Self::Fixed54, Self::Arf, Self::ArfLossy, Self::ArfClassic];

    pub fn name(self) -> &'static str {
        self.into()
    }

    pub fn rate_control(self) -> RateControl {
        match self {
            Self::Fixed54 => RateControl::Fixed54,
            Self::Arf | Self::ArfLossy => RateControl::arf(),
            Self::ArfClassic => RateControl::arf_classic(),
        }
    }

    pub fn loss(self) -> f64 {
        if self == Self::ArfLossy { 0.04 } else { 0.0 }
    }
}

#[derive(Clone, Debug, Default)]
pub struct CellMeasurement {
    pub goodput_mbit: f64,
    /// By connection.
    pub shares_mbit: Vec<f64>,
    pub jain: f64,
    pub retransmits: f64,
    pub rtt_p50_ms: f64,
    pub rtt_p99_ms: f64,
    pub rtt_mean_ms: f64,
    pub segments: f64,
    /// Each half second, of each connection: Mbit/s and smoothed RTT.
    pub series: Vec<Vec<(f64, f64)>>,
}

/// The stations' connections, without limits.
pub fn cell(radio: RadioModel, stations: usize, rtt_ms: u64, seed: u64) -> WorldOptions {
    WorldOptions {
        stations,
        rate_control: radio.rate_control(),
        loss: radio.loss(),
        connections: (0..stations).map(|station| bulk(station, rtt_ms)).collect(),
        engines: vec![None; stations],
        steps: Vec::new(),
        seed,
    }
}

/// Programs do not start at the same moment.
pub fn bulk(station: usize, rtt_ms: u64) -> ConnectionPlan {
    ConnectionPlan {
        from_s: station as f64 * STAGGER_S,
        ..ConnectionPlan::bulk(station, rtt_ms)
    }
}

impl WorldOptions {
    /// The same cwnd clamp (segments), the same pacing rate (Mbit/s), or both, for every connection.
    pub fn limited(mut self, clamp: Option<u32>, pacing_mbit: Option<f64>) -> Self {
        for plan in &mut self.connections {
            (plan.clamp, plan.pacing_mbit) = (clamp, pacing_mbit);
        }
        self
    }

    /// Every station runs giveway with this configuration.
    pub fn managed(mut self, config: &str) -> Self {
        self.engines.fill(Some(config.to_owned()));
        self
    }
}

pub fn run(description: &WorldOptions, warmup_s: f64, seconds: f64) -> Result<CellMeasurement> {
    let mut world = World::new(description)?;
    Ok(run_world(&mut world, warmup_s, seconds))
}

pub fn run_world(world: &mut World, warmup_s: f64, seconds: f64) -> CellMeasurement {
    let delivered = |world: &World| -> Vec<u32> { world.connections.iter().map(|c| c.receiver.delivered()).collect() };
    let mbit = |segments: u32, s: f64| f64::from(segments) * super::packet::MSS_BYTES as f64 * 8.0 / 1e6 / s;
    let repeated = |world: &World| -> u32 {
        world
            .connections
            .iter()
            .flat_map(|c| &c.sender)
            .map(|s| s.retransmits)
            .sum()
    };
    world.run_until((warmup_s * 1e9) as u64);
    let (begin, repeated_before) = (delivered(world), repeated(world));
    let mut last = begin.clone();
    let mut rtts = Vec::new();
    let mut series = Vec::new();
    let samples = (seconds * 1e9) as u64 / SAMPLE_NS;
    for sample in 1..=samples {
        world.run_until((warmup_s * 1e9) as u64 + sample * SAMPLE_NS);
        let now = delivered(world);
        let row: Vec<_> = world
            .connections
            .iter()
            .zip(now.iter().zip(&last))
            .map(|(connection, (now, last))| {
                let rtt_ms = connection
                    .sender
                    .as_ref()
                    .map_or(0.0, |s| s.rtt.smoothed_ns as f64 / 1e6);
                (mbit(now - last, SAMPLE_NS as f64 / 1e9), rtt_ms)
            })
            .collect();
        rtts.extend(row.iter().map(|(_, rtt_ms)| *rtt_ms).filter(|rtt_ms| *rtt_ms > 0.0));
        series.push(row);
        last = now;
    }
    let shares_mbit: Vec<f64> = last
        .iter()
        .zip(&begin)
        .map(|(now, then)| mbit(now - then, seconds))
        .collect();
    CellMeasurement {
        goodput_mbit: shares_mbit.iter().sum(),
        jain: jain(&shares_mbit).unwrap_or_default(),
        retransmits: f64::from(repeated(world) - repeated_before),
        rtt_p50_ms: percentile(&rtts, 50.0).unwrap_or_default(),
        rtt_p99_ms: percentile(&rtts, 99.0).unwrap_or_default(),
        rtt_mean_ms: rtts.iter().sum::<f64>() / rtts.len().max(1) as f64,
        segments: f64::from(last.iter().zip(&begin).map(|(now, then)| now - then).sum::<u32>()),
        shares_mbit,
        series,
    }
}
