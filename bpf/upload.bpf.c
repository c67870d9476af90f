// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits for what is sent, and for what containers receive: only what is limited takes a detour by an intermediate device (ifb),
 * whose queue holds each limit, and comes back to the device's own queue. What that is stays as it is.
 *
 *   gw_leaves     a filter of clsact at the egress of the link, or of a container's device: admission, or container.bpf.c, which
 *                 come before it, have marked what is limited. Its action sends that to the intermediate device
 *   gw_to_class   egress of the intermediate device, before its queue: chooses the limit's class
 *
 * As a packet comes back, admission and the filter see it once more.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "detour.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1
#define NO_MATCH 0
#define MATCH -1
#define IFF_UP 1
#define ENODEV 19

/* The intermediate device; as the first packet that came there has shown it. */
const volatile __u32 detour_ifindex;
/* As in download.bpf.c. */
const volatile bool is_fair;
__u64 detour_device;

/* The action drops what is for a device that is gone or down. */
static __always_inline bool is_there(struct __sk_buff *skb)
{
	struct net_device *device;
	__u32 mtu = 0;

	if (bpf_check_mtu(skb, detour_ifindex, &mtu, 0, 0) == -ENODEV)
		return false;
	if (!detour_device)
		return true;
	device = bpf_core_cast((void *)detour_device, struct net_device);
	return device->flags & IFF_UP;
}

SEC("tc")
int gw_leaves(struct __sk_buff *skb)
{
	/* The kernel skips the action then; of what does not match it would skip the next one, on whatever device that is. */
	if (has_come_back(skb))
		return MATCH;
	return skb->cb[0] == DETOUR_MAGIC && is_there(skb) ? MATCH : NO_MATCH;
}

SEC("tcx/egress")
int gw_to_class(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);

	if (!detour_device)
		detour_device = (__u64)kernel_skb->dev;
	queue_there(skb, is_fair);
	return TCX_NEXT;
}
