// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits for what containers receive. Their sockets are in another network namespace: as a packet leaves by the veth device that
 * leads there, its socket is looked up in that namespace, and so its cgroup is known. What is limited is marked, for the filter
 * behind (upload.bpf.c) to send it by the intermediate device of what arrives, from where it comes back here.
 *
 *   gw_to_container  egress of the veth devices of containers that have such a limit
 *
 * Only what came by a managed link is limited: not what the host or another container sends. What is in doubt passes.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "admission/told.h"
#include "detour.h"
#include "forwarded.h"
#include "receiver.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1

/* By veth device: the network namespace at its other end, as this one numbers it. */
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

/* `config`: of the link that it came by. */
static __always_inline __u32 limit_of_receiver(struct __sk_buff *skb, const struct gw_link_config *config,
					       const struct packet *p)
{
	__u32 device = skb->ifindex, treatment = 0, *netns = bpf_map_lookup_elem(&namespaces, &device);
	struct gw_forwarded_treatment *told;
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
	/* Who only receives is there, too. */
	note_seen(known);
	told = bpf_map_lookup_elem(&forwarded_treatments, &known->number);
	if (!told)
		return 0;
	if (told->rules)
		treatment = treatment_by_rules(config, p, told->rules);
	return download_limit_of(treatment ? treatment : told->treatment);
}

SEC("tcx/egress")
int gw_to_container(struct __sk_buff *skb)
{
	__u32 came_by = skb->ingress_ifindex; /* 0: it is this host's own */
	struct gw_link_config *config = came_by ? config_of(came_by) : NULL;
	struct packet p = {};
	__u32 limit;

	come_back(skb);
	skb->cb[0] = 0;
	if (has_come_back(skb) || !config)
		return TCX_NEXT;
	if (!read_packet(skb, &p))
		return TCX_NEXT;
	read_ports(skb, &p);
	turn_round(&p);
	limit = limit_of_receiver(skb, config, &p);
	if (limit)
		send_round(skb, limit, hash_of(&p), 0);
	return TCX_NEXT;
}
