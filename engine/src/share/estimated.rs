// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares of an estimated capacity. Every connection of the group may have the same share, by its weight, and the share
//! grows until this device's packets begin to queue. Limits cwnd and pacing rate together. `docs/explanation/shared-capacity.md` has the
//! reasoning.
//!
//! A device's own measurements decide how much is in flight; the peers' reports decide how it is divided, within
//! bounds, and whether limits are worth their cost (`plain`). So a report may suspend the limits, which leaves plain
//! TCP, but none pushes a device below its floor, or makes it send more than plain TCP would.

use std::collections::HashMap;
use std::time::Duration;

use super::Limits;
use super::{EstimateView, SharePhase};
use super::{FLOOR_SEGMENTS, Link, Member, SharePolicy};
use crate::config::{Cap, Prefer};
use crate::model::{Class, Cookie};

mod control;
mod group;
mod plain;
mod sample;

use control::{Control, Phase, Why};
use group::{HELD_BACK_SEGMENTS, Sending, median, median_wait};
use sample::{DeviceDemand, Sample, is_told};

/// Pacing above the share, so that in the long run cwnd limits a connection, not the pacing rate.
const PACING: f64 = 1.2;
/// With limits all get about the same: a peer's reported rate counts up to this multiple of the median. A larger bound
/// would let a boasting peer hide what it takes.
const AUTHENTICATED: f64 = 1.25;
/// A peer below this part of the median has next to no goodput.
const MOVES: f64 = 0.125;
/// A connection that has existed for this long and delivers less than this part of its share, though it has more to
/// send and does not retransmit, is limited by its remote host (a slow reader): the rest goes to its device's other
/// connections.
const LEAVES_ROOM: f64 = 0.5;
const LEAVES_ROOM_AFTER_S: f64 = 10.0;
/// The averaging time of a connection's delivery rate.
const DELIVERS_OVER_S: f64 = 5.0;
/// A limit that differs by less than this fraction is unchanged.
const SETTLED_WITHIN: u64 = 64;
/// No limited window is smaller than this rate needs, within `FLOOR_SEGMENTS` and the initial window.
const LEAST_RATE: f64 = 0.5 * 125_000.0;
/// After a suspension a connection has regained its rate at this part of it, or after this time.
const REGAINED: f64 = 0.75;
const REGAINS_S: f64 = 20.0;
/// After this long without a report of the group the device is elsewhere, or alone.
const GONE_AFTER_S: f64 = 30.0;

pub struct EstimatedCapacity {
    prefer: Prefer,
    segment_bytes: f64,
    floor: f64,
    control: Control,
    /// Not limiting without a peer on the link.
    needs_members: bool,
    /// When a report was last received.
    heard_s: Option<f64>,
    /// The latest poll.
    now_s: f64,
    delivered: HashMap<Cookie, Delivered>,
    /// Own connections that have not regained plain TCP's rate since they were last limited, with that time.
    regaining: HashMap<Cookie, f64>,
}

/// The deliveries of an own connection.
#[derive(Clone, Copy)]
struct Delivered {
    since_s: f64,
    segments: u32,
    bytes_per_s: f64,
}

impl EstimatedCapacity {
    pub fn from_config(cap: &Cap) -> Self {
        let floor = cap.floor_mbit * 125_000.0;
        Self {
            prefer: cap.prefer,
            segment_bytes: group::payload_bytes(cap.segment_bytes),
            floor,
            control: Control::new(cap.prefer, floor),
            needs_members: false,
            heard_s: None,
            now_s: 0.0,
            delivered: HashMap::new(),
            regaining: HashMap::new(),
        }
    }

    /// Not limiting without a peer on the link.
    pub fn only_beside_members(self) -> Self {
        Self {
            needs_members: true,
            ..self
        }
    }

    fn hear(&mut self, link: &Link<'_>) {
        if link.peers.peers().any(|peer| peer.authenticated) {
            self.heard_s = Some(self.now_s);
        }
    }

    /// (An access point drops reports when its queue is full, and peers expire for seconds.)
    fn may_limit(&self) -> bool {
        let is_beside_one = self.heard_s.is_some_and(|at_s| self.now_s - at_s < GONE_AFTER_S);
        !self.needs_members || is_beside_one
    }

    fn peers(&self, link: &Link<'_>) -> Vec<Sending> {
        group::peers(link, self.segment_bytes)
    }

    /// Delivered by this device since the last poll, `passed_s` ago.
    fn moved_bytes(&mut self, passed_s: f64, members: &[Member]) -> f64 {
        let before = std::mem::take(&mut self.delivered);
        let fades = (-passed_s / DELIVERS_OVER_S).exp();
        let mut moved = 0.0;
        for one in members {
            let known = before.get(&one.cookie);
            let segments = known.map_or(0, |known| one.delivered_segments.wrapping_sub(known.segments));
            // A lower counter is no progress.
            let segments = if segments <= u32::MAX / 2 { segments } else { 0 };
            let bytes = f64::from(segments) * f64::from(one.mss_bytes);
            moved += bytes;
            let delivered = Delivered {
                since_s: known.map_or(self.now_s, |known| known.since_s),
                segments: one.delivered_segments,
                bytes_per_s: known.map_or(0.0, |known| known.bytes_per_s * fades) + bytes / DELIVERS_OVER_S,
            };
            self.delivered.insert(one.cookie, delivered);
        }
        moved
    }

    /// The own connections; those that do not use their parts leave the rest to the others.
    fn own(&self, members: &[Member]) -> Vec<Sending> {
        let mut own = group::own(members, self.segment_bytes);
        let rates: Vec<Option<f64>> = own.iter().zip(members).map(|of| self.leaves_room(of)).collect();
        // Where all get less, no remote host is the cause.
        let some_get_theirs = rates.contains(&None);
        for (one, rate) in own.iter_mut().zip(rates) {
            let held_back = rate.filter(|_| some_get_theirs);
            one.wants_more = held_back.is_none();
            if let Some(rate) = held_back {
                // Not by what its window allows.
                (one.rate, one.in_flight_bytes) = (rate, rate * one.srtt_s);
            }
        }
        group::lend(&mut own, self.control.share);
        own
    }

    /// Its delivery rate, if its remote host limits it.
    fn leaves_room(&self, (one, member): (&Sending, &Member)) -> Option<f64> {
        let known = self.delivered.get(&member.cookie)?;
        let has_had_time = self.now_s - known.since_s >= LEAVES_ROOM_AFTER_S;
        let leaves_room = known.bytes_per_s < LEAVES_ROOM * one.weight * self.control.share;
        (has_had_time && !member.is_repeating && leaves_room).then_some(known.bytes_per_s)
    }

    fn sample(
        &self,
        now: Duration,
        own: &[Sending],
        peers: &[Sending],
        moved_bytes: f64,
        demands: &[DeviceDemand],
    ) -> Option<Sample> {
        let weight: f64 = own.iter().map(|one| one.weight).sum();
        let aim_s = self.control.aim_s;
        let wanting = peers.iter().filter(|one| one.wants_more);
        let all = || own.iter().chain(peers);
        let most_get = median(all().map(|one| (one.rate() / one.weight, one.voice))).unwrap_or(0.0);
        let authenticated = |one: &Sending| one.rate().min(AUTHENTICATED * most_get * one.weight);
        // (Without limits TCP knows no weights.)
        let most_move = median(all().map(|one| (one.rate(), one.voice))).unwrap_or(0.0);
        let moves = |one: &&Sending| one.rate() > MOVES * most_move;
        let least_rtt_s = all().map(|one| one.min_rtt_s).fold(f64::INFINITY, f64::min);
        let all_repeat = own.iter().all(|one| one.is_repeating);
        let seeing = own.iter().filter(|one| all_repeat || !one.is_repeating);
        Some(Sample {
            now_s: now.as_secs_f64(),
            queue_s: median(seeing.map(|one| (one.queue_s(), one.voice)))?,
            min_rtt_s: median(own.iter().map(|one| (one.min_rtt_s, one.voice)))?,
            least_rtt_s,
            group_rtt_s: median(all().map(|one| (one.min_rtt_s, one.voice)))?,
            rate: own.iter().map(Sending::rate).sum::<f64>() / weight,
            weights: weight + peers.iter().map(|one| one.part(self.control.share)).sum::<f64>(),
            senders: own.len() + group::devices(peers),
            moving: own.len() as f64 + peers.iter().filter(moves).map(|one| one.voice).sum::<f64>(),
            total: own
                .iter()
                .map(Sending::rate)
                .chain(peers.iter().map(&authenticated))
                .sum(),
            moved_bytes,
            own: own.len(),
            full_weights: weight + wanting.clone().map(|one| one.weight).sum::<f64>(),
            light: peers.iter().filter(|one| !one.wants_more).map(&authenticated).sum(),
            own_weight: weight,
            demands: demands.to_vec(),
            theirs: median(
                wanting
                    .clone()
                    .map(|one| (one.share(aim_s, self.segment_bytes), one.voice)),
            ),
            their_queue_s: median_wait(peers.iter().map(|one| (one.queue_s(), one.voice))),
            segment_bytes: self.segment_bytes,
        })
    }

    /// How long the suspension still lasts.
    fn unlimited_for_s(&self) -> Option<f64> {
        match self.control.phase {
            Phase::Suspended { until_s, .. } => Some((until_s - self.now_s).max(0.0)),
            _ => None,
        }
    }

    /// The present action, with its reason. `left_s`: its remaining time; None: its whole length.
    fn says(&self, has_others: bool, found_by: &str, left_s: Option<f64>) -> String {
        if !self.may_limit() {
            return "no peer is present; not limiting".to_owned();
        }
        let control = &self.control;
        let prefer = match self.prefer {
            Prefer::Balanced => "balanced",
            Prefer::Delay => "delay",
            Prefer::Throughput => "throughput",
        };
        let doing = match control.phase {
            Phase::Start => "no queue yet".to_owned(),
            Phase::Probe { .. } => "probing: no queueing delay, so it grows".to_owned(),
            Phase::Steady => format!(
                "target queueing delay {:.0} ms (prefer = \"{prefer}\")",
                control.aim_s * 1e3
            ),
            Phase::Drain { .. } => "draining: half of it until the queue has gone".to_owned(),
            Phase::Suspended { reason, .. } if self.regaining.is_empty() => {
                return suspended(reason, has_others, left_s);
            }
            Phase::Suspended { reason, .. } => {
                let suspended = suspended(reason, has_others, left_s);
                return format!("{suspended} once a connection has regained the rate of unlimited TCP");
            }
        };
        let part = control.of_plain.map_or(String::new(), |part| {
            format!(
                "; the group has {:.0}% of its goodput without limits",
                100.0 * part.min(1.0)
            )
        });
        let part = match control.knows_plain() {
            true => part,
            false => format!("{part}; the rate of unlimited TCP was not measured"),
        };
        let collapse = control.collapse_share().map_or(String::new(), |share| {
            format!("; congestion collapse above {:.2} Mbit/s", share / 125_000.0)
        });
        let share = control.share / 125_000.0;
        format!("a share of {share:.2} Mbit/s{found_by}: {doing}{collapse}{part}")
    }

    /// After a suspension a connection regains plain TCP's window, and no more: by slow start, which writing the cap
    /// enables. Without it, it would stay at the few segments to which it had yielded, or overshoot by far.
    fn regains(&self, one: &Sending) -> Limits {
        Limits {
            cwnd: self.plain_window(one),
            ..Limits::default()
        }
    }

    /// Plain TCP's window, in segments.
    fn plain_window(&self, one: &Sending) -> Option<u32> {
        let window = self.control.plain_window_bytes(one.min_rtt_s);
        window.map(|bytes| whole_segments(bytes / self.segment_bytes))
    }

    fn follow_regaining(&mut self, members: &[Member], own: &[Sending]) {
        let before = std::mem::take(&mut self.regaining);
        // A baseline measurement has no limits of any kind.
        if matches!(
            self.control.phase,
            Phase::Suspended {
                reason: Why::Unknown,
                ..
            }
        ) {
            return;
        }
        let is_limited = !matches!(self.control.phase, Phase::Suspended { .. });
        let regains = |(member, one): (&Member, &Sending)| {
            let since_s = if is_limited {
                self.now_s
            } else {
                *before.get(&member.cookie)?
            };
            let has = one.cwnd_bytes / self.segment_bytes;
            let has_less = self
                .plain_window(one)
                .is_some_and(|window| has < REGAINED * f64::from(window));
            let is_early = self.now_s - since_s < REGAINS_S;
            (is_limited || (has_less && is_early)).then_some((member.cookie, since_s))
        };
        self.regaining = members.iter().zip(own).filter_map(regains).collect();
    }

    fn limits(&self, share: f64, weight: f64, min_rtt_s: f64) -> Limits {
        let part = self.control.part();
        let rate = (part * share * weight).max(self.floor);
        let in_flight_s = if part < 1.0 {
            min_rtt_s
        } else {
            min_rtt_s + self.control.aim_s
        };
        let held_back = if part < 1.0 { 0.0 } else { HELD_BACK_SEGMENTS };
        let cwnd = rate * in_flight_s / self.segment_bytes + held_back;
        // Never so slow that the floor of cwnd takes longer than the RTT.
        let least = f64::from(FLOOR_SEGMENTS) * self.segment_bytes / (min_rtt_s + self.control.aim_s);
        // Rounded down, the share that peers read from it would be too small, and all would come down to it.
        let cwnd = whole_segments(cwnd);
        let cwnd = cwnd.max(least_segments(weight * min_rtt_s / self.segment_bytes));
        // While draining the pacing rate drains the queue, also at a small share.
        let pacing = if part < 1.0 {
            PACING * rate
        } else {
            (PACING * rate).max(least)
        };
        Limits {
            cwnd: Some(cwnd),
            pacing_rate_bytes_per_s: Some(pacing as u64),
        }
    }
}

fn whole_segments(segments: f64) -> u32 {
    (segments.round() as u32).clamp(FLOOR_SEGMENTS, i32::MAX as u32 - 1)
}

/// Where others keep the access point's queue full it drops acknowledgements, and a connection with few segments in
/// flight loses all of an RTT's: each timeout then costs seconds. The pacing rate still limits it to its share. Input:
/// the segments in flight at a rate of 1 byte/s.
fn least_segments(by_rate: f64) -> u32 {
    ((LEAST_RATE * by_rate) as u32).clamp(FLOOR_SEGMENTS, INITIAL_CWND)
}

/// Why limits are suspended, and for how long.
fn suspended(reason: Why, has_others: bool, left_s: Option<f64>) -> String {
    let lasts = match (left_s, reason) {
        (Some(left_s), _) => format!("another {:.0} s", left_s.ceil()),
        (None, Why::Unknown | Why::Own | Why::Lost) => "some seconds".to_owned(),
        (None, Why::Strange | Why::Others | Why::Worse) => "two minutes".to_owned(),
    };
    let because = match reason {
        Why::Unknown => return format!("not limiting for {lasts}, to measure the rate of unlimited TCP"),
        Why::Strange if has_others => {
            "a queue stays though this device and its peers yield, as that of a station without giveway"
        }
        Why::Strange => "a queue stays though this device yields, as that of a station without giveway",
        Why::Own => "a queue stays though this device yields, and peers see less of it",
        Why::Others => {
            "a queue stays though this device yields, and most of the others have far more in flight, as without limits"
        }
        Why::Lost => "retransmissions are lost as well, and limits delay the recovery",
        Why::Worse => {
            "limits cost more goodput than they are worth, as beside a station without giveway that takes the rest"
        }
    };
    format!("{because}: not limiting for {lasts}")
}

impl SharePolicy for EstimatedCapacity {
    fn name(&self) -> &'static str {
        "estimated"
    }

    fn allot(&mut self, now: Duration, link: &Link<'_>, members: &[Member]) -> Vec<Limits> {
        let passed_s = now.as_secs_f64() - std::mem::replace(&mut self.now_s, now.as_secs_f64());
        let moved_bytes = self.moved_bytes(passed_s, members);
        self.hear(link);
        if !self.may_limit() {
            self.control.rest(now.as_secs_f64(), false);
            self.regaining.clear();
            return vec![Limits::default(); members.len()];
        }
        let own = self.own(members);
        let peers = self.peers(link);
        let demands = group::demands(link);
        self.control.is_repeating = members.iter().all(|member| member.is_repeating);
        match self.sample(now, &own, &peers, moved_bytes, &demands) {
            Some(seen) => self.control.step(&seen),
            None => self.control.rest(now.as_secs_f64(), !peers.is_empty()),
        }
        self.follow_regaining(members, &own);
        let of = |(one, member): (&Sending, &Member)| match self.control.phase {
            Phase::Suspended { .. } if self.regaining.contains_key(&member.cookie) => self.regains(one),
            Phase::Suspended { .. } => Limits::default(),
            _ => self.limits(self.control.share, one.weight.max(one.may_have), one.min_rtt_s),
        };
        own.iter().zip(members).map(of).collect()
    }

    fn newcomer<'a>(&'a self, link: &Link<'_>) -> Box<dyn Fn(Duration) -> Limits + 'a> {
        let peers = self.peers(link);
        let theirs = median(
            peers
                .iter()
                .map(|one| (one.share(self.control.aim_s, self.segment_bytes), one.voice)),
        );
        // A new device without reports has no limits at first; setting and clearing one would end slow start. The
        // peers' present state may be the beginning of their own baseline.
        let others = group::devices(&peers);
        let told = theirs.filter(|_| is_told(&group::demands(link), others));
        let known = Some(self.control.share).filter(|share| *share > 0.0).or(told);
        let is_limited = self.may_limit() && !matches!(self.control.phase, Phase::Suspended { .. });
        let Some(share) = known.filter(|_| is_limited) else {
            return Box::new(|_| Limits::default());
        };
        let weight = group::weight(Class::Standard) / f64::from(link.sharing.with_one_more().connections);
        let before: f64 = peers.iter().map(|one| one.weight).sum();
        let share = share * before.max(weight) / (before + weight);
        Box::new(move |rtt| {
            if rtt.is_zero() {
                return Limits::default();
            }
            let limits = self.limits(share, weight, rtt.as_secs_f64());
            Limits {
                // Not less than without giveway: the first RTT shows nothing yet.
                cwnd: limits.cwnd.map(|cwnd| cwnd.max(INITIAL_CWND)),
                ..limits
            }
        })
    }

    fn reason(&self, link: &Link<'_>, _: Duration) -> String {
        let devices = link.sharing.devices;
        let plural = if devices == 1 { "" } else { "s" };
        self.says(
            devices > 1,
            &format!(", estimated by {devices} sending device{plural}"),
            None,
        )
    }

    fn doing(&self, link: &Link<'_>) -> Option<String> {
        (link.sharing.connections > 0).then(|| self.says(link.sharing.devices > 1, "", self.unlimited_for_s()))
    }

    fn estimate(&self, link: &Link<'_>) -> Option<EstimateView> {
        let control = &self.control;
        let is_known = control.share > 0.0;
        (link.sharing.connections > 0 && self.may_limit()).then(|| EstimateView {
            phase: match control.phase {
                Phase::Start => SharePhase::Start,
                Phase::Probe { .. } => SharePhase::Probe,
                Phase::Steady => SharePhase::Steady,
                Phase::Drain { .. } => SharePhase::Drain,
                Phase::Suspended {
                    reason: Why::Unknown, ..
                } => SharePhase::Baseline,
                Phase::Suspended { .. } => SharePhase::Suspended,
            },
            share_bytes_per_s: is_known.then_some(control.share as u64),
            target_queueing_delay_us: (control.aim_s * 1e6).round() as u64,
            limits_return_in_ms: self.unlimited_for_s().map(|left_s| (left_s * 1e3) as u64),
            percent_of_unlimited: control.of_plain.map(|part| 100.0 * part),
        })
    }

    fn shares_by_demand(&self) -> bool {
        true
    }

    fn demand(&self) -> Option<f64> {
        self.control.demand()
    }

    fn forget(&mut self) {
        self.control = Control::new(self.prefer, self.floor);
        self.heard_s = None;
    }

    fn clears_at_once(&self) -> bool {
        self.control.knows_unlimited_window()
    }

    fn settled_within(&self) -> u64 {
        SETTLED_WITHIN
    }
}

/// Linux's initial window (RFC 6928).
const INITIAL_CWND: u32 = 10;

#[cfg(test)]
mod tests;
