// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal: taken over, and put back however the view ends. Input: keys, sizes and signals. Output: each as an event.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, Signal};
use ratatui::crossterm::event;
use ratatui::crossterm::terminal::disable_raw_mode;
use ratatui::layout::{Position, Rect};
use ratatui::{DefaultTerminal, try_init, try_restore};

use super::UiEvent;

/// For leaving in good order, after a signal.
const PATIENCE: Duration = Duration::from_secs(1);

/// Put back when it is dropped; the library sees to it in a panic.
pub struct FullScreen(pub DefaultTerminal);

impl FullScreen {
    pub fn take() -> Result<Self> {
        try_init().map(Self).context("cannot take over the terminal")
    }

    /// Whatever else has written on it. The library's `clear` would ask the terminal where the cursor is, whose answer
    /// comes to the thread that reads keys.
    pub fn draw_anew(&mut self) -> Result<()> {
        let size = self.0.size()?;
        Ok(self.0.resize(Rect::from((Position::ORIGIN, size)))?)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        // A terminal that is gone needs nothing put back.
        let _ = try_restore();
    }
}

/// To be called before any thread is started: none of them is to have the signals.
///
/// # Errors
/// Where they cannot be kept from ending the process.
pub fn hear_signals(events: Sender<UiEvent>) -> Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().context("cannot handle signals")?;
    thread::spawn(move || {
        if signals.wait().is_ok() {
            let _ = events.send(UiEvent::End);
            thread::sleep(PATIENCE);
            // It waits for a terminal that takes nothing: then its modes at least are restored.
            let _ = disable_raw_mode();
            std::process::exit(1);
        }
    });
    Ok(())
}

/// Until the terminal is gone, which is an end, too.
pub fn hear_keys(events: &Sender<UiEvent>) -> io::Result<()> {
    loop {
        let event = match event::read()? {
            event::Event::Key(key) => UiEvent::Key(key),
            event::Event::Resize(..) => UiEvent::Resized,
            _ => continue,
        };
        if events.send(event).is_err() {
            return Ok(());
        }
    }
}
