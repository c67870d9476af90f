// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The distribution as a picture: how many of the wake-ups were later than what. Both axes are logarithmic, so that the
//! one in ten thousand is seen as well as the usual one.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::distribution::{Distribution, QUANTILES, duration};
use crate::commands::chart::{Area, COLOURS, save};

const SIZE: (u32, u32) = (900, 520);
const CURVE: RGBColor = COLOURS[0];
const MARKS: RGBColor = COLOURS[3];

pub fn draw(distribution: &Distribution, title: &str, path: &Path) -> Result<()> {
    save(path, SIZE, |root| render(distribution, title, root))
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

fn render(distribution: &Distribution, title: &str, root: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let points = later_than(distribution);
    let (first_us, last_us) = match (points.first(), points.last()) {
        (Some(first), Some(last)) => (first.0 / 2.0, last.0 * 3.0),
        _ => return Err("nothing was measured".into()),
    };
    let least = 0.5 / distribution.count() as f64;
    let mut chart = ChartBuilder::on(root)
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
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_falls_from_all_to_the_last_one() {
        let mut distribution = Distribution::default();
        for us in [10, 10, 10, 1000] {
            distribution.add(us * 1000);
        }
        let shares: Vec<f64> = later_than(&distribution).iter().map(|point| point.1).collect();
        assert_eq!(shares, [1.0, 0.25, 0.25]);
    }
}
