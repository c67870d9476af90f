// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The role `abuser`: does the worst that its position allows, until standard input ends. Input: its position. Output:
//! how often it did something, in JSON. It never has root's rights on the machine.

use std::fs;
use std::io::{Read, Write, stdin};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use giveway_engine::model::{CaState, Class};
use giveway_engine::peers::codec::{MAX_CHALLENGED, MAX_SENDERS, Purpose, Report, Sender, UNLIMITED_KBIT};
use giveway_engine::peers::seal::{Keyring, VERSION};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::ClockId;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::link::wire::NOBODY_ADDRESS;
use crate::traffic::realtime::{PACKET_BYTES, monotonic_ns, send_due, send_with_deadlines};

pub const GRANTED_UID: u32 = 4_243;
const UNTRUSTED_UID: u32 = 4_242;
/// On the link, beside the honest peer's.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 9);
const GROUP_PORT: u16 = 339;
const SOCKETS: usize = 64;
const NOBODY_PORT: u16 = 5_009;
/// Beyond any clock.
const NEVER_NS: u64 = 1 << 62;
const IDLE_CONNECTIONS: usize = 64;
const RULES: usize = 32;
/// Per second, for each of junk and forged datagrams.
const DATAGRAMS_PER_S: u64 = 2_000;
const STARTS_EVERY: Duration = Duration::from_micros(12_500);

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Abuser {
    /// Without any grant.
    User,
    /// Granted real-time priority.
    Granted,
    /// A host on the link, without the group's key.
    Outsider,
    /// With the key.
    Member,
}

impl Abuser {
    pub fn is_on_the_machine(self) -> bool {
        matches!(self, Abuser::User | Abuser::Granted)
    }
}

#[derive(Deserialize, Serialize)]
pub struct AbuserOptions {
    pub abuser: Abuser,
    /// Without it, only the same number of ordinary flows.
    pub has_giveway: bool,
    pub control: String,
    pub giveway: PathBuf,
    pub key: String,
    /// The victim on the link.
    pub victim: String,
}

static ABUSES: AtomicU64 = AtomicU64::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);

fn goes_on() -> bool {
    ABUSES.fetch_add(1, Ordering::Relaxed);
    !ENDS.load(Ordering::Relaxed)
}

/// The role `abuser`; it begins with its first line.
pub fn run(about: AbuserOptions) -> Result<u64> {
    let text = fs::read_to_string(&about.key).context("no key")?;
    let keyring = Keyring::parse(&text)?;
    match about.abuser {
        Abuser::User => become_user(UNTRUSTED_UID)?,
        Abuser::Granted => become_user(GRANTED_UID)?,
        Abuser::Outsider | Abuser::Member => {}
    }
    println!();
    std::thread::scope(|scope| {
        let about = &about;
        match about.abuser {
            Abuser::User | Abuser::Granted => {
                scope.spawn(|| send_without_end(about.has_giveway));
                if about.has_giveway {
                    scope.spawn(|| hold_connections(&about.control));
                    scope.spawn(|| ask_without_end(&about.control));
                    scope.spawn(|| limit_without_end(&about.control));
                    scope.spawn(|| start_without_end(about));
                }
                if about.has_giveway && about.abuser == Abuser::Granted {
                    add_rules(&about.control);
                    scope.spawn(|| spin_with_priority(about));
                }
            }
            Abuser::Outsider => drop(scope.spawn(|| forge(None))),
            Abuser::Member => drop(scope.spawn(|| forge(Some(&keyring)))),
        }
        let _ = stdin().read_to_end(&mut Vec::new());
        ENDS.store(true, Ordering::Relaxed);
    });
    Ok(ABUSES.load(Ordering::Relaxed))
}

fn become_user(uid: u32) -> Result<()> {
    setgroups(&[])?;
    setgid(Gid::from_raw(uid))?;
    Ok(setuid(Uid::from_raw(uid))?)
}

/// Packets whose deadline never comes, from many sockets; without giveway, packets.
fn send_without_end(has_deadlines: bool) -> Result<()> {
    let socket = || -> Result<UdpSocket> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        if has_deadlines {
            send_with_deadlines(&socket, ClockId::CLOCK_MONOTONIC)?;
        }
        socket.set_nonblocking(true)?;
        socket.connect((NOBODY_ADDRESS, NOBODY_PORT))?;
        Ok(socket)
    };
    let sockets: Vec<_> = (0..SOCKETS).map(|_| socket()).collect::<Result<_>>()?;
    while goes_on() {
        for socket in &sockets {
            let now_ns = monotonic_ns()?;
            let sent = match has_deadlines {
                true => send_due::<PACKET_BYTES>(socket, (u32::MAX, 0), (now_ns, NEVER_NS), NEVER_NS).is_ok(),
                false => socket.send(&[0; PACKET_BYTES]).is_ok(),
            };
            if !sent {
                std::thread::yield_now();
            }
        }
    }
    Ok(())
}

/// Connections without requests, opened anew when the daemon closes them.
fn hold_connections(control: &str) {
    let mut held: Vec<UnixStream> = Vec::new();
    while goes_on() {
        held.retain_mut(|stream| {
            let _ = stream.set_nonblocking(true);
            !matches!(stream.read(&mut [0; 64]), Ok(0))
        });
        if held.len() < IDLE_CONNECTIONS {
            held.extend(UnixStream::connect(control));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Requests that a user may make, and ones that it may not.
fn ask_without_end(control: &str) {
    let requests = [
        r#"{"request":"status"}"#,
        r#"{"request":"launch","policy":"fifo","priority":10,"cpus":[]}"#,
        r#"{"request":"set","target":{"flow":{"address":"10.77.2.2","port":5005,"local_port":null}},"class":"background"}"#,
        r#"{"request":"stop"}"#,
        "{",
    ];
    for request in requests.iter().cycle() {
        if !goes_on() {
            return;
        }
        let _ = ask(control, request);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Limits its own flows, as fast as it is answered. Without other limits, the first one installs the ifb and its end
/// removes it.
fn limit_without_end(control: &str) {
    let target =
        format!(r#""target":{{"flow":{{"address":"{NOBODY_ADDRESS}","port":{NOBODY_PORT},"local_port":null}}}}"#);
    let set = format!(r#"{{"request":"set",{target},"upload_limit_mbit":2.0,"download_limit_mbit":2.0}}"#);
    let clear = format!(r#"{{"request":"clear",{target},"what":"limit"}}"#);
    for request in [set, clear].iter().cycle() {
        if !goes_on() {
            return;
        }
        let _ = ask(control, request);
    }
}

fn ask(control: &str, request: &str) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(control)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    writeln!(stream, "{request}")?;
    let mut answer = [0; 4_096];
    while stream.read(&mut answer)? > 0 {}
    Ok(())
}

/// Each with a command line that patterns take long to match.
fn start_without_end(about: &AbuserOptions) {
    let long = "a".repeat(4_000);
    while goes_on() {
        let mut command = Command::new("true");
        command
            .arg(&long)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let _ = command.status();
        // It also reads the daemon's files where it may.
        let _ = fs::read_dir(PathBuf::from(&about.control).parent().unwrap_or(&about.giveway));
        std::thread::sleep(STARTS_EVERY);
    }
}

fn add_rules(control: &str) {
    for number in 0..RULES {
        let pattern = format!("{}{number}", "*a".repeat(100));
        let rule = format!(
            r#"{{"request":"realtime_add","rule":{{"name":"abuse{number}","cmdline":"{pattern}","priority":10}}}}"#
        );
        let _ = ask(control, &rule);
    }
}

/// Started anew each time that it has lost its priority and ended.
fn spin_with_priority(about: &AbuserOptions) {
    while goes_on() {
        let mut command = Command::new(&about.giveway);
        command.args("exec --priority 10 -- timeout 2 sh -c".split(' '));
        command.arg("while :; do :; done");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.status();
    }
}

/// Datagrams for the group: junk, and reports under a key of its own or the group's.
fn forge(keyring: Option<&Keyring>) -> Result<()> {
    let socket = UdpSocket::bind((ADDRESS, 0))?;
    socket.set_broadcast(true)?;
    setsockopt(&socket, sockopt::Ipv4Ttl, &255)?;
    socket.connect((Ipv4Addr::BROADCAST, GROUP_PORT))?;
    let mut random = ChaCha20Rng::seed_from_u64(1);
    let mut number = 0_u64;
    let begun_ns = monotonic_ns()?;
    while goes_on() {
        number += 1;
        let _ = socket.send(&[0; 8]);
        let forged = match keyring {
            Some(keyring) => {
                let report = worst_report(number, &mut random)?;
                keyring.seal(&mut random, &report)
            }
            None => Some(junk_like_a_report(&mut random)),
        };
        if let Some(forged) = forged {
            let _ = socket.send(&forged);
        }
        let due_ns = begun_ns + number * 1_000_000_000 / DATAGRAMS_PER_S;
        let early_ns = due_ns.saturating_sub(monotonic_ns()?);
        std::thread::sleep(Duration::from_nanos(early_ns));
    }
    Ok(())
}

/// Of the right length, magic and version.
fn junk_like_a_report(random: &mut impl Rng) -> Vec<u8> {
    let mut datagram = vec![0; 87];
    random.fill_bytes(&mut datagram);
    datagram[..4].copy_from_slice(&[b'g', b'v', b'w', VERSION]);
    datagram
}

/// A new session every time, which claims all that can be claimed.
fn worst_report(number: u64, random: &mut impl Rng) -> Result<Vec<u8>> {
    let sender = Sender {
        cwnd_segments: u32::MAX,
        min_rtt_us: u32::MAX,
        srtt_us: 1,
        queue_bytes: u32::MAX,
        ca_state: CaState::Open,
        delivery_rate_kbit: u32::MAX,
        retransmits: u32::MAX,
        class: Class::Stream,
        demand_kbit: UNLIMITED_KBIT,
    };
    let report = Report {
        session: random.next_u64(),
        challenge: random.next_u64(),
        counter: number,
        interval_ms: 600_000,
        purpose: Purpose::Asking,
        challenged: vec![0; MAX_CHALLENGED],
        responses: vec![],
        senders: vec![sender; MAX_SENDERS],
    };
    Ok(report.encode()?)
}
