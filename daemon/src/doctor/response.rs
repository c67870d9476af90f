// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What on this machine keeps a task waiting that must run, and what changing it would bring. In comes the machine as
//! it is, out goes a finding for each thing. What a change brings is said where it was measured (`docs/jitter.md` has
//! the runs; `--measure` makes them here), and that it was not where it was not.

use serde::Serialize;

use crate::kernel::preemption::Preemption;
use crate::kernel::response::{IdleState, Machine, Throttling};

#[derive(Debug, Serialize)]
pub struct Finding {
    pub name: &'static str,
    pub found: String,
    /// None where nothing is to be gained.
    pub advice: Option<Advice>,
}

#[derive(Debug, Serialize)]
pub struct Advice {
    /// With its source.
    pub brings: String,
    pub how: &'static str,
}

pub fn findings(machine: &Machine) -> Vec<Finding> {
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

/// The figures are of scenario `wakeup` (bench/results/2026-11-21), the last one of a planted softirq (docs/jitter.md).
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
             (PREEMPT_RT) in a guest; without preemption, on a shared machine, p99.9 was 0.9 ms and the worst 13. Ordinary \
             programs had 3.1 ms at worst with each: for them it brings nothing",
            "preempt=lazy or preempt=full on the kernel's command line (where it has PREEMPT_DYNAMIC), or a kernel with \
             PREEMPT_RT",
        ),
    };
    Finding {
        name: "preemption",
        found: model.to_string(),
        advice,
    }
}

fn timers(resolution_ns: Option<u64>) -> Finding {
    let found = resolution_ns.map_or("not told".to_owned(), |ns| format!("{ns} ns"));
    let is_coarse = resolution_ns.is_some_and(|ns| ns > 1);
    let coarse = || {
        advice(
            "wake-ups when they are due, not at the next tick",
            "highres=on, and a clock source that allows it",
        )
    };
    Finding {
        name: "timer resolution",
        found,
        advice: if is_coarse { coarse() } else { None },
    }
}

fn slack(slack_ns: Option<u64>) -> Finding {
    let slack_us = slack_ns.unwrap_or(0) / 1000;
    Finding {
        name: "timer slack",
        found: format!("{slack_us} us for ordinary threads started from here"),
        advice: (slack_us > 0).then(|| Advice {
            brings: format!("up to {slack_us} us a wake-up, by definition; threads with real-time priority have none"),
            how: "prctl(PR_SET_TIMERSLACK, 1) in the program, or a [[realtime]] rule",
        }),
    }
}

fn tick(tickless: Option<&str>) -> Finding {
    let found = tickless.map_or("ticks while a task runs".to_owned(), |cpus| {
        format!("none on CPU {cpus} while one task runs")
    });
    Finding {
        name: "tickless",
        found,
        advice: if tickless.is_some() {
            None
        } else {
            advice(
                "not measured: nohz_full is for one task alone on a CPU",
                "nohz_full=CPUS",
            )
        },
    }
}

fn idle(state: Option<&IdleState>) -> Finding {
    Finding {
        name: "idle states",
        found: state.map_or("none that the kernel chooses".to_owned(), |state| {
            format!(
                "down to {} ({}), {} us to wake up as its driver claims",
                state.name, state.driver, state.exit_latency_us
            )
        }),
        advice: state.filter(|state| state.exit_latency_us > 1).and_then(|_| {
            advice(
                "`giveway doctor --measure` says, as it does for this machine",
                "hold /dev/cpu_dma_latency open with 0 in it",
            )
        }),
    }
}

fn governors(governors: &[String]) -> Finding {
    let is_best = governors.is_empty() || governors == ["performance"];
    Finding {
        name: "governor",
        found: if governors.is_empty() {
            "none: the frequency is not this kernel's to choose".to_owned()
        } else {
            governors.join(", ")
        },
        advice: if is_best {
            None
        } else {
            advice(
                "not measured: no machine of ours has one",
                "cpupower frequency-set -g performance",
            )
        },
    }
}

fn throttling(found: Option<Throttling>) -> Finding {
    let (text, advice) = match found {
        None => ("not told".to_owned(), None),
        Some(Throttling { runtime_us: 0, .. }) => (
            "no real time at all".to_owned(),
            advice(
                "any real-time priority: now each is refused",
                "sysctl kernel.sched_rt_runtime_us=950000",
            ),
        ),
        Some(Throttling { runtime_us, period_us }) if (0..period_us).contains(&runtime_us) => {
            (format!("real time may use {runtime_us} of each {period_us} us"), None)
        }
        Some(_) => (
            "off: a real-time task that never pauses has its CPU for itself".to_owned(),
            advice(
                "a machine that still answers; giveway's budgets hold all the same",
                "sysctl kernel.sched_rt_runtime_us=950000",
            ),
        ),
    };
    Finding {
        name: "real-time throttling",
        found: text,
        advice,
    }
}

fn group(runtime_us: Option<i64>) -> Finding {
    let found = runtime_us.map_or("not in use".to_owned(), |us| {
        format!("{us} us a period for the group that this runs in")
    });
    let refuses = runtime_us == Some(0);
    Finding {
        name: "real-time groups",
        found,
        advice: if refuses {
            advice(
                "any real-time priority: now each is refused here",
                "write to cpu.rt_runtime_us of this cgroup, and of those above it",
            )
        } else {
            None
        },
    }
}

fn steal(percent: Option<f64>) -> Finding {
    Finding {
        name: "hypervisor",
        found: percent.map_or("none".to_owned(), |percent| {
            format!("took {percent:.2}% of the time since boot for others")
        }),
        advice: percent.filter(|percent| *percent >= 0.01).and_then(|_| {
            advice(
                "no priority helps while the whole machine does not run; `giveway jitter` tells such wake-ups apart",
                "a CPU of its own for this machine",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best() -> Machine {
        Machine {
            preemption: Preemption::Rt,
            timer_resolution_ns: Some(1),
            tickless_cpus: Some("1-3".to_owned()),
            governors: vec!["performance".to_owned()],
            idle: None,
            throttling: Some(Throttling {
                runtime_us: 950_000,
                period_us: 1_000_000,
            }),
            group_runtime_us: None,
            stolen_percent: None,
            timer_slack_ns: Some(1),
        }
    }

    fn advised(machine: &Machine) -> Vec<&'static str> {
        let advised = findings(machine).into_iter().filter(|finding| finding.advice.is_some());
        advised.map(|finding| finding.name).collect()
    }

    #[test]
    fn a_machine_that_has_everything_gets_no_advice() {
        assert_eq!(advised(&best()), Vec::<&str>::new());
    }

    #[test]
    fn each_thing_that_hurts_is_named_alone() {
        let zero = Throttling {
            runtime_us: 0,
            period_us: 1_000_000,
        };
        let idle = IdleState {
            driver: "intel_idle".to_owned(),
            name: "C10".to_owned(),
            exit_latency_us: 890,
        };
        let cases = [
            (
                "preemption",
                Machine {
                    preemption: Preemption::Lazy,
                    ..best()
                },
            ),
            (
                "timer resolution",
                Machine {
                    timer_resolution_ns: Some(4_000_000),
                    ..best()
                },
            ),
            (
                "timer slack",
                Machine {
                    timer_slack_ns: Some(50_000),
                    ..best()
                },
            ),
            (
                "tickless",
                Machine {
                    tickless_cpus: None,
                    ..best()
                },
            ),
            (
                "idle states",
                Machine {
                    idle: Some(idle),
                    ..best()
                },
            ),
            (
                "governor",
                Machine {
                    governors: vec!["powersave".to_owned()],
                    ..best()
                },
            ),
            (
                "real-time throttling",
                Machine {
                    throttling: Some(zero),
                    ..best()
                },
            ),
            (
                "real-time groups",
                Machine {
                    group_runtime_us: Some(0),
                    ..best()
                },
            ),
            (
                "hypervisor",
                Machine {
                    stolen_percent: Some(1.5),
                    ..best()
                },
            ),
        ];
        for (name, machine) in cases {
            assert_eq!(advised(&machine), [name]);
        }
    }

    #[test]
    fn no_throttling_is_told_as_a_danger() {
        let off = Throttling {
            runtime_us: -1,
            period_us: 1_000_000,
        };
        assert_eq!(
            advised(&Machine {
                throttling: Some(off),
                ..best()
            }),
            ["real-time throttling"]
        );
    }
}
