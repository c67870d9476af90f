// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The group's datagrams on the managed interface: to everyone by IPv4 broadcast where the interface has an IPv4
//! address, else by IPv6 multicast on the link; to one peer where it was heard from. Bytes only; the engine reads them.

use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use giveway_engine::peers::{Filtered, MAX_DATAGRAM_BYTES, Outgoing};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use crate::interface::Interface;
use crate::kernel::report_filter::ReportFilter;

/// Link-local scope, transient (RFC 4291 section 2.7), chosen for giveway.
const MULTICAST_GROUP: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0x6769, 0x7665);
/// CS6: on Wi-Fi the report does not wait behind this device's own bulk data (802.11 access category VO).
const TRAFFIC_CLASS: u32 = 0xc0;
/// The greatest there is: what arrives with it has passed no router (RFC 5082).
const ON_LINK_TTL: u32 = 255;
/// Room for a second and more of reports beside whatever strangers send in a few rests.
const RECEIVE_BUFFER_BYTES: usize = 1024 * 1024;
/// Read at once; more wait.
const DATAGRAMS_AT_ONCE: usize = 256;
/// While datagrams come in quick succession, which a group's reports do not, they wake nobody: the daemon looks this
/// often. With [`DATAGRAMS_AT_ONCE`] this bounds what any number of them costs.
const REST: Duration = Duration::from_millis(10);

pub struct Peers {
    /// Number and name of the interface, and whether reports go by IPv4 there: another address of it changes nothing.
    bound: (u32, String, bool),
    /// It has failed, and only keeps the port until another one is open.
    is_broken: bool,
    socket: std::net::UdpSocket,
    destination: SocketAddr,
    filter: ReportFilter,
    /// The same socket, where arrivals wake the daemon.
    arrivals: Option<UdpSocket>,
    /// When datagrams were last looked for.
    looked: Instant,
}

impl Peers {
    /// Must be called inside the tokio runtime.
    pub fn open(interface: &Interface, port: u16) -> anyhow::Result<Self> {
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
        // The next one is bound before this one is closed; the kernel lets nobody but this one's user do so.
        socket.set_reuse_port(true)?;
        setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
        let filter = ReportFilter::attach(&socket)?;
        socket.bind(&any.into())?;
        let socket = std::net::UdpSocket::from(socket);
        Ok(Self {
            bound: bound_of(interface),
            is_broken: false,
            arrivals: Some(UdpSocket::from_std(socket.try_clone()?)?),
            socket,
            destination,
            filter,
            looked: Instant::now(),
        })
    }

    /// Whether this one still does for the interface.
    pub fn serves(&self, interface: &Interface) -> bool {
        !self.is_broken && self.bound == bound_of(interface)
    }

    /// Nothing is sent or heard by it any more.
    pub fn give_up(&mut self) {
        self.is_broken = true;
    }

    /// Sends without waiting: a report that finds no room is lost, as one on the air may be.
    pub fn send(&self, report: &Outgoing) -> Result<()> {
        if self.is_broken {
            return Ok(());
        }
        let everyone = self.destination;
        let to = report.to.map_or(everyone, |address| (address, everyone.port()).into());
        match self.socket.send_to(&report.datagram, to) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until it is time to look for datagrams.
    pub async fn readable(&self) -> Result<()> {
        if self.is_broken {
            return std::future::pending().await;
        }
        let Some(arrivals) = &self.arrivals else {
            sleep_until(self.looked + REST).await;
            return Ok(());
        };
        arrivals.readable().await?;
        // What has arrived is read by the other handle.
        let _ = arrivals.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        Ok(())
    }

    /// The datagrams that wait.
    pub fn receive(&mut self) -> Result<Vec<(IpAddr, Vec<u8>)>> {
        let is_soon = self.looked.elapsed() < 2 * REST;
        self.looked = Instant::now();
        let mut datagrams = Vec::new();
        // One byte more, to notice what is too long.
        let mut bytes = [0; MAX_DATAGRAM_BYTES + 1];
        while datagrams.len() < DATAGRAMS_AT_ONCE {
            match self.socket.recv_from(&mut bytes) {
                Ok((length, from)) => datagrams.push((from.ip(), bytes[..length].to_vec())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if datagrams.len() == DATAGRAMS_AT_ONCE || (is_soon && !datagrams.is_empty()) {
            self.arrivals = None;
        } else if self.arrivals.is_none() {
            self.arrivals = Some(UdpSocket::from_std(self.socket.try_clone()?)?);
        }
        Ok(datagrams)
    }

    /// What was kept from the daemon since the last call; None: nothing.
    pub fn filtered(&mut self) -> anyhow::Result<Option<Filtered>> {
        self.filter.take()
    }
}

fn bound_of(interface: &Interface) -> (u32, String, bool) {
    (interface.index, interface.name.clone(), interface.ipv4.is_some())
}

/// Why any user of this machine may have the port before the daemon has, which then hears nobody.
pub fn open_to_users(port: u16) -> Option<String> {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
    let first = first.and_then(|text| text.trim().parse().ok()).unwrap_or(1024);
    (port >= first).then(|| {
        format!(
            "[group] port = {port}: any user may take that port first, and this device then works alone; ports below {first} are \
             root's here"
        )
    })
}

fn open_v4(port: u16) -> Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_broadcast(true)?;
    socket.set_tos_v4(TRAFFIC_CLASS)?;
    socket.set_ttl_v4(ON_LINK_TTL)?;
    Ok((socket, (Ipv4Addr::BROADCAST, port).into()))
}

fn open_v6(interface: &Interface, port: u16) -> Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_only_v6(true)?;
    socket.join_multicast_v6(&MULTICAST_GROUP, interface.index)?;
    socket.set_multicast_if_v6(interface.index)?;
    socket.set_multicast_loop_v6(false)?;
    socket.set_tclass_v6(TRAFFIC_CLASS)?;
    socket.set_unicast_hops_v6(ON_LINK_TTL)?;
    socket.set_multicast_hops_v6(ON_LINK_TTL)?;
    Ok((socket, (MULTICAST_GROUP, port).into()))
}
