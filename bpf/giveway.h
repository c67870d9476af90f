/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The structs that cross the border between the programs here and the daemon. Rust takes its types from the
 * skeletons generated out of this file, so a field exists once. Everything is native-endian and without holes.
 */
#ifndef GIVEWAY_H
#define GIVEWAY_H

#define GW_COMMAND_LEN 16 /* TASK_COMM_LEN */
#define GW_CA_NAME_LEN 16 /* TCP_CA_NAME_MAX */

enum gw_limit {
	/* A clamp or ssthresh from here on limits nothing. The kernel starts a socket with a clamp of ~0; setsockopt,
	 * which takes a positive int, can only put this one back. */
	GW_UNLIMITED = 0x7fffffff,
};

/* How many steps of RTT the table for new connections may have: half octaves up to 2^32 microseconds. */
#define GW_NEW_CAP_STEPS 64

/* IPv4 addresses stand in the first four bytes. Ports are in host order. */
struct gw_tuple {
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 scope_id; /* of link-local addresses, else 0 */
	__u32 family;
};

/* One socket at one moment: what a poll or a scan writes per socket. */
struct gw_flow {
	__u64 cookie;
	__u64 cgroup_id;
	__u64 start_ns; /* CLOCK_BOOTTIME, of the process `pid` */
	__u64 in_flight_bytes;
	__u64 pacing_rate_bytes_per_s; /* ~0: the socket does not pace */
	__u64 delivery_rate_bytes_per_s;
	__u64 acked_bytes; /* of payload, as the next one, since the connection began */
	__u64 received_bytes;
	__u32 unsent_bytes;
	__u32 unacked_bytes;
	__u32 ifindex; /* 0: no route chosen */
	__u32 cwnd;
	__u32 clamp;
	__u32 ssthresh;
	__u32 mss_bytes;
	__u32 srtt_us;
	__u32 min_rtt_us; /* ~0: no sample */
	__u32 rttvar_us;
	__u32 retransmits;
	__u32 delivered; /* segments, those acknowledged selectively included; wraps */
	__u32 latest_rtt_us; /* of the packet that was acknowledged last; 0: none */
	__u32 receiver_rtt_us; /* as the receiving end sees it, by timestamps that come back; 0: none */
	__u32 pid; /* 0: no process was seen to use the socket */
	__u32 state;
	__u32 ca_state;
	char command[GW_COMMAND_LEN];
	char congestion_control[GW_CA_NAME_LEN];
	struct gw_tuple tuple;
	__u32 uid; /* of the user that made the socket */
	__u32 priority; /* SO_PRIORITY */
	__u8 tos; /* IP_TOS: the DSCP and two bits of ECN */
	__u8 tclass; /* the same for IPv6 */
	__u16 protocol; /* of UDP, what TCP alone has is not known */
	__u32 reserved; /* the struct has no hole */
};

enum gw_event_kind {
	GW_EVENT_OPEN = 1,   /* the handshake is complete */
	GW_EVENT_STATE,      /* from, to: TCP states */
	GW_EVENT_CLOSE,      /* from: the state it was in */
	GW_EVENT_RETRANSMIT, /* count: segments since the last such event of this socket */
	GW_EVENT_CA_STATE,   /* from, to: congestion-avoidance states */
};

struct gw_event {
	__u64 t_ns; /* CLOCK_MONOTONIC */
	__u64 cookie;
	enum gw_event_kind kind;
	__u32 from;
	__u32 to;
	__u32 count;
	struct gw_tuple tuple;
	__u32 reserved;
};

enum gw_outcome_kind {
	GW_APPLIED = 1,
	GW_UNCHANGED, /* the clamp already was what is wanted */
	GW_DEFERRED,  /* the kernel is repairing a loss: ca_state says how */
	GW_FOREIGN,   /* somebody else's clamp is on the socket: left alone */
	GW_LOOPBACK,  /* leaves by a loopback interface: never capped */
	GW_FAILED,    /* error says why */
};

/* What became of one socket's cap. */
struct gw_outcome {
	__u64 cookie;
	__u32 old_clamp;
	__u32 wanted;
	enum gw_outcome_kind kind;
	__u32 ca_state;
	__s32 error;
	__u32 eased; /* would have restarted slow start, and was kept from it */
};

/* The name of a congestion control; empty: the one that was there before ours. */
struct gw_control {
	char name[GW_CA_NAME_LEN];
};

/* What became of one socket's congestion control. */
struct gw_control_outcome {
	__u64 cookie;
	enum gw_outcome_kind kind;
	__s32 error;
	char found[GW_CA_NAME_LEN]; /* before */
};

/* What is to become of a connection's window for what it receives. */
enum gw_window_wish {
	GW_WINDOW_FREE = 0, /* as it was found */
	GW_WINDOW_YIELDS = 1,
};

struct gw_receiver_wanted {
	__u32 window;
};

/* What became of that. */
struct gw_receiver_outcome {
	__u64 cookie;
	enum gw_outcome_kind kind;
	__s32 error;
};

/* Somebody else has set the window of a connection whose window was ours. */
struct gw_receiver_lost {
	__u64 cookie;
	__u64 found; /* bytes */
};

/* The most that a connection may be paced at; ~0: as it was found. */
struct gw_rate {
	__u64 bytes_per_s;
};

/* What became of that. */
struct gw_rate_outcome {
	__u64 cookie;
	__u64 found; /* bytes per second, before */
	enum gw_outcome_kind kind;
	__s32 error;
};

/* Settings of a socket that giveway may change, as bits of gw_mark.ours. */
enum gw_setting {
	GW_CWND_CLAMP = 1,
	GW_PACING_RATE = 2,
	GW_WINDOW_CLAMP = 4,
	GW_CONGESTION_CONTROL = 8,
	GW_ACK_CALLBACK = 16, /* the kernel asks rledbat.bpf.c before each packet that the socket sends */
};

/*
 * What giveway changed on a socket and what was there before, kept in the socket's own storage: whoever finds the mark
 * can undo the change. Written before the change. A later layout only adds fields, in place of `reserved`, so that an
 * older mark reads as one whose newer bits are not set; a mark of a layout that is not known yet is left alone.
 */
enum gw_mark_layout { GW_MARK_LAYOUT = 1 };

struct gw_mark {
	__u32 layout;
	__u32 ours; /* the settings that carry a value of ours */
	__u32 clamp_before; /* segments */
	__u32 clamp_ours;
	__u32 window_before; /* bytes */
	__u32 window_ours;
	__u64 pacing_before; /* bytes per second; ~0: not limited */
	__u64 pacing_ours;
	char control_before[GW_CA_NAME_LEN];
	char control_ours[GW_CA_NAME_LEN];
	__u32 reserved[14];
};

/* Datagrams on the peers' port that did not reach the daemon. */
struct gw_filtered {
	__u64 off_link;      /* from beyond the link */
	__u64 malformed;     /* of a length that no report has */
	__u64 older_version; /* of the protocol */
	__u8 older_from[16]; /* the latest of these */
	__u64 family;        /* of its address */
};

/* What was undone on one socket, or in a dry run found. */
struct gw_undone {
	__u64 cookie;
	__u32 layout; /* of its mark; above GW_MARK_LAYOUT nothing was touched */
	__u32 found;  /* the settings that still carried our value */
	__u32 clamp;  /* where the cwnd clamp did: it, and what is in its place */
	__u32 clamp_before;
	__s32 error;
	__u32 reserved;
};

/* One step of the table for new connections: applies from this RTT up to the next step's. */
struct gw_new_cap {
	__u32 rtt_floor_us;
	__u32 cap; /* segments */
};

/* The only channel from the policy to new connections: one value, exchanged as a whole under its lock. */
struct gw_new_caps {
	struct bpf_spin_lock lock;
	__u32 generation;
	__u32 ifindex; /* connections that leave by this interface; 0: none */
	__u32 steps;   /* how many of the entries are in use, ascending */
	struct gw_new_cap step[GW_NEW_CAP_STEPS];
};

/* A new connection was capped as it opened. */
struct gw_new_capped {
	__u64 t_ns;
	__u64 cookie;
	__u32 cap;
	__u32 rtt_us;
	__u32 generation;
	__u32 reserved;
};

enum gw_task_event_kind {
	GW_TASK_EXEC = 1, /* the process runs another program now */
	GW_TASK_THREAD,   /* of a held process, and not yet running */
	GW_TASK_EXIT,     /* the last thread of a held process; cpu_ns: used by all of them */
};

/* As much of a program's arguments as is told. */
#define GW_ARGUMENTS_BYTES 4096

/* A process, as the initial pid namespace numbers it. The arguments of an exec follow it, each with its end. */
struct gw_task_event {
	__u64 t_ns;     /* CLOCK_MONOTONIC */
	__u64 start_ns; /* CLOCK_BOOTTIME, of the thread group */
	__u64 cpu_ns;
	__u64 image;    /* of an exec: that of struct gw_process */
	enum gw_task_event_kind kind;
	__u32 tgid;
	__u32 tid;
	__u32 arguments_bytes; /* ~0: they could not be read */
};

/*
 * A thread may donate as one of a process that a rule raises, and as one that handles requests: these come and go apart.
 */
struct gw_donor_key {
	__u32 tid;
	__u32 of_process;
};

/* A thread whose priority giveway has given, and what others have computed with it since that was last read. */
struct gw_donor {
	__u64 donated_ns;
	__u32 tgid; /* its process, where that is accounted for as a whole; 0: only the thread is */
	__u32 recipients;
	__u32 recipient; /* the process of the latest of them, and its name */
	__u32 naming;	/* which one: a thread's number is used again, and who named the earlier one may forget it late */
	char name[GW_COMMAND_LEN];
};

/* The same, read. */
struct gw_donated {
	__u64 donated_ns;
	__u32 tid;
	__u32 tgid;
	__u32 recipients; /* threads that had its priority at this moment */
	__u32 recipient;
	char name[GW_COMMAND_LEN];
};

#endif
