// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway doctor`: what this kernel and these privileges allow, what is therefore off, and what the daemon
//! of this namespace says of itself; and what keeps tasks waiting here that must run. Changes nothing; exits 1 where giveway could not run at all.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::commands::status::queue_line;
use crate::commands::wrapped;
use crate::control::client;
use crate::kernel::kernel_release;
use crate::kernel::response::Machine;
use crate::place::Place;

mod measure;
mod probe;
mod response;

use probe::Capability;
use response::Finding;

/// Columns of the text that explains a missing capability.
const WIDTH: usize = 76;

pub fn run(args: &DoctorArgs) -> Result<()> {
    let measured = if args.measure { measure::rows()? } else { Vec::new() };
    let capabilities = probe::capabilities();
    let findings = response::findings(&Machine::here());
    let daemon = Place::here().and_then(|place| client::status(&place));
    if args.output.json {
        let list: Vec<_> = capabilities
            .iter()
            .map(|c| json!({"name": c.name, "available": c.available(), "why_not": c.why_not, "lost": c.lost}))
            .collect();
        let status = daemon.as_ref().ok();
        let degraded = status.map_or(&[][..], |status| &status.daemon.degraded);
        let report = json!({
            "kernel": kernel_release(), "capabilities": list, "daemon": daemon.is_ok(), "degraded": degraded,
            "response": findings, "measured": measured, "queue": status.map(|status| &status.network.queue),
        });
        println!("{report}");
    } else {
        println!("Linux {}", kernel_release());
        for capability in &capabilities {
            print!("{}", render(capability));
        }
        println!("\nhow soon this machine answers");
        for finding in &findings {
            print!("{}", render_finding(finding));
        }
        if !measured.is_empty() {
            print!("{}", measure::render(&measured));
        }
        match &daemon {
            Ok(status) => println!(
                "\nthe daemon runs (pid {}, up {:.0} s)",
                status.daemon.pid, status.daemon.uptime_s
            ),
            Err(error) => println!("\n{error:#}"),
        }
        for status in daemon.iter() {
            println!("  queue: {}", queue_line(&status.network));
            status.daemon.degraded.iter().for_each(|line| println!("  {line}"));
        }
    }
    let is_missing = |capability: &Capability| capability.name == probe::ESSENTIAL && !capability.available();
    ensure!(
        !capabilities.iter().any(is_missing),
        "without the {} giveway cannot run here",
        probe::ESSENTIAL
    );
    Ok(())
}

fn render(capability: &Capability) -> String {
    match &capability.why_not {
        None => format!("  yes  {}\n", capability.name),
        Some(why_not) => {
            let explained = explained(&format!("{why_not}; without it: {}", capability.lost));
            format!("  NO   {}\n{explained}", capability.name)
        }
    }
}

fn render_finding(finding: &Finding) -> String {
    let advice = finding.advice.as_ref();
    let explained = advice.map_or(String::new(), |advice| {
        explained(&format!("{}: {}", advice.how, advice.brings))
    });
    format!("  {:<21} {}\n{explained}", finding.name, finding.found)
}

/// In lines below what it explains.
fn explained(text: &str) -> String {
    let line = |line: String| format!("         {line}\n");
    wrapped(text, WIDTH - 9).into_iter().map(line).collect()
}
