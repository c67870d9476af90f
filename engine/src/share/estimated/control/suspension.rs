// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When limits are suspended, and how they return. Input: the sample of a poll. Output: the reason for a suspension, if
//! any.
//!
//! A station without giveway shows in a queue that stays although all yield, in a goodput far below plain TCP's, or in
//! peers that have suspended their limits.

use super::super::plain::BASELINE_S;
use super::super::sample::Sample;
use super::{Control, OTHERS_END_S, Phase, REPORT_S, STAYS, Why, is_round};

/// The peers have no limits if they have this multiple of what this device had.
const OUTGROWN: f64 = 2.0;
/// A device that suspended its limits alone takes what the others leave: once it has this multiple of theirs for this
/// long, it resumes. (Not sooner: beside a station without giveway the others suspend some seconds later.)
const ALONE_FOR_S: f64 = 15.0;
/// A queue belongs to others if it stands for this long, ...
const STANDS_S: f64 = 8.0;
/// ... and more than `STAYS` is left by each round of draining from the second on (the first starts from an earlier
/// goodput), but not within `OTHERS_END_S` of a baseline, ... (a peer that sees this part of the upper threshold sees
/// the same queue; on the own path alone, this multiple is too long), ...
const SHARED: f64 = 0.6;
const OWN: f64 = 1.5;
/// ... that takes longer than this to drain, and this many RTTs, ...
const LASTS_S: f64 = 5.0;
const LASTS_ROUNDS: f64 = 6.0;
/// ... or if beside it the group has too little of plain TCP's goodput (`plain`). Then limits are suspended for this
/// long: the same each time and for all, so that devices stay in step.
const SUSPENDED_S: f64 = 120.0;
/// The goodput is too low once it is for this long.
const SURE_S: f64 = 4.0;
/// Whatever the group's goodput, less than this part of an equal share of plain TCP's is not worth it to this device:
/// then somebody takes it, in the group or outside.
const FAIR: f64 = 0.7;
/// No peer has sent for this long: longer than a collapse swallows reports.
const ALONE_S: f64 = 30.0;
/// A lone device's retransmissions are lost as well once there is no sample for this long, and for this many RTTs.
const LOST_S: f64 = 3.0;
const LOST_ROUNDS: f64 = 6.0;
/// A retransmitting device without samples suspends nothing for this long.
const REPEATS_S: f64 = 10.0;
/// How long it has to last soon after a baseline.
const EARLY_S: f64 = 0.5;

impl Control {
    /// Whether a queue belongs to others, or the goodput is lower than limits are worth.
    pub(super) fn strange(&mut self, seen: &Sample, wait_s: f64, too_long_s: f64, dt_s: f64) -> Option<Why> {
        if let Phase::Suspended { until_s, reason } = self.phase {
            self.of_plain = None;
            if self.has_left_alone(seen, reason, dt_s) {
                let until_s = until_s.min(seen.now_s);
                self.phase = Phase::Suspended { until_s, reason };
            }
            return None;
        }
        let part = self.plain.part(seen);
        self.of_plain = part.or(self.of_plain);
        let is_robbed = self.plain.own_part(seen).is_some_and(|own| own < FAIR);
        let is_worse = is_robbed || part.is_some_and(|part| part < self.wish.worth);
        self.worse_s = if is_worse { self.worse_s + dt_s } else { 0.0 };
        if self.is_unsampled(seen) {
            // A lone device has no reports of the delay, and limits delay loss recovery.
            let silent_s = seen.now_s - self.sampled_s;
            if self.is_alone(seen.now_s) && silent_s > LOST_S.max(LOST_ROUNDS * seen.min_rtt_s) {
                return Some(Why::Lost);
            }
            if silent_s < REPEATS_S {
                return None;
            }
        }
        if self.is_worse_early(seen, wait_s, dt_s) {
            return Some(Why::Worse);
        }
        if self.is_outgrown(seen, wait_s, too_long_s, dt_s) {
            return Some(Why::Others);
        }
        let stays = if seen.their_queue_s.is_none_or(|queue_s| queue_s > SHARED * too_long_s) {
            Why::Strange
        } else {
            Why::Own
        };
        match self.phase {
            Phase::Drain { .. } => self.does_not_empty(seen, wait_s, too_long_s, stays).then_some(stays),
            Phase::Steady if self.stands_s > STANDS_S => Some(stays),
            Phase::Steady => {
                // Without a queue, low goodput is not its cost.
                let waits = self.waits_s > self.wish.waits * self.aim_s;
                let is_clear = self.worse_s > SURE_S || part.is_some_and(|part| part < self.wish.clearly);
                (waits && is_clear).then_some(Why::Worse)
            }
            _ => None,
        }
    }

    pub(super) fn is_alone(&self, now_s: f64) -> bool {
        now_s - self.accompanied_s > ALONE_S
    }

    /// Whether a queue stays although this device yields.
    fn does_not_empty(&self, seen: &Sample, wait_s: f64, too_long_s: f64, stays: Why) -> bool {
        let Phase::Drain {
            round,
            first_s,
            since_s,
            waited_s,
            before,
        } = self.phase
        else {
            return false;
        };
        // Without peers the queue may be on the own path. Peers may have begun later, and end their baseline later.
        let has_others = seen.senders > seen.own;
        let rounds = if has_others { 2 } else { 1 };
        let is_after_baseline = has_others && before.is_infinite() && seen.now_s - first_s < OTHERS_END_S;
        // A queue that was short and has grown again did respond.
        let least_s = if stays == Why::Own { OWN } else { STAYS } * too_long_s;
        let is_long = wait_s.min(waited_s) > least_s && wait_s > STAYS * waited_s;
        let is_left = is_long && round >= rounds && !is_after_baseline && self.yields(seen);
        let lasts = seen.now_s - first_s > LASTS_S + LASTS_ROUNDS * (seen.min_rtt_s + wait_s);
        // A sample is needed from this round; and where the peers see no queue, a device below half of its floor was
        // retransmitting, whose delay is no queue.
        let is_new = self.delivered_s > since_s && wait_s > 0.5 * self.aim_s;
        let is_queue = is_new && (stays == Why::Strange || seen.rate > 0.5 * self.floor);
        is_queue && is_round(seen, since_s, wait_s) && (is_left || lasts)
    }

    /// While draining, devices that yield have small windows. If most have far larger ones than this device had before,
    /// they have suspended their limits, and a device that keeps them starves.
    fn is_outgrown(&mut self, seen: &Sample, wait_s: f64, too_long_s: f64, dt_s: f64) -> bool {
        let had = match self.phase {
            Phase::Drain { before, .. } if wait_s > too_long_s && seen.now_s - self.returned_s > OTHERS_END_S => {
                before.max(self.share)
            }
            _ => f64::INFINITY,
        };
        let is_outgrown = seen.theirs.is_some_and(|theirs| theirs > OUTGROWN * had);
        self.outgrown_s = if is_outgrown { self.outgrown_s + dt_s } else { 0.0 };
        self.outgrown_s > REPORT_S
    }

    /// Soon after a baseline plain TCP's goodput is fresh, and a station without giveway takes more each second. So it
    /// does not wait until the share has settled: packets queue, here and at the peers, and the share is not too large.
    fn is_worse_early(&mut self, seen: &Sample, wait_s: f64, dt_s: f64) -> bool {
        let is_less = self.plain.is_little_early(seen, self.wish.early);
        // A delay above an RTT may be the collapse that ends a baseline, and one without deliveries since is old.
        let may_be_collapse = wait_s >= seen.min_rtt_s && !self.plain.is_past_collapse();
        let is_now = seen.now_s - self.delivered_s < REPORT_S;
        let waits = wait_s >= self.aim_s && !may_be_collapse && is_now;
        let they_wait = seen.their_queue_s.is_none_or(|queue_s| queue_s > 0.5 * self.aim_s);
        self.early_s = if is_less && waits && they_wait {
            self.early_s + dt_s
        } else {
            (self.early_s - dt_s).max(0.0)
        };
        self.early_s > EARLY_S
    }

    /// A queue that this device saw alone was not of other stations: the peers go on without this device, which is one
    /// to them.
    fn has_left_alone(&mut self, seen: &Sample, reason: Why, dt_s: f64) -> bool {
        let is_alone =
            !matches!(reason, Why::Unknown) && seen.theirs.is_some_and(|theirs| OUTGROWN * theirs < seen.rate);
        self.outgrown_s = if is_alone { self.outgrown_s + dt_s } else { 0.0 };
        self.outgrown_s > ALONE_FOR_S
    }

    pub(super) fn suspend(&mut self, now_s: f64, reason: Why) {
        (self.early_s, self.outgrown_s) = (0.0, 0.0);
        // A finding of one device alone: its group, which may only be out of hearing, goes without it as long.
        let for_s = if matches!(reason, Why::Own | Why::Lost) {
            BASELINE_S
        } else {
            SUSPENDED_S
        };
        self.phase = Phase::Suspended {
            until_s: now_s + for_s,
            reason,
        };
    }

    pub(super) fn return_to_limits(&mut self, seen: &Sample, wait_s: f64, too_long_s: f64) {
        let left_alone = self.outgrown_s > ALONE_FOR_S;
        if let Some(theirs) = seen.theirs.filter(|_| left_alone) {
            // Nothing new is known of the unlimited rate.
            self.plain.changed();
            self.share = theirs.max(self.keeps(seen)).min(seen.rate).max(self.floor);
        } else {
            self.plain.ends(seen);
            // The present goodput may be that of a loss recovery.
            let had = self.plain.each().unwrap_or(0.0) * seen.own as f64 / seen.own_weight;
            self.share = seen.rate.max(had).max(self.floor);
        }
        self.outgrown_s = 0.0;
        self.stands_s = 0.0;
        self.returned_s = seen.now_s;
        self.phase = Phase::Steady;
        if wait_s > too_long_s {
            // No share of this device made this queue: it shows no collapse point.
            self.enter_empty(seen, wait_s, f64::INFINITY);
        }
    }
}
