// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Eight stations of which the last one lies to its neighbours: a member that says that it has everything, or nothing, or that
//! begins and ends each second, or that lists as many senders as a report can; and a thousand devices without the group's key. What is left to the seven honest ones, against
//! the same seats where nobody has giveway.

use anyhow::Result;

use crate::access_point::{AccessPoint, Cap, FIXED54, Managed};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace};
use crate::testbed::load::Load;
use crate::testbed::probe::transfers::Transfers;
use crate::testbed::{Testbed, Topology};
use crate::traffic::iperf3::Protocol;
use crate::traffic::liar::Lie;

pub const SCENARIO: Scenario = Scenario {
    name: "liar",
    about: "one of eight stations tells its neighbours what is not true",
    stations: None,
    seconds: 40,
    warmup_s: 15,
    parameters: &[
        Parameter::range("stations", 8, 2, 16, "on the access point"),
        Parameter::range("rtt_ms", 256, 2, 2_000, "round trip behind the access point"),
        Parameter::range("repeats", 3, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

const LIES: [(&str, Option<Lie>); 6] = [
    // It sends as well, and has no giveway.
    ("silent", None),
    ("everything", Some(Lie::Everything)),
    ("nothing", Some(Lie::Nothing)),
    ("flapping", Some(Lie::Flapping)),
    ("crowd", Some(Lie::Crowd)),
    ("identities", Some(Lie::Identities)),
];
const PLAIN: &str = "plain";
const HONEST: &str = "honest";
/// `floor_mbit` of the configuration, by default.
const FLOOR_MBIT: f64 = 0.1;

fn plan(parameters: &Parameters) -> Result<Plan> {
    let stations = parameters.count("stations") as usize;
    let honest = stations - 1;
    let variant = |name: &str, cap: Option<Cap>, lie: Option<Lie>| {
        let mut transfers = Transfers::steady(parameters, Protocol::Tcp, stations);
        transfers.per_station = true;
        transfers.groups = vec![(HONEST, 0..honest)];
        let testbed = Testbed {
            topology: Topology::AccessPoint(AccessPoint {
                managed: Managed::First(honest),
                ..AccessPoint::new(parameters, FIXED54, cap)
            }),
            loads: lie.map(|lie| Load::Liar { sender: honest, lie }).into_iter().collect(),
            warmup_s: 0.0,
            probes: vec![Box::new(transfers)],
        };
        testbed.variant(name, None)
    };
    let mut variants = vec![variant(PLAIN, None, None)];
    let mut checks = Vec::new();
    let plain = format!("{PLAIN}/{HONEST}");
    for (name, lie) in LIES {
        variants.push(variant(name, Some(Cap::Found("balanced")), lie));
        // Where limits were given up the queue of the access point drops reports; but nobody without the key is believed.
        let is_member = !matches!(lie, None | Some(Lie::Identities));
        let holds = if is_member {
            Relation::AtLeast(1.0)
        } else {
            Relation::AtMost(honest as f64 - 1.0)
        };
        checks.push(Check::metric(name, "neighbours", holds));
        let ours = format!("{name}/{HONEST}");
        let beside_plain =
            |metric, holds| Check::ratio(format!("{ours} over {plain}, {metric}"), &ours, &plain, metric, holds);
        checks.extend([
            Check::metric(&ours, "least_mbit", Relation::AtLeast(FLOOR_MBIT)),
            // No flood: not more than plain TCP makes.
            beside_plain("rtt_p50_ms", Relation::AtMost(1.0)),
            beside_plain("retransmits", Relation::AtMost(1.0)),
            // Who is starved makes no queue either.
            beside_plain("goodput_mbit", Relation::AtLeast(0.8)),
            beside_plain("goodput_mbit", Relation::AtLeast(0.97)).goal(),
        ]);
    }
    let names: Vec<_> = variants.iter().map(|variant| variant.name.clone()).collect();
    Ok(Plan {
        variants,
        checks,
        plots: vec![
            Plot::Stations {
                file: "goodput-stations".into(),
                title: "Goodput of each station".into(),
                variants: names.clone(),
            },
            Plot::timeline(Trace::Goodput, &names),
        ],
        columns: "goodput_mbit spread:goodput_mbit jain retransmits rtt_p50_ms least_mbit lateness_p99_us daemon_waited_percent",
    })
}
