// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where one cell is tried: a device, a remote host, what stands between the command and the link, and the daemon.
//! Input: the way. Output: what arrives at the other end, and what giveway says of it: at the request, in its status, in
//! `why` of the sending process, in its log.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::sender::{Offer, SocketKind};
use super::{LIMIT_MBIT, OFFERED_MBIT, SendingPath};
use crate::channel::STATION_DEVICE;
use crate::experiment::Run;
use crate::giveway::{Daemon, answers, binary, wait_until_queued};
use crate::interrupt::wait_until;
use crate::namespace::Namespace;
use crate::network::{PEER_ADDRESS, pair, raise_pair};
use crate::process::{Process, run as run_to_its_end};
use crate::role::Role;
use crate::traffic::arrivals::ArrivalCounter;
use crate::traffic::endless::start_sink;

const PORT: u16 = 5_550;
const TUNNEL_PORT: u16 = 7_777;
const WIREGUARD_PORT: u16 = 51_820;
/// The daemons' reports to peers are none of the command's.
const REPORTS: &str = "udp:339";
const LINK_MBIT: f64 = 100.0;
/// With root's.
const COMMANDS: usize = 16;
const QUEUE_LIMIT: Duration = Duration::from_secs(60);
/// Words that say that a limit does not hold. What a test of the daemon requires is more: here it is enough that a reader
/// who looks for it finds it.
const SAYS: &[&str] = &[
    "not enforced",
    "not held",
    "running the command without it",
    "dry run",
    "all changes are undone",
];

/// Fields go in this order: what runs, then where it runs.
pub struct ReachTestbed {
    way: SendingPath,
    beside: Vec<Process>,
    sender: Option<Role>,
    sends: Option<u32>,
    pause: Option<UnixStream>,
    daemon: Option<Daemon>,
    _tunnel: Option<Role>,
    _sink: Role,
    arrivals: ArrivalCounter,
    /// In which the command goes on, if in another one.
    inner: Option<Namespace>,
    device: Namespace,
    _far: Namespace,
    stderr: PathBuf,
}

impl ReachTestbed {
    pub fn raise(way: SendingPath, run: &Run) -> Result<Self> {
        let (device, far) = raise_pair()?;
        let (inner, tunnel) = lay(way, &device, &far, run)?;
        let counted = if way == SendingPath::Loopback { &device } else { &far };
        Ok(Self {
            way,
            beside: Vec::new(),
            sender: None,
            sends: None,
            pause: None,
            daemon: None,
            _tunnel: tunnel,
            _sink: start_sink(counted, &[PORT])?,
            arrivals: ArrivalCounter::count(counted)?,
            inner,
            device,
            _far: far,
            stderr: run.file(".stderr"),
        })
    }

    /// Its queue is active when this returns, where there is to be one.
    pub fn start_daemon(&mut self, run: &Run) -> Result<()> {
        let words: &[&str] = match self.way {
            SendingPath::NoDaemon => return Ok(()),
            SendingPath::SecondUplink => &[],
            SendingPath::DryRun => &["--interface", STATION_DEVICE, "--dry-run"],
            _ => &["--interface", STATION_DEVICE],
        };
        let mut configuration = json!({"cap": {"policy": "none"}, "link": {"rate_mbit": LINK_MBIT}});
        if self.way == SendingPath::SecondUplink {
            let uplink = |name: &str| json!({"interface": name, "rate_mbit": LINK_MBIT});
            configuration = json!({"cap": {"policy": "none"}, "uplink": [uplink(STATION_DEVICE), uplink(SECOND)]});
        }
        if self.way == SendingPath::KernelSocket {
            configuration["rule"] = json!([{
                "protocol": "udp", "port": WIREGUARD_PORT, "class": "bulk", "rate_limit_mbit": LIMIT_MBIT,
            }]);
        }
        let daemon = Daemon::raise_with(words, &self.device, &configuration, &run.file(""))?;
        if !matches!(self.way, SendingPath::NoQueue | SendingPath::DryRun) {
            wait_until_queued(&self.device)?;
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    /// What happens before the command is started.
    pub fn disturb_before(&mut self) -> Result<()> {
        match self.way {
            SendingPath::Paused => self.pause = Some(pause(&self.device)?),
            SendingPath::TooMany => {
                for _ in 0..COMMANDS {
                    let mut command = self.device.command(binary()?)?;
                    command.args(limited()).args(["sleep", "600"]);
                    self.beside.push(Process::spawn(command)?);
                }
                let begun = self.beside.iter().map(Process::id).collect::<Vec<_>>();
                wait_until("the other commands to run", QUEUE_LIMIT, || {
                    let runs = |id: &i32| {
                        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "sleep")
                    };
                    Ok(begun.iter().all(runs))
                })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The command, with its limit where that is not a rule's.
    pub fn start_sender(&mut self, kind: SocketKind, run: &Run) -> Result<()> {
        let (to, from) = match self.way {
            SendingPath::OtherNamespace => ("10.77.6.2", None),
            SendingPath::Unmanaged => ("10.77.9.2", None),
            SendingPath::SecondUplink => ("10.88.0.1", None),
            SendingPath::Macvlan => ("10.77.5.2", Some("10.77.5.1".parse()?)),
            SendingPath::Loopback => ("127.0.0.1", None),
            SendingPath::Tunnel | SendingPath::WireGuard | SendingPath::KernelSocket => ("10.77.8.2", None),
            _ => (PEER_ADDRESS, None),
        };
        let giveway = binary()?.display().to_string();
        let exec = || [giveway.clone()].into_iter().chain(limited().map(Into::into));
        let mut words: Vec<String> = match self.way {
            SendingPath::Shared | SendingPath::KernelSocket => Vec::new(),
            _ => exec().collect(),
        };
        let inner = self
            .inner
            .as_ref()
            .map(|inner| ["ip", "netns", "exec", inner.name()].map(String::from));
        words.extend(inner.into_iter().flatten());
        let offer = Offer {
            kind,
            from,
            device: STATION_DEVICE.into(),
            handed_to: if self.way == SendingPath::Shared {
                exec().collect()
            } else {
                Vec::new()
            },
            ..Offer::udp(SocketAddr::new(to.parse()?, PORT), OFFERED_MBIT)
        };
        words.push(std::env::current_exe()?.display().to_string());
        words.extend(["role".into(), "reach-sender".into(), serde_json::to_string(&offer)?]);
        let mut command = self.device.command(&words[0])?;
        command.args(&words[1..]).stderr(File::create(&self.stderr)?);
        let mut role = Role::run("reach-sender", command)?;
        let sends = role.answer();
        self.sends = Some(sends.with_context(|| fs::read_to_string(&self.stderr).unwrap_or_default())?);
        self.sender = Some(role);
        run.progress.tick("started");
        Ok(())
    }

    pub fn disturb_after(&mut self, run: &Run) -> Result<()> {
        if self.way == SendingPath::Restarted {
            self.end_daemon()?;
            self.start_daemon(run)?;
        }
        Ok(())
    }

    pub fn arrived(&mut self) -> Result<u64> {
        let counts = self.arrivals.read()?;
        // What a tunnel carried is counted once more where it comes out.
        let carried = match self.way {
            SendingPath::WireGuard | SendingPath::KernelSocket => Some(format!("udp:{WIREGUARD_PORT}")),
            _ => None,
        };
        let is_the_commands = |kind: &str| match &carried {
            Some(carrier) => kind.starts_with(carrier),
            None => !kind.starts_with(REPORTS) && !kind.starts_with("ether:"),
        };
        Ok(counts
            .iter()
            .filter(|(kind, _)| is_the_commands(kind))
            .map(|(_, bytes)| bytes)
            .sum())
    }

    /// Each place where it is said, with the first sentence there.
    pub fn said(&self, run: &Run) -> Result<Vec<(String, String)>> {
        let mut places = vec![("exec".to_owned(), fs::read_to_string(&self.stderr)?)];
        if self.daemon.is_some() {
            let ask = |words: &[&str]| -> Result<String> {
                Ok(String::from_utf8_lossy(&answers::ask(&self.device, words)?).into_owned())
            };
            let subject = match (self.way, self.sends) {
                (SendingPath::KernelSocket, _) => WIREGUARD_PORT.to_string(),
                (_, Some(pid)) => pid.to_string(),
                (_, None) => String::new(),
            };
            let (status, reason) = (ask(&["status"])?, ask(&["why", &subject])?);
            fs::write(run.file(".status"), &status)?;
            fs::write(run.file(".why"), &reason)?;
            places.push(("status".into(), status));
            places.push((
                format!(
                    "why {}",
                    if self.way == SendingPath::KernelSocket {
                        &subject
                    } else {
                        "PID"
                    }
                ),
                reason,
            ));
            places.push(("log".into(), fs::read_to_string(run.file(".log"))?));
        }
        let says = |text: &str| {
            let line = text.lines().find(|line| SAYS.iter().any(|words| line.contains(words)));
            line.map(|line| line.trim().to_owned())
        };
        Ok(places
            .into_iter()
            .filter_map(|(place, text)| Some((place, says(&text)?)))
            .collect())
    }

    fn end_daemon(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.stop())
    }

    pub fn end(mut self) -> Result<()> {
        drop(self.pause.take());
        drop(self.sender.take());
        self.beside.clear();
        self.end_daemon()
    }
}

/// The second link's device.
const SECOND: &str = "wlan1";

fn limited() -> [&'static str; 6] {
    const LIMIT: &str = "2mbit";
    ["exec", "--class", "bulk", "--up", LIMIT, "--"]
}

/// Nothing is active as long as this connection lives, as `giveway try` has it.
fn pause(at: &Namespace) -> Result<UnixStream> {
    let path = format!("/run/giveway/netns-{}/control", at.number()?);
    let mut connection = UnixStream::connect(&path).with_context(|| format!("cannot reach {path}"))?;
    connection.write_all(b"{\"request\":\"pause\",\"for_s\":120}\n")?;
    let mut answer = String::new();
    BufReader::new(&connection).read_line(&mut answer)?;
    let said: Value = serde_json::from_str(&answer)?;
    ensure!(said.get("error").is_none(), "no pause: {answer}");
    Ok(connection)
}

/// What is between the command and the link: the namespace in which it goes on, and the tunnel, where there are any.
fn lay(way: SendingPath, device: &Namespace, far: &Namespace, run: &Run) -> Result<(Option<Namespace>, Option<Role>)> {
    let (mut inner, mut tunnel) = (None, None);
    let second = || pair((device, SECOND, "10.77.9.1/24"), (far, SECOND, "10.77.9.2/24"));
    match way {
        SendingPath::OtherNamespace => {
            let inner = inner.insert(Namespace::create("inner")?);
            pair((inner, SECOND, "10.77.6.1/24"), (far, SECOND, "10.77.6.2/24"))?;
        }
        SendingPath::Forwarded => {
            let inner = inner.insert(Namespace::create("inner")?);
            pair((inner, SECOND, "10.77.7.2/24"), (device, SECOND, "10.77.7.1/24"))?;
            device.run("sysctl", "-qw net.ipv4.ip_forward=1")?;
            inner.ip("route add default via 10.77.7.1")?;
            far.ip("route add 10.77.7.0/24 via 10.77.1.1")?;
        }
        SendingPath::Unmanaged => second()?,
        SendingPath::SecondUplink => {
            second()?;
            far.ip("address add 10.88.0.1/32 dev lo")?;
            device.ip(&format!("route add default via {PEER_ADDRESS}"))?;
            device.ip("route add default via 10.77.9.2 table 100")?;
            device.ip("rule add to 10.88.0.0/16 lookup 100")?;
        }
        SendingPath::Macvlan => {
            device.ip(&format!("link add mv0 link {STATION_DEVICE} type macvlan mode bridge"))?;
            device.ip("address add 10.77.5.1/24 dev mv0")?;
            device.ip("link set mv0 up")?;
            far.ip(&format!("address add 10.77.5.2/24 dev {STATION_DEVICE}"))?;
        }
        SendingPath::Snat => {
            device.ip(&format!("address add 10.77.1.50/24 dev {STATION_DEVICE}"))?;
            let rules = "add table ip lab; add chain ip lab out { type nat hook postrouting priority srcnat; }; \
                         add rule ip lab out ip saddr 10.77.1.1 snat to 10.77.1.50";
            let mut nft = device.command("nft")?;
            nft.arg(rules);
            run_to_its_end(nft)?;
        }
        SendingPath::NoQueue => drop(device.tc(&format!(
            "qdisc add dev {STATION_DEVICE} root tbf rate 100mbit burst 10k latency 50ms"
        ))?),
        SendingPath::Tunnel => {
            let to = SocketAddrV4::new(PEER_ADDRESS.parse()?, TUNNEL_PORT);
            tunnel = Some(Role::start(device, "reach-tunnel", &("tun0", to))?);
            device.ip("address add 10.77.8.1/24 dev tun0")?;
            device.ip("link set tun0 up")?;
        }
        SendingPath::WireGuard | SendingPath::KernelSocket => raise_wireguard(device, far, run)?,
        _ => {}
    }
    Ok((inner, tunnel))
}

fn raise_wireguard(device: &Namespace, far: &Namespace, run: &Run) -> Result<()> {
    let key = |name: &str| -> Result<(PathBuf, String)> {
        let file = run.file(&format!(".{name}.key"));
        let private = run_to_its_end(command("wg", &["genkey"]))?.stdout;
        fs::write(&file, &private)?;
        let mut public = command("wg", &["pubkey"]);
        public.stdin(File::open(&file)?).stdout(Stdio::piped());
        let public = public.output().context("cannot start `wg`")?.stdout;
        Ok((file, String::from_utf8(public)?.trim().to_owned()))
    };
    let ends = [
        (device, key("device")?, "10.77.8.1", PEER_ADDRESS),
        (far, key("far")?, "10.77.8.2", "10.77.1.1"),
    ];
    for (number, (at, (file, _), address, other)) in ends.iter().enumerate() {
        let public = &ends[1 - number].1.1;
        at.ip("link add wg0 type wireguard")?;
        at.run(
            "wg",
            &format!(
                "set wg0 listen-port {WIREGUARD_PORT} private-key {} peer {public} allowed-ips 0.0.0.0/0 endpoint \
                 {other}:{WIREGUARD_PORT}",
                file.display()
            ),
        )?;
        at.ip(&format!("address add {address}/24 dev wg0"))?;
        at.ip("link set wg0 up")?;
    }
    Ok(())
}

fn command(program: &str, words: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    command.args(words);
    command
}
