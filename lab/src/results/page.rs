// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page of one result, and the index of all.
//! Input: a result as it is kept, and its scenario where the lab has it. Output: Markdown, and a plot as SVG.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Result;

use super::stored::Stored;
use crate::parameters::{Parameter, Parameters, Value};
use crate::plot;
use crate::scenario::{CheckKind, Plan, Scenario};
use crate::scenarios;

pub const PLOT: &str = "plot.svg";
/// More columns are rows.
const MOST_COLUMNS: usize = 12;

pub struct Page<'a> {
    name: &'a str,
    result: &'a Stored,
    /// What the lab knows of it, where it is the lab's.
    scenario: Option<(&'static Scenario, Parameters, Plan)>,
}

/// Of the index.
pub struct IndexRow {
    name: String,
    about: String,
    from: String,
    verdicts: String,
}

impl<'a> Page<'a> {
    pub fn new(name: &'a str, result: &'a Stored) -> Result<Self> {
        let known = scenarios::all()
            .into_iter()
            .find(|scenario| scenario.name == result.scenario);
        let scenario = match known {
            Some(scenario) => {
                let parameters = as_they_were(scenario, result)?;
                let plan = scenario.plan.at(&parameters)?;
                Some((scenario, parameters, plan))
            }
            None => None,
        };
        Ok(Self { name, result, scenario })
    }

    pub fn plot(&self) -> Result<Option<String>> {
        let rows = self.rows();
        let columns = self.columns(&rows);
        let plots = self.scenario.as_ref().map_or(&[][..], |(_, _, plan)| &plan.plots);
        match columns.first() {
            Some(metric) => plot::of_numbers(plots, &self.result.variants, metric, &rows),
            None => Ok(None),
        }
    }

    pub fn text(&self, has_plot: bool) -> String {
        let origin = &self.result.origin;
        let mut text = format!(
            "<!-- Written by `giveway-lab results`: change that, or result.json. -->\n\n# {}\n\n",
            self.name
        );
        for sentence in [self.about(), origin.about.clone(), origin.note.clone()]
            .into_iter()
            .flatten()
        {
            let _ = writeln!(text, "{sentence}\n");
        }
        if let Some(command) = self.command() {
            let _ = writeln!(text, "    {command}\n");
        }
        let kernel = if self.result.kernel.is_empty() {
            "not recorded"
        } else {
            &self.result.kernel
        };
        let _ = writeln!(
            text,
            "Measured on {} on {}. Code: {}. Kernel: {kernel}.\n",
            origin.date, origin.machine, origin.commit
        );
        if has_plot {
            let _ = writeln!(text, "![{}]({PLOT})\n", self.name);
        }
        text.push_str(&self.table());
        text.push_str(&self.checks());
        let raw = match &origin.raw {
            Some(how) => format!("`result.json` has all numbers; `raw.tar.xz` has raw data: {how}, no plots."),
            None => "`result.json` has all numbers; raw data was not kept.".into(),
        };
        let _ = writeln!(text, "{raw}");
        text
    }

    pub fn row(&self) -> IndexRow {
        IndexRow {
            name: self.name.to_owned(),
            about: self.result.origin.about.clone().or(self.about()).unwrap_or_default(),
            from: format!("{}, {}", self.result.origin.date, self.result.origin.commit),
            verdicts: self.verdicts().unwrap_or_default(),
        }
    }

    fn about(&self) -> Option<String> {
        self.scenario.as_ref().map(|(scenario, ..)| sentence(scenario.about))
    }

    /// What would make it again.
    fn command(&self) -> Option<String> {
        if self.result.origin.command.is_some() {
            return self.result.origin.command.clone();
        }
        let (scenario, parameters, _) = self.scenario.as_ref()?;
        let known = scenario.all_parameters();
        let defaults = Parameters::new(&known, &[]).ok()?.settings();
        let own = parameters.settings();
        let set = own
            .iter()
            .filter(|setting| !defaults.contains(setting))
            .map(|setting| format!(" --set {setting}"));
        Some(format!(
            "sudo giveway-lab run {}{}",
            scenario.name,
            set.collect::<String>()
        ))
    }

    /// The variants and points, without those of single stations.
    fn rows(&self) -> Vec<&str> {
        let all = &self.result.variants;
        let is_station = |name: &str| {
            let Some((above, number)) = name.rsplit_once('/') else {
                return false;
            };
            let has_all =
                |metrics: &crate::outcome::Metrics| all[name].keys().all(|metric| metrics.contains_key(metric));
            number.parse::<u32>().is_ok() && all.get(above).is_some_and(has_all)
        };
        all.keys()
            .map(String::as_str)
            .filter(|name| !is_station(name))
            .collect()
    }

    /// Those that the scenario shows; else all.
    fn columns(&self, rows: &[&str]) -> Vec<String> {
        let measured: BTreeSet<&String> = rows.iter().flat_map(|row| self.result.variants[*row].keys()).collect();
        let shown = self
            .scenario
            .as_ref()
            .map(|(_, _, plan)| plan.columns.split_whitespace());
        let shown: Vec<String> = shown
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .filter(|column| measured.contains(column))
            .collect();
        if shown.is_empty() {
            measured.into_iter().cloned().collect()
        } else {
            shown
        }
    }

    fn table(&self) -> String {
        let rows = self.rows();
        let columns = self.columns(&rows);
        let cell = |row: &str, metric: &str| {
            self.result.variants[row]
                .get(metric)
                .map_or(String::new(), |value| number(*value))
        };
        let has_any = |row: &&str| {
            columns
                .iter()
                .any(|metric| self.result.variants[*row].contains_key(metric))
        };
        let rows: Vec<&str> = rows.into_iter().filter(has_any).collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let table = |corner: &str, rows: &[&str], columns: &[&str], cell: &dyn Fn(&str, &str) -> String| {
            let named = columns.iter().map(|column| format!("`{column}`"));
            let mut text = line(std::iter::once(corner.to_owned()).chain(named).collect());
            text.push_str(&format!("|---{}|\n", "|---:".repeat(columns.len())));
            for row in rows {
                let cells = columns.iter().map(|column| cell(row, column));
                text.push_str(&line(std::iter::once(format!("`{row}`")).chain(cells).collect()));
            }
            text + "\n"
        };
        if columns.len() > MOST_COLUMNS && rows.len() <= MOST_COLUMNS {
            return table("metric", &columns, &rows, &|metric, row| cell(row, metric));
        }
        table("variant", &rows, &columns, &cell)
    }

    fn verdicts(&self) -> Option<String> {
        let of = |kind| {
            let all = self.result.checks.iter().filter(move |check| check.kind == kind);
            (all.clone().filter(|check| check.ok).count(), all.count())
        };
        let ((bounds, of_bounds), (goals, of_goals)) = (of(CheckKind::Bound), of(CheckKind::Goal));
        let parts = [("bounds", bounds, of_bounds), ("goals", goals, of_goals)];
        let told = parts.into_iter().filter(|(_, _, of)| *of > 0);
        let told: Vec<String> = told
            .map(|(what, met, of)| format!("{met} of {of} {what} met"))
            .collect();
        (!told.is_empty()).then(|| told.join(", "))
    }

    fn checks(&self) -> String {
        let Some(verdicts) = self.verdicts() else {
            return String::new();
        };
        let missed: Vec<_> = self.result.checks.iter().filter(|check| !check.ok).collect();
        if missed.is_empty() {
            return format!("{verdicts}.\n\n");
        }
        let mut text = format!("{verdicts}. Missed:\n\n| what | kind | measured | required |\n|---|---|---:|---|\n");
        for check in missed {
            let kind = if check.kind == CheckKind::Goal { "goal" } else { "bound" };
            let value = check.value.map_or("nothing".into(), number);
            let _ = writeln!(text, "| `{}` | {kind} | {value} | {} |", check.name, check.bound);
        }
        text + "\n"
    }
}

pub fn index(rows: &[IndexRow]) -> String {
    let mut text = "<!-- Written by `giveway-lab results`. -->\n\n# Results\n\nThe newest complete result of each scenario of \
        the lab, and of what else was measured. A folder has `result.json` (all numbers), a page, a plot where one helps, and \
        `raw.tar.xz` (raw data, thinned) where some was kept. Git's history has older ones.\n\n    \
        sudo giveway-lab run SCENARIO --out out/SCENARIO\n    giveway-lab results add out/SCENARIO\n\n\
        | result | what | measured | bounds |\n|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let _ = writeln!(
            text,
            "| [{0}]({0}/README.md) | {1} | {2} | {3} |",
            row.name, row.about, row.from, row.verdicts
        );
    }
    text
}

/// The parameters that the result had and the scenario still has.
fn as_they_were(scenario: &Scenario, result: &Stored) -> Result<Parameters> {
    let known: Vec<Parameter> = scenario.all_parameters();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::Array(words) => Some(
            words
                .iter()
                .filter_map(|word| word.as_str())
                .collect::<Vec<_>>()
                .join(","),
        ),
        serde_json::Value::String(word) => Some(word.clone()),
        serde_json::Value::Null => None,
        other => Some(other.to_string()),
    };
    let settings = result.params.iter().filter_map(|(name, value)| {
        let is_default =
            known.iter().find(|parameter| parameter.name == name)?.kind.default() == Value::List(Vec::new());
        let setting = text(value).filter(|text| !(is_default && text.is_empty()))?;
        Some(format!("{name}={setting}"))
    });
    // A value that is not accepted any more is not what would be run now.
    let accepted = settings.filter(|setting| Parameters::new(&known, std::slice::from_ref(setting)).is_ok());
    Parameters::new(&known, &accepted.collect::<Vec<_>>())
}

/// With a capital letter and a full stop.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string())
        .unwrap_or_default();
    let stop = if words.ends_with('.') { "" } else { "." };
    format!("{first}{}{stop}", letters.as_str())
}

/// Four significant digits, no exponent.
fn number(value: f64) -> String {
    let digits = value.abs().log10().floor();
    let decimals = if value == 0.0 {
        0
    } else {
        (3.0 - digits).clamp(0.0, 6.0) as usize
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_and_no_empty_decimals() {
        let written = [
            (0.0, "0"),
            (2.0, "2"),
            (0.012_345, "0.01235"),
            (18.514, "18.51"),
            (1_464.6, "1465"),
            (-0.5, "-0.5"),
        ];
        for (value, text) in written {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_description_becomes_a_sentence() {
        assert_eq!(sentence("packets wait"), "Packets wait.");
        assert_eq!(sentence("Packets wait."), "Packets wait.");
    }
}
