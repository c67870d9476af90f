// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway doctor`: what this kernel and these privileges allow, what is therefore off, and what the daemon
//! of this namespace says of itself; and what keeps tasks waiting here that must run. Changes nothing; exits 1 where giveway could not run at all.

use anyhow::{Result, bail};
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::control::client;
use crate::kernel::probe::{self, Capability};
use crate::kernel::response::Machine;
use crate::place::Place;

mod measure;
mod response;

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
        let degraded = daemon
            .as_ref()
            .map(|status| status.degraded.clone())
            .unwrap_or_default();
        println!(
            "{}",
            json!({
                "kernel": probe::kernel_release(), "capabilities": list, "daemon": daemon.is_ok(), "degraded": degraded,
                "response": findings, "measured": measured,
                "queue": daemon.as_ref().ok().map(|status| &status.snapshot.queue),
            })
        );
    } else {
        println!("Linux {}", probe::kernel_release());
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
            Ok(status) => println!("\nthe daemon runs (pid {}, up {:.0} s)", status.pid, status.uptime_s),
            Err(error) => println!("\n{error:#}"),
        }
        for status in daemon.iter() {
            println!("  queue: {}", status.queue_line());
            status.degraded.iter().for_each(|line| println!("  {line}"));
        }
    }
    if capabilities
        .iter()
        .any(|c| c.name == probe::ESSENTIAL && !c.available())
    {
        bail!("without the {} giveway cannot run here", probe::ESSENTIAL);
    }
    Ok(())
}

fn render(capability: &Capability) -> String {
    let Some(why_not) = &capability.why_not else {
        return format!("  yes  {}\n", capability.name);
    };
    let mut text = format!("  NO   {}\n", capability.name);
    for line in wrap(&format!("{why_not}; without it: {}", capability.lost)) {
        text += &format!("         {line}\n");
    }
    text
}

fn render_finding(finding: &Finding) -> String {
    let mut text = format!("  {:<21} {}\n", finding.name, finding.found);
    if let Some(advice) = &finding.advice {
        for line in wrap(&format!("{}: {}", advice.how, advice.brings)) {
            text += &format!("         {line}\n");
        }
    }
    text
}

/// Breaks a text at blanks.
fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= WIDTH - 9 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
