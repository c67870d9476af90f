// SPDX-License-Identifier: GPL-2.0-only
/*
 * The qdisc of each managed link: packets with deadlines, earliest first, then streams, then best effort, either fair
 * between flows and with bounded sojourn time (RFC 8289), then background while the CPU runs nothing more important. It
 * paces at the link's rate, so that the queue is here and not in the driver.
 *
 * It classifies nothing and refuses no deadline: admission.bpf.c does that in the sender's context, and stamps the
 * packet. A packet without a stamp is best effort. Promises are returned here, when a packet goes to the driver or is
 * dropped.
 *
 * Packets wait in a static pool, linked by index. The kernel serialises the calls of one instance by its queue's lock.
 * A link has one instance, at its root, and shares with admission only `struct gw_link`, which has a lock of its own.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "link.h"
#include "qdisc/background.h"
#include "qdisc/best_effort.h"
#include "qdisc/pacing.h"
#include "qdisc/realtime.h"

char LICENSE[] SEC("license") = "GPL";

#define NET_XMIT_SUCCESS 0
#define NET_XMIT_DROP 1
#define ENODEV 19
#define EBUSY 16

const volatile __u32 netns_inum;

extern __u32 bpf_skb_get_hash(struct sk_buff *skb) __ksym;
extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym;
extern void bpf_qdisc_skb_drop(struct sk_buff *skb, struct bpf_sk_buff_ptr *to_free) __ksym;
extern void bpf_qdisc_watchdog_schedule(struct Qdisc *sch, __u64 expire, __u64 delta_ns) __ksym;
extern void bpf_qdisc_bstats_update(struct Qdisc *sch, const struct sk_buff *skb) __ksym;

/* ---- enqueue ---- */

/* A packet's stamp, decoded. */
struct stamped {
	enum gw_band band;
	bool is_tcp;
	__u32 hash;
	__u32 work_ns;
	__u32 decided; /* lower half of the time of the promise */
	__u64 deadline_ns;
};

static __always_inline struct stamped read_stamp(struct sk_buff *skb)
{
	const struct qdisc_skb_cb *cb = (const struct qdisc_skb_cb *)skb->cb;
	const __u32 *word = (const __u32 *)cb->data;
	struct stamped s = { .band = GW_BEST_EFFORT };
	__u32 first = word[0];

	if ((first & 0xffff0000u) != STAMP_MAGIC) {
		s.hash = bpf_skb_get_hash(skb);
		return s;
	}
	s.band = first & 3;
	s.is_tcp = first & STAMP_TCP;
	if (s.band == GW_REALTIME) {
		s.deadline_ns = (__u64)word[2] << 32 | word[1];
		s.work_ns = word[3];
		s.decided = word[4];
	} else {
		s.hash = word[1];
		s.deadline_ns = (__u64)word[4] << 32 | word[2];
	}
	return s;
}

/* How many packets it becomes on the link, each with its overhead; counted as in admission. */
static __always_inline __u32 segments_of(struct sk_buff *skb)
{
	const struct qdisc_skb_cb *cb = (const struct qdisc_skb_cb *)skb->cb;
	const struct skb_shared_info *shared;

	if (bpf_core_field_exists(cb->pkt_segs))
		return cb->pkt_segs;
	shared = bpf_core_cast(skb->head + skb->end, struct skb_shared_info);
	return shared->gso_segs ? shared->gso_segs : 1;
}

static __always_inline bool is_full(struct instance *i, const struct stamped *stamp)
{
	if (stamp->band == GW_REALTIME)
		return i->realtime_packets >= REALTIME_LIMIT;
	return stamp->band == GW_BACKGROUND && background_is_full(i);
}

SEC("struct_ops/gw_enqueue")
int BPF_PROG(gw_enqueue, struct sk_buff *skb, struct Qdisc *sch, struct bpf_sk_buff_ptr *to_free)
{
	struct stamped stamp = read_stamp(skb);
	struct gw_link_config *config;
	struct gw_band_counters *c;
	struct instance *i;
	struct place *place;
	struct sk_buff *old;
	__u32 number, index;

	i = instance_of(sch, &number);
	config = config_at(number);
	if (stamp.band >= GW_BANDS)
		stamp.band = GW_BEST_EFFORT;
	if (!i || !config)
		goto drop;
	c = counters_of(number, stamp.band);
	if (!c)
		goto drop;
	if ((stamp.band == GW_STREAM || stamp.band == GW_BEST_EFFORT) && best_effort_is_full(i))
		drop_from_fattest(i, number, sch);
	place = is_full(i, &stamp) ? NULL : take_place(&i->places, number, &index);
	if (!place) {
		c->dropped_full++;
		if (stamp.work_ns) {
			struct place lost = { .work_ns = stamp.work_ns, .deadline_ns = stamp.deadline_ns };

			release(number, &lost);
		}
		goto drop;
	}
	place->queued_ns = i->seen_ns = bpf_ktime_get_ns();
	place->deadline_ns = stamp.deadline_ns;
	place->work_ns = stamp.work_ns;
	place->bytes = ((const struct qdisc_skb_cb *)skb->cb)->pkt_len;
	place->tcp_bytes = stamp.is_tcp ? place->bytes : 0;
	place->link_bytes = place->bytes + segments_of(skb) * config->overhead_bytes;
	place->next = 0;
	if (stamp.band == GW_REALTIME)
		queue_realtime(i, number, index, place, stamp.decided);
	else if (stamp.band == GW_BACKGROUND)
		queue_background(i, number, index, place->queued_ns);
	else
		queue_flow(i, config, index, place, stamp.hash, stamp.band);
	sch->q.qlen++;
	sch->qstats.backlog += place->bytes;
	c->queued_packets++;
	c->queued_bytes += place->bytes;
	c->backlog_packets++;
	c->backlog_bytes += place->bytes;
	c->tcp_backlog_bytes += place->tcp_bytes;
	old = bpf_kptr_xchg(&place->skb, skb);
	if (old)
		bpf_kfree_skb(old);
	return NET_XMIT_SUCCESS;
drop:
	sch->qstats.drops++;
	bpf_qdisc_skb_drop(skb, to_free);
	return NET_XMIT_DROP;
}

/* ---- dequeue ---- */

/*
 * The choice of the next packet, if any, and its band. `is_minimum`: background at its minimum rate, which would wait
 * otherwise.
 */
struct chosen {
	struct turn turn;
	bool is_minimum;
};

/* Where other bands than best effort have a backlog. */
static __noinline int choose(struct instance *i, struct gw_link *link, struct chosen *chosen)
{
	struct turn *turn = &chosen->turn;
	const struct gw_link_config *config = turn->config;
	struct gw_band_counters *c;
	bool others_are_due;

	others_are_due = (i->waiting[GW_STREAM] || i->waiting[GW_BEST_EFFORT]) && config->rate_bytes_per_s &&
			 link->owed_ns >= (__s64)time_on_link(config, config->max_packet_bytes + config->overhead_bytes);
	if (i->realtime_packets && !others_are_due)
		turn->index = choose_realtime(i, turn->number, turn->sch, turn->now_ns);
	turn->band = GW_REALTIME;
	if (!turn->index && i->waiting[GW_BACKGROUND] && background_min_is_due(i, config, turn->now_ns)) {
		turn->band = GW_BACKGROUND;
		turn->index = pop_background(i, turn->number);
		chosen->is_minimum = i->waiting[GW_STREAM] || i->waiting[GW_BEST_EFFORT] || cpu_gate_is_closed(config);
	}
	if (!turn->index && i->waiting[GW_STREAM] && !best_effort_is_owed(i, config)) {
		turn->band = GW_STREAM;
		next_packet(i, turn);
	}
	if (!turn->index && i->waiting[GW_BEST_EFFORT]) {
		turn->band = GW_BEST_EFFORT;
		next_packet(i, turn);
	}
	if (!turn->index && i->waiting[GW_BACKGROUND]) {
		if (cpu_gate_is_closed(config)) {
			c = counters_of(turn->number, GW_BACKGROUND);
			if (c)
				c->cpu_gate_closed++;
			return 0;
		}
		turn->band = GW_BACKGROUND;
		turn->index = pop_background(i, turn->number);
		chosen->is_minimum = false;
	}
	return 0;
}

/* All attempts were used, or the CPU gate is closed. */
static __always_inline __u64 next_try_ns(const struct instance *i, __u64 now_ns)
{
	bool is_cpu_gated = !(i->realtime_packets || i->waiting[GW_STREAM] || i->waiting[GW_BEST_EFFORT]);

	return is_cpu_gated && i->waiting[GW_BACKGROUND] ? now_ns + GATE_RETRY_NS : now_ns;
}

/* What a departure means for the bands besides best effort. */
static __noinline int settle(struct instance *i, const struct chosen *chosen, const struct place *place)
{
	const struct gw_link_config *config = chosen->turn.config;
	enum gw_band band = chosen->turn.band;
	__u64 now_ns = chosen->turn.now_ns;

	if (place && band == GW_BACKGROUND && !chosen->is_minimum)
		i->unhindered_ns = now_ns;
	else if (i->waiting[GW_BACKGROUND])
		note_local_wait(i, chosen->turn.number, config, now_ns);
	if (place && band == GW_BACKGROUND && config->background_min_bytes_per_s)
		i->background_min_ns = now_ns + place->link_bytes * NSEC_PER_SEC / config->background_min_bytes_per_s;
	return 0;
}

/*
 * While the link is busy, a recent reading of the clock is as good as a new one. Close to the end of that time the
 * clock is read: a timer in the past fires all the same, and costs more.
 */
#define CLOSE_NS 20000

SEC("struct_ops/gw_dequeue")
struct sk_buff *BPF_PROG(gw_dequeue, struct Qdisc *sch)
{
	struct gw_link_config *config;
	struct gw_band_counters *c;
	struct chosen chosen;
	struct gw_link *link;
	struct sk_buff *skb;
	struct instance *i;
	struct place *place;
	__u64 now_ns;
	__u32 number;
	bool is_plain;

	/* The kernel calls again until it gets NULL. */
	if (!sch->q.qlen)
		return NULL;
	i = instance_of(sch, &number);
	if (!i)
		return NULL;
	now_ns = i->seen_ns;
	i->seen_ns = 0;
	if (!now_ns || (__s64)(i->free_ns - now_ns) < CLOSE_NS)
		now_ns = bpf_ktime_get_ns();
	/* Also where the rate has just been removed: the link still sends its backlog at that rate. */
	if ((__s64)(i->free_ns - now_ns) > 0) {
		sch->qstats.overlimits++;
		bpf_qdisc_watchdog_schedule(sch, i->free_ns, 0);
		return NULL;
	}
	config = config_at(number);
	link = link_at(number);
	if (!config || !link)
		return NULL;
	chosen = (struct chosen){
		.turn = { .sch = sch, .config = config, .now_ns = now_ns, .number = number, .band = GW_BEST_EFFORT },
	};
	is_plain = !(i->realtime_packets | i->waiting[GW_STREAM] | i->waiting[GW_BACKGROUND]);
	if (is_plain)
		next_packet(i, &chosen.turn);
	else
		choose(i, link, &chosen);
	place = chosen.turn.place;
	if (!place && chosen.turn.index)
		place = place_at(number, chosen.turn.index);
	c = counters_of(number, chosen.turn.band);
	if (!is_plain)
		settle(i, &chosen, place);
	if (!place || !c) {
		if (sch->q.qlen)
			bpf_qdisc_watchdog_schedule(sch, next_try_ns(i, now_ns), 0);
		return NULL;
	}
	if (config->rate_bytes_per_s) {
		occupy_link(config, link, place, chosen.turn.band, now_ns);
		i->free_ns = ready_ns(config, link);
		i->seen_ns = now_ns;
	} else {
		i->free_ns = 0;
		release(number, place);
	}
	if (is_plain)
		i->owed_bytes = 0;
	else
		count_owed(i, chosen.turn.band, place->bytes);
	uncount(sch, c, place);
	c->sent_packets++;
	c->sent_bytes += place->bytes;
	c->tcp_sent_bytes += place->tcp_bytes;
	count_sojourn(c, now_ns - place->queued_ns);
	skb = bpf_kptr_xchg(&place->skb, NULL);
	return_place(&i->places, place, chosen.turn.index);
	if (!skb)
		return NULL;
	bpf_qdisc_bstats_update(sch, skb);
	return skb;
}

/* ---- init, reset, destroy ---- */

SEC("struct_ops/gw_init")
int BPF_PROG(gw_init, struct Qdisc *sch, struct nlattr *opt, struct netlink_ext_ack *extack)
{
	const struct net_device *device = sch->dev_queue->dev;
	struct gw_link_config *config;
	struct gw_local_wait *wait;
	struct gw_link *link;
	struct instance *i;
	__u32 number;

	/* Only on the daemon's links, which have configuration and promises. */
	config = device->nd_net.net->ns.inum == netns_inum ? config_of(device->ifindex) : NULL;
	if (!config)
		return -ENODEV;
	number = config->number;
	link = link_at(number);
	i = bpf_map_lookup_elem(&instances, &number);
	if (!link || !i)
		return -ENODEV;
	if (__sync_val_compare_and_swap(&i->in_use, 0, 1))
		return -EBUSY;
	sch->limit = number + 1;
	wait = bpf_map_lookup_elem(&local_waits, &number);
	if (wait)
		*wait = (struct gw_local_wait){ .ifindex = device->ifindex };
	if (link->delay_ns < GW_FIRST_DELAY_NS)
		link->delay_ns = GW_FIRST_DELAY_NS;
	return 0;
}

static __noinline int forget(struct Qdisc *sch)
{
	struct gw_link *link;
	struct instance *i;
	__u32 number, n;

	i = instance_of(sch, &number);
	link = link_at(number);
	if (!i)
		return 0;
	bpf_for(n, 1, i->places.fresh + 1) {
		struct place *place = place_at(number, n);
		struct sk_buff *skb;

		if (!place)
			break;
		skb = bpf_kptr_xchg(&place->skb, NULL);
		if (skb) {
			/* Its band is not known here; promised work shows that it had a deadline. */
			bpf_kfree_skb(skb);
			if (place->work_ns)
				release(number, place);
		}
	}
	bpf_for(n, 0, GW_BANDS) {
		struct gw_band_counters *c = counters_of(number, n);

		if (c) {
			c->dropped_reset += c->backlog_packets;
			c->backlog_packets = c->backlog_bytes = c->tcp_backlog_bytes = 0;
		}
	}
	bpf_for(n, 0, GW_SLOTS)
		i->slot[n & (GW_SLOTS - 1)] = (struct fifo){};
	bpf_for(n, 0, WORDS)
		i->occupied[n & (WORDS - 1)] = 0;
	bpf_for(n, 0, WORDS / 64)
		i->occupied_words[n & (WORDS / 64 - 1)] = 0;
	bpf_for(n, 0, FLOWS)
		__builtin_memset(flow_at(i, n), 0, sizeof(struct flow));
	__builtin_memset(i->round, 0, sizeof(i->round));
	__builtin_memset(i->waiting, 0, sizeof(i->waiting));
	i->owed_bytes = 0;
	i->background = (struct fifo){};
	i->realtime_packets = 0;
	i->seen_ns = i->free_ns = 0;
	i->places = (struct places){};
	if (link) {
		bpf_spin_lock(&link->lock);
		link->busy_ns = link->owed_ns = 0;
		bpf_spin_unlock(&link->lock);
	}
	return 0;
}

SEC("struct_ops/gw_reset")
void BPF_PROG(gw_reset, struct Qdisc *sch)
{
	forget(sch);
	sch->q.qlen = 0;
	sch->qstats.backlog = 0;
}

SEC("struct_ops/gw_destroy")
void BPF_PROG(gw_destroy, struct Qdisc *sch)
{
	struct instance *i;
	__u32 number;

	forget(sch);
	i = instance_of(sch, &number);
	if (i)
		i->in_use = 0;
}

/* The loader gives it its own name in each network namespace. */
SEC(".struct_ops.link")
struct Qdisc_ops gw_qdisc = {
	.enqueue = (void *)gw_enqueue,
	.dequeue = (void *)gw_dequeue,
	.init = (void *)gw_init,
	.reset = (void *)gw_reset,
	.destroy = (void *)gw_destroy,
	.id = "giveway",
};

/* ---- CPU gate ---- */

/* A kernel thread works on behalf of some task: the previous one still counts. */
SEC("tp_btf/sched_switch")
int BPF_PROG(gw_cpu_gate, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 key = 0, *foreground = bpf_map_lookup_elem(&runs_foreground, &key);

	if (!foreground)
		return 0;
	if (!next->pid)
		*foreground = 0;
	else if (!(next->flags & PF_KTHREAD))
		*foreground = next->static_prio < NICE_19_PRIO;
	return 0;
}
