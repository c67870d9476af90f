/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A receiver's state of a connection, and its clock: round trips from echoed timestamps, and the ends of its own
 * rounds. In come times and counts; no socket is touched. Timestamps have 64 bits.
 */
#ifndef GIVEWAY_LEDBAT_RECEIVER_H
#define GIVEWAY_LEDBAT_RECEIVER_H

#include "rule.h"

/* Besides two round trips: a sender silent for longer had nothing to send. */
#define SILENCE_MS 100U
/* Besides four round trips: data arrives and no round ends. */
#define BLIND_MS 2000U

struct receiver {
	struct ledbat ledbat;
	__u64 answer_ms;   /* an echo of this time ends the round */
	__u64 echo_ms;     /* the newest; 0: unknown */
	__u64 trusted_ms;  /* earlier echoes were delayed by the sender's application */
	__u64 data_us;     /* when data arrived last */
	__u32 arrived;     /* packets with data at the last count */
	__u32 mean8_us;    /* eight times the kernel's mean round trip */
	__u32 gap_us;      /* least gap between two arrivals in this round and the one before */
	__u32 next_gap_us; /* in this round */
	__u32 counted_to;  /* sequence number up to which holes were counted as lost */
	__u8 is_begun;     /* a transfer is under way, and its window is ours */
	__u8 has_filled;   /* the window, in this round; counts in the next one too */
	__u8 was_marked;   /* by ECN, at the last packet */
	__u8 is_given_up;  /* somebody else has set the window */
};

/* Starts watching; the latest echo is of no use yet. */
static __always_inline void begin_watch(struct receiver *r, __u32 echo, __u64 now_us)
{
	__u64 now = now_us / 1000;

	r->trusted_ms = now;
	r->answer_ms = now;
	r->data_us = now_us;
	r->echo_ms = echoed_ms(echo, now);
	r->ledbat.round_us = UNKNOWN_US;
	r->ledbat.epoch = now >> GW_EPOCH_SHIFT;
}

/* Whether the echoed packet was sent since answers last waited for something other than the path. */
static __always_inline bool is_trusted(const struct receiver *r, __u64 echo_ms)
{
	return echo_ms && echo_ms >= r->trusted_ms;
}

/* Echoes of what was sent earlier no longer measure the path alone. */
static __always_inline void trust_from(struct receiver *r, __u64 from_ms)
{
	r->trusted_ms = from_ms;
	r->answer_ms = from_ms;
}

/* Data arrives after a silence, with old echoes: a timestamp equal to now may be 49.7 days old. */
static __always_inline void end_silence(struct receiver *r, __u64 now)
{
	trust_from(r, now + 1);
}

/*
 * In microseconds, from the kernel's millisecond clock for timestamps; 0: none. Our sample ends with our packet, which
 * a pacing sender delays until its second one. The kernel's ends with the first arrival, but only a mean is kept: a
 * rise is an eighth of the new sample; after a fall, the sample is no less than the mean (6.16: equal to it).
 */
static __always_inline __u32 sample_rtt(struct receiver *r, __u64 echo_ms, __u32 mean8, bool is_late, __u64 now)
{
	__u32 before8 = r->mean8_us, ours = UNKNOWN_US, kernels = UNKNOWN_US;
	bool is_new = echo_ms != r->echo_ms;

	if (is_new && !is_late && echo_ms)
		ours = (now - echo_ms < 60000 ? now - echo_ms : 60000) * 1000;
	/* The kernel ignores longer samples until the application has read; after two packets it has. */
	if (before8 && mean8 == before8 && is_new && r->ledbat.mode != START && r->ledbat.mode != AVOID)
		kernels = mean8 / 8;
	else if (before8 && mean8 != before8)
		kernels = mean8 > before8 ? mean8 - before8 + before8 / 8 : mean8 / 8;
	r->echo_ms = echo_ms;
	r->mean8_us = mean8;
	if (!is_trusted(r, echo_ms) || least(ours, kernels) == UNKNOWN_US)
		return 0;
	return greatest(least(ours, kernels), 1);
}

/*
 * A sender that paces by a model of the path (BBR) sends the packet that answers us in its turn, so a sample may be too
 * long by one gap. That matters while ramping up, where the model lags behind our window.
 */
static __always_inline __u32 without_pacing(const struct receiver *r, __u32 rtt_us)
{
	if (r->ledbat.mode != RAMP || rtt_us <= r->ledbat.base_us)
		return rtt_us;
	return rtt_us - least(r->gap_us, rtt_us - r->ledbat.base_us);
}

/* Since data arrived last; UNKNOWN_US: longer than 32 bits hold. */
static __always_inline __u32 gap_us(const struct receiver *r, __u64 now_us)
{
	__u64 gap = now_us - r->data_us;

	return gap < UNKNOWN_US ? gap : UNKNOWN_US;
}

static __always_inline void note_gap(struct receiver *r, __u32 gap)
{
	r->next_gap_us = least(r->next_gap_us, gap);
	r->gap_us = least(r->gap_us, r->next_gap_us);
}

/* `rtt_us`: the connection's own, as long as the rule has none. */
static __always_inline bool has_been_silent(const struct receiver *r, __u32 rtt_us, __u64 now_us)
{
	if (r->is_begun)
		rtt_us = r->ledbat.base_us;
	return now_us - r->data_us > 2ULL * least(rtt_us, USEC_PER_SEC) + SILENCE_MS * 1000;
}

static __always_inline bool is_blind(const struct receiver *r, __u64 now)
{
	return r->is_begun && now > r->answer_ms + BLIND_MS + r->ledbat.base_us / 1000 * 4;
}

static __always_inline bool ends_round(const struct receiver *r)
{
	return r->echo_ms && r->echo_ms >= r->answer_ms;
}

#endif
