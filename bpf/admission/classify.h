/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A packet's class: does it have a deadline, and if not, is it background or best effort? Does not decide whether a
 * deadline can be kept.
 *
 * A deadline comes from SO_TXTIME in deadline mode, from an IP option, from the request that the packet answers, or
 * from a rule for unmodified programs; the first of these wins.
 */
#ifndef GIVEWAY_ADMISSION_CLASSIFY_H
#define GIVEWAY_ADMISSION_CLASSIFY_H

#include "new_socket.h"
#include "../chain.h"
#include "../link.h"
#include "../ports.h"
#include "../sockets.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_DEADLINE_RULES);
	__type(key, struct gw_rule_key);
	__type(value, struct gw_rule);
} deadline_rules SEC(".maps");

/* Flows that were named as background. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_BACKGROUND_FLOWS);
	__type(key, struct gw_background_key);
	__type(value, __u8);
} background_flows SEC(".maps");

/* Sockets created by a task at nice 19. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u8);
} nice_sockets SEC(".maps");

/* Set with the first entry, to save the lookup before. */
bool has_nice_sockets;

/*
 * The treatment of the program that has made this packet by a raw or packet socket. The daemon does not see such
 * sockets. Nothing lies between the send call and here, unless a neighbour's address has to be resolved first. The
 * kernel's own raw sockets, which answer on anybody's behalf, have no file.
 */
static __noinline __u32 treatment_of_raw_socket(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);
	struct sock *sk = kernel_skb->sk;

	return sk && is_full(sk) && BPF_CORE_READ(sk, sk_socket, file) ? treatment_of_caller() : 0;
}

/*
 * On the path of every packet. A socket that is not full may have any value as its type; the function above checks
 * that.
 */
static __always_inline __u32 treatment_of_raw(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);
	struct sock *sk = kernel_skb->sk;

	if (!sk || (sk->sk_type != SOCK_RAW && sk->__sk_common.skc_family != AF_PACKET))
		return 0;
	return treatment_of_raw_socket(skb);
}

/*
 * After waiting for address resolution, a packet is sent by whatever task runs then: mostly one of another user and
 * another cgroup. A program may have changed one of these since it made its socket, so either is enough.
 */
static __always_inline bool is_of_caller(struct sock *sk)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return sk->sk_uid.val == BPF_CORE_READ(task, cred, fsuid.val) ||
	       sk->sk_cgrp_data.cgroup == BPF_CORE_READ(task, cgroups, dfl_cgrp);
}

/* The limit of the program that sends this datagram, if its socket has no entry yet and need not connect. */
static __noinline __u32 limit_of_datagrams_sender(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);
	struct sock *sk = kernel_skb->sk;
	struct bpf_sock *bpf_sk = skb->sk;
	__u32 treatment;

	if (!sk || !is_full(sk) || !BPF_CORE_READ(sk, sk_socket, file) || !is_of_caller(sk))
		return 0;
	treatment = treatment_of_caller();
	bpf_sk = bpf_sk ? bpf_sk_fullsock(bpf_sk) : NULL;
	if (!(treatment >> GW_LIMIT_SHIFT) || !bpf_sk)
		return 0;
	set_new_treatment(bpf_sk, treatment);
	return treatment;
}

static __always_inline __u32 limit_of_sender(struct __sk_buff *skb, const struct gw_link_config *config,
					     const struct packet *p)
{
	return config->flags & GW_LIMITED_PROCESSES && p->protocol == IPPROTO_UDP ? limit_of_datagrams_sender(skb) : 0;
}

/* SO_TXTIME in deadline mode. Any other tstamp is TCP's pacing or the time of arrival. */
static __always_inline __u64 socket_deadline(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	struct sock *sk = kernel_skb->sk;

	if (!kernel_skb->tstamp || !sk || !is_full(sk))
		return 0;
	if (!(sk->__sk_common.skc_flags >> bpf_core_enum_value(enum sock_flags, SOCK_TXTIME) & 1) ||
	    sk->sk_clockid != CLOCK_MONOTONIC || !BPF_CORE_READ_BITFIELD(sk, sk_txtime_deadline_mode))
		return 0;
	return kernel_skb->tstamp;
}

/* The deadline of the request that this socket received last; 0 once it has passed. */
static __noinline __u64 inherited_deadline(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct gw_requests *requests;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	requests = sk ? bpf_sk_storage_get(&chain_requests, sk, NULL, 0) : NULL;
	return requests && requests->answer_ns > bpf_ktime_get_ns() ? requests->answer_ns : 0;
}

static __always_inline struct gw_rule *find_rule(const struct gw_link_config *config, const struct packet *p)
{
	struct gw_rule_key key = { .remote_port = p->tuple.remote_port, .protocol = p->protocol };

	return config->rules && key.remote_port ? bpf_map_lookup_elem(&deadline_rules, &key) : NULL;
}

/*
 * When the packet's last bit has to have left the link; 0: no deadline. Reads the clock only when needed.
 * `of_socket_ns`: from socket_deadline(). `granted`: by the configuration; the other sources are open to anybody.
 */
static __always_inline __u64 find_deadline(struct __sk_buff *skb, const struct gw_link_config *config, const struct packet *p,
					   const struct gw_rule *rule, __u64 of_socket_ns, bool *granted)
{
	__u64 deadline_ns = of_socket_ns;
	__u32 path_us = rule && rule->has_path_budget ? rule->path_budget_us : config->path_budget_us;
	__u64 budget_ns = 1000ULL * path_us + 1000ULL * config->below_us;

	if (!deadline_ns && p->has_option)
		deadline_ns = bpf_ktime_get_ns() + 1000ULL * p->option_us;
	*granted = rule;
	if (!deadline_ns && config->flags & GW_INHERIT) {
		deadline_ns = inherited_deadline(skb);
		*granted |= deadline_ns;
	}
	if (!deadline_ns && rule && rule->deadline_us)
		deadline_ns = bpf_ktime_get_ns() + 1000ULL * rule->deadline_us;
	if (!deadline_ns)
		return 0;
	return deadline_ns > budget_ns ? deadline_ns - budget_ns : 1;
}

/* How often the link that a socket's packets leave by is updated. */
#define QUEUED_UPDATE_NS (50 * NSEC_PER_MSEC)

/*
 * The socket's treatment by the daemon; 0: none. Records the link, since the socket's own route may lead to another
 * device, on top of this one or of none.
 */
static __noinline __u32 treatment_of_socket(struct __sk_buff *skb, const struct gw_link_config *config)
{
	__u64 cookie = bpf_get_socket_cookie(skb), now_ns;
	struct gw_treated_socket *entry = bpf_map_lookup_elem(&treated_sockets, &cookie);

	if (!entry)
		return 0;
	now_ns = bpf_ktime_get_coarse_ns();
	if (entry->queued_on != skb->ifindex || now_ns - entry->queued_ns > QUEUED_UPDATE_NS) {
		entry->queued_ns = now_ns;
		entry->queued_on = skb->ifindex;
	}
	return entry->treatment;
}

/* The treatment of the cgroup that the packet comes from, unless a packet rule precedes it; 0: none. */
static __noinline __u32 treatment_of_forwarded(struct __sk_buff *skb, const struct gw_link_config *config,
					       const struct packet *p)
{
	__u32 number = skb->tc_index, treatment = 0;
	struct gw_forwarded_treatment *entry = bpf_map_lookup_elem(&forwarded_treatments, &number);

	if (!entry || !entry->treatment)
		return 0;
	if (entry->rules)
		treatment = treatment_by_rules(config, p, entry->rules);
	return treatment ? treatment : entry->treatment;
}

static __always_inline bool is_named(const struct gw_background_key *exact)
{
	struct gw_background_key any = *exact;

	any.local_port = 0;
	return bpf_map_lookup_elem(&background_flows, exact) || bpf_map_lookup_elem(&background_flows, &any);
}

/*
 * The treatment of a flow that was named or that a packet rule matches; 0: neither. A rate limit holds in both cases. A
 * `configured` treatment of its socket replaces the rules, since any sender may reach a named flow's address.
 */
static __noinline __u32 treatment_of_packet(const struct gw_link_config *config, const struct packet *p, __u32 configured)
{
	struct gw_background_key flow = {
		.remote_port = p->tuple.remote_port,
		.local_port = p->tuple.local_port,
		.family = p->tuple.family,
	};
	__u32 treatment = configured;

	if (!configured && config->packet_rules)
		treatment = treatment_by_rules(config, p, config->packet_rules);
	if (!config->background_flows)
		return treatment;
	__builtin_memcpy(flow.remote, p->tuple.remote, 16);
	return is_named(&flow) ? (treatment & ~GW_CLASS_MASK) | GW_CLASS_BACKGROUND : treatment;
}

static __always_inline bool has_background_mark(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock *sk;

	if (skb->priority == 1 || p->dscp == DSCP_LE)
		return true;
	if (!has_nice_sockets)
		return false;
	sk = skb->sk;
	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	return sk && bpf_sk_storage_get(&nice_sockets, sk, NULL, 0);
}

/* Its downloads are limited or ordered. */
static __noinline void add_receiver_port(struct __sk_buff *skb, const struct packet *p)
{
	struct gw_ports *noted = all_ports();
	struct ports ports;

	if (noted && !p->fragment_at && (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP) &&
	    !load(skb, p->transport_at, &ports, sizeof(ports)))
		add_port(noted, bpf_ntohs(ports.from));
}

/* The treatment that the daemon has set for the socket, or else for the packet; 0: none. */
static __always_inline __u32 configured_treatment(struct __sk_buff *skb, const struct gw_link_config *config,
					  const struct packet *p)
{
	__u32 configured = config->treated_sockets ? treatment_of_socket(skb, config) : 0;

	if (!configured && has_new_sockets)
		configured = treatment_of_new(skb);
	if (!configured)
		configured = treatment_of_raw(skb);
	if (!configured)
		configured = limit_of_sender(skb, config, p);
	if (!configured && config->flags & GW_FORWARDED)
		configured = treatment_of_forwarded(skb, config, p);
	if (config->background_flows || (!configured && config->packet_rules))
		configured = treatment_of_packet(config, p, configured);
	if (download_limit_of(configured) || (config->flags & GW_ORDERS_DOWNLOADS && yields(configured)))
		add_receiver_port(skb, p);
	return configured;
}

/* Without a configured treatment, the packet's marks count; GW_UNCLASSED: they say nothing either. */
static __always_inline __u32 treatment_of(struct __sk_buff *skb, const struct packet *p, __u32 configured)
{
	return configured ? configured : has_background_mark(skb, p) ? GW_CLASS_BACKGROUND : GW_UNCLASSED;
}

/* For packets without a deadline. */
static __always_inline enum gw_band band_of(enum gw_class class)
{
	if (class == GW_CLASS_BACKGROUND)
		return GW_BACKGROUND;
	return class == GW_CLASS_STREAM ? GW_STREAM : GW_BEST_EFFORT;
}

#endif
