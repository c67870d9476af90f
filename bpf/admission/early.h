/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What holds for a socket from its connect() on. Its class before the daemon has seen it: what the daemon says of the process
 * that connects it. For a few seconds; until they are over the daemon has told of the socket, or has nothing to tell.
 * And where the link is slow, the segments of what is background: short, so that one on the wire is soon over.
 */
#ifndef GIVEWAY_ADMISSION_EARLY_H
#define GIVEWAY_ADMISSION_EARLY_H

#include "../inherit.h"
#include "told.h"

#define EARLY_NS (3 * NSEC_PER_SEC)
/* As /proc tells starts, and so the daemon. */
#define START_NS (10 * NSEC_PER_MSEC)

/* What the daemon says of processes, by their numbers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_TREATED_PROCESSES);
	__type(key, __u32);
	__type(value, struct gw_treated_process);
} treated_processes SEC(".maps");

/* Set once the first entry exists, so that there is no lookup before. */
bool has_early_sockets;

/* What commands have chosen can be read here (Linux 6.16). */
const volatile bool has_records;

/*
 * What was set by hand or chosen (`giveway exec`) for the calling task, or for one that has started it: the daemon does not know of what was
 * started just now. 0: nothing.
 */
static __noinline __u32 chosen_by_caller(void)
{
	__u32 up = GW_LIMIT_MASK << GW_LIMIT_SHIFT, down = (__u32)GW_LIMIT_MASK << GW_DOWNLOAD_SHIFT;
	struct gw_record *record;
	__u32 treatment, by_root;

	if (!has_records)
		return 0;
	record = bpf_task_storage_get(&gw_records_3, bpf_get_current_task_btf(), NULL, 0);
	if (!record || !(record->hand_treatment || record->class || record->limit))
		return 0;
	treatment = record->hand_treatment;
	by_root = record->hand_by_root;
	if (!treatment)
		treatment = record->class ? record->class : GW_CLASS_STANDARD;
	/* A command's limit holds where nothing was set by hand; root's, where root has set nothing. */
	if (record->rates.up && (!(treatment & up) || (!record->uid && !(by_root & up))))
		treatment = (treatment & ~up) | record->limit << GW_LIMIT_SHIFT;
	if (record->rates.down && (!(treatment & down) || (!record->uid && !(by_root & down))))
		treatment = (treatment & ~down) | record->limit << GW_DOWNLOAD_SHIFT;
	return treatment;
}

/* What the daemon says of the calling process, or was chosen for it; 0: nothing. */
static __always_inline __u32 treatment_of_caller(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tgid = task->tgid;
	struct gw_treated_process *said = bpf_map_lookup_elem(&treated_processes, &tgid);
	__u64 start_ns = BPF_CORE_READ(task, group_leader, start_boottime);

	return said && said->start_ns == start_ns - start_ns % START_NS ? said->treatment : chosen_by_caller();
}

static __always_inline void say_early(struct bpf_sock *sk, __u32 treatment)
{
	struct early_socket *early;

	early = bpf_sk_storage_get(&early_sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (early) {
		early->treatment = treatment;
		early->until_ns = bpf_ktime_get_ns() + EARLY_NS;
		has_early_sockets = true;
	}
}

/* The calling task connects this socket. */
static __always_inline void treat_early(struct bpf_sock *sk)
{
	__u32 treatment = treatment_of_caller();

	if (treatment)
		say_early(sk, treatment);
}

/* It goes into the SYN, and so holds for the other side too; nothing restores it. */
static __always_inline void shorten(struct bpf_sock_ops *ops, struct sock *sk, __u32 short_mss)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u32 own = BPF_CORE_READ(tp, rx_opt.user_mss);

	if (!own || own > short_mss)
		bpf_setsockopt(ops, SOL_TCP, TCP_MAXSEG, &short_mss, sizeof(short_mss));
}

/* 0: nothing. */
static __noinline __u32 treatment_before(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct early_socket *early;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	early = sk ? bpf_sk_storage_get(&early_sockets, sk, NULL, 0) : NULL;
	return early && bpf_ktime_get_coarse_ns() < early->until_ns ? early->treatment : 0;
}

#endif
