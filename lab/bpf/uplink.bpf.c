/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Measures a device behind a narrow uplink: how long its foreground packets wait in its queue, in its driver and for
 * the link, and whether for background packets; what the link carries; how long the processors are halted.
 *
 * In: the tracepoints before the device's queue and behind the link, and those at which a processor halts and wakes.
 * Out: counters, which the lab reads in place. Delays, drops and changes nothing.
 *
 * A halted processor is woken by an interrupt, whose work is busy time: the halt ends where the interrupt begins, not
 * where the idle loop continues.
 */
#include "kernel_types.h"
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "GPL";

#define MOST_CPUS 64
#define ETHERNET_BYTES 14
#define TCP_SYN 2
/* Timers are late, and a pacer catches up by handing a packet over early: an eighth of a full packet at 1 Mbit/s. */
#define CLOCK_SLACK_NS 1500000
#define LEFT_IDLE ((__u32)-1) /* PWR_EVENT_EXIT */

/* A packet between the stack and the link. */
struct packet {
	__be32 number; /* TCP's */
	__be32 acknowledged;
	__be16 port; /* local */
	__u16 is_first; /* some other flags move to the last segment where a packet is segmented */
};

/* Of one request, CLOCK_MONOTONIC; the lab zeroes it between two. */
struct waits {
	__u64 first_queued_ns;
	__u64 first_wait_ns;
	__u64 last_behind_ns; /* a packet left the link that had waited when a background packet began to be sent */
};

struct passed {
	__u64 packets;
	__u64 bytes; /* with their Ethernet headers */
};

const volatile __u32 device_netns;
const volatile __u32 link_netns;
const volatile int link_ifindex;     /* where packets come out of it */
const volatile __u64 link_delay_ns;  /* after their last bit was sent */
const volatile __u64 link_ns_per_byte;
const volatile __u16 foreground_port;
const volatile __u16 background_port;

struct waits waits;
struct passed foreground;
struct passed background;
__u64 background_began_ns; /* the first bit of the last one */
__u64 halted_ns[MOST_CPUS];
__u64 halted_since_ns[MOST_CPUS]; /* 0: running */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct packet);
	__type(value, __u64);
} queued_ns SEC(".maps");

/* Fills in the packet's identity and returns the remote TCP port; 0 for anything else. */
static __u16 identify(const struct sk_buff *skb, struct packet *packet)
{
	const unsigned char *ip = skb->data + ETHERNET_BYTES, *tcp;
	__u8 start[10], header[14];

	if (bpf_probe_read_kernel(start, sizeof(start), ip) || start[0] >> 4 != 4 || start[9] != IPPROTO_TCP)
		return 0;
	tcp = ip + (start[0] & 15) * 4;
	if (bpf_probe_read_kernel(header, sizeof(header), tcp))
		return 0;
	__builtin_memcpy(&packet->port, header, 2);
	__builtin_memcpy(&packet->number, header + 4, 4);
	__builtin_memcpy(&packet->acknowledged, header + 8, 4);
	packet->is_first = header[13] & TCP_SYN;
	return header[2] << 8 | header[3];
}

SEC("tp_btf/net_dev_queue")
int BPF_PROG(lab_note_queued, struct sk_buff *skb)
{
	struct packet packet = {};
	__u64 now;

	if (skb->dev->nd_net.net->ns.inum != device_netns || identify(skb, &packet) != foreground_port)
		return 0;
	now = bpf_ktime_get_ns();
	if (!waits.first_queued_ns)
		waits.first_queued_ns = now;
	/* A packet that crosses two devices begins to wait at the first. */
	bpf_map_update_elem(&queued_ns, &packet, &now, BPF_NOEXIST);
	return 0;
}

static void end_wait(const struct packet *packet, __u64 left_ns, __u64 sending_ns)
{
	const __u64 *since_ns = bpf_map_lookup_elem(&queued_ns, packet);

	if (!since_ns)
		return;
	if (*since_ns == waits.first_queued_ns)
		waits.first_wait_ns = left_ns - sending_ns - *since_ns;
	if (background_began_ns > *since_ns + CLOCK_SLACK_NS)
		waits.last_behind_ns = left_ns;
	bpf_map_delete_elem(&queued_ns, packet);
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(lab_note_carried, struct sk_buff *skb, struct net_device *dev)
{
	struct packet packet = {};
	struct passed *passed;
	__u64 left_ns, sending_ns;
	__u16 port;

	if (dev->ifindex != link_ifindex || dev->nd_net.net->ns.inum != link_netns)
		return 0;
	left_ns = bpf_ktime_get_ns() - link_delay_ns;
	sending_ns = skb->len * link_ns_per_byte;
	port = identify(skb, &packet);
	if (port == background_port)
		background_began_ns = left_ns - sending_ns;
	else if (port == foreground_port)
		end_wait(&packet, left_ns, sending_ns);
	passed = port == background_port ? &background : &foreground;
	passed->packets++;
	passed->bytes += skb->len;
	return 0;
}

static int wake(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if (cpu >= MOST_CPUS || !halted_since_ns[cpu])
		return 0;
	halted_ns[cpu] += bpf_ktime_get_ns() - halted_since_ns[cpu];
	halted_since_ns[cpu] = 0;
	return 0;
}

SEC("raw_tp/cpu_idle")
int lab_note_halt(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id();

	if ((__u32)ctx->args[0] == LEFT_IDLE)
		return wake();
	if (cpu < MOST_CPUS)
		halted_since_ns[cpu] = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/irq_handler_entry")
int lab_wake_for_device(void *ctx)
{
	return wake();
}

SEC("raw_tp/local_timer_entry")
int lab_wake_for_timer(void *ctx)
{
	return wake();
}

SEC("raw_tp/reschedule_entry")
int lab_wake_for_task(void *ctx)
{
	return wake();
}

SEC("raw_tp/call_function_single_entry")
int lab_wake_for_call(void *ctx)
{
	return wake();
}
