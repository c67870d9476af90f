/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The slack test: may one more packet be promised its deadline without breaking a promise already given? In
 * O(log n), where n is the resolution of the deadlines, whatever the number of packets.
 *
 * A promise is kept if, when the link starts at `start`, all work due up to a deadline is done by it:
 *
 *     start + (sum of work due no later than D_j)  <=  D_j        for every promised j
 *
 * Deadlines fall into slots of 2^GW_SLOT_SHIFT ns. A leaf holds the work of its slot and its need: how long before a
 * common end of time that work has to start, to be done by the earliest deadline in the slot. A node holds the work
 * below it and the greatest need below it, where a need counts the work before it in the node (a max-plus sum, as in
 * scheduling theory). Nothing at all is zero and zero. Since a slot counts as due at its earliest deadline, the test
 * never admits what an exact one refuses; within a slot, packets may be sent in any order.
 *
 * The slots are a ring: `first` is the earliest that may hold work, and deadlines beyond the ring count as due at its
 * end. Leaves 0 and GW_SLOTS - 1 stay empty, as fences, so that every range is open at both ends.
 *
 * Nothing here branches on data, so that the verifier walks one path. Plain C: a test runs it beside an exact walk.
 */
#ifndef GIVEWAY_SLACK_H
#define GIVEWAY_SLACK_H

#define GW_SLOT_SHIFT 15 /* 32.8 us */
#define GW_LEVELS 13
#define GW_SLOTS (1u << GW_LEVELS)
#define GW_RING (GW_SLOTS - 2) /* 268 ms ahead */
#define GW_NODES (2 * GW_SLOTS)

/* Deadlines are counted back from here: 73 years of uptime. */
#define GW_END_OF_TIME (1LL << 61)

struct gw_slack {
	__s64 work_ns;
	__s64 need_ns; /* GW_END_OF_TIME less the latest start */
};

struct gw_slack_tree {
	struct gw_slack node[GW_NODES]; /* 1 is the root, the children of n are 2n and 2n + 1 */
	__u64 first; /* slot, not wrapped */
};

/* The compiler must not turn a mask back into the branch that it stands for. */
#define gw_opaque(x) asm volatile("" : "+r"(x))

static __always_inline __s64 slack_max(__s64 a, __s64 b)
{
	__s64 below = (a - b) >> 63;

	gw_opaque(below);
	return a - ((a - b) & below);
}

/* What comes first, then what comes next. */
static __always_inline struct gw_slack slack_join(struct gw_slack a, struct gw_slack b)
{
	return (struct gw_slack){
		.work_ns = a.work_ns + b.work_ns,
		.need_ns = slack_max(a.need_ns, b.need_ns + a.work_ns),
	};
}

/* The node where the mask is all ones, nothing where it is 0. */
static __always_inline struct gw_slack slack_pick(const struct gw_slack_tree *t, __u32 node, __s64 mask)
{
	const struct gw_slack *n = &t->node[node & (GW_NODES - 1)];

	return (struct gw_slack){ n->work_ns & mask, n->need_ns & mask };
}

/* The leaves between two others, both left out. */
static __noinline void slack_between(const struct gw_slack_tree *t, __u32 left, __u32 right, struct gw_slack *found)
{
	struct gw_slack low = {}, high = {};
	__u32 l = GW_SLOTS + left, r = GW_SLOTS + right;

	/* Both climb until they are siblings; on the way each takes in the sibling that lies inside. */
#pragma clang loop unroll(disable)
	for (int level = 0; level < GW_LEVELS; level++) {
		__u32 a = l >> level, b = r >> level;
		__s64 apart = (1 - (__s64)(a ^ b)) >> 63;
		__s64 a_is_left = (__s64)(a & 1) - 1, b_is_right = -(__s64)(b & 1);

		gw_opaque(apart);
		gw_opaque(a_is_left);
		gw_opaque(b_is_right);
		low = slack_join(low, slack_pick(t, a ^ 1, apart & a_is_left));
		high = slack_join(slack_pick(t, b ^ 1, apart & b_is_right), high);
	}
	*found = slack_join(low, high);
}

static __always_inline __u32 slack_leaf(__u64 slot)
{
	__u32 leaf = slot % GW_RING + 1;

	/* In range already; the verifier cannot see it, and the compiler must not. */
	gw_opaque(leaf);
	return leaf & (GW_SLOTS - 1);
}

static __always_inline __u64 slack_slot(__u64 deadline_ns)
{
	return deadline_ns >> GW_SLOT_SHIFT;
}

/* Everything due after this leaf's slot. */
static __always_inline struct gw_slack slack_after(const struct gw_slack_tree *t, __u32 leaf)
{
	__u32 first = slack_leaf(t->first);
	__s64 wraps = ((__s64)first - 1 - (__s64)leaf) >> 63; /* first <= leaf: the ring goes on at its beginning */
	struct gw_slack next, beyond;
	__u32 right, rest;

	gw_opaque(wraps);
	right = first + ((GW_SLOTS - 1 - first) & (__u32)wraps);
	rest = 1 + ((first - 1) & (__u32)wraps);
	slack_between(t, leaf, right, &next);
	slack_between(t, 0, rest, &beyond);
	return slack_join(next, beyond);
}

/* Brings the nodes above a leaf up to date. */
static __noinline void slack_climb(struct gw_slack_tree *t, __u32 leaf)
{
#pragma clang loop unroll(disable)
	for (int level = 1; level <= GW_LEVELS; level++) {
		__u32 node = ((GW_SLOTS + leaf) >> level) & (GW_SLOTS - 1);

		t->node[node] = slack_join(t->node[2 * node], t->node[2 * node + 1]);
	}
}

static __always_inline struct gw_slack *slack_at(struct gw_slack_tree *t, __u32 leaf)
{
	return &t->node[(GW_SLOTS + leaf) & (GW_NODES - 1)];
}

/* When a start has to be at the latest for one more packet: for its own sake, and for the others'. */
struct gw_latest {
	__s64 own_ns;
	__s64 others_ns;
};

static __always_inline struct gw_latest slack_latest_start(struct gw_slack_tree *t, __u64 slot, __s64 deadline_ns,
							   __s64 work_ns)
{
	__u32 leaf = slack_leaf(slot);
	struct gw_slack here = *slack_at(t, leaf), after = slack_after(t, leaf);
	__s64 before_ns = t->node[1].work_ns - after.work_ns - here.work_ns;

	return (struct gw_latest){
		.own_ns = deadline_ns - before_ns - here.work_ns - work_ns,
		.others_ns = GW_END_OF_TIME - slack_join(here, after).need_ns - before_ns - work_ns,
	};
}

static __always_inline void slack_add(struct gw_slack_tree *t, __u64 slot, __s64 deadline_ns, __s64 work_ns)
{
	__u32 leaf = slack_leaf(slot);
	struct gw_slack *here = slack_at(t, leaf);

	here->need_ns = slack_max(here->need_ns - here->work_ns, GW_END_OF_TIME - deadline_ns) + here->work_ns + work_ns;
	here->work_ns += work_ns;
	slack_climb(t, leaf);
}

/* The earliest deadline of a slot stays what it was until the slot is empty. */
static __always_inline void slack_remove(struct gw_slack_tree *t, __u64 slot, __s64 work_ns)
{
	__u32 leaf = slack_leaf(slot);
	struct gw_slack *here = slack_at(t, leaf);

	here->need_ns -= work_ns;
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
