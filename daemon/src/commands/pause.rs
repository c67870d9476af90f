// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway pause` and `giveway resume`: everything is revoked for a while, and is active again.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use giveway_engine::status::PausedView;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::args::{Json, duration};
use crate::commands::print_output;
use crate::control::{LONGEST_PAUSE_FOR_S, Request, client};
use crate::place::Place;

const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(LONGEST_PAUSE_FOR_S);

#[derive(Args)]
pub struct PauseArgs {
    /// For so long: 90s, 30m, 1h, 2d; until `giveway resume` if absent
    #[arg(long = "for", value_name = "TIME", value_parser = duration("s", LEAST..=MOST))]
    pub time: Option<Duration>,
    #[command(flatten)]
    pub output: Json,
}

/// The answer to a resume.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Resumed {
    was_paused: bool,
}

pub fn pause(args: &PauseArgs) -> Result<()> {
    let for_s = args.time.map(|time| time.as_secs_f64().ceil() as u64);
    let request = Request::PauseFor { for_s };
    let view: PausedView = client::ask(&Place::here()?, request)?.first()?;
    print_output(args.output.json, &view, || {
        let left = match view.left_ms {
            Some(left_ms) => format!("for {} s, or until `giveway resume`", left_ms.div_ceil(1000)),
            None => "until `giveway resume`".to_owned(),
        };
        format!("paused {left}: all changes are undone; restarting the daemon also ends the pause\n")
    })
}

pub fn resume(output: &Json) -> Result<()> {
    let was_paused: bool = client::ask(&Place::here()?, Request::Resume)?.first()?;
    let text = match was_paused {
        true => "resumed: all changes are active again\n",
        false => "not paused\n",
    };
    print_output(output.json, &Resumed { was_paused }, || text.to_owned())
}
