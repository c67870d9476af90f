// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class goes with the work: backup and copy programs as Debian has them, which send through an `ssh` that they start,
//! beside an upload on a link of 20 Mbit/s. What each gets, which class each process and connection has, and whether both
//! stay so when the program's file is replaced while it runs and giveway is started again.

mod place;
mod tool;

use anyhow::Result;
use serde_json::{Value, json};

use crate::experiment::{Run, pause};
use crate::outcome::Outcome;
use crate::parameters::Parameters;
use crate::scenario::{Check, Plan, Relation, Scenario, Variant};
use place::BackupClient;
use tool::Tool;

pub const SCENARIO: Scenario = Scenario {
    name: "work",
    about: "Backups, rsync, git and scp beside an upload: the class of every process and connection that they start, and what the upload keeps",
    seconds: 10,
    warmup_s: 3,
    parameters: &[],
    plan: &plan,
};

const LINK_MBIT: f64 = 20.0;
const ALONE: &str = "upload";
/// What a queue of strict priority leaves of a link for what is not background: all but the minimum rate (`docs/explanation/queue-and-admission.md`), and
/// what the work's own acknowledgements and this machine take.
const UPLOAD_KEEPS: f64 = 0.9;
/// A twentieth of the link; the minimum rate is half a percent.
const WORK_MBIT: f64 = 1.0;
/// Of all who send on a link with two, someone who waits has at least a tenth.
const WAITED_FOR_MBIT: f64 = LINK_MBIT / 10.0;

/// By what the work has its class.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// The rules of the package.
    Packaged,
    /// `giveway exec --class background`.
    Exec,
    /// Nothing, though ssh marks it with CS1: what is not interactive is one class, whatever its port and mark.
    Nothing,
}

const CASES: [(&str, By, Tool); 9] = [
    ("packaged/restic", By::Packaged, Tool::Restic),
    ("packaged/borg", By::Packaged, Tool::Borg),
    ("exec/restic", By::Exec, Tool::Restic),
    ("exec/rsync", By::Exec, Tool::Rsync),
    ("exec/git-2222", By::Exec, Tool::Git),
    ("exec/scp", By::Exec, Tool::Scp),
    ("exec/ssh-master", By::Exec, Tool::Master),
    ("marked-cs1/rsync", By::Nothing, Tool::Rsync),
    ("marked-cs1/git-2222", By::Nothing, Tool::Git),
];
const UPGRADE: &str = "upgrade";
/// Moments of it: points below the variant.
const MOMENTS: [&str; 3] = ["before", "replaced", "restarted"];

fn plan(parameters: &Parameters) -> Result<Plan> {
    let (warmup_s, seconds) = (parameters.count("warmup_s") as f64, parameters.count("seconds") as f64);
    let estimated_s = 8.0 + warmup_s + seconds;
    let alone = move |run: &Run| {
        let mut place = BackupClient::raise(run)?;
        let mut daemon = place.start_daemon(&configuration(json!([])), run)?;
        place.start_upload()?;
        pause(warmup_s)?;
        let mut outcome = Outcome::default();
        place.measure(seconds, &mut outcome, run.name)?;
        daemon.stop()?;
        Ok(outcome)
    };
    let mut variants = vec![Variant::new(ALONE, None, estimated_s, alone)];
    let mut checks = Vec::new();
    for (name, by, tool) in CASES {
        let act = move |run: &Run| beside_upload(by, tool, warmup_s, seconds, run);
        variants.push(Variant::new(name, None, estimated_s, act));
        checks.extend(if by == By::Nothing {
            vec![
                Check::metric(name, "connections", Relation::AtLeast(1.0)).always(),
                Check::metric(name, "connections_otherwise", Relation::Exactly(0.0)).always(),
                Check::metric(name, "work_mbit", Relation::AtLeast(WAITED_FOR_MBIT)).always(),
            ]
        } else {
            yields(name)
        });
    }
    let act = move |run: &Run| upgrade(warmup_s, seconds, run);
    variants.push(Variant::new(UPGRADE, None, 3.0 * estimated_s, act));
    for moment in MOMENTS {
        let point = format!("{UPGRADE}/{moment}");
        checks.extend(yields(&point));
        checks.push(Check::metric(&point, "control_is_fifo", Relation::Exactly(1.0)).always());
    }
    Ok(Plan {
        variants,
        checks,
        plots: vec![],
        columns: "work_mbit upload_mbit processes processes_background connections connections_as_expected control_is_fifo",
    })
}

fn yields(point: &str) -> Vec<Check> {
    let metric = |metric, holds| Check::metric(point, metric, holds).always();
    vec![
        metric("work_mbit", Relation::AtMost(WORK_MBIT)),
        Check::ratio(
            format!("{point} upload_mbit / alone"),
            point,
            ALONE,
            "upload_mbit",
            Relation::AtLeast(UPLOAD_KEEPS),
        )
        .always(),
        metric("processes", Relation::AtLeast(1.0)),
        metric("processes_otherwise", Relation::Exactly(0.0)),
        metric("connections", Relation::AtLeast(1.0)),
        metric("connections_otherwise", Relation::Exactly(0.0)),
    ]
}

fn configuration(rules: Value) -> Value {
    json!({"cap": {"policy": "none"}, "link": {"rate_mbit": LINK_MBIT}, "rule": rules})
}

/// The work begins alone, so that it is at its work, and not at its greeting, when the upload begins.
fn beside_upload(by: By, tool: Tool, warmup_s: f64, seconds: f64, run: &Run) -> Result<Outcome> {
    let mut place = BackupClient::raise(run)?;
    let mut daemon = place.start_daemon(&configuration(json!([])), run)?;
    let work = tool.start(&place, by == By::Exec, by == By::Nothing, &tool.program())?;
    place.wait_until_working(tool.port())?;
    place.start_upload()?;
    run.progress.tick("beside an upload");
    pause(warmup_s)?;
    let mut outcome = Outcome::default();
    place.measure(seconds, &mut outcome, run.name)?;
    let class = if by == By::Nothing { "standard" } else { "background" };
    place.tell_classes(work.sends(), class, &mut outcome, run.name)?;
    daemon.stop()?;
    Ok(outcome)
}

/// A program whose file is replaced while it runs, as a package's upgrade does it, and one that has real-time priority by a
/// rule; then giveway is started again, as an upgrade of its own does it.
fn upgrade(warmup_s: f64, seconds: f64, run: &Run) -> Result<Outcome> {
    let mut place = BackupClient::raise(run)?;
    let restic = place.install("restic")?;
    let control = place.install("sleep")?;
    let mut configuration = configuration(json!([{"exe": restic, "class": "background"}]));
    configuration["priority"] = json!([{"exe": control, "priority": 20}]);
    let mut daemon = place.start_daemon(&configuration, run)?;
    let robot = place.start_control(&control)?;
    let work = Tool::Restic.start(&place, false, false, &restic)?;
    place.wait_until_working(Tool::Restic.port())?;
    place.start_upload()?;
    let mut outcome = Outcome::default();
    for moment in MOMENTS {
        match moment {
            "replaced" => {
                place.replace(&restic)?;
                place.replace(&control)?;
            }
            "restarted" => {
                daemon.stop()?;
                daemon = place.start_daemon(&configuration, run)?;
            }
            _ => {}
        }
        run.progress.tick(moment);
        pause(warmup_s)?;
        let point = format!("{}/{moment}", run.name);
        place.measure(seconds, &mut outcome, &point)?;
        place.tell_classes(work.sends(), "background", &mut outcome, &point)?;
        let is_fifo = crate::scheduling::is_realtime(robot.id());
        outcome.set(&point, "control_is_fifo", f64::from(u8::from(is_fifo)));
    }
    daemon.stop()?;
    Ok(outcome)
}
