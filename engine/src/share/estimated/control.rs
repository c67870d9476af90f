// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The controller of one number, the share of a connection of weight 1, by the queueing delay of this device's own
//! connections. Input: the sample of each poll. Output: the share, and the part of it to use now.
//!
//! A queue means that the share is too large. It is drained by half an RTT of restraint, not by small corrections:
//! where stations collide their radios' rates fall, and only an empty queue shows what the medium carries. If the
//! goodput is then higher than beside the queue, there is a collapse point, and the share stays below it.

use std::collections::VecDeque;

use super::plain::Plain;
use super::sample::{APART_FROM, Sample};
use crate::config::Prefer;

mod suspension;

/// The minimum delay over this time counts: acknowledgements held back for 40 ms are no queue.
const WINDOW_S: f64 = 0.15;
/// The queue has drained when none was seen for this long.
const LONG_WINDOW_S: f64 = 0.4;
/// A sample expires after this time and two RTTs.
const OLD_SAMPLE_S: f64 = 1.0;
/// The typical delay of a report.
const REPORT_S: f64 = 0.5;
/// Total demands within this fraction are equal.
const SAME: f64 = 0.04;
/// A device that leaves this soon after its start returns its whole share.
const JOINED_S: f64 = 10.0;
/// Within the same time: more joins and leaves are ignored.
const TURNS: usize = 4;
/// Samples expire after this gap between polls: a pause, or a stopped process.
const OLD_AFTER_S: f64 = 3.0;
/// Gain: by each part of the group's minimum RTT (within a factor of this of the own one) that the queue is too short,
/// the share rises by this part, within the feedback time; likewise it falls.
const PATHS: f64 = 8.0;
const RAISE: f64 = 0.1;
const LOWER: f64 = 0.3;
/// Down to this part of the share at which the delay was last on target.
const LOWERED: f64 = 0.5;
/// Without a queue for two feedback times, the share grows by this, doubling each time, up to ...
const CREEP: f64 = 0.01;
const CREEP_MOST: f64 = 0.25;
/// ... and after draining each RTT by this, doubling each time, up to; and by more where a standing queue has gone by
/// itself.
const SEARCH: f64 = 0.05;
const SEARCH_MOST: f64 = 0.2;
pub const FASTER_MOST: f64 = 0.4;
/// A queue stands when its mean over some seconds is this part of the target; and has gone below that.
const STOOD: f64 = 0.4;
const MEAN_OVER_S: f64 = 3.0;
const GONE: f64 = 0.25;
/// By the peers' reports of theirs.
const GONE_FOR_ALL: f64 = 0.5;
const GONE_FOR: f64 = 1.5;
/// The target is at most this part of the minimum RTT, or the upper threshold of `prefer`, however slow the group is.
const AIM_MOST: f64 = 0.15;
/// While draining, this part of the goodput is sent; the next phase begins with it.
const EMPTYING: f64 = 0.5;
const RESUME: f64 = 0.8;
/// The share is at most this multiple of the goodput.
const ROOM: f64 = 1.3;
/// The part of the share that returns after draining, where the queue had slowed the medium down.
const REGAINED: f64 = 0.7;
/// A queue of this multiple of the upper threshold may have slowed the medium down, ...
const COLLAPSE: f64 = 1.25;
/// ... and did, where the goodput without it is this multiple of that beside it. (Otherwise the medium was slow.)
const SLOWED: f64 = 1.2;
const REMEMBERED_S: f64 = 10.0;
const ROOM_AFTER: f64 = 2.0;
/// The share stays this fraction below a collapse point, for this time, doubled each time that it was still too much.
const BELOW_COLLAPSE: f64 = 0.95;
const COLLAPSE_S: f64 = 20.0;
const COLLAPSE_MOST_S: f64 = 320.0;
/// Bounds of the peers' pull on the share in the time of a report: down by less than it grows where there is room, and
/// up only if the queue is not much above target.
const PULL: std::ops::RangeInclusive<f64> = 0.85..=1.25;
/// But not below this part of an equal part of the measured baseline: less than the change that `plain` takes for a
/// slower medium, or the effect of reports would count as the medium's, and be repeated.
const KEEPS: f64 = 0.8;
/// A share of this multiple of the peers' comes down to theirs even where there is room, in groups where no single peer
/// decides.
const APART: f64 = 1.25;

/// Close enough to the peers' share.
const CLOSE: f64 = 0.05;
/// From this part of a collapse point's level on, a queue belongs to it.
const NEAR: f64 = 0.9;
/// Sending more than this multiple of the goodput adds to the queue being drained.
const YIELDS: f64 = 1.1;
/// A queue stays if more than this part is left after a round of draining.
const STAYS: f64 = 0.8;
/// How long after an own baseline the peers may still be in theirs.
const OTHERS_END_S: f64 = 3.0;
/// While draining, the medium still gets slower if the queue is this much longer after a round.
const GROWS: f64 = 1.1;

/// The setting `prefer`, as parts of the minimum RTT and minima in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    aim: f64,
    aim_least_s: f64,
    too_long: f64,
    too_long_least_s: f64,
    /// And at least this many packets, in all and for each sender.
    packets: (f64, f64),
    /// Goodput below this part of plain TCP's for some seconds is not worth the shorter queue, ...
    worth: f64,
    /// ... and below this part, at once.
    clearly: f64,
    /// Soon after a baseline, below this part.
    early: f64,
    /// A queueing delay below this part of the target cannot be the cause of low goodput.
    waits: f64,
}

impl From<Prefer> for Preference {
    fn from(prefer: Prefer) -> Self {
        let (aim, aim_least_s, too_long, too_long_least_s, packets, (worth, clearly, early, waits)) = match prefer {
            Prefer::Delay => (0.03, 0.003, 0.15, 0.010, (2.0, 0.5), (0.7, 0.63, 0.7, 0.8)),
            Prefer::Balanced => (0.06, 0.012, 0.2, 0.015, (4.0, 1.0), (0.77, 0.7, 0.81, 0.8)),
            Prefer::Throughput => (0.06, 0.012, 0.2, 0.015, (4.0, 1.0), (0.98, 0.98, 0.81, 0.5)),
        };
        Self {
            aim,
            aim_least_s,
            too_long,
            too_long_least_s,
            packets,
            worth,
            clearly,
            early,
            waits,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Phase {
    /// Slow start, until a queue is seen.
    Start,
    /// `most`: the largest growth per RTT.
    Probe {
        since_s: f64,
        most: f64,
    },
    Steady,
    /// `before`: the share that was too large; `waited_s`: the delay at the beginning of this round.
    Drain {
        round: u32,
        first_s: f64,
        since_s: f64,
        waited_s: f64,
        before: f64,
    },
    /// Not limiting.
    Suspended {
        until_s: f64,
        reason: Why,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// Baseline measurement of plain TCP.
    Unknown,
    /// A queue stays although this device yields, ...
    Strange,
    /// ... and peers see less of it.
    Own,
    /// The goodput is lower, relative to plain TCP, than a short queue is worth.
    Worse,
    /// The peers have suspended their limits.
    Others,
    /// A lone device's retransmissions are lost as well.
    Lost,
}

/// The latest queue that was drained.
#[derive(Clone, Copy, Debug)]
struct Emptied {
    at_s: f64,
    before: f64,
    /// The goodput beside the queue.
    carried: f64,
    longest_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct CollapsePoint {
    share: f64,
    since_s: f64,
    hold_s: f64,
}

#[derive(Debug)]
pub struct Control {
    wish: Preference,
    floor: f64,
    pub phase: Phase,
    /// Bytes a second for a connection of weight 1; 0: unknown yet.
    pub share: f64,
    /// The target queueing delay.
    pub aim_s: f64,
    weights: f64,
    /// The total demand when it last differed, and when it last turned from rising to falling or back.
    last_weights: f64,
    turns: VecDeque<(bool, f64)>,
    /// The latest sudden change of all shares, except changes soon after another.
    changed_s: f64,
    /// The share before the latest join, and its time.
    before_join: Option<(f64, f64)>,
    last_s: f64,
    waits: VecDeque<(f64, f64)>,
    /// When the sample last changed.
    sampled_s: f64,
    /// Something was retransmitted since.
    has_repeated: bool,
    /// Restarts after retransmissions, where others send.
    begins_anew: bool,
    /// The goodput beside the queue that is being drained.
    carried: f64,
    /// The share when the delay was last on target.
    held_share: f64,
    /// The latest end of a suspension.
    pub(super) returned_s: f64,
    /// Mean delay: while a queue stands, and at any time.
    mean_wait_s: f64,
    waits_s: f64,
    /// The longest delay that peers reported since draining last began.
    their_longest_s: f64,
    /// When a peer last sent.
    accompanied_s: f64,
    /// When a packet of this device was last delivered: the age of the delay sample.
    delivered_s: f64,
    /// Since when there is no queue, no queue for good, or one above target.
    quiet_s: f64,
    gone_s: f64,
    stands_s: f64,
    longest_s: f64,
    emptied: Option<Emptied>,
    collapse: Option<CollapsePoint>,
    pub(super) plain: Plain,
    /// All connections of this device retransmit.
    pub is_repeating: bool,
    /// Goodput with limits, relative to without.
    pub of_plain: Option<f64>,
    /// How long that has been too low.
    worse_s: f64,
    outgrown_s: f64,
    early_s: f64,
    senders: usize,
}

/// Until a change of the share shows in the peers' reports.
fn shows_after_s(seen: &Sample, wait_s: f64) -> f64 {
    seen.min_rtt_s + wait_s + REPORT_S
}

/// While draining: a round is over, not before devices with longer paths can have yielded too.
fn is_round(seen: &Sample, since_s: f64, wait_s: f64) -> bool {
    seen.now_s - since_s > (2.0 * (seen.min_rtt_s + wait_s)).max(REPORT_S)
}

impl Control {
    pub fn new(prefer: Prefer, floor: f64) -> Self {
        Self {
            wish: prefer.into(),
            floor,
            phase: Phase::Start,
            share: 0.0,
            aim_s: Preference::from(prefer).aim_least_s,
            weights: 0.0,
            last_weights: 0.0,
            turns: VecDeque::new(),
            changed_s: f64::NEG_INFINITY,
            before_join: None,
            last_s: 0.0,
            waits: VecDeque::new(),
            sampled_s: 0.0,
            has_repeated: false,
            begins_anew: false,
            carried: 0.0,
            held_share: 0.0,
            returned_s: f64::NEG_INFINITY,
            mean_wait_s: 0.0,
            waits_s: 0.0,
            their_longest_s: 0.0,
            accompanied_s: f64::NEG_INFINITY,
            delivered_s: 0.0,
            quiet_s: 0.0,
            gone_s: 0.0,
            stands_s: 0.0,
            longest_s: 0.0,
            emptied: None,
            collapse: None,
            plain: Plain::default(),
            is_repeating: false,
            of_plain: None,
            worse_s: 0.0,
            outgrown_s: 0.0,
            early_s: 0.0,
            senders: 0,
        }
    }

    /// Nothing is sent: what is known of the medium is old when sending resumes.
    pub fn rest(&mut self, now_s: f64, others_send: bool) {
        self.plain.rest(now_s, others_send);
        let stays = |until_s, reason| until_s > now_s && !matches!(reason, Why::Unknown | Why::Own | Why::Lost);
        if !matches!(self.phase, Phase::Suspended { until_s, reason } if stays(until_s, reason)) {
            self.phase = Phase::Start;
        }
        self.begins_anew = false;
        (self.share, self.weights, self.last_weights) = (0.0, 0.0, 0.0);
        self.held_share = 0.0;
        (self.emptied, self.collapse, self.before_join) = (None, None, None);
        self.waits.clear();
        (self.stands_s, self.of_plain) = (0.0, None);
    }

    pub fn collapse_share(&self) -> Option<f64> {
        self.collapse.map(|collapse| collapse.share)
    }

    pub fn step(&mut self, seen: &Sample) {
        let passed_s = seen.now_s - self.last_s;
        if passed_s > OLD_AFTER_S {
            self.rest(seen.now_s, true);
            self.plain.count_anew();
        }
        let dt_s = passed_s.clamp(0.0, 1.0);
        self.last_s = seen.now_s;
        self.senders = seen.senders;
        if seen.senders > seen.own {
            self.accompanied_s = seen.now_s;
        }
        self.plain.hear(seen);
        self.their_longest_s = self.their_longest_s.max(seen.their_queue_s.unwrap_or(0.0));
        self.follow_members(seen);
        if self.share <= 0.0 {
            self.share = seen.rate.max(self.floor);
        }
        self.aim_s = self.aim(seen);
        let wait_s = self.wait(seen);
        let too_long_s = (self.wish.too_long * seen.min_rtt_s)
            .max(self.wish.too_long_least_s)
            .max(1.5 * self.aim_s);
        let shows_after_s = shows_after_s(seen, wait_s);
        self.stands_s = if wait_s > 1.5 * self.aim_s {
            self.stands_s + dt_s
        } else {
            0.0
        };
        self.waits_s += (wait_s.min(3.0 * self.aim_s) - self.waits_s) * (dt_s / MEAN_OVER_S).min(1.0);
        self.pull(seen, wait_s, dt_s, shows_after_s);
        self.try_without(seen, wait_s, too_long_s);
        match self.phase {
            // A lone device's goodput without limits is not the group's.
            Phase::Suspended {
                reason: Why::Own | Why::Strange | Why::Lost,
                ..
            } => {}
            // Deliveries in a pause have no rate.
            Phase::Suspended { .. } if passed_s > OLD_AFTER_S => {}
            Phase::Suspended { until_s, .. } => self.plain.count(seen, until_s, passed_s),
            _ => self.plain.compare(seen, self.phase == Phase::Steady, dt_s),
        }
        if seen.moved_bytes > 0.0 {
            self.delivered_s = seen.now_s;
        }
        let strange = self.strange(seen, wait_s, too_long_s, dt_s);
        match (self.phase, strange) {
            (Phase::Suspended { until_s, .. }, _) if seen.now_s < until_s => {}
            (Phase::Suspended { .. }, _) => self.return_to_limits(seen, wait_s, too_long_s),
            (_, Some(reason)) => self.suspend(seen.now_s, reason),
            (Phase::Drain { .. }, _) => self.drain(seen, wait_s),
            _ if wait_s > too_long_s => self.begin_to_empty(seen, wait_s),
            _ => self.find(seen, wait_s, too_long_s, dt_s),
        }
    }

    /// Baseline measurement on an unknown link, until peers report theirs.
    fn try_without(&mut self, seen: &Sample, wait_s: f64, too_long_s: f64) {
        let is_baseline = matches!(
            self.phase,
            Phase::Start
                | Phase::Suspended {
                    reason: Why::Unknown,
                    ..
                }
        );
        if is_baseline {
            self.phase = match (self.plain.unknown_until(seen), self.phase) {
                (Some(until_s), _) => Phase::Suspended {
                    until_s,
                    reason: Why::Unknown,
                },
                (None, Phase::Suspended { .. }) if seen.is_told() => {
                    // What was measured so far, if that is enough.
                    self.return_to_limits(seen, wait_s, too_long_s);
                    if self.plain.is_known() {
                        self.phase
                    } else {
                        Phase::Start
                    }
                }
                (None, phase) => phase,
            };
        }
    }

    /// A start, a stop or a change of demand changes all shares at once; a leaving device returns no more than can be
    /// verified.
    fn follow_members(&mut self, seen: &Sample) {
        let by = self.weights / seen.weights;
        let flaps = self.flaps(seen);
        if self.weights > 0.0 && ((by - 1.0).abs() < SAME || flaps && by > 1.0) {
            return;
        }
        let is_change = self.weights > 0.0;
        self.weights = seen.weights;
        if !is_change || self.phase == Phase::Start {
            return;
        }
        // A flapping device takes no share for good.
        self.before_join = self.before_join.filter(|(_, at_s)| seen.now_s - at_s < JOINED_S);
        if by < 1.0 {
            self.before_join.get_or_insert((self.share, seen.now_s));
        }
        let had = self.before_join.map_or(0.0, |(share, _)| share);
        // (A device that changes its demand all the time delays this for at most half of it.)
        if seen.now_s - self.changed_s > 2.0 * REPORT_S {
            self.changed_s = seen.now_s;
        }
        self.held_share *= by;
        self.share = (self.share * by)
            .min((ROOM * seen.rate).max(self.share).max(had))
            .max(self.floor);
        self.plain.changed();
        self.of_plain = None;
        if let Some(collapse) = &mut self.collapse {
            collapse.share *= by;
        }
        if let Some(emptied) = &mut self.emptied {
            emptied.before *= by;
            emptied.carried *= by;
        }
        if let Phase::Drain { before, .. } = &mut self.phase {
            *before *= by;
        }
    }

    /// Whether devices join and leave so often that a stop means nothing: its share would be taken again within a
    /// second, and nothing would settle.
    fn flaps(&mut self, seen: &Sample) -> bool {
        let by = seen.weights / self.last_weights;
        if self.last_weights > 0.0 && (by - 1.0).abs() >= SAME {
            if self.turns.back().is_none_or(|(rose, _)| *rose != (by > 1.0)) {
                self.turns.push_back((by > 1.0, seen.now_s));
            }
            self.last_weights = seen.weights;
        } else if self.last_weights <= 0.0 {
            self.last_weights = seen.weights;
        }
        let is_old = |(_, at_s): &(bool, f64)| seen.now_s - at_s > JOINED_S;
        while self.turns.len() > TURNS + 1 || self.turns.front().is_some_and(is_old) {
            self.turns.pop_front();
        }
        self.turns.len() > TURNS
    }

    /// The same for all, or devices with a lower target would yield to those with a higher one.
    fn aim(&self, seen: &Sample) -> f64 {
        let (packets, packets_each) = self.wish.packets;
        let bytes = (packets + packets_each * seen.senders as f64) * seen.segment_bytes;
        let packets_s = bytes / (self.share * self.weights).max(self.floor).max(1.0);
        let part_s = (self.wish.aim * seen.least_rtt_s).max(self.wish.aim_least_s);
        let most_s = (AIM_MOST * seen.min_rtt_s).max(self.wish.too_long_least_s);
        part_s.max(packets_s.min(most_s))
    }

    fn wait(&mut self, seen: &Sample) -> f64 {
        if self.waits.back().is_none_or(|(_, queue_s)| *queue_s != seen.queue_s) {
            (self.sampled_s, self.has_repeated) = (seen.now_s, false);
        }
        self.has_repeated |= self.is_repeating;
        self.waits.push_back((seen.now_s, seen.queue_s));
        while self
            .waits
            .front()
            .is_some_and(|(at_s, _)| *at_s < seen.now_s - LONG_WINDOW_S)
        {
            self.waits.pop_front();
        }
        let wait_s = self.least_wait(seen.now_s - WINDOW_S);
        // (Soon after a baseline the peers' reports are old too: some were lost in the queue.)
        let is_later = !matches!(self.phase, Phase::Suspended { .. }) && seen.now_s - self.returned_s > OTHERS_END_S;
        let others_say = seen.their_queue_s.filter(|_| is_later && self.is_unsampled(seen));
        others_say.map_or(wait_s, |theirs_s| theirs_s.min(wait_s))
    }

    /// A retransmitting device has no new samples.
    fn is_unsampled(&self, seen: &Sample) -> bool {
        self.has_repeated && seen.now_s - self.sampled_s > (2.0 * seen.min_rtt_s).max(OLD_SAMPLE_S)
    }

    fn least_wait(&self, from_s: f64) -> f64 {
        let recent = self.waits.iter().filter(|(at_s, _)| *at_s >= from_s);
        recent.map(|(_, wait_s)| *wait_s).fold(f64::INFINITY, f64::min)
    }

    /// Moves the share towards the peers', so that all have the same.
    fn pull(&mut self, seen: &Sample, wait_s: f64, dt_s: f64, shows_after_s: f64) {
        let (Phase::Steady | Phase::Probe { .. }, Some(theirs)) = (self.phase, seen.theirs) else {
            return;
        };
        // Their reports are still from before a start, a stop or a change of demand, which changes their shares as
        // well.
        if seen.now_s - self.changed_s < REPORT_S {
            return;
        }
        let ratio = theirs / self.share;
        // Their windows are whole segments, and half a second old: smaller differences would freeze all shares.
        let is_close = self.phase == Phase::Steady && (ratio - 1.0).abs() < CLOSE;
        if !is_close {
            // Their reports are half a second old: if they have just yielded to a queue that this device sees too, that
            // is no reason to raise the share.
            let most = if wait_s > 2.0 * self.aim_s { 1.0 } else { *PULL.end() };
            // Without a queue there is room for both, unless there is a collapse point, which only the peers may have
            // found.
            let is_near = ratio * APART > 1.0 || seen.senders.saturating_sub(seen.own) < APART_FROM;
            let has_room = self.collapse.is_none() && self.quiet_s > 2.0 * shows_after_s && is_near;
            let least = if has_room { 1.0 } else { *PULL.start() };
            let pulled = self.share * ratio.clamp(least, most).powf(dt_s / shows_after_s);
            let pulled = pulled.max(self.keeps(seen).min(self.share));
            // No report raises the share above the goodput. It may pass this device's own collapse point, which may be
            // too low.
            self.share = pulled.min((ROOM * seen.rate).max(self.share)).max(self.floor);
        }
    }

    /// No report lowers the share below this; a queue does. In a large group no single report decides, and this
    /// device's baseline may exceed an equal part, as on a short path.
    pub(super) fn keeps(&self, seen: &Sample) -> f64 {
        if seen.senders.saturating_sub(seen.own) >= APART_FROM {
            return 0.0;
        }
        KEEPS * self.plain.equal_part(seen).unwrap_or(0.0)
    }

    fn begin_to_empty(&mut self, seen: &Sample, wait_s: f64) {
        // The same for all, as far as a report may count.
        let theirs = seen
            .theirs
            .unwrap_or(self.share)
            .clamp(0.8 * self.share, 1.25 * self.share);
        let before = (theirs * self.share).sqrt();
        // A queue that forms far below it belongs to others.
        let share = self.share;
        let is_there = |collapse: &&mut CollapsePoint| share > NEAR * collapse.share;
        if let Some(collapse) = self.collapse.as_mut().filter(is_there) {
            *collapse = CollapsePoint {
                share: collapse.share.min(BELOW_COLLAPSE * before),
                since_s: seen.now_s,
                hold_s: (2.0 * collapse.hold_s).min(COLLAPSE_MOST_S),
            };
        }
        self.share = seen.rate.min(self.share).max(self.floor);
        self.enter_empty(seen, wait_s, before);
    }

    pub(super) fn enter_empty(&mut self, seen: &Sample, wait_s: f64, before: f64) {
        // A queue that stands from here on is another one.
        self.their_longest_s = 0.0;
        (self.longest_s, self.carried, self.mean_wait_s) = (wait_s, self.share, 0.0);
        self.phase = Phase::Drain {
            round: 0,
            first_s: seen.now_s,
            since_s: seen.now_s,
            waited_s: wait_s,
            before,
        };
    }

    fn drain(&mut self, seen: &Sample, wait_s: f64) {
        let Phase::Drain {
            round,
            first_s,
            since_s,
            waited_s,
            before,
        } = self.phase
        else {
            return;
        };
        self.longest_s = self.longest_s.max(wait_s);
        if wait_s < self.aim_s && self.is_unsampled(seen) {
            // By the peers' reports the queue has gone, and retransmissions have kept this device slow. Their reports
            // raise its share to no more than there was.
            let each = self.plain.plain(seen).map(|all| all / seen.senders.max(1) as f64);
            let most = if before.is_finite() {
                before
            } else {
                each.unwrap_or(0.0)
            };
            self.share = self.share.max((EMPTYING * seen.theirs.unwrap_or(0.0)).min(most));
            (self.phase, self.begins_anew) = (Phase::Start, true);
        } else if wait_s < 0.5 * self.aim_s {
            self.phase = Phase::Probe {
                since_s: seen.now_s,
                most: SEARCH_MOST,
            };
            self.quiet_s = 0.0;
            self.emptied = Some(Emptied {
                at_s: seen.now_s,
                before,
                carried: self.carried,
                longest_s: self.longest_s,
            });
            self.share = (RESUME * self.share).max(self.floor);
        } else if is_round(seen, since_s, wait_s) {
            // A lone device's fresh baseline is what the medium carries.
            let is_fresh = before.is_infinite() && self.is_alone(seen.now_s);
            if self.is_unsampled(seen) || self.is_repeating || is_fresh {
                // No evidence: this goodput is that of a recovery, or of a tiny window, not of the medium.
            } else if wait_s > GROWS * waited_s {
                // The medium still gets slower.
                self.share = seen.rate.min(self.share).max(self.floor);
                self.carried = self.carried.min(self.share);
            } else if round == 0 && (wait_s > STAYS * waited_s || (before.is_finite() && !self.yields(seen))) {
                // Half of the goodput before the medium became slow may be all that it carries. (Once: the queue of
                // others stays.)
                self.share = seen.rate.min(self.share).max(self.floor);
            }
            self.phase = Phase::Drain {
                round: round + 1,
                first_s,
                since_s: seen.now_s,
                waited_s: wait_s,
                before,
            };
        }
    }

    /// Whether no more is sent while draining than is delivered; beside the queue of others too, that is as much.
    fn yields(&self, seen: &Sample) -> bool {
        EMPTYING * self.share < YIELDS * seen.rate.max(self.floor)
    }

    /// The upper bound of the share for now.
    fn ceiling(&mut self, seen: &Sample, wait_s: f64, too_long_s: f64, shows_after_s: f64) -> f64 {
        // No queue for long, below a level that was no collapse point: the medium has become faster.
        let has_room = self.collapse.is_none() && self.quiet_s > ROOM_AFTER * shows_after_s;
        let is_old = |emptied: &Emptied| has_room || seen.now_s - emptied.at_s > REMEMBERED_S;
        self.emptied = self.emptied.filter(|emptied| !is_old(emptied));
        let mut ceiling = f64::INFINITY;
        if let Some(emptied) = self.emptied {
            if emptied.before.is_infinite() {
                // After a baseline an equal part of it is enough.
                ceiling = self.plain.plain(seen).map_or(f64::INFINITY, |all| all / seen.weights);
            } else if emptied.before > 0.9 * self.share {
                ceiling = BELOW_COLLAPSE * emptied.before;
            }
            let was_long = emptied.longest_s > COLLAPSE * too_long_s;
            // In a collapse the goodput of all falls, and nobody has more; in a small group a single report does not
            // count for that.
            let few = seen.senders.saturating_sub(seen.own) < APART_FROM;
            let was_theirs =
                self.their_longest_s > too_long_s && seen.theirs.is_none_or(|theirs| theirs < APART * emptied.before);
            // Soon after a baseline it may be the queue of peers still in theirs.
            let was_ours = emptied.at_s - self.returned_s > OTHERS_END_S && (few || was_theirs);
            let regained = seen.rate > (REGAINED * emptied.before).max(SLOWED * emptied.carried) && wait_s < self.aim_s;
            if self.collapse.is_none() && was_long && was_ours && regained {
                self.collapse = Some(CollapsePoint {
                    share: BELOW_COLLAPSE * emptied.before,
                    since_s: seen.now_s,
                    hold_s: COLLAPSE_S,
                });
            }
        }
        if let Some(collapse) = self.collapse {
            let over_s = (seen.now_s - collapse.since_s - collapse.hold_s).max(0.0);
            ceiling = collapse.share * (1.0 + CREEP).powf(over_s / shows_after_s);
        }
        ceiling
    }

    /// Raises the share while there is no queue, up to the target.
    fn find(&mut self, seen: &Sample, wait_s: f64, too_long_s: f64, dt_s: f64) {
        let shows_after_s = shows_after_s(seen, wait_s);
        let ceiling = self.ceiling(seen, wait_s, too_long_s, shows_after_s);
        self.notice(seen, wait_s, dt_s, shows_after_s);
        let round_trips = dt_s / (seen.min_rtt_s + wait_s);
        let growth = match self.phase {
            Phase::Start | Phase::Probe { .. } if wait_s > self.aim_s => {
                self.share = self.share.min(1.05 * seen.rate);
                self.phase = Phase::Steady;
                1.0
            }
            Phase::Start => {
                self.share = self.share.max(2.0 * seen.rate);
                // A device that restarts in its group has enough with the peers' share.
                let is_enough = |theirs: &f64| self.begins_anew && self.share > APART * theirs;
                if let Some(theirs) = seen.theirs.filter(is_enough) {
                    self.share = (APART * theirs).max(seen.rate).max(self.floor);
                    (self.phase, self.begins_anew) = (Phase::Steady, false);
                }
                return;
            }
            Phase::Probe { since_s, most } => {
                let doublings = (seen.now_s - since_s) / (seen.min_rtt_s + wait_s);
                (1.0 + (SEARCH * doublings.exp2()).min(most)).powf(round_trips)
            }
            _ => self.steady(seen, wait_s, shows_after_s).powf(dt_s / shows_after_s),
        };
        let most = ceiling.min((ROOM * seen.rate).max(self.floor));
        if growth > 1.0 {
            self.share = (self.share * growth).min(most.max(self.share));
        } else if growth < 1.0 {
            // A queue that half the share does not shorten is not this device's.
            let least = (LOWERED * self.held_share).min(self.share);
            self.share = (self.share * growth).max(least);
        }
        if wait_s <= self.aim_s {
            self.held_share = self.share;
        }
        if self.collapse.is_some() && self.share > ceiling {
            self.share = ceiling.max(self.share * BELOW_COLLAPSE.powf(dt_s / shows_after_s));
        }
        if matches!(self.phase, Phase::Probe { .. }) && self.share >= ceiling {
            self.phase = Phase::Steady;
        }
        self.share = self.share.max(self.floor);
    }

    fn steady(&self, seen: &Sample, wait_s: f64, shows_after_s: f64) -> f64 {
        // By the group's paths, the same for all: by its own RTT, a device on a long path would hardly raise its share,
        // and those on short paths would come down to it.
        let path_s = seen.group_rtt_s.clamp(seen.min_rtt_s / PATHS, PATHS * seen.min_rtt_s);
        let off = (self.aim_s - wait_s) / path_s;
        let by_queue = if off < 0.0 {
            (LOWER * off).max(-0.5)
        } else {
            RAISE * off
        };
        let quiet = self.quiet_s / shows_after_s - 2.0;
        if quiet > 0.0 {
            1.0 + by_queue.max((CREEP * quiet.exp2()).min(CREEP_MOST))
        } else {
            1.0 + by_queue
        }
    }

    /// How long there has been no queue; a standing queue that has gone means a faster medium.
    fn notice(&mut self, seen: &Sample, wait_s: f64, dt_s: f64, shows_after_s: f64) {
        self.quiet_s = if wait_s < 0.5 * self.aim_s {
            self.quiet_s + dt_s
        } else {
            0.0
        };
        // A peer's delay is a smoothed RTT, half a second old: it shows that a queue stood, and that it has gone for
        // all.
        let theirs_s = seen.their_queue_s;
        let is_gone = self.least_wait(f64::NEG_INFINITY) < GONE * self.aim_s;
        self.gone_s = if is_gone { self.gone_s + dt_s } else { 0.0 };
        // (Jitter on their paths looks like a queue: then the share grows as if none had stood.)
        let is_gone_for_all = theirs_s.is_none_or(|theirs_s| theirs_s < GONE_FOR_ALL * self.aim_s);
        if !is_gone || !is_gone_for_all {
            let longer_s = theirs_s.map_or(wait_s, |theirs_s| theirs_s.max(wait_s));
            self.mean_wait_s += (longer_s - self.mean_wait_s) * (dt_s / MEAN_OVER_S).min(1.0);
        }
        let has_gone = is_gone_for_all && self.gone_s > GONE_FOR * shows_after_s;
        if self.phase == Phase::Steady && has_gone && self.mean_wait_s > STOOD * self.aim_s {
            self.mean_wait_s = 0.0;
            self.phase = Phase::Probe {
                since_s: seen.now_s,
                most: FASTER_MOST,
            };
        }
    }

    /// The unlimited rate of a connection, if known.
    pub fn demand(&self) -> Option<f64> {
        self.plain.demand(self.senders)
    }

    /// The unlimited window of a connection, if known.
    pub fn plain_window_bytes(&self, min_rtt_s: f64) -> Option<f64> {
        self.plain.window_bytes(min_rtt_s, self.senders)
    }

    pub fn knows_unlimited_window(&self) -> bool {
        self.plain_window_bytes(0.0).is_some()
    }

    pub fn knows_plain(&self) -> bool {
        self.plain.is_known()
    }

    /// The part of the share to use now.
    pub fn part(&self) -> f64 {
        if matches!(self.phase, Phase::Drain { .. }) {
            EMPTYING
        } else {
            1.0
        }
    }
}
