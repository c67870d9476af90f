/* SPDX-License-Identifier: GPL-2.0-only */
/* Cgroups whose packets are forwarded: a map that forwarded.bpf.c and container.bpf.c share. */
#ifndef GIVEWAY_FORWARDED_H
#define GIVEWAY_FORWARDED_H

#include "queueing.h"

/* By cgroup; if there are too many, the one not seen for longest is removed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, GW_FORWARDED_CGROUPS);
	__type(key, __u64);
	__type(value, struct gw_forwarded);
} forwarded SEC(".maps");

#define SEEN_UPDATE_NS 1000000000ULL

/* True if the last time was more than a second ago. */
static __always_inline bool update_seen(struct gw_forwarded *known)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();

	if (now_ns - known->seen_ns <= SEEN_UPDATE_NS)
		return false;
	known->seen_ns = now_ns;
	return true;
}

#endif
