/* SPDX-License-Identifier: GPL-2.0-only */
/* The configuration of each managed link, written by the daemon, for every program that sees its packets. */
#ifndef GIVEWAY_LINK_CONFIG_H
#define GIVEWAY_LINK_CONFIG_H

#include "queueing.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS);
	__type(key, __u32);
	__type(value, struct gw_link_config);
} link_config SEC(".maps");

static __always_inline struct gw_link_config *config_at(__u32 number)
{
	return bpf_map_lookup_elem(&link_config, &number);
}

static __noinline struct gw_link_config *config_of_another(__u32 ifindex)
{
	for (__u32 number = 1; number < GW_LINKS; number++) {
		struct gw_link_config *config = config_at(number);

		if (!config)
			break;
		if (config->ifindex == ifindex)
			return config;
	}
	return NULL;
}

/* Of this interface; NULL: not managed. Most packets leave by number 0. */
static __always_inline struct gw_link_config *config_of(__u32 ifindex)
{
	struct gw_link_config *first = config_at(0);

	return first && first->ifindex == ifindex ? first : config_of_another(ifindex);
}

#endif
