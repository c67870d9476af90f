// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many limits at once, each of a rule and in both directions, some with traffic: how long until all are active, what
//! each lets pass, and the daemon's cost after the traffic has ended.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::flows::{Flows, ReceivedPackets, start_far};
use super::place::{LoadedDevice, configuration};
use crate::experiment::{Run, TemporaryFolder, pause};
use crate::giveway::{self, Daemon, answers};
use crate::interrupt::{wait_for, wait_until};
use crate::meter::{Meter, resident_mb};
use crate::outcome::Outcome;
use crate::role::Role;
use crate::traffic::Direction;
use crate::uplink::PACKET_BYTES;

const FIRST_PORT: u16 = 5_800;
/// The least and the greatest of those with traffic; the others are evenly spaced on a logarithmic scale.
const RATES_MBIT: (f64, f64) = (0.08, 1.0);
/// Of those without.
const IDLE_MBIT: f64 = 1.0;
const INSTALL_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY_S: f64 = 0.05;
/// After the traffic, until its sockets are forgotten.
const CALM_S: f64 = 3.0;
const IDLE_S: f64 = 10.0;

#[derive(Clone, Copy)]
pub struct Many {
    pub limits: u64,
    pub active: u64,
    pub warmup_s: f64,
    pub seconds: f64,
}

/// A program under a limit.
struct Active {
    port: u16,
    way: Direction,
    mbit: f64,
    program: Role,
}

/// What a limit let pass, as the receiving socket counted it.
#[derive(Serialize)]
struct Passed {
    way: Direction,
    limit_mbit: f64,
    of_limit: f64,
}

impl Many {
    pub fn run(self, run: &Run) -> Result<Outcome> {
        ensure!(self.active <= self.limits, "more programs than limits");
        let place = LoadedDevice::raise()?;
        let device = &place.device;
        let ports: Vec<_> = (0..self.active).map(|n| (port_of(n), Some(way_of(n)))).collect();
        let mut far = start_far(&place.peer, &ports)?;
        let rules = run.temporary_folder()?;
        write_rules(&rules, &[])?;
        let words = rules.0.display().to_string();
        let mut daemon = Daemon::raise_with_rules(&words, device, &configuration(), &run.file(""))?;
        let mut outcome = Outcome::default();
        run.progress.tick("putting limits up");
        self.install(&place, &rules, run, &mut outcome)?;
        run.progress.tick("sending and receiving");
        let passed = self.send(&place, &mut far)?;
        run.keep(&passed)?;
        tell_passed(&mut outcome, run.name, &passed);
        run.progress.tick("idle");
        pause(CALM_S)?;
        tell_idle(&mut outcome, run.name, &daemon)?;
        run.progress.tick("taking limits down");
        take_down(&place, &rules, run, &mut outcome)?;
        let left: usize = place.attached(&daemon)?.iter().map(|(_, count)| count).sum();
        outcome.set(run.name, "left_attached", left as f64);
        daemon.stop()?;
        Ok(outcome)
    }

    /// From the request to read the rules until both directions have all limits.
    fn install(&self, place: &LoadedDevice, rules: &TemporaryFolder, run: &Run, outcome: &mut Outcome) -> Result<()> {
        write_rules(rules, &self.rules())?;
        let began = Instant::now();
        answers::reload(&place.device)?;
        let limits = usize::try_from(self.limits)?;
        let held = wait_for("all limits", INSTALL_WITHIN, || {
            let held = held(place)?;
            pause(LOOK_EVERY_S)?;
            Ok((held == [limits; 2]).then_some(held))
        })?;
        outcome.set(run.name, "install_s", began.elapsed().as_secs_f64());
        outcome.set(run.name, "held_up", held[0] as f64);
        outcome.set(run.name, "held_down", held[1] as f64);
        Ok(())
    }

    /// Rules of several kinds that match nothing here, with those of the programs spread evenly among them, the last
    /// one included.
    fn rules(&self) -> Vec<Value> {
        let of_active = |n: u64| (n + 1) * self.limits / self.active - 1;
        let mut rules: Vec<_> = (0..self.limits).map(idle_rule).collect();
        for n in 0..self.active {
            let condition = json!({"cmdline": Flows::cmdline(port_of(n))});
            rules[of_active(n) as usize] = with_limit(condition, self.mbit_of(n));
        }
        rules
    }

    fn mbit_of(&self, n: u64) -> f64 {
        let (least, most) = RATES_MBIT;
        let part = n as f64 / (self.active - 1).max(1) as f64;
        (least * (most / least).powf(part) * 1e3).round() / 1e3
    }

    fn send(&self, place: &LoadedDevice, far: &mut Role) -> Result<Vec<Passed>> {
        let start = |n| {
            let (port, way) = (port_of(n), way_of(n));
            let flows = Flows {
                port,
                connections: 1,
                way: Some(way),
            };
            Ok(Active {
                port,
                way,
                mbit: self.mbit_of(n),
                program: flows.start(&place.device)?,
            })
        };
        let mut active = (0..self.active).map(start).collect::<Result<Vec<_>>>()?;
        pause(self.warmup_s)?;
        let before = count(&mut active, far)?;
        pause(self.seconds)?;
        let after = count(&mut active, far)?;
        let passed = active.iter().zip(before.iter().zip(&after));
        Ok(passed
            .map(|(active, (before, after))| active.passed(*before, *after))
            .collect())
    }
}

impl Active {
    fn passed(&self, before: (Instant, u64), after: (Instant, u64)) -> Passed {
        let packets = (after.1 - before.1) as f64;
        let mbit = packets * PACKET_BYTES as f64 * 8e-6 / (after.0 - before.0).as_secs_f64();
        Passed {
            way: self.way,
            limit_mbit: self.mbit,
            of_limit: mbit / self.mbit,
        }
    }
}

/// Packets of each, and when they were counted; sent ones are counted at the remote host.
fn count(active: &mut [Active], far: &mut Role) -> Result<Vec<(Instant, u64)>> {
    let (at, at_far): (_, ReceivedPackets) = (Instant::now(), far.ask("")?);
    let of = |active: &mut Active| match active.way {
        Direction::Up => Ok((at, at_far.get(&active.port).copied().unwrap_or_default())),
        Direction::Down => Ok((Instant::now(), active.program.ask("")?)),
    };
    active.iter_mut().map(of).collect()
}

fn write_rules(folder: &TemporaryFolder, rules: &[Value]) -> Result<()> {
    giveway::write(&folder.0.join("10-limits.toml"), &json!({"rule": rules}))
}

fn port_of(n: u64) -> u16 {
    FIRST_PORT + n as u16
}

fn way_of(n: u64) -> Direction {
    Direction::BOTH[n as usize % 2]
}

fn idle_rule(n: u64) -> Value {
    let condition = match n % 4 {
        0 => json!({"exe": format!("/opt/vendor-{n}/bin/agent")}),
        1 => json!({"cmdline": format!("*--backup-{n} *")}),
        2 => json!({"unit": format!("vendor-{n}@*.service")}),
        _ => json!({"cgroup": format!("/vendor-{n}.slice/*")}),
    };
    with_limit(condition, IDLE_MBIT)
}

fn with_limit(mut rule: Value, mbit: f64) -> Value {
    rule["class"] = json!("standard");
    rule["upload_limit_mbit"] = json!(mbit);
    rule["download_limit_mbit"] = json!(mbit);
    rule
}

/// The number of active upload limits, and of download limits.
fn held(place: &LoadedDevice) -> Result<[usize; 2]> {
    let network = answers::status(&place.device)?.network;
    Ok([network.uploads, network.downloads].map(|view| if view.links.is_empty() { 0 } else { view.limits.len() }))
}

fn take_down(place: &LoadedDevice, rules: &TemporaryFolder, run: &Run, outcome: &mut Outcome) -> Result<()> {
    write_rules(rules, &[])?;
    let began = Instant::now();
    answers::reload(&place.device)?;
    wait_until("no limit", INSTALL_WITHIN, || {
        let held = held(place)?;
        pause(LOOK_EVERY_S)?;
        Ok(held == [0; 2])
    })?;
    outcome.set(run.name, "taken_down_s", began.elapsed().as_secs_f64());
    Ok(())
}

fn tell_passed(outcome: &mut Outcome, point: &str, passed: &[Passed]) {
    for (way, name) in [(Direction::Up, "up"), (Direction::Down, "down")] {
        let of_limit: Vec<_> = passed
            .iter()
            .filter(|passed| passed.way == way)
            .map(|passed| passed.of_limit)
            .collect();
        outcome.percentiles(point, &format!("{name}_of_limit_*"), &of_limit, &[0, 50, 100]);
    }
}

/// CPU time of the daemon and of its programs in other processes, of one processor; and its memory.
fn tell_idle(outcome: &mut Outcome, point: &str, daemon: &Daemon) -> Result<()> {
    let meter = Meter::of(daemon)?;
    let before = meter.read()?;
    pause(IDLE_S)?;
    let spent = meter.read()? - before;
    let percent = |ns: f64| 100.0 * ns / spent.elapsed_ns;
    outcome.set(point, "cpu_percent", percent(spent.daemon_ns + spent.programs_ns));
    outcome.set(point, "cpu_percent_bpf", percent(spent.programs_ns));
    outcome.set(point, "rss_mb", resident_mb(daemon.process.id())?);
    Ok(())
}
