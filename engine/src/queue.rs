// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue on one managed link ([`links`] has them all). Input: the configuration, the kernel's capabilities, the
//! link's present state, the outcome of the last request, and counters. Output: the queue to request, its reason, and
//! the link's rate: configured, estimated ([`measured`]), or the device's. The form of a queue (backend, interface,
//! attachments) is journalled and explained; its tuning is only written. Never repeats a request, and never requests
//! anything once another tool has replaced the link's qdisc. What fails is retried: at once when the link changes,
//! otherwise with back-off. A link without traffic that needs a queue has none ([`demand`]).

use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::back_off::BackOff;
use crate::change::{Change, Setting, Subject};
use crate::class::{LinkMarks, PacketRule};
use crate::config::{BackendName, Background, Config, MarksSection, QueueSection, RateMbit};
use crate::model::{Class, Dscp, Flow};

pub mod band_rates;
mod contest;
mod demand;
mod input;
pub mod links;
pub mod measured;
pub mod traffic;

use contest::Contest;
use demand::Demand;
pub use input::Input;
use links::Rate;
use measured::{LinkCounters, Measured, MeasuredView, Socket};
use traffic::{ByQdisc, QueueCounters};

/// Faster links are hardly ever the bottleneck, and a single queue in place of several would slow them down.
const FASTEST_AUTO_MBIT: f64 = 1000.0;
/// At lower rates a 64 kB segmentation-offload packet, TCP's largest, takes more than a millisecond.
const WHOLE_BURSTS_BYTES_PER_S: u64 = 65_536_000;
/// Preamble, frame check sequence and gap of a packet on a wired Ethernet.
const ETHERNET_OVERHEAD_BYTES: u32 = 24;
/// One part in this many of the rate: what a foreground at full rate gives up so that background does not starve.
const BACKGROUND_MIN_SHARE: u64 = 200;
const MOST_BACKGROUND_MIN_BYTES_PER_S: u64 = 12_500;
/// Without a known rate.
const BLIND_BACKGROUND_MIN_BYTES_PER_S: u64 = 1_250;
/// IPv4 and TCP headers with timestamps; of these the timestamps, which TCP_MAXSEG counts as payload.
const IP_HEADERS_BYTES: u32 = 52;
const TCP_OPTIONS_BYTES: u32 = 12;
/// An estimated rate is written when it differs from the installed one by this fraction.
const LEAST_CHANGE: f64 = 0.01;
/// Upper bound of a measured queueing delay.
const LONGEST_BELOW_MS: u32 = 60_000;
/// The guarantee is written in steps of this percentage of the link, and of a quarter of the queueing delay at the
/// bottleneck.
const PERCENT_STEP: u32 = 4;
const BELOW_STEP: u32 = 4;
/// The delay that counts as much as the whole rate.
const A_DELAY_S: f64 = 0.05;
/// Below it a router on the path may have an MTU problem (RFC 791: 576 bytes with headers).
const LEAST_PAYLOAD: f64 = 524.0;
/// Qdiscs that only order and drop, so that they can be restored. The others shape, emulate or hold child qdiscs, which
/// an administrator intended.
const REPLACEABLE: [&str; 12] = [
    "noqueue",
    "pfifo_fast",
    "pfifo",
    "bfifo",
    "pfifo_head_drop",
    "fq",
    "fq_codel",
    "fq_pie",
    "codel",
    "pie",
    "sfq",
    "mq",
];

/// The backends that this kernel has, or the reason why not.
#[derive(Clone, Debug)]
pub struct Backends {
    pub bpf: Result<(), String>,
    pub htb: Result<(), String>,
    /// Packets can be marked without a queue of giveway's.
    pub marks: Result<(), String>,
    /// Decide and explain, but ask for no change.
    pub dry_run: bool,
}

impl Backends {
    /// A device on which no queue may be changed.
    pub fn none() -> Self {
        let reason = || Err("not looked for".to_owned());
        Self {
            bpf: reason(),
            htb: reason(),
            marks: reason(),
            dry_run: false,
        }
    }
}

/// The present state of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Uplink {
    pub ifindex: u32,
    pub name: String,
    pub mtu_bytes: u32,
    /// Header bytes of a packet before its IP header.
    pub header_bytes: u32,
    /// Wired Ethernet, as far as the kernel shows.
    pub wired: bool,
    /// The link speed, where the device has a meaningful one.
    pub speed_mbit: Option<u32>,
    pub root: RootQdisc,
    /// It is switched on.
    pub up: bool,
    /// Carrier losses so far.
    pub carrier_losses: u32,
    /// To be managed now; otherwise it was, and its queue is still installed.
    pub chosen: bool,
}

impl Uplink {
    /// Ignores the root qdisc, which giveway may have changed, and whether the link is up and to be managed.
    fn is_same_link(&self, other: &Self) -> bool {
        Self {
            root: other.root.clone(),
            up: other.up,
            carrier_losses: other.carrier_losses,
            chosen: other.chosen,
            ..self.clone()
        } == *other
    }
}

/// The root qdisc of a device.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RootQdisc {
    pub kind: String,
    /// 0: the kernel installed it.
    pub handle: u32,
    /// Why it cannot be restored: filters, a size table, child qdiscs.
    pub entangled: Option<String>,
    /// Installed by giveway.
    pub ours: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Bpf,
    Htb,
    /// No queue of giveway's: packets are only marked by class.
    None,
}

/// The source of the link's rate.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RateSource {
    Configuration,
    Device,
    /// Estimated from what is sent.
    Measured,
}

/// The queue to install.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Plan {
    pub ifindex: u32,
    pub backend: Backend,
    /// TCP builds packets of single segments.
    pub single_segments: bool,
    /// Another tool has removed giveway's qdisc: the present configuration is its own.
    #[serde(default)]
    pub only_if_free: bool,
    #[serde(flatten)]
    pub tuning: Tuning,
}

/// The parameters of a queue. Changing them installs and removes nothing, and leaves nothing to revert.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, JsonSchema)]
pub struct Tuning {
    /// None: unknown, so that nothing is shaped and no deadline guaranteed.
    pub rate_bytes_per_s: Option<u64>,
    pub rate_source: Option<RateSource>,
    pub overhead_bytes: u32,
    pub max_packet_bytes: u32,
    pub driver_bytes: u32,
    /// Local traffic is not counted in the rate.
    #[serde(default)]
    pub spares_local: bool,
    /// Downloads are ordered there.
    #[serde(default)]
    pub orders_downloads: bool,
    pub realtime_percent: u32,
    pub guard_us: u32,
    pub path_budget_us: u32,
    /// The queueing delay at the bottleneck, behind giveway's queue; also subtracted from each deadline.
    #[serde(default)]
    pub below_us: u32,
    /// Each user's share of the guarantee; None: equal shares.
    #[serde(default)]
    pub user_percent: Option<u32>,
    pub background_min_bytes_per_s: u64,
    /// The TCP_MAXSEG of background connections; None: the same as for all others.
    #[serde(default)]
    pub short_mss: Option<u32>,
    pub sojourn_target_us: u32,
    pub sojourn_interval_us: u32,
    pub admission: bool,
    pub drop_late: bool,
    pub cpu_gate: bool,
    #[serde(default)]
    pub call_marks: bool,
    #[serde(default)]
    pub packet_rules: Vec<PacketRule>,
    #[serde(default)]
    pub marks: LinkMarks,
}

impl Tuning {
    /// The rate is estimated, and not yet steady for long enough.
    pub fn promises_nothing_yet(&self) -> bool {
        self.rate_source == Some(RateSource::Measured) && !self.admission
    }
}

/// Packets that are background wherever they are sent: P0's triple, seen from here.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, JsonSchema)]
pub struct BackgroundFlow {
    /// The remote host.
    pub address: IpAddr,
    pub port: u16,
    /// None: any.
    pub local_port: Option<u16>,
}

impl From<&Background> for BackgroundFlow {
    fn from(configured: &Background) -> Self {
        Self {
            address: configured.address(),
            port: configured.conditions.port(),
            local_port: configured.conditions.local_port,
        }
    }
}

impl BackgroundFlow {
    /// As the queue names a flow.
    pub fn of(flow: &Flow) -> Self {
        Self {
            address: flow.remote.ip(),
            port: flow.remote.port(),
            local_port: Some(flow.local.port()),
        }
        .canonical()
    }

    pub fn matches(&self, flow: &Flow) -> bool {
        let exact = Self::of(flow);
        let local_port = self.local_port.and(exact.local_port);
        *self == Self { local_port, ..exact }
    }

    /// IPv4 addresses that are mapped into IPv6 count as IPv4: so are their packets.
    pub fn canonical(self) -> Self {
        Self {
            address: self.address.to_canonical(),
            ..self
        }
    }
}

/// A request about the queue.
#[derive(Clone, Debug, PartialEq)]
pub enum QueueRequest {
    /// Install this in place of giveway's queue; None: remove giveway's queue.
    Set(Option<Plan>),
    /// Change parameters only; nothing is installed or removed.
    Tune(Tuning),
}

/// The queue of one link.
#[derive(Clone)]
pub struct Queue {
    rate: Rate,
    measured: Measured,
    queue: QueueSection,
    marks: MarksSection,
    backends: Backends,
    /// Some flows have a rate limit, so their packets must be inspected.
    is_limited: bool,
    packet_rules: Vec<PacketRule>,
    demand: Demand,
    uplink: Option<Uplink>,
    /// The link is no longer managed: giveway's queue is to be removed.
    leaves: bool,
    /// Why giveway's queue is removed for a while.
    paused: Option<String>,
    /// Installed: a queue, or marks alone.
    plan: Option<Plan>,
    asked: Option<Option<Plan>>,
    /// Backends that could not be installed on this link, with the reason. All are retried once nothing is installed.
    failed: Vec<(Backend, String)>,
    again: BackOff,
    /// The conflict with another tool over the root qdisc.
    contest: Contest,
    /// The kind of the root qdisc without giveway.
    without_us: String,
    view: QueueView,
}

/// The installed queue, for `status`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
pub struct QueueView {
    /// None: the previous qdisc stays.
    pub installed: Option<Plan>,
    /// The marks that are written, with any queue.
    #[serde(default)]
    pub marks: LinkMarks,
    pub reason: String,
    /// It is installed as soon as traffic needs it.
    #[serde(default)]
    pub waits: bool,
    /// Where the rate is estimated.
    #[serde(default)]
    pub estimate: Option<MeasuredView>,
    /// From the latest poll; None before the first installation.
    #[serde(default)]
    pub counters: Option<QueueCounters>,
    /// CLOCK_MONOTONIC, of that poll.
    #[serde(default)]
    pub counted_t_ns: u64,
}

impl QueueView {
    /// Where no link is managed.
    pub fn of_no_link() -> Self {
        Self {
            reason: "no interface is managed".to_owned(),
            ..Self::default()
        }
    }
}

impl Queue {
    pub fn new(config: &Config, backends: Backends) -> Self {
        Self {
            rate: Rate::default(),
            measured: Measured::default(),
            queue: config.queue.clone(),
            marks: config.marks.clone(),
            backends,
            is_limited: false,
            packet_rules: Vec::new(),
            demand: Demand::new(config),
            uplink: None,
            leaves: false,
            paused: None,
            plan: None,
            asked: None,
            failed: Vec::new(),
            again: BackOff::default(),
            contest: Contest::default(),
            without_us: String::new(),
            view: QueueView {
                reason: "not inspected yet".to_owned(),
                ..QueueView::default()
            },
        }
    }

    /// Takes in the counters. Returns the next request.
    pub fn count(&mut self, now: Duration, counters: Option<QueueCounters>) -> Option<QueueRequest> {
        self.view.counted_t_ns = now.as_nanos() as u64;
        self.view.counters = counters;
        self.standing()?;
        let is_over = self.demand.observe(now, self.view.counters.as_ref()?);
        // One request at a time.
        (is_over && self.asked.is_none()).then(|| self.ask()).flatten()
    }

    /// Packets that need an order were seen, with this backlog in the qdisc to be replaced. Returns the next request.
    pub fn demand(&mut self, now: Duration, backlog_packets: u32) -> Option<QueueRequest> {
        if self.demand.is_put_off(now, backlog_packets) {
            return None;
        }
        self.demand.begins(now);
        let waits = self.waits_in_vain();
        (waits && self.asked.is_none()).then(|| self.ask()).flatten()
    }

    /// No queue is installed, because no traffic needs one.
    fn waits_in_vain(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.backend == Backend::None) && self.again.next().is_none()
    }

    /// No queue is installed until traffic needs one.
    pub fn is_without(&self) -> bool {
        let is_free = self.plan.is_some() && self.standing().is_none();
        is_free && self.uplink.as_ref().is_some_and(|uplink| self.waits_on(uplink))
    }

    /// Its rate is estimated.
    pub fn is_measured(&self) -> bool {
        self.rate.mbit == Some(RateMbit::Estimated) && self.standing().is_some()
    }

    /// Takes in the sockets that send on this link. Returns the next request.
    pub fn measure(&mut self, now: Duration, sockets: &[Socket]) -> Option<QueueRequest> {
        let passed = passed(self.counters()?);
        self.measured.observe(now, sockets, passed);
        let tuning = &self.plan.as_ref()?.tuning;
        let is_another_rate = match (self.measured.paced_bytes_per_s(), tuning.rate_bytes_per_s) {
            (Some(now), Some(then)) => (now / then as f64 - 1.0).abs() >= LEAST_CHANGE,
            (now, then) => now.is_some() != then.is_some(),
        };
        let promise = (tuning.admission, tuning.realtime_percent, tuning.below_us);
        let worth_it = is_another_rate || self.promise(tuning.rate_bytes_per_s) != promise;
        // One request at a time.
        if worth_it && self.asked.is_none() {
            self.ask()
        } else {
            None
        }
    }

    pub fn counters(&self) -> Option<&QueueCounters> {
        self.view.counters.as_ref()
    }

    pub fn dry_run(&self) -> bool {
        self.backends.dry_run
    }

    /// Takes in the link's present state and its configured rate. Returns the next request. Nothing changes while there
    /// is no link.
    pub fn observe(&mut self, now: Duration, uplink: Option<Uplink>, rate: Rate) -> Option<QueueRequest> {
        let known = std::mem::replace(&mut self.uplink, uplink);
        if self.rate.mbit != rate.mbit && self.standing().is_none() {
            self.failed.clear();
            self.again.reset();
        }
        self.rate = rate;
        let uplink = self.uplink.as_ref()?;
        let had_rate = self
            .standing()
            .is_some_and(|plan| plan.tuning.rate_bytes_per_s.is_some());
        if had_rate && self.rate(uplink).is_none() {
            // The backlog is not lost with the rate.
            self.demand.stays_on(Duration::from_nanos(self.view.counted_t_ns));
        }
        if !uplink.root.ours {
            self.without_us.clone_from(&uplink.root.kind);
        }
        let losses = |known: &Uplink| known.carrier_losses;
        if !uplink.up
            || known
                .as_ref()
                .map(losses)
                .is_some_and(|known| known != uplink.carrier_losses)
        {
            self.contest = Contest::default();
        }
        let is_same_link = known.as_ref().is_some_and(|known| known.is_same_link(uplink));
        if !is_same_link && known.is_some() {
            self.measured = Measured::default();
        }
        if !is_same_link && self.standing().is_none() {
            self.failed.clear();
            self.again.reset();
        }
        self.leaves = false;
        self.notice_others(now);
        self.ask()
    }

    /// The link is no longer managed. Returns the next request.
    pub fn leave(&mut self) -> Option<QueueRequest> {
        self.leaves = true;
        self.again.reset();
        self.ask()
    }

    /// Removes everything of giveway's for this reason; None resumes. Returns the next request.
    pub fn pause(&mut self, reason: Option<&String>) -> Option<QueueRequest> {
        self.paused = reason.cloned();
        self.ask()
    }

    /// Nothing of giveway's is installed or requested.
    pub fn is_gone(&self) -> bool {
        self.plan.is_none() && self.asked.is_none()
    }

    /// The device was removed, and its queue with it. Returns this change.
    pub fn vanish(&mut self) -> Option<Change> {
        let uplink = self.uplink.as_ref()?;
        self.view.reason = format!("{} was removed", uplink.name);
        let change = self.change(None, true);
        self.plan.take().and(change).map(|change| Change {
            new: "removed with the link".into(),
            ..change
        })
    }

    /// Takes in the rules. Returns the next request.
    pub fn follow(&mut self, is_limited: bool, packet_rules: Vec<PacketRule>) -> Option<QueueRequest> {
        (self.is_limited, self.packet_rules) = (is_limited, packet_rules);
        // One request at a time; a failed one waits for its retry.
        let waits = self.asked.is_some() || self.again.next().is_some();
        if self.plan.is_none() && waits {
            return None;
        }
        self.ask()
    }

    /// When [`Self::try_again`] is next worth calling.
    pub fn next_try(&self) -> Option<Duration> {
        [self.again.next(), self.contest.until].into_iter().flatten().min()
    }

    /// Returns a request that is due for a retry.
    pub fn try_again(&mut self, now: Duration) -> Option<QueueRequest> {
        if self.contest.is_due(now) && self.asked.is_none() {
            return self.ask();
        }
        if !self.again.is_due(now) || self.standing().is_some() {
            return None;
        }
        self.failed.clear();
        self.ask()
    }

    /// Takes in the outcome of the last request. Returns the change, and the next request.
    pub fn conclude(&mut self, now: Duration, outcome: Result<(), String>) -> (Option<Change>, Option<QueueRequest>) {
        let Some(asked) = self.asked.take() else {
            return (None, None);
        };
        if let (Err(error), Some(plan)) = (&outcome, &asked) {
            self.view.reason = format!("{} could not be installed: {error}", plan.shown());
            self.failed.push((plan.backend, self.view.reason.clone()));
            let change = match self.plan.is_some() {
                true => self.change(None, true),
                false => self.change(asked, false),
            };
            self.plan = None;
            // Another backend may succeed.
            let next = self.ask();
            let is_queue = matches!(&next, Some(QueueRequest::Set(Some(plan))) if plan.backend != Backend::None);
            if !is_queue && self.again.next().is_none() {
                self.again.failed(now);
            }
            return (change, next);
        }
        if let Err(error) = outcome {
            self.view.reason = error;
        }
        let change = match is_tuning(self.plan.as_ref(), asked.as_ref()) {
            true => None,
            false => self.change(asked.clone(), !self.backends.dry_run),
        };
        self.plan = asked;
        (change, None)
    }

    pub fn view(&self, now: Duration) -> QueueView {
        let marks = |plan: &Plan| plan.tuning.marks.clone();
        QueueView {
            waits: self.is_without(),
            reason: self.again.shown(now, &self.view.reason),
            installed: self.standing().cloned(),
            marks: self.marking().map(marks).unwrap_or_default(),
            estimate: (self.rate.mbit == Some(RateMbit::Estimated)).then(|| self.measured.view()),
            ..self.view.clone()
        }
    }

    fn ask(&mut self) -> Option<QueueRequest> {
        let (wanted, reason) = match self.choose(self.uplink.as_ref()?) {
            Ok((plan, reason)) => (Some(plan), reason),
            Err(reason) => (None, reason),
        };
        self.view.reason = reason;
        if wanted == self.plan {
            return None;
        }
        self.asked = Some(wanted.clone());
        Some(match wanted {
            Some(plan) if is_tuning(self.plan.as_ref(), Some(&plan)) => QueueRequest::Tune(plan.tuning),
            wanted => QueueRequest::Set(wanted),
        })
    }

    /// Another tool may replace giveway's queue.
    fn notice_others(&mut self, now: Duration) {
        let (Some(uplink), false) = (&self.uplink, self.backends.dry_run) else {
            return;
        };
        match self.standing() {
            Some(_) if !uplink.root.ours => self.contest.taken(now, &uplink.root),
            standing => {
                let serves = standing.is_some();
                self.contest.observe(now, &uplink.root, serves);
            }
        }
    }

    /// Giveway's installed queue.
    fn standing(&self) -> Option<&Plan> {
        let is_queue = |plan: &&Plan| plan.backend != Backend::None;
        self.plan.as_ref().filter(is_queue)
    }

    /// The plan by which packets are marked.
    fn marking(&self) -> Option<&Plan> {
        self.plan.as_ref().filter(|_| !self.backends.dry_run)
    }

    /// The mark for packets of this class on this link.
    pub fn mark(&self, class: Class) -> Option<Dscp> {
        self.marking()?.tuning.marks.of(class)
    }

    fn choose(&self, uplink: &Uplink) -> Result<(Plan, String), String> {
        if self.leaves {
            return Err(format!("{} is no longer managed", uplink.name));
        }
        if let Some(reason) = &self.paused {
            return Err(reason.clone());
        }
        self.choose_queue(uplink)
            .or_else(|no_queue| self.choose_marks(uplink, no_queue))
    }

    /// Marks for a link without a queue, for this reason. On a fast link inspecting each packet is not worth its cost,
    /// unless some flows are limited or downloads are ordered.
    fn choose_marks(&self, uplink: &Uplink, no_queue: String) -> Result<(Plan, String), String> {
        let plan = self.plan(uplink, Backend::None, self.rate(uplink));
        let is_seen = !is_fast(uplink) && (!plan.tuning.marks.is_empty() || self.waits_on(uplink));
        if !is_seen && !self.is_limited && !plan.tuning.orders_downloads {
            return Err(no_queue);
        }
        match self.usable(Backend::None, &self.backends.marks) {
            Ok(_) => Ok((plan, no_queue)),
            Err(no_marks) => Err(format!("{no_queue}; packets are not marked: {no_marks}")),
        }
    }

    fn choose_queue(&self, uplink: &Uplink) -> Result<(Plan, String), String> {
        if self.queue.backend == BackendName::None {
            return Err("backend = \"none\" in [queue]".to_owned());
        }
        if let Some(hindrance) = self.contest.hindrance(&uplink.name, &uplink.root) {
            return Err(hindrance);
        }
        may_replace(&uplink.name, &uplink.root)?;
        let rate = self.rate(uplink);
        let (backend, reason) = self.backend(uplink, rate)?;
        Ok((self.plan(uplink, backend, rate), reason))
    }

    fn rate(&self, uplink: &Uplink) -> Option<(f64, RateSource)> {
        let device = || uplink.speed_mbit.map(|mbit| (f64::from(mbit), RateSource::Device));
        match self.rate.mbit {
            Some(RateMbit::Fixed(mbit)) => Some((mbit, RateSource::Configuration)),
            Some(RateMbit::Estimated) => {
                let paced = self.measured.paced_bytes_per_s();
                paced.map(|rate| (rate / 125_000.0, RateSource::Measured))
            }
            None => device(),
        }
    }

    // Long: each backend has its reason, and each unavailable one.
    fn backend(&self, uplink: &Uplink, rate: Option<(f64, RateSource)>) -> Result<(Backend, String), String> {
        let name = &uplink.name;
        let known = match rate {
            Some((mbit, RateSource::Configuration)) => {
                format!("{name} has {mbit} Mbit/s (rate_mbit in {})", self.rate.configured_in)
            }
            Some((mbit, RateSource::Device)) => format!("{name} has {mbit} Mbit/s (the device's link speed)"),
            Some((_, RateSource::Measured)) => format!(
                "the rate of {name} is estimated from its connections (rate_mbit = \"auto\" in {})",
                self.rate.configured_in
            ),
            None if self.rate.mbit == Some(RateMbit::Estimated) => {
                format!(
                    "the rate of {name} is estimated once connections fill it (rate_mbit = \"auto\" in {})",
                    self.rate.configured_in
                )
            }
            None => format!(
                "the rate of {name} is unknown (set rate_mbit in {})",
                self.rate.configured_in
            ),
        };
        let unknown = if rate.is_none() {
            ": not shaping, and no deadline is guaranteed"
        } else {
            ""
        };
        let qdisc = || match self.rate.spares_local {
            true => Err("local = \"unlimited\" needs htb".to_owned()),
            false => self.usable(Backend::Bpf, &self.backends.bpf),
        };
        let htb = || match rate {
            _ if self.rate.mbit == Some(RateMbit::Estimated) => Err(format!(
                "rate_mbit = \"auto\" in {} needs the BPF qdisc; for htb, set rate_mbit of {name} to a number",
                self.rate.configured_in
            )),
            None => Err(format!("htb needs a rate, and {known}")),
            Some(_) => self.usable(Backend::Htb, &self.backends.htb),
        };
        match self.queue.backend {
            BackendName::Bpf => Ok((qdisc()?, format!("backend = \"bpf\"; {known}{unknown}"))),
            BackendName::Htb => Ok((htb()?, format!("backend = \"htb\"; {known}"))),
            BackendName::Auto | BackendName::None => {
                if let Some((_, RateSource::Device)) = rate
                    && is_fast(uplink)
                {
                    return Err(format!(
                        "{known}: hardly any queue forms on so fast a link, and one queue would slow it down"
                    ));
                }
                match qdisc() {
                    Ok(_) if self.waits_on(uplink) => Err(format!(
                        "{known}, and no traffic needs a queue: {} stays until a background, stream or deadline packet is \
                         sent",
                        self.without_us
                    )),
                    Ok(backend) => Ok((backend, format!("{known}{unknown}"))),
                    Err(no_qdisc) => match htb() {
                        Ok(backend) => Ok((backend, format!("{known}; no BPF qdisc: {no_qdisc}"))),
                        Err(no_htb) => Err(format!("no BPF qdisc: {no_qdisc}; {no_htb}")),
                    },
                }
            }
        }
    }

    /// Whether a queue is possible but not needed yet. Admission must see the packets that would need it.
    fn waits_on(&self, uplink: &Uplink) -> bool {
        let is_usable = |backend, kernel| self.usable(backend, kernel).is_ok();
        self.queue.backend == BackendName::Auto
            && self.rate(uplink).is_none()
            && !self.rate.spares_local
            && self.rate.mbit != Some(RateMbit::Estimated)
            && self.demand.is_over()
            && self.contest.hindrance(&uplink.name, &uplink.root).is_none()
            && may_replace(&uplink.name, &uplink.root).is_ok()
            && is_usable(Backend::Bpf, &self.backends.bpf)
            && is_usable(Backend::None, &self.backends.marks)
    }

    fn usable(&self, backend: Backend, kernel: &Result<(), String>) -> Result<Backend, String> {
        kernel.clone()?;
        let failed = self.failed.iter().find(|(failed, _)| *failed == backend);
        failed.map_or(Ok(backend), |(_, reason)| Err(reason.clone()))
    }

    // Long: a field of the plan each.
    fn plan(&self, uplink: &Uplink, backend: Backend, rate: Option<(f64, RateSource)>) -> Plan {
        let rate_bytes_per_s = rate.map(|(mbit, _)| (mbit * 125_000.0).round().max(1.0) as u64);
        let overhead_bytes = self
            .rate
            .overhead_bytes
            .unwrap_or(if uplink.wired { ETHERNET_OVERHEAD_BYTES } else { 0 });
        let max_packet_bytes = uplink.mtu_bytes.saturating_add(uplink.header_bytes);
        // RFC 8289 sections 4.2 and 4.3: 5 ms and 100 ms, but never less than the link needs for a packet or two.
        let packet_us = rate_bytes_per_s.map_or(0, |rate| {
            u64::from(max_packet_bytes + overhead_bytes) * 1_000_000 / rate
        });
        let is_found = self.rate.mbit == Some(RateMbit::Estimated);
        let patience_us = if is_found {
            self.measured.patience().as_micros() as u64
        } else {
            0
        };
        let target_us = self
            .queue
            .sojourn_target_ms
            .map_or((packet_us * 3 / 2).max(5_000) + patience_us, |ms| (ms * 1000.0) as u64);
        let (admission, realtime_percent, below_us) = self.promise(rate_bytes_per_s);
        let orders_downloads = self.rate.download_mbit.is_some();
        let tuning = Tuning {
            rate_bytes_per_s,
            rate_source: rate.map(|(_, source)| source),
            overhead_bytes,
            max_packet_bytes,
            driver_bytes: self.rate.driver_bytes.unwrap_or(max_packet_bytes),
            spares_local: (backend == Backend::Htb || orders_downloads) && self.rate.spares_local,
            orders_downloads,
            realtime_percent,
            below_us,
            guard_us: self.queue.guard_us.unwrap_or(100),
            path_budget_us: self.queue.path_budget_us,
            user_percent: self.queue.user_percent,
            background_min_bytes_per_s: self.background_min_bytes_per_s(rate_bytes_per_s),
            short_mss: self
                .short_mss(uplink, rate_bytes_per_s)
                .filter(|_| backend != Backend::None),
            sojourn_target_us: u32::try_from(target_us).unwrap_or(u32::MAX),
            sojourn_interval_us: u32::try_from((2 * target_us).max(100_000)).unwrap_or(u32::MAX),
            admission,
            // Without a guarantee a deadline is only an order, for which no packet is dropped.
            drop_late: self.queue.drop_late && (admission || !is_found),
            cpu_gate: self.queue.cpu_gate,
            call_marks: self.queue.call_marks,
            packet_rules: self.packet_rules.clone(),
            // htb classifies packets by it.
            marks: LinkMarks::new(&self.marks, !uplink.wired, backend != Backend::Htb),
        };
        let is_queue = backend != Backend::None;
        Plan {
            ifindex: uplink.ifindex,
            backend,
            // The form of a queue does not depend on the estimate.
            single_segments: is_queue
                && (is_found || rate_bytes_per_s.is_some_and(|rate| rate < WHOLE_BURSTS_BYTES_PER_S)),
            only_if_free: is_queue && self.contest.began,
            tuning,
        }
    }

    /// Whether deadlines are guaranteed, the percentage of the rate that is, and the queueing delay at the bottleneck.
    /// With an estimated rate the percentage is of its lower bound (docs/explanation/link-rate.md).
    fn promise(&self, rate_bytes_per_s: Option<u64>) -> (bool, u32, u32) {
        let percent = self.queue.realtime_percent;
        if self.rate.mbit != Some(RateMbit::Estimated) {
            return (self.queue.admission, percent, 0);
        }
        let found = self.measured.promise().zip(rate_bytes_per_s);
        let Some((promise, paced)) = found.filter(|_| self.queue.admission) else {
            return (false, percent, 0);
        };
        let held = (promise.bytes_per_s / paced as f64).min(1.0);
        // In steps, so that not every poll writes.
        let of_paced = (f64::from(percent) * held) as u32 / PERCENT_STEP * PERCENT_STEP;
        let mut below_ms = 1;
        while below_ms < LONGEST_BELOW_MS && Duration::from_millis(below_ms.into()) < promise.below {
            below_ms += below_ms.div_ceil(BELOW_STEP);
        }
        (true, of_paced.clamp(1, percent), 1_000 * below_ms)
    }

    /// docs/explanation/queue-and-admission.md, *The minimum rate*.
    fn background_min_bytes_per_s(&self, rate_bytes_per_s: Option<u64>) -> u64 {
        let of_rate = |rate: u64| (rate / BACKGROUND_MIN_SHARE).min(MOST_BACKGROUND_MIN_BYTES_PER_S);
        match self.queue.background_min_kbit {
            Some(kbit) => u64::from(kbit) * 125,
            None => rate_bytes_per_s.map_or(BLIND_BACKGROUND_MIN_BYTES_PER_S, of_rate),
        }
    }

    /// docs/explanation/queue-and-admission.md, *Short segments*.
    fn short_mss(&self, uplink: &Uplink, rate_bytes_per_s: Option<u64>) -> Option<u32> {
        let rate = rate_bytes_per_s.filter(|_| self.queue.short_segments)? as f64;
        let headers = f64::from(uplink.header_bytes + IP_HEADERS_BYTES);
        let best = (headers * rate * A_DELAY_S).sqrt().max(LEAST_PAYLOAD) as u32;
        let longest = uplink.mtu_bytes.saturating_sub(IP_HEADERS_BYTES);
        (best < longest).then_some(best + TCP_OPTIONS_BYTES)
    }

    fn change(&self, new: Option<Plan>, made: bool) -> Option<Change> {
        let uplink = self.uplink.as_ref()?;
        let without_us = || format!("{} (not giveway's)", self.without_us);
        let shown = |plan: &Option<Plan>| plan.as_ref().map_or_else(without_us, Plan::shown);
        Some(Change {
            subject: Subject::Interface {
                name: uplink.name.clone(),
            },
            name: String::new(),
            setting: Setting::Queue,
            old: shown(&self.plan).into(),
            new: shown(&new).into(),
            rule: format!("{:?}", self.queue.backend).to_lowercase(),
            reason: self.view.reason.clone(),
            made,
        })
    }
}

/// Whether the two differ in tuning only.
fn is_tuning(old: Option<&Plan>, new: Option<&Plan>) -> bool {
    let standing = |plan: &Plan| (plan.ifindex, plan.backend, plan.single_segments);
    old.is_some() && old.map(standing) == new.map(standing)
}

impl Plan {
    /// Short form.
    pub fn shown(&self) -> String {
        let backend = match self.backend {
            Backend::Bpf => "BPF qdisc",
            Backend::Htb => "htb",
            Backend::None => return "marks only".to_owned(),
        };
        match self.tuning.rate_bytes_per_s {
            Some(rate) => format!("{backend} at {} kbit/s", rate * 8 / 1000),
            None => format!("{backend}, not shaping"),
        }
    }
}

fn passed(counters: &QueueCounters) -> LinkCounters {
    let bands = counters.bands.in_order();
    let served = bands.iter().filter_map(|(_, band)| band.served);
    served.fold(LinkCounters::default(), |sum, served| {
        let all = (served.sent_bytes, served.backlog_bytes);
        let of_tcp = |more: ByQdisc| (more.tcp_sent_bytes, more.tcp_backlog_bytes);
        let (tcp_sent_bytes, tcp_backlog_bytes) = served.more.map_or(all, of_tcp);
        LinkCounters {
            sent_bytes: sum.sent_bytes + served.sent_bytes,
            backlog_bytes: sum.backlog_bytes + served.backlog_bytes,
            tcp_sent_bytes: sum.tcp_sent_bytes + tcp_sent_bytes,
            tcp_backlog_bytes: sum.tcp_backlog_bytes + tcp_backlog_bytes,
        }
    })
}

fn is_fast(uplink: &Uplink) -> bool {
    uplink
        .speed_mbit
        .is_some_and(|mbit| f64::from(mbit) > FASTEST_AUTO_MBIT)
}

/// Whether the root qdisc of this link can be restored.
///
/// # Errors
/// Why not.
pub fn may_replace(name: &str, root: &RootQdisc) -> Result<(), String> {
    if root.ours {
        return Ok(());
    }
    let alone = "it is not replaced (remove it with `tc qdisc del`, or set backend = \"none\" in [queue])";
    if !REPLACEABLE.contains(&root.kind.as_str()) {
        return Err(format!(
            "{name} has the qdisc {}, which giveway could not restore; {alone}",
            root.kind
        ));
    }
    match &root.entangled {
        Some(how) => Err(format!("the qdisc {} on {name} {how}; {alone}", root.kind)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
