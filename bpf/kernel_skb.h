/* SPDX-License-Identifier: GPL-2.0-only */
/* Read access to the kernel's struct behind a program's context. */
#ifndef GIVEWAY_KERNEL_SKB_H
#define GIVEWAY_KERNEL_SKB_H

#include <bpf/bpf_core_read.h>

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;
/* bpf_core_cast() */
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

/*
 * For pointers read from the skb; untrusted on purpose. Reading a pointer through a trusted one makes the verifiers of
 * 6.12 to 6.18 search all kernel types by name up to four times on each path: half of gw_admit's load time. A trusted
 * pointer saves five instructions a field at run time; the path of packets with a deadline uses it.
 */
static __always_inline struct sk_buff *kernel_skb_of(struct __sk_buff *skb)
{
	return bpf_core_cast(bpf_cast_to_kern_ctx(skb), struct sk_buff);
}

#endif
