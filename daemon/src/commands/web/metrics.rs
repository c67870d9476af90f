// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of `/metrics`: each family is declared once in [`FAMILIES`], and `docs/reference/metrics.md` is made from
//! it. Labels are classes, bands, reasons and managed links: no process, address or rule is one, so that nobody who is not
//! root can make a series.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use giveway_engine::enforcement::by_hand::HandView;
use giveway_engine::enforcement::limit_use::{LimitedBy, WayUse};
use giveway_engine::model::Class;
use giveway_engine::priority::PriorityStatus;
use giveway_engine::queue::Backend;
use giveway_engine::queue::links::LinkView;
use giveway_engine::queue::traffic::{ByQdisc, QueueCounters, Served};
use giveway_engine::status::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::queue::{delay_s, rate};
use super::traffic::{CLASSES, ClassTraffic};
use crate::words::{clipped, printable};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the figures are taken from.
pub struct Source<'a> {
    pub status: &'a Status,
    pub classes: &'a [ClassTraffic; CLASSES],
    /// To get the status.
    pub took: Duration,
}

type Labels = Vec<(&'static str, String)>;
type Values = Vec<(Labels, f64)>;

struct Family {
    /// Without the prefix `giveway_`, the unit and `_total`.
    name: &'static str,
    unit: &'static str,
    kind: FamilyKind,
    help: &'static str,
    values: fn(&Source<'_>) -> Values,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum FamilyKind {
    Gauge,
    Counter,
}
use FamilyKind::{Counter, Gauge};

/// One value of one family.
#[derive(Clone, Debug)]
pub struct Point {
    family: usize,
    labels: Labels,
    value: f64,
}

const fn family(
    name: &'static str,
    unit: &'static str,
    kind: FamilyKind,
    help: &'static str,
    values: fn(&Source<'_>) -> Values,
) -> Family {
    Family {
        name,
        unit,
        kind,
        help,
        values,
    }
}

#[rustfmt::skip]
const FAMILIES: &[Family] = &[
    family("up", "", Gauge, "1 if the daemon answers; otherwise no other metric is exported", |_| one(1.0)),
    family("build_info", "", Gauge, "1, with the daemon's version", |s| {
        vec![(vec![("version", s.status.daemon.version.clone())], 1.0)]
    }),
    family("uptime", "seconds", Gauge, "Time since the daemon started", |s| one(s.status.daemon.uptime_s)),
    family("answer", "seconds", Gauge, "Duration of the daemon's latest answer", |s| one(s.took.as_secs_f64())),
    family("warnings", "", Gauge, "Warnings in `giveway status`", |s| one(s.status.daemon.warnings.len() as f64)),
    family("dry_run", "", Gauge, "1 in a dry run: decisions are made and nothing is changed", |s| one(u8::from(s.status.network.policy.dry_run).into())),
    family("lost_events", "", Counter, "Kernel events lost because a buffer was full", |s| one(s.status.daemon.lost_events as f64)),
    family("work_cpu", "seconds", Counter, "CPU time of the daemon, by polls of active sockets and full scans", |s| work(s, |cost| cost.cpu_us as f64 / 1e6)),
    family("work_runs", "", Counter, "Polls of active sockets and full scans", |s| work(s, |cost| cost.count as f64)),

    family("sockets", "", Gauge, "Open TCP connections, loopback excluded", |s| of_classes(s, |c| c.sockets.into())),
    family("senders", "", Gauge, "TCP connections that count as senders", |s| of_classes(s, |c| c.senders.into())),
    family("delivered", "bytes", Counter, "TCP payload acknowledged by the remote host since `giveway web` started", |s| of_classes(s, |c| c.delivered_bytes as f64)),
    family("received", "bytes", Counter, "TCP payload received in order since `giveway web` started", |s| of_classes(s, |c| c.received_bytes as f64)),
    family("retransmitted_segments", "", Counter, "TCP segments retransmitted", |s| of_classes(s, |c| c.retransmits as f64)),
    family("send_queue", "bytes", Gauge, "Written by applications and not yet acknowledged (Send-Q of ss)", |s| of_classes(s, |c| c.send_queue_bytes as f64)),
    family("capped_sockets", "", Gauge, "Connections with a cwnd cap", |s| of_classes(s, |c| c.capped.into())),
    family("cap_segments", "", Gauge, "Sum of cwnd caps", |s| of_classes(s, |c| c.cap_segments as f64)),
    family("cap_rate", "bytes_per_second", Gauge, "Sum of cwnd caps divided by the current RTT", |s| of_classes(s, |c| c.allowed_bytes_per_s)),
    family("path_queue_delay", "seconds", Gauge, "Longest queueing delay of any sender's path: smoothed RTT minus minimum RTT", |s| {
        let delays = Class::ALL.iter().zip(s.classes);
        delays.filter_map(|(class, c)| Some((vec![("class", class.name().to_owned())], c.path_queue_s?))).collect()
    }),
    family("reniced_processes", "", Gauge, "Processes reniced because their class is background", |s| one(s.status.network.reniced_processes as f64)),
    family("set_by_hand", "", Gauge, "Classes and limits set by `giveway class` and `giveway limit`", |s| {
        let counts = |by: &'static str| ["class", "limit"].map(|what| (vec![("by", by.to_owned()), ("what", what.to_owned())], by_hand(s, by, what) as f64));
        [counts("root"), counts("user")].concat()
    }),
    family("limit", "bytes_per_second", Gauge, "Configured rate of each limit", |s| of_limits(s, |way| Some(way.limit_mbit * 125_000.0))),
    family("limit_flows", "", Gauge, "Flows under a limit", |s| of_limits(s, |way| Some(way.flows as f64))),
    family("limit_passed", "bytes", Counter, "Bytes that passed a limit's queue, headers included", |s| of_limits(s, |way| Some(way.queue?.passed.passed_bytes as f64))),
    family("limit_backlog", "bytes", Gauge, "Backlog of a limit's queue", |s| of_limits(s, |way| Some(way.queue?.passed.backlog_bytes as f64))),
    family("limit_dropped_packets", "", Counter, "Packets dropped by a limit's queue", |s| of_limits(s, |way| Some(way.queue?.passed.dropped_packets as f64))),

    family("sending_devices", "", Gauge, "Sending devices of the group, this one included", |s| one(s.status.network.policy.senders.into())),
    family("peers", "", Gauge, "Devices of the group whose reports arrive", |s| {
        let count = |authenticated| s.status.network.peers.iter().filter(|n| n.authenticated == authenticated).count() as f64;
        [true, false].map(|authenticated| (vec![("authenticated", authenticated.to_string())], count(authenticated))).into()
    }),
    family("reports_sent", "", Counter, "Reports sent to peers", |s| one(s.status.network.reports.counters.sent as f64)),
    family("reports_received", "", Counter, "Valid reports received from peers", |s| one(s.status.network.reports.counters.received as f64)),
    family("reports_refused", "", Counter, "Datagrams to the group's port that were refused", refused_reports),

    family("link_rate", "bytes_per_second", Gauge, "Rate at which the link is shaped", |s| {
        of_links(s, |link| one(rate(&link.queue)? as f64).into())
    }),
    family("queue_installed", "", Gauge, "1 if giveway's queue is installed on the link", |s| of_links(s, |link| {
        let backend = link.queue.installed.as_ref().map_or(Backend::None, |plan| plan.backend);
        one(u8::from(backend != Backend::None).into()).into()
    })),
    family("queue_delay", "seconds", Gauge, "Backlog of the queue divided by its rate", |s| {
        of_links(s, |link| one(delay_s(&link.queue)?).into())
    }),
    family("queue_backlog", "bytes", Gauge, "Backlog of the queue", |s| of_bands(s, |band| one(band.backlog_bytes as f64))),
    family("queue_sent", "bytes", Counter, "Bytes sent by the queue, headers included", |s| of_bands(s, |band| one(band.sent_bytes as f64))),
    family("queue_sent_packets", "", Counter, "Packets sent by the queue", |s| of_bands(s, |band| one(band.sent_packets as f64))),
    family("queue_dropped_packets", "", Counter, "Packets dropped by the queue", |s| of_bands(s, dropped)),
    family("queue_sojourn", "seconds", Gauge, "Sojourn time of packets in the BPF qdisc since it was installed", |s| {
        of_bands(s, |band| band.more.map_or(Vec::new(), sojourn))
    }),
    family("deadlines_admitted", "", Counter, "Packets admitted with a deadline", |s| of_queues(s, |c| one(c.admitted as f64))),
    family("deadlines_refused", "", Counter, "Packets refused because their deadline cannot be met", |s| of_queues(s, refused_deadlines)),
    family("deadlines_missed", "", Counter, "Packets admitted and then dropped because their deadline had passed", |s| of_queues(s, |c| one(c.late as f64))),

    family("priority_rules", "", Gauge, "Rules for real-time priority", |s| of_realtime(s, |p| one(p.rules.len() as f64))),
    family("priority_threads", "", Gauge, "Threads with real-time priority by a rule or by request", |s| of_realtime(s, |p| {
        one(p.processes.iter().filter(|held| held.granted).map(|held| f64::from(held.tasks)).sum())
    })),
    family("priority_budget", "seconds", Gauge, "CPU time budget of real-time threads per window", |s| of_realtime(s, |p| one(p.budget.budget_ms as f64 / 1e3))),
    family("priority_used", "seconds", Gauge, "CPU time used by real-time threads in the last window", |s| of_realtime(s, |p| {
        let used = [("rules", p.budget.used_by_rules_ms), ("chains", p.budget.used_by_chains_ms), ("napi", p.budget.used_by_napi_ms)];
        labelled("by", used.map(|(by, ms)| (by, ms as f64 / 1e3)))
    })),
    family("priority_events", "", Counter, "Real-time priority granted, revoked, refused, ...", |s| of_realtime(s, realtime_events)),
];

/// Of each rule, by its place, and each class of each link that is ordered; of commands and by hand together: these come and go, and each would leave a series behind.
fn of_limits(source: &Source<'_>, value: fn(&WayUse) -> Option<f64>) -> Values {
    let mut all: BTreeMap<(String, &str), f64> = BTreeMap::new();
    for limit in &source.status.network.limits {
        let of = match limit.limited_by {
            LimitedBy::Rule | LimitedBy::Order => clipped(&limit.of),
            LimitedBy::Command => "commands".to_owned(),
            LimitedBy::Hand => "by hand".to_owned(),
        };
        for (direction, way) in limit.ways() {
            if let Some(value) = value(way) {
                *all.entry((of.clone(), direction)).or_default() += value;
            }
        }
    }
    let labelled = |((of, direction), value): ((String, &str), f64)| {
        let labels = vec![("of", of), ("direction", direction.to_owned())];
        (labels, value)
    };
    all.into_iter().map(labelled).collect()
}

fn by_hand(source: &Source<'_>, by: &str, what: &str) -> usize {
    let is_it = |view: &&HandView| {
        let has = if what == "class" {
            view.set.class.is_some()
        } else {
            view.set.limit.is_some()
        };
        has && (view.set.uid == 0) == (by == "root")
    };
    source.status.network.by_hand.iter().filter(is_it).count()
}

fn one(value: f64) -> Values {
    vec![(Labels::new(), value)]
}

fn labelled<const N: usize>(label: &'static str, values: [(&str, f64); N]) -> Values {
    values
        .map(|(name, value)| (vec![(label, name.to_owned())], value))
        .into()
}

fn work(s: &Source<'_>, of: fn(&giveway_engine::status::Cost) -> f64) -> Values {
    let daemon = &s.status.daemon;
    labelled(
        "work",
        [("poll", of(&daemon.polls)), ("full_scan", of(&daemon.full_scans))],
    )
}

fn of_classes(s: &Source<'_>, of: fn(&ClassTraffic) -> f64) -> Values {
    let classes = Class::ALL.iter().zip(s.classes);
    classes
        .map(|(class, counted)| (vec![("class", class.name().to_owned())], of(counted)))
        .collect()
}

fn of_links(s: &Source<'_>, of: impl Fn(&LinkView) -> Option<Values>) -> Values {
    let of_link = |link: &LinkView| {
        let mut values = of(link).unwrap_or_default();
        values
            .iter_mut()
            .for_each(|(labels, _)| labels.insert(0, ("link", link.interface.clone())));
        values
    };
    s.status.network.links.iter().flat_map(of_link).collect()
}

fn of_queues(s: &Source<'_>, of: fn(&QueueCounters) -> Values) -> Values {
    of_links(s, |link| link.queue.counters.as_ref().map(of))
}

/// Of each band that something of giveway's serves.
fn of_bands(s: &Source<'_>, of: fn(&Served) -> Values) -> Values {
    const NAMES: [&str; 4] = ["realtime", "stream", "best_effort", "background"];
    of_links(s, |link| {
        let bands = link.queue.counters.as_ref()?.bands.in_order();
        let mut all = Values::new();
        for (name, (_, band)) in NAMES.into_iter().zip(bands) {
            let mut values = band.served.as_ref().map_or(Vec::new(), of);
            values
                .iter_mut()
                .for_each(|(labels, _)| labels.insert(0, ("band", name.to_owned())));
            all.append(&mut values);
        }
        Some(all)
    })
}

fn dropped(band: &Served) -> Values {
    let mut dropped = labelled("reason", [("full", band.dropped_full as f64)]);
    if let Some(more) = band.more {
        let more = [
            ("sojourn", more.dropped_sojourn),
            ("late", more.dropped_late),
            ("reset", more.dropped_reset),
        ];
        dropped.extend(labelled("reason", more.map(|(reason, count)| (reason, count as f64))));
    }
    dropped
}

fn sojourn(more: ByQdisc) -> Values {
    let statistics = [
        ("p50", more.sojourn_p50_us),
        ("p99", more.sojourn_p99_us),
        ("max", more.sojourn_max_us),
    ];
    labelled("statistic", statistics.map(|(name, us)| (name, us as f64 / 1e6)))
}

fn refused_deadlines(counters: &QueueCounters) -> Values {
    let refused = counters.refused;
    let reasons = [
        ("own", refused.own),
        ("others", refused.others),
        ("full", refused.full),
        ("share", refused.share),
    ];
    labelled("reason", reasons.map(|(reason, count)| (reason, count as f64)))
}

fn refused_reports(s: &Source<'_>) -> Values {
    let c = &s.status.network.reports.counters;
    let reasons = [
        ("malformed", c.malformed),
        ("unknown_key", c.unknown_key),
        ("forged", c.forged),
        ("replayed", c.replayed),
        ("stale", c.stale),
        ("copied", c.copied),
        ("unauthenticated", c.unauthenticated),
        ("older_version", c.older_version),
        ("future_version", c.future_version),
        ("off_link", c.off_link),
    ];
    labelled("reason", reasons.map(|(reason, count)| (reason, count as f64)))
}

fn of_realtime(s: &Source<'_>, of: fn(&PriorityStatus) -> Values) -> Values {
    s.status.priority.as_ref().map_or(Vec::new(), of)
}

fn realtime_events(status: &PriorityStatus) -> Values {
    let c = &status.counters;
    let events = [
        ("granted", c.granted),
        ("revoked", c.revoked),
        ("demoted", c.demoted),
        ("refused", c.refused),
        ("failed", c.failed),
        ("conflict", c.conflict),
        ("starved", c.starved),
        ("starved_by_others", c.starved_by_others),
    ];
    labelled("event", events.map(|(event, count)| (event, count as f64)))
}

pub fn points(source: &Source<'_>) -> Vec<Point> {
    let of_family = |(family, declared): (usize, &Family)| {
        let values = (declared.values)(source);
        values
            .into_iter()
            .map(move |(labels, value)| Point { family, labels, value })
    };
    FAMILIES.iter().enumerate().flat_map(of_family).collect()
}

/// The daemon does not answer.
pub fn down() -> Vec<Point> {
    vec![Point {
        family: 0,
        labels: Labels::new(),
        value: 0.0,
    }]
}

/// In the format that is asked for: OpenMetrics, or else Prometheus' own. With its type.
pub fn exposition(points: &[Point], headers: &HeaderMap) -> (&'static str, String) {
    let mut registry = Registry::with_prefix("giveway");
    registry.register_collector(Box::new(Encoded(points.to_vec())));
    let mut out = String::new();
    // A string takes whatever is written to it.
    if wants_open_metrics(headers) {
        let _ = text::encode(&mut out, &registry);
        (OPEN_METRICS, printable(&out))
    } else {
        let _ = prometheus_text::encode(&mut out, &registry);
        (prometheus_text::CONTENT_TYPE, printable(&out))
    }
}

fn wants_open_metrics(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    weight(accepted, "application/openmetrics-text") > weight(accepted, "text/plain")
}

/// Of this type, where it is named (RFC 9110, section 12.5.1), in thousandths; of several, the greatest.
fn weight(accepted: &str, kind: &str) -> u32 {
    let of = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let is_it = parts.next()?.eq_ignore_ascii_case(kind);
        let q = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok());
        is_it.then(|| (q.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u32)
    };
    accepted.split(',').filter_map(of).max().unwrap_or(0)
}

#[derive(Debug)]
struct Encoded(Vec<Point>);

impl Collector for Encoded {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for points in self.0.chunk_by(|a, b| a.family == b.family) {
            let Some(family) = points.first().and_then(|point| FAMILIES.get(point.family)) else {
                continue;
            };
            let unit = (!family.unit.is_empty()).then(|| Unit::Other(family.unit.to_owned()));
            let kind = match family.kind {
                Gauge => MetricType::Gauge,
                Counter => MetricType::Counter,
            };
            let help = format!("{}.", family.help);
            let mut encoder = encoder.encode_descriptor(family.name, &help, unit.as_ref(), kind)?;
            for point in points {
                match (family.kind, point.labels.is_empty()) {
                    (Gauge, true) => ConstGauge::new(point.value).encode(encoder.encode_family(&NO_LABELS)?)?,
                    (Gauge, false) => ConstGauge::new(point.value).encode(encoder.encode_family(&point.labels)?)?,
                    (Counter, true) => ConstCounter::new(point.value).encode(encoder.encode_family(&NO_LABELS)?)?,
                    (Counter, false) => ConstCounter::new(point.value).encode(encoder.encode_family(&point.labels)?)?,
                }
            }
        }
        Ok(())
    }
}

/// So that a value without labels has no braces either.
const NO_LABELS: Vec<(&str, String)> = Vec::new();

#[cfg(test)]
pub(super) mod tests {
    use axum::http::HeaderValue;
    use giveway_engine::class::MOST_LIMITS;
    use giveway_engine::config::MOST_LINKS;
    use giveway_engine::downlink::Passing;
    use giveway_engine::enforcement::limit_use::LimitUse;

    use super::super::snapshot::{Snapshot, SnapshotMaker};
    use super::super::traffic::tests::{flow, status};
    use super::*;

    fn text(accept: &'static str) -> (&'static str, String) {
        let snapshot = SnapshotMaker::default().take(&status(1, 1, &[flow(1, 1)]), Duration::from_millis(5));
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        exposition(&snapshot.points, &headers)
    }

    #[test]
    fn prometheus_own_format_is_the_default_and_open_metrics_is_asked_for() {
        let (kind, plain) = text("*/*");
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        assert!(
            plain.contains("# TYPE giveway_delivered_bytes_total counter\n"),
            "{plain}"
        );
        assert!(plain.contains("giveway_senders{class=\"bulk\"} 1"), "{plain}");
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let (kind, open) = text(prometheus);
        assert_eq!(kind, OPEN_METRICS);
        assert!(open.contains("# TYPE giveway_delivered_bytes counter\n"), "{open}");
        assert!(open.contains("# UNIT giveway_delivered_bytes bytes\n"), "{open}");
        assert!(open.ends_with("# EOF\n"));
        assert_eq!(
            text("text/plain, application/openmetrics-text;q=0.1").0,
            prometheus_text::CONTENT_TYPE
        );
    }

    /// One line of the table.
    fn documented(family: &Family, labels: &[&str]) -> String {
        let (kind, total) = match family.kind {
            Gauge => ("gauge", ""),
            Counter => ("counter", "_total"),
        };
        let unit = if family.unit.is_empty() {
            String::new()
        } else {
            format!("_{}", family.unit)
        };
        format!(
            "| `giveway_{}{unit}{total}` | {kind} | {} | {} |",
            family.name,
            labels.join(", "),
            family.help
        )
    }

    /// Everything that can be told, on so many links and of so many limits.
    fn full(links: usize, limits: usize) -> Vec<Point> {
        let mut full = status(1, 1, &[flow(1, 1)]);
        let served = Served {
            more: Some(ByQdisc::default()),
            ..Served::default()
        };
        let mut counters = QueueCounters::default();
        let bands = &mut counters.bands;
        for band in [
            &mut bands.realtime,
            &mut bands.stream,
            &mut bands.best_effort,
            &mut bands.background,
        ] {
            band.served = Some(served);
        }
        let tuning = serde_json::json!({
            "ifindex": 2, "backend": "bpf", "single_segments": false, "rate_bytes_per_s": 1,
            "rate_source": "configuration", "overhead_bytes": 0, "max_packet_bytes": 0, "driver_bytes": 0,
            "realtime_percent": 0, "guard_us": 0, "path_budget_us": 0, "background_min_bytes_per_s": 0, "sojourn_target_us": 0,
            "sojourn_interval_us": 0, "admission": true, "drop_late": true, "cpu_gate": true,
        });
        full.network.links = (0..links)
            .map(|number| {
                let mut link = LinkView {
                    interface: format!("eth{number}"),
                    ..LinkView::default()
                };
                link.queue.installed = Some(serde_json::from_value(tuning.clone()).unwrap());
                link.queue.counters = Some(counters.clone());
                link
            })
            .collect();
        let way = WayUse {
            limit_mbit: 4.0,
            flows: 1,
            queue: Some(Passing::default()),
        };
        let limit = |number| LimitUse {
            limited_by: LimitedBy::Rule,
            of: format!("rule 50-test.toml:{number}"),
            upload: Some(way.clone()),
            download: Some(way.clone()),
        };
        let order = |interface: &LinkView, class: &str| LimitUse {
            limited_by: LimitedBy::Order,
            of: format!("{class} by {}", interface.interface),
            upload: None,
            download: Some(way.clone()),
        };
        let orders = full.network.links.iter();
        let orders = orders.flat_map(|link| ["bulk", "background"].map(|class| order(link, class)));
        full.network.limits = (0..limits).map(limit).chain(orders).collect();
        full.priority = Some(PriorityStatus::default());
        SnapshotMaker::default().take(&full, Duration::ZERO).points
    }

    /// The table of `docs/reference/metrics.md`, and how many series a machine has at most.
    pub fn page() -> String {
        let points = full(1, 1);
        let rows = FAMILIES.iter().enumerate().map(|(number, family)| {
            let mut of_family = points.iter().filter(|point| point.family == number);
            let point = of_family
                .next()
                .unwrap_or_else(|| panic!("{} is never told", family.name));
            let labels: Vec<&str> = point.labels.iter().map(|(label, _)| *label).collect();
            documented(family, &labels) + "\n"
        });
        let (none, of_link, of_limit, most) = bounds();
        format!(
            "| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n{}\n{none} series, {of_link} for each managed link and \
             {of_limit} for each limit,\n{most} at most.\n",
            rows.collect::<String>()
        )
    }

    /// Series: without links and limits, of one link, of one limit, and the most.
    fn bounds() -> (usize, usize, usize, usize) {
        let (none, link, limit) = (full(0, 0).len(), full(1, 0).len(), full(0, 1).len());
        let [of_link, of_limit] = [link, limit].map(|one| one - none);
        // Commands and by hand, too.
        (
            none,
            of_link,
            of_limit,
            none + MOST_LINKS * of_link + (MOST_LIMITS + 2) * of_limit,
        )
    }

    #[test]
    fn a_machine_has_no_more_series_than_the_page_says() {
        assert_eq!(full(MOST_LINKS, MOST_LIMITS + 2).len(), bounds().3);
        let flows: Vec<_> = (0..1000).map(|cookie| flow(cookie, 1)).collect();
        let many = SnapshotMaker::default()
            .take(&status(1, 1, &flows), Duration::ZERO)
            .points;
        let few = SnapshotMaker::default()
            .take(&status(1, 1, &flows[..1]), Duration::ZERO)
            .points;
        assert_eq!(many.len(), few.len(), "sockets make no series");
    }

    #[test]
    fn without_a_daemon_up_is_0_and_nothing_else_is_said() {
        let (_, text) = exposition(&Snapshot::without("gone").points, &HeaderMap::new());
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(values, ["giveway_up 0.0"]);
    }
}
