// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rule of `bpf/ledbat/rule.h` (docs/explanation/background.md) among simulated senders, at a bottleneck that is somebody else's. The
//! guest has the last word (`yield`); this is where rules are tried, and where they have to hold for more than one seed. The
//! bounds are what the rule reaches, a little below; "Not met" in that page has what it should reach.

use background::cells::{
    CELLS, EVER, FIFO, LOSS, alone, alone_of_cubic, fairness, foreground_share, median, return_s, share_beside_two,
    sorted, transfer,
};
use background::link::Kind;
use background::simulation::{By, Detour, Transfer, run, run_with_detour};

mod background {
    pub mod cells;
    pub mod link;
    pub mod sender;
    pub mod simulation;
}

const SEEDS: u64 = 5;

#[test]
fn lone_background_fills_the_link() {
    for (name, kind) in CELLS {
        let least = sorted(SEEDS, |seed| alone_of_cubic(kind, seed))[0];
        let bound = if kind == LOSS { 2.0 } else { 0.9 };
        assert!(least >= bound, "{name}: {least:.2} of CUBIC alone");
    }
}

#[test]
fn cubic_on_another_device_keeps_what_it_has_alone() {
    for (name, kind) in CELLS {
        let share = median(SEEDS, |seed| foreground_share(kind, seed));
        let bound = if kind == Kind::Policer { 0.85 } else { 0.93 };
        assert!(share >= bound, "{name}: {share:.2} of alone");
    }
}

/// Who have met know each other, and answer a delay more gently than a lone one does.
#[test]
fn cubic_beside_two_backgrounds_keeps_nearly_as_much() {
    for (name, kind) in [("fifo", FIFO), ("codel", Kind::CoDel), ("fq-codel", Kind::FqCoDel)] {
        let share = median(SEEDS, |seed| share_beside_two(kind, seed));
        let bound = if kind == FIFO { 0.95 } else { 0.85 };
        assert!(share >= bound, "{name}: {share:.2} of alone");
    }
}

#[test]
fn background_returns_after_the_foreground() {
    for (name, kind) in CELLS {
        let back_s = median(SEEDS, |seed| return_s(kind, seed));
        let bound_s = if matches!(kind, Kind::Fifo { .. }) { 3.0 } else { 16.0 };
        assert!(back_s <= bound_s, "{name}: after {back_s:.1} s");
    }
}

#[test]
fn two_backgrounds_share_a_link() {
    for (name, kind) in CELLS {
        let share = median(SEEDS, |seed| fairness(kind, seed));
        let bound = if matches!(kind, Kind::Fifo { .. }) { 0.8 } else { 0.4 };
        assert!(share >= bound, "{name}: {share:.2} of the other");
    }
}

/// One alone would be acknowledged late, each time, and that would look like somebody else's queue.
#[test]
fn two_packets_are_sent_together() {
    for seed in 1..=20 {
        let mbit = alone(FIFO, By::Rule, seed);
        assert!(mbit >= 18.0, "seed {seed}: {mbit:.1} Mbit/s");
    }
}

/// Web pages and the like: each begins a connection and is over before its first acknowledgement.
#[test]
fn ten_packets_each_second_take_no_more_than_they_need() {
    for (name, kind) in CELLS {
        let burst = |second: u32| transfer(By::Cubic, f64::from(second), f64::from(second) + 0.02);
        let transfers: Vec<_> = std::iter::once(transfer(By::Rule, 0.0, EVER))
            .chain((10..70).map(burst))
            .collect();
        let mbit = median(SEEDS, |seed| run(kind, &transfers, 70.0, seed).mbit(0, 10.0, 70.0));
        let bound = match kind {
            Kind::Policer => 14.0,
            LOSS => 16.0,
            _ => 18.0,
        };
        assert!(mbit >= bound, "{name}: {mbit:.1} Mbit/s");
    }
}

/// What a lone background has in the last half minute.
fn alone_after(detour: Detour, seconds: f64, kind: Kind) -> f64 {
    let transfers = [transfer(By::Rule, 0.0, EVER)];
    median(SEEDS, |seed| {
        run_with_detour(kind, &transfers, detour, seconds, seed).mbit(0, seconds - 30.0, seconds)
    })
}

/// A queue rises and falls; a longer route does not. Behind a policer the way back takes as long as after a foreground.
#[test]
fn longer_route_is_told_from_a_queue() {
    for (name, kind) in CELLS {
        let detour = Detour {
            from_s: 20.0,
            by_us: 50_000,
            slower: 1,
            jitter_us: 1,
        };
        let mbit = alone_after(detour, 120.0, kind);
        let bound = if kind == Kind::Policer { 8.0 } else { 15.0 };
        assert!(mbit >= bound, "{name}: {mbit:.1} Mbit/s");
    }
}

/// By radio the second of two packets is often late, and now and then a packet by more than a queue that a background holds.
#[test]
fn radio_jitter_is_told_from_other_flows() {
    let radio = Detour {
        from_s: 0.0,
        by_us: 0,
        slower: 1,
        jitter_us: 1_500,
    };
    let transfers = [transfer(By::Rule, 0.0, EVER), transfer(By::Cubic, 10.0, 30.0)];
    for (name, kind) in CELLS.into_iter().filter(|(_, kind)| *kind != Kind::Policer) {
        let mbit = median(SEEDS, |seed| {
            run_with_detour(kind, &transfers, radio, 120.0, seed).mbit(0, 90.0, 120.0)
        });
        assert!(mbit >= 15.0, "{name}: {mbit:.1} Mbit/s");
    }
}

/// Radio does so. It looks like somebody else's share, but for what each second packet waits.
#[test]
fn halved_link_rate_is_accepted_after_some_minutes() {
    for (name, kind) in CELLS.into_iter().filter(|(_, kind)| *kind != Kind::Policer) {
        let detour = Detour {
            from_s: 30.0,
            by_us: 0,
            slower: 2,
            jitter_us: 0,
        };
        let mbit = alone_after(detour, 360.0, kind);
        assert!(mbit >= 8.0, "{name}: {mbit:.1} of 10 Mbit/s");
    }
}

/// However long it stays, and however its own receiver acknowledges: after each failed attempt the rule takes the link for
/// slower, unless it sees that others are served in between.
#[test]
fn cubic_that_stays_keeps_the_link() {
    for acks_each in [false, true] {
        let background = Transfer {
            acks_each,
            ..transfer(By::Rule, 0.0, EVER)
        };
        let ran = run(Kind::FqCoDel, &[background, transfer(By::Cubic, 10.0, EVER)], 910.0, 1);
        for minute in 0..15 {
            let from_s = 10.0 + 60.0 * f64::from(minute);
            let mbit = ran.mbit(1, from_s, from_s + 60.0);
            assert!(
                mbit >= 16.5,
                "each packet acknowledged: {acks_each}, minute {minute}: {mbit:.1} Mbit/s"
            );
        }
    }
}
