// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway completions`: prints what a shell completes this command line by.

use anyhow::Result;
use clap::Args;
use clap_complete::{Shell, generate};

use crate::cli;
use crate::say::print_own;

#[derive(Args)]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: Shell,
}

pub fn run(args: &CompletionsArgs) -> Result<()> {
    print_own(&text(args.shell))
}

/// Without the commands that users are not to see.
pub fn text(shell: Shell) -> String {
    let mut text = Vec::new();
    generate(shell, &mut cli::shown(), "giveway", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}
