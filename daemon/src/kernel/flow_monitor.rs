// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches the TCP sockets of one network namespace. Output: passes over the active ones, scans over all of them, and
//! events as they happen; and the UDP sockets that something was sent on. All in the engine's types. It never changes a
//! socket.
//!
//! The iterators show the namespace of the thread that runs them: call from the namespace that is watched.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use anyhow::{Context, Result};
use giveway_engine::model::{CaState, Cookie, Flow, FlowEvent, Owner, Protocol, TcpState};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, Link, MapHandle};

use super::cpu_time;
use super::ids::start_of;
use super::libbpf_log::explain;
use super::records::{self, IteratorReader, socket_address, text};
use super::ring::Ring;
use super::scanner::{self, SocketProtocol};
use super::skeletons::flow_monitor as skeleton;
use nix::sys::socket::SockProtocol;
use skeleton::types;

/// How many events are handed over in one go, so that a flood does not keep the caller from its other work.
const EVENTS_AT_ONCE: usize = 4096;

/// The search for owners looks at every open file of the machine and costs more than a scan. It is done at the first
/// scan, at every sixth one, and when a scan shows a connection without an owner that the last
/// search did not leave without one. It finds who has a socket open that nobody is seen to use; who uses one is seen at once.
const SCANS_PER_SEARCH: u32 = 6;
/// A pass is followed by so many times its CPU time without one: whoever opens many makes the daemon slow, not busy.
const REST: u32 = 10;

/// Something that happened to a socket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SocketEvent {
    /// CLOCK_MONOTONIC.
    pub t_ns: u64,
    pub cookie: Cookie,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub what: FlowEvent,
    /// Of a retransmission: how many segments since the socket's last such event, of which there is at most one
    /// in 10 ms. Otherwise 1.
    pub count: u32,
}

/// How the sockets that something was sent on are found.
#[derive(Clone, Copy, PartialEq)]
enum ScanMode {
    /// The kernel goes from mark to mark: what is idle costs nothing.
    Marked,
    /// Over all sockets, whose locks the kernel takes.
    All,
}

/// The loaded programs; dropping it takes them out of the kernel.
pub struct FlowMonitor {
    events: Ring<types::gw_event>,
    counters: MapHandle,
    pass: Link,
    scan: Link,
    find_owners: Link,
    datagrams: Link,
    reader: IteratorReader,
    how: ScanMode,
    /// Why a poll does not go from mark to mark.
    why_all: Option<String>,
    /// How often a socket had become active when the last poll over all found none.
    quiet_since: Option<u64>,
    next_poll: Instant,
    scans_since_search: u32,
    /// Connections that the last search left without an owner.
    ownerless: BTreeSet<Cookie>,
    _tracing: Vec<Link>,
}

impl FlowMonitor {
    /// Loads and attaches the monitor for the namespace of this number, which must be the caller's own.
    pub fn open(netns_inum: u32) -> Result<Self> {
        super::check_requirements()?;
        let reason = match Self::load(netns_inum, ScanMode::Marked)? {
            Ok(monitor) => return Ok(monitor),
            Err(reason) => reason,
        };
        tracing::warn!("{reason}: each poll goes over all sockets, and costs more");
        Ok(Self {
            why_all: Some(reason),
            ..Self::open_over_all(netns_inum)?
        })
    }

    /// As `open` where the kernel has no iterators over marks; for tests.
    #[doc(hidden)]
    pub fn open_over_all(netns_inum: u32) -> Result<Self> {
        Self::load(netns_inum, ScanMode::All)?.map_err(anyhow::Error::msg)
    }

    /// Err: this kernel refuses to scan so, and what it says. Some have no iterators over a map's elements, for nobody (EPERM).
    fn load(netns_inum: u32, scan: ScanMode) -> Result<std::result::Result<Self, String>> {
        // The object goes again at the end of this function; the links keep its programs, at less memory.
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::FlowMonitorSkelBuilder::default();
        let mut open = explain("open the flow monitor", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the flow monitor has no constants")?
            .netns_inum = netns_inum;
        open.progs.gw_poll_active.set_autoload(scan == ScanMode::Marked);
        open.progs.gw_list_datagrams.set_autoload(scan == ScanMode::Marked);
        open.progs.gw_scan_active.set_autoload(scan == ScanMode::All);
        open.progs.gw_scan_datagrams.set_autoload(scan == ScanMode::All);
        let mut is_refused = false;
        let skeleton = match explain("load the flow monitor", || {
            open.load()
                .inspect_err(|error| is_refused = error.kind() == ErrorKind::PermissionDenied)
        }) {
            Err(reason) if is_refused => return Ok(Err(format!("{reason}"))),
            loaded => loaded?,
        };
        let (programs, maps) = (&skeleton.progs, &skeleton.maps);
        let (pass, datagrams) = match scan {
            ScanMode::Marked => (
                explain("attach the poll", || {
                    programs.gw_poll_active.attach_iter(maps.active.as_fd())
                })?,
                explain("attach the list of UDP sockets", || {
                    programs.gw_list_datagrams.attach_iter(maps.datagrams.as_fd())
                })?,
            ),
            ScanMode::All => (
                explain("attach the poll", || programs.gw_scan_active.attach())?,
                explain("attach the list of UDP sockets", || programs.gw_scan_datagrams.attach())?,
            ),
        };
        Ok(Ok(Self {
            why_all: None,
            events: Ring::open("connections", &maps.events)?,
            counters: MapHandle::try_from(&maps.bss).context("cannot keep the monitor's counters")?,
            pass,
            scan: explain("attach the scan", || programs.gw_scan_all.attach())?,
            find_owners: explain("attach the search for owners", || programs.gw_find_owners.attach())?,
            datagrams,
            reader: IteratorReader::default(),
            how: scan,
            quiet_since: None,
            next_poll: Instant::now(),
            scans_since_search: SCANS_PER_SEARCH,
            ownerless: BTreeSet::new(),
            _tracing: attach_tracing(programs)?,
        }))
    }

    /// Why each poll goes over all sockets, where it does.
    pub fn why_all_sockets(&self) -> Option<&str> {
        self.why_all.as_deref()
    }

    /// Whether the next poll may be made.
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next_poll
    }

    /// The sockets that were active since the last poll, or have bytes queued or in flight.
    pub fn poll(&mut self) -> Result<Vec<Flow>> {
        let touches = self.counters()?.touches;
        let mut flows = Vec::new();
        if self.quiet_since == Some(touches) {
            return Ok(flows);
        }
        let begun = cpu_time() + scanner::spent();
        self.read(SocketProtocol::Tcp, &mut flows)?;
        let took = (cpu_time() + scanner::spent()).saturating_sub(begun);
        self.next_poll = Instant::now() + took * REST;
        self.quiet_since = (self.how == ScanMode::All && flows.is_empty()).then_some(touches);
        Ok(flows)
    }

    /// The UDP sockets that a process has sent something on since the start, with the one that does.
    pub fn datagrams(&mut self) -> Result<Vec<Flow>> {
        let mut flows = Vec::new();
        self.read(SocketProtocol::Udp, &mut flows)?;
        Ok(flows)
    }

    fn read(&mut self, sockets: SocketProtocol, flows: &mut Vec<Flow>) -> Result<()> {
        let link = match sockets {
            SocketProtocol::Tcp => &self.pass,
            SocketProtocol::Udp => &self.datagrams,
        };
        let each = |f: types::gw_flow| flows.push(flow(&f));
        match self.how {
            ScanMode::Marked => self.reader.run(link, each),
            ScanMode::All => scanner::run(link, sockets, each),
        }
    }

    /// Every connection of the namespace, with its owner where one can be found.
    pub fn scan(&mut self) -> Result<Vec<Flow>> {
        // A search for nothing costs most.
        scanner::check(SocketProtocol::Tcp)?;
        if self.scans_since_search >= SCANS_PER_SEARCH {
            return self.search_and_scan();
        }
        self.scans_since_search += 1;
        let flows = self.read_all()?;
        let is_news = |flow: &Flow| flow.owner.is_none() && !self.ownerless.contains(&flow.cookie);
        if flows.iter().any(is_news) {
            drop(flows);
            return self.search_and_scan();
        }
        Ok(flows)
    }

    fn search_and_scan(&mut self) -> Result<Vec<Flow>> {
        self.reader.run(&self.find_owners, |_: types::gw_flow| ())?;
        self.scans_since_search = 1;
        let flows = self.read_all()?;
        let ownerless = flows.iter().filter(|flow| flow.owner.is_none());
        self.ownerless = ownerless.map(|flow| flow.cookie).collect();
        Ok(flows)
    }

    fn read_all(&mut self) -> Result<Vec<Flow>> {
        let mut flows = Vec::new();
        scanner::run(&self.scan, SocketProtocol::Tcp, |f| flows.push(flow(&f)))?;
        Ok(flows)
    }

    /// Readable when so many events wait that some might be lost: poll for events before each poll as well.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// Hands over the events that wait, oldest first, up to 4096; returns how many. More may wait for the next call.
    pub fn poll_events(&mut self, each: &mut impl FnMut(SocketEvent)) -> Result<usize> {
        let arrived = self.events.take(EVENTS_AT_ONCE)?;
        let count = arrived.len();
        arrived.iter().filter_map(event).for_each(each);
        Ok(count)
    }

    /// Events that were lost since the start, because they were not polled in time.
    pub fn lost_events(&self) -> Result<u64> {
        Ok(self.counters()?.lost_events)
    }

    fn counters(&self) -> Result<types::bss> {
        records::counters(&self.counters, "connections")
    }
}

fn attach_tracing(programs: &skeleton::FlowMonitorProgs<'_>) -> Result<Vec<Link>> {
    [
        ("tcp_probe", &programs.gw_touch_segment),
        ("sock_send_length", &programs.gw_touch_send),
        ("tcp_rcv_space_adjust", &programs.gw_see_receive),
        ("inet_sock_set_state", &programs.gw_see_state),
        ("tcp_retransmit_skb", &programs.gw_see_retransmit),
        ("tcp_cong_state_set", &programs.gw_see_ca_state),
    ]
    .into_iter()
    .map(|(point, program)| explain(&format!("attach to the tracepoint {point}"), || program.attach()))
    .collect()
}

/// A kind that this build does not know is left out.
fn event(e: &types::gw_event) -> Option<SocketEvent> {
    let what = match e.kind {
        types::gw_event_kind::GW_EVENT_OPEN => FlowEvent::Open,
        types::gw_event_kind::GW_EVENT_CLOSE => FlowEvent::Close,
        types::gw_event_kind::GW_EVENT_STATE => FlowEvent::State {
            from: tcp_state(e.from),
            to: tcp_state(e.to),
        },
        types::gw_event_kind::GW_EVENT_RETRANSMIT => FlowEvent::Retransmit,
        types::gw_event_kind::GW_EVENT_CA_STATE => FlowEvent::CaState { to: ca_state(e.to) },
        _ => return None,
    };
    let (local, remote) = addresses(&e.tuple);
    Some(SocketEvent {
        t_ns: e.t_ns,
        cookie: Cookie(e.cookie),
        local,
        remote,
        what,
        count: e.count.max(1),
    })
}

fn flow(f: &types::gw_flow) -> Flow {
    let (local, remote) = addresses(&f.tuple);
    let limit = |segments: u32| (segments < types::gw_limit::GW_UNLIMITED.0).then_some(segments);
    Flow {
        cookie: Cookie(f.cookie),
        protocol: if f.protocol == SockProtocol::Udp as u16 {
            Protocol::Udp
        } else {
            Protocol::Tcp
        },
        local,
        remote,
        state: tcp_state(f.state),
        owner: (f.pid != 0).then(|| Owner {
            pid: f.pid,
            command: text(&f.command),
            start_ns: start_of(f.start_ns),
        }),
        uid: Some(f.uid),
        priority: f.priority,
        dscp: (if remote.is_ipv4() { f.tos } else { f.tclass }) >> 2,
        cgroup_id: f.cgroup_id,
        ifindex: f.ifindex,
        cwnd: f.cwnd,
        clamp: limit(f.clamp),
        ssthresh: limit(f.ssthresh),
        mss_bytes: f.mss_bytes,
        srtt_us: f.srtt_us,
        min_rtt_us: (f.min_rtt_us != u32::MAX).then_some(f.min_rtt_us),
        rttvar_us: f.rttvar_us,
        in_flight_bytes: f.in_flight_bytes,
        unsent_bytes: f.unsent_bytes.into(),
        unacked_bytes: f.unacked_bytes.into(),
        delivery_rate_bytes_per_s: f.delivery_rate_bytes_per_s,
        pacing_rate_bytes_per_s: (f.pacing_rate_bytes_per_s != u64::MAX).then_some(f.pacing_rate_bytes_per_s),
        retransmits: f.retransmits,
        delivered_segments: f.delivered,
        acked_bytes: f.acked_bytes,
        received_bytes: f.received_bytes,
        latest_rtt_us: f.latest_rtt_us,
        receiver_rtt_us: f.receiver_rtt_us,
        ca_state: ca_state(f.ca_state),
        congestion_control: text(&f.congestion_control),
    }
}

fn tcp_state(number: u32) -> TcpState {
    TcpState::from_kernel(number.try_into().unwrap_or(u8::MAX))
}

fn ca_state(number: u32) -> CaState {
    CaState::from_kernel(number.try_into().unwrap_or(u8::MAX))
}

fn addresses(tuple: &types::gw_tuple) -> (SocketAddr, SocketAddr) {
    (
        socket_address(tuple.family, tuple.local, tuple.local_port, tuple.scope_id),
        socket_address(tuple.family, tuple.remote, tuple.remote_port, tuple.scope_id),
    )
}
