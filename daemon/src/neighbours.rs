// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The group's datagrams on the managed interface: to everyone by IPv4 broadcast where the interface has an IPv4
//! address, else by IPv6 multicast on the link; to one neighbour where it was heard from. Bytes only; what they mean is the engine's affair.

use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use giveway_engine::wire::Outgoing;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use crate::interface::Interface;

/// Link-local scope, transient (RFC 4291 section 2.7), chosen for giveway.
const MULTICAST_GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x6769, 0x7665);
/// CS6: on Wi-Fi the report does not wait behind this device's own bulk data (802.11 access category VO).
const TRAFFIC_CLASS: u32 = 0xc0;
/// A report is far smaller; a longer datagram is not one, and is cut where it already is too long.
const LONGEST: usize = 2048;

pub struct Neighbours {
    socket: UdpSocket,
    destination: SocketAddr,
}

impl Neighbours {
    /// Must be called inside the tokio runtime.
    pub fn open(interface: &Interface, port: u16) -> Result<Self> {
        let (socket, destination) = match interface.ipv4 {
            Some(_) => open_v4(port)?,
            None => open_v6(interface, port)?,
        };
        socket.bind_device(Some(interface.name.as_bytes()))?;
        socket.set_nonblocking(true)?;
        let any: SocketAddr = match interface.ipv4 {
            Some(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
            None => (Ipv6Addr::UNSPECIFIED, port).into(),
        };
        socket.bind(&any.into())?;
        Ok(Self {
            socket: UdpSocket::from_std(socket.into())?,
            destination,
        })
    }

    /// Sends without waiting: a report that finds no room is lost, as one on the air may be.
    pub fn send(&self, report: &Outgoing) -> Result<()> {
        let everyone = self.destination;
        let to = report.to.map_or(everyone, |address| (address, everyone.port()).into());
        match self.socket.try_send_to(&report.datagram, to) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    pub async fn receive(&self) -> Result<(IpAddr, Vec<u8>)> {
        let mut bytes = vec![0; LONGEST];
        let (length, from) = self.socket.recv_from(&mut bytes).await?;
        bytes.truncate(length);
        Ok((from.ip(), bytes))
    }
}

fn open_v4(port: u16) -> Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_broadcast(true)?;
    socket.set_tos_v4(TRAFFIC_CLASS)?;
    Ok((socket, (Ipv4Addr::BROADCAST, port).into()))
}

fn open_v6(interface: &Interface, port: u16) -> Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_only_v6(true)?;
    socket.join_multicast_v6(&MULTICAST_GROUP, interface.index)?;
    socket.set_multicast_if_v6(interface.index)?;
    socket.set_multicast_loop_v6(false)?;
    socket.set_tclass_v6(TRAFFIC_CLASS)?;
    Ok((socket, (MULTICAST_GROUP, port).into()))
}
