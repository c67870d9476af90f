// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads that measure: each sleeps until an absolute time, looks how late it is, and tells. In: the plan. Out:
//! one [`Wakeup`] each through a channel, with evidence where it is among the worst. A thread takes no lock and waits for
//! nobody between two wake-ups; whatever it does besides it does after it has looked at the clock.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::{Pid, gettid};

use super::args::{Plan, Until};
use super::cause::Evidence;
use super::policy;
use super::recorder::Recorder;

/// What a thread needs is small, and is kept in memory.
const STACK_BYTES: usize = 256 * 1024;
const NS_PER_S: u64 = 1_000_000_000;

/// One wake-up.
#[derive(Debug)]
pub struct Wakeup {
    pub thread: u16,
    /// CLOCK_MONOTONIC.
    pub planned_ns: u64,
    pub woke_ns: u64,
    pub cpu: usize,
    /// Later wake-ups whose time had passed too, and which are left out.
    pub missed: u64,
    /// Where it is late enough to be among the worst, and causes are looked for.
    pub evidence: Option<Box<Evidence>>,
}

impl Wakeup {
    pub fn late_ns(&self) -> u64 {
        self.woke_ns.saturating_sub(self.planned_ns)
    }
}

/// The running threads. They end with the process, or when nobody listens any more.
#[derive(Debug)]
pub struct Wakers {
    pub threads: Vec<Pid>,
    pub wakeups: Receiver<Wakeup>,
    /// When the first wake-up was planned, CLOCK_MONOTONIC.
    pub started_ns: u64,
    /// What is less late than this needs no evidence.
    pub worth_explaining_ns: Arc<AtomicU64>,
}

impl Wakers {
    pub fn start(plan: &Plan, recorder: Option<&Arc<Recorder>>) -> Result<Self> {
        let worth_explaining_ns = Arc::new(AtomicU64::new(0));
        let (wakeups_in, wakeups) = mpsc::channel();
        let (ready_in, ready) = mpsc::channel();
        let start = Arc::new(OnceLock::new());
        for number in 0..plan.threads {
            let waker = Waker {
                number,
                plan: plan.clone(),
                recorder: recorder.cloned(),
                worth_explaining_ns: Arc::clone(&worth_explaining_ns),
                wakeups: wakeups_in.clone(),
            };
            let (ready_in, start) = (ready_in.clone(), Arc::clone(&start));
            thread::Builder::new()
                .name(format!("jitter/{number}"))
                .stack_size(STACK_BYTES)
                .spawn(move || match waker.prepare() {
                    Ok((tid, known_as)) if ready_in.send(Ok(tid)).is_ok() => waker.measure(*start.wait(), known_as),
                    Ok(_) => {}
                    // Whoever waits for it ends the process; if nobody does, it ends already.
                    Err(error) => drop(ready_in.send(Err(error))),
                })
                .context("cannot start a measuring thread")?;
        }
        let threads = (0..plan.threads)
            .map(|_| ready.recv().context("a measuring thread ended before it began")?)
            .collect::<Result<_>>()?;
        let started_ns = *start.get_or_init(|| now_ns() + nanoseconds(plan.period));
        Ok(Self {
            threads,
            wakeups,
            started_ns,
            worth_explaining_ns,
        })
    }
}

struct Waker {
    number: u16,
    plan: Plan,
    recorder: Option<Arc<Recorder>>,
    worth_explaining_ns: Arc<AtomicU64>,
    wakeups: Sender<Wakeup>,
}

impl Waker {
    /// The thread's id here, and as the kernel counts.
    fn prepare(&self) -> Result<(Pid, u32)> {
        if !self.plan.cpus.is_empty() {
            let cpu = self.plan.cpus[usize::from(self.number) % self.plan.cpus.len()];
            let mut only = CpuSet::new();
            only.set(cpu)
                .and_then(|()| sched_setaffinity(Pid::from_raw(0), &only))
                .with_context(|| format!("cannot bind a thread to CPU {cpu}"))?;
        }
        policy::set_own(self.plan.policy, self.plan.priority, self.plan.period)?;
        let known_as = match &self.recorder {
            Some(recorder) => recorder.introduce(self.number)?,
            None => 0,
        };
        Ok((gettid(), known_as))
    }

    fn measure(self, start_ns: u64, known_as: u32) {
        let period_ns = nanoseconds(self.plan.period);
        let threads = u64::from(self.plan.threads);
        let mut planned_ns = start_ns + period_ns * u64::from(self.number) / threads;
        let mut left = match self.plan.until {
            Until::Elapsed(_) => u64::MAX,
            Until::Wakeups(all) => all / threads + u64::from(u64::from(self.number) < all % threads),
        };
        while left > 0 {
            left -= 1;
            let woke_ns = sleep_until(planned_ns);
            let cpu = sched_getcpu().unwrap_or(0);
            let missed = (woke_ns - planned_ns) / period_ns;
            let wakeup = Wakeup {
                thread: self.number,
                planned_ns,
                woke_ns,
                cpu,
                missed,
                evidence: self.evidence(planned_ns, woke_ns, cpu, known_as),
            };
            if self.wakeups.send(wakeup).is_err() {
                return;
            }
            planned_ns += period_ns * (missed + 1);
        }
        // Whoever asks for this thread's policy at the end still finds it.
        loop {
            thread::park();
        }
    }
}

impl Waker {
    /// What the recorder has of a wake-up that is among the worst until now.
    fn evidence(&self, planned_ns: u64, woke_ns: u64, cpu: usize, tid: u32) -> Option<Box<Evidence>> {
        let recorder = self.recorder.as_ref()?;
        if woke_ns - planned_ns < self.worth_explaining_ns.load(Ordering::Relaxed) {
            return None;
        }
        let cpu_did = recorder.intervals(cpu, planned_ns);
        let waking = recorder.waking(self.number);
        let timer_cpu = waking.map_or(cpu, |waking| waking.cpu);
        let scheduling = policy::of(Pid::from_raw(0)).ok()?;
        Some(Box::new(Evidence {
            planned_ns,
            woke_ns,
            tid,
            scheduling,
            slack_ns: policy::own_slack_ns(scheduling),
            waking,
            cpu,
            timer_cpu_did: if timer_cpu == cpu {
                Vec::new()
            } else {
                recorder.intervals(timer_cpu, planned_ns)
            },
            cpu_did,
        }))
    }
}

/// Returns when it really is, never before. What stands between the waking and the look at the clock is measured too, so
/// nothing else stands there.
fn sleep_until(planned_ns: u64) -> u64 {
    let planned = libc::timespec {
        tv_sec: (planned_ns / NS_PER_S) as libc::time_t,
        tv_nsec: (planned_ns % NS_PER_S) as libc::c_long,
    };
    loop {
        let (clock, absolute) = (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME);
        // A signal ends a sleep early; then there is another.
        // SAFETY: the time is read at once, and with an absolute time nothing is written.
        unsafe { libc::clock_nanosleep(clock, absolute, &raw const planned, ptr::null_mut()) };
        let now_ns = now_ns();
        if now_ns >= planned_ns {
            return now_ns;
        }
    }
}

/// CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one structure. The clock always exists, so this cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
