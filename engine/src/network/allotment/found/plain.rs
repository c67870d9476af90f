// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the group would move without limits, and whether giving way is worth what it costs.
//!
//! Who sends first on an unknown air does so without limits for some seconds, and those who begin soon after it. What each got
//! then stands for what the whole group moves; the devices tell it to each other as their demand, and the mean of it is what
//! the limits are measured against. A stranger that takes what we leave shows in it, whatever else the air does.

use super::control::Seen;
use super::group::median;

/// Nothing is limited for so long, to know what is moved so; the end of it counts.
pub const TRIAL_S: f64 = 7.5;
const COUNTS_S: f64 = 4.0;
/// It is known for so long without a packet of ours.
const KNOWN_S: f64 = 600.0;
/// The group's rate is a mean over so long, and says something so long after the last search.
const MEAN_S: f64 = 3.0;
const SETTLES_S: f64 = 4.5;
/// What changes by more than these parts in so long, or from one search to the next, is the air: plain TCP would move as
/// much less or more.
const AIR: std::ops::RangeInclusive<f64> = 0.75..=1.33;
const EARLIER_S: f64 = 2.5;
/// Sooner after a search than it is judged: the others have to say so as well.
const FOLLOWS_S: f64 = 2.0;
/// So long after a return to limits ours have at least this part of what they had. That is a mean over so long.
const RETURNS_S: f64 = 3.5;
const COLLAPSED: f64 = 0.25;
const LATELY_S: f64 = 1.5;
/// Nothing is judged while it rises by so much in that time, ...
const RISES: f64 = 0.02;
/// ... and before so many have said what they got.
const MOST_SAY: f64 = 0.75;
/// No member's word counts for more than so many times what most say.
const BOAST: f64 = 2.0;

/// What a member would get without limits, and its weight.
pub type Demand = (f64, f64);

/// What was had without limits.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// By a connection of ours of weight 1, in bytes a second.
    each: f64,
    /// The weights of the group in which it was; not known before its reports come again.
    of: Option<f64>,
    at_s: f64,
}

#[derive(Debug, Default)]
pub struct Plain {
    /// Since when anybody sends.
    busy_since_s: Option<f64>,
    /// Without limits: bytes of ours, and in how long.
    moved: (f64, f64),
    known: Option<Known>,
    /// What the group moves with limits, in the mean: by what is told, and by what ours get, since all have the same.
    told: f64,
    ours: f64,
    /// What it was some time ago, and when that was; and before that.
    earlier: [(f64, f64); 2],
    /// What it was when it had last settled, and since when it settles.
    settled: Option<f64>,
    settled_s: f64,
    /// For so long since a return to limits, and what the group moved lately.
    returned_s: Option<f64>,
    lately: f64,
}

impl Plain {
    /// Nothing of ours sends.
    pub fn rest(&mut self, now_s: f64, others_send: bool) {
        self.busy_since_s = others_send.then(|| self.busy_since_s.unwrap_or(now_s));
        (self.moved, self.returned_s) = ((0.0, 0.0), None);
        self.changed();
    }

    /// Until when nothing is to be limited, where nothing is known.
    pub fn unknown_until(&mut self, now_s: f64) -> Option<f64> {
        self.known = self.known.filter(|known| now_s - known.at_s < KNOWN_S);
        let until_s = *self.busy_since_s.get_or_insert(now_s) + TRIAL_S;
        (self.known.is_none() && now_s < until_s).then_some(until_s)
    }

    /// A pass without limits, which end at that time.
    pub fn count(&mut self, seen: &Seen, until_s: f64, dt_s: f64) {
        if seen.now_s > until_s - COUNTS_S {
            self.moved = (self.moved.0 + seen.moved_bytes, self.moved.1 + dt_s);
        }
    }

    /// Limits are in force again.
    pub fn ends(&mut self, seen: &Seen) {
        let (bytes, seconds) = std::mem::take(&mut self.moved);
        if seconds > 0.5 * COUNTS_S {
            self.known = Some(Known {
                each: bytes / seconds / seen.own_weight,
                of: None,
                at_s: seen.now_s,
            });
        }
        (self.returned_s, self.lately, self.settled) = (Some(0.0), 0.0, None);
        self.changed();
    }

    /// The group is another: what it moves has to settle.
    pub fn changed(&mut self) {
        (self.told, self.settled_s) = (0.0, 0.0);
    }

    /// A pass with limits; `holds`: nothing is searched or emptied.
    pub fn compare(&mut self, seen: &Seen, holds: bool, dt_s: f64) {
        self.returned_s = self.returned_s.map(|since_s| since_s + dt_s);
        self.lately += (seen.total - self.lately) * (dt_s / LATELY_S).min(1.0);
        if !holds {
            self.changed();
            return;
        }
        if self.told <= 0.0 {
            (self.told, self.ours) = (seen.total, seen.total);
            self.earlier = [(seen.total, seen.now_s); 2];
        }
        let ours = seen.moved_bytes / dt_s.max(1e-3) * seen.weights / seen.own_weight;
        let part = (dt_s / MEAN_S).min(1.0);
        self.told += (seen.total - self.told) * part;
        self.ours += (ours - self.ours) * part;
        let settled_before_s = self.settled_s;
        self.settled_s += dt_s;
        let is_later = seen.now_s - self.earlier[0].1 > EARLIER_S;
        if is_later {
            self.earlier = [(self.limited(), seen.now_s), self.earlier[0]];
        }
        if self.settled_s > FOLLOWS_S && (is_later || settled_before_s <= FOLLOWS_S) {
            self.follow_air();
        }
        if let Some(known) = &mut self.known {
            known.at_s = seen.now_s;
            if self.settled_s > SETTLES_S {
                known.of.get_or_insert(seen.weights);
            }
        }
    }

    /// Limits were returned to, and cost most of what was had.
    pub fn collapsed(&self, demands: &[Demand], weights: f64) -> bool {
        self.returned_s
            .is_some_and(|since_s| (RETURNS_S..2.0 * RETURNS_S).contains(&since_s))
            && plain(demands, weights).is_some_and(|plain| self.lately < COLLAPSED * plain)
    }

    /// What the group moves, of what it would move without limits; once both are known.
    pub fn part(&self, demands: &[Demand], weights: f64) -> Option<f64> {
        let rises = self.limited() > (1.0 + RISES) * self.earlier[1].0;
        if self.settled_s < SETTLES_S || rises {
            return None;
        }
        Some(self.limited() / plain(demands, weights)?)
    }

    /// What a connection of this weight would have, in a group of these weights.
    pub fn demand(&self, weight: f64, weights: f64) -> Option<f64> {
        let known = self.known?;
        Some(known.each * weight * known.of.map_or(1.0, |of| of / weights))
    }

    fn follow_air(&mut self) {
        let changed = self.settled.map_or(1.0, |settled| self.limited() / settled);
        if let Some(known) = &mut self.known
            && !AIR.contains(&changed)
        {
            known.each *= changed;
        }
        self.settled = Some(self.limited());
    }

    fn limited(&self) -> f64 {
        self.told.max(self.ours)
    }
}

/// What the group would move without limits, where most of it have said so.
pub(super) fn plain(demands: &[Demand], weights: f64) -> Option<f64> {
    let known = demands.iter().map(|(_, weight)| weight).sum::<f64>();
    let most_say = median(demands.iter().map(|(rate, weight)| rate * weights / weight))?;
    let within = |(rate, weight): &Demand| {
        let says = rate * weights / weight;
        weight * says.min(BOAST * most_say)
    };
    let plain = demands.iter().map(within).sum::<f64>() / known;
    (known >= MOST_SAY * weights && plain > 0.0).then_some(plain)
}
