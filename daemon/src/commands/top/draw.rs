// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A screen of a model: a pure function, at any size. What has no room is left out, the least important first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::model::{Listing, Model, View};
use super::table::VisibleRows;
use super::theme::Theme;
use super::widget::{bands, footer, pane, summary, tabs};

const FOOTER_LINES: u16 = 2;
/// From here on the bands are shown beside other views.
const LINES_WITH_BANDS: u16 = 20;

pub fn screen(model: &Model, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    let listing = model.listing();
    let mut left = area;
    let summary_lines = match area.height {
        0..=7 => 1,
        8..=13 => 2,
        _ => 4,
    };
    summary::draw(model, theme, top_of(&mut left, summary_lines), buffer);
    let footer_lines = match (model.is_printed, area.height) {
        (true, _) => 0,
        (false, lines) if lines < 10 || model.pane.is_some() => 1,
        (false, _) => FOOTER_LINES,
    };
    let footer = bottom_of(&mut left, footer_lines);
    footer::draw(model, &listing, theme, footer, buffer);
    if area.height >= LINES_WITH_BANDS && model.view != View::Queue && model.pane.is_none() {
        bands::draw(model, theme, top_of(&mut left, bands::lines(model)), buffer);
    }
    let tabs = top_of(&mut left, 1);
    if tabs.height > 0 {
        tabs::draw(model, &listing, theme, tabs, buffer);
    }
    if let Some(pane) = &model.pane {
        let lines = (left.height * 2 / 3).max(5);
        pane::draw(model, pane, theme, bottom_of(&mut left, lines), buffer);
    }
    table(&listing, theme, left, buffer);
}

/// The part of the rows that has the chosen one in its middle.
fn table(listing: &Listing<'_>, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    let room = usize::from(area.height.saturating_sub(1));
    if room == 0 {
        return;
    }
    let chosen = listing.chosen.unwrap_or(0);
    let last_first = listing.rows.len().saturating_sub(room);
    let first = chosen.saturating_sub(room / 2).min(last_first);
    let end = (first + room).min(listing.rows.len());
    let seen = VisibleRows {
        rows: &listing.rows[first..end],
        chosen: listing.chosen.map(|chosen| chosen - first),
        sorted_by: listing.sorted_by,
    };
    listing.table.draw(&seen, theme, area, buffer);
}

fn top_of(left: &mut Rect, lines: u16) -> Rect {
    let taken = Rect {
        height: lines.min(left.height),
        ..*left
    };
    left.y += taken.height;
    left.height -= taken.height;
    taken
}

fn bottom_of(left: &mut Rect, lines: u16) -> Rect {
    let height = lines.min(left.height);
    left.height -= height;
    Rect {
        y: left.bottom(),
        height,
        ..*left
    }
}

#[cfg(test)]
mod tests;
