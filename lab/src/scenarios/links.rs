// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Common network setups: several uplinks, selected in each way that Linux has, a VPN that moves the default route, a
//! network manager that resets the queue, a modem that is slower than the LAN, a link that moves to another namespace
//! and back. Twice the rate of each link is offered: what arrives by which, and how long after each change until that
//! holds.

mod place;

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use crate::experiment::{Run, pause};
use crate::interrupt::{pause_until, wait_for, wait_until};
use crate::namespace::Namespace;
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::role::Role;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use place::{
    DEVICES, FAR, FAR_IPV6, MultihomedDevice, NEAR, NEAR_IPV6, PORT, SERVER, SERVER_IPV6, give, gso_max_segs, sender,
};

pub const SCENARIO: Scenario = Scenario {
    name: "links",
    about: "Several uplinks, VPNs, tools that reset queues, and a LAN beside a modem: what arrives, and how soon giveway follows",
    seconds: 4,
    warmup_s: 1,
    parameters: &[],
    plan: &plan,
};

/// Of the first link, and of the second.
const RATES_MBIT: [f64; 2] = [20.0, 4.0];
const OFFERED_MBIT: [f64; 2] = [40.0, 20.0];
/// Of the rate, in a short window, once it holds.
const SETTLED: std::ops::Range<f64> = 0.5..1.15;
/// The same over the whole measurement: headers that the remote host does not count are part of the rate.
const HOLDS: Relation = Relation::Between(0.85, 1.03);
/// Routes are checked once a second, and this machine may be busy.
const AT_ONCE_S: f64 = 5.0;
const RESET_WITHIN_S: f64 = 30.0;
/// After ten seconds without a route a link is released, and checked each second.
const LET_GO_WITHIN_S: f64 = 14.0;
/// Connections, for the kernel to spread over next hops.
const FLOWS: usize = 16;
const TUNNEL: &str = "tun0";
const TUNNEL_PORT: u16 = 7_777;
const LOCAL_PORT: u16 = 5_551;
const LOCAL_MBIT: f64 = 100.0;
/// Above all of these times, so that a cell reports what it has measured.
const LIMIT: Duration = Duration::from_secs(60);
const RESETS: u64 = 7;
const RESET_EVERY: Duration = Duration::from_secs(10);

type LinkExperiment = fn(&mut LinkTrial) -> Result<()>;

type Bound = (&'static str, Relation);
/// Its name, the experiment, its longest time without the warm-up and the measurement, and its bounds.
type Row = (&'static str, LinkExperiment, f64, &'static [Bound]);

const IPV6_ALONE: &str = "ipv6-alone";
const CELLS: [Row; 11] = [
    (
        "policy-routing",
        |trial| trial.policy_routing(),
        20.0,
        &[
            BOTH[0],
            BOTH[1],
            BOTH[2],
            ("let_go_s", Relation::AtMost(LET_GO_WITHIN_S)),
        ],
    ),
    ("ecmp", |trial| trial.ecmp(), 8.0, &BOTH),
    (
        "nexthop-objects",
        |trial| trial.spread(&objects(), "net.ipv4.nexthop_compat_mode=1"),
        8.0,
        &BOTH,
    ),
    // Routes do not show the members of the group.
    (
        "nexthop-objects-hidden",
        |trial| trial.spread(&objects(), "net.ipv4.nexthop_compat_mode=0"),
        8.0,
        &BOTH,
    ),
    (IPV6_ALONE, |trial| trial.ipv6_alone(), 8.0, &BOTH),
    (
        "vpn",
        |trial| trial.vpn(),
        24.0,
        &[
            ("first_of_rate", HOLDS),
            ("most_of_rate", Relation::AtMost(SETTLED.end)),
            ("queue_changes", Relation::Exactly(1.0)),
        ],
    ),
    (
        "reset-once",
        |trial| trial.reset_once(),
        16.0,
        &[
            ("reported", Relation::Exactly(1.0)),
            ("first_holds_s", Relation::AtMost(RESET_WITHIN_S)),
            ("first_of_rate", HOLDS),
        ],
    ),
    (
        "reset-every-10-s",
        |trial| trial.reset_every_10_s(),
        85.0,
        &[
            // As often as it may be reinstalled.
            ("came_back", Relation::Exactly(3.0)),
            ("reported", Relation::Exactly(1.0)),
            ("lost_of_offered", Relation::AtLeast(0.95)),
            ("first_holds_s", Relation::AtMost(AT_ONCE_S)),
            ("first_of_rate", HOLDS),
        ],
    ),
    (
        "local-unlimited",
        |trial| trial.beside_local("unlimited"),
        8.0,
        &[
            ("beyond_of_rate", HOLDS),
            ("beyond_beside_local_of_rate", HOLDS),
            ("local_of_offered", Relation::AtLeast(0.95)),
        ],
    ),
    // Unless configured otherwise.
    (
        "local-in-the-rate",
        |trial| trial.beside_local("limited"),
        8.0,
        &[("beyond_of_rate", HOLDS), ("together_of_rate", HOLDS)],
    ),
    (
        "moved",
        |trial| trial.moved(),
        16.0,
        &[
            ("restored_s", Relation::AtMost(1.0)),
            ("elsewhere_of_offered", Relation::AtLeast(0.95)),
            ("second_holds_s", Relation::AtMost(AT_ONCE_S)),
            ("second_of_rate", HOLDS),
            ("left_behind", Relation::Exactly(0.0)),
        ],
    ),
];

const BOTH: [Bound; 3] = [
    ("first_of_rate", HOLDS),
    ("second_of_rate", HOLDS),
    ("second_holds_s", Relation::AtMost(AT_ONCE_S)),
];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    for (name, act, estimated_s, bounds) in CELLS {
        let act = move |run: &Run| {
            let mut trial = LinkTrial {
                place: MultihomedDevice::raise(run, name == IPV6_ALONE)?,
                warmup_s,
                seconds,
                run,
                outcome: Outcome::default(),
            };
            act(&mut trial)?;
            trial.place.stop_daemon()?;
            Ok(trial.outcome)
        };
        variants.push(Variant::new(name, None, estimated_s + warmup_s + seconds, act));
        checks.extend(
            bounds
                .iter()
                .map(|(metric, holds)| Check::metric(name, metric, *holds).always()),
        );
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![],
        columns: "first_of_rate second_of_rate first_holds_s second_holds_s",
    })
}

fn default_by(link: usize, more: &str) -> String {
    format!("route add default via {} dev {} {more}", FAR[link], DEVICES[link])
}

fn words<const N: usize>(lines: [&str; N]) -> Vec<String> {
    lines.map(Into::into).into()
}

/// One cell: its testbed and its results.
struct LinkTrial<'a> {
    place: MultihomedDevice,
    warmup_s: f64,
    seconds: f64,
    run: &'a Run<'a>,
    outcome: Outcome,
}

impl LinkTrial<'_> {
    fn set(&mut self, metric: &str, value: f64) {
        self.outcome.set(self.run.name, metric, value);
    }

    fn note(&mut self, place: &str, words: &str) {
        self.outcome.note(self.run.name, place, words);
    }

    /// A second route has appeared: until both links carry what their rates allow, and how much that is.
    fn tell_both(&mut self, began: Instant) -> Result<()> {
        self.run.progress.tick("a second way");
        let held = self.place.settle(PORT, &[0, 1], began)?;
        self.set("first_holds_s", held[0]);
        self.set("second_holds_s", held[1]);
        pause(self.warmup_s)?;
        let [[first, second]] = self.place.measure([PORT], self.seconds)?;
        self.set("first_of_rate", first / RATES_MBIT[0]);
        self.set("second_of_rate", second / RATES_MBIT[1]);
        let said = format!(
            "{first:.2} of {} and {second:.2} of {} Mbit/s arrive",
            RATES_MBIT[0], RATES_MBIT[1]
        );
        self.note("arrived", &said);
        Ok(())
    }

    /// A rule for the second link's address, and a table of its own.
    fn policy_routing(&mut self) -> Result<()> {
        self.place.ip(&[default_by(0, ""), default_by(1, "table 101")])?;
        self.place.start_daemon(None, &[0], &json!({}))?;
        self.place.send(SERVER, PORT, None, OFFERED_MBIT[0])?;
        self.place.send(SERVER, PORT, Some(NEAR[1]), OFFERED_MBIT[1])?;
        let began = Instant::now();
        self.place.ip(&[format!("rule add from {} lookup 101", NEAR[1])])?;
        self.tell_both(began)?;
        self.run.progress.tick("one way again");
        self.place.ip(&[format!("rule del from {} lookup 101", NEAR[1])])?;
        let began = Instant::now();
        wait_until("the second link to be let go", LIMIT, || Ok(!self.place.stands(1)?))?;
        self.set("let_go_s", began.elapsed().as_secs_f64());
        Ok(())
    }

    /// With the kernel's distribution of connections over next hops.
    fn spread(&mut self, lines: &[String], before: &str) -> Result<()> {
        self.place
            .device
            .run("sysctl", &format!("-qw net.ipv4.fib_multipath_hash_policy=1 {before}"))?;
        self.place.ip(&[default_by(0, "")])?;
        self.place.start_daemon(None, &[0], &json!({}))?;
        let began = Instant::now();
        self.place.ip(lines)?;
        // Earlier connections would keep to the link of their source address.
        for _ in 0..FLOWS {
            self.place.send(SERVER, PORT, None, OFFERED_MBIT[0] / 4.0)?;
        }
        self.tell_both(began)?;
        Ok(())
    }

    fn ecmp(&mut self) -> Result<()> {
        let hops = [0, 1]
            .map(|n| format!("nexthop via {} dev {}", FAR[n], DEVICES[n]))
            .join(" ");
        self.spread(&[format!("route replace default {hops}")], "")
    }

    fn ipv6_alone(&mut self) -> Result<()> {
        let by = |n: usize| format!("-6 route add default via {} dev {}", FAR_IPV6[n], DEVICES[n]);
        self.place.ip(&[by(0), by(1) + " table 101"])?;
        self.place.start_daemon(None, &[0], &json!({}))?;
        self.place.send(SERVER_IPV6, PORT, None, OFFERED_MBIT[0])?;
        self.place
            .send(SERVER_IPV6, PORT, Some(NEAR_IPV6[1]), OFFERED_MBIT[1])?;
        let began = Instant::now();
        self.place
            .ip(&[format!("-6 rule add from {} lookup 101", NEAR_IPV6[1])])?;
        self.tell_both(began)?;
        Ok(())
    }

    /// A client that routes all but its own packets through its tunnel, as wg-quick does; then one that moves the
    /// link's own route to a table of its own. The tunnel's packets go to the remote host itself.
    fn vpn(&mut self) -> Result<()> {
        let far: std::net::SocketAddrV4 = format!("{}:{TUNNEL_PORT}", FAR[0]).parse()?;
        let _client = Role::start(&self.place.device, "reach-tunnel", &(TUNNEL, far))?;
        give(&self.place.device, TUNNEL, "10.81.9.1/24")?;
        self.place.ip(&[format!("link set {TUNNEL} up"), default_by(0, "")])?;
        self.place.start_daemon(None, &[0], &json!({}))?;
        self.run.progress.tick("through the tunnel");
        self.place.ip(&words([
            &format!("route add default dev {TUNNEL} table 51820"),
            "rule add not fwmark 51820 lookup 51820",
            "rule add lookup main suppress_prefixlength 0",
        ]))?;
        self.place.send(SERVER, PORT, None, OFFERED_MBIT[0])?;
        self.place.settle(TUNNEL_PORT, &[0], Instant::now())?;
        pause(self.warmup_s)?;
        let [[first, _]] = self.place.measure([TUNNEL_PORT], self.seconds)?;
        self.set("first_of_rate", first / RATES_MBIT[0]);
        self.run.progress.tick("another client");
        self.place.ip(&[
            default_by(0, "table 52"),
            "rule add fwmark 52 lookup 52".into(),
            format!("route replace default dev {TUNNEL}"),
        ])?;
        // A released link keeps its queue for ten seconds.
        let most = self.place.most_of_rate(TUNNEL_PORT, 0, LET_GO_WITHIN_S)?;
        self.set("most_of_rate", most);
        let changes = self.place.queue_changes(0)?;
        self.set("queue_changes", changes);
        let said = format!(
            "{first:.2} of {} Mbit/s arrive; then at most {most:.2} of the rate",
            RATES_MBIT[0]
        );
        self.note("arrived", &said);
        Ok(())
    }

    /// One link, with twice its rate offered.
    fn one_link(&mut self) -> Result<()> {
        self.place.start_daemon(Some(&DEVICES), &[0, 1], &json!({}))?;
        self.place.send(FAR[0], PORT, None, OFFERED_MBIT[0])?;
        self.place.settle(PORT, &[0], Instant::now())?;
        Ok(())
    }

    fn says(&mut self, words: &str) -> Result<()> {
        let said = wait_for("giveway to say so", LIMIT, || {
            let reason = self.place.reason(0)?;
            Ok(reason.contains(words).then_some(reason))
        })?;
        self.note("status", &said);
        self.set("reported", 1.0);
        Ok(())
    }

    fn tell_first(&mut self) -> Result<()> {
        let [[first, _]] = self.place.measure([PORT], self.seconds)?;
        self.set("first_of_rate", first / RATES_MBIT[0]);
        self.note("arrived", &format!("{first:.2} of {} Mbit/s", RATES_MBIT[0]));
        Ok(())
    }

    fn reset_once(&mut self) -> Result<()> {
        self.one_link()?;
        self.run.progress.tick("reset");
        let began = Instant::now();
        self.place.reset(0)?;
        self.says("restored soon (1 of 3 times in ten minutes)")?;
        let held_s = self.place.settle(PORT, &[0], began)?[0];
        self.set("first_holds_s", held_s);
        pause(self.warmup_s)?;
        self.tell_first()?;
        Ok(())
    }

    /// Removed on purpose, and reported, until the link was down.
    fn reset_every_10_s(&mut self) -> Result<()> {
        self.one_link()?;
        let began = Instant::now();
        let mut came_back = 0.0;
        for n in 0..RESETS {
            pause_until(began + RESET_EVERY * u32::try_from(n)?)?;
            self.run.progress.tick(&format!("reset {}", n + 1));
            if self.place.stands(0)? {
                came_back += f64::from(u8::from(n > 0));
                self.place.reset(0)?;
            }
        }
        self.set("came_back", came_back);
        self.says("not restored until giveway is restarted or the link was down")?;
        let [[lost, _]] = self.place.measure([PORT], self.seconds)?;
        self.set("lost_of_offered", lost / OFFERED_MBIT[0]);
        self.note("arrived", &format!("{lost:.2} Mbit/s, with the fight lost"));
        self.run.progress.tick("the link down and up");
        self.place
            .ip(&["down", "up"].map(|state| format!("link set {} {state}", DEVICES[0])))?;
        let held_s = self.place.settle(PORT, &[0], Instant::now())?[0];
        self.set("first_holds_s", held_s);
        pause(self.warmup_s)?;
        self.tell_first()?;
        Ok(())
    }

    /// Traffic beyond the link's own subnet, alone and beside traffic within it.
    fn beside_local(&mut self, local: &str) -> Result<()> {
        self.place.ip(&[default_by(0, "")])?;
        self.place.start_daemon(None, &[0], &json!({"local": local}))?;
        self.place.send(SERVER, PORT, None, OFFERED_MBIT[0])?;
        self.place.settle(PORT, &[0], Instant::now())?;
        let [[beyond, _]] = self.place.measure([PORT], self.seconds)?;
        self.set("beyond_of_rate", beyond / RATES_MBIT[0]);
        self.run.progress.tick("beside local traffic");
        self.place.send(FAR[0], LOCAL_PORT, None, LOCAL_MBIT)?;
        pause(self.warmup_s)?;
        let [[beside, _], [local, _]] = self.place.measure([PORT, LOCAL_PORT], self.seconds)?;
        self.set("beyond_beside_local_of_rate", beside / RATES_MBIT[0]);
        self.set("local_of_offered", local / LOCAL_MBIT);
        self.set("together_of_rate", (beside + local) / RATES_MBIT[0]);
        let said = format!("beyond {beyond:.2} Mbit/s; at once beyond {beside:.2}, local {local:.2} Mbit/s");
        self.note("arrived", &said);
        Ok(())
    }

    /// The second link moves to another namespace, where it is not managed, and back.
    fn moved(&mut self) -> Result<()> {
        let elsewhere = Namespace::create("elsewhere")?;
        let device = DEVICES[1];
        let usual = gso_max_segs(&self.place.device, device)?;
        self.place.start_daemon(Some(&DEVICES), &[0, 1], &json!({}))?;
        self.place.send(FAR[1], PORT, None, OFFERED_MBIT[1])?;
        self.place.settle(PORT, &[1], Instant::now())?;
        self.place.end_senders();
        self.run.progress.tick("moved");
        let began = Instant::now();
        self.place
            .ip(&[format!("link set {device} netns {}", elsewhere.name())])?;
        wait_until("what giveway changed to be restored", LIMIT, || {
            Ok(gso_max_segs(&elsewhere, device)? == usual)
        })?;
        self.set("restored_s", began.elapsed().as_secs_f64());
        let address = format!("{}/24", NEAR[1]);
        give(&elsewhere, device, &address)?;
        elsewhere.ip(&format!("link set {device} up"))?;
        let there = sender(&elsewhere, FAR[1], PORT, None, OFFERED_MBIT[1])?;
        pause(self.warmup_s)?;
        let [[_, second]] = self.place.measure([PORT], self.seconds)?;
        self.set("elsewhere_of_offered", second / OFFERED_MBIT[1]);
        self.note("arrived from elsewhere", &format!("{second:.2} Mbit/s"));
        drop(there);
        self.run.progress.tick("back");
        elsewhere.ip(&format!("link set {device} netns {}", self.place.device.name()))?;
        give(&self.place.device, device, &address)?;
        self.place.ip(&[format!("link set {device} up")])?;
        self.place.send(FAR[1], PORT, None, OFFERED_MBIT[1])?;
        let held_s = self.place.settle(PORT, &[1], Instant::now())?[0];
        self.set("second_holds_s", held_s);
        pause(self.warmup_s)?;
        let [[_, second]] = self.place.measure([PORT], self.seconds)?;
        self.set("second_of_rate", second / RATES_MBIT[1]);
        self.note("arrived", &format!("{second:.2} of {} Mbit/s", RATES_MBIT[1]));
        self.place.stop_daemon()?;
        let is_left = gso_max_segs(&self.place.device, device)? != usual || self.place.stands(1)?;
        self.set("left_behind", f64::from(u8::from(is_left)));
        Ok(())
    }
}

fn objects() -> Vec<String> {
    let hop = |n: usize| format!("nexthop add id {} via {} dev {}", n + 1, FAR[n], DEVICES[n]);
    [hop(0), hop(1)]
        .into_iter()
        .chain(words(["nexthop add id 10 group 1/2", "route replace default nhid 10"]))
        .collect()
}
