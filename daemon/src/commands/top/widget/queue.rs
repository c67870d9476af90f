// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of the queues' bands, in the order of service, those of each link together.

use std::collections::VecDeque;

use giveway_engine::queue::links::LinkView;
use giveway_engine::queue::traffic::{Band, ByQdisc, Served};

use crate::commands::top::history::{RateHistory, Track};
use crate::commands::top::table::{Alignment, Cell, Column, RowId, Rows, TableRow};
use crate::commands::top::text::{bits_per_s, bytes, count, time};
use crate::commands::why::About;

pub struct BandRow<'a> {
    link: &'a LinkView,
    name: &'static str,
    band: &'a Band,
    track: Option<&'a Track>,
}

pub fn table<'a>(links: &'a [LinkView], history: &'a RateHistory) -> Rows<BandRow<'a>> {
    Rows {
        columns: columns(),
        rows: links.iter().flat_map(|link| of_link(link, history)).collect(),
    }
}

/// None where nothing is counted on it.
pub fn of_link<'a>(link: &'a LinkView, history: &'a RateHistory) -> Vec<BandRow<'a>> {
    let bands = link
        .queue
        .counters
        .iter()
        .flat_map(|counters| counters.bands.in_order());
    let row = |(place, (name, band))| BandRow {
        link,
        name,
        band,
        track: history.band(link.ifindex, place),
    };
    bands.enumerate().map(row).collect()
}

impl BandRow<'_> {
    fn served(&self, shown: impl FnOnce(&Served) -> String) -> Cell {
        self.band.served.as_ref().map_or("-".to_owned(), shown).into()
    }

    /// What only the BPF qdisc tells.
    fn more(&self, shown: impl FnOnce(&ByQdisc) -> String) -> Cell {
        let more = self.band.served.as_ref().and_then(|served| served.more.as_ref());
        more.map_or("-".to_owned(), shown).into()
    }
}

impl TableRow for BandRow<'_> {
    fn id(&self) -> RowId {
        RowId::Text(format!("{} {}", self.link.ifindex, self.name))
    }

    fn has(&self, words: &str) -> bool {
        self.name.contains(words) || self.link.interface.to_lowercase().contains(words)
    }

    fn about(&self) -> Option<About> {
        Some(About::Word(self.link.interface.clone()))
    }

    fn detail(&self) -> String {
        let found = self
            .link
            .queue
            .estimate
            .map_or(String::new(), |rate| format!("; {}", rate.shown()));
        format!("{}: {}{found}", self.link.interface, self.link.queue.reason)
    }
}

fn columns<'a>() -> Vec<Column<BandRow<'a>>> {
    let mut columns = Vec::from(of_names());
    columns.push(Column {
        title: "TREND",
        least: 6,
        most: 32,
        rank: 8,
        side: Alignment::Left,
        cell: |row, theme, columns| {
            let none = VecDeque::new();
            theme.sparkline(row.track.map_or(&none, Track::rates), columns).into()
        },
        order: None,
    });
    columns.extend(of_numbers());
    columns
}

fn of_names<'a>() -> [Column<BandRow<'a>>; 2] {
    [
        Column {
            title: "LINK",
            least: 8,
            most: 15,
            rank: 2,
            side: Alignment::Left,
            cell: |row, _, _| row.link.interface.as_str().into(),
            order: None,
        },
        Column {
            title: "BAND",
            least: 11,
            most: 11,
            rank: 0,
            side: Alignment::Left,
            cell: |row, _, _| row.name.into(),
            order: None,
        },
    ]
}

fn of_numbers<'a>() -> [Column<BandRow<'a>>; 9] {
    let number = |title: &'static str, rank, cell| Column {
        title,
        least: (title.len() as u16).max(5),
        most: 7,
        rank,
        side: Alignment::Right,
        cell,
        order: None,
    };
    [
        number("bit/s", 0, |row: &BandRow<'a>, _: &_, _| {
            bits_per_s(row.track.and_then(Track::rate)).into()
        }),
        number("BACKLOG", 1, |row, _, _| {
            row.served(|served| count(served.backlog_packets))
        }),
        number("BYTES", 6, |row, _, _| row.served(|served| bytes(served.backlog_bytes))),
        number("p50", 5, |row, _, _| row.more(|more| time(more.sojourn_p50_us))),
        number("p99", 3, |row, _, _| row.more(|more| time(more.sojourn_p99_us))),
        number("max", 7, |row, _, _| row.more(|more| time(more.sojourn_max_us))),
        number("FULL", 4, |row, _, _| row.served(|served| count(served.dropped_full))),
        number("CODEL", 9, |row, _, _| row.more(|more| count(more.dropped_sojourn))),
        number("LATE", 3, |row, _, _| row.more(|more| count(more.dropped_late))),
    ]
}
