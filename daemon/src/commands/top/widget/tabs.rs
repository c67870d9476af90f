// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which view is looked at, and how its rows are chosen and sorted.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::line;
use crate::commands::counted;
use crate::commands::top::model::{Listing, Model, View};
use crate::commands::top::table::arrow;
use crate::commands::top::theme::Theme;

pub fn draw(model: &Model, listing: &Listing<'_>, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    let mut x = area.x;
    for (number, view) in View::ALL.into_iter().enumerate() {
        let (open, close) = if view == model.view { ("[", "]") } else { (" ", "") };
        let text = format!("{open}{} {}{close}", number + 1, view.name());
        let style = if view == model.view {
            theme.chosen()
        } else {
            theme.title()
        };
        let width = (text.len() as u16).min(area.right().saturating_sub(x));
        line(&text, style, theme, Rect::new(x, area.y, width, 1), buffer);
        x += width;
    }
    let shown = match (model.filter.is_empty(), listing.rows.len()) {
        (true, rows) => counted(rows, "row"),
        (false, rows) => format!("{rows} of {}", counted(listing.table.len(), "row")),
    };
    // The column itself may have no room.
    let rows = match listing.sorted_by {
        Some((_, is_reversed)) => {
            let by = model.browsing().sorted_by;
            format!(" {shown} by {by}{}", arrow(theme, is_reversed))
        }
        None => format!(" {shown}"),
    };
    let place = Rect::new(x, area.y, area.right().saturating_sub(x), 1);
    line(&rows, theme.title(), theme, place, buffer);
}
