// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the pictures of `plot` and `jitter` have in common: an SVG with a white ground, and colours.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::files;
use crate::words::printable;

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Okabe and Ito's palette, told apart with every kind of colour vision.
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
];

pub fn save(path: &Path, size: (u32, u32), render: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error>>) -> Result<()> {
    let mut svg = String::new();
    let drawn = || -> Result<(), Box<dyn Error>> {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        render(&root)?;
        Ok(root.present()?)
    };
    drawn().map_err(|error| anyhow!("{error}"))?;
    Ok(files::output(path)?.write_all(printable(&svg).as_bytes())?)
}
