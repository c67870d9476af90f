// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which threads have real-time priority, and when they lose it: processes by rule (`rules`), threads that handle requests
//! with a deadline (`chain`), and the kernel's threads that take packets in (`napi`). Input: starts, ends and CPU times,
//! requests, and how long threads of the starvation detector have waited. Output: what to raise and to lower, each with its
//! reason. It never reads a process or sets a priority by itself, and never gives more than the limits allow.
//!
//! Three things keep the machine answering (after rtkit): each part has a budget of its own, all of them together have
//! so much of all CPUs, and the starvation detector, a thread without real time on each CPU, must run every so often. A
//! stranger decides how many packets come, so NAPI threads and chains are lowered before any rule's process loses anything.
//!
//! Several threads may feed it, one at a time. A step is short whatever it is about: it visits what has real time, never all
//! processes, and matches no text. So a request waits for microseconds behind another step; for 0.1 ms where 64 processes
//! have real time and 10,000 are held (measured).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::change::Change;
use crate::config::CEILING;
use crate::model::{Process, ProcessId};

mod budget;
#[cfg(any(test, feature = "corpus"))]
pub(crate) mod call;
mod chain;
mod configured;
mod donation;
mod grant;
mod matched;
mod napi;
mod pause;
mod rule;
mod rules;
mod share;
mod spent;
mod starvation;
mod status;
#[cfg(test)]
mod tests;

use budget::Account;
#[cfg(feature = "corpus")]
use call::Call;
use chain::Chains;
pub use chain::{ChainLimits, HandlerSample, JUDGED_EVERY, Service, THREADS_KEPT};
pub use configured::Names;
pub use donation::{DonatedTime, Donor, Recipient};
pub use grant::{Grant, Grants};
use matched::MatchedProcess;
use napi::Napi;
pub use napi::RefusedThread;
pub use rule::{Policy, PriorityRule, PriorityRules, Schedule, first_match, watched};
pub use status::{
    BudgetStatus, ChainStatus, ChainThread, MatchedStatus, NapiStatus, PriorityCounters, PriorityStatus, RuleStatus,
};

/// giveway's thread that enforces the budgets: it must run when what it has to demote does.
pub const OWN_PRIORITY: u32 = CEILING + 1;
/// giveway's thread that raises handlers of requests. It computes for some microseconds at a time, and must not wait until
/// the other one has read a process, on a machine with one CPU either. The equal of the kernel's interrupt threads, so that
/// neither comes between the other's work (`docs/realtime.md`).
pub const CHAIN_PRIORITY: u32 = OWN_PRIORITY + 1;
/// After a thread of the starvation detector could not run because of rules' processes, nothing is given for so long.
const HOLD: Duration = Duration::from_secs(10);
/// For so long NAPI threads and chains are lowered, by whichever budget.
pub const WINDOW: Duration = Duration::from_secs(1);
/// Of one CPU, where no rule and no grant says otherwise.
pub const DEFAULT_BUDGET_PERCENT: u32 = 80;

/// What all may do together.
#[derive(Clone, Debug, PartialEq)]
pub struct PriorityLimits {
    pub max_priority: u32,
    /// Of rules' processes.
    pub max_tasks: u32,
    /// Of all CPUs.
    pub total_percent: u32,
    pub window: Duration,
    /// How long a thread of the starvation detector may wait.
    pub longest_wait: Duration,
    pub cpus: u32,
}

/// CPU time of a held process.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    pub id: ProcessId,
    /// Since its start, of all its threads.
    pub cpu: Duration,
    /// Those that have real time.
    pub tasks: u32,
    /// Another tool has changed what giveway gave; what was found in its place.
    pub found: Option<String>,
}

/// What a grant has done.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantedTasks {
    pub tasks: u32,
    pub old: String,
}

/// A process as it is after an exec, or was found.
#[derive(Clone, Debug, PartialEq)]
pub struct StartedProcess {
    pub id: ProcessId,
    pub process: Process,
    pub tasks: u32,
    /// Used so far, by all its threads.
    pub cpu: Duration,
}

/// An observation.
#[derive(Debug)]
pub enum Input {
    /// A process has called exec, or was found at a start or for a new rule. `rule`: by [`first_match`], which takes longer
    /// than others should have to wait.
    Started {
        started: Box<StartedProcess>,
        rule: Option<Arc<PriorityRule>>,
    },
    /// A held process has a new thread, without real time so far.
    TaskAdded { id: ProcessId, tid: u32 },
    /// A held process has ended, having used so much CPU time.
    Exited { id: ProcessId, cpu: Duration },
    /// What became of [`Action::Grant`].
    Outcome {
        id: ProcessId,
        outcome: Result<GrantedTasks, String>,
    },
    /// [`Action::Grant`] failed for want of what polls: when it is found the next time, it is judged as if it were new.
    NotGiven { id: ProcessId, reason: String },
    /// It ended before it could be told whether it has it.
    EndedBefore { id: ProcessId },
    /// Of all that [`Priority::granted`] names, some times within a window; and of all NAPI threads together.
    Usage { processes: Vec<Usage>, napi: Duration },
    /// Told before the CPU time or the end of whom it is about.
    Donated(DonatedTime),
    /// The longest wait of a thread of the starvation detector, and on which CPU.
    Starvation { cpu: u32, waited: Duration },
    /// The threads that take packets in are these now.
    NapiThreads { threads: Vec<ProcessId>, priority: u32 },
    /// What became of [`Action::RaiseNapi`]: the CPU time until then of all that are raised, and those that are not.
    NapiRaised { cpu: Duration, refused: Vec<RefusedThread> },
    /// A request with a deadline is for this thread, which has no real time.
    Request { tid: u32, pid: u32, service: Service },
    /// Something else is, after the deadline of its latest request, and it is raised.
    OtherWork { tid: u32 },
    /// What became of [`Action::Raise`]: its CPU time until then.
    Raised {
        tid: u32,
        outcome: Result<Duration, String>,
    },
    /// A thread of which a request was reported has ended, having used so much.
    HandlerEnded { tid: u32, cpu: Duration },
    /// It was lowered, having used so much; None: it has ended.
    Lowered { tid: u32, cpu: Option<Duration> },
    /// All threads that a chain has raised.
    Handlers(Vec<HandlerSample>),
    /// Nothing raises handlers any more; all are lowered.
    ChainsEnded,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Set all threads of the process. Answered by [`Input::Outcome`].
    Grant {
        id: ProcessId,
        schedule: Schedule,
    },
    /// Set one more thread of a process that has been granted.
    GrantTask {
        id: ProcessId,
        tid: u32,
    },
    /// Set all threads back to what they were, but for those that another tool has changed since.
    Revoke {
        id: ProcessId,
    },
    /// Look at all processes for those that rules match now.
    ScanProcesses,
    /// Each for itself. Answered by [`Input::NapiRaised`].
    RaiseNapi {
        threads: Vec<ProcessId>,
        priority: u32,
    },
    LowerNapi,
    /// Answered by [`Input::Raised`].
    Raise {
        tid: u32,
        priority: u32,
    },
    /// Answered by [`Input::Lowered`].
    Lower {
        tid: u32,
    },
    /// Report no requests of this service until then.
    Bar {
        service: Service,
        until: Duration,
    },
    /// Keep this for `why`.
    Record(Box<Change>),
}

impl Action {
    /// The process of a rule that it is about.
    fn process(&self) -> Option<ProcessId> {
        match self {
            Self::Grant { id, .. } | Self::GrantTask { id, .. } | Self::Revoke { id } => Some(*id),
            _ => None,
        }
    }
}

/// Real-time priorities as far as giveway gives them.
#[derive(Debug)]
pub struct Priority {
    limits: PriorityLimits,
    grants: Grants,
    rules: PriorityRules,
    held: BTreeMap<ProcessId, MatchedProcess>,
    /// Those of the held that have real time, or are about to.
    having: BTreeSet<ProcessId>,
    /// By rule, its ended processes included.
    accounts: BTreeMap<String, Account>,
    /// Of all rules.
    of_rules: Account,
    chains: Chains,
    napi: Napi,
    /// Changes of processes of which a chain has raised a thread: they come when it has been lowered. So each thread is put
    /// back to what it was by the part that changed it, and no part takes the other's grant for another tool's.
    waiting: Vec<Action>,
    held_off_until: Option<Duration>,
    paused: Option<pause::Pause>,
    /// When NAPI threads or chains were lowered because a thread of the starvation detector waits, and it waits still.
    lowered_for_starvation: Option<Duration>,
    /// Users have lost what they had because of it, and it waits still.
    users_paid_for_starvation: bool,
    dry_run: bool,
    counters: PriorityCounters,
    /// What follows from the present step.
    actions: Vec<Action>,
    #[cfg(feature = "corpus")]
    recording: Option<crate::corpus::recorder::Recording>,
}

impl Priority {
    /// `rules` of the configuration, in its order: the first that matches counts.
    pub fn new(limits: PriorityLimits, grants: Grants, rules: Vec<PriorityRule>, dry_run: bool) -> Self {
        let rules = Arc::new(rules.into_iter().map(Arc::new).collect());
        Self {
            #[cfg(feature = "corpus")]
            recording: crate::corpus::recorder::Recording::of_priority(&limits, &grants.0, &rules, dry_run),
            limits,
            grants,
            rules,
            held: BTreeMap::new(),
            having: BTreeSet::new(),
            accounts: BTreeMap::new(),
            of_rules: Account::default(),
            chains: Chains::default(),
            napi: Napi::default(),
            waiting: Vec::new(),
            held_off_until: None,
            paused: None,
            lowered_for_starvation: None,
            users_paid_for_starvation: false,
            dry_run,
            counters: PriorityCounters::default(),
            actions: Vec::new(),
        }
    }

    /// Local services whose requests give their handlers priority.
    #[must_use]
    pub fn with_chains(mut self, now: Duration, chains: impl IntoIterator<Item = (Service, ChainLimits)>) -> Self {
        self.set_chains(now, chains.into_iter().collect());
        self
    }

    pub(crate) fn set_chains(&mut self, now: Duration, chains: Vec<(Service, ChainLimits)>) {
        #[cfg(feature = "corpus")]
        self.note(now, &Call::Chains(chains.clone()));
        self.chains = Chains::new(now, self.limits.window, chains);
    }

    /// Takes one observation and returns what follows from it.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<Action> {
        #[cfg(feature = "corpus")]
        if let Some(recording) = &mut self.recording {
            recording.input(now, &input);
        }
        match input {
            Input::Started { started, rule } => self.judge(now, *started, rule),
            Input::TaskAdded { id, tid } => self.add_task(now, id, tid),
            Input::Exited { id, cpu } => self.forget(now, id, cpu),
            Input::Outcome { id, outcome } => self.conclude(id, outcome),
            Input::NotGiven { id, reason } => self.put_off(id, reason),
            Input::EndedBefore { id } => self.ended_before(id),
            Input::Usage { processes, napi } => self.account(now, processes, napi),
            Input::Donated(donated) => self.donate(now, donated),
            Input::Starvation { cpu, waited } => self.watch_starvation(now, cpu, waited),
            Input::NapiThreads { threads, priority } => self.napi.found(now, threads, priority, &mut self.actions),
            Input::NapiRaised { cpu, refused } => self.napi.conclude(cpu, refused, &mut self.actions),
            Input::Request { tid, pid, service } => self.request(now, tid, pid, service),
            Input::OtherWork { tid } => self.chains.other_work(now, tid, &mut self.actions),
            Input::Raised { tid, outcome } => self.chains.conclude(now, tid, outcome, &mut self.actions),
            Input::HandlerEnded { tid, cpu } => self.chains.ended(now, tid, cpu, &mut self.actions),
            Input::Lowered { tid, cpu } => self.chains.settle(now, tid, cpu, &mut self.actions),
            Input::Handlers(seen) => self.chains.judge(now, &seen, &mut self.actions),
            Input::ChainsEnded => self.chains.end(),
        }
        self.release();
        self.take_actions()
    }

    /// The end of whatever may be asked of the engine.
    fn take_actions(&mut self) -> Vec<Action> {
        #[cfg(feature = "corpus")]
        if let Some(recording) = &mut self.recording {
            recording.actions(&self.actions);
        }
        std::mem::take(&mut self.actions)
    }

    #[cfg(feature = "corpus")]
    fn note(&mut self, now: Duration, call: &Call) {
        if let Some(recording) = &mut self.recording {
            recording.call(now, call);
        }
    }

    /// Whether budgets and the starvation detector have to be looked at.
    pub fn is_active(&self) -> bool {
        !self.having.is_empty() || self.chains.threads(true).next().is_some() || self.napi.is_wanted()
    }

    /// The processes to report in [`Input::Usage`].
    pub fn granted(&self) -> Vec<ProcessId> {
        self.granted_of(None).map(|(id, _)| id).collect()
    }

    /// Threads that a chain has raised.
    pub fn raised(&self) -> Vec<u32> {
        self.chains.threads(true).collect()
    }

    /// Threads of chains that are known and not raised: they may have ended.
    pub fn not_raised(&self) -> Vec<u32> {
        self.chains.threads(false).collect()
    }

    /// Whether a process's next exec, threads and end are to be reported.
    pub fn holds(&self, id: ProcessId) -> bool {
        self.held.contains_key(&id)
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// They never change.
    pub fn grants(&self) -> Grants {
        self.grants.clone()
    }

    /// To be matched against outside, see [`Input::Started`].
    pub fn rules(&self) -> PriorityRules {
        Arc::clone(&self.rules)
    }

    /// A rule stands above a chain: the administrator has chosen this process's priority, and what a stranger sends does not
    /// change it.
    fn request(&mut self, now: Duration, tid: u32, pid: u32, service: Service) {
        // Reported before its chain was suspended.
        if self.paused.is_some() {
            return;
        }
        let first = ProcessId { pid, start_ns: 0 };
        let is_granted = self.having.range(first..).next().is_some_and(|id| id.pid == pid);
        let is_waited_for = self.waiting.iter().any(|a| a.process().is_some_and(|id| id.pid == pid));
        if self.is_held_off(now) {
            return;
        }
        if is_granted || is_waited_for {
            return self.chains.leave_to_rule(now, tid, pid, service, &mut self.actions);
        }
        self.chains.request(now, tid, pid, service, &mut self.actions);
    }

    fn is_held_off(&self, now: Duration) -> bool {
        self.held_off_until.is_some_and(|until| now < until)
    }

    /// An action about a rule's process, at once or when no chain has raised a thread of it any more.
    fn after_chains(&mut self, now: Duration, action: Action) {
        let Some(id) = action.process() else { return };
        self.chains.lower_process(now, id.pid, &mut self.actions);
        if self.chains.has_raised_of(id.pid) {
            self.waiting.push(action);
        } else {
            self.actions.push(action);
        }
    }

    fn release(&mut self) {
        let is_free = |action: &mut Action| action.process().is_none_or(|id| !self.chains.has_raised_of(id.pid));
        self.actions.extend(self.waiting.extract_if(.., is_free));
    }
}
