// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes with a choice whose sockets are in another network namespace, where it is not enforced. Bounded: how many
//! are shown and reported, by user.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NOT_ENFORCED, REMEMBERED};
use crate::change::{Change, Setting, Subject, Value};
use crate::model::{ProcessId, ROOT};
use crate::turns::Turns;

/// The most processes shown of each user, root's first.
const MOST_ELSEWHERE: usize = 64;
/// The most reports in [`REMEMBERED`]: for one user, and for all but root. A user with many uids (subuid(5)) counts as
/// many.
const MOST_SAID_OF_USER: usize = 4;
const MOST_SAID: usize = 16;

/// A process with a choice whose sockets are in another network namespace.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Elsewhere {
    pub id: ProcessId,
    /// The process may change it at any time.
    pub command: String,
    pub netns_inum: u32,
    /// Its present user, whoever has chosen.
    pub uid: u32,
}

/// The same for `status`.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct ElsewhereView {
    pub pid: u32,
    pub command: String,
    pub netns_inum: u32,
    pub reason: String,
}

/// All of them.
#[derive(Debug, Default)]
pub struct AllElsewhere {
    /// By process and namespace, with the process's first name.
    elsewhere: BTreeMap<(ProcessId, u32), Elsewhere>,
    /// The latest report, by user and namespace.
    said_elsewhere: BTreeMap<(u32, u32), Duration>,
}

impl AllElsewhere {
    /// Takes in all present ones. Returns the changes, and those no longer shown.
    pub fn follow(&mut self, now: Duration, found: Vec<Elsewhere>) -> (Vec<Change>, Vec<Subject>) {
        let (news, gone) = self.keep_elsewhere(now, found);
        let change = |process: Elsewhere| Change {
            subject: Subject::Process { id: process.id },
            name: process.command,
            setting: Setting::Class,
            old: Value::from("chosen"),
            new: Value::from(NOT_ENFORCED),
            rule: "giveway exec".to_owned(),
            reason: why_elsewhere(process.netns_inum),
            made: true,
        };
        let gone = gone.into_iter().map(|id| Subject::Process { id });
        (news.into_iter().map(change).collect(), gone.collect())
    }

    pub fn views(&self) -> Vec<ElsewhereView> {
        let view = |process: &Elsewhere| ElsewhereView {
            pid: process.id.pid,
            command: process.command.clone(),
            netns_inum: process.netns_inum,
            reason: why_elsewhere(process.netns_inum),
        };
        self.elsewhere.values().map(view).collect()
    }

    /// The new ones to report, and those no longer shown. Those shown already stay, for each user.
    fn keep_elsewhere(&mut self, now: Duration, found: Vec<Elsewhere>) -> (Vec<Elsewhere>, Vec<ProcessId>) {
        let mut before = std::mem::take(&mut self.elsewhere);
        let (stay, come): (Vec<_>, Vec<_>) = found
            .into_iter()
            .map(|process| ((process.id, process.netns_inum), process))
            .partition(|(key, _)| before.contains_key(key));
        let of_users = stay.into_iter().chain(come);
        let places = Turns::default().order(of_users.map(|(key, process)| (process.uid, (key, process))));
        self.said_elsewhere
            .retain(|_, said| now.saturating_sub(*said) < REMEMBERED);
        let mut news = Vec::new();
        for (uid, (key, process)) in places.into_iter().take(MOST_ELSEWHERE) {
            let known = before.remove(&key);
            if known.is_none() && self.says_elsewhere(now, uid, process.netns_inum) {
                news.push(process.clone());
            }
            let named = known.map_or(process.command, |known| known.command);
            self.elsewhere.insert(
                key,
                Elsewhere {
                    command: named,
                    ..process
                },
            );
        }
        (news, before.into_values().map(|process| process.id).collect())
    }

    /// Whether a process of this user there is to be reported.
    fn says_elsewhere(&mut self, now: Duration, uid: u32, netns_inum: u32) -> bool {
        let of_users = self.said_elsewhere.keys().filter(|(of, _)| *of != ROOT).count();
        let of_this = self.said_elsewhere.keys().filter(|(of, _)| *of == uid).count();
        let may = uid == ROOT || (of_users < MOST_SAID && of_this < MOST_SAID_OF_USER);
        if !may || self.said_elsewhere.contains_key(&(uid, netns_inum)) {
            return false;
        }
        self.said_elsewhere.insert((uid, netns_inum), now);
        true
    }
}

/// A command's choice applies to what it sends from this namespace.
fn why_elsewhere(netns_inum: u32) -> String {
    format!(
        "it runs in another network namespace (net:[{netns_inum}]), which this giveway does not see: run giveway and the \
         command there"
    )
}
