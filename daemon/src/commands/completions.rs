// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway completions`: prints what a shell completes this command line by.

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::say::print_own;

#[derive(Args)]
pub struct CompletionsArgs {
    #[arg(value_enum)]
    pub shell: Shell,
}

pub fn run(args: &CompletionsArgs, shown: Command) -> Result<()> {
    print_own(&text(args.shell, shown))
}

/// `shown`: the command line without hidden commands.
pub fn text(shell: Shell, mut shown: Command) -> String {
    let mut text = Vec::new();
    generate(shell, &mut shown, "giveway", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}
