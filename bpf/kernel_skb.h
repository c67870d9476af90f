/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel has behind what a program is given, to be read and no more. */
#ifndef GIVEWAY_KERNEL_SKB_H
#define GIVEWAY_KERNEL_SKB_H

#include <bpf/bpf_core_read.h>

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;
/* bpf_core_cast() */
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

/*
 * For pointers that are read of it, untrusted on purpose. Where a pointer is read through a trusted one, the verifiers of 6.12 to
 * 6.18 search all types of the kernel by name up to four times, on each way through a program: half of what gw_admit took to load.
 * A trusted one costs a packet less, by five instructions a field: what each packet with a deadline passes has it.
 */
static __always_inline struct sk_buff *kernel_skb_of(struct __sk_buff *skb)
{
	return bpf_core_cast(bpf_cast_to_kern_ctx(skb), struct sk_buff);
}

#endif
