// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that packets with deadlines are for. Out, in JSON when its standard input ends: for each packet that
//! came its flow and number and when the process had it in its hands. It does not judge whether that was in time.

use anyhow::Result;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use super::{listen, receive_all};
use crate::scheduling::take_fifo;

const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
pub const REALTIME_PRIORITY: i32 = 10;

#[derive(Clone, Copy, Deserialize, Serialize)]
pub struct Delivered {
    pub flow: u32,
    pub number: u32,
    pub deadline_ns: u64,
    pub at_ns: u64,
}

/// The role `realtime-receiver`; it listens from its first line on.
pub fn run((): ()) -> Result<Vec<Delivered>> {
    let socket = listen()?;
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
    // A refusal costs only time, which the measured stages show.
    let _ = take_fifo(REALTIME_PRIORITY);
    let mut delivered = Vec::new();
    receive_all(&socket, |payload, _, _, at_ns| {
        delivered.push(Delivered {
            flow: payload.flow,
            number: payload.number,
            deadline_ns: payload.deadline_ns,
            at_ns,
        });
        Ok(())
    })?;
    Ok(delivered)
}
