// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report for the user: one JSON object, or a table of at most 80 columns. Input: the measured metrics and the
//! verdicts. Output: text. Computes nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::check::Verdict;
use crate::outcome::{Metrics, Notes, Spread, shares};
use crate::parameters::Parameters;
use crate::results::Origin;
use crate::scenario::CheckKind;

/// Of a terminal.
const COLUMNS: usize = 80;

/// A column of the spread between the rounds, of the metric that follows.
const SPREAD: &str = "spread:";

#[derive(Serialize)]
pub struct ScenarioReport<'a> {
    pub scenario: &'a str,
    pub params: &'a Parameters,
    pub kernel: String,
    pub variants: BTreeMap<String, Metrics>,
    /// Over the rounds, where there were several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub spread: Spread,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub said: Notes,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub failed: &'a [String],
    pub checks: Vec<Verdict>,
    pub origin: Origin,
}

impl ScenarioReport<'_> {
    /// Whether every variant has run and every bound holds; goals do not decide.
    pub fn holds(&self) -> bool {
        self.failed.is_empty()
            && self
                .checks
                .iter()
                .all(|check| check.ok || check.kind == CheckKind::Goal)
    }

    /// One row for each variant, and for each point below it that is not a single station. Columns that do not fit
    /// follow as another table of the same rows.
    pub fn table(&self, variants: &[&str], columns: &str) -> String {
        let known = self.rows(variants);
        let widest = widest(&known);
        let columns: Vec<Vec<String>> = columns
            .split_whitespace()
            .map(|column| self.column(&known, column))
            .collect();
        let mut tables: Vec<Vec<(usize, &Vec<String>)>> = vec![Vec::new()];
        let mut used = widest;
        for column in &columns {
            let width = 2 + column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            let last = tables.len() - 1;
            if used + width > COLUMNS && !tables[last].is_empty() {
                tables.push(vec![(width, column)]);
                used = widest + width;
            } else {
                tables[last].push((width, column));
                used += width;
            }
        }
        let names: Vec<&str> = ["", ""].into_iter().chain(known).collect();
        let text = |table: Vec<(usize, &Vec<String>)>| {
            let row = |(at, name): (usize, &&str)| {
                let cells: String = table
                    .iter()
                    .map(|(width, column)| format!("{:>width$}", column[at]))
                    .collect();
                format!("{name:widest$}{cells}\n")
            };
            names.iter().enumerate().map(row).collect::<String>()
        };
        tables.into_iter().map(text).collect::<Vec<_>>().join("\n")
    }

    /// Its heading, its unit, and the values of the rows.
    fn column(&self, rows: &[&str], column: &str) -> Vec<String> {
        let (name, unit) = heading(column);
        let cell = |row: &&str| self.cell(row, column).map_or("-".into(), number);
        [name.into(), unit.into()]
            .into_iter()
            .chain(rows.iter().map(cell))
            .collect()
    }

    /// A metric, or after `spread:` its maximum less its minimum.
    fn cell(&self, name: &str, column: &str) -> Option<f64> {
        match column.strip_prefix(SPREAD) {
            Some(metric) => self.spread.get(name)?.get(metric).map(|(least, most)| most - least),
            None => self.variants[name].get(column).copied(),
        }
    }

    fn rows(&self, variants: &[&str]) -> Vec<&str> {
        let mut rows: Vec<&str> = Vec::new();
        for variant in variants {
            let is_row = |point: &&str| match point.strip_prefix(variant) {
                Some(rest) => rest.is_empty() || rest.starts_with('/') && rest[1..].parse::<u64>().is_err(),
                None => false,
            };
            let points = self.variants.keys().map(String::as_str).filter(is_row);
            let new: Vec<_> = points.filter(|point| !rows.contains(point)).collect();
            rows.extend(new);
        }
        rows
    }

    /// Each station's goodput, where it was requested; else nothing.
    pub fn stations_table(&self, variants: &[&str]) -> String {
        let has_shares = |variant: &&str| !shares(&self.variants, variant).is_empty();
        let names: Vec<_> = variants.iter().copied().filter(has_shares).collect();
        if names.is_empty() {
            return String::new();
        }
        let widest = widest(&names);
        let row = |name: &str| {
            let shares = shares(&self.variants, name).into_iter();
            let shares: Vec<_> = shares.map(|share| format!("{share:>5.2}")).collect();
            format!("{name:widest$}  {}\n", shares.join(" "))
        };
        let rows: String = names.into_iter().map(row).collect();
        format!("\nGoodput of each station while it sends, Mbit/s\n{rows}")
    }

    /// The sentences found in each variant, in order; else nothing.
    pub fn sentences(&self, variants: &[&str]) -> String {
        let of = |point: &&str| {
            self.said
                .get(*point)
                .map(|lines| format!("{point}\n    {}\n", lines.join("\n    ")))
        };
        let rows: String = self.rows(variants).iter().filter_map(of).collect();
        if rows.is_empty() { rows } else { format!("\n{rows}") }
    }

    /// One line on a variant's gain or loss over another; nothing if one of them was not measured.
    pub fn comparison(&self, variant: &str, over: &str, metric: &str) -> String {
        let value = |name: &str| self.variants.get(name)?.get(metric).copied();
        let (Some(ours), Some(theirs)) = (value(variant), value(over)) else {
            return String::new();
        };
        let (name, unit) = heading(metric);
        format!(
            "{variant} against {over}: {name} {} against {} {unit}, {:+.0}%\n",
            number(ours),
            number(theirs),
            (ours / theirs - 1.0) * 100.0
        )
    }

    pub fn verdicts(&self) -> String {
        let names: Vec<_> = self.checks.iter().map(|check| check.name.as_str()).collect();
        let widest = widest(&names);
        let line = |check: &Verdict| {
            let verdict = match (check.ok, check.kind) {
                (true, _) => "ok    ",
                (false, CheckKind::Goal) => "missed",
                (false, _) => "FAILED",
            };
            let value = check.value.map_or("not measured".into(), number);
            format!("{verdict} {:widest$}  {value:>8}  (want {})\n", check.name, check.bound)
        };
        let failed = self.failed.iter().map(|what| format!("FAILED {what}\n"));
        self.checks.iter().map(line).chain(failed).collect()
    }
}

fn widest(names: &[&str]) -> usize {
    names.iter().map(|name| name.chars().count()).max().unwrap_or(0)
}

/// A metric's name over its unit, each at most nine characters. As long as there are metrics, a line each.
fn heading(metric: &str) -> (&str, &str) {
    match metric {
        "goodput_mbit" => ("goodput", "Mbit/s"),
        "spread:goodput_mbit" => ("spread", "Mbit/s"),
        "goodput_mbit_se" => ("std error", "Mbit/s"),
        "without_mbit" => ("without", "Mbit/s"),
        "with_mbit" => ("with", "Mbit/s"),
        "jain" => ("Jain", ""),
        "retransmits" => ("retrans", ""),
        "retransmits_percent" => ("retrans", "%"),
        "busy_percent" => ("busy", "%"),
        "rtt_p50_ms" => ("RTT p50", "ms"),
        "rtt_p99_ms" => ("RTT p99", "ms"),
        "cap_segments" => ("cap", "segments"),
        "collisions_percent" => ("collided", "%"),
        "converge_p50_s" => ("p50", "s"),
        "converge_p95_s" => ("p95", "s"),
        "off_p50_percent" => ("off p50", "%"),
        "off_p95_percent" => ("off p95", "%"),
        "revert_p50_s" => ("p50", "s"),
        "revert_max_s" => ("worst", "s"),
        "false_expiries" => ("false exp", ""),
        "cpu_percent" => ("CPU", "% of one"),
        "cpu_percent_bpf" => ("of it BPF", "% of one"),
        "all_per_poll_us" => ("a poll", "us"),
        "ss_tinp_ms" => ("ss -tinp", "ms"),
        "ss_over_poll" => ("ss/poll", "CPU time"),
        "rss_mb" => ("resident", "MB"),
        "retransmits_p50" => ("retr p50", ""),
        "retransmits_max" => ("retr max", ""),
        "goodput_before_mbit" => ("before", "Mbit/s"),
        "cwnd_segments" => ("cwnd", "segments"),
        "completion_mean_s" => ("mean", "s"),
        "completion_p95_s" => ("p95", "s"),
        "instructions" => ("spent", "instr."),
        "run_time_mean_s" => ("mean", "s"),
        "run_time_max_s" => ("worst", "s"),
        "background_between_mbit" => ("between", "Mbit/s"),
        "hand_over_instructions" => ("handed", "instr."),
        "switch_instructions" => ("switch", "instr."),
        "packet_instructions" => ("packet", "instr."),
        "yield_mean_s" => ("yielded", "s"),
        "background_goodput_mbit" => ("backgr.", "Mbit/s"),
        "background_percent_of_left" => ("of left", "%"),
        "instructions_per_packet" => ("queue", "instr."),
        "path_instructions_per_packet" => ("whole way", "instr."),
        "noqueue_instructions_per_packet" => ("no queue", "instr."),
        "timer_interrupts_per_packet" => ("timer", "a packet"),
        "tree_instructions" => ("tree", "instr."),
        "scan_instructions" => ("scan", "instr."),
        "admitted_wrongly" => ("admitted", "wrongly"),
        "wakeup_p50_us" => ("p50", "us"),
        "wakeup_p99_us" => ("p99", "us"),
        "wakeup_p999_us" => ("p99.9", "us"),
        "wakeup_max_us" => ("worst", "us"),
        "steal_ms" => ("stolen", "ms"),
        "priority_p50_ms" => ("p50", "ms"),
        "priority_p99_ms" => ("p99", "ms"),
        "priority_max_ms" => ("worst", "ms"),
        "starts_per_s" => ("starts", "a second"),
        "completion_s" => ("complete", "s"),
        "stalls" => ("stalls", ""),
        "stalled_s" => ("stalled", "s"),
        "late_kb" => ("late", "kB"),
        "delay_p99_ms" => ("delay p99", "ms"),
        "cwnd_p50" => ("cwnd p50", "segments"),
        "cwnd_p95" => ("cwnd p95", "segments"),
        "demoted_ms" => ("demoted", "ms"),
        "shell_p50_ms" => ("shell p50", "ms"),
        "shell_max_ms" => ("worst", "ms"),
        "priority_tasks_max" => ("at once", "tasks"),
        "priority_cpu_percent" => ("priority", "% of one"),
        "fast_mbit" | "before_mbit" => ("before", "Mbit/s"),
        "slow_mbit" => ("slow", "Mbit/s"),
        "fast_rtt_p50_ms" => ("before", "RTT, ms"),
        "slow_rtt_p50_ms" => ("slow", "RTT, ms"),
        "down_s" => ("down", "s"),
        "late_percent" => ("late", "%"),
        "promised_percent" => ("promised", "%"),
        "others_down_s" => ("others'", "s"),
        "up_s" => ("up", "s"),
        "little_mbit" => ("one less", "Mbit/s"),
        "light_mbit" => ("of it", "Mbit/s"),
        "after_mbit" => ("after", "Mbit/s"),
        "used_s" => ("used", "s"),
        "has_s" => ("has again", "s"),
        "least_mbit" => ("least", "Mbit/s"),
        "lateness_p99_us" => ("late p99", "us"),
        "daemon_waited_percent" => ("daemon", "waited, %"),
        "refused_wrongly_percent" => ("refused", "wrongly %"),
        "arrived_of_limit" => ("arrived", "of limit"),
        "silently_exceeded" => ("silently", "exceeded"),
        "work_mbit" => ("work", "Mbit/s"),
        "upload_mbit" => ("upload", "Mbit/s"),
        "processes" => ("processes", ""),
        "processes_background" => ("backgr.", "of them"),
        "connections" => ("connect.", ""),
        "connections_as_expected" => ("in class", "of them"),
        "ratio_p25" => ("quartile", "of none"),
        "ratio_p50" => ("median", "of none"),
        "ratio_p75" => ("quartile", "of none"),
        "limits_ns_per_packet" => ("limits", "ns/packet"),
        "gw_redirect_ns" => ("gw_redirect", "ns a run"),
        "gw_admit_ns" => ("gw_admit", "ns a run"),
        "gw_leaves_ns" => ("gw_leaves", "ns a run"),
        "install_s" => ("put up", "s"),
        "up_of_limit_min" => ("up, least", "of limit"),
        "up_of_limit_max" => ("up, most", "of limit"),
        "down_of_limit_min" => ("down,", "least"),
        "down_of_limit_max" => ("down,", "most"),
        "control_is_fifo" => ("control", "is FIFO"),
        other => (other, ""),
    }
}

/// Four significant digits are more than a run can vouch for.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 1000.0 || v.fract() == 0.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(checks: Vec<Verdict>) -> ScenarioReport<'static> {
        let parameters = Box::leak(Box::new(Parameters::new(&[], &[]).expect("none")));
        let metrics = Metrics::from([("goodput_mbit".into(), 15.128), ("retransmits".into(), 4545.0)]);
        ScenarioReport {
            scenario: "cooperative",
            params: parameters,
            kernel: "6.18".into(),
            variants: BTreeMap::from([("fixed-cap/arf-lossy".into(), metrics)]),
            spread: Spread::from([(
                "fixed-cap/arf-lossy".into(),
                BTreeMap::from([("goodput_mbit".into(), (15.0, 15.25))]),
            )]),
            said: Notes::new(),
            failed: &[],
            checks,
            origin: Origin::default(),
        }
    }

    fn verdict(kind: CheckKind, ok: bool) -> Verdict {
        Verdict {
            name: "jain".into(),
            kind,
            ok,
            value: Some(0.9),
            bound: ">= 0.999".into(),
        }
    }

    #[test]
    fn only_a_bound_that_does_not_hold_makes_a_run_fail() {
        assert!(report(vec![verdict(CheckKind::Bound, true), verdict(CheckKind::Goal, false)]).holds());
        assert!(!report(vec![verdict(CheckKind::Bound, false)]).holds());
    }

    #[test]
    fn the_table_names_what_was_not_measured_and_fits_eighty_columns() {
        let columns = "goodput_mbit spread:goodput_mbit retransmits rtt_p50_ms cap_segments collisions_percent";
        let table = report(vec![]).table(&["fixed-cap/arf-lossy"], columns);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(
            table.contains("15.13") && table.contains("0.2500") && table.contains("4545") && table.contains(" -"),
            "{table}"
        );
    }

    #[test]
    fn wide_table_continues_below() {
        let columns = "goodput_mbit jain retransmits retransmits_percent rtt_p50_ms rtt_p99_ms cap_segments down_s up_s \
                       without_mbit with_mbit";
        let table = report(vec![]).table(&["fixed-cap/arf-lossy"], columns);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert_eq!(table.matches("fixed-cap/arf-lossy").count(), 2, "{table}");
        assert!(table.contains("without") && table.contains("with"), "{table}");
    }

    #[test]
    fn comparison_needs_both_numbers() {
        let mut report = report(vec![]);
        let plain = Metrics::from([("goodput_mbit".into(), 10.0)]);
        report.variants.insert("plain".into(), plain);
        assert_eq!(
            report.comparison("fixed-cap/arf-lossy", "plain", "goodput_mbit"),
            "fixed-cap/arf-lossy against plain: goodput 15.13 against 10 Mbit/s, +51%\n"
        );
        assert_eq!(report.comparison("plain", "nothing", "goodput_mbit"), "");
    }

    #[test]
    fn the_json_has_the_agreed_shape() {
        let json = serde_json::to_value(report(vec![verdict(CheckKind::Bound, false)])).expect("serializes");
        assert_eq!(json["variants"]["fixed-cap/arf-lossy"]["retransmits"], 4545.0);
        assert_eq!(json["checks"][0]["kind"], "bound");
        assert_eq!(json["checks"][0]["ok"], false);
        assert_eq!(json["kernel"], "6.18");
    }
}
