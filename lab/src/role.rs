// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process of the lab itself in a namespace: `giveway-lab role NAME DESCRIPTION`. Its owner may write lines to it; it
//! answers with lines of JSON, and reports when it ends. It ends with its owner.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::os::fd::AsFd;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::namespace::Namespace;
use crate::process::Process;

/// A role that reports once: reads its description, writes its report.
pub fn report<D: DeserializeOwned, R: Serialize>(description: &str, act: fn(D) -> Result<R>) -> Result<()> {
    let report = act(serde_json::from_str(description)?)?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Answers each line of standard input, until it ends.
pub fn answer_each<T: Serialize>(mut answer: impl FnMut(&str) -> Result<T>) -> Result<()> {
    for line in stdin().lines() {
        println!("{}", serde_json::to_string(&answer(&line?)?)?);
    }
    Ok(())
}

pub struct Role {
    name: &'static str,
    process: Process,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Role {
    /// Starts it without waiting.
    pub fn spawn(at: &Namespace, name: &'static str, description: &impl Serialize) -> Result<Self> {
        Self::spawn_through(&[], at, name, description)
    }

    /// Started by a program with its arguments, such as `nice`.
    pub fn spawn_through(
        starter: &[&str],
        at: &Namespace,
        name: &'static str,
        description: &impl Serialize,
    ) -> Result<Self> {
        let own = std::env::current_exe()?;
        let mut words: Vec<_> = starter.iter().map(|word| (*word).into()).collect();
        words.extend([own.into_os_string(), "role".into(), name.into()]);
        words.push(serde_json::to_string(description)?.into());
        let mut command = at.command(&words[0])?;
        command.args(&words[1..]);
        Self::run(name, command)
    }

    /// Any command that answers requests line by line.
    pub fn run(name: &'static str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command)?;
        let requests = process.pipes().stdin.take();
        let answers = process.pipes().stdout.take().context("it has no output")?;
        Ok(Self {
            name,
            process,
            requests,
            answers: BufReader::new(answers),
        })
    }

    /// Starts it and waits for its first line.
    pub fn start(at: &Namespace, name: &'static str, description: &impl Serialize) -> Result<Self> {
        Self::spawn(at, name, description)?.ready()
    }

    /// Waits for its first line.
    pub fn ready(mut self) -> Result<Self> {
        self.wait()?;
        Ok(self)
    }

    /// Waits for its next line, whatever it contains.
    pub fn wait(&mut self) -> Result<()> {
        self.line().map(drop)
    }

    pub fn id(&self) -> i32 {
        self.process.id()
    }

    pub fn ask<T: DeserializeOwned>(&mut self, request: impl Display) -> Result<T> {
        self.send_line(request)?;
        self.answer()
    }

    pub fn send_line(&mut self, request: impl Display) -> Result<()> {
        let requests = self.requests.as_mut().context("its input is closed")?;
        writeln!(requests, "{request}").with_context(|| format!("`{}` does not listen any more", self.name))
    }

    /// Whether its next line, or its end, has arrived.
    pub fn has_answered(&self) -> Result<bool> {
        let mut polled = [PollFd::new(self.answers.get_ref().as_fd(), PollFlags::POLLIN)];
        Ok(!self.answers.buffer().is_empty() || poll(&mut polled, PollTimeout::ZERO)? > 0)
    }

    /// Its next line.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("`{}` said {}", self.name, line.trim()))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "`{}` ended; its reason is above", self.name);
        Ok(line)
    }

    /// Lets it end by itself; returns its report.
    pub fn finish<T: DeserializeOwned>(mut self) -> Result<T> {
        drop(self.requests.take());
        let mut report = Vec::new();
        self.answers.read_to_end(&mut report)?;
        let ended = self.process.pipes().wait()?;
        ensure!(ended.success(), "`{}` failed; its reason is above", self.name);
        serde_json::from_slice(&report).with_context(|| format!("the report of `{}` is not readable", self.name))
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Lets it live on (KEEP=1): a sleeping process holds its input open. Returns the ids of both.
    pub fn stay(&mut self) -> Result<[i32; 2]> {
        let requests = self.requests.take().context("its input is closed")?;
        let mut command = Command::new("sleep");
        command.arg("infinity").stdout(Stdio::from(requests));
        Ok([Process::spawn(command)?.stay(), self.process.stay()])
    }

    /// Lets it run until the process is dropped.
    pub fn into_process(self) -> Result<Process> {
        drop(self.requests);
        Ok(self.process)
    }
}
