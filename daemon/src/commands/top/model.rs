// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is looked at. Input: the daemon's answers, each with its time, and what the user does. Output: the state that a screen is drawn
//! from. It knows neither terminal nor socket.

use std::time::Duration;

use clap::ValueEnum;
use giveway_engine::status::Status;

use super::history::RateHistory;
use super::table::{RowId, Table};
use super::widget::{limits, peers, priority, processes, queue, sockets};
use crate::commands::why::About;

/// A filter is typed by hand.
const LONGEST_FILTER: usize = 80;

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum View {
    #[default]
    Sockets,
    Processes,
    Queue,
    Peers,
    Priority,
    Limits,
}

impl View {
    pub const ALL: [Self; 6] = [
        Self::Sockets,
        Self::Processes,
        Self::Queue,
        Self::Peers,
        Self::Priority,
        Self::Limits,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sockets => "Sockets",
            Self::Processes => "Processes",
            Self::Queue => "Queue",
            Self::Peers => "Peers",
            Self::Priority => "Priority",
            Self::Limits => "Limits",
        }
    }

    /// The title of the column that its rows are sorted by.
    fn sorted_by(self) -> &'static str {
        match self {
            Self::Sockets | Self::Processes => "bit/s",
            Self::Queue => "",
            Self::Peers => "ADDRESS",
            Self::Priority => "CPU %",
            Self::Limits => "LIMIT",
        }
    }
}

/// How one view is looked at.
#[derive(Clone, Debug, Default)]
pub struct ViewState {
    pub sorted_by: &'static str,
    pub is_reversed: bool,
    chosen: Option<RowId>,
    /// Where the chosen row stands; another takes its place when it is gone.
    place: usize,
}

/// Beside the table. What of it is above the screen is scrolled away.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Pane {
    Why {
        about: About,
        title: String,
    },
    /// What does not work.
    Warnings,
    Help,
}

/// No answer since.
#[derive(Clone, Debug)]
pub struct FeedFailure {
    pub since: Duration,
    pub reason: String,
}

#[derive(Debug, Default)]
pub struct Model {
    pub view: View,
    views: [ViewState; View::ALL.len()],
    pub filter: String,
    pub is_typing: bool,
    pub is_paused: bool,
    /// Nobody presses keys.
    pub is_printed: bool,
    pub pane: Option<Pane>,
    pub scrolled: u16,
    pub latest: Option<Box<Status>>,
    pub history: RateHistory,
    pub trouble: Option<FeedFailure>,
    /// Of what came last.
    pub now: Duration,
}

/// The rows of a view, filtered and in order.
pub struct Listing<'a> {
    pub table: Box<dyn Table + 'a>,
    pub rows: Vec<usize>,
    /// Among `rows`.
    pub chosen: Option<usize>,
    pub sorted_by: Option<(usize, bool)>,
}

impl Model {
    pub fn new() -> Self {
        let browsing = |view: View| ViewState {
            sorted_by: view.sorted_by(),
            ..ViewState::default()
        };
        Self {
            views: View::ALL.map(browsing),
            ..Self::default()
        }
    }

    /// An answer, or why there is none.
    pub fn receive(&mut self, now: Duration, answer: Result<Box<Status>, String>) {
        self.now = now;
        match answer {
            Ok(status) => {
                self.history.add(&status);
                self.latest = Some(status);
                self.trouble = None;
            }
            Err(reason) => {
                let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
                self.trouble = Some(FeedFailure { since, reason });
            }
        }
    }

    pub fn browsing(&self) -> &ViewState {
        &self.views[self.view as usize]
    }

    fn browsing_mut(&mut self) -> &mut ViewState {
        &mut self.views[self.view as usize]
    }

    pub fn show(&mut self, view: View) {
        self.view = view;
        self.close();
    }

    pub fn listing(&self) -> Listing<'_> {
        let table = self.table();
        let browsing = self.browsing();
        let titles = table.titles();
        let by = titles.iter().position(|(title, _)| *title == browsing.sorted_by);
        let words = self.filter.to_lowercase();
        let mut rows: Vec<usize> = (0..table.len()).collect();
        rows.retain(|row| words.is_empty() || table.row(*row).has(&words));
        if let Some(by) = by {
            rows.sort_by(|a, b| table.compare(by, *a, *b));
        }
        if browsing.is_reversed {
            rows.reverse();
        }
        let at = |id: &RowId| rows.iter().position(|row| table.row(*row).id() == *id);
        let last = rows.len().checked_sub(1);
        let chosen = last.map(|last| {
            let found = browsing.chosen.as_ref().and_then(at);
            found.unwrap_or(browsing.place.min(last))
        });
        Listing {
            rows,
            chosen,
            sorted_by: by.map(|by| (by, browsing.is_reversed)),
            table,
        }
    }

    fn table(&self) -> Box<dyn Table + '_> {
        let Some(status) = &self.latest else {
            return Box::new(sockets::table(&[], &[], &self.history));
        };
        let network = &status.network;
        match self.view {
            View::Sockets => Box::new(sockets::table(&network.flows, &network.datagrams, &self.history)),
            View::Processes => Box::new(processes::table(status, &self.history)),
            View::Queue => Box::new(queue::table(&network.links, &self.history)),
            View::Peers => Box::new(peers::table(&network.peers)),
            View::Limits => Box::new(limits::table(&network.limits)),
            View::Priority => Box::new(priority::table(status.priority.as_ref())),
        }
    }

    /// The row that is so many further down is the chosen one.
    pub fn step(&mut self, rows: isize) {
        let listing = self.listing();
        let Some(last) = listing.rows.len().checked_sub(1) else {
            return;
        };
        let place = listing.chosen.unwrap_or(0).saturating_add_signed(rows).min(last);
        let id = listing.table.row(listing.rows[place]).id();
        drop(listing);
        self.choose(id, place);
    }

    fn choose(&mut self, id: RowId, place: usize) {
        let browsing = self.browsing_mut();
        (browsing.chosen, browsing.place) = (Some(id), place);
    }

    /// By the next column that rows can be sorted by, or the one before.
    pub fn sort_by_next(&mut self, is_backwards: bool) {
        let titles = self.table().titles();
        let mut by: Vec<&'static str> = titles
            .iter()
            .filter(|(_, sorts)| *sorts)
            .map(|(title, _)| *title)
            .collect();
        if is_backwards {
            by.reverse();
        }
        let now = by.iter().position(|title| *title == self.browsing().sorted_by);
        let next = now.map_or(0, |now| (now + 1) % by.len().max(1));
        if let Some(title) = by.get(next).copied() {
            self.browsing_mut().sorted_by = title;
        }
    }

    /// # Errors
    /// Names the columns that there are.
    pub fn sort_by(&mut self, title: &str) -> Result<(), String> {
        let titles = self.table().titles();
        let sortable = titles.iter().filter(|(_, sorts)| *sorts).map(|(title, _)| *title);
        let sortable: Vec<&'static str> = sortable.collect();
        let found = sortable.iter().find(|column| column.eq_ignore_ascii_case(title));
        let names = || sortable.join(", ");
        let found = found.ok_or_else(|| format!("no column `{title}` to sort by; there are: {}", names()))?;
        self.browsing_mut().sorted_by = found;
        Ok(())
    }

    pub fn turn_around(&mut self) {
        let browsing = self.browsing_mut();
        browsing.is_reversed = !browsing.is_reversed;
    }

    pub fn type_into_filter(&mut self, character: char) {
        if self.filter.chars().count() < LONGEST_FILTER && !character.is_control() {
            self.filter.push(character);
        }
    }

    /// Shows what `giveway why` says of the chosen row.
    pub fn ask_why(&mut self) {
        let listing = self.listing();
        let Some(chosen) = listing.chosen else { return };
        let row = listing.table.row(listing.rows[chosen]);
        let pane = row.about().map(|about| Pane::Why {
            about,
            title: row.detail(),
        });
        let id = row.id();
        drop(listing);
        // It stays the chosen one, wherever it goes meanwhile.
        self.choose(id, chosen);
        self.open(pane);
    }

    pub fn open(&mut self, pane: Option<Pane>) {
        (self.pane, self.scrolled) = (pane, 0);
    }

    pub fn close(&mut self) {
        self.open(None);
    }
}
