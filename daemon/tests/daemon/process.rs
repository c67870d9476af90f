// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the built program: once to its end, or as a daemon that is killed when the test ends.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program; in a guest, which has no build folder, GIVEWAY says where it is.
pub fn program() -> String {
    std::env::var("GIVEWAY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_giveway").to_owned())
}

/// What orders the packets: htb, which every kernel has, unless QUEUE_BACKEND names another.
pub fn backend() -> String {
    std::env::var("QUEUE_BACKEND").unwrap_or_else(|_| "htb".to_owned())
}

/// What the paper's access point takes (Hirai et al., section 2.3).
pub const PAPER: &str = "[cap]\ncapacity_mbit = 20.0\nmargin_bytes = 120000\nrtt_ms = 256\n";

pub fn giveway(arguments: &[&str]) -> Output {
    Command::new(program())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// The one clear line of a failure, and the exit code.
pub fn failure(output: &Output) -> (String, i32) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.trim_end().lines().count(), 1, "not one line: {text}");
    (text, output.status.code().unwrap())
}

/// A file of this test's own, removed at its end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str, contents: &str) -> Self {
        let path = std::env::temp_dir().join(format!("giveway-test-{}-{name}", std::process::id()));
        fs::write(&path, contents).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

pub struct Daemon(pub Child);

impl Daemon {
    /// Starts a daemon in the calling thread's namespace and waits until it answers.
    pub fn start(arguments: &[&str]) -> Self {
        let child = Command::new(program())
            .arg("run")
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let daemon = Self(child.unwrap());
        until("the daemon answers", || giveway(&["status", "--json"]).status.success());
        daemon
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::from_slice(&giveway(&["status", "--json"]).stdout).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a condition, and fails when it does not come true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited 20 s in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}
