/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Deficit round robin (RFC 8290), with each flow's queue kept short by CoDel (RFC 8289). Best effort has one round, and
 * streams have one.
 */
#ifndef GIVEWAY_QDISC_ROUND_ROBIN_H
#define GIVEWAY_QDISC_ROUND_ROBIN_H

#include "instance.h"

static __always_inline struct flow *flow_at(struct instance *i, __u32 flow)
{
	gw_opaque(flow);
	return &i->flow[flow & (FLOWS - 1)];
}

static __always_inline void list_flow(struct instance *i, struct fifo *list, __u32 number)
{
	struct flow *flow = flow_at(i, number);

	if (list->head)
		flow_at(i, list->tail)->next = number;
	else
		list->head = number;
	list->tail = number;
	flow->next = 0;
	flow->is_listed = 1;
}

/* One step of Newton towards 2^32 / sqrt(count): y' = y (3 - count y^2) / 2. */
static __always_inline void next_root(struct flow *flow)
{
	__u64 y = flow->inverse_root, y2 = y * y >> 32;
	__u64 rest = (3ULL << 32) - flow->count * y2;

	flow->inverse_root = (rest >> 2) * y >> 31;
}

/* RFC 8289, section 5: whether a packet with this sojourn time is dropped, to make its sender slow down. */
static __always_inline bool codel_drops(struct flow *flow, const struct gw_link_config *config, __u64 sojourn_ns,
					__u64 now_ns)
{
	__u32 target_us = config->codel_target_us;
	__u64 interval_ns = 1000ULL * config->codel_interval_us;
	bool stands = false;

	if (!target_us || sojourn_ns < 1000ULL * target_us ||
	    flow->bytes <= config->max_packet_bytes)
		flow->above_since_ns = 0;
	else if (!flow->above_since_ns)
		flow->above_since_ns = now_ns + interval_ns;
	else
		stands = now_ns >= flow->above_since_ns;
	if (!stands) {
		flow->next_drop_ns = flow->above_since_ns ? flow->next_drop_ns : 0;
		return false;
	}
	if (!flow->next_drop_ns) {
		/* After a pause shorter than the interval, dropping resumes where it was. */
		flow->count = flow->count > 2 ? flow->count - 2 : 1;
		if (flow->count == 1)
			flow->inverse_root = ~0u;
	} else if (now_ns < flow->next_drop_ns) {
		return false;
	} else {
		flow->count++;
	}
	next_root(flow);
	flow->next_drop_ns = (flow->next_drop_ns ? flow->next_drop_ns : now_ns) + (interval_ns * flow->inverse_root >> 32);
	return true;
}

/* The outcome of one attempt at the first flow of a round. */
#define LEAST_QUANTUM 1514

enum attempt {
	ATTEMPT_FOUND,
	ATTEMPT_AGAIN,
	ATTEMPT_NOTHING,
	ATTEMPT_IDLE, /* the flow has nothing that could be sent */
};

/* The band that a packet is wanted from, and the packet. */
struct turn {
	struct Qdisc *sch;
	const struct gw_link_config *config;
	__u64 now_ns;
	__u32 number; /* of the link */
	enum gw_band band;
	__u32 index;
	struct place *place; /* of that index, where it is known */
};

/* The flow whose turn it is. */
static __always_inline enum attempt first_flow(struct instance *i, struct round *round, __u32 quantum, __u32 *which)
{
	struct fifo *list = round->new_flows.head ? &round->new_flows : &round->old_flows;
	struct flow *flow;

	*which = list->head;
	if (!list->head)
		return ATTEMPT_NOTHING;
	flow = flow_at(i, list->head);
	if (flow->deficit > 0)
		return ATTEMPT_FOUND;
	/* A link that was given up has no configuration, but its packets leave all the same. */
	flow->deficit += quantum ? quantum : LEAST_QUANTUM;
	list->head = flow->next;
	list_flow(i, &round->old_flows, *which);
	/* It is alone. */
	if (round->old_flows.head == *which && !round->new_flows.head && flow->deficit > 0)
		return ATTEMPT_FOUND;
	return ATTEMPT_AGAIN;
}

/*
 * The first flow of the round is empty. It stays old for a turn, so that it does not become new again by a pause of one
 * packet.
 */
static __always_inline void end_turn(struct instance *i, struct round *round, __u32 which)
{
	bool is_new = round->new_flows.head;
	struct flow *flow = flow_at(i, which);

	if (is_new)
		round->new_flows.head = flow->next;
	else
		round->old_flows.head = flow->next;
	flow->is_listed = 0;
	if (is_new && round->old_flows.head)
		list_flow(i, &round->old_flows, which);
}

static __always_inline struct round *round_of(struct instance *i, enum gw_band band)
{
	__u32 which = band;

	gw_opaque(which);
	return &i->round[which % GW_BANDS];
}

static __always_inline __u32 *backlog_packets(struct instance *i, enum gw_band band)
{
	__u32 which = band;

	gw_opaque(which);
	return &i->waiting[which % GW_BANDS];
}

/* The flow's next packet, unless CoDel drops it. */
static __always_inline enum attempt take(struct instance *i, __u32 which, struct turn *turn)
{
	struct flow *flow = flow_at(i, which);
	__u32 index = flow->packets.head;
	struct place *place = index ? place_at(turn->number, index) : NULL;
	struct gw_band_counters *c;

	if (!place)
		return ATTEMPT_IDLE;
	flow->packets.head = place->next;
	flow->bytes -= place->bytes;
	(*backlog_packets(i, turn->band))--;
	if (!codel_drops(flow, turn->config, turn->now_ns - place->queued_ns, turn->now_ns)) {
		flow->deficit -= place->bytes;
		turn->index = index;
		turn->place = place;
		return ATTEMPT_FOUND;
	}
	c = counters_of(turn->number, turn->band);
	if (c) {
		c->dropped_sojourn++;
		turn->sch->qstats.drops++;
		uncount(turn->sch, c, place);
	}
	free_place(i, place, index);
	return ATTEMPT_AGAIN;
}

static __always_inline enum attempt try_round(struct instance *i, struct turn *turn)
{
	struct round *round = round_of(i, turn->band);
	enum attempt look;
	__u32 which;

	look = first_flow(i, round, turn->config->max_packet_bytes, &which);
	if (look != ATTEMPT_FOUND)
		return look;
	look = take(i, which, turn);
	if (look != ATTEMPT_IDLE)
		return look;
	end_turn(i, round, which);
	return ATTEMPT_AGAIN;
}

/* A second attempt mostly succeeds, and needs no iterator. */
static __noinline int retry(struct instance *i, struct turn *turn)
{
	int n;

	if (try_round(i, turn) != ATTEMPT_AGAIN)
		return 0;
	bpf_for(n, 0, 2 * ATTEMPTS)
		if (try_round(i, turn) != ATTEMPT_AGAIN)
			break;
	return 0;
}

/* The packet is in `turn`. The first attempt mostly succeeds, and needs no call. */
static __always_inline void next_packet(struct instance *i, struct turn *turn)
{
	if (try_round(i, turn) == ATTEMPT_AGAIN)
		retry(i, turn);
}

#endif
