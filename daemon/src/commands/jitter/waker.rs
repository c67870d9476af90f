// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads that measure: each sleeps until an absolute time, looks how late it is, and reports. Input: the plan. Output:
//! one [`Wakeup`] each through a channel, with evidence where it is among the worst. A thread takes no lock and waits for
//! nothing between two wake-ups; whatever it does besides it does after it has looked at the clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sched::sched_getcpu;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nix::unistd::{Pid, gettid};

use super::args::JitterArgs;
use super::cause::Evidence;
use super::policy;
use super::recorder::Recorder;
use crate::actuate::thread::attributes::set_cpus;
use crate::kernel::now;

/// What a thread needs is small, and is kept in memory.
const STACK_BYTES: usize = 256 * 1024;

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

/// The running threads. They end with the process, or when the receiver is gone.
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
    pub fn start(args: &JitterArgs, recorder: Option<&Arc<Recorder>>) -> Result<Self> {
        let worth_explaining_ns = Arc::new(AtomicU64::new(0));
        let (wakeups_in, wakeups) = mpsc::channel();
        let (ready_in, ready) = mpsc::channel();
        let start = Arc::new(OnceLock::new());
        for number in 0..args.threads {
            let waker = Waker {
                number,
                args: args.clone(),
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
                    // The thread that waits for the outcome ends the process; if none waits, it is ending already.
                    Err(error) => drop(ready_in.send(Err(error))),
                })
                .context("cannot start a measuring thread")?;
        }
        let threads = (0..args.threads)
            .map(|_| ready.recv().context("a measuring thread ended before it began")?)
            .collect::<Result<_>>()?;
        let started_ns = *start.get_or_init(|| now_ns() + nanoseconds(args.period));
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
    args: JitterArgs,
    recorder: Option<Arc<Recorder>>,
    worth_explaining_ns: Arc<AtomicU64>,
    wakeups: Sender<Wakeup>,
}

impl Waker {
    /// The thread's id here, and as the kernel counts.
    fn prepare(&self) -> Result<(Pid, u32)> {
        let args = &self.args;
        if let Some(cpu) = args.cpus().iter().cycle().nth(self.number.into()) {
            set_cpus(0, &[*cpu]).with_context(|| format!("cannot bind a thread to CPU {cpu}"))?;
        }
        policy::set_own(args.policy, args.priority(), args.period)?;
        let known_as = match &self.recorder {
            Some(recorder) => recorder.introduce(self.number)?,
            None => 0,
        };
        Ok((gettid(), known_as))
    }

    fn measure(self, start_ns: u64, known_as: u32) {
        let period_ns = nanoseconds(self.args.period);
        let threads = u64::from(self.args.threads);
        let mut planned_ns = start_ns + period_ns * u64::from(self.number) / threads;
        let mut left = self.args.wakeups.map_or(u64::MAX, |all| {
            all / threads + u64::from(u64::from(self.number) < all % threads)
        });
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
        // The thread's policy is read at the end, so it must still exist then.
        loop {
            thread::park();
        }
    }

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
    let planned = TimeSpec::from_duration(Duration::from_nanos(planned_ns));
    loop {
        // A signal ends a sleep early; then there is another.
        let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &planned);
        let now_ns = now_ns();
        if now_ns >= planned_ns {
            return now_ns;
        }
    }
}

/// CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    nanoseconds(now())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
