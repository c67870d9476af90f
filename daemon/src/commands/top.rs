// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway top`: what is active, live. A client of the control socket: whoever may read the status may look. One thread asks the
//! daemon, one reads keys; the main one draws what both say, and only that. It changes nothing.

mod draw;
mod feed;
mod history;
mod keys;
mod model;
#[cfg(test)]
mod sample;
mod table;
pub mod terminal;
mod text;
mod theme;
mod widget;

use std::io::IsTerminal as _;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Args;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyEvent;
use ratatui::layout::Rect;

use crate::commands::print;
use crate::control::client;
use crate::exit::Usage;
use crate::kernel::calls::terminal_size;
use crate::place::Place;
use feed::StatusResult;
use keys::KeyOutcome;
use model::Model;
pub use model::View;
use terminal::FullScreen;
use theme::Theme;

/// Of a screen where there is no terminal.
const COLUMNS: u16 = 80;
const LINES: u16 = 24;
/// Between the two answers from which a single screen has its rates.
const BETWEEN: Duration = Duration::from_secs(1);

#[derive(Args)]
pub struct TopArgs {
    /// Print one screen, with the rates of one second, as large as the terminal or as COLUMNS and LINES say
    #[arg(long)]
    pub once: bool,
    /// What is looked at first
    #[arg(long, value_enum, default_value_t)]
    pub view: View,
    /// Only rows with this in any of their texts
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// The title of the column by which rows are sorted
    #[arg(long, value_name = "COLUMN")]
    pub sort: Option<String>,
}

pub enum UiEvent {
    Key(KeyEvent),
    Resized,
    Answer(StatusResult),
    End,
}

pub fn run(args: &TopArgs) -> Result<()> {
    let mut model = Model::new();
    model.view = args.view;
    model.filter = args.filter.clone().unwrap_or_default();
    if let Some(title) = &args.sort {
        model.sort_by(title).map_err(Usage)?;
    }
    let theme = Theme::of_environment();
    if args.once {
        return print_once(model, &theme);
    }
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    ensure!(
        std::io::stdout().is_terminal() && !is_dumb,
        "a live view needs a terminal that can be drawn on; `giveway top --once` prints one screen"
    );
    live(model, &theme)
}

fn live(mut model: Model, theme: &Theme) -> Result<()> {
    let place = Place::here()?;
    let (events, happened) = mpsc::channel();
    terminal::hear_signals(events.clone())?;
    let mut screen = FullScreen::take()?;
    let wishes = start(place, events);
    let begun = Instant::now();
    let mut awaits = wishes.send(()).is_ok();
    loop {
        screen
            .0
            .draw(|frame| draw::screen(&model, theme, frame.area(), frame.buffer_mut()))?;
        for event in next(&happened) {
            match event {
                UiEvent::Key(key) => match keys::press(&mut model, key) {
                    KeyOutcome::GoOn => {}
                    KeyOutcome::DrawAnew => screen.draw_anew()?,
                    KeyOutcome::Leave => return Ok(()),
                },
                UiEvent::Answer(answer) => {
                    awaits = false;
                    // It was asked for before the pause.
                    if !model.is_paused {
                        model.receive(begun.elapsed(), answer);
                    }
                }
                UiEvent::Resized => {}
                UiEvent::End => return Ok(()),
            }
        }
        if !awaits && !model.is_paused {
            awaits = wishes.send(()).is_ok();
        }
    }
}

/// The threads that ask and listen; they end with the process. Should one fail, the view ends.
fn start(place: Place, events: Sender<UiEvent>) -> Sender<()> {
    let (wishes, wished) = mpsc::channel();
    let answers = EndNotice(events.clone());
    thread::spawn(move || {
        feed::serve(&place, &wished, |answer| {
            answers.0.send(UiEvent::Answer(answer)).is_ok()
        })
    });
    let keys = EndNotice(events);
    thread::spawn(move || terminal::hear_keys(&keys.0));
    wishes
}

/// Says that its thread has ended, in whatever way.
struct EndNotice(Sender<UiEvent>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        let _ = self.0.send(UiEvent::End);
    }
}

/// Waits for one, and takes those that have come meanwhile: a screen shows them all.
fn next(happened: &Receiver<UiEvent>) -> impl Iterator<Item = UiEvent> {
    let first = happened.recv().unwrap_or(UiEvent::End);
    std::iter::once(first).chain(happened.try_iter())
}

/// One screen as text, with the rates of a second.
fn print_once(mut model: Model, theme: &Theme) -> Result<()> {
    let place = Place::here()?;
    let begun = Instant::now();
    for round in 0..2 {
        if round > 0 {
            thread::sleep(BETWEEN);
        }
        let status = client::status(&place)?;
        model.receive(begun.elapsed(), Ok(Box::new(status)));
    }
    model.is_printed = true;
    let (columns, lines) = size()?;
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, lines));
    draw::screen(&model, theme, buffer.area, &mut buffer);
    print(&text_of(&buffer))
}

/// Of the terminal, or as COLUMNS and LINES say.
fn size() -> Result<(u16, u16)> {
    if let Ok((columns, lines)) = terminal_size(std::io::stdout())
        && columns > 0
        && lines > 1
    {
        // The prompt needs a line.
        return Ok((columns, lines - 1));
    }
    Ok((said("COLUMNS", COLUMNS)?, said("LINES", LINES)?))
}

fn said(name: &str, default: u16) -> Result<u16> {
    let Ok(text) = std::env::var(name) else {
        return Ok(default);
    };
    match text.parse() {
        Ok(number @ 1..=1_000) => Ok(number),
        _ => Err(anyhow!(Usage(format!(
            "{name} is `{text}`, which is no number from 1 to 1000"
        )))),
    }
}

/// Lines without what only a terminal can show.
fn text_of(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in 0..buffer.area.height {
        let mut line = String::new();
        let mut hidden = 0;
        for x in 0..buffer.area.width {
            let symbol = buffer[(x, y)].symbol();
            // Behind a wide character is a cell that it covers.
            if hidden > 0 {
                hidden -= 1;
                continue;
            }
            hidden = unicode_width::UnicodeWidthStr::width(symbol).saturating_sub(1);
            line += symbol;
        }
        text += line.trim_end();
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}
