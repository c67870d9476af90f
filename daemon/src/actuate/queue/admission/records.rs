// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans, rules and treatments as the structs of bpf/queueing.h have them, and refusals out of these.

use std::net::IpAddr;

use giveway_engine::class::{LinkMarks, PacketRule};
use giveway_engine::config::Deadline;
use giveway_engine::model::{Class, Cookie, Dscp, Prefix, Protocol, Treatment};
use giveway_engine::queue::traffic::{Refusal, RefusalReason};
use giveway_engine::queue::{Backend, BackgroundFlow, Plan};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::AddressFamily;

use super::{LocalNetwork, types};
use crate::actuate::queue::htb;
use crate::kernel::records::socket_address;

/// Of flows of any process.
pub(super) fn has_limits(plan: &Plan) -> bool {
    let mut rules = plan.tuning.packet_rules.iter();
    rules.any(|rule| !rule.treatment.limits.is_none())
}

pub(super) fn config_of(plan: &Plan) -> types::gw_link_config {
    use types::gw_link_flag as flag;
    let flags = [
        (plan.tuning.admission, flag::GW_ADMIT),
        (plan.tuning.drop_late, flag::GW_DROP_LATE),
        (plan.tuning.cpu_gate, flag::GW_CPU_GATE),
        (plan.tuning.call_marks, flag::GW_CALLS),
        (plan.tuning.promises_nothing_yet(), flag::GW_ONLY_NAMED),
        (plan.tuning.orders_downloads, flag::GW_ORDERS_DOWNLOADS),
        (plan.tuning.spares_local, flag::GW_SPARES_LOCAL),
    ];
    let class_of_local = match plan.tuning.spares_local && plan.backend == Backend::Htb {
        true => htb::CLASS_OF_LOCAL,
        false => Default::default(),
    };
    let class_of_band = match plan.backend {
        Backend::Htb => htb::CLASS_OF_BAND,
        Backend::Bpf | Backend::None => Default::default(),
    };
    types::gw_link_config {
        class_of_band,
        class_of_local,
        mark_of_class: marks_of(&plan.tuning.marks),
        rate_bytes_per_s: plan.tuning.rate_bytes_per_s.unwrap_or(0),
        background_min_bytes_per_s: plan.tuning.background_min_bytes_per_s,
        short_mss: plan.tuning.short_mss.unwrap_or(0),
        ifindex: plan.ifindex,
        backend: match plan.backend {
            Backend::Bpf => types::gw_backend::GW_BACKEND_EDF,
            Backend::Htb => types::gw_backend::GW_BACKEND_FIFO,
            Backend::None => types::gw_backend::GW_BACKEND_NONE,
        },
        flags: flags.iter().filter(|(on, _)| *on).fold(0, |set, (_, one)| set | one.0),
        overhead_bytes: plan.tuning.overhead_bytes,
        max_packet_bytes: plan.tuning.max_packet_bytes,
        driver_bytes: plan.tuning.driver_bytes,
        realtime_percent: plan.tuning.realtime_percent,
        guard_us: plan.tuning.guard_us,
        path_budget_us: plan.tuning.path_budget_us,
        below_us: plan.tuning.below_us,
        codel_target_us: plan.tuning.sojourn_target_us,
        codel_interval_us: plan.tuning.sojourn_interval_us,
        user_percent: plan.tuning.user_percent.unwrap_or(0),
        ..Default::default()
    }
}

pub(super) fn network_key(network: &LocalNetwork) -> types::gw_local_network {
    let mut address = [0; 16];
    let is_ipv6 = match network.address {
        IpAddr::V4(ip) => {
            address[..4].copy_from_slice(&ip.octets());
            false
        }
        IpAddr::V6(ip) => {
            address = ip.octets();
            true
        }
    };
    types::gw_local_network {
        prefix_bits: 32 + u32::from(network.bits),
        link: 2 * network.link + u32::from(is_ipv6),
        address,
    }
}

pub(super) fn rule_of(rule: &Deadline) -> (types::gw_rule_key, types::gw_rule) {
    let key = types::gw_rule_key {
        remote_port: rule.conditions.port(),
        protocol: rule.conditions.protocol().number(),
        reserved: 0,
    };
    let value = types::gw_rule {
        deadline_us: (rule.deadline_ms * 1000.0).round() as u32,
        path_budget_us: rule.path_budget_us.unwrap_or(0),
        has_path_budget: rule.path_budget_us.is_some().into(),
        signal: rule.sigurg.into(),
    };
    (key, value)
}

fn marks_of(marks: &LinkMarks) -> [types::gw_class_mark; 8] {
    let mut of_class = [types::gw_class_mark::default(); 8];
    for mark in marks.iter() {
        of_class[usize::from(number_of_class(mark.class))] = types::gw_class_mark {
            dscp: types::gw_dscp::GW_WRITE_DSCP.0 as u8 | mark.dscp.number(),
            user_priority: mark.user_priority.unwrap_or(0),
        };
    }
    of_class
}

fn number_of_class(class: Class) -> u16 {
    use types::gw_class;
    let number = match class {
        Class::Realtime => gw_class::GW_CLASS_REALTIME,
        Class::Stream => gw_class::GW_CLASS_STREAM,
        Class::Standard => gw_class::GW_CLASS_STANDARD,
        Class::Bulk => gw_class::GW_CLASS_BULK,
        Class::Background => gw_class::GW_CLASS_BACKGROUND,
    };
    number.0 as u16
}

pub fn number_of(treatment: Treatment) -> u32 {
    use types::gw_treatment as layout;
    let [up, down] = [treatment.limits.up, treatment.limits.down].map(|limit| u32::from(limit.unwrap_or(0)));
    down << layout::GW_DOWNLOAD_SHIFT.0 | up << layout::GW_LIMIT_SHIFT.0 | u32::from(number_of_class(treatment.class))
}

pub(super) fn packet_rule_of(rule: &PacketRule) -> types::gw_packet_rule {
    let (remote, mask) = rule.address.map(|address| address.masked()).unwrap_or_default();
    let family = |address: Prefix| {
        if address.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        }
    };
    // One that is not there has no packets.
    let ifindex = |name: &String| if_nametoindex(name.as_str()).unwrap_or(u32::MAX);
    types::gw_packet_rule {
        remote,
        mask,
        family: rule.address.map_or(0, |address| family(address) as u32),
        ifindex: rule.interface.as_ref().map_or(0, ifindex),
        remote_port: rule.port.unwrap_or(0),
        local_port: rule.local_port.unwrap_or(0),
        protocol: rule.protocol.map_or(0, Protocol::number),
        dscp: rule.dscp.map_or(types::gw_dscp::GW_ANY_DSCP.0 as u8, Dscp::number),
        reserved: 0,
        treatment: number_of(rule.treatment),
    }
}

pub(super) fn key_of(flow: &BackgroundFlow) -> types::gw_background_key {
    let mut key = types::gw_background_key {
        remote_port: flow.port,
        local_port: flow.local_port.unwrap_or(0),
        ..Default::default()
    };
    match flow.address {
        IpAddr::V4(ip) => {
            key.family = AddressFamily::Inet as u32;
            key.remote[..4].copy_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            key.family = AddressFamily::Inet6 as u32;
            key.remote = ip.octets();
        }
    }
    key
}

/// A kind that this build does not know is left out.
pub(super) fn refusal(event: &types::gw_queue_event) -> Option<Refusal> {
    let reason = match event.kind {
        types::gw_queue_event_kind::GW_REFUSED_OWN => RefusalReason::Own,
        types::gw_queue_event_kind::GW_REFUSED_OTHERS => RefusalReason::Others,
        types::gw_queue_event_kind::GW_REFUSED_FULL => RefusalReason::Full,
        types::gw_queue_event_kind::GW_REFUSED_SHARE => RefusalReason::Share,
        types::gw_queue_event_kind::GW_LATE => RefusalReason::Late,
        _ => return None,
    };
    let tuple = &event.tuple;
    let address = |bytes, port| (tuple.family != 0).then(|| socket_address(tuple.family, bytes, port, tuple.scope_id));
    Some(Refusal {
        t_ns: event.t_ns,
        deadline_t_ns: event.deadline_ns,
        work_ns: event.work_ns,
        reason,
        cookie: (event.cookie != 0).then_some(Cookie(event.cookie)),
        protocol: event.protocol as u8,
        local: address(tuple.local, tuple.local_port),
        remote: address(tuple.remote, tuple.remote_port),
    })
}

#[cfg(test)]
mod tests;
