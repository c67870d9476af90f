// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the work is done: a device and a remote host with a real sshd, data to send, and the packaged rules.
//! Input: what is started there. Output: what arrives of it, and which class giveway says and shows that it has.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::experiment::{Run, TemporaryFolder, pause};
use crate::giveway::{Daemon, answers, wait_until_queued};
use crate::guest::find;
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::network::{PEER_ADDRESS, raise_pair};
use crate::outcome::Outcome;
use crate::process::Process;
use crate::role::Role;
use crate::scheduling::is_fully_nice;
use crate::traffic::arrivals::{self, ArrivalCounter};
use crate::traffic::endless::{start_sender, start_sink};
use crate::traffic::ssh;

const PACKAGED: &str = include_str!("../../../../packaging/rules.d/50-background.toml");
const UPLOAD_PORT: u16 = 5_540;
const WORK_PORTS: [u16; 2] = [22, 2222];
/// More than any of it sends while it is looked at, were it not background.
const DATA_BYTES: usize = 160 << 20;
/// Its greeting is over.
const WORKING_BYTES: u64 = 200_000;
const START_LIMIT: Duration = Duration::from_secs(60);

/// Fields go in this order: what runs, then where it runs, then its files.
pub struct BackupClient {
    upload: Option<Process>,
    _sink: Role,
    arrivals: ArrivalCounter,
    server: ssh::Server,
    device: Namespace,
    _far: Namespace,
    folder: TemporaryFolder,
}

impl BackupClient {
    pub fn raise(run: &Run) -> Result<Self> {
        let folder = run.temporary_folder()?;
        fs::create_dir(folder.0.join("data"))?;
        let mut random = File::open("/dev/urandom")?.take(DATA_BYTES as u64);
        std::io::copy(&mut random, &mut File::create(folder.0.join("data/blob"))?)?;
        fs::create_dir(folder.0.join("rules.d"))?;
        fs::write(folder.0.join("rules.d/50-background.toml"), PACKAGED)?;
        let (device, far) = raise_pair()?;
        Ok(Self {
            upload: None,
            _sink: start_sink(&far, &[UPLOAD_PORT])?,
            arrivals: ArrivalCounter::count(&far)?,
            server: ssh::Server::start(&far, &folder.0, &WORK_PORTS, &folder.0)?,
            device,
            _far: far,
            folder,
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// The configuration of ssh clients.
    pub fn client(&self) -> &Path {
        &self.server.client
    }

    /// Its queue is active when this returns.
    pub fn start_daemon(&self, configuration: &Value, run: &Run) -> Result<Daemon> {
        let rules = self.file("rules.d").display().to_string();
        let daemon = Daemon::raise_with_rules(&rules, &self.device, configuration, &run.file(""))?;
        wait_until_queued(&self.device)?;
        Ok(daemon)
    }

    pub fn start_upload(&mut self) -> Result<()> {
        self.upload = Some(start_sender(&self.device, PEER_ADDRESS, UPLOAD_PORT, "cubic")?);
        Ok(())
    }

    /// A copy that rules can name, and whose file can be replaced.
    pub fn install(&self, program: &str) -> Result<PathBuf> {
        let copy = self.file(&format!("bin-{program}"));
        fs::copy(find(program)?, &copy).with_context(|| format!("cannot copy {program}"))?;
        Ok(copy)
    }

    /// As a package manager does it.
    pub fn replace(&self, program: &Path) -> Result<()> {
        let new = program.with_extension("new");
        fs::copy(program, &new)?;
        fs::rename(&new, program).with_context(|| format!("cannot replace {}", program.display()))
    }

    /// Stands for a robot's control loop.
    pub fn start_control(&self, program: &Path) -> Result<Process> {
        let mut command = self.device.command(program)?;
        command.arg("3600");
        let control = Process::spawn(command)?;
        wait_until("the control loop's priority", START_LIMIT, || {
            Ok(crate::scheduling::is_realtime(control.id()))
        })?;
        Ok(control)
    }

    /// On the device, as a user would start it. What it says goes to a file of its folder.
    pub fn spawn(&self, words: &[OsString], ssh: &str, input: Option<File>) -> Result<Process> {
        let mut command = self.device.command(&words[0])?;
        command.args(&words[1..]);
        let log = File::options().create(true).append(true).open(self.file("log"))?;
        let mut command = in_folder(command, self, ssh);
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.stdout(log.try_clone()?).stderr(log);
        Process::spawn(command)
    }

    pub fn wait_until_there(&self, name: &str) -> Result<()> {
        let file = self.file(name);
        wait_until(&format!("{}", file.display()), START_LIMIT, || Ok(file.exists()))
    }

    pub fn wait_until_working(&mut self, port: u16) -> Result<()> {
        let waited = wait_until("the work to send", START_LIMIT, || {
            let arrived = arrivals::of(&self.arrivals.read()?, &format!("tcp:{port}"));
            Ok(arrived > WORKING_BYTES)
        });
        waited.with_context(|| fs::read_to_string(self.file("log")).unwrap_or_default())
    }

    /// What arrives of the work and of the upload.
    pub fn measure(&mut self, seconds: f64, outcome: &mut Outcome, point: &str) -> Result<()> {
        let before = self.arrivals.read()?;
        pause(seconds)?;
        let after = self.arrivals.read()?;
        let mbit = |ports: &[u16]| {
            let keys = ports.iter().map(|port| format!("tcp:{port}"));
            let count = |key: String| arrivals::of(&after, &key) - arrivals::of(&before, &key);
            keys.map(count).sum::<u64>() as f64 * 8e-6 / seconds
        };
        outcome.set(point, "work_mbit", mbit(&WORK_PORTS));
        outcome.set(point, "upload_mbit", mbit(&[UPLOAD_PORT]));
        Ok(())
    }

    /// Of each process that the first one started, whether it has what the class background gives to CPU and disk; of each connection to
    /// this port, whether giveway says that it is of this class.
    pub fn tell_classes(
        &self,
        (first, port): (i32, u16),
        class: &str,
        outcome: &mut Outcome,
        point: &str,
    ) -> Result<()> {
        let (mut processes, mut background) = (0, 0);
        for pid in descendants(first)? {
            // One that has ended meanwhile is none.
            let (Ok(is_nice), Ok(name)) = (is_fully_nice(pid), fs::read_to_string(format!("/proc/{pid}/comm"))) else {
                continue;
            };
            processes += 1;
            background += u32::from(is_nice);
            let shown = if is_nice { "nice 19, idle I/O" } else { "as it was" };
            outcome.note(point, &format!("process {}", name.trim()), shown);
        }
        let status = answers::status(&self.device)?;
        let flows = status
            .network
            .flows
            .iter()
            .filter(|flow| flow.flow.remote.port() == port);
        let (mut connections, mut as_expected) = (0, 0);
        for flow in flows {
            connections += 1;
            as_expected += u32::from(flow.class.name() == class);
            let owner = flow.flow.owner.as_ref().map_or("nobody", |owner| &owner.command);
            let words = format!("{}, by {}: {}", flow.class.name(), flow.class_rule, flow.class_reason);
            outcome.note(point, &format!("connection of {owner} to port {port}"), &words);
        }
        outcome.set(point, "processes", f64::from(processes));
        outcome.set(point, "processes_background", f64::from(background));
        outcome.set(point, "processes_otherwise", f64::from(processes - background));
        outcome.set(point, "connections", f64::from(connections));
        outcome.set(point, "connections_as_expected", f64::from(as_expected));
        outcome.set(point, "connections_otherwise", f64::from(connections - as_expected));
        Ok(())
    }
}

/// With what keeps the programs from asking, and from what they know of this machine.
pub fn in_folder(mut command: Command, place: &BackupClient, ssh: &str) -> Command {
    let home = place.folder();
    command
        .env("HOME", home)
        .env("BORG_BASE_DIR", home)
        .env("RESTIC_PASSWORD", "lab");
    command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
    command.env("BORG_RELOCATED_REPO_ACCESS_IS_OK", "yes");
    for variable in ["BORG_RSH", "RSYNC_RSH", "GIT_SSH_COMMAND"] {
        command.env(variable, ssh);
    }
    command
}

/// A process and all that it has started, and what these have.
fn descendants(first: i32) -> Result<BTreeSet<i32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // Behind the name, which may have anything in it: the state, and the parent.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<i32>().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = BTreeSet::from([first]);
    loop {
        let known = found.len();
        let below = parents
            .iter()
            .filter(|(_, parent)| found.contains(parent))
            .map(|(pid, _)| *pid);
        let below: Vec<i32> = below.collect();
        found.extend(below);
        if found.len() == known {
            return Ok(found);
        }
    }
}
