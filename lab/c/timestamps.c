/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How the congestion control of background handles each timestamp that it keeps (bpf/timestamp.h), for this machine: a
 * timestamp is set, nothing happens for a while, then an event follows. Out comes the decision. Decides nothing of its
 * own.
 */
#include <linux/types.h>
#include <stdbool.h>

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define __noinline __attribute__((noinline))
#define __arg_nonnull
#define USEC_PER_SEC 1000000UL

#include "../../bpf/ledbat/receiver.h"

#define BASE_US 10000U
#define WINDOW (100U * PACKET)

/* Everything fresh except the field under test: set at `then`, in a connection in AVOID. */
static struct ledbat sender(enum mode mode, __u64 then, __u64 now)
{
	struct gw_timestamp fresh = timestamp_of(now - 2000);
	struct ledbat ca;

	begin(&ca, WINDOW / PACKET, BASE_US, then);
	ca.mode = mode;
	ca.rounds = 8;
	ca.base_since = fresh;
	ca.mode_since = fresh;
	ca.clear = fresh;
	ca.band = fresh;
	ca.round = fresh;
	ca.slowdown_in_ms = 10000;
	if (mode == YIELD)
		ca.between = fresh;
	return ca;
}

/* An acknowledgement that ends a round. */
static void acked(struct ledbat *ca, __u32 rtt_us, __u64 now)
{
	if (note_acked(ca, rtt_us, 20, 0, 1000, 0, true, now))
		end_round(ca, 0, true, now);
}

/* True: the older half of the history of base round trips is over. */
bool lab_base_is_renewed(__u64 then, __u64 now)
{
	struct ledbat ca = sender(AVOID, then, now);

	ca.base_since = timestamp_of(then);
	ca.base_next_us = 5 * BASE_US;
	acked(&ca, 6 * BASE_US, now);
	return ca.base_us == 5 * BASE_US;
}

bool lab_slowdown_is_due(__u64 then, __u64 now)
{
	struct ledbat ca = sender(AVOID, then, now);

	ca.mode_since = timestamp_of(then);
	acked(&ca, BASE_US, now);
	return ca.mode == HOLD;
}

/* After a ramp that began then: nine times as long. */
__u32 lab_slowdown_after_ramp_ms(__u64 then, __u64 now)
{
	struct ledbat ca = sender(RAMP, then, now);

	ca.mode_since = timestamp_of(then);
	ca.goal = WINDOW;
	acked(&ca, BASE_US, now);
	return ca.mode == AVOID ? ca.slowdown_in_ms : 0;
}

/* Others' packets were last served between ours then. */
bool lab_others_between_are_gone(__u64 then, __u64 now)
{
	struct ledbat ca = sender(YIELD, then, now);

	ca.is_between = 1;
	ca.between = timestamp_of(then);
	acked(&ca, BASE_US, now);
	return ca.mode == RAMP;
}

/* Nobody was seen since then. */
bool lab_others_are_gone(__u64 then, __u64 now)
{
	struct ledbat ca = sender(YIELD, then, now);

	ca.clear = timestamp_of(then);
	acked(&ca, BASE_US, now);
	return ca.mode == RAMP;
}

/* The last yield ended then. */
__u32 lab_next_hold_ms(__u64 then, __u64 now)
{
	struct ledbat ca = sender(AVOID, then, now);

	ca.yield_end = timestamp_of(then);
	suffer_timeout(&ca, now);
	return ca.hold_ms;
}

/* A loss then, and a lost share now. */
bool lab_lost_share_makes_it_yield(__u64 then, __u64 now)
{
	struct ledbat ca = sender(AVOID, then, now);

	ca.loss = timestamp_of(then);
	ca.loss_window = WINDOW;
	ca.peak = 1000000;
	acked(&ca, BASE_US, now);
	return ca.mode == YIELD;
}

/* The delay has looked like another LEDBAT++ flow's since then. */
bool lab_band_is_met(__u64 then, __u64 now)
{
	struct ledbat ca = sender(YIELD, then, now);

	ca.band = timestamp_of(then);
	acked(&ca, BASE_US + clear_us(target_us(&ca)) + 1000, now);
	return ca.mode == RAMP && !ca.from_yield;
}

/* Packets a second, of a round of 20 that began then. */
__u32 lab_peak(__u64 then, __u64 now)
{
	struct ledbat ca = sender(START, then, now);

	ca.round = timestamp_of(then);
	acked(&ca, BASE_US, now);
	return ca.peak;
}

/* A pause that began then ends: the window begins small. */
bool lab_pause_is_seen(__u64 then, __u64 now)
{
	struct ledbat ca = sender(START, then, now);

	ca.round = timestamp_of(then);
	resume(&ca, now);
	return ca.window == IDLE_PACKETS * PACKET;
}

/* Each sample since then was foreign, and so is this one. True: the round is over. */
bool lab_round_is_cut_short(__u64 then, __u64 now)
{
	struct ledbat ca = sender(AVOID, then, now);

	ca.is_limited = 1;
	ca.is_foreign = 1;
	ca.foreign = timestamp_of(then);
	return note_acked(&ca, 10 * BASE_US, 1, 0, 1000, 0, false, now);
}

/* A download whose last data arrived then, with a round trip of 10 ms. */
static struct receiver receiver(__u64 then, __u64 now)
{
	struct receiver r = { .is_begun = 1 };

	begin(&r.ledbat, WINDOW / PACKET, BASE_US, now);
	begin_watch(&r, (__u32)(then - 20), then * 1000);
	r.ledbat.base_us = BASE_US;
	return r;
}

/* Microseconds: the sample from an answer to what was sent 20 ms ago, where older echoes are not trusted since then. */
__u32 lab_download_sample_us(__u64 then, __u64 now)
{
	struct receiver r = receiver(then, now);

	return sample_rtt(&r, echoed_ms((__u32)(now - 20), now), 0, false, now);
}

/* The same, of the first answer after a silence, which echoes a packet sent then. */
__u32 lab_download_old_echo_sample_us(__u64 then, __u64 now)
{
	struct receiver r = receiver(then, now);

	end_silence(&r, now);
	return sample_rtt(&r, echoed_ms((__u32)then, now), 0, false, now);
}

/* An answer to what was sent 20 ms ago; the round began then. */
bool lab_download_round_ends(__u64 then, __u64 now)
{
	struct receiver r = receiver(then, now);

	r.echo_ms = echoed_ms((__u32)(now - 20), now);
	return ends_round(&r);
}

bool lab_download_is_blind(__u64 then, __u64 now)
{
	struct receiver r = receiver(then, now);

	return is_blind(&r, now);
}

bool lab_download_was_silent(__u64 then, __u64 now)
{
	struct receiver r = receiver(then, now);

	return has_been_silent(&r, 0, now * 1000);
}

/* Microseconds since data arrived last, on a clock of microseconds. */
__u32 lab_download_gap_us(__u64 then_us, __u64 now_us)
{
	struct receiver r = { .data_us = then_us };

	return gap_us(&r, now_us);
}

/* Of 32 bits of somebody else's clock. */
__u32 lab_age(__u64 then, __u64 now)
{
	return age_of(then, now);
}

/* With an event every hour meanwhile, as in a running transfer. */
__u32 lab_age_under_way_ms(__u64 then, __u64 now)
{
	struct ledbat ca = sender(AVOID, then, then);

	ca.loss = timestamp_of(then);
	for (__u64 at = then; at < now; at += 3600 * 1000)
		bound_timestamps(&ca, at);
	bound_timestamps(&ca, now);
	return age_ms(ca.loss, now);
}
