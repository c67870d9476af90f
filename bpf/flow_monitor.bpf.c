// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watches every TCP socket of one network namespace, and its UDP sockets.
 *
 * The cost must follow the number of active sockets, not of open ones. So a per-packet program only touches its socket
 * in the storage map `active`; ten times a second `gw_poll_active` iterates that map (not the socket table), writes a
 * record for each socket that was touched or has bytes queued or in flight, and removes those idle for a second. A
 * stalled sender, whose packets are not answered, stays: it has bytes in flight. `gw_scan_all` writes the same record
 * for every connection, at the start and every ten seconds or so.
 *
 * Owners are kept in the storage map `owners` (owners.h): set by `connect`, by each send or receive of a process, and
 * by `gw_find_owners`, which scans all open files. (It is the most expensive program here, and runs when a scan shows a
 * socket without a known owner, and every minute.)
 *
 * UDP: see datagrams.h.
 *
 * Events between polls go to the ring buffer `events` and wait for the reader's next poll, unless the buffer fills up:
 * a wake-up for each would cost far more than the event, and remote hosts decide how many connections open and close.
 * Retransmissions and congestion-avoidance states come in bursts and are limited per socket as well.
 *
 * Changes no socket.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "owners.h"

char LICENSE[] SEC("license") = "GPL";

#define IDLE_NS NSEC_PER_SEC
#define RETRANSMIT_EVENT_NS (10 * NSEC_PER_MSEC)
#define CA_WINDOW_NS (10 * NSEC_PER_MSEC)
#define CA_EVENTS_PER_WINDOW 8
#define EVENTS_BYTES (256 * 1024)

struct activity {
	__u64 last_ns;
	__u64 retransmit_event_ns;
	__u64 ca_window_ns; /* start of the present window of congestion-avoidance events */
	__u32 retransmits_reported;
	__u16 ca_events; /* reported in that window */
	__u16 touched;   /* since the last poll */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct activity);
} active SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
} events SEC(".maps");

/* Events that found the ring buffer full. */
__u64 lost_events;

/* How often a socket became active, once between two polls. */
__u64 touches;

/* Puts the shared types into the skeleton. */
enum gw_limit *limit_type __attribute__((unused));
struct gw_flow *flow_type __attribute__((unused));
struct gw_event *event_type __attribute__((unused));

/* ---- touching active sockets ---- */

static __always_inline struct activity *begin_activity(struct sock *sk, const struct tcp_sock *tp)
{
	struct activity fresh = {
		.last_ns = bpf_ktime_get_ns(),
		.retransmits_reported = tp->total_retrans,
		.touched = 1,
	};
	struct activity *a = bpf_sk_storage_get(&active, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);

	/* Last: a reader that has seen the count must find the entry. */
	__sync_fetch_and_add(&touches, 1);
	return a;
}

/* Sockets of other namespaces cost one comparison; one with an entry is known to be TCP. */
static __always_inline struct activity *touch(struct sock *sk)
{
	struct activity *a;
	struct tcp_sock *tp;

	if (!in_our_netns(sk))
		return NULL;
	a = bpf_sk_storage_get(&active, sk, NULL, 0);
	if (a) {
		if (!a->touched) {
			a->touched = 1;
			__sync_fetch_and_add(&touches, 1);
		}
		return a;
	}
	if (!is_our_tcp(sk))
		return NULL;
	tp = bpf_skc_to_tcp_sock(sk);
	return tp ? begin_activity(sk, tp) : NULL;
}

/* ---- describing a socket ---- */

static __always_inline void describe_tuple(struct gw_tuple *t, const struct sock *sk)
{
	const struct sock_common *skc = &sk->__sk_common;

	t->family = skc->skc_family;
	t->local_port = skc->skc_num;
	t->remote_port = bpf_ntohs(skc->skc_dport);
	if (t->family == AF_INET) {
		*(__be32 *)t->local = skc->skc_rcv_saddr;
		*(__be32 *)t->remote = skc->skc_daddr;
		return;
	}
	bpf_core_read(t->local, sizeof(t->local), &skc->skc_v6_rcv_saddr);
	bpf_core_read(t->remote, sizeof(t->remote), &skc->skc_v6_daddr);
	if (t->remote[0] == 0xfe && (t->remote[1] & 0xc0) == 0x80)
		t->scope_id = skc->skc_bound_dev_if;
}

/* Sequence numbers wrap; a negative distance counts as 0. */
static __always_inline __u32 sequence_distance(__u32 from, __u32 to)
{
	__s32 distance = to - from;

	return distance > 0 ? distance : 0;
}

static __always_inline __u32 unsent_bytes(const struct tcp_sock *tp)
{
	return sequence_distance(tp->snd_nxt, tp->write_seq);
}

static __always_inline __u32 unacked_bytes(const struct tcp_sock *tp)
{
	return sequence_distance(tp->snd_una, tp->snd_nxt);
}

/* As tcp_get_info() and its helpers do (net/ipv4/tcp.c), in their units. */
static __always_inline void describe_tcp(struct gw_flow *f, const struct tcp_sock *tp)
{
	__u32 left_out = tp->sacked_out + tp->lost_out;
	__u32 sent = tp->packets_out + tp->retrans_out;
	__u64 delivered = tp->rate_delivered;
	__u32 interval_us = tp->rate_interval_us;

	f->mss_bytes = tp->mss_cache;
	f->in_flight_bytes = (__u64)(sent > left_out ? sent - left_out : 0) * f->mss_bytes;
	if (delivered && interval_us)
		f->delivery_rate_bytes_per_s = delivered * f->mss_bytes * USEC_PER_SEC / interval_us;
	f->unsent_bytes = unsent_bytes(tp);
	f->unacked_bytes = unacked_bytes(tp);
	f->cwnd = tp->snd_cwnd;
	f->clamp = tp->snd_cwnd_clamp;
	f->ssthresh = tp->snd_ssthresh;
	f->srtt_us = tp->srtt_us >> 3;
	f->min_rtt_us = tp->rtt_min.s[0].v;
	f->rttvar_us = tp->mdev_us >> 2;
	f->retransmits = tp->total_retrans;
	f->delivered = tp->delivered;
	f->acked_bytes = tp->bytes_acked;
	f->received_bytes = tp->bytes_received;
	f->latest_rtt_us = tp->rack.rtt_us;
	/* Without timestamps the kernel measures how long a window takes to arrive, which is no round trip. */
	if (BPF_CORE_READ_BITFIELD(tp, rx_opt.saw_tstamp))
		f->receiver_rtt_us = tp->rcv_rtt_est.rtt_us >> 3;
}

static __always_inline void describe_marks(struct gw_flow *f, struct sock *sk)
{
	struct inet_sock *inet = (struct inet_sock *)sk;
	struct ipv6_pinfo *ipv6 = NULL;

	f->priority = sk->sk_priority;
	f->tos = BPF_CORE_READ(inet, tos);
	if (f->tuple.family != AF_INET6 || !bpf_core_field_exists(inet->pinet6))
		return;
	ipv6 = BPF_CORE_READ(inet, pinet6);
	if (ipv6)
		f->tclass = BPF_CORE_READ(ipv6, tclass);
}

static __always_inline void describe_owner(struct gw_flow *f, struct sock *sk, const struct owner *o)
{
	f->uid = BPF_CORE_READ(sk, sk_uid.val);
	f->cgroup_id = BPF_CORE_READ(sk, sk_cgrp_data.cgroup, kn, id);
	if (o) {
		f->pid = o->is.pid;
		f->start_ns = o->is.start_ns;
		__builtin_memcpy(f->command, o->is.command, sizeof(f->command));
	}
}

static __always_inline void describe_socket(struct gw_flow *f, struct sock *sk)
{
	struct net_device *device = egress_device(sk);

	f->cookie = bpf_get_socket_cookie(sk);
	f->protocol = sk->sk_protocol;
	f->state = sk->__sk_common.skc_state;
	if (device)
		f->ifindex = device->ifindex;
	describe_tuple(&f->tuple, sk);
	describe_marks(f, sk);
}

static __always_inline void write_flow(struct seq_file *seq, struct sock *sk, const struct tcp_sock *tp)
{
	const struct inet_connection_sock *icsk = &tp->inet_conn;
	const struct tcp_congestion_ops *ca = icsk->icsk_ca_ops;
	struct sock *parent = parent_of(sk);
	struct gw_flow f = {};

	describe_socket(&f, sk);
	describe_owner(&f, parent ? parent : sk, owner_of(sk));
	describe_tcp(&f, tp);
	f.pacing_rate_bytes_per_s = sk->sk_pacing_rate;
	f.ca_state = BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state);
	if (ca)
		bpf_core_read_str(f.congestion_control, sizeof(f.congestion_control), &ca->name);
	bpf_seq_write(seq, &f, sizeof(f));
}

#include "datagrams.h"

/* ---- reporting events ---- */

/* Wakes the reader only when events might be lost. */
static __always_inline __u64 wake_when_filling(void)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > EVENTS_BYTES / 2 ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
}

static __always_inline void report(struct sock *sk, struct gw_event what)
{
	struct gw_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&lost_events, 1);
		return;
	}
	*e = what;
	e->cookie = bpf_get_socket_cookie(sk);
	describe_tuple(&e->tuple, sk);
	/* A closing socket has released its port already; inet_sport still holds it. */
	if (!e->tuple.local_port)
		e->tuple.local_port = bpf_ntohs(BPF_CORE_READ((struct inet_sock *)sk, inet_sport));
	bpf_ringbuf_submit(e, wake_when_filling());
}

static __always_inline void report_retransmits(struct sock *sk, struct activity *a, __u32 total, __u64 now_ns)
{
	struct gw_event what = { .t_ns = now_ns, .kind = GW_EVENT_RETRANSMIT, .count = total - a->retransmits_reported };

	a->retransmits_reported = total;
	a->retransmit_event_ns = now_ns;
	report(sk, what);
}

/* ---- programs ---- */

SEC("tp_btf/tcp_probe")
int BPF_PROG(gw_touch_segment, struct sock *sk)
{
	touch(sk);
	return 0;
}

/* Runs in the sender, for sockets of every family. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(gw_touch_send, struct sock *sk, int sent)
{
	if (sent <= 0)
		return 0;
	if (sk->sk_protocol == IPPROTO_UDP) {
		if (is_our(sk, IPPROTO_UDP))
			touch_datagram(sk);
	} else if (sk->sk_protocol == IPPROTO_MPTCP) {
		if (is_our(sk, IPPROTO_MPTCP))
			use_parent(sk);
	} else if (is_our_tcp(sk) && touch(sk)) {
		use_socket(sk);
	}
	return 0;
}

/*
 * Where a process holds the socket's lock it is the one that uses it; otherwise this is a softirq in an arbitrary task.
 */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(gw_see_receive, struct sock *sk)
{
	if (sk->sk_lock.owned && is_our_tcp(sk))
		use_socket(sk);
	return 0;
}

/* A listener's child is skipped until it is connected: only then is its cookie final. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(gw_see_state, struct sock *sk, int from, int to)
{
	struct gw_event what = { .kind = GW_EVENT_STATE, .from = from, .to = to };

	if (from == TCP_LISTEN || to == TCP_LISTEN || from == to || !is_our_tcp(sk))
		return 0;
	what.t_ns = bpf_ktime_get_ns();
	if (to == TCP_SYN_SENT)
		own_connected(sk);
	if (to == TCP_ESTABLISHED)
		what.kind = GW_EVENT_OPEN;
	if (to == TCP_CLOSE) {
		what.kind = GW_EVENT_CLOSE;
		bpf_sk_storage_delete(&active, sk);
	} else {
		touch(sk);
	}
	report(sk, what);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(gw_see_retransmit, struct sock *sk)
{
	struct activity *a = touch(sk);
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	__u64 now_ns;

	if (!a || !tp)
		return 0;
	/* A new entry has counted this very segment as reported. */
	if (a->retransmits_reported == tp->total_retrans)
		a->retransmits_reported--;
	now_ns = bpf_ktime_get_ns();
	if (now_ns - a->retransmit_event_ns >= RETRANSMIT_EVENT_NS)
		report_retransmits(sk, a, tp->total_retrans, now_ns);
	return 0;
}

/* Counts one more event; false once the window's limit is reached. */
static __always_inline bool may_report_ca_state(struct activity *a, __u64 now_ns)
{
	if (now_ns - a->ca_window_ns >= CA_WINDOW_NS) {
		a->ca_window_ns = now_ns;
		a->ca_events = 0;
	}
	return a->ca_events++ < CA_EVENTS_PER_WINDOW;
}

/* Runs before the state is written. */
SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(gw_see_ca_state, struct sock *sk, __u8 to)
{
	const struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;
	struct gw_event what = { .kind = GW_EVENT_CA_STATE, .to = to };
	struct activity *a;

	what.from = BPF_CORE_READ_BITFIELD_PROBED(icsk, icsk_ca_state);
	if (what.from == what.to)
		return 0;
	a = touch(sk);
	if (!a)
		return 0;
	what.t_ns = bpf_ktime_get_ns();
	if (may_report_ca_state(a, what.t_ns))
		report(sk, what);
	return 0;
}

static __always_inline void poll(struct seq_file *seq, struct sock *sk, struct tcp_sock *tp, struct activity *a)
{
	struct gw_flow none = {};
	__u64 now_ns;
	bool touched;

	if (!has_room(seq, &none, sizeof(none)))
		return;
	now_ns = bpf_ktime_get_ns();
	settle_owner(owner_of(sk), now_ns);
	touched = a->touched;
	a->touched = 0;
	if (touched)
		a->last_ns = now_ns;
	if (a->retransmits_reported != tp->total_retrans && now_ns - a->retransmit_event_ns >= RETRANSMIT_EVENT_NS)
		report_retransmits(sk, a, tp->total_retrans, now_ns);
	if (is_connection(&sk->__sk_common) && (touched || unsent_bytes(tp) || unacked_bytes(tp)))
		write_flow(seq, sk, tp);
	else if (now_ns - a->last_ns > IDLE_NS)
		bpf_sk_storage_delete(&active, sk);
}

SEC("iter/bpf_sk_storage_map")
int gw_poll_active(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct activity *a = ctx->value;
	struct sock *sk = ctx->sk;
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : NULL;

	if (tp && a)
		poll(ctx->meta->seq, sk, tp, a);
	return 0;
}

/* For kernels without such an iterator: over all connections. */
SEC("iter/tcp")
int gw_scan_active(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = our_connection(ctx->sk_common);
	struct sock *sk = (struct sock *)tp;
	struct activity *a = tp ? bpf_sk_storage_get(&active, sk, NULL, 0) : NULL;

	if (a)
		poll(ctx->meta->seq, sk, tp, a);
	return 0;
}

/* The kernel shows only the namespace of the process that reads. */
SEC("iter/tcp")
int gw_scan_all(struct bpf_iter__tcp *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct tcp_sock *tp = our_connection(ctx->sk_common);
	struct sock *sk = (struct sock *)tp;
	struct gw_flow none = {};

	if (!tp || !has_room(seq, &none, sizeof(none)))
		return 0;
	settle_search(owner_of(sk), bpf_ktime_get_ns());
	/* It stalled before we attached: no packet will touch it. */
	if (unsent_bytes(tp) || unacked_bytes(tp))
		touch(sk);
	write_flow(seq, sk, tp);
	return 0;
}

SEC("iter/task_file")
int gw_find_owners(struct bpf_iter__task_file *ctx)
{
	__u64 search = ctx->meta->session_id;
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct owner *o;
	struct socket *socket;
	struct sock *sk;

	if (!file || !task)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk || sk->__sk_common.skc_state == TCP_LISTEN)
		return 0;
	if (is_our_tcp(sk))
		o = bpf_sk_storage_get(&owners, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	else if (is_our(sk, IPPROTO_MPTCP))
		o = owner_of_parent(sk, task, false);
	else
		return 0;
	if (o)
		find_open(o, task, search);
	return 0;
}
