// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that packets with deadlines are for. Out, when its standard input ends: for each packet that came, in
//! 16 bytes, its flow and number and when the process had it in its hands. It does not judge whether that was in time.

use std::io::{Read, Write, stdin, stdout};
use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};

use super::{PORT, monotonic_ns};
use crate::link::read_payload;
use crate::link::wire::RECEIVER_ADDRESS;
use crate::namespace::Namespace;
use crate::process::Process;

const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// How long it may take to notice that standard input ended.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const REALTIME_PRIORITY: libc::c_int = 10;

pub struct Receiver(Process);

#[derive(Clone, Copy)]
pub struct Delivered {
    pub flow: u32,
    pub number: u32,
    pub at_ns: u64,
}

impl Receiver {
    /// Waits until it listens.
    pub fn start(at: &Namespace) -> Result<Self> {
        let mut receiver = Self(super::start("realtime-receiver", at, None::<&()>)?);
        let output = receiver
            .0
            .pipes()
            .stdout
            .as_mut()
            .context("the receiver has no output")?;
        output
            .read_exact(&mut [0; 1])
            .context("the receiver did not start; its reason is above")?;
        Ok(receiver)
    }

    pub fn finish(mut self) -> Result<Vec<Delivered>> {
        drop(self.0.pipes().stdin.take());
        let mut bytes = Vec::new();
        let output = self.0.pipes().stdout.as_mut().context("the receiver has no output")?;
        output.read_to_end(&mut bytes)?;
        ensure!(
            self.0.pipes().wait()?.success(),
            "the receiver failed; its reason is above"
        );
        let (records, rest) = bytes.as_chunks::<16>();
        ensure!(rest.is_empty(), "the receiver's report is cut short");
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let read = |record: &[u8; 16]| Delivered {
            flow: number(&record[..4]) as u32,
            number: number(&record[4..8]) as u32,
            at_ns: number(&record[8..]),
        };
        Ok(records.iter().map(read).collect())
    }
}

/// `giveway-lab realtime-receiver`.
pub fn run() -> Result<()> {
    let socket = UdpSocket::bind((RECEIVER_ADDRESS, PORT)).context("cannot listen")?;
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    socket.set_read_timeout(Some(LOOK_EVERY))?;
    let lasts = std::thread::spawn(|| stdin().read_to_end(&mut Vec::new()));
    ask_for_realtime();
    let mut report = Vec::new();
    stdout().write_all(b"\n")?;
    stdout().flush()?;
    let mut packet = [0; 2_048];
    while !lasts.is_finished() {
        let Ok(length) = socket.recv(&mut packet) else {
            continue; // nothing for a while
        };
        let at_ns = monotonic_ns()?;
        if let Some(payload) = read_payload(&packet[..length]) {
            report.extend(payload.flow.to_le_bytes());
            report.extend(payload.number.to_le_bytes());
            report.extend(at_ns.to_le_bytes());
        }
    }
    Ok(stdout().write_all(&report)?)
}

/// A refusal costs only time, which the measured stages show.
pub fn ask_for_realtime() {
    let low = libc::sched_param {
        sched_priority: REALTIME_PRIORITY,
    };
    // SAFETY: the call only reads its argument; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &low) };
}
