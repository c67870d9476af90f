// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: one JSON request a line in, JSON lines out. The commands are its clients.
//!
//! Anyone may connect; every request is authorised by the user that the kernel names (SO_PEERCRED).

pub mod client;
pub mod server;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use giveway_engine::class::Activity;
use giveway_engine::config::{PrioritySection, SchedPolicyName};
use giveway_engine::enforcement::by_hand::HandView;
use giveway_engine::model::{Class, ProcessId};
use giveway_engine::queue::BackgroundFlow;
use giveway_engine::queue::links::LinkRates;

/// Of `giveway pause --for`.
pub const LONGEST_PAUSE_FOR_S: u64 = 30 * 86_400;

/// What may be asked.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "request", deny_unknown_fields)]
pub enum Request {
    /// One [`giveway_engine::status::Status`].
    Status,
    /// The record's header, then records without end.
    Record,
    /// Sets these for what runs already; answered by [`ByHandNow`], as the next two.
    Set {
        target: TargetId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<Class>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        upload_limit_mbit: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        download_limit_mbit: Option<f64>,
    },
    Clear {
        target: TargetId,
        what: SettingKind,
    },
    ByHand,
    /// Adds a rule; answered by [`PriorityChange`], as the next one.
    PriorityAdd {
        rule: Box<PrioritySection>,
    },
    PriorityRemove {
        name: String,
    },
    /// One [`giveway_engine::priority::PriorityStatus`].
    PriorityList,
    /// Real time for the asking process itself, which is about to become another program; answered by [`LaunchTerms`].
    Launch {
        policy: SchedPolicyName,
        priority: u32,
        cpus: Vec<u32>,
    },
    /// This class for the asking process, and for what it starts; answered by [`ChoiceOutcome`].
    Choose {
        #[serde(default)]
        class: Option<Class>,
        /// Of all that it and what it starts send, together.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        upload_limit_mbit: Option<f64>,
        /// And receive.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        download_limit_mbit: Option<f64>,
        /// Refuse where it is known by now that it will not be enforced everywhere.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        require: bool,
    },
    /// What the asking user does is in this cgroup, by its id (its directory's inode), in place of what they said before;
    /// answered by [`FocusNow`], as the next two.
    Focus {
        cgroup: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<u32>,
    },
    FocusClear,
    FocusShow,
    /// Read the rules for classes again; answered by [`ReloadSummary`].
    Reload,
    /// Nothing is active for as long as this connection lives, and no longer than so many seconds; answered by
    /// [`PausedView`](giveway_engine::status::PausedView) when everything is revoked.
    Pause {
        for_s: u32,
    },
    /// The same until [`Request::Resume`], or for so long at most, whatever becomes of the connection; answered at once.
    PauseFor {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_s: Option<u64>,
    },
    /// Everything is active again; answered by whether it was not.
    Resume,
    /// The rates of this link, whatever is configured; one that is not given stays, and None: as it is configured. Answered by
    /// whether that is news.
    LinkRate {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rates: Option<LinkRates>,
    },
    /// The configuration that is used, with the rates of links that were set since; answered by
    /// [`giveway_engine::config::Config`].
    Config,
    /// Undo everything and end.
    Stop,
}

/// What runs already, as a client names it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetId {
    /// With all that it starts. As the initial pid namespace counts; the start tells it from another of its number.
    Process(ProcessId),
    /// By its directory's inode, so that there is no path to look up.
    Cgroup(u64),
    Flow(BackgroundFlow),
}

/// Of what is set by hand.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingKind {
    Class,
    Limit,
}

/// What is set by hand, as far as it is who asks' own; all of it for readers.
#[derive(Debug, Deserialize, JsonSchema, Serialize)]
pub struct ByHandNow {
    pub by_hand: Vec<HandView>,
    /// What was asked for, in words; None for a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// False where a request changed nothing.
    #[serde(default)]
    pub changed: bool,
    /// What was cleared could not be forgotten for good, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comes_back: Option<String>,
    /// Where it is not enforced, and why.
    #[serde(default)]
    pub not_enforced: Vec<String>,
}

/// The rule for real-time priority that was added or removed.
#[derive(Debug, Deserialize, JsonSchema, Serialize)]
pub struct PriorityChange {
    pub name: String,
}

/// What a process that was granted real time must do before it becomes another program.
#[derive(Debug, Deserialize, Serialize)]
pub struct LaunchTerms {
    /// The RLIMIT_RTTIME to set.
    pub rttime_ms: u32,
}

/// What is known by now of what was chosen.
#[derive(Debug, Deserialize, Serialize)]
pub struct ChoiceOutcome {
    /// Where it is not enforced, and why.
    #[serde(default)]
    pub not_enforced: Vec<String>,
    /// The links on which a limit holds for what is sent, and for what arrives.
    #[serde(default)]
    pub limits_sent: Vec<String>,
    #[serde(default)]
    pub limits_received: Vec<String>,
    /// The limits that hold in place of the one that was chosen.
    #[serde(default)]
    pub in_place: Vec<String>,
    /// On which packets are ordered as they leave, and on which bulk and background yield as they arrive.
    #[serde(default)]
    pub orders_sent: Vec<String>,
    #[serde(default)]
    pub orders_received: Vec<String>,
}

/// The rules for classes that are active.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ReloadSummary {
    pub rules: usize,
    /// Sections of giveway.toml that have changed since the start and count at the next one.
    #[serde(default)]
    pub unread: Vec<String>,
}

/// What is active, as far as it counts for the flows of who asks; all of it for readers.
#[derive(Debug, Deserialize, JsonSchema, Serialize)]
pub struct FocusNow {
    pub focus: Vec<FocusView>,
    /// False where a request changed nothing.
    #[serde(default)]
    pub changed: bool,
}

#[derive(Debug, Deserialize, JsonSchema, Serialize)]
pub struct FocusView {
    #[serde(flatten)]
    pub activity: Activity,
    /// None: until somebody says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_s: Option<u64>,
}

/// The answer's first line.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    Ok(T),
    Error(String),
    /// Nothing was asked yet: it may be tried again.
    Busy(String),
}
