// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real terminal (tmux) of the test's own, in which a program runs as a user runs it: keys go in, screens come out.

use std::process::{Command, Output};

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::process::{children, program, signal};
use super::wait::{await_some, until};

/// What is printed when the program has ended.
const BACK: &str = "back again";

pub struct Terminal(TempDir);

impl Terminal {
    /// Runs `giveway` with these words in the calling thread's network namespace, with a shell's state of the terminal
    /// noted before and after.
    pub fn run(words: &str, environment: &str, columns: u16, lines: u16) -> Self {
        Self::run_command(&format!("env {environment} {} {words}", program()), columns, lines)
    }

    /// The same of any program.
    pub fn run_command(command: &str, columns: u16, lines: u16) -> Self {
        let terminal = Self(tempfile::tempdir().unwrap());
        let folder = terminal.0.path().display().to_string();
        let script = format!(
            "stty -g >{folder}/before; {command} 2>{folder}/said; stty -g >{folder}/after; echo {BACK}; exec sleep 1000"
        );
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let output = terminal
            .command()
            .args([
                "-u",
                "-f",
                "/dev/null",
                "new-session",
                "-d",
                "-x",
                &columns,
                "-y",
                &lines,
            ])
            .arg(script)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "tmux: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        terminal.tmux(&["set-option", "-g", "status", "off"]);
        terminal
    }

    /// Keys as tmux names them: `Enter`, `C-c`, or what is typed.
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    pub fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).stdout).unwrap()
    }

    /// With the sequences that give it its looks.
    pub fn coloured_screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p", "-e"]).stdout).unwrap()
    }

    /// The first screen that has this, or this no longer.
    #[track_caller]
    pub fn until(&self, what: &str, has: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let wait = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(what, || {
                last = self.screen();
                has(&last)
            })
        }));
        assert!(wait.is_ok(), "{what}:\n{last}");
        last
    }

    pub fn signal(&self, wanted: Signal) {
        let pid = || {
            let shell = self.tmux(&["display-message", "-p", "#{pane_pid}"]).stdout;
            let shell = String::from_utf8(shell).ok()?.trim().parse().ok()?;
            children(shell).first().copied()
        };
        signal(await_some("it runs", pid), wanted);
    }

    /// Waits for the program's end, and looks whether the terminal is as it was: its modes, its screen and its cursor.
    #[track_caller]
    pub fn is_restored(&self) -> bool {
        self.until("the program has ended", |screen| screen.contains(BACK));
        let read = |name: &str| std::fs::read_to_string(self.0.path().join(name)).unwrap();
        let shown = self
            .tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"])
            .stdout;
        read("before") == read("after") && shown == b"0 1\n"
    }

    /// What the program wrote to standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.0.path().join("said")).unwrap()
    }

    fn tmux(&self, words: &[&str]) -> Output {
        self.command().args(words).output().unwrap()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(self.0.path().join("socket"))
            .env_remove("TMUX")
            .env("LANG", "C.UTF-8");
        command
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Of this socket's server alone.
        self.tmux(&["kill-server"]);
    }
}
