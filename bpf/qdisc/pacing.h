/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When the link has room, and what best effort is owed: the clock of `struct gw_link`, which admission reads. Chooses no
 * packet.
 */
#ifndef GIVEWAY_QDISC_PACING_H
#define GIVEWAY_QDISC_PACING_H

#include "instance.h"

/* A packet goes to the link. Best effort is owed its share of the time that went to deadlines. */
static __noinline int occupy_link(const struct gw_link_config *config, const struct place *place, enum gw_band band,
				  __u64 now_ns)
{
	__u64 time_ns = time_on_link(config, place->link_bytes), behind_ns = catch_up_ns(config);
	__u64 packet_ns = time_on_link(config, config->max_packet_bytes + config->overhead_bytes);
	__u32 percent = config->realtime_percent;
	struct gw_link *link = link_at(config->number);
	__u64 since_ns;

	if (!link)
		return 0;
	bpf_spin_lock(&link->lock);
	/* When the link could have had the packet: what a late timer cost is made up for, up to a bound. */
	since_ns = link->busy_ns > place->queued_ns ? link->busy_ns : place->queued_ns;
	if (since_ns + behind_ns < now_ns) {
		if (place->work_ns) {
			/* The promises behind it are late by this much; best effort pays. */
			note_delay(link, now_ns - since_ns - behind_ns);
			link->owed_ns -= now_ns - since_ns - behind_ns;
		}
		/* Background has waited for the gate: nothing to make up for. */
		since_ns = band == GW_BACKGROUND ? now_ns : now_ns - behind_ns;
	}
	link->busy_ns = since_ns;
	link->busy_ns += time_ns;
	if (band == GW_REALTIME) {
		if (place->work_ns)
			give_back(link, place->deadline_ns, place->work_ns);
		if (percent)
			link->owed_ns += time_ns * (100 - percent) / percent;
		if (link->owed_ns > (__s64)packet_ns)
			link->owed_ns = packet_ns;
	} else {
		link->owed_ns = link->owed_ns > (__s64)time_ns ? link->owed_ns - time_ns : 0;
		link->largest_ns -= link->largest_ns >> 10;
		if (link->largest_ns < time_ns)
			link->largest_ns = time_ns;
	}
	bpf_spin_unlock(&link->lock);
	return 0;
}

/* When the link has room for a packet below; 0: now. */
static __always_inline __u64 wait_for_link(const struct gw_link_config *config, __u64 now_ns)
{
	struct gw_link *link = link_at(config->number);
	__u32 ahead_bytes = config->driver_bytes > config->max_packet_bytes ? config->driver_bytes - config->max_packet_bytes : 0;
	__u64 ready_ns;

	if (!config->rate_bytes_per_s || !link)
		return 0;
	ready_ns = link->busy_ns - time_on_link(config, ahead_bytes);
	return (__s64)(ready_ns - now_ns) > 0 ? ready_ns : 0;
}

#endif
