/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A program that does nothing for every packet that is queued: what the kernel says it took is what the kernel's own
 * clock took, and is subtracted from what it says of others.
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
