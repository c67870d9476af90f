// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of the kernel monitor's polls and of changes: one JSON object a line, `giveway record`'s file format. The
//! first line is a [`Header`], every other one a [`Record`].
//!
//! A reader refuses a file of a newer version and skips unknown kinds.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::model::{Cookie, Flow, FlowEvent};
use crate::queue::traffic::Refusal;

/// Increased when a field changes its meaning or a kind is removed, not for a new field or kind. In version 1 the kinds
/// `cap` and `queue` stood for `change`.
pub const VERSION: u32 = 1;

/// `schema` in the header of every file.
pub const SCHEMA: &str = "giveway.record";

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Header {
    pub schema: String,
    pub version: u32,
    /// `uname -r`.
    pub kernel: String,
    pub host: String,
    pub interface: Option<String>,
    /// The wall-clock time of the records' `t_ns` (CLOCK_MONOTONIC).
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
    /// One socket in one poll.
    Flow(Box<Flow>),
    /// A socket event.
    Event {
        cookie: Cookie,
        #[serde(flatten)]
        event: FlowEvent,
    },
    /// Giveway changed something, or would have.
    Change(Box<Change>),
    /// A packet with a deadline was not sent.
    Refusal(Refusal),
    /// The number of sending devices has changed, this one included.
    Senders { devices: u32, connections: u32 },
    /// A peer was authenticated, or is gone: it has left, or (`expired`) fell silent.
    Peer {
        address: IpAddr,
        present: bool,
        expired: bool,
    },
    /// The reader was too slow: this many records are missing here.
    Lost { lines: u64 },
    /// A kind of another version.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Setting, Subject};

    #[test]
    fn a_line_reads_back_as_it_was_written() {
        let change = Change {
            subject: Subject::Socket { cookie: Cookie(7) },
            name: "cp (5) to 192.0.2.1:873".to_owned(),
            setting: Setting::Cap,
            old: None::<u32>.into(),
            new: Some(43u32).into(),
            rule: "fixed".to_owned(),
            reason: "8 devices".to_owned(),
            made: true,
        };
        let record = Record::at(Duration::from_nanos(5), What::Change(Box::new(change)));
        let line = serde_json::to_string(&record).unwrap();
        assert!(
            line.starts_with(r#"{"t_ns":5,"kind":"change","subject":"socket","cookie":7"#),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }

    #[test]
    fn unknown_kinds_are_skipped() {
        let line = r#"{"t_ns":5,"kind":"cap","cookie":7,"old":null,"new":43,"rule":"fixed","reason":"","made":true}"#;
        assert_eq!(serde_json::from_str::<Record>(line).unwrap().what, What::Unknown);
    }
}
