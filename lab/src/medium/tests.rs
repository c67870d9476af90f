// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model against known numbers and rules, in virtual time, with its own sources.

use std::rc::Rc;

use super::address::{Port, mac_of};
use super::airtime::{ACK_NS, BASIC_RATE, DIFS_NS, RATES, SIFS_NS, frame_ns};
use super::contender::RETRY_LIMIT;
use super::dcf::{Config, Medium, Release};
use super::rate::RateControl;

const SECOND_NS: u64 = 1_000_000_000;
/// 1,448 bytes of UDP payload with their headers.
const FULL_FRAME: usize = 1_448 + 8 + 20 + 14;

fn config(stations: usize) -> Config {
    Config {
        stations,
        rate_control: RateControl::Fixed54,
        has_categories: false,
        loss: 0.0,
        one_way_delay_ns: 128_000_000,
        longer_ns: Vec::new(),
        queue_packets: 100,
        seed: 1,
    }
}

fn frame(to: [u8; 6], length: usize, mark: u8) -> Rc<[u8]> {
    let mut bytes = vec![mark; length];
    bytes[..6].copy_from_slice(&to);
    Rc::from(bytes)
}

fn to_port(to: Port, length: usize, mark: u8) -> Rc<[u8]> {
    frame(mac_of(to).unwrap(), length, mark)
}

fn to_everyone(length: usize, mark: u8) -> Rc<[u8]> {
    frame([0xff; 6], length, mark)
}

fn after(medium: &mut Medium, ns: u64) -> Vec<Release> {
    let mut releases = Vec::new();
    medium.advance(medium.now_ns() + ns, &mut releases);
    releases
}

/// Every station always has a full frame for the server. The queue of 100 lasts far longer than 10 ms.
fn saturate(medium: &mut Medium, duration_ns: u64) -> Vec<Release> {
    let until_ns = medium.now_ns() + duration_ns;
    let full = to_port(Port::Server, FULL_FRAME, 0);
    let mut releases = Vec::new();
    while medium.now_ns() < until_ns {
        for station in 0..medium.stations().len() {
            for _ in medium.stations()[station].queue_len()..100 {
                medium.offer(Port::Station(station), Rc::clone(&full));
            }
        }
        medium.advance(medium.now_ns() + 10_000_000, &mut releases);
    }
    releases
}

struct Saturated {
    payload_mbit: f64,
    collided_share: f64,
}

fn saturated(config: Config) -> Saturated {
    let mut medium = Medium::new(config);
    saturate(&mut medium, 20 * SECOND_NS);
    let sum = |count: fn(&super::sender::SenderCounters) -> u64| -> f64 {
        medium
            .stations()
            .iter()
            .map(|station| count(&station.counters) as f64)
            .sum()
    };
    Saturated {
        payload_mbit: sum(|counters| counters.frames) * 1_448.0 * 8.0 / 20.0 / 1e6,
        collided_share: sum(|counters| counters.collisions) / sum(|counters| counters.attempts),
    }
}

#[test]
fn two_saturating_udp_senders_move_25_mbit() {
    let rate = saturated(config(2)).payload_mbit;
    assert!((24.2..=25.8).contains(&rate), "{rate}");
}

#[test]
fn collisions_grow_with_the_number_of_senders_and_throughput_hardly_moves() {
    let runs: Vec<Saturated> = [2, 4, 8]
        .into_iter()
        .map(|stations| saturated(config(stations)))
        .collect();
    assert!(runs.is_sorted_by(|fewer, more| fewer.collided_share < more.collided_share));
    assert!(
        runs[2].payload_mbit > 0.9 * runs[0].payload_mbit,
        "contention alone must not collapse the total"
    );
}

#[test]
fn rate_fallback_is_what_makes_contention_expensive() {
    let arf = |stations| {
        saturated(Config {
            rate_control: RateControl::arf(),
            ..config(stations)
        })
        .payload_mbit
    };
    let (two, eight) = (arf(2), arf(8));
    assert!(eight < 0.8 * two, "{two} at two senders, {eight} at eight");
}

#[test]
fn dcf_is_unchanged_by_access_categories() {
    let arf = RateControl::arf();
    let presets = [(RateControl::Fixed54, 0.0), (arf.clone(), 0.0), (arf, 0.04)];
    assert_eq!(
        presets.map(|(rate_control, loss)| digest(rate_control, loss)),
        [0x6f3694b874482280, 0xc8c0e7e104e7b4c9, 0x2bfba731e1f9c721]
    );
}

/// FNV-1a over the time and receiver of each delivery, in a second of all kinds of traffic.
fn digest(rate_control: RateControl, loss: f64) -> u64 {
    let mut medium = Medium::new(Config {
        rate_control,
        loss,
        queue_packets: 50,
        ..config(5)
    });
    let mut releases = Vec::new();
    for step in 0..1_000_u64 {
        for station in 0..5 {
            let to = [Port::Server, Port::Station((station + 1) % 5)][usize::from(step % 7 == 0)];
            medium.offer(Port::Station(station), to_port(to, 300 + 240 * station, step as u8));
        }
        (0..2).for_each(|_| medium.offer(Port::Server, to_port(Port::Station(step as usize % 5), 66, 0)));
        if step % 100 == 0 {
            medium.offer(Port::Station(1), to_everyone(200, 0));
            medium.set_present(4, step % 300 != 0);
        }
        medium.advance(medium.now_ns() + 1_000_000, &mut releases);
    }
    let port = |to| mac_of(to).map_or(0, |mac| u64::from(mac[5]));
    let words = releases
        .iter()
        .flat_map(|release| [release.at_ns, port(release.to), release.frame.len() as u64]);
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        (hash ^ word).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn a_lone_sender_is_never_in_a_collision() {
    assert_eq!(saturated(config(1)).collided_share, 0.0);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let run = |seed| {
        saturate(
            &mut Medium::new(Config {
                seed,
                loss: 0.04,
                ..config(4)
            }),
            SECOND_NS,
        )
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn polling_times_do_not_change_the_result() {
    let run = |step_ns: u64| {
        let mut medium = Medium::new(Config {
            loss: 0.04,
            ..config(3)
        });
        for station in 0..3 {
            (0..50).for_each(|mark| medium.offer(Port::Station(station), to_port(Port::Server, 1_000, mark)));
        }
        (0..SECOND_NS / step_ns)
            .flat_map(|_| after(&mut medium, step_ns))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(10_000), run(SECOND_NS));
}

#[test]
fn frame_on_idle_channel_takes_difs_airtime_and_ack() {
    let mut medium = Medium::new(config(2));
    medium.offer(Port::Station(0), to_port(Port::Server, FULL_FRAME, 0));
    let releases = after(&mut medium, SECOND_NS);
    assert_eq!(releases.len(), 1);
    let airtime_ns = releases[0].at_ns - 128_000_000;
    let least_ns = DIFS_NS + frame_ns(FULL_FRAME, RATES[7]) + SIFS_NS + ACK_NS;
    // The draw is at most CWmin: at time 0 the channel has not been idle for DIFS yet.
    assert!(
        (least_ns..=least_ns + 15 * 20_000).contains(&airtime_ns),
        "{airtime_ns}"
    );
}

#[test]
fn the_next_release_is_never_later_than_the_release() {
    let mut medium = Medium::new(Config {
        loss: 0.04,
        ..config(4)
    });
    for mark in 0..20 {
        medium.offer(Port::Station(0), to_everyone(300, mark));
        medium.offer(Port::Station(1), to_port(Port::Station(2), FULL_FRAME, mark));
        medium.offer(Port::Server, to_port(Port::Station(3), 60, mark));
    }
    assert_promises_are_kept(&mut medium);
}

fn assert_promises_are_kept(medium: &mut Medium) {
    let mut delivered = 0;
    while let Some(at_ns) = medium.next_release_ns() {
        let mut early = Vec::new();
        medium.advance(at_ns - 1, &mut early);
        assert_eq!(early, [], "promised nothing before {at_ns}");
        let mut due = Vec::new();
        medium.advance(at_ns, &mut due);
        delivered += due.len();
    }
    assert!(delivered > 60, "{delivered}");
}

#[test]
fn both_ways_through_the_delay_line_keep_the_order() {
    let mut medium = Medium::new(config(1));
    let mut releases = Vec::new();
    for mark in 0..80 {
        medium.offer(Port::Station(0), to_port(Port::Server, 100, mark));
        medium.offer(Port::Server, to_port(Port::Station(0), 100, mark));
        releases.extend(after(&mut medium, 1_000_000));
    }
    releases.extend(after(&mut medium, SECOND_NS));
    for port in [Port::Server, Port::Station(0)] {
        let marks: Vec<u8> = releases
            .iter()
            .filter(|release| release.to == port)
            .map(|r| r.frame[20])
            .collect();
        assert_eq!(marks, (0..80).collect::<Vec<u8>>());
    }
    assert!(releases.iter().all(|release| release.at_ns >= 128_000_000));
    assert!(releases.is_sorted_by_key(|release| release.at_ns));
}

#[test]
fn a_frame_that_is_never_acknowledged_is_given_up_after_the_retry_limit() {
    let mut medium = Medium::new(config(2));
    medium.set_present(1, false);
    medium.offer(Port::Server, to_port(Port::Station(1), 500, 0));
    medium.offer(Port::Server, to_port(Port::Station(0), 500, 1));
    let releases = after(&mut medium, SECOND_NS);
    let access_point = &medium.access_point().counters;
    assert_eq!(access_point.retry_drops, 1);
    assert_eq!(access_point.attempts, u64::from(RETRY_LIMIT) + 1);
    assert_eq!(releases.len(), 1);
    assert_eq!(releases[0].to, Port::Station(0), "what waited behind it gets through");
}

#[test]
fn a_full_queue_drops_the_newest() {
    let mut medium = Medium::new(Config {
        queue_packets: 10,
        ..config(1)
    });
    (0..15).for_each(|mark| medium.offer(Port::Station(0), to_port(Port::Server, 100, mark)));
    let releases = after(&mut medium, SECOND_NS);
    assert_eq!(
        releases.iter().map(|release| release.frame[20]).collect::<Vec<_>>(),
        (0..10).collect::<Vec<u8>>()
    );
    assert_eq!(medium.stations()[0].counters.queue_drops, 5);
}

#[test]
fn a_broadcast_is_acknowledged_uplink_and_repeated_once_to_every_other_station() {
    let mut medium = Medium::new(config(4));
    medium.offer(Port::Station(2), to_everyone(300, 0));
    let releases = after(&mut medium, SECOND_NS);
    let reached: Vec<Port> = releases.iter().map(|release| release.to).collect();
    assert_eq!(
        reached,
        [0, 1, 3].map(Port::Station),
        "all but the sender, and not the server"
    );
    let counted = &medium.counters.broadcast;
    assert_eq!(
        counted.uplink_airtime_ns,
        DIFS_NS + frame_ns(300, RATES[7]) + SIFS_NS + ACK_NS
    );
    assert_eq!(counted.repeat_airtime_ns, DIFS_NS + frame_ns(300, BASIC_RATE));
    assert_eq!((counted.uplink_frames, counted.repeated_frames), (1, 1));
}

#[test]
fn each_receiver_loses_its_own_copies_of_a_broadcast() {
    let mut medium = Medium::new(Config {
        loss: 0.04,
        ..config(3)
    });
    let mut heard = [0_i32; 3];
    let mut heard_by_both = 0;
    for _ in 0..10_000 {
        medium.offer(Port::Station(0), to_everyone(100, 0));
        let releases = after(&mut medium, 20_000_000);
        heard_by_both += i32::from(releases.len() == 2);
        for release in releases {
            let Port::Station(station) = release.to else {
                panic!("the server heard a broadcast")
            };
            heard[station] += 1;
        }
    }
    assert_eq!(heard[0], 0);
    // 9,600 expected of 10,000, standard deviation 20; both 9,216, standard deviation 27.
    assert!(
        heard[1..].iter().all(|count| (9_500..=9_700).contains(count)),
        "{heard:?}"
    );
    assert!((9_080..=9_350).contains(&heard_by_both), "{heard_by_both}");
    assert_eq!(
        medium.counters.broadcast.copies_lost,
        20_000 - heard.iter().sum::<i32>() as u64
    );
    assert_eq!(
        medium.access_point().counters.attempts,
        10_000,
        "the repetition is never retried"
    );
}

#[test]
fn stations_reach_each_other_through_the_access_point() {
    let mut medium = Medium::new(config(2));
    medium.offer(Port::Station(0), to_port(Port::Station(1), 200, 5));
    let releases = after(&mut medium, 10_000_000);
    assert_eq!(releases.len(), 1);
    assert_eq!(releases[0].to, Port::Station(1));
    assert_eq!(medium.access_point().counters.attempts, 1);
    let leg_ns = DIFS_NS + frame_ns(200, RATES[7]) + SIFS_NS + ACK_NS;
    assert_eq!(medium.counters.between_stations_airtime_ns, 2 * leg_ns);
}

#[test]
fn an_absent_station_neither_sends_nor_hears_and_comes_back() {
    let mut medium = Medium::new(config(3));
    (0..50).for_each(|mark| medium.offer(Port::Station(0), to_port(Port::Server, 1_000, mark)));
    medium.set_present(0, false);
    medium.offer(Port::Station(0), to_port(Port::Server, 1_000, 0));
    medium.offer(Port::Station(1), to_everyone(100, 0));
    let releases = after(&mut medium, SECOND_NS);
    assert_eq!(
        releases.iter().map(|release| release.to).collect::<Vec<_>>(),
        [Port::Station(2)]
    );
    assert_eq!(medium.stations()[0].counters.absent_drops, 51);

    medium.set_present(0, true);
    medium.offer(Port::Station(0), to_port(Port::Server, 1_000, 0));
    medium.offer(Port::Server, to_port(Port::Station(0), 100, 0));
    assert_eq!(after(&mut medium, SECOND_NS).len(), 2);
}

#[test]
fn a_station_that_leaves_in_mid_frame_is_not_heard() {
    let mut medium = Medium::new(config(1));
    (0..3).for_each(|mark| medium.offer(Port::Station(0), to_port(Port::Server, FULL_FRAME, mark)));
    let ends_ns = medium.next_release_ns().unwrap();
    assert_eq!(after(&mut medium, ends_ns), []);
    medium.set_present(0, false);
    assert_eq!(after(&mut medium, SECOND_NS), []);
    assert_eq!(medium.stations()[0].queue_len(), 0);
}

#[test]
fn unroutable_frames_are_counted_and_use_no_airtime() {
    let mut medium = Medium::new(config(2));
    medium.offer(Port::Station(0), Rc::from([0_u8; 5]));
    medium.offer(Port::Station(0), frame([2, 0, 0, 0, 0, 77], 100, 0));
    assert_eq!(after(&mut medium, SECOND_NS), []);
    assert_eq!(medium.counters.unroutable, 2);
    assert_eq!(medium.counters.busy_ns, 0);
}

/// A frame of this user priority, marked as `bpf/access.bpf.c` does.
fn of_priority(to: Port, priority: u8, length: usize) -> Rc<[u8]> {
    let mut bytes = to_port(to, length, 0).to_vec();
    bytes[7] = 0x10 | priority;
    Rc::from(bytes)
}

/// Each station is saturated at its user priority; returns what each moved, in Mbit/s of payload.
fn with_categories(priorities: &[u8], seconds: u64) -> (Medium, Vec<f64>) {
    let mut medium = Medium::new(Config {
        has_categories: true,
        ..config(priorities.len())
    });
    for _ in 0..seconds * 100 {
        for (station, priority) in priorities.iter().enumerate() {
            for _ in medium.stations()[station].queue_len()..100 {
                medium.offer(Port::Station(station), of_priority(Port::Server, *priority, FULL_FRAME));
            }
        }
        after(&mut medium, 10_000_000);
    }
    let mbit = |frames: u64| frames as f64 * 1_448.0 * 8.0 / 1e6 / seconds as f64;
    let moved = medium.stations().iter().map(|station| mbit(station.counters.frames));
    let moved = moved.collect();
    (medium, moved)
}

#[test]
fn background_category_takes_a_third_of_what_best_effort_takes() {
    let of_two = |priorities: &[u8]| with_categories(priorities, 20).1[..2].iter().sum::<f64>();
    // Without the access point, and where it always has something to send, too.
    for (others, marked, plain) in [(&[][..], 0.86..0.91, 0.65..0.70), (&[0], 0.91..0.95, 0.72..0.77)] {
        let left = |ours: &[u8]| of_two(&[&[0, 0], others, ours].concat()) / of_two(&[&[0, 0], others].concat());
        let (beside_marked, beside_plain) = (left(&[1]), left(&[0]));
        assert!(marked.contains(&beside_marked), "{beside_marked} of {marked:?}");
        assert!(plain.contains(&beside_plain), "{beside_plain} of {plain:?}");
    }
}

#[test]
fn a_higher_category_gets_more_and_best_effort_gets_what_a_dcf_station_gets() {
    let moved = with_categories(&[6, 4, 0, 1], 10).1;
    assert!(moved.is_sorted_by(|higher, lower| higher > lower), "{moved:?}");
    let dcf = saturated(config(4)).payload_mbit;
    let edca: f64 = with_categories(&[0; 4], 20).1.iter().sum();
    assert!((0.98..=1.03).contains(&(edca / dcf)), "DCF {dcf}, best effort {edca}");
}

#[test]
fn internal_collisions_favour_the_higher_category() {
    let mut medium = Medium::new(Config {
        has_categories: true,
        ..config(1)
    });
    for _ in 0..2_000 {
        for priority in [6, 4, 0, 1] {
            medium.offer(Port::Station(0), of_priority(Port::Server, priority, FULL_FRAME));
        }
        after(&mut medium, 1_000_000);
    }
    let station = &medium.stations()[0].counters;
    assert!(station.internal_collisions > 100, "{}", station.internal_collisions);
    assert_eq!((station.collisions, medium.counters.collisions), (0, 0));
    // Each category has its own queue: the lower ones overflow.
    assert!(station.queue_drops > 1_000 && station.frames > 3_000, "{station:?}");
}

#[test]
fn the_next_release_is_never_later_than_the_release_with_categories_either() {
    let mut medium = Medium::new(Config {
        has_categories: true,
        loss: 0.04,
        ..config(3)
    });
    for _ in 0..30 {
        for (station, priority, length) in [(0, 0, 1_400), (0, 7, 60), (1, 2, 900), (1, 5, 300)] {
            medium.offer(Port::Station(station), of_priority(Port::Server, priority, length));
            medium.offer(Port::Server, of_priority(Port::Station(2), priority, length));
        }
    }
    assert_promises_are_kept(&mut medium);
}
