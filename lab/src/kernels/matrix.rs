// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of capabilities and machines. Input: the reports of the machines. Output: text, Markdown and JSON. Judges
//! nothing.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::MachineReport;
use super::probes::{CapabilityCell, CapabilityVerdict, PROBES};

pub struct MatrixRow {
    pub name: &'static str,
    pub about: &'static str,
    /// Or why there is none.
    pub report: Result<MachineReport, String>,
}

pub fn word(verdict: CapabilityVerdict) -> &'static str {
    match verdict {
        CapabilityVerdict::Works => "works",
        CapabilityVerdict::NotHere => "not on this kernel",
        CapabilityVerdict::Failed => "failed",
    }
}

impl MatrixRow {
    fn cell(&self, capability: &str) -> Option<&CapabilityCell> {
        let report = self.report.as_ref().ok()?;
        report.cells.iter().find(|cell| cell.capability == capability)
    }

    fn word(&self, capability: &str) -> &'static str {
        self.cell(capability).map_or("not run", |cell| word(cell.verdict))
    }

    fn kernel(&self) -> String {
        match &self.report {
            Ok(report) => format!("{} {}", report.release, report.architecture),
            Err(_) => "-".into(),
        }
    }
}

/// The table alone.
pub fn table(rows: &[MatrixRow]) -> String {
    let mut text = String::from("| |");
    for row in rows {
        let _ = write!(text, " {} |", row.name);
    }
    text += "\n|---|";
    text += &"---|".repeat(rows.len());
    text += "\n| kernel |";
    for row in rows {
        let _ = write!(text, " {} |", row.kernel());
    }
    text += "\n";
    for probe in &PROBES {
        let _ = write!(text, "| {} |", probe.capability);
        for row in rows {
            let _ = write!(text, " {} |", row.word(probe.capability));
        }
        text += "\n";
    }
    text
}

/// The table, and for each cell its commands and its result.
pub fn markdown(rows: &[MatrixRow]) -> String {
    let mut text = String::from("# Which capability works on which kernel\n\n");
    text += &table(rows);
    text += "\n";
    for row in rows {
        let _ = match &row.report {
            Err(reason) => writeln!(text, "- **{}** ({}): not run: {reason}", row.name, row.about),
            Ok(report) => writeln!(
                text,
                "- **{}** ({}): Linux {} {}, {}; {}{}",
                row.name,
                row.about,
                report.release,
                report.architecture,
                report.version,
                report.giveway,
                warnings(report)
            ),
        };
    }
    for probe in &PROBES {
        let _ = write!(text, "\n## {}\n\nRuns: {}.\n\n", probe.capability, probe.ran);
        for row in rows {
            if let Some(cell) = row.cell(probe.capability) {
                let _ = writeln!(text, "- {}: {}: {}", row.name, word(cell.verdict), cell.said);
            }
        }
    }
    text
}

fn warnings(report: &MachineReport) -> String {
    match &report.kernel_warnings {
        Some(lines) if !lines.is_empty() => format!("; the kernel complained {} times: {}", lines.len(), lines[0]),
        _ => String::new(),
    }
}

pub fn json(rows: &[MatrixRow]) -> Value {
    let machine = |row: &MatrixRow| match &row.report {
        Err(reason) => json!({"machine": row.name, "about": row.about, "not_run": reason}),
        Ok(report) => json!({
            "machine": row.name, "about": row.about, "release": report.release, "architecture": report.architecture,
            "version": report.version, "giveway": report.giveway, "cells": report.cells,
            "kernel_warnings": report.kernel_warnings,
        }),
    };
    let ran = |probe: &super::probes::CapabilityProbe| json!({"capability": probe.capability, "ran": probe.ran});
    json!({
        "machines": rows.iter().map(machine).collect::<Vec<_>>(),
        "probes": PROBES.iter().map(ran).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_without_report_keeps_its_column() {
        let capability = PROBES[0].capability;
        let report = MachineReport {
            release: "6.12.1".into(),
            architecture: "x86_64".into(),
            version: "#1".into(),
            giveway: "giveway 0".into(),
            cells: vec![CapabilityCell {
                capability: capability.into(),
                verdict: CapabilityVerdict::NotHere,
                said: "needs Linux 6.16".into(),
                took_s: 1.0,
            }],
            doctor: Value::Null,
            kernel_warnings: None,
        };
        let row = |name, report| MatrixRow {
            name,
            about: "a machine",
            report,
        };
        let rows = [row("old", Ok(report)), row("gone", Err("no QEMU".into()))];
        let text = markdown(&rows);
        assert!(
            text.contains("| | old | gone |\n|---|---|---|\n| kernel | 6.12.1 x86_64 | - |"),
            "{text}"
        );
        assert!(
            text.contains(&format!("| {capability} | not on this kernel | not run |")),
            "{text}"
        );
        assert!(text.contains("- old: not on this kernel: needs Linux 6.16"), "{text}");
        assert!(text.contains("- **gone** (a machine): not run: no QEMU"), "{text}");
    }
}
