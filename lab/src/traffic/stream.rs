// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TCP sender that starts and stops on command and says when, to the nanosecond.
//! The role `source` reads `start` and `stop`, and writes a JSON line
//! for each, with CLOCK_MONOTONIC; a stop is answered when the socket has nothing unsent.
//! The role `sink` is the other end: it reads and forgets. Neither measures goodput.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;

use crate::calls::unsent_bytes;
use crate::channel::SERVER_ADDRESS;
use crate::namespace::Namespace;
use crate::role::Role;
use crate::traffic::realtime::monotonic_ns;

const PORT: u16 = 5100;
/// The application never runs far ahead of TCP, so that a stop drains in a moment.
const UNSENT_LIMIT_BYTES: u32 = 64 * 1024;

/// A source in a station's namespace, connected, as the lab holds it.
pub struct TcpSource {
    role: Role,
    /// The kernel's name for its socket.
    pub cookie: u64,
}

impl TcpSource {
    pub fn connect(station: &Namespace) -> Result<Self> {
        let mut role = Role::spawn(station, "source", &SERVER_ADDRESS)?;
        let cookie = role.answer()?;
        Ok(Self { role, cookie })
    }

    /// Begins to write without end; gives back the time of the first write.
    pub fn start(&mut self) -> Result<u64> {
        self.role.ask("start")
    }

    /// Stops writing; gives back the time at which nothing was left unsent.
    pub fn stop(&mut self) -> Result<u64> {
        self.role.ask("stop")
    }

    /// SIGKILL; the socket goes with a reset, so that no unsent data lives on.
    pub fn kill(&mut self) -> Result<()> {
        self.role.kill()
    }
}

/// The sink in the server's namespace.
pub fn start_sink(server: &Namespace) -> Result<Role> {
    Role::start(server, "sink", &())
}

/// The role `source`.
pub fn run_source(description: &str) -> Result<()> {
    let server: String = serde_json::from_str(description)?;
    let mut socket = TcpStream::connect((server, PORT)).context("cannot reach the sink")?;
    prepare(&socket)?;
    let cookie = SockRef::from(&socket).cookie().context("the socket has no cookie")?;
    println!("{cookie}");
    for word in std::io::stdin().lines() {
        match word?.as_str() {
            "start" => write_until_input(&mut socket)?,
            "stop" => {
                while unsent_bytes(&socket)? > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                println!("{}", monotonic_ns()?);
            }
            other => bail!("unknown command `{other}`"),
        }
    }
    Ok(())
}

fn prepare(socket: &TcpStream) -> Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_congestion(b"cubic").context("cannot choose CUBIC")?;
    socket.set_linger(Some(Duration::ZERO))?;
    let limited = socket.set_tcp_notsent_lowat(UNSENT_LIMIT_BYTES);
    limited.context("cannot limit the unsent data")?;
    Ok(socket.set_nonblocking(true)?)
}

/// Writes for as long as standard input is silent.
fn write_until_input(socket: &mut TcpStream) -> Result<()> {
    let zeros = [0; 32 * 1024];
    let begun_ns = monotonic_ns()?;
    let mut has_begun = false;
    loop {
        match socket.write(&zeros) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            result => drop(result.context("the connection broke")?),
        }
        if !has_begun {
            println!("{begun_ns}");
            has_begun = true;
        }
        let input = std::io::stdin();
        let mut ready = [
            PollFd::new(input.as_fd(), PollFlags::POLLIN),
            PollFd::new(socket.as_fd(), PollFlags::POLLOUT),
        ];
        poll(&mut ready, PollTimeout::NONE)?;
        if ready[0].any() == Some(true) {
            return Ok(());
        }
    }
}

/// The role `sink`.
pub fn run_sink(_description: &str) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).context("cannot listen")?;
    println!("listening");
    for connection in listener.incoming() {
        let mut connection = connection?;
        std::thread::spawn(move || {
            let mut buffer = [0; 64 * 1024];
            // A reset is how a source that was killed says goodbye.
            while matches!(connection.read(&mut buffer), Ok(read) if read > 0) {}
        });
    }
    Ok(())
}
