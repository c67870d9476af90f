// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway status`: what is in force, on a narrow terminal or as JSON.

use std::cmp::Reverse;

use anyhow::Result;
use giveway_engine::network::queue::traffic::{Band, QueueCounters};
use giveway_engine::network::queue::{Plan, QueueView};
use giveway_engine::priority::PriorityStatus;
use giveway_engine::status::{FlowView, NeighbourView, NetworkStatus, Status};

use crate::cli::Json;
use crate::control::client;
use crate::place::Place;

pub fn run(args: &Json) -> Result<()> {
    let status = client::status(&Place::here()?)?;
    if args.json {
        println!("{}", serde_json::to_string(&status)?);
    } else {
        print!("{}", render(&status));
    }
    Ok(())
}

fn render(status: &Status) -> String {
    let Status {
        daemon,
        network,
        priority,
        ..
    } = status;
    let mut text = format!(
        "giveway {} (pid {}), up {:.0} s\n",
        daemon.version, daemon.pid, daemon.uptime_s
    );
    match &network.interface {
        Some(i) => text += &format!("interface   {} (index {})\n", i.name, i.index),
        None => text += "interface   none now: watching only\n",
    }
    text += &format!("caps        {}\n", policy_line(network));
    text += &format!("queue       {}\n", queue_line(network));
    if let Some(counters) = &network.queue.counters {
        text += &format!("deadlines   {}\n", deadline_line(counters));
    }
    text += &format!("real time   {}\n", realtime_line(priority.as_ref()));
    if let Some(line) = priority.as_ref().and_then(receive_line) {
        text += &format!("receiving   {line}\n");
    }
    text += &format!("neighbours  {}\n", neighbours_line(network));
    if let Some(address) = &network.reports.older {
        text +=
            &format!("upgrade     {address} speaks an older version of the neighbours' protocol and is not heard\n");
    }
    for line in &daemon.degraded {
        text += &format!("degraded    {line}\n");
    }
    if let Some(counters) = &network.queue.counters {
        text += "\n   BAND        WAITING      SENT   FULL  CODEL   LATE  p50 ms  p99 ms  max ms\n";
        for (name, band) in counters.bands.in_order() {
            text += &band_line(name, band);
        }
    }
    let mut flows: Vec<&FlowView> = network.flows.iter().collect();
    let queued_bytes = |f: &FlowView| f.flow.unsent_bytes + f.flow.unacked_bytes;
    flows.sort_by_key(|f| (!f.sender, Reverse(queued_bytes(f)), f.flow.cookie));
    if !flows.is_empty() {
        text += "\n   PROCESS         REMOTE                    CWND   CAP  RTT ms  QUEUE kB  Mbit/s STATE     CLASS\n";
    }
    for flow in flows {
        text += &flow_line(flow);
    }
    if !network.neighbours.is_empty() {
        text += "\n   NEIGHBOUR                 SENDERS  LAST HEARD  EVERY\n";
    }
    for neighbour in &network.neighbours {
        text += &neighbour_line(neighbour);
    }
    text
}

fn policy_line(network: &NetworkStatus) -> String {
    let p = &network.policy;
    let dry = if p.dry_run { "; nothing is changed" } else { "" };
    match p.name.as_str() {
        "none" => "none: only watching (no capacity_mbit is configured, or policy is \"none\")".to_owned(),
        name => format!(
            "{name}: {} devices send, {} connections of this one{dry}",
            p.senders, p.connections
        ),
    }
}

/// The queue that is in force, at what rate, and why.
pub fn queue_line(network: &NetworkStatus) -> String {
    let QueueView { in_force, why, .. } = &network.queue;
    let shown = in_force.as_ref().map_or("as it was".to_owned(), Plan::shown);
    let is_dry = in_force.is_some() && network.policy.dry_run;
    let dry = if is_dry { "; nothing is changed" } else { "" };
    format!("{shown}: {why}{dry}")
}

fn realtime_line(priority: Option<&PriorityStatus>) -> String {
    let Some(view) = priority else {
        return "the real-time thread is not running".to_owned();
    };
    if let (true, Some(why)) = (view.held.is_empty(), view.degraded.first()) {
        return format!("none: {why}");
    }
    let granted: Vec<_> = view.held.iter().filter(|held| held.granted).collect();
    let tasks: u32 = granted.iter().map(|held| held.tasks).sum();
    let taken = match view.counters.demoted {
        0 => String::new(),
        times => format!("; taken back {times} times (`giveway why`)"),
    };
    format!(
        "{} rules, {} processes ({tasks} threads) have it{taken}",
        view.rules.len(),
        granted.len()
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
        "{raised_napi} NAPI threads and {} of {} threads with requests are raised (`giveway why receive`)",
        threads().filter(|thread| thread.raised).count(),
        threads().count()
    ))
}

fn neighbours_line(network: &NetworkStatus) -> String {
    let r = &network.reports;
    if !network.policy.cooperates {
        return "none: no group key, this device works alone".to_owned();
    }
    let c = &r.counters;
    let refused = c.heard() - c.received - c.own_echo;
    let believed = network.neighbours.iter().filter(|n| n.believed).count();
    format!(
        "{believed} believed; {} reports sent, {} heard, {refused} refused; one each {} ms",
        c.sent, c.received, r.interval_ms
    )
}

fn deadline_line(counters: &QueueCounters) -> String {
    let refused = counters.refused;
    let late = match counters.bands.realtime.served.and_then(|served| served.more) {
        Some(more) => format!("{} late", more.dropped_late),
        None => "lateness not known".to_owned(),
    };
    format!(
        "{} admitted, {} refused (late itself {}, makes others late {}, full {}, beyond its share {}), {late}",
        counters.admitted, refused.total, refused.own, refused.others, refused.full, refused.share
    )
}

/// Packets, and how long they waited.
fn band_line(name: &str, band: &Band) -> String {
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
    let ms = |us: u64| us as f64 / 1e3;
    format!(
        "{first} {:>6} {:>6} {:>7.1} {:>7.1} {:>7.1}\n",
        more.dropped_sojourn,
        more.dropped_late,
        ms(more.sojourn_p50_us),
        ms(more.sojourn_p99_us),
        ms(more.sojourn_max_us),
    )
}

fn flow_line(view: &FlowView) -> String {
    let flow = &view.flow;
    let process = flow
        .owner
        .as_ref()
        .map_or("?".to_owned(), |o| format!("{}/{}", o.command, o.pid));
    let mark = match (view.stepped_back, view.sender) {
        (true, _) => '!',
        (false, true) => '>',
        (false, false) => ' ',
    };
    format!(
        " {mark} {process:<15.15} {remote:<24} {cwnd:>5} {cap:>5} {rtt:>7.1} {queue:>9.1} {rate:>7.2} {state:<9} {class}\n",
        remote = flow.remote.to_string(),
        cwnd = flow.cwnd,
        cap = view.cap.map_or("-".to_owned(), |c| c.to_string()),
        rtt = f64::from(flow.srtt_us) / 1e3,
        queue = (flow.unsent_bytes + flow.unacked_bytes) as f64 / 1e3,
        rate = flow.delivery_rate_bytes_per_s as f64 * 8.0 / 1e6,
        state = format!("{:?}", flow.ca_state),
        class = view.class.name(),
    )
}

fn neighbour_line(n: &NeighbourView) -> String {
    let doubt = if n.believed { "" } else { "  not believed yet" };
    format!(
        "   {:<25} {:>7}  {:>7} ms  {:>5} ms{doubt}\n",
        n.address.to_string(),
        n.senders.len(),
        n.age_ms,
        n.interval_ms
    )
}
