// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Transfers that never end by themselves, a probe of the queue beside them, and where both arrive.
//! The role `endless-sender` writes until it is killed, and then nothing of it is sent any more. The role `endless-probe`
//! sends a small datagram every so often, `endless-datagrams` full ones at a rate.
//! The role `endless-observed-sender` writes, too, as much as it can or at rates
//! that change, and notes the connection's smoothed round trip until its input ends. The role `endless-sink` notes when how much of what came, until its input ends.

pub mod rates;

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _, stdin};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockRef, Socket, Type};

use crate::calls::tcp_info;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::role::Role;
use crate::traffic::realtime::{monotonic_ns, sleep_until};

pub const BIN_NS: u64 = 20_000_000;
const PROBE_PORT: u16 = 5_450;
const PROBE_EVERY_NS: u64 = 20_000_000;
/// Nobody listens there.
pub const DISCARD_PORT: u16 = 9;
const DATAGRAM_BYTES: usize = 1_400;
const OBSERVED_EVERY: Duration = Duration::from_millis(50);
const CHUNK_BYTES: usize = 64 * 1024;
const PART_BYTES: usize = 8 * 1024;
const UNSENT_LIMIT_BYTES: u32 = 32 * 1024;
const WRITE_EVERY_NS: u64 = 5_000_000;

/// What has come.
#[derive(Clone, Default, Deserialize, Serialize)]
pub struct Arrivals {
    pub begun_ns: u64,
    /// Payload, by port and bin since then.
    pub bytes: BTreeMap<u16, Vec<u32>>,
    /// Of each probe: when it was sent, and its delay.
    pub probes_ns: Vec<(u64, u64)>,
}

/// What comes there by IPv4: TCP, and datagrams.
pub fn start_sink(at: &Namespace, ports: &[u16]) -> Result<Role> {
    Role::start(at, "endless-sink", &(ports, Ipv4Addr::UNSPECIFIED))
}

pub fn start_sink_v6(at: &Namespace, ports: &[u16]) -> Result<Role> {
    Role::start(at, "endless-sink", &(ports, Ipv6Addr::UNSPECIFIED))
}

/// Connected and writing when this returns; its packets go to this port.
pub fn start_sender(at: &Namespace, far: &str, port: u16, congestion: &str) -> Result<Process> {
    Role::start(at, "endless-sender", &(far, port, congestion))?.into_process()
}

/// As `start_sender`; it reports when it saw which smoothed round trip, nanoseconds and microseconds.
pub fn start_observed_sender(at: &Namespace, far: &str, port: u16, congestion: &str) -> Result<Role> {
    spawn_observed_sender(at, far, port, congestion, &[])?.ready()
}

/// Not waited for. From these moments on (nanoseconds, CLOCK_MONOTONIC) it writes so many Mbit/s; none: as much as it can.
pub fn spawn_observed_sender(
    at: &Namespace,
    far: &str,
    port: u16,
    congestion: &str,
    rates: &[(u64, Option<f64>)],
) -> Result<Role> {
    Role::spawn(at, "endless-observed-sender", &((far, port, congestion), rates))
}

pub fn start_probe(at: &Namespace, far: &str) -> Result<Process> {
    Role::start(at, "endless-probe", &far)?.into_process()
}

pub fn start_datagrams(at: &Namespace, far: &str, port: u16, mbit: f64) -> Result<Process> {
    Role::start(at, "endless-datagrams", &((far, port), mbit))?.into_process()
}

/// The role `endless-sender`.
pub fn run_sender(description: &str) -> Result<()> {
    let connection = connect(serde_json::from_str(description)?)?;
    write(connection, &[])
}

/// The role `endless-observed-sender`.
pub fn run_observed_sender(description: &str) -> Result<()> {
    let (to, rates): (_, Vec<(u64, Option<f64>)>) = serde_json::from_str(description)?;
    let connection = connect(to)?;
    let observed = connection.try_clone()?;
    if !rates.is_empty() {
        // What it wants less of is not still in its socket.
        let limited = SockRef::from(&connection).set_tcp_notsent_lowat(UNSENT_LIMIT_BYTES);
        limited.context("cannot limit the unsent data")?;
    }
    std::thread::spawn(move || write(connection, &rates));
    let (ended, ends) = channel::<()>();
    std::thread::spawn(move || {
        let _ = stdin().read_to_end(&mut Vec::new());
        drop(ended);
    });
    let mut rtts_us = Vec::new();
    while ends.recv_timeout(OBSERVED_EVERY) == Err(RecvTimeoutError::Timeout) {
        rtts_us.push((monotonic_ns()?, tcp_info(&observed)?.tcpi_rtt));
    }
    println!("{}", serde_json::to_string(&rtts_us)?);
    Ok(())
}

pub fn connect((far, port, congestion): (IpAddr, u16, String)) -> Result<TcpStream> {
    // Before it connects: giveway leaves alone what is chosen after it has seen the socket.
    let far = SocketAddr::from((far, port));
    let socket = Socket::new(Domain::for_address(far), Type::STREAM, None).context("cannot make a socket")?;
    setsockopt(&socket, sockopt::TcpCongestion, &congestion.as_str().into())
        .with_context(|| format!("this kernel has no TCP `{congestion}`"))?;
    socket.connect(&far.into()).context("cannot reach the remote host")?;
    let connection = TcpStream::from(socket);
    // What waits in the socket goes with the process.
    SockRef::from(&connection).set_linger(Some(Duration::ZERO))?;
    println!("connected");
    Ok(connection)
}

/// Until it breaks, at the rate of the moment.
pub fn write(mut connection: TcpStream, rates: &[(u64, Option<f64>)]) -> Result<()> {
    let zeros = [0; CHUNK_BYTES];
    // Small where the rate changes, as nothing ends a write.
    let most = if rates.is_empty() { CHUNK_BYTES } else { PART_BYTES };
    let mut written_ns = monotonic_ns()?;
    loop {
        let now_ns = monotonic_ns()?;
        let latest = rates.iter().rev().find(|(from_ns, _)| *from_ns <= now_ns);
        let bytes = match latest.and_then(|(_, mbit)| *mbit) {
            Some(mbit) => {
                sleep_until(now_ns + WRITE_EVERY_NS)?;
                let passed_ns = monotonic_ns()? - written_ns;
                ((mbit * passed_ns as f64 / 8e3) as usize).min(most)
            }
            None => most,
        };
        written_ns = monotonic_ns()?;
        connection.write_all(&zeros[..bytes]).context("the transfer broke")?;
    }
}

/// The role `endless-probe`.
pub fn run_probe(description: &str) -> Result<()> {
    let far: Ipv4Addr = serde_json::from_str(description)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    println!("ready");
    let mut due_ns = monotonic_ns()?;
    loop {
        let sent_ns = monotonic_ns()?;
        // What is refused is lost like any other.
        let _ = socket.send_to(&sent_ns.to_ne_bytes(), (far, PROBE_PORT));
        due_ns += PROBE_EVERY_NS;
        sleep_until(due_ns)?;
    }
}

/// The role `endless-datagrams`.
pub fn run_datagrams(description: &str) -> Result<()> {
    let (to, mbit): ((Ipv4Addr, u16), f64) = serde_json::from_str(description)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    println!("ready");
    let every_ns = (DATAGRAM_BYTES as f64 * 8e3 / mbit) as u64;
    let mut due_ns = monotonic_ns()?;
    loop {
        // What is refused is lost like any other.
        let _ = socket.send_to(&[0; DATAGRAM_BYTES], to);
        due_ns += every_ns;
        sleep_until(due_ns)?;
    }
}

/// The role `endless-sink`.
pub fn run_sink(description: &str) -> Result<()> {
    let (ports, at): (Vec<u16>, IpAddr) = serde_json::from_str(description)?;
    let arrivals = Arc::new(Mutex::new(Arrivals {
        begun_ns: monotonic_ns()?,
        ..Arrivals::default()
    }));
    let probes = UdpSocket::bind(("0.0.0.0", PROBE_PORT))?;
    let of = arrivals.clone();
    std::thread::spawn(move || while note_probe(&probes, &of).is_ok() {});
    for port in ports {
        let listening = || format!("cannot listen on port {port}");
        let datagrams = UdpSocket::bind((at, port)).with_context(listening)?;
        let of = arrivals.clone();
        std::thread::spawn(move || note(|buffer| receive(&datagrams, buffer), port, &of));
        let listener = TcpListener::bind((at, port)).with_context(listening)?;
        let of = arrivals.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let of = of.clone();
                std::thread::spawn(move || swallow(connection, port, &of));
            }
        });
    }
    println!("listening");
    stdin().read_to_end(&mut Vec::new())?;
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{}", serde_json::to_string(&*arrivals)?);
    Ok(())
}

/// Who only listens is not known: it sends something, as receivers of real streams do.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<usize> {
    let (bytes, from) = socket.recv_from(buffer)?;
    // What is refused is lost like any other.
    let _ = socket.send_to(&[0], from);
    Ok(bytes)
}

fn note_probe(socket: &UdpSocket, arrivals: &Mutex<Arrivals>) -> Result<()> {
    let mut sent = [0; 8];
    socket.recv(&mut sent)?;
    let sent_ns = u64::from_ne_bytes(sent);
    let delay_ns = monotonic_ns()?.saturating_sub(sent_ns);
    let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    arrivals.probes_ns.push((sent_ns, delay_ns));
    Ok(())
}

/// Until it breaks: a reset is how a transfer ends here.
pub fn swallow(mut connection: TcpStream, port: u16, arrivals: &Mutex<Arrivals>) {
    note(|buffer| connection.read(buffer), port, arrivals);
}

fn note(mut read: impl FnMut(&mut [u8]) -> io::Result<usize>, port: u16, arrivals: &Mutex<Arrivals>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let (Ok(read @ 1..), Ok(now_ns)) = (read(&mut buffer), monotonic_ns()) {
        let mut arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        let bin = ((now_ns - arrivals.begun_ns) / BIN_NS) as usize;
        let bins = arrivals.bytes.entry(port).or_default();
        bins.resize(bins.len().max(bin + 1), 0);
        bins[bin] += read as u32;
    }
}
