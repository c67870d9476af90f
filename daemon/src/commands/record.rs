// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway record`: keeps the daemon's log in a file until interrupted.

use std::io::{BufWriter, IsTerminal as _, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use giveway_engine::record::Header;
use nix::sys::signal::{SigSet, Signal};

use crate::control::{Request, client};
use crate::files;
use crate::place::Place;
use crate::say::{Output, note, show};
use crate::words::json_line;

#[derive(Args)]
pub struct RecordArgs {
    /// Where to write; `-` is standard output
    pub file: PathBuf,
}

pub fn run(args: &RecordArgs) -> Result<()> {
    let mut answers = client::ask(&Place::here()?, Request::Record)?;
    let header: Header = answers.first()?;
    let is_piped = args.file.as_os_str() == "-";
    let output: Box<dyn Write> = if is_piped {
        Box::new(Output)
    } else {
        Box::new(files::output(&args.file).with_context(|| format!("cannot write {}", args.file.display()))?)
    };
    let mut output = BufWriter::new(output);
    end_on_signals(answers.connection()?)?;
    output
        .write_all(json_line(&header)?.as_bytes())
        .and_then(|()| output.flush())
        .context("cannot write the record")?;
    let mut lines = 0_u64;
    // A line without its end was cut off by the signal, and is not written.
    while let Some(line) = answers.line()?.filter(|line| line.ends_with('\n')) {
        output.write_all(line.as_bytes()).context("cannot write the record")?;
        lines += 1;
        if lines.is_multiple_of(100) || is_piped {
            output.flush().context("cannot write the record")?;
            if std::io::stderr().is_terminal() {
                show(&format!("\r{lines} lines; Ctrl-C stops recording"));
            }
        }
    }
    output.flush().context("cannot write the record")?;
    note(format_args!("{lines} lines in {}", args.file.display()));
    Ok(())
}

/// SIGINT and SIGTERM end the stream instead of the process, so that the file is whole.
fn end_on_signals(connection: UnixStream) -> Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block().context("cannot handle signals")?;
    std::thread::spawn(move || {
        if signals.wait().is_ok() {
            // The reader then finds the end of the stream.
            let _ = connection.shutdown(Shutdown::Both);
        }
    });
    Ok(())
}
