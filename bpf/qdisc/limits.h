/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Rate limits: what all flows of a rule send together. Among the flows of its band a limit is one, and behind it its own
 * take turns. Once it has sent a packet it is held back, out of the round, until the packet's time at its rate is over.
 */
#ifndef GIVEWAY_QDISC_LIMITS_H
#define GIVEWAY_QDISC_LIMITS_H

#include "round_robin.h"

/* Of all limits. A limit may hold as much as is still free, and this many in any case: enough for TCP to go on. */
#define LIMITED_LIMIT 1000
#define LIMITED_LEAST 16
/* What a late timer may make up for. */
#define LIMIT_BURST_NS (5 * NSEC_PER_MSEC)

/* Written by the daemon; by the number of the link, then by that of the limit. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS * GW_LIMITS);
	__type(key, __u32);
	__type(value, struct gw_rate_limit);
} rate_limits SEC(".maps");

static __always_inline struct gw_rate_limit *rate_limit_of(__u32 number, __u32 limit)
{
	__u32 key = number * GW_LIMITS + (limit & (GW_LIMITS - 1));

	return bpf_map_lookup_elem(&rate_limits, &key);
}

static __always_inline struct limited *limited_at(struct instance *i, __u32 limit)
{
	gw_opaque(limit);
	return &i->limit[limit & (GW_LIMITS - 1)];
}

static __always_inline struct round *round_of(struct instance *i, enum gw_band band)
{
	__u32 which = band;

	gw_opaque(which);
	return &i->round[which % GW_BANDS];
}

static __always_inline bool limit_is_full(struct instance *i, __u32 limit)
{
	__u32 own = limited_at(i, limit)->packets;

	return own >= LIMITED_LEAST && own + i->limited_packets >= LIMITED_LIMIT;
}

/* Its number was somebody else's before, or its rule has changed: what that one had sent is of no account. */
static __always_inline void note_rate(struct instance *i, __u32 number, struct limited *l, __u32 limit, __u64 now_ns)
{
	struct gw_rate_limit *rate = rate_limit_of(number, limit);

	if (!rate || rate->bytes_per_s == l->bytes_per_s)
		return;
	l->bytes_per_s = rate->bytes_per_s;
	if (l->ready_ns <= now_ns)
		return;
	l->ready_ns = now_ns;
	if (i->held)
		i->wake_ns = now_ns;
}

static __noinline int queue_limited(struct instance *i, __u32 number, __u32 index, __u32 hash, __u32 limit)
{
	__u32 which = FIRST_LIMITED + limit * LIMITED_FLOWS + hash % LIMITED_FLOWS, turn = FIRST_LIMIT + limit;
	struct limited *l = limited_at(i, limit);
	struct gw_link_config *config = config_at(number);
	struct place *place = place_at(number, index);
	struct flow *flow = flow_at(i, which);

	if (!place || !config)
		return 0;
	note_rate(i, number, l, limit, bpf_ktime_get_ns());
	push(&flow->packets, number, index);
	flow->bytes += place->bytes;
	l->packets++;
	i->limited_packets++;
	if (!flow->is_listed) {
		flow->deficit = config->max_packet_bytes;
		list_flow(i, &l->round.new_flows, which);
	}
	if (i->held >> (limit & 63) & 1) {
		i->held_packets[l->band % GW_BANDS]++;
		return 0;
	}
	(*servable_packets(i, l->band))++;
	flow = flow_at(i, turn);
	if (!flow->is_listed) {
		flow->deficit = config->max_packet_bytes;
		list_flow(i, &round_of(i, l->band)->new_flows, turn);
	}
	return 0;
}

/* It is the first of its band's round, and may not send before its time. */
static __always_inline void hold_back(struct instance *i, struct limited *l, __u32 limit)
{
	struct round *round = round_of(i, l->band);
	struct fifo *list = round->new_flows.head ? &round->new_flows : &round->old_flows;
	struct flow *flow = flow_at(i, FIRST_LIMIT + limit);

	list->head = flow->next;
	flow->is_listed = 0;
	if (!i->held || l->ready_ns < i->wake_ns)
		i->wake_ns = l->ready_ns;
	i->held |= 1ULL << (limit & 63);
	*servable_packets(i, l->band) -= l->packets;
	i->held_packets[l->band % GW_BANDS] += l->packets;
}

/* Limits whose time has come take part in the round again. */
static __noinline int release_limits(struct instance *i, __u64 now_ns)
{
	__u64 wake_ns = ~0ULL;
	int n;

	bpf_for(n, 1, GW_LIMITS) {
		struct limited *l = limited_at(i, n);

		if (!(i->held >> (n & 63) & 1))
			continue;
		if (l->ready_ns > now_ns) {
			if (l->ready_ns < wake_ns)
				wake_ns = l->ready_ns;
			continue;
		}
		i->held &= ~(1ULL << (n & 63));
		i->held_packets[l->band % GW_BANDS] -= l->packets;
		*servable_packets(i, l->band) += l->packets;
		list_flow(i, &round_of(i, l->band)->old_flows, FIRST_LIMIT + n);
	}
	i->wake_ns = wake_ns;
	return 0;
}

/* The next packet of the limit's own round. */
static __noinline enum look look_at_limit(struct instance *i, __u32 limit, struct turn *turn)
{
	struct gw_rate_limit *rate = rate_limit_of(turn->number, limit);
	struct limited *l = limited_at(i, limit);
	__u32 which;
	enum look look;

	if (!rate || !l->packets)
		return LOOK_IDLE;
	if (l->ready_ns > turn->now_ns) {
		hold_back(i, l, limit);
		return LOOK_AGAIN;
	}
	look = first_flow(i, &l->round, turn->config->max_packet_bytes, &which);
	if (look != LOOK_FOUND)
		return look == LOOK_NOTHING ? LOOK_IDLE : look;
	turn->target_us = rate->codel_target_us;
	look = take(i, which, turn);
	if (look == LOOK_IDLE) {
		end_turn(i, &l->round, which);
		return LOOK_AGAIN;
	}
	l->packets--;
	i->limited_packets--;
	if (look == LOOK_FOUND && rate->bytes_per_s) {
		if (l->ready_ns + LIMIT_BURST_NS < turn->now_ns)
			l->ready_ns = turn->now_ns - LIMIT_BURST_NS;
		l->ready_ns += turn->bytes * NSEC_PER_SEC / rate->bytes_per_s;
	}
	return look;
}

static __always_inline enum look look_at_round(struct instance *i, struct turn *turn)
{
	struct round *round = round_of(i, turn->band);
	enum look look;
	__u32 which;

	look = first_flow(i, round, turn->config->max_packet_bytes, &which);
	if (look != LOOK_FOUND)
		return look;
	if (which >= FIRST_LIMIT) {
		look = look_at_limit(i, which - FIRST_LIMIT, turn);
		if (look == LOOK_FOUND)
			flow_at(i, which)->deficit -= turn->bytes;
	} else {
		turn->target_us = turn->config->codel_target_us;
		look = take(i, which, turn);
	}
	if (look != LOOK_IDLE)
		return look;
	end_turn(i, round, which);
	return LOOK_AGAIN;
}

/* The second look mostly finds what the first did not, and needs no iterator. */
static __noinline int look_again(struct instance *i, struct turn *turn)
{
	int n;

	if (look_at_round(i, turn) != LOOK_AGAIN)
		return 0;
	bpf_for(n, 0, 2 * ATTEMPTS)
		if (look_at_round(i, turn) != LOOK_AGAIN)
			break;
	return 0;
}

/* The packet is in `turn`. The first look mostly finds, and needs no call. */
static __always_inline void look_for_packet(struct instance *i, struct turn *turn)
{
	if (look_at_round(i, turn) == LOOK_AGAIN)
		look_again(i, turn);
}

#endif
