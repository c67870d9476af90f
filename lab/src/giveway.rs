// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the program under test: its command line and its configuration. `answers` reads its output. Input: namespaces
//! and a policy. Output: running daemons and their logs. Judges nothing.

pub mod answers;
pub mod jitter;
pub mod realtime;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use giveway_engine::queue::Backend;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::access_point::{BackgroundPolicy, Cap, PAPER_CAPACITY_MBIT, PAPER_MARGIN_BYTES, PAPER_SEGMENT_BYTES};
use crate::channel::{SERVER_ADDRESS, STATION_DEVICE};
use crate::interrupt::{wait_for, wait_until};
use crate::namespace::Namespace;
use crate::process::{Process, run};
use answers::{Recorded, parse_record};

/// Long: in a guest without virtual time the verifier takes 20 s on a slow machine, and the daemon answers nothing
/// meanwhile.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Emulated under load, ending takes 2.5 to 5 s; on the host a quarter of a second.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// `giveway run` in one station's namespace.
pub struct Daemon {
    pub process: Process,
    log: PathBuf,
}

/// The binary beside this one, or the file in GIVEWAY.
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

/// The key file of the group in this folder.
pub fn key_file(folder: &Path) -> PathBuf {
    folder.join("group.key")
}

/// Writes a new group key.
pub fn new_key(folder: &Path) -> Result<PathBuf> {
    let key = key_file(folder);
    if key.exists() {
        std::fs::remove_file(&key)?;
    }
    let mut command = Command::new(binary()?);
    command.args(["key", "new"]).arg(&key);
    run(command)?;
    Ok(key)
}

/// A configuration of caps, with the group's key.
pub fn cap_configuration(cap: Cap, key: &Path) -> Value {
    let mut policy = json!({
        "policy": "fixed",
        "capacity_mbit": PAPER_CAPACITY_MBIT as f64,
        "margin_bytes": PAPER_MARGIN_BYTES,
        "segment_bytes": PAPER_SEGMENT_BYTES,
    });
    match cap {
        Cap::Formula { rtt_ms } => policy["rtt_ms"] = json!(rtt_ms),
        Cap::Segments(segments) => policy["fixed_segments"] = json!(segments),
        Cap::Estimated(prefer) => policy = json!({"policy": "estimated", "prefer": prefer}),
        Cap::Default { has_key: true } => return json!({"group": {"key_file": key}}),
        Cap::Default { has_key: false } => return json!({}),
    }
    json!({"cap": policy, "group": {"key_file": key}})
}

/// The configuration of a daemon on an access point, with the group's key.
pub fn configuration(cap: Option<Cap>, background: Option<BackgroundPolicy>, key: &Path) -> Value {
    let mut all = match cap {
        Some(cap) => cap_configuration(cap, key),
        None => json!({"cap": {"policy": "none"}, "group": {"key_file": key}}),
    };
    if let Some(background) = background {
        all["rule"] = json!([{"address": SERVER_ADDRESS, "class": "background"}]);
        all["classes"] = json!({"congestion_control": background.is_slowed});
        all["marks"] = json!({"background": if background.is_marked { "LE" } else { "keep" }});
    }
    all
}

/// Waits until a queue of giveway's is active, with any backend.
pub fn wait_until_queued(at: &Namespace) -> Result<()> {
    wait_until("giveway's queue", START_LIMIT, || {
        Ok(answers::status(at)?.network.queue.installed.is_some())
    })
}

/// Waits until packets are marked, with any backend.
pub fn wait_until_marking(station: &Namespace) -> Result<()> {
    wait_until("giveway to mark packets", START_LIMIT, || {
        let marks = answers::status(station)?.network.queue.marks;
        Ok(!marks.is_empty())
    })
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

    /// As `start`, with the configuration written to `STEM.toml` and its messages in `STEM.log`.
    pub fn launch(station: &Namespace, configuration: &Value, stem: &Path) -> Result<Self> {
        Self::launch_with(&["--interface", STATION_DEVICE], station, configuration, stem)
    }

    /// As `launch`; it answers when this returns.
    pub fn raise(station: &Namespace, configuration: &Value, stem: &Path) -> Result<Self> {
        Self::raise_with(&["--interface", STATION_DEVICE], station, configuration, stem)
    }

    /// As `raise`, with a folder of rules in place of the machine's.
    pub fn raise_with_rules(rules: &str, station: &Namespace, configuration: &Value, stem: &Path) -> Result<Self> {
        let words = ["--interface", STATION_DEVICE, "--rules", rules];
        Self::raise_with(&words, station, configuration, stem)
    }

    /// As `raise`, with these arguments in place of the interface.
    pub fn raise_with(words: &[&str], at: &Namespace, configuration: &Value, stem: &Path) -> Result<Self> {
        let mut daemon = Self::launch_with(words, at, configuration, stem)?;
        daemon.wait_until_up(at)?;
        Ok(daemon)
    }

    fn launch_with(words: &[&str], at: &Namespace, configuration: &Value, stem: &Path) -> Result<Self> {
        // A stem may contain dots.
        let [file, log] = ["toml", "log"].map(|ending| PathBuf::from(format!("{}.{ending}", stem.display())));
        write(&file, configuration)?;
        Self::start_with(words, at, &file, log)
    }

    fn start_with(words: &[&str], station: &Namespace, configuration: &Path, log: PathBuf) -> Result<Self> {
        let mut command = station.command(binary()?)?;
        command.arg("run").arg("--config").arg(configuration).args(words);
        Self::of(command, log)
    }

    /// Any command that becomes the daemon.
    pub fn of(command: Command, log: PathBuf) -> Result<Self> {
        let process = Process::spawn_logged(command, &log)?;
        Ok(Self { process, log })
    }

    /// Until it answers `giveway status`.
    pub fn wait_until_up(&mut self, station: &Namespace) -> Result<()> {
        wait_for("giveway to answer", START_LIMIT, || {
            if let Some(status) = self.process.exit()? {
                let said = std::fs::read_to_string(&self.log).unwrap_or_default();
                let last = said.lines().last().unwrap_or("nothing");
                bail!("giveway ended at its start ({status}): {last}");
            }
            Ok(answers::status(station).ok())
        })
        .map(drop)
    }

    /// Waits until the BPF qdisc is active; no other backend counts.
    pub fn wait_until_queueing(&mut self, station: &Namespace) -> Result<()> {
        self.wait_until_up(station)?;
        let mut reason = String::new();
        wait_until("giveway's queue", START_LIMIT, || {
            let queue = answers::status(station)?.network.queue;
            reason = queue.reason;
            let is_ours = queue.installed.is_some_and(|plan| plan.backend == Backend::Bpf);
            Ok(is_ours)
        })
        .with_context(|| format!("giveway says: {reason}"))
    }

    /// Waits until it reports that nothing needs a queue yet.
    pub fn wait_until_watching(&mut self, station: &Namespace) -> Result<()> {
        self.wait_until_up(station)?;
        let waits = || Ok(answers::status(station)?.network.queue.waits);
        wait_until("giveway to wait for what is to be held", START_LIMIT, waits)
    }

    /// The daemon's watchdog process, once there is one.
    pub fn watchdog(&self) -> Option<i32> {
        let id = self.process.id().to_string();
        let places = std::fs::read_dir("/run/giveway").ok()?.flatten();
        let mut locks = places.filter_map(|place| std::fs::read_to_string(place.path().join("lock")).ok());
        locks.find_map(|lock| {
            // The holder of the lock, then the watchdog; each by its pid and what identifies it.
            let mut pids = lock.lines().filter_map(|line| line.split(' ').next());
            (pids.next()? == id).then(|| pids.next()?.parse().ok())?
        })
    }

    /// Stopped first, so that it does not replace a watchdog that dies before it.
    pub fn kill_with_watchdog(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGSTOP)?;
        if let Some(watchdog) = self.watchdog() {
            kill(Pid::from_raw(watchdog), Signal::SIGKILL)?;
        }
        self.process.kill()
    }

    /// Whether it ended in good order, as asked.
    pub fn ends(&mut self) -> Result<bool> {
        let ended = wait_for("giveway to end", STOP_LIMIT, || self.process.exit());
        Ok(ended.is_ok_and(|status| status.success()))
    }

    /// Ends it as an administrator would; it reverts what it changed.
    pub fn stop(&mut self) -> Result<()> {
        if !self.process.stop(STOP_LIMIT)? {
            bail!("giveway did not end well on SIGTERM; its log is {}", self.log.display());
        }
        Ok(())
    }
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
        // It creates the file when the daemon has begun to answer.
        wait_until("giveway record to begin", START_LIMIT, || Ok(file.exists()))?;
        Ok(Self { process, file })
    }

    /// Ends the recording and returns its changes of caps and peers.
    pub fn finish(mut self) -> Result<Recorded> {
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
