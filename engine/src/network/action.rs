// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The inputs of the network engine and what it asks for. The daemon provides the one and carries out the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::background::nice;
use crate::model::{Flow, Interface, Process, ProcessId};
use crate::peers::Outgoing;
use crate::queue::links::LinkRequest;
use crate::queue::traffic::QueueCounters;
use crate::record::What;
use crate::share::limiter::CapTable;
use crate::sockets::owners::Unidentified;
use crate::sockets::setting::Request;
use crate::{class, downlink, enforcement, peers, queue, sockets};

/// An observation, of one subject or of several.
#[derive(Debug)]
pub enum Input<'a> {
    /// The first of the managed links, by which the access point's peers are; None while there is none.
    Interface(Option<Interface>),
    /// A pass of the monitor. `complete` where it covers every socket, so that an absent one is gone.
    Poll {
        flows: Vec<Flow>,
        complete: bool,
        /// By interface; none of a link where no queue of ours was ever there, or that is just going away.
        queues: BTreeMap<u32, QueueCounters>,
    },
    /// From now on nothing is active, for this reason; None: everything is again.
    Pause(Option<String>),
    /// Time has passed.
    Tick,
    /// The answer to [`Action::Identify`]. None: it has ended, or may not be read.
    Identified {
        processes: Vec<(ProcessId, Option<Arc<Process>>)>,
        cgroups: Vec<(u64, Option<Arc<str>>)>,
    },
    Sockets(sockets::Input),
    Class(class::Input),
    Nice(nice::Input),
    Queue(queue::Input),
    Downlink(downlink::Input),
    Enforcement(enforcement::Input),
    Peers(peers::Input<'a>),
}

/// What a subject asks for, with its reasons.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Answered in [`sockets::Input::Outcomes`].
    Set(Request),
    CapNew(CapTable),
    /// Answered by [`queue::Input::Outcome`].
    Queue(LinkRequest),
    /// [`downlink::Action::Set`] is answered by [`downlink::Input::Outcome`].
    Downlink(downlink::Action),
    /// Read these. Answered by [`Input::Identified`].
    Identify(Unidentified),
    Class(class::Action),
    /// [`nice::Action::Renice`] is answered by [`nice::Input::Outcome`].
    Nice(nice::Action),
    /// Send this to the peers.
    Report(Outgoing),
    /// Something worth a line in the record.
    Record(What),
}
