/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets to the link's own subnets, where the link's rate does not apply. They are sent after the shaped traffic, and
 * are neither promised nor counted. A rate limit holds for them as for all others.
 */
#ifndef GIVEWAY_ADMISSION_LOCAL_H
#define GIVEWAY_ADMISSION_LOCAL_H

#include "flow_table.h"

/* Beside the band, in word 0 of the stamp. */
#define STAMP_LOCAL 8

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, GW_LOCAL_NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gw_local_network);
	__type(value, __u8);
} local_networks SEC(".maps");

static __noinline bool is_in_own_subnet(const struct gw_link_config *config, const struct packet *p)
{
	struct gw_local_network key = { .prefix_bits = 32 + 128 };

	if (!config || !p)
		return false;
	key.link = 2 * config->number + (p->tuple.family == AF_INET6);
	__builtin_memcpy(key.address, p->tuple.remote, sizeof(key.address));
	return bpf_map_lookup_elem(&local_networks, &key);
}

/* No fragments: the later ones do not show which limit the first one has. */
static __always_inline bool is_local(const struct gw_link_config *config, const struct packet *p)
{
	return !p->fragment_at && !p->more_fragments && is_in_own_subnet(config, p);
}

#endif
