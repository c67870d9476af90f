// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway plot`: draws a record, here or on another machine. Input: the file. Output: one SVG with cwnd and cap,
//! RTT, and delivery rate over time, a colour for each socket.

pub mod chart;
pub mod series;

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::say::print_line;

#[derive(Args)]
pub struct PlotArgs {
    /// A file that `giveway record` wrote, here or on another machine
    pub file: PathBuf,
    /// The SVG to write
    #[arg(short, long, value_name = "SVG")]
    pub output: PathBuf,
}

pub fn run(args: &PlotArgs) -> Result<()> {
    let file = File::open(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let log = series::read(BufReader::new(file)).with_context(|| format!("cannot plot {}", args.file.display()))?;
    chart::draw(&log, &args.output).with_context(|| format!("cannot draw {}", args.output.display()))?;
    let left_out = log.left_out_text();
    print_line(format_args!(
        "{}: {} sockets over {:.1} s{left_out}",
        args.output.display(),
        log.sockets.len(),
        log.seconds
    ))
}
