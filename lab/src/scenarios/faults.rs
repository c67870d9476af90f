// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each distinct system call of the daemon and of its watchdog fails once: at the start, in two seconds of work, at the
//! end. Either may refuse to run or continue, with a clear message; nothing may hang, panic or remain.

mod calls;
mod experiment;
pub mod injector;
mod trap;

use anyhow::Result;

use crate::experiment::Run;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use experiment::{Wanted, fail_each_call};
use injector::RunPhase;

pub const SCENARIO: Scenario = Scenario {
    name: "faults",
    about: "Each distinct system call of the daemon and its watchdog fails once: whether anything is left, hangs or goes unreported",
    seconds: 2,
    warmup_s: 0,
    parameters: &[
        Parameter::range("shares", 1, 1, 1_000, "the calls are dealt out to so many runs"),
        Parameter::range("share", 1, 1, 1_000, "which of these runs this is"),
        Parameter::list("calls", "", "only those that contain one of these words"),
    ],
    plan: &plan,
};

/// For the progress line.
const CASES: f64 = 80.0;
const CASE_S: f64 = 5.0;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let wanted = Wanted {
        share: parameters.count("share") as usize,
        of: parameters.count("shares") as usize,
        words: parameters.list("calls").to_vec(),
    };
    let seconds = parameters.count("seconds") as f64;
    let (mut variants, mut checks) = (Vec::new(), Vec::new());
    for (process, is_watchdog) in [("daemon", false), ("watchdog", true)] {
        for (word, part) in [
            ("start", RunPhase::Start),
            ("work", RunPhase::Work),
            ("end", RunPhase::End),
        ] {
            let name = format!("{process}/{word}");
            // These bounds hold at any length.
            for metric in ["left", "hangs", "own_panics", "unreported", "unclear"] {
                checks.push(Check::metric(&name, metric, Relation::Exactly(0.0)).always());
            }
            checks.push(Check::metric(&name, "failed_calls", Relation::AtLeast(1.0)).always());
            let estimated_s = CASES / wanted.of as f64 * CASE_S;
            let wanted = wanted.clone();
            let act = move |run: &Run| fail_each_call(run, (is_watchdog, part), &wanted, seconds);
            variants.push(Variant::new(name, None, estimated_s, act));
        }
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![],
        columns: "failed_calls not_met refused went_on ended others_panics left_until_revert left hangs own_panics unreported unclear",
    })
}
