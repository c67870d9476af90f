// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Estimates a link's rate from its traffic (docs/explanation/link-rate.md has the reasoning). Input: each poll, what TCP sockets
//! have delivered and have in flight, and what the queue has sent and holds. Output: the rate to shape at, the queue's
//! patience, and the confidence in them. Sends no probes, and keeps its estimate while nobody delivers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{Cookie, Flow};

/// Ethernet, IPv4 and TCP with timestamps.
const HEADER_BYTES: f64 = 66.0;
/// How much history is kept: a longer queueing delay has no effect.
const HISTORY: Duration = Duration::from_secs(30);
/// A socket that no poll has shown for this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);
/// More sockets are not followed.
const MOST_SOCKETS: usize = 16_384;
/// A new socket is assumed to have sent at most this much since the previous poll.
const SEGMENTS_OF_A_NEW_ONE: u32 = 64;
/// The time over which the TCP share of the sent bytes is computed.
const SHARE_OVER_S: f64 = 2.0;
/// The time over which a socket's delivery rate is computed.
const DELIVERS_OVER_S: f64 = 1.0;
/// The fraction of the largest delivery rate from which a socket counts for the queueing delay at the bottleneck.
const WITNESS: f64 = 0.125;
/// Below this TCP share of the sent bytes, TCP does not show the link's rate.
const LEAST_SHARE: f64 = 0.1;
/// The packets from which a rate is computed, within these times.
const PACKETS_OF_A_RATE: f64 = 24.0;
const SHORTEST_S: f64 = 0.19;
const LONGEST_S: f64 = 1.0;
/// The queueing delay that is kept at the bottleneck of a steady link: never empty, so that deliveries show its rate.
const STEADY_QUEUE_S: f64 = 0.006;
const STEADY_QUEUE_PACKETS: f64 = 0.75;
/// Delayed acknowledgement and serialisation on an idle path, in packets.
const PATH_PACKETS: f64 = 1.5;
/// The same on a varying link; and the patience of best effort in giveway's queue there.
const VARYING_QUEUE_S: f64 = 0.05;
const VARYING_PATIENCE_S: f64 = 0.35;
/// The sum of the rate's falls, as logarithms: where a link begins to count as varying, and where it does so fully.
const VARIES_FROM: f64 = 0.25;
const VARIES_FULLY: f64 = 1.0;
const VARIES_FOR_S: f64 = 20.0;
/// Falls within this time count as one, and one counts this much at most.
const ONE_FALL: Duration = Duration::from_secs(2);
const MOST_OF_A_FALL: f64 = 0.5;
/// A larger difference is a new rate; a smaller one is averaged.
const ANOTHER_RATE: f64 = 0.12;
const AVERAGED: f64 = 0.1;
/// With no queue at the bottleneck though the full rate is sent: the first step up, the largest, by poll.
const FIRST_STEP: f64 = 0.01;
const LARGEST_STEP: f64 = 0.1;
/// A step is per poll of this length; shorter polls take their part of it.
const POLL_S: f64 = 0.1;
/// The feedback time of a change of the rate: an RTT, a poll, and this many packets.
const FEEDBACK_S: f64 = 0.1;
const FEEDBACK_PACKETS: f64 = 2.0;
/// The lowest fraction of the rate while a queue at the bottleneck drains.
const SLOWEST: f64 = 0.5;
/// A queue at the bottleneck that neither grows nor halves for this long although this device yields belongs to others.
/// (It grows while the link's own rate falls.)
const YIELDS_FOR: Duration = Duration::from_secs(3);
/// And one that stays this long in any case: a receiver that never acknowledges makes it grow forever.
const YIELDS_AT_MOST: Duration = Duration::from_secs(8);
/// A lower fraction of the rate counts as yielding.
const YIELDS: f64 = 0.95;
/// Then shaping is suspended, so that this device's senders compete as without giveway: for this long, doubled each
/// time.
const SUSPENDS_FOR: Duration = Duration::from_secs(60);
const SUSPENDS_FOR_AT_MOST: Duration = Duration::from_secs(320);
/// The percentage of time during which the rate was at least `held_bytes_per_s`, and likewise the queueing delay at
/// most `held_below_us`: the basis of deadline guarantees, ...
const HELD_PERCENT: usize = 90;
const HELD_OVER: Duration = Duration::from_secs(20);
/// ... once the link was full for this long of it.
const HELD_AT_LEAST_S: f64 = 10.0;
/// The longest gap between two usable polls; a queue from before a longer gap is not continuous.
const PAUSE: Duration = Duration::from_secs(1);
/// Segments below this fraction of a full one are counted at their real size, averaged over this time.
const SMALL: f64 = 0.5;
const SIZE_OVER_S: f64 = 2.0;
const LEAST_BYTES_PER_S: f64 = 4_000.0;

/// A TCP socket that sends on this link.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub cookie: Cookie,
    /// Since it connected; wraps. Includes selectively acknowledged segments.
    pub delivered_segments: u32,
    pub acked_bytes: u64,
    /// Sent, and neither acknowledged nor considered lost; includes its backlog in giveway's queue.
    pub in_flight_bytes: u64,
    pub segment_bytes: u32,
    pub min_rtt: Option<Duration>,
    pub smoothed_rtt: Duration,
    /// Of the packet acknowledged last; None: unknown.
    pub latest_rtt: Option<Duration>,
}

/// A socket before it sent anything.
const NOTHING: Socket = Socket {
    cookie: Cookie(0),
    delivered_segments: 0,
    acked_bytes: 0,
    in_flight_bytes: 0,
    segment_bytes: 0,
    min_rtt: None,
    smoothed_rtt: Duration::ZERO,
    latest_rtt: None,
};

impl From<&Flow> for Socket {
    fn from(flow: &Flow) -> Self {
        let time = |us: u32| Duration::from_micros(us.into());
        Self {
            cookie: flow.cookie,
            delivered_segments: flow.delivered_segments,
            acked_bytes: flow.acked_bytes,
            in_flight_bytes: flow.in_flight_bytes,
            segment_bytes: flow.mss_bytes,
            min_rtt: flow.min_rtt_us.map(time),
            smoothed_rtt: time(flow.srtt_us),
            latest_rtt: Some(flow.latest_rtt_us).filter(|us| *us > 0).map(time),
        }
    }
}

/// All bands together.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkCounters {
    pub sent_bytes: u64,
    pub backlog_bytes: u64,
    /// Those of this machine's TCP sockets, as far as the queue can tell them apart.
    pub tcp_sent_bytes: u64,
    pub tcp_backlog_bytes: u64,
}

/// The latest evidence for the rate.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateEvidence {
    /// None yet: not shaping.
    #[default]
    Nothing,
    /// A queue stood at the bottleneck, so the delivery rate is the link's rate.
    Delivered,
    /// No queue formed at the bottleneck at the full rate: the link has more.
    Raised,
    /// A queue formed at the bottleneck: lowered until it has drained.
    Lowered,
    /// A queue of others stays at the bottleneck however little is sent. Shaping is suspended for a while.
    Others,
    /// The link is not full, or samples are missing: the rate stays.
    LinkSample,
}

/// For `status`.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct MeasuredView {
    /// The estimated rate.
    pub rate_bytes_per_s: Option<u64>,
    /// The lower bound of the rate for nine tenths of the last 20 s of measurement.
    pub held_bytes_per_s: Option<u64>,
    /// The upper bound of the queueing delay at the bottleneck, for the same part of that time.
    #[serde(default)]
    pub held_below_us: u64,
    /// Deadlines are guaranteed by these two.
    #[serde(default)]
    pub promises: bool,
    pub found: RateEvidence,
    /// The queueing delay at the bottleneck when it was last measured.
    pub below_us: u64,
    /// The percentage of the sent bytes that TCP sockets account for.
    pub seen_percent: u32,
    /// 0: steady; 100: varies like a radio link.
    pub varies_percent: u32,
}

impl MeasuredView {
    /// Short form, with the evidence.
    pub fn shown(&self) -> String {
        let how = match self.found {
            RateEvidence::Nothing => return "rate unknown; not shaping".to_owned(),
            RateEvidence::Delivered => "the delivery rate while a queue stands at the bottleneck",
            RateEvidence::Raised => "raised: no queue at the bottleneck",
            RateEvidence::Lowered => "lowered until the queue at the bottleneck has drained",
            RateEvidence::Others => {
                "a queue stays at the bottleneck however little is sent: others share the link; not shaping for a while"
            }
            RateEvidence::LinkSample => "steady: the link is not full, or there are too few samples",
        };
        let mbit = |rate: Option<u64>| rate.map_or(0.0, |rate| rate as f64 / 125e3);
        let promises = if self.promises {
            format!(
                "; deadlines are guaranteed by the lower rate, with {:.0} ms of queueing delay at the bottleneck",
                self.held_below_us as f64 / 1e3
            )
        } else {
            "; no deadline is guaranteed until connections have filled it for 10 of the last 20 s".to_owned()
        };
        format!(
            "estimated {:.2} Mbit/s, at least {:.2} for {HELD_PERCENT}% of the time: {how} ({:.0} ms queueing delay at the \
             bottleneck, from {}% of the bytes){promises}",
            mbit(self.rate_bytes_per_s),
            mbit(self.held_bytes_per_s),
            self.below_us as f64 / 1e3,
            self.seen_percent
        )
    }
}

/// The basis of deadline guarantees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Promise {
    pub bytes_per_s: f64,
    /// The upper bound of the queueing delay at the bottleneck.
    pub below: Duration,
}

/// A poll that showed the link's rate.
#[derive(Clone, Copy)]
struct LinkSample {
    at: Duration,
    passed_s: f64,
    rate: f64,
    below_s: f64,
}

/// Bytes that entered the queue, decaying: TCP's by the sockets, TCP's by the queue (with acknowledgements and
/// retransmissions), and all.
#[derive(Clone, Copy, Default)]
struct Entered {
    told: f64,
    tcp: f64,
    all: f64,
}

impl Entered {
    /// False where another tool's program lets packets bypass admission.
    fn knows_tcp(self) -> bool {
        self.tcp >= self.told / 2.0
    }
}

/// A sum over time.
#[derive(Clone, Default)]
struct Curve(VecDeque<(Duration, f64)>);

#[derive(Clone)]
pub struct Measured {
    sockets: BTreeMap<Cookie, KnownSocket>,
    /// By giveway's queue: of all, and of TCP.
    sent: Curve,
    tcp_sent: Curve,
    /// By the sockets, headers included.
    delivered: Curve,
    entered: Entered,
    latest: Option<(Duration, LinkCounters)>,
    rate: Option<f64>,
    /// When the link was last seen to carry this rate.
    carried: f64,
    paced: Option<f64>,
    /// Falls of the rate, as logarithms, decaying.
    falls: f64,
    /// When the latest began, and how much of it counts.
    fall: (Duration, f64),
    /// Since when a queue stands at the bottleneck.
    queued_since: Option<Duration>,
    /// How long, since the last such queue, the shaped rate was what limited the senders.
    limited_s: f64,
    yields: Option<Yields>,
    /// Until when shaping is suspended for others' queue, and the length of the next suspension.
    suspended_until: Option<Duration>,
    suspends_for: Duration,
    held: VecDeque<LinkSample>,
    /// How long the shaped rate has limited the senders since the last sample.
    untold_s: f64,
    /// The latest poll that was evaluated.
    judged: Duration,
    view: MeasuredView,
}

/// A queue at the bottleneck that is to drain.
#[derive(Clone, Copy)]
struct Yields {
    began: Duration,
    /// Since when it has neither grown nor halved, and its maximum.
    since: Duration,
    longest_s: f64,
}

#[derive(Clone, Copy)]
struct KnownSocket {
    seen: Duration,
    socket: Socket,
    /// Bytes, decaying.
    delivers: f64,
    /// Segments delivered and bytes acknowledged, decaying.
    segments: f64,
    acked: f64,
}

/// One poll, evaluated.
struct Shown {
    passed_s: f64,
    /// Headers included.
    in_flight: f64,
    round_trip_s: f64,
    packet: f64,
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            sockets: BTreeMap::new(),
            sent: Curve::default(),
            tcp_sent: Curve::default(),
            delivered: Curve::default(),
            entered: Entered::default(),
            latest: None,
            rate: None,
            carried: 0.0,
            paced: None,
            falls: 0.0,
            fall: (Duration::ZERO, 0.0),
            queued_since: None,
            limited_s: 0.0,
            yields: None,
            suspended_until: None,
            suspends_for: SUSPENDS_FOR,
            held: VecDeque::new(),
            untold_s: 0.0,
            judged: Duration::ZERO,
            view: MeasuredView::default(),
        }
    }
}

impl Measured {
    /// The rate to shape at; None: not shaping.
    pub fn paced_bytes_per_s(&self) -> Option<f64> {
        self.paced
    }

    /// How long best effort may wait in giveway's queue beyond the usual: on a varying link, so that there is something
    /// to send when the rate rises.
    pub fn patience(&self) -> Duration {
        Duration::from_secs_f64(VARYING_PATIENCE_S * self.varies())
    }

    /// None: not shaping, or not measured for long enough lately.
    pub fn promise(&self) -> Option<Promise> {
        let bytes_per_s = self.view.held_bytes_per_s.filter(|_| self.view.promises)? as f64;
        Some(Promise {
            bytes_per_s,
            below: Duration::from_micros(self.view.held_below_us),
        })
    }

    pub fn view(&self) -> MeasuredView {
        self.view
    }

    /// 0: steady; 1: varies like a radio link.
    fn varies(&self) -> f64 {
        ((self.falls - VARIES_FROM) / (VARIES_FULLY - VARIES_FROM)).clamp(0.0, 1.0)
    }

    /// Takes in a poll.
    pub fn observe(&mut self, now: Duration, sockets: &[Socket], passed: LinkCounters) {
        let before = self.latest.replace((now, passed));
        let Some((then, before)) = before.filter(|(_, before)| before.sent_bytes <= passed.sent_bytes) else {
            // The first poll, or another queue's.
            self.begin(now, sockets);
            return;
        };
        let passed_s = now.saturating_sub(then).as_secs_f64();
        if passed_s <= 0.0 {
            return;
        }
        let shown = self.add(now, passed_s, sockets, before, passed);
        self.view.found = RateEvidence::LinkSample;
        let is_told = shown.is_some_and(|shown| {
            // Nothing decays while nothing is in flight.
            self.falls *= (-passed_s / VARIES_FOR_S).exp();
            self.judge(now, &shown, before, passed)
        });
        self.doubt(is_told, passed_s, (passed.sent_bytes - before.sent_bytes) as f64);
        self.publish(now);
    }

    /// The queue or the link is another one: sums start over.
    fn begin(&mut self, now: Duration, sockets: &[Socket]) {
        (self.sent, self.tcp_sent, self.delivered) = Default::default();
        let known = |socket: &Socket| KnownSocket {
            seen: now,
            socket: *socket,
            delivers: 0.0,
            segments: 0.0,
            acked: 0.0,
        };
        let sockets = sockets.iter().take(MOST_SOCKETS);
        self.sockets = sockets.map(|socket| (socket.cookie, known(socket))).collect();
    }

    /// Adds up the traffic since the last poll. None where no socket has samples.
    fn add(
        &mut self,
        now: Duration,
        passed_s: f64,
        sockets: &[Socket],
        before: LinkCounters,
        passed: LinkCounters,
    ) -> Option<Shown> {
        let (mut delivered, mut entered, mut in_flight) = (0.0, 0.0, 0.0);
        let (mut round_trip_s, mut weight, mut packet) = (0.0, 0.0, 0.0_f64);
        for socket in sockets {
            if self.sockets.len() >= MOST_SOCKETS && !self.sockets.contains_key(&socket.cookie) {
                continue;
            }
            let known = self.sockets.get(&socket.cookie);
            let is_new = socket.delivered_segments <= SEGMENTS_OF_A_NEW_ONE;
            let before = known.map(|known| known.socket);
            let since = before.or(is_new.then_some(NOTHING)).unwrap_or(*socket);
            let segments = socket.delivered_segments.wrapping_sub(since.delivered_segments);
            // A lower counter means another connection on the same socket.
            let (since, segments) = if segments > u32::MAX / 2 {
                (*socket, 0)
            } else {
                (since, segments)
            };
            let fades = (-passed_s / SIZE_OVER_S).exp();
            let acked = socket.acked_bytes.saturating_sub(since.acked_bytes) as f64;
            let mut known = KnownSocket {
                seen: now,
                socket: *socket,
                delivers: known.map_or(0.0, |known| known.fades(now)),
                segments: known.map_or(0.0, |known| known.segments * fades) + f64::from(segments),
                acked: known.map_or(0.0, |known| known.acked * fades) + acked,
            };
            // In segments: the kernel counts short ones like full ones.
            let full = f64::from(socket.segment_bytes.max(64));
            let size = known.segment_bytes(full);
            let segment = size + HEADER_BYTES;
            let bytes = f64::from(segments) * segment;
            known.delivers += bytes;
            self.sockets.insert(socket.cookie, known);
            let own = socket.in_flight_bytes as f64 / full * segment;
            let own_before = since.in_flight_bytes as f64 / full * segment;
            delivered += bytes;
            entered += (bytes + own - own_before).max(0.0);
            in_flight += own;
            packet = packet.max(segment);
            if let Some(min_rtt) = socket.min_rtt {
                // Its share of the deliveries (Little's law).
                let arrives = (own + 1.0) / socket.smoothed_rtt.max(min_rtt).as_secs_f64().max(1e-6);
                round_trip_s += min_rtt.as_secs_f64() * arrives;
                weight += arrives;
            }
        }
        self.sockets
            .retain(|_, known| now.saturating_sub(known.seen) < FORGOTTEN_AFTER);
        let sent = (passed.sent_bytes - before.sent_bytes) as f64;
        let tcp_sent = passed.tcp_sent_bytes.saturating_sub(before.tcp_sent_bytes) as f64;
        let came = |sent: f64, waits: u64, waited: u64| (sent + waits as f64 - waited as f64).max(0.0);
        let fades = (-passed_s / SHARE_OVER_S).exp();
        self.entered = Entered {
            told: self.entered.told * fades + entered,
            tcp: self.entered.tcp * fades + came(tcp_sent, passed.tcp_backlog_bytes, before.tcp_backlog_bytes),
            all: self.entered.all * fades + came(sent, passed.backlog_bytes, before.backlog_bytes),
        };
        self.sent.add(now, sent);
        self.tcp_sent.add(now, tcp_sent);
        self.delivered.add(now, delivered);
        (in_flight > 0.0 && weight > 0.0).then(|| Shown {
            passed_s,
            in_flight,
            round_trip_s: round_trip_s / weight,
            packet,
        })
    }

    /// The least queueing delay of any recent packet, in giveway's queue and at the bottleneck: a queue at the
    /// bottleneck delays every sender, whereas a slow remote host, or delayed acknowledgements, only its own. None: no
    /// samples.
    fn least_wait_s(&self, now: Duration) -> Option<f64> {
        let now_seen = self.sockets.values().filter(|known| known.seen == now);
        let most = now_seen.clone().map(|known| known.delivers).fold(0.0, f64::max);
        let is_witness = |known: &&KnownSocket| known.delivers > 0.0 && known.delivers >= WITNESS * most;
        let wait_s = |known: &KnownSocket| {
            let waits = known.socket.latest_rtt?.saturating_sub(known.socket.min_rtt?);
            Some(waits.as_secs_f64())
        };
        now_seen.filter(is_witness).filter_map(wait_s).reduce(f64::min)
    }

    /// TCP's sent bytes and backlog in giveway's queue, and the part of them that sockets account for; of all traffic
    /// where the queue cannot tell TCP apart.
    fn queued(&self, passed: LinkCounters) -> (&Curve, f64, f64) {
        let Entered { told, tcp, all } = self.entered;
        if self.entered.knows_tcp() {
            (&self.tcp_sent, passed.tcp_backlog_bytes as f64, part(told, tcp))
        } else {
            (&self.sent, passed.backlog_bytes as f64, part(told, all))
        }
    }

    /// The part of the sent bytes that sockets accounted for then. None: nothing was sent, or TCP cannot be told apart.
    fn share_of_sent(&self, now: Duration, ago_s: f64, over_s: f64) -> Option<f64> {
        let Entered { told, tcp, .. } = self.entered;
        // Rounding may leave less than zero.
        let ago = |s: f64| now.saturating_sub(Duration::from_secs_f64(s.max(0.0)));
        let passed = |curve: &Curve| curve.sum_at(ago(ago_s)) - curve.sum_at(ago(ago_s + over_s));
        let (of_tcp, of_all) = (passed(&self.tcp_sent), passed(&self.sent));
        (self.entered.knows_tcp() && of_tcp > 0.0).then(|| (of_tcp / of_all * part(told, tcp)).clamp(LEAST_SHARE, 1.0))
    }

    /// A rate without samples does not limit longer than it would count for deadlines: traffic without samples (UDP,
    /// acknowledgements of downloads) could not raise it, however low the last sample has left it.
    fn doubt(&mut self, is_told: bool, passed_s: f64, sent: f64) {
        let is_limit = self.paced.is_some_and(|paced| sent >= 0.95 * paced * passed_s);
        if is_told {
            self.untold_s = 0.0;
        } else if is_limit {
            self.untold_s += passed_s;
        }
        if self.untold_s >= HELD_OVER.as_secs_f64() {
            (self.rate, self.paced, self.untold_s) = (None, None, 0.0);
            (self.queued_since, self.yields, self.view.below_us) = (None, None, 0);
            self.held.clear();
        }
    }

    /// Whether there were samples.
    // Long: the criteria, in the order of precedence.
    fn judge(&mut self, now: Duration, shown: &Shown, before: LinkCounters, passed: LinkCounters) -> bool {
        let share = part(self.entered.told, self.entered.all);
        self.view.seen_percent = (share * 100.0).round() as u32;
        if share < LEAST_SHARE {
            // No samples to base a guarantee on.
            self.held.clear();
            return false;
        }
        if now.saturating_sub(std::mem::replace(&mut self.judged, now)) > PAUSE {
            (self.queued_since, self.yields) = (None, None);
        }
        // TCP's bytes that have left giveway's queue. Other traffic there is excluded: a fair queue lets UDP send as
        // little as TCP, but UDP keeps any backlog it likes.
        let (sent, backlog, told) = self.queued(passed);
        let age_s = sent.age_s(now, shown.in_flight / told - backlog);
        // The mean in giveway's queue.
        let own_wait_s = sent
            .latest(now, 0.0)
            .map_or(0.0, |(bytes, over_s)| backlog * over_s / bytes.max(1.0));
        let Some((arrives, is_told_well)) = self.arrives(now, age_s, share, shown.packet) else {
            return false;
        };
        let rate = self.rate.unwrap_or(arrives).max(LEAST_BYTES_PER_S);
        let packet_s = shown.packet / rate;
        let queue_s = (age_s - shown.round_trip_s - PATH_PACKETS * packet_s).max(0.0);
        let queue_s = match self.least_wait_s(now) {
            Some(wait_s) if queue_s > wait_s => (wait_s - own_wait_s).max(0.0),
            _ => queue_s,
        };
        let wanted_s = self.wanted_queue_s(packet_s);
        self.view.below_us = (queue_s * 1e6) as u64;
        let stands = queue_s >= wanted_s / 2.0;
        if self.suspended_until.is_some_and(|until| now < until) {
            self.view.found = RateEvidence::Others;
            // Beside others the delivery rate is this device's part, not the link's rate; it is the starting point
            // after the suspension.
            self.rate = Some(arrives);
            self.carried = arrives;
            return true;
        }
        self.suspended_until = None;
        if stands {
            self.limited_s = 0.0;
            self.queued_since.get_or_insert(now);
        } else {
            self.queued_since = None;
        }
        let sent = (passed.sent_bytes - before.sent_bytes) as f64;
        let is_limited_by_us = self
            .paced
            .is_some_and(|paced| sent + shown.packet >= 0.95 * paced * shown.passed_s);
        let feedback_s = shown.round_trip_s + FEEDBACK_S + FEEDBACK_PACKETS * packet_s;
        let stood_s = self
            .queued_since
            .map_or(0.0, |since| now.saturating_sub(since).as_secs_f64());
        if stands {
            // The delivery rate is the link's rate once the queue has stood for as long as deliveries are averaged.
            if is_told_well && (stood_s >= SHORTEST_S || queue_s > 8.0 * wanted_s) {
                self.learn(now, arrives, shown.packet);
            }
        } else if is_told_well && self.rate.is_some_and(|rate| arrives > rate * (1.0 + ANOTHER_RATE)) {
            self.learn(now, arrives, shown.packet);
        } else if is_limited_by_us {
            self.raise(shown.passed_s, feedback_s);
        }
        self.pace(now, queue_s, wanted_s, feedback_s);
        let is_filled = is_limited_by_us || queue_s >= steady_queue_s(packet_s) / 2.0;
        if let Some(rate) = self.rate.filter(|_| is_filled) {
            self.held.push_back(LinkSample {
                at: now,
                passed_s: shown.passed_s,
                rate,
                below_s: queue_s,
            });
        }
        true
    }

    /// The target queue at the bottleneck.
    fn wanted_queue_s(&self, packet_s: f64) -> f64 {
        let steady = steady_queue_s(packet_s);
        steady + (VARYING_QUEUE_S - steady).max(0.0) * self.varies()
    }

    /// The delivery rate over all traffic of this device, and whether the samples suffice. What is delivered now left
    /// giveway's queue `age_s` ago.
    fn arrives(&self, now: Duration, age_s: f64, share: f64, packet: f64) -> Option<(f64, bool)> {
        let (bytes, over_s) = self.delivered.latest(now, PACKETS_OF_A_RATE * packet)?;
        let share = self.share_of_sent(now, age_s, over_s).unwrap_or(share);
        (bytes > 0.0).then(|| (bytes / share / over_s, bytes >= PACKETS_OF_A_RATE * packet / 4.0))
    }

    fn learn(&mut self, now: Duration, arrives: f64, packet: f64) {
        let arrives = arrives.max(LEAST_BYTES_PER_S);
        let Some(rate) = self.rate else {
            (self.rate, self.carried) = (Some(arrives), arrives);
            self.view.found = RateEvidence::Delivered;
            return;
        };
        // The granularity: one packet more or less in the averaging time.
        let grain = packet / (rate * SHORTEST_S);
        let differs = arrives / rate;
        let is_another = differs > 1.0 + ANOTHER_RATE.max(grain) || differs < 1.0 - ANOTHER_RATE.max(grain);
        // An excess that only probing caused is no fall of the link's rate.
        let fell = self.carried / arrives;
        if is_another && differs < 1.0 && fell > 1.0 + ANOTHER_RATE.max(grain) {
            self.note_fall(now, fell.ln());
        }
        let rate = if is_another {
            arrives
        } else {
            rate + AVERAGED * (arrives - rate)
        };
        (self.rate, self.carried) = (Some(rate), rate);
        self.view.found = RateEvidence::Delivered;
    }

    /// A fall of any size counts as one variation.
    fn note_fall(&mut self, now: Duration, by: f64) {
        let (since, sum) = self.fall;
        let (since, sum) = if now.saturating_sub(since) < ONE_FALL {
            (since, sum)
        } else {
            (now, 0.0)
        };
        let counts = by.min(MOST_OF_A_FALL - sum).max(0.0);
        self.fall = (since, sum + counts);
        self.falls += counts;
    }

    /// Later steps are larger: a much faster link is found within seconds.
    fn raise(&mut self, passed_s: f64, feedback_s: f64) {
        self.limited_s += passed_s;
        let empty_s = self.limited_s;
        let varies = self.varies();
        let waits_s = feedback_s * (1.0 - varies);
        let Some(rate) = self.rate.filter(|_| empty_s >= waits_s) else {
            return;
        };
        let first = FIRST_STEP + (LARGEST_STEP - FIRST_STEP) * varies;
        let step = (first * ((empty_s - waits_s) / feedback_s).exp2()).min(LARGEST_STEP);
        // Independent of how often polls come.
        self.rate = Some(rate * (1.0 + step).powf((passed_s / POLL_S).min(1.0)));
        self.view.found = RateEvidence::Raised;
    }

    /// Steers the queue at the bottleneck to its target: removes the excess within two feedback times.
    fn pace(&mut self, now: Duration, queue_s: f64, wanted_s: f64, feedback_s: f64) {
        let Some(rate) = self.rate else { return };
        let by = (1.0 + (wanted_s - queue_s) / (2.0 * feedback_s)).max(SLOWEST);
        self.paced = Some((rate * by).max(LEAST_BYTES_PER_S));
        if by < YIELDS {
            self.view.found = RateEvidence::Lowered;
            self.yield_to_others(now, queue_s);
        } else {
            (self.yields, self.suspends_for) = (None, SUSPENDS_FOR);
        }
    }

    /// A queue that stays although this device yields belongs to others: yielding forever would leave it nothing.
    fn yield_to_others(&mut self, now: Duration, queue_s: f64) {
        let begins = Yields {
            began: now,
            since: now,
            longest_s: queue_s,
        };
        let yields = self.yields.get_or_insert(begins);
        let lasts = now.saturating_sub(yields.began);
        if queue_s > yields.longest_s || queue_s < yields.longest_s / 2.0 {
            (yields.since, yields.longest_s) = (now, queue_s);
        }
        if now.saturating_sub(yields.since) >= YIELDS_FOR || lasts >= YIELDS_AT_MOST {
            (self.paced, self.yields) = (None, None);
            self.suspended_until = Some(now + self.suspends_for);
            self.suspends_for = (2 * self.suspends_for).min(SUSPENDS_FOR_AT_MOST);
            self.view.found = RateEvidence::Others;
        }
    }

    fn publish(&mut self, now: Duration) {
        let is_old = |held: &LinkSample| now.saturating_sub(held.at) > HELD_OVER;
        while self.held.front().is_some_and(is_old) {
            self.held.pop_front();
        }
        let at = |percent: usize, of: fn(&LinkSample) -> f64| {
            let mut sorted: Vec<f64> = self.held.iter().map(of).collect();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() * percent / 100).copied()
        };
        let held = at(100 - HELD_PERCENT, |held| held.rate);
        let below_s = at(HELD_PERCENT, |held| held.below_s);
        let told_s: f64 = self
            .held
            .iter()
            .map(|held| held.passed_s.min(PAUSE.as_secs_f64()))
            .sum();
        self.view.promises = self.paced.is_some() && told_s >= HELD_AT_LEAST_S;
        self.view.rate_bytes_per_s = self.rate.map(|rate| rate as u64);
        self.view.held_bytes_per_s = held.map(|rate| rate as u64);
        self.view.held_below_us = below_s.map_or(0, |s| (s * 1e6) as u64);
        self.view.varies_percent = (self.varies() * 100.0).round() as u32;
        if self.rate.is_none() {
            self.view.found = RateEvidence::Nothing;
        }
    }
}

/// All where there is nothing.
fn part(told: f64, of: f64) -> f64 {
    if of > 0.0 { (told / of).min(1.0) } else { 1.0 }
}

fn steady_queue_s(packet_s: f64) -> f64 {
    STEADY_QUEUE_S.max(STEADY_QUEUE_PACKETS * packet_s)
}

impl KnownSocket {
    /// The recent mean: an application that writes little at a time has short ones.
    fn segment_bytes(&self, full: f64) -> f64 {
        let mean = self.acked / self.segments.max(1.0);
        if self.segments >= 1.0 && mean < SMALL * full {
            mean
        } else {
            full
        }
    }

    fn fades(&self, now: Duration) -> f64 {
        self.delivers * (-now.saturating_sub(self.seen).as_secs_f64() / DELIVERS_OVER_S).exp()
    }
}

impl Curve {
    fn add(&mut self, now: Duration, bytes: f64) {
        let sum = self.0.back().map_or(0.0, |(_, sum)| *sum);
        self.0.push_back((now, sum + bytes));
        while self.0.front().is_some_and(|(t, _)| now.saturating_sub(*t) > HISTORY) {
            self.0.pop_front();
        }
    }

    /// At that time.
    fn sum_at(&self, t: Duration) -> f64 {
        let after = self.0.partition_point(|(at, _)| *at < t);
        let Some(later) = self.0.get(after) else {
            return self.0.back().map_or(0.0, |(_, sum)| *sum);
        };
        let Some(earlier) = after.checked_sub(1).and_then(|before| self.0.get(before)) else {
            return later.1;
        };
        let span_s = (later.0 - earlier.0).as_secs_f64();
        later.1 - (later.1 - earlier.1) * (later.0 - t).as_secs_f64() / span_s.max(1e-9)
    }

    /// How long ago the latest bytes began to pass; the whole history, if that is longer.
    fn age_s(&self, now: Duration, bytes: f64) -> f64 {
        let Some(last) = self.0.back() else { return 0.0 };
        let wanted = last.1 - bytes.max(0.0);
        let mut later = last;
        for earlier in self.0.iter().rev() {
            if earlier.1 <= wanted {
                let span = (later.1 - earlier.1).max(1.0);
                let part = (wanted - earlier.1) / span;
                let between = later.0.saturating_sub(earlier.0).as_secs_f64();
                return now.saturating_sub(earlier.0).as_secs_f64() - part * between;
            }
            later = earlier;
        }
        now.saturating_sub(later.0).as_secs_f64()
    }

    /// The latest bytes and the time that they took: the wanted number, unless that takes too short or too long.
    fn latest(&self, now: Duration, wanted: f64) -> Option<(f64, f64)> {
        let (_, sum) = self.0.back()?;
        let mut found = None;
        for (t, at) in self.0.iter().rev().skip(1) {
            let over_s = now.saturating_sub(*t).as_secs_f64();
            if over_s > LONGEST_S {
                break;
            }
            found = Some((sum - at, over_s));
            if over_s >= SHORTEST_S && sum - at >= wanted {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests;
