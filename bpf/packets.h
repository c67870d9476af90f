/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Network headers as they are on the wire.
 */
#ifndef GIVEWAY_PACKETS_H
#define GIVEWAY_PACKETS_H

#define DSCP_LE 1 /* RFC 8622 */
#define ETH_HEADER_BYTES 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8

struct ipv4_header {
	__u8 version_and_words;
	__u8 tos;
	__be16 total_bytes;
	__be16 id;
	__be16 fragment; /* 3 flags, offset in 8 bytes */
	__u8 ttl;
	__u8 protocol;
	__be16 checksum;
	__u8 from[4];
	__u8 to[4];
};

struct ipv6_header {
	__be32 version_class_flow;
	__be16 payload_bytes;
	__u8 next;
	__u8 hops;
	__u8 from[16];
	__u8 to[16];
};

/* At the beginning of both TCP and UDP. */
struct ports {
	__be16 from;
	__be16 to;
};

#endif
