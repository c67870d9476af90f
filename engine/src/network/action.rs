// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The inputs of the network engine and what it asks for. The daemon provides the one and carries out the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::change::{Setting, Value};
use crate::class::{Activity, Rules};
use crate::downlink::{self, Arrival, Arrived, Counted, LeftOut, Way};
use crate::model::{
    Choice, Cookie, Device, Fingerprint, Flow, FlowEvent, Forwarded, Interface, Limit, Prefix, Process, ProcessId,
    RuleId, Treatment,
};
use crate::network::by_hand::SetByHand;
use crate::network::enforcement::Elsewhere;
use crate::peers::{Filtered, Keyring, Outgoing};
use crate::queue::links::LinkRates;
use crate::queue::traffic::{QueueCounters, Refusal};
use crate::queue::{Request, Uplink};
use crate::record::What;

/// An observation.
#[derive(Debug)]
pub enum Input<'a> {
    /// The first of the managed links, by which the access point's neighbours are; None while there is none.
    Interface(Option<Interface>),
    /// The egress of each link as it is now: those to manage, in the order of preference, and those where ours still
    /// stands.
    Uplinks(Vec<Uplink>),
    /// Where no queue of ours stands, packets of these interfaces were background, streams or had a deadline; and so many wait
    /// there, in what stands in its place.
    Ordered(BTreeMap<u32, u32>),
    /// The outcome of [`Action::Queue`]; after an error no queue of ours is left there.
    QueueOutcome { ifindex: u32, outcome: Result<(), String> },
    /// The ways in of the managed links, or out of those without a queue of ours, while there are such limits or orders; and
    /// what was counted there, where it was looked at.
    Arrivals {
        way: Way,
        arrivals: Vec<Arrival>,
        counted: Option<Counted>,
    },
    /// What has come by links where it is ordered, by interface.
    Arrived(BTreeMap<u32, Arrived>),
    /// The outcome of [`Action::Detour`]; after an error nothing of it is left.
    DetourOutcome { way: Way, outcome: Result<LeftOut, String> },
    /// What that had put up is no more, for this reason.
    DetourLost { way: Way, why: String },
    /// Packets with deadlines that were not sent, oldest first.
    Refusals(Vec<Refusal>),
    /// A pass of the monitor. `complete` where it covers every socket, so that an absent one is gone.
    Pass {
        flows: Vec<Flow>,
        complete: bool,
        /// By interface; none of a link where no queue of ours was ever there, or that is just going away.
        queues: BTreeMap<u32, QueueCounters>,
    },
    /// The UDP sockets that something was sent on; one that is absent is gone.
    Datagrams(Vec<Flow>),
    /// The processes that there are, once a second.
    Processes(Vec<Fingerprint>),
    /// The cgroups of containers that have sent something within the last minute, once a second.
    Forwarding(BTreeSet<u64>),
    /// What happened to sockets, in order.
    Events(Vec<(Cookie, FlowEvent)>),
    /// New connections were given their caps in the kernel, from the table of [`Action::CapNew`].
    CappedAtConnect(Vec<(Cookie, u32)>),
    /// The outcome of each setting of each [`Action::Limit`].
    Outcomes(Vec<(Cookie, Setting, Outcome)>),
    /// Settings that were ours until somebody else set them, to this.
    TakenOver(Vec<(Cookie, Setting, Value)>),
    /// The answer to [`Action::Identify`]. None: it has ended, or may not be read.
    Identified {
        processes: Vec<(ProcessId, Option<Arc<Process>>)>,
        cgroups: Vec<(u64, Option<Arc<str>>)>,
    },
    /// All that is set by hand from now on, in the order in which it was, and why it has changed.
    ByHand { all: Vec<SetByHand>, why: String },
    /// The rates that were set for links at run time, by their names.
    LinkRates(BTreeMap<String, LinkRates>),
    /// What is active from now on. The next pass follows it, but not sooner than 0.2 s after the last one that did.
    Active(Vec<Activity>),
    /// The rules for classes, read anew.
    Rules(Arc<Rules>),
    /// This class was just chosen for a process, whose program is about to start.
    Chosen { process: ProcessId, choice: Choice },
    /// More is known of what rules ask about: processes that were read before are read again.
    ReadAgain,
    /// The outcome of [`Action::Nice`].
    Niced {
        process: ProcessId,
        outcome: Result<Niced, String>,
    },
    /// Threads of these processes that were made nice have been set to this by somebody else.
    NiceTaken(Vec<(ProcessId, u32, String)>),
    /// The rate limits of commands, all of them.
    CommandLimits(Vec<Limit>),
    /// The devices there are, by their numbers.
    Devices(BTreeMap<u32, Device>),
    /// The own subnets of links whose rates are not for them, all of these, by the links' numbers.
    Subnets(BTreeMap<u32, Vec<Prefix>>),
    /// Of the flows of [`Network::to_be_traced`](super::Network::to_be_traced): the link in whose queue a packet of each was
    /// within the last moments; None: in none.
    Traced(Vec<(Cookie, Option<u32>)>),
    /// Processes for which something was chosen, and whose sockets are in another network namespace by now; all of them.
    Elsewhere(Vec<Elsewhere>),
    /// The group's keys, read anew; None works alone.
    Keys(Option<Keyring>),
    /// A datagram on the group's port.
    Datagram { from: IpAddr, bytes: &'a [u8] },
    /// Datagrams on that port that were refused unread, since the last time.
    Filtered(Filtered),
    /// From now on nothing is in force, for this reason; None: everything is again.
    Pause(Option<String>),
    /// Time has passed.
    Tick,
}

/// What became of one limit.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Applied,
    /// The kernel repairs a loss just now; asked again in the next pass.
    Deferred,
    /// The walk was given up: the value may be on the socket, or may not. The next pass that shows the socket tells.
    Unknown,
    /// Another tool has set this value.
    Foreign {
        found: Value,
    },
    /// The socket is gone.
    Gone,
    /// The kernel refused, with this error.
    Failed {
        errno: String,
    },
    /// Nothing here can set it.
    Unable,
}

/// What became of [`Action::Nice`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Niced {
    /// Threads for which it is news.
    pub threads: u32,
    /// What the main thread had, or gets back.
    pub before: String,
    /// Why none of its threads is changed, where none is.
    pub left: Option<String>,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Set each of these settings of a socket; `Unset` puts back what giveway found there. Answered in
    /// [`Input::Outcomes`].
    Limit {
        cookie: Cookie,
        limits: Vec<(Setting, Value)>,
    },
    /// Caps for connections yet to come, by the RTT of their handshake: one for each step of the
    /// resolution that the engine was made with, 0 for none.
    CapNew { ifindex: u32, caps: Vec<u32> },
    /// Do so with the queue of this link. Answered by [`Input::QueueOutcome`].
    Queue {
        ifindex: u32,
        name: String,
        request: Request,
    },
    /// Put this up for what arrives, or for what is sent without a queue of ours, in place of what is in force; None: nothing.
    /// Answered by [`Input::DetourOutcome`].
    Detour { way: Way, plan: Option<downlink::Plan> },
    /// Bulk and background that arrive by these interfaces may have so much together, bytes a second.
    Available(BTreeMap<u32, u64>),
    /// Read these processes, and the paths of these cgroups. Answered by [`Input::Identified`].
    Identify {
        processes: Vec<ProcessId>,
        cgroups: Vec<u64>,
    },
    /// The queue serves this flow so, whatever it is marked with; None: as it did before.
    Treat {
        cookie: Cookie,
        treatment: Option<Treatment>,
    },
    /// The queue serves what this process's sockets send so, until it is told of the socket; None: as it did before.
    TreatProcess {
        process: ProcessId,
        treatment: Option<Treatment>,
    },
    /// The queue serves what is forwarded for this cgroup so; None: by its packets.
    TreatForwarded { cgroup: u64, told: Option<Forwarded> },
    /// From now on what this process starts belongs to its class by this rule, as does what it has started; None: by what it
    /// has inherited itself. As long as it runs this program. Where that fails, it comes again in a second.
    HandOn {
        process: ProcessId,
        image: u64,
        rule: Option<RuleId>,
    },
    /// All threads of this process, and what they start, run at nice 19 and in the idle I/O class for as long as this
    /// cause is in force; None: it gets back what it had. Answered by [`Input::Niced`].
    Nice { process: ProcessId, cause: Option<u32> },
    /// The causes that are in force from now on; what was made nice by another gets back what it had.
    NiceCauses(BTreeSet<u32>),
    /// Send this to the neighbours.
    Report(Outgoing),
    /// Something worth a line in the record.
    Record(What),
}
