// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of the daemon for each failing call. The daemon has caps, a queue, a process with real-time priority, a
//! handler of a chain and the threads of a device. Input: which calls. Output: the outcome of each, as numbers and in a
//! table.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::json;

use super::injector::{Call, InjectorState, Job, RunPhase, ask};
use crate::access_point::Cap;
use crate::bpf_objects::Object;
use crate::cell::SERVER_ADDRESS;
use crate::channel::{SERVER_DEVICE, STATION_DEVICE};
use crate::experiment::Run;
use crate::giveway::{answers, binary, new_key, write};
use crate::interrupt::pause_until;
use crate::namespace::Namespace;
use crate::network::{End, add_pair};
use crate::outcome::Outcome;
use crate::role::Role;
use crate::scenarios::fails_open::changes::{Changes, Installed};
use crate::scenarios::fails_open::experiment::{Holders, left_over, objects};
use crate::traffic::stream::{TcpSource, start_sink};

const ADDRESS: &str = "10.77.0.1";
const CAP: Cap = Cap::Segments(20);
/// Of the start and of the end, each; a start may load its programs twice.
const LIMIT: Duration = Duration::from_secs(20);
/// The limit for the undo: a hung daemon is killed after five seconds.
const LEFT: Duration = Duration::from_secs(7);
/// The kernel frees programs a while after their last pin has gone.
const FREED: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which calls fail.
#[derive(Clone)]
pub struct Wanted {
    /// The calls are divided among so many runs, of which this is one, from 1.
    pub of: usize,
    pub share: usize,
    /// Only calls that contain one of these; none: all.
    pub words: Vec<String>,
}

impl Wanted {
    fn of(&self, calls: Vec<Call>) -> Vec<Call> {
        let has = |call: &Call| self.words.iter().any(|word| call.text().contains(word));
        let calls = calls.into_iter().filter(|call| self.words.is_empty() || has(call));
        calls.skip(self.share - 1).step_by(self.of).collect()
    }
}

/// The outcome of a run in which a call failed.
#[derive(Default, Serialize)]
struct FaultCase {
    call: Option<Call>,
    /// The call was made, and failed.
    is_met: bool,
    /// By the dynamic loader, before the program began.
    is_loaders: bool,
    /// It was up, and working.
    is_up: bool,
    /// How the daemon ended, and by itself.
    ended: Option<String>,
    hung: bool,
    /// Changes that should be active and are not.
    lacks: Vec<&'static str>,
    /// What nobody undid by itself; and what not even `giveway revert` did.
    left: Option<String>,
    left_for_good: Option<String>,
    panics: Vec<String>,
    /// Its warnings, or its last message; if something is missing, its status's warnings.
    said: Vec<String>,
    /// The reason without a queue.
    queue_why: Option<String>,
}

/// Field order matters: processes before their namespaces.
struct Stage {
    changes: Changes,
    /// Sends only while a daemon runs: without a queue it would take a whole CPU.
    source: TcpSource,
    _sink: Role,
    near: Namespace,
    _far: Namespace,
    job: Vec<String>,
    log: String,
    seconds: f64,
}

/// `whose`: the watchdog's calls or the daemon's, in which part of a run.
pub fn fail_each_call(run: &Run, whose: (bool, RunPhase), wanted: &Wanted, seconds: f64) -> Result<Outcome> {
    let mut stage = Stage::set_up(run, seconds)?;
    let (case, seen) = stage.one_run(None, whose.0)?;
    let is_well = case.is_up && case.left.is_none() && case.lacks.is_empty() && !case.hung && case.panics.is_empty();
    ensure!(is_well, "without any fault: {}", case.line());
    let theirs = |call: &Call| (call.is_watchdog, call.part) == whose;
    let calls = wanted.of(seen.into_iter().filter(theirs).collect());
    let mut cases = Vec::new();
    let mut table = File::create(run.file(".txt"))?;
    for (number, call) in calls.iter().enumerate() {
        run.progress.tick(&format!("{number} of {} calls", calls.len()));
        let (case, _) = stage.one_run(Some(call), whose.0)?;
        // Written at once: a run may be ended before the last.
        writeln!(table, "{}", case.line())?;
        cases.push(case);
    }
    run.keep(&cases)?;
    Ok(count(run.name, &cases))
}

fn count(name: &str, cases: &[FaultCase]) -> Outcome {
    let mut outcome = Outcome::default();
    let met = || cases.iter().filter(|case| case.is_met);
    let mut set = |metric, counts: fn(&FaultCase) -> bool| {
        outcome.set(name, metric, met().filter(|case| counts(case)).count() as f64);
    };
    set("failed_calls", |_| true);
    set("refused", |case| case.is_refused());
    set("went_on", |case| case.is_up && case.ended.is_none());
    set("ended", |case| case.is_up && case.ended.is_some());
    set("left_until_revert", |case| case.left.is_some());
    set("left", |case| case.left_for_good.is_some());
    set("hangs", |case| case.hung);
    set("own_panics", |case| case.panics.iter().any(|panic| is_ours(panic)));
    set("others_panics", |case| case.panics.iter().any(|panic| !is_ours(panic)));
    set("unreported", FaultCase::is_unreported);
    set("unclear", FaultCase::is_unclear);
    outcome.set(name, "not_met", (cases.len() - met().count()) as f64);
    outcome
}

fn is_ours(panic: &str) -> bool {
    let is_in = |folder: &&str| panic.contains(&format!("panicked at {folder}"));
    // Code generated from ours at build time.
    ["daemon/", "engine/", "src/"].iter().any(is_in) || panic.contains(".skel.rs:")
}

impl FaultCase {
    fn is_refused(&self) -> bool {
        !self.is_up && self.ended.is_some()
    }

    /// It refused to run without one clear line of its own. (Failures before `main` are the loader's, the C library's
    /// or Rust's to report.)
    fn is_unclear(&self) -> bool {
        let is_own = |line: &String| line.starts_with("giveway: ");
        let is_librarys = |line: &String| {
            ["loading shared libraries", "allocat", "fatal runtime error"]
                .iter()
                .any(|words| line.contains(words))
        };
        let is_clear = || self.said.iter().any(|line| is_own(line) || is_librarys(line));
        self.is_refused() && !self.is_loaders && self.panics.is_empty() && !is_clear()
    }

    /// Something is missing and nothing reports it. A reason in the queue's status counts only if it reports a failure,
    /// since there is always one.
    fn is_unreported(&self) -> bool {
        let tells = |reason: &String| ["cannot", "could not", "fail"].iter().any(|word| reason.contains(word));
        let is_queue_told = self.queue_why.as_ref().is_some_and(tells);
        let lacks = |what: &&str| *what != "queue" || !is_queue_told;
        self.said.is_empty() && self.lacks.iter().any(lacks)
    }

    fn line(&self) -> String {
        let outcome = match (self.is_met, self.is_up, &self.ended) {
            (false, ..) if self.call.is_some() => "not met".to_owned(),
            (_, false, Some(how)) => format!("refused ({how})"),
            (_, false, None) => "never up".to_owned(),
            (_, true, Some(how)) => format!("ended ({how})"),
            (_, true, None) => "went on".to_owned(),
        };
        let call = self.call.as_ref().map_or_else(|| "no fault".to_owned(), Call::text);
        let mut line = format!("{call}\t{outcome}");
        if self.hung {
            line.push_str("; HUNG");
        }
        if !self.lacks.is_empty() {
            line += &format!("; lacks {}", self.lacks.join(", "));
        }
        for (word, left) in [("left until revert", &self.left), ("LEFT", &self.left_for_good)] {
            if let Some(left) = left {
                line += &format!("; {word}: {left}");
            }
        }
        let reason: Vec<String> = self.queue_why.iter().map(|reason| format!("queue: {reason}")).collect();
        line + "\t"
            + &[&self.panics[..], &self.said, &reason]
                .concat()
                .join(" | ")
                .replace('\n', " ")
    }
}

impl Stage {
    fn set_up(run: &Run, seconds: f64) -> Result<Self> {
        let (near, far) = (Namespace::create("near")?, Namespace::create("far")?);
        let addresses = [ADDRESS, SERVER_ADDRESS].map(|address| format!("{address}/24"));
        let [own, other] = addresses.each_ref().map(|address| [address.as_str()]);
        let ends = [
            End::new(&near, STATION_DEVICE, "02:00:00:00:00:01", &own),
            End::new(&far, SERVER_DEVICE, "02:00:00:00:00:fe", &other),
        ];
        add_pair(ends, 1)?;
        // Without it a virtual device has no NAPI threads.
        near.run("ethtool", &format!("-K {STATION_DEVICE} gro on"))?;
        ends[0].set_up(&[(SERVER_ADDRESS, ends[1].mac)])?;
        ends[1].set_up(&[(ADDRESS, ends[0].mac)])?;
        new_key(run.raw)?;
        let mut changes = Changes::prepare(&near, ADDRESS, &far, CAP, run.raw)?;
        changes.configuration["receive"] = json!({"threaded_napi": true});
        let file = run.file(".toml");
        write(&file, &changes.configuration)?;
        let sink = start_sink(&far)?;
        let source = TcpSource::connect(&near)?;
        let words = [
            "run",
            "--config",
            &file.to_string_lossy(),
            "--interface",
            STATION_DEVICE,
        ]
        .map(str::to_owned);
        Ok(Self {
            job: [vec![binary()?.to_string_lossy().into_owned()], words.to_vec()].concat(),
            log: run.file(".log").to_string_lossy().into_owned(),
            changes,
            source,
            _sink: sink,
            near,
            _far: far,
            seconds,
        })
    }

    /// From the start to the undo; and which calls were made, where none failed.
    fn one_run(&mut self, call: Option<&Call>, by_kill: bool) -> Result<(FaultCase, Vec<Call>)> {
        let before = objects(&[])?;
        let job = Job {
            program: self.job.clone(),
            log: self.log.clone(),
            fault: call.cloned(),
        };
        let mut injector = Role::spawn(&self.near, "injector", &job)?;
        let mut case = FaultCase {
            call: call.cloned(),
            ..FaultCase::default()
        };
        let state = self.start(&mut injector, &mut case)?;
        if case.is_up {
            self.source.start()?;
            let is_all_of_it = call.is_none_or(|call| call.part == RunPhase::Work);
            self.work(&mut injector, &mut case, is_all_of_it)?;
            injector.ask::<InjectorState>(json!(RunPhase::End))?;
            let signal = if by_kill { Signal::SIGKILL } else { Signal::SIGTERM };
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(state.pid), signal);
        }
        let state = until(LIMIT, &mut injector, |state| state.is_over)?;
        case.hung |= !state.is_over;
        (case.is_met, case.is_loaders) = (state.has_failed, state.is_loaders);
        let as_asked = if by_kill { "SIGKILL" } else { "exit 0" };
        case.ended = case.ended.or_else(|| state.ended.filter(|how| how != as_asked));
        if case.hung {
            injector.ask::<InjectorState>(ask::KILL)?;
        }
        self.look_for_left(&before, &mut case)?;
        if case.is_up {
            self.source.stop()?;
        }
        let seen = injector.finish()?;
        self.read_log(&mut case)?;
        Ok((case, seen))
    }

    fn start(&self, injector: &mut Role, case: &mut FaultCase) -> Result<InjectorState> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let state: InjectorState = injector.ask(ask::STATE)?;
            case.is_up = answers::status(&self.near).is_ok();
            case.ended.clone_from(&state.ended);
            if case.is_up || state.ended.is_some() {
                return Ok(state);
            }
            if Instant::now() > deadline {
                case.hung = true;
                injector.ask::<InjectorState>(ask::KILL)?;
                return Ok(state);
            }
            pause_until(Instant::now() + LOOK_EVERY)?;
        }
    }

    /// For the whole time, or until everything is active.
    fn work(&self, injector: &mut Role, case: &mut FaultCase, is_all_of_it: bool) -> Result<()> {
        injector.ask::<InjectorState>(json!(RunPhase::Work))?;
        // Any answer will do.
        for words in [
            "why",
            "class set 10.77.0.254:9 background",
            "class clear 10.77.0.254:9",
            "realtime list",
        ] {
            let mut command = self.near.command(binary()?)?;
            let asked = Instant::now();
            command.args(words.split(' ')).output()?;
            case.hung |= asked.elapsed() > LIMIT;
        }
        let deadline = Instant::now() + Duration::from_secs_f64(self.seconds);
        loop {
            case.lacks = self.lacks()?;
            let is_enough = case.lacks.is_empty() && !is_all_of_it;
            if is_enough || Instant::now() > deadline {
                break;
            }
            pause_until(Instant::now() + LOOK_EVERY)?;
        }
        if !case.lacks.is_empty()
            && let Ok(status) = answers::status(&self.near)
        {
            case.said = [
                status.daemon.warnings,
                status.priority.map(|of| of.warnings).unwrap_or_default(),
            ]
            .concat();
            // It may have become active meanwhile.
            let still = self.lacks()?;
            case.lacks.retain(|what| still.contains(what));
            case.queue_why = case.lacks.contains(&"queue").then_some(status.network.queue.reason);
        }
        case.ended = injector.ask::<InjectorState>(ask::STATE)?.ended;
        Ok(())
    }

    fn lacks(&self) -> Result<Vec<&'static str>> {
        let Installed {
            queue,
            control,
            rule,
            chain,
            nice,
            limits,
        } = self.changes.installed(&self.near)?;
        let caps = answers::caps_found(&self.near)? > 0;
        let all = [
            ("caps", caps),
            ("queue", queue),
            ("congestion control", control),
            ("rule", rule),
            ("chain", chain),
            ("nice", nice),
            ("limits", limits),
        ];
        Ok(all.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect())
    }

    fn look_for_left(&mut self, before: &BTreeSet<Object>, case: &mut FaultCase) -> Result<()> {
        let left = || -> Result<Option<String>> {
            let others = answers::others_found(&self.near)?.join("; ");
            Ok(left_over(&self.near, &self.changes, before, Holders::ByThese(&[]))?
                .or((!others.is_empty()).then_some(others)))
        };
        let left_after = |limit: Duration| -> Result<Option<String>> {
            let deadline = Instant::now() + limit;
            loop {
                let left = left()?;
                if left.is_none() || Instant::now() > deadline {
                    return Ok(left);
                }
                pause_until(Instant::now() + LOOK_EVERY)?;
            }
        };
        case.left = left_after(LEFT)?;
        if case.left.is_none() {
            return Ok(());
        }
        let reverted = answers::revert(&self.near);
        case.left_for_good = left_after(FREED)?.or_else(|| reverted.err().map(|error| format!("{error:#}")));
        if case.left_for_good.is_some() {
            self.changes.renew_programs(&self.near)?;
        }
        Ok(())
    }

    fn read_log(&self, case: &mut FaultCase) -> Result<()> {
        let text = fs::read(&self.log).with_context(|| format!("cannot read {}", self.log))?;
        let text = String::from_utf8_lossy(&text);
        let is_word = |line: &&str| ["WARN ", "ERROR "].iter().any(|level| line.contains(level));
        case.panics = text
            .lines()
            .filter(|line| line.contains("panicked at"))
            .map(str::to_owned)
            .collect();
        let is_last = |line: &&str| case.ended.is_some() && text.lines().last() == Some(*line);
        let is_told = |line: &&str| is_word(line) || line.starts_with("giveway: ") || is_last(line);
        case.said.extend(text.lines().filter(is_told).map(str::to_owned));
        Ok(())
    }
}

fn until(limit: Duration, injector: &mut Role, holds: fn(&InjectorState) -> bool) -> Result<InjectorState> {
    let deadline = Instant::now() + limit;
    loop {
        let state: InjectorState = injector.ask(ask::STATE)?;
        if holds(&state) || Instant::now() > deadline {
            return Ok(state);
        }
        pause_until(Instant::now() + LOOK_EVERY)?;
    }
}
