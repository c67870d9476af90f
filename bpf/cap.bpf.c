// SPDX-License-Identifier: GPL-2.0-only
/*
 * Caps the cwnd of TCP connections by the kernel's clamp.
 *
 * Live connections: the daemon writes the wanted caps to `wanted_caps`, by cookie, and runs `gw_apply_caps` once over
 * all sockets; each named socket returns an outcome. A clamp is written only when it changes, and never during loss
 * recovery, since the write sets ssthresh too.
 *
 * New connections: `gw_cap_new` gives each one that leaves by the managed interface the cap for its handshake's RTT,
 * from the table in `new_caps`, before its first data segment, and reports it.
 *
 * The socket's saved state records the change before it is made. A clamp that is neither unlimited nor ours (a route's
 * `cwnd` metric, say) is a conflict and is not overridden. Loopback is never capped.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "sockets.h"
#include "clamp.h"
#include "saved.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u32);
} wanted_caps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_new_caps);
} new_caps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} capped_events SEC(".maps");

/* New connections whose report found the ring buffer full. */
__u64 lost_events;

/* Puts the types of the border into the skeleton. */
enum gw_limit *limit_type __attribute__((unused));
struct gw_outcome *outcome_type __attribute__((unused));
struct gw_new_capped *capped_type __attribute__((unused));

static __always_inline bool leaves_by_loopback(const struct sock *sk)
{
	struct net_device *device = egress_device(sk);

	return device && (device->flags & IFF_LOOPBACK);
}

static __always_inline bool is_repairing(__u32 ca_state)
{
	return ca_state != TCP_CA_OPEN && ca_state != TCP_CA_DISORDER;
}

static __always_inline void decide(const struct sock *sk, const struct gw_saved_socket *saved, struct gw_outcome *o)
{
	bool limited = o->old_clamp < GW_UNLIMITED;
	bool clear = o->wanted == GW_UNLIMITED;

	if ((saved && !is_known(saved)) || (limited && !is_our_clamp(saved, o->old_clamp))) {
		o->kind = GW_FOREIGN;
		return;
	}
	if (clear && limited)
		o->wanted = clamp_before(saved);
	if (o->old_clamp == o->wanted || (!limited && clear))
		o->kind = GW_UNCHANGED;
	else if (!clear && leaves_by_loopback(sk))
		o->kind = GW_LOOPBACK;
	else if (is_repairing(o->ca_state))
		o->kind = GW_DEFERRED;
	else
		o->kind = GW_APPLIED;
}

/* Writes nothing that cannot be saved first. */
static __always_inline void save_and_write(struct tcp_sock *tp, struct gw_outcome *o, bool clear)
{
	struct gw_saved_socket *saved = bpf_sk_storage_get(&gw_saved_socks, (struct sock *)tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	bool was_ours;

	if (!saved) {
		o->kind = GW_FAILED;
		o->error = -ENOMEM;
		return;
	}
	was_ours = is_our_clamp(saved, o->old_clamp);
	if (!clear)
		save_clamp(saved, o->old_clamp, o->wanted);
	write_clamp(tp, o);
	if (o->error && was_ours)
		saved->clamp_ours = o->old_clamp;
	else if (o->error || clear)
		saved->ours &= ~GW_CWND_CLAMP;
}

/* Sets the clamp of one socket of an iteration and writes the outcome. */
static __always_inline void settle(struct bpf_iter__tcp *ctx, struct tcp_sock *tp, __u32 asked)
{
	struct gw_outcome o = { .wanted = asked };
	struct seq_file *seq = ctx->meta->seq;
	struct sock *sk = (struct sock *)tp;
	bool clear = o.wanted == GW_UNLIMITED;

	if (!has_room(seq, &o, sizeof(o)))
		return;
	o.cookie = bpf_get_socket_cookie(sk);
	o.old_clamp = tp->snd_cwnd_clamp;
	o.ca_state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	decide(sk, bpf_sk_storage_get(&gw_saved_socks, sk, NULL, 0), &o);
	if (o.kind == GW_APPLIED)
		save_and_write(tp, &o, clear);
	bpf_seq_write(seq, &o, sizeof(o));
}

SEC("iter/tcp")
int gw_apply_caps(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = our_connection(ctx->sk_common);
	__u64 cookie;
	__u32 *asked;

	if (!tp)
		return 0;
	cookie = bpf_get_socket_cookie(tp);
	asked = bpf_map_lookup_elem(&wanted_caps, &cookie);
	if (asked)
		settle(ctx, tp, *asked);
	return 0;
}

/* The cap for a new connection of this RTT by this interface; 0 for none. */
static __always_inline __u32 find_new_cap(__u32 ifindex, __u32 rtt_us, __u32 *generation)
{
	__u32 key = 0, cap = 0;
	struct gw_new_caps *table = bpf_map_lookup_elem(&new_caps, &key);

	if (!table)
		return 0;
	bpf_spin_lock(&table->lock);
	*generation = table->generation;
	if (table->ifindex == ifindex)
		for (__u32 i = 0; i < GW_NEW_CAP_STEPS && i < table->steps; i++)
			if (table->step[i].rtt_floor_us <= rtt_us)
				cap = table->step[i].cap;
	bpf_spin_unlock(&table->lock);
	return cap < GW_UNLIMITED ? cap : 0;
}

static __always_inline void report_new(struct bpf_sock_ops *ops, struct gw_new_capped what)
{
	struct gw_new_capped *report = bpf_ringbuf_reserve(&capped_events, sizeof(*report), 0);

	if (!report) {
		__sync_fetch_and_add(&lost_events, 1);
		return;
	}
	*report = what;
	report->t_ns = bpf_ktime_get_ns();
	report->cookie = bpf_get_socket_cookie(ops);
	bpf_ringbuf_submit(report, 0);
}

/* Runs for every connection of the machine at the end of its handshake. */
SEC("sockops")
int gw_cap_new(struct bpf_sock_ops *ops)
{
	struct gw_new_capped what = {};
	struct bpf_sock *bpf_sk = ops->sk;
	struct net_device *device;
	struct gw_saved_socket *saved;
	struct tcp_sock *tp;
	struct sock *sk;
	int clamp;

	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	tp = bpf_sk ? bpf_skc_to_tcp_sock(bpf_sk) : NULL;
	sk = (struct sock *)tp;
	if (!tp || !in_our_netns(sk) || tp->snd_cwnd_clamp < GW_UNLIMITED || leaves_by_loopback(sk))
		return 1;
	device = egress_device(sk);
	what.rtt_us = tp->rtt_min.s[0].v;
	if (!device || what.rtt_us == ~0u)
		return 1;
	what.cap = find_new_cap(device->ifindex, what.rtt_us, &what.generation);
	clamp = what.cap;
	saved = clamp ? bpf_sk_storage_get(&gw_saved_socks, bpf_sk, NULL, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
	if (!saved || !is_known(saved))
		return 1;
	save_clamp(saved, tp->snd_cwnd_clamp, clamp);
	if (bpf_setsockopt(ops, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &clamp, sizeof(clamp))) {
		saved->ours &= ~GW_CWND_CLAMP;
		return 1;
	}
	/* The kernel checks the clamp when an ACK arrives; until then the initial window counts. */
	if (tp->snd_cwnd > what.cap)
		bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &clamp, sizeof(clamp));
	report_new(ops, what);
	return 1;
}
