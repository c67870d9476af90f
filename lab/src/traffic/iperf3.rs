// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Goodput by Debian's iperf3: one server and one client per transfer.
//! Input: which station sends from when to when, or is sent to. Output: per half second, what was received and
//! what the sender's socket showed. Times are seconds since the traffic of the variant began.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde::Deserialize;

use crate::interrupt::wait_for;
use crate::namespace::Namespace;
use crate::process::Process;

/// More would not fit one frame beside the headers (lab-wide MTU 1500).
const PAYLOAD_BYTES: f64 = 1448.0;
/// Together well above what the air can carry (25 Mbit/s), so that every station is saturated.
const UDP_OFFERED_MBIT: f64 = 60.0;
/// A transfer that lasts to the end goes on a little: connections come up one after the other, and
/// the last one must not have the air to itself at its end.
const TAIL_S: f64 = 3.0;
/// The ends tell each other in so many round trips.
const TOLD_ROUNDS: f64 = 2.0;
const FIRST_PORT: u16 = 5201;
const END_LIMIT: Duration = Duration::from_secs(60);
const ASKED_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// One station's transfer, in seconds since the traffic began.
#[derive(Clone, Copy, Default)]
pub struct Span {
    pub station: usize,
    pub from_s: f64,
    pub to_s: f64,
    /// What the program offers by TCP; else as much as it can.
    pub mbit: Option<f64>,
    /// TCP's congestion control; else CUBIC.
    pub congestion: Option<&'static str>,
    /// The remote host sends, and the station receives.
    pub down: bool,
}

/// A transfer under way.
pub struct Running {
    pub span: Span,
    pub port: u16,
    protocol: Protocol,
    server: Process,
    client: Option<(Process, SystemTime)>,
    at_server: PathBuf,
    at_client: PathBuf,
}

/// What became of one transfer.
pub struct Iperf3Flow {
    pub station: usize,
    /// Its part of the variant's time.
    pub from_s: f64,
    pub to_s: f64,
    pub received: Vec<Interval>,
    pub sent: Vec<Interval>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Interval {
    pub start: f64,
    pub end: f64,
    pub bytes: f64,
    pub retransmits: f64,
    #[serde(rename = "snd_cwnd")]
    pub cwnd_bytes: f64,
    #[serde(rename = "rtt")]
    pub rtt_us: f64,
}

#[derive(Deserialize)]
struct Iperf3Report {
    error: Option<String>,
    #[serde(default)]
    intervals: Vec<Streams>,
}

#[derive(Deserialize)]
struct Streams {
    #[serde(default)]
    streams: Vec<Interval>,
}

impl Running {
    /// Starts the server side, before the traffic begins; what both sides see goes to files that begin with `stem`.
    pub fn prepare(server: &Namespace, span: &Span, protocol: Protocol, stem: &Path) -> Result<Self> {
        let port = FIRST_PORT + span.station as u16;
        let file = |what| PathBuf::from(format!("{}.{what}.json", stem.display()));
        let (received, sent) = (file("received"), file("sent"));
        let (at_server, at_client) = if span.down { (sent, received) } else { (received, sent) };
        let mut command = server.command("iperf3")?;
        command.args(["-s", "-1", "-J", "-i", "0.5", "-p", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(File::create(&at_server)?);
        Ok(Self {
            span: *span,
            protocol,
            port,
            server: Process::spawn(command)?,
            client: None,
            at_server,
            at_client,
        })
    }

    /// `senders` share what is offered by UDP; `until_s`: when the variant's measured time ends.
    pub fn start(&mut self, at: &Namespace, far: Ipv4Addr, senders: usize, until_s: f64) -> Result<()> {
        let mut command = at.command("iperf3")?;
        let port = self.port.to_string();
        let Span { from_s, to_s, mbit, .. } = self.span;
        let tail_s = if to_s >= until_s { TAIL_S } else { 0.0 };
        let length = (to_s - from_s + tail_s).ceil().to_string();
        let far = far.to_string();
        command.args(["-c", &far, "-p", &port, "-t", &length, "-J", "-i", "0.5"]);
        if self.span.down {
            command.arg("-R");
        }
        match self.protocol {
            Protocol::Tcp => {
                let offered = mbit.map(|mbit| format!("{:.0}K", mbit * 1000.0));
                command
                    .args(["-C", self.span.congestion.unwrap_or("cubic")])
                    .args(offered.iter().flat_map(|rate| ["-b", rate]))
            }
            Protocol::Udp => {
                let offered = format!("{:.0}K", UDP_OFFERED_MBIT * 1000.0 / senders as f64);
                command.args(["-u", "-l", "1448", "-b", &offered])
            }
        };
        command.stdin(Stdio::null()).stdout(File::create(&self.at_client)?);
        self.client = Some((Process::spawn(command)?, SystemTime::now()));
        Ok(())
    }

    /// Waits for both ends and reads what they saw.
    pub fn finish(mut self) -> Result<Iperf3Flow> {
        let Span {
            station,
            from_s,
            to_s,
            down,
            ..
        } = self.span;
        let (client, began) = self.client.as_mut().context("the transfer was never started")?;
        let began = *began;
        let deadline = Instant::now() + END_LIMIT;
        let mut was_asked = false;
        for (end, process) in [("client", client), ("server", &mut self.server)] {
            let what = format!("the iperf3 {end} of station {} to end", station + 1);
            let left = deadline.saturating_duration_since(Instant::now());
            if wait_for(&what, left, || process.exit()).is_err() {
                // Where plain TCP starves it, a client may go on for minutes. Asked to end, it reports what it has.
                process.signal(Signal::SIGINT)?;
                was_asked = true;
                wait_for(&what, ASKED_LIMIT, || process.exit())?;
            }
        }
        let [at_server, at_client] =
            [&self.at_server, &self.at_client].map(|file| read(file, began, was_asked, to_s - from_s));
        let (received, sent) = if down {
            (at_client?, at_server?)
        } else {
            (at_server?, at_client?)
        };
        let rtts_s = sent.0.iter().map(|interval| interval.rtt_us / 1e6);
        let least_rtt_s = rtts_s.filter(|rtt_s| *rtt_s > 0.0).reduce(f64::min).unwrap_or(0.0);
        let [received, sent] =
            [received, sent].map(|(seen, took_s)| placed(seen, from_s, took_s - TOLD_ROUNDS * least_rtt_s));
        Ok(Iperf3Flow {
            station,
            from_s,
            to_s,
            received,
            sent,
        })
    }
}

/// What one end saw, and how long after the client was started it reported that.
fn read(file: &PathBuf, began: SystemTime, was_asked: bool, length_s: f64) -> Result<(Vec<Interval>, f64)> {
    let text = std::fs::read_to_string(file)?;
    let written = std::fs::metadata(file)?.modified()?;
    let took_s = written.duration_since(began).map_or(0.0, |took| took.as_secs_f64());
    let seen = parse(&text, was_asked, length_s).with_context(|| format!("iperf3's report {}", file.display()))?;
    Ok((seen, took_s))
}

/// An error after the time that counts loses nothing, nor that of a transfer that was asked to end.
fn parse(text: &str, was_asked: bool, length_s: f64) -> Result<Vec<Interval>> {
    let report: Iperf3Report = serde_json::from_str(text).context("is not readable")?;
    let streams = report.intervals.into_iter().flat_map(|interval| interval.streams);
    let intervals: Vec<Interval> = streams.collect();
    let is_whole = was_asked || intervals.iter().any(|interval| interval.end >= length_s);
    match report.error {
        Some(error) if !is_whole => bail!("says: {error}"),
        _ => Ok(intervals),
    }
}

/// In the variant's time. iperf3 counts from when its connections were there. Where the access point's queue is full that takes
/// up to half a minute (SYNs are lost), and by its own time such a transfer would be measured after all others have ended.
/// `ended_s`: when it ended, after it was started.
fn placed(mut seen: Vec<Interval>, from_s: f64, ended_s: f64) -> Vec<Interval> {
    let late_s = seen.last().map_or(0.0, |last| (ended_s - last.end).max(0.0));
    for interval in &mut seen {
        interval.start += from_s + late_s;
        interval.end += from_s + late_s;
    }
    seen
}

impl Iperf3Flow {
    /// Mbit/s that were received in its part of the window.
    pub fn goodput_mbit(&self, from_s: f64, to_s: f64) -> f64 {
        let (from_s, to_s) = (from_s.max(self.from_s), to_s.min(self.to_s));
        if to_s <= from_s {
            return 0.0;
        }
        let bytes: f64 = self
            .received
            .iter()
            .map(|i| i.bytes * i.part_within(from_s, to_s))
            .sum();
        bytes * 8.0 / 1e6 / (to_s - from_s)
    }

    pub fn retransmits(&self, from_s: f64, to_s: f64) -> f64 {
        self.sent_within(from_s, to_s)
            .map(|interval| interval.retransmits)
            .sum()
    }

    /// As many as it takes to carry what was received, without what was sent again.
    pub fn segments(&self, from_s: f64, to_s: f64) -> f64 {
        let bytes = self.received.iter().map(|i| i.bytes * i.part_within(from_s, to_s));
        bytes.sum::<f64>() / PAYLOAD_BYTES
    }

    pub fn rtts_ms(&self, from_s: f64, to_s: f64) -> impl Iterator<Item = f64> {
        let rtts = self.sent_within(from_s, to_s).map(|interval| interval.rtt_us / 1000.0);
        rtts.filter(|rtt| *rtt > 0.0)
    }

    /// Intervals that end within the window.
    fn sent_within(&self, from_s: f64, to_s: f64) -> impl Iterator<Item = &Interval> {
        self.sent.iter().filter(move |i| i.end > from_s && i.end <= to_s)
    }
}

impl Interval {
    fn part_within(&self, from_s: f64, to_s: f64) -> f64 {
        let length = self.end - self.start;
        let within = self.end.min(to_s) - self.start.max(from_s);
        if length > 0.0 { (within / length).max(0.0) } else { 0.0 }
    }

    pub fn mbit(&self) -> f64 {
        let length = self.end - self.start;
        if length > 0.0 {
            self.bytes * 8.0 / 1e6 / length
        } else {
            0.0
        }
    }

    pub fn cwnd_segments(&self) -> f64 {
        self.cwnd_bytes / PAYLOAD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Iperf3Flow {
        let interval = |n: u32| Interval {
            start: f64::from(n) * 0.5,
            end: f64::from(n + 1) * 0.5,
            bytes: 62_500.0 * f64::from(n),
            retransmits: 1.0,
            ..Interval::default()
        };
        let intervals: Vec<_> = (0..8).map(interval).collect();
        Iperf3Flow {
            station: 0,
            from_s: 0.0,
            to_s: 4.0,
            received: intervals.clone(),
            sent: intervals,
        }
    }

    #[test]
    fn goodput_counts_only_the_window() {
        // Intervals 2 and 3 carry 125 and 187.5 kB in one second.
        assert_eq!(flow().goodput_mbit(1.0, 2.0), 2.5);
        assert_eq!(flow().goodput_mbit(9.0, 10.0), 0.0);
    }

    #[test]
    fn an_interval_across_the_edge_counts_in_part() {
        assert_eq!(flow().goodput_mbit(0.75, 1.25), 1.5);
    }

    #[test]
    fn retransmits_belong_to_the_interval_that_ends_in_the_window() {
        assert_eq!(flow().retransmits(1.0, 2.0), 2.0);
    }

    #[test]
    fn iperf3_intervals_are_shifted_to_the_variants_time() {
        let text = r#"{"intervals":[{"streams":[{"start":0,"end":0.5,"bytes":1448,"snd_cwnd":14480,"rtt":256000}],
            "sum":{"bytes":1448}}]}"#;
        let seen = parse(text, false, 0.5).expect("readable");
        let intervals = placed(seen.clone(), 60.0, 0.4);
        assert_eq!((intervals[0].start, intervals[0].end), (60.0, 60.5));
        assert_eq!(intervals[0].cwnd_segments(), 10.0);
        // Of 9.5 s its connections took nine.
        let late = placed(seen, 60.0, 9.5);
        assert_eq!((late[0].start, late[0].end), (69.0, 69.5));
    }

    #[test]
    fn an_error_of_iperf3_is_passed_on() {
        let said = parse(r#"{"error":"unable to connect"}"#, false, 10.0)
            .err()
            .expect("refused");
        assert!(said.to_string().contains("unable to connect"));
        assert!(parse("", false, 10.0).is_err());
    }

    #[test]
    fn error_after_the_measured_time_is_ignored() {
        let text =
            r#"{"intervals":[{"streams":[{"start":0,"end":0.5,"bytes":1448}],"sum":{"bytes":1448}}],"error":"late"}"#;
        assert!(parse(text, false, 0.5).is_ok());
        // It broke; but for one that was asked to end.
        assert!(parse(text, false, 1.0).is_err());
        assert!(parse(text, true, 1.0).is_ok());
    }
}
