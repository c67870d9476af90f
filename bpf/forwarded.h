/* SPDX-License-Identifier: GPL-2.0-only */
/* What is known of cgroups whose packets are forwarded: forwarded.bpf.c and container.bpf.c use the same map. */
#ifndef GIVEWAY_FORWARDED_H
#define GIVEWAY_FORWARDED_H

#include "queueing.h"

/* By cgroup; whoever makes many of them pushes out what was not seen for longest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GW_FORWARDED_CGROUPS);
	__type(key, __u64);
	__type(value, struct gw_forwarded);
} forwarded SEC(".maps");

#define SEEN_AGAIN_NS 1000000000ULL

/* True where that was longer than a second ago. */
static __always_inline bool note_seen(struct gw_forwarded *known)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();

	if (now_ns - known->seen_ns <= SEEN_AGAIN_NS)
		return false;
	known->seen_ns = now_ns;
	return true;
}

#endif
