// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What classes are told, and what they ask of the kernel's tables: a verdict's treatment, by flow, process and cgroup. The reason
//! is the verdict's own, and is told by a change of the same step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::active::Activity;
use super::by_hand::SetByHand;
use super::rules::Rules;
use crate::model::{Choice, Cookie, Device, Fingerprint, Forwarded, Limit, ProcessId, RuleId, Treatment};

#[derive(Debug)]
pub enum Input {
    /// The processes that there are, once a second.
    Processes(Vec<Fingerprint>),
    /// The cgroups of containers that have sent something within the last minute, once a second.
    Forwarding(BTreeSet<u64>),
    /// What is active from now on. The next poll follows it, but not sooner than 0.2 s after the last one that did.
    Active(Vec<Activity>),
    /// The rules for classes, read anew.
    Rules(Arc<Rules>),
    /// The rate limits of commands, all of them.
    CommandLimits(Vec<Limit>),
    /// All that is set by hand from now on, in the order in which it was, and why it has changed.
    ByHand { all: Vec<SetByHand>, reason: String },
    /// This class was just chosen for a process, whose program is about to start.
    Chosen { process: ProcessId, choice: Choice },
    /// More is known of what rules ask about: processes that were read before are read again.
    ReadAgain,
    /// The devices there are, by their numbers.
    Devices(BTreeMap<u32, Device>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
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
}
