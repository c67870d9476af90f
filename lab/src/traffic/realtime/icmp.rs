// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flood of pings: the role `icmp-flood` sends echo requests without end, as many as its send buffer lets
//! into the queue, and reads no reply. Needs root; ends with its process.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, setsockopt, socket, sockopt,
};

use crate::namespace::Namespace;
use crate::process::Process;
use crate::role::Role;

/// An echo request of the classic 56 bytes.
const BYTES: usize = 64;
const ECHO_REQUEST: u8 = 8;
const SEND_BUFFER_BYTES: usize = 32 * 1024;

/// Runs until it is dropped.
pub fn start(at: &Namespace, to: Ipv4Addr) -> Result<Process> {
    Role::spawn(at, "icmp-flood", &to)?.into_process()
}

/// The role `icmp-flood`.
pub fn run(description: &str) -> Result<()> {
    let to: Ipv4Addr = serde_json::from_str(description)?;
    let socket = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Icmp,
    )
    .context("cannot open a raw socket")?;
    setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER_BYTES)?;
    // Replies are for nobody: what does not fit is dropped.
    setsockopt(&socket, sockopt::RcvBuf, &0)?;
    let mut packet = [0; BYTES];
    packet[0] = ECHO_REQUEST;
    // All other bytes are zero, and so the ones' complement of the sum is that of the first word.
    packet[2..4].copy_from_slice(&(!(u16::from(ECHO_REQUEST) << 8)).to_be_bytes());
    let [a, b, c, d] = to.octets();
    let to = SockaddrIn::new(a, b, c, d, 0);
    loop {
        match sendto(socket.as_raw_fd(), &packet, &to, MsgFlags::empty()) {
            Ok(_) | Err(Errno::ENOBUFS) => {}
            Err(error) => return Err(error).context("the flood cannot send"),
        }
    }
}
