// SPDX-License-Identifier: GPL-2.0-only
/*
 * What arrives for sockets whose downloads are limited takes a detour: by an intermediate device (ifb), whose queue holds
 * each limit to its rate, and back to where it was.
 *
 *   gw_detour     ingress of each managed link, only while there is such a limit
 *   gw_come_back  egress of the intermediate device, before its queue: where that is down, packets turn back
 *
 * Most packets are asked for nothing but their local port (ports.h). Whatever is in doubt passes: it is not limited, and
 * nothing is lost. Attach this last: what stands before it sees every packet; what comes after it, as filters of clsact
 * and nftables' netdev chains, never sees a packet that takes the detour.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "admission/told.h"
#include "detour.h"
#include "ports.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1
#define IFF_UP 1
#define ENODEV 19

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

/* The intermediate device. */
const volatile __u32 detour_ifindex;
/* The device was found down: nothing takes the detour any more. The daemon sees to what comes next. */
bool is_closed;

struct address {
	__u32 words[4];
};

/* As it arrives, the far end comes first. */
static __always_inline void turn_round(struct packet *p)
{
	struct address *local = (struct address *)p->tuple.local, *remote = (struct address *)p->tuple.remote;
	struct address from = *local;
	__u16 port = p->tuple.local_port;

	*local = *remote;
	*remote = from;
	p->tuple.local_port = p->tuple.remote_port;
	p->tuple.remote_port = port;
}

static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size;

	if (p->tuple.family == AF_INET) {
		__builtin_memcpy(&tuple.ipv4.saddr, p->tuple.remote, 4);
		__builtin_memcpy(&tuple.ipv4.daddr, p->tuple.local, 4);
		tuple.ipv4.sport = bpf_htons(p->tuple.remote_port);
		tuple.ipv4.dport = bpf_htons(p->tuple.local_port);
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(&tuple.ipv6.saddr, p->tuple.remote, 16);
		__builtin_memcpy(&tuple.ipv6.daddr, p->tuple.local, 16);
		tuple.ipv6.sport = bpf_htons(p->tuple.remote_port);
		tuple.ipv6.dport = bpf_htons(p->tuple.local_port);
		size = sizeof(tuple.ipv6);
	}
	if (p->protocol == IPPROTO_TCP)
		return bpf_sk_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	return bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
}

/* And not to be forwarded: a socket that is not connected may have the port of whom it is forwarded to. */
static __noinline bool is_for_this_machine(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup route = {
		.family = p->tuple.family,
		.ifindex = skb->ifindex,
		.l4_protocol = p->protocol,
	};
	long found;

	if (p->tuple.family == AF_INET) {
		__builtin_memcpy(&route.ipv4_src, p->tuple.remote, 4);
		__builtin_memcpy(&route.ipv4_dst, p->tuple.local, 4);
	} else {
		__builtin_memcpy(route.ipv6_src, p->tuple.remote, 16);
		__builtin_memcpy(route.ipv6_dst, p->tuple.local, 16);
	}
	found = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	return found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* What is said of the socket itself; 0: nothing. */
static __always_inline __u32 treatment_told(struct bpf_sock *sk)
{
	struct sock_common *skc = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock_common));
	__u64 cookie = skc->skc_cookie.counter;
	struct gw_treated_socket *told = bpf_map_lookup_elem(&treated_sockets, &cookie);
	struct early_socket *early;

	if (told)
		return told->treatment;
	early = bpf_sk_storage_get(&early_sockets, sk, NULL, 0);
	return early && bpf_ktime_get_coarse_ns() < early->until_ns ? early->treatment : 0;
}

/* The number of the limit for what the socket of this packet receives; 0: none, or it has no socket here. */
static __noinline __u32 limit_of_receiver(struct __sk_buff *skb, const struct packet *p)
{
	struct gw_link_config *config = config_of(skb->ifindex);
	struct bpf_sock *sk = find_socket(skb, p);
	bool is_listener, is_connected;
	__u32 treatment;

	if (!sk)
		return 0;
	is_listener = sk->state == TCP_LISTEN;
	is_connected = sk->dst_port;
	treatment = is_listener ? 0 : treatment_told(sk);
	bpf_sk_release(sk);
	if (is_listener)
		return 0;
	if (!treatment && config && config->packet_rules)
		treatment = treatment_by_rules(config, p, config->packet_rules);
	if (!download_limit_of(treatment))
		return 0;
	if (p->protocol == IPPROTO_UDP && !is_connected && !is_for_this_machine(skb, p))
		return 0;
	return download_limit_of(treatment);
}

/* Always the same for a flow. */
static __always_inline __u32 hash_of(const struct packet *p)
{
	const struct address *remote = (const struct address *)p->tuple.remote;
	__u32 hash = remote->words[0] ^ remote->words[1] ^ remote->words[2] ^ remote->words[3];

	hash ^= (__u32)p->tuple.local_port << 16 | p->tuple.remote_port;
	hash *= 0x9e3779b1;
	hash ^= hash >> 15;
	hash *= 0x85ebca6b;
	return hash >> 24;
}

static __always_inline int take_detour(struct __sk_buff *skb, const struct packet *p, __u32 limit)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	__u32 mtu = 0;

	/* A redirect to a device that is gone is the packet's end. */
	if (bpf_check_mtu(skb, detour_ifindex, &mtu, 0, 0) == -ENODEV)
		return TCX_NEXT;
	/* The other device is an Ethernet. */
	if (kernel_skb->network_header == kernel_skb->mac_header && bpf_skb_change_head(skb, ETH_HEADER_BYTES, 0))
		return TCX_NEXT;
	skb->priority = class_of_limit(limit, hash_of(p));
	return bpf_redirect(detour_ifindex, 0);
}

SEC("tcx/ingress")
int gw_detour(struct __sk_buff *skb)
{
	struct gw_ports *ports = all_ports();
	struct packet p = {};
	__u32 limit;

	if (is_closed || !ports || !read_packet(skb, &p))
		return TCX_NEXT;
	/* Only the first of them has ports: the others would overtake it. */
	if (p.fragment_at || p.more_fragments)
		return TCX_NEXT;
	read_ports(skb, &p);
	turn_round(&p);
	if (!p.tuple.local_port || !is_noted(ports, p.tuple.local_port))
		return TCX_NEXT;
	limit = limit_of_receiver(skb, &p);
	if (!limit)
		return TCX_NEXT;
	note_port(ports, p.tuple.local_port);
	return take_detour(skb, &p, limit);
}

SEC("tcx/egress")
int gw_come_back(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);

	if (kernel_skb->dev->flags & IFF_UP)
		return TCX_NEXT;
	is_closed = true;
	return bpf_redirect(skb->ingress_ifindex, BPF_F_INGRESS);
}
