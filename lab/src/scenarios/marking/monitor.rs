// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every frame on the simulated channel, by the module's monitor device. Output: the data frames of stations with TCP
//! or UDP in them: user priority, DSCP, and the station's port.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use serde::Serialize;

pub const DEVICE: &str = "hwsim0";
const BUFFER_BYTES: usize = 16 << 20;
const FRAME_BYTES: usize = 4_096;

#[derive(Debug, PartialEq, Serialize)]
pub struct Frame {
    pub user_priority: u8,
    pub dscp: u8,
    pub local_port: u16,
}

pub struct Monitor(OwnedFd);

impl Monitor {
    /// Captures from now on.
    pub fn open() -> Result<Self> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers; the result is checked.
        let socket = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(all)) });
        // SAFETY: a descriptor that was just made and that nobody else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(socket.context("cannot listen to frames")?) };
        // SAFETY: integers only, for which all zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = if_nametoindex(DEVICE)?.cast_signed();
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: a sockaddr_ll of this length, which the kernel only reads.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        Errno::result(bound).with_context(|| format!("cannot listen at {DEVICE}"))?;
        setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES)?;
        Ok(Self(socket))
    }

    /// The captured frames.
    pub fn frames(self) -> Result<Vec<Frame>> {
        let mut frames = Vec::new();
        loop {
            let mut buffer = [0; FRAME_BYTES];
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => frames.extend(read(&buffer[..length.min(FRAME_BYTES)])),
                Err(error) if std::io::Error::from(error).kind() == ErrorKind::WouldBlock => return Ok(frames),
                Err(error) => return Err(error).context("cannot read frames"),
            }
        }
    }
}

const MAC_HEADER_BYTES: usize = 24;
const LLC_SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

/// None unless it is a data frame with QoS from a station, with TCP or UDP in it: radiotap, 802.11, LLC, IP.
fn read(frame: &[u8]) -> Option<Frame> {
    let radiotap_bytes = usize::from(u16::from_le_bytes([*frame.get(2)?, *frame.get(3)?]));
    let mac = frame.get(radiotap_bytes..)?;
    let (kind, flags) = (*mac.first()?, *mac.get(1)?);
    let (is_data_with_qos, is_to_access_point) = (kind & 0xfc == 0x88, flags & 3 == 1);
    if !is_data_with_qos || !is_to_access_point {
        return None;
    }
    let user_priority = mac.get(MAC_HEADER_BYTES)? & 0xf;
    let llc = mac.get(MAC_HEADER_BYTES + 2..)?;
    let ip = llc.strip_prefix(&LLC_SNAP)?.get(2..)?;
    let (class, protocol, header_bytes) = match ip.first()? >> 4 {
        4 => (*ip.get(1)?, *ip.get(9)?, usize::from(ip[0] & 0xf) * 4),
        6 => (ip[0] << 4 | ip.get(1)? >> 4, *ip.get(6)?, 40),
        _ => return None,
    };
    let port = ip.get(header_bytes..)?.first_chunk()?;
    [6, 17].contains(&protocol).then_some(Frame {
        user_priority,
        dscp: class >> 2,
        local_port: u16::from_be_bytes(*port),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, ip: &[u8]) -> Vec<u8> {
        let mut mac = vec![0; MAC_HEADER_BYTES + 2];
        (mac[0], mac[1], mac[MAC_HEADER_BYTES]) = (kind, flags, 0x10 | 5);
        [&[0, 0, 9, 0, 0, 0, 0, 0, 7][..], &mac, &LLC_SNAP, &[8, 0], ip].concat()
    }

    fn ipv4(protocol: u8) -> Vec<u8> {
        let mut ip = vec![0; 28];
        (ip[0], ip[1], ip[9]) = (0x45, 46 << 2 | 1, protocol);
        ip[20..22].copy_from_slice(&7001_u16.to_be_bytes());
        ip
    }

    #[test]
    fn station_frame_has_priority_dscp_and_port() {
        let read = read(&frame(0x88, 1, &ipv4(17))).unwrap();
        assert_eq!((read.user_priority, read.dscp, read.local_port), (5, 46, 7001));
    }

    #[test]
    fn other_and_truncated_frames_are_ignored() {
        let whole = frame(0x88, 1, &ipv4(6));
        assert!((0..whole.len() - 6).all(|length| read(&whole[..length]).is_none()));
        for (kind, flags, protocol) in [(0x80, 0, 17), (0x08, 1, 17), (0x88, 2, 17), (0x88, 1, 1)] {
            assert_eq!(
                read(&frame(kind, flags, &ipv4(protocol))),
                None,
                "{kind:x} {flags} {protocol}"
            );
        }
    }
}
