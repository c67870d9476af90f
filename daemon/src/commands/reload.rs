// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway reload`: the daemon reads the rules for classes again.

use anyhow::Result;

use crate::commands::args::Json;
use crate::commands::{counted, print_output};
use crate::control::{ReloadSummary, Request, client};
use crate::place::Place;

pub fn run(output: &Json) -> Result<()> {
    let summary: ReloadSummary = client::ask(&Place::here()?, Request::Reload)?.first()?;
    print_output(output.json, &summary, || text(&summary))
}

fn text(ReloadSummary { rules, unread }: &ReloadSummary) -> String {
    let mut text = format!("active: {} for classes\n", counted(*rules, "rule"));
    if !unread.is_empty() {
        text += &format!(
            "warning: {} has changed since the daemon started; restart it to apply the changes\n",
            unread.join(", ")
        );
    }
    text
}
