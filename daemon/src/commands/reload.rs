// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway reload`: the daemon reads the rules for classes again.

use anyhow::Result;

use crate::commands::counted;
use crate::control::{Reloaded, Request, client};
use crate::place::Place;

pub fn run() -> Result<()> {
    let Reloaded { rules } = client::ask(&Place::here()?, Request::Reload)?.first()?;
    println!("in force: {} for classes", counted(rules, "rule"));
    Ok(())
}
