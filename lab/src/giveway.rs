// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program under test, as the lab sees it: the only file that knows its command line, its
//! configuration, and its answers.
//! In: namespaces and a policy. Out: running daemons, their status and their logs, leniently read.
//! Judges nothing.

pub mod jitter;
pub mod realtime;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::air::STATION_DEVICE;
use crate::interrupt::wait_for;
use crate::namespace::Namespace;
use crate::process::{Process, run};
use crate::scenario::{Cap, PAPER_CAPACITY_MBIT, PAPER_MARGIN_BYTES, PAPER_SEGMENT_BYTES};

const START_LIMIT: Duration = Duration::from_secs(20);
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// `giveway run` in one station's namespace.
pub struct Daemon {
    process: Process,
    log: PathBuf,
}

/// What `giveway status --json` says, as far as the lab asks.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Status {
    pub uptime_s: f64,
    pub flows: Vec<Flow>,
    pub reports: Reports,
    pub neighbours: Vec<Neighbour>,
    pub passes: PassCost,
    pub walks: PassCost,
    pub queue: Option<Queue>,
}

#[derive(Deserialize)]
struct Why {
    receive: Receive,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Receive {
    handlers: Vec<Handler>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Handler {
    raises: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Queue {
    in_force: Option<InForce>,
    why: String,
    pub counters: Option<QueueCounters>,
}

#[derive(Debug, Deserialize)]
struct InForce {
    backend: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueCounters {
    pub refused: Refused,
    /// Admitted, and dropped because they could not be in time any more.
    pub late: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Refused {
    pub total: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    pub believed: bool,
}

/// CPU time since the daemon's start.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PassCost {
    pub count: u64,
    pub cpu_us: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Flow {
    pub cookie: u64,
    /// What giveway says that it holds cwnd below, and what the kernel says.
    pub cap: Option<u64>,
    pub clamp: Option<u64>,
    pub sender: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Reports {
    /// Neighbours that fell silent.
    pub expired: u64,
}

/// A line of `giveway record`, as far as the lab asks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Entry {
    pub t_ns: u64,
    pub kind: String,
    pub cookie: u64,
    /// Of a "cap" entry: the cap from now on; null when it is lifted.
    pub new: Option<u64>,
    /// Of a "cap" entry: it was really made.
    pub made: bool,
    /// Of a "neighbour" entry.
    pub address: String,
    /// Of a "neighbour" entry: it fell silent.
    pub expired: bool,
}

#[derive(Deserialize)]
struct DryRevert {
    caps_found: u64,
}

/// The binary beside this one, or what GIVEWAY names.
pub fn binary() -> Result<PathBuf> {
    let path = match std::env::var_os("GIVEWAY") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("giveway"),
    };
    if !path.is_file() {
        bail!(
            "{} is missing, so no variant with giveway can run: `cargo build` it, or name one in GIVEWAY",
            path.display()
        );
    }
    Ok(path)
}

/// Writes a new group key, and the configuration of each policy beside it.
pub fn new_key(folder: &Path) -> Result<PathBuf> {
    let key = folder.join("group.key");
    if key.exists() {
        std::fs::remove_file(&key)?;
    }
    let mut command = Command::new(binary()?);
    command.args(["key", "new"]).arg(&key);
    run(command)?;
    Ok(key)
}

pub fn write_configuration(file: &Path, cap: Cap, key: &Path) -> Result<()> {
    let mut policy = json!({
        "policy": "fixed",
        "capacity_mbit": PAPER_CAPACITY_MBIT as f64,
        "margin_bytes": PAPER_MARGIN_BYTES,
        "segment_bytes": PAPER_SEGMENT_BYTES,
    });
    match cap {
        Cap::Formula { rtt_ms } => policy["rtt_ms"] = json!(rtt_ms),
        Cap::Segments(segments) => policy["fixed_segments"] = json!(segments),
    }
    let configuration = json!({"cap": policy, "group": {"key_file": key}});
    write(file, &configuration)
}

/// For a daemon that watches and has nothing to cap; without a key it works alone.
pub fn write_watching_configuration(file: &Path, key: Option<&Path>) -> Result<()> {
    let mut configuration = json!({"cap": {"policy": "none"}});
    if let Some(key) = key {
        configuration["group"] = json!({"key_file": key});
    }
    write(file, &configuration)
}

/// For a daemon that only queues, at the rate of the link below.
pub fn write_queue_configuration(file: &Path, rate_mbit: u64, admission: bool, guard_us: u64) -> Result<()> {
    let configuration = json!({
        "cap": {"policy": "none"},
        "link": {"rate_mbit": rate_mbit as f64},
        // Without admission what is late is to be seen late by the link.
        "queue": {"admission": admission, "drop_late": admission, "guard_us": guard_us},
    });
    write(file, &configuration)
}

/// For a daemon that queues above a driver that holds some bytes itself.
pub fn write_uplink_configuration(file: &Path, rate_mbit: f64, driver_bytes: u64, queue: Value) -> Result<()> {
    let configuration = json!({
        "cap": {"policy": "none"},
        "link": {"rate_mbit": rate_mbit, "driver_bytes": driver_bytes},
        "queue": queue,
    });
    write(file, &configuration)
}

/// For a daemon that only orders, since it knows no rate.
pub fn write_unpaced_configuration(file: &Path) -> Result<()> {
    write(file, &json!({"cap": {"policy": "none"}, "queue": {"backend": "qdisc"}}))
}

/// Any configuration.
pub fn write(file: &Path, configuration: &serde_json::Value) -> Result<()> {
    let text = toml::to_string(configuration).context("cannot write the configuration")?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

impl Daemon {
    /// Starts it without waiting; its messages go to `log`.
    pub fn start(station: &Namespace, configuration: &Path, log: PathBuf) -> Result<Self> {
        Self::start_with(&["--interface", STATION_DEVICE], station, configuration, log)
    }

    /// Where there is no interface to look after.
    pub fn start_without_interface(place: &Namespace, configuration: &Path, log: PathBuf) -> Result<Self> {
        Self::start_with(&[], place, configuration, log)
    }

    fn start_with(words: &[&str], station: &Namespace, configuration: &Path, log: PathBuf) -> Result<Self> {
        let mut command = station.command(binary()?)?;
        command.arg("run").arg("--config").arg(configuration).args(words);
        let messages = File::options().create(true).append(true).open(&log)?;
        command
            .stdin(Stdio::null())
            .stdout(messages.try_clone()?)
            .stderr(messages);
        Ok(Self {
            process: Process::spawn(command)?,
            log,
        })
    }

    /// Until it answers `giveway status`.
    pub fn wait_until_up(&mut self, station: &Namespace) -> Result<()> {
        wait_for("giveway to answer", START_LIMIT, || {
            if let Some(status) = self.process.exit()? {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("nothing");
                bail!("giveway ended at its start ({status}): {last}");
            }
            Ok(status(station).ok())
        })
        .map(drop)
    }

    /// Until the BPF qdisc is in force, which no other backend may stand in for.
    pub fn wait_until_queueing(&mut self, station: &Namespace) -> Result<()> {
        self.wait_until_up(station)?;
        let ready = |queue: &Queue| queue.in_force.as_ref().is_some_and(|plan| plan.backend == "qdisc");
        let mut why = String::new();
        wait_for("giveway's queue", START_LIMIT, || {
            let queue = status(station)?.queue.unwrap_or_default();
            why.clone_from(&queue.why);
            Ok(ready(&queue).then_some(()))
        })
        .with_context(|| format!("giveway says: {why}"))
    }

    /// The daemon's guardian, once there is one.
    pub fn guardian(&self) -> Option<i32> {
        let id = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    pub fn id(&self) -> i32 {
        self.process.id()
    }

    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.process.exit()?.is_some())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Ends it as an administrator would; it reverts what it changed.
    pub fn stop(&mut self) -> Result<()> {
        if !self.process.stop(STOP_LIMIT)? {
            bail!("giveway did not end well on SIGTERM; its log is {}", self.log.display());
        }
        Ok(())
    }

    pub fn stay(&mut self) -> i32 {
        self.process.stay()
    }
}

fn answer(station: &Namespace, words: &[&str]) -> Result<Vec<u8>> {
    let mut command = station.command(binary()?)?;
    command.args(words);
    Ok(run(command)?.stdout)
}

pub fn status(station: &Namespace) -> Result<Status> {
    let said = answer(station, &["status", "--json"])?;
    serde_json::from_slice(&said).context("the answer of `giveway status --json` is not readable")
}

/// How often giveway has given handlers of requests their priority; all that it says of them goes to `file`.
pub fn raises(at: &Namespace, file: &Path) -> Result<u64> {
    let said = answer(at, &["why", "receive", "--json"])?;
    std::fs::write(file, &said).with_context(|| format!("cannot write {}", file.display()))?;
    let why: Why =
        serde_json::from_slice(&said).context("the answer of `giveway why receive --json` is not readable")?;
    Ok(why.receive.handlers.iter().map(|handler| handler.raises).sum())
}

/// How many capped sockets `giveway revert` would find, changing none.
pub fn caps_found(station: &Namespace) -> Result<u64> {
    let said = answer(station, &["revert", "--dry-run", "--json"])?;
    let found: DryRevert =
        serde_json::from_slice(&said).context("the answer of `giveway revert --dry-run --json` is not readable")?;
    Ok(found.caps_found)
}

pub fn revert(station: &Namespace) -> Result<()> {
    answer(station, &["revert"]).map(drop)
}

/// `giveway record` of one station.
pub struct Recorder {
    process: Process,
    file: PathBuf,
}

impl Recorder {
    pub fn start(station: &Namespace, file: PathBuf) -> Result<Self> {
        if file.exists() {
            std::fs::remove_file(&file)?;
        }
        let mut command = station.command(binary()?)?;
        command
            .arg("record")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(file.with_extension("log"))?);
        let process = Process::spawn(command)?;
        // It makes the file when the daemon has begun to answer.
        wait_for("giveway record to begin", START_LIMIT, || {
            Ok(file.exists().then_some(()))
        })?;
        Ok(Self { process, file })
    }

    /// Ends the recording and gives back what it says of caps and neighbours.
    pub fn finish(mut self) -> Result<Vec<Entry>> {
        if !self.process.stop(STOP_LIMIT)? {
            bail!(
                "giveway record did not end well on SIGTERM: {} is not whole",
                self.file.display()
            );
        }
        let text = std::fs::read_to_string(&self.file);
        let text = text.with_context(|| format!("cannot read the record {}", self.file.display()))?;
        parse_record(&text).with_context(|| format!("record {}", self.file.display()))
    }
}

fn parse_record(text: &str) -> Result<Vec<Entry>> {
    // A line that a daemon was killed over has no end.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let entries = whole
        .map(serde_json::from_str::<Entry>)
        .collect::<Result<Vec<_>, _>>()?;
    let is_wanted = |entry: &Entry| ["cap", "neighbour"].contains(&entry.kind.as_str());
    Ok(entries.into_iter().filter(is_wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_up_to_the_line_that_a_kill_cut_short() {
        let text = r#"{"schema":"giveway.record","version":1}
{"t_ns":5,"kind":"flow","cookie":7,"cwnd":40}
{"t_ns":6,"kind":"cap","cookie":7,"old":null,"new":43}
{"t_ns":7,"kind":"cap","coo"#;
        let entries = parse_record(text).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].t_ns, entries[0].cookie, entries[0].new), (6, 7, Some(43)));
        assert!(parse_record("not a record\n").is_err());
    }
}
