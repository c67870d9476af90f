// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The histogram as text, at most 60 columns wide: drawn over itself while it is watched, once at the end otherwise.

use std::fmt::Write as _;

use anyhow::Result;

use super::JitterMeasurement;
use super::args::JitterArgs;
use super::distribution::{QUANTILES, duration};
use super::report::JitterReport;
use crate::say::print_own;
use crate::words::printable;

const COLUMNS: usize = 60;
/// What stands before a bar.
const LABEL_COLUMNS: usize = 22;
/// Upper bounds for each factor of ten.
const BOUNDS: [f64; 3] = [1.0, 2.0, 5.0];

pub struct ProgressLines {
    is_watched: bool,
    title: String,
    lines_drawn: usize,
}

impl ProgressLines {
    pub fn new(args: &JitterArgs, is_watched: bool) -> Self {
        let (threads, every) = (args.threads, duration(args.period.as_micros() as f64));
        let plural = if threads == 1 { "" } else { "s" };
        Self {
            is_watched,
            title: format!("{threads} thread{plural} every {every}, beside {}", args.loads_text()),
            lines_drawn: 0,
        }
    }

    /// While it is measured.
    pub fn show(&mut self, measured: &JitterMeasurement) {
        if self.is_watched {
            let text = self.text(measured);
            // Whether the terminal takes it is found at the end.
            let _ = self.draw(&text);
        }
    }

    /// At the end: the same, and what is known then only.
    pub fn finish(&mut self, measured: &JitterMeasurement, report: &JitterReport) -> Result<()> {
        let mut text = self.text(measured);
        let installed = report.policy_at_end.iter().zip(&report.priority_at_end);
        let mut policies: Vec<_> = installed
            .map(|(policy, priority)| format!("{policy} {priority}"))
            .collect();
        policies.sort();
        policies.dedup();
        let policies = policies.join(", ");
        let _ = writeln!(
            text,
            "{policies}, Linux {}, preemption {}",
            report.kernel, report.preemption
        );
        if report.steal_ms > 0 {
            let _ = writeln!(text, "the hypervisor took {} ms of CPU time", report.steal_ms);
        }
        for worst in &report.worst {
            let (late, at_s, cpu) = (duration(worst.late_us), worst.at_s, worst.cpu);
            let _ = writeln!(text, "{late} late at {at_s:.1} s on CPU {cpu}: {}", worst.cause);
        }
        self.draw(&text)
    }

    fn draw(&mut self, text: &str) -> Result<()> {
        let mut out = String::new();
        if self.lines_drawn > 0 {
            // Up to where the last picture began, and away with it.
            let _ = write!(out, "\x1b[{}A\x1b[J", self.lines_drawn);
        }
        out += &printable(text);
        self.lines_drawn = text.lines().count();
        print_own(&out)
    }

    fn text(&self, measured: &JitterMeasurement) -> String {
        let distribution = &measured.distribution;
        let mut text = format!("{}\n", self.title);
        let _ = writeln!(
            text,
            "{} wake-ups in {:.0} s, {} missed",
            distribution.count(),
            measured.elapsed.as_secs_f64(),
            measured.missed
        );
        text += &bars(&rows(&distribution.steps()));
        for (name, quantile) in QUANTILES {
            let _ = write!(text, "{name} {}  ", duration(distribution.quantile_us(quantile)));
        }
        let _ = writeln!(text, "max {}", duration(distribution.max_us()));
        text
    }
}

/// Steps of the distribution put together into those with round bounds, without gaps in between.
fn rows(steps: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let mut rows: Vec<(f64, u64)> = Vec::new();
    let bounds = (-3..10).flat_map(|decade| BOUNDS.map(|bound| bound * 10f64.powi(decade)));
    let mut lower = 0.0;
    // The steps' bounds are round only nearly.
    for upper in bounds {
        let is_inside = |us: f64| us > lower * 1.01 && us <= upper * 1.01;
        let inside = steps.iter().filter(|(us, _)| is_inside(*us));
        rows.push((upper, inside.map(|(_, count)| count).sum()));
        lower = upper;
    }
    let is_empty = |row: &(f64, u64)| row.1 == 0;
    let first = rows.iter().position(|row| !is_empty(row)).unwrap_or(rows.len());
    let last = rows
        .iter()
        .rposition(|row| !is_empty(row))
        .map_or(first, |last| last + 1);
    rows[first..last].to_vec()
}

/// One line each. A bar's length is the logarithm of the count: the rare ones are what matters.
fn bars(rows: &[(f64, u64)]) -> String {
    let most = rows.iter().map(|row| row.1).max().unwrap_or(0);
    let unit = (COLUMNS - LABEL_COLUMNS) as f64 / length(most).max(1e-9);
    let mut text = String::new();
    for (upper_us, count) in rows {
        let bar = "#".repeat((length(*count) * unit) as usize);
        let line = format!("<= {:>7} {count:>9}  {bar}", duration(*upper_us));
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn length(count: u64) -> f64 {
    (count as f64 + 1.0).log2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hold_every_wakeup_and_fit_sixty_columns() {
        let steps = [(1.0, 1), (5.012, 3), (100.0, 1_000_000), (89_125.0, 2), (100_000.0, 1)];
        let rows = rows(&steps);
        assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), 1_000_007);
        assert_eq!((rows[0], rows[rows.len() - 1]), ((1.0, 1), (100_000.0, 3)));
        let text = bars(&rows);
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        assert!(text.contains("<=  100 us   1000000  ####"), "{text}");
    }
}
