// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two kinds of chart, drawn alike: lines and grouped bars, legend at the right.
//! Input: labelled numbers. Output: an SVG file. Colours are Okabe and Ito's, which people with any kind of
//! colour vision can tell apart.

use std::error::Error;
use std::ops::Range;
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
    pub axes: (&'a str, &'a str),
    pub kind: ChartKind,
    pub lines: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum ChartKind {
    Lines,
    /// Both axes have decimal logarithms, labelled with the numbers themselves.
    Powers,
    /// A bar at each point of a line instead, at 1, 2...
    Bars,
}

pub struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
    /// Mark every point: it was measured by itself, not sampled in passing.
    pub dots: bool,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Line {
    pub fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        let (label, dots) = (label.into(), false);
        Self { label, points, dots }
    }
}

impl Chart<'_> {
    /// Draws no file without points.
    pub fn draw(&self, file: &Path) -> Result<Option<PathBuf>> {
        if self.is_empty() {
            return Ok(None);
        }
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        self.paint(&root).map_err(|error| anyhow!("{error}"))?;
        Ok(Some(file.into()))
    }

    /// The same as text.
    pub fn svg(&self) -> Result<Option<String>> {
        if self.is_empty() {
            return Ok(None);
        }
        let mut text = String::new();
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        self.paint(&root).map_err(|error| anyhow!("{error}"))?;
        drop(root);
        Ok(Some(text))
    }

    fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    fn paint(&self, root: &Area) -> Result<(), Box<dyn Error>> {
        root.fill(&WHITE)?;
        let (area, side) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        legend(&side, &self.lines)?;
        let (across, up) = self.ranges();
        let places = across.end as usize;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(60)
            .build_cartesian_2d(across, up)?;
        let label = if self.kind == ChartKind::Powers { power } else { plain };
        let place = |place: &f64| format!("{place:.0}");
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_desc(self.axes.0)
            .y_desc(self.axes.1)
            .label_style(("sans-serif", 14));
        match self.kind {
            // A single place needs no number.
            ChartKind::Bars if places == 1 => mesh.disable_x_mesh().x_labels(0),
            ChartKind::Bars => mesh.disable_x_mesh().x_labels(places + 1).x_label_formatter(&place),
            _ => mesh.x_label_formatter(&label).y_label_formatter(&label),
        };
        mesh.draw()?;
        let width = 0.8 / self.lines.len() as f64;
        for (number, (line, colour)) in self.lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let points = line.points.iter().copied();
            if self.kind == ChartKind::Bars {
                let bar = |(place, height)| {
                    let left = place - 0.4 + number as f64 * width;
                    Rectangle::new([(left, 0.0), (left + width * 0.92, height)], colour.filled())
                };
                chart.draw_series(points.map(bar))?;
                continue;
            }
            chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            let dots = points.filter(|_| line.dots);
            chart.draw_series(dots.map(|point| Circle::new(point, 4, colour.filled())))?;
        }
        Ok(root.present()?)
    }

    fn ranges(&self) -> (Range<f64>, Range<f64>) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let top = points().map(|(_, y)| *y).fold(0.0, f64::max).max(1e-9) * 1.05;
        let left = points().map(|(x, _)| *x).fold(f64::MAX, f64::min).min(2.0);
        let right = points().map(|(x, _)| *x).fold(left + 1.0, f64::max);
        let across = match self.kind {
            ChartKind::Bars => 0.5..points().map(|(x, _)| *x).fold(0.0, f64::max) + 0.5,
            _ => left..right,
        };
        (across, 0.0..top)
    }
}

/// `2.5`, but `2` and not `2.0`.
fn plain(value: &f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The number of this logarithm, to a digit or two.
fn power(logarithm: &f64) -> String {
    let value = 10_f64.powf(*logarithm);
    let unit = 10_f64.powf((logarithm - 1.0).floor());
    plain(&((value / unit).round() * unit))
}

fn legend(side: &Area, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    for (index, (line, colour)) in lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let y = 54 + 24 * index as i32;
        side.draw(&Rectangle::new([(6, y - 3), (28, y + 1)], colour.filled()))?;
        side.draw(&Text::new(line.label.clone(), (36, y - 8), ("sans-serif", 14)))?;
    }
    Ok(())
}
