/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The marks of a packet's class that leave this machine: the DSCP for the network, and skb->priority where the Wi-Fi
 * driver does not map that DSCP. Runs after the stamp, which may have set skb->priority for htb; then no class has a
 * user priority. Decides nothing.
 */
#ifndef GIVEWAY_ADMISSION_MARK_H
#define GIVEWAY_ADMISSION_MARK_H

#include "classify.h"

#define IPV4_CHECKSUM_AT 10

/* The DSCP is in the first two bytes of either header. The ECN bits stay. On failure the packet stays unchanged. */
static __noinline int write_dscp(struct __sk_buff *skb, const struct packet *p, __u32 dscp)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	__u32 at = kernel_skb->network_header - kernel_skb->mac_header; /* the packet begins with the latter */
	bool is_ipv4 = p->tuple.family == AF_INET;
	__u32 shift = is_ipv4 ? 2 : 6;
	__be16 before, after;

	if (load(skb, 0, &before, sizeof(before)))
		return 0;
	after = bpf_htons((bpf_ntohs(before) & ~(0x3f << shift)) | dscp << shift);
	if (is_ipv4 && bpf_l3_csum_replace(skb, at + IPV4_CHECKSUM_AT, before, after, sizeof(after)))
		return 0;
	/* In IPv4 the two changes cancel out in a sum over the packet. */
	return bpf_skb_store_bytes(skb, at, &after, sizeof(after), is_ipv4 ? 0 : BPF_F_RECOMPUTE_CSUM);
}

static __always_inline void mark(struct __sk_buff *skb, const struct gw_link_config *config, const struct packet *p,
				 enum gw_class class)
{
	const struct gw_class_mark *mark = &config->mark_of_class[class & 7];

	if (mark->dscp && mark->dscp != (GW_WRITE_DSCP | p->dscp))
		write_dscp(skb, p, mark->dscp & ~GW_WRITE_DSCP);
	if (mark->user_priority)
		skb->priority = GW_USER_PRIORITIES + mark->user_priority;
}

#endif
