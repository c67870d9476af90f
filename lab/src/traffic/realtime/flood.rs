// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sender that always has more: it keeps a number of UDP packets in the queue and sends the next when some have
//! left. So it saturates any queue below that number of packets without spinning. It tells nothing; the link counts.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::{PACKET_BYTES, mark};
use crate::namespace::Namespace;
use crate::process::Process;
use crate::role::Role;

/// What the kernel charges a socket for one packet of this size.
const CHARGED_BYTES: usize = 2_304;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Flood {
    pub port: u16,
    /// As in `sender::Flow`.
    pub marking: Option<(i32, i32)>,
    /// At most so many in the queue.
    pub packets: usize,
}

/// Runs until it is dropped.
pub fn start(at: &Namespace, to: Ipv4Addr, flood: &Flood) -> Result<Process> {
    Role::spawn(at, "flood", &(to, flood))?.into_process()
}

/// The role `flood`.
pub fn run(description: &str) -> Result<()> {
    let (to, flood): (Ipv4Addr, Flood) = serde_json::from_str(description)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // The kernel doubles what it is asked for.
    setsockopt(&socket, sockopt::SndBufForce, &(flood.packets * CHARGED_BYTES / 2))?;
    if let Some(marking) = flood.marking {
        mark(&socket, marking)?;
    }
    socket.connect((to, flood.port))?;
    let packet = [0; PACKET_BYTES];
    loop {
        match socket.send(&packet) {
            Err(error) if error.raw_os_error() != Some(Errno::ENOBUFS as i32) => {
                return Err(error).context("the flood cannot send");
            }
            _ => {}
        }
    }
}
