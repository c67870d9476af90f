// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the built program: to its end, or while a test does something to it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(20);

/// The program; in a guest, which has no build folder, GIVEWAY says where it is.
fn program() -> String {
    std::env::var("GIVEWAY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_giveway").to_owned())
}

pub fn start(arguments: &str) -> Running {
    let child = Command::new(program())
        .arg("jitter")
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Running(Some(child.unwrap()))
}

/// What it says with `--json`.
pub fn measure(arguments: &str) -> Value {
    start(&format!("--json {arguments}")).report()
}

/// Ended with the test.
pub struct Running(Option<Child>);

impl Running {
    pub fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
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

    /// The processes of its loads.
    pub fn loads(&self) -> Vec<u32> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap();
        children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for a condition, and fails when it does not come true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
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
