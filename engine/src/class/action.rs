// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inputs of classification, and its actions on the kernel's tables: a verdict's treatment, by flow, process and
//! cgroup. The reason is in the verdict, reported by a change of the same step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::active::Activity;
use super::by_hand::SetByHand;
use super::rules::Rules;
use crate::model::{Choice, Cookie, Device, Fingerprint, Forwarded, Limit, ProcessId, RuleId, Treatment};

#[derive(Debug)]
pub enum Input {
    /// All processes, once a second.
    Processes(Vec<Fingerprint>),
    /// The cgroups of containers that sent within the last minute, once a second.
    Forwarding(BTreeSet<u64>),
    /// The new focus. The next poll applies it, but no sooner than 0.2 s after the last change.
    Active(Vec<Activity>),
    /// The rules for classes, reloaded.
    Rules(Arc<Rules>),
    /// The rate limits of commands, complete.
    CommandLimits(Vec<Limit>),
    /// All settings by hand, in their order, with the reason for the change.
    ByHand { all: Vec<SetByHand>, reason: String },
    /// This class was just chosen for a process whose program is about to start.
    Chosen { process: ProcessId, choice: Choice },
    /// More rule conditions can be evaluated: processes are read again.
    ReadAgain,
    /// All devices, by interface number.
    Devices(BTreeMap<u32, Device>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// How the queue treats this flow, regardless of its marks; None: the default.
    Treat {
        cookie: Cookie,
        treatment: Option<Treatment>,
    },
    /// How the queue treats this process's sockets until their flows are in the flow table; None: the default.
    TreatProcess {
        process: ProcessId,
        treatment: Option<Treatment>,
    },
    /// How the queue treats forwarded traffic of this cgroup; None: by packet.
    TreatForwarded { cgroup: u64, told: Option<Forwarded> },
    /// From now on child processes inherit this process's class by this rule, existing ones included; None: only the
    /// class that it inherited itself. Valid while it runs this program. Repeated after a second on failure.
    HandOn {
        process: ProcessId,
        image: u64,
        rule: Option<RuleId>,
    },
}
