// SPDX-License-Identifier: GPL-2.0-only
/*
 * Upload limits, and download limits of containers: packets with a limit are redirected to an ifb, whose queue holds
 * each limit, and return to the device's own qdisc, which stays as it is.
 *
 *   gw_leaves     a filter of clsact at the egress of the link, or of a container's device. Admission or container.bpf.c,
 *                 which run before it, have marked packets with a limit. Its action redirects these to the ifb
 *   gw_to_class   egress of the ifb, before its queue: chooses the limit's class
 *
 * On a packet's return, admission and the filter see it once more.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "redirect.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1
#define NO_MATCH 0
#define MATCH -1
#define IFF_UP 1
#define ENODEV 19

/* Of the ifb; its device, as its first packet shows it. */
const volatile __u32 ifb_ifindex;
/* As in download.bpf.c. */
const volatile bool is_fair;
__u64 ifb_device;

/* The action drops packets for a device that is gone or down. */
static __always_inline bool is_there(struct __sk_buff *skb)
{
	struct net_device *device;
	__u32 mtu = 0;

	if (bpf_check_mtu(skb, ifb_ifindex, &mtu, 0, 0) == -ENODEV)
		return false;
	if (!ifb_device)
		return true;
	device = bpf_core_cast((void *)ifb_device, struct net_device);
	return device->flags & IFF_UP;
}

SEC("tc")
int gw_leaves(struct __sk_buff *skb)
{
	/* The kernel skips the action then; if nothing matched, it would skip the next action, on whatever device. */
	if (has_returned(skb))
		return MATCH;
	return skb->cb[0] == REDIRECT_MAGIC && is_there(skb) ? MATCH : NO_MATCH;
}

SEC("tcx/egress")
int gw_to_class(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);

	if (!ifb_device)
		ifb_device = (__u64)kernel_skb->dev;
	choose_queue(skb, is_fair);
	return TCX_NEXT;
}
