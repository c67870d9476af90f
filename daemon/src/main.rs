// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway`: one binary, each command a module of the library beside it.
//!
//! It has the C library's `main`, not Rust's: before that one the runtime reads /proc/self/maps, and whoever may list /proc
//! could keep every giveway from starting, the watchdog and `giveway revert` included. What the runtime would have
//! prepared is prepared here, but for its message about a stack that has overflown.
#![cfg_attr(not(test), no_main)]
// A test of this program has Rust's own, and there is nothing in it.
#![cfg_attr(test, allow(dead_code))]

use std::ffi::{c_char, c_int};
use std::io::IsTerminal as _;
use std::panic::catch_unwind;

use clap::Parser as _;
use giveway::cli::{Cli, Command};
use giveway::commands::{
    by_hand, completions, config, doctor, exec, focus, jitter, key, link, pause, plot, priority, record, reload,
    revert, status, top, trial, web, why,
};
use giveway::run::asked::StartMoment;
use giveway::words::printable;
use giveway::{exit, inherited, lookup, run, say, watchdog};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Lines that wait for who reads the daemon's log; more are lost.
const LINES_KEPT: usize = 1024;

/// As Rust's runtime has it.
const PANICKED: i32 = 101;

#[cfg_attr(not(test), unsafe(export_name = "main"))]
extern "C" fn c_main(_: c_int, _: *const *const c_char) -> c_int {
    inherited::leave_behind();
    let code = catch_unwind(run_command).map_or(PANICKED, i32::from);
    // Not by returning: what was printed is written first.
    std::process::exit(code)
}

// Long: a line a command.
fn run_command() -> u8 {
    // Before anything else: whatever is asked from now on concerns this start.
    let begun = std::env::args_os().any(|word| word == "run").then(StartMoment::now);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print_clap_error(&error),
    };
    let level = match &cli.command {
        Command::Run(args) => args.log_level(),
        _ => "info",
    };
    let filter = EnvFilter::try_from_env("GIVEWAY_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let (log, writes) = match cli.command {
        Command::Run(_) => match std::thread::Builder::new().spawn(|| ()) {
            Ok(_) => patient_log(),
            // The library that logs would panic.
            Err(error) => {
                say::note(format_args!("no thread can be started, so giveway is not: {error}"));
                return 1;
            }
        },
        _ => (BoxMakeWriter::new(|| say::LogWriter), None),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(log)
        .with_target(false)
        // Escapes are foreign wherever they stand. Where a line cannot be written, the library's own complaint would panic.
        .with_ansi(false)
        .log_internal_errors(false)
        .init();
    let outcome = match &cli.command {
        Command::Run(args) => run::run(args, &begun.unwrap_or_else(StartMoment::now)),
        Command::Status(args) => status::run(args),
        Command::Top(args) => top::run(args),
        Command::Why(args) => why::run(args),
        Command::Web(args) => web::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Record(args) => record::run(args),
        Command::Try(args) => trial::run(args),
        Command::Jitter(args) => jitter::run(args),
        Command::JitterLoad(args) => jitter::load::run(args),
        Command::Plot(args) => plot::run(args),
        Command::Class(command) => by_hand::class(command),
        Command::Limit(command) => by_hand::limit(command),
        Command::Link(command) => link::run(command),
        Command::Pause(args) => pause::pause(args),
        Command::Resume(output) => pause::resume(output),
        Command::Exec(args) => exec::run(args).map(|never| match never {}),
        Command::Focus(command) => focus::run(command),
        Command::Priority(command) => priority::run(command),
        Command::Key(command) => key::run(command),
        Command::Revert(args) => revert::run(args),
        Command::Reload(output) => reload::run(output),
        Command::Config(command) => config::run(command),
        Command::Completions(args) => completions::run(args, giveway::cli::shown()),
        Command::Watchdog => watchdog::run(),
        Command::LookUp => lookup::serve(),
    };
    // Whatever was logged stands before the last line.
    drop(writes);
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            say::failure(&exit::message(&error));
            exit::code(&error)
        }
    }
}

/// What is asked for instead of a command (`--help`), or what is wrong with the words.
fn print_clap_error(error: &clap::Error) -> u8 {
    let text = error.render();
    if error.use_stderr() {
        say::show(&printable(&text.to_string()));
        return u8::try_from(error.exit_code()).unwrap_or(2);
    }
    let has_colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = if has_colours {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    match say::print_own(&text) {
        Ok(()) => 0,
        Err(error) => {
            say::failure(&exit::message(&error));
            1
        }
    }
}

/// The daemon waits for nobody who does not read what it logs. Dropping the guard writes what waits, within a second.
fn patient_log() -> (BoxMakeWriter, Option<WorkerGuard>) {
    let builder = NonBlockingBuilder::default().buffered_lines_limit(LINES_KEPT);
    let (log, writes) = builder.lossy(true).thread_name("giveway-log").finish(say::LogWriter);
    (BoxMakeWriter::new(log), Some(writes))
}
