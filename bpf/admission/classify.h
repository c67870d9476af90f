/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which class a packet belongs to: does it have a deadline, and if not, is it background or best effort? Decides
 * nothing about whether a deadline can be kept.
 *
 * A deadline comes from SO_TXTIME in deadline mode, from an IP option, from the request that the packet answers, or
 * from a rule for unmodified programs; the first of these wins.
 */
#ifndef GIVEWAY_ADMISSION_CLASSIFY_H
#define GIVEWAY_ADMISSION_CLASSIFY_H

#include "early.h"
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

/* Set once the first entry exists, so that there is no lookup before. */
bool has_nice_sockets;

/*
 * Of a packet that a program has made itself, by a raw or a packet socket: what is said of the program. The daemon sees no
 * such socket; but nothing lies between its send call and here, unless a peer's address has to be resolved first. The
 * kernel's own raw sockets, which answer on anybody's behalf, have no file.
 */
static __noinline __u32 treatment_of_raw_socket(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);
	struct sock *sk = kernel_skb->sk;

	return sk && is_full(sk) && BPF_CORE_READ(sk, sk_socket, file) ? treatment_of_caller() : 0;
}

/* Each packet comes by here: what is no full socket may say anything of its type, and is looked at above. */
static __always_inline __u32 treatment_of_raw(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);
	struct sock *sk = kernel_skb->sk;

	if (!sk || (sk->sk_type != SOCK_RAW && sk->__sk_common.skc_family != AF_PACKET))
		return 0;
	return treatment_of_raw_socket(skb);
}

/*
 * A packet that waited for a peer's address is sent by whoever runs then: mostly somebody of another user and another cgroup.
 * A program may have changed one of both since it made its socket.
 */
static __always_inline bool is_of_caller(struct sock *sk)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return sk->sk_uid.val == BPF_CORE_READ(task, cred, fsuid.val) ||
	       sk->sk_cgrp_data.cgroup == BPF_CORE_READ(task, cgroups, dfl_cgrp);
}

/* The limit of the program whose datagram this is, by a socket that nothing was said of yet and that need not connect. */
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
	say_early(bpf_sk, treatment);
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

/* The deadline of the request that this socket received last; none once it is over. */
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
 * When the packet's last bit has to have left the link; 0: no deadline. Reads the clock only where it is needed.
 * `of_socket_ns`: what socket_deadline() says. `granted`: by the configuration; the other ways are anybody's.
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

/* So often it is noted by which link a packet of a socket leaves. */
#define QUEUED_NOTED_NS (50 * NSEC_PER_MSEC)

/*
 * What the daemon says of the socket; 0: nothing. That a packet of it leaves here is noted: the socket's own route may lead
 * to another device, which stands on this one, or on none.
 */
static __noinline __u32 treatment_of_socket(struct __sk_buff *skb, const struct gw_link_config *config)
{
	__u64 cookie = bpf_get_socket_cookie(skb), now_ns;
	struct gw_treated_socket *told = bpf_map_lookup_elem(&treated_sockets, &cookie);

	if (!told)
		return 0;
	now_ns = bpf_ktime_get_coarse_ns();
	if (told->queued_on != skb->ifindex || now_ns - told->queued_ns > QUEUED_NOTED_NS) {
		told->queued_ns = now_ns;
		told->queued_on = skb->ifindex;
	}
	return told->treatment;
}

/* What is said of the cgroup that it came from, unless a rule for packets stands before that; 0: nothing. */
static __noinline __u32 treatment_of_forwarded(struct __sk_buff *skb, const struct gw_link_config *config,
					       const struct packet *p)
{
	__u32 number = skb->tc_index, treatment = 0;
	struct gw_forwarded_treatment *told = bpf_map_lookup_elem(&forwarded_treatments, &number);

	if (!told || !told->treatment)
		return 0;
	if (told->rules)
		treatment = treatment_by_rules(config, p, told->rules);
	return treatment ? treatment : told->treatment;
}

static __always_inline bool is_named(const struct gw_background_key *exact)
{
	struct gw_background_key any = *exact;

	any.local_port = 0;
	return bpf_map_lookup_elem(&background_flows, exact) || bpf_map_lookup_elem(&background_flows, &any);
}

/*
 * Of a flow that was named or that a packet rule matches, whose rate limit holds for it either way; 0: of neither. What is
 * `said` of its socket stands in for the rules: who sends wherever they like may meet a named flow.
 */
static __noinline __u32 treatment_of_packet(const struct gw_link_config *config, const struct packet *p, __u32 said)
{
	struct gw_background_key flow = {
		.remote_port = p->tuple.remote_port,
		.local_port = p->tuple.local_port,
		.family = p->tuple.family,
	};
	__u32 treatment = said;

	if (!said && config->packet_rules)
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

/* What it receives is limited, or is to yield. */
static __noinline void note_receiver(struct __sk_buff *skb, const struct packet *p)
{
	struct gw_ports *noted = all_ports();
	struct ports ports;

	if (noted && !p->fragment_at && (p->protocol == IPPROTO_TCP || p->protocol == IPPROTO_UDP) &&
	    !load(skb, p->transport_at, &ports, sizeof(ports)))
		note_port(noted, bpf_ntohs(ports.from));
}

/* What the daemon says of the socket, or else of the packet; 0: nothing. */
static __always_inline __u32 what_is_said(struct __sk_buff *skb, const struct gw_link_config *config,
					  const struct packet *p)
{
	__u32 said = config->treated_sockets ? treatment_of_socket(skb, config) : 0;

	if (!said && has_early_sockets)
		said = treatment_before(skb);
	if (!said)
		said = treatment_of_raw(skb);
	if (!said)
		said = limit_of_sender(skb, config, p);
	if (!said && config->flags & GW_FORWARDED)
		said = treatment_of_forwarded(skb, config, p);
	if (config->background_flows || (!said && config->packet_rules))
		said = treatment_of_packet(config, p, said);
	if (download_limit_of(said) || (config->flags & GW_ORDERS_DOWNLOADS && yields(said)))
		note_receiver(skb, p);
	return said;
}

/* Where nothing is said of it, its marks count; GW_UNCLASSED: those that lower say nothing either. */
static __always_inline __u32 treatment_of(struct __sk_buff *skb, const struct packet *p, __u32 said)
{
	return said ? said : has_background_mark(skb, p) ? GW_CLASS_BACKGROUND : GW_UNCLASSED;
}

/* For packets without a deadline. */
static __always_inline enum gw_band band_of(enum gw_class class)
{
	if (class == GW_CLASS_BACKGROUND)
		return GW_BACKGROUND;
	return class == GW_CLASS_STREAM ? GW_STREAM : GW_BEST_EFFORT;
}

#endif
