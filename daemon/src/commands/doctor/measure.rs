// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway doctor --measure`: what real-time priority and shallow idle states bring on this machine, by `giveway
//! jitter` itself, each beside its opposite in turns. Changes nothing that outlasts it.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::say::show;

/// Wake-ups of each kind and round: 2.5 s.
const WAKEUPS: u32 = 2500;
const PERIOD: &str = "1ms";
/// The kinds take turns, so that a slow moment of the machine does not fall on one of them.
const ROUNDS: usize = 2;

const KINDS: [(&str, &[&str]); 4] = [
    ("not real-time, CPUs busy", &["--policy", "other", "--load", "cpu"]),
    (
        "real-time, CPUs busy",
        &["--policy", "fifo", "--priority", "48", "--load", "cpu"],
    ),
    (
        "real-time, CPUs idle",
        &["--policy", "fifo", "--priority", "48", "--deep-idle"],
    ),
    (
        "the same, idle states held off",
        &["--policy", "fifo", "--priority", "48"],
    ),
];

/// How late wake-ups of one kind were: the mean of the rounds' p50 and p99, and the worst of all.
#[derive(Debug, JsonSchema, Serialize)]
pub struct WakeupLatency {
    pub kind: &'static str,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
struct Figures {
    wakeup_p50_us: f64,
    wakeup_p99_us: f64,
    wakeup_max_us: f64,
}

/// # Errors
/// When a measurement fails: real time may be refused here.
pub fn rows() -> Result<Vec<WakeupLatency>> {
    let mut figures: [Vec<Figures>; KINDS.len()] = Default::default();
    for round in 1..=ROUNDS {
        for ((kind, arguments), figures) in KINDS.iter().zip(&mut figures) {
            show(&format!("measuring, round {round} of {ROUNDS}: {kind}\n"));
            figures.push(measure(arguments).with_context(|| format!("cannot measure `{kind}`"))?);
        }
    }
    let rows = KINDS.iter().zip(&figures).map(|((kind, _), figures)| WakeupLatency {
        kind,
        figures: Figures {
            wakeup_p50_us: mean(figures, |f| f.wakeup_p50_us),
            wakeup_p99_us: mean(figures, |f| f.wakeup_p99_us),
            wakeup_max_us: figures.iter().map(|f| f.wakeup_max_us).fold(0.0, f64::max),
        },
    });
    Ok(rows.collect())
}

fn mean(figures: &[Figures], of: fn(&Figures) -> f64) -> f64 {
    figures.iter().map(of).sum::<f64>() / figures.len() as f64
}

fn measure(arguments: &[&str]) -> Result<Figures> {
    let wakeups = WAKEUPS.to_string();
    let done = Command::new("/proc/self/exe")
        .args(["jitter", "--json", "--no-causes"])
        .args(["--period", PERIOD, "--wakeups", &wakeups])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("cannot start `giveway jitter`")?;
    ensure!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr).trim()
    );
    serde_json::from_slice(&done.stdout).context("`giveway jitter` printed no figures")
}

pub fn render(rows: &[WakeupLatency]) -> String {
    let mut text = String::from("\nwake-ups each ms, us late              p50      p99    worst\n");
    for row in rows {
        let f = &row.figures;
        let figures = [f.wakeup_p50_us, f.wakeup_p99_us, f.wakeup_max_us].map(|us| format!(" {us:>8.1}"));
        text += &format!("  {:<32}{}\n", row.kind, figures.concat());
    }
    text
}
