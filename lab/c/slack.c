/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The slack test of bpf/slack.h, compiled for this machine: its inline functions get names here, so that the lab can
 * compare it with an exact scan. Decides nothing of its own.
 */
#include <linux/types.h>
#include <stdlib.h>

#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define __noinline __attribute__((noinline))

#include "../../bpf/slack.h"

struct gw_slack_tree *lab_slack_new(__u64 now_ns)
{
	struct gw_slack_tree *tree = calloc(1, sizeof(*tree));

	if (tree)
		tree->first = slack_slot(now_ns);
	return tree;
}

/* As advance() of bpf/link.h, for promises that are all kept. */
void lab_slack_advance(struct gw_slack_tree *tree, __u64 now_ns)
{
	while (tree->first < slack_slot(now_ns) && !slack_at(tree, slack_leaf(tree->first))->work_ns)
		tree->first++;
}

struct gw_latest lab_slack_latest(struct gw_slack_tree *tree, __u64 deadline_ns, __s64 work_ns)
{
	return slack_latest_start(tree, slack_slot(deadline_ns), deadline_ns, work_ns);
}

void lab_slack_add(struct gw_slack_tree *tree, __u64 deadline_ns, __s64 work_ns)
{
	slack_add(tree, slack_slot(deadline_ns), deadline_ns, work_ns);
}

void lab_slack_remove(struct gw_slack_tree *tree, __u64 deadline_ns, __s64 work_ns)
{
	slack_remove(tree, slack_slot(deadline_ns), work_ns);
}

__u64 lab_slack_slot(__u64 deadline_ns)
{
	return slack_slot(deadline_ns);
}
