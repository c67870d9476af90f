// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a screen is made of, one part a file. Each draws a part of the model, or says which rows and columns its table has; none changes
//! anything.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::look::Look;
use super::text::{clean, fitted};

pub mod bands;
pub mod footer;
pub mod limits;
pub mod neighbours;
pub mod pane;
pub mod processes;
pub mod queue;
pub mod realtime;
pub mod sockets;
pub mod summary;
pub mod tabs;

/// Text of any kind in one line.
pub fn line(text: &str, style: Style, look: &Look, place: Rect, buffer: &mut Buffer) {
    if place.width > 0 {
        let shown = fitted(&clean(text), place.width, false, look.ellipsis());
        buffer.set_stringn(place.x, place.y, shown, place.width.into(), style);
    }
}
