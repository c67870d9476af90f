// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The medium emulator as a child process (`giveway-lab medium`, see docs/contributing/medium.md). Input: the namespaces to join and
//! the kind of medium. Output: its counters; stations can be removed and restored. Never touches a packet itself.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::access_point::AccessPoint;
use crate::medium::report::{MediumReport, SenderCounters};
use crate::namespace::Namespace;
use crate::role::Role;

pub const STATION_DEVICE: &str = "wlan0";
pub const SERVER_DEVICE: &str = "eth0";
pub const SERVER_ADDRESS: &str = "10.77.0.254";

pub struct Channel(Role);

/// The difference between two readings of the counters.
pub struct ChannelInterval<'a> {
    pub begin: &'a MediumReport,
    pub end: &'a MediumReport,
}

impl Channel {
    pub fn start(stations: &[Namespace], server: &Namespace, access_point: &AccessPoint, seed: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("medium");
        let mut channel = Self(Role::run("medium", command)?);
        let joins = |namespace: &Namespace, device| json!({"netns": namespace.name(), "device": device});
        let stations: Vec<_> = stations.iter().map(|s| joins(s, STATION_DEVICE)).collect();
        let mut medium = json!({
            "stations": stations,
            "server": joins(server, SERVER_DEVICE),
            "medium": access_point.medium,
            "rtts_ms": access_point.rtts_ms(),
            "seed": seed,
        });
        if let Some(packets) = access_point.queue_packets {
            medium["queue_packets"] = packets.into();
        }
        let answer: Value = channel.0.ask(medium)?;
        ensure!(answer["ready"] == true, "the medium is not ready");
        Ok(channel)
    }

    pub fn counters(&mut self) -> Result<MediumReport> {
        self.0.ask(json!({"stats": true}))
    }

    /// Removes a station (counted from 0) from the channel, or restores it.
    pub fn set_present(&mut self, station: usize, present: bool) -> Result<()> {
        self.0.send_line(json!({"station": station, "present": present}))
    }

    /// From now on every sender's rate control is that of this medium.
    pub fn set_rates(&mut self, medium: &str) -> Result<()> {
        self.0.send_line(json!({"rates": medium}))
    }

    pub fn stay(&mut self) -> Result<[i32; 2]> {
        self.0.stay()
    }
}

impl ChannelInterval<'_> {
    fn percent(&self, part: impl Fn(&MediumReport) -> u64, whole: impl Fn(&MediumReport) -> u64) -> f64 {
        match whole(self.end) - whole(self.begin) {
            0 => 0.0,
            whole => 100.0 * (part(self.end) - part(self.begin)) as f64 / whole as f64,
        }
    }

    /// Traffic between stations, which is giveway's reports alone: both legs of broadcasts, to the access point and
    /// repeated by it, and of frames to one station.
    pub fn report_airtime_percent(&self) -> f64 {
        let reports_ns = |MediumReport { channel, .. }: &MediumReport| {
            channel.broadcast.uplink_airtime_ns
                + channel.broadcast.repeat_airtime_ns
                + channel.between_stations_airtime_ns
        };
        self.percent(reports_ns, |report| report.elapsed_ns)
    }

    /// Per transmission, not per event.
    pub fn collisions_percent(&self) -> f64 {
        let sum = |report: &MediumReport, of: fn(&SenderCounters) -> u64| {
            let senders = report.stations.iter().chain([&report.ap]);
            senders.map(|sender| of(&sender.counters)).sum()
        };
        self.percent(
            |r| sum(r, |sender| sender.collisions),
            |r| sum(r, |sender| sender.attempts),
        )
    }

    pub fn busy_percent(&self) -> f64 {
        self.percent(|report| report.channel.busy_ns, |report| report.elapsed_ns)
    }
}
