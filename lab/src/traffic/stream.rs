// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A TCP sender that starts and stops on command and says when, to the nanosecond.
//! In (`giveway-lab source`, standard input): `start`, `stop`. Out (standard output): a JSON line
//! for each, with CLOCK_MONOTONIC; a stop is answered when the socket has nothing unsent.
//! `giveway-lab sink` is the other end: it reads and forgets. Neither measures goodput.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::namespace::Namespace;
use crate::process::Process;
use crate::topology::SERVER_ADDRESS;

const PORT: u16 = 5100;
/// The application never runs far ahead of TCP, so that a stop drains in a moment.
const UNSENT_LIMIT_BYTES: libc::c_int = 64 * 1024;

nix::ioctl_read_bad!(unsent_bytes, libc::SIOCOUTQNSD, libc::c_int);

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Said {
    t_ns: u64,
    cookie: u64,
}

/// A source in a station's namespace, connected, as the lab holds it.
pub struct Source {
    process: Process,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The kernel's name for its socket.
    pub cookie: u64,
}

impl Source {
    pub fn connect(station: &Namespace) -> Result<Self> {
        let mut command = station.command(std::env::current_exe()?)?;
        command.arg("source").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command)?;
        let commands = process.pipes().stdin.take().context("the source has no input")?;
        let answers = process.pipes().stdout.take().context("the source has no output")?;
        let mut source = Self {
            process,
            commands,
            answers: BufReader::new(answers),
            cookie: 0,
        };
        source.cookie = source.answer()?.cookie;
        Ok(source)
    }

    /// Begins to write without end; gives back the time of the first write.
    pub fn start(&mut self) -> Result<u64> {
        self.tell("start")
    }

    /// Stops writing; gives back the time at which nothing was left unsent.
    pub fn stop(&mut self) -> Result<u64> {
        self.tell("stop")
    }

    /// SIGKILL; the socket goes with a reset, so that no unsent data lives on.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    fn tell(&mut self, word: &str) -> Result<u64> {
        writeln!(self.commands, "{word}").context("the source does not listen any more")?;
        Ok(self.answer()?.t_ns)
    }

    fn answer(&mut self) -> Result<Said> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.is_empty() {
            bail!("a source ended; its reason is above");
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// The sink in the server's namespace.
pub fn start_sink(server: &Namespace) -> Result<Process> {
    let mut command = server.command(std::env::current_exe()?)?;
    command.arg("sink").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = Process::spawn(command)?;
    let said = process.pipes().stdout.take().context("the sink has no output")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    if line.is_empty() {
        bail!("the sink ended; its reason is above");
    }
    Ok(process)
}

pub fn now_ns() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(Duration::from(now).as_nanos() as u64)
}

/// `giveway-lab source`.
pub fn run_source() -> Result<()> {
    let mut socket = TcpStream::connect((SERVER_ADDRESS, PORT)).context("cannot reach the sink")?;
    prepare(&socket)?;
    say(now_ns()?, cookie(&socket)?)?;
    for word in std::io::stdin().lines() {
        match word?.as_str() {
            "start" => write_until_told(&mut socket)?,
            "stop" => {
                while unsent(&socket)? > 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                say(now_ns()?, 0)?;
            }
            other => bail!("unknown command `{other}`"),
        }
    }
    Ok(())
}

fn prepare(socket: &TcpStream) -> Result<()> {
    setsockopt(socket, sockopt::TcpCongestion, &"cubic".into()).context("cannot choose CUBIC")?;
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(socket, sockopt::Linger, &at_once)?;
    let limit = UNSENT_LIMIT_BYTES;
    let size = size_of_val(&limit) as libc::socklen_t;
    // SAFETY: the option takes an int, which the pointer is to, and the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const limit).cast(),
            size,
        )
    };
    nix::errno::Errno::result(result).context("cannot limit the unsent data")?;
    socket.set_nonblocking(true)?;
    Ok(())
}

/// Writes for as long as standard input is silent.
fn write_until_told(socket: &mut TcpStream) -> Result<()> {
    let zeros = [0; 32 * 1024];
    let begun_ns = now_ns()?;
    let mut told = false;
    loop {
        match socket.write(&zeros) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            result => drop(result.context("the connection broke")?),
        }
        if !told {
            say(begun_ns, 0)?;
            told = true;
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

fn unsent(socket: &TcpStream) -> Result<libc::c_int> {
    let mut bytes = 0;
    // SAFETY: the request writes one int to the pointer, which is valid for it.
    unsafe { unsent_bytes(socket.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

fn cookie(socket: &TcpStream) -> Result<u64> {
    let mut cookie = 0_u64;
    let mut size = size_of_val(&cookie) as libc::socklen_t;
    let to = &raw mut cookie;
    // SAFETY: the option writes a u64 to `to` and its size to `size`; both are valid for it.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            to.cast(),
            &raw mut size,
        )
    };
    nix::errno::Errno::result(result).context("the socket has no cookie")?;
    Ok(cookie)
}

fn say(t_ns: u64, cookie: u64) -> Result<()> {
    println!("{}", serde_json::to_string(&Said { t_ns, cookie })?);
    Ok(())
}

/// `giveway-lab sink`.
pub fn run_sink() -> Result<()> {
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
