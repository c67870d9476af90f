// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bands of the preferred link's queue, beside whatever else is looked at.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::queue::of_link;
use crate::commands::top::model::Model;
use crate::commands::top::table::{Table as _, VisibleRows};
use crate::commands::top::theme::Theme;

/// Lines that it takes; none where nothing is counted.
pub fn lines(model: &Model) -> u16 {
    let links = model.latest.iter().flat_map(|status| &status.network.links).take(1);
    let rows: usize = links.map(|link| of_link(link, &model.history).len()).sum();
    if rows == 0 { 0 } else { rows as u16 + 1 }
}

pub fn draw(model: &Model, theme: &Theme, area: Rect, buffer: &mut Buffer) {
    let Some(status) = &model.latest else { return };
    let first = status.network.links.get(..1).unwrap_or_default();
    let table = super::queue::table(first, &model.history);
    let rows: Vec<usize> = (0..table.len()).collect();
    let seen = VisibleRows {
        rows: &rows,
        chosen: None,
        sorted_by: None,
    };
    table.draw(&seen, theme, area, buffer);
}
