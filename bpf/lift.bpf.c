// SPDX-License-Identifier: GPL-2.0-only
/*
 * Takes our caps off when nobody is left who knows the sockets: after the daemon's death, by the guardian, by the next
 * start, or by `giveway revert`. All that is known then are the values that were ever put on a socket, which the
 * daemon recorded before it used them. Every clamp of this namespace with such a value is lifted, whatever state its
 * connection is in. An object of its own, so that it loads fast.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "sockets.h"
#include "clamp.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8);
} our_values SEC(".maps");

/* Puts the types of the border into the skeleton. */
struct gw_outcome *outcome_type __attribute__((unused));

static __always_inline void settle(struct bpf_iter__tcp *ctx, bool lift)
{
	struct seq_file *seq = ctx->meta->seq;
	struct tcp_sock *tp = our_connection(ctx->sk_common);
	struct gw_outcome o = { .wanted = GW_UNLIMITED, .kind = GW_UNCHANGED };

	if (!tp)
		return;
	o.old_clamp = tp->snd_cwnd_clamp;
	if (!bpf_map_lookup_elem(&our_values, &o.old_clamp) || !has_room(seq, &o, sizeof(o)))
		return;
	o.cookie = bpf_get_socket_cookie(tp);
	o.ca_state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	if (lift)
		write_clamp(tp, &o);
	bpf_seq_write(seq, &o, sizeof(o));
}

SEC("iter/tcp")
int gw_lift_caps(struct bpf_iter__tcp *ctx)
{
	settle(ctx, true);
	return 0;
}

/* Only says what would be lifted. */
SEC("iter/tcp")
int gw_list_caps(struct bpf_iter__tcp *ctx)
{
	settle(ctx, false);
	return 0;
}
