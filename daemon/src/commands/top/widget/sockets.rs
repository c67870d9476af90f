// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of sockets.

use std::cmp::Reverse;
use std::collections::VecDeque;

use giveway_engine::model::{Protocol, TcpState};
use giveway_engine::status::FlowView;

use crate::commands::top::history::{RateHistory, SocketTracks};
use crate::commands::top::table::{Alignment, Cell, Column, RowId, Rows, TableRow};
use crate::commands::top::text::{bits_per_s, bytes, count, time};
use crate::commands::top::theme::Theme;
use crate::commands::why::About;

pub struct SocketRow<'a> {
    view: &'a FlowView,
    socket: Option<&'a SocketTracks>,
}

pub fn table<'a>(flows: &'a [FlowView], datagrams: &'a [FlowView], history: &'a RateHistory) -> Rows<SocketRow<'a>> {
    let row = |view: &'a FlowView| SocketRow {
        view,
        socket: history.socket(view.flow.cookie),
    };
    Rows {
        columns: columns(),
        rows: flows.iter().chain(datagrams).map(row).collect(),
    }
}

impl SocketRow<'_> {
    fn queue_bytes(&self) -> u64 {
        self.view.flow.unsent_bytes + self.view.flow.unacked_bytes
    }

    fn out(&self) -> Option<f64> {
        self.socket?.out.rate()
    }

    fn total(&self) -> Option<f64> {
        self.socket?.total.rate()
    }

    fn arrived(&self) -> Option<f64> {
        self.socket?.arrived.rate()
    }

    /// Of what TCP alone has.
    fn of_tcp(&self, shown: impl FnOnce() -> String) -> Cell {
        match self.view.flow.protocol {
            Protocol::Tcp => shown().into(),
            Protocol::Udp => "-".into(),
        }
    }

    fn process(&self) -> String {
        let owner = self.view.flow.owner.as_ref();
        owner.map_or("?".to_owned(), |owner| format!("{}/{}", owner.command, owner.pid))
    }

    /// Those that are not known come last.
    fn owner(&self) -> (bool, Option<(&str, u32)>) {
        let owner = self.view.flow.owner.as_ref();
        (owner.is_none(), owner.map(|owner| (owner.command.as_str(), owner.pid)))
    }

    fn mark(&self) -> &'static str {
        match (self.view.conflict, self.view.sender) {
            (true, _) => "!",
            (false, true) => ">",
            (false, false) => "",
        }
    }

    /// What repairs a loss comes first.
    fn states(&self) -> (bool, Reverse<u8>, u8) {
        let flow = &self.view.flow;
        (
            flow.protocol == Protocol::Udp,
            Reverse(flow.ca_state as u8),
            flow.state as u8,
        )
    }

    /// Of the connection where it is not established, else of its congestion avoidance.
    fn state(&self) -> String {
        let flow = &self.view.flow;
        match (flow.protocol, flow.state) {
            (Protocol::Udp, _) => "udp".to_owned(),
            (_, TcpState::Established) => format!("{:?}", flow.ca_state).to_lowercase(),
            (_, state) => format!("{state:?}").to_lowercase(),
        }
    }
}

impl TableRow for SocketRow<'_> {
    fn id(&self) -> RowId {
        RowId::Number(self.view.flow.cookie.0)
    }

    fn has(&self, words: &str) -> bool {
        let view = self.view;
        let lower = |text: &Option<String>| text.as_ref().is_some_and(|text| text.to_lowercase().contains(words));
        view.class.name().contains(words)
            || self.process().to_lowercase().contains(words)
            || view.flow.remote.to_string().contains(words)
            || view.flow.local.to_string().contains(words)
            || self.state().contains(words)
            || [&view.exe, &view.unit, &view.cgroup].into_iter().any(lower)
    }

    fn about(&self) -> Option<About> {
        Some(About::Socket(self.view.flow.cookie))
    }

    fn detail(&self) -> String {
        let (view, flow) = (self.view, &self.view.flow);
        let unit = view.unit.as_ref().map_or(String::new(), |unit| format!(", {unit}"));
        let (process, local, remote, class) = (self.process(), flow.local, flow.shown_remote(), view.class.name());
        let enforced: String = view
            .enforcement_shown()
            .iter()
            .map(|line| format!("; {line}"))
            .collect();
        format!(
            "{process} {local} to {remote}{unit}: {class}, {}{enforced}",
            view.class_reason
        )
    }
}

fn order(rate: Option<f64>) -> Reverse<u64> {
    Reverse(rate.map_or(0, |rate| rate as u64 + 1))
}

fn columns<'a>() -> Vec<Column<SocketRow<'a>>> {
    let mut columns = Vec::from(of_names());
    columns.extend(of_numbers());
    columns.extend(of_more());
    columns
}

fn of_names<'a>() -> [Column<SocketRow<'a>>; 4] {
    [
        Column {
            title: "",
            least: 1,
            most: 1,
            rank: 0,
            side: Alignment::Left,
            cell: |row, _, _| row.mark().into(),
            order: None,
        },
        Column {
            title: "PROCESS",
            least: 12,
            most: 23,
            rank: 0,
            side: Alignment::Left,
            cell: |row, _, _| row.process().into(),
            order: Some(|a, b| a.owner().cmp(&b.owner())),
        },
        Column {
            title: "REMOTE",
            least: 14,
            most: 28,
            rank: 2,
            side: Alignment::End,
            cell: |row, _, _| row.view.flow.shown_remote().into(),
            order: Some(|a, b| a.view.flow.remote.cmp(&b.view.flow.remote)),
        },
        Column {
            title: "CLASS",
            least: 10,
            most: 10,
            rank: 1,
            side: Alignment::Left,
            cell: |row, theme, _| Cell {
                text: row.view.class.name().to_owned(),
                style: theme.class(row.view.class),
            },
            order: Some(|a, b| (a.view.class as u8).cmp(&(b.view.class as u8))),
        },
    ]
}

// Long: a table, an entry a column.
fn of_numbers<'a>() -> [Column<SocketRow<'a>>; 7] {
    let number = |title, least, rank, cell, order| Column {
        title,
        least,
        most: 6,
        rank,
        side: Alignment::Right,
        cell,
        order: Some(order),
    };
    [
        number(
            "CWND",
            4,
            5,
            |row: &SocketRow<'a>, _: &Theme, _| row.of_tcp(|| count(row.view.flow.cwnd.into())),
            |a: &SocketRow<'a>, b| b.view.flow.cwnd.cmp(&a.view.flow.cwnd),
        ),
        number(
            "CAP",
            4,
            6,
            |row, _, _| row.view.cap.map_or("-".to_owned(), |cap| count(cap.into())).into(),
            // The lowest first, and those without one last.
            |a, b| a.view.cap.unwrap_or(u32::MAX).cmp(&b.view.cap.unwrap_or(u32::MAX)),
        ),
        number(
            "RTT",
            5,
            4,
            |row, _, _| row.of_tcp(|| time(row.view.flow.srtt_us.into())),
            |a, b| b.view.flow.srtt_us.cmp(&a.view.flow.srtt_us),
        ),
        number(
            "SEND-Q",
            5,
            7,
            |row, _, _| row.of_tcp(|| bytes(row.queue_bytes())),
            |a, b| b.queue_bytes().cmp(&a.queue_bytes()),
        ),
        number(
            "bit/s",
            5,
            0,
            |row, _, _| bits_per_s(row.total()).into(),
            |a, b| order(a.total()).cmp(&order(b.total())),
        ),
        Column {
            title: "TREND",
            least: 5,
            most: 16,
            rank: 9,
            side: Alignment::Left,
            cell: |row, theme, columns| {
                let none = VecDeque::new();
                let rates = row.socket.map_or(&none, |socket| socket.total.rates());
                theme.sparkline(rates, columns).into()
            },
            order: None,
        },
        Column {
            title: "STATE",
            least: 5,
            most: 8,
            rank: 8,
            side: Alignment::Left,
            cell: |row, _, _| row.state().into(),
            order: Some(|a, b| a.states().cmp(&b.states())),
        },
    ]
}

fn of_more<'a>() -> [Column<SocketRow<'a>>; 5] {
    [
        Column {
            title: "UP",
            least: 5,
            most: 6,
            rank: 10,
            side: Alignment::Right,
            cell: |row, _, _| bits_per_s(row.out()).into(),
            order: Some(|a, b| order(a.out()).cmp(&order(b.out()))),
        },
        Column {
            title: "DOWN",
            least: 5,
            most: 6,
            rank: 10,
            side: Alignment::Right,
            cell: |row, _, _| bits_per_s(row.arrived()).into(),
            order: Some(|a, b| order(a.arrived()).cmp(&order(b.arrived()))),
        },
        Column {
            title: "RETRANS",
            least: 7,
            most: 7,
            rank: 11,
            side: Alignment::Right,
            cell: |row, _, _| row.of_tcp(|| count(row.view.flow.retransmits.into())),
            order: Some(|a, b| b.view.flow.retransmits.cmp(&a.view.flow.retransmits)),
        },
        Column {
            title: "CONTROL",
            least: 8,
            most: 12,
            rank: 12,
            side: Alignment::Left,
            cell: |row, _, _| row.of_tcp(|| row.view.flow.congestion_control.clone()),
            order: Some(|a, b| a.view.flow.congestion_control.cmp(&b.view.flow.congestion_control)),
        },
        Column {
            title: "UNIT",
            least: 12,
            most: 40,
            rank: 13,
            side: Alignment::Left,
            cell: |row, _, _| row.view.unit.clone().unwrap_or_default().into(),
            order: Some(|a, b| a.view.unit.cmp(&b.view.unit)),
        },
    ]
}
