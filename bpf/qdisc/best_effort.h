/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets without deadlines, streams and best effort: each band fair between its flows, without a standing queue. When
 * the two are full, the flow with the largest backlog loses packets.
 */
#ifndef GIVEWAY_QDISC_BEST_EFFORT_H
#define GIVEWAY_QDISC_BEST_EFFORT_H

#include "round_robin.h"

/* Of both bands. */
#define BEST_EFFORT_LIMIT 3000
/* The share that streams leave to best effort's backlog, of what the two send. */
#define BEST_EFFORT_PERCENT 10
#define FAT_FLOW_DROPS 64

/* How many packets of a flow are compared to place one with a deadline. */
#define SORTED 64

/*
 * Inserts it into its flow before packets with a later deadline, among the first SORTED; behind them, and without a
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

static __always_inline void queue_flow(struct instance *i, const struct gw_link_config *config, __u32 index,
				       struct place *place, __u32 hash, enum gw_band band)
{
	__u32 which = band == GW_STREAM ? FIRST_STREAM + hash % STREAMS : hash % (FIRST_STREAM - 1) + 1;
	struct flow *flow = flow_at(i, which);

	if (place->deadline_ns)
		insert_by_deadline(&flow->packets, config->number, index, place);
	else
		push(&flow->packets, config->number, index);
	flow->bytes += place->bytes;
	(*backlog_packets(i, band))++;
	if (!flow->is_listed) {
		flow->deficit = config->max_packet_bytes;
		list_flow(i, &round_of(i, band)->new_flows, which);
	}
}

static __always_inline bool best_effort_is_full(const struct instance *i)
{
	return i->waiting[GW_STREAM] + i->waiting[GW_BEST_EFFORT] >= BEST_EFFORT_LIMIT;
}

/* When full, drops from the flow with the largest backlog, as fq_codel does. */
static __noinline int drop_from_fattest(struct instance *i, __u32 number, struct Qdisc *sch)
{
	struct gw_band_counters *c;
	__u32 fattest = 0, most = 0;
	enum gw_band band;
	struct flow *flow;
	int n;

	bpf_for(n, 1, FLOWS) {
		flow = flow_at(i, n);
		if (flow->bytes > most) {
			most = flow->bytes;
			fattest = n;
		}
	}
	band = fattest >= FIRST_STREAM ? GW_STREAM : GW_BEST_EFFORT;
	c = counters_of(number, band);
	flow = flow_at(i, fattest);
	bpf_for(n, 0, FAT_FLOW_DROPS) {
		__u32 index = flow->bytes > most / 2 ? pop(&flow->packets, number) : 0;
		struct place *place = index ? place_at(number, index) : NULL;

		if (!place || !c)
			break;
		flow->bytes -= place->bytes;
		(*backlog_packets(i, band))--;
		c->dropped_full++;
		sch->qstats.drops++;
		uncount(sch, c, place);
		free_place(i, place, index);
	}
	return 0;
}

/* Streams have been served long enough that it is best effort's turn. */
static __always_inline bool best_effort_is_owed(const struct instance *i, const struct gw_link_config *config)
{
	return i->waiting[GW_BEST_EFFORT] && i->owed_bytes >= (__s32)config->max_packet_bytes;
}

/*
 * Something is owed only while the other band has a backlog (gw_dequeue skips this where there is none). A packet of
 * many segments may be sent on credit: at most 64 kB.
 */
static __always_inline void count_owed(struct instance *i, enum gw_band band, __u32 bytes)
{
	if (band == GW_STREAM)
		i->owed_bytes += bytes * BEST_EFFORT_PERCENT / (100 - BEST_EFFORT_PERCENT);
	else if (band == GW_BEST_EFFORT)
		i->owed_bytes -= bytes;
	if (!i->waiting[band == GW_STREAM ? GW_BEST_EFFORT : GW_STREAM])
		i->owed_bytes = 0;
}

#endif
