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
pub struct Socket {
    pub label: String,
    /// (seconds, cwnd in segments, cap in segments, RTT in ms, Mbit/s).
    pub samples: Vec<Sample>,
    /// Seconds at which segments were retransmitted.
    pub retransmits: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at_s: f64,
    pub cwnd: f64,
    pub cap: Option<f64>,
    pub rtt_ms: f64,
    pub mbit: f64,
}

/// A record, ready to be drawn.
#[derive(Debug)]
pub struct Log {
    pub title: String,
    pub seconds: f64,
    /// The busiest ones, busiest first.
    pub sockets: Vec<Socket>,
    left_out_sockets: usize,
    left_out_lines: usize,
}

impl Log {
    pub fn left_out_text(&self) -> String {
        let mut text = String::new();
        if self.left_out_sockets > 0 {
            text += &format!("; {} less busy ones are not drawn", self.left_out_sockets);
        }
        if self.left_out_lines > 0 {
            text += &format!("; {} lines were not understood and passed over", self.left_out_lines);
        }
        text
    }
}

/// Reads a whole record.
///
/// # Errors
/// When the file is no record, is of a newer version, or holds no sample. A broken line in the middle is
/// counted and passed over.
pub fn read(input: impl BufRead) -> Result<Log> {
    let mut lines = input.lines();
    let header = read_header(lines.next())?;
    let mut sockets: BTreeMap<Cookie, Socket> = BTreeMap::new();
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
    let mut sockets: Vec<Socket> = sockets.into_values().filter(|s| s.samples.len() > 1).collect();
    if sockets.is_empty() {
        bail!("it holds no socket that was seen twice: was anything sent while it was recorded?");
    }
    sockets.sort_by(|a, b| volume(b).total_cmp(&volume(a)));
    let left_out_sockets = sockets.len().saturating_sub(SOCKETS_DRAWN);
    sockets.truncate(SOCKETS_DRAWN);
    let interface = header.interface.as_deref().unwrap_or("no interface");
    let title = format!("{} {}, Linux {}", header.host, interface, header.kernel);
    Ok(Log {
        title,
        seconds: last_s,
        sockets,
        left_out_sockets,
        left_out_lines,
    })
}

fn read_header(line: Option<std::io::Result<String>>) -> Result<Header> {
    let line = line.context("the file is empty")?.context("it is not text")?;
    let header: Header = serde_json::from_str(&line).context("its first line is not a record's header")?;
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

fn sample(at_s: f64, flow: &Flow) -> Sample {
    Sample {
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
fn volume(socket: &Socket) -> f64 {
    socket.samples.iter().map(|s| s.mbit).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u32) -> String {
        format!(
            r#"{{"schema":"giveway.record","version":{version},"kernel":"6.18","host":"h","interface":"wlan0","started_t_ns":1000000000,"started_unix_ns":0}}"#
        )
    }

    fn flow(t_ns: u64, cwnd: u32) -> String {
        format!(
            r#"{{"t_ns":{t_ns},"kind":"flow","cookie":7,"local":"10.0.0.1:1","remote":"10.0.0.2:2","state":"established","pid":1,"command":"cp","cgroup_id":1,"ifindex":2,"cwnd":{cwnd},"clamp":43,"ssthresh":null,"mss_bytes":1448,"srtt_us":256000,"min_rtt_us":256000,"rttvar_us":0,"in_flight_bytes":0,"unsent_bytes":0,"unacked_bytes":0,"delivery_rate_bytes_per_s":125000,"pacing_rate_bytes_per_s":null,"retransmits":0,"ca_state":"open","congestion_control":"cubic"}}"#
        )
    }

    #[test]
    fn samples_are_told_from_the_start_of_the_record() {
        let text = [header(1), flow(1_500_000_000, 10), flow(2_000_000_000, 20)].join("\n");
        let log = read(text.as_bytes()).unwrap();
        let socket = &log.sockets[0];
        assert_eq!((socket.samples[0].at_s, socket.samples[1].cwnd), (0.5, 20.0));
        assert_eq!(
            (socket.samples[0].mbit, socket.samples[0].rtt_ms, socket.samples[0].cap),
            (1.0, 256.0, Some(43.0))
        );
    }

    #[test]
    fn a_broken_line_is_counted_and_passed_over() {
        let text = [header(1), flow(1, 10), "{\"t_ns\":".to_owned(), flow(2, 20)].join("\n");
        assert_eq!(read(text.as_bytes()).unwrap().left_out_lines, 1);
    }

    #[test]
    fn a_newer_version_is_refused_by_number() {
        let error = read(header(2).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("version 2"), "{error}");
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert!(read("hello\n".as_bytes()).is_err());
        assert!(read("".as_bytes()).is_err());
    }
}
