// SPDX-License-Identifier: GPL-2.0-only
/*
 * Download limits of containers. Their sockets are in another network namespace: as a packet leaves by the veth device
 * that leads there, its socket is looked up in that namespace, which gives its cgroup. A limited packet is marked, and
 * the filter that follows (upload.bpf.c) redirects it to the ifb of downloads, from where it returns here.
 *
 *   gw_to_container  egress of the veth devices of containers with such a limit
 *
 * Only packets that arrived by a managed link are limited, not those from the host or another container. In doubt, a
 * packet passes.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "admission/flow_table.h"
#include "redirect.h"
#include "forwarded.h"
#include "receiver.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1

/* By veth device: the id of the network namespace at its other end. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} namespaces SEC(".maps");

static __noinline __u64 cgroup_of_receiver(struct __sk_buff *skb, const struct packet *p, __u32 netns)
{
	struct bpf_sock *found = find_socket(skb, p, netns);
	struct cgroup *cgroup;
	struct sock *sk;
	__u64 id;

	if (!found)
		return 0;
	sk = bpf_core_cast(found, struct sock);
	cgroup = sk->sk_cgrp_data.cgroup;
	id = cgroup ? cgroup->kn->id : 0;
	bpf_sk_release(found);
	return id;
}

/* `config`: of the link that it arrived by. */
static __always_inline __u32 limit_of_receiver(struct __sk_buff *skb, const struct gw_link_config *config,
					       const struct packet *p)
{
	__u32 device = skb->ifindex, treatment = 0, *netns = bpf_map_lookup_elem(&namespaces, &device);
	struct gw_forwarded_treatment *entry;
	struct gw_forwarded *known;
	__u64 cgroup;

	/* Only the first fragment has ports: the others would overtake it. */
	if (!netns || p->fragment_at || p->more_fragments)
		return 0;
	if (p->protocol != IPPROTO_TCP && p->protocol != IPPROTO_UDP)
		return 0;
	cgroup = cgroup_of_receiver(skb, p, *netns);
	known = cgroup ? bpf_map_lookup_elem(&forwarded, &cgroup) : NULL;
	if (!known)
		return 0;
	/* A container that only receives is active, too. */
	update_seen(known);
	entry = bpf_map_lookup_elem(&forwarded_treatments, &known->number);
	if (!entry)
		return 0;
	if (entry->rules)
		treatment = treatment_by_rules(config, p, entry->rules);
	return download_limit_of(treatment ? treatment : entry->treatment);
}

SEC("tcx/egress")
int gw_to_container(struct __sk_buff *skb)
{
	__u32 arrived_by = skb->ingress_ifindex; /* 0: sent by this host */
	struct gw_link_config *config = arrived_by ? config_of(arrived_by) : NULL;
	struct packet p = {};
	__u32 limit;

	take_back(skb);
	skb->cb[0] = 0;
	if (has_returned(skb) || !config)
		return TCX_NEXT;
	if (!read_packet(skb, &p))
		return TCX_NEXT;
	read_ports(skb, &p);
	swap_ends(&p);
	limit = limit_of_receiver(skb, config, &p);
	if (limit)
		mark_for_redirect(skb, limit, hash_of(&p), 0);
	return TCX_NEXT;
}
