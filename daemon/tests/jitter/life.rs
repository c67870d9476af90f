// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What it accepts, what it reports, and that nothing of it is left however it ends.

use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use super::process::{Running, measure, start};
use crate::support::process::signal;
use crate::support::scratch::Scratch;
use crate::support::wait::{await_some, until};

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_done() {
    for wrong in [
        "--period 0us",
        "--period 49us",
        "--period 99999999999999999999us",
        "--period -1us",
        "--threads 0",
        "--threads 65536",
        "--cpus 1023",
        "--cpus 0-99999999999",
        "--cpus 1-0",
        "--cpus ,",
        "--policy idle",
        "--priority 10",
        "--policy fifo --priority 0",
        "--policy fifo --priority 100",
        "--policy deadline --priority 10",
        "--policy deadline --cpus 0",
        "--load cpu,fire",
        "--load ../cpu",
        "--duration 0s",
        "--wakeups 0",
        "--wakeups 10 --duration 1s",
        "--worst 99999",
        "surplus",
    ] {
        let output = start(wrong).end();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{wrong}: {said}");
        assert!(
            output.stdout.is_empty() && !said.contains("panicked"),
            "{wrong}: {said}"
        );
    }
}

#[test]
fn the_report_says_what_was_measured() {
    let report = measure("--wakeups 100 --threads 4 --period 2ms --policy fifo --priority 30 --worst 3 --load cpu");
    assert_eq!(
        (&report["wakeups"], &report["threads"], &report["period_us"]),
        (&100.into(), &4.into(), &2000.into())
    );
    assert_eq!(
        report["policy_at_end"],
        serde_json::json!(["fifo", "fifo", "fifo", "fifo"])
    );
    assert_eq!(report["loads"], serde_json::json!(["cpu"]));
    let counted = report["histogram"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step[1].as_u64().unwrap())
        .sum::<u64>();
    assert_eq!(counted, 100);
    let figures: Vec<f64> = ["p50", "p99", "p999", "max"]
        .iter()
        .map(|name| report[format!("wakeup_{name}_us")].as_f64().unwrap())
        .collect();
    assert!(figures[0] > 0.0 && figures.is_sorted(), "{figures:?}");
    assert_eq!(report["worst"].as_array().unwrap().len(), 3);
    assert_eq!(report["worst"][0]["late_us"], report["wakeup_max_us"]);
}

#[test]
fn every_policy_is_measured_as_itself() {
    for policy in ["other", "fifo", "rr", "deadline"] {
        let report = measure(&format!("--wakeups 20 --period 5ms --policy {policy} --no-causes"));
        assert_eq!(report["policy_at_end"], serde_json::json!([policy]));
        assert_eq!(report["worst"][0]["cause"], "not looked for");
    }
}

/// As the daemon's rule does, or an administrator.
#[test]
fn a_policy_that_somebody_else_sets_meanwhile_is_left_alone_and_reported() {
    let running = start("--json --wakeups 200 --period 10ms --threads 2");
    // A thread sets its own policy first, and sleeps for a period after that.
    until("two threads measure", || {
        let threads = running.threads();
        threads.len() == 2 && threads.iter().all(|thread| running.sleeps(*thread) > 5)
    });
    for thread in running.threads() {
        let outcome = Command::new("chrt")
            .args(["-f", "-p", "33", &thread.to_string()])
            .status();
        assert!(outcome.unwrap().success());
    }
    let report = running.report();
    assert_eq!(report["policy"], "other");
    assert_eq!(report["policy_at_end"], serde_json::json!(["fifo", "fifo"]));
    assert_eq!(report["priority_at_end"], serde_json::json!([33, 33]));
}

/// Under every load, and measuring.
fn loaded() -> (Running, Vec<u32>, Vec<String>) {
    let running = start("--json --load cpu,icmp,net,disk --period 5ms --duration 100s");
    until("it measures", || !running.threads().is_empty());
    let loads = running.loads();
    let links: Vec<String> = loads.iter().map(|pid| format!("/sys/class/net/gwj{pid}")).collect();
    let links: Vec<String> = links.into_iter().filter(|link| Path::new(link).exists()).collect();
    assert_eq!(links.len(), 2, "one of icmp, one of net");
    (running, loads, links)
}

fn expect_nothing_left(loads: &[u32], links: &[String]) {
    until("its processes are gone", || {
        loads.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
    until("its namespaces and their links are gone", || {
        links.iter().all(|link| !Path::new(link).exists())
    });
}

#[test]
fn killed_it_leaves_no_process_and_no_namespace() {
    let (running, loads, links) = loaded();
    signal(running.pid(), Signal::SIGKILL);
    running.end();
    expect_nothing_left(&loads, &links);
}

#[test]
fn interrupted_it_reports_what_it_has_and_leaves_nothing() {
    let (running, loads, links) = loaded();
    // Its first sleep is before its first wake-up.
    let tid = await_some("it sleeps", || running.threads().first().copied());
    let before = running.sleeps(tid);
    until("it has woken up", || running.sleeps(tid) >= before + 2);
    signal(running.pid(), Signal::SIGINT);
    let report = running.report();
    assert!(report["wakeups"].as_u64() > Some(0));
    expect_nothing_left(&loads, &links);
}

#[test]
fn loads_are_ordinary_processes_whatever_started_them() {
    let (running, loads, _) = loaded();
    for pid in loads {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // The policy is the 41st field (proc_pid_stat(5)); the name, which may hold blanks, is the second.
        let policy = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38).unwrap();
        assert_eq!(policy, "0", "{stat}");
    }
    drop(running);
}

#[test]
fn a_load_that_ends_early_spoils_the_measurement() {
    let running = start("--load cpu --duration 2s");
    until("it measures", || !running.threads().is_empty());
    signal(running.loads()[0], Signal::SIGKILL);
    let output = running.end();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("the load cpu ended early") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn the_picture_is_drawn() {
    let file = Scratch::new("picture.svg", "");
    let output = start(&format!("--wakeups 50 --period 1ms --svg {}", file.path())).end();
    let picture = std::fs::read_to_string(&file.0);
    assert!(output.status.success() && picture.unwrap().contains("share of wake-ups that are later"));
    let text = String::from_utf8(output.stdout).unwrap();
    let histogram = text.lines().filter(|line| line.starts_with("<="));
    assert!(
        histogram.clone().count() > 0 && histogram.clone().all(|line| line.len() <= 60),
        "{text}"
    );
}
