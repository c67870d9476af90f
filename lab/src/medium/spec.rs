// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The emulator's input: one JSON object a line.
//!
//! Input: text from standard input. Output: a checked `Spec` (the first line) or `MediumCommand` (every later one), or
//! one line about the error. Opens and creates nothing.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::address::MAX_STATIONS;
use super::dcf;
use super::rate::RateControl;

const LOSS_OF_ARF_LOSSY: f64 = 0.04;
const MAX_RTT_MS: f64 = 60_000.0;
/// IFNAMSIZ less the terminating zero.
const MAX_DEVICE_NAME: usize = 15;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub stations: Vec<Attachment>,
    pub server: Attachment,
    pub medium: Preset,
    #[serde(default = "default_rtt_ms")]
    pub rtt_ms: f64,
    /// Of each station, in place of `rtt_ms`.
    #[serde(default)]
    pub rtts_ms: Vec<f64>,
    #[serde(default = "default_queue_packets")]
    pub queue_packets: usize,
    #[serde(default = "default_seed")]
    pub seed: u64,
}

/// A TAP to create: its name, and the namespace under /run/netns to create it in.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    pub netns: String,
    pub device: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    Fixed54,
    Fixed6,
    Arf,
    ArfLossy,
    ArfClassic,
    Fixed54Edca,
    ArfLossyEdca,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum MediumCommand {
    Stats {
        stats: bool,
    },
    Presence {
        station: usize,
        present: bool,
    },
    /// From now on every sender's rate control is that of this preset.
    Rates {
        rates: Preset,
    },
}

fn default_rtt_ms() -> f64 {
    256.0
}

fn default_queue_packets() -> usize {
    50
}

fn default_seed() -> u64 {
    1
}

impl Spec {
    pub fn parse(line: &str) -> Result<Self> {
        let spec: Self = serde_json::from_str(line).context("the first line is not a description of a medium")?;
        ensure!(
            (1..=MAX_STATIONS).contains(&spec.stations.len()),
            "stations: {} given, 1 to {MAX_STATIONS} possible",
            spec.stations.len()
        );
        for rtt_ms in spec.rtts_ms.iter().chain([&spec.rtt_ms]) {
            ensure!(
                (0.0..=MAX_RTT_MS).contains(rtt_ms),
                "rtt_ms, rtts_ms: {rtt_ms} is not within 0 and {MAX_RTT_MS}"
            );
        }
        ensure!(
            [0, spec.stations.len()].contains(&spec.rtts_ms.len()),
            "rtts_ms: {} given, and {} stations",
            spec.rtts_ms.len(),
            spec.stations.len()
        );
        ensure!(
            spec.queue_packets >= 1,
            "queue_packets: a queue of none can carry nothing"
        );
        spec.stations
            .iter()
            .chain([&spec.server])
            .try_for_each(Attachment::check)?;
        Ok(spec)
    }

    pub fn config(&self) -> dcf::Config {
        let shortest_ms = self.rtts_ms.iter().copied().reduce(f64::min).unwrap_or(self.rtt_ms);
        dcf::Config {
            stations: self.stations.len(),
            rate_control: self.medium.rate_control(),
            has_categories: self.medium.has_categories(),
            loss: match self.medium {
                Preset::ArfLossy | Preset::ArfLossyEdca => LOSS_OF_ARF_LOSSY,
                Preset::Fixed54 | Preset::Fixed6 | Preset::Arf | Preset::ArfClassic | Preset::Fixed54Edca => 0.0,
            },
            one_way_delay_ns: (shortest_ms * 1e6 / 2.0) as u64,
            longer_ns: self
                .rtts_ms
                .iter()
                .map(|rtt_ms| ((rtt_ms - shortest_ms) * 1e6) as u64)
                .collect(),
            queue_packets: self.queue_packets,
            seed: self.seed,
        }
    }
}

impl Preset {
    pub fn rate_control(self) -> RateControl {
        match self {
            Self::Fixed54 | Self::Fixed54Edca => RateControl::Fixed54,
            Self::Fixed6 => RateControl::Fixed6,
            Self::Arf | Self::ArfLossy | Self::ArfLossyEdca => RateControl::arf(),
            Self::ArfClassic => RateControl::arf_classic(),
        }
    }

    pub fn has_categories(self) -> bool {
        matches!(self, Self::Fixed54Edca | Self::ArfLossyEdca)
    }
}

impl Attachment {
    fn check(&self) -> Result<()> {
        let is_name = |text: &str| !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0']);
        ensure!(
            is_name(&self.netns),
            "netns: {:?} is not a name under /run/netns",
            self.netns
        );
        let fits =
            self.device.len() <= MAX_DEVICE_NAME && !self.device.contains(|c: char| c.is_whitespace() || c == '%');
        ensure!(
            is_name(&self.device) && fits,
            "device: {:?} is not an interface name",
            self.device
        );
        Ok(())
    }
}

impl MediumCommand {
    pub fn parse(line: &str, stations: usize) -> Result<Self> {
        let command = serde_json::from_str(line);
        match command {
            Ok(Self::Presence { station, .. }) => ensure!(
                station < stations,
                "station {station} is not one of the {stations}, which count from 0"
            ),
            Ok(Self::Stats { stats: true } | Self::Rates { .. }) => {}
            _ => bail!(
                "{line:?} is neither {{\"stats\":true}} nor {{\"station\":N,\"present\":BOOL}} nor {{\"rates\":MEDIUM}}"
            ),
        }
        Ok(command?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"stations":[{"netns":"a","device":"wlan0"}],"server":{"netns":"s","device":"eth0"},"medium":"arf-lossy"}"#;

    fn refusal(line: &str) -> String {
        format!("{:#}", Spec::parse(line).unwrap_err())
    }

    #[test]
    fn omitted_fields_have_the_papers_values() {
        let spec = Spec::parse(GOOD).unwrap();
        assert_eq!((spec.rtt_ms, spec.queue_packets, spec.seed), (256.0, 50, 1));
        assert_eq!(spec.config().one_way_delay_ns, 128_000_000);
        assert_eq!(spec.config().loss, LOSS_OF_ARF_LOSSY);
    }

    #[test]
    fn a_station_may_be_further_away_than_another() {
        let second = r#"},{"netns":"b","device":"wlan0"}],"rtts_ms":[300,20],"#;
        let config = Spec::parse(&GOOD.replace("}],", second)).unwrap().config();
        assert_eq!(config.one_way_delay_ns, 10_000_000);
        assert_eq!(config.longer_ns, [280_000_000, 0]);
    }

    #[test]
    fn a_wrong_value_is_named() {
        assert!(refusal(&GOOD.replace("arf-lossy", "fixed11")).contains("fixed11"));
        assert!(refusal(&GOOD.replace("wlan0", "a name far too long")).contains("device"));
        assert!(refusal(&GOOD.replace("\"s\"", "\"../s\"")).contains("netns"));
        assert!(refusal(&GOOD.replace("}],", "}],\"speed\":1,")).contains("speed"));
        assert!(refusal(&GOOD.replace("}],", "}],\"rtt_ms\":-1,")).contains("rtt_ms"));
        assert!(refusal(&GOOD.replace("}],", "}],\"queue_packets\":0,")).contains("queue_packets"));
        assert!(refusal(&GOOD.replace("}],", "}],\"rtts_ms\":[-1],")).contains("rtts_ms"));
        assert!(refusal(&GOOD.replace("}],", "}],\"rtts_ms\":[1,2],")).contains("rtts_ms"));
        assert!(refusal(r#"{"stations":[],"server":{"netns":"s","device":"e"},"medium":"arf"}"#).contains("stations"));
        refusal("");
        refusal("[1,2]");
    }

    #[test]
    fn commands_are_stats_presence_and_rates_and_nothing_else() {
        assert_eq!(
            MediumCommand::parse(r#"{"stats":true}"#, 2).unwrap(),
            MediumCommand::Stats { stats: true }
        );
        let gone = MediumCommand::Presence {
            station: 1,
            present: false,
        };
        assert_eq!(
            MediumCommand::parse(r#"{"station":1,"present":false}"#, 2).unwrap(),
            gone
        );
        let slow = MediumCommand::Rates { rates: Preset::Fixed6 };
        assert_eq!(MediumCommand::parse(r#"{"rates":"fixed6"}"#, 2).unwrap(), slow);
        for bad in [
            r#"{"station":2,"present":false}"#,
            r#"{"station":-1,"present":true}"#,
            r#"{"stats":false}"#,
            r#"{"stats":true,"station":1}"#,
            r#"{"rates":"fixed7"}"#,
            "{}",
            "x",
        ] {
            assert!(MediumCommand::parse(bad, 2).is_err(), "{bad}");
        }
    }
}
