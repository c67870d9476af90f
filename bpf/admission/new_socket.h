/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A socket from its connect() on. For a few seconds it has the class that the daemon has set for the connecting
 * process; after that the daemon has its own entry for the socket, or none is needed. On a slow link, background also
 * gets short segments, so that a segment on the wire delays others only briefly.
 */
#ifndef GIVEWAY_ADMISSION_NEW_SOCKET_H
#define GIVEWAY_ADMISSION_NEW_SOCKET_H

#include "../inherit.h"
#include "flow_table.h"

#define NEW_SOCKET_NS (3 * NSEC_PER_SEC)
/* The resolution of start times in /proc, which the daemon uses. */
#define START_NS (10 * NSEC_PER_MSEC)

/* By process id. Written by the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_TREATED_PROCESSES);
	__type(key, __u32);
	__type(value, struct gw_treated_process);
} treated_processes SEC(".maps");

/* Set with the first entry, to save the lookup before. */
bool has_new_sockets;

/* The records of explicit classification can be read here (Linux 6.16). */
const volatile bool has_records;

/*
 * The explicit classification of the calling task or of an ancestor (`giveway class set PID`, `giveway exec`): the
 * daemon does not know a process that has just started. 0: none.
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
	/* A limit of `giveway exec` holds where `giveway limit set` has set none; root's, where root has set none. */
	if (record->rates.up && (!(treatment & up) || (!record->uid && !(by_root & up))))
		treatment = (treatment & ~up) | record->limit << GW_LIMIT_SHIFT;
	if (record->rates.down && (!(treatment & down) || (!record->uid && !(by_root & down))))
		treatment = (treatment & ~down) | record->limit << GW_DOWNLOAD_SHIFT;
	return treatment;
}

/* The treatment of the calling process, by the daemon or by explicit classification; 0: none. */
static __always_inline __u32 treatment_of_caller(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tgid = task->tgid;
	struct gw_treated_process *entry = bpf_map_lookup_elem(&treated_processes, &tgid);
	__u64 start_ns = BPF_CORE_READ(task, group_leader, start_boottime);

	return entry && entry->start_ns == start_ns - start_ns % START_NS ? entry->treatment : chosen_by_caller();
}

static __always_inline void set_new_treatment(struct bpf_sock *sk, __u32 treatment)
{
	struct new_socket *new;

	new = bpf_sk_storage_get(&new_sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (new) {
		new->treatment = treatment;
		new->until_ns = bpf_ktime_get_ns() + NEW_SOCKET_NS;
		has_new_sockets = true;
	}
}

/* The calling task connects this socket. */
static __always_inline void treat_new(struct bpf_sock *sk)
{
	__u32 treatment = treatment_of_caller();

	if (treatment)
		set_new_treatment(sk, treatment);
}

/* The MSS goes into the SYN, so it holds for the other side too, and cannot be restored. */
static __always_inline void shorten(struct bpf_sock_ops *ops, struct sock *sk, __u32 short_mss)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	__u32 own = BPF_CORE_READ(tp, rx_opt.user_mss);

	if (!own || own > short_mss)
		bpf_setsockopt(ops, SOL_TCP, TCP_MAXSEG, &short_mss, sizeof(short_mss));
}

/* 0: none. */
static __noinline __u32 treatment_of_new(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct new_socket *new;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	new = sk ? bpf_sk_storage_get(&new_sockets, sk, NULL, 0) : NULL;
	return new && bpf_ktime_get_coarse_ns() < new->until_ns ? new->treatment : 0;
}

#endif
