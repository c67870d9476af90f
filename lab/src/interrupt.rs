// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits that a Ctrl-C can end. Input: SIGINT and SIGTERM. Output: an error from the present wait, so that every owner
//! takes down what it created while the stack unwinds. Never exits the process itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::Signal;

use crate::calls::handle;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: i32) {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Turns SIGINT and SIGTERM into an error at the next wait.
pub fn install() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        handle(signal, note)?;
    }
    Ok(())
}

pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted; the namespaces and processes of this run are taken down");
    }
    Ok(())
}

/// Waits until `when`.
pub fn pause_until(when: Instant) -> Result<()> {
    loop {
        check()?;
        let left = when.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// As `wait_for`, for a condition.
pub fn wait_until(what: &str, limit: Duration, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_for(what, limit, || Ok(holds()?.then_some(())))
}

/// Polls `probe` until it returns something; `what` names it in the error when `limit` has passed.
pub fn wait_for<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        check()?;
        if let Some(found) = probe()? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("waited {} s in vain for {what}", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
