// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of processes: those that have sockets, with what these do together, and those that have real-time priority.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use giveway_engine::model::Class;
use giveway_engine::status::{FlowView, Status};

use crate::commands::top::history::RateHistory;
use crate::commands::top::table::{Alignment, Cell, Column, RowId, Rows, TableRow};
use crate::commands::top::text::{bits_per_s, bytes, count, time};
use crate::commands::why::About;

#[derive(Default)]
pub struct ProcessRow {
    /// 0: sockets of which no process is known.
    pid: u32,
    name: String,
    unit: String,
    sockets: u64,
    senders: u64,
    classes: BTreeMap<u8, (Class, u64)>,
    cwnd: u64,
    /// The longest of those that send.
    rtt_us: u32,
    queue_bytes: u64,
    out: f64,
    arrived: f64,
    rates: VecDeque<f32>,
    realtime: String,
}

pub fn table(status: &Status, history: &RateHistory) -> Rows<ProcessRow> {
    let mut rows: BTreeMap<u32, ProcessRow> = BTreeMap::new();
    let network = &status.network;
    for view in network.flows.iter().chain(&network.datagrams) {
        let pid = view.flow.owner.as_ref().map_or(0, |owner| owner.pid);
        rows.entry(pid).or_default().add(view, history);
    }
    let held = status.priority.iter().flat_map(|priority| &priority.processes);
    for held in held.filter(|held| held.granted) {
        let row = rows.entry(held.pid).or_default();
        row.realtime.clone_from(&held.schedule);
        if row.name.is_empty() {
            row.name = held.exe.rsplit('/').next().unwrap_or_default().to_owned();
        }
    }
    for (pid, row) in &mut rows {
        row.pid = *pid;
    }
    Rows {
        columns: columns(),
        rows: rows.into_values().collect(),
    }
}

impl ProcessRow {
    fn add(&mut self, view: &FlowView, history: &RateHistory) {
        let flow = &view.flow;
        if self.sockets == 0 {
            self.name = flow.owner.as_ref().map_or("?", |owner| &owner.command).to_owned();
            self.unit = view.unit.clone().unwrap_or_default();
        }
        self.sockets += 1;
        self.classes.entry(view.class as u8).or_insert((view.class, 0)).1 += 1;
        self.queue_bytes += flow.unsent_bytes + flow.unacked_bytes;
        if view.sender {
            self.senders += 1;
            self.cwnd += u64::from(flow.cwnd);
            self.rtt_us = self.rtt_us.max(flow.srtt_us);
        }
        if let Some(socket) = history.socket(flow.cookie) {
            self.out += socket.out.rate().unwrap_or_default();
            self.arrived += socket.arrived.rate().unwrap_or_default();
            self.add_rates(socket.total.rates());
        }
    }

    /// Those of the same time are together.
    fn add_rates(&mut self, rates: &VecDeque<f32>) {
        while self.rates.len() < rates.len() {
            self.rates.push_front(0.0);
        }
        for (sum, rate) in self.rates.iter_mut().rev().zip(rates.iter().rev()) {
            *sum += rate;
        }
    }

    /// A rate, once there is one.
    fn known(&self, rate: f64) -> Option<f64> {
        (!self.rates.is_empty()).then_some(rate)
    }

    /// The one of most of its sockets, and how many others there are.
    fn class(&self) -> Option<(Class, usize)> {
        let most = self.classes.values().max_by_key(|(_, sockets)| *sockets)?;
        Some((most.0, self.classes.len() - 1))
    }
}

impl TableRow for ProcessRow {
    fn id(&self) -> RowId {
        RowId::Number(self.pid.into())
    }

    fn has(&self, words: &str) -> bool {
        let classes = self.classes.values().map(|(class, _)| class.name());
        let texts = [self.name.as_str(), &self.unit, &self.realtime];
        self.pid.to_string().contains(words) || classes.chain(texts).any(|text| text.to_lowercase().contains(words))
    }

    fn about(&self) -> Option<About> {
        (self.pid != 0).then_some(About::Process(self.pid))
    }

    fn detail(&self) -> String {
        let classes: BTreeSet<String> = self
            .classes
            .values()
            .map(|(class, sockets)| format!("{sockets} {}", class.name()))
            .collect();
        let classes = classes.into_iter().collect::<Vec<_>>().join(", ");
        format!("{} ({}) {}: sockets: {classes}", self.name, self.pid, self.unit)
    }
}

fn columns() -> Vec<Column<ProcessRow>> {
    let mut columns = Vec::from(of_names());
    columns.extend(of_numbers());
    columns.extend(of_more());
    columns
}

fn of_names() -> [Column<ProcessRow>; 3] {
    [
        Column {
            title: "PROCESS",
            least: 12,
            most: 16,
            rank: 0,
            side: Alignment::Left,
            cell: |row, _, _| row.name.as_str().into(),
            order: Some(|a, b| a.name.cmp(&b.name)),
        },
        Column {
            title: "PID",
            least: 7,
            most: 7,
            rank: 1,
            side: Alignment::Right,
            cell: |row, _, _| {
                if row.pid == 0 {
                    "?".into()
                } else {
                    row.pid.to_string().into()
                }
            },
            order: Some(|a, b| a.pid.cmp(&b.pid)),
        },
        Column {
            title: "CLASS",
            least: 11,
            most: 13,
            rank: 2,
            side: Alignment::Left,
            cell: |row, theme, _| match row.class() {
                None => Cell::default(),
                Some((class, 0)) => Cell {
                    text: class.name().to_owned(),
                    style: theme.class(class),
                },
                Some((class, others)) => Cell {
                    text: format!("{} +{others}", class.name()),
                    style: theme.class(class),
                },
            },
            order: Some(|a, b| a.class().map(|of| of.0 as u8).cmp(&b.class().map(|of| of.0 as u8))),
        },
    ]
}

fn of_numbers() -> [Column<ProcessRow>; 6] {
    let number = |title, rank, cell, order| Column {
        title,
        least: 5,
        most: 6,
        rank,
        side: Alignment::Right,
        cell,
        order: Some(order),
    };
    [
        number(
            "SOCKETS",
            4,
            |row: &ProcessRow, _: &_, _| count(row.sockets).into(),
            |a: &ProcessRow, b| b.sockets.cmp(&a.sockets),
        ),
        number(
            "SENDERS",
            6,
            |row, _, _| count(row.senders).into(),
            |a, b| b.senders.cmp(&a.senders),
        ),
        number(
            "CWND",
            7,
            |row, _, _| count(row.cwnd).into(),
            |a, b| b.cwnd.cmp(&a.cwnd),
        ),
        number(
            "RTT",
            5,
            |row, _, _| time(row.rtt_us.into()).into(),
            |a, b| b.rtt_us.cmp(&a.rtt_us),
        ),
        number(
            "SEND-Q",
            8,
            |row, _, _| bytes(row.queue_bytes).into(),
            |a, b| b.queue_bytes.cmp(&a.queue_bytes),
        ),
        number(
            "bit/s",
            0,
            |row, _, _| bits_per_s(row.known(row.out + row.arrived)).into(),
            |a, b| (b.out + b.arrived).total_cmp(&(a.out + a.arrived)),
        ),
    ]
}

fn of_more() -> [Column<ProcessRow>; 5] {
    [
        Column {
            title: "TREND",
            least: 5,
            most: 16,
            rank: 9,
            side: Alignment::Left,
            cell: |row, theme, columns| theme.sparkline(&row.rates, columns).into(),
            order: None,
        },
        Column {
            title: "UP",
            least: 5,
            most: 6,
            rank: 10,
            side: Alignment::Right,
            cell: |row, _, _| bits_per_s(row.known(row.out)).into(),
            order: Some(|a, b| b.out.total_cmp(&a.out)),
        },
        Column {
            title: "DOWN",
            least: 5,
            most: 6,
            rank: 10,
            side: Alignment::Right,
            cell: |row, _, _| bits_per_s(row.known(row.arrived)).into(),
            order: Some(|a, b| b.arrived.total_cmp(&a.arrived)),
        },
        Column {
            title: "REAL TIME",
            least: 9,
            most: 12,
            rank: 11,
            side: Alignment::Left,
            cell: |row, _, _| row.realtime.as_str().into(),
            order: Some(|a, b| b.realtime.cmp(&a.realtime)),
        },
        Column {
            title: "UNIT",
            least: 12,
            most: 40,
            rank: 12,
            side: Alignment::Left,
            cell: |row, _, _| row.unit.as_str().into(),
            order: Some(|a, b| a.unit.cmp(&b.unit)),
        },
    ]
}
