// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All that giveway prints. Input: text. Output: to standard output, where a failure is the command's; or to standard error,
//! where nobody can be told of it. A descriptor that is closed, full or has no reader never ends the process: Rust's own
//! macros would (`clippy.toml` keeps them out).

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd as _, BorrowedFd};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::words::{json_line, one_line, printable};

/// Writes to standard output. A reader that has seen enough, as `head`, is no error.
///
/// # Errors
/// Where it cannot be written.
pub fn print(text: &str) -> Result<()> {
    put(&printable(text))
}

/// The same, and the end of the line.
///
/// # Errors
/// Where it cannot be written.
pub fn print_line(text: impl Display) -> Result<()> {
    put(&(printable(&text.to_string()) + "\n"))
}

/// One line of JSON.
///
/// # Errors
/// Where it cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    put(&json_line(value)?)
}

/// The program's own text, with colours where they are wanted.
///
/// # Errors
/// Where it cannot be written.
pub fn print_own(text: &str) -> Result<()> {
    put(text)
}

fn put(text: &str) -> Result<()> {
    match Output.write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// A line on standard error, for whoever reads it.
pub fn note(line: impl Display) {
    let _ = LogWriter.write_all(format!("giveway: {line}\n").as_bytes());
}

/// What a command ends with, on standard error; its further lines are its own.
pub fn failure(text: &str) {
    show(&format!("giveway: {}\n", printable(text)));
}

/// A text of the program's own on standard error, or a part of one, that may move a terminal's cursor.
pub fn show(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Standard output without a buffer. Rust's own takes a closed descriptor for written.
pub struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write(io::stdout().as_fd(), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error, for whole lines: what is foreign in them ends no line and begins none. Whoever writes goes on, read or not.
#[derive(Clone, Copy)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = one_line(&String::from_utf8_lossy(bytes)) + "\n";
        let _ = io::stderr().write_all(line.as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits where the caller has left the descriptor without waiting (O_NONBLOCK).
fn write(to: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match nix::unistd::write(to, bytes) {
            Err(Errno::EAGAIN) => {
                poll(&mut [PollFd::new(to, PollFlags::POLLOUT)], PollTimeout::NONE)?;
            }
            written => return Ok(written?),
        }
    }
}
