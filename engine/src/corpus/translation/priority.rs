// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The priority engine's limits, rules, inputs and actions in the corpus.

use serde_json::Value;

use super::super::plain::{Readable, Written, fields, kinds};
use super::changed;
use crate::change::Change;
use crate::priority::call::Call;
use crate::priority::{
    Action, ChainLimits, DonatedTime, Donor, Grant, GrantedTasks, HandlerSample, Input, Policy, PriorityLimits,
    PriorityRule, Recipient, RefusedThread, Schedule, Service, StartedProcess, Usage,
};

fields! {
    PriorityLimits { max_priority, max_tasks, total_percent, window, longest_wait, cpus }
    Grant { uid, gid, max_priority, max_tasks, budget_percent }
    PriorityRule { name, matcher, schedule, budget_percent, max_tasks, added_by }
    Schedule { policy, cpus }
    Service { protocol, local_port }
    ChainLimits { priority, share_percent }
    StartedProcess { id, process, tasks, cpu }
    Usage { id, cpu, tasks, found }
    GrantedTasks { tasks, old }
    DonatedTime { donor, used, recipients, to }
    Recipient { pid, name }
    HandlerSample { tid, until, is_awake, cpu }
    RefusedThread { tid; reason }
}

kinds! {
    Call {
        Chains(chains),
        AddRule { rule, uid, gids },
        RemoveRule { name, uid },
        Launch { asking, schedule, gids },
        Pause,
        Resume,
    }
    Input {
        Started { started, rule },
        TaskAdded { id, tid },
        Exited { id, cpu },
        Outcome { id, outcome },
        NotGiven { id; reason },
        EndedBefore { id },
        Usage { processes, napi },
        Donated(donated),
        Starvation { cpu, waited },
        NapiThreads { threads, priority },
        NapiRaised { cpu, refused },
        Request { tid, pid, service },
        OtherWork { tid },
        Raised { tid, outcome },
        HandlerEnded { tid, cpu },
        Lowered { tid, cpu },
        Handlers(samples),
        ChainsEnded,
    }
    Policy {
        Fifo { priority },
        RoundRobin { priority },
        Deadline { runtime, deadline, period },
    }
    Donor { Process(id), Handler { tid }, }
}

kinds!(written Action {
    Grant { id, schedule },
    GrantTask { id, tid },
    Revoke { id },
    ScanProcesses,
    RaiseNapi { threads, priority },
    LowerNapi,
    Raise { tid, priority },
    Lower { tid },
    Bar { service, until },
    Record(change),
});

impl Written for Box<StartedProcess> {
    fn write(&self) -> Value {
        (**self).write()
    }
}

impl Readable for Box<StartedProcess> {
    fn read(value: &Value) -> Result<Self, String> {
        StartedProcess::read(value).map(Self::new)
    }
}

/// Without its texts.
impl Written for Box<Change> {
    fn write(&self) -> Value {
        Value::Object(changed(self))
    }
}
