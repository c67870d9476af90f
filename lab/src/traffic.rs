// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the stations send: `iperf3` measures goodput, `stream` starts and stops at exact times,
//! `crowd` holds thousands of connections of which a few speak; `realtime` sends packets with deadlines beside floods;
//! `application` uploads as a phone's programs do; `endless` holds transfers and notes what of them arrives when;
//! `hostile` sends what no honest stack would; `liar` tells peers what is not true; `uploads` are those of all stations of
//! an access point, at rates that change; `http` is a phone's browser beside its upload, `work` a program that
//! computes beside it; `arrivals` counts what comes, whatever sent it, and `ssh` is a real server of OpenSSH's.

pub mod application;
pub mod arrivals;
pub mod crowd;
pub mod endless;
pub mod hostile;
pub mod http;
pub mod iperf3;
pub mod liar;
pub mod realtime;
pub mod ssh;
pub mod stream;
pub mod uploads;
pub mod work;

use serde::{Deserialize, Serialize};

/// As the device sees it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Direction {
    Up,
    Down,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Up, Self::Down];
}
