// SPDX-License-Identifier: GPL-2.0-only
/*
 * A congestion control for background transfers: LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus) by round-trip time, and
 * what that leaves open. ledbat/rule.h computes the window; this file feeds it a sender's measurements. Optional: where
 * the kernel refuses it, background transfers keep their congestion control. Linux 6.10. Requires CAP_NET_ADMIN to
 * choose.
 *
 * Decisions fall once a round (from a packet's departure to its acknowledgement), by the least round-trip time and the
 * losses of that round. Only a delay that cannot be our own ends a round early.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "ledbat/rule.h"
#include "ledbat/waited.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline struct ledbat *state_of(struct sock *sk)
{
	_Static_assert(sizeof(struct ledbat) <= 104, "the kernel has this much for it");
	return (struct ledbat *)((struct inet_connection_sock *)sk)->icsk_ca_priv;
}

static __always_inline __u64 now_ms(const struct tcp_sock *tp)
{
	return tp->tcp_mstamp / 1000;
}

/* Whether a packet sent so long ago waited in this machine's own queue. */
static __always_inline bool has_waited(const struct sock *sk, __u64 now, __u32 ago_ms)
{
	__u64 until_ms = own_wait_until_ms(sk);

	return until_ms && now <= until_ms + ago_ms;
}

/*
 * The smoothed round trip (`srtt_us`) remembers another flow's queue for many rounds, so the latest counts if it is
 * less.
 */
static __always_inline void apply(struct sock *sk, struct tcp_sock *tp, const struct ledbat *ca, __u32 packets, __u32 rtt_us)
{
	__u32 in_flight = tp->packets_out + tp->retrans_out - tp->sacked_out - tp->lost_out;
	__u32 percent = pace_percent(ca, packets);
	__u64 rate = ~0UL;

	tp->snd_cwnd = greatest(least(cwnd(packets, in_flight), tp->snd_cwnd_clamp), 1);
	if (percent && tp->srtt_us) {
		rtt_us = least(tp->srtt_us >> 3, rtt_us ?: ~0U);
		rate = (__u64)packets * tp->mss_cache * USEC_PER_SEC / (rtt_us ?: 1) * percent / 100;
	}
	if (rate > sk->sk_max_pacing_rate)
		rate = sk->sk_max_pacing_rate;
	sk->sk_pacing_rate = rate;
}

SEC("struct_ops")
void BPF_PROG(gw_ledbat_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct ledbat *ca = state_of(sk);

	begin(ca, tp->snd_cwnd, tp->rtt_min.s[0].v, now_ms(tp));
	ca->round_end = tp->delivered;
	if (sk->sk_pacing_status == SK_PACING_NONE) {
		sk->sk_pacing_status = SK_PACING_NEEDED;
		ca->has_set_pacing = 1;
	}
}

/* The next congestion control continues by slow start up to the path's capacity, paced as before. */
SEC("struct_ops")
void BPF_PROG(gw_ledbat_release, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	const struct ledbat *ca = state_of(sk);

	if (ca->peak)
		tp->snd_ssthresh = greatest(greatest(pipe(ca), ca->window) / PACKET, 2);
	/* Somebody may have set a pacing rate meanwhile, or fq paces. */
	if (ca->has_set_pacing && sk->sk_pacing_status == SK_PACING_NEEDED && sk->sk_max_pacing_rate == ~0UL)
		sk->sk_pacing_status = SK_PACING_NONE;
}

SEC("struct_ops")
__u32 BPF_PROG(gw_ledbat_ssthresh, struct sock *sk)
{
	return greatest(state_of(sk)->window / PACKET / 2, 2);
}

SEC("struct_ops")
__u32 BPF_PROG(gw_ledbat_undo, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(gw_ledbat_state, struct sock *sk, __u8 state)
{
	struct ledbat *ca = state_of(sk);
	__u64 now = now_ms((struct tcp_sock *)sk);

	if (state == TCP_CA_CWR)
		ca->is_marked = 1;
	if (state == TCP_CA_LOSS && !has_waited(sk, now, age_ms(ca->round, now))) {
		struct ledbat copy = *ca;

		/* As in gw_ledbat_control. */
		suffer_timeout(&copy, now);
		*ca = copy;
	}
}

/* The first packet after everything was acknowledged. Newer kernels call this, older ones send the event. */
SEC("struct_ops")
void BPF_PROG(gw_ledbat_start, struct sock *sk)
{
	resume(state_of(sk), now_ms((struct tcp_sock *)sk));
}

SEC("struct_ops")
void BPF_PROG(gw_ledbat_event, struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT_TX_START)
		resume(state_of(sk), now_ms((struct tcp_sock *)sk));
}

SEC("struct_ops")
void BPF_PROG(gw_ledbat_control, struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct ledbat *ca = state_of(sk);
	__u64 now = now_ms(tp);
	__u32 rtt_us = rs->rtt_us > 0 ? rs->rtt_us : 0;
	bool is_last = (__s32)(rs->prior_delivered - ca->round_end) >= 0;

	if (has_waited(sk, now, rtt_us ? rtt_us / 1000 : age_ms(ca->round, now))) {
		stand_by(ca, now);
		ca->round_end = tp->delivered;
		apply(sk, tp, ca, LEAST / PACKET, ca->base_us);
		return;
	}
	if (note_acked(ca, rtt_us, rs->acked_sacked, rs->losses, rs->prior_in_flight, tp->mdev_us >> 2, is_last, now)) {
		struct ledbat copy = *ca;

		/* The verifier accepts no part of a socket as a function's argument. */
		end_round(&copy, tp->mdev_us >> 2, true, now);
		*ca = copy;
		ca->round_end = tp->delivered;
	}
	apply(sk, tp, ca, window_packets(ca), rtt_us);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops giveway_ledbat = {
	.init = (void *)gw_ledbat_init,
	.release = (void *)gw_ledbat_release,
	.ssthresh = (void *)gw_ledbat_ssthresh,
	.undo_cwnd = (void *)gw_ledbat_undo,
	.set_state = (void *)gw_ledbat_state,
	.cwnd_event = (void *)gw_ledbat_event,
	.cwnd_event_tx_start = (void *)gw_ledbat_start,
	.cong_control = (void *)gw_ledbat_control,
	.name = "giveway_ledbat",
};
