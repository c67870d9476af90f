/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef GIVEWAY_LEDBAT_WAITED_H
#define GIVEWAY_LEDBAT_WAITED_H

#include "../egress.h"
#include "../local_wait.h"

/* Packets that waited earlier are long acknowledged. */
#define WAIT_MATTERS_NS (600 * NSEC_PER_SEC)

/*
 * Until when this machine's own queue delayed background at this device (CLOCK_MONOTONIC, ms); 0: it did not. Global,
 * so that the verifier checks it once.
 */
__noinline __u64 waited_until_ms(__u32 ifindex)
{
	for (__u32 number = 0; number < GW_LINKS; number++) {
		__u32 key = number;
		struct gw_local_wait *wait = bpf_map_lookup_elem(&local_waits, &key);

		__u64 until_ns = wait ? wait->until_ns : 0;

		/* Read the clock after it, since it may be written at any time. */
		barrier();
		if (wait && wait->ifindex == ifindex && (__s64)(bpf_ktime_get_ns() - until_ns) < (__s64)WAIT_MATTERS_NS)
			return until_ns / NSEC_PER_MSEC ?: 1;
	}
	return 0;
}

/* At this socket's device. */
static __always_inline __u64 own_wait_until_ms(const struct sock *sk)
{
	struct net_device *device = egress_device(sk);

	return device ? waited_until_ms(device->ifindex) : 0;
}

#endif
