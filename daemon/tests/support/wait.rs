// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting: for a condition and never longer than a deadline. The only place in the tests that sleeps to wait.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use giveway::actuate::thread::attributes::Attributes;
use giveway_engine::priority::Policy;

/// No promise: what has to happen within a time of giveway's is timed by the test itself. On a machine with twenty times as much
/// to do as it can, what takes a second takes twenty.
pub const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(10);

/// Asks again and again until there is an answer, and fails when there is none in time.
#[track_caller]
pub fn await_some<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        thread::sleep(INTERVAL);
    }
}

/// Waits until a condition is true; returns how long that took.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    await_some(what, || condition().then_some(()));
    start.elapsed()
}

/// A rate that is never above the range, and is in it as soon as the machine lets its sender send; returns it.
#[track_caller]
pub fn held(what: &str, range: Range<f64>, mut mbit: impl FnMut() -> f64) -> f64 {
    await_some(what, || {
        let found = mbit();
        assert!(found < range.end, "{what}: {found} Mbit/s");
        range.contains(&found).then_some(found)
    })
}

/// Until it is dropped, the calling thread comes before whatever is tested and whatever else runs here: what it times is
/// how long something took, and not how long the test had to wait for a CPU. Its children have no part in that.
pub struct First(Attributes);

/// Above all of giveway's own threads.
const FIRST_PRIORITY: u32 = 60;

impl First {
    pub fn of_all() -> Self {
        let own = Attributes::of(0).unwrap();
        let first = Policy::Fifo {
            priority: FIRST_PRIORITY,
        };
        Attributes::for_policy(first).set(0).unwrap();
        Self(own)
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.0.set(0).unwrap();
    }
}
