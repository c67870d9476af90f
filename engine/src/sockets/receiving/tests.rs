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

/// This many bytes a second for this long.
fn download(receiving: &mut Receiving, from_ms: u64, seconds: u64, rate: u64) {
    for pass in 0..=seconds * 1_000 / POLL_MS {
        let passed_ms = pass * POLL_MS;
        seen(receiving, from_ms + passed_ms, 1_000 + rate * passed_ms / 1_000, 100);
    }
}

#[test]
fn a_download_counts_after_64_kb_in_a_second() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 10, 60_000);
    assert!(!receiving.is_bulk());
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 70_000);
    assert!(receiving.is_bulk());
}

#[test]
fn bytes_from_before_the_first_poll_do_not_count() {
    let mut receiving = Receiving::default();
    seen(&mut receiving, 0, 1 << 40, 100);
    seen(&mut receiving, 100, (1 << 40) + 10_000, 100);
    assert!(!receiving.is_bulk());
}

#[test]
fn a_download_ends_after_two_seconds_of_silence() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 1_000_000);
    receiving.expire(Duration::from_millis(2_900));
    assert!(receiving.is_bulk());
    receiving.expire(Duration::from_millis(3_100));
    assert!(!receiving.is_bulk());
}

#[test]
fn four_segments_an_rtt_of_a_second_continue_a_download() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 1_000_000);
    for second in 2..20 {
        seen(&mut receiving, second * 1_000, 1_000_000 + second * 4 * 1_448, 1_000);
        assert!(receiving.is_bulk(), "{second}");
    }
}

#[test]
fn the_minimum_rtt_includes_the_handshake() {
    let mut receiving = Receiving::default();
    seen(&mut receiving, 0, 0, 0);
    assert_eq!(receiving.rtts(), None);
    // Below half of that the remote host's timestamps alone count.
    for (rtt_ms, least_ms) in [(120, 90), (85, 85), (400, 85), (1, 45)] {
        seen(&mut receiving, 100, 0, rtt_ms);
        let rtts = [rtt_ms.into(), least_ms].map(Duration::from_millis);
        assert_eq!(receiving.rtts(), Some((rtts[0], rtts[1])));
    }
}

#[test]
fn an_rtt_of_minutes_is_ignored() {
    let mut receiving = Receiving::default();
    seen(&mut receiving, 0, 0, 100);
    seen(&mut receiving, 100, 0, 500_000);
    assert_eq!(receiving.rtts().map(|(rtt, _)| rtt), Some(Duration::from_millis(100)));
}

#[test]
fn a_servers_pause_is_not_taken_for_an_rtt() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 2, 1_000_000);
    // 60 kB each half second; the kernel's mean includes the pauses.
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
    // Growth while data arrives is a queue.
    for pass in 0..30 {
        seen(&mut receiving, 7_000 + pass * POLL_MS, 4_000_000 + pass * 50_000, 400);
    }
    assert_eq!(receiving.rtts().map(|(rtt, _)| rtt), Some(Duration::from_millis(400)));
}

#[test]
fn without_an_rtt_no_silence_is_a_pause() {
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
fn one_burst_an_rtt_is_no_pause() {
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
fn a_reconnected_socket_starts_over() {
    let mut receiving = Receiving::default();
    download(&mut receiving, 0, 1, 1_000_000);
    seen(&mut receiving, 1_100, 90_000, 100);
    assert!(!receiving.is_bulk());
}
