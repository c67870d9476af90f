// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last lines: what the columns have no room for of the chosen row, and which keys there are, or the filter while it is typed.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::line;
use crate::commands::top::model::{Listing, Model};
use crate::commands::top::theme::Theme;

const KEYS: &str = "q quit  h help  1-6 view  Enter why  s sort  r reverse  / filter  p pause";

pub fn draw(model: &Model, listing: &Listing<'_>, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    let chosen = listing
        .chosen
        .map(|chosen| listing.table.row(listing.rows[chosen]).detail());
    let keys = match (model.is_typing, model.filter.as_str()) {
        (true, filter) => format!("filter: {filter}_   Enter keeps it, Esc forgets it"),
        (false, "") => KEYS.to_owned(),
        (false, filter) => format!("filter: {filter} (Esc forgets it)  {KEYS}"),
    };
    let lines = [(chosen.unwrap_or_default(), Style::new()), (keys, theme.title())];
    let skipped = lines.len().saturating_sub(area.height.into());
    for (y, (text, style)) in (area.y..area.bottom()).zip(lines.into_iter().skip(skipped)) {
        line(&text, style, theme, Rect::new(area.x, y, area.width, 1), buffer);
    }
}
