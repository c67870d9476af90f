// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Canaries: a thread without real time on each CPU, which shows whether other work still runs there. Looked at in regular
//! intervals, they tell which of them has waited longest. What follows is decided elsewhere.
//!
//! On a machine that was stopped (suspended, or a guest that its host did not run) nothing starves, though the looks come
//! late. So time counts only as far as the looks came in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::actuate::thread::attributes::{cpus_of, set_cpus};
use crate::kernel::calls::set_nice;
use crate::kernel::descriptors::keep_none;

/// How often a starvation_detector moves, and is looked at.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Between two looks no more than this counts.
const LATE: Duration = Duration::from_millis(150);
const STACK_BYTES: usize = 64 * 1024;

struct StarvationDetector {
    cpu: u32,
    moves: Arc<AtomicU64>,
    thread: JoinHandle<()>,
    seen: u64,
    /// Since it was seen to have moved.
    still_for: Duration,
}

/// All of them. They sleep until they are woken.
pub struct Canaries {
    all: Vec<StarvationDetector>,
    state: Arc<State>,
    looked: Option<Duration>,
}

#[derive(Default)]
struct State {
    awake: AtomicBool,
    ended: AtomicBool,
}

impl Canaries {
    /// One on each CPU that the calling thread may use.
    pub fn start() -> Result<Self> {
        let state = Arc::new(State::default());
        let cpus = cpus_of(0).context("cannot tell on which CPUs giveway may run")?;
        let all = cpus.into_iter().map(|cpu| StarvationDetector::start(cpu, &state));
        Ok(Self {
            all: all.collect::<Result<_>>()?,
            looked: None,
            state,
        })
    }

    pub fn wake(&mut self) {
        if self.state.awake.swap(true, Ordering::AcqRel) {
            return;
        }
        self.looked = None;
        for starvation_detector in &mut self.all {
            starvation_detector.still_for = Duration::ZERO;
            starvation_detector.thread.thread().unpark();
        }
    }

    pub fn rest(&self) {
        self.state.awake.store(false, Ordering::Release);
    }

    /// The CPU whose starvation_detector has not moved for longest, and for how long.
    pub fn longest_still(&mut self, now: Duration) -> Option<(u32, Duration)> {
        let since = self.looked.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        self.looked = Some(now);
        for starvation_detector in &mut self.all {
            let moves = starvation_detector.moves.load(Ordering::Acquire);
            starvation_detector.still_for += since.min(LATE);
            if moves != starvation_detector.seen {
                (starvation_detector.seen, starvation_detector.still_for) = (moves, Duration::ZERO);
            }
        }
        let longest = self
            .all
            .iter()
            .max_by_key(|starvation_detector| starvation_detector.still_for)?;
        Some((longest.cpu, longest.still_for))
    }
}

impl Drop for Canaries {
    /// Without waiting for them.
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Release);
        self.all
            .iter()
            .for_each(|starvation_detector| starvation_detector.thread.thread().unpark());
    }
}

impl StarvationDetector {
    fn start(cpu: u32, state: &Arc<State>) -> Result<Self> {
        let moves = Arc::new(AtomicU64::new(0));
        let (state, counter) = (Arc::clone(state), Arc::clone(&moves));
        let thread = thread::Builder::new()
            .name(format!("gw-starvation_detector-{cpu}"))
            .stack_size(STACK_BYTES)
            .spawn(move || live(cpu, &state, &counter))
            .context("cannot start a starvation_detector thread")?;
        Ok(Self {
            cpu,
            moves,
            thread,
            seen: 0,
            still_for: Duration::ZERO,
        })
    }
}

fn live(cpu: u32, state: &State, moves: &AtomicU64) {
    // Where it cannot be bound, because the CPU has gone meanwhile, it still shows that something else runs.
    let _ = set_cpus(0, &[cpu]);
    // Bound to a CPU where something computes, this thread is the last to die. What the daemon has open must not wait
    // for that: its end tells the watchdog.
    let _ = keep_none();
    // Crowds of other work are none of real time's doing: among threads without it this one comes first.
    let _ = set_nice(0, -20);
    while !state.ended.load(Ordering::Acquire) {
        if state.awake.load(Ordering::Acquire) {
            thread::sleep(PERIOD);
            moves.fetch_add(1, Ordering::Release);
        } else {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A starvation_detector that never moves.
    fn stuck() -> Canaries {
        let starvation_detector = StarvationDetector {
            cpu: 3,
            moves: Arc::default(),
            thread: thread::spawn(|| ()),
            seen: 0,
            still_for: Duration::ZERO,
        };
        Canaries {
            all: vec![starvation_detector],
            state: Arc::default(),
            looked: None,
        }
    }

    #[test]
    fn a_starvation_detector_that_does_not_move_starves() {
        let mut canaries = stuck();
        canaries.wake();
        let looks = (0..6)
            .map(|look| canaries.longest_still(PERIOD * look))
            .collect::<Vec<_>>();
        assert_eq!(looks[0], Some((3, Duration::ZERO)));
        assert_eq!(looks[4], Some((3, 4 * PERIOD)));
    }

    #[test]
    fn a_machine_that_was_stopped_starves_no_cpu() {
        let mut canaries = stuck();
        canaries.wake();
        assert_eq!(
            canaries.longest_still(Duration::from_secs(1)),
            Some((3, Duration::ZERO))
        );
        assert_eq!(canaries.longest_still(Duration::from_secs(60)), Some((3, LATE)));
    }

    #[test]
    fn one_that_runs_does_not() {
        let mut canaries = Canaries::start().unwrap();
        canaries.wake();
        let moved = |canaries: &Canaries| canaries.all.iter().all(|c| c.moves.load(Ordering::Acquire) >= 2);
        let start = std::time::Instant::now();
        while !moved(&canaries) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "no starvation_detector moves"
            );
            thread::sleep(Duration::from_millis(5));
        }
        for look in 0..2 {
            let (_, waited) = canaries.longest_still(PERIOD * look).unwrap();
            assert!(waited <= PERIOD, "{waited:?}");
        }
    }
}
