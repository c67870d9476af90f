/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reads a packet for the programs at tcx: its addresses and ports, its protocol and the remaining time that an IP
 * option states. Reports an unreadable packet as such, and guesses nothing; the packet is not changed.
 */
#ifndef GIVEWAY_READ_PACKET_H
#define GIVEWAY_READ_PACKET_H

#include "giveway.h"
#include "kernel_skb.h"
#include "packets.h"

/* RFC 4727's experimental numbers: copied into fragments; a 32-bit time in microseconds follows, big-endian. */
#define IPV4_OPTION_DEADLINE 0x9e
#define IPV6_OPTION_DEADLINE 0x1e
#define IPV6_EXTENSIONS 4

/* What is read of a packet. */
struct packet {
	struct gw_tuple tuple;
	__u32 id;           /* of the fragmented datagram */
	__u32 option_us;    /* remaining time stated by an IP option */
	__u32 transport_at; /* bytes from the network header */
	__u32 end_at;
	__u16 fragment_at; /* bytes of the datagram before this fragment */
	__u8 protocol;
	__u8 dscp;
	bool more_fragments;
	bool has_option;
};

static __always_inline int load(struct __sk_buff *skb, __u32 at, void *to, __u32 bytes)
{
	return bpf_skb_load_bytes_relative(skb, at, to, bytes, BPF_HDR_START_NET);
}

/*
 * Searches the option that states the remaining time. An option of either family is type, length (IPv6: of the data;
 * IPv4: of the whole option), data. One-byte options are padding.
 */
static __noinline bool read_options(struct __sk_buff *skb, struct packet *p, __u32 at, __u32 end, __u8 wanted)
{
	bool is_ipv4 = wanted == IPV4_OPTION_DEADLINE, found = false;
	int n;

	bpf_for(n, 0, 40) {
		__u8 option[6] = {};
		__u32 bytes;

		if (at + 2 > end || load(skb, at, option, 2) || (is_ipv4 && option[0] == 0))
			break;
		if (option[0] <= is_ipv4) { /* IPv4: no operation; IPv6: one byte of padding */
			at++;
			continue;
		}
		bytes = is_ipv4 ? option[1] : option[1] + 2;
		if (bytes < 2)
			break;
		if (option[0] == wanted && bytes == sizeof(option) && at + bytes <= end && !load(skb, at, option, 6)) {
			p->option_us = (__u32)option[2] << 24 | option[3] << 16 | option[4] << 8 | option[5];
			found = true;
			break;
		}
		at += bytes;
	}
	return found;
}

static __always_inline bool read_ipv4(struct __sk_buff *skb, struct packet *p, const struct ipv4_header *header)
{
	struct ipv4_header h = *header;
	__u32 header_bytes;

	header_bytes = (h.version_and_words & 0xf) * 4;
	if (header_bytes < sizeof(h))
		return false;
	p->tuple.family = AF_INET;
	__builtin_memcpy(p->tuple.local, h.from, 4);
	__builtin_memcpy(p->tuple.remote, h.to, 4);
	p->protocol = h.protocol;
	p->dscp = h.tos >> 2;
	p->id = h.id;
	p->fragment_at = (bpf_ntohs(h.fragment) & 0x1fff) * 8;
	p->more_fragments = bpf_ntohs(h.fragment) & 0x2000;
	p->transport_at = header_bytes;
	p->end_at = bpf_ntohs(h.total_bytes);
	if (header_bytes > sizeof(h))
		p->has_option = read_options(skb, p, sizeof(h), header_bytes, IPV4_OPTION_DEADLINE);
	return true;
}

static __noinline bool read_ipv6(struct __sk_buff *skb, struct packet *p)
{
	struct ipv6_header h;
	__u32 at = sizeof(h);
	bool broken = false;
	__u8 next;
	int n;

	if (load(skb, 0, &h, sizeof(h)))
		return false;
	p->tuple.family = AF_INET6;
	__builtin_memcpy(p->tuple.local, h.from, 16);
	__builtin_memcpy(p->tuple.remote, h.to, 16);
	p->dscp = (bpf_ntohl(h.version_class_flow) >> 22) & 0x3f;
	p->end_at = sizeof(h) + bpf_ntohs(h.payload_bytes);
	next = h.next;
	bpf_for(n, 0, IPV6_EXTENSIONS) {
		__u8 extension[8];

		if (next != 0 && next != 43 && next != 44 && next != 60)
			break;
		if (load(skb, at, extension, sizeof(extension))) {
			broken = true;
			break;
		}
		if (next == 44) { /* fragment */
			__u16 offset = extension[2] << 8 | extension[3];

			p->fragment_at = offset & 0xfff8;
			p->more_fragments = offset & 1;
			__builtin_memcpy(&p->id, extension + 4, 4);
			at += 8;
		} else {
			__u32 bytes = (extension[1] + 1) * 8;

			if (next != 43)
				p->has_option |= read_options(skb, p, at + 2, at + bytes, IPV6_OPTION_DEADLINE);
			at += bytes;
		}
		next = extension[0];
	}
	p->protocol = next;
	p->transport_at = at;
	return !broken;
}

/* The type after VLAN tags in the packet. 0: unreadable. */
static __noinline __u32 type_behind_tags(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	__u32 at = kernel_skb->network_header - kernel_skb->mac_header - sizeof(__be16);
	__be16 type;

	return bpf_skb_load_bytes_relative(skb, at, &type, sizeof(type), BPF_HDR_START_MAC) ? 0 : type;
}

/*
 * The first bytes of the network header. After an Ethernet header they are read in place: a call costs more than
 * everything else here.
 */
static __always_inline int load_header(struct __sk_buff *skb, struct ipv4_header *header)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	const void *data = (const void *)(long)skb->data, *end = (const void *)(long)skb->data_end;
	const __u32 *from = data + ETH_HEADER_BYTES;
	__u32 *to = (__u32 *)header;

	if (kernel_skb->network_header - kernel_skb->mac_header != ETH_HEADER_BYTES || (const void *)(from + 5) > end)
		return load(skb, 0, header, sizeof(*header));
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
	to[4] = from[4];
	return 0;
}

/* Checks the type, since a frame may only look like IP: encrypted (MACsec), labelled (MPLS), or of a field bus. */
static __always_inline bool read_packet(struct __sk_buff *skb, struct packet *p)
{
	__u32 type = skb->protocol;
	struct ipv4_header h __attribute__((aligned(8)));

	if (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD))
		type = type_behind_tags(skb);
	/* IPv6 headers are longer. */
	if (load_header(skb, &h))
		return false;
	if (type == bpf_htons(ETH_P_IP))
		return h.version_and_words >> 4 == 4 && read_ipv4(skb, p, &h);
	return type == bpf_htons(ETH_P_IPV6) && h.version_and_words >> 4 == 6 && read_ipv6(skb, p);
}

/* Called only where ports are needed. */
static __always_inline void read_ports(struct __sk_buff *skb, struct packet *p)
{
	struct ports ports;

	if (!p->fragment_at && (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP) &&
	    !load(skb, p->transport_at, &ports, sizeof(ports))) {
		p->tuple.local_port = bpf_ntohs(ports.from);
		p->tuple.remote_port = bpf_ntohs(ports.to);
	}
}

#endif
