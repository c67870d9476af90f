// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `giveway try`: intervals with giveway and without it, in pairs whose order is drawn, on the user's own link; and what differs
//! (`docs/contributing/statistics.md`). Without it means that the daemon is paused, for as long as a connection of this process lives: so
//! everything is as before at once, however this process ends.
//!
//!   load       transfers to and from the peer          probes    what others wait for meanwhile
//!   own        the user's own connections, without a peer         wakeups   how late this machine is
//!   report     what is printed                          chart     the same as a picture
//!   serve      the peer of another machine's test        wire      what both say to each other

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use giveway_engine::trial::{
    Better, DRY_PAIRS, Finding, LEAST_PAIRS, MOST_PAIRS, Pair, Question, detectable_after, is_enough, judge, orders,
    pairs_for,
};
use nix::unistd::geteuid;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use crate::commands::{print, print_json};
use crate::control::client;
use crate::exit::Usage;
use crate::kernel::random;
use crate::place::Place;
use crate::say;
use args::TryArgs;
use load::{Plan, Window};

pub mod args;
mod chart;
mod load;
mod own;
mod probes;
mod report;
mod serve;
mod wakeups;
mod wire;

const WAKEUPS: Question = question("wakeup_p99_us", Better::Lower, 1.0);
/// The first is what a trial is sized for.
const WITH_PEER: [Question; 6] = [
    question("rpm", Better::Higher, 0.0),
    question("goodput_up_mbit", Better::Higher, 0.01),
    question("goodput_down_mbit", Better::Higher, 0.01),
    question("retransmits_percent", Better::Lower, 0.01),
    question("late_percent", Better::Lower, 1.0),
    WAKEUPS,
];
const OF_OWN_TRAFFIC: [Question; 4] = [
    question("goodput_mbit", Better::Higher, 0.01),
    question("rtt_ratio", Better::Lower, 0.0),
    question("retransmits_percent", Better::Lower, 0.01),
    WAKEUPS,
];
/// The daemon is back within this time after a pause.
const BACK_WITHIN: Duration = Duration::from_secs(10);
/// What a pause may take beside settling and measuring.
const LEEWAY_S: f64 = 20.0;
/// Of what was waited for: the rest is left out (draft-ietf-ippm-responsiveness).
const TRIMMED: f64 = 0.95;

const fn question(name: &'static str, better: Better, floor: f64) -> Question {
    Question { name, better, floor }
}

/// One interval, and what was measured in it.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct TrialInterval {
    pair: usize,
    with: bool,
    values: BTreeMap<&'static str, f64>,
}

/// Everything that is told of a trial.
#[derive(Debug, JsonSchema, Serialize)]
pub struct TrialReport {
    version: &'static str,
    peer: Option<String>,
    background: bool,
    seed: u64,
    interval_s: f64,
    settle_s: f64,
    deadline_ms: u64,
    sizing: Option<Sizing>,
    answers: Vec<Comparison>,
    /// Of the dry run, which counts for nothing else, and of the trial.
    dry_run: Vec<TrialInterval>,
    intervals: Vec<TrialInterval>,
}

/// How many pairs it takes.
#[derive(Clone, Debug, JsonSchema, Serialize)]
struct Sizing {
    question: &'static str,
    effect_percent: f64,
    /// By the dry run. None where it is more than is ever asked for, or could not be told.
    pairs_expected: Option<usize>,
    /// There is time for so many.
    pairs_at_most: usize,
    /// The change that these show with 95%, by the dry run.
    detectable_percent: Option<f64>,
    /// By the trial's own pairs: they have shown this change with 95%, if it is there.
    is_enough: bool,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Comparison {
    question: Question,
    /// Medians.
    with: Option<f64>,
    without: Option<f64>,
    #[serde(flatten)]
    finding: Finding,
    /// The change in each pair, as a ratio.
    #[serde(skip)]
    ratios: Vec<f64>,
}

struct Trial<'a> {
    args: &'a TryArgs,
    place: Place,
    seed: u64,
    questions: &'static [Question],
}

pub fn run(args: &TryArgs) -> Result<()> {
    if let Some(address) = args.serve {
        return serve::run(address);
    }
    ensure!(
        geteuid().is_root(),
        Usage("`giveway try` pauses giveway repeatedly, which only root may do: run it with sudo".to_owned())
    );
    let allowed = allowed_pairs(args)?;
    let [a, b, c, d, e, f, g, h, ..] = random()?;
    let trial = Trial {
        args,
        place: Place::here()?,
        seed: args.seed.unwrap_or(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
        questions: if args.peer.is_some() {
            &WITH_PEER
        } else {
            &OF_OWN_TRAFFIC
        },
    };
    let status = client::status(&trial.place)?;
    ensure!(
        !status.network.policy.dry_run,
        "the daemon runs with --dry-run, so there is nothing to compare"
    );
    let report = trial.run(allowed)?;
    if let Some(path) = &args.svg {
        chart::draw(&report, path).with_context(|| format!("cannot draw {}", path.display()))?;
    }
    if args.json {
        print_json(&report)
    } else {
        print(&report::text(&report))
    }
}

/// Within the time that the user gives.
fn allowed_pairs(args: &TryArgs) -> Result<usize> {
    let pair_s = 2.0 * args.interval_s();
    let dry = if args.pairs.is_some() { 0 } else { DRY_PAIRS };
    let allowed = (args.max_time.as_secs_f64() / pair_s) as usize;
    let least = LEAST_PAIRS + dry;
    ensure!(
        args.pairs.is_some() || allowed >= least,
        Usage(format!(
            "the minimum ({LEAST_PAIRS} pairs and {dry} of the dry run) takes {:.1} min with these \
             --interval and --settle: raise --max-time",
            least as f64 * pair_s / 60.0
        ))
    );
    Ok(allowed.saturating_sub(dry))
}

impl Trial<'_> {
    fn run(&self, allowed: usize) -> Result<TrialReport> {
        let args = self.args;
        let (mut dry_run, mut sizing) = (Vec::new(), None);
        let intervals = match args.pairs {
            Some(pairs) => self.alternate("trial", pairs.into(), 1, |_| false)?,
            None => {
                dry_run = self.alternate("dry run", DRY_PAIRS, 0, |_| false)?;
                let expected = self.size(&dry_run, allowed)?;
                keep(&report::sizing(&expected));
                let intervals = self.alternate("trial", allowed, 1, |so_far| self.is_enough(so_far))?;
                sizing = Some(Sizing {
                    is_enough: self.is_enough(&intervals),
                    ..expected
                });
                intervals
            }
        };
        end_of_progress();
        Ok(TrialReport {
            version: env!("CARGO_PKG_VERSION"),
            peer: args.peer.map(|peer| peer.to_string()),
            background: args.background,
            seed: self.seed,
            interval_s: args.interval.as_secs_f64(),
            settle_s: args.settle.as_secs_f64(),
            deadline_ms: args.deadline.as_millis() as u64,
            sizing,
            answers: answers(self.seed, self.questions, &intervals),
            dry_run,
            intervals,
        })
    }

    fn size(&self, dry_run: &[TrialInterval], allowed: usize) -> Result<Sizing> {
        let question = self.questions.first().context("nothing is asked")?;
        let (differences, count) = (question.differences(&pairs_of(question, dry_run)), self.questions.len());
        let expected = pairs_for(self.effect(), &differences, count).filter(|pairs| *pairs < MOST_PAIRS);
        if expected.is_none() && differences.len() < 2 {
            bail!(
                "the dry run measured no {}: {}",
                question.name,
                match self.args.peer {
                    Some(_) => "the peer did not answer",
                    None =>
                        "no connection of this machine carried traffic: start the traffic to compare, or use --peer",
                }
            );
        }
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        Ok(Sizing {
            question: question.name,
            effect_percent: self.args.effect,
            pairs_expected: expected,
            pairs_at_most: allowed,
            detectable_percent: detectable_after(&differences, allowed, count).map(percent),
            is_enough: false,
        })
    }

    fn is_enough(&self, intervals: &[TrialInterval]) -> bool {
        self.questions.first().is_some_and(|question| {
            let differences = question.differences(&pairs_of(question, intervals));
            is_enough(self.effect(), &differences, self.questions.len())
        })
    }

    /// As a ratio.
    fn effect(&self) -> f64 {
        1.0 + self.args.effect / 100.0
    }

    /// Measures pairs until they are enough, or so many. `part` keeps the orders of dry run and trial apart.
    fn alternate(
        &self,
        what: &str,
        most: usize,
        part: u64,
        are_enough: impl Fn(&[TrialInterval]) -> bool,
    ) -> Result<Vec<TrialInterval>> {
        let mut intervals = Vec::new();
        for (pair, with_first) in orders(self.seed.wrapping_add(part), most).into_iter().enumerate() {
            for with in [with_first, !with_first] {
                let left = 2 * most - intervals.len();
                let left_s = left as f64 * self.args.interval_s();
                let how = if with { "with giveway" } else { "without" };
                let min = (left_s / 60.0).ceil();
                let line = format!(
                    "{what}: pair {} of at most {most}, {how}; at most {min:.0} min left",
                    pair + 1
                );
                show(&line);
                let values = self.interval(with)?;
                intervals.push(TrialInterval { pair, with, values });
            }
            if are_enough(&intervals) {
                break;
            }
        }
        Ok(intervals)
    }

    fn interval(&self, with: bool) -> Result<BTreeMap<&'static str, f64>> {
        let args = self.args;
        // Also after an interval without it: the daemon takes a moment to notice that the connection is gone.
        self.await_installed()?;
        let for_s = (args.interval_s() + LEEWAY_S).ceil() as u32;
        let pause = (!with).then(|| client::pause(&self.place, for_s).context("giveway cannot be paused"));
        let pause = pause.transpose()?;
        let start = Instant::now() + args.settle;
        let end = start + args.interval;
        let values = self.measure(Window { start, end })?;
        if let Some(pause) = pause {
            ensure!(
                pause.holds(),
                "the daemon ended the pause before the interval was over, so the interval is void; `giveway why` \
                 may say more"
            );
        }
        Ok(values)
    }

    fn await_installed(&self) -> Result<()> {
        let until = Instant::now() + BACK_WITHIN;
        loop {
            let status = client::status(&self.place)?;
            let Some(by) = status.daemon.paused else { return Ok(()) };
            ensure!(
                Instant::now() < until,
                "giveway is paused by another user (uid {}): wait until that pause ends",
                by.uid
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn measure(&self, window: Window) -> Result<BTreeMap<&'static str, f64>> {
        let args = self.args;
        let wakeups = thread::spawn(move || wakeups::late_p99_us(window));
        let mut values = match args.peer {
            Some(peer) => {
                let plan = Plan {
                    peer,
                    streams: args.streams,
                    background: args.background,
                };
                let transfers = thread::spawn(move || load::run(plan, window));
                let waited = probes::run(peer, args.deadline, window);
                let carried = transfers.join().map_err(|_| anyhow!("a thread has failed"))?;
                of_peer(&carried?, &waited?)
            }
            None => of_own(&own::run(&self.place, window)?, args.interval.as_secs_f64()),
        };
        let late = wakeups.join().map_err(|_| anyhow!("a thread has failed"))?;
        values.insert(WAKEUPS.name, late);
        values.retain(|_, value| value.is_finite());
        Ok(values)
    }
}

fn mbit(bytes_per_s: f64) -> f64 {
    bytes_per_s * 8.0 / 1e6
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn of_peer(carried: &load::LoadResult, waited: &probes::ProbeResult) -> BTreeMap<&'static str, f64> {
    let mut values = BTreeMap::from([
        ("goodput_up_mbit", mbit(carried.up_bytes_per_s)),
        ("goodput_down_mbit", mbit(carried.down_bytes_per_s)),
        ("retransmits_percent", percent(carried.retransmitted, carried.sent)),
    ]);
    values.extend((waited.messages > 0).then(|| ("late_percent", percent(waited.late, waited.messages))));
    values.extend(rpm(&waited.to_connect, &waited.to_answer, &carried.waits).map(|rpm| ("rpm", rpm)));
    values
}

fn of_own(seen: &own::FlowTotals, seconds: f64) -> BTreeMap<&'static str, f64> {
    // What was idle is no measurement of the link.
    if seen.bytes == 0 {
        return BTreeMap::new();
    }
    let mut values = BTreeMap::from([("goodput_mbit", mbit(seen.bytes as f64 / seconds))]);
    values.extend((seen.segments > 0).then(|| {
        let percent = percent(seen.retransmitted, seen.segments);
        ("retransmits_percent", percent)
    }));
    values.extend(seen.rtt_ratio().map(|ratio| ("rtt_ratio", ratio)));
    values
}

/// Round trips a minute (draft-ietf-ippm-responsiveness, *Aggregating the Measurements*): half of the weight have connections
/// of their own, with handshake and exchange alike, half exchanges on those that fill the link. There is no TLS here.
fn rpm(to_connect: &[Duration], to_answer: &[Duration], on_transfers: &[Duration]) -> Option<f64> {
    let own = (trimmed_mean_ms(to_connect)? + trimmed_mean_ms(to_answer)?) / 2.0;
    Some(60_000.0 / ((own + trimmed_mean_ms(on_transfers)?) / 2.0))
}

/// Without the longest 5%.
fn trimmed_mean_ms(waits: &[Duration]) -> Option<f64> {
    let mut waits = waits.to_vec();
    waits.sort_unstable();
    waits.truncate((waits.len() as f64 * TRIMMED).ceil() as usize);
    let sum: Duration = waits.iter().sum();
    (!waits.is_empty()).then(|| sum.as_secs_f64() * 1000.0 / waits.len() as f64)
}

/// Those in which both were measured.
fn pairs_of(question: &Question, intervals: &[TrialInterval]) -> Vec<Pair> {
    let both = intervals.chunks_exact(2).filter_map(|pair| {
        let of = |with| {
            pair.iter()
                .find(|interval| interval.with == with)?
                .values
                .get(question.name)
        };
        Some(Pair {
            with: *of(true)?,
            without: *of(false)?,
        })
    });
    both.collect()
}

fn answers(seed: u64, questions: &[Question], intervals: &[TrialInterval]) -> Vec<Comparison> {
    let pairs: Vec<Vec<Pair>> = questions.iter().map(|question| pairs_of(question, intervals)).collect();
    let differences = questions.iter().zip(&pairs).map(|(question, pairs)| {
        // Fewer say nothing, however alike they are.
        let pairs = if pairs.len() < LEAST_PAIRS { &[][..] } else { pairs };
        (*question, question.differences(pairs))
    });
    let differences: Vec<(Question, Vec<f64>)> = differences.collect();
    let findings = judge(seed, &differences);
    let measured = findings.into_iter().zip(&differences).zip(&pairs);
    measured
        .map(|((finding, (question, differences)), pairs)| Comparison {
            question: *question,
            with: median(pairs.iter().map(|pair| pair.with)),
            without: median(pairs.iter().map(|pair| pair.without)),
            finding,
            ratios: differences.iter().map(|difference| difference.exp()).collect(),
        })
        .collect()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values.get(middle).copied(),
        _ => Some((values.get(middle.checked_sub(1)?)? + values.get(middle)?) / 2.0),
    }
}

/// A line about what goes on, on standard error: in place of the last one, where somebody looks.
fn show(line: &str) {
    match std::io::stderr().is_terminal() {
        true => say::show(&format!("\r\x1b[K{line}")),
        false => say::show(&format!("{line}\n")),
    }
}

/// One that stays.
fn keep(line: &str) {
    show(line);
    if std::io::stderr().is_terminal() {
        say::show("\n");
    }
}

fn end_of_progress() {
    if std::io::stderr().is_terminal() {
        say::show("\r\x1b[K");
    }
}

#[cfg(test)]
mod tests;
