// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The group's goodput without limits, and whether limits are worth their cost.
//!
//! The first device that sends on an unknown medium does so without limits for some seconds (the baseline measurement),
//! together with those that begin soon after it. The goodput of each one's connections is its demand, which the devices
//! report to each other; limits are measured against the sum. A station without giveway that takes the rest shows in
//! it, whatever else happens on the medium. Without limits TCP knows no weights, so demands count by connection.

use super::sample::{APART_FROM, DeviceDemand, MOST_SAY, Sample};

/// The length of a baseline measurement.
pub const BASELINE_S: f64 = 7.5;
/// The part of it that counts, before its end; not the last second, in which peers may have ended theirs and yielded.
const COUNTS_S: std::ops::Range<f64> = 1.0..4.0;
const COUNTS_LEAST_S: f64 = 1.5;
/// A baseline is valid for this long without a packet of this device, and not repeated sooner.
const KNOWN_S: f64 = 600.0;
/// Between two that send at different times.
const SILENCE_S: f64 = 15.0;
/// A device that begins this soon after the first ends the baseline with it, so that limits start at once for all. A
/// later one has its own, unless peers report theirs: a silent peer does not shorten it.
const TOGETHER_S: f64 = 2.5;
/// This long after a baseline, later devices have ended theirs too, and reports arrive again.
const HEARD_S: f64 = 3.5;
/// The group's goodput is a mean over this time, valid this long after the last probing.
const MEAN_S: f64 = 3.0;
const SETTLES_S: f64 = 4.5;
/// A larger change in this time, or between two probings, is the medium's: plain TCP's goodput changes alike.
const AIR: std::ops::RangeInclusive<f64> = 0.75..=1.33;
const EARLIER_S: f64 = 2.5;
/// Sooner after probing than it is judged: peers have to report it as well.
const FOLLOWS_S: f64 = 2.0;
/// A baseline is fresh for this long after limits return, from when the group can reach it again.
const FRESH_S: std::ops::Range<f64> = 4.0..10.0;
/// Below this part of a fresh baseline the goodput is too low sooner: only stations without giveway take so much.
const LITTLE: f64 = 0.5;
const LITTLE_FROM_S: f64 = 2.0;
/// If unmeasured, plain TCP is assumed to have a queue of this part of the minimum RTT.
const TOLD_QUEUE: f64 = 0.5;
/// The recent goodput is a mean over this time.
const LATELY_S: f64 = 1.5;
/// Nothing is judged while it rises by this much in that time.
const RISES: f64 = 0.02;
/// A report counts for at most this multiple of the median; of two devices, the other's for this multiple of the own.
const BOAST: f64 = 2.0;
const BOAST_OF_TWO: f64 = 1.25;

/// A measured baseline.
#[derive(Clone, Copy, Debug)]
struct PlainTcp {
    /// Per connection of this device, in bytes a second.
    each: f64,
    /// Own connections, and the mean number of connections with goodput that were reported in that time.
    own: usize,
    heard: f64,
    /// How many measured it together; unknown until their reports arrive again.
    of: Option<f64>,
    /// The queueing delay.
    queue_s: f64,
    at_s: f64,
}

/// Sums over a baseline measurement.
#[derive(Debug, Default)]
struct BaselineCount {
    /// Delivered by this device.
    bytes: f64,
    seconds: f64,
    /// Queueing delay, and connections with goodput, each times seconds.
    queue: f64,
    heard: f64,
}

#[derive(Debug, Default)]
pub struct Plain {
    /// Since when anybody sends, and since when nobody does.
    busy_since_s: Option<f64>,
    silent_since_s: Option<f64>,
    /// Since when this device sends, and when it last did.
    sends: Option<(f64, f64)>,
    tried_s: Option<f64>,
    counted: BaselineCount,
    known: Option<PlainTcp>,
    /// The unlimited rate of a connection by the peers' reports.
    told_each: Option<f64>,
    /// The group's mean goodput with limits: by the reports, and by this device's own, since all with enough to send
    /// have the same.
    told: f64,
    ours: f64,
    /// Its value some time ago, with that time; and before that.
    earlier: [(f64, f64); 2],
    /// Its value when the medium last changed or was first seen, and how long it has been settled.
    settled: Option<f64>,
    settled_s: f64,
    /// The time since limits returned, and the group's recent goodput.
    returned_s: Option<f64>,
    lately: f64,
    /// Its value some time ago, with that time; and before that.
    lately_before: [(f64, f64); 2],
}

impl Plain {
    /// Nothing of this device is sent.
    pub fn rest(&mut self, now_s: f64, others_send: bool) {
        if others_send {
            self.busy(now_s);
        } else {
            self.silent_since_s.get_or_insert(now_s);
            self.counted = BaselineCount::default();
        }
        self.returned_s = None;
        self.changed();
    }

    /// Somebody sends: since when.
    fn busy(&mut self, now_s: f64) -> f64 {
        let was_silent = self
            .silent_since_s
            .take()
            .is_some_and(|since_s| now_s - since_s > SILENCE_S);
        if was_silent {
            self.busy_since_s = None;
        }
        *self.busy_since_s.get_or_insert(now_s)
    }

    /// This device sends: since when.
    fn sends(&mut self, now_s: f64) -> f64 {
        let lately = self.sends.filter(|(_, last_s)| now_s - last_s <= SILENCE_S);
        let since_s = lately.map_or(now_s, |(since_s, _)| since_s);
        self.sends = Some((since_s, now_s));
        since_s
    }

    /// Until when a baseline measurement lasts, if none is known and no peer reports one.
    pub fn unknown_until(&mut self, seen: &Sample) -> Option<f64> {
        let now_s = seen.now_s;
        let busy_since_s = self.busy(now_s);
        let sends_since_s = self.sends(now_s);
        let is_together = sends_since_s - busy_since_s < TOGETHER_S;
        let began_s = if is_together { busy_since_s } else { sends_since_s };
        self.known = self.known.filter(|known| now_s - known.at_s < KNOWN_S);
        let was_tried = self
            .tried_s
            .is_some_and(|at_s| (BASELINE_S..KNOWN_S).contains(&(now_s - at_s)));
        if self.known.is_some() || was_tried || seen.is_told() || now_s - began_s >= BASELINE_S {
            return None;
        }
        if self.tried_s.is_none_or(|at_s| now_s - at_s >= KNOWN_S) {
            (self.tried_s, self.counted) = (Some(now_s), BaselineCount::default());
        }
        Some(began_s + BASELINE_S)
    }

    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// There was a pause.
    pub fn count_anew(&mut self) {
        self.counted = BaselineCount::default();
    }

    /// A poll without limits, which return at that time.
    pub fn count(&mut self, seen: &Sample, until_s: f64, dt_s: f64) {
        if COUNTS_S.contains(&(until_s - seen.now_s)) {
            self.counted.bytes += seen.moved_bytes;
            self.counted.seconds += dt_s;
            self.counted.queue += seen.queue_s * dt_s;
            // (In a small group one report of no goodput would halve this device's own measurement.)
            let heard = if seen.senders - seen.own < APART_FROM {
                seen.senders as f64
            } else {
                seen.moving
            };
            self.counted.heard += heard * dt_s;
        }
    }

    /// Limits return.
    pub fn ends(&mut self, seen: &Sample) {
        let BaselineCount {
            bytes,
            seconds,
            queue,
            heard,
        } = std::mem::take(&mut self.counted);
        // (A poll without any delivery was a timeout.)
        if seconds > COUNTS_LEAST_S && bytes > 0.0 {
            self.known = Some(PlainTcp {
                each: bytes / seconds / seen.own.max(1) as f64,
                own: seen.own,
                heard: heard / seconds,
                of: None,
                queue_s: queue / seconds,
                at_s: seen.now_s,
            });
        }
        (self.returned_s, self.lately, self.settled) = (Some(0.0), seen.total, None);
        self.changed();
    }

    /// The group has changed: its goodput has to settle.
    pub fn changed(&mut self) {
        (self.told, self.settled_s) = (0.0, 0.0);
    }

    /// Takes in the peers' demands.
    pub fn hear(&mut self, seen: &Sample) {
        let connections = seen.own as f64 + seen.demands.iter().map(|demand| demand.connections).sum::<f64>();
        let each = self.plain(seen).map(|all| all / connections);
        self.told_each = each.or(self.told_each.filter(|_| seen.senders > seen.own));
    }

    /// A poll with limits; `holds`: neither probing nor draining.
    pub fn compare(&mut self, seen: &Sample, holds: bool, dt_s: f64) {
        self.busy(seen.now_s);
        self.sends(seen.now_s);
        self.returned_s = self.returned_s.map(|since_s| since_s + dt_s);
        // Reports are lost in the queue of a baseline: this device's own goodput stands in for them, as all with enough
        // to send have the same.
        let now = seen.total.max(seen.rate * seen.full_weights + seen.light);
        self.lately += (now - self.lately) * (dt_s / LATELY_S).min(1.0);
        if seen.now_s - self.lately_before[0].1 > 0.5 * LATELY_S {
            self.lately_before = [(self.lately, seen.now_s), self.lately_before[0]];
        }
        if let Some(known) = &mut self.known {
            known.at_s = seen.now_s;
            if self.returned_s.is_none_or(|since_s| since_s > HEARD_S) {
                // A peer whose reports were lost in the baseline's queue reports what it got. A silent one that was not
                // heard could not even begin, and had no part of it. (After a pause there are other devices.)
                let was_there = |demand: &&DeviceDemand| demand.rate > 0.0 && self.returned_s.is_some();
                let others = seen.demands.iter().filter(was_there).count();
                known.of.get_or_insert(known.heard.max((known.own + others) as f64));
            }
        }
        if !holds {
            self.changed();
            return;
        }
        if self.told <= 0.0 {
            (self.told, self.ours) = (seen.total, seen.total);
            self.earlier = [(seen.total, seen.now_s); 2];
        }
        let part = (dt_s / MEAN_S).min(1.0);
        self.told += (seen.total - self.told) * part;
        let ours = seen.moved_bytes * seen.full_weights / seen.own_weight;
        self.ours += ours / MEAN_S + (seen.light - self.ours) * part;
        let settled_before_s = self.settled_s;
        self.settled_s += dt_s;
        let is_later = seen.now_s - self.earlier[0].1 > EARLIER_S;
        if is_later {
            self.earlier = [(self.limited(), seen.now_s), self.earlier[0]];
        }
        if self.settled_s > FOLLOWS_S && (is_later || settled_before_s <= FOLLOWS_S) {
            self.follow_air(seen);
        }
    }

    /// Whether the recent goodput of the group is below `worth` of the baseline just before.
    pub fn is_little_early(&self, seen: &Sample, worth: f64) -> bool {
        let since_s = self.returned_s.unwrap_or(f64::INFINITY);
        let worth = match since_s {
            _ if FRESH_S.contains(&since_s) => worth,
            _ if (LITTLE_FROM_S..FRESH_S.start).contains(&since_s) => LITTLE,
            _ => return false,
        };
        let rises = self.lately > (1.0 + RISES) * self.lately_before[1].0;
        !rises && self.plain(seen).is_some_and(|plain| self.lately < worth * plain)
    }

    /// The collapse that may end a baseline lasts at most until now.
    pub fn is_past_collapse(&self) -> bool {
        self.returned_s.is_none_or(|since_s| since_s >= FRESH_S.start)
    }

    /// Per connection of this device, if known.
    pub fn each(&self) -> Option<f64> {
        self.known.map(|known| known.each)
    }

    /// The unlimited window of a connection among so many: as measured, or by the peers' reports.
    pub fn window_bytes(&self, min_rtt_s: f64, connections: usize) -> Option<f64> {
        let queue_s = self.known.map_or(TOLD_QUEUE * min_rtt_s, |known| known.queue_s);
        Some(self.demand(connections).or(self.told_each)? * (min_rtt_s + queue_s))
    }

    /// The group's goodput relative to the unlimited one, once both are known.
    pub fn part(&self, seen: &Sample) -> Option<f64> {
        let rises = self.limited() > (1.0 + RISES) * self.earlier[1].0;
        if self.settled_s < SETTLES_S || rises {
            return None;
        }
        Some(self.limited() / self.plain(seen)?)
    }

    /// The same by this device's own goodput, whatever the peers have or report.
    pub fn own_part(&self, seen: &Sample) -> Option<f64> {
        self.part(seen)?;
        Some(self.ours / self.plain(seen)?)
    }

    /// The unlimited rate of a connection in a group of so many.
    pub fn demand(&self, connections: usize) -> Option<f64> {
        let known = self.known?;
        Some(known.each * known.of.map_or(1.0, |of| of / connections.max(1) as f64))
    }

    /// The rate of weight 1 if the baseline were divided by weight, by this device's own measurement.
    pub fn equal_part(&self, seen: &Sample) -> Option<f64> {
        Some(self.demand(seen.senders)? * seen.senders as f64 / seen.weights)
    }

    /// The group's unlimited goodput, once most of it have reported theirs. The own measurement is trusted.
    pub fn plain(&self, seen: &Sample) -> Option<f64> {
        let each = |demand: &DeviceDemand| demand.rate / demand.connections;
        let own = self.demand(seen.senders).map(|each| DeviceDemand {
            rate: each * seen.own as f64,
            connections: seen.own as f64,
        });
        let mut said: Vec<f64> = seen.demands.iter().chain(&own).map(each).collect();
        said.sort_by(f64::total_cmp);
        // An unmeasured device takes the larger of two in the middle: with the smaller, the other reports would count
        // for nothing, and limits would stay at any cost.
        let before_middle = usize::from(own.is_some());
        let most_say = *said.get(said.len().saturating_sub(before_middle) / 2)?;
        let authenticated = match (&own, said.len()) {
            (Some(own), 2) => BOAST_OF_TWO * each(own),
            _ => BOAST * most_say,
        };
        let others = seen.demands.iter();
        let others_rate: f64 = others
            .map(|demand| demand.connections * each(demand).min(authenticated))
            .sum();
        // By device, or a device with many silent senders would keep the others from judging. A silent one began later,
        // and has taken its part of what the others report since: it would have as much as they.
        let devices = (seen.senders + 1).saturating_sub(seen.own) as f64;
        let said_rate = others_rate + own.map_or(0.0, |own| own.rate);
        let plain = said_rate * devices / said.len() as f64;
        // (A measured device counts too: in a group where half of the others are measured, all of them judge.)
        let (most, say) = (MOST_SAY * devices, said.len() as f64);
        (plain > 0.0 && (say > most || own.is_some() && say >= most)).then_some(plain)
    }

    fn follow_air(&mut self, seen: &Sample) {
        let settled = *self.settled.get_or_insert(self.limited());
        let changed = self.limited() / settled.max(1.0);
        if AIR.contains(&changed) {
            return;
        }
        // More than before, but not more than without limits: it had not settled, or another station has left.
        let is_faster = self.plain(seen).is_some_and(|plain| self.limited() > plain);
        if let Some(known) = self.known.as_mut().filter(|_| changed < 1.0 || is_faster) {
            known.each *= changed;
        }
        self.settled = Some(self.limited());
    }

    fn limited(&self) -> f64 {
        self.told.max(self.ours)
    }
}
