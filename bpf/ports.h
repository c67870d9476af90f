/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The local ports of sockets whose downloads are limited or ordered: no other arriving packet needs a closer look.
 * Admission adds a port as the socket sends, so before it can be answered. There are two sets; the daemon clears the
 * older one now and then and makes it the newer, so that only unused ports are removed.
 */
#ifndef GIVEWAY_PORTS_H
#define GIVEWAY_PORTS_H

#include "giveway.h"

enum gw_ports_size {
	GW_PORT_WORDS = 1024,
};

struct gw_ports {
	__u32 newer; /* index of the newer set */
	__u32 reserved;
	__u64 noted[2][GW_PORT_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	/* Not by its type, since Rust would need a default for so large an array. */
	__uint(value_size, sizeof(struct gw_ports));
} download_ports SEC(".maps");

static __always_inline struct gw_ports *all_ports(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&download_ports, &zero);
}

static __always_inline void add_port(struct gw_ports *ports, __u16 port)
{
	__u64 *word = &ports->noted[ports->newer & 1][port >> 6], bit = 1ULL << (port & 63);

	if (!(*word & bit))
		__sync_fetch_and_or(word, bit);
}

static __always_inline bool has_port(const struct gw_ports *ports, __u16 port)
{
	__u32 at = port >> 6;

	return (ports->noted[0][at] | ports->noted[1][at]) >> (port & 63) & 1;
}

#endif
