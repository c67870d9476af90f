// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A transfer in one direction, and what its receiver reads of it. The role `targets-near` waits for a line, then starts a
//! child that connects and sends or receives; `targets-far` is the other end. Who receives answers each line with all that it
//! has counted.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use serde::Serialize;

use crate::role::answer_each;
use crate::traffic::Direction;
use crate::traffic::endless::{Arrivals, BIN_NS, connect, swallow, write};
use crate::traffic::realtime::monotonic_ns;

pub const FAR_ADDRESS: &str = "10.79.2.2";
pub const PORT: u16 = 5_560;
/// The host's own may be BBR, which loses much at a low rate; of the others ordinary users may choose this one wherever they are.
const CONGESTION: &str = "reno";
const NS_PER_S: f64 = 1e9;
/// Over which a rate is judged.
const WINDOW_NS: u64 = 500_000_000;
/// One alone may be that of a receiver that had to wait for a processor.
const WINDOWS: u64 = 3;

/// What a receiver has read, by bins of time.
#[derive(Serialize)]
pub struct ReceivedBytes {
    begun_ns: u64,
    bytes: Vec<u32>,
}

impl ReceivedBytes {
    pub fn of(mut arrivals: Arrivals) -> Self {
        Self {
            begun_ns: arrivals.begun_ns,
            bytes: arrivals.bytes.remove(&PORT).unwrap_or_default(),
        }
    }

    pub fn total(&self) -> u64 {
        self.bytes.iter().copied().map(u64::from).sum()
    }

    pub fn first_ns(&self) -> Option<u64> {
        let bin = self.bytes.iter().position(|bytes| *bytes > 0)?;
        Some(self.begun_ns + bin as u64 * BIN_NS)
    }

    /// Of the bins that begin in this time.
    pub fn mbit(&self, from_ns: u64, to_ns: u64) -> f64 {
        let [from, to] = [from_ns, to_ns].map(|at_ns| (at_ns.saturating_sub(self.begun_ns)).div_ceil(BIN_NS) as usize);
        let within = self.bytes.iter().skip(from).take(to.saturating_sub(from));
        let bytes: f64 = within.map(|bytes| f64::from(*bytes)).sum();
        bytes * 8e-6 / ((to - from) as f64 * BIN_NS as f64 / NS_PER_S)
    }

    /// How long after a moment the first of some windows in a row begins none of which has more than this: all the time up to
    /// another moment if there is none.
    pub fn settled_s(&self, from_ns: u64, to_ns: u64, most_mbit: f64) -> f64 {
        let is_within = |at_ns: u64| self.mbit(at_ns, at_ns + WINDOW_NS) <= most_mbit;
        let are_within = |at_ns: &u64| (0..WINDOWS).all(|n| is_within(at_ns + n * WINDOW_NS));
        let mut starts = (from_ns..to_ns.saturating_sub(WINDOWS * WINDOW_NS)).step_by(BIN_NS as usize);
        let settled_ns = starts.find(are_within).unwrap_or(to_ns);
        (settled_ns - from_ns) as f64 / NS_PER_S
    }
}

/// The role `targets-near`.
pub fn run_near(description: &str) -> Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let mut command = Command::new(std::env::current_exe()?);
    let ended = command.args(["role", "targets-transfer", description]).status()?;
    ensure!(ended.success(), "the transfer ended: {ended}");
    Ok(())
}

/// The role `targets-transfer`, which the other one starts.
pub fn run_transfer(description: &str) -> Result<()> {
    let (way, far): (Direction, Ipv4Addr) = serde_json::from_str(description)?;
    let connection = connect((far.into(), PORT, CONGESTION.to_owned()))?;
    if way == Direction::Up {
        return write(connection, &[]);
    }
    let arrivals = count()?;
    let counted = Arc::clone(&arrivals);
    thread::spawn(move || swallow(connection, PORT, &counted));
    answer(&arrivals)
}

/// The role `targets-far`.
pub fn run_far(description: &str) -> Result<()> {
    let way: Direction = serde_json::from_str(description)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("cannot listen")?;
    let arrivals = count()?;
    let counted = Arc::clone(&arrivals);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let counted = Arc::clone(&counted);
            thread::spawn(move || match way {
                Direction::Up => swallow(connection, PORT, &counted),
                // It ends when the other end does.
                Direction::Down => drop(
                    setsockopt(&connection, sockopt::TcpCongestion, &CONGESTION.into())
                        .map(|()| write(connection, &[])),
                ),
            });
        }
    });
    println!("listening");
    answer(&arrivals)
}

fn count() -> Result<Arc<Mutex<Arrivals>>> {
    Ok(Arc::new(Mutex::new(Arrivals {
        begun_ns: monotonic_ns()?,
        ..Arrivals::default()
    })))
}

/// Each line with what has come until then.
fn answer(arrivals: &Mutex<Arrivals>) -> Result<()> {
    answer_each(|_| Ok(arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_settled_when_the_windows_that_follow_are_within() {
        // 4 Mbit/s for a second, then 1 Mbit/s.
        let bytes = [vec![10_000; 50], vec![2_500; 100]].concat();
        let received = ReceivedBytes { begun_ns: 5, bytes };
        assert!((received.mbit(5, 1_000_000_005) - 4.0).abs() < 1e-9);
        let settled_s = received.settled_s(5, 3_000_000_005, 2.0);
        assert!((0.6..0.9).contains(&settled_s), "{settled_s}");
        assert_eq!(received.settled_s(1_000_000_005, 3_000_000_005, 2.0), 0.0);
        assert_eq!(received.settled_s(5, 3_000_000_005, 0.5), 3.0);
    }
}
