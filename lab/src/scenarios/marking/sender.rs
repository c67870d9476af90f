// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two ends of the traffic of `marking`. The role `marking-sender` sends some messages by each of its flows, one
//! flow after the other, and reports how many; `marking-sink` receives them all.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

const PORT: u16 = 5100;
/// Of each flow.
pub const MESSAGES: u16 = 3;
/// So that TCP sends each by itself.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Deserialize, Serialize)]
pub struct MarkedFlow {
    pub is_tcp: bool,
    pub to: String,
    pub local_port: u16,
    /// Set on its socket.
    pub dscp: u8,
}

/// The role `marking-sender`.
pub fn run(flows: Vec<MarkedFlow>) -> Result<u16> {
    flows.iter().map(send).sum()
}

fn send(flow: &MarkedFlow) -> Result<u16> {
    let to = SocketAddr::new(flow.to.parse()?, PORT);
    let kind = if flow.is_tcp { Type::STREAM } else { Type::DGRAM };
    let mut socket = Socket::new(Domain::for_address(to), kind, None)?;
    let class = u32::from(flow.dscp) << 2;
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => {
            socket.set_tos_v4(class)?;
            ([0, 0, 0, 0], flow.local_port).into()
        }
        SocketAddr::V6(_) => {
            socket.set_tclass_v6(class)?;
            (Ipv6Addr::UNSPECIFIED, flow.local_port).into()
        }
    };
    socket.bind(&any.into())?;
    socket
        .connect(&to.into())
        .with_context(|| format!("cannot reach {to}"))?;
    if flow.is_tcp {
        socket.set_tcp_nodelay(true)?;
    }
    for _ in 0..MESSAGES {
        socket.write_all(&[7; 100])?;
        std::thread::sleep(PAUSE);
    }
    Ok(MESSAGES)
}

/// The role `marking-sink`.
pub fn run_sink(_description: &str) -> Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).context("cannot listen")?;
    let _datagrams = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).context("cannot listen")?;
    println!("listening");
    for connection in listener.incoming() {
        let mut connection = connection?;
        while matches!(connection.read(&mut [0; 1_024]), Ok(read) if read > 0) {}
    }
    Ok(())
}
