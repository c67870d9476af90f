// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sets another congestion control on live connections, and restores their own. The daemon writes the wanted ones to
 * `wanted_controls`, by cookie, and runs `gw_apply_controls` once over all sockets; each named socket returns an
 * outcome.
 *
 * The socket's saved state records the change before it is made. A congestion control that somebody has changed since
 * is a conflict and is not overridden.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "sockets.h"
#include "saved.h"
#include "control.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct gw_control);
} wanted_controls SEC(".maps");

/* Puts the types of the border into the skeleton. */
struct gw_control *control_type __attribute__((unused));
struct gw_control_outcome *outcome_type __attribute__((unused));

static __always_inline void report(struct gw_control_outcome *o, int error)
{
	o->error = error;
	o->kind = error ? GW_FAILED : GW_APPLIED;
}

static __always_inline void give(struct tcp_sock *tp, const struct gw_control *wanted, struct gw_control_outcome *o)
{
	struct gw_saved_socket *saved = bpf_sk_storage_get(&gw_saved_socks, (struct sock *)tp, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!saved) {
		report(o, -ENOMEM);
		return;
	}
	/* One of this name that we did not set is somebody else's as well. */
	if (!is_known(saved) || (saved->ours & GW_CONGESTION_CONTROL) || is_same_control(wanted->name, o->found)) {
		o->kind = is_our_control(saved, o->found) ? GW_UNCHANGED : GW_FOREIGN;
		return;
	}
	copy_control(saved->control_before, o->found);
	copy_control(saved->control_ours, wanted->name);
	saved->layout = GW_SAVED_LAYOUT;
	saved->ours |= GW_CONGESTION_CONTROL;
	report(o, write_control(tp, wanted->name));
	if (o->error)
		saved->ours &= ~GW_CONGESTION_CONTROL;
}

static __always_inline void revoke(struct tcp_sock *tp, struct gw_control_outcome *o)
{
	struct gw_saved_socket *saved = bpf_sk_storage_get(&gw_saved_socks, (struct sock *)tp, NULL, 0);

	if (!is_our_control(saved, o->found)) {
		o->kind = saved && (saved->ours & GW_CONGESTION_CONTROL) ? GW_FOREIGN : GW_UNCHANGED;
		return;
	}
	report(o, restore_control(tp, saved));
	if (!o->error)
		saved->ours &= ~GW_CONGESTION_CONTROL;
}

SEC("iter/tcp")
int gw_apply_controls(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = our_connection(ctx->sk_common);
	struct seq_file *seq = ctx->meta->seq;
	struct gw_control_outcome o = {};
	struct gw_control *wanted;

	if (!tp)
		return 0;
	o.cookie = bpf_get_socket_cookie(tp);
	wanted = bpf_map_lookup_elem(&wanted_controls, &o.cookie);
	if (!wanted || !has_room(seq, &o, sizeof(o)))
		return 0;
	if (!read_control(tp, o.found))
		report(&o, -ENOENT);
	else if (wanted->name[0])
		give(tp, wanted, &o);
	else
		revoke(tp, &o);
	bpf_seq_write(seq, &o, sizeof(o));
	return 0;
}
