// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of what the kernel monitor saw and what was changed: one JSON object a line, `giveway record`'s
//! file format. The first line is a [`Header`], every other one a [`Record`].
//!
//! A reader refuses a file of a newer version and passes over kinds that it does not know.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Cookie, Flow, FlowEvent};
use crate::queue::QueueChange;
use crate::queue::traffic::Refusal;

/// Raised when a field changes its meaning; a new field or kind does not raise it.
pub const VERSION: u32 = 1;

/// What `schema` says in the header of every file.
pub const SCHEMA: &str = "giveway.record";

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Header {
    pub schema: String,
    pub version: u32,
    /// `uname -r`.
    pub kernel: String,
    pub host: String,
    pub interface: Option<String>,
    /// Where the `t_ns` of the records (CLOCK_MONOTONIC) stands in real time.
    pub started_t_ns: u64,
    pub started_unix_ns: u64,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Record {
    /// CLOCK_MONOTONIC.
    pub t_ns: u64,
    #[serde(flatten)]
    pub what: What,
}

impl Record {
    /// `at` is CLOCK_MONOTONIC.
    pub fn at(at: Duration, what: What) -> Self {
        Self {
            t_ns: at.as_nanos() as u64,
            what,
        }
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum What {
    /// One socket in one pass.
    Flow(Box<Flow>),
    /// Something happened to a socket.
    Event {
        cookie: Cookie,
        #[serde(flatten)]
        event: FlowEvent,
    },
    /// giveway changed a cap, or gave one up.
    Cap(CapChange),
    /// giveway changed the queue of the managed interface, or left it.
    Queue(QueueChange),
    /// A packet with a deadline was not sent.
    Refusal(Refusal),
    /// The number of devices that send has changed, this one included.
    Senders { devices: u32, connections: u32 },
    /// A neighbour is believed from now on, or is gone: it said so, or (`expired`) fell silent.
    Neighbour {
        address: IpAddr,
        present: bool,
        expired: bool,
    },
    /// The reader was too slow: so many records are missing here.
    Lost { lines: u64 },
}

/// A change of one socket's cap, with its reason.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct CapChange {
    pub cookie: Cookie,
    /// Segments; None: nothing held cwnd.
    pub old: Option<u32>,
    pub new: Option<u32>,
    pub rule: String,
    pub why: String,
    /// False where only `--dry-run` would have made it.
    pub made: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_it_was_written() {
        let record = Record {
            t_ns: 5,
            what: What::Cap(CapChange {
                cookie: Cookie(7),
                old: None,
                new: Some(43),
                rule: "fixed".to_owned(),
                why: "8 devices".to_owned(),
                made: true,
            }),
        };
        let line = serde_json::to_string(&record).unwrap();
        assert!(
            line.starts_with(r#"{"t_ns":5,"kind":"cap","cookie":7,"old":null,"new":43"#),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }
}
