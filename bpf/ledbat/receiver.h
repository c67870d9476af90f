/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a receiver's half of background keeps of a connection, and what it makes of times: round trips from echoed
 * timestamps, and when a round of its own ends. In come times and counts; no socket is touched. Moments have 64 bits.
 */
#ifndef GIVEWAY_LEDBAT_RECEIVER_H
#define GIVEWAY_LEDBAT_RECEIVER_H

#include "rule.h"

/* Besides two round trips: a sender that said nothing for longer had nothing to send. */
#define SILENCE_MS 100U
/* Besides four round trips: data comes and no round ends. */
#define BLIND_MS 2000U

struct receiver {
	struct ledbat ledbat;
	__u64 answer_ms;    /* the round ends with an echo of this time */
	__u64 echo_ms;      /* the newest; 0: not known */
	__u64 trusted_ms;   /* earlier echoes waited for the sender's application */
	__u64 data_us;      /* when data last came */
	__u32 arrived;      /* packets with data, when they were last counted */
	__u32 mean8_us;     /* eight times the kernel's mean of round trips */
	__u32 gap_us;       /* the least between two times in this round and the one before */
	__u32 next_gap_us;  /* in this round */
	__u32 counted_to;   /* sequence number up to which holes were counted as lost */
	__u8 is_begun;      /* a transfer is under way, and its window ours */
	__u8 has_filled;    /* the window, in this round; it counts in the next one too */
	__u8 was_marked;    /* by ECN, at the last packet */
	__u8 is_given_up;   /* somebody else has set the window */
};

/* From now on it is watched; its latest echo is of no use yet. */
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

/* Whether what is echoed was sent since the last time that answers waited for something else than the path. */
static __always_inline bool is_trusted(const struct receiver *r, __u64 echo_ms)
{
	return echo_ms && echo_ms >= r->trusted_ms;
}

/* What was sent before now is no longer answered by the path alone. */
static __always_inline void trust_from(struct receiver *r, __u64 from_ms)
{
	r->trusted_ms = from_ms;
	r->answer_ms = from_ms;
}

/* Data comes after a silence, and echoes what was sent before: a time that is now may be one of 49.7 days ago. */
static __always_inline void end_silence(struct receiver *r, __u64 now)
{
	trust_from(r, now + 1);
}

/*
 * Microseconds, of the kernel's clock for timestamps, which has milliseconds; 0: none. Ours ends with our packet, which a
 * sender that paces keeps waiting for its second one. The kernel's ends with the first that arrives, but it only keeps a
 * mean: what it rises by is an eighth of what was new; what it falls to is no less (6.16: is what was new).
 */
static __always_inline __u32 sample_rtt(struct receiver *r, __u64 echo_ms, __u32 mean8, bool is_late, __u64 now)
{
	__u32 before8 = r->mean8_us, ours = UNKNOWN_US, kernels = UNKNOWN_US;
	bool is_new = echo_ms != r->echo_ms;

	if (is_new && !is_late && echo_ms)
		ours = (now - echo_ms < 60000 ? now - echo_ms : 60000) * 1000;
	/* The kernel passes over what is longer while the application has not read yet; after two packets it has. */
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
 * A sender that paces by a model of the path (BBR) sends the packet that answers us when its turn comes, so a sample may
 * be too long by the time between two of them. It counts on the way up, where that model lags behind our window.
 */
static __always_inline __u32 without_pacing(const struct receiver *r, __u32 rtt_us)
{
	if (r->ledbat.mode != RAMP || rtt_us <= r->ledbat.base_us)
		return rtt_us;
	return rtt_us - least(r->gap_us, rtt_us - r->ledbat.base_us);
}

/* Since data last came; UNKNOWN_US: longer than 32 bits tell. */
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

/* `rtt_us` is the connection's own, for as long as the rule has none. */
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
