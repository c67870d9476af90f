/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A program that does nothing for every queued packet: its run time as the kernel counts it is the cost of the kernel's
 * clock, which is subtracted from other programs' run times.
 */
#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

struct sk_buff;

SEC("tp_btf/net_dev_queue")
int BPF_PROG(lab_nothing, struct sk_buff *skb)
{
	return 0;
}
