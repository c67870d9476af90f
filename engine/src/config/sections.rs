// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every section and key, each declared once: a new key is added here and nowhere else in the configuration. The unit
//! is part of a key's name.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;
use std::fmt::{self, Formatter};
use std::net::{IpAddr, Ipv4Addr};

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::conditions::Conditions;
use super::key::{Absent, ConfigKey, key, section};
use super::matching::{Matching, Presence};
use super::section::Section;
use crate::model::{Class, Dscp, Mark};

/// The kernel's interrupt threads are FIFO 50, and giveway's own threads are between: this is the highest priority for
/// all others.
pub const CEILING: u32 = 48;
/// The most managed links.
pub const MOST_LINKS: usize = 8;

/// All settings of a user.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Config {
    pub interface: Option<String>,
    pub interfaces: Vec<String>,
    pub monitor: Monitor,
    pub cap: Cap,
    pub link: LinkSection,
    pub uplink: Vec<UplinkSection>,
    pub queue: QueueSection,
    pub group: Group,
    pub control: Control,
    pub priority_limits: PriorityLimitsSection,
    pub receive: ReceiveSection,
    pub classes: ClassesSection,
    pub marks: MarksSection,
    pub deadline: Vec<Deadline>,
    pub background: Vec<Background>,
    pub priority: Vec<PrioritySection>,
    pub grant: Vec<GrantRule>,
    pub chain: Vec<Chain>,
    pub rule: Vec<ClassRule>,
}

pub(super) const TOP_KEYS: &[ConfigKey] = &[
    key!(
        ["The managed interface. Without it, and without `interfaces`, all that have a default route are managed, at most"]
        ["8. `--interface` wins over both."]
        interface: Option<String> = None, ["wlan0"] []
    ),
    key!(
        ["In place of `interface`: several managed interfaces, at most 8. The first is that of the access point: its cap, its"]
        ["peers and [receive] are of that one."]
        interfaces: Vec<String> = Vec::new(), [] []
    ),
];

pub(super) const SECTIONS: &[Section] = &[
    Section::of::<Monitor>("monitor"),
    Section::of::<Cap>("cap"),
    Section::of::<LinkSection>("link"),
    Section::list_of::<UplinkSection>("uplink"),
    Section::of::<QueueSection>("queue"),
    Section::of::<Group>("group"),
    Section::of::<Control>("control"),
    Section::of::<PriorityLimitsSection>("priority_limits"),
    Section::of::<ReceiveSection>("receive"),
    Section::of::<ClassesSection>("classes"),
    Section::of::<MarksSection>("marks"),
    Section::list_of::<Deadline>("deadline"),
    Section::list_of::<Background>("background"),
    Section::list_of::<PrioritySection>("priority"),
    Section::list_of::<GrantRule>("grant"),
    Section::list_of::<Chain>("chain"),
    Section::list_of::<ClassRule>("rule"),
];

/// Fills absent keys of rules with their defaults, so that [`Conditions`] are complete.
pub(super) fn fill_defaults(table: &mut toml::Table) {
    for section in SECTIONS {
        let entries = table.get_mut(section.name).and_then(toml::Value::as_array_mut);
        for entry in entries.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
            for (key, absent) in section.keys() {
                if let Absent::Default(value) = absent {
                    entry.entry(key.name).or_insert(value);
                }
            }
        }
    }
}

/// The longest deadline, or part of one, microseconds.
const LONGEST_US: u32 = 10_000_000;

section! {
    /// Which sockets are polled, and how often.
    Monitor {
        /// Polls a second over the sockets that were active since the last one.
        polls_per_second: u32 = 10, in 1..=100;
        /// Seconds between two full scans over all sockets.
        full_scan_s: u32 = 10, in 1..=3600;
    }
}

/// How caps are chosen.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CapPolicyName {
    /// One of the others, depending on other keys: [`Config::cap_policy`].
    #[default]
    Auto,
    Fixed,
    /// The capacity is estimated from the goodput of all devices.
    Estimated,
    None,
}

/// The trade-off of the policy "estimated".
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefer {
    #[default]
    Balanced,
    Delay,
    Throughput,
}

section! {
    /// The cap on cwnd. Without a group key and without a number nothing is capped.
    Cap {
        /// "auto", "fixed" (one capacity, shared equally by the sending devices), "estimated" (the capacity is
        /// estimated from the goodput of all devices) or "none" (watch only). "auto" is "fixed" if capacity_mbit or
        /// fixed_segments is given; else, with a key_file in [group], "estimated" while another device of the group is
        /// present; else "none".
        policy: CapPolicyName = CapPolicyName::Auto;
        /// The real capacity of the access point, Mbit/s with TCP and IP headers; it depends on the place.
        capacity_mbit: Option<f64> = None, example 20.0, in 0.001..=1e6;
        /// Bytes of capacity x RTT to leave unused; at most 20% of capacity x RTT.
        margin_bytes: u64 = 0, in 0..=1_000_000_000;
        /// Bytes of a segment on the link, headers included.
        segment_bytes: u32 = 1500, in 64..=65_535;
        /// One RTT for every connection, ms; without it each connection's own minimum RTT.
        rtt_ms: Option<u32> = None, example 256, in 1..=60_000;
        /// One cap for every sender, segments, instead of the formula: for experiments.
        fixed_segments: Option<u32> = None, example 30, in 4..=1_000_000;
        /// With policy "estimated", while limits are active: the target of "balanced" is a smoothed RTT of at most 1.25
        /// of the minimum, or 15 ms above it if that is more; of "delay" 1.1, or 5 ms; of "throughput" the same as
        /// "balanced", and limits are suspended as soon as they cost throughput.
        prefer: Prefer = Prefer::Balanced;
        /// With policy "estimated": the least rate of a connection alone on its device, whatever the peers report,
        /// Mbit/s.
        floor_mbit: f64 = 0.1, in 0.0..=1e6;
    }
}

impl Config {
    /// How caps are chosen here; never `Auto`.
    pub fn cap_policy(&self) -> CapPolicyName {
        match self.cap.policy {
            CapPolicyName::Auto if self.cap.capacity_mbit.is_some() || self.cap.fixed_segments.is_some() => {
                CapPolicyName::Fixed
            }
            CapPolicyName::Auto if self.group.key_file.is_some() => CapPolicyName::Estimated,
            CapPolicyName::Auto => CapPolicyName::None,
            given => given,
        }
    }
}

/// A configured link rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateMbit {
    Fixed(f64),
    /// `"auto"`
    Estimated,
}

/// As it is written.
impl JsonSchema for RateMbit {
    fn schema_name() -> Cow<'static, str> {
        "RateMbit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "number" }, { "const": "auto" }] })
    }
}

impl Serialize for RateMbit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(mbit) => serializer.serialize_f64(*mbit),
            Self::Estimated => serializer.serialize_str(AUTO),
        }
    }
}

impl<'de> Deserialize<'de> for RateMbit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = RateMbit;

            fn expecting(&self, formatter: &mut Formatter) -> fmt::Result {
                write!(formatter, "a number of Mbit/s or \"{AUTO}\"")
            }

            fn visit_f64<E>(self, mbit: f64) -> Result<RateMbit, E> {
                Ok(RateMbit::Fixed(mbit))
            }

            fn visit_i64<E>(self, mbit: i64) -> Result<RateMbit, E> {
                Ok(RateMbit::Fixed(mbit as f64))
            }

            fn visit_u64<E>(self, mbit: u64) -> Result<RateMbit, E> {
                Ok(RateMbit::Fixed(mbit as f64))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RateMbit, E> {
                match text {
                    AUTO => Ok(RateMbit::Estimated),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

const AUTO: &str = "auto";

section! {
    /// The link of the managed interface, towards the network; with several interfaces, that of the preferred default
    /// route.
    LinkSection {
        /// The link's real rate, Mbit/s, all headers included. Without it a wired physical device's link speed counts;
        /// elsewhere (Wi-Fi, LTE, virtual devices) the rate is unknown, so nothing is shaped and no deadline is
        /// guaranteed. "auto": estimated from what TCP connections deliver, and shaped to; deadlines are guaranteed by
        /// its lower bound over 90% of the last 20 s, once TCP has measured it for 10 (docs/explanation/link-rate.md). Not with
        /// several `interfaces`: each has its own, in [[uplink]].
        rate_mbit: Option<RateMbit> = None, example 20.0, in 0.01..=400_000;
        /// The link's real rate towards this machine, Mbit/s. With it, downloads of bulk and background yield to all
        /// others (docs/explanation/downloads.md). Not with several `interfaces`, either.
        download_rate_mbit: Option<f64> = None, example 50.0, in 0.01..=10_000;
        /// Bytes of each packet on the link beyond its own. Without it 24 on wired Ethernet (preamble, FCS, gap), 0
        /// elsewhere.
        overhead_bytes: Option<u32> = None, example 24, in 0..=256;
        /// The most bytes handed to the driver ahead of the link. Without it one packet of the MTU.
        driver_bytes: Option<u32> = None, example 1514, in 0..=1_048_576;
        /// Traffic to the interface's own subnets. "limited": it shares the rate with all other traffic. "unlimited":
        /// it bypasses the rate, as the modem's rate is not the LAN's (htb only; docs/how-to/set-a-link-rate.md).
        local: LocalTraffic = LocalTraffic::Limited;
    }
}

section! {
    /// The link of one interface, with several managed.
    UplinkSection {
        /// The interface, one of `interfaces` if these are given. Must be given.
        interface: Option<String> = None, example "wlan0";
        /// As in [link], which does not apply to this interface.
        rate_mbit: Option<RateMbit> = None, example 8.0, in 0.01..=400_000;
        /// As in [link], which does not apply to this interface.
        download_rate_mbit: Option<f64> = None, example 20.0, in 0.01..=10_000;
        /// As in [link], whose value is the default.
        overhead_bytes: Option<u32> = None, example 0, in 0..=256;
        /// As in [link], whose value is the default.
        driver_bytes: Option<u32> = None, example 1514, in 0..=1_048_576;
        /// As in [link], whose value is the default.
        local: Option<LocalTraffic> = None, example "unlimited";
    }
}

/// Whether local traffic shares the link's rate.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalTraffic {
    #[default]
    Limited,
    Unlimited,
}

/// The queueing discipline that orders the bands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    #[default]
    Auto,
    Bpf,
    Htb,
    None,
}

section! {
    /// The four bands of each managed interface: packets with a deadline, streams, best effort, background.
    QueueSection {
        /// "bpf" (the BPF qdisc: Linux 6.16), "htb" (needs a known rate), "none" (the present queue stays), or "auto":
        /// "bpf" if the kernel has it, else "htb" if the rate is known, else "none"; and "none" on a device with a link
        /// speed above 1 Gbit/s, unless a rate is configured. `giveway status` shows which, and why.
        backend: BackendName = BackendName::Auto;
        /// The most of the rate for packets with deadlines, percent.
        realtime_percent: u32 = 80, in 1..=100;
        /// Subtracted from each deadline for delays after the link, microseconds; a rule's own precedes it.
        path_budget_us: u32 = 0, in 0..=LONGEST_US;
        /// Subtracted from each deadline for delays inside this machine, microseconds; without it 100.
        guard_us: Option<u32> = None, example 100, in 0..=LONGEST_US;
        /// While several users (uids) have packets with deadlines, each one's part of the guarantee, percent; without
        /// it equal parts. Unused parts are free for all. 100: first come, first served.
        user_percent: Option<u32> = None, example 25, in 1..=100;
        /// Refuse at once what cannot meet its deadline; without it a deadline is only an order.
        admission: bool = true;
        /// Drop what misses its deadline all the same ("bpf" only).
        drop_late: bool = true;
        /// Hold background packets while the CPU runs something more important ("bpf" only).
        cpu_gate: bool = true;
        /// The minimum rate of background, kbit/s, so that its connections stay alive. Without it 0.5% of the rate and
        /// at most 100; 10 if no rate is known. 0: none.
        background_min_kbit: Option<u32> = None, example 10, in 0..=1_000_000;
        /// Packets that an application has marked as a call or as live video (DSCP EF, VA, CS5, AF4x, CS4) precede the
        /// backlog, up to a quarter of the rate for each user (docs/reference/classes-and-marks.md). Off: such marks are ignored.
        call_marks: bool = true;
        /// On a link of a few Mbit/s, background connects with short segments, so that one on the wire is soon over.
        short_segments: bool = true;
        /// The target queueing delay of best effort in the queue, ms; without it 5 ms, or the time of 1.5 packets if
        /// that is more.
        sojourn_target_ms: Option<f64> = None, example 5.0, in 0..=10_000;
    }
}

section! {
    /// The peers on this access point. Without key_file there are none.
    Group {
        /// The group's key (`giveway key new FILE`). The file must be readable by its owner only.
        key_file: Option<String> = None, example "/etc/giveway/group.key";
        /// UDP port of the reports. Below 1024 only root can bind it (docs/reference/protocol.md).
        port: u16 = 339, in 1..=65_535;
        /// Milliseconds between two reports; longer if many devices share the medium.
        report_interval_ms: u32 = 500, in 100..=10_000;
        /// The most airtime for all devices' reports together, percent.
        airtime_percent: f64 = 1.0, in 0.001..=10;
        /// The rate at which the access point repeats broadcasts, Mbit/s.
        basic_rate_mbit: f64 = 6.0, in 0.001..=1000;
    }
}

section! {
    /// Access to the daemon.
    Control {
        /// Members of this Unix group may read status and records. Others see and change only what a [[grant]] allows
        /// for their own processes. Everything else is root's.
        group: String = "giveway".to_owned();
    }
}

section! {
    /// Limits that keep the machine responsive, whatever the rules grant.
    PriorityLimitsSection {
        /// The highest priority; the kernel's interrupt threads are 50, giveway's own thread 49.
        max_priority: u32 = 48, in 1..=CEILING;
        /// The most threads with real-time priority.
        max_tasks: u32 = 64, in 1..=4096;
        /// The most CPU time of real-time threads, percent of all CPUs.
        total_percent: u32 = 80, in 1..=95;
        /// The window of the budgets, ms.
        window_ms: u32 = 500, in 200..=10_000;
        /// An ordinary thread must run on each CPU this often, ms; else every grant is revoked.
        starvation_ms: u32 = 400, in 100..=10_000;
        /// `giveway exec` sets RLIMIT_RTTIME to this: a thread that runs for this long without a pause gets SIGXCPU,
        /// ms.
        rttime_ms: u32 = 1000, in 10..=60_000;
    }
}

section! {
    /// The receiving side of the managed interface, the first of several. All settings here are restored at the end.
    ReceiveSection {
        /// Process received packets in kernel threads (napi/...) instead of the softirq. Off: see docs/explanation/request-chains.md.
        threaded_napi: bool = false;
        /// SCHED_FIFO priority of these threads; 0 leaves them at SCHED_OTHER. Below that of [[chain]]s, so that no
        /// flood delays a response. After more than 80% of a CPU they lose it for a second.
        napi_priority: u32 = 39, in 0..=CEILING;
        /// The CPUs for the interface's interrupts. Empty: unchanged.
        irq_cpus: Vec<u32> = Vec::new(), in 0..=8191;
        /// A process that waits for a packet polls the device itself for this long, microseconds (net.core.busy_read
        /// and busy_poll, of the whole machine). 0: unchanged.
        busy_poll_us: u32 = 0, in 0..=10_000;
    }
}

const DEADLINE: Matching = Matching {
    accepts: &[("protocol", Presence::Else("udp")), ("port", Presence::Must)],
    reason: "a deadline is looked up by the packet's protocol and remote port only",
    instead_of_process: "the program can give its packets a deadline itself (SO_TXTIME, see docs/how-to/send-deadlines.md)",
    instead_of_ends: "leave it out, so that the rule holds for every packet to `port`",
};

section! {
    /// Deadlines for packets of unmodified programs. One [[deadline]] for each remote port.
    Deadline matching Conditions as DEADLINE {
        /// When the last bit is to leave, counted from the packet's send, ms; 0: only the packet's own deadline.
        deadline_ms: f64 = 0.0, in 0..=10_000;
        /// Instead of path_budget_us in [queue].
        path_budget_us: Option<u32> = None, example 2000, in 0..=LONGEST_US;
        /// Notify the sender of each refusal by SIGURG.
        sigurg: bool = false;
    }
}

const BACKGROUND: Matching = Matching {
    accepts: &[
        ("address", Presence::Must),
        ("port", Presence::Must),
        ("local_port", Presence::May),
    ],
    reason: "background flows are identified by address and port only",
    instead_of_process: "run the program at nice 19 (`Nice=19` in its unit), and its sockets are background",
    instead_of_ends: "leave it out: UDP and TCP are matched alike",
};

section! {
    /// Background flows. One [[background]] for each; `giveway class set` is for existing ones.
    Background matching Conditions as BACKGROUND {}
}

impl Background {
    /// The remote address; the unspecified one for a prefix, which `Config::parse` refuses.
    pub fn address(&self) -> IpAddr {
        let single = self.conditions.address.and_then(|address| address.single());
        single.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

/// The scheduling policy of a rule (sched(7)).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedPolicyName {
    #[default]
    Fifo,
    Rr,
    Deadline,
}

const REALTIME: Matching = Matching {
    accepts: &[
        ("exe", Presence::May),
        ("cmdline", Presence::May),
        ("user", Presence::May),
        ("unit", Presence::May),
        ("cgroup", Presence::May),
    ],
    reason: "a process is matched when it starts, before it has sent anything",
    instead_of_process: "leave it out",
    instead_of_ends: "[[chain]] gives priority to the threads that answer on a local_port",
};

section! {
    /// Processes that get real-time priority when they start. All given conditions must hold; the first match counts.
    /// Without `user` the executable must be root's, and not writable by others.
    PrioritySection matching Conditions as REALTIME {
        /// Its name in `why`; without it its number in this file.
        name: Option<String> = None, example "camera";
        /// "fifo", "rr" or "deadline".
        policy: SchedPolicyName = SchedPolicyName::Fifo;
        /// For "fifo" and "rr": at most max_priority.
        priority: u32 = 20, in 1..=CEILING;
        /// For "deadline": the CPU time, microseconds ...
        runtime_us: Option<u32> = None, example 2000, in 2..=LONGEST_US;
        /// ... within this time of each period's start; without it the period.
        deadline_us: Option<u32> = None, example 10_000, in 2..=LONGEST_US;
        /// For "deadline": the period, microseconds.
        period_us: Option<u32> = None, example 10_000, in 2..=LONGEST_US;
        /// The CPUs on which it may run. Empty: unchanged.
        cpus: Vec<u32> = Vec::new(), in 0..=8191;
        /// The most CPU time for all processes of this rule together, percent of one CPU; one that exceeds it loses the
        /// priority.
        budget_percent: u32 = 80, in 1..=100_000;
        /// The most threads, over all processes of this rule.
        max_tasks: u32 = 32, in 1..=4096;
    }
}

section! {
    /// What users other than root may request for their own processes, by `giveway exec --priority` and `giveway
    /// priority add`. The first [[grant]] that matches a user counts; without one nothing is granted.
    GrantRule {
        /// A user's name or number; without it, with `group`, each of its members.
        user: Option<String> = None, example "robot";
        /// A group's name or number.
        group: Option<String> = None, example "realtime";
        /// The highest priority.
        max_priority: u32 = 10, in 1..=CEILING;
        /// The most threads.
        max_tasks: u32 = 8, in 1..=4096;
        /// The most CPU time, percent of one CPU.
        budget_percent: u32 = 50, in 1..=100_000;
    }
}

const CHAIN: Matching = Matching {
    accepts: &[
        ("protocol", Presence::Else("udp")),
        ("local_port", Presence::Must),
        ("user", Presence::Else("root")),
    ],
    reason: "a service is identified by its protocol, local port and user only",
    instead_of_process: "[[priority]] matches processes by it",
    instead_of_ends: "the service's own port is `local_port`, and requests from everywhere are served",
};

section! {
    /// Local services whose requests have a deadline: the thread that receives a request has real-time priority until
    /// the deadline, and the response is sent with the remaining time. One for each port; a service of another `user`
    /// at that port is ignored.
    Chain matching Conditions as CHAIN {
        /// From the request's arrival to the last bit of its response, ms; less if the request says so (docs/how-to/send-deadlines.md).
        budget_ms: f64 = 0.0, example 5.0, in 0.001..=10_000;
        /// SCHED_FIFO priority, at most max_priority.
        priority: u32 = 40, in 1..=CEILING;
        /// The most CPU time for its threads together, percent of one CPU; else they lose the priority for a second.
        /// All [[chain]]s together have at most 80.
        share_percent: u32 = 40, in 1..=80;
    }
}

impl Chain {
    /// The service's user, by name or number.
    pub fn user(&self) -> &str {
        self.conditions.user.as_deref().unwrap_or_default()
    }
}

section! {
    /// The classes of traffic (docs/reference/classes-and-marks.md).
    ClassesSection {
        /// The classes that users other than root may choose for their own programs (`giveway exec --class`).
        users_may_choose: Vec<Class> = vec![Class::Bulk, Class::Background];
        /// While somebody works at a seat of this machine (systemd-logind's active session), bulk outside of that
        /// session and its user's app.slice counts as background. Off: the focus is set by `giveway focus` only.
        follow_sessions: bool = true;
        /// Background connections get a scavenger congestion control, which yields to all others anywhere on the path
        /// (docs/explanation/background.md), while they are background. Off: they keep theirs.
        congestion_control: bool = true;
        /// Downloads of background connections yield too, by a smaller receive window (docs/explanation/background.md). Off: their
        /// windows are unchanged.
        receive_window: bool = true;
        /// Processes that are background by a rule on the process or by choice, whatever they send, are reniced to 19
        /// and the idle I/O class, with their child processes. Off: class does not matter for the CPU and the disk.
        cpu_and_disk: bool = true;
    }
}

section! {
    /// The DSCP of each class's packets, TCP and UDP alike; "keep" leaves the application's. On Wi-Fi it also chooses
    /// the access category (docs/reference/classes-and-marks.md has the table).
    MarksSection {
        /// Packets with a deadline too. "EF" uses AC_VO: airtime that other stations lose.
        realtime: Mark = Mark::Keep;
        /// "AF41" uses AC_VI: airtime that other stations lose.
        stream: Mark = Mark::Keep;
        /// "CS0" makes it best effort whatever applications set.
        standard: Mark = Mark::Keep;
        /// "CS0" keeps traffic that an application has marked with CS1 out of AC_BK.
        bulk: Mark = Mark::Keep;
        /// "LE" (RFC 8622) uses AC_BK. If htb orders a link that may be Wi-Fi, CS1 is written instead, as Linux sends
        /// LE alone as best effort.
        background: Mark = Mark::Write(Dscp::LE);
    }
}

const RULE: Matching = Matching {
    accepts: &[
        ("exe", Presence::May),
        ("cmdline", Presence::May),
        ("user", Presence::May),
        ("unit", Presence::May),
        ("cgroup", Presence::May),
        ("protocol", Presence::May),
        ("address", Presence::May),
        ("port", Presence::May),
        ("local_port", Presence::May),
        ("dscp", Presence::May),
        ("interface", Presence::May),
    ],
    reason: "a class is given to a flow and its process",
    instead_of_process: "leave it out",
    instead_of_ends: "leave it out",
};

section! {
    /// The class of a flow. All given conditions must hold, one at least; the first match counts. Rules are also read
    /// from rules.d (docs/reference/rules.md).
    ClassRule matching Conditions as RULE {
        /// "realtime", "stream", "standard", "bulk" or "background". Must be given.
        class: Option<Class> = None, example "background";
        /// The most that all flows of this rule together send, Mbit/s with all headers, and likewise the most that they
        /// receive.
        rate_limit_mbit: Option<f64> = None, example 5.0, in 0.01..=10_000;
        /// Instead of that, for what they send.
        upload_limit_mbit: Option<f64> = None, example 5.0, in 0.01..=10_000;
        /// Instead of that, for what they receive.
        download_limit_mbit: Option<f64> = None, example 20.0, in 0.01..=10_000;
        /// Whether it applies to child processes, too, unless a rule of their own matches. For rules with process
        /// conditions only.
        children: bool = true;
        /// The reason in a few words, shown by `why`.
        reason: Option<String> = None, example "nobody waits for a backup";
    }
}
