// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a screen is made of, one part a file. Each draws a part of the model, or says which rows and columns its table has; none changes
//! anything.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::text::{clean, fitted};
use super::theme::Theme;

pub mod bands;
pub mod footer;
pub mod limits;
pub mod pane;
pub mod peers;
pub mod priority;
pub mod processes;
pub mod queue;
pub mod sockets;
pub mod summary;
pub mod tabs;

/// Text of any kind in one line.
pub fn line(text: &str, style: Style, theme: &Theme, place: Rect, buffer: &mut Buffer) {
    if place.width > 0 {
        let shown = fitted(&clean(text), place.width, false, theme.ellipsis());
        buffer.set_stringn(place.x, place.y, shown, place.width.into(), style);
    }
}
