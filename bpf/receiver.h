/* SPDX-License-Identifier: GPL-2.0-only */
/* The socket that receives a packet, in this network namespace or in one behind a veth pair. */
#ifndef GIVEWAY_RECEIVER_H
#define GIVEWAY_RECEIVER_H

#include "read_packet.h"

struct address {
	__u32 words[4];
};

/* On arrival, the source is the remote host. */
static __always_inline void swap_ends(struct packet *p)
{
	struct address *local = (struct address *)p->tuple.local, *remote = (struct address *)p->tuple.remote;
	struct address from = *local;
	__u16 port = p->tuple.local_port;

	*local = *remote;
	*remote = from;
	p->tuple.local_port = p->tuple.remote_port;
	p->tuple.remote_port = port;
}

/* Of a packet whose ends were swapped. Returns its length. */
static __always_inline __u32 write_tuple(struct bpf_sock_tuple *tuple, const struct packet *p)
{
	if (p->tuple.family == AF_INET) {
		__builtin_memcpy(&tuple->ipv4.saddr, p->tuple.remote, 4);
		__builtin_memcpy(&tuple->ipv4.daddr, p->tuple.local, 4);
		tuple->ipv4.sport = bpf_htons(p->tuple.remote_port);
		tuple->ipv4.dport = bpf_htons(p->tuple.local_port);
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(&tuple->ipv6.saddr, p->tuple.remote, 16);
	__builtin_memcpy(&tuple->ipv6.daddr, p->tuple.local, 16);
	tuple->ipv6.sport = bpf_htons(p->tuple.remote_port);
	tuple->ipv6.dport = bpf_htons(p->tuple.local_port);
	return sizeof(tuple->ipv6);
}

/*
 * Of a packet whose ends were swapped. `netns`: BPF_F_CURRENT_NETNS, or the id of another one. The caller releases the
 * socket.
 */
static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, const struct packet *p, __u64 netns)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size = write_tuple(&tuple, p);

	if (p->protocol == IPPROTO_TCP)
		return bpf_sk_lookup_tcp(skb, &tuple, size, netns, 0);
	return bpf_sk_lookup_udp(skb, &tuple, size, netns, 0);
}

/* Constant for a flow. */
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

#endif
