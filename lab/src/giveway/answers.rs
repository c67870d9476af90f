// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the answers of the program under test: the only file that knows giveway's JSON, by the engine's own types. The
//! rest of the lab calls the functions here.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
pub use giveway_engine::change::Change;
use giveway_engine::change::{Latest, Setting, Subject, Value};
pub use giveway_engine::priority::{PriorityStatus, RuleStatus};
use giveway_engine::queue::traffic::QueueCounters;
use giveway_engine::record::{Record, What};
use giveway_engine::status::FlowView;
pub use giveway_engine::status::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::binary;
use crate::interrupt::wait_for;
use crate::namespace::Namespace;
use crate::process::run;
use crate::traffic::realtime::monotonic_ns;

/// With every poll, or under htb each second.
const COUNTED_WITHIN: Duration = Duration::from_secs(10);

const DRY_REVERT: &[&str] = &["revert", "--dry-run", "--json"];

#[derive(Deserialize)]
struct Why {
    changes: Vec<Latest>,
}

#[derive(Deserialize)]
struct DryRevert {
    found: Vec<String>,
    failed: Vec<String>,
}

/// The events of caps and peers in a file of `giveway record`, at times of CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub struct Recorded {
    pub caps: Vec<CapChange>,
    /// The addresses of peers that fell silent.
    pub expired: Vec<(u64, String)>,
}

/// A cap became active on a socket; `None`: the socket has none any more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapChange {
    pub t_ns: u64,
    pub cookie: u64,
    pub cap: Option<u64>,
}

/// The output of `giveway` with these arguments; an exit other than 0 is an error.
pub fn ask(at: &Namespace, words: &[&str]) -> Result<Vec<u8>> {
    let mut command = at.command(binary()?)?;
    command.args(words);
    Ok(run(command)?.stdout)
}

fn read<T: DeserializeOwned>(answer: &[u8], words: &[&str]) -> Result<T> {
    serde_json::from_slice(answer)
        .with_context(|| format!("the answer of `giveway {}` is not readable", words.join(" ")))
}

fn answer<T: DeserializeOwned>(at: &Namespace, words: &[&str]) -> Result<T> {
    read(&ask(at, words)?, words)
}

pub fn status(at: &Namespace) -> Result<Status> {
    answer(at, &["status", "--json"])
}

/// The counters of the queue, taken after this call: the status has those of the latest poll.
pub fn queue_counters(at: &Namespace) -> Result<QueueCounters> {
    let asked_ns = monotonic_ns()?;
    wait_for("giveway to count what its queue has done", COUNTED_WITHIN, || {
        let queue = status(at)?.network.queue;
        Ok(queue.counters.filter(|_| queue.counted_t_ns > asked_ns))
    })
}

/// Caps of the sending sockets, as the kernel has them; a socket without one, or with another than giveway reports,
/// counts as 0, which no bound accepts.
pub fn active_caps(status: &Status) -> Vec<u64> {
    let senders = status.network.flows.iter().filter(|flow| flow.sender);
    let cap = |flow: &FlowView| flow.flow.clamp.filter(|_| flow.flow.clamp == flow.cap).unwrap_or(0);
    senders.map(|flow| cap(flow).into()).collect()
}

pub fn realtime(at: &Namespace) -> Result<PriorityStatus> {
    priority_of(status(at)?)
}

fn priority_of(status: Status) -> Result<PriorityStatus> {
    status.priority.context("giveway reports nothing of real time")
}

/// What `giveway why` reports of this process's scheduling, or of all processes.
pub fn scheduling_changes(at: &Namespace, pid: Option<i32>) -> Result<Vec<Change>> {
    let subject = pid.map(|pid| pid.to_string());
    let words: Vec<&str> = ["why", "--json"].into_iter().chain(subject.as_deref()).collect();
    let changes = answer::<Why>(at, &words)?
        .changes
        .into_iter()
        .map(|latest| latest.change);
    Ok(changes.filter(|change| change.setting == Setting::Scheduling).collect())
}

/// Whether this change took the priority away.
pub fn is_demotion(change: &Change) -> bool {
    matches!(&change.new, Value::Text(policy) if policy.starts_with("OTHER"))
}

/// How often giveway has raised handlers of requests, and its number of real-time warnings; the whole answer goes to
/// `file`.
pub fn raises(at: &Namespace, file: &Path) -> Result<(u64, usize)> {
    let words = ["status", "--json"];
    let said = ask(at, &words)?;
    std::fs::write(file, &said).with_context(|| format!("cannot write {}", file.display()))?;
    let status: Status = read(&said, &words)?;
    let priority = priority_of(status)?;
    let threads = priority.chains.into_iter().flat_map(|chain| chain.threads);
    Ok((threads.map(|thread| thread.raises).sum(), priority.warnings.len()))
}

/// The number of capped sockets that `giveway revert` would find, changing none.
pub fn caps_found(at: &Namespace) -> Result<usize> {
    let found = answer::<DryRevert>(at, DRY_REVERT)?.found;
    Ok(found.iter().filter(|line| line.contains("cwnd clamp")).count())
}

/// What else it would find, or fail to check.
pub fn others_found(at: &Namespace) -> Result<Vec<String>> {
    let DryRevert { found, failed, .. } = answer(at, DRY_REVERT)?;
    Ok([found, failed].concat())
}

pub fn revert(at: &Namespace) -> Result<()> {
    ask(at, &["revert"]).map(drop)
}

/// Makes the daemon read its rules again.
pub fn reload(at: &Namespace) -> Result<()> {
    ask(at, &["reload"]).map(drop)
}

/// Limits a process and its children in both directions; `None`: removes the limit.
pub fn limit_by_hand(at: &Namespace, pid: i32, kbit: Option<u64>) -> Result<()> {
    let pid = pid.to_string();
    let said = match kbit {
        Some(kbit) => ask(at, &["limit", "set", &pid, "--rate-limit", &format!("{kbit}kbit")]),
        None => ask(at, &["limit", "clear", &pid]),
    };
    said.map(drop)
}

/// The caps and silent peers of a file of `giveway record`.
pub fn parse_record(text: &str) -> Result<Recorded> {
    // A daemon that was killed leaves an incomplete last line.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut recorded = Recorded::default();
    for line in whole.skip(1) {
        let Record { t_ns, what } = serde_json::from_str(line)?;
        match what {
            What::Change(change) => recorded.caps.extend(cap_change(t_ns, &change)),
            What::Peer {
                address, expired: true, ..
            } => recorded.expired.push((t_ns, address.to_string())),
            _ => {}
        }
    }
    Ok(recorded)
}

/// None if it is no change of a cap, or was not made.
fn cap_change(t_ns: u64, change: &Change) -> Option<CapChange> {
    let Subject::Socket { cookie } = change.subject else {
        return None;
    };
    let cap = match change.new {
        Value::Number(segments) => Some(segments),
        _ => None,
    };
    (change.setting == Setting::Cap && change.made).then_some(CapChange {
        t_ns,
        cookie: cookie.0,
        cap,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_up_to_the_line_that_a_kill_cut_short() {
        let text = r#"{"schema":"giveway.record","version":2}
{"t_ns":5,"kind":"senders","devices":2,"connections":3}
{"t_ns":6,"kind":"change","subject":"socket","cookie":7,"setting":"cap","old":null,"new":43,"rule":"fixed","reason":"2 devices","made":true}
{"t_ns":7,"kind":"change","coo"#;
        let change = CapChange {
            t_ns: 6,
            cookie: 7,
            cap: Some(43),
        };
        assert_eq!(parse_record(text).unwrap().caps, [change]);
        assert!(parse_record("{}\nnot a record\n").is_err());
    }
}
