// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway status`: what is active, on a narrow terminal or as JSON.

use std::cmp::Reverse;

use anyhow::Result;
use giveway_engine::class::{Activity, ClassMark, LinkMarks};
use giveway_engine::downlink::DownlinkView;
use giveway_engine::enforcement::limit_use::WayUse;
use giveway_engine::model::{Class, Owner, Protocol};
use giveway_engine::priority::PriorityStatus;
use giveway_engine::queue::links::LinkView;
use giveway_engine::queue::traffic::{Band, QueueCounters};
use giveway_engine::queue::{Plan, QueueView};
use giveway_engine::status::{FlowView, NetworkStatus, PeerView, Status};

use crate::commands::args::Json;
use crate::commands::clock::duration_s;
use crate::commands::{WIDE, by_hand, counted, hanging, print, print_json, terminal_columns};
use crate::control::client;
use crate::place::Place;

/// Below a socket's remote end.
const CLASS_INDENT: usize = 17;
const PROCESS_COLUMNS: usize = 13;

pub fn run(args: &Json) -> Result<()> {
    let status = client::status(&Place::here()?)?;
    if args.json {
        print_json(&status)?;
    } else {
        print(&render(&status, terminal_columns()))?;
    }
    Ok(())
}

fn render(status: &Status, columns: Option<usize>) -> String {
    let Status { daemon, network, .. } = status;
    let dry = if network.policy.dry_run {
        "; dry run: nothing below is active"
    } else {
        ""
    };
    let mut text = format!(
        "giveway {} (pid {}), up {}{dry}\n",
        daemon.version,
        daemon.pid,
        duration_s(daemon.uptime_s)
    );
    for (label, line) in lines(status) {
        text += &hanging(&format!("{label:<14}"), 14, &line, columns);
        text += "\n";
    }
    let is_wide = columns.is_none_or(|columns| columns >= WIDE);
    add_bands(&mut text, network, is_wide);
    add_flows(&mut text, network, is_wide, columns);
    if !network.forwarded.is_empty() {
        text += "\n  FORWARDED CGROUP\n";
    }
    for of in &network.forwarded {
        let line = format!("{}  {}: {}", of.cgroup, of.class.name(), of.class_reason);
        text += &hanging("  ", CLASS_INDENT, &line, columns);
        text += "\n";
    }
    add_limits(&mut text, network, is_wide, columns);
    if !network.peers.is_empty() {
        text += "\n   PEER                 SENDERS  LAST HEARD  INTERVAL\n";
    }
    for peer in &network.peers {
        text += &peer_line(peer);
    }
    text
}

fn add_bands(text: &mut String, network: &NetworkStatus, is_wide: bool) {
    for link in &network.links {
        let Some(counters) = &link.queue.counters else { continue };
        if network.links.len() > 1 {
            *text += &format!("\n{}", link.interface);
        }
        let waited = if is_wide { "  p50 ms  p99 ms  max ms" } else { "" };
        *text += &format!("\n   BAND        BACKLOG      SENT   FULL  CODEL   LATE{waited}\n");
        for (name, band) in counters.bands.in_order() {
            *text += &band_line(name, band, is_wide);
        }
    }
}

fn add_flows(text: &mut String, network: &NetworkStatus, is_wide: bool, columns: Option<usize>) {
    // Most UDP sockets are for a question and an answer.
    let datagrams = network.datagrams.iter().filter(|view| view.class != Class::Standard);
    let mut flows: Vec<&FlowView> = network.flows.iter().chain(datagrams).collect();
    let queued_bytes = |f: &FlowView| f.flow.unsent_bytes + f.flow.unacked_bytes;
    flows.sort_by_key(|f| (!f.sender, Reverse(queued_bytes(f)), f.flow.cookie));
    if !flows.is_empty() {
        let more = if is_wide { " SEND-Q kB UP/DOWN Mbit/s" } else { "" };
        *text += &format!("\n  PROCESS       REMOTE                 CWND  CAP RTT ms{more}\n");
    }
    for flow in flows {
        *text += &flow_line(flow, is_wide);
        let mut add_line = |line: &str| {
            *text += &hanging(&" ".repeat(CLASS_INDENT), CLASS_INDENT, line, columns);
            *text += "\n";
        };
        if flow.class != Class::Standard {
            let control = yields(flow, network.policy.dry_run);
            let class = format!("{}: {}{control}", flow.class.name(), flow.class_reason);
            add_line(&class);
        }
        for line in flow.enforcement_shown() {
            add_line(&line);
        }
    }
}

fn add_limits(text: &mut String, network: &NetworkStatus, is_wide: bool, columns: Option<usize>) {
    if !network.limits.is_empty() {
        let more = if is_wide {
            "  PASSED MB  BACKLOG kB  DROPPED"
        } else {
            ""
        };
        *text += &format!("\n  LIMIT     Mbit/s  THROUGHPUT  FLOWS{more}  OF\n");
    }
    for limit in &network.limits {
        for (direction, way) in limit.ways() {
            *text += &hanging(
                &limit_numbers(direction, way, is_wide),
                CLASS_INDENT,
                &limit.of,
                columns,
            );
            *text += "\n";
        }
    }
}

/// What was asked for and is not enforced, once for each limit or class and device.
fn shortfall_lines(network: &NetworkStatus) -> impl Iterator<Item = String> {
    let of_flows = network.not_enforced.iter().map(|short| {
        let on = match short.interface.as_str() {
            "" => String::new(),
            interface => format!(" on {interface}"),
        };
        let flows = counted(short.flows, "flow");
        format!("{}{on} ({flows}; rule {}): {}", short.what, short.rule, short.reason)
    });
    let elsewhere = network.elsewhere.iter().map(|process| {
        format!(
            "what `giveway exec` was asked for {} ({}): {}",
            process.command, process.pid, process.reason
        )
    });
    of_flows.chain(elsewhere)
}

/// By what a background connection yields, behind its class.
fn yields(flow: &FlowView, dry_run: bool) -> String {
    shown_means(flow.scavenger.as_deref(), flow.receive_yields, dry_run)
}

fn shown_means(control: Option<&str>, by_window: bool, dry_run: bool) -> String {
    let means = match (control, by_window) {
        (Some(name), true) => format!("{name} and by its receive window"),
        (Some(name), false) => name.to_owned(),
        (None, true) => "its receive window".to_owned(),
        (None, false) => return String::new(),
    };
    let yields = if dry_run { "would yield" } else { "yields" };
    format!("; {yields} by {means}")
}

/// What is active, each part under its label.
// Long: a list in the order in which it is shown.
fn lines(status: &Status) -> Vec<(&'static str, String)> {
    let Status {
        daemon,
        network,
        priority,
        ..
    } = status;
    let interface = match &network.interface {
        Some(i) => format!(
            "{} (index {}){}",
            i.name,
            i.index,
            also_managed(&network.links, &i.name)
        ),
        None => "none: no default route, and no configured interface is up; monitoring only".to_owned(),
    };
    let mut lines = vec![("interface", interface), ("caps", policy_line(network))];
    lines.extend(queue_lines(network).into_iter().map(|line| ("queue", line)));
    let limits = [("download", &network.downloads), ("upload", &network.uploads)];
    lines.extend(
        limits
            .into_iter()
            .filter_map(|(direction, view)| Some(("limits", limits_line(direction, view)?))),
    );
    let of_each = |line: fn(&QueueView) -> Option<String>| {
        let lines = network
            .links
            .iter()
            .filter_map(move |link| Some((link, line(&link.queue)?)));
        lines.map(|(link, line)| named(network, link, line))
    };
    lines.extend(of_each(|queue| marks_line(&queue.marks)).map(|line| ("marks", line)));
    lines.extend(of_each(|queue| queue.counters.as_ref().map(deadline_line)).map(|line| ("deadlines", line)));
    lines.extend(ordering_lines(&network.downloads).map(|line| ("ordering", line)));
    lines.push(("classes", counted(daemon.class_rules, "rule")));
    let active: Vec<String> = network.focus.iter().map(Activity::shown).collect();
    lines.extend((!active.is_empty()).then(|| ("focus", active.join(", "))));
    lines.extend(network.by_hand.iter().map(|view| ("by hand", by_hand::shown(view))));
    let nice = network.reniced_processes;
    lines.extend((nice > 0).then(|| {
        let of = if nice == 1 { "process" } else { "processes" };
        let line = format!("{nice} {of} at nice 19 and in the idle I/O class (background)");
        ("reniced", line)
    }));
    let left_out = network.processes_left_out;
    lines.extend((left_out > 0).then(|| {
        let of = if left_out == 1 { "process" } else { "processes" };
        let line = format!(
            "{left_out} {of} beyond the limit of tracked processes: not reniced by rules, unclassified until they send"
        );
        ("untracked", line)
    }));
    lines.push(("priority", priority_line(priority.as_ref())));
    lines.extend(priority.as_ref().and_then(receive_line).map(|line| ("receiving", line)));
    lines.push(("peers", peers_line(network)));
    lines.extend(network.reports.older.map(|address| {
        let line = format!(
            "{address} uses an older version of the group protocol: its reports are ignored until it is upgraded"
        );
        ("upgrade", line)
    }));
    lines.extend(shortfall_lines(network).map(|line| ("not enforced", line)));
    lines.extend(daemon.warnings.iter().map(|line| ("warning", line.clone())));
    lines
}

/// The links beside the first.
fn also_managed(links: &[LinkView], first: &str) -> String {
    let names = links.iter().map(|link| link.interface.as_str());
    let others: Vec<&str> = names.filter(|name| *name != first).collect();
    match &others[..] {
        [] => String::new(),
        others => format!("; also {}", others.join(", ")),
    }
}

pub(super) fn policy_line(network: &NetworkStatus) -> String {
    let p = &network.policy;
    let dry = if p.dry_run { "; nothing is changed" } else { "" };
    match p.name.as_str() {
        "none" => {
            "none: cwnd is not capped (policy = \"none\", or neither capacity_mbit nor a group key is configured)"
                .to_owned()
        }
        name => {
            let doing = p.doing.as_ref().map_or(String::new(), |doing| format!("; {doing}"));
            format!(
                "{name}: shared by {} and {} of this one{dry}{doing}",
                counted(p.senders as usize, "sending device"),
                counted(p.connections as usize, "connection")
            )
        }
    }
}

/// By which links limits hold, and why not by others.
fn limits_line(direction: &str, view: &DownlinkView) -> Option<String> {
    let by = format!("{direction} limits are enforced on {}", view.links.join(", "));
    let holds = (!view.links.is_empty()).then_some(by);
    let all: Vec<String> = holds.into_iter().chain(view.reasons.iter().cloned()).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Of each link where what arrives is ordered by which rate, and what is left of it now.
fn ordering_lines(view: &DownlinkView) -> impl Iterator<Item = String> {
    view.orders.iter().map(|order| {
        format!(
            "downloads on {}: bulk and background get {:.1} Mbit/s ({}, less {:.1} of other traffic)",
            order.interface,
            order.available_mbit,
            order.rate_shown(),
            order.throughput_mbit
        )
    })
}

/// Of each link the queue that is active, at what rate, and why.
pub fn queue_lines(network: &NetworkStatus) -> Vec<String> {
    if network.links.is_empty() {
        return vec![queue_line(network, &network.queue)];
    }
    let line = |link: &LinkView| named(network, link, queue_line(network, &link.queue));
    network.links.iter().map(line).collect()
}

/// With the name of its link, where there are several.
fn named(network: &NetworkStatus, link: &LinkView, line: String) -> String {
    match network.links.len() {
        0 | 1 => line,
        _ => format!("{}: {line}", link.interface),
    }
}

fn queue_line(network: &NetworkStatus, queue: &QueueView) -> String {
    let QueueView { installed, reason, .. } = queue;
    let shown = installed.as_ref().map_or("not managed".to_owned(), Plan::shown);
    let is_dry = installed.is_some() && network.policy.dry_run;
    let dry = if is_dry { "; nothing is changed" } else { "" };
    let mss = installed.as_ref().and_then(|plan| plan.tuning.short_mss);
    let short = mss.map_or(String::new(), |mss| {
        format!("; background connections use segments of at most {mss} bytes")
    });
    let found = queue
        .estimate
        .map_or(String::new(), |measured| format!("; {}", measured.shown()));
    format!("{shown}: {reason}{found}{short}{dry}")
}

/// None where packets of every class keep their own.
fn marks_line(marks: &LinkMarks) -> Option<String> {
    let of_class = |mark: &ClassMark| match mark.user_priority {
        Some(priority) => format!("{} {}, on Wi-Fi user priority {priority}", mark.class.name(), mark.dscp),
        None => format!("{} {}", mark.class.name(), mark.dscp),
    };
    let marks: Vec<_> = marks.iter().map(of_class).collect();
    (!marks.is_empty()).then(|| marks.join("; "))
}

pub(super) fn priority_line(priority: Option<&PriorityStatus>) -> String {
    let Some(view) = priority else {
        return "the real-time thread is not running".to_owned();
    };
    if let (true, Some(reason)) = (view.processes.is_empty(), view.warnings.first()) {
        return format!("none: {reason}");
    }
    let granted: Vec<_> = view.processes.iter().filter(|held| held.granted).collect();
    let tasks: u32 = granted.iter().map(|held| held.tasks).sum();
    let taken = match view.counters.demoted {
        0 => String::new(),
        times => format!("; revoked {} (`giveway why`)", counted(times as usize, "time")),
    };
    format!(
        "{}; {} with real-time priority{taken}",
        counted(view.rules.len(), "rule"),
        counted(tasks as usize, "thread")
    )
}

/// None where nothing is configured.
fn receive_line(priority: &PriorityStatus) -> Option<String> {
    let PriorityStatus { chains, napi, .. } = priority;
    if chains.is_empty() && napi.is_none() {
        return None;
    }
    let raised_napi = napi
        .iter()
        .filter(|napi| napi.raised)
        .map(|napi| napi.tids.len())
        .sum::<usize>();
    let threads = || chains.iter().flat_map(|chain| &chain.threads);
    Some(format!(
        "real-time priority for {raised_napi} NAPI threads and {} of {} request handlers (`giveway why receive`)",
        threads().filter(|thread| thread.raised).count(),
        threads().count()
    ))
}

pub(super) fn peers_line(network: &NetworkStatus) -> String {
    let r = &network.reports;
    if !network.policy.cooperates {
        return "none: no group key (`giveway key new`, then key_file in [group])".to_owned();
    }
    let c = &r.counters;
    let refused = c.heard() - c.received - c.own_echo;
    let authenticated = network.peers.iter().filter(|n| n.authenticated).count();
    format!(
        "{authenticated} authenticated; {} reports sent, {} received, {refused} refused; one every {} ms",
        c.sent, c.received, r.interval_ms
    )
}

fn deadline_line(counters: &QueueCounters) -> String {
    let refused = counters.refused;
    let late = match counters.bands.realtime.served.and_then(|served| served.more) {
        Some(more) => format!("{} late", more.dropped_late),
        None => "late: unknown".to_owned(),
    };
    format!(
        "{} admitted, {} refused ({} late themselves, {} would delay others, {} queue full, {} beyond the user's share), {late}",
        counters.admitted, refused.total, refused.own, refused.others, refused.full, refused.share
    )
}

/// Packets, and how long they waited.
fn band_line(name: &str, band: &Band, is_wide: bool) -> String {
    let Some(served) = band.served else {
        return format!("   {name:<11} {:>7} {:>9}\n", "-", "-");
    };
    let first = format!(
        "   {name:<11} {:>7} {:>9} {:>6}",
        served.backlog_packets, served.sent_packets, served.dropped_full
    );
    let Some(more) = served.more else {
        return format!("{first}\n");
    };
    let first = format!("{first} {:>6} {:>6}", more.dropped_sojourn, more.dropped_late);
    if !is_wide {
        return format!("{first}\n");
    }
    let ms = |us: u64| us as f64 / 1e3;
    format!(
        "{first} {:>7.1} {:>7.1} {:>7.1}\n",
        ms(more.sojourn_p50_us),
        ms(more.sojourn_p99_us),
        ms(more.sojourn_max_us),
    )
}

/// The name is cut, never the number: part of one is another process's.
fn shown_process(owner: &Owner) -> String {
    let pid = owner.pid.to_string();
    let room = PROCESS_COLUMNS.saturating_sub(pid.len() + 1);
    let name: String = owner.command.chars().take(room).collect();
    format!("{name}/{pid}")
}

fn flow_line(view: &FlowView, is_wide: bool) -> String {
    let flow = &view.flow;
    let process = flow.owner.as_ref().map_or("?".to_owned(), shown_process);
    let mark = match (view.conflict, view.sender) {
        (true, _) => '!',
        (false, true) => '>',
        (false, false) => ' ',
    };
    let remote = flow.shown_remote();
    if flow.protocol == Protocol::Udp {
        return format!("{mark} {process:<13} {remote:<21}   UDP\n");
    }
    let first = format!(
        "{mark} {process:<13} {remote:<21} {cwnd:>5} {cap:>4} {rtt:>6.1}",
        cwnd = flow.cwnd,
        cap = view.cap.map_or("-".to_owned(), |c| c.to_string()),
        rtt = f64::from(flow.srtt_us) / 1e3,
    );
    if !is_wide {
        return format!("{first}\n");
    }
    format!(
        "{first} {queue:>9.0} {sent:>7.1} {received:>7.1}\n",
        queue = (flow.unsent_bytes + flow.unacked_bytes) as f64 / 1e3,
        sent = view.upload_mbit,
        received = view.download_mbit,
    )
}

fn limit_numbers(direction: &str, way: &WayUse, is_wide: bool) -> String {
    let first = format!(
        "  {direction:<8} {:>7.2}  {:>10}  {:>5}",
        way.limit_mbit,
        way.queue
            .map_or("-".to_owned(), |queue| format!("{:.2}", queue.throughput_mbit)),
        way.flows
    );
    let more = way.queue.filter(|_| is_wide).map(|queue| {
        format!(
            "  {:>9.1}  {:>10.1}  {:>7}",
            queue.passed.passed_bytes as f64 / 1e6,
            queue.passed.backlog_bytes as f64 / 1e3,
            queue.passed.dropped_packets
        )
    });
    let none = if is_wide {
        format!("  {:>9}  {:>10}  {:>7}", "-", "-", "-")
    } else {
        String::new()
    };
    format!("{first}{}  ", more.unwrap_or(none))
}

fn peer_line(n: &PeerView) -> String {
    let authentication = if n.authenticated { "" } else { "  not authenticated yet" };
    format!(
        "   {:<25} {:>7}  {:>7} ms  {:>5} ms{authentication}\n",
        n.address.to_string(),
        n.senders.len(),
        n.age_ms,
        n.interval_ms
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_dry_run_a_connection_would_yield() {
        assert_eq!(shown_means(Some("gw_lbe"), false, false), "; yields by gw_lbe");
        assert_eq!(shown_means(None, true, true), "; would yield by its receive window");
        assert_eq!(shown_means(None, false, true), "");
    }

    #[test]
    fn all_links_are_named_beside_the_first() {
        let link = |name: &str| LinkView {
            interface: name.to_owned(),
            ..LinkView::default()
        };
        assert_eq!(also_managed(&[link("wlan0")], "wlan0"), "");
        let three = ["wlan0", "wwan0", "eth0"].map(link);
        assert_eq!(also_managed(&three, "wlan0"), "; also wwan0, eth0");
    }
}
