// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process of the lab in a namespace, with which its owner talks: a line of standard input, a line of JSON back.
//! In: which of the lab's own roles it has. Out: answers; the process ends when this is dropped. Asks nothing by itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;

use crate::namespace::Namespace;
use crate::process::Process;

/// A process that answers each line with one.
pub struct Told {
    _process: Process,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Told {
    /// Starts it and waits for its first word.
    pub fn start(at: &Namespace, role: &str, arguments: &[String]) -> Result<Self> {
        let mut command = at.command(std::env::current_exe()?)?;
        command
            .arg(role)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(command)?;
        let requests = process.pipes().stdin.take().context("it has no input")?;
        let answers = process.pipes().stdout.take().context("it has no output")?;
        let mut told = Self {
            _process: process,
            requests,
            answers: BufReader::new(answers),
        };
        told.line()
            .with_context(|| format!("`giveway-lab {role}` did not start"))?;
        Ok(told)
    }

    pub fn ask<T: DeserializeOwned>(&mut self, request: &str) -> Result<T> {
        writeln!(self.requests, "{request}").context("it does not listen any more")?;
        Ok(serde_json::from_str(&self.line()?)?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "a process of the lab ended; its reason is above");
        Ok(line)
    }
}
