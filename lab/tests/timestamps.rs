// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What background makes of each moment that it keeps (`bpf/timestamp.h` lists them), compiled for this machine from the headers
//! as they are (`c/timestamps.c`): what happened 2^31 or 2^32 milliseconds ago, or any time beyond a day, is decided upon as
//! what happened a day ago, and is neither to come nor new.

const DAY: u64 = 86_400_000;
const HALF: u64 = 1 << 31;
const WHOLE: u64 = 1 << 32;
/// Just before, at and after each of both; and again after a year.
const AGO: [u64; 9] = [
    HALF - 1,
    HALF,
    HALF + 1,
    HALF + 20_000,
    WHOLE - 1,
    WHOLE,
    WHOLE + 1,
    WHOLE + 30,
    8 * WHOLE + 30,
];
/// After the machine's start; and where the lower half of the clock is about to come round.
const THEN: [u64; 3] = [1_000_000, HALF - 10, WHOLE - 10];

/// Of a moment, and what is asked at another.
type Decides<T> = unsafe extern "C" fn(then: u64, now: u64) -> T;

unsafe extern "C" {
    fn lab_base_is_renewed(then: u64, now: u64) -> bool;
    fn lab_slowdown_is_due(then: u64, now: u64) -> bool;
    fn lab_slowdown_after_ramp_ms(then: u64, now: u64) -> u32;
    fn lab_others_between_are_gone(then: u64, now: u64) -> bool;
    fn lab_others_are_gone(then: u64, now: u64) -> bool;
    fn lab_next_hold_ms(then: u64, now: u64) -> u32;
    fn lab_lost_share_makes_it_yield(then: u64, now: u64) -> bool;
    fn lab_band_is_met(then: u64, now: u64) -> bool;
    fn lab_peak(then: u64, now: u64) -> u32;
    fn lab_pause_is_seen(then: u64, now: u64) -> bool;
    fn lab_round_is_cut_short(then: u64, now: u64) -> bool;
    fn lab_download_sample_us(then: u64, now: u64) -> u32;
    fn lab_download_old_echo_sample_us(then: u64, now: u64) -> u32;
    fn lab_download_round_ends(then: u64, now: u64) -> bool;
    fn lab_download_is_blind(then: u64, now: u64) -> bool;
    fn lab_download_was_silent(then: u64, now: u64) -> bool;
    fn lab_download_gap_us(then_us: u64, now_us: u64) -> u32;
    fn lab_age(then: u64, now: u64) -> u32;
    fn lab_age_under_way_ms(then: u64, now: u64) -> u32;
}

/// `recent` is decided where it was a moment ago that the moment was noted, `old` wherever it is long ago.
fn decides<T: PartialEq + std::fmt::Debug + Copy>(decides: Decides<T>, (recent_ago, recent): (u64, T), old: T) {
    // SAFETY: takes numbers, and keeps nothing.
    let of = |then: u64, ago: u64| unsafe { decides(then, then + ago) };
    for then in THEN {
        assert_eq!(of(then, recent_ago), recent, "noted at {then}, {recent_ago} ms ago");
        assert_eq!(of(then, DAY), old, "noted at {then}, a day ago");
        for ago in AGO {
            assert_eq!(of(then, ago), old, "noted at {then}, {ago} ms ago");
        }
    }
}

#[test]
fn base_history_is_renewed() {
    decides(lab_base_is_renewed, (3_000, false), true);
}

#[test]
fn a_slowdown_is_due() {
    decides(lab_slowdown_is_due, (3_000, false), true);
}

#[test]
fn a_slowdown_follows_nine_times_as_long_after_a_ramp() {
    decides(lab_slowdown_after_ramp_ms, (3_000, 27_000), 9 << 26);
}

#[test]
fn flows_served_in_between_are_gone_after_long() {
    decides(lab_others_between_are_gone, (2_500, false), true);
}

#[test]
fn seen_flows_are_gone_after_long() {
    decides(lab_others_are_gone, (3_000, false), true);
}

#[test]
fn hold_time_is_reset_after_long() {
    decides(lab_next_hold_ms, (3_000, 2_000), 1_000);
}

#[test]
fn old_loss_does_not_yield() {
    decides(lab_lost_share_makes_it_yield, (3_000, true), false);
}

#[test]
fn queue_of_another_ledbat_flow_is_met() {
    decides(lab_band_is_met, (3_000, false), true);
}

#[test]
fn long_round_shows_no_rate() {
    decides(lab_peak, (5, 4_000), 0);
}

#[test]
fn pause_is_detected() {
    decides(lab_pause_is_seen, (500, false), true);
}

#[test]
fn old_delay_ends_no_round() {
    decides(lab_round_is_cut_short, (6, true), false);
}

/// After 24.9 days a download no longer yielded: each echo was before the moment from which echoes are trusted.
#[test]
fn download_samples_rtt_after_any_silence() {
    decides(lab_download_sample_us, (10, 0), 20_000);
}

#[test]
fn download_ignores_old_echo() {
    decides(lab_download_old_echo_sample_us, (3_000, 0), 0);
}

#[test]
fn a_download_ends_a_round() {
    decides(lab_download_round_ends, (10, false), true);
}

#[test]
fn a_download_without_answers_is_blind() {
    decides(lab_download_is_blind, (1_000, false), true);
}

#[test]
fn a_download_was_silent() {
    decides(lab_download_was_silent, (100, false), true);
}

/// In microseconds, of which 32 bits come round after 71 minutes.
#[test]
fn packet_gap_is_exact_or_unknown() {
    for (ago, gap) in [
        (100, 100),
        (HALF + 5, 0x8000_0005),
        (WHOLE - 1, u32::MAX),
        (WHOLE, u32::MAX),
        (WHOLE + 5, u32::MAX),
    ] {
        // SAFETY: takes numbers, and keeps nothing.
        assert_eq!(unsafe { lab_download_gap_us(7, 7 + ago) }, gap);
    }
}

/// The kernel's `lrcvtime`, and the time of a promise in a packet.
#[test]
fn age_of_plain_timestamp_is_known_up_to_half_its_range() {
    for then in THEN {
        // SAFETY: takes numbers, and keeps nothing.
        let age = |ago: u64| unsafe { lab_age(then, then + ago) };
        assert_eq!([age(0), age(5), age(HALF - 1)], [0, 5, u32::MAX >> 1]);
        assert_eq!([age(HALF), age(HALF + 20_000), age(WHOLE - 1)], [u32::MAX; 3]);
    }
}

#[test]
fn ages_do_not_wrap_in_a_long_transfer() {
    for then in THEN {
        for ago in [
            0,
            5,
            DAY,
            HALF - 1,
            HALF,
            HALF + 20_000,
            WHOLE - 1,
            WHOLE,
            WHOLE + 30,
            8 * WHOLE,
        ] {
            // SAFETY: takes numbers, and keeps nothing.
            let age_ms = unsafe { lab_age_under_way_ms(then, then + ago) };
            assert_eq!(u64::from(age_ms), ago.min(HALF), "noted at {then}, {ago} ms ago");
        }
    }
}
