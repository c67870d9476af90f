// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits the pacing rate of TCP connections, by the kernel's socket option for it (SO_MAX_PACING_RATE).
 *
 * The daemon writes the wanted rates to `wanted_rates`, by cookie, and runs `gw_apply_rates` once over all sockets;
 * each named socket returns an outcome. A rate that is neither unlimited nor ours is the application's, and is not
 * overridden. The kernel cannot stop pacing a socket: it continues at the kernel's own rate, which limits nothing
 * (twice cwnd in a round trip, in congestion avoidance 1.2 times).
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "sockets.h"
#include "saved.h"

char LICENSE[] SEC("license") = "GPL";

#define UNLIMITED_RATE (~0ULL)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct gw_rate);
} wanted_rates SEC(".maps");

/* Puts the types of the border into the skeleton. */
struct gw_rate *rate_type __attribute__((unused));
struct gw_rate_outcome *outcome_type __attribute__((unused));

static __always_inline bool is_our_rate(const struct gw_saved_socket *saved, __u64 rate)
{
	return saved && is_known(saved) && (saved->ours & GW_PACING_RATE) && saved->pacing_ours == rate;
}

/* setsockopt takes 32 bits of it here, of which ~0 means no limit. */
static __always_inline int write_rate(struct tcp_sock *tp, __u64 rate)
{
	__u32 value = rate < ~0U ? rate : ~0U;

	return bpf_setsockopt(tp, SOL_SOCKET, SO_MAX_PACING_RATE, &value, sizeof(value));
}

/* Writes nothing that cannot be saved first. */
static __always_inline void limit(struct tcp_sock *tp, __u64 present, __u64 wanted, struct gw_rate_outcome *o)
{
	struct gw_saved_socket *saved = bpf_sk_storage_get(&gw_saved_socks, tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	bool was_ours = is_our_rate(saved, present);

	if (!saved) {
		o->error = -ENOMEM;
		return;
	}
	if (!was_ours)
		saved->pacing_before = present;
	saved->pacing_ours = wanted;
	saved->layout = GW_SAVED_LAYOUT;
	saved->ours |= GW_PACING_RATE;
	o->error = write_rate(tp, wanted);
	if (o->error && was_ours)
		saved->pacing_ours = present;
	else if (o->error)
		saved->ours &= ~GW_PACING_RATE;
}

static __always_inline void clear(struct tcp_sock *tp, struct gw_saved_socket *saved, struct gw_rate_outcome *o)
{
	o->error = write_rate(tp, saved->pacing_before);
	if (!o->error)
		saved->ours &= ~GW_PACING_RATE;
}

static __always_inline void settle(struct tcp_sock *tp, __u64 wanted, struct gw_rate_outcome *o)
{
	struct gw_saved_socket *saved = bpf_sk_storage_get(&gw_saved_socks, tp, NULL, 0);
	__u64 present = tp->inet_conn.icsk_inet.sk.sk_max_pacing_rate;
	bool is_ours = is_our_rate(saved, present);

	o->found = present;
	o->kind = GW_FOREIGN;
	if ((saved && !is_known(saved)) || (present != UNLIMITED_RATE && !is_ours))
		return;
	o->kind = GW_UNCHANGED;
	if (wanted == present || (wanted == UNLIMITED_RATE && !is_ours))
		return;
	if (wanted != UNLIMITED_RATE)
		limit(tp, present, wanted, o);
	else if (saved)
		clear(tp, saved, o);
	o->kind = o->error ? GW_FAILED : GW_APPLIED;
}

SEC("iter/tcp")
int gw_apply_rates(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = our_connection(ctx->sk_common);
	struct seq_file *seq = ctx->meta->seq;
	struct gw_rate_outcome o = {};
	struct gw_rate *wanted;

	if (!tp)
		return 0;
	o.cookie = bpf_get_socket_cookie(tp);
	wanted = bpf_map_lookup_elem(&wanted_rates, &o.cookie);
	if (!wanted || !has_room(seq, &o, sizeof(o)))
		return 0;
	settle(tp, wanted->bytes_per_s, &o);
	bpf_seq_write(seq, &o, sizeof(o));
	return 0;
}
