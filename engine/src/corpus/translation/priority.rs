// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the priority engine's limits, rules, inputs and actions are written in the corpus.

use serde_json::Value;

use super::super::plain::{Readable, Written, fields, kinds};
use super::changed;
use crate::change::Change;
use crate::priority::{
    Action, Borrower, Given, Grant, Input, Lender, Lent, Limits, Policy, RefusedThread, Rule, Schedule, Seen, Service,
    Started, Terms, Usage,
};

/// What is asked of the engine, but for its inputs.
pub enum Call {
    Chains(Vec<(Service, Terms)>),
    AddRule {
        rule: Rule,
        uid: u32,
        gids: Vec<u32>,
    },
    RemoveRule {
        name: String,
        uid: u32,
    },
    Launch {
        asking: Started,
        schedule: Schedule,
        gids: Vec<u32>,
    },
    Pause,
    Resume,
}

#[cfg(feature = "corpus")]
impl Call {
    pub fn add_rule(rule: &Rule, uid: u32, gids: &[u32]) -> Self {
        let (rule, gids) = (rule.clone(), gids.to_vec());
        Self::AddRule { rule, uid, gids }
    }

    pub fn remove_rule(name: &str, uid: u32) -> Self {
        let name = name.to_owned();
        Self::RemoveRule { name, uid }
    }

    pub fn launch(asking: &Started, schedule: &Schedule, gids: &[u32]) -> Self {
        Self::Launch {
            asking: asking.clone(),
            schedule: schedule.clone(),
            gids: gids.to_vec(),
        }
    }
}

fields! {
    Limits { max_priority, max_tasks, total_percent, window, canary, cpus }
    Grant { uid, gid, max_priority, max_tasks, budget_percent }
    Rule { name, matcher, schedule, budget_percent, max_tasks, added_by }
    Schedule { policy, cpus }
    Service { protocol, local_port }
    Terms { priority, share_percent }
    Started { id, process, tasks, cpu }
    Usage { id, cpu, tasks, found }
    Given { tasks, old }
    Lent { lender, used, borrowers, to }
    Borrower { pid, name }
    Seen { tid, until, is_awake, cpu }
    RefusedThread { tid; why }
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
        NotGiven { id; why },
        EndedBefore { id },
        Usage { processes, napi },
        Lent(lent),
        Canary { cpu, waited },
        NapiThreads { threads, priority },
        NapiRaised { cpu, refused },
        Request { tid, pid, service },
        OtherWork { tid },
        Raised { tid, outcome },
        HandlerEnded { tid, cpu },
        Lowered { tid, cpu },
        Look(seen),
        ChainsEnded,
    }
    Policy {
        Fifo { priority },
        RoundRobin { priority },
        Deadline { runtime, deadline, period },
    }
    Lender { Process(id), Handler { tid }, }
}

kinds!(written Action {
    Grant { id, schedule },
    GrantTask { id, tid },
    Revoke { id },
    Look,
    RaiseNapi { threads, priority },
    LowerNapi,
    Raise { tid, priority },
    Lower { tid },
    Bar { service, until },
    Record(change),
});

impl Written for Box<Started> {
    fn write(&self) -> Value {
        (**self).write()
    }
}

impl Readable for Box<Started> {
    fn read(value: &Value) -> Result<Self, String> {
        Started::read(value).map(Self::new)
    }
}

/// Without what is said of it.
impl Written for Box<Change> {
    fn write(&self) -> Value {
        Value::Object(changed(self))
    }
}
