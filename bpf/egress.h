/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef GIVEWAY_EGRESS_H
#define GIVEWAY_EGRESS_H

/* The device of the socket's latest route; NULL where there is none yet. */
static __always_inline struct net_device *egress_device(const struct sock *sk)
{
	struct dst_entry *dst = sk->sk_dst_cache;

	return dst ? dst->dev : NULL;
}

#endif
