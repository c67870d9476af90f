// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a scenario as SVG files. Input: what to plot (data) and the measurements. Output: files in a folder.
//! Skips a figure without measurements; never invents a point.

mod chart;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::outcome::{Curve, Metrics, Results, shares};
use crate::scenario::{Plot, Trace};
use chart::{Chart, ChartKind, Line};

/// More have no place in the legend.
const MOST_LINES: usize = 14;

pub fn draw(plots: &[Plot], results: &Results, out: &Path) -> Result<Vec<PathBuf>> {
    let means = results.means();
    let mut files = Vec::new();
    for plot in plots {
        let (file, title, axes, kind, lines): (&str, &str, _, _, _) = match plot {
            Plot::Sweep {
                file,
                title,
                x,
                y,
                lines,
                levels,
            } => {
                let lines = sweep(y.0, lines, levels, &means);
                (file, title, (*x, y.1), ChartKind::Lines, lines)
            }
            Plot::Stations { file, title, variants } => {
                let lines = variants
                    .iter()
                    .filter_map(|variant| stations(variant, &means))
                    .collect();
                (file, title, ("station", "goodput, Mbit/s"), ChartKind::Bars, lines)
            }
            Plot::Timeline { of, variants } => {
                for variant in variants {
                    files.extend(timeline(out, *of, variant, results)?);
                }
                continue;
            }
            Plot::Tail { file, title, points } => {
                let lines = points.iter().filter_map(|point| tail(point, results)).collect();
                let axes = ("late by, us", "wake-ups so late or later");
                (file, title, axes, ChartKind::Powers, lines)
            }
            Plot::Distribution {
                file,
                title,
                axes,
                points,
            } => {
                let lines = points.iter().filter_map(|point| distribution(point, results)).collect();
                (file, title, *axes, ChartKind::Lines, lines)
            }
        };
        let chart = Chart {
            title,
            axes,
            kind,
            lines,
        };
        files.extend(chart.draw(&out.join(format!("{file}.svg")))?);
    }
    Ok(files)
}

/// As text: the first of the plots that takes no more than these numbers, or else a bar for each of the rows.
pub fn of_numbers(
    plots: &[Plot],
    points: &BTreeMap<String, Metrics>,
    metric: &str,
    rows: &[&str],
) -> Result<Option<String>> {
    for plot in plots {
        let (title, axes, kind, lines): (&str, _, _, Vec<Line>) = match plot {
            Plot::Sweep {
                title,
                x,
                y,
                lines,
                levels,
                ..
            } => (title, (*x, y.1), ChartKind::Lines, sweep(y.0, lines, levels, points)),
            Plot::Stations { title, variants, .. } => {
                let lines = variants
                    .iter()
                    .filter_map(|variant| stations(variant, points))
                    .collect();
                (title, ("station", "goodput, Mbit/s"), ChartKind::Bars, lines)
            }
            _ => continue,
        };
        let chart = Chart {
            title,
            axes,
            kind,
            lines,
        };
        // What has more lines is no picture of the whole.
        if chart.lines.len() <= MOST_LINES
            && let Some(svg) = chart.svg()?
        {
            return Ok(Some(svg));
        }
    }
    let bar = |row: &&str| Some(Line::new(*row, vec![(1.0, *points.get(*row)?.get(metric)?)]));
    let lines: Vec<Line> = rows.iter().filter_map(bar).collect();
    let tells = (2..=MOST_LINES).contains(&lines.len()) && lines.iter().any(|line| line.points[0].1 > 0.0);
    let chart = Chart {
        title: metric,
        axes: ("", metric),
        kind: ChartKind::Bars,
        lines,
    };
    if tells { chart.svg() } else { Ok(None) }
}

type Points = BTreeMap<String, Metrics>;

fn sweep(metric: &str, lines: &[(&str, String)], levels: &[(&str, &str)], means: &Points) -> Vec<Line> {
    let along = |prefix: &str| {
        let at = |(name, metrics): (&String, &Metrics)| {
            let x = name.strip_prefix(prefix)?.strip_prefix('/')?.parse().ok()?;
            Some((x, *metrics.get(metric)?))
        };
        let mut points: Vec<(f64, f64)> = means.iter().filter_map(at).collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        points
    };
    let dotted = |(label, prefix): &(&str, String)| Line {
        dots: true,
        ..Line::new(*label, along(prefix))
    };
    let mut drawn: Vec<_> = lines.iter().map(dotted).collect();
    let ends = drawn.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
    let (from, to) = ends.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    for (label, variant) in levels {
        if let Some(level) = means.get(*variant).and_then(|metrics| metrics.get(metric)) {
            drawn.push(Line::new(*label, vec![(from, *level), (to, *level)]));
        }
    }
    drawn
}

fn timeline(out: &Path, of: Trace, variant: &str, results: &Results) -> Result<Option<PathBuf>> {
    let (stem, what, y) = match of {
        Trace::Goodput => ("goodput", "goodput of each station", "goodput, Mbit/s"),
        Trace::Cwnd => ("cwnd", "congestion window of each station", "cwnd, segments"),
        Trace::Cap => ("cap", "cap of each station", "cap, segments"),
    };
    let curves = results.traces.get(variant).map(Vec::as_slice).unwrap_or_default();
    let mut curves: Vec<&Curve> = curves.iter().filter(|curve| curve.of == of).collect();
    curves.sort_by_key(|curve| curve.station);
    let line = |curve: &&Curve| Line::new(format!("station {}", curve.station + 1), curve.points.clone());
    let title = format!("{variant}: {what}");
    let file = out.join(format!("{stem}-{}.svg", variant.replace('/', "-")));
    let chart = Chart {
        title: &title,
        axes: ("time, s", y),
        kind: ChartKind::Lines,
        lines: curves.iter().map(line).collect(),
    };
    chart.draw(&file)
}

fn stations(variant: &str, means: &Points) -> Option<Line> {
    let bars: Vec<_> = (1_u32..).map(f64::from).zip(shares(means, variant)).collect();
    (!bars.is_empty()).then(|| Line::new(variant, bars))
}

fn distribution(point: &str, results: &Results) -> Option<Line> {
    let mut sorted = results.samples.get(point)?.clone();
    sorted.sort_by(f64::total_cmp);
    let share = |rank: usize| 100.0 * rank as f64 / sorted.len() as f64;
    let mut stairs = vec![(0.0, 0.0)];
    for (rank, value) in sorted.iter().enumerate().filter(|(_, value)| value.is_finite()) {
        stairs.extend([(*value, share(rank)), (*value, share(rank + 1))]);
    }
    Some(Line::new(point, stairs))
}

fn tail(point: &str, results: &Results) -> Option<Line> {
    let tail = results.wakeups.get(point)?.tail();
    let in_powers = |(upper_us, count): (f64, u64)| (upper_us.max(1.0).log10(), (count as f64).log10());
    Some(Line::new(point, tail.into_iter().map(in_powers).collect()))
}
