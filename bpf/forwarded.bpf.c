// SPDX-License-Identifier: GPL-2.0-only
/*
 * A container's packet has no socket in this namespace, but until it is routed it still has the socket that sent it.
 * Where it leaves a veth pair, this program writes its cgroup's number into skb->tc_index, for admission at the link's
 * egress; bridges, routing and address translation do not change that field. A new cgroup is only recorded; the daemon
 * gives it a number where it has a treatment.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include "forwarded.h"

char LICENSE[] SEC("license") = "GPL";

/* Puts the shared type into the skeleton. */
struct gw_forwarded_treatment *treatment_type __attribute__((unused));

#define TCX_NEXT -1

SEC("tcx/ingress")
int gw_write_cgroup(struct __sk_buff *skb)
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
	if (update_seen(known))
		known->device = skb->ifindex;
	skb->tc_index = known->number;
	return TCX_NEXT;
}
