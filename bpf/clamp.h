/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one place that writes a cwnd clamp to a live socket. For iter/tcp programs, which hold the socket's lock.
 *
 * The kernel sets ssthresh along with the clamp. Where a cap limited cwnd and is raised, or the connection is in slow
 * start anyway, that is right: it grows fast, and no further than the cap. But clearing the clamp makes ssthresh
 * infinite: a connection that the network holds below our cap would forget its ssthresh and restart slow start. (In its
 * first slow start, below its cap, it has none yet.) In these cases a CUBIC or Reno connection gets the congestion
 * control of avoidance.bpf.c for the length of one call, whose init sets ssthresh to the present cwnd, and then its own
 * again, which continues in congestion avoidance. Where avoidance.bpf.c is not registered, the write stays a plain one.
 *
 * When lowering, the kernel reduces cwnd to the clamp only while cwnd is the limit. A connection limited by its pacing
 * rate or by its local queue would keep an outdated cwnd and send all of it at once later. The same congestion control
 * lowers it.
 *
 * A connection that is no longer paced has to regain its share beside others that have kept the queue full. To HyStart
 * (tcp_cubic.c) that queue looks like one that slow start has made: it ends slow start within a round trip, and CUBIC
 * needs seconds from there. Where nothing was lost, slow start continues to the cap; HyStart ends it only once.
 */
#ifndef GIVEWAY_CLAMP_H
#define GIVEWAY_CLAMP_H

/* The name that avoidance.bpf.c is registered under; empty: it is not. */
const volatile char avoidance_name[GW_CA_NAME_LEN];

/* CUBIC and Reno continue from cwnd and ssthresh alone. Others, like BBR, keep a model that a restart would lose. */
static __always_inline bool can_enter_avoidance(const char name[GW_CA_NAME_LEN])
{
	return !__builtin_memcmp(name, "cubic", 6) || !__builtin_memcmp(name, "reno", 5);
}

static __always_inline bool read_name(const struct tcp_sock *tp, char name[GW_CA_NAME_LEN])
{
	const struct tcp_congestion_ops *ca = tp->inet_conn.icsk_ca_ops;

	return ca && bpf_core_read_str(name, GW_CA_NAME_LEN, &ca->name) >= 0;
}

static __always_inline bool enter_avoidance(struct tcp_sock *tp)
{
	char name[GW_CA_NAME_LEN] = {}, avoidance[GW_CA_NAME_LEN] = {};

	if (!avoidance_name[0] || !read_name(tp, name) || !can_enter_avoidance(name))
		return false;
	for (int i = 0; i < GW_CA_NAME_LEN; i++)
		avoidance[i] = avoidance_name[i];
	return !bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, avoidance, sizeof(avoidance)) &&
	       !bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
}

/* HyStart has ended slow start, without a loss. */
static __always_inline bool was_ended_by_hystart(const struct tcp_sock *tp)
{
	const struct bictcp *cubic = (const struct bictcp *)tp->inet_conn.icsk_ca_priv;
	char name[GW_CA_NAME_LEN] = {};

	return read_name(tp, name) && !__builtin_memcmp(name, "cubic", 6) && bpf_core_field_exists(cubic->found) &&
	       BPF_CORE_READ(cubic, found) && !BPF_CORE_READ(cubic, last_max_cwnd);
}

/* Its pacing rate was limited and is no longer; the kernel continues to pace it. */
static __always_inline bool was_paced(const struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	return sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL && was_ended_by_hystart(tp);
}

/* Called before the write. */
static __always_inline bool would_restart_slow_start(const struct tcp_sock *tp, const struct gw_outcome *o)
{
	__u32 cwnd = tp->snd_cwnd;

	if (o->wanted == GW_UNLIMITED)
		return cwnd >= o->old_clamp || tp->snd_ssthresh < o->old_clamp || tp->total_retrans;
	return cwnd >= tp->snd_ssthresh && cwnd < o->old_clamp && cwnd < o->wanted && !was_paced(tp);
}

/* Called before the write. Small differences are left to the kernel, since CUBIC starts anew each time. */
static __always_inline bool would_keep_cwnd(struct tcp_sock *tp, const struct gw_outcome *o)
{
	return tp->snd_cwnd > o->wanted + o->wanted / 8 && !BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited);
}

static __always_inline void write_clamp(struct tcp_sock *tp, struct gw_outcome *o)
{
	bool restarts = would_restart_slow_start(tp, o);
	bool keeps_cwnd = would_keep_cwnd(tp, o);
	int clamp = o->wanted;

	o->error = bpf_setsockopt(tp, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &clamp, sizeof(clamp));
	o->kind = o->error ? GW_FAILED : GW_APPLIED;
	if (!o->error && restarts)
		o->without_restart = enter_avoidance(tp);
	else if (!o->error && keeps_cwnd)
		enter_avoidance(tp);
}

#endif
