/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The window of a background transfer at the end of each round, for the sender's half and the receiver's: LEDBAT++ and
 * what it leaves open. docs/explanation/background.md has the formulas, their units and reasons. In come the round's least
 * round-trip time, its arrivals and losses; no socket is touched.
 */
#ifndef GIVEWAY_LEDBAT_RULE_H
#define GIVEWAY_LEDBAT_RULE_H

#include "../timestamp.h"

/* Windows are in packets / 1024, times in us or ms as their names say. `now` is in ms. */
#define PACKET 1024
#define LEAST (2 * PACKET)
#define MOST (1U << 30)
#define UNKNOWN_US (~0U)

/* Of the draft. */
#define TARGET_US 60000U
#define GAIN_DIVISOR 16U
#define SLOWDOWN_ROUNDS 2
#define SLOWDOWN_SHARE 9
#define BASE_HISTORY_MS 300000U /* of each half: ten minutes in all */

/* Ours. */
#define TARGET_FLOOR_US 5000U
#define LEARNT_FLOOR_US 3000U
#define SLOWDOWN_EVERY_MS 10000U
#define FOREIGN_FLOOR_US 4000U
#define SHARE_PACKETS 4
#define YIELD_MS 1000U
#define YIELD_MAX_MS 16000U
#define CLEAR_US 2000
#define BLIND 8
#define BETWEEN 4
#define BLIND_MAX_MS 32000U
#define RETRY_MS 3000U
#define STRIKES 3
#define GRACE_ROUNDS 4
#define AGAIN_MS 4000U
#define BAND_MS 1000U
#define SHORT_US 10000U
#define PAIR_US 16U
#define PAIR_JITTER_US 250U
#define PEAK_MS 4U
#define DELAYED_ACK_US 40000U /* at least (RFC 1122, 4.2.3.2, as Linux does) */
#define QUEUE_US 64U
#define QUEUE_FADES 32
#define ROUTE_US 16000000U
#define ROUTE_ROUNDS 16
#define ROUTE_MOST_US 1000000U /* a longer delay is a queue, such as this machine's own at its minimum rate */
#define LOSS_ONE 65536U
#define LOSS_WINDOW 1024U
#define PROBE_PACKETS 512U
#define PROBE_ROUNDS 3      /* with losses */
#define PROBE_EVERY 3       /* losses; `probe_in` has two bits */
#define CLEAN_PACKETS 1024U /* without a loss: no loss is random */
#define PLATEAU_MS 5000U
#define IDLE_MS 1000U
#define IDLE_PACKETS 10
#define LONG_RAMP_MS (1U << 26) /* of a slowdown; nine times this must not overflow */

enum mode {
	START, /* the first slow start */
	AVOID, /* by the draft's rule */
	HOLD,  /* a slowdown: two packets */
	RAMP,  /* doubles up to `goal` */
	YIELD, /* two packets, since another flow sends */
};

struct ledbat {
	__u32 window;
	__u32 goal; /* of the ramp */
	__u32 base_us;
	__u32 base_next_us; /* of the younger half of the history */
	struct gw_timestamp base_since;
	__u32 round_end; /* tp->delivered */
	__u32 round_us;  /* the round's least */
	struct gw_timestamp mode_since;
	union {
		__u32 slowdown_in_ms;        /* time to the next slowdown after `mode_since`; of AVOID */
		struct gw_timestamp between; /* when others' packets were last served between ours; of YIELD */
	};
	struct gw_timestamp clear; /* since when no other flow is seen */
	struct gw_timestamp yield_end;
	__u32 lull_us;     /* recent least delay; of YIELD */
	__u32 floor;       /* losses that do not depend on our rate, of LOSS_ONE */
	__u32 loss_window; /* the window at the last loss that we caused */
	struct gw_timestamp loss;
	struct gw_timestamp band;  /* since when the delay looks like another LEDBAT++ flow's */
	__u32 peak;                /* packets a second */
	struct gw_timestamp round; /* when it began */
	union {
		__u16 queue; /* others' recent queue, in QUEUE_US; of YIELD */
		/* since when no sample is explained by our own queue; of AVOID, if `is_foreign` */
		struct gw_timestamp foreign;
	};
	__u16 lull_rounds; /* since `lull_us` began */
	__u16 lull_near;   /* of these, how many were close to `lull_us` */
	__u16 learnt_us;   /* upper bound of the target */
	__u16 hold_ms;     /* of the next yield */
	__u16 epoch;       /* of the last bounding of the timestamps */
	__u16 round_lost;
	__u16 round_delivered;
	__u16 probe_left; /* packets */
	__u16 delivered;  /* of the loss window, in packets */
	__u16 lost;
	__u16 clean; /* packets since the last loss */
	__u16 pair;  /* round trip of the second of two packets with nothing in between, in PAIR_US; 0: unknown */
	__u8 mode : 3;
	__u8 is_foreign : 1;     /* each sample since `foreign` */
	__u8 is_between : 1;     /* others' packets are served between ours; known of this YIELD */
	__u8 has_set_pacing : 1; /* it was not paced before */
	__u8 was_clean : 1;      /* before the loss that began the last loss probe */
	/* soon: the other flow may be a LEDBAT++ flow that has yielded as well; of YIELD and RAMP */
	__u8 retries_soon : 1;
	__u8 rounds : 4;       /* since the mode was entered, 15 at most */
	__u8 probe_lost : 4;   /* rounds */
	__u8 probe_in : 2;     /* so many losses */
	__u8 is_tentative : 1; /* tentative back-off; of HOLD */
	__u8 was_foreign : 1;  /* foreign delay in the round before, of AVOID; of HOLD: standing by */
	__u8 strikes : 3;      /* losses and delays against this ramp */
	__u8 waits_always : 1; /* each second packet has waited; of YIELD */
	__u8 is_limited : 1;   /* by the window, in this round */
	__u8 is_marked : 1;    /* by ECN */
	__u8 began_slow : 1;   /* the loss probe began in slow start */
	__u8 from_yield : 1;   /* the ramp */
	__u8 lull_lost : 1;    /* something, in these rounds */
	__u8 is_queueless : 1; /* the last loss that we caused showed no queue */
	__u8 is_held : 1;      /* growth stopped by a delay, in this round of a slow start */
	__u8 is_shared : 1;    /* other LEDBAT++ flows share the queue */
};

static __always_inline __u32 least(__u32 a, __u32 b)
{
	return a < b ? a : b;
}

static __always_inline __u32 greatest(__u32 a, __u32 b)
{
	return a > b ? a : b;
}

static __always_inline __u32 gain_divisor(const struct ledbat *ca)
{
	__u32 base_us = greatest(least(ca->base_us, 1000000), 1);

	return least(GAIN_DIVISOR, (2 * TARGET_US + base_us - 1) / base_us);
}

/* Without what was learnt of the queue: other LEDBAT++ flows on the path need not have learnt it. */
static __always_inline __u32 path_target_us(const struct ledbat *ca)
{
	return least(greatest(ca->base_us / 8, TARGET_FLOOR_US), TARGET_US);
}

static __always_inline __u32 target_us(const struct ledbat *ca)
{
	return least(path_target_us(ca), ca->learnt_us);
}

/* Up to here it may be a single packet of another flow. */
static __always_inline __u32 clear_us(__u32 target)
{
	return greatest(target / 4, least(target, 2000)) + CLEAR_US;
}

/* Slow start ends here. */
static __always_inline __u32 climb_us(__u32 target)
{
	return greatest(target / 4 * 3, clear_us(target));
}

/* No flow that keeps to this target makes more delay than this, whatever the path's jitter. */
static __always_inline __u32 foreign_us(__u32 target, __u32 jitter_us)
{
	return target / 2 * 3 + greatest(target / 4, FOREIGN_FLOOR_US) + jitter_us;
}

/* A smaller window tolerates a longer queue, so that windows converge whatever base each flow assumes. */
static __always_inline __u32 own_target_us(const struct ledbat *ca, __u32 delay_us)
{
	__u32 target = target_us(ca), packets = ca->window / PACKET;
	__u32 rtt_us = least(ca->base_us + delay_us, 1000000);

	return least(target / 2 + SHARE_PACKETS * rtt_us / greatest(packets, 2), target / 2 * 3);
}

/* Called first, on every event. */
static __always_inline void bound_timestamps(struct ledbat *ca, __u64 now)
{
	bool is_long;

	if (!begins_epoch(&ca->epoch, now, &is_long))
		return;
	ca->base_since = bounded(ca->base_since, now, is_long);
	ca->mode_since = bounded(ca->mode_since, now, is_long);
	ca->clear = bounded(ca->clear, now, is_long);
	ca->yield_end = bounded(ca->yield_end, now, is_long);
	ca->loss = bounded(ca->loss, now, is_long);
	ca->band = bounded(ca->band, now, is_long);
	ca->round = bounded(ca->round, now, is_long);
	if (ca->mode == YIELD)
		ca->between = bounded(ca->between, now, is_long);
	/* An epoch is longer than half of any round trip. */
	ca->is_foreign = 0;
}

static __always_inline void enter(struct ledbat *ca, enum mode mode, __u64 now)
{
	ca->mode = mode;
	ca->mode_since = timestamp_of(now);
	ca->rounds = 0;
	ca->was_foreign = 0;
	ca->is_tentative = 0;
}

static __always_inline void avoid(struct ledbat *ca, __u64 now, __u32 slowdown_in_ms)
{
	enter(ca, AVOID, now);
	ca->slowdown_in_ms = slowdown_in_ms;
}

/* Reduces the window by what stands in the queue beyond this. */
static __always_inline void drain(struct ledbat *ca, __u32 delay_us, __u32 to_us)
{
	__u32 excess = (__u64)ca->window * (delay_us - least(to_us, delay_us)) / (ca->base_us + delay_us);

	ca->window = greatest(ca->window - least(excess, ca->window / 2), LEAST);
}

/* The path's capacity at our highest rate. */
static __always_inline __u32 pipe(const struct ledbat *ca)
{
	return least((__u64)ca->peak * least(ca->base_us, 1000000) / (USEC_PER_SEC / PACKET), MOST);
}

static __always_inline void begin_lull(struct ledbat *ca)
{
	ca->lull_us = UNKNOWN_US;
	ca->lull_rounds = 0;
	ca->lull_near = 0;
	ca->lull_lost = 0;
}

static __always_inline bool has_just_lost(const struct ledbat *ca, __u64 now)
{
	return ca->loss_window && age_ms(ca->loss, now) < PLATEAU_MS;
}

/* Global, as `end_round`. */
__noinline int yield(struct ledbat *ca __arg_nonnull, __u64 now)
{
	bool again = age_ms(ca->yield_end, now) < greatest(AGAIN_MS, 2 * ca->hold_ms);

	if (!ca->retries_soon)
		ca->hold_ms = again ? least(2 * ca->hold_ms, YIELD_MAX_MS) : greatest(ca->hold_ms / 2, YIELD_MS);
	if (ca->mode == START || ca->mode == AVOID)
		ca->goal = greatest(ca->window, pipe(ca));
	/* A flow that causes us losses is no LEDBAT++ flow. */
	if (ca->round_lost || has_just_lost(ca, now))
		ca->is_shared = 0;
	ca->window = LEAST;
	ca->clear = timestamp_of(now);
	ca->band = timestamp_of(now);
	begin_lull(ca);
	ca->queue = 0;
	ca->is_between = 0;
	ca->waits_always = 1;
	ca->between = timestamp_of(now);
	ca->retries_soon = 0;
	ca->probe_left = PROBE_PACKETS;
	ca->probe_lost = 0;
	enter(ca, YIELD, now);
	return 0;
}

static __always_inline void ramp(struct ledbat *ca, __u64 now, bool from_yield)
{
	enter(ca, RAMP, now);
	ca->from_yield = from_yield;
	ca->strikes = 0;
	ca->probe_left = 0;
	if (from_yield)
		ca->yield_end = timestamp_of(now);
}

/* The minimum of the last five to ten minutes, without rounds in which another flow fills the queue. */
static __always_inline void note_rtt(struct ledbat *ca, __u32 rtt_us, __u64 now)
{
	ca->round_us = least(ca->round_us, rtt_us);
	ca->base_us = least(ca->base_us, rtt_us);
	ca->base_next_us = least(ca->base_next_us, rtt_us);
	if (age_ms(ca->base_since, now) < BASE_HISTORY_MS || ca->mode == YIELD)
		return;
	ca->base_us = ca->base_next_us;
	ca->base_next_us = UNKNOWN_US;
	ca->base_since = timestamp_of(now);
}

static __always_inline void grow(struct ledbat *ca, __u32 acked, __u32 rtt_us)
{
	__u32 by = least(acked, 1024) * PACKET;

	if (rtt_us > ca->base_us + climb_us(target_us(ca))) {
		ca->is_held = 1;
		return;
	}
	if (ca->mode == START || (ca->mode == RAMP && ca->from_yield && ca->is_queueless))
		ca->window += by / gain_divisor(ca);
	else if (ca->mode == RAMP)
		ca->window += by;
	if (ca->mode == RAMP)
		ca->window = least(ca->window, greatest(ca->goal, LEAST));
	ca->window = least(ca->window, MOST);
}

/* No more is lost than independently of our rate. */
static __always_inline bool is_tolerable(const struct ledbat *ca)
{
	return ca->floor && (__u64)ca->lost * LOSS_ONE <= 2ULL * ca->floor * ca->delivered + 4 * LOSS_ONE;
}

static __always_inline void note_loss(struct ledbat *ca)
{
	ca->clean = least((__u32)ca->clean + ca->round_delivered, 60000);
	ca->delivered = least((__u32)ca->delivered + ca->round_delivered, 60000);
	ca->lost = least((__u32)ca->lost + ca->round_lost, 60000);
	if (ca->delivered > LOSS_WINDOW) {
		ca->delivered /= 2;
		ca->lost /= 2;
	}
}

/* Where a loss shows no queue, others need room for their first packets. */
static __always_inline __u32 below_loss(const struct ledbat *ca)
{
	return ca->loss_window - ca->loss_window / (ca->is_queueless ? 8 : 16);
}

/* A queue that drops at this delay is no longer than this. */
static __always_inline void learn_target(struct ledbat *ca, __u32 delay_us)
{
	ca->learnt_us = least(ca->learnt_us, greatest(least(delay_us, target_us(ca)) / 2, LEARNT_FLOOR_US));
}

static __always_inline void end_probe(struct ledbat *ca, __u64 now)
{
	bool yields = ca->mode == YIELD;

	ca->probe_left = 0;
	ca->probe_in = PROBE_EVERY;
	/* A loss that does not depend on us would have occurred before. */
	if (!yields && ca->probe_lost >= PROBE_ROUNDS && ca->was_clean) {
		ca->loss_window = 0;
		yield(ca, now);
		return;
	}
	if (ca->probe_lost >= PROBE_ROUNDS) {
		ca->floor = greatest(LOSS_ONE / PROBE_PACKETS * ca->probe_lost, ca->floor);
		ca->learnt_us = TARGET_US;
		if (!yields)
			ca->window = greatest(ca->window, ca->loss_window);
		ca->loss_window = 0;
		if (!yields && ca->began_slow)
			enter(ca, START, now);
	} else if (!yields) {
		ca->window = greatest(ca->window, below_loss(ca));
	}
	if (!yields)
		ca->rounds = 0;
}

/* Halves the rate, to see whether losses fall. */
static __always_inline void begin_probe(struct ledbat *ca, __u64 now)
{
	ca->began_slow = ca->mode == START;
	ca->probe_left = PROBE_PACKETS;
	ca->probe_lost = 0;
	ca->was_clean = ca->clean >= CLEAN_PACKETS;
	ca->rounds = 0;
	ca->window = greatest(ca->window / 2, LEAST);
	if (ca->mode != AVOID)
		avoid(ca, now, SLOWDOWN_EVERY_MS);
}

static __always_inline bool is_heavy(const struct ledbat *ca)
{
	return ca->round_lost >= 4 && ca->round_lost * 16 > ca->round_delivered + ca->round_lost;
}

/* Another LEDBAT++ flow yields within these rounds. */
static __always_inline void strike(struct ledbat *ca, bool is_final, __u64 now)
{
	bool retries_soon = !ca->retries_soon;

	if (++ca->strikes < STRIKES && !is_final)
		return;
	/*
	 * Unless another flow was seen, the link may have become slower for good. On a slower link each second packet
	 * waits.
	 */
	if (!ca->is_between || ca->waits_always)
		ca->peak -= ca->peak / 8;
	if (ca->is_queueless || (ca->is_between && ca->waits_always))
		ca->goal -= ca->goal / 8;
	yield(ca, now);
	ca->retries_soon = retries_soon;
}

/* Another flow is served in between, from its own queue. */
static __always_inline bool has_lost_share(const struct ledbat *ca, __u32 rate)
{
	return ca->is_limited && !ca->is_shared && !ca->probe_left && rate < ca->peak / 8 * 5;
}

static __always_inline void suffer_loss(struct ledbat *ca, __u32 delay_us, __u32 rate, bool is_sender, __u64 now)
{
	/* While ramping up, the window is below the last loss because we reduced it, not because of another flow. */
	bool fell = ca->mode == AVOID && ca->loss_window && ca->window < ca->loss_window / 4 * 3;

	if (ca->mode == RAMP && ca->from_yield) {
		ca->window = greatest(ca->window / 4 * 3, LEAST);
		strike(ca, is_heavy(ca), now);
		return;
	}
	/* Sent before the window was reduced. */
	if (is_sender && !ca->is_marked && ca->mode == AVOID && ca->loss_window && ca->is_queueless && age_ms(ca->loss, now) <= 2 * (ca->base_us / 1000))
		return;
	if (ca->mode == AVOID && has_lost_share(ca, rate))
		fell = true;
	/* Without a queue, a window below the one that lost causes no loss by itself; another flow may. */
	if (ca->mode == AVOID && ca->loss_window && ca->is_queueless && !ca->probe_left &&
	    (ca->was_clean || (is_sender && ca->clean >= CLEAN_PACKETS)) && delay_us < LEARNT_FLOOR_US &&
	    age_ms(ca->loss, now) < PLATEAU_MS && age_ms(ca->loss, now) > 3 * (ca->base_us / 1000) &&
	    ca->window <= below_loss(ca)) {
		ca->loss_window = 0;
		yield(ca, now);
		return;
	}
	if (ca->mode == AVOID && ca->rounds >= GRACE_ROUNDS && (is_heavy(ca) || (fell && !ca->probe_left))) {
		ca->loss_window = 0;
		yield(ca, now);
		return;
	}
	if (ca->probe_left)
		return;
	ca->loss = timestamp_of(now);
	ca->is_queueless = delay_us < LEARNT_FLOOR_US;
	if (!ca->floor)
		learn_target(ca, delay_us);
	drain(ca, delay_us, target_us(ca));
	/* Slow start kept growing until the loss was seen. */
	if (ca->mode == START)
		ca->window = greatest(least(ca->window, pipe(ca)), LEAST);
	ca->loss_window = ca->window;
	if (!ca->is_marked && !ca->probe_in) {
		begin_probe(ca, now);
		return;
	}
	ca->probe_in -= ca->probe_in > 0;
	ca->window = greatest(below_loss(ca), LEAST);
	if (ca->mode != AVOID)
		avoid(ca, now, SLOWDOWN_EVERY_MS);
}

/*
 * Where other LEDBAT++ flows are known, as on a shared wireless medium, a foreign delay may end as soon as our packets
 * have left the queue. A slowdown tells: tentative back-off.
 */
static __always_inline void back_off_tentatively(struct ledbat *ca, __u64 now)
{
	if (!ca->is_shared || ca->probe_left || ca->round_lost || has_just_lost(ca, now)) {
		yield(ca, now);
		return;
	}
	ca->goal = ca->window / 4 * 3;
	ca->window = LEAST;
	enter(ca, HOLD, now);
	ca->is_tentative = 1;
}

static __always_inline void steer(struct ledbat *ca, __u32 delay_us, __u32 jitter_us, __u32 rate, bool is_sender, __u64 now)
{
	__u32 target = own_target_us(ca, delay_us);
	/* A lone small packet's acknowledgement may be late by itself. */
	bool is_conclusive = ca->is_limited && ca->rounds >= GRACE_ROUNDS;
	/* A receiver cannot end a round early, and two rounds would take too long. */
	bool was_foreign = ca->was_foreign || !is_sender;
	/*
	 * A sender that paces by a model of the path (BBR) fills the offered window now and then: that queue is our
	 * own.
	 */
	bool is_own = !is_sender && rate >= ca->peak / 16 * 15;

	ca->was_foreign = is_conclusive && !is_own && delay_us > foreign_us(target_us(ca), jitter_us);
	if (is_conclusive && (delay_us > CLEAR_US || has_just_lost(ca, now)) && has_lost_share(ca, rate)) {
		yield(ca, now);
		return;
	}
	if (ca->was_foreign && was_foreign) {
		back_off_tentatively(ca, now);
		return;
	}
	/* For a while it stays below the window that lost. */
	if (ca->is_limited && !ca->probe_left && !(has_just_lost(ca, now) && ca->window >= below_loss(ca)))
		ca->window = least(ca->window + PACKET / gain_divisor(ca), MOST);
	if (delay_us > target)
		drain(ca, delay_us, target);
	if (age_ms(ca->mode_since, now) >= ca->slowdown_in_ms && !ca->probe_left) {
		ca->goal = ca->window;
		ca->window = LEAST;
		enter(ca, HOLD, now);
	}
}

/*
 * Of two packets sent at once the second waits for whatever is served in between. A queue per flow (fq_codel) shows
 * other flows by nothing else; a short one (CoDel) shows them by this alone while they recover. `rtt_us`: of the
 * second.
 */
static __always_inline void note_pair(struct ledbat *ca, __u32 rtt_us, __u64 now)
{
	__u32 pair = least(rtt_us / PAIR_US, 65535);

	if (ca->mode == HOLD && ca->rounds) {
		ca->pair = pair;
		return;
	}
	if (ca->mode != YIELD || ca->rounds < SLOWDOWN_ROUNDS)
		return;
	if (!ca->pair || pair < ca->pair) {
		ca->pair = pair;
		ca->waits_always = 0;
	} else if ((pair - ca->pair) * PAIR_US > greatest(USEC_PER_SEC / 2 / greatest(ca->peak, 1), PAIR_JITTER_US)) {
		ca->is_between = 1;
		ca->between = timestamp_of(now);
	} else {
		ca->waits_always = 0;
	}
}

/* How long no other flow must be seen. Where the others' queue is short, an empty one proves nothing. */
static __always_inline bool is_gone(const struct ledbat *ca, bool is_sender, __u64 now)
{
	__u32 clear_ms = age_ms(ca->clear, now);

	/* Two receivers that have met would return together and meet again, so the time is randomised. */
	if (!is_sender)
		clear_ms = (__u64)clear_ms * (192 + (((ca->mode_since.ms ^ ca->peak) * 2654435761U) >> 25)) / 256;
	if (ca->retries_soon && !ca->is_between && clear_ms >= RETRY_MS)
		return true;
	if (ca->queue * QUEUE_US > greatest(ca->base_us / 4, SHORT_US))
		return clear_ms >= ca->hold_ms;
	if (ca->is_between && age_ms(ca->between, now) >= least(ca->hold_ms * BETWEEN, BLIND_MAX_MS))
		return clear_ms >= ca->hold_ms;
	return clear_ms >= (ca->is_between ? BLIND_MAX_MS : least(ca->hold_ms * BLIND, BLIND_MAX_MS));
}

enum lull {
	LULL_OPEN,
	LULL_ROUTE, /* a longer route makes the same delay again and again, except for a late packet now and then */
	LULL_EMPTY, /* nobody fills the queue: flows that send little only delay a packet now and then */
};

/* What the least delays of recent rounds, and their number, say of the path. Another flow's queue rises and falls. */
static __always_inline enum lull note_lull(struct ledbat *ca, __u32 delay_us, __u32 clear, __u64 now)
{
	__u32 near_us = greatest(2000, delay_us / 16);
	enum lull lull = LULL_OPEN;

	if (delay_us < ca->lull_us) {
		if (ca->lull_us - delay_us > near_us)
			begin_lull(ca);
		ca->lull_us = delay_us;
	}
	if ((ca->round_lost && !is_tolerable(ca)) || ca->is_marked)
		ca->lull_lost = 1;
	ca->lull_rounds++;
	ca->lull_near += delay_us - ca->lull_us <= near_us;
	if (ca->lull_rounds < ROUTE_ROUNDS || (__u64)ca->lull_rounds * (ca->base_us + ca->lull_us) < ROUTE_US)
		return LULL_OPEN;
	if (!ca->lull_lost && ca->lull_us > clear && ca->lull_us <= ROUTE_MOST_US &&
	    ca->lull_near * 16 >= ca->lull_rounds * 15)
		lull = LULL_ROUTE;
	if (!ca->lull_lost && ca->lull_us <= clear && ca->lull_near * 8 >= ca->lull_rounds * 7 &&
	    age_ms(ca->mode_since, now) >= (ca->is_shared ? BLIND_MAX_MS / 2 : BLIND_MAX_MS))
		lull = LULL_EMPTY;
	if (lull != LULL_ROUTE)
		begin_lull(ca);
	return lull;
}

static __always_inline void wait(struct ledbat *ca, __u32 delay_us, bool is_sender, __u64 now)
{
	__u32 target = target_us(ca);
	enum lull lull;

	/* Without a sample, no flow is known to have stopped. */
	if (ca->round_us == UNKNOWN_US)
		ca->clear = timestamp_of(now);
	/* Our own packets are still in the queue. */
	if (ca->rounds < SLOWDOWN_ROUNDS) {
		ca->clear = timestamp_of(now);
		ca->band = timestamp_of(now);
		ca->between = timestamp_of(now);
		return;
	}
	lull = note_lull(ca, delay_us, clear_us(target), now);
	if (delay_us > clear_us(target)) {
		ca->clear = timestamp_of(now);
		ca->queue -= ca->queue / QUEUE_FADES;
		ca->queue = greatest(ca->queue, least(delay_us / QUEUE_US, 60000));
	}
	/* Where the last loss showed no queue, the learnt target is this connection's alone. */
	if (age_ms(ca->clear, now) > BAND_MS ||
	    delay_us > foreign_us(ca->is_queueless ? path_target_us(ca) : target, 0))
		ca->band = timestamp_of(now);
	if (lull == LULL_EMPTY || is_gone(ca, is_sender, now)) {
		ramp(ca, now, true);
	} else if (age_ms(ca->band, now) >= AGAIN_MS) {
		/* The queue looks like that of another LEDBAT++ flow, which has taken our share. */
		ca->retries_soon = 0;
		ca->is_shared = 1;
		ca->goal /= 2;
		ca->hold_ms = YIELD_MS;
		ramp(ca, now, false);
	} else if (lull == LULL_ROUTE) {
		ca->base_us += ca->lull_us;
		ca->base_next_us = ca->base_us;
		ca->base_since = timestamp_of(now);
		ramp(ca, now, true);
	}
}

static __always_inline void end_hold(struct ledbat *ca, __u32 delay_us, __u32 jitter_us, __u64 now)
{
	/* By now it is known what the foreign queue has dropped. */
	if (ca->is_tentative && (ca->is_marked || (ca->round_lost && !is_tolerable(ca)))) {
		yield(ca, now);
		return;
	}
	if (ca->rounds + 1 < SLOWDOWN_ROUNDS)
		return;
	/* What was learnt fades with each slowdown, but not while waiting in this machine's own queue. */
	if (!ca->was_foreign) {
		ca->peak -= ca->peak / 32;
		ca->floor -= ca->floor / 16;
		ca->learnt_us = least(ca->learnt_us + ca->learnt_us / 8, TARGET_US);
	}
	if (delay_us > foreign_us(target_us(ca), jitter_us)) {
		yield(ca, now);
		return;
	}
	ca->mode = RAMP;
	ca->from_yield = 0;
}

static __always_inline void climb(struct ledbat *ca, __u32 delay_us, __u64 now)
{
	__u32 target = target_us(ca);

	if (ca->mode == START) {
		if (ca->is_limited && delay_us > climb_us(target)) {
			avoid(ca, now, 2 * (ca->base_us + delay_us) / 1000);
			drain(ca, delay_us, target / 2);
		}
		return;
	}
	if (ca->from_yield && ca->is_held && delay_us > climb_us(target) / 2) {
		drain(ca, delay_us, target);
		strike(ca, false, now);
		return;
	}
	if (ca->window < ca->goal && delay_us <= climb_us(target))
		return;
	if (ca->from_yield)
		ca->is_shared = 0;
	if (ca->retries_soon)
		ca->hold_ms = YIELD_MS;
	ca->retries_soon = 0;
	avoid(ca, now, greatest(SLOWDOWN_SHARE * least(age_ms(ca->mode_since, now), LONG_RAMP_MS), SLOWDOWN_EVERY_MS));
	drain(ca, delay_us, target / 2);
}

/* A foreign delay need not last until the round ends: half a round trip of it is enough. True: the round is over. */
static __always_inline bool is_cut_short(struct ledbat *ca, __u32 rtt_us, __u32 jitter_us, __u64 now)
{
	if (ca->mode != AVOID || !ca->is_limited || ca->rounds < GRACE_ROUNDS ||
	    rtt_us <= ca->base_us + foreign_us(target_us(ca), jitter_us)) {
		ca->is_foreign = 0;
		return false;
	}
	if (!ca->is_foreign) {
		ca->is_foreign = 1;
		ca->foreign = timestamp_of(now);
	}
	if (age_ms(ca->foreign, now) < least(ca->base_us, USEC_PER_SEC) / 2000)
		return false;
	ca->is_foreign = 0;
	ca->round_us = rtt_us;
	return true;
}

static __always_inline void begin_round(struct ledbat *ca, __u64 now)
{
	ca->round = timestamp_of(now);
	ca->round_us = UNKNOWN_US;
	ca->round_lost = 0;
	ca->round_delivered = 0;
	ca->is_limited = 0;
	ca->is_marked = 0;
	ca->is_held = 0;
}

/*
 * The acknowledged packets waited in this machine's own queue and say nothing of the path. As in a slowdown two packets
 * are in flight, and the first round that measures the path ends it.
 */
static __always_inline void stand_by(struct ledbat *ca, __u64 now)
{
	bound_timestamps(ca, now);
	if (ca->mode == RAMP && ca->from_yield) {
		/* The other flow that was met may still be there. */
		enter(ca, YIELD, now);
		ca->window = LEAST;
		ca->rounds = SLOWDOWN_ROUNDS;
	} else if (ca->mode == AVOID || ca->mode == RAMP) {
		if (ca->mode == AVOID)
			ca->goal = ca->window;
		ca->window = LEAST;
		ca->probe_left = 0;
		enter(ca, HOLD, now);
	}
	if (ca->mode == HOLD) {
		ca->mode_since = timestamp_of(now);
		ca->rounds = SLOWDOWN_ROUNDS - 1;
		ca->was_foreign = 1;
	}
	/* Nothing is known of other flows meanwhile. */
	if (ca->mode == YIELD) {
		ca->clear = timestamp_of(now);
		ca->band = timestamp_of(now);
		ca->between = timestamp_of(now);
		begin_lull(ca);
	}
	ca->is_foreign = 0;
	begin_round(ca, now);
}

/* Global, so that the verifier checks it once, not on each path. */
__noinline int end_round(struct ledbat *ca __arg_nonnull, __u32 jitter_us, bool is_sender, __u64 now)
{
	__u32 delay_us = ca->round_us == UNKNOWN_US ? 0 : ca->round_us - least(ca->base_us, ca->round_us);
	__u32 took_ms = greatest(age_ms(ca->round, now), 1), rate = ca->round_delivered * 1000U / took_ms;

	/* Late arrivals from before a loss belong to a larger window, and a round of few ms measures no rate. */
	if ((ca->mode == START || ca->mode == AVOID) && took_ms >= PEAK_MS)
		ca->peak = greatest(ca->peak, least(ca->round_delivered, ca->window / PACKET) * 1000 / took_ms);
	note_loss(ca);
	if (ca->probe_left) {
		/* Packets sent before the probe are still lost in its first rounds. */
		ca->probe_lost += ca->round_lost && ca->rounds >= SLOWDOWN_ROUNDS && ca->probe_lost < 15;
		ca->probe_left -= least(ca->probe_left, ca->round_delivered + ca->round_lost);
		if (!ca->probe_left)
			end_probe(ca, now);
	}
	if (ca->mode != YIELD && ca->mode != HOLD && (ca->is_marked || (ca->round_lost && !is_tolerable(ca))))
		suffer_loss(ca, delay_us, rate, is_sender, now);
	else if (ca->mode == AVOID)
		steer(ca, delay_us, jitter_us, rate, is_sender, now);
	else if (ca->mode == YIELD)
		wait(ca, delay_us, is_sender, now);
	else if (ca->mode == HOLD)
		end_hold(ca, delay_us, jitter_us, now);
	else
		climb(ca, delay_us, now);
	if (ca->round_lost)
		ca->clean = 0;
	ca->rounds += ca->rounds < 15;
	begin_round(ca, now);
	return 0;
}

static __always_inline void begin(struct ledbat *ca, __u32 packets, __u32 base_us, __u64 now)
{
	__builtin_memset(ca, 0, sizeof(*ca));
	ca->window = greatest(least(packets, MOST / PACKET) * PACKET, LEAST);
	ca->goal = ca->window;
	ca->base_us = greatest(base_us, 1);
	ca->base_next_us = UNKNOWN_US;
	ca->base_since = timestamp_of(now);
	ca->round = timestamp_of(now);
	ca->learnt_us = TARGET_US;
	ca->round_us = UNKNOWN_US;
	ca->hold_ms = YIELD_MS;
	ca->epoch = now >> GW_EPOCH_SHIFT;
	enter(ca, START, now);
}

/*
 * A sender's acknowledgement: `acked` packets, their round trip (0: unknown), the losses since the last one, and the
 * packets in flight before it. `is_last`: of the round. True: the round is over.
 */
static __always_inline bool note_acked(struct ledbat *ca, __u32 rtt_us, __u32 acked, __u32 lost, __u32 in_flight,
				       __u32 jitter_us, bool is_last, __u64 now)
{
	bound_timestamps(ca, now);
	if (rtt_us)
		note_rtt(ca, rtt_us, now);
	ca->round_lost = least(ca->round_lost + lost, 60000);
	ca->round_delivered = least(ca->round_delivered + acked, 60000);
	if (in_flight * 4 >= ca->window / PACKET * 3)
		ca->is_limited = 1;
	if (ca->is_limited)
		grow(ca, acked, rtt_us);
	if (rtt_us && (acked == 2 || (acked == 1 && in_flight == 1 && rtt_us < ca->base_us + DELAYED_ACK_US)))
		note_pair(ca, rtt_us, now);
	if (rtt_us && is_cut_short(ca, rtt_us, jitter_us, now))
		return true;
	return acked && is_last;
}

/* A sender's timeout. Losses during and after the first slow start are its own doing. */
static __always_inline void suffer_timeout(struct ledbat *ca, __u64 now)
{
	bound_timestamps(ca, now);
	if (ca->mode == YIELD) {
		/* The other flow is still there, unless losses do not depend on our rate. */
		if (!ca->floor) {
			ca->clear = timestamp_of(now);
			ca->band = timestamp_of(now);
			begin_lull(ca);
		}
		return;
	}
	if (!ca->floor && ca->mode != START && !ca->probe_left) {
		yield(ca, now);
		return;
	}
	if (ca->mode != RAMP && ca->mode != HOLD)
		ca->goal = ca->window / 2;
	ca->window = LEAST;
	ca->probe_left = 0;
	ramp(ca, now, false);
}

static __always_inline __u32 window_packets(const struct ledbat *ca)
{
	return greatest(ca->window / PACKET, LEAST / PACKET);
}

/*
 * A sender's cwnd. Of two packets the second is sent with the first, never alone: a receiver delays the acknowledgement
 * of a single one by 40 ms or more, and two packets that far apart stay so for ever.
 */
static __always_inline __u32 cwnd(__u32 packets, __u32 in_flight)
{
	return packets == LEAST / PACKET && in_flight == 1 ? 1 : packets;
}

/* A sender's pace in percent of its window over a round trip; 0: none. At two packets a round bursts do no harm. */
static __always_inline __u32 pace_percent(const struct ledbat *ca, __u32 packets)
{
	if (packets <= 4)
		return 0;
	return ca->mode == START || ca->mode == RAMP ? 200 : 120;
}

/* After a pause, what was learnt of the path may be outdated. */
static __always_inline void resume(struct ledbat *ca, __u64 now)
{
	bound_timestamps(ca, now);
	if (ca->mode == YIELD || age_ms(ca->round, now) < IDLE_MS)
		return;
	ca->goal = ca->window;
	ca->window = least(ca->window, IDLE_PACKETS * PACKET);
	if (ca->mode != START)
		ramp(ca, now, false);
}

#endif
