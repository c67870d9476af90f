// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway reload`: the daemon reads the rules for classes again.

use anyhow::Result;

use crate::control::{Reloaded, Request, client};
use crate::place::Place;

pub fn run() -> Result<()> {
    let Reloaded { rules } = client::ask(&Place::here()?, Request::Reload)?.first()?;
    println!("{rules} rules for classes are in force");
    Ok(())
}
