// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the user's own connections show, by the daemon's record, which goes on while giveway is paused. Input: the time that
//! counts. Output: sums over all TCP connections in it.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use giveway_engine::model::{Cookie, Flow};
use giveway_engine::record::{Header, Record, What};
use tokio::time::Instant;

use super::load::Window;
use crate::control::{Request, client};
use crate::kernel::now;
use crate::place::Place;

#[derive(Debug, Default)]
pub struct FlowTotals {
    pub bytes: u64,
    pub segments: u64,
    pub retransmitted: u64,
    /// Of the smoothed RTT to its minimum, while something was in flight.
    rtt_ratios: Vec<f64>,
    flows: BTreeMap<Cookie, Flow>,
}

/// Until the window's end.
pub fn run(place: &Place, window: Window) -> Result<FlowTotals> {
    let mut answers = client::ask(place, Request::Record)?;
    let _: Header = answers.first()?;
    let connection = answers.connection()?;
    thread::spawn(move || {
        thread::sleep(window.end.saturating_duration_since(Instant::now()));
        // The reader then finds the end of the stream.
        let _ = connection.shutdown(Shutdown::Both);
    });
    let starts = now() + window.start.saturating_duration_since(Instant::now());
    let mut seen = FlowTotals::default();
    while let Some(line) = answers.line()? {
        // The last one may be cut short; kinds of a newer daemon are passed over.
        if let Ok(record) = serde_json::from_str::<Record>(&line)
            && let What::Flow(flow) = record.what
        {
            seen.take(*flow, Duration::from_nanos(record.t_ns) >= starts);
        }
    }
    Ok(seen)
}

impl FlowTotals {
    /// What was carried since the connection was seen last, if that `counts`.
    fn take(&mut self, flow: Flow, counts: bool) {
        let before = self.flows.insert(flow.cookie, flow.clone());
        let (Some(before), true) = (before, counts) else { return };
        let payload = |flow: &Flow| flow.acked_bytes + flow.received_bytes;
        self.bytes += payload(&flow).saturating_sub(payload(&before));
        self.segments += u64::from(flow.delivered_segments.wrapping_sub(before.delivered_segments));
        self.retransmitted += u64::from(flow.retransmits.saturating_sub(before.retransmits));
        if let (Some(least), true) = (flow.min_rtt_us.filter(|us| *us > 0), flow.unacked_bytes > 0) {
            self.rtt_ratios.push(f64::from(flow.srtt_us) / f64::from(least));
        }
    }

    pub fn rtt_ratio(&self) -> Option<f64> {
        let count = self.rtt_ratios.len();
        (count > 0).then(|| self.rtt_ratios.iter().sum::<f64>() / count as f64)
    }
}
