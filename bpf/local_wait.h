/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Until when this machine's own queue delayed background for higher bands, written by the qdisc for the congestion
 * control of background (ledbat.bpf.c, rledbat.bpf.c): a packet that waited there does not measure the path. The daemon
 * makes all of them use the same map.
 */
#ifndef GIVEWAY_LOCAL_WAIT_H
#define GIVEWAY_LOCAL_WAIT_H

#include "queueing.h"

/* Of a link, by its number. */
struct gw_local_wait {
	__u64 until_ns; /* CLOCK_MONOTONIC */
	__u32 ifindex;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS);
	__type(key, __u32);
	__type(value, struct gw_local_wait);
} local_waits SEC(".maps");

#endif
