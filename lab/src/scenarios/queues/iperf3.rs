// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Floods over a wire, by iperf3.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Result;

use crate::link::wire::{RECEIVER_ADDRESS, Wire};
use crate::namespace::Namespace;
use crate::process::Process;

/// For one client. `report`: where it says what it received.
pub fn serve(wire: &Wire, port: u16, report: Option<PathBuf>) -> Result<Process> {
    let server = start(
        &wire.receiver,
        &format!("--server --one-off --json --port {port}"),
        report,
    )?;
    wire.receiver.wait_until_listening(port)?;
    Ok(server)
}

pub fn send(wire: &Wire, port: u16, seconds: f64, words: &str) -> Result<Process> {
    let words = format!("--client {RECEIVER_ADDRESS} --port {port} --time {seconds} {words}");
    start(&wire.sender, &words, None)
}

fn start(at: &Namespace, words: &str, report: Option<PathBuf>) -> Result<Process> {
    let mut command = at.command("iperf3")?;
    command.args(words.split_whitespace());
    let out = report.map(std::fs::File::create).transpose()?;
    command
        .stdin(Stdio::null())
        .stdout(out.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::null());
    Process::spawn(command)
}
