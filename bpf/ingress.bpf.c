// SPDX-License-Identifier: GPL-2.0-only
/*
 * The receiving half of the background class: packets that arrive for background flows are processed after everything
 * else. Instead of the softirq, which interrupts whatever runs, a thread under SCHED_IDLE passes such packets up the
 * stack; the daemon sets that policy. A flow is background here if its packets carry DSCP LE, or if admission has seen this
 * machine send to it in the background a short time ago.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "background_answers.h"
#include "packets.h"

char LICENSE[] SEC("license") = "GPL";

/* One kernel thread per CPU; the daemon fills it in. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1); /* the daemon makes it as large as the machine */
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} background_threads SEC(".maps");

/* Packets handed to such a thread. */
__u64 deferred;

struct ethernet {
	__u8 to[6];
	__u8 from[6];
	__be16 protocol;
};

static __always_inline bool is_known(struct background_answer *key, const struct ports *ports, void *end)
{
	__u64 *last_ns;

	if ((void *)(ports + 1) > end)
		return false;
	key->flow.remote_port = bpf_ntohs(ports->from);
	key->flow.local_port = bpf_ntohs(ports->to);
	last_ns = bpf_map_lookup_elem(&background_answers, key);
	return last_ns && bpf_ktime_get_coarse_ns() - *last_ns < ANSWER_EXPECTED_NS;
}

static __always_inline bool is_background_ipv4(struct ipv4_header *h, void *end)
{
	struct background_answer key = { .flow.family = AF_INET, .protocol = h->protocol };

	if ((void *)(h + 1) > end)
		return false;
	if (h->tos >> 2 == DSCP_LE)
		return true;
	/* Options are rare and fragments carry no ports: both take the usual path. */
	if (h->version_and_words != 0x45 || h->fragment & bpf_htons(0x3fff) ||
	    (h->protocol != IPPROTO_TCP && h->protocol != IPPROTO_UDP))
		return false;
	__builtin_memcpy(key.flow.remote, h->from, 4);
	return is_known(&key, (struct ports *)(h + 1), end);
}

static __always_inline bool is_background_ipv6(struct ipv6_header *h, void *end)
{
	struct background_answer key = { .flow.family = AF_INET6, .protocol = h->next };

	if ((void *)(h + 1) > end)
		return false;
	if (((bpf_ntohl(h->version_class_flow) >> 22) & 0x3f) == DSCP_LE)
		return true;
	if (h->next != IPPROTO_TCP && h->next != IPPROTO_UDP)
		return false;
	__builtin_memcpy(key.flow.remote, h->from, 16);
	return is_known(&key, (struct ports *)(h + 1), end);
}

SEC("xdp")
int gw_defer(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethernet *ethernet = data;
	bool is_background = false;

	if ((void *)(ethernet + 1) > end)
		return XDP_PASS;
	if (ethernet->protocol == bpf_htons(ETH_P_IP))
		is_background = is_background_ipv4((struct ipv4_header *)(ethernet + 1), end);
	else if (ethernet->protocol == bpf_htons(ETH_P_IPV6))
		is_background = is_background_ipv6((struct ipv6_header *)(ethernet + 1), end);
	if (!is_background)
		return XDP_PASS;
	__sync_fetch_and_add(&deferred, 1);
	/* Without a thread for this CPU, the usual path. */
	return bpf_redirect_map(&background_threads, bpf_get_smp_processor_id(), XDP_PASS);
}
