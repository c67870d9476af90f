/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The intermediate devices that limits take packets by, one for each direction: the classes of their queues, and how admission
 * marks what is to go there.
 */
#ifndef GIVEWAY_DETOUR_H
#define GIVEWAY_DETOUR_H

#include "giveway.h"
#include "kernel_skb.h"
#include "queueing.h"

/*
 * Of skb->priority, as MAJOR << 16 | MINOR: of limit N, and below it its queues, of which a flow has one. Many queues take the
 * kernel long to install: the first limits of rules and of commands have several, and what links order, behind all limits.
 */
enum gw_detour {
	CLASS_OF_LIMITS = 0x67640100,
	CLASSES_OF_A_LIMIT = 16,
	QUEUES_OF_A_LIMIT = 8,
	LIMITS_WITH_QUEUES = 48, /* of rules, and as many of commands */
	GROUPS_OF_A_LINK = 3,    /* of the link, of bulk, of background */
};

/*
 * In skb->cb[0], on the way out: it takes the detour. cb[1]: its class; cb[2]: its priority before; cb[3]: the class of the queue
 * there. For its way back, cb[4] says so again, and its class is in cb[3] by then: fq_codel uses the first two words, and what the
 * kernel redirects here is a clone, without a socket.
 */
#define DETOUR_MAGIC 0x6a7e0001u

static __always_inline bool has_queues(__u32 limit)
{
	return limit <= LIMITS_WITH_QUEUES || limit >= GW_LIMITS ||
	       (limit > GW_LIMITS_OF_RULES && limit <= GW_LIMITS_OF_RULES + LIMITS_WITH_QUEUES);
}

/* `hash`: of the flow. */
static __always_inline __u32 class_of_limit(__u32 limit, __u32 hash)
{
	if (!has_queues(limit))
		hash = 0;
	return CLASS_OF_LIMITS + limit * CLASSES_OF_A_LIMIT + 1 + (hash & (QUEUES_OF_A_LIMIT - 1));
}

/* Where fq_codel sees to the flows of a limit, it has this one queue. */
static __always_inline __u32 only_queue_of(__u32 class)
{
	return (class & ~(CLASSES_OF_A_LIMIT - 1)) + 1;
}

/* On its way out it has been there already: such a device says that no action of a filter is for it, this once. */
static __always_inline bool has_come_back(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(kernel_skb, tc_skip_classify);
}

/* Whether it comes from there: then its priority before counts again. */
static __always_inline bool come_back(struct __sk_buff *skb)
{
	if (skb->cb[4] != DETOUR_MAGIC || !has_come_back(skb))
		return false;
	skb->priority = skb->cb[2];
	return true;
}

/* Of what has come back. */
static __always_inline __u32 class_before(struct __sk_buff *skb)
{
	return skb->cb[3];
}

/* Egress of that device: to its queue there. */
static __always_inline void queue_there(struct __sk_buff *skb, bool is_fair)
{
	if (skb->cb[0] != DETOUR_MAGIC)
		return;
	skb->priority = is_fair ? only_queue_of(skb->cb[3]) : skb->cb[3];
	skb->cb[3] = skb->cb[1];
}

/* To this limit, by the device that the filter behind sends it to. */
static __always_inline void send_round(struct __sk_buff *skb, __u32 limit, __u32 hash, __u32 class)
{
	skb->cb[0] = skb->cb[4] = DETOUR_MAGIC;
	skb->cb[1] = class;
	skb->cb[2] = skb->priority;
	skb->cb[3] = class_of_limit(limit, hash);
}

#endif
