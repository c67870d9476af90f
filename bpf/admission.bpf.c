// SPDX-License-Identifier: GPL-2.0-only
/*
 * Egress of each managed link, in the sender's context: chooses a packet's band and decides whether its deadline can be
 * promised. A refused datagram returns to its sender as ENOBUFS (with IP_RECVERR or IPV6_RECVERR); a drop further down
 * does not do that reliably.
 *
 *   admission/classify.h    the packet's class
 *   admission/new_socket.h  the class of a socket that has just connected
 *   admission/calls.h       packets that their DSCP marks as a call
 *   admission/deadline.h    whether a deadline can be promised
 *   admission/users.h       the sending user, and its share
 *   admission/notify.h      tells the qdisc, the daemon and the sender
 *   admission/local.h       traffic within the link's own subnets
 *   admission/mark.h        the DSCP and the Wi-Fi priority of the class
 *
 * An unreadable packet is best effort. Attach this program last: if a later program drops a packet, its promise is
 * wasted. Filters of clsact run after it in any case.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>
#include "admission/calls.h"
#include "admission/classify.h"
#include "admission/deadline.h"
#include "admission/local.h"
#include "admission/mark.h"
#include "admission/notify.h"
#include "nice.h"
#include "sockets.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1
#define TCX_DROP 2

/* Puts the shared types into the skeleton. */
struct gw_treated_socket *treated_type __attribute__((unused));
struct gw_queue_event *event_type __attribute__((unused));
struct gw_local_network *network_type __attribute__((unused));
enum gw_band *band_type __attribute__((unused));
enum gw_link_flag *flag_type __attribute__((unused));
enum gw_class *class_type __attribute__((unused));
enum gw_most *most_type __attribute__((unused));
enum gw_dscp *dscp_type __attribute__((unused));
enum gw_treatment *treatment_type __attribute__((unused));
enum gw_forwarded_number *forwarded_type __attribute__((unused));

static __always_inline int admit_without_deadline(struct __sk_buff *skb, const struct gw_link_config *config,
						  struct packet *p, __u32 treatment)
{
	enum gw_class class = class_of(treatment);
	enum gw_band band = band_of(class);
	struct promise none = {};

	if (class == GW_UNCLASSED) {
		class = GW_CLASS_STANDARD;
		band = is_admitted_call(skb, config, p) ? GW_STREAM : GW_BEST_EFFORT;
	}
	if (redirect_to_limit(skb, config, treatment))
		return TCX_NEXT;
	stamp(skb, config, band, &none, 0, 0);
	mark(skb, config, p, class);
	return TCX_NEXT;
}

/*
 * The non-static functions are verified once, not once per path that reaches them: verifying this program takes most of
 * the daemon's start. To the verifier, their arguments may be NULL.
 */

/* The decision for the first fragment applies to the later ones, and a promise as far as it goes. */
__noinline int admit_later_fragment(struct __sk_buff *skb, struct gw_link_config *config, struct packet *p)
{
	__u64 now_ns = bpf_ktime_get_ns(), work_ns = 0;
	struct promise promise = {};
	struct verdict *verdict;

	if (!config || !p)
		return TCX_NEXT;
	verdict = verdict_of(config, p, now_ns);
	if (verdict && verdict->refused)
		return TCX_DROP;
	if (verdict && verdict->treatment)
		return admit_without_deadline(skb, config, p, verdict->treatment);
	if (verdict)
		work_ns = take_part(verdict, work_of(skb, config, skb->wire_len));
	if (!work_ns)
		return admit_without_deadline(skb, config, p, treatment_of(skb, p, configured_treatment(skb, config, p)));
	promise.deadline_ns = verdict->deadline_ns;
	promise.fifo_ns = verdict->fifo_ns;
	promise.fifo_packets = verdict->fifo_packets;
	/* A FIFO counts the whole datagram as gone with its last fragment. */
	if (config->backend == GW_BACKEND_FIFO && p->more_fragments)
		work_ns = 0;
	stamp(skb, config, GW_REALTIME, &promise, work_ns, now_ns);
	mark(skb, config, p, GW_CLASS_REALTIME);
	return TCX_NEXT;
}

static __always_inline int refuse(struct __sk_buff *skb, struct packet *p, const struct gw_rule *rule,
				  const struct promise *promise, struct gw_admission_counters *counters, __u64 now_ns)
{
	if (promise->refused < GW_QUEUE_EVENTS)
		__sync_fetch_and_add(&counters->refused[promise->refused], 1);
	read_ports(skb, p);
	report_refusal(skb, p, promise, counters, now_ns);
	signal_sender(rule);
	return TCX_DROP;
}

/* Asks for a promise. Without GW_ADMIT, a backend of ours or a known rate, the deadline only orders the packet. */
__noinline int admit_with_deadline(struct __sk_buff *skb, struct gw_link_config *config, struct packet *p, __u64 deadline_ns)
{
	struct promise promise = { .deadline_ns = deadline_ns };
	struct gw_admission_counters *counters;
	__u64 now_ns = bpf_ktime_get_ns();
	__u32 expired = 0;

	if (!config || !p)
		return TCX_NEXT;
	if (config->flags & GW_ADMIT && config->backend != GW_BACKEND_NONE && config->rate_bytes_per_s) {
		struct user *user = user_at(config->number, uid_of(skb));

		measure(skb, config, p, &promise);
		if (promise.work_ns > ~0u)
			promise.refused = GW_REFUSED_OWN;
		else
			expired = decide(&promise, user, config->number, now_ns);
		if (p->more_fragments)
			remember(config, p, &promise, now_ns);
	}
	counters = counters_at(config->number);
	if (!counters)
		return TCX_NEXT;
	if (expired)
		__sync_fetch_and_add(&counters->expired, expired);
	if (promise.refused)
		return refuse(skb, p, find_rule(config, p), &promise, counters, now_ns);
	if (promise.own_ns)
		__sync_fetch_and_add(&counters->admitted, 1);
	if (config->backend == GW_BACKEND_FIFO && p->more_fragments)
		promise.own_ns = 0;
	stamp(skb, config, GW_REALTIME, &promise, promise.own_ns, now_ns);
	mark(skb, config, p, GW_CLASS_REALTIME);
	return TCX_NEXT;
}

/* No rule, socket entry or mark can match: the checks below would all say no. */
static __always_inline bool is_plain(struct __sk_buff *skb, const struct gw_link_config *config, const struct packet *p,
				     __u64 of_socket_ns)
{
	return !(config->rules | config->background_flows | config->packet_rules | config->treated_sockets |
		 (config->flags & (GW_INHERIT | GW_FORWARDED)) | p->dscp) &&
	       !of_socket_ns && !p->has_option && !p->more_fragments && !has_background_mark(skb, p) &&
	       !(has_new_sockets && treatment_of_new(skb)) && !treatment_of_raw(skb) && !limit_of_sender(skb, config, p);
}

/*
 * Applies rules and socket entries. `to_promise_ns` is the socket's deadline on entry; on return, the deadline that is
 * still to be promised, or 0 if the packet is decided.
 */
__noinline int admit_by_rules(struct __sk_buff *skb, struct gw_link_config *config, struct packet *p, __u64 *to_promise_ns)
{
	struct gw_admission_counters *counters;
	struct promise none = {};
	__u32 configured = 0, treatment;
	__u64 deadline_ns;
	bool granted;

	if (!config || !p || !to_promise_ns)
		return TCX_NEXT;
	if (config->rules || config->background_flows || config->packet_rules)
		read_ports(skb, p);
	deadline_ns = find_deadline(skb, config, p, find_rule(config, p), *to_promise_ns, &granted);
	*to_promise_ns = 0;
	/*
	 * A deadline that anybody may ask for lifts no rate limit. Limits and order of downloads hold whatever is sent.
	 */
	if (!deadline_ns || config->flags & (GW_LIMITED | GW_ORDERS_DOWNLOADS) || has_new_sockets)
		configured = configured_treatment(skb, config, p);
	if (limit_of(configured) && !granted)
		deadline_ns = 0;
	/*
	 * Without a promise, the realtime band is for flows that the configuration names; the others share best effort.
	 */
	if (deadline_ns && !granted && (!config->rate_bytes_per_s || config->flags & GW_ONLY_NAMED)) {
		counters = counters_at(config->number);
		if (counters)
			__sync_fetch_and_add(&counters->only_ordered, 1);
		none.deadline_ns = deadline_ns;
		stamp(skb, config, GW_BEST_EFFORT, &none, 0, 0);
		mark(skb, config, p, GW_CLASS_STANDARD);
		return TCX_NEXT;
	}
	*to_promise_ns = deadline_ns;
	if (deadline_ns)
		return TCX_NEXT;
	treatment = treatment_of(skb, p, configured);
	if (p->more_fragments && configured)
		remember_treatment(config, p, treatment, bpf_ktime_get_ns());
	return admit_without_deadline(skb, config, p, treatment);
}

/* Local traffic, unless it goes to its limit first. */
__noinline int admit_local(struct __sk_buff *skb, struct gw_link_config *config, struct packet *p, bool is_back)
{
	enum gw_class class;
	bool granted, is_admitted_call;
	__u64 deadline_ns;
	__u32 treatment;

	if (!config || !p)
		return TCX_NEXT;
	read_ports(skb, p);
	treatment = is_back ? class_of_returned(skb) : treatment_of(skb, p, configured_treatment(skb, config, p));
	if (redirect_to_limit(skb, config, treatment))
		return TCX_NEXT;
	class = class_of(treatment);
	deadline_ns = find_deadline(skb, config, p, find_rule(config, p), socket_deadline(skb), &granted);
	/* Nothing bounds requested priority here, so only the configuration's deadlines count. */
	if (!granted)
		deadline_ns = 0;
	is_admitted_call = deadline_ns || class == GW_CLASS_STREAM || class == GW_CLASS_REALTIME;
	skb->cb[0] = STAMP_MAGIC | STAMP_LOCAL | (deadline_ns ? GW_REALTIME : band_of(class));
	skb->priority = config->class_of_local[!is_admitted_call];
	mark(skb, config, p, deadline_ns ? GW_CLASS_REALTIME : class == GW_UNCLASSED ? GW_CLASS_STANDARD : class);
	return TCX_NEXT;
}

SEC("tcx/egress")
int gw_admit(struct __sk_buff *skb)
{
	struct gw_link_config *config = config_of(skb->ifindex);
	struct promise none = {};
	struct packet p = {};
	__u64 deadline_ns = 0;
	bool is_back;
	int verdict;

	is_back = take_back(skb);
	skb->cb[0] = 0;
	if (!config)
		return TCX_NEXT;
	if (!read_packet(skb, &p)) {
		stamp(skb, config, skb->priority == 1 ? GW_BACKGROUND : GW_BEST_EFFORT, &none, 0, 0);
		return TCX_NEXT;
	}
	if (config->class_of_local[0] && is_local(config, &p))
		return admit_local(skb, config, &p, is_back);
	if (is_back)
		return admit_without_deadline(skb, config, &p, class_of_returned(skb));
	if (p.fragment_at)
		return admit_later_fragment(skb, config, &p);
	if (p.more_fragments)
		forget(config, &p);
	deadline_ns = socket_deadline(skb);
	if (is_plain(skb, config, &p, deadline_ns)) {
		stamp(skb, config, GW_BEST_EFFORT, &none, 0, 0);
		mark(skb, config, &p, GW_CLASS_STANDARD);
		return TCX_NEXT;
	}
	verdict = admit_by_rules(skb, config, &p, &deadline_ns);
	/* Called from here, since the stacks of nested calls add up to at most 512 bytes. */
	return deadline_ns ? admit_with_deadline(skb, config, &p, deadline_ns) : verdict;
}

/* A packet leaves htb: it and everything promised before it are gone, even if a packet was lost on the way. */
SEC("tp_btf/qdisc_dequeue")
int BPF_PROG(gw_leave, struct Qdisc *qdisc, const struct netdev_queue *queue, int packets, struct sk_buff *skb)
{
	const struct net_device *device = qdisc->dev_queue->dev;
	const struct qdisc_skb_cb *cb;
	struct gw_link_config *config;
	struct gw_link *link;
	const __u32 *word;
	int n;

	if (device->nd_net.net->ns.inum != netns_inum)
		return 0;
	config = config_of(device->ifindex);
	link = config ? link_at(config->number) : NULL;
	if (!link || config->backend != GW_BACKEND_FIFO)
		return 0;
	if (!skb && !qdisc->q.qlen) {
		link->fifo.gone_ns = link->fifo.promised_ns;
		link->fifo.gone = link->fifo.promised;
	}
	/* A device that takes several packets at once gets a list. */
	bpf_for(n, 0, 64) {
		if (!skb)
			break;
		cb = (const struct qdisc_skb_cb *)skb->cb;
		word = (const __u32 *)cb->data;
		if (word[0] == (STAMP_MAGIC | GW_REALTIME) && word[3]) {
			link->fifo.gone_ns = (__u64)word[2] << 32 | word[1];
			link->fifo.gone = word[4];
		}
		skb = skb->next;
	}
	return 0;
}

/* Who renices tasks. */
const volatile enum gw_nice_makers nice_makers;

/* By the user, not by giveway. Older kernels do not show this program which tasks giveway has reniced. */
static __always_inline bool is_nice(struct task_struct *task)
{
	if (task->static_prio != NICE_19_PRIO || nice_makers == GW_NICE_BY_ANYBODY)
		return false;
	return nice_makers == GW_NICE_BY_USERS || !(niceness_by_us(task) & GW_NICE);
}

/* A task at nice 19 sends in the background. */
SEC("cgroup/sock_create")
int gw_flag_nice(struct bpf_sock *ctx)
{
	struct sock *sk = bpf_core_cast(bpf_cast_to_kern_ctx(ctx), struct sock);
	struct task_struct *task = bpf_get_current_task_btf();
	__u8 yes = 1;

	if (is_nice(task) && in_our_netns(sk) &&
	    bpf_sk_storage_get(&nice_sockets, ctx, &yes, BPF_SK_STORAGE_GET_F_CREATE))
		has_nice_sockets = true;
	return 1;
}

static __always_inline int connects(struct bpf_sock_addr *ctx)
{
	struct bpf_sock_addr_kern *kernel = bpf_core_cast(bpf_cast_to_kern_ctx(ctx), struct bpf_sock_addr_kern);

	if (ctx->sk && in_our_netns(kernel->sk))
		treat_new(ctx->sk);
	return 1;
}

SEC("cgroup/connect4")
int gw_connect_v4(struct bpf_sock_addr *ctx)
{
	return connects(ctx);
}

SEC("cgroup/connect6")
int gw_connect_v6(struct bpf_sock_addr *ctx)
{
	return connects(ctx);
}

/* Its route is known, and its SYN not yet sent. */
SEC("sockops")
int gw_shorten(struct bpf_sock_ops *ops)
{
	struct bpf_sock *bpf_sk = ops->sk;
	struct gw_link_config *config;
	struct new_socket *new;
	struct net_device *device;
	bool is_background;
	struct sock *sk;

	if (ops->op != BPF_SOCK_OPS_TCP_CONNECT_CB || !bpf_sk)
		return 1;
	sk = (struct sock *)bpf_skc_to_tcp_sock(bpf_sk);
	if (!sk || !in_our_netns(sk))
		return 1;
	device = egress_device(sk);
	config = device ? config_of(device->ifindex) : NULL;
	if (!config || !config->short_mss)
		return 1;
	new = bpf_sk_storage_get(&new_sockets, bpf_sk, NULL, 0);
	is_background = new ? class_of(new->treatment) == GW_CLASS_BACKGROUND :
				is_nice(bpf_get_current_task_btf()) || sk->sk_priority == 1;
	if (is_background)
		shorten(ops, sk, config->short_mss);
	return 1;
}
