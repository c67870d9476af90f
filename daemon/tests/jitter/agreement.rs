// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same figures as cyclictest's: both measure at the same time, on the same CPU, under the same load, at the same
//! priority. One round says little on a machine that others share, so several are run, and their medians judged.

use std::process::{Child, Command, Stdio};

use super::process::{sleeping, start};
use crate::support::wait::until;

const ROUNDS: usize = 15;
const LOAD: &str = "--load cpu,icmp --duration 200s --no-causes";
/// No part of the kernel's tick, as theirs: who wakes every 1000 us meets it always or never, others now and then.
const MEASURE: &str = "--cpus 0 --policy fifo --priority 49 --period 1003us --duration 2s --json";
/// Not quite the same period, lest one always wakes up just behind another and waits for it.
const PERIODS_US: [u32; 2] = [991, 1009];
/// Later than this counts as this late; the percentiles that are compared stay far below.
const HISTOGRAM_US: usize = 50_000;

struct Figures {
    p50_us: f64,
    p99_us: f64,
}

fn cyclictest(period_us: u32) -> Child {
    let command = format!("-q -m -p 49 -i {period_us} -a 0 -t 1 -D 2 -h {HISTOGRAM_US}");
    let child = Command::new("cyclictest")
        .args(command.split_whitespace())
        .stdout(Stdio::piped())
        .spawn();
    child.expect("cyclictest (Debian's package rt-tests) runs")
}

/// Lines of microseconds and a count: `000012 004711`.
fn figures_of(child: Child) -> Figures {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let counts: Vec<(f64, u64)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(us, count)| Some((us.parse().ok()?, count.trim().parse().ok()?)))
        .collect();
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    assert!(all > 1000, "{text}");
    let quantile = |share: f64| {
        let mut left = (all as f64 * share) as u64;
        let found = counts.iter().find(|(_, count)| {
            let is_here = *count > left;
            left = left.saturating_sub(*count);
            is_here
        });
        // It cuts off the fraction of a microsecond.
        found.unwrap().0 + 0.5
    };
    Figures {
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// What nine of ten do not exceed.
fn ninth_decile(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() * 9 / 10]
}

#[test]
fn the_figures_are_cyclictests() {
    let load = start(LOAD);
    until("the machine is under load", || !load.threads().is_empty());
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // One after the other, so that what disturbs a start does so to the same number of others.
        let running = start(MEASURE);
        until("it measures", || !running.threads().is_empty());
        let first = cyclictest(PERIODS_US[0]);
        until("cyclictest measures", || sleeping(first.id(), "cyclictest").len() == 2);
        let second = cyclictest(PERIODS_US[1]);
        let report = running.report();
        theirs.push([first, second].map(figures_of));
        let figure = |name: &str| report[name].as_f64().unwrap();
        ours.push(Figures {
            p50_us: figure("wakeup_p50_us"),
            p99_us: figure("wakeup_p99_us"),
        });
    }
    drop(load);
    for (our, [first, second]) in ours.iter().zip(&theirs) {
        println!(
            "p50 {:.1} us, theirs {:.1}, {:.1}",
            our.p50_us, first.p50_us, second.p50_us
        );
        println!(
            "  p99 {:.1} us, theirs {:.1}, {:.1}",
            our.p99_us, first.p99_us, second.p99_us
        );
    }
    // What disturbs a round disturbs all three of it: so each is compared within its round.
    let apart = |of: fn(&Figures) -> f64| {
        let rounds = ours.iter().zip(&theirs);
        median(
            rounds
                .map(|(our, [first, second])| of(our) - (of(first) + of(second)) / 2.0)
                .collect(),
        )
        .abs()
    };
    let usual = median(theirs.iter().flatten().map(|figures| figures.p50_us).collect());
    let p50_apart = apart(|figures| figures.p50_us);
    assert!(
        p50_apart <= f64::max(2.0, usual * 0.1),
        "p50 is {p50_apart} us from cyclictest's {usual} us"
    );

    let two_apart = ninth_decile(theirs.iter().map(|[a, b]| (a.p99_us - b.p99_us).abs()).collect());
    let p99_apart = apart(|figures| figures.p99_us);
    assert!(
        p99_apart <= two_apart,
        "p99 is {p99_apart} us from cyclictest's, two of which are {two_apart} us apart"
    );
}
