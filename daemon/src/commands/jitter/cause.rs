// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What made a wake-up late. Input: when it was planned, when the thread was woken and when it ran, and what its CPU did
//! meanwhile. Output: the time divided among culprits, every nanosecond given to one only. Pure.
//!
//! A wake-up has two parts. Until the timer's interrupt only what holds interrupts off can delay it; then the thread is
//! woken, and waits for whatever the scheduler lets run instead. Of intervals within each other the innermost counts:
//! it is the one that ran.

use std::cmp::Reverse;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::distribution::duration;
use super::policy::{Policy, REALTIME_PRIORITIES, Scheduling, kernel_priority};
use super::recorder::{Activity, ActivityInterval, Waking};

/// Culprits of less than this share are not worth a word.
const WORTH_TELLING: f64 = 0.05;
/// Named in one line.
const SHOWN: usize = 3;
/// include/linux/interrupt.h
const SOFTIRQS: [&str; 10] = [
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
];

/// What is known of one late wake-up.
#[derive(Clone, Debug)]
pub struct Evidence {
    pub planned_ns: u64,
    pub woke_ns: u64,
    /// The thread's own id, as the kernel counts, and its scheduling.
    pub tid: u32,
    pub scheduling: Scheduling,
    /// By which the kernel may put off its timers: nothing for real time.
    pub slack_ns: u64,
    pub waking: Option<Waking>,
    /// Where it ran.
    pub cpu: usize,
    /// What the CPU of its timer did, and the one where it ran; the first is empty if they are the same.
    pub timer_cpu_did: Vec<ActivityInterval>,
    pub cpu_did: Vec<ActivityInterval>,
}

#[derive(Clone, Copy, Debug, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CulpritKind {
    Thread,
    Irq,
    Softirq,
    /// It could have run and the scheduler held it back.
    Throttled,
    Steal,
    /// Its timer was put off to go with others.
    Slack,
    /// The interrupt came late, and nothing that is recorded says why.
    StealOrDisabled,
    Idle,
    /// The switch to it and its way out of the kernel. The hypervisor may have run something else meanwhile: what it
    /// takes of a thread that goes on running is known at the next tick only.
    Own,
    Unknown,
}

#[derive(Clone, Debug, JsonSchema, PartialEq, Serialize)]
pub struct Culprit {
    pub kind: CulpritKind,
    pub name: String,
    /// Of threads; else 0.
    pub pid: u32,
    pub policy: Option<Policy>,
    pub priority: Option<i32>,
    pub us: f64,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, time) = (&self.name, duration(self.us));
        match self.kind {
            CulpritKind::Thread => match (self.policy, self.priority) {
                (Some(policy), Some(priority)) => {
                    write!(f, "{name} ({}) ran {time}", Scheduling { policy, priority })
                }
                _ => write!(f, "{name} ran {time}"),
            },
            CulpritKind::Irq => write!(f, "interrupt {name} {time}"),
            CulpritKind::Softirq => write!(f, "softirq {name} {time}"),
            CulpritKind::Throttled => write!(f, "throttled {time} while {name} ran"),
            CulpritKind::Steal => write!(f, "stolen by the hypervisor {time}"),
            CulpritKind::Slack => write!(f, "timer slack {time}"),
            CulpritKind::StealOrDisabled => write!(f, "steal or interrupts disabled {time} in {name}"),
            CulpritKind::Idle => write!(f, "leaving idle {time}"),
            CulpritKind::Own => write!(f, "itself or steal {time}"),
            CulpritKind::Unknown => write!(f, "not recorded {time}"),
        }
    }
}

/// A stretch of time and what had it.
#[derive(Debug)]
struct TimeSlice {
    cpu: usize,
    from_ns: u64,
    to_ns: u64,
    /// Less than the stretch where some was stolen.
    ns: u64,
    culprit: Culprit,
}

/// All that had a part in it, the greatest first. `irq_name` knows the names of interrupts by number.
pub fn culprits(evidence: &Evidence, irq_name: &dyn Fn(u32) -> String) -> Vec<Culprit> {
    let mut pieces = pieces(evidence, irq_name);
    let timer_cpu = evidence.waking.map_or(evidence.cpu, |waking| waking.cpu);
    let both = [(timer_cpu, &evidence.timer_cpu_did), (evidence.cpu, &evidence.cpu_did)];
    let all = both
        .iter()
        .flat_map(|(cpu, did)| did.iter().map(move |interval| (*cpu, interval)));
    let stolen_ns: u64 = all.map(|(cpu, interval)| take_stolen(&mut pieces, cpu, interval)).sum();
    let mut culprits = vec![culprit(CulpritKind::Steal, "hypervisor")];
    culprits[0].us = stolen_ns as f64 / 1e3;
    for piece in pieces {
        let us = piece.ns as f64 / 1e3;
        let is_same = |known: &&mut Culprit| {
            (known.kind, known.pid, &known.name) == (piece.culprit.kind, piece.culprit.pid, &piece.culprit.name)
        };
        match culprits.iter_mut().find(is_same) {
            Some(known) => known.us += us,
            None => culprits.push(Culprit { us, ..piece.culprit }),
        }
    }
    culprits.retain(|culprit| culprit.us > 0.0);
    culprits.sort_by(|a, b| b.us.total_cmp(&a.us));
    culprits
}

/// The greatest ones in one line.
pub fn line(culprits: &[Culprit], late_us: f64) -> String {
    let shown: Vec<_> = culprits
        .iter()
        .filter(|culprit| culprit.us >= late_us * WORTH_TELLING)
        .take(SHOWN)
        .map(ToString::to_string)
        .collect();
    if shown.is_empty() {
        "nothing was recorded".to_owned()
    } else {
        shown.join("; ")
    }
}

/// How long until the thread was woken.
pub fn timer_ns(evidence: &Evidence) -> Option<u64> {
    woken(evidence).map(|waking| waking.t_ns - evidence.planned_ns)
}

/// Its waking, unless that is of another sleep.
fn woken(evidence: &Evidence) -> Option<Waking> {
    let during = evidence.planned_ns..=evidence.woke_ns;
    evidence.waking.filter(|waking| during.contains(&waking.t_ns))
}

fn pieces(evidence: &Evidence, irq_name: &dyn Fn(u32) -> String) -> Vec<TimeSlice> {
    let woken = woken(evidence);
    let woken_ns = woken.map_or(evidence.planned_ns, |waking| waking.t_ns);
    let mut pieces = until_woken(
        evidence,
        woken.map_or(evidence.cpu, |waking| waking.cpu),
        woken_ns,
        irq_name,
    );
    let is_other =
        |i: &&ActivityInterval| is_switchable(i) && !is_thread(i, evidence.tid) && i.to_ns <= evidence.woke_ns;
    let switched_ns = evidence.cpu_did.iter().filter(is_other).map(|i| i.to_ns).max();
    for (from_ns, to_ns, innermost) in innermost(&evidence.cpu_did, woken_ns, evidence.woke_ns) {
        let culprit = match innermost {
            Some(interval) if is_thread(interval, evidence.tid) => culprit(CulpritKind::Own, "itself"),
            Some(interval) if is_held_back(evidence, woken, interval) => {
                culprit(CulpritKind::Throttled, &of(interval, irq_name).name)
            }
            Some(interval) => of(interval, irq_name),
            None if switched_ns.is_none_or(|switched_ns| from_ns >= switched_ns) => culprit(CulpritKind::Own, "itself"),
            None => culprit(CulpritKind::Unknown, "?"),
        };
        pieces.push(piece(evidence.cpu, from_ns, to_ns, culprit));
    }
    pieces
}

/// The first part: what the CPU of the timer did.
fn until_woken(evidence: &Evidence, cpu: usize, woken_ns: u64, irq_name: &dyn Fn(u32) -> String) -> Vec<TimeSlice> {
    let did = if cpu == evidence.cpu {
        &evidence.cpu_did
    } else {
        &evidence.timer_cpu_did
    };
    let interrupted_ns = first_interrupt(did, evidence.planned_ns)
        .unwrap_or(woken_ns)
        .min(woken_ns);
    let set_ns = interrupted_ns.min(evidence.planned_ns + evidence.slack_ns);
    let mut pieces = vec![piece(
        cpu,
        evidence.planned_ns,
        set_ns,
        culprit(CulpritKind::Slack, "timer slack"),
    )];
    for (from_ns, to_ns, innermost) in innermost(did, set_ns, woken_ns) {
        let culprit = match innermost {
            Some(interval) if from_ns < interrupted_ns => before_interrupt(interval, irq_name),
            Some(interval) => of(interval, irq_name),
            None => culprit(CulpritKind::Unknown, "?"),
        };
        pieces.push(piece(cpu, from_ns, to_ns, culprit));
    }
    pieces
}

fn piece(cpu: usize, from_ns: u64, to_ns: u64, culprit: Culprit) -> TimeSlice {
    TimeSlice {
        cpu,
        from_ns,
        to_ns,
        ns: to_ns - from_ns,
        culprit,
    }
}

fn culprit(kind: CulpritKind, name: &str) -> Culprit {
    Culprit {
        kind,
        name: name.to_owned(),
        pid: 0,
        policy: None,
        priority: None,
        us: 0.0,
    }
}

fn of(interval: &ActivityInterval, irq_name: &dyn Fn(u32) -> String) -> Culprit {
    match interval.activity {
        Activity::Idle => culprit(CulpritKind::Idle, "idle"),
        Activity::Thread {
            tid, name, scheduling, ..
        } => Culprit {
            pid: tid,
            policy: Some(scheduling.policy),
            priority: Some(scheduling.priority),
            ..culprit(CulpritKind::Thread, &text(&name))
        },
        Activity::Softirq(vector) => {
            let name = SOFTIRQS
                .get(vector as usize)
                .map_or_else(|| vector.to_string(), |name| (*name).to_owned());
            culprit(CulpritKind::Softirq, &name)
        }
        Activity::Irq(number) => culprit(CulpritKind::Irq, &irq_name(number)),
        Activity::Vector(name) => culprit(CulpritKind::Irq, name),
    }
}

/// While the timer had expired and no interrupt came: whatever ran did so with interrupts off, or did not run at all.
fn before_interrupt(interval: &ActivityInterval, irq_name: &dyn Fn(u32) -> String) -> Culprit {
    let inner = of(interval, irq_name);
    match inner.kind {
        CulpritKind::Irq | CulpritKind::Idle => inner,
        _ => Culprit {
            kind: CulpritKind::StealOrDisabled,
            ..inner
        },
    }
}

fn text(name: &[u8; 16]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let printable = |c: char| if c.is_control() { '?' } else { c };
    String::from_utf8_lossy(&name[..end]).chars().map(printable).collect()
}

fn is_thread(interval: &ActivityInterval, wanted: u32) -> bool {
    matches!(interval.activity, Activity::Thread { tid, .. } if tid == wanted)
}

fn is_switchable(interval: &ActivityInterval) -> bool {
    matches!(interval.activity, Activity::Idle | Activity::Thread { .. })
}

fn is_interrupt(interval: &ActivityInterval) -> bool {
    matches!(interval.activity, Activity::Irq(_) | Activity::Vector(_))
}

/// When interrupts were on for the first time since.
fn first_interrupt(intervals: &[ActivityInterval], since_ns: u64) -> Option<u64> {
    let later = intervals.iter().filter(|i| is_interrupt(i) && i.to_ns >= since_ns);
    later.map(|i| i.from_ns.max(since_ns)).min()
}

/// The scheduler chose this after the thread could run on the same CPU, although it ranks below it.
fn is_held_back(evidence: &Evidence, woken: Option<Waking>, interval: &ActivityInterval) -> bool {
    let was_here = woken.is_some_and(|waking| waking.cpu == evidence.cpu && interval.from_ns > waking.t_ns);
    let own = kernel_priority(evidence.scheduling).min(REALTIME_PRIORITIES);
    was_here
        && match interval.activity {
            Activity::Idle => true,
            // Threads that are not real-time are scheduled fairly; none outranks another.
            Activity::Thread { priority, .. } => priority.min(REALTIME_PRIORITIES) > own,
            _ => false,
        }
}

/// The time between two moments in stretches, each with the interval that began last of those that reach over it.
fn innermost(intervals: &[ActivityInterval], from_ns: u64, to_ns: u64) -> Vec<(u64, u64, Option<&ActivityInterval>)> {
    let mut inside: Vec<&ActivityInterval> = intervals
        .iter()
        .filter(|i| i.from_ns < to_ns && i.to_ns > from_ns)
        .collect();
    inside.sort_by_key(|i| (i.from_ns, Reverse(i.to_ns)));
    let ends = inside.iter().flat_map(|i| [i.from_ns, i.to_ns]);
    let mut bounds: Vec<u64> = ends.chain([from_ns, to_ns]).map(|t| t.clamp(from_ns, to_ns)).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let mut coming = inside.into_iter().peekable();
    let mut open: Vec<&ActivityInterval> = Vec::new();
    let mut stretches = Vec::new();
    for pair in bounds.windows(2) {
        while let Some(interval) = coming.next_if(|i| i.from_ns <= pair[0]) {
            open.push(interval);
        }
        open.retain(|i| i.to_ns > pair[0]);
        stretches.push((pair[0], pair[1], open.last().copied()));
    }
    stretches
}

/// Takes what was stolen by the end of an interval off the pieces in which that can have been; how much it was. Where
/// it may have been before the wake-up was due, only what nothing else explains is explained by it.
fn take_stolen(pieces: &mut [TimeSlice], cpu: usize, interval: &ActivityInterval) -> u64 {
    let due_ns = pieces.first().map_or(0, |piece| piece.from_ns);
    let may_be_before = interval.stolen_after_ns < due_ns;
    let (mut left_ns, mut taken_ns) = (interval.stolen_ns, 0);
    let mut suspects: Vec<&mut TimeSlice> = pieces
        .iter_mut()
        .filter(|p| p.cpu == cpu && p.from_ns >= interval.stolen_after_ns && p.to_ns <= interval.to_ns)
        .filter(|p| !may_be_before || p.culprit.kind == CulpritKind::StealOrDisabled)
        .collect();
    suspects.sort_by_key(|p| (p.culprit.kind != CulpritKind::StealOrDisabled, Reverse(p.ns)));
    for piece in suspects {
        let here_ns = piece.ns.min(left_ns);
        piece.ns -= here_ns;
        left_ns -= here_ns;
        taken_ns += here_ns;
    }
    taken_ns
}

#[cfg(test)]
mod tests;
