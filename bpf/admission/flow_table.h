/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The flow table: the treatment of sockets, connections just made, forwarded cgroups and packets. One decision serves
 * both directions, for packets that leave (admission.bpf.c) and that arrive (download.bpf.c); the daemon makes both use
 * the same maps.
 */
#ifndef GIVEWAY_ADMISSION_FLOW_TABLE_H
#define GIVEWAY_ADMISSION_FLOW_TABLE_H

#include "../link_config.h"
#include "../read_packet.h"

/* By socket cookie, whatever DSCP the packets have. Written by the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GW_TREATED_SOCKETS);
	__type(key, __u64);
	__type(value, struct gw_treated_socket);
} treated_sockets SEC(".maps");

/* The treatment of a socket that has just connected, from its process. */
struct new_socket {
	__u64 until_ns;
	__u32 treatment;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct new_socket);
} new_sockets SEC(".maps");

/* By the number of a cgroup whose packets are forwarded. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_FIRST_FORWARDED + GW_FORWARDED_CGROUPS);
	__type(key, __u32);
	__type(value, struct gw_forwarded_treatment);
} forwarded_treatments SEC(".maps");

/* In order; the first match counts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_PACKET_RULES);
	__type(key, __u32);
	__type(value, struct gw_packet_rule);
} packet_rules SEC(".maps");

/* Cache of the rules' result for recent flows. */
struct flow_key {
	struct gw_background_key flow;
	__u32 rules_of;
	__u8 protocol;
	__u8 dscp;
	__u8 link;  /* its number: a rule may name one link */
	__u8 rules; /* how many of the rules count */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, __u32);
} treatment_of_flows SEC(".maps");

static __always_inline bool matches(const struct gw_packet_rule *rule, const struct gw_link_config *config,
				    const struct packet *p)
{
	const __u64 *wanted = (const __u64 *)rule->remote, *mask = (const __u64 *)rule->mask;
	const __u64 *remote = (const __u64 *)p->tuple.remote;

	if ((rule->remote_port && rule->remote_port != p->tuple.remote_port) ||
	    (rule->local_port && rule->local_port != p->tuple.local_port) ||
	    (rule->protocol && rule->protocol != p->protocol) || (rule->dscp != GW_ANY_DSCP && rule->dscp != p->dscp) ||
	    (rule->ifindex && rule->ifindex != config->ifindex))
		return false;
	return !rule->family || (rule->family == p->tuple.family && (remote[0] & mask[0]) == wanted[0] &&
				 (remote[1] & mask[1]) == wanted[1]);
}

/* The treatment of the first match among the first `rules` packet rules; 0: none. */
static __noinline __u32 first_match(const struct gw_link_config *config, const struct packet *p, __u32 rules)
{
	__u32 treatment = 0;
	int n;

	bpf_for(n, 0, (int)rules) {
		__u32 at = n;
		struct gw_packet_rule *rule = bpf_map_lookup_elem(&packet_rules, &at);

		if (!rule)
			break;
		if (matches(rule, config, p)) {
			treatment = rule->treatment;
			break;
		}
	}
	return treatment;
}

/* The same, cached. */
static __noinline __u32 treatment_by_rules(const struct gw_link_config *config, const struct packet *p, __u32 rules)
{
	struct flow_key key = {
		.flow.remote_port = p->tuple.remote_port,
		.flow.local_port = p->tuple.local_port,
		.flow.family = p->tuple.family,
		.rules_of = config->rules_of,
		.protocol = p->protocol,
		.dscp = p->dscp,
		.link = config->number,
		.rules = rules,
	};
	__u32 *known, treatment;

	__builtin_memcpy(key.flow.remote, p->tuple.remote, 16);
	known = bpf_map_lookup_elem(&treatment_of_flows, &key);
	if (known)
		return *known;
	treatment = first_match(config, p, rules);
	bpf_map_update_elem(&treatment_of_flows, &key, &treatment, BPF_ANY);
	return treatment;
}

/* The number of the upload limit; 0: none. */
static __always_inline __u32 limit_of(__u32 treatment)
{
	return treatment >> GW_LIMIT_SHIFT & GW_LIMIT_MASK;
}

/* The number of the download limit; 0: none. */
static __always_inline __u32 download_limit_of(__u32 treatment)
{
	return treatment >> GW_DOWNLOAD_SHIFT & GW_LIMIT_MASK;
}

static __always_inline enum gw_class class_of(__u32 treatment)
{
	return treatment & GW_CLASS_MASK;
}

/* On arrival, where the link orders downloads. */
static __always_inline bool yields(__u32 treatment)
{
	return class_of(treatment) >= GW_CLASS_BULK;
}

#endif
