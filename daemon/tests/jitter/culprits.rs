// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each kind of culprit is planted on the CPU where wake-ups are measured, and has to be found behind the worst of them.

use serde_json::Value;

use super::plant;
use super::process::measure;

const CPU: usize = 0;
const MEASURE: &str = "--cpus 0 --policy fifo --priority 49 --period 1ms --duration 3s --worst 20";
/// A planted culprit disturbs for longer than this each time.
const DISTURBANCE_US: f64 = 400.0;

/// The worst wake-ups that the hypervisor, which plants its own, is not to blame for.
fn worst_of_this_machine(report: &Value) -> Vec<&Value> {
    let worst = report["worst"].as_array().unwrap();
    assert_eq!(worst.len(), 20);
    let steals = ["steal", "steal-or-disabled", "own"];
    let is_ours = |w: &&Value| !steals.contains(&w["culprits"][0]["kind"].as_str().unwrap());
    worst.iter().filter(is_ours).collect()
}

/// The planted one stands first at most of the worst, and its time is most of the lateness. (Not at all of them: a busy
/// machine has culprits of its own.)
fn expect<'a>(report: &'a Value, kind: &str, name: &str) -> Vec<&'a Value> {
    let worst = worst_of_this_machine(report);
    let is_planted = |w: &&Value| {
        let first = &w["culprits"][0];
        first["kind"] == kind
            && first["name"] == name
            && first["us"].as_f64() > Some(DISTURBANCE_US)
            && first["us"].as_f64() > Some(w["late_us"].as_f64().unwrap() * 0.5)
    };
    let (planted, others): (Vec<&Value>, Vec<&Value>) = worst.into_iter().partition(is_planted);
    assert!(
        planted.len() >= 5 && planted.len() > others.len(),
        "{kind} {name} is behind {} of the worst wake-ups, and not behind these: {others:#?}",
        planted.len()
    );
    planted
}

/// Every nanosecond is given to one culprit only.
fn expect_all_accounted(report: &Value) {
    for worst in report["worst"].as_array().unwrap() {
        let culprits = worst["culprits"].as_array().unwrap();
        let sum_us: f64 = culprits.iter().map(|culprit| culprit["us"].as_f64().unwrap()).sum();
        let late_us = worst["late_us"].as_f64().unwrap();
        assert!((sum_us - late_us).abs() < 0.01, "{sum_us} of {late_us}: {worst:#}");
    }
}

#[test]
fn a_spinner_of_higher_priority() {
    let _spinner = plant::spinner("planted-spinner", CPU, 60);
    let report = measure(MEASURE);
    let planted = expect(&report, "thread", "planted-spinner");
    expect_all_accounted(&report);
    for worst in planted {
        let first = &worst["culprits"][0];
        assert_eq!((&first["policy"], &first["priority"]), (&"fifo".into(), &60.into()));
        let line = worst["cause"].as_str().unwrap();
        assert!(line.starts_with("planted-spinner (SCHED_FIFO 60) ran "), "{line}");
        // A thread that it kept from going to sleep in time was never woken.
        if !worst["timer_us"].is_null() {
            assert!(worst["timer_us"].as_f64() < worst["switch_us"].as_f64(), "{worst:#}");
        }
    }
}

#[test]
fn a_long_softirq() {
    let _packets = plant::long_softirq(CPU);
    let report = measure(MEASURE);
    expect(&report, "softirq", "NET_RX");
    expect_all_accounted(&report);
}

#[test]
fn a_storm_of_interrupts() {
    let _timers = plant::interrupt_storm(CPU);
    let report = measure(MEASURE);
    expect(&report, "irq", "timer");
    expect_all_accounted(&report);
}
