/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ifb devices that packets with a limit are redirected to, one for each direction: the classes of their queues, and
 * the marks by which admission redirects a packet.
 */
#ifndef GIVEWAY_REDIRECT_H
#define GIVEWAY_REDIRECT_H

#include "giveway.h"
#include "kernel_skb.h"
#include "queueing.h"

/*
 * Classes in skb->priority, as MAJOR << 16 | MINOR: limit N, and below it its queues, one of which a flow has. The
 * kernel takes long to install many queues: so the first limits of rules and of commands have several, and after all
 * limits come the classes of links that order downloads.
 */
enum gw_redirect {
	CLASS_OF_LIMITS = 0x67640100,
	CLASSES_OF_A_LIMIT = 16,
	QUEUES_OF_A_LIMIT = 8,
	LIMITS_WITH_QUEUES = 48, /* of rules, and as many of commands */
	GROUPS_OF_A_LINK = 3,    /* the link, bulk, background */
};

/*
 * skb->cb[0] on the way out: to be redirected. cb[1]: its class; cb[2]: its original priority; cb[3]: the class of its
 * queue in the ifb. For its return, cb[4] repeats the mark, and its class is in cb[3] by then: fq_codel uses the first
 * two words, and the kernel redirects a clone without a socket.
 */
#define REDIRECT_MAGIC 0x6a7e0001u

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

/* Where fq_codel separates the flows of a limit, it has one queue. */
static __always_inline __u32 only_queue_of(__u32 class)
{
	return (class & ~(CLASSES_OF_A_LIMIT - 1)) + 1;
}

/* It returns from the ifb, which sets this bit so that filters skip their action once. */
static __always_inline bool has_returned(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);

	return BPF_CORE_READ_BITFIELD(kernel_skb, tc_skip_classify);
}

/* Whether it returns from the ifb: then its original priority counts again. */
static __always_inline bool take_back(struct __sk_buff *skb)
{
	if (skb->cb[4] != REDIRECT_MAGIC || !has_returned(skb))
		return false;
	skb->priority = skb->cb[2];
	return true;
}

/* The class of a returned packet. */
static __always_inline __u32 class_of_returned(struct __sk_buff *skb)
{
	return skb->cb[3];
}

/* Egress of the ifb: chooses its queue. */
static __always_inline void choose_queue(struct __sk_buff *skb, bool is_fair)
{
	if (skb->cb[0] != REDIRECT_MAGIC)
		return;
	skb->priority = is_fair ? only_queue_of(skb->cb[3]) : skb->cb[3];
	skb->cb[3] = skb->cb[1];
}

/* Marks it for this limit; the filter that follows redirects it. */
static __always_inline void mark_for_redirect(struct __sk_buff *skb, __u32 limit, __u32 hash, __u32 class)
{
	skb->cb[0] = skb->cb[4] = REDIRECT_MAGIC;
	skb->cb[1] = class;
	skb->cb[2] = skb->priority;
	skb->cb[3] = class_of_limit(limit, hash);
}

#endif
