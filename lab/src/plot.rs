// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a scenario as SVG files.
//! In: what to plot (data) and what was measured. Out: files in a folder. Skips a figure of which
//! nothing was measured; never invents a point.

mod chart;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::outcome::{Curve, Metrics, Results};
use crate::scenario::{Plot, Trace};
use chart::{Bars, Chart, Line};

pub fn draw(plots: &[Plot], results: &Results, out: &Path) -> Result<Vec<PathBuf>> {
    let means = results.means();
    let mut files = Vec::new();
    for plot in plots {
        let drawn = match plot {
            Plot::Sweep {
                file,
                title,
                x,
                y,
                lines,
                levels,
            } => sweep(&out.join(format!("{file}.svg")), title, (x, *y), lines, levels, &means)?,
            Plot::Stations { file, title, variants } => {
                stations(&out.join(format!("{file}.svg")), title, variants, results)?
            }
            Plot::Timeline { of, variants } => {
                for variant in variants {
                    files.extend(timeline(out, *of, variant, results)?);
                }
                None
            }
            Plot::Tail { file, title, points } => tail(&out.join(format!("{file}.svg")), title, points, results)?,
            Plot::Distribution {
                file,
                title,
                axes,
                points,
            } => distribution(&out.join(format!("{file}.svg")), title, *axes, points, results)?,
        };
        files.extend(drawn);
    }
    Ok(files)
}

type Points = BTreeMap<String, Metrics>;

fn sweep(
    file: &Path,
    title: &str,
    (x, (metric, y)): (&str, (&str, &str)),
    lines: &[(&str, &str)],
    levels: &[(&str, &str)],
    means: &Points,
) -> Result<Option<PathBuf>> {
    let along = |prefix: &str| {
        let at = |(name, metrics): (&String, &Metrics)| {
            let x = name.strip_prefix(prefix)?.strip_prefix('/')?.parse().ok()?;
            Some((x, *metrics.get(metric)?))
        };
        let mut points: Vec<(f64, f64)> = means.iter().filter_map(at).collect();
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        points
    };
    let mut drawn: Vec<_> = lines
        .iter()
        .map(|(label, prefix)| Line {
            label: (*label).into(),
            points: along(prefix),
            dots: true,
        })
        .collect();
    let ends = drawn.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
    let (from, to) = ends.fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(x), b.max(x)));
    for (label, variant) in levels {
        if let Some(level) = means.get(*variant).and_then(|metrics| metrics.get(metric)) {
            let points = vec![(from, *level), (to, *level)];
            drawn.push(Line {
                label: (*label).into(),
                points,
                dots: false,
            });
        }
    }
    Chart {
        title,
        x,
        y,
        lines: drawn,
        in_powers: false,
    }
    .draw(file)
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
    let line = |curve: &&Curve| Line {
        label: format!("station {}", curve.station + 1),
        points: curve.points.clone(),
        dots: false,
    };
    let title = format!("{variant}: {what}");
    let file = out.join(format!("{stem}-{}.svg", variant.replace('/', "-")));
    let lines = curves.iter().map(line).collect();
    Chart {
        title: &title,
        x: "time, s",
        y,
        lines,
        in_powers: false,
    }
    .draw(&file)
}

fn stations(file: &Path, title: &str, variants: &[String], results: &Results) -> Result<Option<PathBuf>> {
    let means = results.means();
    let mut groups = Vec::new();
    for variant in variants {
        let share = |station| means.get(&format!("{variant}/{station}"))?.get("goodput_mbit").copied();
        let shares: Vec<f64> = (1..).map_while(share).collect();
        if !shares.is_empty() {
            groups.push((variant.clone(), shares));
        }
    }
    Bars {
        title,
        x: "station",
        y: "goodput, Mbit/s",
        groups,
    }
    .draw(file)
}

fn distribution(
    file: &Path,
    title: &str,
    (x, y): (&str, &str),
    points: &[String],
    results: &Results,
) -> Result<Option<PathBuf>> {
    let line = |point: &String| {
        let mut sorted: Vec<f64> = results.samples.get(point)?.clone();
        sorted.sort_by(f64::total_cmp);
        let share = |rank: usize| 100.0 * rank as f64 / sorted.len() as f64;
        let mut stairs = vec![(0.0, 0.0)];
        for (rank, value) in sorted.iter().enumerate().filter(|(_, value)| value.is_finite()) {
            stairs.extend([(*value, share(rank)), (*value, share(rank + 1))]);
        }
        Some(Line {
            label: point.clone(),
            points: stairs,
            dots: false,
        })
    };
    let lines = points.iter().filter_map(line).collect();
    Chart {
        title,
        x,
        y,
        lines,
        in_powers: false,
    }
    .draw(file)
}

fn tail(file: &Path, title: &str, points: &[String], results: &Results) -> Result<Option<PathBuf>> {
    let line = |point: &String| {
        let tail = results.wakeups.get(point)?.tail();
        let in_powers = |(upper_us, count): (f64, u64)| (upper_us.max(1.0).log10(), (count as f64).log10());
        Some(Line {
            label: point.clone(),
            points: tail.into_iter().map(in_powers).collect(),
            dots: false,
        })
    };
    let lines = points.iter().filter_map(line).collect();
    Chart {
        title,
        x: "late by, us",
        y: "wake-ups so late or later",
        lines,
        in_powers: true,
    }
    .draw(file)
}
