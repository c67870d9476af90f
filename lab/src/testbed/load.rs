// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What disturbs on a topology: programs that run until they are dropped.
//! Input: a list of loads. Output: their processes. They measure nothing; the remote host counts what it has of an upload.

use std::fs::File;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::process::Stdio;

use anyhow::Result;

use super::place::{Host, Place};
use crate::experiment::Run;
use crate::giveway;
use crate::process::Process;
use crate::traffic::http::start_upload;
use crate::traffic::liar::{self, Lie};
use crate::traffic::realtime::flood::{self, Flood};
use crate::traffic::realtime::icmp;

#[derive(Clone, Debug)]
pub enum Load {
    /// An endless upload of each of these senders at nice 19, marked as background, with this congestion control.
    Upload {
        senders: Range<usize>,
        congestion: &'static str,
    },
    /// UDP datagrams of 1,400 bytes, marked LE, from a remote host that nothing slows down to a reader at nice 19.
    Download { mbit: u64 },
    /// UDP packets of the first sender, which keep a queue full.
    Flood(Flood),
    /// Echo requests without end, both ways.
    Pings,
    /// So many processes at each end that compute without end.
    Computing { processes: usize },
    /// TCP in both directions.
    Bulk,
    /// This sender tells its peers what is not true, with the group's key or without.
    Liar { sender: usize, lie: Lie },
}

/// Between the first sender and the remote host, where a load names no others.
pub fn start(loads: &[Load], place: &mut Place, run: &Run) -> Result<Vec<Process>> {
    if loads.iter().any(|load| matches!(load, Load::Upload { .. })) {
        place.remote_host()?;
    }
    let (far, nobody) = (place.far()?, place.nobody()?);
    let mut running = Vec::new();
    for load in loads {
        let senders = match load {
            Load::Upload { senders, .. } => senders.clone(),
            Load::Liar { sender, .. } => *sender..sender + 1,
            _ => 0..1,
        };
        for number in senders {
            running.extend(load.start(place.sender(number)?, far, nobody, run)?);
        }
    }
    Ok(running)
}

impl Load {
    /// An upload of the only sender.
    pub const fn upload(congestion: &'static str) -> Self {
        Self::Upload {
            senders: 0..1,
            congestion,
        }
    }

    /// Packets that only have to be sent go to `nobody`.
    fn start(&self, near: Host, far: Host, nobody: Ipv4Addr, run: &Run) -> Result<Vec<Process>> {
        match self {
            Load::Upload { congestion, .. } => Ok(vec![start_upload(near.at, far.address, congestion)?]),
            Load::Download { mbit } => start_download(near, far, *mbit),
            Load::Flood(flood) => Ok(vec![flood::start(near.at, nobody, flood)?]),
            Load::Pings => [(near, far), (far, near)]
                .map(|(from, to)| icmp::start(from.at, to.address))
                .into_iter()
                .collect(),
            Load::Computing { processes } => {
                let ends = [near, far]
                    .into_iter()
                    .flat_map(|end| std::iter::repeat_n(end, *processes));
                ends.map(|end| shell(end, "while :; do :; done", Stdio::null()))
                    .collect()
            }
            Load::Bulk => start_bulk(near, far, run),
            Load::Liar { lie, .. } => {
                let key = giveway::key_file(run.raw);
                Ok(vec![liar::start(near.at, near.address, *lie, &key)?])
            }
        }
    }
}

fn start_download(near: Host, far: Host, mbit: u64) -> Result<Vec<Process>> {
    let mut reader = near.at.command("nice")?;
    reader.args(["-n", "19", "iperf3", "--server"]).stdout(Stdio::null());
    let reader = Process::spawn(reader)?;
    near.at.wait_until_listening(5_201)?;
    let line = format!(
        "--fifo 50 iperf3 --udp --client {} --bitrate {mbit}M --length 1400 --tos 4 --time 3600",
        near.address
    );
    let mut sender = far.at.command("chrt")?;
    sender.args(line.split(' ')).stdout(Stdio::null());
    Ok(vec![Process::spawn(sender)?, reader])
}

fn start_bulk(near: Host, far: Host, run: &Run) -> Result<Vec<Process>> {
    let address = far.address;
    let mut sink = far.at.command("iperf3")?;
    sink.args(["--server", "--bind", &address.to_string()]);
    sink.stdin(Stdio::null()).stdout(Stdio::null());
    let sink = Process::spawn(sink)?;
    let log = File::create(run.file("-bulk.log"))?;
    let line = format!("until iperf3 --client {address} --bidir --time 86400 --forceflush; do usleep 10000; done");
    Ok(vec![sink, shell(near, &line, log.into())?])
}

fn shell(at: Host, line: &str, output: Stdio) -> Result<Process> {
    let mut shell = at.at.command("sh")?;
    shell.args(["-c", line]).stdin(Stdio::null()).stdout(output);
    Process::spawn(shell)
}
