// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is shown of one status, made once for all who look: the page's part as JSON, and the figures. However much the
//! daemon knows, this is short: of sockets, processes and changes the first ones, with how many there are, and no text
//! longer than a line or two.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use giveway_engine::change::Latest;
use giveway_engine::class::Activity;
use giveway_engine::enforcement::limit_use::{LimitUse, WayUse};
use giveway_engine::model::Class;
use giveway_engine::priority::PriorityStatus;
use giveway_engine::queue::Plan;
use giveway_engine::queue::links::LinkView;
use giveway_engine::status::{FlowView, PeerView, Status};
use serde::Serialize;

use super::history::HistorySample;
use super::metrics::{self, Point};
use super::queue::{delay_s, rate};
use super::traffic::{ClassTraffic, Rates, Traffic, TrafficSummary, path_queue_s};
use crate::commands::by_hand;
use crate::words::clipped;

const MOST_FLOWS: usize = 100;
const MOST_CHANGES: usize = 50;
const MOST_LIMITS: usize = 50;
const MOST_PROCESSES: usize = 50;
const MOST_LINES: usize = 20;

#[derive(Clone)]
pub struct Snapshot {
    /// Why there is nothing to show.
    pub problem: Option<Arc<str>>,
    /// As JSON, for the page.
    pub state: Bytes,
    pub sample: Option<HistorySample>,
    pub points: Vec<Point>,
    made: Instant,
    fresh_for: Duration,
}

/// Takes one snapshot after another.
#[derive(Default)]
pub struct SnapshotMaker(Traffic);

impl SnapshotMaker {
    /// `took`: to get the status.
    pub fn take(&mut self, status: &Status, took: Duration) -> Snapshot {
        let seen = self.0.count(status);
        let sample = sample(status, &seen);
        let points = metrics::points(&metrics::Source {
            status,
            classes: &seen.classes,
            took,
        });
        let state = StateBody::new(status, &seen, &sample);
        Snapshot::new(None, &state, Some(sample), points)
    }
}

impl Snapshot {
    /// Nothing could be seen.
    pub fn without(problem: &str) -> Self {
        let problem = clipped(problem);
        let state = EmptyState {
            at_ms: now_ms(),
            problem: &problem,
        };
        Self::new(Some(problem.as_str().into()), &state, None, metrics::down())
    }

    fn new(
        problem: Option<Arc<str>>,
        state: &impl Serialize,
        sample: Option<HistorySample>,
        points: Vec<Point>,
    ) -> Self {
        Self {
            problem,
            state: serde_json::to_vec(state).unwrap_or_default().into(),
            sample,
            points,
            made: Instant::now(),
            fresh_for: Duration::ZERO,
        }
    }

    pub fn fresh_for(self, fresh_for: Duration) -> Self {
        Self { fresh_for, ..self }
    }

    pub fn is_fresh(&self) -> bool {
        self.made.elapsed() < self.fresh_for
    }
}

#[derive(Serialize)]
struct EmptyState<'a> {
    at_ms: u64,
    problem: &'a str,
}

#[derive(Serialize)]
struct StateBody {
    at_ms: u64,
    version: String,
    uptime_s: f64,
    dry_run: bool,
    policy: String,
    devices: u32,
    cooperates: bool,
    warnings: Vec<String>,
    focus: Vec<String>,
    by_hand: Vec<String>,
    limits: Vec<ShownLimit>,
    classes: Vec<ShownClass>,
    flows: Vec<ShownFlow>,
    flows_total: usize,
    links: Vec<ShownLink>,
    peers: Vec<ShownPeer>,
    priority: Option<ShownRealtime>,
    changes: Vec<ShownChange>,
    changes_total: usize,
    sample: (u64, Vec<Option<f64>>),
}

impl StateBody {
    fn new(status: &Status, seen: &TrafficSummary<'_>, sample: &HistorySample) -> Self {
        let Status {
            daemon,
            network,
            priority,
            changes,
        } = status;
        Self {
            at_ms: sample.at_ms,
            version: clipped(&daemon.version),
            uptime_s: daemon.uptime_s,
            dry_run: network.policy.dry_run,
            policy: clipped(&network.policy.name),
            devices: network.policy.senders,
            cooperates: network.policy.cooperates,
            warnings: lines(daemon.warnings.iter().map(String::as_str)),
            by_hand: lines(
                network
                    .by_hand
                    .iter()
                    .map(by_hand::shown)
                    .collect::<Vec<_>>()
                    .iter()
                    .map(String::as_str),
            ),
            focus: lines(
                network
                    .focus
                    .iter()
                    .map(Activity::shown)
                    .collect::<Vec<_>>()
                    .iter()
                    .map(String::as_str),
            ),
            limits: shown_limits(&network.limits),
            classes: Class::ALL.iter().zip(&seen.classes).map(ShownClass::new).collect(),
            flows: first_flows(seen),
            flows_total: seen.flows.len(),
            links: network.links.iter().map(ShownLink::new).collect(),
            peers: network.peers.iter().map(ShownPeer::new).collect(),
            priority: priority.as_ref().map(ShownRealtime::new),
            changes: last_changes(changes, network.taken_t_ns),
            changes_total: changes.len(),
            sample: sample.row(),
        }
    }
}

#[derive(Serialize)]
struct ShownClass {
    class: &'static str,
    sockets: u32,
    senders: u32,
    capped: u32,
    sent_bytes_per_s: f64,
    received_bytes_per_s: f64,
    send_queue_bytes: u64,
    path_queue_s: Option<f64>,
}

impl ShownClass {
    fn new((class, seen): (&Class, &ClassTraffic)) -> Self {
        Self {
            class: class.name(),
            sockets: seen.sockets,
            senders: seen.senders,
            capped: seen.capped,
            sent_bytes_per_s: seen.rates.sent.round(),
            received_bytes_per_s: seen.rates.received.round(),
            send_queue_bytes: seen.send_queue_bytes,
            path_queue_s: seen.path_queue_s,
        }
    }
}

/// In one direction.
#[derive(Serialize)]
struct ShownLimit {
    of: String,
    direction: &'static str,
    #[serde(flatten)]
    way: WayUse,
}

fn shown_limits(limits: &[LimitUse]) -> Vec<ShownLimit> {
    let shown = limits.iter().flat_map(|limit| {
        limit.ways().map(|(direction, way)| ShownLimit {
            of: clipped(&limit.of),
            direction,
            way: way.clone(),
        })
    });
    shown.take(MOST_LIMITS).collect()
}

#[derive(Serialize)]
struct ShownFlow {
    pid: Option<u32>,
    command: String,
    exe: Option<String>,
    remote: String,
    class: &'static str,
    rule: String,
    reason: String,
    yields_by: Option<String>,
    moves: bool,
    conflict: bool,
    cwnd: u32,
    cap: Option<u32>,
    rtt_ms: f64,
    path_queue_ms: Option<f64>,
    sent_bytes_per_s: f64,
    received_bytes_per_s: f64,
    send_queue_bytes: u64,
    retransmits: u32,
}

impl ShownFlow {
    fn new((view, rates): &(&FlowView, Rates)) -> Self {
        let flow = &view.flow;
        let by_window = view.receive_yields.then_some("its receive window");
        Self {
            pid: flow.owner.as_ref().map(|owner| owner.pid),
            command: flow
                .owner
                .as_ref()
                .map_or("?".to_owned(), |owner| clipped(&owner.command)),
            exe: view.exe.as_deref().map(clipped),
            remote: flow.shown_remote(),
            class: view.class.name(),
            rule: clipped(&view.class_rule),
            reason: clipped(
                &[vec![view.class_reason.clone()], view.enforcement_shown()]
                    .concat()
                    .join("; "),
            ),
            yields_by: view.scavenger.as_deref().or(by_window).map(clipped),
            moves: view.sender || view.receiver,
            conflict: view.conflict,
            cwnd: flow.cwnd,
            cap: view.cap,
            rtt_ms: f64::from(flow.srtt_us) / 1e3,
            path_queue_ms: path_queue_s(flow).map(|seconds| seconds * 1e3),
            sent_bytes_per_s: rates.sent.round(),
            received_bytes_per_s: rates.received.round(),
            send_queue_bytes: flow.unsent_bytes + flow.unacked_bytes,
            retransmits: flow.retransmits,
        }
    }
}

/// Those that move most come first.
fn first_flows(seen: &TrafficSummary<'_>) -> Vec<ShownFlow> {
    let mut flows = seen.flows.clone();
    let order = |(view, rates): &(&FlowView, Rates)| {
        let queued = view.flow.unsent_bytes + view.flow.unacked_bytes;
        let rate = (rates.sent + rates.received) as u64;
        let is_quiet = !view.sender && !view.receiver;
        (is_quiet, Reverse(rate), Reverse(queued), view.flow.cookie)
    };
    if flows.len() > MOST_FLOWS {
        flows.select_nth_unstable_by_key(MOST_FLOWS, order);
        flows.truncate(MOST_FLOWS);
    }
    flows.sort_by_key(order);
    flows.iter().map(ShownFlow::new).collect()
}

#[derive(Serialize)]
struct ShownLink {
    interface: String,
    queue: String,
    reason: String,
    estimate: Option<String>,
    rate_bytes_per_s: Option<u64>,
    /// How long what waits now takes at this rate.
    delay_s: Option<f64>,
    admitted: u64,
    refused: u64,
    bands: Vec<ShownBand>,
}

#[derive(Serialize)]
struct ShownBand {
    band: &'static str,
    backlog_packets: u64,
    sent_packets: u64,
    dropped: u64,
    /// Of all packets since the queue was installed: the half and 99% of them waited no longer.
    p50_s: Option<f64>,
    p99_s: Option<f64>,
}

impl ShownLink {
    fn new(link: &LinkView) -> Self {
        let queue = &link.queue;
        let counters = queue.counters.as_ref();
        Self {
            interface: clipped(&link.interface),
            queue: queue.installed.as_ref().map_or("not managed".to_owned(), Plan::shown),
            reason: clipped(&queue.reason),
            estimate: queue.estimate.map(|measured| clipped(&measured.shown())),
            rate_bytes_per_s: rate(queue),
            delay_s: delay_s(queue),
            admitted: counters.map_or(0, |counters| counters.admitted),
            refused: counters.map_or(0, |counters| counters.refused.total),
            bands: counters.map_or(Vec::new(), |counters| {
                let bands = counters.bands.in_order().into_iter();
                bands
                    .filter_map(|(name, band)| Some(ShownBand::new(name, &band.served?)))
                    .collect()
            }),
        }
    }
}

impl ShownBand {
    fn new(band: &'static str, served: &giveway_engine::queue::traffic::Served) -> Self {
        let seconds = |us: u64| us as f64 / 1e6;
        let more = served.more;
        Self {
            band,
            backlog_packets: served.backlog_packets,
            sent_packets: served.sent_packets,
            dropped: served.dropped_full + more.map_or(0, |more| more.dropped_sojourn + more.dropped_late),
            p50_s: more.map(|more| seconds(more.sojourn_p50_us)),
            p99_s: more.map(|more| seconds(more.sojourn_p99_us)),
        }
    }
}

#[derive(Serialize)]
struct ShownPeer {
    address: String,
    authenticated: bool,
    age_ms: u64,
    interval_ms: u64,
    senders: usize,
    bytes_per_s: u64,
}

impl ShownPeer {
    fn new(peer: &PeerView) -> Self {
        let rates = peer.senders.iter().map(|sender| u64::from(sender.delivery_rate_kbit));
        Self {
            address: peer.address.to_string(),
            authenticated: peer.authenticated,
            age_ms: peer.age_ms,
            interval_ms: peer.interval_ms,
            senders: peer.senders.len(),
            bytes_per_s: rates.sum::<u64>() * 125,
        }
    }
}

#[derive(Serialize)]
struct ShownRealtime {
    rules: usize,
    processes: Vec<ShownProcess>,
    processes_total: usize,
    chains: usize,
    raised_threads: usize,
    budget_ms: u64,
    used_ms: u64,
    window_ms: u64,
    demoted: u64,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ShownProcess {
    pid: u32,
    exe: String,
    rule: String,
    schedule: String,
    granted: bool,
    threads: u32,
    cpu_percent: f64,
}

impl ShownRealtime {
    fn new(status: &PriorityStatus) -> Self {
        let processes = status.processes.iter().take(MOST_PROCESSES).map(|held| ShownProcess {
            pid: held.pid,
            exe: clipped(&held.exe),
            rule: clipped(&held.rule),
            schedule: clipped(&held.schedule),
            granted: held.granted,
            threads: held.tasks,
            cpu_percent: held.cpu_percent,
        });
        let threads = status.chains.iter().flat_map(|chain| &chain.threads);
        Self {
            rules: status.rules.len(),
            processes: processes.collect(),
            processes_total: status.processes.len(),
            chains: status.chains.len(),
            raised_threads: threads.filter(|thread| thread.raised).count(),
            budget_ms: status.budget.budget_ms,
            used_ms: used_ms(status),
            window_ms: status.budget.window_ms,
            demoted: status.counters.demoted,
            warnings: lines(status.warnings.iter().map(String::as_str)),
        }
    }
}

/// Of the budget of all real time.
fn used_ms(status: &PriorityStatus) -> u64 {
    let budget = status.budget;
    budget.used_by_rules_ms + budget.used_by_chains_ms + budget.used_by_napi_ms
}

#[derive(Serialize)]
struct ShownChange {
    age_s: f64,
    what: String,
    made: bool,
    times: u64,
}

/// The latest one first.
fn last_changes(changes: &[Latest], now_ns: u64) -> Vec<ShownChange> {
    let changes = changes.iter().rev().take(MOST_CHANGES);
    let shown = changes.map(|latest| ShownChange {
        age_s: now_ns.saturating_sub(latest.t_ns) as f64 / 1e9,
        what: clipped(&latest.change.to_string()),
        made: latest.change.made,
        times: latest.times,
    });
    shown.collect()
}

fn sample(status: &Status, seen: &TrafficSummary<'_>) -> HistorySample {
    let network = &status.network;
    let classes = &seen.classes;
    let capped = classes.iter().any(|class| class.capped > 0);
    let allowed: f64 = classes.iter().map(|class| class.allowed_bytes_per_s).sum();
    let delays = network.links.iter().filter_map(|link| delay_s(&link.queue));
    let paths = classes.iter().filter_map(|class| class.path_queue_s);
    let budget = status.priority.as_ref().filter(|status| status.budget.budget_ms > 0);
    let sent = |class: Class| Some(classes[class as usize].rates.sent);
    let received = |class: Class| Some(classes[class as usize].rates.received);
    HistorySample {
        at_ms: now_ms(),
        // As `history::COLUMNS` names them.
        values: [
            sent(Class::Realtime),
            sent(Class::Stream),
            sent(Class::Standard),
            sent(Class::Bulk),
            sent(Class::Background),
            received(Class::Realtime),
            received(Class::Stream),
            received(Class::Standard),
            received(Class::Bulk),
            received(Class::Background),
            rate(&network.queue).map(|rate| rate as f64),
            capped.then_some(allowed),
            Some(f64::from(network.policy.senders)),
            delays.reduce(f64::max),
            paths.reduce(f64::max),
            Some(network.peers.iter().filter(|peer| peer.authenticated).count() as f64),
            budget.map(|status| used_ms(status) as f64 / status.budget.budget_ms as f64),
        ],
    }
}

fn lines<'a>(all: impl Iterator<Item = &'a str>) -> Vec<String> {
    all.take(MOST_LINES).map(clipped).collect()
}

fn now_ms() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::traffic::tests::{flow, status};
    use super::*;

    fn shown(flows: &[Value]) -> Value {
        let snapshot = SnapshotMaker::default().take(&status(1, 1, flows), Duration::ZERO);
        serde_json::from_slice(&snapshot.state).unwrap()
    }

    #[test]
    fn of_ten_thousand_sockets_the_page_shows_the_first_hundred() {
        let mut flows: Vec<Value> = (0..10_000).map(|cookie| flow(cookie, 0)).collect();
        let long = "x".repeat(100_000);
        for flow in &mut flows {
            flow["sender"] = json!(false);
            flow["class_reason"] = json!(long[..10_000]);
        }
        flows[7777]["sender"] = json!(true);
        flows[7777]["remote"] = json!("192.0.2.9:9");
        let snapshot = SnapshotMaker::default().take(&status(1, 1, &flows), Duration::ZERO);
        assert!(snapshot.state.len() < 100_000, "{} bytes", snapshot.state.len());
        let shown: Value = serde_json::from_slice(&snapshot.state).unwrap();
        assert_eq!(shown["flows_total"], 10_000);
        assert_eq!(shown["flows"].as_array().unwrap().len(), MOST_FLOWS);
        assert_eq!(shown["flows"][0]["remote"], "192.0.2.9:9", "who sends comes first");
    }

    #[test]
    fn a_name_that_turns_text_around_does_not() {
        let mut hostile = flow(1, 0);
        (hostile["pid"], hostile["command"]) = (json!(7), json!("a\u{202e}\u{1b}[2J\nb"));
        assert_eq!(shown(&[hostile])["flows"][0]["command"], "a??[2J?b");
    }

    #[test]
    fn where_nothing_can_be_seen_the_page_says_why_and_up_is_0() {
        let snapshot = Snapshot::without("no giveway daemon runs");
        let shown: Value = serde_json::from_slice(&snapshot.state).unwrap();
        assert_eq!(shown["problem"], "no giveway daemon runs");
        assert!(!snapshot.is_fresh() && snapshot.sample.is_none());
    }
}
