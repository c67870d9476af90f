/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The managed links as admission and the qdisc share them: what is promised, and until when each is busy. A link's
 * state is found by its number, which its configuration has. The daemon makes both objects use the same maps. `struct
 * gw_link` is changed only under its lock, where no helper and no kfunc may be called.
 */
#ifndef GIVEWAY_LINK_H
#define GIVEWAY_LINK_H

#include "link_config.h"
#include "slack.h"

/* A promise this long after its deadline was lost between admission and the link (another filter, a reset). */
#define GW_LOST_AFTER_NS (50 * NSEC_PER_MSEC)
/* The ring's start moves by this many slots, 2.1 ms: the leaves below one node. */
#define GROUP 64
#define GROUPS_A_CALL 32

struct gw_link {
	struct bpf_spin_lock lock;
	__u64 busy_ns; /* when the link will have sent the driver's backlog */
	/*
	 * best effort's deficit: its share of the link that it missed while deadlines were served; below 0, what it has
	 * to give up for time that late timers cost them
	 */
	__s64 owed_ns;
	__u64 delay_ns;     /* recent maximum of the delay between decision and enqueue, and of timers */
	__u64 largest_ns;   /* time on the link of the largest recent packet without a deadline */
	__u32 promised;     /* packets */
	__u32 epoch;        /* of the latest request for a deadline */
	__u32 users;        /* that asked in it */
	__u32 users_before; /* and in the one before */
	struct gw_fifo {    /* of a FIFO backend; sums since it was installed */
		__u64 promised_ns;
		__u64 gone_ns; /* of promised_ns */
		__u64 due_ns;  /* when everything promised should be gone */
		__u32 promised;
		__u32 gone; /* of promised */
	} fifo;
	struct gw_slack_tree tree;
	__u32 packets[GW_SLOTS]; /* promised, by leaf */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS);
	__type(key, __u32);
	__type(value, struct gw_link);
} link_state SEC(".maps");

/* Some 600 between two polls, so that endless refusals do not keep the daemon busy. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} queue_events SEC(".maps");

/*
 * The stamp: what admission passes to the qdisc in the 20 bytes of the skb's control block that tcx programs may write.
 *
 *   word 0: STAMP_MAGIC | band, | STAMP_TCP if a TCP socket of ours that is routed here has sent it (not with a FIFO)
 *   words 1, 2: the deadline's lower and upper half
 *   word 3: promised work in ns, 0: no promise;  word 4: the lower half of the time of the promise
 *
 * In other bands than realtime:
 *
 *   word 1: the flow's hash;  words 2, 4: the lower and upper half of a deadline that only orders the flow, or 0
 *
 * With a FIFO and a promise:
 *
 *   words 1, 2: promised_ns of `struct gw_fifo` including this packet;  word 4: promised
 */
#define STAMP_MAGIC 0x6a7d0000u
#define STAMP_TCP 4

static __always_inline struct gw_link *link_at(__u32 number)
{
	return bpf_map_lookup_elem(&link_state, &number);
}

static __always_inline __u64 time_on_link(const struct gw_link_config *config, __u64 bytes)
{
	return config->rate_bytes_per_s ? bytes * NSEC_PER_SEC / config->rate_bytes_per_s : 0;
}

/* How much a late timer may catch up in a burst: one full-size packet, at most 1 ms. */
static __always_inline __u64 catch_up_ns(const struct gw_link_config *config)
{
	__u64 packet_ns = time_on_link(config, config->max_packet_bytes);

	return packet_ns < NSEC_PER_MSEC ? packet_ns : NSEC_PER_MSEC;
}

/* Assumed before the first measurement. */
#define GW_FIRST_DELAY_NS NSEC_PER_MSEC

/* A decaying maximum: it halves in 45,000 calls, of which a packet makes one or two. */
static __always_inline void note_delay(struct gw_link *link, __u64 delay_ns)
{
	link->delay_ns -= link->delay_ns >> 16;
	if (link->delay_ns < delay_ns)
		link->delay_ns = delay_ns;
}

/* Returns one packet's promise, at its dequeue or drop. */
static __always_inline void give_back(struct gw_link *link, __u64 deadline_ns, __u32 work_ns)
{
	__u64 slot = slack_slot(deadline_ns);
	__u32 leaf = slack_leaf(slot);

	/* Expired already. */
	if (slot < link->tree.first || !link->packets[leaf])
		return;
	/* A leaf has work exactly as long as it has packets. */
	if (--link->packets[leaf])
		slack_remove(&link->tree, slot, slack_min(work_ns, slack_at(&link->tree, leaf)->work_ns - 1));
	else
		slack_clear(&link->tree, slot);
	link->promised--;
}

/*
 * Moves the ring's start towards now, past empty groups. Where a group is long over and not empty, expires one leaf's
 * lost promises and returns how many.
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
	/* Read anew, so that the verifier follows the rest once, not for each number of steps. */
	first = *(volatile __u64 *)&link->tree.first;
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
