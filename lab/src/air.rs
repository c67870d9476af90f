// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The medium emulator as a child process (`giveway-lab medium`, see docs/medium.md).
//! In: the namespaces to join and the kind of medium. Out: its counters, and stations taken off the
//! air or put back. Never touches a packet itself.

use std::io::{BufRead, BufReader, Write};
use std::ops::Sub;
use std::process::{ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;

use crate::namespace::Namespace;
use crate::process::Process;

pub const STATION_DEVICE: &str = "wlan0";
pub const SERVER_DEVICE: &str = "eth0";

pub struct Air {
    process: Process,
    answers: BufReader<ChildStdout>,
}

/// Totals since the medium began; two of them make a period.
#[derive(Clone, Copy, Default)]
pub struct Counters {
    pub elapsed_s: f64,
    pub busy_s: f64,
    pub attempts: f64,
    /// Transmissions (not events) that collided.
    pub collided: f64,
    /// What stations tell each other, which is giveway's reports alone: both legs of broadcasts, to the access
    /// point and repeated by it, and of frames to one station.
    pub reports_s: f64,
    pub lateness_p99_us: f64,
}

#[derive(Deserialize)]
struct Answer {
    elapsed_s: f64,
    busy_s: f64,
    stations: Vec<Sender>,
    ap: Sender,
    broadcast: Broadcast,
    between_stations_airtime_s: f64,
    lateness_us: Lateness,
}

#[derive(Deserialize)]
struct Sender {
    attempts: f64,
    collisions: f64,
}

#[derive(Deserialize)]
struct Broadcast {
    uplink_airtime_s: f64,
    repeat_airtime_s: f64,
}

#[derive(Deserialize)]
struct Lateness {
    p99: f64,
}

impl Air {
    pub fn start(stations: &[Namespace], server: &Namespace, medium: &str, rtt_ms: u64, seed: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("medium").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command)?;
        let answers = process.pipes().stdout.take().context("the medium has no output")?;
        let mut air = Self {
            process,
            answers: BufReader::new(answers),
        };
        let joins = |namespace: &Namespace, device| json!({"netns": namespace.name(), "device": device});
        let stations: Vec<_> = stations.iter().map(|s| joins(s, STATION_DEVICE)).collect();
        let ready = air.ask(&json!({
            "stations": stations,
            "server": joins(server, SERVER_DEVICE),
            "medium": medium,
            "rtt_ms": rtt_ms,
            "seed": seed,
        }))?;
        if !ready.contains("ready") {
            bail!("the medium said {ready:?} instead of being ready");
        }
        Ok(air)
    }

    pub fn counters(&mut self) -> Result<Counters> {
        let line = self.ask(&json!({"stats": true}))?;
        Counters::parse(&line)
    }

    /// Takes a station (counted from 0) off the air or puts it back.
    pub fn set_present(&mut self, station: usize, present: bool) -> Result<()> {
        self.tell(&json!({"station": station, "present": present}))
    }

    fn ask(&mut self, line: &serde_json::Value) -> Result<String> {
        self.tell(line)?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() {
            bail!("the medium emulator ended; what it said is above");
        }
        Ok(answer)
    }

    fn tell(&mut self, line: &serde_json::Value) -> Result<()> {
        let to = self
            .process
            .pipes()
            .stdin
            .as_mut()
            .context("the medium's input is closed")?;
        writeln!(to, "{line}").context("the medium emulator does not listen any more")
    }

    /// Lets the emulator live on (KEEP=1): a sleeping process holds its input open.
    pub fn stay(&mut self) -> Result<Vec<i32>> {
        let input = self
            .process
            .pipes()
            .stdin
            .take()
            .context("the medium's input is closed")?;
        let mut command = Command::new("sleep");
        command.arg("infinity").stdout(Stdio::from(input));
        let mut holder = Process::spawn(command)?;
        Ok(vec![holder.stay(), self.process.stay()])
    }
}

impl Counters {
    fn parse(line: &str) -> Result<Self> {
        let answer: Answer = serde_json::from_str(line)
            .with_context(|| format!("the medium's counters are not readable: {}", line.trim()))?;
        let senders = || answer.stations.iter().chain([&answer.ap]);
        Ok(Self {
            elapsed_s: answer.elapsed_s,
            busy_s: answer.busy_s,
            attempts: senders().map(|sender| sender.attempts).sum(),
            collided: senders().map(|sender| sender.collisions).sum(),
            reports_s: answer.broadcast.uplink_airtime_s
                + answer.broadcast.repeat_airtime_s
                + answer.between_stations_airtime_s,
            lateness_p99_us: answer.lateness_us.p99,
        })
    }

    pub fn report_airtime_percent(&self) -> f64 {
        percent(self.reports_s, self.elapsed_s)
    }

    pub fn collisions_percent(&self) -> f64 {
        percent(self.collided, self.attempts)
    }

    pub fn busy_percent(&self) -> f64 {
        percent(self.busy_s, self.elapsed_s)
    }
}

impl Sub for Counters {
    type Output = Counters;

    /// The period from `earlier` to `self`; lateness stays that of the whole.
    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            elapsed_s: self.elapsed_s - earlier.elapsed_s,
            busy_s: self.busy_s - earlier.busy_s,
            attempts: self.attempts - earlier.attempts,
            collided: self.collided - earlier.collided,
            reports_s: self.reports_s - earlier.reports_s,
            lateness_p99_us: self.lateness_p99_us,
        }
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}
