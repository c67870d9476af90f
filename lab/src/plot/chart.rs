// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two kinds of chart, drawn alike: lines and grouped bars, legend at the right.
//! In: labelled numbers. Out: an SVG file. Colours are Okabe and Ito's, which people with any kind of
//! colour vision can tell apart.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (860, 440);
const LEGEND_WIDTH: u32 = 190;
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(150, 140, 20),
];

pub struct Chart<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub lines: Vec<Line>,
    /// Both axes are of decimal logarithms, and labelled with what these are of.
    pub in_powers: bool,
}

pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
    /// Mark every point: it was measured by itself, not sampled in passing.
    pub dots: bool,
}

pub struct Bars<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// A label and one bar per place on the x axis, which counts from 1.
    pub groups: Vec<(String, Vec<f64>)>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Chart<'_> {
    pub fn draw(&self, file: &Path) -> Result<Option<PathBuf>> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        if points().next().is_none() {
            return Ok(None);
        }
        let top = points().map(|(_, y)| *y).fold(0.0, f64::max).max(1e-9) * 1.05;
        let left = points().map(|(x, _)| *x).fold(f64::MAX, f64::min).min(2.0);
        let right = points().map(|(x, _)| *x).fold(left + 1.0, f64::max);
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        self.paint(&root, left..right, top)
            .map_err(|error| anyhow!("{error}"))?;
        Ok(Some(file.into()))
    }

    fn paint(&self, root: &Area, across: std::ops::Range<f64>, top: f64) -> Result<(), Box<dyn std::error::Error>> {
        root.fill(&WHITE)?;
        let (area, side) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        let labels = self.lines.iter().map(|line| line.label.as_str());
        legend(&side, labels)?;
        let mut chart = builder(&area, self.title).build_cartesian_2d(across, 0.0..top)?;
        let label = if self.in_powers { power } else { plain };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .label_style(("sans-serif", 14))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            let dots = line.points.iter().filter(|_| line.dots);
            chart.draw_series(dots.map(|point| Circle::new(*point, 4, colour.filled())))?;
        }
        root.present()?;
        Ok(())
    }
}

impl Bars<'_> {
    pub fn draw(&self, file: &Path) -> Result<Option<PathBuf>> {
        if self.groups.is_empty() {
            return Ok(None);
        }
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        self.paint(&root).map_err(|error| anyhow!("{error}"))?;
        Ok(Some(file.into()))
    }

    fn paint(&self, root: &Area) -> Result<(), Box<dyn std::error::Error>> {
        root.fill(&WHITE)?;
        let (area, side) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        legend(&side, self.groups.iter().map(|(label, _)| label.as_str()))?;
        let places = self.groups.iter().map(|(_, bars)| bars.len()).max().unwrap_or(0);
        let bars = self.groups.iter().flat_map(|(_, bars)| bars);
        let top = bars.copied().fold(0.0, f64::max).max(1e-9) * 1.05;
        let across = 0.5..places as f64 + 0.5;
        let mut chart = builder(&area, self.title).build_cartesian_2d(across, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(places + 1)
            .x_label_formatter(&|place| format!("{place:.0}"))
            .x_desc(self.x)
            .y_desc(self.y)
            .label_style(("sans-serif", 14))
            .draw()?;
        let width = 0.8 / self.groups.len() as f64;
        for (group, (_, bars)) in self.groups.iter().enumerate() {
            let colour = COLOURS[group % COLOURS.len()];
            let rectangle = |(place, height): (usize, &f64)| {
                let left = place as f64 + 0.6 + group as f64 * width;
                Rectangle::new([(left, 0.0), (left + width * 0.92, *height)], colour.filled())
            };
            chart.draw_series(bars.iter().enumerate().map(rectangle))?;
        }
        root.present()?;
        Ok(())
    }
}

/// `2.5`, but `2` and not `2.0`.
fn plain(value: &f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What this is the logarithm of, to a digit or two.
fn power(logarithm: &f64) -> String {
    let value = 10_f64.powf(*logarithm);
    let unit = 10_f64.powf((logarithm - 1.0).floor());
    plain(&((value / unit).round() * unit))
}

fn builder<'a, 'b>(area: &'a Area<'b>, title: &str) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(60);
    builder
}

fn legend<'a>(side: &Area, labels: impl Iterator<Item = &'a str>) -> Result<(), Box<dyn std::error::Error>> {
    for (index, (label, colour)) in labels.zip(COLOURS.iter().cycle()).enumerate() {
        let y = 54 + 24 * index as i32;
        side.draw(&Rectangle::new([(6, y - 3), (28, y + 1)], colour.filled()))?;
        side.draw(&Text::new(label.to_owned(), (36, y - 8), ("sans-serif", 14)))?;
    }
    Ok(())
}
