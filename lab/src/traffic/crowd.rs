// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Many established connections, of which the first few send small messages at a steady pace.
//! Input: how many, and where to. Output: a line on standard output when all of them stand; then traffic until
//! killed. The role `crowd-guest` connects and sends, the role `crowd-host` accepts, reads and forgets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{setsockopt, sockopt};

use crate::namespace::Namespace;
use crate::role::Role;

const PORT: u16 = 5101;
/// What each active connection sends.
const MESSAGES_PER_S: u32 = 20;
const MESSAGE_BYTES: usize = 1_000;
/// Descriptors that a process needs besides its connections.
const OTHER_FILES: u64 = 64;
/// Readers do nothing but read.
const STACK_BYTES: usize = 64 * 1024;

/// Starts one end and waits for its first word.
pub fn start(role: &'static str, at: &Namespace, host: &str, connections: u64, active: u64) -> Result<Role> {
    Role::start(at, role, &(host, connections, active))
}

/// The role `crowd-host`.
pub fn run_host(description: &str) -> Result<()> {
    let (host, connections, active): (Ipv4Addr, u64, u64) = serde_json::from_str(description)?;
    allow_files(connections)?;
    let listener = TcpListener::bind((host, PORT)).context("cannot listen")?;
    println!("listening");
    let mut silent = Vec::new();
    for (number, connection) in (0..).zip(listener.incoming()) {
        let mut connection = connection.context("cannot accept")?;
        if number >= active {
            silent.push(connection);
            continue;
        }
        let mut buffer = [0; 4 * MESSAGE_BYTES];
        let read = move || while matches!(connection.read(&mut buffer), Ok(read) if read > 0) {};
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(read)?;
    }
    Ok(())
}

/// The role `crowd-guest`.
pub fn run_guest(description: &str) -> Result<()> {
    let (host, connections, active): (Ipv4Addr, u64, u64) = serde_json::from_str(description)?;
    allow_files(connections)?;
    let connect = |number| {
        let socket = TcpStream::connect((host, PORT));
        let socket = socket.with_context(|| format!("cannot make connection {number}"))?;
        setsockopt(&socket, sockopt::TcpCongestion, &"cubic".into()).context("cannot choose CUBIC")?;
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    let mut sockets = (1..=connections).map(connect).collect::<Result<Vec<_>>>()?;
    println!("connected");
    let active = usize::try_from(active)?.min(sockets.len());
    speak(&mut sockets[..active])
}

/// One message after the other, evenly spread over time and connections; for ever.
fn speak(sockets: &mut [TcpStream]) -> Result<()> {
    let message = [0; MESSAGE_BYTES];
    let Some(gap) = (Duration::from_secs(1) / MESSAGES_PER_S).checked_div(sockets.len() as u32) else {
        loop {
            std::thread::park();
        }
    };
    let mut due = Instant::now();
    loop {
        for socket in &mut *sockets {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            socket.write_all(&message).context("a connection broke")?;
            due += gap;
        }
    }
}

fn allow_files(connections: u64) -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let needed = connections + OTHER_FILES;
    if hard < needed {
        bail!("{connections} connections need {needed} open files, and this process may have {hard} (`ulimit -Hn`)");
    }
    setrlimit(Resource::RLIMIT_NOFILE, needed, hard).context("cannot raise the limit of open files")
}
