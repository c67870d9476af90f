/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The UDP sockets of the namespace. One counts from the first datagram that a process sends on it, and the sender is
 * its owner (owners.h). `gw_list_datagrams` lists those that have sent within a minute, without the fields of TCP
 * (`delivered` counts the lists since which it has sent). The list has a limit per user; sockets of the previous list
 * come first.
 */
#ifndef GIVEWAY_DATAGRAMS_H
#define GIVEWAY_DATAGRAMS_H

#define DATAGRAM_IDLE_NS (60 * NSEC_PER_SEC)
#define DATAGRAMS_OF_USER 1024

struct datagram_socket {
	struct owner owner;
	__u64 last_ns; /* time of the last list before which it sent */
	__u32 touched; /* since the last list */
	__u32 is_listed;
	__u32 lists; /* before which it sent */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct datagram_socket);
} datagrams SEC(".maps");

/* This CPU's latest touch: many datagrams of one socket come in a row, and finding its storage is most of the cost. */
struct latest {
	__u64 cookie; /* 0: none */
	__u64 task;
	__u64 list;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct latest);
} latest_touched SEC(".maps");

/* Finished lists: after each, sockets have to be touched again. */
__u64 datagram_lists;

/* A user's entries in this list, and in the previous one. */
struct listed {
	__u64 session;
	__u32 all;
	__u32 new;
	__u32 before;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct listed);
} listed_of_users SEC(".maps");

/* Whether this task has touched it since the last list, as far as this CPU knows. */
static __always_inline bool is_touched(const struct sock *sk)
{
	struct latest now = {
		.cookie = sk->__sk_common.skc_cookie.counter,
		.task = (__u64)bpf_get_current_task_btf(),
		.list = datagram_lists,
	};
	__u32 key = 0;
	struct latest *latest = bpf_map_lookup_elem(&latest_touched, &key);

	if (!latest || !now.cookie)
		return false;
	if (latest->cookie == now.cookie && latest->task == now.task && latest->list == now.list)
		return true;
	*latest = now;
	return false;
}

static __always_inline void touch_datagram(struct sock *sk)
{
	struct datagram_socket *d;

	if (is_touched(sk))
		return;
	d = bpf_sk_storage_get(&datagrams, sk, NULL, 0);
	if (!d) {
		d = bpf_sk_storage_get(&datagrams, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
		if (d)
			begin_owner(&d->owner, bpf_get_current_task_btf(), true);
		bpf_get_socket_cookie(sk);
	} else {
		use(&d->owner, bpf_get_current_task_btf());
	}
	if (d && !d->touched)
		d->touched = 1;
}

/* Whether one more socket of this user fits into the list. */
static __always_inline bool may_list(__u32 uid, __u64 session, bool is_new)
{
	struct listed none = {}, *l = bpf_map_lookup_elem(&listed_of_users, &uid);

	if (!l) {
		bpf_map_update_elem(&listed_of_users, &uid, &none, BPF_NOEXIST);
		l = bpf_map_lookup_elem(&listed_of_users, &uid);
	}
	if (!l)
		return false;
	if (l->session != session) {
		l->session = session;
		l->before = l->all;
		l->all = l->new = 0;
	}
	if (is_new && l->before + l->new >= DATAGRAMS_OF_USER)
		return false;
	l->all++;
	l->new += is_new;
	return true;
}

static __always_inline void list_datagram(const struct bpf_iter_meta *meta, struct sock *sk, struct datagram_socket *d)
{
	struct gw_flow f = { .clamp = GW_UNLIMITED, .ssthresh = GW_UNLIMITED, .min_rtt_us = ~0U };

	if (!has_room(meta->seq, &f, sizeof(f)))
		return;
	if (d->touched) {
		d->last_ns = bpf_ktime_get_ns();
		d->lists++;
	}
	d->touched = 0;
	settle_owner(&d->owner, bpf_ktime_get_ns());
	if (bpf_ktime_get_ns() - d->last_ns > DATAGRAM_IDLE_NS ||
	    !may_list(sk->sk_uid.val, meta->session_id, !d->is_listed)) {
		d->is_listed = 0;
		return;
	}
	d->is_listed = 1;
	f.pacing_rate_bytes_per_s = ~0ULL;
	f.delivered = d->lists;
	describe_socket(&f, sk);
	describe_owner(&f, sk, &d->owner);
	bpf_seq_write(meta->seq, &f, sizeof(f));
}

SEC("iter/bpf_sk_storage_map")
int gw_list_datagrams(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct sock *sk = ctx->sk;
	struct datagram_socket *d = ctx->value;

	if (sk && d)
		list_datagram(ctx->meta, sk, d);
	else if (!sk)
		datagram_lists++;
	return 0;
}

/* For kernels without such an iterator: over all UDP sockets. */
SEC("iter/udp")
int gw_scan_datagrams(struct bpf_iter__udp *ctx)
{
	struct sock *sk = (struct sock *)ctx->udp_sk;
	struct datagram_socket *d = sk ? bpf_sk_storage_get(&datagrams, sk, NULL, 0) : NULL;

	if (d)
		list_datagram(ctx->meta, sk, d);
	else if (!sk)
		datagram_lists++;
	return 0;
}

#endif
