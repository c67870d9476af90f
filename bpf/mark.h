/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The marks in sockets' storage (struct gw_mark). The daemon pins the map, so that it outlives the programs; a socket's
 * mark goes with the socket. What a listener's children inherit of its settings, they inherit of its mark too.
 */
#ifndef GIVEWAY_MARK_H
#define GIVEWAY_MARK_H

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct gw_mark);
} gw_marks SEC(".maps");

static __always_inline bool is_known(const struct gw_mark *mark)
{
	return mark->layout <= GW_MARK_LAYOUT;
}

/* Whether the clamp that is on the socket is the one that we put there. */
static __always_inline bool is_our_clamp(const struct gw_mark *mark, __u32 clamp)
{
	return mark && is_known(mark) && (mark->ours & GW_CWND_CLAMP) && mark->clamp_ours == clamp;
}

/* Says that the clamp is about to become ours. What was there before our first one stays what was there before. */
static __always_inline void mark_clamp(struct gw_mark *mark, __u32 present, __u32 wanted)
{
	if (!is_our_clamp(mark, present))
		mark->clamp_before = present;
	mark->clamp_ours = wanted;
	mark->layout = GW_MARK_LAYOUT;
	mark->ours |= GW_CWND_CLAMP;
}

/* What a clear puts in the place of our clamp. setsockopt takes a positive int. */
static __always_inline __u32 clamp_before(const struct gw_mark *mark)
{
	return mark->clamp_before < GW_UNLIMITED ? mark->clamp_before : GW_UNLIMITED;
}

#endif
