// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway`: one binary, each command a module of the library beside it.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use giveway::cli::{Cli, Command};
use giveway::{doctor, exec, exit, guardian, jitter, key, lbe, plot, realtime, record, revert, run, status, why};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("GIVEWAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Status(args) => status::run(args),
        Command::Why(args) => why::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Record(args) => record::run(args),
        Command::Jitter(args) => jitter::run(args),
        Command::JitterLoad(args) => jitter::load::run(args),
        Command::Plot(args) => plot::run(args),
        Command::Lbe(command) => lbe::run(command),
        Command::Exec(args) => exec::run(args).map(|never| match never {}),
        Command::Realtime(command) => realtime::run(command),
        Command::Key(command) => key::run(command),
        Command::Revert(args) => revert::run(args),
        Command::Config => {
            print!("{}", giveway_engine::config::Config::default_file());
            Ok(())
        }
        Command::Guardian => guardian::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("giveway: {error:#}");
            ExitCode::from(exit::code(&error))
        }
    }
}
