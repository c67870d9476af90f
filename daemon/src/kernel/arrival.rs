// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bpf/arrival.bpf.c: requests with deadlines, from the wire to the threads that receive them. Takes rules, gives events and
//! what is known of a handler. It changes no thread.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result};
use giveway_engine::config::Chain;
use giveway_engine::model::Protocol;
use giveway_engine::priority::Service;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle};

use super::libbpf_log::explain;
use super::records::{bytes_of, lookup};
use super::ring::Ring;
use super::skeletons::arrival as skeleton;
use super::tcx::{self, TcxHook};
use skeleton::types;

/// More wait for the next call.
const EVENTS_AT_ONCE: usize = 256;

/// A rule whose user is known.
#[derive(Clone, Debug)]
pub struct Rule {
    pub chain: Chain,
    pub uid: u32,
}

/// What the kernel reports of a thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadEvent {
    pub tid: u32,
    pub pid: u32,
    pub what: ThreadEventKind,
}

#[derive(Clone, Copy, Debug)]
pub enum ThreadEventKind {
    /// A request is for it, and it has no real time.
    Request(Service),
    /// Something else is, and it is raised.
    OtherWork,
    /// It has ended, having used so much.
    Ended { cpu: Duration },
}

/// The loaded programs; dropping them ends everything here.
pub struct Arrival {
    program: OwnedFd,
    /// The interface that it is attached to.
    attached: Option<(u32, OwnedFd)>,
    /// For admission: what answers inherit.
    pub requests: MapHandle,
    handlers: MapHandle,
    rules: MapHandle,
    events: MapHandle,
    _tracing: Vec<Link>,
}

impl Arrival {
    /// Loads it for the namespace of this number. Touches no link yet.
    pub fn load(netns_inum: u32, rules: &[Rule]) -> Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let builder = skeleton::ArrivalSkelBuilder::default();
        let mut open = explain("open the arrival programs", || builder.open(&mut storage))?;
        open.maps
            .rodata_data
            .as_deref_mut()
            .context("the arrival programs have no constants")?
            .netns_inum = netns_inum;
        let skeleton = explain("load the arrival programs", || open.load())?;
        let (programs, maps) = (&skeleton.progs, &skeleton.maps);
        let keep = |map| MapHandle::try_from(map).context("cannot keep a map of the arrival programs");
        let tracing = [
            &programs.gw_note_delivery,
            &programs.gw_note_receipt,
            &programs.gw_note_waking,
            &programs.gw_forget_handler,
        ];
        let tracing = tracing
            .into_iter()
            .map(|program| explain("watch arrivals", || program.attach_trace()));
        let arrival = Self {
            program: programs.gw_note_arrival.as_fd().try_clone_to_owned()?,
            attached: None,
            requests: keep(&maps.chain_requests)?,
            handlers: keep(&maps.chain_handlers)?,
            rules: keep(&maps.chain_rules)?,
            events: keep(&maps.handler_events)?,
            _tracing: tracing.collect::<Result<_>>()?,
        };
        rules
            .iter()
            .try_for_each(|rule| set_rule(&arrival.rules, rule, Duration::ZERO))?;
        Ok(arrival)
    }

    /// Attaches it to this interface and no other; None: to none.
    pub fn attach(&mut self, ifindex: Option<u32>) -> Result<()> {
        if self.attached.as_ref().map(|(at, _)| *at) == ifindex {
            return Ok(());
        }
        self.attached = None;
        let Some(ifindex) = ifindex else { return Ok(()) };
        self.attached = Some((ifindex, tcx::attach(self.program.as_fd(), ifindex, TcxHook::Ingress)?));
        Ok(())
    }

    /// For one other thread.
    pub fn handlers(&self) -> Result<HandlerMaps> {
        let share = |map: &MapHandle| MapHandle::try_from(map).context("cannot share a map of the arrival programs");
        Ok(HandlerMaps {
            handlers: share(&self.handlers)?,
            rules: share(&self.rules)?,
            events: share(&self.events)?,
        })
    }
}

/// What the thread that raises handlers reads and sets.
pub struct HandlerMaps {
    handlers: MapHandle,
    rules: MapHandle,
    events: MapHandle,
}

/// Events of handlers.
pub struct Events(Ring<types::gw_handler_event>);

impl Events {
    /// Readable when events wait.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    pub fn take(&self) -> Result<Vec<ThreadEvent>> {
        let arrived = self.0.take(EVENTS_AT_ONCE)?;
        Ok(arrived.iter().filter_map(read).collect())
    }
}

impl HandlerMaps {
    pub fn events(&self) -> Result<Events> {
        Ring::open("handlers", &self.events).map(Events)
    }

    /// The deadline of a thread's latest request; None: the thread has ended.
    pub fn until(&self, tid: u32) -> Result<Option<Duration>> {
        let handler: Option<types::gw_handler> = lookup(&self.handlers, tid, "a handler")?;
        Ok(handler.map(|handler| Duration::from_nanos(handler.until_ns)))
    }

    /// No request of this rule is reported until then.
    pub fn bar(&self, rule: &Rule, until: Duration) -> Result<()> {
        set_rule(&self.rules, rule, until)
    }
}

fn set_rule(map: &MapHandle, rule: &Rule, suspended_until: Duration) -> Result<()> {
    let key = types::gw_chain_key {
        local_port: rule.chain.conditions.local_port(),
        protocol: rule.chain.conditions.protocol().number(),
        reserved: 0,
    };
    let value = types::gw_chain_rule {
        suspended_until_ns: suspended_until.as_nanos() as u64,
        budget_us: (rule.chain.budget_ms * 1000.0).round() as u32,
        priority: rule.chain.priority,
        uid: rule.uid,
        reserved: 0,
    };
    map.update(bytes_of(&key), bytes_of(&value), MapFlags::ANY)
        .context("cannot give the kernel a [[chain]] rule")
}

/// A kind that this build does not know is left out.
fn read(event: &types::gw_handler_event) -> Option<ThreadEvent> {
    let protocol = [Protocol::Udp, Protocol::Tcp]
        .into_iter()
        .find(|protocol| protocol.number() == event.chain.protocol)?;
    let what = match event.kind {
        types::gw_handler_event_kind::GW_RAISE => ThreadEventKind::Request(Service {
            protocol,
            local_port: event.chain.local_port,
        }),
        types::gw_handler_event_kind::GW_LOWER => ThreadEventKind::OtherWork,
        types::gw_handler_event_kind::GW_ENDED => ThreadEventKind::Ended {
            cpu: Duration::from_nanos(event.cpu_ns),
        },
        _ => return None,
    };
    Some(ThreadEvent {
        tid: event.tid,
        pid: event.pid,
        what,
    })
}
