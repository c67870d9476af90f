// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much each may have: one number, the share of a connection of weight 1, moved by what this device's own
//! connections wait for. Input: what they see, at each poll. Output: the share, and how it is to be used just now.
//!
//! A queue says that the share is too large. It is emptied by half a round trip of restraint, not by trembling around
//! it: where stations collide the rate of their radios falls, and only a queue that has gone shows what the air really
//! carries. Where it then carries more than it did with the queue, it has a collapse point, and the share stays below it.

use std::collections::VecDeque;

use super::plain::Plain;
use super::sample::{APART_FROM, Sample};
use crate::config::Prefer;

mod suspension;

/// The least wait of this long counts: acknowledgements that are held back for 40 ms are no queue.
const WINDOW_S: f64 = 0.15;
/// A queue has gone for good when none was seen for this long.
const LONG_WINDOW_S: f64 = 0.4;
/// Without a new sample for so long, and two round trips, a wait is old.
const OLD_SAMPLE_S: f64 = 1.0;
/// A report comes about this much later.
const REPORT_S: f64 = 0.5;
/// What all together want is the same within this part.
const SAME: f64 = 0.04;
/// Who left so soon after a start gives back all that it took.
const JOINED_S: f64 = 10.0;
/// In the same time: more turns from coming to going and back are not authenticated.
const TURNS: usize = 4;
/// What was seen is old after so long without a look: a pause, or a process that was stopped.
const OLD_AFTER_S: f64 = 3.0;
/// Each part of the group's minimum RTT (at most so many times ours, and at least as much less) by which the queue is too
/// short raises the share by this part of it, in a time in which it shows; and lowers it where it is too long.
const PATHS: f64 = 8.0;
const RAISE: f64 = 0.1;
const LOWER: f64 = 0.3;
/// Until so much of it is left that it had when the wait was last as it should be.
const LOWERED: f64 = 0.5;
/// With no queue for two such times the share grows by this, each time twice as much as before, at most ...
const CREEP: f64 = 0.01;
const CREEP_MOST: f64 = 0.25;
/// ... and each round trip by this, each time twice as much, at most, once a queue was emptied; and at most by more where one that
/// stood has gone by itself.
const SEARCH: f64 = 0.05;
const SEARCH_MOST: f64 = 0.2;
pub const FASTER_MOST: f64 = 0.4;
/// A queue stood when its mean of some seconds was this part of what is aimed at; and has gone below that.
const STOOD: f64 = 0.4;
const MEAN_OVER_S: f64 = 3.0;
const GONE: f64 = 0.25;
/// As peers say of theirs.
const GONE_FOR_ALL: f64 = 0.5;
const GONE_FOR: f64 = 1.5;
/// However slow the group is, the aim is at most this part of the minimum RTT, or what `prefer` has as too long.
const AIM_MOST: f64 = 0.15;
/// While it is emptied, this part of what is got is sent; afterwards one begins with that.
const EMPTYING: f64 = 0.5;
const RESUME: f64 = 0.8;
/// The share is at most this many times what is got.
const ROOM: f64 = 1.3;
/// What comes back of the share once a queue has gone, where it was the queue that made the air slow.
const REGAINED: f64 = 0.7;
/// A queue of so many times what is too long may have made the air slow, ...
const COLLAPSE: f64 = 1.25;
/// ... and had, where so many times what was got beside it is had without one. (Or the air had but become slower.)
const SLOWED: f64 = 1.2;
const REMEMBERED_S: f64 = 10.0;
const ROOM_AFTER: f64 = 2.0;
/// The share stays this part below a collapse point, for so long; each time that it was still too much, twice as long.
const BELOW_COLLAPSE: f64 = 0.95;
const COLLAPSE_S: f64 = 20.0;
const COLLAPSE_MOST_S: f64 = 320.0;
/// Peers move the share by at most these parts in the time of a report: down by less than it grows by where there
/// is room, and up only where the queue is not much longer than it should be.
const PULL: std::ops::RangeInclusive<f64> = 0.85..=1.25;
/// But not below this part of an equal one of what plain TCP was measured to move here: by less than `plain` takes for a slower
/// air, or what a peer's word has taken would count as the air's doing, and be taken again.
const KEEPS: f64 = 0.8;
/// Who has so many times what the others have comes down to them, room or not, where they are so many that no single one
/// decides.
const APART: f64 = 1.25;

/// Close enough to theirs.
const CLOSE: f64 = 0.05;
/// A queue is that of a collapse point from this part of its level on.
const NEAR: f64 = 0.9;
/// Who sends so many times what is got adds to the queue that is emptied.
const YIELDS: f64 = 1.1;
/// A queue stays of which more than this part is left by a round of emptying.
const STAYS: f64 = 0.8;
/// So long after a baseline of ours the others may not have ended theirs.
const OTHERS_END_S: f64 = 3.0;
/// While it is emptied the air carries less still where a queue is so much longer after a round.
const GROWS: f64 = 1.1;

/// What `prefer` asks for, as parts of the minimum RTT and the least in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    aim: f64,
    aim_least_s: f64,
    too_long: f64,
    too_long_least_s: f64,
    /// And at least so many packets, and so many of each sender.
    packets: (f64, f64),
    /// Moving less than this part of what plain TCP would for some seconds is not worth the shorter queue, ...
    worth: f64,
    /// ... and less than this part at once.
    clearly: f64,
    /// Soon after a baseline, less than this part.
    early: f64,
    /// And where packets wait for less than this part of the aim, it is not for a queue that less is moved.
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
    /// Until a queue is seen; slow start does the rest.
    Start,
    /// `most`: by this part it grows in a round trip at most.
    Probe {
        since_s: f64,
        most: f64,
    },
    Steady,
    /// `before`: the share that had been too much; `waited_s`: at the begin of this round of it.
    Drain {
        round: u32,
        first_s: f64,
        since_s: f64,
        waited_s: f64,
        before: f64,
    },
    /// Nothing is limited.
    Suspended {
        until_s: f64,
        reason: Why,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    /// To know what plain TCP moves here.
    Unknown,
    /// A queue stays though this device yields, ...
    Strange,
    /// ... and peers see less of it.
    Own,
    /// Less is moved, of what plain TCP would, than a short queue is worth.
    Worse,
    /// The others have no limits any more.
    Others,
    /// What a lone device repeats is lost as well.
    Lost,
}

/// The latest queue that was emptied.
#[derive(Clone, Copy, Debug)]
struct Emptied {
    at_s: f64,
    before: f64,
    /// What was got while the queue stood.
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
    /// Bytes a second of a connection of weight 1; 0: not known yet.
    pub share: f64,
    /// The queue that is aimed at.
    pub aim_s: f64,
    weights: f64,
    /// What all wanted when it last differed, and when that turned from more to less or back.
    last_weights: f64,
    turns: VecDeque<(bool, f64)>,
    /// When all shares last changed at once, but for changes that soon followed another.
    changed_s: f64,
    /// The share before others came lately, and when they did.
    before_join: Option<(f64, f64)>,
    last_s: f64,
    waits: VecDeque<(f64, f64)>,
    /// When the last of them was another than the one before.
    sampled_s: f64,
    /// Something was repeated since.
    has_repeated: bool,
    /// It has repeated what was lost, and begins anew where others send.
    begins_anew: bool,
    /// What was got while the queue stood that is emptied.
    carried: f64,
    /// The share when the wait was last as long as it should be.
    held_share: f64,
    /// When limits last came back after a time without.
    pub(super) returned_s: f64,
    /// In the mean: while a queue stands, and at any time.
    mean_wait_s: f64,
    waits_s: f64,
    /// The longest that peers have said of theirs since the latest emptying began.
    their_longest_s: f64,
    /// When somebody else of the group last sent.
    accompanied_s: f64,
    /// When a packet of ours was last delivered: what waits is as old.
    delivered_s: f64,
    /// Since when: no queue, none for good, one that is too long.
    quiet_s: f64,
    gone_s: f64,
    stands_s: f64,
    longest_s: f64,
    emptied: Option<Emptied>,
    collapse: Option<CollapsePoint>,
    pub(super) plain: Plain,
    /// All connections of ours repeat what was lost.
    pub is_repeating: bool,
    /// What is moved with limits, of what would be moved without.
    pub of_plain: Option<f64>,
    /// For how long that has been too little.
    worse_s: f64,
    outgrown_s: f64,
    early_s: f64,
    senders: usize,
}

/// Until a change of the share shows in what peers report.
fn shows_after_s(seen: &Sample, wait_s: f64) -> f64 {
    seen.min_rtt_s + wait_s + REPORT_S
}

/// While a queue is emptied: a round of it is over. Not before those with longer paths can have yielded as well.
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

    /// Nothing of ours sends: what was learnt of the air is old when something does again.
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
            // What one has alone without limits is not what all would have.
            Phase::Suspended {
                reason: Why::Own | Why::Strange | Why::Lost,
                ..
            } => {}
            // What was delivered in a pause came at no rate.
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

    /// Nothing is limited at first where nothing is known, until somebody says what there is to know.
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
                    // What was counted so far, where that is enough.
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

    /// A start or a stop changes all shares at once, and a demand that rises or falls; what is left, by no more than can be
    /// checked.
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
        // Who comes and goes again and again takes nothing for good.
        self.before_join = self.before_join.filter(|(_, at_s)| seen.now_s - at_s < JOINED_S);
        if by < 1.0 {
            self.before_join.get_or_insert((self.share, seen.now_s));
        }
        let had = self.before_join.map_or(0.0, |(share, _)| share);
        // (Whoever changes what it wants all the time holds nothing still for more than half of it.)
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

    /// Whether somebody comes and goes so often that a stop says nothing: what it left would be revoked in the next second, and
    /// nothing would ever settle.
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

    /// The same for all, or those with less of it would yield to those with more.
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
        // (Soon after a baseline others' word is old as well: reports were lost in the queue.)
        let is_later = !matches!(self.phase, Phase::Suspended { .. }) && seen.now_s - self.returned_s > OTHERS_END_S;
        let others_say = seen.their_queue_s.filter(|_| is_later && self.is_unsampled(seen));
        others_say.map_or(wait_s, |theirs_s| theirs_s.min(wait_s))
    }

    /// Who repeats what was lost has no new samples of its own: the last one is old.
    fn is_unsampled(&self, seen: &Sample) -> bool {
        self.has_repeated && seen.now_s - self.sampled_s > (2.0 * seen.min_rtt_s).max(OLD_SAMPLE_S)
    }

    fn least_wait(&self, from_s: f64) -> f64 {
        let recent = self.waits.iter().filter(|(at_s, _)| *at_s >= from_s);
        recent.map(|(_, wait_s)| *wait_s).fold(f64::INFINITY, f64::min)
    }

    /// Towards what the peers have, so that all have the same.
    fn pull(&mut self, seen: &Sample, wait_s: f64, dt_s: f64, shows_after_s: f64) {
        let (Phase::Steady | Phase::Probe { .. }, Some(theirs)) = (self.phase, seen.theirs) else {
            return;
        };
        // What they report is still of before a start, a stop or a change of demand, which changes theirs as well.
        if seen.now_s - self.changed_s < REPORT_S {
            return;
        }
        let ratio = theirs / self.share;
        // Their windows are whole segments, and half a second old: by what is less than that, shares would be held where they are.
        let is_close = self.phase == Phase::Steady && (ratio - 1.0).abs() < CLOSE;
        if !is_close {
            // What the others say is half a second old: where they have just come down for a queue that one sees as well, it is no
            // reason to go up.
            let most = if wait_s > 2.0 * self.aim_s { 1.0 } else { *PULL.end() };
            // Where nothing waits there is room for both, unless there is a collapse point: also where only the others have found one, and
            // stay below it.
            let is_near = ratio * APART > 1.0 || seen.senders.saturating_sub(seen.own) < APART_FROM;
            let has_room = self.collapse.is_none() && self.quiet_s > 2.0 * shows_after_s && is_near;
            let least = if has_room { 1.0 } else { *PULL.start() };
            let pulled = self.share * ratio.clamp(least, most).powf(dt_s / shows_after_s);
            let pulled = pulled.max(self.keeps(seen).min(self.share));
            // No word of theirs raises it above what is got. It may pass this device's own collapse point: that is how one that has found
            // its collapse point too low comes back to what the others have.
            self.share = pulled.min((ROOM * seen.rate).max(self.share)).max(self.floor);
        }
    }

    /// Below this no word of a peer takes the share; a queue does. Among many no single word decides, and what this device had
    /// without limits may be more than an equal part, as on a short path.
    pub(super) fn keeps(&self, seen: &Sample) -> f64 {
        if seen.senders.saturating_sub(seen.own) >= APART_FROM {
            return 0.0;
        }
        KEEPS * self.plain.equal_part(seen).unwrap_or(0.0)
    }

    fn begin_to_empty(&mut self, seen: &Sample, wait_s: f64) {
        // The same for all, as far as a peer's word may count.
        let theirs = seen
            .theirs
            .unwrap_or(self.share)
            .clamp(0.8 * self.share, 1.25 * self.share);
        let before = (theirs * self.share).sqrt();
        // What forms far below it is somebody else's.
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
        // What stands from here on is another queue.
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
            // It is the others' word that the queue has gone, and what has to be repeated that kept this device slow. That
            // word raises its share to no more than there was to have.
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
            // What a lone device has just got in a baseline is what it carries.
            let is_fresh = before.is_infinite() && self.is_alone(seen.now_s);
            if self.is_unsampled(seen) || self.is_repeating || is_fresh {
                // Nothing tells of it: what is got is that of a repair, or of so few in flight, and not of the air.
            } else if wait_s > GROWS * waited_s {
                // The air carries less still.
                self.share = seen.rate.min(self.share).max(self.floor);
                self.carried = self.carried.min(self.share);
            } else if round == 0 && (wait_s > STAYS * waited_s || (before.is_finite() && !self.yields(seen))) {
                // Half of what was got before it became slow may be all that it carries. (Once: a stranger's queue stays.)
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

    /// Whether no more is sent while a queue is emptied than is got: beside a stranger's queue too that is as much.
    fn yields(&self, seen: &Sample) -> bool {
        EMPTYING * self.share < YIELDS * seen.rate.max(self.floor)
    }

    /// What the share may not exceed for now.
    fn ceiling(&mut self, seen: &Sample, wait_s: f64, too_long_s: f64, shows_after_s: f64) -> f64 {
        // Where nothing waits for long below a level that was no collapse point, the air has become faster.
        let has_room = self.collapse.is_none() && self.quiet_s > ROOM_AFTER * shows_after_s;
        let is_old = |emptied: &Emptied| has_room || seen.now_s - emptied.at_s > REMEMBERED_S;
        self.emptied = self.emptied.filter(|emptied| !is_old(emptied));
        let mut ceiling = f64::INFINITY;
        if let Some(emptied) = self.emptied {
            if emptied.before.is_infinite() {
                // After a baseline each has enough with an equal part of what all had in it.
                ceiling = self.plain.plain(seen).map_or(f64::INFINITY, |all| all / seen.weights);
            } else if emptied.before > 0.9 * self.share {
                ceiling = BELOW_COLLAPSE * emptied.before;
            }
            let was_long = emptied.longest_s > COLLAPSE * too_long_s;
            // Where throughput falls it does for all, and nobody has more; where they are few, one's word does not count for that.
            let few = seen.senders.saturating_sub(seen.own) < APART_FROM;
            let was_theirs =
                self.their_longest_s > too_long_s && seen.theirs.is_none_or(|theirs| theirs < APART * emptied.before);
            // Soon after a baseline it may be the queue of those who have not ended theirs.
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

    /// Up while there is no queue, and to where it is as long as it should be.
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
                // Who begins anew in its own group has enough with what the others have.
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
            // What half of it does not shorten is no queue of ours.
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
        // Of the group's paths, the same for all: by its own, who has a long one would hardly raise its share, and those with
        // short ones would come down to it again.
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

    /// How long there has been no queue; one that stood and has gone means that the air has become faster.
    fn notice(&mut self, seen: &Sample, wait_s: f64, dt_s: f64, shows_after_s: f64) {
        self.quiet_s = if wait_s < 0.5 * self.aim_s {
            self.quiet_s + dt_s
        } else {
            0.0
        };
        // What peers say is a smoothed RTT, half a second old: it tells that a queue stood, and that it has gone for all.
        let theirs_s = seen.their_queue_s;
        let is_gone = self.least_wait(f64::NEG_INFINITY) < GONE * self.aim_s;
        self.gone_s = if is_gone { self.gone_s + dt_s } else { 0.0 };
        // (Jitter on their paths looks like a queue: then the share grows as where none stood.)
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

    /// What a connection of ours would get without limits, where that is known.
    pub fn demand(&self) -> Option<f64> {
        self.plain.demand(self.senders)
    }

    /// What a connection of ours had in flight without limits, where that is known.
    pub fn plain_window_bytes(&self, min_rtt_s: f64) -> Option<f64> {
        self.plain.window_bytes(min_rtt_s, self.senders)
    }

    pub fn knows_unlimited_window(&self) -> bool {
        self.plain_window_bytes(0.0).is_some()
    }

    pub fn knows_plain(&self) -> bool {
        self.plain.is_known()
    }

    /// The part of the share that is to be used just now.
    pub fn part(&self) -> f64 {
        if matches!(self.phase, Phase::Drain { .. }) {
            EMPTYING
        } else {
            1.0
        }
    }
}
