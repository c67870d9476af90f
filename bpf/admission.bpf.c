// SPDX-License-Identifier: GPL-2.0-only
/*
 * Egress of the managed link, in the sender's context: which band a packet belongs to, and whether its deadline can
 * be promised. A datagram that is refused here comes back to its sender as ENOBUFS (with IP_RECVERR or IPV6_RECVERR),
 * which a drop any further down does not do reliably.
 *
 * A deadline comes from SO_TXTIME in deadline mode, from an IP option, from the request that this answers, or from a
 * rule for unmodified programs.
 * Everything that cannot be read is best effort. Attach it last: what is dropped after it was promised for nothing.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "background_answers.h"
#include "chain.h"
#include "link.h"
#include "read_packet.h"
#include "sockets.h"

char LICENSE[] SEC("license") = "GPL";

#define SIGURG 23
#define TCX_PASS 0
#define TCX_DROP 2

extern void *bpf_cast_to_kern_ctx(void *obj) __ksym;
/* Since 6.13, where it may be called from here at all. */
extern int bpf_send_signal_task(struct task_struct *task, int sig, enum pid_type type, __u64 value) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct gw_rule_key);
	__type(value, struct gw_rule);
} deadline_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct gw_background_key);
	__type(value, __u8);
} background_flows SEC(".maps");

/* Sockets that a task at nice 19 made. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u8);
} nice_sockets SEC(".maps");

/* There ever was one. */
bool has_nice_sockets;

/* What sockets of a [[chain]] have received: arrival.bpf.c's map. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_requests);
} chain_requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_admission_counters);
} admission_counters SEC(".maps");

/* A datagram in fragments, by what they have in common. */
struct datagram {
	__u8 local[16];
	__u8 remote[16];
	__u32 id;
	__u32 protocol;
};

/* What became of its first fragment, and thereby of all. */
struct verdict {
	__u64 deadline_ns;
	__u64 admitted; /* 0: refused */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct datagram);
	__type(value, struct verdict);
} datagrams SEC(".maps");

/* Puts the types of the border into the skeleton. */
struct gw_queue_event *event_type __attribute__((unused));
enum gw_band *band_type __attribute__((unused));
enum gw_link_flag *flag_type __attribute__((unused));

/* SO_TXTIME in deadline mode. Anything else in tstamp is pacing of TCP's own, or the time of arrival. */
static __always_inline __u64 socket_deadline(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	struct sock *sk = kernel_skb->sk;
	__u8 state;

	if (!kernel_skb->tstamp || !sk)
		return 0;
	state = sk->__sk_common.skc_state;
	if (state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV)
		return 0; /* a short record, not a socket */
	if (!(sk->__sk_common.skc_flags >> bpf_core_enum_value(enum sock_flags, SOCK_TXTIME) & 1) ||
	    sk->sk_clockid != CLOCK_MONOTONIC || !BPF_CORE_READ_BITFIELD(sk, sk_txtime_deadline_mode))
		return 0;
	return kernel_skb->tstamp;
}

/* What is left of the budget of the request that was received last by this socket; nothing once it is over. */
static __noinline __u64 inherited_deadline(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct gw_requests *requests;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	requests = sk ? bpf_sk_storage_get(&chain_requests, sk, NULL, 0) : NULL;
	return requests && requests->answer_ns > bpf_ktime_get_ns() ? requests->answer_ns : 0;
}

static __always_inline struct gw_rule *find_rule(const struct gw_link_config *config, const struct packet *p)
{
	struct gw_rule_key key = { .remote_port = p->tuple.remote_port, .protocol = p->protocol };

	return config->rules && key.remote_port ? bpf_map_lookup_elem(&deadline_rules, &key) : NULL;
}

/* By when the last bit has to leave the link; 0: whenever. Takes the time only where it counts. */
static __always_inline __u64 find_deadline(struct __sk_buff *skb, const struct gw_link_config *config,
					   const struct packet *p, const struct gw_rule *rule)
{
	__u64 deadline_ns = socket_deadline(skb);
	__u64 budget_ns = 1000ULL * (rule && rule->has_path_budget ? rule->path_budget_us : config->path_budget_us);

	if (!deadline_ns && p->has_option)
		deadline_ns = bpf_ktime_get_ns() + 1000ULL * p->option_us;
	if (!deadline_ns && config->flags & GW_INHERIT)
		deadline_ns = inherited_deadline(skb);
	if (!deadline_ns && rule && rule->deadline_us)
		deadline_ns = bpf_ktime_get_ns() + 1000ULL * rule->deadline_us;
	if (!deadline_ns)
		return 0;
	return deadline_ns > budget_ns ? deadline_ns - budget_ns : 1;
}

static __always_inline bool is_background(struct __sk_buff *skb, const struct gw_link_config *config,
					  const struct packet *p)
{
	struct gw_background_key key = {
		.remote_port = p->tuple.remote_port,
		.local_port = p->tuple.local_port,
		.family = p->tuple.family,
	};
	struct bpf_sock *sk;

	if (skb->priority == 1 || p->dscp == DSCP_LE)
		return true;
	if (config->background_flows) {
		__builtin_memcpy(key.remote, p->tuple.remote, 16);
		if (bpf_map_lookup_elem(&background_flows, &key))
			return true;
		key.local_port = 0;
		if (bpf_map_lookup_elem(&background_flows, &key))
			return true;
	}
	if (!has_nice_sockets)
		return false;
	sk = skb->sk;
	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	return sk && bpf_sk_storage_get(&nice_sockets, sk, NULL, 0);
}

static __always_inline enum gw_band band_without_deadline(struct __sk_buff *skb, const struct gw_link_config *config,
							  struct packet *p)
{
	struct gw_background_key key = { .family = p->tuple.family };
	__u8 yes = 1;

	if (!is_background(skb, config, p))
		return GW_BEST_EFFORT;
	if (config->flags & GW_LEARN) {
		read_ports(skb, p);
		__builtin_memcpy(key.remote, p->tuple.remote, 16);
		key.remote_port = p->tuple.remote_port;
		key.local_port = p->tuple.local_port;
		if (!bpf_map_lookup_elem(&background_answers, &key))
			bpf_map_update_elem(&background_answers, &key, &yes, BPF_ANY);
	}
	return GW_BACKGROUND;
}

/* One packet's promise. */
struct promise {
	__u64 deadline_ns;
	__u64 work_ns; /* its time on the link at the real-time share */
	__u32 packets; /* as many of the qdisc's */
	enum gw_queue_event_kind refused; /* 0: it is promised */
};

/*
 * The link's start, as the slack test sees it: what the driver has; what best effort is still owed; one ordinary
 * packet that may get in before this one is queued; what a timer is allowed to be late; the delays that were seen
 * lately; the guard.
 */
static __always_inline __u64 latest_begin(const struct gw_link *link, const struct gw_link_config *config, __u64 now_ns)
{
	__u64 packet_ns = time_on_link(config, config->max_packet_bytes + config->overhead_bytes);
	__u64 begin_ns = now_ns > link->busy_ns ? now_ns : link->busy_ns;

	return begin_ns + (link->owed_ns > 0 ? link->owed_ns : 0) +
	       (link->largest_ns > packet_ns ? link->largest_ns : packet_ns) + catch_up_ns(config) + link->delay_ns +
	       1000ULL * config->guard_us;
}

static __noinline void admit_edf(struct gw_link *link, const struct gw_link_config *config, __u64 now_ns,
				      struct promise *p)
{
	__u64 slot = slack_slot(p->deadline_ns), begin_ns = latest_begin(link, config, now_ns);
	__u64 end = link->tree.first + GW_SLOTS - 1;
	struct gw_latest latest;

	if (slot < link->tree.first) {
		p->refused = GW_REFUSED_OWN; /* over already */
		return;
	}
	/* Beyond the ring it is promised for the ring's end. */
	if (slot > end) {
		slot = end;
		p->deadline_ns = end << GW_SLOT_SHIFT;
	}
	latest = slack_latest_start(&link->tree, slot, p->deadline_ns, p->work_ns);
	if ((__s64)begin_ns > latest.own_ns)
		p->refused = GW_REFUSED_OWN;
	else if ((__s64)begin_ns > latest.others_ns)
		p->refused = GW_REFUSED_OTHERS;
	else if (link->promised + p->packets > GW_PROMISES)
		p->refused = GW_REFUSED_FULL;
	if (p->refused)
		return;
	slack_add(&link->tree, slot, p->deadline_ns, p->work_ns);
	link->packets[slack_leaf(slot)] += p->packets;
	link->promised += p->packets;
}

/* A FIFO cannot let anyone pass: in time is who would be if all before it are served first. */
static __always_inline void admit_fifo(struct gw_link *link, const struct gw_link_config *config, __u64 now_ns,
				       struct promise *p)
{
	__u64 begin_ns = latest_begin(link, config, now_ns);
	__u64 done_ns = (link->fifo_ns > begin_ns ? link->fifo_ns : begin_ns) + p->work_ns;

	if (done_ns > p->deadline_ns)
		p->refused = GW_REFUSED_OWN;
	else
		link->fifo_ns = done_ns;
}

static __always_inline struct gw_admission_counters *the_counters(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&admission_counters, &key);
}

/* Not static, so that it is verified once and not for every way here. */
__noinline int decide(struct promise *p, __u64 now_ns)
{
	struct gw_link_config *config = the_config();
	struct gw_admission_counters *counters = the_counters();
	struct gw_link *link = the_link();
	__u32 lost = 0;

	if (!p || !config || !link)
		return 0;
	bpf_spin_lock(&link->lock);
	if (config->backend == GW_BACKEND_EDF) {
		lost = advance(link, now_ns);
		admit_edf(link, config, now_ns, p);
	} else {
		admit_fifo(link, config, now_ns, p);
	}
	bpf_spin_unlock(&link->lock);
	if (lost && counters)
		__sync_fetch_and_add(&counters->expired, lost);
	return 0;
}

/* What the datagram takes of the link, of which this is the whole or the first fragment. */
static __always_inline void measure(struct __sk_buff *skb, const struct gw_link_config *config, const struct packet *p,
				    struct promise *promise)
{
	__u32 segments = skb->gso_segs ? skb->gso_segs : 1;
	__u64 percent = config->realtime_percent ? config->realtime_percent : 100;
	__u64 bytes = skb->wire_len + segments * config->overhead_bytes;
	__u64 work_ns = time_on_link(config, bytes) * 100 / percent;
	__be16 udp_bytes;

	promise->packets = 1;
	promise->work_ns = work_ns;
	if (p->more_fragments && p->protocol == IPPROTO_UDP && p->end_at > p->transport_at &&
	    !load(skb, p->transport_at + 4, &udp_bytes, sizeof(udp_bytes))) {
		__u32 datagram_bytes = bpf_ntohs(udp_bytes), each = p->end_at - p->transport_at;
		__u32 whole = datagram_bytes / each, rest = datagram_bytes % each;

		promise->work_ns = whole * work_ns;
		promise->packets = whole;
		if (rest) {
			promise->work_ns += time_on_link(config, bytes - each + rest) * 100 / percent;
			promise->packets++;
		}
	}
}

static __noinline void tell(struct __sk_buff *skb, const struct packet *p, const struct promise *promise,
				 __u64 now_ns)
{
	struct gw_queue_event *event = bpf_ringbuf_reserve(&queue_events, sizeof(*event), 0);
	struct gw_admission_counters *counters;

	if (!event) {
		counters = the_counters();
		if (counters)
			__sync_fetch_and_add(&counters->events_lost, 1);
		return;
	}
	event->t_ns = now_ns;
	event->deadline_ns = promise->deadline_ns;
	event->work_ns = promise->work_ns;
	event->cookie = bpf_get_socket_cookie(skb);
	event->kind = promise->refused;
	event->protocol = p->protocol;
	event->tuple = p->tuple;
	event->reserved = 0;
	/* The daemon looks in at every pass. */
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __always_inline void stamp(struct __sk_buff *skb, const struct gw_link_config *config, enum gw_band band,
				  const struct promise *promise, __u32 work_ns, __u64 now_ns)
{
	struct gw_admission_counters *counters = the_counters();
	__u32 class = config->class_of_band[band];

	skb->cb[0] = STAMP_MAGIC | band;
	if (band == GW_REALTIME) {
		skb->cb[1] = promise->deadline_ns;
		skb->cb[2] = promise->deadline_ns >> 32;
		skb->cb[3] = work_ns;
		skb->cb[4] = now_ns;
	} else {
		skb->cb[1] = bpf_get_hash_recalc(skb);
		skb->cb[3] = 0;
	}
	if (class)
		skb->priority = class;
	if (counters)
		__sync_fetch_and_add(&counters->packets[band], 1);
}

static __always_inline struct datagram datagram_of(const struct packet *p)
{
	struct datagram key = { .id = p->id, .protocol = p->protocol };

	__builtin_memcpy(key.local, p->tuple.local, 16);
	__builtin_memcpy(key.remote, p->tuple.remote, 16);
	return key;
}

/* A later fragment shares the fate of the first. */
static __noinline int follow(struct __sk_buff *skb, const struct gw_link_config *config, const struct packet *p)
{
	struct datagram key = datagram_of(p);
	struct verdict *first = bpf_map_lookup_elem(&datagrams, &key);
	struct promise promise = {}, own = {};

	if (!first) {
		stamp(skb, config, is_background(skb, config, p) ? GW_BACKGROUND : GW_BEST_EFFORT, &promise, 0, 0);
		return TCX_PASS;
	}
	if (!first->admitted)
		return TCX_DROP;
	promise.deadline_ns = first->deadline_ns;
	measure(skb, config, p, &own);
	stamp(skb, config, GW_REALTIME, &promise, own.work_ns, bpf_ktime_get_ns());
	return TCX_PASS;
}

static __noinline void remember(const struct packet *p, const struct promise *promise)
{
	struct datagram key = datagram_of(p);
	struct verdict verdict = {
		.deadline_ns = promise->deadline_ns,
		.admitted = !promise->refused,
	};

	bpf_map_update_elem(&datagrams, &key, &verdict, BPF_ANY);
}

SEC("tcx/egress")
int gw_admit(struct __sk_buff *skb)
{
	struct gw_link_config *config = the_config();
	struct promise promise = {};
	struct packet p = {};
	struct gw_admission_counters *counters;
	__u64 now_ns, deadline_ns;
	struct gw_rule *rule;
	__u64 own_work_ns;

	skb->cb[0] = 0;
	if (!config || !config->ifindex)
		return TCX_PASS;
	if (!read_packet(skb, &p)) {
		stamp(skb, config, skb->priority == 1 ? GW_BACKGROUND : GW_BEST_EFFORT, &promise, 0, 0);
		return TCX_PASS;
	}
	if (p.fragment_at)
		return follow(skb, config, &p);
	if (config->rules || config->background_flows)
		read_ports(skb, &p);
	rule = find_rule(config, &p);
	deadline_ns = find_deadline(skb, config, &p, rule);
	if (!deadline_ns) {
		stamp(skb, config, band_without_deadline(skb, config, &p), &promise, 0, 0);
		return TCX_PASS;
	}
	now_ns = bpf_ktime_get_ns();
	promise.deadline_ns = deadline_ns;
	measure(skb, config, &p, &promise);
	own_work_ns = promise.work_ns;
	if (config->flags & GW_ADMIT && config->backend != GW_BACKEND_NONE && config->rate_bytes_per_s) {
		if (promise.work_ns > ~0u)
			promise.refused = GW_REFUSED_OWN;
		else
			decide(&promise, now_ns);
		if (p.more_fragments)
			remember(&p, &promise);
	} else {
		own_work_ns = 0;
	}
	counters = the_counters();
	if (promise.refused) {
		if (counters && promise.refused < GW_QUEUE_EVENTS)
			__sync_fetch_and_add(&counters->refused[promise.refused], 1);
		read_ports(skb, &p);
		tell(skb, &p, &promise, now_ns);
		/* Ignored by whoever did not ask for it, should this not be the sender's context. */
		if (rule && rule->signal && bpf_ksym_exists(bpf_send_signal_task))
			bpf_send_signal_task(bpf_get_current_task_btf(), SIGURG, PIDTYPE_TGID, 0);
		return TCX_DROP;
	}
	if (counters && own_work_ns)
		__sync_fetch_and_add(&counters->admitted, 1);
	if (p.more_fragments && own_work_ns) {
		struct promise own = {};

		/* The promise covers the whole datagram; this fragment gives back its own part. */
		p.more_fragments = false;
		measure(skb, config, &p, &own);
		own_work_ns = own.work_ns;
	}
	stamp(skb, config, GW_REALTIME, &promise, own_work_ns, now_ns);
	return TCX_PASS;
}

/* P0's own way in: a task that has lowered itself sends in the background. */
SEC("cgroup/sock_create")
int gw_mark_nice(struct bpf_sock *ctx)
{
	struct sock *sk = bpf_cast_to_kern_ctx(ctx);
	struct task_struct *task = bpf_get_current_task_btf();
	__u8 yes = 1;

	if (task->static_prio == NICE_19_PRIO && in_our_netns(sk) &&
	    bpf_sk_storage_get(&nice_sockets, ctx, &yes, BPF_SK_STORAGE_GET_F_CREATE))
		has_nice_sockets = true;
	return 1;
}
