// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The progress of a run, on stderr: one line that changes on a terminal; elsewhere a line every 20 s, and one at each
//! new phase.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

const REDRAW_ON_TERMINAL: Duration = Duration::from_secs(1);
const REDRAW_ELSEWHERE: Duration = Duration::from_secs(20);

pub struct Progress {
    begun: Instant,
    total_s: f64,
    turns: usize,
    turn: usize,
    name: String,
    drawn: Cell<Option<Instant>>,
    /// The phase, without numbers.
    phase: RefCell<String>,
    on_terminal: bool,
}

impl Progress {
    pub fn new(turns: usize, total_s: f64) -> Self {
        Self {
            begun: Instant::now(),
            total_s,
            turns,
            turn: 0,
            name: String::new(),
            drawn: Cell::new(None),
            phase: RefCell::default(),
            on_terminal: stderr().is_terminal(),
        }
    }

    pub fn begin(&mut self, name: String) {
        self.turn += 1;
        self.name = name;
        self.drawn.set(None);
        self.draw("set up");
    }

    /// Reports what the variant is doing, not too often.
    pub fn tick(&self, doing: &str) {
        let redraw = if self.on_terminal {
            REDRAW_ON_TERMINAL
        } else {
            REDRAW_ELSEWHERE
        };
        let is_new = *self.phase.borrow() != phase(doing);
        if is_new || self.drawn.get().is_none_or(|drawn| drawn.elapsed() >= redraw) {
            self.draw(doing);
        }
    }

    fn draw(&self, doing: &str) {
        self.drawn.set(Some(Instant::now()));
        self.phase.replace(phase(doing));
        let (turn, turns, name) = (self.turn, self.turns, &self.name);
        let times = format!(
            "{} of about {}",
            clock(self.begun.elapsed().as_secs_f64()),
            clock(self.total_s)
        );
        let line = format!("[{turn}/{turns}] {name}: {doing}; {times}");
        // A progress line that cannot be written does not stop a measurement.
        let _ = if self.on_terminal {
            write!(stderr(), "\r\x1b[K{line}").and_then(|()| stderr().flush())
        } else {
            writeln!(stderr(), "{line}")
        };
    }

    pub fn finish(&self) {
        if self.on_terminal {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

fn phase(doing: &str) -> String {
    doing.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
