// SPDX-License-Identifier: Apache-2.0 OR MIT
//! HTTP/1.1 over TCP as P0 measures it, one connection a request, and an upload beside it that never ends.
//! The role `far-end` serves GET and POST of any size, swallows the upload, and says on standard input's request how
//! much of it has come. The role `http` makes the requests that it is told, one at a time, and says how long each
//! took, what the processors spent and when the background was out of its way. The role `upload` writes until it is
//! killed, marked in every way that a queue may look at. Nothing here decides when.

mod message;

use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, setsockopt, socket, sockopt};
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::namespace::Namespace;
use crate::process::Process;
use crate::role::Role;
use crate::uplink::watch::{LinkEnd, LinkReading, LinkWatch};
use message::{read_head, swallow, with_body};

const HTTP_PORT: u16 = 80;
pub const SINK_PORT: u16 = 5300;
/// P0's kilobyte.
pub const KB: u64 = 1_000;
const CHUNK_BYTES: usize = 16 * 1024;
/// Of a body, so that nobody can make the server promise more than it has memory for.
const LARGEST_BYTES: u64 = 100_000_000;
/// DSCP LE (RFC 8622), as the whole former TOS byte.
const TOS_LOWER_EFFORT: i32 = 0b000001 << 2;
/// The background's SO_PRIORITY.
const PRIORITY_FILLER: i32 = 1;

#[derive(Clone, Copy, Debug, Deserialize, IntoStaticStr, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum HttpMethod {
    Get,
    Post,
}

/// One request, as the client saw it.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
pub struct Completed {
    pub seconds: f64,
    /// Of all processors.
    pub busy_ns: u64,
    /// From its first packet in the queue until the background was out of the way: until no packet of it began to be
    /// sent any more while one of the request's waited. One that is on the link already cannot be revoked: its rest
    /// counts.
    pub yielded_ns: u64,
}

/// What the client is asked to do.
#[derive(Deserialize, Serialize)]
enum Request {
    Fetch { method: HttpMethod, bytes: u64 },
    Carried,
}

/// The server and the upload's sink, as the lab holds them.
pub struct RemoteHost(Role);

impl RemoteHost {
    pub fn start(at: &Namespace) -> Result<Self> {
        Role::start(at, "far-end", &()).map(Self)
    }

    /// What of the upload has come, since the start.
    pub fn received_bytes(&mut self) -> Result<u64> {
        self.0.ask("received")
    }
}

/// The foreground program, as the lab holds it.
pub struct Client(Role);

impl Client {
    /// Whom it asks, and the link on which it watches what it and the background get.
    pub fn start(at: &Namespace, far: Ipv4Addr, link: Option<LinkEnd>) -> Result<Self> {
        Role::start(at, "http", &(far, link)).map(Self)
    }

    pub fn request(&mut self, method: HttpMethod, bytes: u64) -> Result<Completed> {
        self.0.ask(serde_json::to_string(&Request::Fetch { method, bytes })?)
    }

    pub fn carried(&mut self) -> Result<LinkReading> {
        self.0.ask(serde_json::to_string(&Request::Carried)?)
    }
}

/// The background program at nice 19, connected and writing.
pub fn start_upload(at: &Namespace, far: Ipv4Addr, congestion: &str) -> Result<Process> {
    let upload = Role::spawn_through(&["nice", "-n", "19"], at, "upload", &(far, congestion))?;
    upload.ready()?.into_process()
}

/// The role `upload`.
pub fn run_upload(description: &str) -> Result<()> {
    let (far, congestion): (Ipv4Addr, String) = serde_json::from_str(description)?;
    let mut connection = reach(far, SINK_PORT, |fd| {
        setsockopt(fd, sockopt::TcpCongestion, &congestion.as_str().into())
            .with_context(|| format!("this kernel has no TCP `{congestion}`"))?;
        setsockopt(fd, sockopt::Ipv4Tos, &TOS_LOWER_EFFORT)?;
        // After the former TOS, which sets a priority of its own.
        setsockopt(fd, sockopt::Priority, &PRIORITY_FILLER).map_err(Into::into)
    })?;
    println!("connected");
    let zeros = [0; CHUNK_BYTES];
    loop {
        connection.write_all(&zeros).context("the upload broke")?;
    }
}

/// The role `http`.
pub fn run_client(description: &str) -> Result<()> {
    let (far, link): (Ipv4Addr, Option<LinkEnd>) = serde_json::from_str(description)?;
    let watch = link.map(|link| LinkWatch::begin(&link, HTTP_PORT, SINK_PORT));
    let mut watch = watch.transpose()?;
    println!("ready");
    for line in std::io::stdin().lines() {
        let answer = match serde_json::from_str(&line?).context("this is not a request")? {
            Request::Fetch { method, bytes } => {
                let request = request_of(method, far, bytes);
                serde_json::to_string(&measure(watch.as_mut(), || fetch(far, &request))?)?
            }
            Request::Carried => {
                serde_json::to_string(&watch.as_ref().map_or(Ok(LinkReading::default()), LinkWatch::reading)?)?
            }
        };
        println!("{answer}");
    }
    Ok(())
}

fn request_of(method: HttpMethod, host: Ipv4Addr, bytes: u64) -> Vec<u8> {
    let rest = format!("HTTP/1.1\r\nHost: {host}");
    match method {
        HttpMethod::Get => format!("GET /{bytes} {rest}\r\nConnection: close\r\n\r\n").into_bytes(),
        HttpMethod::Post => {
            let length = format!("Content-Length: {bytes}");
            with_body(format!("POST / {rest}\r\n{length}\r\nConnection: close\r\n\r\n"), bytes)
        }
    }
}

/// From before the connection to the response's last byte; without a watch there is only the time.
fn measure(watch: Option<&mut LinkWatch>, fetch: impl FnOnce() -> Result<()>) -> Result<Completed> {
    let Some(watch) = watch else {
        let begun = Instant::now();
        fetch()?;
        return Ok(Completed {
            seconds: begun.elapsed().as_secs_f64(),
            ..Completed::default()
        });
    };
    watch.forget_waits()?;
    let (begun, before) = (Instant::now(), watch.reading()?);
    fetch()?;
    let (seconds, after) = (begun.elapsed().as_secs_f64(), watch.reading()?);
    let waits = watch.waits()?;
    Ok(Completed {
        seconds,
        busy_ns: after.busy_ns - before.busy_ns,
        yielded_ns: match waits.last_behind_ns {
            0 => waits.first_wait_ns,
            last => last - waits.first_queued_ns,
        },
    })
}

fn fetch(far: Ipv4Addr, request: &[u8]) -> Result<()> {
    let mut connection = reach(far, HTTP_PORT, use_cubic)?;
    connection.set_nodelay(true)?;
    connection.write_all(request)?;
    let mut answer = BufReader::with_capacity(CHUNK_BYTES, connection);
    let head = read_head(&mut answer)?.context("the server closed without an answer")?;
    let status = head.start.as_str();
    ensure!(status.starts_with("HTTP/1.1 200 "), "the server says `{status}`");
    swallow(&mut answer, head.content_length)
}

fn use_cubic(fd: &std::os::fd::OwnedFd) -> Result<()> {
    setsockopt(fd, sockopt::TcpCongestion, &"cubic".into()).context("cannot choose CUBIC")
}

/// A connection to the remote host whose socket was prepared before its first packet.
fn reach(far: Ipv4Addr, port: u16, prepare: impl FnOnce(&std::os::fd::OwnedFd) -> Result<()>) -> Result<TcpStream> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    prepare(&fd)?;
    let address = SocketAddrV4::new(far, port);
    connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::from(address))
        .context("cannot reach the remote host")?;
    Ok(fd.into())
}

/// The role `far-end`.
pub fn run_remote_host(_description: &str) -> Result<()> {
    let (http, sink) = (listen(HTTP_PORT)?, listen(SINK_PORT)?);
    let received = Arc::new(AtomicU64::new(0));
    let count = received.clone();
    std::thread::spawn(move || for_each(&sink, |connection| count_bytes(connection, &count)));
    std::thread::spawn(move || for_each(&http, serve));
    println!("listening");
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "received" => println!("{}", received.load(Ordering::Relaxed)),
            other => bail!("unknown request `{other}`"),
        }
    }
    Ok(())
}

fn listen(port: u16) -> Result<TcpListener> {
    let listener = TcpListener::bind(("0.0.0.0", port)).with_context(|| format!("cannot listen on port {port}"))?;
    // Inherited by every connection.
    setsockopt(&listener, sockopt::TcpCongestion, &"cubic".into()).context("cannot choose CUBIC")?;
    Ok(listener)
}

fn for_each(listener: &TcpListener, handle: impl Fn(TcpStream) -> Result<()> + Copy + Send + Sync) {
    std::thread::scope(|scope| {
        for connection in listener.incoming().flatten() {
            scope.spawn(move || {
                if let Err(error) = handle(connection) {
                    eprintln!("giveway-lab far-end: {error:#}");
                }
            });
        }
    });
}

fn count_bytes(mut connection: TcpStream, count: &AtomicU64) -> Result<()> {
    let mut buffer = [0; CHUNK_BYTES];
    // A reset is how an upload that was killed says goodbye.
    while let Ok(read @ 1..) = connection.read(&mut buffer) {
        count.fetch_add(read as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// One request, one answer, and the end of the connection.
fn serve(connection: TcpStream) -> Result<()> {
    connection.set_nodelay(true)?;
    let mut request = BufReader::with_capacity(CHUNK_BYTES, connection);
    let Some(head) = read_head(&mut request)? else {
        return Ok(());
    };
    let words: Vec<_> = head.start.split(' ').collect();
    let answer_bytes = match words[..] {
        ["GET", path, "HTTP/1.1"] => path
            .strip_prefix('/')
            .and_then(|bytes| bytes.parse().ok())
            .filter(|bytes| *bytes <= LARGEST_BYTES),
        ["POST", _, "HTTP/1.1"] => Some(0),
        _ => None,
    };
    swallow(&mut request, head.content_length)?;
    let connection = request.get_mut();
    let Some(bytes) = answer_bytes else {
        connection.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(());
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
    connection
        .write_all(&with_body(head, bytes))
        .context("the client went away")
}
