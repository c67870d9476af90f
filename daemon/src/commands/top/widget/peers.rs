// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of peers, by what they report of themselves.

use giveway_engine::status::PeerView;

use crate::commands::top::table::{Alignment, Column, RowId, Rows, TableRow};
use crate::commands::top::text::{count, time};
use crate::commands::why::About;

pub struct PeerRow<'a>(&'a PeerView);

pub fn table(peers: &[PeerView]) -> Rows<PeerRow<'_>> {
    Rows {
        columns: columns(),
        rows: peers.iter().map(PeerRow).collect(),
    }
}

impl PeerRow<'_> {
    fn is_authenticated(&self) -> &'static str {
        if self.0.authenticated { "yes" } else { "not yet" }
    }

    /// Of its connections, how many are of each class.
    fn classes(&self) -> String {
        let of = |class: giveway_engine::model::Class| {
            let count = self.0.senders.iter().filter(|sender| sender.class == class).count();
            (count > 0).then(|| format!("{count} {}", class.name()))
        };
        giveway_engine::model::Class::ALL
            .into_iter()
            .filter_map(of)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl TableRow for PeerRow<'_> {
    fn id(&self) -> RowId {
        RowId::Text(self.0.session.clone())
    }

    fn has(&self, words: &str) -> bool {
        self.0.address.to_string().contains(words)
            || self.classes().contains(words)
            || self.is_authenticated().contains(words)
    }

    /// Nothing is changed on it.
    fn about(&self) -> Option<About> {
        None
    }

    fn detail(&self) -> String {
        let (address, session) = (self.0.address, &self.0.session);
        format!("{address}, session {session}; what it says moves the caps of this device within their limits only")
    }
}

fn columns<'a>() -> Vec<Column<PeerRow<'a>>> {
    vec![
        Column {
            title: "ADDRESS",
            least: 15,
            most: 39,
            rank: 0,
            side: Alignment::End,
            cell: |row, _, _| row.0.address.to_string().into(),
            order: Some(|a, b| a.0.address.cmp(&b.0.address)),
        },
        Column {
            title: "SENDERS",
            least: 7,
            most: 7,
            rank: 1,
            side: Alignment::Right,
            cell: |row, _, _| count(row.0.senders.len() as u64).into(),
            order: Some(|a, b| b.0.senders.len().cmp(&a.0.senders.len())),
        },
        Column {
            title: "LAST HEARD",
            least: 5,
            most: 6,
            rank: 2,
            side: Alignment::Right,
            cell: |row, _, _| time(row.0.age_ms.saturating_mul(1_000)).into(),
            order: Some(|a, b| b.0.age_ms.cmp(&a.0.age_ms)),
        },
        Column {
            title: "INTERVAL",
            least: 5,
            most: 6,
            rank: 4,
            side: Alignment::Right,
            cell: |row, _, _| time(row.0.interval_ms.saturating_mul(1_000)).into(),
            order: None,
        },
        Column {
            title: "AUTHENTICATED",
            least: 8,
            most: 8,
            rank: 3,
            side: Alignment::Left,
            cell: |row, _, _| row.is_authenticated().into(),
            order: Some(|a, b| b.0.authenticated.cmp(&a.0.authenticated)),
        },
        Column {
            title: "CLASSES",
            least: 10,
            most: 60,
            rank: 5,
            side: Alignment::Left,
            cell: |row, _, _| row.classes().into(),
            order: None,
        },
    ]
}
