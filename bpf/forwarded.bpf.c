// SPDX-License-Identifier: GPL-2.0-only
/*
 * What containers send has no socket in this namespace, but until it is routed the packet still knows the one that sent it.
 * Where it comes out of a veth pair, its cgroup's word is written on it, for admission at the egress of the link: in
 * skb->tc_index, which neither bridges nor routing nor address translation change. A cgroup that is met for the first
 * time is only noted; the daemon says later what it means.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include "queueing.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1
#define SEEN_AGAIN_NS 1000000000ULL

/* By cgroup; whoever makes many of them pushes out what was not seen for longest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct gw_forwarded);
} forwarded SEC(".maps");

SEC("tcx/ingress")
int gw_say_whose(struct __sk_buff *skb)
{
	__u64 cgroup = bpf_skb_cgroup_id(skb), now_ns;
	struct gw_forwarded *known;

	/* Another namespace may have written there. */
	skb->tc_index = 0;
	if (!cgroup)
		return TCX_NEXT;
	now_ns = bpf_ktime_get_coarse_ns();
	known = bpf_map_lookup_elem(&forwarded, &cgroup);
	if (!known) {
		struct gw_forwarded found = { .seen_ns = now_ns };

		bpf_map_update_elem(&forwarded, &cgroup, &found, BPF_NOEXIST);
		return TCX_NEXT;
	}
	if (now_ns - known->seen_ns > SEEN_AGAIN_NS)
		known->seen_ns = now_ns;
	skb->tc_index = known->word;
	return TCX_NEXT;
}
