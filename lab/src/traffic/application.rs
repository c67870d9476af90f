// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs of a device that upload by TCP: a live stream, or files one after the other. The role `application` waits
//! for `start`, sends, and reports when each part (a frame, a file) was made and had come, and what its socket showed
//! meanwhile; a stream lasts until its input ends. The role `application-sink` is the server of all: it notes when each
//! part has come. Neither judges.

use std::io::{BufReader, Read, Write, stdin};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use crate::calls::tcp_info;
use crate::namespace::Namespace;
use crate::role::Role;
use crate::traffic::realtime::{monotonic_ns, sleep_until};

const PORT: u16 = 5_400;
const CHUNK_BYTES: usize = 64 * 1024;
pub const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Of one connection: half a day of frames.
const MOST_PARTS: usize = 1_000_000;

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum ApplicationKind {
    /// A frame every so often, all in one connection.
    Stream { frame_bytes: u64, every_ms: u64 },
    /// Each in a connection of its own, after the one before has come.
    Files { count: u64, bytes: u64 },
}

/// What one sent.
#[derive(Default, Deserialize, Serialize)]
pub struct UploadReport {
    pub begun_ns: u64,
    pub parts: Vec<SentPart>,
    pub samples: Vec<SocketSample>,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct SentPart {
    pub made_ns: u64,
    /// All of it, at the server.
    pub arrived_ns: u64,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct SocketSample {
    pub at_ns: u64,
    pub cwnd: u32,
    pub rtt_us: u32,
}

/// The server of all applications, as long as it is held.
pub fn start_sink(server: &Namespace) -> Result<Role> {
    Role::start(server, "application-sink", &())
}

/// Waits for `start`; a stream ends when its role is told to finish.
pub fn prepare(at: &Namespace, server: &str, kind: ApplicationKind) -> Result<Role> {
    Role::start(at, "application", &(server, kind))
}

impl UploadReport {
    /// Until all had come.
    pub fn completion_s(&self) -> Option<f64> {
        let last = self.parts.last()?;
        Some(last.arrived_ns.saturating_sub(self.begun_ns) as f64 / 1e9)
    }
}

/// The role `application`.
pub fn run(description: &str) -> Result<()> {
    let (server, kind): (Ipv4Addr, ApplicationKind) = serde_json::from_str(description)?;
    println!("ready");
    let mut word = String::new();
    stdin().read_line(&mut word)?;
    ensure!(word.trim() == "start", "unknown command `{}`", word.trim());
    let lasts = std::thread::spawn(|| stdin().read_to_end(&mut Vec::new()));
    let mut sent = UploadReport {
        begun_ns: monotonic_ns()?,
        ..UploadReport::default()
    };
    match kind {
        ApplicationKind::Stream { frame_bytes, every_ms } => {
            let frame = vec![0; usize::try_from(frame_bytes)?];
            sent.connection(server, frame_bytes, |connection| {
                connection.set_nodelay(true)?;
                let mut made = Vec::new();
                while !lasts.is_finished() && made.len() < MOST_PARTS {
                    let due_ns =
                        made.first().copied().unwrap_or(monotonic_ns()?) + made.len() as u64 * every_ms * 1_000_000;
                    sleep_until(due_ns)?;
                    connection.write_all(&frame)?;
                    made.push(due_ns);
                }
                Ok(made)
            })?;
        }
        ApplicationKind::Files { count, bytes } => {
            for _ in 0..count {
                sent.connection(server, bytes, |connection| {
                    let made_ns = monotonic_ns()?;
                    std::io::copy(&mut std::io::repeat(0).take(bytes), connection)?;
                    Ok(vec![made_ns])
                })?;
            }
        }
    }
    println!("{}", serde_json::to_string(&sent)?);
    Ok(())
}

impl UploadReport {
    /// One connection, on which `send` writes parts of this size; it gives back when it made each.
    fn connection(
        &mut self,
        server: Ipv4Addr,
        part_bytes: u64,
        send: impl FnOnce(&mut TcpStream) -> Result<Vec<u64>>,
    ) -> Result<()> {
        // Before it connects: giveway leaves alone what is chosen after it has seen the socket.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("cannot make a socket")?;
        socket.set_tcp_congestion(b"cubic").context("cannot choose CUBIC")?;
        let server = SocketAddr::from((server, PORT));
        socket.connect(&server.into()).context("cannot reach the server")?;
        let mut connection = TcpStream::from(socket);
        connection.write_all(&part_bytes.to_be_bytes())?;
        let watched = connection.try_clone()?;
        let (done, ended) = channel::<()>();
        let watch = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while ended.recv_timeout(SAMPLE_EVERY) == Err(RecvTimeoutError::Timeout) {
                samples.extend(sample(&watched));
            }
            samples
        });
        let made = send(&mut connection).context("the connection broke")?;
        connection.shutdown(std::net::Shutdown::Write)?;
        let mut arrivals = Vec::new();
        connection
            .read_to_end(&mut arrivals)
            .context("the server did not answer")?;
        drop(done);
        self.samples
            .extend(watch.join().ok().context("the watch of the socket panicked")?);
        let (arrivals, rest) = arrivals.as_chunks();
        ensure!(
            rest.is_empty() && arrivals.len() == made.len(),
            "the server has {} of {} parts",
            arrivals.len(),
            made.len()
        );
        let part = |(made_ns, arrived): (u64, &[u8; 8])| SentPart {
            made_ns,
            arrived_ns: u64::from_be_bytes(*arrived),
        };
        self.parts.extend(made.into_iter().zip(arrivals).map(part));
        Ok(())
    }
}

fn sample(socket: &TcpStream) -> Result<SocketSample> {
    let info = tcp_info(socket)?;
    Ok(SocketSample {
        at_ns: monotonic_ns()?,
        cwnd: info.tcpi_snd_cwnd,
        rtt_us: info.tcpi_rtt,
    })
}

/// The role `application-sink`.
pub fn run_sink(_description: &str) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).context("cannot listen")?;
    println!("listening");
    for connection in listener.incoming() {
        let connection = connection?;
        std::thread::spawn(move || {
            if let Err(error) = note_parts(connection) {
                eprintln!("giveway-lab application-sink: {error:#}");
            }
        });
    }
    Ok(())
}

/// Answers, when the sender has ended, with the times at which each part had come.
fn note_parts(connection: TcpStream) -> Result<()> {
    let mut incoming = BufReader::with_capacity(CHUNK_BYTES, connection);
    let mut size = [0; 8];
    incoming.read_exact(&mut size)?;
    let part_bytes = u64::from_be_bytes(size);
    let mut arrivals: Vec<u8> = Vec::new();
    while std::io::copy(&mut incoming.by_ref().take(part_bytes), &mut std::io::sink())? == part_bytes {
        arrivals.extend(monotonic_ns()?.to_be_bytes());
        ensure!(
            part_bytes > 0 && arrivals.len() <= 8 * MOST_PARTS,
            "more parts than any stream has"
        );
    }
    incoming.get_mut().write_all(&arrivals)?;
    Ok(())
}
