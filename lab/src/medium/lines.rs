// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Standard input as lines, for a loop that must not wait for the rest of one.
//!
//! Input: bytes as they arrive. Output: whole lines, and an unterminated last one when the input is over. Reads at most
//! once per call, so a caller that polls first never blocks; an overlong line is an error.

use std::collections::VecDeque;
use std::io::{self, Stdin};
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;

const MAX_LINE: usize = 65_536;

pub struct Lines {
    input: Stdin,
    pending: VecDeque<u8>,
}

impl Lines {
    pub fn new() -> Self {
        Self {
            input: io::stdin(),
            pending: VecDeque::new(),
        }
    }

    /// Blocks for the first line; `None` when there is none.
    pub fn first(&mut self) -> Result<Option<String>> {
        loop {
            let open = self.read_some()?;
            let line = self.next_line(open)?;
            if line.is_some() || !open {
                return Ok(line);
            }
        }
    }

    /// One read; `false` at the end of the input.
    pub fn read_some(&mut self) -> Result<bool> {
        let mut chunk = [0; 4_096];
        match nix::unistd::read(&self.input, &mut chunk) {
            Ok(0) => Ok(false),
            Ok(length) => {
                self.pending.extend(&chunk[..length]);
                Ok(true)
            }
            Err(Errno::EINTR | Errno::EAGAIN) => Ok(true),
            Err(errno) => Err(errno).context("cannot read standard input"),
        }
    }

    /// The next complete line; with `open` false, the rest is one.
    pub fn next_line(&mut self, open: bool) -> Result<Option<String>> {
        let end = self.pending.iter().position(|&byte| byte == b'\n');
        let length = match end {
            Some(end) => end + 1,
            None if !open && !self.pending.is_empty() => self.pending.len(),
            None => {
                ensure!(self.pending.len() <= MAX_LINE, "a line on standard input has no end");
                return Ok(None);
            }
        };
        let line: Vec<u8> = self.pending.drain(..length).collect();
        let line = String::from_utf8(line).context("standard input is not text")?;
        Ok(Some(line.trim().to_owned()))
    }
}

impl AsFd for Lines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }
}
