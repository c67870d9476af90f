// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P4's flood: echo requests from a network namespace of this process's own, as many as this machine answers.

use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::link::LoadLink;

/// Sent at once; the next ones follow when these are answered, or after [`PATIENCE`].
const WINDOW: usize = 64;
const PATIENCE: Duration = Duration::from_millis(10);
/// How long the first answer may take: the kernel first has to bring both ends up and find the peer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
const PAYLOAD_BYTES: usize = 56;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;

pub fn flood() -> Result<()> {
    let link = LoadLink::make()?;
    let mut socket =
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).context("cannot open an ICMP socket")?;
    socket.connect(&SocketAddr::new(IpAddr::V4(link.outer), 0).into())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let request = echo_request();
    let asked = Instant::now();
    while exchange(&mut socket, &request, 1)? == 0 {
        ensure!(
            asked.elapsed() < FIRST_ANSWER,
            "this machine does not answer echo requests (a packet filter, or icmp_echo_ignore_all)"
        );
    }
    super::ready()?;
    loop {
        exchange(&mut socket, &request, WINDOW)?;
    }
}

/// Sends `count` requests and returns how many were answered in time.
fn exchange(socket: &mut Socket, request: &[u8], requests: usize) -> Result<usize> {
    for _ in 0..requests {
        match socket.send(request) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => break,
            Err(error) => return Err(error).context("cannot send an echo request"),
        }
    }
    let mut packet = [0; 256];
    let mut answered = 0;
    while answered < requests {
        match socket.read(&mut packet) {
            Ok(length) => answered += usize::from(is_reply(&packet[..length])),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
            // What else comes back ("host unreachable" before the peer is found) is no answer.
            Err(error) if error.kind() == ErrorKind::HostUnreachable => break,
            Err(error) => return Err(error).context("cannot read echo replies"),
        }
    }
    Ok(answered)
}

/// A raw socket gives the IP header too; its length stands in its first byte.
fn is_reply(packet: &[u8]) -> bool {
    let header_bytes = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    packet.get(header_bytes) == Some(&ECHO_REPLY)
}

fn echo_request() -> Vec<u8> {
    let mut packet = vec![0; 8 + PAYLOAD_BYTES];
    packet[0] = ECHO_REQUEST;
    // The sum of all words in ones' complement (RFC 1071); only one of them is not zero.
    let checksum = !u16::from_be_bytes([ECHO_REQUEST, 0]);
    packet[2..4].copy_from_slice(&checksum.to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_echo_reply_is_one_whatever_stands_in_front() {
        let mut packet = vec![0x45; 28];
        packet[20] = ECHO_REPLY;
        assert!(is_reply(&packet));
        packet[20] = 3;
        assert!(!is_reply(&packet));
        assert!(!is_reply(&[]));
        assert!(!is_reply(&[0x4f; 20]), "a header that is longer than the packet");
    }
}
