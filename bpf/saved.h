/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The map of the sockets' saved state (struct gw_saved_socket). The daemon pins it, so that it outlives the programs;
 * an entry goes with its socket. A listener's children inherit its settings and its saved state.
 */
#ifndef GIVEWAY_SAVED_H
#define GIVEWAY_SAVED_H

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct gw_saved_socket);
} gw_saved_socks SEC(".maps");

static __always_inline bool is_known(const struct gw_saved_socket *saved)
{
	return saved->layout <= GW_SAVED_LAYOUT;
}

/* Whether the socket's present clamp is the one that we set. */
static __always_inline bool is_our_clamp(const struct gw_saved_socket *saved, __u32 clamp)
{
	return saved && is_known(saved) && (saved->ours & GW_CWND_CLAMP) && saved->clamp_ours == clamp;
}

/* Records that the clamp is about to become ours; the value from before our first one is kept. */
static __always_inline void save_clamp(struct gw_saved_socket *saved, __u32 present, __u32 wanted)
{
	if (!is_our_clamp(saved, present))
		saved->clamp_before = present;
	saved->clamp_ours = wanted;
	saved->layout = GW_SAVED_LAYOUT;
	saved->ours |= GW_CWND_CLAMP;
}

/* The value that restores the clamp. setsockopt takes a positive int. */
static __always_inline __u32 clamp_before(const struct gw_saved_socket *saved)
{
	return saved->clamp_before < GW_UNLIMITED ? saved->clamp_before : GW_UNLIMITED;
}

#endif
