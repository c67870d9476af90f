// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which threads have real-time priority, and when they lose it: processes by rule (`rules`), threads that handle
//! requests with a deadline (`chain`), and the kernel's receive threads (`napi`). Input: starts, ends and CPU times,
//! requests, and the waits of the starvation detector. Output: what to raise and to lower, each with its reason. Never
//! reads a process or sets a priority by itself, and never grants more than the limits allow.
//!
//! Three things keep the machine responsive (after rtkit): each part has its own budget, all together have a share of
//! all CPUs, and the starvation detector, an ordinary thread on each CPU, must run regularly. Outsiders decide how many
//! packets come, so NAPI threads and chains are lowered before any rule's process loses anything.
//!
//! Several threads may feed it, one at a time. Every step is short: it visits what has real-time priority, never all
//! processes, and matches no text. So a request waits microseconds for another step; 0.1 ms with 64 granted processes
//! and 10,000 known ones.

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

/// Giveway's thread that enforces the budgets must run before whatever it has to demote.
pub const OWN_PRIORITY: u32 = CEILING + 1;
/// Giveway's thread that raises request handlers. It runs for microseconds, and must not wait for the other one to read
/// a process, even on a machine with one CPU. It equals the kernel's interrupt threads, so that neither preempts the
/// other (`docs/explanation/real-time-safety.md`).
pub const CHAIN_PRIORITY: u32 = OWN_PRIORITY + 1;
/// After a rule's process starved a CPU, nothing is granted for this long.
const HOLD: Duration = Duration::from_secs(10);
/// NAPI threads and chains are lowered for this long, by whichever budget.
pub const WINDOW: Duration = Duration::from_secs(1);
/// Of one CPU, unless a rule or a grant sets another.
pub const DEFAULT_BUDGET_PERCENT: u32 = 80;

/// Limits over all rules.
#[derive(Clone, Debug, PartialEq)]
pub struct PriorityLimits {
    pub max_priority: u32,
    /// Of rules' processes.
    pub max_tasks: u32,
    /// Of all CPUs.
    pub total_percent: u32,
    pub window: Duration,
    /// The longest wait of the starvation detector.
    pub longest_wait: Duration,
    pub cpus: u32,
}

/// CPU time of a known process.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    pub id: ProcessId,
    /// Since its start, over all its threads.
    pub cpu: Duration,
    /// With real-time priority.
    pub tasks: u32,
    /// The policy that another tool set in place of giveway's.
    pub found: Option<String>,
}

/// The outcome of a grant.
#[derive(Clone, Debug, PartialEq)]
pub struct GrantedTasks {
    pub tasks: u32,
    pub old: String,
}

/// A process after an exec, or at discovery.
#[derive(Clone, Debug, PartialEq)]
pub struct StartedProcess {
    pub id: ProcessId,
    pub process: Process,
    pub tasks: u32,
    /// So far, over all its threads.
    pub cpu: Duration,
}

/// An observation.
#[derive(Debug)]
pub enum Input {
    /// A process called exec, or was discovered at a start or for a new rule. `rule`: by [`first_match`], which is too
    /// slow to do here.
    Started {
        started: Box<StartedProcess>,
        rule: Option<Arc<PriorityRule>>,
    },
    /// A known process has a new thread, so far without real-time priority.
    TaskAdded { id: ProcessId, tid: u32 },
    /// A known process has ended, with this CPU time.
    Exited { id: ProcessId, cpu: Duration },
    /// The outcome of [`Action::Grant`].
    Outcome {
        id: ProcessId,
        outcome: Result<GrantedTasks, String>,
    },
    /// [`Action::Grant`] failed for lack of pids: when it is discovered again, it is judged as new.
    NotGiven { id: ProcessId, reason: String },
    /// It ended before the outcome was known.
    EndedBefore { id: ProcessId },
    /// For all of [`Priority::granted`], several times within a window; and for all NAPI threads in total.
    Usage { processes: Vec<Usage>, napi: Duration },
    /// Precedes the CPU time or the end of the process concerned.
    Donated(DonatedTime),
    /// The longest wait of the starvation detector, and its CPU.
    Starvation { cpu: u32, waited: Duration },
    /// The present NAPI threads.
    NapiThreads { threads: Vec<ProcessId>, priority: u32 },
    /// The outcome of [`Action::RaiseNapi`]: the CPU time so far of all raised threads, and the refused ones.
    NapiRaised { cpu: Duration, refused: Vec<RefusedThread> },
    /// A request with a deadline for this thread, which has no real-time priority.
    Request { tid: u32, pid: u32, service: Service },
    /// Other work arrived after the deadline of its latest request, while it is raised.
    OtherWork { tid: u32 },
    /// The outcome of [`Action::Raise`]: its CPU time so far.
    Raised {
        tid: u32,
        outcome: Result<Duration, String>,
    },
    /// A handler has ended, with this CPU time.
    HandlerEnded { tid: u32, cpu: Duration },
    /// It was lowered, with this CPU time; None: it has ended.
    Lowered { tid: u32, cpu: Option<Duration> },
    /// All threads that a chain has raised.
    Handlers(Vec<HandlerSample>),
    /// Handlers are not raised any more; all are lowered.
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
    /// Look for processes that rules match now.
    ScanProcesses,
    /// Each thread separately. Answered by [`Input::NapiRaised`].
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
    /// The rule's process concerned.
    fn process(&self) -> Option<ProcessId> {
        match self {
            Self::Grant { id, .. } | Self::GrantTask { id, .. } | Self::Revoke { id } => Some(*id),
            _ => None,
        }
    }
}

/// All real-time priorities that giveway has granted.
#[derive(Debug)]
pub struct Priority {
    limits: PriorityLimits,
    grants: Grants,
    rules: PriorityRules,
    held: BTreeMap<ProcessId, MatchedProcess>,
    /// The known processes with real-time priority, or about to get it.
    having: BTreeSet<ProcessId>,
    /// By rule, including its ended processes.
    accounts: BTreeMap<String, Account>,
    /// Over all rules.
    of_rules: Account,
    chains: Chains,
    napi: Napi,
    /// Changes of processes with a thread raised by a chain: deferred until it is lowered. So each part restores its
    /// own changes, and none takes another's grant for another tool's.
    waiting: Vec<Action>,
    held_off_until: Option<Duration>,
    paused: Option<pause::Pause>,
    /// Since when NAPI threads or chains are lowered for a starvation that lasts.
    lowered_for_starvation: Option<Duration>,
    /// Users have lost their grants for a starvation that lasts.
    users_paid_for_starvation: bool,
    dry_run: bool,
    counters: PriorityCounters,
    /// What follows from the present step.
    actions: Vec<Action>,
    #[cfg(feature = "corpus")]
    recording: Option<crate::corpus::recorder::Recording>,
}

impl Priority {
    /// `rules` of the configuration, in its order: the first match counts.
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

    /// Local services whose requests raise their handlers.
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

    /// Takes one observation and returns the resulting actions.
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

    /// The common end of all calls.
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

    /// Whether budgets and the starvation detector have to be polled.
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

    /// Known threads of chains that are not raised: they may have ended.
    pub fn not_raised(&self) -> Vec<u32> {
        self.chains.threads(false).collect()
    }

    /// Whether this process's exec calls, threads and end are to be reported.
    pub fn holds(&self, id: ProcessId) -> bool {
        self.held.contains_key(&id)
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Constant.
    pub fn grants(&self) -> Grants {
        self.grants.clone()
    }

    /// For matching outside, see [`Input::Started`].
    pub fn rules(&self) -> PriorityRules {
        Arc::clone(&self.rules)
    }

    /// A rule precedes a chain: the administrator has chosen this process's priority, which requests from outside do
    /// not change.
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

    /// An action on a rule's process, deferred while a chain has raised a thread of it.
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
