// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the daemon with its reasons, at one moment: the one model behind `status`, `why` and every other view.
//! Numbers, each with its unit in its name; only a reason is text.

use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::change::Latest;
use crate::class::Activity;
use crate::downlink::DownlinkView;
use crate::enforcement::Enforcement;
use crate::enforcement::by_hand::HandView;
use crate::enforcement::elsewhere::ElsewhereView;
use crate::enforcement::limit_use::LimitUse;
use crate::enforcement::shortfalls::ShortfallView;
use crate::enforcement::view::{DownloadOrder, LimitsView};
use crate::model::{Class, Dscp, Flow, Interface};
use crate::peers::{Counters, Peer, Sender};
use crate::priority::PriorityStatus;
use crate::queue::QueueView;
use crate::queue::links::LinkView;
use crate::queue::traffic::Refusal;
use crate::share::EstimateView;

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct Status {
    #[serde(flatten)]
    pub daemon: DaemonStatus,
    #[serde(flatten)]
    pub network: NetworkStatus,
    /// None: the real-time thread is not running.
    #[serde(default)]
    pub priority: Option<PriorityStatus>,
    /// The latest change of each setting of each subject, by both engines, oldest first.
    pub changes: Vec<Latest>,
}

/// Of the process that runs the engines.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct DaemonStatus {
    pub version: String,
    pub pid: u32,
    pub uptime_s: f64,
    /// Events lost because the kernel's buffer was full; the next full scan makes up for them.
    pub lost_events: u64,
    /// The cost of the polls over the active sockets, with everything that followed from them.
    pub polls: Cost,
    /// The same of the full scans.
    pub full_scans: Cost,
    /// What does not work, and why.
    pub warnings: Vec<String>,
    /// The number of active rules for classes.
    #[serde(default)]
    pub class_rules: usize,
    /// Everything is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PausedView>,
}

/// Who has paused giveway, and for how long at most.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
pub struct PausedView {
    pub uid: u32,
    /// None: not visible in the daemon's pid namespace.
    pub pid: Option<u32>,
    /// None: until it is resumed.
    pub left_ms: Option<u64>,
}

/// CPU time of one kind of work since the start.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, Serialize)]
pub struct Cost {
    pub count: u64,
    pub cpu_us: u64,
    pub max_us: u64,
}

impl Cost {
    pub fn add(&mut self, took: Duration) {
        let took_us = took.as_micros() as u64;
        self.count += 1;
        self.cpu_us += took_us;
        self.max_us = self.max_us.max(took_us);
    }
}

impl Status {
    /// Adds the priority engine's state, with its changes.
    pub fn add_priority(&mut self, mut status: Option<PriorityStatus>) {
        if let Some(status) = &mut status {
            self.changes.append(&mut status.changes);
            self.changes.sort_by_key(|latest| latest.t_ns);
        }
        self.priority = status;
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct NetworkStatus {
    /// CLOCK_MONOTONIC.
    pub taken_t_ns: u64,
    /// The managed one; None: there is none.
    pub interface: Option<Interface>,
    pub policy: PolicyView,
    /// TCP.
    pub flows: Vec<FlowView>,
    /// UDP sockets that sent something within the last minute.
    #[serde(default)]
    pub datagrams: Vec<FlowView>,
    /// Cgroups with a verdict whose traffic was forwarded within the last minute.
    #[serde(default)]
    pub forwarded: Vec<ForwardedView>,
    pub peers: Vec<PeerView>,
    pub reports: ReportView,
    /// That of the first of `links`.
    #[serde(default)]
    pub queue: QueueView,
    /// Each managed link with its queue, the preferred one first.
    #[serde(default)]
    pub links: Vec<LinkView>,
    /// The use of each limit.
    #[serde(default)]
    pub limits: Vec<LimitUse>,
    /// Download limits.
    #[serde(default)]
    pub downloads: DownlinkView,
    /// And upload limits.
    #[serde(default)]
    pub uploads: DownlinkView,
    /// Requests for flows that are not enforced, by device.
    #[serde(default)]
    pub not_enforced: Vec<ShortfallView>,
    /// Processes with a choice in another network namespace.
    #[serde(default)]
    pub elsewhere: Vec<ElsewhereView>,
    /// The settings by hand.
    #[serde(default)]
    pub by_hand: Vec<HandView>,
    /// The focus: bulk elsewhere counts as background meanwhile.
    #[serde(default)]
    pub focus: Vec<Activity>,
    /// Reniced processes, inherited niceness included.
    #[serde(default)]
    pub reniced_processes: usize,
    /// Processes beyond the bound, which have no class before they send.
    #[serde(default)]
    pub processes_left_out: usize,
    /// The latest packets that missed their deadlines, oldest first.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct PolicyView {
    pub name: String,
    /// Sending devices, this one included.
    pub senders: u32,
    /// This device's sending connections.
    pub connections: u32,
    /// False without a key.
    pub cooperates: bool,
    /// The policy's present action with its reason, if any.
    #[serde(default)]
    pub doing: Option<String>,
    /// The same in numbers, for an estimated capacity; None while this device does not send.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub estimate: Option<EstimateView>,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ForwardedView {
    pub cgroup: String,
    pub class: Class,
    pub class_rule: String,
    pub class_reason: String,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct FlowView {
    #[serde(flatten)]
    pub flow: Flow,
    /// Goodput over the last second; TCP: acknowledged by the remote host, and received in order.
    #[serde(default)]
    pub upload_mbit: f64,
    #[serde(default)]
    pub download_mbit: f64,
    pub class: Class,
    /// Its rule, by file and line, or the kind of implicit classification.
    #[serde(default)]
    pub class_rule: String,
    #[serde(default)]
    pub class_reason: String,
    /// Its rate limit, and whether that is enforced.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<LimitsView>,
    /// Whether its class is enforced, if it was requested and is an order of packets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class_enforcement: Option<Enforcement>,
    /// The link and rate at which its downloads yield.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub download_order: Option<DownloadOrder>,
    /// The mark of its packets; None: the application's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mark: Option<Dscp>,
    pub cap: Option<u32>,
    /// Its scavenger congestion control, while that is active.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scavenger: Option<String>,
    /// Its receive window yields too.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub receive_yields: bool,
    pub sender: bool,
    /// It receives in bulk.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub receiver: bool,
    /// A conflict: another tool has set a setting of this socket, and giveway does not override it.
    pub conflict: bool,
    /// Of the owner.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exe: Option<String>,
    /// The systemd unit that created the socket.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unit: Option<String>,
    /// And the path of its cgroup.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cgroup: Option<String>,
}

impl FlowView {
    /// For people: whether its rate limit is enforced, and its class, if that is not.
    pub fn enforcement_shown(&self) -> Vec<String> {
        let limit = self.limit.iter().flat_map(LimitsView::shown);
        let reason = self.class_enforcement.as_ref().and_then(|class| class.reason.as_ref());
        let class = reason.map(|reason| format!("its class is not enforced: {reason}"));
        let order = self.download_order.as_ref().map(DownloadOrder::shown);
        limit.chain(class).chain(order).collect()
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct PeerView {
    pub address: IpAddr,
    /// Hexadecimal: too long for JSON's numbers.
    pub session: String,
    pub authenticated: bool,
    /// Since its last report.
    pub age_ms: u64,
    /// Between its reports, as announced.
    pub interval_ms: u64,
    /// Its sending connections.
    pub senders: Vec<Sender>,
}

impl From<Peer<'_>> for PeerView {
    fn from(peer: Peer<'_>) -> Self {
        Self {
            address: peer.address,
            session: format!("{:016x}", peer.session),
            authenticated: peer.authenticated,
            age_ms: peer.age.as_millis() as u64,
            interval_ms: peer.interval.as_millis() as u64,
            senders: peer.senders.to_vec(),
        }
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
pub struct ReportView {
    /// Between this device's reports.
    pub interval_ms: u64,
    /// All devices' reports, percent of the airtime, as computed here.
    pub airtime_percent: f64,
    /// The latest peer that speaks an older version of the protocol, and is ignored.
    #[serde(default)]
    pub older: Option<IpAddr>,
    #[serde(flatten)]
    pub counters: Counters,
}
