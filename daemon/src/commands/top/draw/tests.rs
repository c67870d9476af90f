// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a screen shows, at every size and of whatever others have chosen.

use std::time::{Duration, Instant};

use giveway_engine::status::Status;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier};

use super::super::keys::press;
use super::super::sample;
use super::*;

const LOOK: Theme = Theme {
    colour: true,
    unicode: true,
};

fn looking_at(status: Status) -> Model {
    let mut model = Model::new();
    let mut later = status.clone();
    model.receive(Duration::ZERO, Ok(Box::new(status)));
    later.network.taken_t_ns += 1_000_000_000;
    for view in &mut later.network.flows {
        view.flow.acked_bytes += 125_000 * view.flow.cookie.0;
    }
    model.receive(Duration::from_secs(1), Ok(Box::new(later)));
    model
}

fn drawn(model: &Model, theme: &Theme, columns: u16, lines: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal
        .draw(|frame| screen(model, theme, frame.area(), frame.buffer_mut()))
        .unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let rows = buffer.content.chunks(buffer.area.width.into());
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect()).collect()
}

fn type_in(model: &mut Model, keys: &[KeyCode]) {
    for key in keys {
        press(model, (*key).into());
    }
}

#[test]
fn a_socket_has_all_that_matters_at_80_columns() {
    let model = looking_at(sample::status(2));
    let shown = lines(&drawn(&model, &LOOK, 80, 24));
    let titles = shown.iter().find(|line| line.contains("PROCESS")).unwrap();
    for title in [
        "REMOTE", "CLASS", "CWND", "CAP", "RTT", "SEND-Q", "bit/s▼", "TREND", "STATE",
    ] {
        assert!(titles.contains(title), "{title}: {titles}");
    }
    let second = shown.iter().find(|line| line.contains("worker1/10")).unwrap();
    for value in ["192.0.2.1:2", "stream", "11", "12ms", "4.0kB", "2.0M", "█", "open"] {
        assert!(second.contains(value), "{value}: {second}");
    }
    let all = shown.join("\n");
    for part in [
        "wlan0",
        "up 1 h 06 min",
        "1 peer",
        "2 sending devices",
        "background",
        "[1 Sockets]",
        "q quit",
        "1 warning",
    ] {
        assert!(all.contains(part), "{part}:\n{all}");
    }
}

#[test]
fn a_limit_has_a_row_for_each_direction_with_what_it_allows_and_lets_through() {
    let mut model = looking_at(sample::status(2));
    type_in(&mut model, &[KeyCode::Char('6')]);
    let shown = lines(&drawn(&model, &LOOK, 80, 24));
    let row = |way: &str| {
        let line = shown
            .iter()
            .find(|line| line.contains("50-mine.toml:3") && line.contains(way));
        line.unwrap_or_else(|| panic!("{way}:\n{}", shown.join("\n")))
    };
    for value in ["2.0M", "1", "-"] {
        assert!(row("upload").contains(value), "{value}: {}", row("upload"));
    }
    for value in ["8.0M", "7.5M", "4", "5.0MB", "6.0kB", "17"] {
        assert!(row("download").contains(value), "{value}: {}", row("download"));
    }
    let tabs = shown.iter().find(|line| line.contains("[6 Limits]")).unwrap();
    assert!(tabs.contains("2 rows by LIMIT"), "{tabs}");
}

#[test]
fn nothing_is_too_narrow_too_high_or_too_empty_to_be_drawn() {
    let mut models = vec![
        Model::new(),
        looking_at(sample::status(0)),
        looking_at(sample::status(300)),
    ];
    for model in &mut models {
        for view in View::ALL {
            model.show(view);
            for key in ["", "\n", "d", "h"] {
                type_in(model, &key.chars().map(|_| KeyCode::Enter).collect::<Vec<_>>());
                type_in(model, &key.chars().map(KeyCode::Char).collect::<Vec<_>>());
                for (columns, lines) in [
                    (1, 1),
                    (2, 50),
                    (10, 4),
                    (20, 10),
                    (39, 12),
                    (80, 24),
                    (300, 5),
                    (400, 200),
                ] {
                    drawn(model, &LOOK, columns, lines);
                }
                model.close();
            }
        }
    }
}

#[test]
fn what_a_process_is_called_changes_nothing_but_its_own_cell() {
    let names = [
        "\u{1b}[2J\u{7}x",
        "a\nb\tc\r",
        "日本語日本語日本語日本語",
        "\u{202e}evil",
        "e\u{301}\u{301}\u{301}\u{301}",
        "👨‍👩‍👧‍👦👨‍👩‍👧‍👦",
        "\u{200b}\u{200b}",
    ];
    let plain = looking_at(sample::status(1));
    let expected = lines(&drawn(&plain, &LOOK, 80, 24));
    for name in names {
        let mut status = sample::status(1);
        let view = &mut status.network.flows[0];
        view.flow.owner.as_mut().unwrap().command = name.to_owned();
        view.unit = Some(name.repeat(100));
        view.class_reason = name.repeat(100);
        status.daemon.warnings = vec![name.repeat(100)];
        status.changes[0].change.reason = name.repeat(100);
        let mut model = looking_at(status);
        let found = lines(&drawn(&model, &LOOK, 80, 24));
        for (found, expected) in found
            .iter()
            .zip(&expected)
            .filter(|(_, line)| !line.contains("worker0"))
        {
            assert_eq!(found, expected, "{name:?}");
        }
        type_in(&mut model, &[KeyCode::Enter]);
        let with_why = lines(&drawn(&model, &LOOK, 80, 24));
        let all = found.into_iter().chain(with_why).collect::<String>();
        assert!(
            !all.chars().any(|c| c.is_control() || crate::words::misleads(c)),
            "{all:?}"
        );
    }
}

#[test]
fn without_a_queue_there_is_no_table_of_bands() {
    let mut status = sample::status(2);
    let titles = |status: Status| {
        let all = lines(&drawn(&looking_at(status), &LOOK, 80, 24)).concat();
        all.contains("BAND") || all.contains("LATE")
    };
    assert!(titles(status.clone()));
    status.network.links.clear();
    assert!(!titles(status));
}

#[test]
fn why_says_what_giveway_why_says() {
    let mut model = looking_at(sample::status(1));
    type_in(&mut model, &[KeyCode::Enter]);
    let shown = lines(&drawn(&model, &LOOK, 100, 30)).join(" ");
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "(latest of 2)",
        "cwnd cap none -> 43 segments; rule fixed",
        "two devices share",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_said_above_what_it_said_last() {
    let mut model = looking_at(sample::status(1));
    for second in [4, 5, 9] {
        model.receive(Duration::from_secs(second), Err("it does not answer".to_owned()));
    }
    let shown = lines(&drawn(&model, &LOOK, 80, 24));
    assert!(shown[0].contains("NO ANSWER"), "{}", shown[0]);
    assert!(
        shown[1].contains("for 5 s: it does not answer; what is below is old"),
        "{}",
        shown[1]
    );
    assert!(shown.iter().any(|line| line.contains("worker0/1000")), "{shown:?}");
    model.receive(Duration::from_secs(10), Ok(Box::new(sample::status(1))));
    let shown = lines(&drawn(&model, &LOOK, 80, 24)).join("\n");
    assert!(!shown.contains("NO ANSWER"), "{shown}");
}

#[test]
fn without_colour_the_same_words_are_there_and_no_colour() {
    let mut model = looking_at(sample::status(5));
    model.receive(Duration::from_secs(2), Err("gone".to_owned()));
    let colourless = Theme { colour: false, ..LOOK };
    let (with, without) = (drawn(&model, &LOOK, 80, 24), drawn(&model, &colourless, 80, 24));
    assert_eq!(lines(&with), lines(&without));
    let is_plain = |cell: &ratatui::buffer::Cell| cell.fg == Color::Reset && cell.bg == Color::Reset;
    assert!(without.content.iter().all(is_plain));
    assert!(!with.content.iter().all(is_plain));
    assert!(
        without
            .content
            .iter()
            .any(|cell| cell.modifier.contains(Modifier::REVERSED))
    );
}

#[test]
fn where_a_colour_is_set_so_is_its_background() {
    let mut model = looking_at(sample::status(5));
    model.receive(Duration::from_secs(2), Err("gone".to_owned()));
    for cell in drawn(&model, &LOOK, 200, 60).content {
        let is_own = (cell.fg == Color::Reset, cell.bg == Color::Reset);
        assert!(
            is_own.0 == is_own.1,
            "it is read on a dark terminal or on a light one only: {cell:?}"
        );
    }
}

#[test]
fn without_unicode_only_ascii_is_drawn() {
    let mut model = looking_at(sample::status(50));
    let ascii = Theme { unicode: false, ..LOOK };
    for key in ['\0', 'h', 'd'] {
        type_in(&mut model, &[KeyCode::Char(key)]);
        for columns in [80, 200] {
            let shown = lines(&drawn(&model, &ascii, columns, 40)).concat();
            assert!(shown.is_ascii(), "{shown}");
        }
    }
}

#[test]
fn ten_thousand_sockets_are_drawn_in_the_time_of_a_key_press() {
    let model = looking_at(sample::status(10_000));
    drawn(&model, &LOOK, 80, 24);
    let begun = Instant::now();
    let rounds = 5;
    for _ in 0..rounds {
        drawn(&model, &LOOK, 80, 24);
    }
    let each = begun.elapsed() / rounds;
    assert!(each < Duration::from_millis(200), "{each:?}");
}
