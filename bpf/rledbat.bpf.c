// SPDX-License-Identifier: GPL-2.0-only
/*
 * The receiver's half of background: a download yields by the receive window (rLEDBAT, RFC 9840), by the same rule as
 * the sender's half (ledbat/rule.h). Optional. Linux 6.12.
 *
 * The daemon names connections in `wanted_receivers` and runs `gw_apply_receivers` once over all sockets. From then on
 * the kernel calls `gw_offer` before each packet that such a socket sends, acknowledgements included, in time to change
 * the window that the packet offers.
 *
 * A round trip is the time from an acknowledgement to the first packet that echoes its timestamp. The kernel never
 * takes an offer back, so the window shrinks only as packets arrive.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "sockets.h"
#include "saved.h"
#include "window.h"
#include "ledbat/receiver.h"
#include "ledbat/waited.h"

char LICENSE[] SEC("license") = "GPL";

#define NSEC_PER_USEC 1000
/* The kernel raises a smaller clamp to this (SOCK_MIN_RCVBUF / 2). */
#define LEAST_BYTES 2304U
#define MOST_BYTES (1U << 30)
#define LEAST_SEGMENT 64U
/* A round of fewer packets is no transfer yet: nothing is touched. */
#define TRANSFER_PACKETS 8U
#define TCP_ECN_DEMAND_CWR 4

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct receiver);
} receivers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct gw_receiver_wanted);
} wanted_receivers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} lost_windows SEC(".maps");

/* Puts the types of the border into the skeleton. */
struct gw_receiver_wanted *wanted_type __attribute__((unused));
enum gw_window_wish *wish_type __attribute__((unused));
struct gw_receiver_outcome *outcome_type __attribute__((unused));
struct gw_receiver_lost *lost_type __attribute__((unused));

static __always_inline bool is_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

static __always_inline __u32 segment_of(const struct tcp_sock *tp)
{
	return greatest(tp->inet_conn.icsk_ack.rcv_mss, LEAST_SEGMENT);
}

/* Data beyond the first hole. */
struct beyond {
	__u32 end;     /* sequence number; rcv_nxt where there is no hole */
	__u32 missing; /* bytes after `counted_to` */
};

/* The kernel keeps up to four SACK blocks; further holes are not counted. */
static __always_inline void find_missing(const struct tcp_sock *tp, __u32 counted_to, struct beyond *b)
{
	__u32 next = tp->rcv_nxt, count = tp->rx_opt.num_sacks, from;
	struct tcp_sack_block blocks[4] = {};

	/* The verifier wants fields one by one, and clang reads them two at a time. */
	bpf_core_read(blocks, sizeof(blocks), &tp->selective_acks);
	b->end = next;
	from = is_before(next, counted_to) ? counted_to : next;
	for (__u32 i = 0; i < 4; i++) {
		struct tcp_sack_block block = blocks[i];

		if (i >= count || is_before(block.end_seq, block.start_seq) || is_before(block.start_seq, next))
			continue;
		if (is_before(b->end, block.end_seq))
			b->end = block.end_seq;
	}
	b->missing = is_before(from, b->end) ? b->end - from : 0;
	for (__u32 i = 0; i < 4; i++) {
		struct tcp_sack_block block = blocks[i];
		__u32 start = is_before(block.start_seq, from) ? from : block.start_seq;

		if (i < count && is_before(start, block.end_seq))
			b->missing -= least(b->missing, block.end_seq - start);
	}
}

/* Whether our packet is later than the data that it could have answered at once. */
static __always_inline bool is_late(const struct tcp_sock *tp)
{
	return age_of(tp->inet_conn.icsk_ack.lrcvtime, bpf_jiffies64()) > 1;
}

/* The kernel sets the clamp to this whenever it enlarges the buffer; for SO_RCVLOWAT it rounds once more. */
static __always_inline bool is_kernel_default(const struct tcp_sock *tp, __u32 window)
{
	__u32 of_buffer = (__u64)(__u32)tp->inet_conn.icsk_inet.sk.sk_rcvbuf * tp->scaling_ratio >> 8;

	return window - of_buffer <= 1;
}

static __always_inline void give_up(struct bpf_sock_ops *ops, struct receiver *r, const struct tcp_sock *tp,
				    struct gw_saved_socket *saved)
{
	struct gw_receiver_lost lost = { .cookie = bpf_get_socket_cookie(ops), .found = tp->window_clamp };

	r->is_given_up = 1;
	saved->ours &= ~GW_WINDOW_CLAMP;
	bpf_ringbuf_output(&lost_windows, &lost, sizeof(lost), 0);
}

/*
 * Offers this window, but no more than another setting allows. Writes nothing that cannot be saved first. Data that has
 * arrived beyond a hole (`beyond`, in bytes) is no longer in flight: without adding it the sender would stop until the
 * hole is filled.
 */
static __always_inline void offer(struct bpf_sock_ops *ops, struct gw_saved_socket *saved, struct receiver *r,
				  struct tcp_sock *tp, __u64 bytes, __u32 beyond)
{
	__u32 present = tp->window_clamp, before, window;

	if (!is_known(saved))
		return;
	before = is_our_window(saved, present) ? saved->window_before : present;
	if ((saved->ours & GW_WINDOW_CLAMP) && before == present && !is_kernel_default(tp, present)) {
		give_up(ops, r, tp, saved);
		return;
	}
	window = greatest(least(bytes + beyond, MOST_BYTES), LEAST_BYTES);
	if (!is_kernel_default(tp, before))
		window = least(window, before);
	if (window == present && before != present)
		return;
	saved->window_before = before;
	saved->window_ours = window;
	saved->layout = GW_SAVED_LAYOUT;
	saved->ours |= GW_WINDOW_CLAMP;
	if (bpf_setsockopt(ops, SOL_TCP, TCP_WINDOW_CLAMP, &window, sizeof(window)))
		saved->window_ours = present;
}

static __always_inline __u64 window_of_rule(const struct receiver *r, const struct tcp_sock *tp)
{
	return (__u64)greatest(r->ledbat.window / PACKET, LEAST / PACKET) * segment_of(tp);
}

/* Round trips can no longer be measured (a middlebox removes timestamps): restores the window. */
static __always_inline void release_window(struct bpf_sock_ops *ops, struct receiver *r, const struct tcp_sock *tp,
				   struct gw_saved_socket *saved)
{
	__u32 before;

	r->is_begun = 0;
	r->ledbat.round_delivered = 0;
	r->ledbat.round_us = UNKNOWN_US;
	if (!is_our_window(saved, tp->window_clamp))
		return;
	before = saved->window_before;
	if (!bpf_setsockopt(ops, SOL_TCP, TCP_WINDOW_CLAMP, &before, sizeof(before)))
		saved->ours &= ~GW_WINDOW_CLAMP;
}

static __always_inline void note_marks(struct receiver *r, const struct tcp_sock *tp)
{
	bool is_marked = tp->ecn_flags & TCP_ECN_DEMAND_CWR;

	if (is_marked && !r->was_marked)
		r->ledbat.is_marked = 1;
	r->was_marked = is_marked;
}

static __always_inline void end_our_round(struct receiver *r, const struct tcp_sock *tp, struct beyond *b, __u64 now)
{
	struct ledbat *ca = &r->ledbat;
	__u32 rtt_us = tp->rtt_min.s[0].v;
	bool is_next_limited;

	if (!r->is_begun) {
		if (ca->round_delivered >= TRANSFER_PACKETS && ca->round_us != UNKNOWN_US) {
			begin(ca, ca->round_delivered, rtt_us && rtt_us < ca->round_us ? rtt_us : ca->round_us, now);
			r->is_begun = 1;
		}
		ca->round_delivered = 0;
		ca->round_us = UNKNOWN_US;
	} else {
		ca->round_lost = least((b->missing + segment_of(tp) / 2) / segment_of(tp), 60000);
		/* After a loss the sender slows down by itself. */
		is_next_limited = r->has_filled && !ca->round_lost;
		end_round(ca, 0, false, now);
		ca->is_limited = is_next_limited;
		r->has_filled = 0;
	}
	r->counted_to = b->end;
	r->answer_ms = now;
	r->gap_us = r->next_gap_us;
	r->next_gap_us = UNKNOWN_US;
}

/* Called before each packet that the socket sends. */
SEC("sockops")
int gw_offer(struct bpf_sock_ops *ops)
{
	struct bpf_sock *bpf_sk = ops->sk;
	__u32 packets, rtt_us, gap;
	__u64 now, now_us, until, echo;
	bool has_timestamp;
	struct gw_saved_socket *saved;
	struct receiver *r;
	struct tcp_sock *tp;
	struct beyond b;
	struct ledbat *ca;

	if (ops->op != BPF_SOCK_OPS_HDR_OPT_LEN_CB || !bpf_sk)
		return 1;
	r = bpf_sk_storage_get(&receivers, bpf_sk, NULL, 0);
	tp = r && !r->is_given_up ? bpf_skc_to_tcp_sock(bpf_sk) : NULL;
	if (!tp)
		return 1;
	now_us = bpf_ktime_get_ns() / NSEC_PER_USEC;
	now = now_us / 1000;
	packets = tp->data_segs_in - r->arrived;
	if (!packets)
		return 1;
	r->arrived += packets;
	has_timestamp = BPF_CORE_READ_BITFIELD(tp, rx_opt.saw_tstamp);
	find_missing(tp, r->counted_to, &b);
	ca = &r->ledbat;
	bound_timestamps(ca, now);
	rtt_us = tp->rtt_min.s[0].v;
	barrier_var(rtt_us); /* else clang takes one load from either place */
	if (has_been_silent(r, rtt_us, now_us)) {
		end_silence(r, now);
		if (r->is_begun)
			resume(ca, now);
	}
	/* Our acknowledgements have waited in the local queue. */
	until = own_wait_until_ms((struct sock *)tp);
	if (until > r->trusted_ms) {
		trust_from(r, until);
		if (r->is_begun)
			stand_by(ca, now);
	}
	gap = gap_us(r, now_us);
	r->data_us = now_us;
	if (is_blind(r, now))
		release_window(ops, r, tp, bpf_sk_storage_get(&gw_saved_socks, bpf_sk, NULL, 0));
	if (!has_timestamp)
		return 1;
	note_marks(r, tp);
	/* Two packets in answer to one of ours: both are timed by our own clock. */
	echo = echoed_ms(tp->rx_opt.rcv_tsecr, now);
	if (r->is_begun && packets == 2 && is_trusted(r, echo))
		note_pair(ca, gap, now);
	note_gap(r, gap);
	rtt_us = sample_rtt(r, echo, tp->rcv_rtt_est.rtt_us, is_late(tp), now);
	if (rtt_us)
		rtt_us = without_pacing(r, rtt_us);
	if (rtt_us && r->is_begun)
		note_rtt(ca, rtt_us, now);
	else if (rtt_us)
		ca->round_us = least(ca->round_us, rtt_us);
	ca->round_delivered = least(ca->round_delivered + packets, 60000);
	if (r->is_begun) {
		if (ca->round_delivered * 4 >= ca->window / PACKET * 3)
			ca->is_limited = r->has_filled = 1;
		if (ca->is_limited)
			grow(ca, packets, rtt_us);
	}
	if (ends_round(r))
		end_our_round(r, tp, &b, now);
	saved = r->is_begun ? bpf_sk_storage_get(&gw_saved_socks, bpf_sk, NULL, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
	if (saved)
		offer(ops, saved, r, tp, window_of_rule(r, tp), b.end - tp->rcv_nxt);
	return 1;
}

static __always_inline void switch_on(struct tcp_sock *tp, struct gw_receiver_outcome *o)
{
	struct sock *sk = (struct sock *)tp;
	struct gw_saved_socket *saved = bpf_sk_storage_get(&gw_saved_socks, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	__u32 flags = tp->bpf_sock_ops_cb_flags;
	struct receiver *r;

	o->kind = GW_FAILED;
	o->error = -ENOMEM;
	if (!saved || !is_known(saved))
		return;
	r = bpf_sk_storage_get(&receivers, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!r)
		return;
	__builtin_memset(r, 0, sizeof(*r));
	r->arrived = tp->data_segs_in;
	r->counted_to = tp->rcv_nxt;
	begin_watch(r, tp->rx_opt.rcv_tsecr, bpf_ktime_get_ns() / NSEC_PER_USEC);
	o->error = 0;
	if (!(flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)) {
		saved->layout = GW_SAVED_LAYOUT;
		saved->ours |= GW_ACK_CALLBACK;
		o->error = write_callbacks(tp, flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		if (o->error)
			saved->ours &= ~GW_ACK_CALLBACK;
	}
	o->kind = o->error ? GW_FAILED : GW_APPLIED;
}

static __always_inline void switch_off(struct tcp_sock *tp, struct gw_receiver_outcome *o)
{
	struct sock *sk = (struct sock *)tp;
	struct gw_saved_socket *saved = bpf_sk_storage_get(&gw_saved_socks, sk, NULL, 0);

	bpf_sk_storage_delete(&receivers, sk);
	o->kind = GW_APPLIED;
	if (!saved || !is_known(saved))
		return;
	if (is_our_window(saved, tp->window_clamp))
		o->error = restore_window(tp, saved);
	if (!o->error && (saved->ours & GW_ACK_CALLBACK))
		o->error = restore_callback(tp);
	if (o->error)
		o->kind = GW_FAILED;
	else
		saved->ours &= ~(GW_WINDOW_CLAMP | GW_ACK_CALLBACK);
}

SEC("iter/tcp")
int gw_apply_receivers(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = our_connection(ctx->sk_common);
	struct seq_file *seq = ctx->meta->seq;
	struct gw_receiver_outcome o = {};
	struct gw_receiver_wanted *wanted;

	if (!tp)
		return 0;
	o.cookie = bpf_get_socket_cookie(tp);
	wanted = bpf_map_lookup_elem(&wanted_receivers, &o.cookie);
	if (!wanted || !has_room(seq, &o, sizeof(o)))
		return 0;
	if (wanted->window == GW_WINDOW_FREE)
		switch_off(tp, &o);
	else
		switch_on(tp, &o);
	bpf_seq_write(seq, &o, sizeof(o));
	return 0;
}
