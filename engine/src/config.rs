// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration: text in, a checked [`Config`] or one clear [`ConfigError`] out. Never reads a file.
//!
//! Each key stands here once, with its documentation, type and default; the commented default file that
//! `giveway config` prints is made from these same lines. Units are part of the key. An empty text is a
//! valid configuration.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

mod names;
mod ranges;

use names::{check_names, first_line, in_plain_words, offending_key};

/// Why a configuration was refused.
#[derive(Debug, Error, PartialEq)]
pub enum ConfigError {
    #[error("not TOML: {0}")]
    Syntax(String),
    #[error("unknown {what} `{name}`{}", hint(.nearest))]
    Unknown {
        what: &'static str,
        name: String,
        nearest: Option<String>,
    },
    #[error("`{key}`: {problem}")]
    Value { key: String, problem: String },
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; did you mean `{name}`? (`giveway config` lists every key, its unit and default)"),
        None => "; `giveway config` lists every key, its unit and default".to_owned(),
    }
}

/// One documented key of a section.
struct Key {
    name: &'static str,
    doc: &'static [&'static str],
    /// The default as TOML; where there is none, an example.
    value: &'static str,
}

/// What the default file says of a section.
struct Section {
    name: &'static str,
    about: &'static [&'static str],
    /// A list: written as often as wanted, each time with two brackets.
    repeated: bool,
    keys: &'static [Key],
}

/// Declares a section once: its struct, its defaults, and the documentation of its keys.
macro_rules! section {
    ($(#[doc = $about:literal])* $name:ident $section:ident $written:literal {$($keys:tt)*}) => {
        section! { @ false $(#[doc = $about])* $name $section $written {$($keys)*} }
    };
    ($(#[doc = $about:literal])* list of $name:ident $section:ident $written:literal {$($keys:tt)*}) => {
        section! { @ true $(#[doc = $about])* $name $section $written {$($keys)*} }
    };
    (@ $repeated:literal $(#[doc = $about:literal])* $name:ident $section:ident $written:literal {
        $($(#[doc = $doc:literal])* $key:ident: $type:ty = $default:expr, $text:literal;)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
        #[serde(default)]
        pub struct $name { $($(#[doc = $doc])* pub $key: $type,)* }

        impl Default for $name {
            fn default() -> Self { Self { $($key: $default,)* } }
        }

        const $section: Section = Section {
            name: $written,
            about: &[$($about),*],
            repeated: $repeated,
            keys: &[$(Key { name: stringify!($key), doc: &[$($doc),*], value: $text },)*],
        };
    };
}

/// How caps are chosen.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CapPolicyName {
    /// `fixed` as soon as `capacity_mbit` or `fixed_segments` is given, else `none`.
    #[default]
    Auto,
    Fixed,
    None,
}

section! {
    /// Which sockets are looked at, and how often.
    Monitor MONITOR "monitor" {
        /// Passes a second over the sockets that were active since the last one (1 to 100).
        passes_per_second: u32 = 10, "10";
        /// Seconds between two walks over all sockets (1 to 3600).
        full_walk_s: u32 = 10, "10";
    }
}

section! {
    /// The cap on cwnd. Without capacity_mbit (or fixed_segments) nothing is capped.
    Cap CAP "cap" {
        /// "auto", "fixed" (one capacity, shared equally by the devices that send) or "none" (watch only).
        /// "auto" is "fixed" where capacity_mbit or fixed_segments is given, else "none".
        policy: CapPolicyName = CapPolicyName::Auto, "\"auto\"";
        /// What the access point really carries, Mbit/s of TCP payload. No default: it depends on the place.
        capacity_mbit: Option<f64> = None, "20.0";
        /// Bytes of capacity x RTT left unused. At most 20% of capacity x RTT is taken, whatever is set here.
        margin_bytes: u64 = 0, "0";
        /// Bytes of a segment on the link, headers included.
        segment_bytes: u32 = 1500, "1500";
        /// One RTT for every connection, ms. No default: each connection's own minimum RTT counts.
        rtt_ms: Option<u32> = None, "256";
        /// One cap for every sender, segments, in place of the formula: for experiments.
        fixed_segments: Option<u32> = None, "30";
    }
}

section! {
    /// The other devices on this access point. Without key_file this device works alone.
    Group GROUP "group" {
        /// The group's key (`giveway key new FILE`). The file must be readable by its owner only.
        key_file: Option<String> = None, "\"/etc/giveway/group.key\"";
        /// UDP port of the reports.
        port: u16 = 48048, "48048";
        /// Milliseconds between two reports (100 to 10000); longer when many devices share the air.
        report_interval_ms: u32 = 500, "500";
        /// All devices' reports together use at most this share of the air time, percent.
        airtime_percent: f64 = 1.0, "1.0";
        /// The rate at which the access point repeats broadcasts, Mbit/s.
        basic_rate_mbit: f64 = 6.0, "6.0";
    }
}

section! {
    /// Who may ask the daemon.
    Control CONTROL "control" {
        /// Members of this Unix group may read status and records; only root changes anything.
        group: String = "giveway".to_owned(), "\"giveway\"";
    }
}

/// What puts the bands in order.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendName {
    #[default]
    Auto,
    Qdisc,
    Htb,
    None,
}

/// Whose port a rule names.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Udp,
    Tcp,
}

section! {
    /// The managed interface's link, towards the network.
    LinkSection LINK "link" {
        /// What the link really carries, Mbit/s, all headers included. No default: a wired physical device's own
        /// speed counts, elsewhere (Wi-Fi, LTE, virtual devices) nothing is paced and no deadline is promised.
        rate_mbit: Option<f64> = None, "20.0";
        /// Bytes that each packet takes beyond its own (0 to 256). No default: 24 on wired Ethernet (preamble, FCS,
        /// gap), 0 elsewhere.
        overhead_bytes: Option<u32> = None, "24";
        /// Bytes handed to the driver ahead of the link, at most. No default: one packet of the MTU.
        driver_bytes: Option<u32> = None, "1514";
    }
}

section! {
    /// The three bands of the managed interface: packets with a deadline, best effort, background.
    QueueSection QUEUE "queue" {
        /// "qdisc" (the BPF qdisc: Linux 6.16), "htb" (needs a known rate), "none" (nothing is changed), or "auto":
        /// "qdisc" where the kernel has it, else "htb" where the rate is known, else "none"; and "none" on a device
        /// whose own speed is above 1 Gbit/s. `giveway status` says which and why.
        backend: BackendName = BackendName::Auto, "\"auto\"";
        /// At most this share of the rate is for packets with deadlines, percent (1 to 100).
        realtime_percent: u32 = 80, "80";
        /// Taken from each deadline for what comes after the link, microseconds; a rule's own wins over it.
        path_budget_us: u32 = 0, "0";
        /// Kept free before each deadline for delays inside this machine, microseconds. No default: 100.
        guard_us: Option<u32> = None, "100";
        /// Refuse at once what cannot be in time; without it a deadline is only an order.
        admission: bool = true, "true";
        /// Drop what is too late all the same ("qdisc" only).
        drop_late: bool = true, "true";
        /// Hold background packets while the CPU runs something more important ("qdisc" only).
        gate: bool = true, "true";
        /// Process what arrives for background flows in threads of the idle class (XDP). Off: it has to show its gain.
        ingress: bool = false, "false";
        /// What background gets though it should wait, kbit/s.
        trickle_kbit: u32 = 0, "0";
        /// How long best effort may stand in the queue, ms. No default: 5 ms, or 1.5 packets' time where that is more.
        sojourn_target_ms: Option<f64> = None, "5.0";
    }
}

section! {
    /// Packets of unmodified programs that have a deadline. One [[deadline]] for each remote port.
    list of Deadline DEADLINE "deadline" {
        /// "udp" or "tcp".
        protocol: Protocol = Protocol::Udp, "\"udp\"";
        /// The remote port (1 to 65535).
        port: u16 = 0, "5005";
        /// The last bit is to leave so long after the packet was sent, ms; 0: only what the packet itself says.
        deadline_ms: f64 = 0.0, "10.0";
        /// In place of path_budget_us in [queue].
        path_budget_us: Option<u32> = None, "2000";
        /// Tell the sender of each refusal by SIGURG.
        sigurg: bool = false, "false";
    }
}

section! {
    /// Flows that are background. One [[background]] for each; `giveway lbe add` names more at run time.
    list of Background BACKGROUND "background" {
        /// The remote address.
        address: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED), "\"192.0.2.1\"";
        /// The remote port (1 to 65535).
        port: u16 = 0, "873";
        /// The local port. No default: any.
        local_port: Option<u16> = None, "40000";
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

section! {
    /// Processes that get real-time priority as soon as they are started. All conditions that are given must hold; the
    /// first rule that matches counts. Without `user` the executable must be root's, and writable by nobody else.
    list of RealtimeRule REALTIME "realtime" {
        /// What `why` calls it. No default: its number in this file.
        name: Option<String> = None, "\"camera\"";
        /// The executable: an absolute path, matched by the file that it means to the daemon.
        exe: Option<String> = None, "\"/usr/bin/camera\"";
        /// Its arguments with blanks between them; * is any text, ? any character.
        cmdline: Option<String> = None, "\"*--live*\"";
        /// A user's name or number, which must be the real and the effective one.
        user: Option<String> = None, "\"robot\"";
        /// The systemd unit, with * and ?.
        unit: Option<String> = None, "\"camera@*.service\"";
        /// The cgroup's path below the mount of cgroup v2, with * and ?.
        cgroup: Option<String> = None, "\"/system.slice/*\"";
        /// "fifo", "rr" or "deadline".
        policy: SchedPolicyName = SchedPolicyName::Fifo, "\"fifo\"";
        /// For "fifo" and "rr": from 1 to max_priority.
        priority: u32 = 20, "20";
        /// For "deadline": so much CPU time, microseconds ...
        runtime_us: Option<u32> = None, "2000";
        /// ... within so long of each period's start. No default: the period.
        deadline_us: Option<u32> = None, "10000";
        /// For "deadline": microseconds.
        period_us: Option<u32> = None, "10000";
        /// The CPUs on which it may run. Empty: those that it has.
        cpus: Vec<u32> = Vec::new(), "[]";
        /// All processes of this rule together use at most this share of one CPU; who overruns is ordinary from then on.
        budget_percent: u32 = 80, "80";
        /// Threads that have it at once, of all processes of this rule.
        max_tasks: u32 = 32, "32";
    }
}

section! {
    /// What keeps the machine answering, whatever the rules give.
    RealtimeLimits REALTIME_LIMITS "realtime_limits" {
        /// No priority above this one (1 to 48; the kernel's interrupt threads are 50, giveway's own thread 49).
        max_priority: u32 = 48, "48";
        /// Threads that have real time at once.
        max_tasks: u32 = 64, "64";
        /// Of the CPU time of all CPUs.
        total_percent: u32 = 80, "80";
        /// The time over which budgets are counted, ms (200 to 10000).
        window_ms: u32 = 500, "500";
        /// An ordinary thread on each CPU must run so often, ms (100 to 10000); else everything is set back.
        canary_ms: u32 = 400, "400";
        /// `giveway exec` sets RLIMIT_RTTIME to this: a thread that computes for so long without a pause gets SIGXCPU, ms.
        rttime_ms: u32 = 1000, "1000";
    }
}

section! {
    /// What users other than root may ask for, by `giveway exec --realtime` and `giveway realtime add`, for their own
    /// processes. The first [[grant]] that means a user counts; without one they may ask for nothing.
    list of GrantRule GRANT "grant" {
        /// A user's name or number. No default: with `group`, each of its members.
        user: Option<String> = None, "\"robot\"";
        /// A group's name or number.
        group: Option<String> = None, "\"realtime\"";
        /// No priority above this one.
        max_priority: u32 = 10, "10";
        /// Threads at once.
        max_tasks: u32 = 8, "8";
        /// Of one CPU.
        budget_percent: u32 = 50, "50";
    }
}

section! {
    /// The receiving side of the managed interface. Everything that is set here is put back at the end.
    ReceiveSection RECEIVE "receive" {
        /// Process what arrives in threads of the kernel (napi/...), in place of the softirq. Off: see docs/chain.md.
        threaded_napi: bool = false, "false";
        /// SCHED_FIFO priority of these threads (1 to 48); 0 leaves them ordinary. Below that of [[chain]]s, so that no flood
        /// comes between a request and its answer. When they use more than 80% of a CPU they are ordinary for a second.
        napi_priority: u32 = 39, "39";
        /// The CPUs that the interface's interrupts may go to. Empty: as they are.
        irq_cpus: Vec<u32> = Vec::new(), "[]";
        /// A process that waits for a packet asks the device itself for so long, microseconds (net.core.busy_read and
        /// busy_poll, of the whole machine). 0: as it is.
        busy_poll_us: u32 = 0, "0";
    }
}

section! {
    /// Local services whose requests have a deadline: it goes with the request to the thread that receives it, which
    /// has real-time priority until then, and on to the answer, which is sent with what is left. One for each port.
    list of Chain CHAIN "chain" {
        /// "udp" or "tcp".
        protocol: Protocol = Protocol::Udp, "\"udp\"";
        /// The service's own port (1 to 65535).
        local_port: u16 = 0, "5005";
        /// From the request's arrival to the last bit of its answer, ms; less where the request says so (docs/queue.md).
        budget_ms: f64 = 0.0, "5.0";
        /// SCHED_FIFO priority (1 to 48).
        priority: u32 = 40, "40";
        /// The service's user, by name or number: nobody else's port counts.
        user: String = "root".to_owned(), "\"root\"";
        /// Its threads together use at most this share of one CPU; else they are ordinary for a second. All [[chain]]s
        /// together have at most 80.
        share_percent: u32 = 40, "40";
    }
}

/// Everything that a user can set.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Config {
    /// The managed interface; the default route's where absent. `--interface` wins over it.
    pub interface: Option<String>,
    pub monitor: Monitor,
    pub cap: Cap,
    pub link: LinkSection,
    pub queue: QueueSection,
    pub group: Group,
    pub control: Control,
    pub deadline: Vec<Deadline>,
    pub background: Vec<Background>,
    pub realtime: Vec<RealtimeRule>,
    pub realtime_limits: RealtimeLimits,
    pub grant: Vec<GrantRule>,
    pub receive: ReceiveSection,
    pub chain: Vec<Chain>,
}

const TOP_KEYS: &[Key] = &[Key {
    name: "interface",
    doc: &[" The managed interface. No default: the one of the default route. `--interface` wins over it."],
    value: "\"wlan0\"",
}];

const SECTIONS: &[Section] = &[
    MONITOR,
    CAP,
    LINK,
    QUEUE,
    GROUP,
    CONTROL,
    REALTIME_LIMITS,
    RECEIVE,
    DEADLINE,
    BACKGROUND,
    REALTIME,
    GRANT,
    CHAIN,
];

impl Config {
    /// Reads a configuration. The whole text is checked; the first problem is reported.
    ///
    /// # Errors
    /// [`ConfigError`] for text that is not TOML, an unknown section or key, a value of the wrong type or
    /// out of range.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let table: toml::Table = toml::from_str(text).map_err(|e| ConfigError::Syntax(first_line(&e)))?;
        check_names(&table)?;
        let config: Self = toml::from_str(text).map_err(|e| ConfigError::Value {
            key: offending_key(text, &e).unwrap_or_else(|| "configuration".to_owned()),
            problem: in_plain_words(e.message()),
        })?;
        config.check_ranges()?;
        Ok(config)
    }

    /// The commented default file: every key with its documentation, all commented out.
    pub fn default_file() -> String {
        let mut text = String::from("# giveway: every key with its default. An empty file behaves the same.\n");
        render_keys(&mut text, TOP_KEYS);
        for section in SECTIONS {
            text.push('\n');
            render_doc(&mut text, section.about);
            // An empty list entry would be one with nothing in it; an empty section changes nothing.
            let _ = if section.repeated {
                writeln!(text, "#[[{}]]", section.name)
            } else {
                writeln!(text, "[{}]", section.name)
            };
            render_keys(&mut text, section.keys);
        }
        text
    }
}

fn render_keys(text: &mut String, keys: &[Key]) {
    for key in keys {
        render_doc(text, key.doc);
        let _ = writeln!(text, "#{} = {}", key.name, key.value);
    }
}

fn render_doc(text: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(text, "#{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default_and_so_is_the_default_file() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse(&Config::default_file()).unwrap(), Config::default());
    }

    #[test]
    fn every_default_in_the_default_file_is_the_one_in_force() {
        // Keys without a default show an example; uncommenting any line must at least be valid.
        let uncommented: String = Config::default_file()
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let mut config = Config::parse(&uncommented).unwrap();
        assert_eq!(config.interface.take().as_deref(), Some("wlan0"));
        assert_eq!(config.cap.capacity_mbit.take(), Some(20.0));
        assert_eq!(config.cap.rtt_ms.take(), Some(256));
        assert_eq!(config.cap.fixed_segments.take(), Some(30));
        assert_eq!(config.group.key_file.take().as_deref(), Some("/etc/giveway/group.key"));
        assert_eq!(
            config.link,
            LinkSection {
                rate_mbit: Some(20.0),
                overhead_bytes: Some(24),
                driver_bytes: Some(1514)
            }
        );
        assert_eq!(
            (config.queue.guard_us.take(), config.queue.sojourn_target_ms.take()),
            (Some(100), Some(5.0))
        );
        assert_eq!((config.deadline[0].port, config.deadline[0].deadline_ms), (5005, 10.0));
        assert_eq!(
            (config.background[0].port, config.background[0].local_port),
            (873, Some(40_000))
        );
        assert_eq!(config.realtime[0].user.as_deref(), Some("robot"));
        assert_eq!(config.grant[0].max_priority, 10);
        assert_eq!((config.chain[0].local_port, config.chain[0].budget_ms), (5005, 5.0));
        let rest = Config {
            link: LinkSection::default(),
            deadline: Vec::new(),
            background: Vec::new(),
            realtime: Vec::new(),
            grant: Vec::new(),
            chain: Vec::new(),
            ..config
        };
        assert_eq!(rest, Config::default());
    }

    #[test]
    fn a_list_holds_several_and_each_is_checked() {
        let config = Config::parse("[[deadline]]\nport = 5005\ndeadline_ms = 10\n[[deadline]]\nport = 5006\n").unwrap();
        assert_eq!(config.deadline.iter().map(|d| d.port).collect::<Vec<_>>(), [5005, 5006]);
        let error = |text| Config::parse(text).unwrap_err().to_string();
        let misspelt = error("[[deadline]]\nport = 5005\n[[deadline]]\nprot = 5006\n");
        assert!(
            misspelt.contains("unknown key `deadline.prot`; did you mean `port`?"),
            "{misspelt}"
        );
        assert_eq!(
            error("[deadline]\nport = 5005\n"),
            "`deadline`: is a section: write [[deadline]]"
        );
        assert_eq!(
            error("[[background]]\nport = 1\n"),
            "`background.address`: must be given, an IPv4 or IPv6 address"
        );
        let wrong = error("[[deadline]]\nport = 5005\n[[deadline]]\nport = 70000\n");
        assert!(wrong.starts_with("`deadline.port`: "), "{wrong}");
    }

    #[test]
    fn a_wrong_unit_is_refused_with_the_right_key() {
        let error = Config::parse("[cap]\ncapacity_kbit = 20000").unwrap_err().to_string();
        assert!(
            error.contains("unknown key `cap.capacity_kbit`; did you mean `capacity_mbit`?"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_section_is_refused_by_name() {
        let error = Config::parse("[monitr]\n").unwrap_err().to_string();
        assert!(
            error.contains("unknown section `monitr`; did you mean `monitor`?"),
            "{error}"
        );
    }

    #[test]
    fn a_value_with_its_unit_in_it_names_the_key() {
        let error = Config::parse("[cap]\ncapacity_mbit = \"20 Mbit/s\"")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "`cap.capacity_mbit`: invalid type: string \"20 Mbit/s\", expected a number; the unit is in the key's name"
        );
    }

    #[test]
    fn a_value_out_of_range_names_the_range() {
        let error = Config::parse("[monitor]\npasses_per_second = 0")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "`monitor.passes_per_second`: must be from 1 to 100");
    }

    #[test]
    fn a_fixed_policy_needs_a_capacity() {
        assert!(Config::parse("[cap]\npolicy = \"fixed\"").is_err());
        assert!(Config::parse("[cap]\npolicy = \"fixed\"\ncapacity_mbit = 20.0").is_ok());
    }

    #[test]
    fn an_integer_capacity_is_accepted() {
        assert_eq!(
            Config::parse("[cap]\ncapacity_mbit = 20").unwrap().cap.capacity_mbit,
            Some(20.0)
        );
    }
}
