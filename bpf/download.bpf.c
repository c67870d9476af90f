// SPDX-License-Identifier: GPL-2.0-only
/*
 * Redirects packets that arrive for sockets with a download limit to an ifb, whose queue holds each limit to its rate,
 * and back. Where a link orders downloads, all bulk and background is redirected as well, to two classes of that queue;
 * the rest passes, and its bytes are counted, so that bulk and background get the remainder.
 *
 *   gw_redirect   ingress of each managed link, only while there is such a limit, and of those that order downloads
 *   gw_return     egress of the ifb, before its queue: where the ifb is down, packets turn back
 *
 * For most packets only the local port is looked up (ports.h). In doubt, a packet passes unlimited, and nothing is
 * lost. Attach this last: programs before it see every packet; those after it, such as filters of clsact and nftables'
 * netdev chains, do not see a redirected packet.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "admission/local.h"
#include "admission/flow_table.h"
#include "redirect.h"
#include "ports.h"
#include "receiver.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT -1
#define IFF_UP 1
#define PACKET_HOST 0
#define FIRST_MULTICAST_V4 224
#define MULTICAST_V6 0xff
#define IPS_NAT 0x30 /* IPS_SRC_NAT | IPS_DST_NAT */
#define ENODEV 19
/* Classes after those of the limits: for each link that orders downloads, all of it, bulk, and background. */
#define GROUP_OF_ORDER(link, class) (GW_LIMITS + GROUPS_OF_A_LINK * (link) + 1 + ((class) == GW_CLASS_BACKGROUND))
/* With timestamps. */
#define TCP_HEADER_BYTES 32

/* Of the ifb. */
const volatile __u32 ifb_ifindex;
/* A limit has one queue, in which fq_codel separates the flows. */
const volatile bool is_fair;
/* The ifb was found down: nothing is redirected any more. The daemon handles it. */
bool is_closed;

/*
 * Of netfilter's conntrack (net/netfilter/nf_conntrack_bpf.c); where that is not loaded, nothing counts as translated.
 */
struct gw_ct_options {
	__s32 netns_id;
	__s32 error;
	__u8 protocol;
	__u8 dir;
	__u8 reserved[2];
};
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple_bytes,
					 struct gw_ct_options *options, __u32 options_bytes) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

static __noinline bool is_translated(struct __sk_buff *skb, const struct packet *p)
{
	struct gw_ct_options options = { .netns_id = -1, .protocol = IPPROTO_UDP };
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *ct;
	bool is_one;

	if (!bpf_ksym_exists(bpf_skb_ct_lookup) || !bpf_ksym_exists(bpf_ct_release))
		return false;
	ct = bpf_skb_ct_lookup(skb, &tuple, write_tuple(&tuple, p), &options, sizeof(options));
	if (!ct)
		return false;
	is_one = ct->status & IPS_NAT;
	bpf_ct_release(ct);
	return is_one;
}

/* Not to be forwarded: an unconnected socket may have the same port as the receiver of a forwarded packet. */
static __noinline bool is_for_this_machine(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_fib_lookup route = {
		.family = p->tuple.family,
		.ifindex = skb->ifindex,
		.l4_protocol = p->protocol,
	};
	long found;

	if (p->tuple.family == AF_INET) {
		__builtin_memcpy(&route.ipv4_src, p->tuple.remote, 4);
		__builtin_memcpy(&route.ipv4_dst, p->tuple.local, 4);
	} else {
		__builtin_memcpy(route.ipv6_src, p->tuple.remote, 16);
		__builtin_memcpy(route.ipv6_dst, p->tuple.local, 16);
	}
	found = bpf_fib_lookup(skb, &route, sizeof(route), 0);
	return found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/*
 * An unconnected socket's port also matches packets that are for other hosts, or about to be translated to another
 * address. Any user may have such a socket, with a limit of their own choice.
 */
static __always_inline bool is_its_own(struct __sk_buff *skb, const struct packet *p)
{
	__u8 first = p->tuple.local[0];
	bool is_for_many = p->tuple.family == AF_INET ? first >= FIRST_MULTICAST_V4 : first == MULTICAST_V6;

	return skb->pkt_type == PACKET_HOST && !is_for_many && is_for_this_machine(skb, p) && !is_translated(skb, p);
}

/* The treatment of the socket itself; 0: none. */
static __always_inline __u32 treatment_of_socket(struct bpf_sock *sk)
{
	struct sock_common *skc = bpf_core_cast(sk, struct sock_common);
	__u64 cookie = skc->skc_cookie.counter;
	struct gw_treated_socket *entry = bpf_map_lookup_elem(&treated_sockets, &cookie);
	struct new_socket *new;

	if (entry)
		return entry->treatment;
	new = bpf_sk_storage_get(&new_sockets, sk, NULL, 0);
	return new && bpf_ktime_get_coarse_ns() < new->until_ns ? new->treatment : 0;
}

static __always_inline bool orders(const struct gw_link_config *config)
{
	return config && config->flags & GW_ORDERS_DOWNLOADS;
}

/* The treatment of the packet's socket, where it matters here; 0: none, or no socket here. */
static __noinline __u32 treatment_of_receiver(struct __sk_buff *skb, const struct packet *p)
{
	struct gw_link_config *config = config_of(skb->ifindex);
	struct bpf_sock *sk = find_socket(skb, p, BPF_F_CURRENT_NETNS);
	bool is_listener, is_connected;
	__u32 treatment;

	if (!sk)
		return 0;
	is_listener = sk->state == TCP_LISTEN;
	is_connected = sk->dst_port;
	treatment = is_listener ? 0 : treatment_of_socket(sk);
	bpf_sk_release(sk);
	if (is_listener)
		return 0;
	if (!treatment && config && config->packet_rules)
		treatment = treatment_by_rules(config, p, config->packet_rules);
	if (!download_limit_of(treatment) && !(orders(config) && yields(treatment)))
		return 0;
	if (p->protocol == IPPROTO_UDP && !is_connected && !is_its_own(skb, p))
		return 0;
	return treatment;
}

/* The same; for most packets, at the cost of one lookup of the local port. */
static __always_inline __u32 treatment_of_arrival(struct __sk_buff *skb, struct packet *p)
{
	struct gw_ports *ports = all_ports();
	__u32 treatment;

	/* Only the first fragment has ports: the others would overtake it. */
	if (!ports || p->fragment_at || p->more_fragments)
		return 0;
	if (!p->tuple.local_port || !has_port(ports, p->tuple.local_port))
		return 0;
	treatment = treatment_of_receiver(skb, p);
	if (treatment)
		add_port(ports, p->tuple.local_port);
	return treatment;
}

/* Bytes that arrived by a link that orders downloads, with headers. */
struct gw_arrived {
	__u64 passed;
	__u64 ordered; /* bulk and background */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, GW_LINKS);
	__type(key, __u32);
	__type(value, struct gw_arrived);
} arrived SEC(".maps");

/* Puts the shared types into the skeleton. */
enum gw_redirect *redirect_type __attribute__((unused));
enum gw_ports_size *size_type __attribute__((unused));
struct gw_arrived *arrived_type __attribute__((unused));

static __always_inline void count(__u32 link, __u32 bytes, bool is_ordered)
{
	struct gw_arrived *counted = bpf_map_lookup_elem(&arrived, &link);

	if (counted && is_ordered)
		counted->ordered += bytes;
	else if (counted)
		counted->passed += bytes;
}

/* Bytes on the wire: each part of an aggregated packet had a header. */
static __always_inline __u32 bytes_on_link(struct __sk_buff *skb, const struct packet *p)
{
	__u32 more = skb->gso_segs > 1 ? skb->gso_segs - 1 : 0;

	return skb->len + more * (ETH_HEADER_BYTES + p->transport_at + TCP_HEADER_BYTES);
}

/* `group` of classes, of which the flow has one: a limit's, or one of ordered downloads. */
static __always_inline int redirect(struct __sk_buff *skb, const struct packet *p, __u32 group)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	__u32 mtu = 0;

	/* A redirect to a device that is gone would drop the packet. */
	if (bpf_check_mtu(skb, ifb_ifindex, &mtu, 0, 0) == -ENODEV)
		return TCX_NEXT;
	/* The ifb is an Ethernet device. */
	if (kernel_skb->network_header == kernel_skb->mac_header && bpf_skb_change_head(skb, ETH_HEADER_BYTES, 0))
		return TCX_NEXT;
	skb->priority = class_of_limit(group, is_fair ? 0 : hash_of(p));
	/* Its class is not chosen again there (upload.bpf.c). */
	skb->cb[0] = 0;
	return bpf_redirect(ifb_ifindex, 0);
}

/* Counts it, limited or not; traffic in the own subnets is subject to limits only. */
static __always_inline int redirect_ordered(struct __sk_buff *skb, const struct gw_link_config *config, const struct packet *p,
					   __u32 treatment)
{
	__u32 bytes = bytes_on_link(skb, p), limit = download_limit_of(treatment), link = config->number;
	bool is_apart = config->flags & GW_SPARES_LOCAL && is_in_own_subnet(config, p);
	bool is_ordered = !is_apart && !limit && yields(treatment);
	__u32 group = is_ordered ? GROUP_OF_ORDER(link, class_of(treatment)) : limit;
	int verdict = group ? redirect(skb, p, group) : TCX_NEXT;

	if (!is_apart)
		count(link, bytes, is_ordered && verdict != TCX_NEXT);
	return verdict;
}

SEC("tcx/ingress")
int gw_redirect(struct __sk_buff *skb)
{
	struct gw_link_config *config = config_of(skb->ifindex);
	struct packet p = {};
	__u32 treatment = 0;

	if (is_closed)
		return TCX_NEXT;
	if (read_packet(skb, &p)) {
		read_ports(skb, &p);
		swap_ends(&p);
		treatment = treatment_of_arrival(skb, &p);
	}
	if (orders(config))
		return redirect_ordered(skb, config, &p, treatment);
	return treatment ? redirect(skb, &p, download_limit_of(treatment)) : TCX_NEXT;
}

SEC("tcx/egress")
int gw_return(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = kernel_skb_of(skb);

	if (kernel_skb->dev->flags & IFF_UP)
		return TCX_NEXT;
	is_closed = true;
	return bpf_redirect(skb->ingress_ifindex, BPF_F_INGRESS);
}
