// SPDX-License-Identifier: GPL-2.0-only
/*
 * Counts the CPU time that other threads use at a priority inherited from a thread that giveway has raised.
 *
 * A thread that waits for a lock with priority inheritance (a PI futex, on PREEMPT_RT nearly every lock) donates its
 * priority to the lock's owner, and through it along the chain: donor -> recipient -> recipient ... The last recipient
 * runs. Its CPU time is charged to the donor, the thread whose own priority it is.
 *
 *   sched_pi_setprio   an inherited priority begins, changes or ends: charges the time until now and records the new donor
 *   gw_account         charges all recipients until now, reports each donor's charges, and follows each donor from lock to
 *                      lock to its present recipient
 *
 * The second is needed because the kernel reports only changes of the priority. Where one donor follows another of the
 * same priority, or a recipient loses its own equal priority, only the waiting threads show it.
 *
 * On PREEMPT_RT the tracepoint is hit often, so most hits end after two comparisons: neither the old nor the new
 * priority is real-time. The others cost a lookup of the waiting thread.
 *
 * Changes no thread.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define MAX_DONORS 4096
#define MAX_RECIPIENTS 4096
/* The kernel follows a chain of locks no further (kernel.max_lock_depth). */
#define MAX_DEPTH 1024
#define OWNER_MASK (~1UL) /* the lowest bit: threads wait */

extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_DONORS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gw_donor_key);
	__type(value, struct gw_donor);
} donors SEC(".maps");

struct recipient {
	__u64 start_ns; /* thread ids are reused */
	__u64 cpu_ns;   /* at its last charge */
	__u32 donor;
	__u32 reserved;
};

/* By thread id. A thread removes its entry at its end. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_RECIPIENTS);
	__type(key, __u32);
	__type(value, struct recipient);
} recipients SEC(".maps");

/* How often a thread inherited a priority from one of ours ... */
__u64 begun;
/* ... and how often the table was full. */
__u64 not_recorded;

/* Puts the shared types into the skeleton. */
struct gw_donor_key *donor_key_type __attribute__((unused));
struct gw_donor *donor_type __attribute__((unused));
struct gw_donated *donated_type __attribute__((unused));

/* Where a thread donates as both, its process pays: a rule's priority is above a chain's. */
static __always_inline struct gw_donor *donor_of(__u32 tid)
{
	struct gw_donor_key key = { .tid = tid, .of_process = 1 };
	struct gw_donor *donor = bpf_map_lookup_elem(&donors, &key);

	if (donor)
		return donor;
	key.of_process = 0;
	return bpf_map_lookup_elem(&donors, &key);
}

static __always_inline bool is_realtime(int prio)
{
	return prio < MAX_RT_PRIO;
}

/* CPU time so far. The scheduler adds it up at ticks and switches; the rest is read from its clock. */
static __always_inline __u64 cpu_time(struct task_struct *p)
{
	__u64 ns = p->se.sum_exec_runtime;
	__s64 since_ns;

	if (!bpf_core_field_exists(struct cfs_rq, rq) || !p->on_cpu)
		return ns;
	since_ns = p->se.cfs_rq->rq->clock_task - p->se.exec_start;
	return since_ns > 0 ? ns + since_ns : ns;
}

/* Whether its own time is counted anyway, since giveway has raised it too. */
static __always_inline bool is_counted(struct task_struct *p, struct gw_donor *donor)
{
	return donor->tgid == (__u32)p->tgid || (is_realtime(p->normal_prio) && donor_of(p->pid));
}

static __always_inline void charge(struct task_struct *p, struct recipient *recipient)
{
	__u64 now_ns = cpu_time(p), before_ns = __sync_lock_test_and_set(&recipient->cpu_ns, now_ns);
	struct gw_donor *donor = donor_of(recipient->donor);

	/* Another CPU may have charged it at the same time. */
	if (now_ns <= before_ns || !donor || is_counted(p, donor))
		return;
	__sync_fetch_and_add(&donor->donated_ns, now_ns - before_ns);
	donor->recipient = p->tgid;
	bpf_probe_read_kernel(donor->name, sizeof(donor->name), p->comm);
}

static __always_inline void begin(struct task_struct *p, __u32 donor)
{
	struct recipient new = { .start_ns = p->start_boottime, .cpu_ns = cpu_time(p), .donor = donor }, *recipient;
	__u32 tid = p->pid;

	__sync_fetch_and_add(&begun, 1);
	recipient = bpf_map_lookup_elem(&recipients, &tid);
	if (!recipient || recipient->start_ns != new.start_ns) {
		if (bpf_map_update_elem(&recipients, &tid, &new, BPF_ANY))
			__sync_fetch_and_add(&not_recorded, 1);
	} else if (recipient->donor != donor) {
		charge(p, recipient);
		recipient->donor = donor;
	}
}

static __always_inline void end(struct task_struct *p)
{
	__u32 tid = p->pid;
	struct recipient *recipient = bpf_map_lookup_elem(&recipients, &tid);

	if (!recipient)
		return;
	charge(p, recipient);
	bpf_map_delete_elem(&recipients, &tid);
}

/* The thread whose own priority this one would donate; 0: none of ours. */
static __always_inline __u32 donor_behind(struct task_struct *waiting)
{
	struct recipient *recipient;
	__u32 tid = waiting->pid;

	if (waiting->prio == waiting->normal_prio)
		return donor_of(tid) ? tid : 0;
	recipient = bpf_map_lookup_elem(&recipients, &tid);
	return recipient ? recipient->donor : 0;
}

/* `p` still has its previous priority; its run queue is locked and its clock up to date. */
SEC("tp_btf/sched_pi_setprio")
int BPF_PROG(gw_see_inheritance, struct task_struct *p, struct task_struct *waiting)
{
	__u32 donor;

	donor = waiting && is_realtime(waiting->prio) ? donor_behind(waiting) : 0;
	if (donor)
		begin(p, donor);
	else if (is_realtime(p->prio))
		end(p);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(gw_forget_recipient, struct task_struct *p)
{
	if (is_realtime(p->prio))
		end(p);
	return 0;
}

static long settle(struct bpf_map *map, const void *key, void *value, void *context)
{
	struct recipient *recipient;
	struct gw_donor *donor;
	struct task_struct *p;
	__u32 tid = *(const __u32 *)key;

	recipient = bpf_map_lookup_elem(&recipients, &tid);
	if (!recipient)
		return 0;
	p = bpf_task_from_pid(tid);
	if (p && p->start_boottime == recipient->start_ns && is_realtime(p->prio) && p->prio < p->normal_prio) {
		charge(p, recipient);
		donor = donor_of(recipient->donor);
		if (donor)
			donor->recipients++;
	} else {
		bpf_map_delete_elem(&recipients, &tid);
	}
	if (p)
		bpf_task_release(p);
	return 0;
}

/* Reads unlocked; the caller checks the last one again. */
static long next_owner(__u32 depth, struct task_struct **at)
{
	struct rt_mutex_waiter *waiter = BPF_CORE_READ(*at, pi_blocked_on);
	struct task_struct *owner = NULL;

	if (waiter)
		owner = (struct task_struct *)((unsigned long)BPF_CORE_READ(waiter, lock, owner) & OWNER_MASK);
	if (!owner)
		return 1;
	*at = owner;
	return 0;
}

static __always_inline void follow(struct task_struct *donor)
{
	struct task_struct *at = donor, *last;

	if (!donor->pi_blocked_on || !is_realtime(donor->prio) || donor->prio != donor->normal_prio)
		return;
	bpf_loop(MAX_DEPTH, next_owner, &at, 0);
	last = bpf_task_from_pid(BPF_CORE_READ(at, pid));
	if (!last)
		return;
	if (last == at && last != donor && last->prio == donor->prio && last->prio < last->normal_prio)
		begin(last, donor->pid);
	bpf_task_release(last);
}

struct reading {
	struct seq_file *seq;
};

static long report(struct bpf_map *map, const void *at, void *value, void *context)
{
	struct seq_file *seq = ((struct reading *)context)->seq;
	struct gw_donor_key key = *(const struct gw_donor_key *)at;
	struct gw_donated donated = { .tid = key.tid };
	struct gw_donor *donor;
	struct task_struct *p;

	donor = bpf_map_lookup_elem(&donors, &key);
	if (!donor)
		return 0;
	/* Where the reader's buffer is full (some 800 donors), the others wait for the next call. */
	if (seq->size <= seq->count + sizeof(donated))
		return 1;
	donated.donated_ns = donor->donated_ns;
	donated.tgid = donor->tgid;
	donated.recipients = donor->recipients;
	donated.recipient = donor->recipient;
	__builtin_memcpy(donated.name, donor->name, sizeof(donated.name));
	if (donated.donated_ns || donated.recipients)
		bpf_seq_write(seq, &donated, sizeof(donated));
	__sync_fetch_and_sub(&donor->donated_ns, donated.donated_ns);
	donor->recipients = 0;
	p = bpf_task_from_pid(donated.tid);
	if (!p) {
		bpf_map_delete_elem(&donors, &key);
		return 0;
	}
	follow(p);
	bpf_task_release(p);
	return 0;
}

/* Runs once, after the last of the machine's maps: some kernels refuse an iterator over the elements of a map. */
SEC("iter/bpf_map")
int gw_account(struct bpf_iter__bpf_map *ctx)
{
	struct reading reading = { .seq = ctx->meta->seq };

	if (ctx->map)
		return 0;
	bpf_for_each_map_elem(&recipients, settle, NULL, 0);
	bpf_for_each_map_elem(&donors, report, &reading, 0);
	return 0;
}
