/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The owner of a socket: the process that uses it, not the one that made it or holds a copy of its descriptor. So a
 * socket that was inherited, or passed over a Unix socket, is the receiver's from its first send or receive on.
 *
 * A use by the owner sets a flag, and one by another process leaves a claim: each is written once between two polls,
 * and the poll settles it. A claim is granted if the owner has not used the socket for a hold time, which doubles with
 * each change, so that processes that share a socket do not take it from each other again and again. Kernel threads
 * claim nothing: they send on behalf of others.
 *
 * A socket without a known user is that of the oldest process that has it open, by a scan of all open files: a process
 * just forked has it open, too, until it executes something.
 */
#ifndef GIVEWAY_OWNERS_H
#define GIVEWAY_OWNERS_H

#include "sockets.h"

#define SHORTEST_HOLD_NS (300 * NSEC_PER_MSEC)
#define LONGEST_HOLD_NS (30 * NSEC_PER_SEC)
/* Without a change for so long, the hold time is reset. */
#define FORGET_HOLD_NS (60 * NSEC_PER_SEC)
/* A recent user keeps the socket, even if no descriptor is found (io_uring has its own). */
#define IN_USE_NS (5 * NSEC_PER_SEC)

enum claim {
	GW_NO_CLAIM,
	GW_CLAIM_BEGUN, /* being written */
	GW_CLAIM_MADE,
};

struct user {
	__u64 start_ns;
	__u32 pid;
	char command[GW_COMMAND_LEN];
	__u32 reserved;
};

struct owner {
	struct user is;
	struct user claims;
	struct user has_open;
	__u64 search;          /* the last scan in which the owner had it open */
	__u64 search_of_other; /* the one in which `has_open` had, and was the oldest */
	__u64 used_ns;         /* of the last poll since which the owner had used it */
	__u64 changed_ns;
	__u64 hold_ns;
	__u32 is_used; /* by the owner, since the last poll */
	__u32 claim;   /* enum claim */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct owner);
} owners SEC(".maps");

/* Of MPTCP sockets, by cookie: no program here can use the storage of a connection's parent. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct owner);
} parents SEC(".maps");

static __always_inline void note_command(struct user *u, struct task_struct *leader)
{
	bpf_probe_read_kernel_str(u->command, sizeof(u->command), leader->comm);
}

static __always_inline void note_user(struct user *u, struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;

	if (!leader)
		return;
	u->pid = task->tgid;
	u->start_ns = leader->start_boottime;
	note_command(u, leader);
}

static __always_inline bool is_user(const struct user *u, struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;

	return u->pid == (__u32)task->tgid && leader && u->start_ns == leader->start_boottime;
}

static __always_inline bool is_older(struct task_struct *task, const struct user *than)
{
	struct task_struct *leader = task->group_leader;

	return leader && leader->start_boottime < than->start_ns;
}

static __always_inline void begin_owner(struct owner *o, struct task_struct *task, bool is_used)
{
	if (!o)
		return;
	note_user(&o->is, task);
	o->is_used = is_used;
}

static __always_inline void use(struct owner *o, struct task_struct *task)
{
	if (is_user(&o->is, task)) {
		if (!o->is_used) {
			o->is_used = 1;
			/* It may have executed another program. */
			note_command(&o->is, task->group_leader);
		}
		return;
	}
	if (o->claim || task->flags & PF_KTHREAD)
		return;
	if (__sync_val_compare_and_swap(&o->claim, GW_NO_CLAIM, GW_CLAIM_BEGUN) == GW_NO_CLAIM) {
		note_user(&o->claims, task);
		__sync_val_compare_and_swap(&o->claim, GW_CLAIM_BEGUN, GW_CLAIM_MADE);
	}
}

static __always_inline __u64 hold_ns(const struct owner *o, __u64 now_ns)
{
	return o->hold_ns && now_ns - o->changed_ns < FORGET_HOLD_NS ? o->hold_ns : SHORTEST_HOLD_NS;
}

/* Called at each poll; nothing else changes an existing owner. */
static __always_inline void settle_owner(struct owner *o, __u64 now_ns)
{
	__u64 hold;

	if (!o)
		return;
	if (o->is_used) {
		o->is_used = 0;
		o->used_ns = now_ns;
	}
	if (o->claim != GW_CLAIM_MADE)
		return;
	hold = hold_ns(o, now_ns);
	if (now_ns - o->used_ns >= hold) {
		o->is = o->claims;
		o->used_ns = o->changed_ns = now_ns;
		o->hold_ns = 2 * hold < LONGEST_HOLD_NS ? 2 * hold : LONGEST_HOLD_NS;
	}
	o->claim = GW_NO_CLAIM;
}

/* An open file of this process, in a scan. */
static __always_inline void find_open(struct owner *o, struct task_struct *task, __u64 search)
{
	if (!o->is.pid || (!o->used_ns && !o->is_used && is_older(task, &o->is))) {
		note_user(&o->is, task);
		o->search = search;
	} else if (is_user(&o->is, task)) {
		/* It may have executed something since. */
		note_user(&o->is, task);
		o->search = search;
	} else if (o->search_of_other != search || is_older(task, &o->has_open)) {
		note_user(&o->has_open, task);
		o->search_of_other = search;
	}
}

/* After a scan: an owner that no longer has it open loses it to one that has. */
static __always_inline void settle_search(struct owner *o, __u64 now_ns)
{
	if (!o || o->search_of_other <= o->search || o->is_used ||
	    (o->used_ns && now_ns - o->used_ns < IN_USE_NS))
		return;
	o->is = o->has_open;
	o->search = o->search_of_other;
	o->used_ns = 0;
}

/*
 * The MPTCP socket of a process that this connection belongs to, for reading only; or NULL. The kernel makes such
 * connections whenever there is another path: their owner, user and cgroup are those of the parent.
 */
static __always_inline struct sock *parent_of(struct sock *sk)
{
	const struct tcp_sock *tp = (const struct tcp_sock *)sk;
	struct mptcp_subflow_context *subflow;

	if (!bpf_core_field_exists(tp->is_mptcp) || !bpf_core_type_exists(struct mptcp_subflow_context) ||
	    !BPF_CORE_READ_BITFIELD_PROBED(tp, is_mptcp))
		return NULL;
	subflow = BPF_CORE_READ(tp, inet_conn.icsk_ulp_data);
	return subflow ? BPF_CORE_READ(subflow, conn) : NULL;
}

/* Of a TCP connection. */
static __always_inline struct owner *owner_of(struct sock *sk)
{
	struct sock *parent = parent_of(sk);
	struct owner *o = NULL;

	if (parent) {
		__u64 cookie = BPF_CORE_READ(parent, __sk_common.skc_cookie.counter);

		o = bpf_map_lookup_elem(&parents, &cookie);
	}
	return o ? o : bpf_sk_storage_get(&owners, sk, NULL, 0);
}

/* Of an MPTCP socket, with its first owner, if need be. */
static __always_inline struct owner *owner_of_parent(struct sock *sk, struct task_struct *task, bool is_used)
{
	__u64 cookie = bpf_get_socket_cookie(sk);
	struct owner *o = bpf_map_lookup_elem(&parents, &cookie), fresh = {};

	if (o)
		return o;
	begin_owner(&fresh, task, is_used);
	bpf_map_update_elem(&parents, &cookie, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&parents, &cookie);
}

/* The calling task sends or receives by this TCP socket ... */
static __always_inline void use_socket(struct sock *sk)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct owner *o = bpf_sk_storage_get(&owners, sk, NULL, 0);

	if (o)
		use(o, task);
	else
		begin_owner(bpf_sk_storage_get(&owners, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE), task, true);
}

/* ... or by this MPTCP socket. */
static __always_inline void use_parent(struct sock *sk)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct owner *o = owner_of_parent(sk, task, true);

	if (o)
		use(o, task);
}

/* The calling task connects it, unless it is the kernel, for a parent. */
static __always_inline void own_connected(struct sock *sk)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (!(task->flags & PF_KTHREAD) || !parent_of(sk))
		begin_owner(bpf_sk_storage_get(&owners, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE), task, true);
}

#endif
