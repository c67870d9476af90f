// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A table of which a screen shows a part. Input: rows, and columns that say what a cell is, how rows are ordered by it, and how much
//! room it needs. Output: cells in a buffer. Cells are made of the rows that are seen alone, however many there are.

use std::cmp::Ordering;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::text::{clean, fitted};
use super::theme::Theme;
use crate::commands::why::About;

/// What tells a row from all others in its table, for as long as it is there.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum RowId {
    Number(u64),
    Text(String),
}

pub trait TableRow {
    fn id(&self) -> RowId;
    /// Whether any of its texts has these words in it, which are in lower case.
    fn has(&self, words: &str) -> bool;
    /// What `giveway why` is asked.
    fn about(&self) -> Option<About>;
    /// What the columns have no room for.
    fn detail(&self) -> String;
}

pub struct Column<R> {
    pub title: &'static str,
    /// It has at least so many columns of the screen, or is not shown ...
    pub least: u16,
    /// ... and more where there is room, to so many.
    pub most: u16,
    /// Those with the highest are left out first.
    pub rank: u8,
    pub side: Alignment,
    pub cell: fn(&R, &Theme, usize) -> Cell,
    /// What matters most comes first.
    pub order: Option<fn(&R, &R) -> Ordering>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Alignment {
    Left,
    Right,
    /// At the left; where it is too long, its end is kept.
    End,
}

#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub text: String,
    pub style: Style,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            style: Style::new(),
        }
    }
}

/// A table of rows of any kind.
pub trait Table {
    fn titles(&self) -> Vec<(&'static str, bool)>;
    fn len(&self) -> usize;
    fn row(&self, row: usize) -> &dyn TableRow;
    fn compare(&self, column: usize, a: usize, b: usize) -> Ordering;
    /// The rows of these numbers, below their titles.
    fn draw(&self, seen: &VisibleRows<'_>, theme: &Theme, area: Rect, buffer: &mut Buffer);
}

/// What of a table is seen.
pub struct VisibleRows<'a> {
    pub rows: &'a [usize],
    /// Among those.
    pub chosen: Option<usize>,
    pub sorted_by: Option<(usize, bool)>,
}

pub struct Rows<R> {
    pub columns: Vec<Column<R>>,
    pub rows: Vec<R>,
}

impl<R: TableRow> Table for Rows<R> {
    fn titles(&self) -> Vec<(&'static str, bool)> {
        let title = |column: &Column<R>| (column.title, column.order.is_some());
        self.columns.iter().map(title).collect()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn row(&self, row: usize) -> &dyn TableRow {
        &self.rows[row]
    }

    fn compare(&self, column: usize, a: usize, b: usize) -> Ordering {
        let order = self.columns.get(column).and_then(|column| column.order);
        order.map_or(Ordering::Equal, |order| order(&self.rows[a], &self.rows[b]))
    }

    fn draw(&self, seen: &VisibleRows<'_>, theme: &Theme, area: Rect, buffer: &mut Buffer) {
        if area.height == 0 {
            return;
        }
        let mut x = area.x;
        for (number, width) in widths(&self.columns, area.width) {
            let column = &self.columns[number];
            let place = |y: u16| Rect::new(x, y, width, 1);
            let with_arrow = match seen.sorted_by {
                Some((by, is_reversed)) if by == number => format!("{}{}", column.title, arrow(theme, is_reversed)),
                _ => column.title.to_owned(),
            };
            // The arrow may stand between two columns.
            let beyond = u16::from(x + width < area.right());
            let is_too_long = with_arrow.chars().count() > usize::from(width + beyond);
            let title = if is_too_long { column.title } else { &with_arrow };
            let heading = Rect::new(x, area.y, width.max(title.chars().count() as u16), 1);
            put(title, theme.heading(), column.side, theme, heading, buffer);
            for (line, row) in seen
                .rows
                .iter()
                .enumerate()
                .take(usize::from(area.height).saturating_sub(1))
            {
                let cell = (column.cell)(&self.rows[*row], theme, usize::from(width));
                let y = area.y + 1 + line as u16;
                put(&clean(&cell.text), cell.style, column.side, theme, place(y), buffer);
            }
            x += width + 1;
        }
        if let Some(chosen) = seen.chosen.filter(|chosen| chosen + 1 < usize::from(area.height)) {
            let line = Rect::new(area.x, area.y + 1 + chosen as u16, area.width, 1);
            // It has the colours of the terminal, turned around, whatever its cells have.
            buffer.set_style(line, Style::reset().patch(theme.chosen()));
        }
    }
}

/// Text in one line of the screen.
fn put(text: &str, style: Style, side: Alignment, theme: &Theme, place: Rect, buffer: &mut Buffer) {
    let shown = fitted(text, place.width, side == Alignment::End, theme.ellipsis());
    let padding = match side {
        Alignment::Right => usize::from(place.width).saturating_sub(shown.chars().count()),
        _ => 0,
    };
    buffer.set_stringn(
        place.x + padding as u16,
        place.y,
        shown,
        usize::from(place.width) - padding,
        style,
    );
}

pub fn arrow(theme: &Theme, is_reversed: bool) -> &'static str {
    match (theme.unicode, is_reversed) {
        (true, false) => "▼",
        (true, true) => "▲",
        (false, false) => "v",
        (false, true) => "^",
    }
}

/// The columns that are shown, by number, with the width of each.
fn widths<R>(columns: &[Column<R>], room: u16) -> Vec<(usize, u16)> {
    let mut shown: Vec<(usize, u16)> = columns.iter().map(|column| column.least).enumerate().collect();
    let needed = |shown: &[(usize, u16)]| shown.iter().map(|(_, width)| width + 1).sum::<u16>().saturating_sub(1);
    while needed(&shown) > room {
        let rank = |place: &usize| columns[shown[*place].0].rank;
        let Some(last) = (0..shown.len()).max_by_key(rank) else {
            break;
        };
        if rank(&last) == 0 {
            break;
        }
        shown.remove(last);
    }
    let mut left = room.saturating_sub(needed(&shown));
    for (number, width) in &mut shown {
        let more = left.min(columns[*number].most.saturating_sub(*width));
        *width += more;
        left -= more;
    }
    // What may never be left out is cut where there is no room at all.
    let mut room = room;
    for (_, width) in &mut shown {
        *width = (*width).min(room);
        room = room.saturating_sub(*width + 1);
    }
    shown.retain(|(_, width)| *width > 0);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(least: u16, most: u16, rank: u8) -> Column<()> {
        Column {
            title: "",
            least,
            most,
            rank,
            side: Alignment::Left,
            cell: |(), _, _| Cell::default(),
            order: None,
        }
    }

    #[test]
    fn columns_go_by_rank_and_the_others_share_the_room() {
        let columns = [column(4, 8, 0), column(5, 5, 2), column(3, 100, 1)];
        assert_eq!(widths(&columns, 14), [(0, 4), (1, 5), (2, 3)]);
        assert_eq!(widths(&columns, 13), [(0, 8), (2, 4)]);
        assert_eq!(widths(&columns, 40), [(0, 8), (1, 5), (2, 25)]);
        assert_eq!(widths(&columns, 3), [(0, 3)]);
        assert_eq!(widths(&columns, 0), []);
    }
}
