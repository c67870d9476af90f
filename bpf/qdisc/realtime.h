/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets with deadlines: a FIFO for each slot of the ring of deadlines (slack.h), a bitmap of the occupied slots, and
 * admission's promises, which are returned when a packet leaves, sent or dropped.
 */
#ifndef GIVEWAY_QDISC_REALTIME_H
#define GIVEWAY_QDISC_REALTIME_H

#include "../timestamp.h"
#include "instance.h"

/* Whatever admission promises always fits. */
#define REALTIME_LIMIT (GW_PROMISES + 64)

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
	__u32 leaf, delay = age_of(decided, place->queued_ns);
	struct gw_link *link = link_at(number);

	/*
	 * A packet that arrives long after its deadline was delayed by somebody else, maybe for longer than 32 bits
	 * hold.
	 */
	if (link && place->work_ns && place->queued_ns < place->deadline_ns + NSEC_PER_SEC && delay != ~0U) {
		bpf_spin_lock(&link->lock);
		note_delay(link, delay);
		bpf_spin_unlock(&link->lock);
	}
	if (!i->realtime_packets)
		i->first = now_slot;
	/* A past deadline goes first; one beyond the ring, last. */
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

static __always_inline __u32 is_set(__u64 word)
{
	__u64 sign = word | -word;

	gw_opaque(sign);
	return sign >> 63;
}

/* BPF has no such instruction. Each bit of the result is computed on its own, without a branch to verify. */
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

/* The earliest deadline in the queue. */
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

static __always_inline void release(__u32 number, const struct place *place)
{
	struct gw_link *link = place->work_ns ? link_at(number) : NULL;

	if (!link)
		return;
	bpf_spin_lock(&link->lock);
	give_back(link, place->deadline_ns, place->work_ns);
	bpf_spin_unlock(&link->lock);
}

static __noinline int report_late(const struct gw_link_config *config, const struct place *place, __u64 now_ns)
{
	struct gw_queue_event *event = bpf_ringbuf_reserve(&queue_events, sizeof(*event), 0);

	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->t_ns = now_ns;
	event->deadline_ns = place->deadline_ns;
	event->work_ns = place->work_ns;
	event->kind = GW_LATE;
	event->ifindex = config->ifindex;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* The earliest deadline that can still be kept; those before it are dropped, counted and reported. */
static __noinline __u32 choose_realtime(struct instance *i, __u32 number, struct Qdisc *sch, __u64 now_ns)
{
	struct gw_band_counters *c = counters_of(number, GW_REALTIME);
	struct gw_link_config *config = config_at(number);
	struct gw_link *link = link_at(number);
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
		report_late(config, place, now_ns);
		release(number, place);
		uncount(sch, c, place);
		free_place(i, place, index);
	}
	return 0;
}

#endif
