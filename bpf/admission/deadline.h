/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a packet's deadline can be promised: its time on the link, the slack test of the backend (slack.h), and the
 * decision kept for the later fragments of the same datagram. Drops nothing and reports nothing.
 *
 * The promise is entered under the lock of `struct gw_link`, where no helper and no kfunc may be called.
 */
#ifndef GIVEWAY_ADMISSION_DEADLINE_H
#define GIVEWAY_ADMISSION_DEADLINE_H

#include "../link.h"
#include "../read_packet.h"
#include "users.h"

/* The promise that one datagram asks for. */
struct promise {
	__u64 deadline_ns;
	__u64 work_ns; /* its time on the link at the real-time share */
	__u64 own_ns;  /* this packet's part of it; 0: nothing is promised */
	__u64 fifo_ns; /* for a FIFO: the sum of all promises including this one */
	__u32 fifo_packets;
	__u32 packets;                    /* of this datagram in the qdisc */
	enum gw_queue_event_kind refused; /* 0: promised */
};

/*
 * The earliest time at which the link can start on a new promise, as the slack test assumes it: after the driver's
 * backlog, best effort's deficit, one packet without a deadline that may be sent before this one is queued, the
 * lateness allowed to a timer, the recent delays, and the guard time.
 */
static __always_inline __u64 latest_begin(const struct gw_link *link, const struct gw_link_config *config, __u64 now_ns)
{
	__u64 packet_ns = time_on_link(config, config->max_packet_bytes + config->overhead_bytes);
	__u64 begin_ns = now_ns > link->busy_ns ? now_ns : link->busy_ns;

	return begin_ns + (link->owed_ns > 0 ? link->owed_ns : 0) +
	       (link->largest_ns > packet_ns ? link->largest_ns : packet_ns) + catch_up_ns(config) + link->delay_ns +
	       1000ULL * config->guard_us;
}

/*
 * A lone user needs no share, but leaves a quarter of the time that admission looks ahead, so that another user's
 * deadlines can be promised from the first one on: a promise without slack keeps others out as long as it is queued.
 */
#define GW_ALONE_NS (3ULL * ((__u64)GW_SLOTS << GW_SLOT_SHIFT) / 4)

static __always_inline void admit_edf(struct gw_link *link, const struct gw_link_config *config, struct user *user,
				      __u64 now_ns, struct promise *p)
{
	__u64 slot = slack_slot(p->deadline_ns), begin_ns = latest_begin(link, config, now_ns);
	__u64 end = link->tree.first + GW_SLOTS - 1, charged_ns;
	__u32 users = count_users(link, user, now_ns);
	struct gw_latest latest;

	if (slot < link->tree.first) {
		p->refused = GW_REFUSED_OWN; /* has passed */
		return;
	}
	/* A deadline beyond the ring counts as due at the ring's end. */
	if (slot > end) {
		slot = end;
		p->deadline_ns = end << GW_SLOT_SHIFT;
	}
	latest = slack_latest_start(&link->tree, slot, p->deadline_ns, p->work_ns);
	charged_ns = charge(config, user, users, p->work_ns, p->packets, now_ns);
	if ((__s64)begin_ns > latest.own_ns)
		p->refused = GW_REFUSED_OWN;
	else if ((__s64)begin_ns > latest.others_ns)
		p->refused = GW_REFUSED_OTHERS;
	else if (link->promised + p->packets > GW_PROMISES)
		p->refused = GW_REFUSED_FULL;
	else if (users < 2 && link->tree.node[1].work_ns + p->work_ns > GW_ALONE_NS)
		p->refused = GW_REFUSED_SHARE;
	else if (users < 2)
		charge_alone(user, charged_ns, p->deadline_ns);
	else if (charged_ns <= p->deadline_ns)
		user->charged_ns = charged_ns;
	else if ((__s64)(begin_ns >> GW_CROWD_SHIFT) > latest.crowd_ns ||
		 link->promised + p->packets > GW_PROMISES >> GW_CROWD_SHIFT)
		p->refused = GW_REFUSED_SHARE;
	if (p->refused)
		return;
	slack_add(&link->tree, slot, p->deadline_ns, p->work_ns);
	link->packets[slack_leaf(slot)] += p->packets;
	link->promised += p->packets;
}

/* A deadline further ahead counts as due then. */
#define GW_HORIZON_NS (10 * NSEC_PER_SEC)
/*
 * While several users ask for deadlines, each has a share of only this much time, however far its deadlines: in a FIFO
 * the backlog delays everyone. So a deadline of half of this can be met beside one other user that asks for all it can
 * get.
 */
#define GW_FIFO_SHARED_NS (40 * NSEC_PER_MSEC)
/* A packet that has not left for so long after its time is lost, or the link has stopped. */
#define GW_FIFO_LOST_NS NSEC_PER_SEC

/* In a FIFO no packet overtakes: one is in time if it is in time after everything promised before it. */
static __always_inline void admit_fifo(struct gw_link *link, const struct gw_link_config *config, struct user *user,
				       __u64 now_ns, struct promise *p)
{
	__u64 begin_ns = latest_begin(link, config, now_ns), horizon_ns = now_ns + GW_HORIZON_NS;
	__u64 shared_ns = now_ns + GW_FIFO_SHARED_NS, charged_ns, done_ns;
	struct gw_fifo *fifo = &link->fifo;
	__u32 users = count_users(link, user, now_ns), waiting;

	if (now_ns > fifo->due_ns + GW_FIFO_LOST_NS) {
		fifo->gone_ns = fifo->promised_ns;
		fifo->gone = fifo->promised;
	}
	if (p->deadline_ns > horizon_ns)
		p->deadline_ns = horizon_ns;
	if (shared_ns > p->deadline_ns)
		shared_ns = p->deadline_ns;
	done_ns = begin_ns + (fifo->promised_ns - fifo->gone_ns) + p->work_ns;
	waiting = fifo->promised - fifo->gone + p->packets;
	charged_ns = charge(config, user, users, p->work_ns, p->packets, now_ns);
	if (done_ns > p->deadline_ns)
		p->refused = GW_REFUSED_OWN;
	else if (waiting > GW_PROMISES)
		p->refused = GW_REFUSED_FULL;
	else if (users < 2)
		charge_alone(user, charged_ns, shared_ns);
	else if (charged_ns <= shared_ns)
		user->charged_ns = charged_ns;
	else if ((__s64)(done_ns - begin_ns) > (__s64)(shared_ns - begin_ns) >> GW_CROWD_SHIFT ||
		 waiting > GW_PROMISES >> GW_CROWD_SHIFT)
		p->refused = GW_REFUSED_SHARE;
	if (p->refused)
		return;
	fifo->promised_ns += p->work_ns;
	fifo->promised += p->packets;
	fifo->due_ns = done_ns;
	p->fifo_ns = fifo->promised_ns;
	p->fifo_packets = fifo->promised;
}

/* Returns the number of expired promises. Not static, so that the verifier checks it once for all callers. */
__noinline int decide(struct promise *p, struct user *user, __u32 number, __u64 now_ns)
{
	struct gw_link_config *config = config_at(number);
	struct gw_link *link = link_at(number);
	__u32 expired = 0;

	if (!p || !user || !config || !link)
		return 0;
	bpf_spin_lock(&link->lock);
	if (config->backend == GW_BACKEND_EDF) {
		expired = advance(link, now_ns);
		admit_edf(link, config, user, now_ns, p);
	} else {
		admit_fifo(link, config, user, now_ns, p);
	}
	bpf_spin_unlock(&link->lock);
	return expired;
}

/* A packet's time on the link at the real-time share. */
static __always_inline __u64 work_of(struct __sk_buff *skb, const struct gw_link_config *config, __u32 bytes)
{
	__u64 percent = config->realtime_percent ? config->realtime_percent : 100;
	__u32 segments = skb->gso_segs ? skb->gso_segs : 1;

	return time_on_link(config, (__u64)bytes + segments * config->overhead_bytes) * 100 / percent;
}

/*
 * How much of the link the datagram takes; this packet is the whole of it or its first fragment. A fragmented datagram
 * of another protocol than UDP does not state its length: only this packet is promised.
 */
static __always_inline void measure(struct __sk_buff *skb, const struct gw_link_config *config, const struct packet *p,
				    struct promise *promise)
{
	__be16 udp_bytes;

	promise->packets = 1;
	promise->work_ns = promise->own_ns = work_of(skb, config, skb->wire_len);
	if (p->more_fragments && p->protocol == IPPROTO_UDP && p->end_at > p->transport_at &&
	    !load(skb, p->transport_at + 4, &udp_bytes, sizeof(udp_bytes))) {
		__u32 datagram_bytes = bpf_ntohs(udp_bytes), each = p->end_at - p->transport_at;
		__u32 whole = datagram_bytes / each, rest = datagram_bytes % each;

		/* A length below this fragment's own is ignored. */
		if (!whole)
			return;
		promise->work_ns *= whole;
		promise->packets = whole;
		if (rest) {
			promise->work_ns += work_of(skb, config, skb->wire_len - each + rest);
			promise->packets++;
		}
	}
}

/* A fragmented datagram, by what its fragments have in common. */
struct datagram {
	__u8 local[16];
	__u8 remote[16];
	__u32 id;
	__u16 protocol;
	__u16 link; /* its number: a promise on one link does not count on another */
};

/*
 * The decision for the first fragment, applied to the later ones. Datagram ids are reused, so it expires soon, and a
 * first fragment always replaces it.
 */
struct verdict {
	__u64 deadline_ns;
	__u64 decided_ns;
	__s64 work_ns; /* promised for the fragments still to come: they give back no more than this */
	__s32 packets;
	__u32 refused;
	__u64 fifo_ns;
	__u32 fifo_packets;
	__u32 treatment; /* of a datagram without a deadline (classify.h); 0: it has one */
};

/* A sender's fragments leave together. */
#define VERDICT_HOLDS_NS (2 * NSEC_PER_SEC)

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct datagram);
	__type(value, struct verdict);
} datagrams SEC(".maps");

static __always_inline struct datagram datagram_of(const struct gw_link_config *config, const struct packet *p)
{
	struct datagram key = { .id = p->id, .protocol = p->protocol, .link = config->number };

	__builtin_memcpy(key.local, p->tuple.local, 16);
	__builtin_memcpy(key.remote, p->tuple.remote, 16);
	return key;
}

static __noinline void remember(const struct gw_link_config *config, const struct packet *p, const struct promise *promise,
				__u64 now_ns)
{
	struct datagram key = datagram_of(config, p);
	struct verdict verdict = {
		.deadline_ns = promise->deadline_ns,
		.decided_ns = now_ns,
		.work_ns = promise->work_ns - promise->own_ns,
		.packets = promise->packets - 1,
		.refused = promise->refused,
		.fifo_ns = promise->fifo_ns,
		.fifo_packets = promise->fifo_packets,
	};

	bpf_map_update_elem(&datagrams, &key, &verdict, BPF_ANY);
}

/* Only the first fragment has the ports that the treatment was chosen by. */
static __noinline void remember_treatment(const struct gw_link_config *config, const struct packet *p, __u32 treatment,
					  __u64 now_ns)
{
	struct datagram key = datagram_of(config, p);
	struct verdict verdict = { .decided_ns = now_ns, .treatment = treatment };

	bpf_map_update_elem(&datagrams, &key, &verdict, BPF_ANY);
}

/* Removes the verdict of an earlier datagram of the same id. */
static __noinline void forget(const struct gw_link_config *config, const struct packet *p)
{
	struct datagram key = datagram_of(config, p);

	bpf_map_delete_elem(&datagrams, &key);
}

/* The verdict for the datagram of this later fragment. */
static __always_inline struct verdict *verdict_of(const struct gw_link_config *config, const struct packet *p, __u64 now_ns)
{
	struct datagram key = datagram_of(config, p);
	struct verdict *verdict = bpf_map_lookup_elem(&datagrams, &key);

	return verdict && now_ns - verdict->decided_ns < VERDICT_HOLDS_NS ? verdict : NULL;
}

/* Takes one fragment's work out of the remaining promise, the last one all of it; 0: nothing is left. */
static __always_inline __u64 take_part(struct verdict *verdict, __u64 own_work_ns)
{
	__s32 packets = __sync_fetch_and_add(&verdict->packets, -1);
	__s64 left_ns;

	if (packets <= 0)
		return 0;
	left_ns = __sync_fetch_and_add(&verdict->work_ns, -(__s64)own_work_ns);
	if (left_ns <= 0)
		return 0;
	return packets == 1 || left_ns < (__s64)own_work_ns ? left_ns : own_work_ns;
}

#endif
