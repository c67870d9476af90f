// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP connections of programs of the device, each program a process of its own that a rule can match. The role
//! `limit-cost-near` opens some, and sends or receives as much as it can or nothing at all; `limit-cost-far` is the
//! other end of all. Either reports, on request, the packets with data that its own sockets received, by the kernel's
//! counter.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use socket2::{Domain, SockRef, Socket, Type};

use crate::calls::tcp_info;
use crate::namespace::Namespace;
use crate::network::PEER_ADDRESS;
use crate::role::{Role, answer_each};
use crate::traffic::Direction;

const CHUNK_BYTES: usize = 64 * 1024;
/// Before it connects: giveway does not override a choice made after it has seen the socket.
const CONGESTION: &[u8] = b"cubic";

/// What one program does.
#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct Flows {
    pub port: u16,
    pub connections: usize,
    /// None: it sends and receives nothing.
    pub way: Option<Direction>,
}

impl Flows {
    /// Connected when this returns.
    pub fn start(&self, device: &Namespace) -> Result<Role> {
        Role::start(device, "limit-cost-near", self)
    }

    /// The command line that a rule matches.
    pub fn cmdline(port: u16) -> String {
        format!("*limit-cost-near*\"port\":{port},*")
    }
}

/// Packets with data since the start, by destination port.
pub type ReceivedPackets = BTreeMap<u16, u64>;

/// The remote host of all these ports.
pub fn start_far(peer: &Namespace, ports: &[(u16, Option<Direction>)]) -> Result<Role> {
    Role::start(peer, "limit-cost-far", &ports)
}

/// The role `limit-cost-near`.
pub fn run_near(description: &str) -> Result<()> {
    let flows: Flows = serde_json::from_str(description)?;
    let connections: Vec<_> = (0..flows.connections)
        .map(|_| connect(flows.port))
        .collect::<Result<_>>()?;
    println!("connected");
    for connection in &connections {
        carry(connection.try_clone()?, flows.way.map(|way| way == Direction::Up));
    }
    answer_each(|_| received(&connections))
}

/// The role `limit-cost-far`.
pub fn run_far(description: &str) -> Result<()> {
    let ports: Vec<(u16, Option<Direction>)> = serde_json::from_str(description)?;
    let all = Arc::new(Mutex::new(BTreeMap::<u16, Vec<TcpStream>>::new()));
    for (port, way) in ports {
        let listener = TcpListener::bind(("0.0.0.0", port)).with_context(|| format!("cannot listen on port {port}"))?;
        SockRef::from(&listener).set_tcp_congestion(CONGESTION)?;
        let all = all.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let Ok(kept) = connection.try_clone() else { continue };
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.entry(port).or_default().push(kept);
                carry(connection, way.map(|way| way == Direction::Down));
            }
        });
    }
    println!("listening");
    answer_each(|_| {
        let all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(port, connections): (&u16, &Vec<TcpStream>)| Ok((*port, received(connections)?));
        all.iter().map(of).collect::<Result<ReceivedPackets>>()
    })
}

fn connect(port: u16) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("cannot make a socket")?;
    socket.set_tcp_congestion(CONGESTION)?;
    let far: Ipv4Addr = PEER_ADDRESS.parse()?;
    let far = SocketAddr::from((far, port));
    socket.connect(&far.into()).context("cannot reach the remote host")?;
    // Unsent data in the socket goes with the process.
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(socket.into())
}

/// In a thread of its own, until it breaks: a reset is how a connection ends here.
fn carry(mut connection: TcpStream, sends: Option<bool>) {
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK_BYTES];
        match sends {
            Some(true) => while connection.write_all(&chunk).is_ok() {},
            _ => while matches!(connection.read(&mut chunk), Ok(1..)) {},
        }
    });
}

fn received(connections: &[TcpStream]) -> Result<u64> {
    let of = |connection| Ok(u64::from(tcp_info(connection)?.tcpi_data_segs_in));
    connections.iter().map(of).sum()
}
