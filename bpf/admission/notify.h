/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reports a decision: to the qdisc by a stamp on the packet, to the daemon by counters and an event for each refusal,
 * to the sender by SIGURG where its rule asks for it. (The sender's ENOBUFS comes from the drop itself.) Decides
 * nothing.
 */
#ifndef GIVEWAY_ADMISSION_NOTIFY_H
#define GIVEWAY_ADMISSION_NOTIFY_H

#include "classify.h"
#include "deadline.h"
#include "../redirect.h"
#include "../sockets.h"

#define SIGURG 23

/* Since 6.13, where it may be called from tcx at all. */
extern int bpf_send_signal_task(struct task_struct *task, int sig, enum pid_type type, __u64 value) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS);
	__type(key, __u32);
	__type(value, struct gw_admission_counters);
} admission_counters SEC(".maps");

static __always_inline struct gw_admission_counters *counters_at(__u32 number)
{
	return bpf_map_lookup_elem(&admission_counters, &number);
}

/* The daemon reads these events at every poll. */
static __noinline void report_refusal(struct __sk_buff *skb, const struct packet *p, const struct promise *promise,
				      struct gw_admission_counters *counters, __u64 now_ns)
{
	struct gw_queue_event *event = bpf_ringbuf_reserve(&queue_events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&counters->events_lost, 1);
		return;
	}
	event->t_ns = now_ns;
	event->deadline_ns = promise->deadline_ns;
	event->work_ns = promise->work_ns;
	event->cookie = bpf_get_socket_cookie(skb);
	event->kind = promise->refused;
	event->protocol = p->protocol;
	event->tuple = p->tuple;
	event->ifindex = skb->ifindex;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* Outside of the sender's context, a task that did not ask for the signal ignores it. */
static __always_inline void signal_sender(const struct gw_rule *rule)
{
	if (rule && rule->signal && bpf_ksym_exists(bpf_send_signal_task))
		bpf_send_signal_task(bpf_get_current_task_btf(), SIGURG, PIDTYPE_TGID, 0);
}

/* A packet of a local socket mostly has its flow's hash already. */
static __always_inline __u32 hash_of_flow(struct __sk_buff *skb)
{
	return skb->sk && skb->hash ? skb->hash : bpf_get_hash_recalc(skb);
}

/* Whether the daemon counts it in the sender's bytes in flight over this link, whatever the packet has become (ESP). */
static __always_inline bool is_of_tcp_socket(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	struct sock *sk = kernel_skb->sk;
	struct net_device *device;

	if (!sk || !is_full(sk) || sk->sk_protocol != IPPROTO_TCP || !in_our_netns(sk))
		return false;
	/* Otherwise the sender's route is a tunnel. */
	device = egress_device(sk);
	return device && (__u32)device->ifindex == skb->ifindex;
}

/* For the backend: see STAMP_MAGIC. htb takes the class from the priority. */
static __always_inline void stamp(struct __sk_buff *skb, const struct gw_link_config *config, enum gw_band band,
				  const struct promise *promise, __u32 work_ns, __u64 now_ns)
{
	bool is_fifo = config->backend == GW_BACKEND_FIFO;
	struct gw_admission_counters *counters;
	__u32 class = config->class_of_band[band];

	/* No backend reads it, and plain best effort needs no queue. */
	if (config->backend == GW_BACKEND_NONE && band == GW_BEST_EFFORT)
		return;
	counters = counters_at(config->number);
	skb->cb[0] = STAMP_MAGIC | (!is_fifo && is_of_tcp_socket(skb) ? STAMP_TCP : 0) | band;
	skb->cb[3] = work_ns;
	if (band == GW_REALTIME) {
		__u64 value = is_fifo ? promise->fifo_ns : promise->deadline_ns;

		skb->cb[1] = value;
		skb->cb[2] = value >> 32;
		skb->cb[4] = is_fifo ? promise->fifo_packets : (__u32)now_ns;
	} else {
		skb->cb[1] = promise->deadline_ns ? hash_of_user(uid_of(skb)) : hash_of_flow(skb);
		skb->cb[2] = promise->deadline_ns;
		skb->cb[4] = promise->deadline_ns >> 32;
	}
	if (class)
		skb->priority = class;
	if (counters)
		__sync_fetch_and_add(&counters->packets[band], 1);
}

/* Sends a packet with a limit to the ifb first (redirect.h). It is counted and marked on its return. */
static __always_inline bool redirect_to_limit(struct __sk_buff *skb, const struct gw_link_config *config, __u32 treatment)
{
	__u32 limit = limit_of(treatment);

	if (!limit || !(config->flags & GW_REDIRECT) || has_returned(skb))
		return false;
	mark_for_redirect(skb, limit, hash_of_flow(skb), treatment & GW_CLASS_MASK);
	return true;
}

#endif
