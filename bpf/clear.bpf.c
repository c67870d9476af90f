// SPDX-License-Identifier: GPL-2.0-only
/*
 * Undoes what giveway changed on sockets when nobody is left who knows them: after the daemon's death, by the watchdog,
 * by the next start, or by `giveway revert`. A socket's mark says what to restore, and only where the present value is
 * still ours. Where marks could not be kept beyond the daemon's end (`our_values` is not empty then), every clamp of
 * this namespace with a value that the daemon recorded is cleared. Whatever state a connection is in. An object of its
 * own, so that it loads fast.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "sockets.h"
#include "clamp.h"
#include "mark.h"
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

/* Only says what would be undone. */
const volatile __u32 dry_run;

/* Set when the reader gives up: a scan that waits for a socket's lock goes on with the others when it has it. */
__u32 given_up;

/* Puts the types of the border into the skeleton. */
struct gw_undone *undone_type __attribute__((unused));
struct gw_mark *mark_type __attribute__((unused));
enum gw_setting *setting_type __attribute__((unused));
enum gw_mark_layout *layout_type __attribute__((unused));

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
static __always_inline int undo_pacing_rate(struct tcp_sock *tp, const struct gw_mark *mark)
{
	__u32 before = mark->pacing_before < ~0U ? mark->pacing_before : ~0U;

	return dry_run ? 0 : bpf_setsockopt(tp, SOL_SOCKET, SO_MAX_PACING_RATE, &before, sizeof(before));
}

static __always_inline int undo_control(struct tcp_sock *tp, const struct gw_mark *mark)
{
	return dry_run ? 0 : restore_control(tp, mark);
}

/* Notes what became of one setting; gives it back where it is still to be undone. */
static __always_inline __u32 note(struct gw_undone *u, __u32 setting, int error)
{
	u->found |= setting;
	if (!error)
		return 0;
	u->error = error;
	return setting;
}

/*
 * The congestion control comes last: ours leaves behind the ssthresh that the path is good for, where the clamp's clear
 * would set it to the window that ours has just now, or to none.
 */
static __always_inline void undo_mark(struct tcp_sock *tp, struct gw_mark *mark, struct gw_undone *u)
{
	__u32 ours = mark->ours, left = 0;
	char control[GW_CA_NAME_LEN] = {};

	u->layout = mark->layout;
	if (!is_known(mark))
		return;
	if ((ours & GW_PACING_RATE) && tp->inet_conn.icsk_inet.sk.sk_max_pacing_rate == mark->pacing_ours)
		left |= note(u, GW_PACING_RATE, undo_pacing_rate(tp, mark));
	if (is_our_window(mark, tp->window_clamp))
		left |= note(u, GW_WINDOW_CLAMP, dry_run ? 0 : restore_window(tp, mark));
	if (ours & GW_ACK_CALLBACK)
		left |= note(u, GW_ACK_CALLBACK, dry_run ? 0 : restore_callback(tp));
	if (is_our_clamp(mark, tp->snd_cwnd_clamp))
		left |= note(u, GW_CWND_CLAMP, undo_clamp(tp, clamp_before(mark), u));
	if (read_control(tp, control) && is_our_control(mark, control))
		left |= note(u, GW_CONGESTION_CONTROL, undo_control(tp, mark));
	if (!dry_run)
		mark->ours = left;
}

SEC("iter/tcp")
int gw_undo(struct bpf_iter__tcp *ctx)
{
	struct gw_undone u = { .layout = GW_MARK_LAYOUT };
	struct tcp_sock *tp = our_socket(ctx->sk_common);
	struct gw_mark *mark;
	__u32 clamp;

	if (!tp || *(volatile __u32 *)&given_up || !has_room(ctx->meta->seq, &u, sizeof(u)))
		return 0;
	u.cookie = bpf_get_socket_cookie(tp);
	clamp = tp->snd_cwnd_clamp;
	mark = bpf_sk_storage_get(&gw_marks, tp, NULL, 0);
	if (mark)
		undo_mark(tp, mark, &u);
	else if (bpf_map_lookup_elem(&our_values, &clamp))
		note(&u, GW_CWND_CLAMP, undo_clamp(tp, GW_UNLIMITED, &u));
	if (u.found || u.layout > GW_MARK_LAYOUT)
		bpf_seq_write(ctx->meta->seq, &u, sizeof(u));
	return 0;
}
