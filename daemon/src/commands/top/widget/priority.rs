// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of what has real-time priority: processes by rule, handlers of requests, and the kernel's threads that take packets in.

use giveway_engine::priority::{ChainStatus, MatchedStatus, NapiStatus, PriorityStatus};

use crate::commands::top::table::{Alignment, Column, RowId, Rows, TableRow};
use crate::commands::top::text::count;
use crate::commands::why::About;

pub struct RealtimeRow {
    id: String,
    about: About,
    name: String,
    rule: String,
    schedule: String,
    has: String,
    threads: u64,
    cpu_percent: f64,
}

pub fn table(priority: Option<&PriorityStatus>) -> Rows<RealtimeRow> {
    let held = priority.iter().flat_map(|priority| &priority.processes).map(of_process);
    let chains = priority.iter().flat_map(|priority| &priority.chains).map(of_chain);
    let napi = priority
        .iter()
        .filter_map(|priority| priority.napi.as_ref())
        .map(of_napi);
    Rows {
        columns: columns(),
        rows: held.chain(chains).chain(napi).collect(),
    }
}

fn of_process(held: &MatchedStatus) -> RealtimeRow {
    RealtimeRow {
        id: format!("process {}", held.pid),
        about: About::Process(held.pid),
        name: format!("{} ({})", held.exe, held.pid),
        rule: held.rule.clone(),
        schedule: held.schedule.clone(),
        has: if held.granted { "yes" } else { "no" }.to_owned(),
        threads: held.tasks.into(),
        cpu_percent: held.cpu_percent,
    }
}

fn of_chain(chain: &ChainStatus) -> RealtimeRow {
    let port = chain.service.local_port;
    let raised = chain.threads.iter().filter(|thread| thread.raised).count();
    RealtimeRow {
        id: format!("chain {} {port}", chain.service.protocol),
        about: About::Word(port.to_string()),
        name: format!("requests to {} port {port}", chain.service.protocol),
        rule: "[[chain]]".to_owned(),
        schedule: format!("FIFO {}", chain.priority),
        has: if chain.suspended_ms > 0 {
            "suspended".to_owned()
        } else {
            format!("{raised} now")
        },
        threads: chain.threads.len() as u64,
        cpu_percent: chain.cpu_percent,
    }
}

fn of_napi(napi: &NapiStatus) -> RealtimeRow {
    RealtimeRow {
        id: "napi".to_owned(),
        about: About::Word("receive".to_owned()),
        name: "NAPI threads".to_owned(),
        rule: "[receive]".to_owned(),
        schedule: format!("FIFO {}", napi.priority),
        has: if napi.raised { "yes" } else { "no" }.to_owned(),
        threads: napi.tids.len() as u64,
        cpu_percent: napi.cpu_percent,
    }
}

impl TableRow for RealtimeRow {
    fn id(&self) -> RowId {
        RowId::Text(self.id.clone())
    }

    fn has(&self, words: &str) -> bool {
        [&self.name, &self.rule, &self.schedule, &self.has]
            .into_iter()
            .any(|text| text.to_lowercase().contains(words))
    }

    fn about(&self) -> Option<About> {
        Some(self.about.clone())
    }

    fn detail(&self) -> String {
        format!("{}, rule {}: {}", self.name, self.rule, self.schedule)
    }
}

fn columns() -> Vec<Column<RealtimeRow>> {
    vec![
        Column {
            title: "THREADS OF",
            least: 16,
            most: 60,
            rank: 0,
            side: Alignment::End,
            cell: |row, _, _| row.name.as_str().into(),
            order: Some(|a, b| a.name.cmp(&b.name)),
        },
        Column {
            title: "SCHEDULE",
            least: 8,
            most: 12,
            rank: 1,
            side: Alignment::Left,
            cell: |row, _, _| row.schedule.as_str().into(),
            order: Some(|a, b| a.schedule.cmp(&b.schedule)),
        },
        Column {
            title: "GRANTED",
            least: 6,
            most: 8,
            rank: 2,
            side: Alignment::Left,
            cell: |row, _, _| row.has.as_str().into(),
            order: Some(|a, b| b.has.cmp(&a.has)),
        },
        Column {
            title: "THREADS",
            least: 7,
            most: 7,
            rank: 3,
            side: Alignment::Right,
            cell: |row, _, _| count(row.threads).into(),
            order: Some(|a, b| b.threads.cmp(&a.threads)),
        },
        Column {
            title: "CPU %",
            least: 5,
            most: 6,
            rank: 4,
            side: Alignment::Right,
            cell: |row, _, _| format!("{:.1}", row.cpu_percent).into(),
            order: Some(|a, b| b.cpu_percent.total_cmp(&a.cpu_percent)),
        },
        Column {
            title: "RULE",
            least: 12,
            most: 40,
            rank: 5,
            side: Alignment::Left,
            cell: |row, _, _| row.rule.as_str().into(),
            order: Some(|a, b| a.rule.cmp(&b.rule)),
        },
    ]
}
