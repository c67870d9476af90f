// SPDX-License-Identifier: GPL-2.0-only
/*
 * Filter on the socket of the peers' reports: only datagrams from the link itself, of a possible length, wake the
 * daemon.
 *
 * A peer sends with the greatest TTL (IPv6: hop limit), and each router lowers it, so nothing from beyond the link
 * arrives with 255 (RFC 5082). Older versions of the protocol sent an ordinary TTL: they are recognised by the first
 * bytes, and counted here as well, so that they do not wake the daemon either. The daemon reads the counts when it
 * likes.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "packets.h"

char LICENSE[] SEC("license") = "GPL";

#define ON_LINK_TTL 255
#define UDP_HEADER_BYTES 8

/* Magic and version of accepted datagrams: the version is the lowest byte. */
const volatile __u32 protocol_word;
const volatile __u32 min_bytes;
const volatile __u32 max_bytes;

struct gw_filtered filtered;

static __always_inline bool is_older(__u32 word)
{
	__u32 version = word & 0xff;

	return word >> 8 == protocol_word >> 8 && version && version < (protocol_word & 0xff);
}

/* The kernel shows the datagram from its UDP header on. */
SEC("socket")
int gw_filter_report(struct __sk_buff *skb)
{
	bool is_ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	struct ipv4_header ipv4 = {};
	struct ipv6_header ipv6 = {};
	__be32 word = 0;

	if (is_ipv4)
		bpf_skb_load_bytes_relative(skb, 0, &ipv4, sizeof(ipv4), BPF_HDR_START_NET);
	else
		bpf_skb_load_bytes_relative(skb, 0, &ipv6, sizeof(ipv6), BPF_HDR_START_NET);
	bpf_skb_load_bytes(skb, UDP_HEADER_BYTES, &word, sizeof(word));
	if (is_older(bpf_ntohl(word))) {
		__sync_fetch_and_add(&filtered.older_version, 1);
		filtered.family = is_ipv4 ? AF_INET : AF_INET6;
		if (is_ipv4)
			__builtin_memcpy(filtered.older_from, ipv4.from, sizeof(ipv4.from));
		else
			__builtin_memcpy(filtered.older_from, ipv6.from, sizeof(ipv6.from));
		return 0;
	}
	if ((is_ipv4 ? ipv4.ttl : ipv6.hops) != ON_LINK_TTL) {
		__sync_fetch_and_add(&filtered.off_link, 1);
		return 0;
	}
	if (skb->len < UDP_HEADER_BYTES + min_bytes || skb->len > UDP_HEADER_BYTES + max_bytes) {
		__sync_fetch_and_add(&filtered.malformed, 1);
		return 0;
	}
	return skb->len;
}
