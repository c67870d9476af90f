// SPDX-License-Identifier: GPL-2.0-only
/*
 * What containers send has no socket in this namespace, but until it is routed the packet still knows the one that sent it.
 * Where it comes out of a veth pair, its cgroup's number is written on it, for admission at the egress of the link: in
 * skb->tc_index, which neither bridges nor routing nor address translation change. A cgroup that is met for the first
 * time is only noted; the daemon gives it a number where anything is to be said of it.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include "forwarded.h"

char LICENSE[] SEC("license") = "GPL";

/* Puts the shared type into the skeleton. */
struct gw_forwarded_treatment *treatment_type __attribute__((unused));

#define TCX_NEXT -1

SEC("tcx/ingress")
int gw_say_whose(struct __sk_buff *skb)
{
	__u64 cgroup = bpf_skb_cgroup_id(skb);
	struct gw_forwarded *known;

	/* Another namespace may have written there. */
	skb->tc_index = 0;
	if (!cgroup)
		return TCX_NEXT;
	known = bpf_map_lookup_elem(&forwarded, &cgroup);
	if (!known) {
		struct gw_forwarded found = { .seen_ns = bpf_ktime_get_coarse_ns(), .device = skb->ifindex };

		bpf_map_update_elem(&forwarded, &cgroup, &found, BPF_NOEXIST);
		return TCX_NEXT;
	}
	if (note_seen(known))
		known->device = skb->ifindex;
	skb->tc_index = known->number;
	return TCX_NEXT;
}
