// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of limits: one row for each direction of each.

use std::cmp::Ordering;

use giveway_engine::downlink::Passing;
use giveway_engine::enforcement::limit_use::{LimitUse, WayUse};

use crate::commands::top::table::{Alignment, Cell, Column, RowId, Rows, TableRow};
use crate::commands::top::text::{bits_per_s, bytes, count};
use crate::commands::top::theme::Theme;
use crate::commands::why::About;

pub struct LimitRow<'a> {
    of: &'a str,
    direction: &'static str,
    way: &'a WayUse,
}

type Order<'a> = fn(&LimitRow<'a>, &LimitRow<'a>) -> Ordering;

pub fn table(limits: &[LimitUse]) -> Rows<LimitRow<'_>> {
    let rows = limits.iter().flat_map(|limit| {
        let row = move |(direction, way)| LimitRow {
            of: &limit.of,
            direction,
            way,
        };
        limit.ways().map(row)
    });
    Rows {
        columns: columns(),
        rows: rows.collect(),
    }
}

impl LimitRow<'_> {
    fn throughput_mbit(&self) -> f64 {
        self.way.queue.map_or(0.0, |queue| queue.throughput_mbit)
    }

    fn of_queue(&self, shown: impl FnOnce(&Passing) -> String) -> Cell {
        self.way.queue.as_ref().map_or("-".to_owned(), shown).into()
    }
}

impl TableRow for LimitRow<'_> {
    fn id(&self) -> RowId {
        RowId::Text(format!("{} {}", self.of, self.direction))
    }

    fn has(&self, words: &str) -> bool {
        self.of.to_lowercase().contains(words) || self.direction.contains(words)
    }

    /// Its flows are asked, in their own view.
    fn about(&self) -> Option<About> {
        None
    }

    fn detail(&self) -> String {
        format!("{}, {}", self.of, self.direction)
    }
}

// Long: a table, an entry a column.
fn columns<'a>() -> Vec<Column<LimitRow<'a>>> {
    let number =
        |title: &'static str, rank, cell: fn(&LimitRow<'a>, &Theme, usize) -> Cell, order: Option<Order<'a>>| Column {
            title,
            least: (title.len() as u16).max(7),
            most: 10,
            rank,
            side: Alignment::Right,
            cell,
            order,
        };
    vec![
        Column {
            title: "OF",
            least: 16,
            most: 60,
            rank: 0,
            side: Alignment::Left,
            cell: |row: &LimitRow<'a>, _, _| row.of.into(),
            order: Some(|a, b| a.of.cmp(b.of)),
        },
        Column {
            title: "DIRECTION",
            least: 9,
            most: 9,
            rank: 0,
            side: Alignment::Left,
            cell: |row, _, _| row.direction.into(),
            order: Some(|a, b| a.direction.cmp(b.direction)),
        },
        number(
            "LIMIT",
            1,
            |row, _, _| bits_per_s(Some(row.way.limit_mbit * 1e6)).into(),
            Some(|a, b| b.way.limit_mbit.total_cmp(&a.way.limit_mbit)),
        ),
        number(
            "THROUGHPUT",
            1,
            |row, _, _| row.of_queue(|queue| bits_per_s(Some(queue.throughput_mbit * 1e6))),
            Some(|a, b| b.throughput_mbit().total_cmp(&a.throughput_mbit())),
        ),
        number(
            "FLOWS",
            2,
            |row, _, _| count(row.way.flows as u64).into(),
            Some(|a, b| b.way.flows.cmp(&a.way.flows)),
        ),
        number(
            "PASSED",
            3,
            |row, _, _| row.of_queue(|queue| bytes(queue.passed.passed_bytes)),
            None,
        ),
        number(
            "BACKLOG",
            4,
            |row, _, _| row.of_queue(|queue| bytes(queue.passed.backlog_bytes)),
            None,
        ),
        number(
            "DROPPED",
            5,
            |row, _, _| row.of_queue(|queue| count(queue.passed.dropped_packets)),
            None,
        ),
    ]
}
