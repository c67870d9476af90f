// SPDX-License-Identifier: GPL-2.0-only
/*
 * A flight recorder of each CPU's activity, to explain a late wake-up afterwards.
 *
 * Which wake-up will be late is not known beforehand, and passing every switch and interrupt to user space would itself
 * make wake-ups late. So each CPU keeps a ring of its last intervals (which thread ran, which interrupt, which softirq;
 * from when to when) in memory that user space maps. A late thread reads there what happened during its delay; no other
 * cost arises. An interval is written at its end: those that matter to a thread that runs again have all ended.
 *
 * Intervals nest as they do in the kernel (an interrupt in a softirq in a thread's time); the reader subtracts them.
 * Only a measuring thread's wake-up is kept separately: when, and on which CPU.
 *
 * Where the hypervisor reports steal time, each interval holds the time stolen since the one before.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "wakeup.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* user space sets one for each CPU */
	__type(key, __u32);
	__type(value, struct gw_ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GW_MEASURING_THREADS);
	__type(key, __u32);
	__type(value, struct gw_waking);
} wakings SEC(".maps");

/* By thread id in the initial pid namespace: the number of the measuring thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, GW_MEASURING_THREADS);
	__type(key, __u32);
	__type(value, __u32);
} measuring SEC(".maps");

/* Puts the shared types into the skeleton. */
enum gw_interval_kind *kind_type __attribute__((unused));
enum gw_vector *vector_type __attribute__((unused));
struct gw_introduction *introduction_type __attribute__((unused));

/* Of the measuring process, in the initial pid namespace. 0: none yet. */
__u32 measuring_tgid;

static __always_inline struct gw_ring *own_ring(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&rings, &cpu);
}

/* As of the scheduler's last update: at each tick, wake-up and switch. */
static __always_inline __u32 stolen_since_last(struct gw_ring *ring)
{
	struct task_struct *thread = bpf_get_current_task_btf();
	__u64 before_ns = ring->stolen_ns;

	if (!bpf_core_field_exists(struct rq, prev_steal_time_rq) || !bpf_core_field_exists(struct cfs_rq, rq))
		return 0;
	ring->stolen_ns = thread->se.cfs_rq->rq->prev_steal_time_rq;
	return ring->next > 1 ? ring->stolen_ns - before_ns : 0;
}

/* An interrupt may come in between and take the next slot: a slot is complete when its position is written. */
static __always_inline void log(struct gw_ring *ring, __u16 kind, __u32 id, __u64 now_ns, struct task_struct *thread)
{
	__u64 position = __sync_fetch_and_add(&ring->next, 1);
	struct gw_interval *interval = &ring->intervals[position & (GW_INTERVALS - 1)];

	*(volatile __u64 *)&interval->position = 0;
	interval->from_ns = ring->since_ns[kind];
	interval->to_ns = now_ns;
	interval->kind = kind;
	interval->id = id;
	interval->stolen_ns = stolen_since_last(ring);
	if (thread) {
		interval->priority = thread->prio;
		interval->policy = thread->policy;
		bpf_probe_read_kernel(interval->name, sizeof(interval->name), thread->comm);
	}
	*(volatile __u64 *)&interval->position = position + 1;
}

static __always_inline int begin(__u32 kind)
{
	struct gw_ring *ring = own_ring();

	if (ring)
		ring->since_ns[kind] = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int end(__u32 kind, __u32 id)
{
	struct gw_ring *ring = own_ring();

	if (ring && ring->since_ns[kind]) {
		log(ring, kind, id, bpf_ktime_get_ns(), NULL);
		ring->since_ns[kind] = 0;
	}
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(gw_log_thread, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct gw_ring *ring = own_ring();
	__u64 now_ns = bpf_ktime_get_ns();

	if (!ring)
		return 0;
	log(ring, GW_THREAD, prev->pid, now_ns, prev);
	ring->since_ns[GW_THREAD] = now_ns;
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(gw_begin_irq, int irq)
{
	return begin(GW_IRQ);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(gw_log_irq, int irq)
{
	return end(GW_IRQ, irq);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(gw_begin_softirq, unsigned int vector)
{
	return begin(GW_SOFTIRQ);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(gw_log_softirq, unsigned int vector)
{
	return end(GW_SOFTIRQ, vector);
}

/* Local timer and inter-processor interrupts have no number and no handler; x86 has a tracepoint for each kind. */
#define VECTOR(name, id)                                                                                               \
	SEC("tp_btf/" #name "_entry")                                                                                  \
	int BPF_PROG(gw_begin_##name)                                                                                  \
	{                                                                                                              \
		return begin(GW_VECTOR);                                                                               \
	}                                                                                                              \
	SEC("tp_btf/" #name "_exit")                                                                                   \
	int BPF_PROG(gw_log_##name)                                                                                    \
	{                                                                                                              \
		return end(GW_VECTOR, id);                                                                             \
	}

VECTOR(local_timer, GW_VECTOR_TIMER)
VECTOR(reschedule, GW_VECTOR_RESCHEDULE)
VECTOR(call_function, GW_VECTOR_CALL)
VECTOR(call_function_single, GW_VECTOR_CALL)
VECTOR(irq_work, GW_VECTOR_WORK)

SEC("tp_btf/sched_waking")
int BPF_PROG(gw_log_waking, struct task_struct *woken)
{
	__u32 tid = woken->pid, *number;
	struct gw_waking *waking;

	if ((__u32)woken->tgid != measuring_tgid)
		return 0;
	number = bpf_map_lookup_elem(&measuring, &tid);
	waking = number ? bpf_map_lookup_elem(&wakings, number) : NULL;
	if (waking) {
		waking->t_ns = bpf_ktime_get_ns();
		waking->cpu = bpf_get_smp_processor_id();
	}
	return 0;
}

/* Called by a measuring thread itself: records and returns its thread id as the kernel sees it. */
SEC("syscall")
int gw_introduce(struct gw_introduction *introduction)
{
	__u64 both = bpf_get_current_pid_tgid();
	__u32 tid = both, number = introduction->number;

	measuring_tgid = both >> 32;
	return bpf_map_update_elem(&measuring, &tid, &number, BPF_ANY) ? 0 : tid;
}
