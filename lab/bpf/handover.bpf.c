/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A packet is handed from a task to its worker: a softirq, or a kernel thread of its own (P0, table 1).
 *
 * In: packets between two ends of a pair of devices, sent at one (lab_give) and received at the other by one of
 * lab_take*. Out: counters. The work itself is minimal: the packet is dropped.
 *
 * On one processor, so counters need no atomics. The tracepoints' programs cost instructions themselves, so they are
 * attached only while their subject is measured.
 */
#include "kernel_types.h"
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

#define NET_RX_SOFTIRQ 3

struct counted {
	__u64 taken;
	__u64 between_ns; /* from the sender's device to the worker, summed */
	__u64 switches;
	__u64 switched_ns; /* from waking the worker to its first instruction, summed */
};

int thread; /* its id; 0: a softirq */
struct counted counted;
__u64 given_ns;
__u64 called_ns; /* 0: none */

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} threads SEC(".maps");

static void take(void)
{
	counted.between_ns += bpf_ktime_get_ns() - given_ns;
	counted.taken++;
}

SEC("tc")
int lab_give(struct __sk_buff *ctx)
{
	given_ns = bpf_ktime_get_ns();
	return TC_ACT_OK;
}

SEC("tc")
int lab_take(struct __sk_buff *ctx)
{
	take();
	return TC_ACT_SHOT;
}

SEC("xdp")
int lab_pass_to_thread(struct xdp_md *ctx)
{
	return bpf_redirect_map(&threads, 0, 0);
}

SEC("xdp/cpumap")
int lab_take_thread(struct xdp_md *ctx)
{
	take();
	return XDP_DROP;
}

static int begin(void)
{
	if (!called_ns)
		return 0;
	counted.switched_ns += bpf_ktime_get_ns() - called_ns;
	counted.switches++;
	called_ns = 0;
	return 0;
}

SEC("tp_btf/softirq_raise")
int BPF_PROG(lab_note_raise, unsigned int which)
{
	if (!thread && which == NET_RX_SOFTIRQ)
		called_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(lab_note_entry, unsigned int which)
{
	return !thread && which == NET_RX_SOFTIRQ ? begin() : 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(lab_note_waking, struct task_struct *task)
{
	if (thread && task->pid == thread)
		called_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(lab_note_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return thread && next->pid == thread ? begin() : 0;
}
