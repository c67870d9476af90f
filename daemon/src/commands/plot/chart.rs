// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The picture: three panels one above the other, the same time under all of them.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

use super::series::{PlotData, SeriesPoint, SocketSeries};
use crate::commands::chart::{Area, COLOURS, save};

const SIZE: (u32, u32) = (1000, 960);

type Read = fn(&SeriesPoint) -> f64;

/// What each panel shows and how it is read off a sample. The first one has the cap too, and a legend.
const PANELS: [(&str, Read); 3] = [
    ("cwnd (line) and cap (grey), segments; x: retransmission", |s| s.cwnd),
    ("smoothed RTT, ms", |s| s.rtt_ms),
    ("delivery rate, Mbit/s", |s| s.mbit),
];

pub fn draw(log: &PlotData, path: &Path) -> Result<()> {
    save(path, SIZE, |root| {
        let root = root.titled(&log.title, ("sans-serif", 18))?;
        let areas = root.split_by_breakpoints::<i32, i32, _, _>([], [400, 660]);
        (0..)
            .zip(&areas)
            .try_for_each(|(number, area)| draw_panel(log, number, area))
    })
}

fn draw_panel(log: &PlotData, number: usize, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let (is_first, (title, value)) = (number == 0, PANELS[number]);
    let samples = || log.sockets.iter().flat_map(|s| &s.samples);
    let top = samples().map(value).fold(0.0, f64::max).max(1e-3) * 1.1;
    let end = log.seconds.max(0.1);
    // The library reckons places on the picture in 32 bits, and a record may say anything.
    let inside = |(at_s, value): (f64, f64)| (at_s.clamp(0.0, end), value.clamp(0.0, top));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("seconds")
        .label_style(("sans-serif", 12))
        .draw()?;
    for (socket, colour) in log.sockets.iter().zip(COLOURS) {
        if is_first {
            for stretch in cap_stretches(socket) {
                let stretch = stretch.into_iter().map(inside);
                chart.draw_series(LineSeries::new(stretch, RGBColor(150, 150, 150).stroke_width(2)))?;
            }
            let cross = |at: &f64| Cross::new(inside((*at, value_at(socket, *at))), 3, colour);
            chart.draw_series(socket.retransmits.iter().map(cross))?;
        }
        let line = socket.samples.iter().map(|s| inside((s.at_s, value(s))));
        let drawn = chart.draw_series(LineSeries::new(line, colour.stroke_width(1)))?;
        if is_first {
            drawn
                .label(&socket.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
        }
    }
    if is_first {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 12))
            .draw()?;
    }
    Ok(())
}

/// The cap, interrupted where nothing held the socket.
fn cap_stretches(socket: &SocketSeries) -> Vec<Vec<(f64, f64)>> {
    socket
        .samples
        .split(|s| s.cap.is_none())
        .filter(|stretch| !stretch.is_empty())
        .map(|stretch| stretch.iter().filter_map(|s| Some((s.at_s, s.cap?))).collect())
        .collect()
}

fn value_at(socket: &SocketSeries, at_s: f64) -> f64 {
    let after = socket.samples.partition_point(|s| s.at_s < at_s);
    socket
        .samples
        .get(after)
        .or(socket.samples.last())
        .map_or(0.0, |s| s.cwnd)
}
