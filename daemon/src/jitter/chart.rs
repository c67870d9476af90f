// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The distribution as a picture: how many of the wake-ups were later than what. Both axes are logarithmic, so that the
//! one in ten thousand is seen as well as the usual one.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::distribution::Distribution;
use super::terminal::duration;

const SIZE: (u32, u32) = (900, 520);
/// Okabe and Ito's blue and vermilion, told apart with every kind of colour vision.
const CURVE: RGBColor = RGBColor(0, 114, 178);
const MARKS: RGBColor = RGBColor(213, 94, 0);
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

pub fn draw(distribution: &Distribution, title: &str, path: &Path) -> Result<()> {
    let mut svg = String::new();
    render(distribution, title, &mut svg).map_err(|error| anyhow!("{error}"))?;
    std::fs::write(path, svg)?;
    Ok(())
}

/// (microseconds, share of the wake-ups that were later): down in steps, from all to the last one.
fn later_than(distribution: &Distribution) -> Vec<(f64, f64)> {
    let all = distribution.count() as f64;
    let mut left = distribution.count();
    let mut points = Vec::new();
    for (upper_us, count) in distribution.steps() {
        points.push((upper_us, left as f64 / all));
        left -= count;
        if left > 0 {
            points.push((upper_us, left as f64 / all));
        }
    }
    points
}

fn render(distribution: &Distribution, title: &str, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let points = later_than(distribution);
    let (first_us, last_us) = match (points.first(), points.last()) {
        (Some(first), Some(last)) => (first.0 / 2.0, last.0 * 3.0),
        _ => return Err("nothing was measured".into()),
    };
    let least = 0.5 / distribution.count() as f64;
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 15))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((first_us..last_us).log_scale(), (least..1.5).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("late by")
        .y_desc("share of wake-ups that are later")
        .x_label_formatter(&|us| duration(*us))
        .y_label_formatter(&|share| format!("{share}"))
        .label_style(("sans-serif", 12))
        .draw()?;
    chart.draw_series(LineSeries::new(points, CURVE.stroke_width(2)))?;
    for (name, quantile) in QUANTILES.into_iter().chain([("max", 1.0)]) {
        let us = distribution.quantile_us(quantile);
        let share = (1.0 - quantile).max(1.0 / distribution.count() as f64);
        let mark = EmptyElement::at((us, share))
            + Circle::new((0, 0), 4, MARKS.filled())
            + Text::new(
                format!("{name} {}", duration(us)),
                (8, -12),
                ("sans-serif", 13).into_font(),
            );
        chart.draw_series([mark])?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_falls_from_all_to_the_last_one() {
        let mut distribution = Distribution::new();
        for us in [10, 10, 10, 1000] {
            distribution.add(us * 1000);
        }
        let shares: Vec<f64> = later_than(&distribution).iter().map(|point| point.1).collect();
        assert_eq!(shares, [1.0, 0.25, 0.25]);
    }
}
