/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The slack test: can one more packet be promised its deadline without breaking an earlier promise? It takes O(log n),
 * where n is the number of slots, whatever the number of packets.
 *
 * A promise is kept if, when the link starts at `start`, all work due up to a deadline is done by it:
 *
 *     start + (sum of work due no later than D_j)  <=  D_j        for every promised j
 *
 * Deadlines fall into slots of 2^GW_SLOT_SHIFT ns. A leaf holds the work of its slot and its need: how long before a
 * common end of time that work has to start, to be done by the earliest deadline in the slot. A node holds the work
 * below it and the greatest need below it, where a need counts the work before it in the node (a max-plus sum, as in
 * scheduling theory). An empty node is zero and zero. Since a slot counts as due at its earliest deadline, the test
 * never admits what an exact one refuses; within a slot, packets may be sent in any order.
 *
 * A user beyond its share must leave time to others: its promises may take a quarter of the time to each deadline. So
 * each node holds a second need, on a clock that runs at a quarter of the speed:
 *
 *     start / 4 + (sum of work due no later than D_j)  <=  D_j / 4
 *
 * The slots are a ring: `first` is the earliest that may hold work, and deadlines beyond the ring count as due at its
 * end.
 *
 * Plain C: a test compares it with an exact scan. For the verifier's sake the loops keep no trace of which branch was
 * taken, so that it need not follow both: a bit's effect is forgotten when the bit is shifted out.
 */
#ifndef GIVEWAY_SLACK_H
#define GIVEWAY_SLACK_H

#define GW_SLOT_SHIFT 15 /* 32.8 us */
#define GW_LEVELS 13
#define GW_SLOTS (1u << GW_LEVELS) /* 268 ms ahead */
#define GW_NODES (2 * GW_SLOTS)

/* Deadlines are counted back from here: 73 years of uptime. */
#define GW_END_OF_TIME (1LL << 61)
#define GW_CROWD_SHIFT 2

struct gw_slack {
	__s64 work_ns;
	__s64 need_ns;  /* GW_END_OF_TIME less the latest start */
	__s64 crowd_ns; /* the same with all times at a quarter */
};

struct gw_slack_tree {
	struct gw_slack node[GW_NODES]; /* 1 is the root, the children of n are 2n and 2n + 1 */
	__u64 first;                    /* slot, not wrapped */
};

/* Keeps the compiler from turning a mask back into a branch, and from using a number's known range. */
#define gw_opaque(x) asm volatile("" : "+r"(x))

static __always_inline __s64 slack_max(__s64 a, __s64 b)
{
	return a > b ? a : b;
}

static __always_inline __s64 slack_min(__s64 a, __s64 b)
{
	return a < b ? a : b;
}

/*
 * The work of `a`, then that of `b`. By pointers: clang 19 forgets the alignment of a struct passed by value, and reads
 * it byte by byte.
 */
static __always_inline struct gw_slack slack_join(const struct gw_slack *a, const struct gw_slack *b)
{
	return (struct gw_slack){
		.work_ns = a->work_ns + b->work_ns,
		.need_ns = slack_max(a->need_ns, b->need_ns + a->work_ns),
		.crowd_ns = slack_max(a->crowd_ns, b->crowd_ns + a->work_ns),
	};
}

static __always_inline const struct gw_slack *slack_sibling(const struct gw_slack_tree *t, __u32 node)
{
	return &t->node[(node ^ 1) & (GW_NODES - 1)];
}

/*
 * Scans this many levels up from a leaf. Each left node adds its right sibling: all later work, up to the end of these
 * levels.
 */
static __noinline int slack_later(const struct gw_slack_tree *t, __u32 leaf, __u32 levels, struct gw_slack *found)
{
	__u32 node = GW_SLOTS + leaf;
	struct gw_slack sum = {};

#pragma clang loop unroll(disable)
	for (__u32 level = 0; level < GW_LEVELS && level < levels; level++, node >>= 1)
		if (!(node & 1))
			sum = slack_join(&sum, slack_sibling(t, node));
	*found = sum;
	return 0;
}

/* The same with left siblings: all earlier work. */
static __noinline int slack_earlier(const struct gw_slack_tree *t, __u32 leaf, __u32 levels, struct gw_slack *found)
{
	__u32 node = GW_SLOTS + leaf;
	struct gw_slack sum = {};

#pragma clang loop unroll(disable)
	for (__u32 level = 0; level < GW_LEVELS && level < levels; level++, node >>= 1)
		if (node & 1)
			sum = slack_join(slack_sibling(t, node), &sum);
	*found = sum;
	return 0;
}

/*
 * The position of the highest set bit of a number below 2^16; 0 for 0. By factors of 0 and 1: newer verifiers follow
 * both ways of a mask of no or of all bits.
 */
static __always_inline __u32 slack_highest_bit(__u32 number)
{
	__u32 found = 0;

#pragma clang loop unroll(full)
	for (__u32 half = 8; half; half >>= 1) {
		__u32 high = number >> half, reaches;

		gw_opaque(high);
		reaches = -high >> 31;
		gw_opaque(reaches);
		number >>= half * reaches;
		found += half * reaches;
	}
	return found;
}

static __always_inline __u32 slack_leaf(__u64 slot)
{
	return slot & (GW_SLOTS - 1);
}

static __always_inline __u64 slack_slot(__u64 deadline_ns)
{
	return deadline_ns >> GW_SLOT_SHIFT;
}

/*
 * All work due after this leaf's slot: from the leaf on, then up to the ring's first slot. Where that one lies before
 * the leaf in the tree, the ring wraps to the tree's start; else both scans end where they are siblings.
 */
static __always_inline struct gw_slack slack_after(const struct gw_slack_tree *t, __u32 leaf)
{
	__u32 first = slack_leaf(t->first), levels = slack_highest_bit(leaf ^ first);
	__u32 wraps = (first - 1 - leaf) >> 31, nothing = 0;
	struct gw_slack next, beyond;

	gw_opaque(wraps);
	gw_opaque(nothing);
	levels += (GW_LEVELS - levels) * wraps;
	/*
	 * `nothing` makes it a separate number: else the verifier follows the second scan for each length of the first.
	 */
	slack_later(t, leaf, levels ^ nothing, &next);
	slack_earlier(t, first, levels, &beyond);
	return slack_join(&next, &beyond);
}

/* Updates the nodes above a leaf. */
static __noinline void slack_climb(struct gw_slack_tree *t, __u32 leaf)
{
#pragma clang loop unroll(disable)
	for (int level = 1; level <= GW_LEVELS; level++) {
		__u32 node = ((GW_SLOTS + leaf) >> level) & (GW_SLOTS - 1);

		t->node[node] = slack_join(&t->node[2 * node], &t->node[2 * node + 1]);
	}
}

static __always_inline struct gw_slack *slack_at(struct gw_slack_tree *t, __u32 leaf)
{
	return &t->node[(GW_SLOTS + leaf) & (GW_NODES - 1)];
}

/* The latest start that keeps one more packet in time, and the latest that keeps the others in time. */
struct gw_latest {
	__s64 own_ns;
	__s64 others_ns;
	__s64 crowd_ns; /* that leaves three quarters of the time to others */
};

static __always_inline struct gw_latest slack_latest_start(struct gw_slack_tree *t, __u64 slot, __s64 deadline_ns,
							   __s64 work_ns)
{
	__u32 leaf = slack_leaf(slot);
	const struct gw_slack *here = slack_at(t, leaf);
	struct gw_slack after = slack_after(t, leaf);
	__s64 before_ns = t->node[1].work_ns - after.work_ns - here->work_ns;
	struct gw_slack others = slack_join(here, &after);

	return (struct gw_latest){
		.own_ns = deadline_ns - before_ns - here->work_ns - work_ns,
		.others_ns = GW_END_OF_TIME - others.need_ns - before_ns - work_ns,
		.crowd_ns = slack_min((deadline_ns >> GW_CROWD_SHIFT) - here->work_ns,
				      (GW_END_OF_TIME >> GW_CROWD_SHIFT) - others.crowd_ns) - before_ns - work_ns,
	};
}

static __always_inline void slack_add(struct gw_slack_tree *t, __u64 slot, __s64 deadline_ns, __s64 work_ns)
{
	__u32 leaf = slack_leaf(slot);
	struct gw_slack *here = slack_at(t, leaf);

	here->need_ns = slack_max(here->need_ns - here->work_ns, GW_END_OF_TIME - deadline_ns) + here->work_ns + work_ns;
	here->crowd_ns = slack_max(here->crowd_ns - here->work_ns, (GW_END_OF_TIME - deadline_ns) >> GW_CROWD_SHIFT) +
			 here->work_ns + work_ns;
	here->work_ns += work_ns;
	slack_climb(t, leaf);
}

/* A slot's earliest deadline stays until the slot is empty. */
static __always_inline void slack_remove(struct gw_slack_tree *t, __u64 slot, __s64 work_ns)
{
	__u32 leaf = slack_leaf(slot);
	struct gw_slack *here = slack_at(t, leaf);

	here->need_ns -= work_ns;
	here->crowd_ns -= work_ns;
	here->work_ns -= work_ns;
	if (here->work_ns <= 0)
		*here = (struct gw_slack){};
	slack_climb(t, leaf);
}

static __always_inline void slack_clear(struct gw_slack_tree *t, __u64 slot)
{
	__u32 leaf = slack_leaf(slot);

	*slack_at(t, leaf) = (struct gw_slack){};
	slack_climb(t, leaf);
}

#endif
