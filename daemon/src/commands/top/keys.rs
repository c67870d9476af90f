// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each key does. Input: a key. Output: a changed model, or the wish to leave.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Model, Pane, View};

/// As `help` shows them.
pub const KEYS: [(&str, &str); 12] = [
    ("1 to 6, Tab", "sockets, processes, queue, peers, real time, limits"),
    ("Up, Down, k, j", "choose a line; PgUp, PgDn, Home, End"),
    (
        "Enter, w",
        "why: what `giveway why` says of the chosen line (of limits nothing)",
    ),
    ("s, S", "sort by the next column, or the one before"),
    ("r", "turn the order around"),
    ("/", "show only lines with these words in any of their texts"),
    ("p, Space", "pause: nothing is asked, and nothing moves"),
    ("d", "what does not work, and why"),
    ("Esc", "close what is open; then forget the filter"),
    ("h, ?", "this help"),
    ("Ctrl-L", "draw the screen anew"),
    ("q, Ctrl-C", "leave"),
];

const PAGE: isize = 10;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyOutcome {
    GoOn,
    DrawAnew,
    Leave,
}

pub fn press(model: &mut Model, key: KeyEvent) -> KeyOutcome {
    if key.kind == KeyEventKind::Release {
        return KeyOutcome::GoOn;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => KeyOutcome::Leave,
            KeyCode::Char('l') => KeyOutcome::DrawAnew,
            _ => KeyOutcome::GoOn,
        };
    }
    if model.is_typing {
        edit_filter(model, key.code);
        return KeyOutcome::GoOn;
    }
    if key.code == KeyCode::Char('q') {
        return KeyOutcome::Leave;
    }
    if model.pane.is_none() || !scroll(model, key.code) {
        command(model, key.code);
    }
    KeyOutcome::GoOn
}

fn edit_filter(model: &mut Model, key: KeyCode) {
    match key {
        KeyCode::Char(character) => model.type_into_filter(character),
        KeyCode::Backspace => drop(model.filter.pop()),
        KeyCode::Enter => model.is_typing = false,
        KeyCode::Esc => {
            model.is_typing = false;
            model.filter.clear();
        }
        _ => {}
    }
}

/// Whether the key is the open pane's.
fn scroll(model: &mut Model, key: KeyCode) -> bool {
    let scrolled = &mut model.scrolled;
    match key {
        KeyCode::Up | KeyCode::Char('k') => *scrolled = scrolled.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => *scrolled = scrolled.saturating_add(1),
        KeyCode::PageUp => *scrolled = scrolled.saturating_sub(PAGE as u16),
        KeyCode::PageDown => *scrolled = scrolled.saturating_add(PAGE as u16),
        KeyCode::Home => *scrolled = 0,
        KeyCode::Enter | KeyCode::Char('w') => model.close(),
        _ => return false,
    }
    true
}

fn command(model: &mut Model, key: KeyCode) {
    match key {
        KeyCode::Char(digit @ '1'..='6') => model.show(View::ALL[digit as usize - '1' as usize]),
        KeyCode::Tab | KeyCode::Right => turn(model, 1),
        KeyCode::BackTab | KeyCode::Left => turn(model, View::ALL.len() - 1),
        KeyCode::Up | KeyCode::Char('k') => model.step(-1),
        KeyCode::Down | KeyCode::Char('j') => model.step(1),
        KeyCode::PageUp => model.step(-PAGE),
        KeyCode::PageDown => model.step(PAGE),
        KeyCode::Home | KeyCode::Char('g') => model.step(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => model.step(isize::MAX),
        KeyCode::Enter | KeyCode::Char('w') => model.ask_why(),
        KeyCode::Char('s') => model.sort_by_next(false),
        KeyCode::Char('S') => model.sort_by_next(true),
        KeyCode::Char('r') => model.turn_around(),
        KeyCode::Char('/') => model.is_typing = true,
        KeyCode::Char('p' | ' ') => model.is_paused = !model.is_paused,
        KeyCode::Char('d') => open_or_close(model, Pane::Warnings),
        KeyCode::Char('h' | '?') => open_or_close(model, Pane::Help),
        KeyCode::Esc if model.pane.is_some() => model.close(),
        KeyCode::Esc => model.filter.clear(),
        _ => {}
    }
}

fn turn(model: &mut Model, by: usize) {
    let next = (model.view as usize + by) % View::ALL.len();
    model.show(View::ALL[next]);
}

fn open_or_close(model: &mut Model, pane: Pane) {
    let is_open = model.pane.as_ref() == Some(&pane);
    model.open((!is_open).then_some(pane));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::sample;
    use super::*;
    use crate::commands::why::About;

    fn looking_at(sockets: usize) -> Model {
        let mut model = Model::new();
        model.receive(Duration::ZERO, Ok(Box::new(sample::status(sockets))));
        model
    }

    fn type_in(model: &mut Model, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            assert_eq!(press(model, code.into()), KeyOutcome::GoOn, "{key:?}");
        }
    }

    #[test]
    fn the_chosen_row_stays_the_chosen_one_however_rows_are_sorted() {
        let mut model = looking_at(20);
        type_in(&mut model, "jjj");
        let chosen = |model: &Model| {
            let listing = model.listing();
            listing.table.row(listing.rows[listing.chosen.unwrap()]).id()
        };
        let before = chosen(&model);
        for _ in 0..8 {
            type_in(&mut model, "s");
            assert_eq!(chosen(&model), before);
            type_in(&mut model, "r");
            assert_eq!(chosen(&model), before);
        }
    }

    #[test]
    fn a_filter_takes_letters_that_are_commands_elsewhere_and_is_forgotten_by_esc() {
        let mut model = looking_at(20);
        type_in(&mut model, "/q7\n");
        assert_eq!((model.filter.as_str(), model.is_typing), ("q7", false));
        assert_eq!(model.listing().rows.len(), 0);
        type_in(&mut model, "\u{1b}");
        assert_eq!(model.listing().rows.len(), 20);
        type_in(&mut model, &format!("/{}", "x".repeat(10_000)));
        assert!(model.filter.len() < 100, "what is typed is bounded");
    }

    #[test]
    fn why_asks_for_the_chosen_row_and_closes_again() {
        let mut model = looking_at(3);
        type_in(&mut model, "j\n");
        let Some(Pane::Why {
            about: About::Socket(_),
            ..
        }) = &model.pane
        else {
            panic!("{:?}", model.pane)
        };
        type_in(&mut model, "jj");
        assert_eq!(model.scrolled, 2, "keys move what is open");
        type_in(&mut model, "\u{1b}");
        assert_eq!(model.pane, None);
        type_in(&mut looking_at(0), "\nws/\n12345dhp");
    }

    #[test]
    fn q_and_ctrl_c_leave() {
        let mut model = looking_at(1);
        assert_eq!(press(&mut model, KeyCode::Char('q').into()), KeyOutcome::Leave);
        type_in(&mut model, "/");
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(
            press(&mut model, ctrl_c),
            KeyOutcome::Leave,
            "even while something is typed"
        );
    }
}
