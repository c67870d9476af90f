// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What on this machine delays a task that must run, and what changing it would bring: one finding for each property
//! of the machine. What a change brings is said where it was measured (`bench/results/wakeup` has
//! the runs; `--measure` makes them here), and that it was not where it was not.

use schemars::JsonSchema;
use serde::Serialize;

use crate::kernel::preemption::Preemption;
use crate::kernel::response::{IdleState, LatencyFactors, Throttling};

#[derive(Debug, JsonSchema, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub found: String,
    /// None where nothing is to be gained.
    pub advice: Option<Advice>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct Advice {
    /// With its source.
    pub brings: String,
    pub how: &'static str,
}

pub fn findings(machine: &LatencyFactors) -> Vec<Finding> {
    vec![
        preemption(machine.preemption),
        timers(machine.timer_resolution_ns),
        slack(machine.timer_slack_ns),
        tick(machine.tickless_cpus.as_deref()),
        idle(machine.idle.as_ref()),
        governors(&machine.governors),
        throttling(machine.throttling),
        group(machine.group_runtime_us),
        steal(machine.stolen_percent),
    ]
}

fn advice(brings: impl Into<String>, how: &'static str) -> Option<Advice> {
    let brings = brings.into();
    Some(Advice { brings, how })
}

fn finding(name: &'static str, found: impl Into<String>, advice: Option<Advice>) -> Finding {
    let found = found.into();
    Finding { name, found, advice }
}

/// The figures are of scenario `wakeup` (bench/results/wakeup).
fn preemption(model: Preemption) -> Finding {
    let advice = match model {
        Preemption::Rt => None,
        Preemption::Lazy | Preemption::Full => advice(
            "of 10,000 wake-ups with a rule, beside CPU and ICMP load in a guest, p99.9 was 9 us in place of 16 and the worst \
             no better (36 us; lazy 33, full 40); but a softirq of 1 to 2 ms delays it here, and there it does not",
            "a kernel with PREEMPT_RT (Debian: linux-image-rt-amd64)",
        ),
        _ => advice(
            "with a rule the worst of 10,000 wake-ups beside CPU and ICMP load was 33 us (lazy), 40 (full) and 36 \
             (PREEMPT_RT) in a guest; without preemption, on a shared machine, p99.9 was 0.5 ms and the worst 32. \
             Programs without real time had 3.1 ms at worst with each: for them it brings nothing",
            "preempt=lazy or preempt=full on the kernel's command line (where it has PREEMPT_DYNAMIC), or a kernel with \
             PREEMPT_RT",
        ),
    };
    finding("preemption", model.to_string(), advice)
}

fn timers(resolution_ns: Option<u64>) -> Finding {
    let found = resolution_ns.map_or("unknown".to_owned(), |ns| format!("{ns} ns"));
    let brings = "wake-ups when they are due, not at the next tick";
    let advice = advice(brings, "highres=on, and a clock source that allows it");
    let is_coarse = resolution_ns.is_some_and(|ns| ns > 1);
    finding("timer resolution", found, advice.filter(|_| is_coarse))
}

fn slack(slack_ns: Option<u64>) -> Finding {
    let us = slack_ns.unwrap_or(0) / 1000;
    let found = format!("{us} us for threads without real-time priority started from here");
    let brings = format!("up to {us} us a wake-up, by definition; threads with real-time priority have none");
    let how = "prctl(PR_SET_TIMERSLACK, 1) in the program, or a [[priority]] rule";
    finding("timer slack", found, (us > 0).then_some(Advice { brings, how }))
}

fn tick(tickless: Option<&str>) -> Finding {
    let Some(cpus) = tickless else {
        let advice = advice(
            "not measured: nohz_full is for one task alone on a CPU",
            "nohz_full=CPUS",
        );
        return finding("tickless", "ticks while a task runs", advice);
    };
    finding("tickless", format!("none on CPU {cpus} while one task runs"), None)
}

fn idle(state: Option<&IdleState>) -> Finding {
    let Some(state) = state else {
        return finding("idle states", "none that the kernel chooses", None);
    };
    let found = format!(
        "down to {} ({}), {} us to wake up as its driver claims",
        state.name, state.driver, state.exit_latency_us
    );
    let brings = "`giveway doctor --measure` says, as it does for this machine";
    let advice = advice(brings, "hold /dev/cpu_dma_latency open with 0 in it");
    finding("idle states", found, advice.filter(|_| state.exit_latency_us > 1))
}

fn governors(governors: &[String]) -> Finding {
    match governors {
        [] => finding("governor", "none: the frequency is not this kernel's to choose", None),
        [only] if only == "performance" => finding("governor", only, None),
        others => {
            let how = "cpupower frequency-set -g performance";
            let advice = advice("not measured: no machine of ours has one", how);
            finding("governor", others.join(", "), advice)
        }
    }
}

fn throttling(found: Option<Throttling>) -> Finding {
    const ON: &str = "sysctl kernel.sched_rt_runtime_us=950000";
    let (text, advice) = match found {
        None => ("unknown".to_owned(), None),
        Some(Throttling { runtime_us: 0, .. }) => (
            "no real time at all".to_owned(),
            advice("any real-time priority: now each is refused", ON),
        ),
        Some(Throttling { runtime_us, period_us }) if (0..period_us).contains(&runtime_us) => {
            (format!("real time may use {runtime_us} of each {period_us} us"), None)
        }
        Some(_) => (
            "off: a real-time task that never pauses has its CPU for itself".to_owned(),
            advice("a machine that still answers; giveway's budgets hold all the same", ON),
        ),
    };
    finding("real-time throttling", text, advice)
}

fn group(runtime_us: Option<i64>) -> Finding {
    let found = runtime_us.map_or("not in use".to_owned(), |us| {
        format!("{us} us a period for the group that this runs in")
    });
    let brings = "any real-time priority: now each is refused here";
    let advice = advice(
        brings,
        "write to cpu.rt_runtime_us of this cgroup, and of those above it",
    );
    finding("real-time groups", found, advice.filter(|_| runtime_us == Some(0)))
}

fn steal(percent: Option<f64>) -> Finding {
    let Some(percent) = percent else {
        return finding("hypervisor", "none", None);
    };
    let brings = "no priority helps while the whole machine does not run; `giveway jitter` tells such wake-ups apart";
    let advice = advice(brings, "a CPU of its own for this machine");
    let found = format!("took {percent:.2}% of the time since boot for others");
    finding("hypervisor", found, advice.filter(|_| percent >= 0.01))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best() -> LatencyFactors {
        LatencyFactors {
            preemption: Preemption::Rt,
            timer_resolution_ns: Some(1),
            tickless_cpus: Some("1-3".to_owned()),
            governors: vec!["performance".to_owned()],
            idle: None,
            throttling: Some(runtime(950_000)),
            group_runtime_us: None,
            stolen_percent: None,
            timer_slack_ns: Some(1),
        }
    }

    fn advised(machine: &LatencyFactors) -> Vec<&'static str> {
        let advised = findings(machine).into_iter().filter(|finding| finding.advice.is_some());
        advised.map(|finding| finding.name).collect()
    }

    #[test]
    fn a_machine_that_has_everything_gets_no_advice() {
        assert_eq!(advised(&best()), Vec::<&str>::new());
    }

    fn c10() -> IdleState {
        IdleState {
            driver: "intel_idle".to_owned(),
            name: "C10".to_owned(),
            exit_latency_us: 890,
        }
    }

    fn runtime(runtime_us: i64) -> Throttling {
        Throttling {
            runtime_us,
            period_us: 1_000_000,
        }
    }

    #[test]
    fn each_thing_that_hurts_is_named_alone() {
        type Hurt = fn(&mut LatencyFactors);
        let cases: [(&str, Hurt); 9] = [
            ("preemption", |m| m.preemption = Preemption::Lazy),
            ("timer resolution", |m| m.timer_resolution_ns = Some(4_000_000)),
            ("timer slack", |m| m.timer_slack_ns = Some(50_000)),
            ("tickless", |m| m.tickless_cpus = None),
            ("idle states", |m| m.idle = Some(c10())),
            ("governor", |m| m.governors = vec!["powersave".to_owned()]),
            ("real-time throttling", |m| m.throttling = Some(runtime(0))),
            ("real-time groups", |m| m.group_runtime_us = Some(0)),
            ("hypervisor", |m| m.stolen_percent = Some(1.5)),
        ];
        for (name, hurt) in cases {
            let mut machine = best();
            hurt(&mut machine);
            assert_eq!(advised(&machine), [name]);
        }
    }

    #[test]
    fn missing_throttling_is_shown_as_a_danger() {
        let machine = LatencyFactors {
            throttling: Some(runtime(-1)),
            ..best()
        };
        assert_eq!(advised(&machine), ["real-time throttling"]);
    }
}
