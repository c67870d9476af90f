// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway record`: keeps the daemon's log in a file until interrupted.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use giveway_engine::record::Header;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::cli::RecordArgs;
use crate::control::{Request, client};
use crate::place::Place;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupted(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

pub fn run(args: &RecordArgs) -> Result<()> {
    let mut answers = client::ask(&Place::here()?, Request::Record)?;
    let header: Header = answers.first()?;
    let output: Box<dyn Write> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdout())
    } else {
        Box::new(File::create(&args.file).with_context(|| format!("cannot write {}", args.file.display()))?)
    };
    let mut output = BufWriter::new(output);
    stop_reading_on_signals()?;
    writeln!(output, "{}", serde_json::to_string(&header)?)?;
    let mut lines = 0_u64;
    let ended = loop {
        match answers.line() {
            Ok(Some(line)) => output.write_all(line.as_bytes()).context("cannot write the record")?,
            Ok(None) => break "the daemon ended",
            Err(_) if INTERRUPTED.load(Ordering::Relaxed) => break "interrupted",
            Err(error) => return Err(error),
        }
        lines += 1;
        if lines.is_multiple_of(100) {
            output.flush().context("cannot write the record")?;
            if std::io::stderr().is_terminal() {
                eprint!("\r{lines} lines; Ctrl-C ends the record");
            }
        }
    };
    output.flush().context("cannot write the record")?;
    eprintln!("giveway record: {lines} lines in {}; {ended}", args.file.display());
    Ok(())
}

/// A signal interrupts the read that waits for the daemon (no SA_RESTART), so that the file ends with a whole line.
fn stop_reading_on_signals() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(interrupted), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }.context("cannot handle signals")?;
    }
    Ok(())
}
