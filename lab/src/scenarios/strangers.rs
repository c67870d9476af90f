// SPDX-License-Identifier: Apache-2.0 OR MIT
//! P2, figure 5: what one station leaves to two strangers on the same air, who run no giveway: what they get beside it,
//! against what they have alone. It sends nothing, all it can, a live stream, or in the background.

use anyhow::Result;

use crate::access_point::{ARF_LOSSY_EDCA, AccessPoint, Background, Cap, FIXED54_EDCA, Managed, media, name_on};
use crate::parameters::{Parameter, Parameters};
use crate::scenario::{Check, Plan, Plot, Relation, Scenario, Trace};
use crate::testbed::probe::transfers::Transfers;
use crate::traffic::iperf3::{Protocol, Span};

pub const SCENARIO: Scenario = Scenario {
    name: "strangers",
    about: "what two stations without giveway keep beside one with it (P2, figure 5)",
    stations: Some(STRANGERS as u64 + 1),
    seconds: 30,
    warmup_s: 8,
    parameters: &[
        Parameter::range("stations", STRANGERS as u64 + 1, 3, 3, "two strangers and ours"),
        Parameter::range("rtt_ms", 80, 2, 2_000, "round trip behind the access point"),
        Parameter::range("repeats", 5, 1, 100, "rounds; a metric is the mean over them"),
    ],
    plan,
};

/// The first stations.
const STRANGERS: usize = 2;
/// P2's live stream and its cap.
const STREAM_MBIT: f64 = 2.5;
const STREAM_CAP: Cap = Cap::Segments(20);
/// What the strangers keep beside a background that gives way.
const KEPT: f64 = 0.97;

/// What our station sends.
#[derive(Clone, Copy, Default)]
struct Ours {
    /// Nothing at all.
    is_silent: bool,
    /// What the program offers; else as much as it can.
    mbit: Option<f64>,
    /// What its daemon does; without either none runs.
    giveway: Option<Cap>,
    background: Option<Background>,
}

impl Ours {
    /// Traffic of the class background, by a rule.
    fn background(is_marked: bool, is_slowed: bool) -> Self {
        Self {
            background: Some(Background { is_marked, is_slowed }),
            ..Self::default()
        }
    }
}

fn variants_of_ours() -> [(&'static str, Ours); 7] {
    let plain = Ours::default();
    let stream = Ours {
        mbit: Some(STREAM_MBIT),
        ..plain
    };
    let silent = Ours {
        is_silent: true,
        ..plain
    };
    let capped = Ours {
        giveway: Some(STREAM_CAP),
        ..stream
    };
    [
        ("none", silent),
        ("plain", plain),
        ("stream", stream),
        ("stream-capped-20", capped),
        ("background/marked", Ours::background(true, false)),
        ("background/slowed", Ours::background(false, true)),
        ("background/both", Ours::background(true, true)),
    ]
}

fn plan(parameters: &Parameters) -> Result<Plan> {
    let media = media(parameters, &[FIXED54_EDCA, ARF_LOSSY_EDCA]);
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    let mut plots = Vec::new();
    for &medium in &media {
        let name = |what: &str| name_on(parameters, what, medium);
        for (what, ours) in variants_of_ours() {
            let access_point = AccessPoint {
                managed: Managed::AllButFirst(STRANGERS),
                background: ours.background,
                ..AccessPoint::new(parameters, medium, ours.giveway)
            };
            variants.push(transfers(parameters, ours).on(access_point, name(what)));
            if let Some(Cap::Segments(cap)) = ours.giveway {
                checks.push(Check::metric(&name(what), "cap_segments", Relation::Exactly(cap as f64)).always());
            }
        }
        let names = variants_of_ours().map(|(what, _)| name(what));
        plots.push(Plot::Stations {
            file: name("goodput-stations").replace('/', "-"),
            title: format!("{medium}: goodput of two strangers (1, 2) and of ours (3)"),
            variants: names.to_vec(),
        });
        plots.push(Plot::timeline(Trace::Cwnd, &names));
        checks.extend(theirs_against_alone(medium, name));
    }
    Ok(Plan {
        variants,
        checks,
        plots,
        columns: "goodput_mbit rtt_p50_ms rtt_p99_ms retransmits cap_segments collisions_percent",
    })
}

fn transfers(parameters: &Parameters, ours: Ours) -> Transfers {
    let steady = Transfers::steady(parameters, Protocol::Tcp, STRANGERS + usize::from(!ours.is_silent));
    let with_ours = |span: Span| match span.station {
        STRANGERS.. => Span {
            mbit: ours.mbit,
            ..span
        },
        _ => span,
    };
    Transfers {
        senders: steady.senders.iter().copied().map(with_ours).collect(),
        per_station: true,
        groups: vec![("theirs", 0..STRANGERS), ("ours", STRANGERS..STRANGERS + 1)],
        ..steady
    }
}

fn theirs_against_alone(medium: &str, name: impl Fn(&str) -> String) -> Vec<Check> {
    let alone = name("none") + "/theirs";
    let beside = |what: &str, metric, holds| {
        let theirs = name(what) + "/theirs";
        Check::ratio(format!("{theirs} {metric} / none"), &theirs, &alone, metric, holds)
    };
    let kept = beside("background/both", "goodput_mbit", Relation::AtLeast(KEPT));
    let mut checks = vec![
        if medium == FIXED54_EDCA { kept } else { kept.goal() },
        beside("background/both", "rtt_p50_ms", Relation::AtMost(2.0 - KEPT)).goal(),
    ];
    if medium == FIXED54_EDCA {
        // What each alone is worth, and what a plain station takes, by a model of slots with an access point that
        // acknowledges: 92 and 71%.
        checks.push(beside(
            "background/marked",
            "goodput_mbit",
            Relation::Between(0.88, 0.96),
        ));
        checks.push(beside("plain", "goodput_mbit", Relation::Between(0.65, 0.76)));
    }
    checks
}
