// SPDX-License-Identifier: GPL-2.0-only
/*
 * Restores what giveway changed on sockets: after the daemon's death, by the watchdog process, by the next start, or by
 * `giveway revert`. A socket's saved state has the values to restore, which happens only where the present value is
 * still ours. Where saved state could not outlive the daemon (`our_values` is not empty then), every clamp of this
 * namespace with a value that the daemon recorded is cleared. Works in any state of a connection. A separate object, so
 * that it loads fast.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "sockets.h"
#include "clamp.h"
#include "saved.h"
#include "control.h"
#include "window.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8);
} our_values SEC(".maps");

/* Only reports what would be restored. */
const volatile __u32 dry_run;

/* Set when the reader times out: a scan that waits for a socket's lock must not continue when it gets the lock. */
__u32 given_up;

/* Puts the types of the border into the skeleton. */
struct gw_undone *undone_type __attribute__((unused));
struct gw_saved_socket *saved_type __attribute__((unused));
enum gw_setting *setting_type __attribute__((unused));
enum gw_saved_layout *layout_type __attribute__((unused));

static __always_inline int undo_clamp(struct tcp_sock *tp, __u32 before, struct gw_undone *u)
{
	struct gw_outcome o = { .old_clamp = tp->snd_cwnd_clamp, .wanted = before };

	u->clamp = o.old_clamp;
	u->clamp_before = before;
	if (!dry_run)
		write_clamp(tp, &o);
	return o.error;
}

/* setsockopt takes 32 bits of it here, of which ~0 means no limit. */
static __always_inline int undo_pacing_rate(struct tcp_sock *tp, const struct gw_saved_socket *saved)
{
	__u32 before = saved->pacing_before < ~0U ? saved->pacing_before : ~0U;

	return dry_run ? 0 : bpf_setsockopt(tp, SOL_SOCKET, SO_MAX_PACING_RATE, &before, sizeof(before));
}

static __always_inline int undo_control(struct tcp_sock *tp, const struct gw_saved_socket *saved)
{
	return dry_run ? 0 : restore_control(tp, saved);
}

/* Reports the outcome for one setting; returns it where it is still to be undone. */
static __always_inline __u32 record_undone(struct gw_undone *u, __u32 setting, int error)
{
	u->found |= setting;
	if (!error)
		return 0;
	u->error = error;
	return setting;
}

/*
 * The congestion control comes last: ours leaves the ssthresh that fits the path, where clearing the clamp would set it
 * to our congestion control's current window, or to none.
 */
static __always_inline void undo_saved(struct tcp_sock *tp, struct gw_saved_socket *saved, struct gw_undone *u)
{
	__u32 ours = saved->ours, left = 0;
	char control[GW_CA_NAME_LEN] = {};

	u->layout = saved->layout;
	if (!is_known(saved))
		return;
	if ((ours & GW_PACING_RATE) && tp->inet_conn.icsk_inet.sk.sk_max_pacing_rate == saved->pacing_ours)
		left |= record_undone(u, GW_PACING_RATE, undo_pacing_rate(tp, saved));
	if (is_our_window(saved, tp->window_clamp))
		left |= record_undone(u, GW_WINDOW_CLAMP, dry_run ? 0 : restore_window(tp, saved));
	if (ours & GW_ACK_CALLBACK)
		left |= record_undone(u, GW_ACK_CALLBACK, dry_run ? 0 : restore_callback(tp));
	if (is_our_clamp(saved, tp->snd_cwnd_clamp))
		left |= record_undone(u, GW_CWND_CLAMP, undo_clamp(tp, clamp_before(saved), u));
	if (read_control(tp, control) && is_our_control(saved, control))
		left |= record_undone(u, GW_CONGESTION_CONTROL, undo_control(tp, saved));
	if (!dry_run)
		saved->ours = left;
}

SEC("iter/tcp")
int gw_undo(struct bpf_iter__tcp *ctx)
{
	struct gw_undone u = { .layout = GW_SAVED_LAYOUT };
	struct tcp_sock *tp = our_socket(ctx->sk_common);
	struct gw_saved_socket *saved;
	__u32 clamp;

	if (!tp || *(volatile __u32 *)&given_up || !has_room(ctx->meta->seq, &u, sizeof(u)))
		return 0;
	u.cookie = bpf_get_socket_cookie(tp);
	clamp = tp->snd_cwnd_clamp;
	saved = bpf_sk_storage_get(&gw_saved_socks, tp, NULL, 0);
	if (saved)
		undo_saved(tp, saved, &u);
	else if (bpf_map_lookup_elem(&our_values, &clamp))
		record_undone(&u, GW_CWND_CLAMP, undo_clamp(tp, GW_UNLIMITED, &u));
	if (u.found || u.layout > GW_SAVED_LAYOUT)
		bpf_seq_write(ctx->meta->seq, &u, sizeof(u));
	return 0;
}
