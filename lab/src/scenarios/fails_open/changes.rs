// SPDX-License-Identifier: Apache-2.0 OR MIT
//! giveway's changes on a station, besides caps: the queue, the congestion control of a background connection and its
//! limits in both directions with their ifbs, a process with real-time priority by a rule, a reniced one, and a thread
//! that handles requests of a [[chain]]. Input: the station and its server. Output: which are active, and which remain,
//! as the kernel shows it. (The station's TAP device has no NAPI threads and no settings of `[receive]`:
//! `daemon/tests/daemon/receive.rs` has those, on veth.)

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::access_point::Cap;
use crate::channel::STATION_DEVICE;
use crate::giveway::{cap_configuration, realtime::PRIORITY};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::role::Role;
use crate::scheduling::{is_nice, is_realtime};

pub const PORT: u16 = 5_050;
const BACKGROUND_PORT: u16 = PORT + 1;
/// More than its few packets need.
const LIMIT_MBIT: f64 = 1.0;
const CONTROL: &str = "gw_lbe_";
const REQUEST_EVERY: Duration = Duration::from_millis(20);
/// Above the channel's capacity, so that the cap is the limit.
const RATE_MBIT: f64 = 60.0;
const HANDLER_PRIORITY: u32 = PRIORITY - 1;

pub struct Changes {
    exes: [PathBuf; 2],
    program: Process,
    background: Process,
    handler: Process,
    _requests: Process,
    queue_before: Vec<u8>,
    pub configuration: Value,
}

/// The changes that were active.
#[derive(Default)]
pub struct Installed {
    pub queue: bool,
    pub control: bool,
    pub rule: bool,
    pub chain: bool,
    pub nice: bool,
    pub limits: bool,
}

impl Changes {
    /// Call while no daemon runs on the station, which has this address; requests come from the server.
    pub fn prepare(at: &Namespace, address: &str, server: &Namespace, cap: Cap, raw: &Path) -> Result<Self> {
        let (granted, background) = (
            raw.canonicalize()?.join("granted"),
            raw.canonicalize()?.join("background"),
        );
        for exe in [&granted, &background] {
            std::fs::copy("/bin/sleep", exe).context("cannot copy a program for a rule")?;
        }
        let mut configuration = cap_configuration(cap, &raw.join("group.key"));
        configuration["link"] = json!({"rate_mbit": RATE_MBIT});
        configuration["priority"] = json!([{"exe": granted, "priority": PRIORITY}]);
        configuration["chain"] = json!([{"local_port": PORT, "budget_ms": 10.0, "priority": HANDLER_PRIORITY}]);
        configuration["rule"] = json!([
            {"local_port": BACKGROUND_PORT, "class": "background", "rate_limit_mbit": LIMIT_MBIT},
            {"exe": background, "class": "background"},
        ]);
        Ok(Self {
            program: sleeper(at, &granted)?,
            background: sleeper(at, &background)?,
            exes: [granted, background],
            handler: Role::start(at, "request-handler", &address)?.into_process()?,
            _requests: Role::spawn(server, "request-sender", &(address, PORT))?.into_process()?,
            queue_before: queue(at)?,
            configuration,
        })
    }

    /// New processes, so that a leftover on the old ones is not counted again.
    pub fn renew_programs(&mut self, at: &Namespace) -> Result<()> {
        let [granted, background] = &self.exes;
        (self.program, self.background) = (sleeper(at, granted)?, sleeper(at, background)?);
        Ok(())
    }

    pub fn installed(&self, at: &Namespace) -> Result<Installed> {
        Ok(Installed {
            queue: queue(at)? != self.queue_before,
            control: String::from_utf8_lossy(&at.run("ss", "-tinOH")?.stdout).contains(CONTROL),
            rule: is_realtime(self.program.id()),
            chain: is_realtime(self.handler.id()),
            nice: is_nice(self.background.id())?,
            limits: !at.run("ip", "-o link show type ifb")?.stdout.is_empty(),
        })
    }
}

fn sleeper(at: &Namespace, exe: &Path) -> Result<Process> {
    let mut command = at.command(exe)?;
    command.arg("infinity");
    Process::spawn(command)
}

fn queue(at: &Namespace) -> Result<Vec<u8>> {
    at.tc(&format!("-d qdisc show dev {STATION_DEVICE}"))
}

/// The role `request-handler`: receives requests, and sends a little of a background transfer to each connection now
/// and then.
pub fn run_handler(address: &str) -> Result<()> {
    let address: String = serde_json::from_str(address)?;
    let socket = UdpSocket::bind((address.as_str(), PORT))?;
    let listener = TcpListener::bind((address.as_str(), BACKGROUND_PORT))?;
    std::thread::spawn(move || listener.incoming().flatten().for_each(trickle));
    println!();
    loop {
        socket.recv_from(&mut [0; 64])?;
    }
}

fn trickle(mut connection: TcpStream) {
    while connection.write_all(&[0; 64]).is_ok() {
        std::thread::sleep(REQUEST_EVERY);
    }
}

/// The role `request-sender`.
pub fn run_sender(address: &str) -> Result<()> {
    let (address, port): (String, u16) = serde_json::from_str(address)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    let from = address.clone();
    std::thread::spawn(move || {
        loop {
            if let Ok(mut connection) = TcpStream::connect((from.as_str(), BACKGROUND_PORT)) {
                while connection.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
            }
            std::thread::sleep(REQUEST_EVERY);
        }
    });
    loop {
        // Refused while the handler does not run yet.
        let _ = socket.send_to(b"request", (address.as_str(), port));
        std::thread::sleep(REQUEST_EVERY);
    }
}
