// SPDX-License-Identifier: GPL-2.0-only
/*
 * The qdisc of the managed link: packets with deadlines in the order of these, then best effort, fair between flows
 * and with a bound on its sojourn (RFC 8289), then background while the CPU runs nothing more important. It paces at
 * the link's rate, so that the queue is here and not in the driver.
 *
 * It classifies nothing and refuses no deadline: admission.bpf.c did, in the sender's context, and left a stamp. What
 * carries none is best effort. Promises are given back here, when a packet goes to the driver or is dropped.
 *
 * Packets wait in a static pool, linked by index. The kernel serialises the calls of one instance, by the lock of its
 * queue; what instances share (under mq) is `struct gw_link`, with a lock of its own.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "link.h"

char LICENSE[] SEC("license") = "GPL";

#define NET_XMIT_SUCCESS 0
#define NET_XMIT_DROP 1
#define ENODEV 19
#define EBUSY 16

/* Packets of one instance by band. What admission can promise always fits. */
#define REALTIME_LIMIT (GW_PROMISES + 64)
#define BEST_EFFORT_LIMIT 3000
#define BACKGROUND_LIMIT 1000
#define POOL 8192 /* of one instance; entry 0 stands for none */

#define WORDS (GW_SLOTS / 64) /* of the bitmap of occupied slots: 128, in two halves */
#define FLOWS 1024 /* of best effort; flow 0 stands for none */
#define FAT_FLOW_DROPS 64
/* A dequeue looks at no more than so many packets and flows; then it asks to be called again. */
#define ATTEMPTS 16
/* While the gate is closed. At 1 ms a program takes 0.4% longer (`gate`); a wait for an idle CPU is that much longer. */
#define GATE_RETRY_NS NSEC_PER_MSEC

const volatile __u32 netns_inum;

extern __u32 bpf_skb_get_hash(struct sk_buff *skb) __ksym;
extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym;
extern void bpf_kfree_skb(struct sk_buff *skb) __ksym;
extern void bpf_qdisc_skb_drop(struct sk_buff *skb, struct bpf_sk_buff_ptr *to_free) __ksym;
extern void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, __u64 expire, __u64 delta_ns) __ksym;
extern void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb) __ksym;

/* A place for a packet. */
struct place {
	struct sk_buff __kptr *skb;
	__u64 queued_ns;
	__u64 deadline_ns;
	__u32 work_ns; /* promised; 0: nothing is */
	__u32 link_bytes;
	__u32 bytes;
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_INSTANCES * POOL);
	__type(key, __u32);
	__type(value, struct place);
} pool SEC(".maps");

struct fifo {
	__u32 head;
	__u32 tail;
};

/* CoDel's state and the round robin's, for one flow of best effort. */
struct flow {
	struct fifo packets;
	__u32 bytes;
	__s32 deficit;
	__u32 next;
	__u32 is_listed;
	__u32 count; /* drops since dropping began */
	__u32 inverse_root; /* 2^32 / sqrt(count) */
	__u64 above_since_ns; /* when it becomes a standing queue; 0: it is none */
	__u64 next_drop_ns;   /* 0: not dropping */
};

struct instance {
	__u32 in_use;
	__u32 free; /* the first of the places that were given back */
	__u32 fresh; /* places from here on were never used */
	__u32 realtime_packets;
	__u64 first; /* no packet with a deadline waits in an earlier slot */
	__u64 occupied[WORDS];
	__u64 occupied_words[WORDS / 64];
	struct fifo slot[GW_SLOTS];
	struct fifo new_flows, old_flows;
	__u32 best_effort_packets;
	__u32 background_packets;
	struct fifo background;
	__u64 trickle_ns; /* when background may have its next trickle */
	struct flow flow[FLOWS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_INSTANCES);
	__type(key, __u32);
	__type(value, struct instance);
} instances SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_INSTANCES * GW_BANDS);
	__type(key, __u32);
	__type(value, struct gw_band_counters);
} band_counters SEC(".maps");

/* Whether this CPU runs something that background must not disturb. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} runs_foreground SEC(".maps");

static __always_inline struct gw_band_counters *counters_of(__u32 number, enum gw_band band)
{
	__u32 key = number * GW_BANDS + band;

	return bpf_map_lookup_elem(&band_counters, &key);
}

/* Of an instance's places, by index. */
static __always_inline struct place *place_at(__u32 number, __u32 index)
{
	__u32 key = number * POOL + (index & (POOL - 1));

	return bpf_map_lookup_elem(&pool, &key);
}

static __always_inline struct instance *instance_of(const struct Qdisc *sch, __u32 *number)
{
	/* 0: its init refused; the kernel calls destroy all the same. */
	*number = sch->limit - 1;
	return bpf_map_lookup_elem(&instances, number);
}

/* ---- places and FIFOs ---- */

static __always_inline __u32 take_place(struct instance *i, __u32 number)
{
	__u32 index = i->free;
	struct place *place;

	if (!index) {
		index = i->fresh + 1;
		if (index >= POOL)
			return 0;
		i->fresh = index;
		return index;
	}
	place = place_at(number, index);
	if (!place)
		return 0;
	i->free = place->next;
	return index;
}

static __always_inline void return_place(struct instance *i, struct place *place, __u32 index)
{
	place->next = i->free;
	i->free = index;
}

static __always_inline void push(struct fifo *fifo, __u32 number, __u32 index)
{
	struct place *last = fifo->head ? place_at(number, fifo->tail) : NULL;

	if (last)
		last->next = index;
	else
		fifo->head = index;
	fifo->tail = index;
}

static __always_inline __u32 pop(struct fifo *fifo, __u32 number)
{
	__u32 index = fifo->head;
	struct place *place = index ? place_at(number, index) : NULL;

	if (!place)
		return 0;
	fifo->head = place->next;
	return index;
}

/* ---- enqueue ---- */

/* RFC 8289 needs the sojourn, the daemon its distribution: eight steps to an octave from 1 us. */
static __always_inline void count_sojourn(struct gw_band_counters *c, __u64 sojourn_ns)
{
	__u64 us = sojourn_ns / 1000 + 8;
	__u32 octave = 0, rest;

	if (sojourn_ns > c->sojourn_max_ns)
		c->sojourn_max_ns = sojourn_ns;
	rest = us >> 32 ? ~0u : us;
#pragma clang loop unroll(disable)
	for (int half = 16; half && rest >= 16; half >>= 1) {
		if (rest >> half >= 8) {
			rest >>= half;
			octave += half;
		}
	}
	c->sojourn[(octave * 8 + (rest & 7)) & (GW_SOJOURN_STEPS - 1)]++;
}

static __always_inline void occupy(struct instance *i, __u32 leaf)
{
	i->occupied[(leaf >> 6) & (WORDS - 1)] |= 1ULL << (leaf & 63);
	i->occupied_words[(leaf >> 12) & (WORDS / 64 - 1)] |= 1ULL << ((leaf >> 6) & 63);
}

static __always_inline void vacate(struct instance *i, __u32 leaf)
{
	__u64 *word = &i->occupied[(leaf >> 6) & (WORDS - 1)];

	*word &= ~(1ULL << (leaf & 63));
	if (!*word)
		i->occupied_words[(leaf >> 12) & (WORDS / 64 - 1)] &= ~(1ULL << ((leaf >> 6) & 63));
}

static __noinline int queue_realtime(struct instance *i, __u32 number, __u32 index, struct place *place, __u32 decided)
{
	__u64 now_slot = slack_slot(place->queued_ns), slot = slack_slot(place->deadline_ns);
	struct gw_link *link = the_link();
	__u32 leaf;

	if (link && place->work_ns) {
		bpf_spin_lock(&link->lock);
		note_delay(link, (__u32)place->queued_ns - decided);
		bpf_spin_unlock(&link->lock);
	}
	if (!i->realtime_packets)
		i->first = now_slot;
	/* What is over already goes first; what is beyond the ring, last. */
	if (slot < i->first)
		slot = i->first;
	if (slot > i->first + GW_SLOTS - 1)
		slot = i->first + GW_SLOTS - 1;
	leaf = slack_leaf(slot);
	push(&i->slot[leaf], number, index);
	occupy(i, leaf);
	i->realtime_packets++;
	return 0;
}

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

static __noinline int queue_best_effort(struct instance *i, __u32 number, __u32 index, __u32 hash, __u32 quantum)
{
	__u32 which = hash % (FLOWS - 1) + 1;
	struct flow *flow = flow_at(i, which);
	struct place *place = place_at(number, index);

	if (!place)
		return 0;
	push(&flow->packets, number, index);
	flow->bytes += place->bytes;
	i->best_effort_packets++;
	if (!flow->is_listed) {
		flow->deficit = quantum;
		list_flow(i, &i->new_flows, which);
	}
	return 0;
}

/* What a packet says of itself. */
struct stamped {
	enum gw_band band;
	__u32 hash;
	__u32 work_ns;
	__u32 decided; /* the lower half of when */
	__u64 deadline_ns;
};

static __always_inline struct stamped read_stamp(struct sk_buff *skb)
{
	const struct qdisc_skb_cb *cb = (const struct qdisc_skb_cb *)skb->cb;
	const __u32 *word = (const __u32 *)cb->data;
	struct stamped s = { .band = GW_BEST_EFFORT };
	__u32 first = word[0];

	if ((first & 0xffff0000u) != STAMP_MAGIC) {
		s.hash = bpf_skb_get_hash(skb);
		return s;
	}
	s.band = first & 3;
	if (s.band == GW_REALTIME) {
		s.deadline_ns = (__u64)word[2] << 32 | word[1];
		s.work_ns = word[3];
		s.decided = word[4];
	} else {
		s.hash = word[1];
	}
	return s;
}

/* On the link a packet is cut into so many, each with its overhead; as admission counts them. */
static __always_inline __u32 segments_of(struct sk_buff *skb)
{
	const struct qdisc_skb_cb *cb = (const struct qdisc_skb_cb *)skb->cb;
	const struct skb_shared_info *shared;

	if (bpf_core_field_exists(cb->pkt_segs))
		return cb->pkt_segs;
	shared = bpf_core_cast(skb->head + skb->end, struct skb_shared_info);
	return shared->gso_segs ? shared->gso_segs : 1;
}

static __always_inline void release(const struct place *place)
{
	struct gw_link *link = place->work_ns ? the_link() : NULL;

	if (!link)
		return;
	bpf_spin_lock(&link->lock);
	give_back(link, place->deadline_ns, place->work_ns);
	bpf_spin_unlock(&link->lock);
}

/* Of a packet that leaves the queue, for the driver or for nothing. */
static __always_inline void uncount(struct Qdisc *sch, struct gw_band_counters *c, __u32 bytes)
{
	sch->q.qlen--;
	sch->qstats.backlog -= bytes;
	c->backlog_packets--;
	c->backlog_bytes -= bytes;
}

/* The kernel frees it; everything else about it is forgotten here. */
static __always_inline void free_place(struct instance *i, struct place *place, __u32 index)
{
	struct sk_buff *skb = bpf_kptr_xchg(&place->skb, NULL);

	if (skb)
		bpf_kfree_skb(skb);
	return_place(i, place, index);
}

/* Best effort is full: the flow that has most waiting gives up some, as fq_codel does. */
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

static __always_inline bool is_full(const struct instance *i, enum gw_band band)
{
	if (band == GW_REALTIME)
		return i->realtime_packets >= REALTIME_LIMIT;
	if (band == GW_BACKGROUND)
		return i->background_packets >= BACKGROUND_LIMIT;
	return false;
}

SEC("struct_ops/gw_enqueue")
int BPF_PROG(gw_enqueue, struct sk_buff *skb, struct Qdisc *sch, struct bpf_sk_buff_ptr *to_free)
{
	struct stamped stamp = read_stamp(skb);
	struct gw_link_config *config = the_config();
	struct gw_band_counters *c;
	struct instance *i;
	struct place *place;
	struct sk_buff *old;
	__u32 number, index;

	i = instance_of(sch, &number);
	if (stamp.band >= GW_BANDS)
		stamp.band = GW_BEST_EFFORT;
	c = counters_of(number, stamp.band);
	if (!i || !c || !config)
		goto drop;
	if (stamp.band == GW_BEST_EFFORT && i->best_effort_packets >= BEST_EFFORT_LIMIT)
		drop_from_fattest(i, number, sch);
	index = is_full(i, stamp.band) ? 0 : take_place(i, number);
	place = index ? place_at(number, index) : NULL;
	if (!place) {
		c->dropped_full++;
		if (stamp.work_ns) {
			struct place lost = { .work_ns = stamp.work_ns, .deadline_ns = stamp.deadline_ns };

			release(&lost);
		}
		goto drop;
	}
	place->queued_ns = bpf_ktime_get_ns();
	place->deadline_ns = stamp.deadline_ns;
	place->work_ns = stamp.work_ns;
	place->bytes = ((const struct qdisc_skb_cb *)skb->cb)->pkt_len;
	place->link_bytes = place->bytes + segments_of(skb) * config->overhead_bytes;
	place->next = 0;
	if (stamp.band == GW_REALTIME) {
		queue_realtime(i, number, index, place, stamp.decided);
	} else if (stamp.band == GW_BEST_EFFORT) {
		queue_best_effort(i, number, index, stamp.hash, config->max_packet_bytes);
	} else {
		push(&i->background, number, index);
		i->background_packets++;
	}
	sch->q.qlen++;
	sch->qstats.backlog += place->bytes;
	c->queued_packets++;
	c->queued_bytes += place->bytes;
	c->backlog_packets++;
	c->backlog_bytes += place->bytes;
	old = bpf_kptr_xchg(&place->skb, skb);
	if (old)
		bpf_kfree_skb(old);
	return NET_XMIT_SUCCESS;
drop:
	sch->qstats.drops++;
	bpf_qdisc_skb_drop(skb, to_free);
	return NET_XMIT_DROP;
}

/* ---- dequeue: which packet ---- */

static __always_inline __u32 is_set(__u64 word)
{
	__u64 sign = word | -word;

	gw_opaque(sign);
	return sign >> 63;
}

/* For want of an instruction; each bit of the number on its own, without a branch that the verifier would follow. */
static __always_inline __u32 lowest_bit(__u64 word)
{
	__u64 lowest = word & -word;
	__u32 bit = is_set(lowest & 0xaaaaaaaaaaaaaaaaULL) | is_set(lowest & 0xccccccccccccccccULL) << 1 |
		    is_set(lowest & 0xf0f0f0f0f0f0f0f0ULL) << 2 | is_set(lowest & 0xff00ff00ff00ff00ULL) << 3 |
		    is_set(lowest & 0xffff0000ffff0000ULL) << 4 | is_set(lowest >> 32) << 5;

	gw_opaque(bit);
	return bit;
}

/* The first occupied leaf from this one on, not wrapped; GW_SLOTS: none. */
static __always_inline __u32 occupied_from(struct instance *i, __u32 leaf)
{
	__u32 w = leaf >> 6, next = w + 1, half;
	__u64 word, words;

	gw_opaque(w);
	gw_opaque(next);
	word = i->occupied[w & (WORDS - 1)] & (~0ULL << (leaf & 63));
	if (word)
		return w * 64 + lowest_bit(word);
	half = next >> 6;
	words = half < 2 ? i->occupied_words[half & 1] & (~0ULL << (next & 63)) : 0;
	if (!words && !half) {
		half = 1;
		words = i->occupied_words[1];
	}
	if (!words)
		return GW_SLOTS;
	w = half * 64 + lowest_bit(words);
	return w * 64 + lowest_bit(i->occupied[w & (WORDS - 1)]);
}

/* The earliest deadline that waits. */
static __noinline __u32 pop_realtime(struct instance *i, __u32 number, __u64 now_ns)
{
	__u32 from = slack_leaf(i->first), leaf = occupied_from(i, from), index;
	__u64 slot, now_slot = slack_slot(now_ns);

	if (leaf >= GW_SLOTS)
		leaf = occupied_from(i, 0);
	if (leaf >= GW_SLOTS)
		return 0;
	slot = i->first + (leaf >= from ? leaf - from : leaf + GW_SLOTS - from);
	i->first = slot < now_slot ? slot : now_slot;
	gw_opaque(leaf);
	leaf &= GW_SLOTS - 1;
	index = pop(&i->slot[leaf], number);
	if (!i->slot[leaf].head)
		vacate(i, leaf);
	if (index)
		i->realtime_packets--;
	return index;
}

/* One step of Newton towards 2^32 / sqrt(count): y' = y (3 - count y^2) / 2. */
static __always_inline void next_root(struct flow *flow)
{
	__u64 y = flow->inverse_root, y2 = y * y >> 32;
	__u64 rest = (3ULL << 32) - flow->count * y2;

	flow->inverse_root = (rest >> 2) * y >> 31;
}

/* RFC 8289, section 5: whether this packet, which has waited so long, is dropped to make the sender slow down. */
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
		/* A pause shorter than the interval goes on where it was. */
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

/* What one look at the round robin's first flow gave. */
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

static __always_inline bool gate_is_closed(const struct gw_link_config *config)
{
	__u32 key = 0, *foreground;

	if (!(config->flags & GW_GATE))
		return false;
	foreground = bpf_map_lookup_elem(&runs_foreground, &key);
	return foreground && *foreground;
}

static __always_inline __u32 pop_background(struct instance *i, __u32 number)
{
	__u32 index = pop(&i->background, number);

	if (index)
		i->background_packets--;
	return index;
}

/* ---- dequeue: when ---- */

/* The link has taken on a packet. Best effort is owed its share of the time that went to deadlines. */
static __noinline int occupy_link(const struct gw_link_config *config, const struct place *place, enum gw_band band,
				  __u64 now_ns)
{
	__u64 time_ns = time_on_link(config, place->link_bytes), behind_ns = catch_up_ns(config);
	__u64 packet_ns = time_on_link(config, config->max_packet_bytes + config->overhead_bytes);
	__u32 percent = config->realtime_percent;
	struct gw_link *link = the_link();
	__u64 since_ns;

	if (!link)
		return 0;
	bpf_spin_lock(&link->lock);
	/* Since when the link could have had the packet: what a late timer cost is made up for, up to a bound. */
	since_ns = link->busy_ns > place->queued_ns ? link->busy_ns : place->queued_ns;
	if (since_ns + behind_ns < now_ns) {
		if (place->work_ns) {
			/* The promises behind it have moved; best effort pays. */
			note_delay(link, now_ns - since_ns - behind_ns);
			link->owed_ns -= now_ns - since_ns - behind_ns;
		}
		/* Background has waited for the gate, and nothing is to be made up for. */
		since_ns = band == GW_BACKGROUND ? now_ns : now_ns - behind_ns;
	}
	link->busy_ns = since_ns;
	link->busy_ns += time_ns;
	if (band == GW_REALTIME) {
		if (place->work_ns)
			give_back(link, place->deadline_ns, place->work_ns);
		if (percent)
			link->owed_ns += time_ns * (100 - percent) / percent;
		if (link->owed_ns > (__s64)packet_ns)
			link->owed_ns = packet_ns;
	} else {
		link->owed_ns = link->owed_ns > (__s64)time_ns ? link->owed_ns - time_ns : 0;
		link->largest_ns -= link->largest_ns >> 10;
		if (link->largest_ns < time_ns)
			link->largest_ns = time_ns;
	}
	bpf_spin_unlock(&link->lock);
	return 0;
}

static __noinline int tell_late(const struct place *place, __u64 now_ns)
{
	struct gw_queue_event *event = bpf_ringbuf_reserve(&queue_events, sizeof(*event), 0);

	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->t_ns = now_ns;
	event->deadline_ns = place->deadline_ns;
	event->work_ns = place->work_ns;
	event->kind = GW_LATE;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* The earliest deadline that can still be kept; the others on the way are dropped, counted and told. */
static __noinline __u32 choose_realtime(struct instance *i, __u32 number, struct Qdisc *sch, __u64 now_ns)
{
	struct gw_band_counters *c = counters_of(number, GW_REALTIME);
	struct gw_link_config *config = the_config();
	struct gw_link *link = the_link();
	__u64 begin_ns;
	int n;

	if (!c || !config || !link)
		return 0;
	begin_ns = link->busy_ns > now_ns ? link->busy_ns : now_ns;
	bpf_for(n, 0, ATTEMPTS) {
		__u32 index = pop_realtime(i, number, now_ns);
		struct place *place = index ? place_at(number, index) : NULL;

		if (!place)
			return 0;
		if (!(config->flags & GW_DROP_LATE) || !config->rate_bytes_per_s ||
		    begin_ns + time_on_link(config, place->link_bytes) <= place->deadline_ns)
			return index;
		c->dropped_late++;
		sch->qstats.drops++;
		tell_late(place, now_ns);
		release(place);
		uncount(sch, c, place->bytes);
		free_place(i, place, index);
	}
	return 0;
}

/* When the link has room for a packet below; 0: now. */
static __always_inline __u64 wait_for_link(const struct gw_link_config *config, __u64 now_ns)
{
	struct gw_link *link = the_link();
	__u32 ahead_bytes = config->driver_bytes > config->max_packet_bytes ? config->driver_bytes - config->max_packet_bytes : 0;
	__u64 ready_ns;

	if (!config->rate_bytes_per_s || !link)
		return 0;
	ready_ns = link->busy_ns - time_on_link(config, ahead_bytes);
	return (__s64)(ready_ns - now_ns) > 0 ? ready_ns : 0;
}

struct chosen {
	__u32 index;
	enum gw_band band;
};

/* What background gets though best effort waits and the gate is closed. It goes before no packet with a deadline. */
static __always_inline bool trickle_is_due(const struct instance *i, const struct gw_link_config *config, __u64 now_ns)
{
	return config->trickle_bytes_per_s && !i->realtime_packets && now_ns >= i->trickle_ns;
}

static __noinline int choose(struct instance *i, __u32 number, struct Qdisc *sch, __u64 now_ns, struct chosen *chosen)
{
	struct gw_link_config *config = the_config();
	struct gw_link *link = the_link();
	struct gw_band_counters *c;
	bool best_effort_is_due;
	__u32 index = 0;

	if (!config || !link)
		return 0;
	best_effort_is_due = i->best_effort_packets && config->rate_bytes_per_s &&
			     link->owed_ns >= (__s64)time_on_link(config, config->max_packet_bytes + config->overhead_bytes);
	if (i->realtime_packets && !best_effort_is_due)
		index = choose_realtime(i, number, sch, now_ns);
	chosen->band = GW_REALTIME;
	if (!index && i->background_packets && trickle_is_due(i, config, now_ns)) {
		index = pop_background(i, number);
		chosen->band = GW_BACKGROUND;
	}
	if (!index && i->best_effort_packets) {
		index = pop_best_effort(i, number, sch, now_ns);
		chosen->band = GW_BEST_EFFORT;
	}
	if (!index && i->background_packets) {
		if (gate_is_closed(config)) {
			c = counters_of(number, GW_BACKGROUND);
			if (c)
				c->gate_closed++;
			return 0;
		}
		index = pop_background(i, number);
		chosen->band = GW_BACKGROUND;
	}
	chosen->index = index;
	return 0;
}

SEC("struct_ops/gw_dequeue")
struct sk_buff *BPF_PROG(gw_dequeue, struct Qdisc *sch)
{
	struct gw_link_config *config;
	struct chosen chosen = {};
	struct gw_band_counters *c;
	struct sk_buff *skb = NULL;
	struct instance *i;
	struct place *place;
	__u64 now_ns, wait_ns;
	__u32 number;

	/* The kernel asks until it hears no. */
	if (!sch->q.qlen)
		return NULL;
	config = the_config();
	i = instance_of(sch, &number);
	if (!i || !config)
		return NULL;
	now_ns = bpf_ktime_get_ns();
	wait_ns = wait_for_link(config, now_ns);
	if (wait_ns) {
		sch->qstats.overlimits++;
		bpf_qdisc_watchdog_schedule(sch, wait_ns, 0);
		return NULL;
	}
	choose(i, number, sch, now_ns, &chosen);
	place = chosen.index ? place_at(number, chosen.index) : NULL;
	c = counters_of(number, chosen.band < GW_BANDS ? chosen.band : GW_BEST_EFFORT);
	if (!place || !c) {
		/* Attempts were used up, or the gate is closed. */
		if (sch->q.qlen)
			bpf_qdisc_watchdog_schedule(sch, now_ns + (i->realtime_packets || i->best_effort_packets ? 0 : GATE_RETRY_NS), 0);
		return NULL;
	}
	if (config->rate_bytes_per_s)
		occupy_link(config, place, chosen.band, now_ns);
	else
		release(place);
	if (chosen.band == GW_BACKGROUND && config->trickle_bytes_per_s)
		i->trickle_ns = now_ns + place->link_bytes * NSEC_PER_SEC / config->trickle_bytes_per_s;
	uncount(sch, c, place->bytes);
	c->sent_packets++;
	c->sent_bytes += place->bytes;
	count_sojourn(c, now_ns - place->queued_ns);
	skb = bpf_kptr_xchg(&place->skb, NULL);
	return_place(i, place, chosen.index);
	if (!skb)
		return NULL;
	bpf_qdisc_bstats_update(sch, skb);
	return skb;
}

/* ---- life ---- */

SEC("struct_ops/gw_init")
int BPF_PROG(gw_init, struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	struct gw_link_config *config = the_config();
	const struct net_device *device = sch->dev_queue->dev;
	struct gw_link *link = the_link();
	int n;

	/* The daemon's link only: its configuration and its promises are of that one. */
	if (!config || !link || (__u32)device->ifindex != config->ifindex || device->nd_net.net->ns.inum != netns_inum)
		return -ENODEV;
	bpf_for(n, 0, GW_INSTANCES) {
		__u32 number = n;
		struct instance *i = bpf_map_lookup_elem(&instances, &number);

		if (i && !__sync_val_compare_and_swap(&i->in_use, 0, 1)) {
			sch->limit = n + 1;
			if (link->delay_ns < GW_FIRST_DELAY_NS)
				link->delay_ns = GW_FIRST_DELAY_NS;
			return 0;
		}
	}
	return -EBUSY;
}

static __noinline int forget(struct Qdisc *sch)
{
	struct gw_link *link = the_link();
	struct instance *i;
	__u32 number, n;

	i = instance_of(sch, &number);
	if (!i)
		return 0;
	bpf_for(n, 1, i->fresh + 1) {
		struct place *place = place_at(number, n);
		struct sk_buff *skb;

		if (!place)
			break;
		skb = bpf_kptr_xchg(&place->skb, NULL);
		if (skb) {
			/* Which band's is not known here; a promise tells that it had a deadline. */
			bpf_kfree_skb(skb);
			if (place->work_ns)
				release(place);
		}
	}
	bpf_for(n, 0, GW_BANDS) {
		struct gw_band_counters *c = counters_of(number, n);

		if (c) {
			c->dropped_reset += c->backlog_packets;
			c->backlog_packets = c->backlog_bytes = 0;
		}
	}
	bpf_for(n, 0, GW_SLOTS)
		i->slot[n & (GW_SLOTS - 1)] = (struct fifo){};
	bpf_for(n, 0, WORDS)
		i->occupied[n & (WORDS - 1)] = 0;
	bpf_for(n, 0, WORDS / 64)
		i->occupied_words[n & (WORDS / 64 - 1)] = 0;
	bpf_for(n, 0, FLOWS)
		__builtin_memset(flow_at(i, n), 0, sizeof(struct flow));
	i->new_flows = i->old_flows = i->background = (struct fifo){};
	i->realtime_packets = i->best_effort_packets = i->background_packets = 0;
	i->free = i->fresh = 0;
	if (link) {
		bpf_spin_lock(&link->lock);
		link->busy_ns = link->owed_ns = 0;
		bpf_spin_unlock(&link->lock);
	}
	return 0;
}

SEC("struct_ops/gw_reset")
void BPF_PROG(gw_reset, struct Qdisc *sch)
{
	forget(sch);
	sch->q.qlen = 0;
	sch->qstats.backlog = 0;
}

SEC("struct_ops/gw_destroy")
void BPF_PROG(gw_destroy, struct Qdisc *sch)
{
	struct instance *i;
	__u32 number;

	forget(sch);
	i = instance_of(sch, &number);
	if (i)
		i->in_use = 0;
}

/* The loader gives it a name of its own for each network namespace. */
SEC(".struct_ops.link")
struct Qdisc_ops gw_qdisc = {
	.enqueue = (void *)gw_enqueue,
	.dequeue = (void *)gw_dequeue,
	.init = (void *)gw_init,
	.reset = (void *)gw_reset,
	.destroy = (void *)gw_destroy,
	.id = "giveway",
};

/* ---- the gate ---- */

/* Kernel threads work for somebody: whoever ran before them still counts. */
SEC("tp_btf/sched_switch")
int BPF_PROG(gw_gate, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 key = 0, *foreground = bpf_map_lookup_elem(&runs_foreground, &key);

	if (!foreground)
		return 0;
	if (!next->pid)
		*foreground = 0;
	else if (!(next->flags & PF_KTHREAD))
		*foreground = next->static_prio < NICE_19_PRIO;
	return 0;
}
