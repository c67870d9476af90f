// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where README.md's commands run as they stand: `nas` and `example.org` are a remote host with a real sshd and an HTTPS server
//! behind a modem of 20 Mbit/s, `/etc` and the programs are a folder's, in a mount namespace of each command's own.
//! Input: lines for a shell. Output: what they said, which class giveway gives, and what the remote host counted.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cgroup::Cgroup;
use crate::channel::STATION_DEVICE;
use crate::experiment::{Run, TemporaryFolder, pause};
use crate::giveway::{Daemon, answers, binary};
use crate::guest::find;
use crate::interrupt::wait_for;
use crate::namespace::Namespace;
use crate::network::pair;
use crate::outcome::Outcome;
use crate::process::{Process, run as run_to_its_end, say};
use crate::role::Role;
use crate::scenarios::reach::sender::Offer;
use crate::traffic::arrivals::{ArrivalCounter, ByteCounts};
use crate::traffic::endless::{start_sender, start_sink};
use crate::traffic::ssh;

const FAR_ADDRESS: &str = "10.79.2.2";
const MODEM: &str = "root tbf rate 20mbit burst 20k latency 100ms";
const HTTPS_PORT: u16 = 443;
const CONTROL_PORT: u16 = 5_005;
/// For what needs no server.
const SINK_PORT: u16 = 5_540;
const START_LIMIT: Duration = Duration::from_secs(90);
const ASK_EVERY_S: f64 = 0.5;
const PHOTO_BYTES: u64 = 4 << 20;
const VIDEO_BYTES: u64 = 64 << 20;
/// To fetch.
const FILE_BYTES: u64 = 256 << 20;
/// LE, and CS1, which stands for it under htb.
const BACKGROUND_MARKS: [u8; 2] = [1, 8];
const CERTIFICATE: &str = "[req]\ndistinguished_name=name\nx509_extensions=more\n[name]\n[more]\n\
                           subjectAltName=DNS:example.org\nbasicConstraints=CA:true\n";
const USERS: &str = "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534::/:/usr/sbin/nologin\n";
/// `$1`: the folder; then the command, for which the rest of the machine is as it is.
const ENTER: &str = "f=$1; shift; mount --bind $f/etc /etc; \
                     mount --bind /usr/bin $f/programs; mount --bind $f/bin /usr/bin; cd $f/home; exec \"$@\"";

/// Fields go in this order: what runs, then where it runs, then its files.
pub struct House {
    ssh: Option<ssh::Server>,
    _sink: Role,
    arrivals: ArrivalCounter,
    /// The newest first, as they go.
    cgroups: Vec<Cgroup>,
    device: Namespace,
    _modem: Namespace,
    far: Namespace,
    folder: TemporaryFolder,
    log: PathBuf,
}

impl House {
    pub fn raise(run: &Run) -> Result<Self> {
        let folder = run.temporary_folder()?;
        furnish(&folder.0)?;
        let [device, modem, far] = ["device", "modem", "far"].map(Namespace::create);
        let (device, modem, far) = (device?, modem?, far?);
        pair(
            (&device, STATION_DEVICE, "10.79.1.2/24"),
            (&modem, "lan", "10.79.1.1/24"),
        )?;
        pair((&far, STATION_DEVICE, "10.79.2.2/24"), (&modem, "wan", "10.79.2.1/24"))?;
        // The edge box's other link; nothing takes it.
        pair((&device, "wwan0", "10.79.3.2/24"), (&modem, "lte", "10.79.3.1/24"))?;
        modem.run("sysctl", "-qw net.ipv4.ip_forward=1")?;
        modem.tc(&format!("qdisc add dev wan {MODEM}"))?;
        device.ip("route add default via 10.79.1.1")?;
        device.ip("route add default via 10.79.3.1 dev wwan0 metric 100")?;
        far.ip("route add default via 10.79.2.1")?;
        Ok(Self {
            ssh: None,
            _sink: start_sink(&far, &[SINK_PORT])?,
            arrivals: ArrivalCounter::count(&far)?,
            cgroups: Vec::new(),
            device,
            _modem: modem,
            far,
            log: run.file(".said"),
            folder,
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.file(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// The remote host's servers, as long as what it returns lives.
    pub fn serve(&mut self) -> Result<Process> {
        self.serve_ssh()?;
        self.serve_https(&["-quiet"])
    }

    /// The remote host's server of a file to fetch, as `serve`.
    pub fn serve_file(&self, name: &str) -> Result<Process> {
        let folder = self.file("served");
        fs::create_dir(&folder)?;
        File::create(folder.join(name))?.set_len(FILE_BYTES)?;
        self.serve_https(&["-quiet", "-WWW"])
    }

    fn serve_ssh(&mut self) -> Result<()> {
        let remote = self.file("remote");
        let server = ssh::Server::start(&self.far, &self.file("sshd"), &[22], &remote)?;
        let configuration = self.file("home/.ssh/config");
        fs::copy(&server.client, &configuration)?;
        fs::set_permissions(&configuration, fs::Permissions::from_mode(0o600))?;
        self.ssh = Some(server);
        Ok(())
    }

    fn serve_https(&self, how: &[&str]) -> Result<Process> {
        let mut https = self.far.command(find("openssl")?)?;
        https
            .arg("s_server")
            .args(how)
            .args(["-accept", &HTTPS_PORT.to_string()]);
        https.arg("-cert").arg(self.file("etc/ssl/certs/ca-certificates.crt"));
        https.arg("-key").arg(self.file("key"));
        let served = self.file("served");
        if served.exists() {
            https.current_dir(served);
        }
        // It ends when its input does.
        https.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let https = Process::spawn(https)?;
        self.far.wait_until_listening(HTTPS_PORT)?;
        Ok(https)
    }

    fn enter(&self, words: &[&str]) -> Result<Command> {
        let mut command = self.device.command("unshare")?;
        command
            .args(["--mount", "sh", "-ec", ENTER, "sh"])
            .arg(&self.folder.0)
            .args(words);
        command
            .env("HOME", self.file("home"))
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        Ok(command)
    }

    /// It answers when this returns. Nothing on its command line: all that it knows is in `/etc/giveway`.
    pub fn start_daemon(&self, run: &Run) -> Result<Daemon> {
        let mut daemon = Daemon::of(self.enter(&["giveway", "run"])?, run.file(".log"))?;
        wait_for("giveway to answer", START_LIMIT, || {
            ensure!(
                daemon.process.exit()?.is_none(),
                "giveway ended: {}",
                fs::read_to_string(run.file(".log"))?
            );
            // Whoever asks takes the time of an emulated processor that the daemon starts on.
            pause(ASK_EVERY_S)?;
            Ok(answers::status(&self.device).ok())
        })?;
        Ok(daemon)
    }

    /// Runs a line to its end; gives back what it said on both outputs, and whether it succeeded.
    pub fn say(&self, line: &str) -> Result<(String, bool)> {
        let mut command = self.enter(&["sh", "-c", line])?;
        say(&mut command)
    }

    /// A line that is one command: that is the process.
    pub fn start(&self, line: &str) -> Result<Process> {
        Process::spawn_logged(self.enter(&["sh", "-c", &format!("exec {line}")])?, &self.log)
    }

    /// What arrives of a command while it runs.
    pub fn limited(
        &mut self,
        line: &str,
        warmup_s: f64,
        seconds: f64,
        run: &Run,
        outcome: &mut Outcome,
    ) -> Result<f64> {
        run.progress.tick(line);
        let upload = self.start(line)?;
        pause(warmup_s)?;
        let before = self.arrivals()?;
        pause(seconds)?;
        let mbit = self.arrivals()?.since(&before).mbit("tcp:443", seconds);
        drop(upload);
        outcome.note(
            run.name,
            line,
            &format!("{mbit:.2} Mbit/s at the remote host; {}", self.words()?),
        );
        Ok(mbit)
    }

    /// What a command fetches into a file while it runs.
    pub fn fetched(&self, line: &str, name: &str, warmup_s: f64, seconds: f64, run: &Run) -> Result<f64> {
        run.progress.tick(line);
        let bytes = || fs::metadata(self.file("home").join(name)).map_or(0, |about| about.len());
        let download = self.start(line)?;
        pause(warmup_s)?;
        let before = bytes();
        pause(seconds)?;
        let mbit = (bytes() - before) as f64 * 8e-6 / seconds;
        drop(download);
        Ok(mbit)
    }

    /// What the lines that were started have said, the last line of it.
    pub fn words(&self) -> Result<String> {
        let said = fs::read_to_string(&self.log)?;
        Ok(said
            .lines()
            .rfind(|line| line.contains("giveway"))
            .unwrap_or("it said nothing")
            .to_owned())
    }

    /// As systemd would start a unit.
    pub fn start_in(&mut self, unit: &str, line: &str) -> Result<Process> {
        let cgroup = Cgroup::make(&format!("gwlab{}.slice/{unit}", std::process::id()))?;
        let line = format!("echo $$ >{}/cgroup.procs; exec {line}", cgroup.folder.display());
        self.cgroups.insert(0, cgroup);
        Process::spawn_logged(self.enter(&["sh", "-c", &line])?, &self.log)
    }

    /// An unmodified program that sends to the port of the robot's commands.
    pub fn start_control(&self, mbit: f64) -> Result<Process> {
        let offer = Offer::udp(format!("{FAR_ADDRESS}:{CONTROL_PORT}").parse()?, mbit);
        Role::start(&self.device, "reach-sender", &offer)?.into_process()
    }

    pub fn start_flood(&self) -> Result<Process> {
        start_sender(&self.device, FAR_ADDRESS, SINK_PORT, "cubic")
    }

    pub fn arrivals(&mut self) -> Result<Counted> {
        self.arrivals.read().map(Counted)
    }

    /// Of the connections to a port: class, rule and reason.
    pub fn class_at(&self, port: u16) -> Result<String> {
        let status = answers::status(&self.device)?;
        let flow = status.network.flows.iter().find(|flow| flow.flow.remote.port() == port);
        let shown = flow.map(|flow| format!("{}, by {}: {}", flow.class.name(), flow.class_rule, flow.class_reason));
        Ok(shown.unwrap_or_else(|| "no connection".into()))
    }

    /// Whether the remote host has what was sent there.
    pub fn has_photos(&self) -> Result<bool> {
        let sent = fs::read(self.file("home/photos/one.jpg"))?;
        Ok(fs::read(self.file("remote/photos/one.jpg")).is_ok_and(|arrived| arrived == sent))
    }
}

/// By port and mark.
pub struct Counted(ByteCounts);

impl Counted {
    pub fn since(&self, before: &Counted) -> Counted {
        let since = |(kind, bytes): (&String, &u64)| (kind.clone(), bytes - before.0.get(kind).unwrap_or(&0));
        Counted(self.0.iter().map(since).filter(|(_, bytes)| *bytes > 0).collect())
    }

    fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        let marks = move |(of, bytes): (&'a String, &u64)| Some((of.strip_prefix(kind)?, *bytes));
        self.0
            .iter()
            .filter_map(marks)
            .filter(|(mark, _)| mark.is_empty() || mark.starts_with(' '))
    }

    pub fn mbit(&self, kind: &str, seconds: f64) -> f64 {
        self.of(kind).map(|(_, bytes)| bytes).sum::<u64>() as f64 * 8e-6 / seconds
    }

    /// Of the bytes, how many are marked as background.
    pub fn marked_percent(&self, kind: &str) -> Option<f64> {
        let is_marked = |mark: &str| BACKGROUND_MARKS.iter().any(|dscp| mark == format!(" dscp {dscp}"));
        let all: u64 = self.of(kind).map(|(_, bytes)| bytes).sum();
        let marked: u64 = self
            .of(kind)
            .filter(|(mark, _)| is_marked(mark))
            .map(|(_, bytes)| bytes)
            .sum();
        (all > 0).then(|| 100.0 * marked as f64 / all as f64)
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let parts: Vec<_> = self
            .0
            .iter()
            .map(|(kind, bytes)| format!("{kind} {bytes} bytes"))
            .collect();
        to.write_str(&parts.join(", "))
    }
}

/// What the commands find.
fn furnish(folder: &Path) -> Result<()> {
    for name in [
        "etc/giveway/rules.d",
        "etc/ssl/certs",
        "programs",
        "bin",
        "home/photos",
        "home/.ssh",
        "remote",
        "sshd",
    ] {
        fs::create_dir_all(folder.join(name)).with_context(|| format!("cannot make {name}"))?;
    }
    fs::set_permissions(folder.join("home/.ssh"), fs::Permissions::from_mode(0o700))?;
    let home = folder.join("home").display().to_string();
    for (name, text) in [
        ("etc/passwd", format!("root:x:0:0::{home}:/bin/sh\n{USERS}")),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n".into()),
        (
            "etc/hosts",
            format!("127.0.0.1 localhost\n{FAR_ADDRESS} nas example.org\n"),
        ),
        (
            "etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\n".into(),
        ),
        ("certificate", CERTIFICATE.into()),
        ("bin/sudo", "#!/bin/sh\nexec \"$@\"\n".into()),
    ] {
        fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    fs::set_permissions(folder.join("bin/sudo"), fs::Permissions::from_mode(0o755))?;
    if let Ok(cache) = fs::read("/etc/ld.so.cache") {
        fs::write(folder.join("etc/ld.so.cache"), cache)?;
    }
    for entry in fs::read_dir("/usr/bin")? {
        let name = entry?.file_name();
        let at = folder.join("bin").join(&name);
        if !at.exists() && !["giveway", "camera", "sudo"].iter().any(|own| name == *own) {
            symlink(folder.join("programs").join(&name), at)?;
        }
    }
    symlink(outside(&binary()?, folder), folder.join("bin/giveway"))?;
    fs::copy(find("sleep")?, folder.join("bin/camera"))?;
    let photo = folder.join("home/photos/one.jpg");
    let mut random = std::io::Read::take(File::open("/dev/urandom")?, PHOTO_BYTES);
    std::io::copy(&mut random, &mut File::create(photo)?)?;
    // What is in it counts for nothing, and to write it takes an emulated machine half a minute.
    File::create(folder.join("home/video.mkv"))?.set_len(VIDEO_BYTES)?;
    certify(folder)
}

/// The remote host's certificate, which the device trusts.
fn certify(folder: &Path) -> Result<()> {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=example.org";
    let mut openssl = Command::new(find("openssl")?);
    openssl.args(words.split(' '));
    openssl.arg("-config").arg(folder.join("certificate"));
    openssl.arg("-keyout").arg(folder.join("key"));
    openssl
        .arg("-out")
        .arg(folder.join("etc/ssl/certs/ca-certificates.crt"));
    run_to_its_end(openssl).map(drop)
}

/// Where a program is for whoever has entered.
fn outside(program: &Path, folder: &Path) -> PathBuf {
    match program.strip_prefix("/usr/bin") {
        Ok(name) => folder.join("programs").join(name),
        Err(_) => program.to_owned(),
    }
}
