// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway reload`: the daemon reads the rules for classes again.

use anyhow::Result;

use crate::commands::{counted, print};
use crate::control::{ReloadSummary, Request, client};
use crate::place::Place;

pub fn run() -> Result<()> {
    let ReloadSummary { rules, unread } = client::ask(&Place::here()?, Request::Reload)?.first()?;
    let mut text = format!("active: {} for classes\n", counted(rules, "rule"));
    if !unread.is_empty() {
        text += &format!(
            "not read: {} changed since the daemon started, and will count when it starts again\n",
            unread.join(", ")
        );
    }
    print(&text)
}
