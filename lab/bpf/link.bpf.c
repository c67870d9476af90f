/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The lab's link: serial, at one rate, with its own clock. It takes each packet that the sender's device is handed and
 * records when its last bit is gone; nothing is delayed or dropped here. A packet handed over too early waits in the
 * link, as it would in a driver, and is counted as such.
 *
 * In: the two tracepoints around a device's queue, for one network namespace. Out: five timestamps for each packet with
 * a deadline, and sums for everything else by UDP port.
 *
 * The device must have a queue that hands over one packet at a time, as every qdisc does: then no two CPUs are in
 * lab_pass_link at once, and its clock needs no lock.
 */
#include "kernel_types.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

#define ETHERNET_BYTES 14
#define UDP_BYTES 8
#define PAYLOAD_MAGIC 0x67776c62

/* The beginning of a packet with a deadline. Native-endian, CLOCK_MONOTONIC. */
struct payload {
	__u32 magic;
	__u32 flow;
	__u32 number; /* from 0, within the flow */
	__u32 reserved;
	__u64 deadline_ns; /* when its last bit should have left the link */
	__u64 made_ns; /* just before sending */
};

struct stamps {
	struct payload payload; /* zero until queued */
	__u64 queued_ns;
	__u64 handed_ns; /* from the queue to the link */
	__u64 left_ns; /* last bit left the link; 0: never got there */
};

struct sums {
	__u64 packets;
	__u64 bytes; /* with Ethernet headers */
};

const volatile __u32 netns_inum;
const volatile __u64 rate_bytes_per_s = 1;
const volatile __u32 packets_of_flow = 1;
const volatile __u16 best_effort_port;
const volatile __u16 background_port;

struct payload example; /* exports the type to the lab */
__u64 busy_until_ns;
__u64 longest_wait_ns; /* of a packet in the link, behind earlier ones */
struct sums with_deadline;
struct sums best_effort;
struct sums background;
struct sums others;

/* One entry for each packet of each flow, at flow * packets_of_flow + number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stamps);
} stamps SEC(".maps");

static bool is_ours(const struct net_device *dev)
{
	return dev->nd_net.net->ns.inum == netns_inum && !(dev->flags & IFF_LOOPBACK);
}

/* The offset of the UDP payload, and its destination port; 0 for anything else. */
static __u32 find_payload(const struct sk_buff *skb, __u16 *port)
{
	const unsigned char *ip = skb->data + ETHERNET_BYTES;
	__u8 start[10];
	__be16 to;
	__u32 header;

	if (bpf_probe_read_kernel(start, sizeof(start), ip) || start[0] >> 4 != 4 || start[9] != IPPROTO_UDP)
		return 0;
	header = (start[0] & 15) * 4;
	if (bpf_probe_read_kernel(&to, sizeof(to), ip + header + 2))
		return 0;
	*port = bpf_ntohs(to);
	return ETHERNET_BYTES + header + UDP_BYTES;
}

static struct stamps *find_stamps(const struct sk_buff *skb, __u32 offset, struct payload *payload)
{
	__u32 key;

	if (!offset || offset + sizeof(*payload) > skb->len ||
	    bpf_probe_read_kernel(payload, sizeof(*payload), skb->data + offset) || payload->magic != PAYLOAD_MAGIC ||
	    payload->number >= packets_of_flow)
		return NULL;
	key = payload->flow * packets_of_flow + payload->number;
	return bpf_map_lookup_elem(&stamps, &key);
}

static void count(struct sums *sums, __u32 bytes)
{
	sums->packets++;
	sums->bytes += bytes;
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(lab_note_queued, struct sk_buff *skb)
{
	struct payload payload;
	struct stamps *stamp;
	__u16 port = 0;

	if (!is_ours(skb->dev))
		return 0;
	stamp = find_stamps(skb, find_payload(skb, &port), &payload);
	if (stamp) {
		stamp->payload = payload;
		stamp->queued_ns = bpf_ktime_get_ns();
	}
	return 0;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(lab_pass_link, struct sk_buff *skb, struct net_device *dev)
{
	__u64 now, begins;
	struct payload payload;
	struct stamps *stamp;
	__u16 port = 0;

	if (!is_ours(dev))
		return 0;
	now = bpf_ktime_get_ns();
	begins = busy_until_ns > now ? busy_until_ns : now;
	if (begins - now > longest_wait_ns)
		longest_wait_ns = begins - now;
	busy_until_ns = begins + skb->len * NSEC_PER_SEC / rate_bytes_per_s;
	stamp = find_stamps(skb, find_payload(skb, &port), &payload);
	if (stamp) {
		stamp->handed_ns = now;
		stamp->left_ns = busy_until_ns;
		count(&with_deadline, skb->len);
	} else if (port && port == best_effort_port) {
		count(&best_effort, skb->len);
	} else if (port && port == background_port) {
		count(&background, skb->len);
	} else {
		count(&others, skb->len);
	}
	return 0;
}
