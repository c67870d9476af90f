// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of real time give priorities to: threads that are there at once, and one more for each line that it
//! reads. Each tells how it is scheduled when it is first FIFO, and how many microseconds after its start. Ends with
//! its input, or after a minute.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::thread;
use std::time::{Duration, Instant};

use giveway::actuate::thread::attributes::Attributes;

fn tell_when_fifo() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        let shown = Attributes::of(0).map_or_else(|errno| errno.to_string(), |own| own.shown());
        if shown.starts_with("FIFO") {
            let _ = writeln!(stdout(), "{shown} {}", start.elapsed().as_micros());
            break;
        }
        thread::sleep(Duration::from_micros(200));
    }
    thread::park();
}

fn main() {
    for _ in 0..3 {
        thread::spawn(tell_when_fifo);
    }
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(60));
        std::process::exit(1);
    });
    for _ in stdin().lock().lines() {
        thread::spawn(tell_when_fifo);
    }
}
