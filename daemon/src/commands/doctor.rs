// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway doctor`: what this kernel and these privileges allow, what is therefore off, and what the daemon
//! of this namespace says of itself; and what keeps tasks waiting here that must run. Changes nothing; exits 1 where giveway could not run at all.

use anyhow::{Result, ensure};
use clap::Args;
use giveway_engine::queue::QueueView;
use giveway_engine::queue::links::LinkView;
use giveway_engine::status::Status;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::args::Json;
use crate::commands::clock::duration_s;
use crate::commands::status::queue_lines;
use crate::commands::{hanging, print_output, terminal_columns};
use crate::control::client;
use crate::kernel::kernel_release;
use crate::kernel::response::LatencyFactors;
use crate::place::Place;

mod measure;
mod probe;
mod response;

use measure::WakeupLatency;
use probe::Capability;
use response::Finding;

/// Columns where there is no terminal.
const COLUMNS: usize = 76;

#[derive(Args)]
pub struct DoctorArgs {
    /// Measure what real-time priority and shallow idle states bring here (20 s)
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub output: Json,
}

/// All of it.
#[derive(JsonSchema, Serialize)]
pub struct DoctorReport<'a> {
    kernel: String,
    capabilities: &'a [Capability],
    /// Whether it answers.
    daemon: bool,
    warnings: &'a [String],
    response: &'a [Finding],
    measured: &'a [WakeupLatency],
    queue: Option<&'a QueueView>,
    links: Option<&'a Vec<LinkView>>,
}

pub fn run(args: &DoctorArgs) -> Result<()> {
    let measured = if args.measure { measure::rows()? } else { Vec::new() };
    let capabilities = probe::capabilities();
    let findings = response::findings(&LatencyFactors::here());
    let daemon = Place::here().and_then(|place| client::status(&place));
    let status = daemon.as_ref().ok();
    let report = DoctorReport {
        kernel: kernel_release(),
        capabilities: &capabilities,
        daemon: daemon.is_ok(),
        warnings: status.map_or(&[], |status| &status.daemon.warnings),
        response: &findings,
        measured: &measured,
        queue: status.map(|status| &status.network.queue),
        links: status.map(|status| &status.network.links),
    };
    print_output(args.output.json, &report, || {
        let columns = terminal_columns().unwrap_or(COLUMNS);
        let mut text = format!("Linux {}\n", report.kernel);
        capabilities.iter().for_each(|c| text += &render(c, columns));
        text += "\nhow soon this machine answers\n";
        findings
            .iter()
            .for_each(|finding| text += &render_finding(finding, columns));
        if !measured.is_empty() {
            text += &measure::render(&measured);
        }
        text += &match &daemon {
            Ok(status) => render_daemon(status, columns),
            Err(error) => format!("\n{error:#}\n"),
        };
        text
    })?;
    let is_missing = |capability: &Capability| capability.name == probe::ESSENTIAL && !capability.available;
    ensure!(
        !capabilities.iter().any(is_missing),
        "without the {} giveway cannot run here",
        probe::ESSENTIAL
    );
    Ok(())
}

fn render_daemon(status: &Status, columns: usize) -> String {
    let daemon = &status.daemon;
    let mut text = format!(
        "\nthe daemon runs (pid {}, up {})\n",
        daemon.pid,
        duration_s(daemon.uptime_s)
    );
    let queues = queue_lines(&status.network)
        .into_iter()
        .map(|line| format!("queue: {line}"));
    for line in queues.chain(daemon.warnings.iter().cloned()) {
        text += &hanging("  ", 4, &line, Some(columns));
        text += "\n";
    }
    text
}

fn render(capability: &Capability, columns: usize) -> String {
    match &capability.why_not {
        None => format!("  yes  {}\n", capability.name),
        Some(why_not) => {
            let explained = explained(&format!("{why_not}; lost: {}", capability.lost), columns);
            format!("  NO   {}\n{explained}", capability.name)
        }
    }
}

fn render_finding(finding: &Finding, columns: usize) -> String {
    let advice = finding.advice.as_ref();
    let explained = advice.map_or(String::new(), |advice| {
        explained(&format!("{}: {}", advice.how, advice.brings), columns)
    });
    let found = hanging(&format!("  {:<21} ", finding.name), 24, &finding.found, Some(columns));
    format!("{found}\n{explained}")
}

/// In lines below what it explains.
fn explained(text: &str, columns: usize) -> String {
    hanging(&" ".repeat(9), 9, text, Some(columns)) + "\n"
}
