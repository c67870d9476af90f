// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What comes into the engine and what it asks for. The daemon fills the one and carries out the other.

use std::net::IpAddr;

use crate::model::{Cookie, Flow, FlowEvent};
use crate::queue::traffic::Refusal;
use crate::queue::{Plan, Uplink};
use crate::record::What;
use crate::wire::{Keyring, Outgoing};

/// An observation.
#[derive(Debug)]
pub enum Input<'a> {
    /// The managed interface; None while there is none.
    Interface(Option<Link>),
    /// The managed link's way out, as it is now; None while there is none.
    Uplink(Option<Uplink>),
    /// What became of [`Action::Queue`]; the reason where it could not be done, and then nothing of it is left.
    QueueOutcome(Result<(), String>),
    /// Packets with deadlines that were not sent, oldest first.
    Refusals(Vec<Refusal>),
    /// A pass of the monitor. `complete` where it covers every socket, so that an absent one is gone.
    Pass { flows: Vec<Flow>, complete: bool },
    /// What happened to sockets, in order.
    Events(Vec<(Cookie, FlowEvent)>),
    /// New connections were given their caps in the kernel, from the table of [`Action::CapNew`].
    CappedAtConnect(Vec<(Cookie, u32)>),
    /// What became of each [`Action::Cap`].
    CapOutcomes(Vec<(Cookie, CapOutcome)>),
    /// The group's keys, read anew; None works alone.
    Keys(Option<Keyring>),
    /// A datagram on the group's port.
    Datagram { from: IpAddr, bytes: &'a [u8] },
    /// Time has passed.
    Tick,
}

/// The managed interface.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub ifindex: u32,
    /// Of the reports on it: 20 for IPv4, 40 for IPv6.
    pub ip_header_bytes: u32,
}

/// What became of a cap.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CapOutcome {
    Applied,
    /// The socket repairs a loss just now; asked again in the next pass.
    Deferred,
    /// Somebody else holds this socket's cwnd at `clamp`.
    Foreign {
        clamp: Option<u32>,
    },
    /// The socket is gone.
    Gone,
    /// The kernel refused.
    Failed {
        errno: i32,
    },
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Hold a socket's cwnd below `cap`; None lifts it. Answered in [`Input::CapOutcomes`].
    Cap { cookie: Cookie, cap: Option<u32> },
    /// Caps for connections yet to come, by the RTT of their handshake: one for each step of the
    /// resolution that the engine was made with, 0 for none.
    CapNew { ifindex: u32, caps: Vec<u32> },
    /// Put this queue up in place of ours, or (None) take ours down. Answered by [`Input::QueueOutcome`].
    Queue(Option<Plan>),
    /// Tell the neighbours.
    Report(Outgoing),
    /// Something worth a line in the record.
    Record(What),
}
