/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The instance of the qdisc on one link, by the link's number: the backlog of its four bands, and counters. The first
 * FIRST_STREAM entries of `flow` are best effort's, the others streams'.
 */
#ifndef GIVEWAY_QDISC_INSTANCE_H
#define GIVEWAY_QDISC_INSTANCE_H

#include "../link.h"
#include "pool.h"

#define WORDS (GW_SLOTS / 64) /* of the bitmap of occupied slots: 128, in two halves */
#define FLOWS 1024
#define STREAMS 128
#define FIRST_STREAM (FLOWS - STREAMS)
/* A dequeue tries no more than this many packets and flows; then it asks to be called again. */
#define ATTEMPTS 16

extern void bpf_kfree_skb(struct sk_buff *skb) __ksym;

/* CoDel's state and the round robin's, for one flow. Flow 0 stands for none. */
struct flow {
	struct fifo packets;
	__u32 bytes;
	__s32 deficit;
	__u32 next;
	__u32 is_listed;
	__u32 count;          /* drops since dropping began */
	__u32 inverse_root;   /* 2^32 / sqrt(count) */
	__u64 above_since_ns; /* when its backlog becomes a standing queue; 0: not above the target */
	__u64 next_drop_ns;   /* 0: not dropping */
};

/* A round robin: newly active flows go first, once. */
struct round {
	struct fifo new_flows, old_flows;
};

struct instance {
	__u32 in_use;
	struct places places;
	__u32 realtime_packets;
	__u64 seen_ns; /* time of the latest enqueue or dequeue, until the next dequeue; 0: read the clock */
	__u64 free_ns; /* when the link has room again after the latest packet; 0: not paced */
	__u32 waiting[GW_BANDS]; /* backlog in packets; of the realtime band: `realtime_packets` */
	struct round round[GW_BANDS]; /* of streams and of best effort */
	__s32 owed_bytes; /* by streams to best effort */
	__u64 first; /* no packet with a deadline is in an earlier slot */
	__u64 occupied[WORDS];
	__u64 occupied_words[WORDS / 64];
	struct fifo slot[GW_SLOTS];
	struct fifo background;
	__u64 background_min_ns; /* when background's minimum rate is due next */
	__u64 unhindered_ns;     /* when no higher band last delayed background */
	struct flow flow[FLOWS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS);
	__type(key, __u32);
	__type(value, struct instance);
} instances SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS * GW_BANDS);
	__type(key, __u32);
	__type(value, struct gw_band_counters);
} band_counters SEC(".maps");

static __always_inline struct gw_band_counters *counters_of(__u32 number, enum gw_band band)
{
	__u32 key = number * GW_BANDS + band;

	return bpf_map_lookup_elem(&band_counters, &key);
}

static __always_inline struct instance *instance_of(const struct Qdisc *sch, __u32 *number)
{
	/* limit 0: its init failed; the kernel calls destroy all the same. */
	*number = sch->limit - 1;
	return bpf_map_lookup_elem(&instances, number);
}

/* Counts the sojourn in the daemon's histogram: eight steps to an octave from 1 us. */
static __always_inline void count_sojourn(struct gw_band_counters *c, __u64 sojourn_ns)
{
	__u64 us = sojourn_ns / 1000 + 8;
	__u32 step = 0, rest;

	if (sojourn_ns > c->sojourn_max_ns)
		c->sojourn_max_ns = sojourn_ns;
	rest = us >> 32 ? ~0u : us;
#pragma clang loop unroll(full)
	for (int half = 16; half; half >>= 1) {
		if (rest >> half >= 8) {
			rest >>= half;
			step += half * 8;
			/* Otherwise the compiler makes three times as much code of it. */
			gw_opaque(step);
		}
	}
	c->sojourn[(step + (rest & 7)) & (GW_SOJOURN_STEPS - 1)]++;
}

/* For a packet that leaves the queue, sent or dropped. */
static __always_inline void uncount(struct Qdisc *sch, struct gw_band_counters *c, const struct place *place)
{
	sch->q.qlen--;
	sch->qstats.backlog -= place->bytes;
	c->backlog_packets--;
	c->backlog_bytes -= place->bytes;
	c->tcp_backlog_bytes -= place->tcp_bytes;
}

/* Frees the packet and its place. */
static __always_inline void free_place(struct instance *i, struct place *place, __u32 index)
{
	struct sk_buff *skb = bpf_kptr_xchg(&place->skb, NULL);

	if (skb)
		bpf_kfree_skb(skb);
	return_place(&i->places, place, index);
}

#endif
