/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A socket's receive window, and the callback by which rledbat.bpf.c keeps it: which value is ours, and how they are
 * restored. Callers hold the socket's lock.
 */
#ifndef GIVEWAY_WINDOW_H
#define GIVEWAY_WINDOW_H

static __always_inline bool is_our_window(const struct gw_saved_socket *saved, __u32 window)
{
	return saved && is_known(saved) && (saved->ours & GW_WINDOW_CLAMP) && saved->window_ours == window;
}

static __always_inline int restore_window(struct tcp_sock *tp, const struct gw_saved_socket *saved)
{
	__u32 before = saved->window_before;

	return bpf_setsockopt(tp, SOL_TCP, TCP_WINDOW_CLAMP, &before, sizeof(before));
}

static __always_inline int write_callbacks(struct tcp_sock *tp, __u32 flags)
{
	int all = flags;

	return bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &all, sizeof(all));
}

static __always_inline int restore_callback(struct tcp_sock *tp)
{
	return write_callbacks(tp, tp->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

#endif
