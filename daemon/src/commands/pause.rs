// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway pause` and `giveway resume`: everything is revoked for a while, and is active again.

use anyhow::Result;
use clap::Args;
use giveway_engine::status::PausedView;

use crate::control::{LONGEST_PAUSE_FOR_S, Request, client};
use crate::place::Place;
use crate::say::print_line;

#[derive(Args)]
pub struct PauseArgs {
    /// With a unit: 90s, 30m, 1h, 2d; until `giveway resume` if absent
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub for_s: Option<u64>,
}

pub fn pause(args: &PauseArgs) -> Result<()> {
    let request = Request::PauseFor { for_s: args.for_s };
    let view: PausedView = client::ask(&Place::here()?, request)?.first()?;
    let left = match view.left_ms {
        Some(left_ms) => format!("for {} s, or until `giveway resume`", left_ms.div_ceil(1000)),
        None => "until `giveway resume`".to_owned(),
    };
    print_line(format_args!(
        "paused: nothing of giveway's is active, {left}; a restart of giveway ends it, too"
    ))
}

pub fn resume() -> Result<()> {
    let was_paused: bool = client::ask(&Place::here()?, Request::Resume)?.first()?;
    match was_paused {
        true => print_line(format_args!("everything is active again")),
        false => print_line(format_args!("it was not paused")),
    }
}

/// Seconds, of a number and its unit.
fn time(text: &str) -> Result<u64, String> {
    const UNITS: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)];
    let wrong = || format!("`{text}` is no time: write a number and its unit, as 90s, 30m, 1h or 2d");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let (_, seconds) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    let time = number
        .checked_mul(seconds)
        .filter(|time| (1..=LONGEST_PAUSE_FOR_S).contains(time));
    time.ok_or_else(|| "a pause is for 1s to 30d".to_owned())
}
