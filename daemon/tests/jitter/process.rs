// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs `giveway jitter`: to its end, or while a test does something to it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::caller;
use crate::support::process::{KillOnDrop, children, program};

pub fn start(arguments: &str) -> Running {
    caller::forget();
    let mut command = Command::new(program());
    command
        .arg("jitter")
        .args(arguments.split_whitespace())
        .stdin(Stdio::null());
    Running(KillOnDrop::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped())))
}

/// What it says with `--json`.
pub fn measure(arguments: &str) -> Value {
    start(&format!("--json {arguments}")).report()
}

/// Ended with the test.
pub struct Running(KillOnDrop);

impl Running {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn end(self) -> Output {
        self.0.output()
    }

    pub fn report(self) -> Value {
        let output = self.end();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Its measuring threads, when they measure.
    pub fn threads(&self) -> Vec<i32> {
        sleeping(self.pid(), "jitter/")
    }

    /// How often one of its threads has gone to sleep.
    pub fn sleeps(&self, tid: i32) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/task/{tid}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }

    /// The processes of its loads.
    pub fn loads(&self) -> Vec<u32> {
        children(self.pid())
    }
}

/// A process's threads whose name begins so and which sleep for a time.
pub fn sleeping(pid: u32, name: &str) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let sleeps = |task: &Path| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name))
            && fs::read_to_string(task.join("wchan")).is_ok_and(|at| at.contains("nanosleep"))
    };
    let tasks = tasks.filter(|task| sleeps(&task.path()));
    tasks
        .map(|task| task.file_name().to_str().unwrap().parse().unwrap())
        .collect()
}
