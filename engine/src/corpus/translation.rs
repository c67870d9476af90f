// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engines' configuration, inputs and actions in the corpus: the network engine's here, the priority engine's in
//! [`priority`]. Renamed or moved items of an engine are mapped here, so that no recording changes with them.

use serde_json::{Map, Value, json};

use super::plain::{Readable, Written, by_text, bytes, fields, get, hex, kind, kind_of, kinds, put, unlike};
use crate::background::Means;
use crate::background::nice::{self, Reniced};
use crate::change::{Change, Setting, Subject, Value as Set};
use crate::class::by_hand::{SetByHand, Target};
use crate::class::rules::Rule;
use crate::class::{self, Activity, ClassMark, LinkMarks, PacketRule, Rules};
use crate::config::{Config, RateMbit};
use crate::downlink::{self, Arrival, Arrived, Counted, Passed, Way};
use crate::enforcement::elsewhere::Elsewhere;
use crate::matcher::{Glob, Matcher};
use crate::model::{
    CaState, Choice, ChosenLimit, Class, Cookie, Device, Dscp, Fingerprint, Flow, FlowEvent, Forwarded, Idleness,
    Inherited, Interface, Limit, LimitNumbers, Nice, Owner, Prefix, Process, ProcessId, Protocol, RateLimit, Rates,
    TcpState, Treatment,
};
use crate::network::Setup;
use crate::network::action::{Action, Input};
use crate::peers::{self, Filtered, Keyring, Outgoing};
use crate::queue::links::{LinkRates, LinkRequest};
use crate::queue::traffic::{Band, Bands, ByQdisc, QueueCounters, Refusal, RefusalReason, Refused, Served};
use crate::queue::{self, Backend, Backends, BackgroundFlow, Plan, RateSource, RootQdisc, Tuning, Uplink};
use crate::record::What;
use crate::share::limiter::CapTable;
use crate::sockets::owners::Unidentified;
use crate::sockets::setting::{Outcome, Request};
use crate::{enforcement, sockets};

pub mod priority;

fields! {
    // The parameters of an engine.
    Setup { seed, keys, rtt_resolution, background, dry_run, backends }
    Means { control, receive_window }
    Backends { bpf, htb, marks, dry_run }

    // Sockets, processes and devices.
    Interface { name, index, ipv4 }
    Device { name, kind, is_loopback, is_routed }
    Owner { pid, command, start_ns }
    Flow {
        cookie, protocol, local, remote, state, owner, uid, priority, dscp, cgroup_id, ifindex, cwnd, clamp, ssthresh,
        mss_bytes, srtt_us, min_rtt_us, rttvar_us, in_flight_bytes, unsent_bytes, unacked_bytes,
        delivery_rate_bytes_per_s, pacing_rate_bytes_per_s, retransmits, delivered_segments, acked_bytes,
        received_bytes, latest_rtt_us, receiver_rtt_us, ca_state, congestion_control,
    }
    ProcessId { pid, start_ns }
    Process {
        exe, executables, trusted, cmdline, uid, euid, cgroup, idleness, chosen, inherited, by_hand,
    }
    Idleness { nice_19, sched_idle, io_idle, group_idle }
    Inherited { rule, from, name, uid }
    Choice { class, uid, limit }
    ChosenLimit { number, rates }
    Fingerprint { id, uid, image, cgroup_id, idleness, chosen, inherited, by_hand, nice, names }
    Nice { by, cause }
    Reniced { threads, before, left }
    Elsewhere { id, command, netns_inum, uid }
    Activity { uid, seat, cgroup }

    // Classes and limits.
    Rule { matcher, class, rates, number, id, children, place, reason }
    Matcher { exe, cmdline, uid, unit, cgroup, protocol, address, port, local_port, dscp, interface }
    Rates { up, down }
    LimitNumbers { up, down }
    Treatment { class, limits }
    Limit { number, rates, class }
    RateLimit { number, bytes_per_s, class }
    Forwarded { treatment, rules_before }
    PacketRule { protocol, address, port, local_port, dscp, interface, treatment }
    ClassMark { class, dscp, user_priority }
    SetByHand { target, uid, class, limit }
    BackgroundFlow { address, port, local_port }

    // Queues.
    Uplink { ifindex, name, mtu_bytes, header_bytes, wired, speed_mbit, root, up, carrier_losses, chosen }
    RootQdisc { kind, handle, entangled, ours }
    LinkRates { up, down }
    QueueCounters { admitted, refused, late, expired, untold, served_t_ns, only_ordered, bands }
    Refused { total, own, others, full, share }
    Bands { realtime, stream, best_effort, background }
    Band { classified, served }
    Served { sent_packets, sent_bytes, dropped_full, backlog_packets, backlog_bytes, more }
    ByQdisc {
        queued_packets, queued_bytes, tcp_sent_bytes, tcp_backlog_bytes, dropped_sojourn, dropped_late, dropped_reset,
        cpu_gate_closed, sojourn_p50_us, sojourn_p99_us, sojourn_max_us,
    }
    Refusal { t_ns, deadline_t_ns, work_ns, reason, cookie, protocol, local, remote }
    Plan { ifindex, backend, single_segments, only_if_free, tuning }
    Tuning {
        rate_bytes_per_s, rate_source, overhead_bytes, max_packet_bytes, driver_bytes, spares_local, orders_downloads,
        realtime_percent, guard_us, path_budget_us, below_us, user_percent, background_min_bytes_per_s, short_mss,
        sojourn_target_us, sojourn_interval_us, admission, drop_late, cpu_gate, call_marks, packet_rules, marks,
    }

    // Received traffic.
    Arrival { ifindex, name, hindrance, bridge, mtu_bytes, others }
    Arrived { passed_bytes, ordered_bytes }
    Counted { limits, orders }
    Passed { passed_bytes, passed_packets, dropped_packets, backlog_packets, backlog_bytes }
    downlink::DetourPlan { links, mtu_bytes, limits, orders }

    // Peers.
    Filtered { off_link, malformed, older_version, older_from }
}

kinds! {
    sockets::Input {
        Datagrams(flows),
        Events(events),
        CappedAtConnect(caps),
        Outcomes(outcomes),
        TakenOver(taken),
    }
    class::Input {
        Processes(fingerprints),
        Forwarding(cgroups),
        ByHand { all, reason },
        Active(active),
        Rules(rules),
        Chosen { process, choice },
        ReadAgain,
        CommandLimits(limits),
        Devices(devices),
    }
    nice::Input {
        Outcome { process, outcome },
        Taken(taken),
    }
    queue::Input {
        Uplinks(uplinks),
        Ordered(waiting),
        Outcome { ifindex, outcome },
        Refusals(refusals),
        Rates(rates),
        Subnets(subnets),
    }
    downlink::Input {
        Arrivals { way, arrivals, counted },
        Arrived(arrived),
        Outcome { way, outcome },
        Lost { way, reason },
    }
    enforcement::Input {
        Traced(traced),
        Elsewhere(processes),
    }
    peers::Input<'_>, read as peers::Input<'static> {
        Keys(keys),
        Datagram { from, bytes },
        Filtered(filtered),
    }
    Outcome {
        Applied,
        Deferred,
        Unknown,
        Foreign { found },
        Gone,
        Failed { errno },
        Unable,
    }
    FlowEvent {
        Open,
        State { from, to },
        Close,
        Retransmit,
        CaState { to },
    }
    CaState { Open, Disorder, Cwr, Recovery, Loss, }
    TcpState {
        Established, SynSent, SynRecv, FinWait1, FinWait2, TimeWait, Close, CloseWait, LastAck, Listen, Closing,
    }
    Protocol { Udp, Tcp, }
    Class { Realtime, Stream, Standard, Bulk, Background, }
    Setting {
        Cap, PacingRate, ReceiveWindow, CongestionControl, Queue, Scheduling, Niceness, Class, RateLimit,
        DownloadLimit, DownloadOrder, Deadlines, File(path),
    }
    Set { Number(number), Text(text), Unset(nothing), }
    Target {
        Process { id, number, command },
        Cgroup { cgroup_id, path },
        Flow { flow },
    }
    RateMbit { Fixed(mbit), Estimated, }
    Way { Sent, Received, }
    RefusalReason { Own, Others, Full, Share, Late, }
    Backend { Bpf, Htb, None, }
    RateSource { Configuration, Device, Measured, }
    queue::QueueRequest { Set(plan), Tune(tuning), }
}

/// Kinds with another name in the engine: the recording's name, the subject, and the name there.
const RENAMED: [(&str, &str, &str); 6] = [
    ("Niced", "Nice", "Outcome"),
    ("NiceTaken", "Nice", "Taken"),
    ("QueueOutcome", "Queue", "Outcome"),
    ("LinkRates", "Queue", "Rates"),
    ("DetourOutcome", "Downlink", "Outcome"),
    ("DetourLost", "Downlink", "Lost"),
];

/// A recording has no subjects.
impl Written for Input<'_> {
    fn write(&self) -> Value {
        let named = |kind_name: &str, fields: &[(&str, &dyn Written)]| {
            let given = fields.iter().filter(|(_, value)| !value.is_default());
            let given = given.map(|(name, value)| ((*name).to_owned(), value.write()));
            kind(kind_name, given.collect())
        };
        let (subject, value) = match self {
            Self::Interface(interface) => ("", named("Interface", &[("interface", interface)])),
            Self::Poll {
                flows,
                complete,
                queues,
            } => {
                let fields: [(&str, &dyn Written); 3] = [("flows", flows), ("complete", complete), ("queues", queues)];
                ("", named("Poll", &fields))
            }
            Self::Identified { processes, cgroups } => (
                "",
                named("Identified", &[("processes", processes), ("cgroups", cgroups)]),
            ),
            Self::Pause(reason) => ("", named("Pause", &[("reason", reason)])),
            Self::Tick => ("", named("Tick", &[])),
            Self::Sockets(input) => ("Sockets", input.write()),
            Self::Class(input) => ("Class", input.write()),
            Self::Nice(input) => ("Nice", input.write()),
            Self::Queue(input) => ("Queue", input.write()),
            Self::Downlink(input) => ("Downlink", input.write()),
            Self::Enforcement(input) => ("Enforcement", input.write()),
            Self::Peers(input) => ("Peers", input.write()),
        };
        let renamed = RENAMED.iter().find(|(_, of, name)| {
            let is_it = kind_of(&value).is_ok_and(|(kind, _)| kind == *name);
            *of == subject && is_it
        });
        match renamed {
            Some((recorded, ..)) => with_kind(&value, recorded),
            None => value,
        }
    }
}

impl Readable for Input<'static> {
    fn read(value: &Value) -> Result<Self, String> {
        let (recorded, of) = kind_of(value)?;
        let renamed = RENAMED.iter().find(|(name, ..)| *name == recorded);
        let value = &renamed.map_or_else(|| value.clone(), |(_, _, name)| with_kind(value, name));
        Ok(match (recorded, renamed.map(|(_, subject, _)| *subject)) {
            (_, Some("Nice")) => Self::Nice(nice::Input::read(value)?),
            (_, Some("Queue")) | ("Uplinks" | "Ordered" | "Refusals" | "Subnets", _) => {
                Self::Queue(queue::Input::read(value)?)
            }
            (_, Some("Downlink")) | ("Arrivals" | "Arrived", _) => Self::Downlink(downlink::Input::read(value)?),
            ("Datagrams" | "Events" | "CappedAtConnect" | "Outcomes" | "TakenOver", _) => {
                Self::Sockets(sockets::Input::read(value)?)
            }
            ("Traced" | "Elsewhere", _) => Self::Enforcement(enforcement::Input::read(value)?),
            ("Keys" | "Datagram" | "Filtered", _) => Self::Peers(peers::Input::read(value)?),
            ("Interface", _) => Self::Interface(get(of, "interface")?),
            ("Poll", _) => Self::Poll {
                flows: get(of, "flows")?,
                complete: get(of, "complete")?,
                queues: get(of, "queues")?,
            },
            ("Identified", _) => Self::Identified {
                processes: get(of, "processes")?,
                cgroups: get(of, "cgroups")?,
            },
            ("Pause", _) => Self::Pause(get(of, "reason")?),
            ("Tick", _) => Self::Tick,
            _ => Self::Class(class::Input::read(value)?),
        })
    }
}

/// The same under another name.
fn with_kind(value: &Value, name: &str) -> Value {
    match value.as_object().and_then(|object| object.values().next()) {
        Some(fields) => json!({name: fields}),
        None => name.into(),
    }
}

/// One line of actions. A change is written without its texts.
impl Written for Action {
    // Long: an arm an action.
    fn write(&self) -> Value {
        let of = |name: &str, fields: &[(&str, &dyn Written)]| {
            let given = fields.iter().filter(|(_, value)| !value.is_default());
            kind(
                name,
                given.map(|(name, value)| ((*name).to_owned(), value.write())).collect(),
            )
        };
        match self {
            Self::Set(Request { cookie, settings }) => {
                let limits: Vec<(Setting, Set)> = settings
                    .iter()
                    .map(|wish| (wish.setting.clone(), wish.value.clone()))
                    .collect();
                of("Limit", &[("cookie", cookie), ("limits", &limits)])
            }
            Self::CapNew(CapTable { ifindex, caps }) => of("CapNew", &[("ifindex", ifindex), ("caps", caps)]),
            Self::Queue(LinkRequest {
                ifindex,
                name: _,
                request,
            }) => of("Queue", &[("ifindex", ifindex), ("request", request)]),
            Self::Downlink(downlink::Action::Set { way, plan }) => of("Detour", &[("way", way), ("plan", plan)]),
            Self::Downlink(downlink::Action::MakeAvailable(rates)) => of("Available", &[("rates", rates)]),
            Self::Identify(Unidentified { processes, cgroups }) => {
                of("Identify", &[("processes", processes), ("cgroups", cgroups)])
            }
            Self::Class(class::Action::Treat { cookie, treatment }) => {
                of("Treat", &[("cookie", cookie), ("treatment", treatment)])
            }
            Self::Class(class::Action::TreatProcess { process, treatment }) => {
                of("TreatProcess", &[("process", process), ("treatment", treatment)])
            }
            Self::Class(class::Action::TreatForwarded { cgroup, told }) => {
                of("TreatForwarded", &[("cgroup", cgroup), ("told", told)])
            }
            Self::Class(class::Action::HandOn { process, image, rule }) => {
                of("HandOn", &[("process", process), ("image", image), ("rule", rule)])
            }
            Self::Nice(nice::Action::Renice { process, cause, .. }) => {
                of("Nice", &[("process", process), ("cause", cause)])
            }
            Self::Nice(nice::Action::Causes(causes)) => of("NiceCauses", &[("causes", causes)]),
            Self::Report(Outgoing { to, datagram }) => {
                // The end of the seal identifies it.
                let seal = hex(&datagram[datagram.len().saturating_sub(8)..]);
                of("Report", &[("to", to), ("bytes", &datagram.len()), ("seal", &seal)])
            }
            Self::Record(What::Change(change)) => kind("Change", changed(change)),
            Self::Record(What::Senders { devices, connections }) => {
                of("Senders", &[("devices", devices), ("connections", connections)])
            }
            Self::Record(What::Peer {
                address,
                present,
                expired,
            }) => of(
                "Peer",
                &[("address", address), ("present", present), ("expired", expired)],
            ),
            Self::Record(What::Refusal(refusal)) => of("Refusal", &[("refusal", refusal)]),
            Self::Record(other) => of("Record", &[("kind", &format!("{other:?}"))]),
        }
    }
}

fn changed(change: &Change) -> Map<String, Value> {
    let subject = match &change.subject {
        Subject::Socket { cookie } => json!(["socket", cookie.0]),
        Subject::Process { id } => json!(["process", id.pid, id.start_ns]),
        Subject::Thread { tid } => json!(["thread", tid]),
        Subject::Interface { name } => json!(["interface", name]),
        Subject::Destination { remote, local_port } => json!(["destination", remote.to_string(), local_port]),
        Subject::Cgroup { path } => json!(["cgroup", path]),
        Subject::Kernel => json!(["kernel"]),
    };
    // These names are plain values; other texts are for people.
    let is_plain = matches!(
        change.setting,
        Setting::CongestionControl | Setting::Class | Setting::Scheduling
    );
    let value = |value: &Set| match value {
        Set::Text(_) if !is_plain => "text".into(),
        value => value.write(),
    };
    let mut object = Map::new();
    object.insert("subject".to_owned(), subject);
    put(&mut object, "setting", &change.setting);
    object.insert("old".to_owned(), value(&change.old));
    object.insert("new".to_owned(), value(&change.new));
    put(&mut object, "made", &change.made);
    object
}

impl Written for Cookie {
    fn write(&self) -> Value {
        self.0.into()
    }
}

impl Readable for Cookie {
    fn read(value: &Value) -> Result<Self, String> {
        u64::read(value).map(Self)
    }
}

/// A rule for classes: file and line, and its identity in place of its texts.
impl Written for Rules {
    fn write(&self) -> Value {
        self.rules
            .iter()
            .map(|rule| Rule {
                reason: format!("{:x}", rule.id),
                ..rule.clone()
            })
            .collect::<Vec<_>>()
            .write()
    }
}

impl Readable for Rules {
    fn read(value: &Value) -> Result<Self, String> {
        let mut rules = Self::default();
        rules.rules = Vec::read(value)?;
        Ok(rules)
    }
}

impl Written for Glob {
    fn write(&self) -> Value {
        by_text(self)
    }
}

impl Readable for Glob {
    fn read(value: &Value) -> Result<Self, String> {
        String::read(value).map(|pattern| Self::new(&pattern))
    }
}

impl Written for Prefix {
    fn write(&self) -> Value {
        by_text(self)
    }
}

impl Readable for Prefix {
    fn read(value: &Value) -> Result<Self, String> {
        Self::try_from(String::read(value)?)
    }
}

impl Written for Dscp {
    fn write(&self) -> Value {
        self.number().into()
    }
}

impl Readable for Dscp {
    fn read(value: &Value) -> Result<Self, String> {
        u8::read(value).map(Self::new)
    }
}

impl Written for LinkMarks {
    fn write(&self) -> Value {
        self.iter().copied().collect::<Vec<_>>().write()
    }
}

impl Readable for LinkMarks {
    fn read(value: &Value) -> Result<Self, String> {
        Vec::read(value).map(|marks: Vec<ClassMark>| marks.into_iter().collect())
    }
}

impl Written for [u8; 32] {
    fn write(&self) -> Value {
        hex(self).into()
    }
}

impl Readable for [u8; 32] {
    fn read(value: &Value) -> Result<Self, String> {
        bytes(value)?.try_into().map_err(|_| unlike("32 bytes", value))
    }
}

impl Written for &[u8] {
    fn write(&self) -> Value {
        hex(self).into()
    }
}

/// A datagram outlives the input that borrows it; a test may leak it.
impl Readable for &'static [u8] {
    fn read(value: &Value) -> Result<Self, String> {
        bytes(value).map(|bytes| &*bytes.leak())
    }
}

/// As in the group's key file.
impl Written for Keyring {
    fn write(&self) -> Value {
        self.reveal().into()
    }
}

impl Readable for Keyring {
    fn read(value: &Value) -> Result<Self, String> {
        Self::parse(&String::read(value)?).map_err(|problem| problem.to_string())
    }
}

/// Sections and keys with other than the default values.
impl Written for Config {
    fn write(&self) -> Value {
        let object = |config: &Self| serde_json::to_value(config).unwrap_or_default();
        differing(&object(self), &object(&Self::default()))
    }
}

fn differing(value: &Value, default: &Value) -> Value {
    let (Some(given), Some(defaults)) = (value.as_object(), default.as_object()) else {
        return value.clone();
    };
    let differ = given.iter().filter(|(key, value)| defaults.get(*key) != Some(value));
    let differ = differ.map(|(key, value)| (key.clone(), differing(value, defaults.get(key).unwrap_or(&Value::Null))));
    differ.collect::<Map<_, _>>().into()
}

impl Readable for Config {
    fn read(value: &Value) -> Result<Self, String> {
        serde_json::from_value(value.clone()).map_err(|problem| problem.to_string())
    }
}
