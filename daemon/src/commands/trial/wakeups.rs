// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How late an ordinary thread of this machine wakes up. Input: the time that counts. Output: the 99th percentile.

use std::thread;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use tokio::time::Instant;

use super::load::Window;
use crate::commands::jitter::distribution::Distribution;
use crate::kernel::now;

const PERIOD: Duration = Duration::from_millis(5);

/// Until the window's end; microseconds.
pub fn late_p99_us(window: Window) -> f64 {
    let mut late = Distribution::default();
    thread::sleep(window.start.saturating_duration_since(Instant::now()));
    let mut planned = now();
    while Instant::now() < window.end {
        planned += PERIOD;
        let until = TimeSpec::from_duration(planned);
        // A signal ends a sleep early; that wake-up is not late.
        let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &until);
        let woke = now();
        late.add(woke.saturating_sub(planned).as_nanos() as u64);
        // Those whose time has passed too would only say the same again.
        planned = planned.max(woke.saturating_sub(PERIOD));
    }
    late.quantile_us(0.99)
}
