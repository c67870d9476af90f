// SPDX-License-Identifier: GPL-2.0-only
/*
 * A congestion control for the length of one call (see clamp.h): its init lowers cwnd to the clamp and sets ssthresh to
 * it, so that the connection's own one continues in congestion avoidance. If a connection ever stays with it, it
 * behaves as Reno. Optional: where the kernel refuses struct_ops, clamps are written plainly. Requires CAP_NET_ADMIN to
 * choose.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "GPL";

struct ack_sample;
struct rate_sample;

extern __u32 tcp_reno_ssthresh(struct sock *sk) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;
extern void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;

SEC("struct_ops")
void BPF_PROG(gw_avoidance_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u32 cwnd = tp->snd_cwnd < tp->snd_cwnd_clamp ? tp->snd_cwnd : tp->snd_cwnd_clamp;

	tp->snd_cwnd = cwnd;
	tp->snd_ssthresh = cwnd > 2 ? cwnd : 2;
}

SEC("struct_ops")
__u32 BPF_PROG(gw_avoidance_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(gw_avoidance_undo, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
void BPF_PROG(gw_avoidance_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	tcp_reno_cong_avoid(sk, ack, acked);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops gw_avoidance = {
	.init = (void *)gw_avoidance_init,
	.ssthresh = (void *)gw_avoidance_ssthresh,
	.undo_cwnd = (void *)gw_avoidance_undo,
	.cong_avoid = (void *)gw_avoidance_avoid,
	.name = "gw_avoidance",
};
