/* SPDX-License-Identifier: GPL-2.0-only */
/* Queries on sockets for several programs. Writes to none. */
#ifndef GIVEWAY_SOCKETS_H
#define GIVEWAY_SOCKETS_H

#include "egress.h"
#include "kernel_skb.h"

/* The managed network namespace. Hooks are machine-wide; everything filters by it. */
const volatile __u32 netns_inum;

static __always_inline bool in_our_netns(const struct sock *sk)
{
	const struct net *net = bpf_core_cast(sk, struct sock)->__sk_common.skc_net.net;

	return net && net->ns.inum == netns_inum;
}

static __always_inline bool is_our(const struct sock *sk, __u16 protocol)
{
	__u16 family = sk->__sk_common.skc_family;

	return in_our_netns(sk) && (family == AF_INET || family == AF_INET6) && sk->sk_protocol == protocol;
}

static __always_inline bool is_our_tcp(const struct sock *sk)
{
	return is_our(sk, IPPROTO_TCP);
}

/* Otherwise it is only a `struct sock_common`. */
static __always_inline bool is_full(const struct sock *sk)
{
	__u8 state = sk->__sk_common.skc_state;

	return state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV;
}

/* A connection: not a listener, and none of the kernel's short records before and after one. */
static __always_inline bool is_connection(const struct sock_common *skc)
{
	unsigned char state = skc->skc_state;

	return state != TCP_LISTEN && state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV && state != TCP_CLOSE;
}

/* The TCP socket of an element of iter/tcp, if it is in our namespace (listeners included), or NULL. */
static __always_inline struct tcp_sock *our_socket(struct sock_common *skc)
{
	struct tcp_sock *tp = skc ? bpf_skc_to_tcp_sock(skc) : NULL;

	return tp && is_our_tcp((struct sock *)tp) ? tp : NULL;
}

/* The same of connections alone. */
static __always_inline struct tcp_sock *our_connection(struct sock_common *skc)
{
	return skc && is_connection(skc) ? our_socket(skc) : NULL;
}

/*
 * If a record does not fit, the kernel shows the same element again in the next read. So check first, and do nothing to
 * a socket whose record would be lost. The failed write tells the kernel that the buffer is full.
 */
static __always_inline bool has_room(struct seq_file *seq, void *record, __u32 size)
{
	if (seq->size > seq->count + size)
		return true;
	bpf_seq_write(seq, record, size);
	return false;
}

#endif
