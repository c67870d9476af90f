/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets without deadlines: fair between flows by deficit round robin (RFC 8290), without a standing queue by CoDel
 * (RFC 8289). When the band is full, the flow with the largest backlog loses packets.
 */
#ifndef GIVEWAY_QDISC_BEST_EFFORT_H
#define GIVEWAY_QDISC_BEST_EFFORT_H

#include "instance.h"

#define BEST_EFFORT_LIMIT 3000
#define FAT_FLOW_DROPS 64

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

/* Of a flow, so many packets are looked at for the place of one with a deadline. */
#define SORTED 64

/*
 * Into its flow before whatever has a later deadline, among the first SORTED packets; behind them, and without a
 * deadline, in the order of arrival.
 */
static __noinline int insert_by_deadline(struct fifo *fifo, __u32 number, __u32 index, struct place *place)
{
	struct place *before = NULL, *at = fifo->head ? place_at(number, fifo->tail) : NULL;
	__u32 next = fifo->head;
	int n;

	if (at && at->deadline_ns <= place->deadline_ns)
		next = 0;
	bpf_for(n, 0, SORTED) {
		at = next ? place_at(number, next) : NULL;
		if (!at || at->deadline_ns > place->deadline_ns)
			break;
		before = at;
		next = at->next;
	}
	if (!at || at->deadline_ns <= place->deadline_ns) {
		push(fifo, number, index);
		return 0;
	}
	place->next = next;
	if (before)
		before->next = index;
	else
		fifo->head = index;
	return 0;
}

static __noinline int queue_best_effort(struct instance *i, __u32 number, __u32 index, __u32 hash, __u32 quantum)
{
	__u32 which = hash % (FLOWS - 1) + 1;
	struct flow *flow = flow_at(i, which);
	struct place *place = place_at(number, index);

	if (!place)
		return 0;
	if (place->deadline_ns)
		insert_by_deadline(&flow->packets, number, index, place);
	else
		push(&flow->packets, number, index);
	flow->bytes += place->bytes;
	i->best_effort_packets++;
	if (!flow->is_listed) {
		flow->deficit = quantum;
		list_flow(i, &i->new_flows, which);
	}
	return 0;
}

/* Best effort is full: drops from the flow with the largest backlog, as fq_codel does. */
static __noinline int drop_from_fattest(struct instance *i, __u32 number, struct Qdisc *sch)
{
	struct gw_band_counters *c = counters_of(number, GW_BEST_EFFORT);
	__u32 fattest = 0, most = 0;
	struct flow *flow;
	int n;

	bpf_for(n, 1, FLOWS) {
		flow = flow_at(i, n);
		if (flow->bytes > most) {
			most = flow->bytes;
			fattest = n;
		}
	}
	flow = flow_at(i, fattest);
	bpf_for(n, 0, FAT_FLOW_DROPS) {
		__u32 index = flow->bytes > most / 2 ? pop(&flow->packets, number) : 0;
		struct place *place = index ? place_at(number, index) : NULL;

		if (!place || !c)
			break;
		flow->bytes -= place->bytes;
		i->best_effort_packets--;
		c->dropped_full++;
		sch->qstats.drops++;
		uncount(sch, c, place->bytes);
		free_place(i, place, index);
	}
	return 0;
}

/* One step of Newton towards 2^32 / sqrt(count): y' = y (3 - count y^2) / 2. */
static __always_inline void next_root(struct flow *flow)
{
	__u64 y = flow->inverse_root, y2 = y * y >> 32;
	__u64 rest = (3ULL << 32) - flow->count * y2;

	flow->inverse_root = (rest >> 2) * y >> 31;
}

/* RFC 8289, section 5: whether a packet with this sojourn is dropped, to make its sender slow down. */
static __always_inline bool codel_drops(struct flow *flow, const struct gw_link_config *config, __u64 sojourn_ns,
					__u64 now_ns)
{
	__u64 interval_ns = 1000ULL * config->codel_interval_us;
	bool stands = false;

	if (!config->codel_target_us || sojourn_ns < 1000ULL * config->codel_target_us ||
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

/* The outcome of one look at the round robin's first flow. */
enum look {
	LOOK_FOUND,
	LOOK_AGAIN,
	LOOK_NOTHING,
};

static __always_inline enum look look_at_flow(struct instance *i, __u32 number, struct Qdisc *sch, __u64 now_ns,
					      const struct gw_link_config *config, __u32 *found)
{
	bool is_new = i->new_flows.head;
	struct fifo *list = is_new ? &i->new_flows : &i->old_flows;
	__u32 which = list->head, index;
	struct gw_band_counters *c;
	struct place *place;
	struct flow *flow;

	if (!which)
		return LOOK_NOTHING;
	flow = flow_at(i, which);
	if (flow->deficit <= 0) {
		flow->deficit += config->max_packet_bytes;
		list->head = flow->next;
		list_flow(i, &i->old_flows, which);
		return LOOK_AGAIN;
	}
	index = pop(&flow->packets, number);
	place = index ? place_at(number, index) : NULL;
	if (!place) {
		list->head = flow->next;
		flow->is_listed = 0;
		/* A flow must not become new again by pausing for one packet. */
		if (is_new && i->old_flows.head)
			list_flow(i, &i->old_flows, which);
		return LOOK_AGAIN;
	}
	flow->bytes -= place->bytes;
	i->best_effort_packets--;
	if (!codel_drops(flow, config, now_ns - place->queued_ns, now_ns)) {
		flow->deficit -= place->bytes;
		*found = index;
		return LOOK_FOUND;
	}
	c = counters_of(number, GW_BEST_EFFORT);
	if (c) {
		c->dropped_sojourn++;
		sch->qstats.drops++;
		uncount(sch, c, place->bytes);
	}
	free_place(i, place, index);
	return LOOK_AGAIN;
}

/* Deficit round robin (RFC 8290): flows that were idle go first, once. The first look mostly finds; it needs no iterator. */
static __noinline __u32 pop_best_effort(struct instance *i, __u32 number, struct Qdisc *sch, __u64 now_ns)
{
	struct gw_link_config *config = the_config();
	__u32 found = 0;
	enum look look;
	int n;

	if (!config)
		return 0;
	look = look_at_flow(i, number, sch, now_ns, config, &found);
	if (look != LOOK_AGAIN)
		return found;
	bpf_for(n, 0, 2 * ATTEMPTS)
		if (look_at_flow(i, number, sch, now_ns, config, &found) != LOOK_AGAIN)
			break;
	return found;
}

#endif
