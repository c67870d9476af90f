/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The background band: one FIFO, the CPU gate that holds it while the CPU runs something more important, and its
 * minimum rate.
 */
#ifndef GIVEWAY_QDISC_BACKGROUND_H
#define GIVEWAY_QDISC_BACKGROUND_H

#include "../local_wait.h"
#include "instance.h"

#define BACKGROUND_LIMIT 1000
/* Besides the time of two packets: single packets of others do not keep background from the link. */
#define LOCAL_WAIT_NS (20 * NSEC_PER_MSEC)
/*
 * While the CPU gate is closed. Shorter costs programs more CPU time; longer delays background after the CPU becomes
 * idle.
 */
#define GATE_RETRY_NS NSEC_PER_MSEC

/* Whether this CPU runs something that background must not disturb. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} runs_foreground SEC(".maps");

static __always_inline void queue_background(struct instance *i, __u32 number, __u32 index, __u64 now_ns)
{
	push(&i->background, number, index);
	if (!i->waiting[GW_BACKGROUND]++)
		i->unhindered_ns = now_ns;
}

/* A higher band sent, or the CPU gate is closed, while background has a backlog: it had only its minimum rate. */
static __always_inline void note_local_wait(const struct instance *i, __u32 number, const struct gw_link_config *config,
					    __u64 now_ns)
{
	struct gw_local_wait *wait;

	if (now_ns - i->unhindered_ns < LOCAL_WAIT_NS + 2 * time_on_link(config, config->max_packet_bytes))
		return;
	wait = bpf_map_lookup_elem(&local_waits, &number);
	if (wait)
		wait->until_ns = now_ns;
}

static __always_inline bool background_is_full(const struct instance *i)
{
	return i->waiting[GW_BACKGROUND] >= BACKGROUND_LIMIT;
}

static __always_inline bool cpu_gate_is_closed(const struct gw_link_config *config)
{
	__u32 key = 0, *foreground;

	if (!(config->flags & GW_CPU_GATE))
		return false;
	foreground = bpf_map_lookup_elem(&runs_foreground, &key);
	return foreground && *foreground;
}

/* The minimum rate is served even if best effort has a backlog or the CPU gate is closed, but not before deadlines. */
static __always_inline bool background_min_is_due(const struct instance *i, const struct gw_link_config *config, __u64 now_ns)
{
	return config->background_min_bytes_per_s && !i->realtime_packets && now_ns >= i->background_min_ns;
}

static __always_inline __u32 pop_background(struct instance *i, __u32 number)
{
	__u32 index = pop(&i->background, number);

	if (index)
		i->waiting[GW_BACKGROUND]--;
	return index;
}

#endif
