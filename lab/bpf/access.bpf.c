/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Passes the user priority of a packet to the emulated medium, which the packet itself does not carry: mac80211 would
 * read it from skb->priority 256 to 263 (cfg80211_classify8021d). It is written into the second byte of the Ethernet
 * source address, which nothing behind this device reads (lab/src/medium/access.rs).
 *
 * Attached as a filter of clsact, which runs after every tcx program and so sees what these have written; but only if
 * they end with TCX_NEXT.
 */
#include "kernel_types.h"
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";

#define FIRST_USER_PRIORITY 256
#define LAST_USER_PRIORITY 263
#define MARK_AT 7
#define MARK 0x10

SEC("tc")
int lab_tell_access(struct __sk_buff *ctx)
{
	__u8 mark;

	if (ctx->priority < FIRST_USER_PRIORITY || ctx->priority > LAST_USER_PRIORITY)
		return TC_ACT_OK;
	mark = MARK | (ctx->priority - FIRST_USER_PRIORITY);
	bpf_skb_store_bytes(ctx, MARK_AT, &mark, sizeof(mark), 0);
	return TC_ACT_OK;
}
