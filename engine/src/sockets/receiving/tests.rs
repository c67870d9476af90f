// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use crate::network::tests::upload;

const POLL_MS: u64 = 100;

fn seen(receiving: &mut Receiving, ms: u64, bytes: u64, rtt_ms: u32) {
    let flow = Flow {
        received_bytes: bytes,
        receiver_rtt_us: rtt_ms * 1_000,
        min_rtt_us: Some(90_000),
        ..upload()
    };
    receiving.observe(Duration::from_millis(ms), &flow);
}

/// So many bytes a second for so long.
fn download(receiving: &mut Receiving, from_ms: u64, seconds: u64, rate: u64) {
    for pass in 0..=seconds * 1_000 / POLL_MS {
        let passed_ms = pass * POLL_MS;
        seen(receiving, from_ms + passed_ms, 1_000 + rate * passed_ms / 1_000, 100);
    }
}

#[test]
fn a_download_counts_once_64_kb_have_come_in_a_second() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 10, 60_000);
    assert!(!receiving.is_bulk());
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 70_000);
    assert!(receiving.is_bulk());
}

#[test]
fn what_a_connection_had_before_it_was_seen_is_no_download() {
    let mut receiving = Receiving::default();
    seen(&mut receiving, 0, 1 << 40, 100);
    seen(&mut receiving, 100, (1 << 40) + 10_000, 100);
    assert!(!receiving.is_bulk());
}

#[test]
fn a_download_that_pauses_for_two_seconds_is_over() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 1_000_000);
    receiving.expire(Duration::from_millis(2_900));
    assert!(receiving.is_bulk());
    receiving.expire(Duration::from_millis(3_100));
    assert!(!receiving.is_bulk());
}

#[test]
fn four_segments_in_a_round_trip_of_a_second_are_a_download_that_goes_on() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 1_000_000);
    for second in 2..20 {
        seen(&mut receiving, second * 1_000, 1_000_000 + second * 4 * 1_448, 1_000);
        assert!(receiving.is_bulk(), "{second}");
    }
}

#[test]
fn the_least_round_trip_is_that_of_the_handshake_too() {
    let mut receiving = Receiving::default();
    seen(&mut receiving, 0, 0, 0);
    assert_eq!(receiving.rtts(), None);
    // Less than half of that is the remote host's word alone.
    for (rtt_ms, least_ms) in [(120, 90), (85, 85), (400, 85), (1, 45)] {
        seen(&mut receiving, 100, 0, rtt_ms);
        let rtts = [rtt_ms.into(), least_ms].map(Duration::from_millis);
        assert_eq!(receiving.rtts(), Some((rtts[0], rtts[1])));
    }
}

#[test]
fn a_round_trip_of_minutes_is_not_believed() {
    let mut receiving = Receiving::default();
    seen(&mut receiving, 0, 0, 100);
    seen(&mut receiving, 100, 0, 500_000);
    assert_eq!(receiving.rtts().map(|(rtt, _)| rtt), Some(Duration::from_millis(100)));
}

#[test]
fn the_pause_of_a_server_is_no_round_trip() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 2, 1_000_000);
    // 60 kB each half second; the kernel's mean has the pauses in it.
    for pass in 1..50 {
        let ms = 2_000 + pass * POLL_MS;
        seen(
            &mut receiving,
            ms,
            2_001_000 + pass / 5 * 60_000,
            if pass < 5 { 100 } else { 400 },
        );
        let (rtt, _) = receiving.rtts().expect("a round trip");
        assert_eq!(rtt, Duration::from_millis(100), "{ms}");
    }
    // What grows while data comes is a queue.
    for pass in 0..30 {
        seen(&mut receiving, 7_000 + pass * POLL_MS, 4_000_000 + pass * 50_000, 400);
    }
    assert_eq!(receiving.rtts().map(|(rtt, _)| rtt), Some(Duration::from_millis(400)));
}

#[test]
fn before_a_round_trip_is_known_nothing_is_a_pause() {
    let mut receiving = Receiving::default();
    for pass in 0..20 {
        seen(
            &mut receiving,
            pass * POLL_MS,
            pass / 5 * 60_000,
            if pass < 6 { 0 } else { 600 },
        );
    }
    assert_eq!(receiving.rtts().map(|(rtt, _)| rtt), Some(Duration::from_millis(600)));
}

#[test]
fn what_comes_in_one_piece_each_round_trip_is_no_pause() {
    let mut receiving = Receiving::default();
    for pass in 0..60 {
        seen(
            &mut receiving,
            pass * POLL_MS,
            pass / 5 * 60_000,
            if pass < 30 { 500 } else { 600 },
        );
    }
    assert_eq!(receiving.rtts().map(|(rtt, _)| rtt), Some(Duration::from_millis(600)));
}

#[test]
fn a_socket_that_connects_anew_begins_anew() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 1_000_000);
    seen(&mut receiving, 1_100, 90_000, 100);
    assert!(!receiving.is_bulk());
}
