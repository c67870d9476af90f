/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The congestion control of bpf/ledbat/rule.h, compiled for this machine: a test feeds it a simulated sender where
 * bpf/ledbat.bpf.c feeds it a real one. Decides nothing of its own.
 */
#include <linux/types.h>
#include <stdbool.h>

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define __noinline __attribute__((noinline))
#define __arg_nonnull
#define USEC_PER_SEC 1000000UL

#include "../../bpf/ledbat/rule.h"

struct lab_sender {
	struct ledbat ledbat;
	__u32 round_end; /* packets delivered */
};

_Static_assert(sizeof(struct lab_sender) <= 128, "as much as the test keeps for it");

void lab_background_begin(struct lab_sender *sender, __u32 packets, __u32 base_us, __u64 now_ms)
{
	begin(&sender->ledbat, packets, base_us, now_ms);
	sender->round_end = 0;
}

/* `delivered_before`: packets delivered before the last of them was sent. */
void lab_background_acked(struct lab_sender *sender, __u32 rtt_us, __u32 acked, __u32 lost, __u32 in_flight, __u32 jitter_us,
			  __u32 delivered_before, __u32 delivered, __u64 now_ms)
{
	bool is_last = (__s32)(delivered_before - sender->round_end) >= 0;

	if (note_acked(&sender->ledbat, rtt_us, acked, lost, in_flight, jitter_us, is_last, now_ms)) {
		end_round(&sender->ledbat, jitter_us, true, now_ms);
		sender->round_end = delivered;
	}
}

void lab_background_timeout(struct lab_sender *sender, __u64 now_ms)
{
	suffer_timeout(&sender->ledbat, now_ms);
}

__u32 lab_background_cwnd(const struct lab_sender *sender, __u32 in_flight)
{
	return cwnd(window_packets(&sender->ledbat), in_flight);
}

__u32 lab_background_pace_percent(const struct lab_sender *sender)
{
	return pace_percent(&sender->ledbat, window_packets(&sender->ledbat));
}
