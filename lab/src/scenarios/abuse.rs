// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Users of the machine and hosts on the link that do their worst for a minute, beside honest traffic with deadlines,
//! an honest upload and a real-time service: what each can take from the others, and what it costs the daemon.

mod abuser;
mod experiment;

use anyhow::Result;

use crate::guest::Guest;
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use abuser::Abuser;
pub use abuser::run as run_abuser;
use experiment::Abuse;

pub const SCENARIO: Scenario = Scenario {
    name: "abuse",
    about: "A user without grants, one with grants, an outsider without the group's key and one with it each do their worst for a minute, beside packets with deadlines, an upload and a timer. `plain` has no giveway",
    seconds: 60,
    warmup_s: 0,
    parameters: &[Parameter::choice(
        "kernel",
        &["host"],
        "this machine's instead of a guest's, with the queue that it can have",
    )],
    plan: &plan,
};

const ABUSERS: [(&str, Abuser); 4] = [
    ("user", Abuser::User),
    ("granted", Abuser::Granted),
    ("outsider", Abuser::Outsider),
    ("member", Abuser::Member),
];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let is_here = parameters.choice("kernel").is_some();
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    for (name, abuser) in ABUSERS {
        for (way, has_giveway) in [("plain", false), ("giveway", true)] {
            let abuse = Abuse {
                abuser,
                seconds: parameters.count("seconds"),
                has_giveway,
                can_use_bpf_queue: !is_here,
            };
            let guest = (!is_here).then_some(Guest::VIRTUAL);
            let estimated_s = abuse.estimated_s();
            variants.push(Variant::new(format!("{name}/{way}"), guest, estimated_s, move |run| {
                abuse.run(run)
            }));
        }
        checks.extend(promises(&format!("{name}/giveway"), &format!("{name}/plain"), is_here));
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![],
        columns: "abuses sent late refused_percent best_effort_mbit wakeup_p999_us daemon_cpu_percent \
                  priority_cpu_percent daemon_growth_mb",
    })
}

fn promises(name: &str, plain: &str, is_here: bool) -> Vec<Check> {
    let check = |metric, relation| Check::metric(name, metric, relation);
    let mut checks = vec![
        // An idle abuser proves nothing.
        check("abuses", Relation::AtLeast(100.0)),
        check("late", Relation::Exactly(0.0)),
        check("refused_percent", Relation::AtMost(1.0)),
        check("expired", Relation::Exactly(0.0)),
        check("authenticated_at_end", Relation::Exactly(1.0)),
        check("daemon_cpu_percent", Relation::AtMost(10.0)),
        check("priority_cpu_percent", Relation::AtMost(30.0)),
        // The allocator's arenas vary by less.
        check("daemon_growth_mb", Relation::AtMost(1.0)),
        Check::over(name, plain, "best_effort_mbit", Relation::AtLeast(0.9)),
    ];
    // On the host the hypervisor decides.
    if !is_here {
        checks.push(check("wakeup_p999_us", Relation::AtMost(1_000.0)));
    }
    checks
}
