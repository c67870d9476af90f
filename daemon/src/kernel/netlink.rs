// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Netlink: one request, its answers. A message is made of its fixed part and attributes; the answer is the kernel's messages
//! or its refusal. Blocking, with a time limit; it knows no device and no qdisc. Works on the namespace in which it
//! was opened. No crate's: the watchdog undoes by it, without a runtime and with a time limit, and rtnetlink, generic netlink,
//! sock_diag and nftables have one way to make a message.

use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, bail, ensure};
/// nix has no messages of rtnetlink.
pub use libc::{
    IFA_ADDRESS, IFA_LOCAL, IFF_UP, IFLA_AF_SPEC, IFLA_GROUP, IFLA_GSO_MAX_SEGS, IFLA_IFALIAS, IFLA_IFNAME,
    IFLA_LINKINFO, IFLA_MASTER, IFLA_NET_NS_FD, IFLA_NUM_RX_QUEUES, IFLA_NUM_TX_QUEUES, IFLA_TXQLEN, NLM_F_CREATE,
    NLM_F_EXCL, NLM_F_REPLACE, RTM_DELLINK, RTM_DELQDISC, RTM_DELTCLASS, RTM_DELTFILTER, RTM_GETLINK, RTM_GETTCLASS,
    RTM_NEWADDR, RTM_NEWLINK, RTM_NEWQDISC, RTM_NEWTCLASS, RTM_NEWTFILTER,
};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

use super::calls::set_option;

/// The kernel answers at once; this is for a kernel that does not.
const PATIENCE_S: i64 = 2;
/// The kernel fills at most 32 kB in one read.
const READ_BYTES: usize = 64 * 1024;
const HEADER_BYTES: usize = 16;
const EVENTS_AT_ONCE: usize = 256;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The upper bits of an attribute's kind (include/uapi/linux/netlink.h).
const NESTED: u16 = 0x8000;
const KIND_MASK: u16 = 0x3fff;

pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// The kernel's refusal: an errno.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", .0.desc())]
pub struct NetlinkError(pub Errno);

/// What the kernel has refused with, where it has.
pub fn refused(error: &anyhow::Error) -> Option<Errno> {
    error.downcast_ref::<NetlinkError>().map(|refused| refused.0)
}

impl Netlink {
    /// Rtnetlink.
    pub fn open() -> Result<Self> {
        Self::open_protocol(SockProtocol::NetlinkRoute)
    }

    /// Rtnetlink that filters a dump by what the request's fixed part says.
    pub fn open_strict() -> Result<Self> {
        // include/uapi/linux/netlink.h; libc has none of it
        const NETLINK_GET_STRICT_CHK: i32 = 12;
        let this = Self::open()?;
        set_option(&this.socket, libc::SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)
            .context("the kernel filters no list by netlink")?;
        Ok(this)
    }

    pub fn open_generic() -> Result<Self> {
        Self::open_protocol(SockProtocol::NetlinkGeneric)
    }

    /// Of sockets (sock_diag).
    pub fn open_diagnostics() -> Result<Self> {
        Self::open_protocol(SockProtocol::NetlinkSockDiag)
    }

    /// Of nftables.
    pub fn open_netfilter() -> Result<Self> {
        Self::open_protocol(SockProtocol::NetlinkNetFilter)
    }

    fn open_protocol(protocol: SockProtocol) -> Result<Self> {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .context("cannot open a netlink socket")?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(PATIENCE_S, 0))
            .context("cannot limit the time of a netlink socket")?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0)).context("cannot bind a netlink socket")?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; READ_BYTES],
        })
    }

    /// A change; `flags` beside NLM_F_REQUEST and NLM_F_ACK. A refusal can be asked for as [`NetlinkError`].
    pub fn change(&mut self, kind: u16, flags: i32, body: &Body) -> Result<()> {
        self.exchange(kind, flags | libc::NLM_F_ACK, body).map(drop)
    }

    /// Everything of a kind that the kernel has: the bodies of its messages.
    pub fn dump(&mut self, kind: u16, body: &Body) -> Result<Vec<Vec<u8>>> {
        self.exchange(kind, libc::NLM_F_DUMP, body)
    }

    /// The same, body by body, as long as `take` wants more. Then the socket has to be closed: the rest is in it.
    pub fn dump_while(&mut self, kind: u16, body: &Body, mut take: impl FnMut(&[u8]) -> bool) -> Result<()> {
        self.send_request(kind, libc::NLM_F_DUMP, body)?;
        let mut answers = Vec::new();
        while !self.read_answers(&mut answers)? {
            if !answers.drain(..).all(|answer| take(&answer)) {
                return Ok(());
            }
        }
        answers.drain(..).all(|answer| take(&answer));
        Ok(())
    }

    /// One object: the body of the kernel's message.
    pub fn get(&mut self, kind: u16, body: &Body) -> Result<Vec<u8>> {
        let answers = self.exchange(kind, libc::NLM_F_ACK, body)?;
        answers.into_iter().next().context("the kernel answered nothing")
    }

    fn exchange(&mut self, kind: u16, flags: i32, body: &Body) -> Result<Vec<Vec<u8>>> {
        self.send_request(kind, flags, body)?;
        let mut answers = Vec::new();
        while !self.read_answers(&mut answers)? {}
        Ok(answers)
    }

    fn send_request(&mut self, kind: u16, flags: i32, body: &Body) -> Result<()> {
        self.sequence += 1;
        let mut request = Vec::with_capacity(HEADER_BYTES + body.0.len());
        request.extend_from_slice(&((HEADER_BYTES + body.0.len()) as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&0u32.to_ne_bytes());
        request.extend_from_slice(&body.0);
        send(self.socket.as_raw_fd(), &request, MsgFlags::empty()).context("cannot ask the kernel by netlink")?;
        Ok(())
    }

    /// By one read; true after the last message of the answer.
    fn read_answers(&mut self, answers: &mut Vec<Vec<u8>>) -> Result<bool> {
        let length = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())
            .context("no answer from the kernel by netlink")?;
        take(&self.buffer[..length], self.sequence, answers)
    }
}

/// Says that links or their addresses have come, gone or changed; not which.
pub struct LinkEvents(OwnedFd);

impl LinkEvents {
    pub fn open() -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
            .context("cannot open a netlink socket")?;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups.cast_unsigned()))
            .context("cannot listen for changes of links")?;
        Ok(Self(socket))
    }

    /// Whether any was told since the last call. Never waits.
    pub fn any(&self) -> bool {
        // A message need not be read as a whole to be taken. More than these wait for the next call.
        let take = || recv(self.0.as_raw_fd(), &mut [0; HEADER_BYTES], MsgFlags::empty());
        // What was lost because too many came is an error, and one of them.
        (0..EVENTS_AT_ONCE).take_while(|_| take() != Err(Errno::EAGAIN)).count() > 0
    }
}

/// Takes the messages of one read; true after the last one of the answer.
fn take(mut bytes: &[u8], sequence: u32, answers: &mut Vec<Vec<u8>>) -> Result<bool> {
    while !bytes.is_empty() {
        let (length, kind) = (u32_at(bytes, 0)? as usize, u16_at(bytes, 4)?);
        ensure!(
            (HEADER_BYTES..=bytes.len()).contains(&length),
            "a netlink message of {length} bytes is cut short"
        );
        let (flags, body) = (u16_at(bytes, 6)?, &bytes[HEADER_BYTES..length]);
        if u32_at(bytes, 8)? == sequence {
            ensure!(
                i32::from(flags) & libc::NLM_F_DUMP_INTR == 0,
                "the kernel's list changed while it was read"
            );
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(true),
                libc::NLMSG_ERROR => match u32_at(body, 0)?.cast_signed() {
                    0 => return Ok(true),
                    error => bail!(NetlinkError(Errno::from_raw(error.wrapping_neg()))),
                },
                _ => answers.push(body.to_vec()),
            }
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// A message's body: its fixed part, then attributes.
#[derive(Clone, Debug, Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// `fixed` has a multiple of four bytes.
    pub fn new(fixed: &[u8]) -> Self {
        Self(fixed.to_vec())
    }

    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let length = (ATTRIBUTE_HEADER_BYTES + value.len()) as u16;
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    /// Attributes within an attribute.
    pub fn nested(self, kind: u16, inner: Self) -> Self {
        self.attribute(kind | NESTED, &inner.0)
    }
}

/// The value of the attribute of this kind, where the message has one. `at` is where its attributes begin.
pub fn attribute(message: &[u8], at: usize, wanted: u16) -> Option<&[u8]> {
    let mut all = attributes(message, at);
    all.find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// All attributes, by their kinds, up to where the message is cut short.
pub fn attributes(message: &[u8], at: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = message.get(at..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(rest, 0).ok()?), u16_at(rest, 2).ok()?);
        let value = rest.get(ATTRIBUTE_HEADER_BYTES..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & KIND_MASK, value))
    })
}

/// An attribute's text, without the zero at its end.
pub fn text(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8(value[..end].to_vec()).ok()
}

pub fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk());
    Ok(u32::from_ne_bytes(*four.context("a netlink message is cut short")?))
}

pub fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk());
    Ok(u16::from_ne_bytes(*two.context("a netlink message is cut short")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_by_their_kind() {
        let body = Body::new(&[0; 8]).text(1, "pfifo").attribute(2, &77u32.to_ne_bytes());
        assert_eq!(attribute(&body.0, 8, 1).and_then(text).as_deref(), Some("pfifo"));
        assert_eq!(u32_at(attribute(&body.0, 8, 2).unwrap(), 0).unwrap(), 77);
        assert_eq!(attribute(&body.0, 8, 3), None);
    }

    #[test]
    fn whatever_is_cut_short_is_no_attribute_and_no_message() {
        let body = Body::new(&[]).text(1, "pfifo").0;
        for length in 0..body.len() - 3 {
            assert_eq!(attribute(&body[..length], 0, 1), None);
        }
        assert_eq!(
            attribute(&[0; 64], 0, 1),
            None,
            "an attribute shorter than its own header"
        );
        let mut message = [0u8; 20];
        message[..4].copy_from_slice(&4096u32.to_ne_bytes());
        assert!(take(&message, 0, &mut Vec::new()).is_err());
        assert!(take(&message[..3], 0, &mut Vec::new()).is_err());
    }
}
