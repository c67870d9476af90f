// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway pause` and `giveway resume`: everything is taken back for a while, and is in force again.

use anyhow::Result;
use giveway_engine::status::PausedView;

use crate::cli::PauseArgs;
use crate::control::{Request, client};
use crate::place::Place;
use crate::say::print_line;

pub fn pause(args: &PauseArgs) -> Result<()> {
    let request = Request::PauseFor { for_s: args.for_s };
    let view: PausedView = client::ask(&Place::here()?, request)?.first()?;
    let left = match view.left_ms {
        Some(left_ms) => format!("for {} s, or until `giveway resume`", left_ms.div_ceil(1000)),
        None => "until `giveway resume`".to_owned(),
    };
    print_line(format_args!(
        "paused: nothing of giveway's is in force, {left}; a restart of giveway ends it, too"
    ))
}

pub fn resume() -> Result<()> {
    let was_paused: bool = client::ask(&Place::here()?, Request::Resume)?.first()?;
    match was_paused {
        true => print_line(format_args!("everything is in force again")),
        false => print_line(format_args!("it was not paused")),
    }
}
