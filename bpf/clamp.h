/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one place that writes to a live socket: its cwnd clamp. For iter/tcp programs, which hold the socket's lock.
 *
 * The kernel sets ssthresh along with the clamp. Where a cap held cwnd and is raised, or the connection is in slow
 * start anyway, that is right: it grows fast, and no further than the cap. But a clear makes ssthresh infinite, and a
 * connection whose cwnd the network holds below our cap would forget what it learnt. (In its first slow start, with a
 * cap that it has not reached, it has learnt nothing yet.) In these cases a CUBIC or Reno connection is eased: for a
 * moment it gets the congestion control of ease.bpf.c, whose init sets ssthresh to the present cwnd, and then its own
 * again, which goes on from there in congestion avoidance. Where that one is not registered, the write stays a plain
 * one.
 *
 * Down, the kernel lowers cwnd to the clamp only while cwnd is what limits. A connection that its pacing rate or its own
 * queue holds back would keep the cwnd of another time, and send all of it at once when that hold is gone. The same
 * congestion control lowers it.
 *
 * Who is not paced any more goes back to what it had before its limits, beside others that have kept the queue full
 * meanwhile. To HyStart (tcp_cubic.c) that queue is what slow start has just made: it ends it within a round trip, and
 * CUBIC needs seconds from there. Where nothing was lost, slow start goes on to the cap; HyStart ends it once only.
 */
#ifndef GIVEWAY_CLAMP_H
#define GIVEWAY_CLAMP_H

/* Of the congestion control in ease.bpf.c; empty: none is registered. */
const volatile char ease_name[GW_CA_NAME_LEN];

/* Those that go on from cwnd and ssthresh alone. Others, like BBR, keep a model that a restart would lose. */
static __always_inline bool can_be_eased(const char name[GW_CA_NAME_LEN])
{
	return !__builtin_memcmp(name, "cubic", 6) || !__builtin_memcmp(name, "reno", 5);
}

static __always_inline bool read_name(const struct tcp_sock *tp, char name[GW_CA_NAME_LEN])
{
	const struct tcp_congestion_ops *ca = tp->inet_conn.icsk_ca_ops;

	return ca && bpf_core_read_str(name, GW_CA_NAME_LEN, &ca->name) >= 0;
}

static __always_inline bool ease(struct tcp_sock *tp)
{
	char name[GW_CA_NAME_LEN] = {}, easing[GW_CA_NAME_LEN] = {};

	if (!ease_name[0] || !read_name(tp, name) || !can_be_eased(name))
		return false;
	for (int i = 0; i < GW_CA_NAME_LEN; i++)
		easing[i] = ease_name[i];
	return !bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, easing, sizeof(easing)) &&
	       !bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
}

/* It is HyStart that ended slow start, and no loss. */
static __always_inline bool was_ended_by_hystart(const struct tcp_sock *tp)
{
	const struct bictcp *cubic = (const struct bictcp *)tp->inet_conn.icsk_ca_priv;
	char name[GW_CA_NAME_LEN] = {};

	return read_name(tp, name) && !__builtin_memcmp(name, "cubic", 6) && bpf_core_field_exists(cubic->found) &&
	       BPF_CORE_READ(cubic, found) && !BPF_CORE_READ(cubic, last_max_cwnd);
}

/* Its pacing rate was limited, and is not any more; the kernel goes on to pace it. */
static __always_inline bool goes_back(const struct tcp_sock *tp)
{
	const struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	return sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL && was_ended_by_hystart(tp);
}

/* Asked before the write. */
static __always_inline bool would_restart_slow_start(const struct tcp_sock *tp, const struct gw_outcome *o)
{
	__u32 cwnd = tp->snd_cwnd;

	if (o->wanted == GW_UNLIMITED)
		return cwnd >= o->old_clamp || tp->snd_ssthresh < o->old_clamp || tp->total_retrans;
	return cwnd >= tp->snd_ssthresh && cwnd < o->old_clamp && cwnd < o->wanted && !goes_back(tp);
}

/* Asked before the write. Little is left to the kernel: each time, CUBIC begins anew. */
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
		o->eased = ease(tp);
	else if (!o->error && keeps_cwnd)
		ease(tp);
}

#endif
