/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What admission (admission.bpf.c), the qdisc (qdisc.bpf.c) and the daemon share about the managed links.
 * Times are CLOCK_MONOTONIC in nanoseconds unless the name says otherwise. Native-endian, without holes.
 */
#ifndef GIVEWAY_QUEUEING_H
#define GIVEWAY_QUEUEING_H

#include "giveway.h"

/*
 * How many of each there may be at a time. The daemon takes what it needs from here, by the type's name, and is not compiled where
 * the engine counts on another number; so with the other enumerations of numbers, here and in detour.h.
 */
enum gw_most {
	GW_LINKS = 8, /* that are managed; each has a number below it */
	GW_LOCAL_NETWORKS = 1024,
	GW_DEADLINE_RULES = 1024, /* as many as the configuration may have, and so the next */
	GW_BACKGROUND_FLOWS = 1024,
	GW_PACKET_RULES = 64,
	GW_TREATED_SOCKETS = 16 * 1024,
	GW_TREATED_PROCESSES = 4096,
	GW_FORWARDED_CGROUPS = 1024,
	GW_LIMITS_OF_RULES = 1000,
	GW_LIMITS = 1961, /* of rules, and of commands behind them; number 0 stands for none */
	GW_PROMISES = 4096, /* packets of a link; its qdisc has room for more, so that it never drops one for lack of room */
};

/* In the order of service. */
enum gw_band {
	GW_REALTIME,    /* has a deadline: earliest first, admitted */
	GW_STREAM,      /* of the class stream: fair between flows, before best effort, to which it leaves a tenth */
	GW_BEST_EFFORT, /* everything else: fair between flows */
	GW_BACKGROUND,  /* served when nothing else waits and the CPU runs nothing more important */
	GW_BANDS,
};

/* What serves the packets below the tcx hook: the model that admission uses. */
enum gw_backend {
	GW_BACKEND_NONE, /* nothing of ours, or no known rate: packets are classified, deadlines promise nothing */
	GW_BACKEND_EDF,  /* the BPF qdisc */
	GW_BACKEND_FIFO, /* htb: a FIFO in each band */
};

enum gw_link_flag {
	GW_ADMIT = 1,     /* refuse what cannot be in time; without it deadlines only order the packets */
	GW_DROP_LATE = 2, /* at dequeue, drop what can no longer be in time */
	GW_CPU_GATE = 4,      /* hold background while this CPU runs something more important */
	GW_INHERIT = 16,  /* an answer has its request's deadline: chain.h */
	GW_CALLS = 32,    /* what is marked as a call goes first: admission/calls.h */
	GW_FORWARDED = 64, /* forwarded.bpf.c says of some packets whose they are */
	GW_LIMITED_PROCESSES = 256, /* of some processes there is a limit */
	GW_LIMITED = 512, /* of some flows, sockets or processes there is a limit */
	GW_DETOUR = 1024, /* what is limited goes by an intermediate device: upload.bpf.c */
	GW_ORDERS_DOWNLOADS = 2048, /* bulk and background that arrive yield: download.bpf.c */
	GW_SPARES_LOCAL = 4096, /* what stays in the own subnets is no part of that */
	GW_ONLY_NAMED = 128, /* the rate promises nothing yet: the strict band is for whom the configuration names */
};

/* What a flow is for; the daemon's classes in their order. */
enum gw_class {
	GW_UNCLASSED, /* nothing is said of it */
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

/* What packets of a class are marked with. */
struct gw_class_mark {
	__u8 dscp;          /* GW_WRITE_DSCP | DSCP; 0: its own stays */
	__u8 user_priority; /* for Wi-Fi, in skb->priority; 0: that stays */
};

/* Of one link. Written by the daemon, as a whole; read for every packet. */
struct gw_link_config {
	__u64 rate_bytes_per_s;       /* 0: not known, nothing is paced or promised */
	__u64 background_min_bytes_per_s;    /* the least that background gets, even while it should wait; 0: nothing */
	__u32 ifindex;                /* 0: no link has this number */
	enum gw_backend backend;
	__u32 flags;                  /* enum gw_link_flag */
	__u32 overhead_bytes;         /* what a packet takes on the link beyond its own length */
	__u32 max_packet_bytes;       /* of a full-size packet with its link header: what may be in the way */
	__u32 driver_bytes;           /* at most this much, or one packet, is handed to the driver ahead of the link */
	__u32 realtime_percent;       /* of the rate, for packets with deadlines: 1 to 100 */
	__u32 guard_us;               /* kept free before each deadline, for delays between admission and enqueue */
	__u32 path_budget_us;         /* taken from each deadline for what comes after the link; a rule's own wins */
	__u32 below_us;               /* taken as well, for a queue after the link that was measured */
	__u32 codel_target_us;        /* RFC 8289; 0: no sojourn bound */
	__u32 codel_interval_us;
	__u32 rules;                  /* how many entries deadline_rules has */
	__u32 background_flows;       /* how many entries background_flows has */
	__u32 class_of_band[4]; /* htb: skb->priority by band, as MAJOR << 16 | MINOR; 0 leaves it */
	__u32 user_percent;           /* of what is promised, for each user, while there are several; 0: equal shares */
	__u32 packet_rules;           /* how many of packet_rules count */
	__u32 rules_of;               /* another number whenever these have changed */
	__u32 treated_sockets;        /* how many entries treated_sockets has */
	__u32 short_mss;              /* of background that connects, TCP_MAXSEG; 0: as it is */
	__u32 number;                 /* of this link */
	__u32 class_of_local[2];      /* htb: of traffic to the own subnets, with a granted deadline or as a stream, and else; 0: the link's */
	struct gw_class_mark mark_of_class[8]; /* by enum gw_class */
};

/* A subnet of a link's own, as an LPM trie has it; IPv4 addresses are in the first four bytes. */
struct gw_local_network {
	__u32 prefix_bits; /* these of the address, and all of `link` */
	__u32 link;        /* its number, twice, plus 1 for IPv6 */
	__u8 address[16];
};

/* What is said of a process, for what it connects. */
struct gw_treated_process {
	__u64 start_ns; /* CLOCK_BOOTTIME, in whole 10 ms; its number may be another's by now */
	__u32 treatment;
	__u32 reserved;
};

/* What is said of a socket, and in which queue of ours a packet of it was last. */
struct gw_treated_socket {
	__u64 queued_ns; /* CLOCK_MONOTONIC, coarse; 0: in none */
	__u32 queued_on; /* the link's ifindex */
	__u32 treatment;
};

/*
 * What is said of a flow, a number: its class (enum gw_class), above it the number of the limit for what it sends, and
 * above that of the one for what it receives; 0 for none. The daemon says it of sockets: ports and addresses may be several
 * users' at a time. A rule that needs nothing but the packet counts for everything that the daemon has not told of: UDP, what
 * is forwarded, a connection's first packets.
 */
enum gw_treatment {
	GW_LIMIT_SHIFT = 4,
	GW_DOWNLOAD_SHIFT = 18,
	GW_CLASS_MASK = (1 << GW_LIMIT_SHIFT) - 1,
	GW_LIMIT_MASK = 0x3fff,
};

/*
 * The same of a cgroup whose packets are forwarded. They carry its number in skb->tc_index, from GW_FIRST_FORWARDED on: gred, the
 * only qdisc that writes there, has the numbers below.
 */
enum gw_forwarded_number {
	GW_FIRST_FORWARDED = 16,
};

struct gw_forwarded {
	__u64 seen_ns; /* CLOCK_MONOTONIC, within a second */
	__u32 number;  /* 0: nothing is said of it */
	__u32 device;  /* by which it has sent: its interface here */
};

struct gw_forwarded_treatment {
	__u32 treatment;
	__u32 rules; /* so many packet rules come before, of which each packet may match one */
};

struct gw_packet_rule {
	__u8 remote[16];   /* those bits that count; the others are 0 */
	__u8 mask[16];
	__u32 family;      /* of the address; 0: any packet */
	__u32 ifindex;     /* 0: any */
	__u16 remote_port; /* 0: any, and so below */
	__u16 local_port;
	__u8 protocol;
	__u8 dscp;         /* GW_ANY_DSCP: any */
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
	__u32 deadline_us;    /* from the send call on; 0: only the packet's own deadline */
	__u32 path_budget_us;
	__u32 has_path_budget;
	__u32 signal;         /* SIGURG for each refusal */
};

/* A background flow; local_port 0 for any. IPv4 addresses are in the first four bytes. Ports in host order. */
struct gw_background_key {
	__u8 remote[16];
	__u16 remote_port;
	__u16 local_port;
	__u32 family;
};

enum gw_queue_event_kind {
	GW_REFUSED_OWN = 1, /* it would itself be late */
	GW_REFUSED_OTHERS,  /* it would make an admitted packet late */
	GW_REFUSED_FULL,    /* the band holds as many as it can */
	GW_REFUSED_SHARE,   /* its user has had its share, and must leave time to others */
	GW_LATE,            /* admitted, and dropped at dequeue because it could no longer be in time */
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
	__u64 dropped_reset;   /* the link went down or the qdisc was removed */
	__u64 backlog_packets;
	__u64 backlog_bytes;
	__u64 tcp_sent_bytes;    /* of sent_bytes, what TCP sockets of this network namespace have sent */
	__u64 tcp_backlog_bytes; /* of backlog_bytes */
	__u64 cpu_gate_closed;     /* dequeues at which the band had to wait for the CPU */
	__u64 sojourn_max_ns;
	__u64 sojourn[GW_SOJOURN_STEPS];
};

struct gw_admission_counters {
	__u64 admitted;
	__u64 refused[GW_QUEUE_EVENTS]; /* by enum gw_queue_event_kind */
	__u64 expired;                  /* promises of packets that were lost before the link */
	__u64 events_lost;
	__u64 packets[GW_BANDS];        /* classified */
	__u64 only_ordered;             /* of best effort, with a deadline that nothing promises: no rate is known */
};

#endif
