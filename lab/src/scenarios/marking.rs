// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The access category in which frames of each class really leave: a station of Linux's own Wi-Fi stack
//! (mac80211_hwsim) at an access point of hostapd, and a monitor that captures every frame. TCP and UDP, IPv4 and IPv6.

mod monitor;
mod radio;
pub mod sender;

use anyhow::Result;
use giveway_engine::model::Class;
use serde_json::{Value, json};

use crate::experiment::Run;
use crate::giveway::{Daemon, wait_until_marking};
use crate::guest::Guest;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::role::Role;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use monitor::{Frame, Monitor};
use radio::{ACCESS_POINT_V4, ACCESS_POINT_V6, Radio};
use sender::{MESSAGES, MarkedFlow};

pub const SCENARIO: Scenario = Scenario {
    name: "marking",
    about: "The Wi-Fi access category and DSCP with which frames of each class leave, on two emulated radios of mac80211_hwsim",
    seconds: 1,
    warmup_s: 0,
    parameters: &[],
    plan: &plan,
};

const PROGRAMS: &[&str] = &["hostapd", "iw"];
const ESTIMATED_S: f64 = 10.0;
/// UDP and TCP, over IPv4 and IPv6.
const WAYS: u16 = 4;
const FIRST_PORT: u16 = 7000;

/// A traffic, and its class by a rule.
struct Traffic {
    name: &'static str,
    class: Option<Class>,
    /// Set by the application.
    dscp: u8,
}

const LE: u8 = 1;
const CS1: u8 = 8;
const AF11: u8 = 10;
const AF41: u8 = 34;
const EF: u8 = 46;

/// Of each class, and applications' own marks.
const TRAFFIC: [Traffic; 8] = [
    of_class("realtime", Class::Realtime),
    of_class("stream", Class::Stream),
    of_class("standard", Class::Standard),
    of_class("bulk", Class::Bulk),
    of_class("background", Class::Background),
    Traffic {
        dscp: EF,
        ..of_class("background-ef", Class::Background)
    },
    own("own-ef", EF),
    own("own-le", LE),
];

const fn of_class(name: &'static str, class: Class) -> Traffic {
    Traffic {
        name,
        class: Some(class),
        dscp: 0,
    }
}

const fn own(name: &'static str, dscp: u8) -> Traffic {
    Traffic {
        name,
        class: None,
        dscp,
    }
}

/// A frame's 802.1D user priority, and its packet's DSCP, of each of [`TRAFFIC`].
type Expected = [(u8, u8); TRAFFIC.len()];

/// As `docs/reference/classes-and-marks.md` has it. User priority 1 is AC_BK, 0 AC_BE, 4 AC_VI, 6 AC_VO.
const PLAIN: Expected = [(0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (6, EF), (6, EF), (0, LE)];
const DEFAULT: Expected = [(0, 0), (0, 0), (0, 0), (0, 0), (1, LE), (1, LE), (6, EF), (1, LE)];
const UNDER_HTB: Expected = [(0, 0), (0, 0), (0, 0), (0, 0), (1, CS1), (1, CS1), (6, EF), (1, CS1)];
const CONFIGURED: Expected = [(6, EF), (4, AF41), (0, 0), (0, AF11), (1, LE), (1, LE), (0, 0), (1, LE)];

/// Its name, giveway's configuration (None: without it), and the expected marks.
type Setting = (&'static str, Option<fn() -> Value>, Expected);

const SETTINGS: [Setting; 5] = [
    ("plain", None, PLAIN),
    ("default", Some(|| json!({})), DEFAULT),
    ("no-queue", Some(|| json!({"queue": {"backend": "none"}})), DEFAULT),
    (
        "htb",
        Some(|| json!({"queue": {"backend": "htb"}, "link": {"rate_mbit": 20.0}})),
        UNDER_HTB,
    ),
    (
        "configured",
        Some(|| json!({"marks": {"realtime": "EF", "stream": "AF41", "standard": "CS0", "bulk": "AF11"}})),
        CONFIGURED,
    ),
];

fn plan(_: &Parameters) -> Result<Plan> {
    let mut checks = Vec::new();
    let mut variants = Vec::new();
    for (name, giveway, expected) in SETTINGS {
        for (traffic, (priority, dscp)) in TRAFFIC.iter().zip(expected) {
            let point = format!("{name}/{}", traffic.name);
            let exactly = |metric, value: f64| Check::metric(&point, metric, Relation::Exactly(value)).always();
            checks.extend([
                exactly("ways", WAYS.into()),
                exactly("user_priority_min", priority.into()),
                exactly("user_priority_max", priority.into()),
                exactly("dscp_min", dscp.into()),
                exactly("dscp_max", dscp.into()),
                Check::metric(&point, "frames", Relation::AtLeast(f64::from(WAYS * MESSAGES))).always(),
            ]);
        }
        let run = move |run: &Run| measure(run, giveway.map(|configuration| configuration()));
        let variant = Variant::new(name, Some(Guest::VIRTUAL), ESTIMATED_S, run);
        variants.push(variant.with(PROGRAMS));
    }
    Ok(Plan {
        variants,
        checks,
        plots: Vec::new(),
        columns: "user_priority_min user_priority_max dscp_min dscp_max frames ways",
    })
}

fn measure(run: &Run, configuration: Option<Value>) -> Result<Outcome> {
    let radio = Radio::raise(run)?;
    let mut daemon = configuration
        .map(|configuration| start(&radio, configuration, run))
        .transpose()?;
    let _sink = Role::start(&radio.access_point, "marking-sink", &())?;
    let monitor = Monitor::open()?;
    run.progress.tick("sending");
    let sent: u16 = Role::spawn(&radio.station, "marking-sender", &flows())?.finish()?;
    anyhow::ensure!(
        sent == flows().len() as u16 * MESSAGES,
        "only {sent} messages were sent"
    );
    let frames = monitor.frames()?;
    run.keep(&frames)?;
    let mut outcome = Outcome::default();
    for (at, traffic) in TRAFFIC.iter().enumerate() {
        let ports = port(at, 0)..port(at + 1, 0);
        let frames: Vec<_> = frames
            .iter()
            .filter(|frame| ports.contains(&frame.local_port))
            .collect();
        set_metrics(&mut outcome, &format!("{}/{}", run.name, traffic.name), &frames);
    }
    daemon.as_mut().map_or(Ok(()), Daemon::stop)?;
    Ok(outcome)
}

fn start(radio: &Radio, mut configuration: Value, run: &Run) -> Result<Daemon> {
    let rule = |(at, traffic): (usize, &Traffic)| {
        let ports = (0..WAYS).map(move |way| port(at, way));
        let class = traffic.class?.name();
        Some(ports.map(move |port| json!({"local_port": port, "class": class})))
    };
    configuration["rule"] = TRAFFIC.iter().enumerate().filter_map(rule).flatten().collect();
    let daemon = Daemon::raise(&radio.station, &configuration, &run.file(""))?;
    wait_until_marking(&radio.station)?;
    Ok(daemon)
}

/// The station's port identifies a frame's traffic and transport.
fn port(traffic: usize, way: u16) -> u16 {
    FIRST_PORT + traffic as u16 * WAYS + way
}

fn flows() -> Vec<MarkedFlow> {
    let of = |(at, traffic): (usize, &'static Traffic)| {
        (0..WAYS).map(move |way| MarkedFlow {
            is_tcp: way & 1 > 0,
            to: if way & 2 > 0 { ACCESS_POINT_V6 } else { ACCESS_POINT_V4 }.to_owned(),
            local_port: port(at, way),
            dscp: traffic.dscp,
        })
    };
    TRAFFIC.iter().enumerate().flat_map(of).collect()
}

fn set_metrics(outcome: &mut Outcome, point: &str, frames: &[&Frame]) {
    let ways: std::collections::BTreeSet<_> = frames.iter().map(|frame| frame.local_port).collect();
    outcome.set(point, "frames", frames.len() as f64);
    outcome.set(point, "ways", ways.len() as f64);
    let priorities: Vec<f64> = frames.iter().map(|frame| frame.user_priority.into()).collect();
    let dscps: Vec<f64> = frames.iter().map(|frame| frame.dscp.into()).collect();
    outcome.percentiles(point, "user_priority_*", &priorities, &[0, 100]);
    outcome.percentiles(point, "dscp_*", &dscps, &[0, 100]);
}
