// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An hour of what a machine does in a day: programs that start, connections that open and close, peers that come, go
//! and die, rules that are read again, a link that goes down. Whether the daemon grows meanwhile, and what it leaves.

mod sample;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use crate::applicant::{self, Starts};
use crate::channel::STATION_DEVICE;
use crate::experiment::Run;
use crate::giveway::{self, Daemon, answers};
use crate::interrupt::pause_until;
use crate::namespace::Namespace;
use crate::network::{PEER_ADDRESS, raise_pair};
use crate::outcome::Outcome;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use crate::traffic::endless::start_sink;
use sample::{ResourceSample, growth_percent, held, most_and_least};

pub const SCENARIO: Scenario = Scenario {
    name: "soak",
    about: "An hour of starting programs, connections, peers that come and go, reloads and link flaps: what grows, and what is left at the end",
    seconds: 3_600,
    warmup_s: 30,
    parameters: &[
        Parameter::range("per_s", 500, 1, 5_000, "programs that start each second"),
        Parameter::range(
            "every_s",
            20,
            2,
            600,
            "for a reload, and half as often for a peer and a link that goes down",
        ),
    ],
    plan: &plan,
};

const NAME: &str = "host";
const PORT: u16 = 5_540;
/// Of so many programs one opens a connection and has a rule.
const ONE_IN: u64 = 3;
const LIVES_MS: u64 = 500;
const LOOKS_EVERY: Duration = Duration::from_secs(1);
const DOWN: Duration = Duration::from_millis(500);
const PEER_STAYS: Duration = Duration::from_secs(8);

fn plan(parameters: &Parameters) -> Result<Plan> {
    let [seconds, warmup_s, every_s] = ["seconds", "warmup_s", "every_s"].map(|name| parameters.count(name));
    let starts = Starts {
        per_s: parameters.count("per_s"),
        count: parameters.count("per_s") * (seconds + warmup_s),
        one_in: ONE_IN,
        limit_ms: LIVES_MS,
    };
    let times = Times {
        warm_up: Duration::from_secs(warmup_s),
        all: Duration::from_secs(seconds + warmup_s),
        every: Duration::from_secs(every_s),
    };
    let always = |metric, holds| Check::metric(NAME, metric, holds).always();
    let none = Relation::AtMost(0.0);
    Ok(Plan {
        variants: vec![Variant::new(NAME, None, times.all.as_secs_f64() + 10.0, move |run| {
            soak(run, starts, times)
        })],
        checks: vec![
            Check::metric(NAME, "growth_percent", Relation::AtMost(2.0)),
            always("more_descriptors", none),
            always("more_objects", none),
            always("more_pins", none),
            always("more_files", none),
            always("left", none),
            always("daemon_deaths", none),
            // Else it was no soak.
            always("reloads", Relation::AtLeast(1.0)),
            always("peers", Relation::AtLeast(1.0)),
            always("flaps", Relation::AtLeast(1.0)),
            Check::metric(NAME, "starts_per_s", Relation::AtLeast(0.95 * starts.per_s as f64)),
        ],
        plots: Vec::new(),
        columns: "starts_per_s connections with_class reloads peers late_peers flaps rss_mb growth_percent left",
    })
}

type Count = fn(&ResourceSample) -> u64;

#[derive(Clone, Copy)]
struct Times {
    warm_up: Duration,
    all: Duration,
    every: Duration,
}

/// What was done to the daemon besides the starts.
#[derive(Default)]
struct Done {
    reloads: u64,
    peers: u64,
    /// Of these, who did not end in time when they were asked to.
    late_peers: u64,
    flaps: u64,
    samples: Vec<ResourceSample>,
}

fn soak(run: &Run, starts: Starts, times: Times) -> Result<Outcome> {
    let (device, host) = raise_pair()?;
    let matched = applicant::install(run.raw, "soak-matched")?;
    let other = applicant::install(run.raw, "soak-other")?;
    let _sink = start_sink(&host, &[PORT])?;
    let key = giveway::new_key(run.raw)?;
    let rules = |n: u64| configuration(&key, &matched.exe, n);
    let mut daemon = Daemon::raise(&device, &rules(0), &run.file(""))?;
    let task = ["reach", PEER_ADDRESS, &PORT.to_string()];
    let has_ended = AtomicBool::new(false);
    let mut starter = starts.begin(&device, &matched, &task, &other)?;
    let output = applicant::output_of(&mut starter)?;
    let (said, done) = thread::scope(|scope| {
        let listening = scope.spawn(|| {
            let said = applicant::listen(output);
            has_ended.store(true, Ordering::Relaxed);
            said
        });
        let stage = Stage {
            device: &device,
            host: &host,
            daemon: &daemon,
            configuration: &run.file(".toml"),
            peer: &run.file("-peer"),
            rules: &rules,
        };
        let done = stage.disturb(run, times, &has_ended);
        // Else they would go on for the rest of the hour.
        if done.is_err() {
            drop(starter);
        }
        let said = listening
            .join()
            .map_err(|_| anyhow!("the thread that listens panicked"))?;
        let done = done?;
        anyhow::Ok((said?, done))
    })?;
    let deaths = daemon.process.exit()?.is_some();
    let held_before_end = held(daemon.process.id());
    daemon.stop()?;
    let number = device.number()?;
    let left = sample::left(&held_before_end, number)?;

    let mut outcome = Outcome::default();
    let name = run.name;
    outcome.set(name, "starts_per_s", starts.count as f64 / said.elapsed_s);
    outcome.set(name, "connections", starts.matching() as f64);
    outcome.set(name, "with_class", said.waited_ms.len() as f64);
    outcome.set(name, "reloads", done.reloads as f64);
    outcome.set(name, "peers", done.peers as f64);
    outcome.set(name, "late_peers", done.late_peers as f64);
    outcome.set(name, "flaps", done.flaps as f64);
    outcome.set(name, "daemon_deaths", f64::from(u8::from(deaths)));
    outcome.set(name, "left", left as f64);
    describe_growth(&mut outcome, name, &done.samples, times.warm_up)?;
    run.keep(&done.samples)?;
    Ok(outcome)
}

/// Of the daemon after the warm-up.
fn describe_growth(outcome: &mut Outcome, name: &str, samples: &[ResourceSample], warm_up: Duration) -> Result<()> {
    let steady: Vec<&ResourceSample> = samples
        .iter()
        .filter(|sample| sample.at_s >= warm_up.as_secs_f64())
        .collect();
    let growth = growth_percent(&steady).context("too short for four quarters")?;
    outcome.set(name, "growth_percent", growth);
    outcome.set(name, "rss_mb", steady.last().map_or(0.0, |sample| sample.resident_mb));
    let counted: [(&str, Count); 4] = [
        ("descriptors", |sample| sample.descriptors),
        ("objects", |sample| sample.objects),
        ("pins", |sample| sample.pins),
        ("files", |sample| sample.files),
    ];
    for (what, of) in counted {
        let (first, last) = most_and_least(&steady, of);
        outcome.set(name, &format!("more_{what}"), last.saturating_sub(first) as f64);
    }
    Ok(())
}

/// With another rule each time.
fn configuration(key: &Path, exe: &Path, number: u64) -> Value {
    json!({
        "cap": {"policy": "fixed", "capacity_mbit": 20.0},
        "group": {"key_file": key},
        "queue": {"backend": "none"},
        "rule": [
            {"exe": format!("/opt/vendor-{number}/bin/agent"), "class": "bulk"},
            {"exe": exe, "class": "background"},
        ],
    })
}

struct Stage<'a> {
    device: &'a Namespace,
    host: &'a Namespace,
    daemon: &'a Daemon,
    configuration: &'a Path,
    /// Its configuration and log, without an ending.
    peer: &'a Path,
    rules: &'a dyn Fn(u64) -> Value,
}

impl Stage<'_> {
    /// Until the starts have ended.
    fn disturb(&self, run: &Run, times: Times, has_ended: &AtomicBool) -> Result<Done> {
        let begun = Instant::now();
        let mut done = Done::default();
        let (mut next_look, mut next_act) = (begun, begun + times.every / 2);
        let mut peer: Option<(Daemon, Instant)> = None;
        let mut acts = 0;
        while !has_ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= next_look {
                next_look = now + LOOKS_EVERY;
                let at_s = (now - begun).as_secs_f64();
                run.progress
                    .tick(&format!("{at_s:.0} of {:.0} s", times.all.as_secs_f64()));
                done.samples
                    .push(ResourceSample::of(self.daemon, self.device.number()?, at_s)?);
            }
            if let Some((mut other, _)) = peer.take_if(|(_, since)| now - *since >= PEER_STAYS) {
                // Every second one dies; its watchdog undoes what it did.
                if done.peers % 2 == 0 {
                    other.process.kill()?;
                } else if other.stop().is_err() {
                    // It may not have come up yet on a busy machine: that is told, and ends no run of an hour.
                    done.late_peers += 1;
                    other.process.kill()?;
                }
            }
            if now >= next_act {
                next_act = now + times.every;
                acts += 1;
                giveway::write(self.configuration, &(self.rules)(acts))?;
                answers::reload(self.device).context("the rules were not read again")?;
                done.reloads += 1;
                if acts % 2 == 0 {
                    self.device.ip(&format!("link set {STATION_DEVICE} down"))?;
                    pause_until(now + DOWN)?;
                    self.device.ip(&format!("link set {STATION_DEVICE} up"))?;
                    done.flaps += 1;
                } else if peer.is_none() {
                    peer = Some((Daemon::launch(self.host, &(self.rules)(0), self.peer)?, now));
                    done.peers += 1;
                }
            }
            pause_until(now + Duration::from_millis(200))?;
        }
        if let Some((mut other, _)) = peer {
            other.stop()?;
        }
        Ok(done)
    }
}
