// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every section and key, each declared once: a new key is added here and nowhere else in the configuration. The unit
//! is part of a key's name.

use std::fmt::{self, Formatter};
use std::net::{IpAddr, Ipv4Addr};

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::conditions::Conditions;
use super::key::{Absent, ConfigKey, key, section};
use super::matching::{Matching, Presence};
use super::section::Section;
use crate::model::{Class, Dscp, Mark};

/// The kernel's interrupt threads are FIFO 50, and giveway's own threads must come between: this is the most for all
/// others.
pub const CEILING: u32 = 48;
/// Links that are managed at once.
pub const MOST_LINKS: usize = 8;

/// Everything that a user can set.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
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

/// Gives each rule what counts where a key is absent, so that its [`Conditions`] say all that must hold.
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

/// No deadline and no part of one is longer, microseconds.
const LONGEST_US: u32 = 10_000_000;

section! {
    /// Which sockets are looked at, and how often.
    Monitor {
        /// Polls a second over the sockets that were active since the last one.
        polls_per_second: u32 = 10, in 1..=100;
        /// Seconds between two scans over all sockets.
        full_scan_s: u32 = 10, in 1..=3600;
    }
}

/// How caps are chosen.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CapPolicyName {
    /// One of the others, by what else is given: [`Config::cap_policy`].
    #[default]
    Auto,
    Fixed,
    /// The capacity is estimated from what all devices get.
    Estimated,
    None,
}

/// What the policy "estimated" gives up for what.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
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
        /// "auto", "fixed" (one capacity, shared equally by the devices that send), "estimated" (the capacity is estimated from what
        /// all devices get) or "none" (watch only).
        /// "auto" is "fixed" where capacity_mbit or fixed_segments is given; else, where [group] has a key_file, "estimated" while
        /// another device of the group is there; else "none".
        policy: CapPolicyName = CapPolicyName::Auto;
        /// What the access point really carries, Mbit/s with TCP and IP headers; it depends on the place.
        capacity_mbit: Option<f64> = None, example 20.0, in 0.001..=1e6;
        /// Bytes of capacity x RTT left unused. At most 20% of capacity x RTT is taken, whatever is set here.
        margin_bytes: u64 = 0, in 0..=1_000_000_000;
        /// Bytes of a segment on the link, headers included.
        segment_bytes: u32 = 1500, in 64..=65_535;
        /// One RTT for every connection, ms; without it each connection's own minimum RTT counts.
        rtt_ms: Option<u32> = None, example 256, in 1..=60_000;
        /// One cap for every sender, segments, in place of the formula: for experiments.
        fixed_segments: Option<u32> = None, example 30, in 4..=1_000_000;
        /// With policy "estimated", while limits are active: "balanced" aims at a smoothed RTT of at most 1.25 of the minimum, or
        /// 15 ms above it where that is more, "delay" at 1.1, or 5 ms; "throughput" at the same as "balanced", and gives
        /// limits up as soon as they cost throughput.
        prefer: Prefer = Prefer::Balanced;
        /// With policy "estimated": whatever the peers say, a connection that has its device's share to itself may send
        /// this much, Mbit/s.
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

/// What is said of a link's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateMbit {
    Fixed(f64),
    /// `"auto"`
    Estimated,
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
    /// The link of the managed interface, towards the network; of the preferred default route's where several are managed.
    LinkSection {
        /// What the link really carries, Mbit/s, all headers included. Without it a wired physical device's own speed
        /// counts; elsewhere (Wi-Fi, LTE, virtual devices) nothing is paced and no deadline is promised. "auto": it is found
        /// from what TCP connections deliver, and paced at; deadlines are promised by what held of it for 90% of the last
        /// 20 s, once TCP has measured it for 10 (docs/link-rate.md). Not beside several `interfaces`: each has its own, in
        /// [[uplink]].
        rate_mbit: Option<RateMbit> = None, example 20.0, in 0.01..=400_000;
        /// What it really carries towards this machine, Mbit/s. With it bulk and background that arrive yield to all else
        /// that does (docs/downloads.md). Not beside several `interfaces`, either.
        download_rate_mbit: Option<f64> = None, example 50.0, in 0.01..=10_000;
        /// Bytes that each packet takes beyond its own. Without it 24 on wired Ethernet (preamble, FCS, gap), 0
        /// elsewhere.
        overhead_bytes: Option<u32> = None, example 24, in 0..=256;
        /// Bytes handed to the driver ahead of the link, at most. Without it one packet of the MTU.
        driver_bytes: Option<u32> = None, example 1514, in 0..=1_048_576;
        /// Traffic to the interface's own subnets. "limited": it has its part of the rate, as all else. "unlimited": it has no
        /// part in the rate and gives none up, since the modem's rate is not the LAN's (htb only; docs/queue.md).
        local: LocalTraffic = LocalTraffic::Limited;
    }
}

section! {
    /// The link of one interface, where several are managed.
    UplinkSection {
        /// The interface, one of `interfaces` where these are named. Must be given.
        interface: Option<String> = None, example "wlan0";
        /// As in [link], which does not count for this interface.
        rate_mbit: Option<RateMbit> = None, example 8.0, in 0.01..=400_000;
        /// As in [link], which does not count for this interface.
        download_rate_mbit: Option<f64> = None, example 20.0, in 0.01..=10_000;
        /// As in [link], whose value counts without it.
        overhead_bytes: Option<u32> = None, example 0, in 0..=256;
        /// As in [link], whose value counts without it.
        driver_bytes: Option<u32> = None, example 1514, in 0..=1_048_576;
        /// As in [link], whose value counts without it.
        local: Option<LocalTraffic> = None, example "unlimited";
    }
}

/// Whether what stays in the link's own subnets has its part of the link's rate.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalTraffic {
    #[default]
    Limited,
    Unlimited,
}

/// Which queueing discipline orders the bands.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
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
        /// "qdisc" (the BPF qdisc: Linux 6.16), "htb" (needs a known rate), "none" (the queue stays as it is), or "auto":
        /// "qdisc" where the kernel has it, else "htb" where the rate is known, else "none"; and "none" on a device
        /// whose own speed is above 1 Gbit/s, unless a rate is configured. `giveway status` says which and why.
        backend: BackendName = BackendName::Auto;
        /// At most this share of the rate is for packets with deadlines, percent.
        realtime_percent: u32 = 80, in 1..=100;
        /// Taken from each deadline for delays after the link, microseconds; a rule's own wins over it.
        path_budget_us: u32 = 0, in 0..=LONGEST_US;
        /// Kept free before each deadline for delays inside this machine, microseconds; without it 100.
        guard_us: Option<u32> = None, example 100, in 0..=LONGEST_US;
        /// While several users (uids) have packets with deadlines, so much of what is promised is each one's, percent; without
        /// it equal shares. What they leave is anyone's. 100: first come, first served.
        user_percent: Option<u32> = None, example 25, in 1..=100;
        /// Refuse at once what cannot be in time; without it a deadline is only an order.
        admission: bool = true;
        /// Drop what is too late all the same ("qdisc" only).
        drop_late: bool = true;
        /// Hold background packets while the CPU runs something more important ("qdisc" only).
        cpu_gate: bool = true;
        /// What background gets though it should wait, kbit/s, so that its connections live on. Without it 0.5% of the
        /// rate and at most 100; 10 where no rate is known. 0: nothing.
        background_min_kbit: Option<u32> = None, example 10, in 0..=1_000_000;
        /// What an application has marked as a call or as live video (DSCP EF, VA, CS5, AF4x, CS4) goes before what waits,
        /// up to a quarter of the rate for each user (docs/classes.md). Off: such a mark says nothing here.
        call_marks: bool = true;
        /// Background that connects over a link of a few Mbit/s does so with short segments, so that one on the wire is soon
        /// over.
        short_segments: bool = true;
        /// How long best effort may stand in the queue, ms; without it 5 ms, or 1.5 packets' time where that is more.
        sojourn_target_ms: Option<f64> = None, example 5.0, in 0..=10_000;
    }
}

section! {
    /// The other devices on this access point. Without key_file this device works alone.
    Group {
        /// The group's key (`giveway key new FILE`). The file must be readable by its owner only.
        key_file: Option<String> = None, example "/etc/giveway/group.key";
        /// UDP port of the reports. Below 1024 it is root's: no user can take it first (docs/protocol.md).
        port: u16 = 339, in 1..=65_535;
        /// Milliseconds between two reports; longer when many devices share the air.
        report_interval_ms: u32 = 500, in 100..=10_000;
        /// All devices' reports together use at most this share of the air time, percent.
        airtime_percent: f64 = 1.0, in 0.001..=10;
        /// The rate at which the access point repeats broadcasts, Mbit/s.
        basic_rate_mbit: f64 = 6.0, in 0.001..=1000;
    }
}

section! {
    /// Who may ask the daemon.
    Control {
        /// Members of this Unix group may read status and records. Without it a
        /// user sees and changes only what a [[grant]] allows for own processes. The rest is root's.
        group: String = "giveway".to_owned();
    }
}

section! {
    /// What keeps the machine answering, whatever the rules give.
    PriorityLimitsSection {
        /// No priority above this one; the kernel's interrupt threads are 50, giveway's own thread 49.
        max_priority: u32 = 48, in 1..=CEILING;
        /// Threads that have real-time priority at once.
        max_tasks: u32 = 64, in 1..=4096;
        /// Of the CPU time of all CPUs.
        total_percent: u32 = 80, in 1..=95;
        /// The time over which budgets are counted, ms.
        window_ms: u32 = 500, in 200..=10_000;
        /// A thread without real-time priority must run on each CPU so often, ms; else every grant is revoked.
        starvation_ms: u32 = 400, in 100..=10_000;
        /// `giveway exec` sets RLIMIT_RTTIME to this: a thread that computes for so long without a pause gets SIGXCPU, ms.
        rttime_ms: u32 = 1000, in 10..=60_000;
    }
}

section! {
    /// The receiving side of the managed interface, the first where there are several. Everything that is set here is put
    /// back at the end.
    ReceiveSection {
        /// Process what arrives in threads of the kernel (napi/...), in place of the softirq. Off: see docs/chain.md.
        threaded_napi: bool = false;
        /// SCHED_FIFO priority of these threads; 0 leaves them at SCHED_OTHER. Below that of [[chain]]s, so that no flood
        /// comes between a request and its answer. When they use more than 80% of a CPU they lose it for a second.
        napi_priority: u32 = 39, in 0..=CEILING;
        /// The CPUs that the interface's interrupts may go to. Empty: as they are.
        irq_cpus: Vec<u32> = Vec::new(), in 0..=8191;
        /// A process that waits for a packet asks the device itself for so long, microseconds (net.core.busy_read and
        /// busy_poll, of the whole machine). 0: as it is.
        busy_poll_us: u32 = 0, in 0..=10_000;
    }
}

const DEADLINE: Matching = Matching {
    accepts: &[("protocol", Presence::Else("udp")), ("port", Presence::Must)],
    reason: "a deadline is looked up by the packet's protocol and remote port only",
    instead_of_process: "the program can give its packets a deadline itself (SO_TXTIME, see docs/queue.md)",
    instead_of_ends: "leave it out, so that the rule holds for every packet to `port`",
};

section! {
    /// Packets of unmodified programs that have a deadline. One [[deadline]] for each remote port.
    Deadline matching Conditions as DEADLINE {
        /// The last bit is to leave so long after the packet was sent, ms; 0: only what the packet itself says.
        deadline_ms: f64 = 0.0, in 0..=10_000;
        /// In place of path_budget_us in [queue].
        path_budget_us: Option<u32> = None, example 2000, in 0..=LONGEST_US;
        /// Tell the sender of each refusal by SIGURG.
        sigurg: bool = false;
    }
}

const BACKGROUND: Matching = Matching {
    accepts: &[
        ("address", Presence::Must),
        ("port", Presence::Must),
        ("local_port", Presence::May),
    ],
    reason: "background flows are told apart by address and port only",
    instead_of_process: "run the program at nice 19 (`Nice=19` in its unit), and its sockets are background",
    instead_of_ends: "leave it out: UDP and TCP are matched alike",
};

section! {
    /// Flows that are background. One [[background]] for each; `giveway class set` names those that run already.
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
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
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
    /// Processes that get real-time priority as soon as they are started. All conditions that are given must hold; the
    /// first rule that matches counts. Without `user` the executable must be root's, and writable by nobody else.
    PrioritySection matching Conditions as REALTIME {
        /// What `why` calls it; without it its number in this file.
        name: Option<String> = None, example "camera";
        /// "fifo", "rr" or "deadline".
        policy: SchedPolicyName = SchedPolicyName::Fifo;
        /// For "fifo" and "rr": at most max_priority.
        priority: u32 = 20, in 1..=CEILING;
        /// For "deadline": so much CPU time, microseconds ...
        runtime_us: Option<u32> = None, example 2000, in 2..=LONGEST_US;
        /// ... within so long of each period's start; without it the period.
        deadline_us: Option<u32> = None, example 10_000, in 2..=LONGEST_US;
        /// For "deadline": microseconds.
        period_us: Option<u32> = None, example 10_000, in 2..=LONGEST_US;
        /// The CPUs on which it may run. Empty: those that it has.
        cpus: Vec<u32> = Vec::new(), in 0..=8191;
        /// All processes of this rule together use at most this share of one CPU; one that exceeds it loses the priority.
        budget_percent: u32 = 80, in 1..=100_000;
        /// Threads that have it at once, of all processes of this rule.
        max_tasks: u32 = 32, in 1..=4096;
    }
}

section! {
    /// What users other than root may ask for, by `giveway exec --priority` and `giveway priority add`, for their own
    /// processes. The first [[grant]] that matches a user counts; without one they may ask for nothing.
    GrantRule {
        /// A user's name or number; without it, with `group`, each of its members.
        user: Option<String> = None, example "robot";
        /// A group's name or number.
        group: Option<String> = None, example "realtime";
        /// No priority above this one.
        max_priority: u32 = 10, in 1..=CEILING;
        /// Threads at once.
        max_tasks: u32 = 8, in 1..=4096;
        /// Of one CPU.
        budget_percent: u32 = 50, in 1..=100_000;
    }
}

const CHAIN: Matching = Matching {
    accepts: &[
        ("protocol", Presence::Else("udp")),
        ("local_port", Presence::Must),
        ("user", Presence::Else("root")),
    ],
    reason: "a service is told by its protocol, local port and user only",
    instead_of_process: "[[priority]] matches processes by it",
    instead_of_ends: "the service's own port is `local_port`, and requests from everywhere are served",
};

section! {
    /// Local services whose requests have a deadline: it goes with the request to the thread that receives it, which
    /// has real-time priority until then, and on to the answer, which is sent with what is left. One for each port; a
    /// service of another `user` at that port is ignored.
    Chain matching Conditions as CHAIN {
        /// From the request's arrival to the last bit of its answer, ms; less where the request says so (docs/queue.md).
        budget_ms: f64 = 0.0, example 5.0, in 0.001..=10_000;
        /// SCHED_FIFO priority, at most max_priority.
        priority: u32 = 40, in 1..=CEILING;
        /// Its threads together use at most this share of one CPU; else they lose the priority for a second. All [[chain]]s
        /// together have at most 80.
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
    /// The classes of traffic (docs/classes.md).
    ClassesSection {
        /// Of the five classes, those that users other than root may choose for their own programs (`giveway exec --class`).
        users_may_choose: Vec<Class> = vec![Class::Bulk, Class::Background];
        /// While somebody works at a seat of this machine (systemd-logind's active session), bulk outside of that session
        /// and its user's app.slice counts as background. Off: only `giveway focus` says what is active.
        follow_sessions: bool = true;
        /// Background connections get a congestion control that yields to all others on their path, wherever that is
        /// narrow (docs/background.md), for as long as they are background. Off: they keep theirs.
        congestion_control: bool = true;
        /// What background connections receive yields too, by the window that they offer (docs/background.md). Off:
        /// their windows are as the kernel and the application make them.
        receive_window: bool = true;
        /// Processes that are background by a rule on the process or by choice, whatever they send, run at nice 19 and in
        /// the idle I/O class, and so does what they start. Off: the CPU and the disk do not tell classes apart.
        cpu_and_disk: bool = true;
    }
}

section! {
    /// The DSCP that packets of each class leave with, over TCP and UDP alike; "keep" leaves what the application has set.
    /// On Wi-Fi it also chooses the access category (docs/classes.md has the table).
    MarksSection {
        /// Packets with a deadline too. "EF" takes AC_VO: air time that strangers lose.
        realtime: Mark = Mark::Keep;
        /// "AF41" takes AC_VI: air time that strangers lose.
        stream: Mark = Mark::Keep;
        /// "CS0" makes it best effort whatever applications set.
        standard: Mark = Mark::Keep;
        /// "CS0" keeps out of AC_BK what an application has marked with CS1.
        bulk: Mark = Mark::Keep;
        /// "LE" (RFC 8622) leaves in AC_BK. Where htb orders a link that may be Wi-Fi, CS1 is written in its place, as Linux
        /// sends LE alone as best effort.
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
    /// Which class a flow has. All conditions that are given must hold, one at least; the first rule that matches counts.
    /// Rules are also read from rules.d (docs/classes.md).
    ClassRule matching Conditions as RULE {
        /// "realtime", "stream", "standard", "bulk" or "background". Must be given.
        class: Option<Class> = None, example "background";
        /// All flows of this rule together send at most so much, Mbit/s with all headers, and receive at most so much: each
        /// direction for itself.
        rate_limit_mbit: Option<f64> = None, example 5.0, in 0.01..=10_000;
        /// In place of that, for what they send alone.
        upload_limit_mbit: Option<f64> = None, example 5.0, in 0.01..=10_000;
        /// And for what they receive alone.
        download_limit_mbit: Option<f64> = None, example 20.0, in 0.01..=10_000;
        /// Whether it is for what the process starts, too, as far as no rule of its own says otherwise. Of a rule that asks for
        /// nothing but the process.
        children: bool = true;
        /// Why, in a few words: `why` says it.
        reason: Option<String> = None, example "nobody waits for a backup";
    }
}
