// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model in real time: TAPs on one side, the clock on the other.
//!
//! Input: frames from the TAPs and lines from standard input. Output: frames to the TAPs at the model's times, and
//! lines on standard output. Sleeps between events, and never lets its own lateness reach the model.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::Malformed;
use super::address::{Port, mac_of};
use super::dcf::{Medium, Release};
use super::lines::Lines;
use super::report::{self, Lateness};
use super::spec::{MediumCommand, Spec};
use super::tap::{FRAME_ROOM, MAX_FRAME, Tap};

/// How many frames one TAP may hand over before the others and the clock get their turn.
const FRAMES_A_TURN: usize = 64;

/// The least sleep. Waking up costs more than the work: without a rest the driver takes 24% of a core at eight
/// stations, with it 9%. It delays deliveries, never the channel.
const REST: Duration = Duration::from_micros(400);

pub struct Driver {
    medium: Medium,
    /// One per station, then the server's.
    taps: Vec<Tap>,
    names: Vec<String>,
    started: Instant,
    releases: Vec<Release>,
    lateness: Lateness,
    /// Frames that a TAP refused, as it does while its link is down.
    refused: u64,
    buffer: [u8; FRAME_ROOM],
}

impl Driver {
    pub fn new(spec: &Spec) -> Result<Self> {
        let stations = spec
            .stations
            .iter()
            .enumerate()
            .map(|(index, at)| (Port::Station(index), at));
        let mut taps = Vec::new();
        let mut names = Vec::new();
        for (port, at) in stations.chain([(Port::Server, &spec.server)]) {
            let mac = mac_of(port).context("too many stations")?;
            // Frames from the server have only their DSCP.
            let marks = spec.medium.has_categories() && port != Port::Server;
            taps.push(Tap::create(at, mac, marks)?);
            names.push(format!("{} in the namespace {}", at.device, at.netns));
        }
        Ok(Self {
            medium: Medium::new(spec.config()),
            taps,
            names,
            started: Instant::now(),
            releases: Vec::new(),
            lateness: Lateness::new()?,
            refused: 0,
            buffer: [0; FRAME_ROOM],
        })
    }

    /// Runs until standard input ends.
    pub fn run(mut self, mut commands: Lines) -> Result<()> {
        say(r#"{"ready":true}"#)?;
        self.obey(&mut commands, true)?;
        loop {
            thread::sleep(REST);
            let (ready_taps, commands_ready) = self.wait(&commands)?;
            self.poll_time();
            for tap in ready_taps {
                self.take_frames(tap)?;
            }
            if commands_ready {
                let open = commands.read_some()?;
                self.obey(&mut commands, open)?;
                if !open {
                    return self.say_stats();
                }
            }
        }
    }

    /// Sleeps until a TAP or the caller has input, or the next frame is due.
    fn wait(&self, commands: &Lines) -> Result<(Vec<usize>, bool)> {
        let mut polled: Vec<PollFd> = self
            .taps
            .iter()
            .map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN))
            .collect();
        polled.push(PollFd::new(commands.as_fd(), PollFlags::POLLIN));
        let now_ns = self.now_ns();
        let timeout = self
            .medium
            .next_release_ns()
            .map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        match ppoll(&mut polled, timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for frames"),
        }
        let is_ready = |entry: &PollFd| entry.revents().is_some_and(|events| !events.is_empty());
        let taps = (0..self.taps.len()).filter(|&index| is_ready(&polled[index])).collect();
        Ok((taps, is_ready(&polled[self.taps.len()])))
    }

    fn poll_time(&mut self) {
        let now_ns = self.now_ns();
        self.medium.advance(now_ns, &mut self.releases);
        for release in self.releases.drain(..) {
            let tap = match release.to {
                Port::Station(index) => index,
                Port::Server => self.taps.len() - 1,
            };
            self.refused += u64::from(!self.taps[tap].send(&release.frame));
            let released_ns = self.started.elapsed().as_nanos() as u64;
            self.lateness.record(released_ns.saturating_sub(release.at_ns));
        }
    }

    fn take_frames(&mut self, tap: usize) -> Result<()> {
        let port = if tap + 1 == self.taps.len() {
            Port::Server
        } else {
            Port::Station(tap)
        };
        for _ in 0..FRAMES_A_TURN {
            let received = self.taps[tap].receive(&mut self.buffer);
            match received.with_context(|| format!("{} is gone", self.names[tap]))? {
                Some(frame) if frame.len() <= MAX_FRAME => self.medium.offer(port, Rc::from(frame)),
                Some(_) => self.medium.counters.unroutable += 1,
                None => break,
            }
        }
        Ok(())
    }

    fn obey(&mut self, commands: &mut Lines, open: bool) -> Result<()> {
        while let Some(line) = commands.next_line(open).context(Malformed)? {
            match MediumCommand::parse(&line, self.medium.stations().len()).context(Malformed)? {
                MediumCommand::Stats { .. } => self.say_stats()?,
                MediumCommand::Presence { station, present } => self.medium.set_present(station, present),
                MediumCommand::Rates { rates } => self.medium.set_rate_control(&rates.rate_control()),
            }
        }
        Ok(())
    }

    fn say_stats(&mut self) -> Result<()> {
        self.poll_time();
        say(&report::line(&self.medium, &self.lateness, self.refused)?)
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

fn say(line: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        bail!("nobody reads standard output any more");
    }
    Ok(())
}
