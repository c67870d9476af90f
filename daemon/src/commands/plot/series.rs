// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a record to what is drawn: one series of samples for each socket, and what was passed over.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::{Context as _, Result, bail};
use giveway_engine::model::{Cookie, Flow, FlowEvent};
use giveway_engine::record::{Header, Record, SCHEMA, VERSION, What};

/// More lines than this in one picture cannot be told apart.
const SOCKETS_DRAWN: usize = 8;

/// One socket's history.
#[derive(Debug, Default)]
pub struct SocketSeries {
    pub label: String,
    /// (seconds, cwnd in segments, cap in segments, RTT in ms, Mbit/s).
    pub samples: Vec<SeriesPoint>,
    /// Seconds at which segments were retransmitted.
    pub retransmits: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
pub struct SeriesPoint {
    pub at_s: f64,
    pub cwnd: f64,
    pub cap: Option<f64>,
    pub rtt_ms: f64,
    pub mbit: f64,
}

/// A record, ready to be drawn.
#[derive(Debug)]
pub struct PlotData {
    pub title: String,
    pub seconds: f64,
    /// The busiest ones, busiest first.
    pub sockets: Vec<SocketSeries>,
    left_out_sockets: usize,
    left_out_lines: usize,
}

impl PlotData {
    pub fn left_out_text(&self) -> String {
        let note = |count: usize, what| {
            if count > 0 {
                format!("; {count} {what}")
            } else {
                String::new()
            }
        };
        note(self.left_out_sockets, "less busy ones are not drawn")
            + &note(self.left_out_lines, "lines were not understood and skipped")
    }
}

/// Reads a whole record.
///
/// # Errors
/// When the file is no record, is of a newer version, or holds no sample. A broken line in the middle is
/// counted and passed over.
pub fn read(input: impl BufRead) -> Result<PlotData> {
    let mut lines = input.lines();
    let header = read_header(lines.next())?;
    let mut sockets: BTreeMap<Cookie, SocketSeries> = BTreeMap::new();
    let (mut left_out_lines, mut last_s) = (0, 0.0_f64);
    for line in lines {
        let Ok(record) = line
            .map_err(anyhow::Error::from)
            .and_then(|l| Ok(serde_json::from_str::<Record>(&l)?))
        else {
            left_out_lines += 1;
            continue;
        };
        let at_s = record.t_ns.saturating_sub(header.started_t_ns) as f64 / 1e9;
        match record.what {
            What::Flow(flow) => {
                let socket = sockets.entry(flow.cookie).or_default();
                if socket.label.is_empty() {
                    socket.label = label(&flow);
                }
                socket.samples.push(sample(at_s, &flow));
                last_s = last_s.max(at_s);
            }
            What::Event {
                cookie,
                event: FlowEvent::Retransmit,
            } => {
                sockets.entry(cookie).or_default().retransmits.push(at_s);
            }
            _ => {}
        }
    }
    let mut sockets: Vec<SocketSeries> = sockets.into_values().filter(|s| s.samples.len() > 1).collect();
    if sockets.is_empty() {
        bail!("no socket was sampled twice: was there any traffic during the recording?");
    }
    sockets.sort_by(|a, b| volume(b).total_cmp(&volume(a)));
    let left_out_sockets = sockets.len().saturating_sub(SOCKETS_DRAWN);
    sockets.truncate(SOCKETS_DRAWN);
    let interface = header.interface.as_deref().unwrap_or("no interface");
    let title = format!("{} {}, Linux {}", header.host, interface, header.kernel);
    Ok(PlotData {
        title,
        seconds: last_s,
        sockets,
        left_out_sockets,
        left_out_lines,
    })
}

fn read_header(line: Option<std::io::Result<String>>) -> Result<Header> {
    let line = line.context("the file is empty")?.context("it is not text")?;
    let header: Header = serde_json::from_str(&line).context("its first line is not the header of a record")?;
    if header.schema != SCHEMA {
        bail!("its schema is `{}`, not `{SCHEMA}`", header.schema);
    }
    if header.version > VERSION {
        bail!(
            "it is of version {}; this giveway reads up to version {VERSION}: use a newer one",
            header.version
        );
    }
    Ok(header)
}

fn sample(at_s: f64, flow: &Flow) -> SeriesPoint {
    SeriesPoint {
        at_s,
        cwnd: flow.cwnd.into(),
        cap: flow.clamp.map(f64::from),
        rtt_ms: f64::from(flow.srtt_us) / 1e3,
        mbit: flow.delivery_rate_bytes_per_s as f64 * 8.0 / 1e6,
    }
}

fn label(flow: &Flow) -> String {
    let process = flow.owner.as_ref().map_or("?", |o| o.command.as_str());
    format!("{process} :{} to {}", flow.local.port(), flow.remote)
}

/// How much a socket moved, roughly: enough to order them.
fn volume(socket: &SocketSeries) -> f64 {
    socket.samples.iter().map(|s| s.mbit).sum()
}

#[cfg(test)]
mod tests;
