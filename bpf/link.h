/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The managed link as admission and the qdisc share it: what is promised, until when the link is busy. The daemon
 * makes both objects use the same maps. Whatever touches `struct gw_link` holds its lock and calls nothing.
 */
#ifndef GIVEWAY_LINK_H
#define GIVEWAY_LINK_H

#include "queueing.h"
#include "slack.h"

/* As many packets with deadlines are promised at once; the qdisc has room for more, so that it never refuses one. */
#define GW_PROMISES 4096
/* A promise this long after its deadline was lost between admission and the link (another filter, a reset). */
#define GW_LOST_AFTER_NS (50 * NSEC_PER_MSEC)
/* The ring's beginning moves by so many slots, 2.1 ms: the leaves below one node. */
#define GROUP 64
#define GROUPS_A_CALL 32

struct gw_link {
	struct bpf_spin_lock lock;
	__u64 busy_ns;     /* when the link will have sent what the driver has */
	__s64 owed_ns;     /* of its share of the link, what best effort did not get yet while deadlines were served;
			      below 0, what it has to give up for time that was lost to them */
	__u64 delay_ns;    /* the longest delay lately between a decision and what was decided; a late timer's too */
	__u64 largest_ns;  /* the time of the largest ordinary packet lately */
	__u64 fifo_ns;     /* where a FIFO serves: when it will have served what is promised */
	__u32 promised;    /* packets */
	struct gw_slack_tree tree;
	__u32 packets[GW_SLOTS]; /* promised, by leaf */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_link);
} link_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_link_config);
} link_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1024 * 1024);
} queue_events SEC(".maps");

/*
 * What admission tells the qdisc in the 20 bytes of the skb's control block that are anybody's between them:
 *   0: STAMP_MAGIC | band
 *   1, 2: of a deadline, its halves;  1: of anything else, the hash of its flow
 *   3: promised work in ns, 0 where nothing is promised;  4: the lower half of when that was
 */
#define STAMP_MAGIC 0x6a7d0000u

static __always_inline struct gw_link_config *the_config(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&link_config, &key);
}

static __always_inline struct gw_link *the_link(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&link_state, &key);
}

static __always_inline __u64 time_on_link(const struct gw_link_config *config, __u64 bytes)
{
	return config->rate_bytes_per_s ? bytes * NSEC_PER_SEC / config->rate_bytes_per_s : 0;
}

/* How far the link may be behind the qdisc's clock after a timer that came late: one ordinary packet, at most 1 ms. */
static __always_inline __u64 catch_up_ns(const struct gw_link_config *config)
{
	__u64 packet_ns = time_on_link(config, config->max_packet_bytes);

	return packet_ns < NSEC_PER_MSEC ? packet_ns : NSEC_PER_MSEC;
}

/* Before anything was seen. */
#define GW_FIRST_DELAY_NS NSEC_PER_MSEC

/* A maximum that forgets: by half in 45,000 notes, of which a packet makes one or two. */
static __always_inline void note_delay(struct gw_link *link, __u64 delay_ns)
{
	link->delay_ns -= link->delay_ns >> 16;
	if (link->delay_ns < delay_ns)
		link->delay_ns = delay_ns;
}

/* Takes promises back: of one packet at dequeue or drop. */
static __always_inline void give_back(struct gw_link *link, __u64 deadline_ns, __u32 work_ns)
{
	__u64 slot = slack_slot(deadline_ns);
	__u32 leaf = slack_leaf(slot);

	/* Counted as lost already. */
	if (slot < link->tree.first || !link->packets[leaf])
		return;
	slack_remove(&link->tree, slot, work_ns);
	link->packets[leaf]--;
	link->promised--;
}

/*
 * Moves the ring's beginning towards now, past empty groups; of one long over that is not empty it takes a leaf's lost
 * promises back, and returns how many.
 */
static __always_inline __u32 advance(struct gw_link *link, __u64 now_ns)
{
	__u64 now_slot = slack_slot(now_ns), first = link->tree.first;
	__u32 leaf, lost = 0;

	if (!link->promised)
		first = now_slot & ~(GROUP - 1ULL);
	for (int step = 0; step < GROUPS_A_CALL && first + GROUP <= now_slot; step++) {
		if (link->tree.node[(GW_SLOTS + slack_leaf(first)) / GROUP].work_ns)
			break;
		first += GROUP;
	}
	link->tree.first = first;
	leaf = slack_leaf(first);
	if (((first + GROUP) << GW_SLOT_SHIFT) + GW_LOST_AFTER_NS > now_ns || !link->promised)
		return 0;
	for (int n = 0; n < GROUP && !lost; n++)
		lost = link->packets[slack_leaf(leaf++)];
	if (lost) {
		leaf = slack_leaf(leaf - 1);
		link->packets[leaf] = 0;
		link->promised -= lost;
		slack_clear(&link->tree, leaf);
	}
	return lost;
}

#endif
