/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What admission (admission.bpf.c), the qdisc (qdisc.bpf.c) and the daemon share about the managed links.
 * Times are CLOCK_MONOTONIC in nanoseconds unless the name says otherwise. Native-endian, without holes.
 */
#ifndef GIVEWAY_QUEUEING_H
#define GIVEWAY_QUEUEING_H

#include "giveway.h"

/*
 * The greatest number of each. The daemon takes these from here, by the type's name, and fails to compile where the
 * engine assumes another number; the same holds for the other enumerations of numbers, here and in redirect.h.
 */
enum gw_most {
	GW_LINKS = 8, /* managed links, numbered from 0 */
	GW_LOCAL_NETWORKS = 1024,
	GW_DEADLINE_RULES = 1024, /* as many as the configuration may have; so is the next */
	GW_BACKGROUND_FLOWS = 1024,
	GW_PACKET_RULES = 64,
	GW_TREATED_SOCKETS = 16 * 1024,
	GW_TREATED_PROCESSES = 4096,
	GW_FORWARDED_CGROUPS = 1024,
	GW_LIMITS_OF_RULES = 1000,
	GW_LIMITS = 1961,   /* of rules, and of commands after them; number 0 stands for none */
	GW_PROMISES = 4096, /* packets of a link; its qdisc holds more, so that it never drops one for lack of room */
};

/* In the order of service. */
enum gw_band {
	GW_REALTIME,    /* has a deadline: earliest first, admitted */
	GW_STREAM,      /* of the class stream: fair between flows, before best effort, to which it leaves a tenth */
	GW_BEST_EFFORT, /* everything else: fair between flows */
	GW_BACKGROUND,  /* served when no other band has a backlog and the CPU runs nothing more important */
	GW_BANDS,
};

/* What serves the packets below the tcx hook: the model that admission uses. */
enum gw_backend {
	GW_BACKEND_NONE, /* none of ours, or no known rate: packets are classified, deadlines are not promised */
	GW_BACKEND_EDF,  /* the BPF qdisc */
	GW_BACKEND_FIFO, /* htb: a FIFO in each band */
};

enum gw_link_flag {
	GW_ADMIT = 1, /* refuse a deadline that cannot be kept; without it deadlines only order the packets */
	GW_DROP_LATE = 2, /* at dequeue, drop a packet that is too late */
	GW_CPU_GATE = 4, /* hold background while this CPU runs something more important */
	GW_INHERIT = 16, /* an answer has its request's deadline: chain.h */
	GW_CALLS = 32, /* packets whose DSCP marks a call go first: admission/calls.h */
	GW_FORWARDED = 64, /* forwarded.bpf.c writes the cgroup on some packets */
	GW_LIMITED_PROCESSES = 256, /* some process has a rate limit */
	GW_LIMITED = 512, /* some flow, socket or process has a rate limit */
	GW_REDIRECT = 1024, /* packets with a limit are redirected to an ifb: upload.bpf.c */
	GW_ORDERS_DOWNLOADS = 2048, /* arriving bulk and background yields: download.bpf.c */
	GW_SPARES_LOCAL = 4096, /* except traffic within the own subnets */
	/* the rate allows no promise yet: the realtime band is for flows that the configuration names */
	GW_ONLY_NAMED = 128,
};

/* The class of a flow; the daemon's classes in their order. */
enum gw_class {
	GW_UNCLASSED, /* none */
	GW_CLASS_REALTIME,
	GW_CLASS_STREAM,
	GW_CLASS_STANDARD,
	GW_CLASS_BULK,
	GW_CLASS_BACKGROUND,
	GW_CLASSES,
};

enum gw_dscp {
	GW_WRITE_DSCP = 0x80, /* in gw_class_mark */
	GW_ANY_DSCP = 0xff,   /* in gw_packet_rule */
};
/* Of skb->priority: user priority 0 of 802.1D, as mac80211 takes it. */
#define GW_USER_PRIORITIES 256

/* The marks of packets of a class. */
struct gw_class_mark {
	__u8 dscp;          /* GW_WRITE_DSCP | DSCP; 0: unchanged */
	__u8 user_priority; /* for Wi-Fi, in skb->priority; 0: unchanged */
};

/* Of one link. Written by the daemon, as a whole; read for every packet. */
struct gw_link_config {
	__u64 rate_bytes_per_s;           /* 0: unknown; nothing is paced or promised */
	__u64 background_min_bytes_per_s; /* background's minimum rate, even while it should wait; 0: none */
	__u32 ifindex;                    /* 0: no link has this number */
	enum gw_backend backend;
	__u32 flags;            /* enum gw_link_flag */
	__u32 overhead_bytes;   /* per packet on the link, beyond its own length */
	__u32 max_packet_bytes; /* a full-size packet with its link header: what may block the link */
	__u32 driver_bytes;     /* limit of the driver's backlog; at least one packet is handed over */
	__u32 realtime_percent; /* share of the rate for packets with deadlines: 1 to 100 */
	__u32 guard_us;         /* kept free before each deadline, for delays between admission and enqueue */
	__u32 path_budget_us;   /* subtracted from each deadline for the path after the link; a rule's own wins */
	__u32 below_us;         /* subtracted as well, for a measured queue after the link */
	__u32 codel_target_us;  /* RFC 8289; 0: no sojourn bound */
	__u32 codel_interval_us;
	__u32 rules;            /* entries in deadline_rules */
	__u32 background_flows; /* entries in background_flows */
	__u32 class_of_band[4]; /* htb: skb->priority by band, as MAJOR << 16 | MINOR; 0: unchanged */
	__u32 user_percent;     /* of promises, for each user, while there are several; 0: equal shares */
	__u32 packet_rules;     /* entries in packet_rules */
	__u32 rules_of;         /* changes whenever these change */
	__u32 treated_sockets;  /* entries in treated_sockets */
	__u32 short_mss;        /* TCP_MAXSEG of background connections; 0: unchanged */
	__u32 number;           /* of this link */
	/* htb: for the own subnets, [0] with a granted deadline or as a stream, [1] else; 0: the link's */
	__u32 class_of_local[2];
	struct gw_class_mark mark_of_class[8]; /* by enum gw_class */
};

/* One of a link's own subnets, as the key of an LPM trie; IPv4 addresses are in the first four bytes. */
struct gw_local_network {
	__u32 prefix_bits; /* of the address, plus all of `link` */
	__u32 link;        /* twice its number, plus 1 for IPv6 */
	__u8 address[16];
};

/* The treatment of a process, for sockets that it connects. */
struct gw_treated_process {
	__u64 start_ns; /* CLOCK_BOOTTIME, in whole 10 ms; process ids are reused */
	__u32 treatment;
	__u32 reserved;
};

/* The treatment of a socket, and the link that queued a packet of it last. */
struct gw_treated_socket {
	__u64 queued_ns; /* CLOCK_MONOTONIC, coarse; 0: never */
	__u32 queued_on; /* the link's ifindex */
	__u32 treatment;
};

/*
 * The treatment of a flow, one number: its class (enum gw_class), above it the number of its upload limit, and above
 * that the number of its download limit; 0 for none. The daemon sets it per socket, since several users may share ports
 * and addresses. A rule that needs only the packet applies to everything without an entry: UDP, forwarded traffic, a
 * connection's first packets.
 */
enum gw_treatment {
	GW_LIMIT_SHIFT = 4,
	GW_DOWNLOAD_SHIFT = 18,
	GW_CLASS_MASK = (1 << GW_LIMIT_SHIFT) - 1,
	GW_LIMIT_MASK = 0x3fff,
};

/*
 * The same for a cgroup whose packets are forwarded. They carry its number in skb->tc_index, from GW_FIRST_FORWARDED
 * on: gred, the only qdisc that writes there, uses the numbers below.
 */
enum gw_forwarded_number {
	GW_FIRST_FORWARDED = 16,
};

struct gw_forwarded {
	__u64 seen_ns; /* CLOCK_MONOTONIC, to within a second */
	__u32 number;  /* 0: no treatment */
	__u32 device;  /* that it sends by: ifindex in this namespace */
};

struct gw_forwarded_treatment {
	__u32 treatment;
	__u32 rules; /* number of packet rules that precede it, one of which may match a packet */
};

struct gw_packet_rule {
	__u8 remote[16]; /* the bits that count; the others are 0 */
	__u8 mask[16];
	__u32 family;      /* of the address; 0: any packet */
	__u32 ifindex;     /* 0: any */
	__u16 remote_port; /* 0: any; the same below */
	__u16 local_port;
	__u8 protocol;
	__u8 dscp; /* GW_ANY_DSCP: any */
	__u16 reserved;
	__u32 treatment;
};

/* Deadlines of unmodified programs, by protocol and remote port. */
struct gw_rule_key {
	__u16 remote_port; /* host order */
	__u8 protocol;
	__u8 reserved;
};

struct gw_rule {
	__u32 deadline_us; /* from the send call; 0: only the packet's own deadline */
	__u32 path_budget_us;
	__u32 has_path_budget;
	__u32 signal; /* SIGURG for each refusal */
};

/* A background flow; local_port 0 for any. IPv4 addresses are in the first four bytes. Ports in host order. */
struct gw_background_key {
	__u8 remote[16];
	__u16 remote_port;
	__u16 local_port;
	__u32 family;
};

enum gw_queue_event_kind {
	GW_REFUSED_OWN = 1, /* its own deadline cannot be kept */
	GW_REFUSED_OTHERS,  /* an admitted packet would be late */
	GW_REFUSED_FULL,    /* the band is full */
	GW_REFUSED_SHARE,   /* its user has had its share, and must leave time to others */
	GW_LATE,            /* admitted, and dropped at dequeue as too late */
	GW_QUEUE_EVENTS,
};

/* A packet with a deadline that is not sent. */
struct gw_queue_event {
	__u64 t_ns;
	__u64 deadline_ns; /* by which its last bit should have left the link */
	__u64 work_ns;     /* its time on the link at the real-time share */
	__u64 cookie;      /* of its socket; 0: none */
	enum gw_queue_event_kind kind;
	__u32 protocol;
	struct gw_tuple tuple; /* zero for GW_LATE */
	__u32 ifindex;         /* of the link that it would have left by */
};

/* Logarithmic: eight steps to an octave from 1 us. */
#define GW_SOJOURN_STEPS 256

/* Of one band of one link. */
struct gw_band_counters {
	__u64 queued_packets;
	__u64 queued_bytes;
	__u64 sent_packets;
	__u64 sent_bytes;
	__u64 dropped_full;
	__u64 dropped_sojourn; /* by CoDel */
	__u64 dropped_late;
	__u64 dropped_reset; /* link down or qdisc removed */
	__u64 backlog_packets;
	__u64 backlog_bytes;
	__u64 tcp_sent_bytes;    /* of sent_bytes, by TCP sockets of this network namespace */
	__u64 tcp_backlog_bytes; /* of backlog_bytes */
	__u64 cpu_gate_closed;   /* dequeues at which the band waited for the CPU */
	__u64 sojourn_max_ns;
	__u64 sojourn[GW_SOJOURN_STEPS];
};

struct gw_admission_counters {
	__u64 admitted;
	__u64 refused[GW_QUEUE_EVENTS]; /* by enum gw_queue_event_kind */
	__u64 expired;                  /* promises of packets that were lost before the link */
	__u64 events_lost;
	__u64 packets[GW_BANDS]; /* classified */
	__u64 only_ordered;      /* best effort with a deadline that cannot be promised: rate unknown */
};

#endif
