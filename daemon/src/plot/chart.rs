// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The picture: three panels one above the other, the same time under all of them.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::series::{Log, Sample, Socket};

const SIZE: (u32, u32) = (1000, 960);
/// Okabe and Ito's palette, told apart with every kind of colour vision.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One panel: what it shows and how it is read off a sample.
struct Panel {
    title: &'static str,
    value: fn(&Sample) -> f64,
    with_cap: bool,
    with_legend: bool,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "cwnd (line) and cap (grey), segments; x: retransmission",
        value: |s| s.cwnd,
        with_cap: true,
        with_legend: true,
    },
    Panel {
        title: "smoothed RTT, ms",
        value: |s| s.rtt_ms,
        with_cap: false,
        with_legend: false,
    },
    Panel {
        title: "delivery rate, Mbit/s",
        value: |s| s.mbit,
        with_cap: false,
        with_legend: false,
    },
];

pub fn draw(log: &Log, path: &Path) -> Result<()> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        render(log, &root).map_err(|e| anyhow!("{e}"))?;
    }
    std::fs::write(path, svg)?;
    Ok(())
}

fn render(log: &Log, root: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let root = root.titled(&log.title, ("sans-serif", 18))?;
    let areas = root.split_by_breakpoints::<i32, i32, _, _>([], [400, 660]);
    for (area, panel) in areas.iter().zip(&PANELS) {
        draw_panel(log, panel, area)?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(log: &Log, panel: &Panel, area: &Area<'_>) -> Result<(), Box<dyn std::error::Error>> {
    let samples = || log.sockets.iter().flat_map(|s| &s.samples);
    let top = samples().map(panel.value).fold(0.0, f64::max).max(1e-3) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(panel.title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..log.seconds.max(0.1), 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("seconds")
        .label_style(("sans-serif", 12))
        .draw()?;
    for (socket, colour) in log.sockets.iter().zip(COLOURS) {
        if panel.with_cap {
            for stretch in cap_stretches(socket) {
                chart.draw_series(LineSeries::new(stretch, RGBColor(150, 150, 150).stroke_width(2)))?;
            }
            let crosses = socket
                .retransmits
                .iter()
                .map(|at| Cross::new((*at, value_at(socket, *at)), 3, colour));
            chart.draw_series(crosses)?;
        }
        let line = socket.samples.iter().map(|s| (s.at_s, (panel.value)(s)));
        let drawn = chart.draw_series(LineSeries::new(line, colour.stroke_width(1)))?;
        if panel.with_legend {
            drawn
                .label(&socket.label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
        }
    }
    if panel.with_legend {
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
fn cap_stretches(socket: &Socket) -> Vec<Vec<(f64, f64)>> {
    socket
        .samples
        .split(|s| s.cap.is_none())
        .filter(|stretch| !stretch.is_empty())
        .map(|stretch| stretch.iter().filter_map(|s| Some((s.at_s, s.cap?))).collect())
        .collect()
}

fn value_at(socket: &Socket, at_s: f64) -> f64 {
    let after = socket.samples.partition_point(|s| s.at_s < at_s);
    socket
        .samples
        .get(after)
        .or(socket.samples.last())
        .map_or(0.0, |s| s.cwnd)
}
