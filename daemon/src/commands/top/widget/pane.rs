// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is opened below the table: the reasons of a row, what does not work, or the keys.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::line;
use crate::commands::top::keys::KEYS;
use crate::commands::top::model::{Model, Pane};
use crate::commands::top::text::clean;
use crate::commands::top::theme::Theme;
use crate::commands::why::Explanation;
use crate::commands::wrapped;

const KEY_COLUMNS: usize = 16;

pub fn draw(model: &Model, pane: &Pane, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let (title, texts) = content(model, pane);
    let rows: Vec<String> = texts.iter().flat_map(|text| hanging(text, area.width)).collect();
    let room = usize::from(area.height) - 1;
    let above = usize::from(model.scrolled).min(rows.len().saturating_sub(room));
    let more = match rows.len() - above {
        left if left > room => format!(" ({} lines more: Down)", left - room),
        _ => String::new(),
    };
    let heading = format!("{}{more}{title} ", theme.dash().repeat(2));
    let rule = theme.dash().repeat(usize::from(area.width));
    let place = |y| Rect::new(area.x, y, area.width, 1);
    line(&rule, Style::new(), theme, place(area.y), buffer);
    line(&heading, theme.title(), theme, place(area.y), buffer);
    for (y, row) in (area.y + 1..area.bottom()).zip(rows.iter().skip(above)) {
        line(row, Style::new(), theme, place(y), buffer);
    }
}

/// A title, and texts that are longer than a line.
fn content(model: &Model, pane: &Pane) -> (String, Vec<String>) {
    let Some(status) = &model.latest else {
        return (" no answer yet".to_owned(), help());
    };
    match pane {
        Pane::Why { about, title } => {
            let mut lines = Explanation::of(status, about).lines();
            if lines.is_empty() {
                lines.push("giveway has changed nothing of it, or does not remember it any more".to_owned());
            }
            (format!(" why: {title}"), lines)
        }
        Pane::Warnings if status.daemon.warnings.is_empty() => {
            (" what does not work".to_owned(), vec!["everything works".to_owned()])
        }
        Pane::Warnings => (" what does not work".to_owned(), status.daemon.warnings.clone()),
        Pane::Help => (" keys; Esc closes this".to_owned(), help()),
    }
}

fn help() -> Vec<String> {
    let keys = KEYS.iter().map(|(key, does)| format!("{key:<KEY_COLUMNS$}{does}"));
    let legend = [
        "`>` marks a sender, `!` a conflict: a setting that another tool has set, which giveway does not override.",
        "CWND and CAP are segments; SEND-Q is unacknowledged bytes; UP is payload acknowledged, DOWN payload received, bit/s.",
    ];
    keys.chain(legend.map(str::to_owned)).collect()
}

fn hanging(text: &str, columns: u16) -> Vec<String> {
    // The table of keys keeps its blanks.
    if text.len() <= usize::from(columns) {
        return vec![clean(text)];
    }
    let lines = wrapped(&clean(text), usize::from(columns).saturating_sub(4).max(20));
    let indented = |(number, line): (usize, String)| if number == 0 { line } else { format!("    {line}") };
    lines.into_iter().enumerate().map(indented).collect()
}
