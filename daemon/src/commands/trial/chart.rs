// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trial as a picture: for each question a point a pair, and the interval of all of them, on one logarithmic scale.

use std::error::Error;
use std::path::Path;

use anyhow::Result;
use giveway_engine::trial::TrialVerdict;
use plotters::prelude::*;

use super::TrialReport;
use crate::commands::chart::{Area, COLOURS, save};

const WIDTH: u32 = 900;
const ROW: u32 = 60;
const AROUND: u32 = 110;
const SHOWN: RGBColor = COLOURS[0];
const NOT_SHOWN: RGBColor = COLOURS[6];
const PAIRS: RGBColor = COLOURS[4];

pub fn draw(report: &TrialReport, path: &Path) -> Result<()> {
    let size = (WIDTH, AROUND + ROW * report.answers.len() as u32);
    save(path, size, |root| render(report, root))
}

fn render(report: &TrialReport, root: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let all = report.answers.iter().flat_map(|answer| answer.ratios.iter().copied());
    // What a few pairs differ by beyond this is drawn at the edge.
    let reach = all.map(|ratio| ratio.ln().abs()).fold(0.1, f64::max).min(4.0);
    let rows = report.answers.len() as f64;
    let caption = format!(
        "{} pairs of {} s: with giveway, compared with without it",
        report.intervals.len() / 2,
        report.interval_s
    );
    let mut chart = ChartBuilder::on(root)
        .caption(caption, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(150)
        .build_cartesian_2d(-reach..reach, -0.5..rows - 0.5)?;
    let name = |row: &f64| {
        let is_row = (row - row.round()).abs() < 1e-6;
        let answer = report.answers.iter().rev().nth(row.round().max(0.0) as usize);
        answer
            .filter(|_| is_row)
            .map_or(String::new(), |answer| answer.question.name.to_owned())
    };
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("ratio")
        .x_label_formatter(&|ln| format!("{:.2}", ln.exp()))
        .y_labels(2 * report.answers.len())
        .y_label_formatter(&name)
        .label_style(("sans-serif", 12))
        .draw()?;
    chart.draw_series([PathElement::new(vec![(0.0, -0.5), (0.0, rows - 0.5)], BLACK)])?;
    for (row, answer) in report.answers.iter().rev().enumerate() {
        let row = row as f64;
        let at = |ratio: f64| ratio.ln().clamp(-reach, reach);
        let points = answer
            .ratios
            .iter()
            .map(|ratio| Circle::new((at(*ratio), row + 0.2), 3, PAIRS.filled()));
        chart.draw_series(points)?;
        let finding = &answer.finding;
        let (Some(ratio), Some((low, high))) = (finding.ratio, finding.low.zip(finding.high)) else {
            continue;
        };
        let colour = match finding.verdict {
            TrialVerdict::NoDifference => NOT_SHOWN,
            TrialVerdict::Better | TrialVerdict::Worse => SHOWN,
        };
        let line = PathElement::new(
            vec![(at(low), row - 0.1), (at(high), row - 0.1)],
            colour.stroke_width(3),
        );
        chart.draw_series([line])?;
        chart.draw_series([Circle::new((at(ratio), row - 0.1), 5, colour.filled())])?;
    }
    Ok(())
}
