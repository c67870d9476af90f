// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inputs and actions of the network engine. The daemon provides the former and carries out the latter.

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

/// An observation, for one subject or several.
#[derive(Debug)]
pub enum Input<'a> {
    /// The first managed link, which leads to the access point's peers; None: there is none.
    Interface(Option<Interface>),
    /// A poll of the monitor. `complete`: a full scan, so that absent sockets are closed.
    Poll {
        flows: Vec<Flow>,
        complete: bool,
        /// By interface; None for a link without giveway's queue so far, or one just being removed.
        queues: BTreeMap<u32, QueueCounters>,
    },
    /// Everything is suspended for this reason; None: resumed.
    Pause(Option<String>),
    /// Time has passed.
    Tick,
    /// The answer to [`Action::Identify`]. None: ended, or not readable.
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

/// A subject's request, with its reasons.
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
    /// An event for the record.
    Record(What),
}
