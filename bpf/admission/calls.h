/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Packets that their sender's DSCP marks as a call or live video go among the streams, as long as their user sends no
 * more than its share of them. Anyone may set such a DSCP, so the excess stays best effort and cannot overtake other
 * users. On leaving this machine the packet is still marked by its class.
 */
#ifndef GIVEWAY_ADMISSION_CALLS_H
#define GIVEWAY_ADMISSION_CALLS_H

#include "../link.h"
#include "../read_packet.h"
#include "users.h"

/* RFC 4594, and for VA RFC 5865. */
#define DSCP_CS4 32
#define DSCP_AF41 34
#define DSCP_AF42 36
#define DSCP_AF43 38
#define DSCP_CS5 40
#define DSCP_VA 44
#define DSCP_EF 46

/* Each user's part of the rate; where the rate is unknown, enough for a call with video. */
#define GW_CALLS_PART 4
#define GW_CALLS_BYTES_PER_S 500000
/* How far a user may be ahead of its share: a whole video frame is sent at once. */
#define GW_CALLS_BURST_NS (200 * NSEC_PER_MSEC)

struct caller {
	struct bpf_spin_lock lock;
	/*
	 * over its share, and waits until `charged_ns` has passed, which bounds how often packets overtake each other
	 */
	__u32 is_over;
	__u64 charged_ns; /* until when the bytes sent keep its share busy */
};

/* By link and by the hash of the uid (users.h). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS << USERS_SHIFT);
	__type(key, __u32);
	__type(value, struct caller);
} callers SEC(".maps");

static __always_inline bool is_of_call(const struct packet *p)
{
	switch (p->dscp) {
	case DSCP_CS4:
	case DSCP_AF41:
	case DSCP_AF42:
	case DSCP_AF43:
	case DSCP_CS5:
	case DSCP_VA:
	case DSCP_EF:
		return true;
	}
	return false;
}

/* Charges the packet to the user's share. */
static __always_inline bool has_share(struct __sk_buff *skb, const struct gw_link_config *config)
{
	__u64 bytes_per_s = config->rate_bytes_per_s / GW_CALLS_PART, now_ns = bpf_ktime_get_ns(), begin_ns, work_ns;
	__u32 place = place_of_user(config->number, bpf_get_socket_uid(skb));
	struct caller *caller = bpf_map_lookup_elem(&callers, &place);
	bool has;

	if (!caller)
		return false;
	work_ns = skb->wire_len * NSEC_PER_SEC / (bytes_per_s ? bytes_per_s : GW_CALLS_BYTES_PER_S);
	bpf_spin_lock(&caller->lock);
	begin_ns = caller->charged_ns > now_ns ? caller->charged_ns : now_ns;
	has = !(caller->is_over && begin_ns > now_ns) && begin_ns + work_ns <= now_ns + GW_CALLS_BURST_NS;
	if (has)
		caller->charged_ns = begin_ns + work_ns;
	caller->is_over = !has;
	bpf_spin_unlock(&caller->lock);
	return has;
}

/* For packets that only their own DSCP classifies. */
static __always_inline bool is_admitted_call(struct __sk_buff *skb, const struct gw_link_config *config,
				       const struct packet *p)
{
	return config->flags & GW_CALLS && is_of_call(p) && has_share(skb, config);
}

#endif
