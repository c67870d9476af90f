// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What giveway changed and why: one [`Change`] for every kind. Keeps the latest change of each setting of each subject
//! with the number of its changes, so that a controller that adjusts one socket ten times a second does not push
//! everything else out.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{Cookie, ProcessId};

/// The most settings of subjects that are kept.
pub const KEPT: usize = 4096;

/// The subject of a change.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "subject")]
pub enum Subject {
    /// A socket, for as long as it is open.
    Socket { cookie: Cookie },
    /// A process with all its threads.
    Process {
        #[serde(flatten)]
        id: ProcessId,
    },
    /// One thread.
    Thread { tid: u32 },
    /// A network device.
    Interface {
        /// A change has a name of its own.
        #[serde(rename = "interface")]
        name: String,
    },
    /// Packets to or from a remote port, on any device.
    Destination {
        remote: SocketAddr,
        local_port: Option<u16>,
    },
    /// Forwarded traffic of a cgroup (v2).
    Cgroup {
        #[serde(rename = "cgroup")]
        path: String,
    },
    /// The kernel as a whole.
    Kernel,
}

/// The changed setting, with its unit.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// The cap on cwnd, segments.
    Cap,
    /// Bytes a second.
    PacingRate,
    /// The receive window: a text where giveway set it, bytes where another tool did.
    ReceiveWindow,
    CongestionControl,
    /// The queue discipline and its tuning.
    Queue,
    /// Scheduling policy and priority.
    Scheduling,
    /// Nice value and I/O class.
    Niceness,
    /// The class of its packets.
    Class,
    /// The total rate limit of its flows.
    RateLimit,
    DownloadLimit,
    /// The rate at which its downloads yield.
    DownloadOrder,
    /// Whether deadlines of its packets are guaranteed.
    Deadlines,
    /// A file of /proc or /sys, by its path.
    File(String),
}

/// The old or new value. `Unset`: not limited, or not chosen.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Value {
    Number(u64),
    Text(String),
    Unset(()),
}

/// The rule behind a request, and why. Travels with the request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Reason {
    pub rule: String,
    pub reason: String,
}

impl Reason {
    /// Everything is suspended.
    pub fn of_pause(reason: &str) -> Self {
        Self {
            rule: "pause".to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// One change, made or only intended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, JsonSchema)]
pub struct Change {
    #[serde(flatten)]
    pub subject: Subject,
    /// For people: the process, the connection's ends, the file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub setting: Setting,
    pub old: Value,
    pub new: Value,
    pub rule: String,
    pub reason: String,
    /// False: a dry run, or failed.
    pub made: bool,
}

/// The latest change of one setting.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Latest {
    /// CLOCK_MONOTONIC.
    pub t_ns: u64,
    #[serde(flatten)]
    pub change: Change,
    /// The number of changes of this setting of this subject, this one included.
    pub times: u64,
}

/// The latest change of each setting of each subject.
#[derive(Debug, Default)]
pub struct Changes {
    latest: BTreeMap<SettingOf, Entry>,
    first_to_go: BTreeMap<Place, SettingOf>,
    noted: u64,
}

type SettingOf = (Subject, Setting);

/// The eviction order: changes that were not made, so that a flood of refusals does not push out the others; then those
/// of ended subjects; then the oldest.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Place {
    made: bool,
    lives: bool,
    noted: u64,
}

#[derive(Debug)]
struct Entry {
    latest: Latest,
    place: Place,
}

impl Changes {
    pub fn note(&mut self, now: Duration, change: Change) {
        let key = (change.subject.clone(), change.setting.clone());
        let before = self.latest.remove(&key);
        if let Some(before) = &before {
            self.first_to_go.remove(&before.place);
        }
        if self.latest.len() == KEPT
            && let Some((_, oldest)) = self.first_to_go.pop_first()
        {
            self.latest.remove(&oldest);
        }
        self.noted += 1;
        let place = Place {
            made: change.made,
            lives: true,
            noted: self.noted,
        };
        let latest = Latest {
            t_ns: now.as_nanos() as u64,
            change,
            times: before.map_or(0, |before| before.latest.times) + 1,
        };
        self.first_to_go.insert(place, key.clone());
        self.latest.insert(key, Entry { latest, place });
    }

    /// The subject has ended: its changes are evicted before those of others.
    pub fn ended(&mut self, subject: &Subject) {
        // Cap is the first of all settings.
        let settings = self.latest.range_mut((subject.clone(), Setting::Cap)..);
        for (key, entry) in settings.take_while(|(key, _)| key.0 == *subject) {
            self.first_to_go.remove(&entry.place);
            entry.place.lives = false;
            self.first_to_go.insert(entry.place, key.clone());
        }
    }

    /// Oldest first.
    pub fn to_vec(&self) -> Vec<Latest> {
        let mut all: Vec<&Entry> = self.latest.values().collect();
        all.sort_by_key(|entry| entry.place.noted);
        all.into_iter().map(|entry| entry.latest.clone()).collect()
    }
}

impl Setting {
    fn unit(&self) -> &'static str {
        match self {
            Self::Cap => " segments",
            Self::PacingRate => " bytes/s",
            Self::ReceiveWindow => " bytes",
            _ => "",
        }
    }
}

impl Display for Setting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cap => "cwnd cap",
            Self::PacingRate => "pacing rate",
            Self::ReceiveWindow => "receive window",
            Self::CongestionControl => "congestion control",
            Self::Queue => "queue",
            Self::Scheduling => "scheduling",
            Self::Niceness => "niceness",
            Self::Class => "class",
            Self::RateLimit => "rate limit",
            Self::DownloadLimit => "download limit",
            Self::DownloadOrder => "download order",
            Self::Deadlines => "deadlines",
            Self::File(path) => path,
        })
    }
}

impl Display for Subject {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket { cookie } => write!(f, "socket {}", cookie.0),
            Self::Process { id } => write!(f, "process {}", id.pid),
            Self::Thread { tid } => write!(f, "thread {tid}"),
            Self::Interface { name } => write!(f, "interface {name}"),
            Self::Destination { remote, local_port } => {
                write!(f, "packets to {remote}")?;
                local_port.map_or(Ok(()), |port| write!(f, " from port {port}"))
            }
            Self::Cgroup { path } => write!(f, "what is forwarded for {path}"),
            Self::Kernel => f.write_str("the kernel"),
        }
    }
}

impl Change {
    /// On one line: subject, setting, old and new value, rule and reason. A change that was not made has failed, except
    /// in a dry run.
    pub fn shown(&self, dry_run: bool) -> String {
        self.line(if dry_run { "not made" } else { "failed" })
    }

    fn line(&self, unmade: &str) -> String {
        let shown = |value: &Value| match value {
            Value::Number(number) => format!("{number}{}", self.setting.unit()),
            Value::Text(text) => text.clone(),
            Value::Unset(()) => "none".to_owned(),
        };
        let name = match self.name.as_str() {
            "" => String::new(),
            name => format!(" ({name})"),
        };
        let made = match self.made {
            true => String::new(),
            false => format!(" ({unmade})"),
        };
        let (old, new) = (shown(&self.old), shown(&self.new));
        let Self {
            subject,
            setting,
            rule,
            reason,
            ..
        } = self;
        format!("{subject}{name}: {setting} {old} -> {new}{made}; rule {rule}: {reason}")
    }
}

/// As [`Change::shown`], without knowledge of a dry run.
impl Display for Change {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line("not made"))
    }
}

impl Default for Value {
    fn default() -> Self {
        Self::Unset(())
    }
}

impl<N: Into<u64>> From<Option<N>> for Value {
    fn from(number: Option<N>) -> Self {
        number.map_or(Self::Unset(()), |number| Self::Number(number.into()))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

#[cfg(test)]
mod tests;
