// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit for every kind of target that `giveway limit set` takes, and for users, in each direction, set before a transfer and
//! during one: how soon it is active by what the receiver reads, whether giveway shows what the receiver has, whether a daemon
//! that was restarted or killed has it again, and whether it ends with its target.

mod place;
mod target;
pub mod transfer;
pub mod views;

use anyhow::{Context as _, Result};

use crate::experiment::{Run, pause};
use crate::guest::{Flavour, Guest};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use crate::traffic::Direction;
use crate::traffic::endless::rates::PAYLOAD_BYTES;
use crate::traffic::realtime::monotonic_ns;
use crate::uplink::PACKET_BYTES;
use place::LimitedDevice;
use target::{TargetKind, flow};
use views::{VIEWS, Web, passed_bytes, shown_mbit};

pub const SCENARIO: Scenario = Scenario {
    name: "targets",
    about: "A limit for each kind of target (process, unit, cgroup, user, flow, container), in both directions: how soon it holds, at which rate, and what giveway shows of it",
    seconds: 2,
    warmup_s: 1,
    parameters: &[],
    plan: &plan,
};

const LIMIT_MBIT: f64 = 6.0;
/// What a user would have instead.
const LIFTED_MBIT: f64 = 20.0;
/// Payload is 0.956 of what a limit counts.
const HOLDS: Relation = Relation::Between(0.9, 1.05);
const ABOVE: f64 = 1.1;
const INSTALLED_S: f64 = 1.0;
/// Without a limit; otherwise the cell would show nothing.
const FREE: Relation = Relation::AtLeast(2.0);
const SHOWN: Relation = Relation::Between(0.95, 1.05);
/// Until a rate of the last second, which is shown for a second, is one under the limit.
const SETTLE_S: f64 = 2.5;
const METRICS: &str = "metrics_of_received";
const COUNTED_S: f64 = 40.0;
const AGAIN_S: f64 = 2.5;
const NS_PER_S: f64 = 1e9;
const PROGRAMS: &[&str] = &["setpriv"];

const KINDS: [(&str, TargetKind); 7] = [
    ("pid", TargetKind::Process),
    ("unit", TargetKind::Unit),
    ("cgroup", TargetKind::Cgroup),
    ("user-rule", TargetKind::UserByRule),
    ("user-slice", TargetKind::UserBySlice),
    ("flow", TargetKind::Flow),
    ("container", TargetKind::Container),
];
const WAYS: [(&str, Direction); 2] = [("up", Direction::Up), ("down", Direction::Down)];
const MOMENTS: [(&str, Moment); 2] = [("before", Moment::Before), ("during", Moment::During)];

/// When the limit is set.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    /// The daemon is then restarted, and the limit cleared while the transfer goes on.
    Before,
    /// The daemon is then killed, and the limit ends with its target.
    During,
}

#[derive(Clone, Copy)]
struct LimitExperiment {
    kind: TargetKind,
    way: Direction,
    moment: Moment,
    free_s: f64,
    seconds: f64,
}

/// What is done in a cell.
type Act = Box<dyn Fn(&Run) -> Result<Outcome>>;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (free_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let debian = Guest {
        kernel: Flavour::Debian13,
        ..Guest::VIRTUAL
    };
    let (mut variants, mut checks) = (Vec::new(), Vec::new());
    for (kernel, guest) in [("host", None), ("debian-13", Some(debian))] {
        let mut add = |name: &str, estimated_s: f64, act: Act| {
            let variant = Variant::new(name, guest, estimated_s, act);
            variants.push(variant.with(PROGRAMS));
        };
        for (of, kind) in KINDS {
            for (direction, way) in WAYS {
                for (at, moment) in MOMENTS {
                    let name = format!("{kernel}/{of}/{direction}/{at}");
                    let cell = LimitExperiment {
                        kind,
                        way,
                        moment,
                        free_s,
                        seconds,
                    };
                    checks.extend(cell.checks(&name));
                    add(&name, cell.estimated_s(), Box::new(move |run: &Run| cell.run(run)));
                }
            }
        }
        for (direction, way) in WAYS {
            let name = format!("{kernel}/metrics/{direction}");
            checks.push(Check::metric(&name, METRICS, SHOWN).always());
            add(&name, COUNTED_S + 6.0, Box::new(move |run: &Run| counted(way, run)));
        }
        for (direction, way) in WAYS {
            let name = format!("{kernel}/user-overrides/{direction}");
            let metric = |metric, holds| Check::metric(&name, metric, holds).always();
            checks.extend([
                metric("refused", Relation::Exactly(1.0)),
                metric("rate_of_limit", HOLDS),
            ]);
            add(
                &name,
                4.0 + seconds,
                Box::new(move |run: &Run| user_lifts(way, seconds, run)),
            );
        }
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![],
        columns: "free_of_limit installed_s rate_of_limit status_of_received top_of_received page_of_received \
                  metrics_of_received again_s again_of_limit cleared_of_limit ends_s refused",
    })
}

impl LimitExperiment {
    fn estimated_s(self) -> f64 {
        self.free_s + SETTLE_S + self.seconds + AGAIN_S + 4.0
    }

    fn checks(self, name: &str) -> Vec<Check> {
        let metric = |metric, holds| Check::metric(name, metric, holds).always();
        let mut checks = vec![
            metric("installed_s", Relation::AtMost(INSTALLED_S)),
            metric("rate_of_limit", HOLDS),
            metric("again_s", Relation::AtMost(INSTALLED_S)),
            metric("again_of_limit", HOLDS),
            metric("ends", Relation::Exactly(1.0)),
        ];
        checks.extend(VIEWS.map(|view| metric(view, SHOWN)));
        checks.push(match self.moment {
            Moment::Before => metric("cleared_of_limit", FREE),
            Moment::During => metric("free_of_limit", FREE),
        });
        checks
    }

    fn run(self, run: &Run) -> Result<Outcome> {
        let mut place = LimitedDevice::raise(self.way, run)?;
        place.start_daemon()?;
        place.prepare(self.kind)?;
        let mut outcome = Outcome::default();
        let set_ns = self.set_limit(&mut place, run, &mut outcome)?;
        let shown_ns = self.show(&mut place, run, &mut outcome)?;
        let received = place.received()?;
        let from_ns = set_ns.max(received.first_ns().unwrap_or_default());
        let installed_s = received.settled_s(from_ns, shown_ns, ABOVE * LIMIT_MBIT);
        outcome.set(run.name, "installed_s", installed_s);
        let rate_ns = after(from_ns, INSTALLED_S);
        outcome.set(run.name, "rate_of_limit", received.mbit(rate_ns, shown_ns) / LIMIT_MBIT);
        self.start_daemon_again(&mut place, run, &mut outcome)?;
        run.keep(&place.received()?)?;
        self.end(&mut place, run, &mut outcome)?;
        place.stop_daemon()?;
        Ok(outcome)
    }

    /// When it was, by the clock of the receivers; the transfer runs when this returns.
    fn set_limit(self, place: &mut LimitedDevice, run: &Run, outcome: &mut Outcome) -> Result<u64> {
        if self.moment == Moment::During {
            run.progress.tick("free");
            place.begin_transfer()?;
            place.wait_until_transferring()?;
            let from_ns = monotonic_ns()?;
            pause(self.free_s)?;
            let free_mbit = place.received()?.mbit(from_ns, monotonic_ns()?);
            outcome.set(run.name, "free_of_limit", free_mbit / LIMIT_MBIT);
        }
        let set_ns = monotonic_ns()?;
        note(outcome, run, "limit", &place.limit(LIMIT_MBIT)?);
        if self.moment == Moment::Before {
            place.begin_transfer()?;
            place.wait_until_transferring()?;
        }
        Ok(set_ns)
    }

    /// What each view says beside what the receiver reads meanwhile; gives back when it was over.
    fn show(self, place: &mut LimitedDevice, run: &Run, outcome: &mut Outcome) -> Result<u64> {
        run.progress.tick("limited");
        place.web = Some(Web::start(&place.device)?);
        pause(SETTLE_S)?;
        let from_ns = monotonic_ns()?;
        let web = place.web.as_mut().context("nobody serves the page")?;
        let mut shown: Vec<[Option<f64>; 3]> = Vec::new();
        while monotonic_ns()? < after(from_ns, self.seconds) {
            shown.push(shown_mbit(&place.device, web, self.way)?);
        }
        let to_ns = monotonic_ns()?;
        let received_mbit = with_headers(place.received()?.mbit(from_ns, to_ns));
        for (view, metric) in VIEWS.into_iter().enumerate() {
            let all: Option<Vec<f64>> = shown.iter().map(|views| views[view]).collect();
            let mean = all.and_then(|all| crate::statistics::mean(&all));
            outcome.set(run.name, metric, mean.map(|mbit| mbit / received_mbit));
        }
        Ok(to_ns)
    }

    fn start_daemon_again(self, place: &mut LimitedDevice, run: &Run, outcome: &mut Outcome) -> Result<()> {
        run.progress.tick("started again");
        match self.moment {
            Moment::Before => place.stop_daemon()?,
            Moment::During => place.kill_daemon()?,
        }
        place.start_daemon()?;
        let from_ns = monotonic_ns()?;
        pause(AGAIN_S)?;
        let to_ns = monotonic_ns()?;
        let received = place.received()?;
        let again_s = received.settled_s(from_ns, to_ns, ABOVE * LIMIT_MBIT);
        outcome.set(run.name, "again_s", again_s);
        let again_mbit = received.mbit(after(from_ns, INSTALLED_S), to_ns);
        outcome.set(run.name, "again_of_limit", again_mbit / LIMIT_MBIT);
        Ok(())
    }

    fn end(self, place: &mut LimitedDevice, run: &Run, outcome: &mut Outcome) -> Result<()> {
        run.progress.tick("its end");
        if self.moment == Moment::Before {
            note(outcome, run, "clear", &place.clear()?.0);
            let from_ns = after(monotonic_ns()?, INSTALLED_S);
            pause(2.0 * INSTALLED_S)?;
            let cleared_mbit = place.received()?.mbit(from_ns, monotonic_ns()?);
            outcome.set(run.name, "cleared_of_limit", cleared_mbit / LIMIT_MBIT);
        }
        place.end_target();
        // A rule is no target: it ends where it is taken out.
        if self.kind == TargetKind::UserByRule {
            place.write_rule(None)?;
        }
        let ends_s = place.limits_end_s()?;
        outcome.set(run.name, "ends", f64::from(u8::from(ends_s.is_some())));
        outcome.set(run.name, "ends_s", ends_s);
        Ok(())
    }
}

/// A user whose process root has limited raises the limit, clears it, and sets a higher one for what is closer.
fn user_lifts(way: Direction, seconds: f64, run: &Run) -> Result<Outcome> {
    let option = if way == Direction::Up { "--up" } else { "--down" };
    let mut place = LimitedDevice::raise(way, run)?;
    place.start_daemon()?;
    place.prepare(TargetKind::UsersProcess)?;
    place.begin_transfer()?;
    place.wait_until_transferring()?;
    place.limit(LIMIT_MBIT)?;
    let mut outcome = Outcome::default();
    let (name, rate) = (place.target()?.name.clone(), format!("{LIFTED_MBIT}mbit"));
    let mut refused = true;
    for words in [&["limit", "set", &name, option, &rate][..], &["limit", "clear", &name]] {
        let (said, is_well) = place.giveway_as_user(words)?;
        note(&mut outcome, run, words[1], &said);
        refused &= !is_well && said.contains("root");
    }
    outcome.set(run.name, "refused", f64::from(u8::from(refused)));
    let (said, _) = place.giveway_as_user(&["limit", "set", &flow(), option, &rate])?;
    note(&mut outcome, run, "set for its flow", &said);
    pause(INSTALLED_S)?;
    let from_ns = monotonic_ns()?;
    pause(seconds)?;
    let mbit = place.received()?.mbit(from_ns, monotonic_ns()?);
    outcome.set(run.name, "rate_of_limit", mbit / LIMIT_MBIT);
    place.end_target();
    place.stop_daemon()?;
    Ok(outcome)
}

/// What the metrics count of a limit, as Prometheus would ask: over most of a minute, since the daemon counts once a second.
fn counted(way: Direction, run: &Run) -> Result<Outcome> {
    let mut place = LimitedDevice::raise(way, run)?;
    place.start_daemon()?;
    place.prepare(TargetKind::Process)?;
    place.limit(LIMIT_MBIT)?;
    place.begin_transfer()?;
    place.wait_until_transferring()?;
    let mut web = Web::start(&place.device)?;
    pause(SETTLE_S)?;
    let (from_ns, before) = (monotonic_ns()?, passed_bytes(&mut web, way)?);
    pause(COUNTED_S)?;
    let (to_ns, now) = (monotonic_ns()?, passed_bytes(&mut web, way)?);
    let seconds = (to_ns - from_ns) as f64 / NS_PER_S;
    let mbit = now.zip(before).map(|(now, before)| (now - before) * 8e-6 / seconds);
    let received_mbit = with_headers(place.received()?.mbit(from_ns, to_ns));
    let mut outcome = Outcome::default();
    outcome.set(run.name, METRICS, mbit.map(|mbit| mbit / received_mbit));
    place.end_target();
    place.stop_daemon()?;
    Ok(outcome)
}

/// A receiver counts payload, giveway packets.
fn with_headers(mbit: f64) -> f64 {
    mbit * PACKET_BYTES as f64 / PAYLOAD_BYTES
}

fn after(at_ns: u64, seconds: f64) -> u64 {
    at_ns + (seconds * NS_PER_S) as u64
}

fn note(outcome: &mut Outcome, run: &Run, what: &str, said: &str) {
    let first = said.lines().next().unwrap_or("(nothing)");
    outcome.note(run.name, what, first);
}
