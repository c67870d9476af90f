/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When the link has room, and what best effort is owed: the clock of `struct gw_link`, which admission reads. Chooses
 * no packet.
 */
#ifndef GIVEWAY_QDISC_PACING_H
#define GIVEWAY_QDISC_PACING_H

#include "instance.h"

/* A packet with a deadline goes to the link. Best effort is owed its share of that time. */
static __noinline int account_realtime(const struct gw_link_config *config, struct gw_link *link, const struct place *place)
{
	__u64 time_ns = time_on_link(config, place->link_bytes);
	__u64 packet_ns = time_on_link(config, config->max_packet_bytes + config->overhead_bytes);
	__u32 percent = config->realtime_percent;

	bpf_spin_lock(&link->lock);
	if (place->work_ns)
		give_back(link, place->deadline_ns, place->work_ns);
	if (percent)
		link->owed_ns += time_ns * (100 - percent) / percent;
	if (link->owed_ns > (__s64)packet_ns)
		link->owed_ns = packet_ns;
	bpf_spin_unlock(&link->lock);
	return 0;
}

/* The timer was late by more than the catch-up allows. */
static __noinline int note_late(struct gw_link *link, __u64 late_ns)
{
	bpf_spin_lock(&link->lock);
	/* The promises behind it are late by this much; best effort pays. */
	note_delay(link, late_ns);
	link->owed_ns -= late_ns;
	bpf_spin_unlock(&link->lock);
	return 0;
}

/* A packet without a deadline goes to the link, which pays some of best effort's deficit. */
static __noinline int account_owed(struct gw_link *link, __u64 busy_ns, __u64 time_ns)
{
	bpf_spin_lock(&link->lock);
	link->busy_ns = busy_ns;
	link->owed_ns = link->owed_ns > (__s64)time_ns ? link->owed_ns - time_ns : 0;
	bpf_spin_unlock(&link->lock);
	return 0;
}

/*
 * A packet goes to the link. Without the lock where best effort is owed nothing: only the qdisc writes these numbers,
 * under its own lock, and admission, which adds them up, may see one of them as it was just before.
 */
static __always_inline void occupy_link(const struct gw_link_config *config, struct gw_link *link, const struct place *place,
					enum gw_band band, __u64 now_ns)
{
	__u64 time_ns = time_on_link(config, place->link_bytes), behind_ns, largest_ns;
	/* When the link could have had the packet; a late timer's cost is caught up to a bound. */
	__u64 since_ns = link->busy_ns > place->queued_ns ? link->busy_ns : place->queued_ns;

	behind_ns = catch_up_ns(config);
	if (since_ns + behind_ns < now_ns) {
		if (place->work_ns)
			note_late(link, now_ns - since_ns - behind_ns);
		/* Background has waited for the CPU gate: nothing to catch up. */
		since_ns = band == GW_BACKGROUND ? now_ns : now_ns - behind_ns;
	}
	if (band == GW_REALTIME) {
		link->busy_ns = since_ns + time_ns;
		account_realtime(config, link, place);
		return;
	}
	largest_ns = link->largest_ns - (link->largest_ns >> 10);
	link->largest_ns = largest_ns < time_ns ? time_ns : largest_ns;
	if (link->owed_ns)
		account_owed(link, since_ns + time_ns, time_ns);
	else
		link->busy_ns = since_ns + time_ns;
}

/* When the driver has, or had, room for a packet. */
static __always_inline __u64 ready_ns(const struct gw_link_config *config, const struct gw_link *link)
{
	if (config->driver_bytes <= config->max_packet_bytes)
		return link->busy_ns;
	return link->busy_ns - time_on_link(config, config->driver_bytes - config->max_packet_bytes);
}

#endif
