// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The README is true: each recipe's commands and configuration, as they stand there, beside the real daemon, on this
//! machine's kernel and on others. What the remote host counted.

mod house;
mod recipes;

use anyhow::{Context, Result, ensure};

use crate::experiment::{Run, pause};
use crate::guest::{Flavour, Guest};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use house::House;
use recipes::Recipes;

pub const SCENARIO: Scenario = Scenario {
    name: "readme",
    about: "The recipes of README.md as they stand, run on several kernels: what succeeds, and what the remote host counts",
    seconds: 5,
    warmup_s: 2,
    parameters: &[],
    plan: &plan,
};

/// Of the laptop's second and third command, and of the edge box's limit.
const LAPTOP_MBIT: f64 = 2.5;
const EDGE_MBIT: f64 = 2.0;
const ABOVE: f64 = 1.05;
/// The first packets of a connection leave before its class is known.
const MARKED_PERCENT: f64 = 90.0;
/// What the stand-in of a remote control sends.
const CONTROL_MBIT: f64 = 0.5;
const PROGRAMS: &[&str] = &[
    "curl",
    "nft",
    "openssl",
    "rsync",
    "script",
    "sleep",
    "ssh",
    "ssh-keygen",
    "sshd",
    "unshare",
    "mount",
];

/// Of a warm-up and a measurement, in seconds.
type Recipe = fn(f64, f64, &Run) -> Result<Outcome>;

const RECIPES: [(&str, Recipe); 5] = [
    ("install", install),
    ("laptop", laptop),
    ("robot", robot),
    ("edge", edge),
    ("download", download),
];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let of = |kernel| Guest {
        kernel,
        ..Guest::VIRTUAL
    };
    let kernels = [
        ("host", None),
        ("debian-13", Some(of(Flavour::Debian13))),
        ("newest", Some(of(Flavour::Stock))),
    ];
    let mut variants = Vec::new();
    let mut checks = Vec::new();
    for (kernel, guest) in kernels {
        for (recipe, act) in RECIPES {
            let name = format!("{kernel}/{recipe}");
            let estimated_s = 10.0 + 4.0 * (warmup_s + seconds);
            let variant = Variant::new(&name, guest, estimated_s, move |run| act(warmup_s, seconds, run));
            variants.push(variant.with(PROGRAMS));
            checks.extend(checks_of(recipe, &name));
        }
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![],
        columns: "photos_marked_percent limited_mbit control_arrived_percent log_mbit fetched_mbit",
    })
}

fn checks_of(recipe: &str, name: &str) -> Vec<Check> {
    let metric = |metric, holds| Check::metric(name, metric, holds).always();
    let yes = |what| metric(what, Relation::Exactly(1.0));
    match recipe {
        "install" => vec![yes("commands_succeed")],
        "laptop" => vec![
            metric("photos_marked_percent", Relation::AtLeast(MARKED_PERCENT)),
            yes("photos_arrived"),
            metric(
                "limited_mbit",
                Relation::Between(0.5 * LAPTOP_MBIT, ABOVE * LAPTOP_MBIT),
            ),
        ],
        "robot" => vec![
            yes("configuration_is_right"),
            yes("camera_is_fifo"),
            yes("log_is_bulk"),
            yes("log_is_background_while_somebody_drives"),
            metric("control_arrived_percent", Relation::AtLeast(95.0)),
        ],
        "download" => vec![metric(
            "fetched_mbit",
            Relation::Between(0.8 * LAPTOP_MBIT, ABOVE * LAPTOP_MBIT),
        )],
        _ => vec![
            yes("log_is_background"),
            metric("log_mbit", Relation::AtMost(ABOVE * EDGE_MBIT)),
        ],
    }
}

fn yes(outcome: &mut Outcome, run: &Run, metric: &str, is_so: bool) {
    outcome.set(run.name, metric, f64::from(u8::from(is_so)));
}

/// What follows `make deb`, which builds for ten minutes and has a check of its own (`packaging/deb-check`).
fn install(_warmup_s: f64, _seconds: f64, run: &Run) -> Result<Outcome> {
    let house = House::raise(run)?;
    let mut daemon = house.start_daemon(run)?;
    let mut outcome = Outcome::default();
    let mut succeed = true;
    for command in Recipes::read()?.install {
        let runs_on = ["giveway top", "giveway web"]
            .iter()
            .any(|command_that| command.starts_with(command_that));
        // The live view and the page run until they are ended.
        let words = command.split(" #").next().unwrap_or(&command).trim();
        let line = if runs_on {
            format!("script -qec 'timeout --foreground 2 {words}' /dev/null; [ $? = 124 ]")
        } else {
            command.replace("NAME", "giveway")
        };
        run.progress.tick(words);
        let (said, is_well) = house.say(&line)?;
        succeed &= is_well;
        let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("(nothing)");
        outcome.note(
            run.name,
            words,
            &format!("{said}{}", if is_well { "" } else { " (failed)" }),
        );
    }
    // `giveway revert` was the last of them.
    ensure!(daemon.ends()?, "giveway runs on after `giveway revert`");
    yes(&mut outcome, run, "commands_succeed", succeed);
    Ok(outcome)
}

fn laptop(warmup_s: f64, seconds: f64, run: &Run) -> Result<Outcome> {
    let recipes = Recipes::read()?;
    let [photos, limited, _] = &recipes.laptop[..] else {
        anyhow::bail!("the laptop's recipe has other commands than this scenario runs");
    };
    let mut house = House::raise(run)?;
    let _server = house.serve()?;
    let mut daemon = house.start_daemon(run)?;
    let mut outcome = Outcome::default();

    run.progress.tick(photos);
    let before = house.arrivals()?;
    let (said, is_well) = house.say(photos)?;
    let counted = house.arrivals()?.since(&before);
    outcome.note(run.name, photos, &format!("{said}; at the remote host {counted}"));
    outcome.set(run.name, "photos_marked_percent", counted.marked_percent("tcp:22"));
    yes(&mut outcome, run, "photos_arrived", is_well && house.has_photos()?);

    let mbit = house.limited(limited, warmup_s, seconds, run, &mut outcome)?;
    outcome.set(run.name, "limited_mbit", mbit);
    daemon.stop()?;
    Ok(outcome)
}

fn robot(warmup_s: f64, seconds: f64, run: &Run) -> Result<Outcome> {
    let recipes = Recipes::read()?;
    let mut house = House::raise(run)?;
    let _server = house.serve()?;
    let mut outcome = Outcome::default();
    house.write("etc/giveway/giveway.toml", &recipes.robot)?;
    let (said, is_well) = house.say("giveway config check /etc/giveway/giveway.toml")?;
    outcome.note(run.name, "giveway config check", said.trim());
    yes(&mut outcome, run, "configuration_is_right", is_well);
    let mut daemon = house.start_daemon(run)?;
    let camera = house.start("/usr/bin/camera 600")?;
    let _upload = house.start_in("log-upload.service", "curl -s -T video.mkv https://example.org/")?;
    let _teleop = house.start_in("teleop.service", "sleep 600")?;
    pause(warmup_s)?;
    let [prepared @ .., focus] = &recipes.robot_commands[..] else {
        anyhow::bail!("the robot's recipe has no commands");
    };
    for command in prepared {
        succeeds(command, &house, run, &mut outcome)?;
    }
    pause(warmup_s)?;
    let is_fifo = crate::scheduling::is_realtime(camera.id());
    outcome.note(
        run.name,
        "/usr/bin/camera",
        if is_fifo { "SCHED_FIFO" } else { "no priority" },
    );
    yes(&mut outcome, run, "camera_is_fifo", is_fifo);
    let class = house.class_at(443)?;
    outcome.note(run.name, "log-upload.service", &class);
    yes(&mut outcome, run, "log_is_bulk", class.starts_with("bulk"));
    succeeds(focus, &house, run, &mut outcome)?;
    let _control = house.start_control(CONTROL_MBIT)?;
    let _flood = house.start_flood()?;
    pause(warmup_s)?;
    let class = house.class_at(443)?;
    outcome.note(run.name, "log-upload.service", &class);
    yes(
        &mut outcome,
        run,
        "log_is_background_while_somebody_drives",
        class.starts_with("background"),
    );
    let before = house.arrivals()?;
    pause(seconds)?;
    let counted = house.arrivals()?.since(&before);
    let mbit = counted.mbit("udp:5005", seconds);
    outcome.set(run.name, "control_arrived_percent", 100.0 * mbit / CONTROL_MBIT);
    outcome.note(run.name, "UDP to port 5005", &format!("at the remote host {counted}"));
    daemon.stop()?;
    Ok(outcome)
}

fn download(warmup_s: f64, seconds: f64, run: &Run) -> Result<Outcome> {
    let house = House::raise(run)?;
    let _server = house.serve_file("big.iso")?;
    let mut daemon = house.start_daemon(run)?;
    let mut outcome = Outcome::default();
    let line = Recipes::read()?.laptop.pop().context("the laptop's recipe is empty")?;
    let mbit = house.fetched(&line, "big.iso", warmup_s, seconds, run)?;
    outcome.set(run.name, "fetched_mbit", mbit);
    outcome.note(
        run.name,
        &line,
        &format!("{mbit:.2} Mbit/s in the file; {}", house.words()?),
    );
    daemon.stop()?;
    Ok(outcome)
}

fn edge(warmup_s: f64, seconds: f64, run: &Run) -> Result<Outcome> {
    let recipes = Recipes::read()?;
    let mut house = House::raise(run)?;
    let _server = house.serve()?;
    let mut outcome = Outcome::default();
    let mut daemon = house.start_daemon(run)?;
    let _log = house.start_in("log-upload.service", "curl -s -T video.mkv https://example.org/")?;
    pause(warmup_s)?;
    for command in &recipes.edge_commands {
        succeeds(command, &house, run, &mut outcome)?;
    }
    pause(warmup_s)?;
    let class = house.class_at(443)?;
    outcome.note(run.name, "log-upload.service", &class);
    yes(&mut outcome, run, "log_is_background", class.starts_with("background"));
    let before = house.arrivals()?;
    pause(seconds)?;
    let counted = house.arrivals()?.since(&before);
    outcome.set(run.name, "log_mbit", counted.mbit("tcp:443", seconds));
    daemon.stop()?;
    Ok(outcome)
}

fn succeeds(command: &str, house: &House, run: &Run, outcome: &mut Outcome) -> Result<()> {
    let (said, is_well) = house.say(command)?;
    ensure!(is_well, "`{command}` failed: {said}");
    outcome.note(run.name, command, said.trim());
    Ok(())
}
