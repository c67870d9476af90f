/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The structs shared between these programs and the daemon. Rust takes its types from the skeletons generated from this
 * file, so a field exists once. Everything is native-endian and without holes.
 */
#ifndef GIVEWAY_H
#define GIVEWAY_H

#define GW_COMMAND_LEN 16 /* TASK_COMM_LEN */
#define GW_CA_NAME_LEN 16 /* TCP_CA_NAME_MAX */

enum gw_limit {
	/*
	 * A clamp or ssthresh from here on limits nothing. The kernel starts a socket with a clamp of ~0; setsockopt,
	 * which takes a positive int, can only restore this one.
	 */
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

/* One socket at one time: what a poll or a scan writes per socket. */
struct gw_flow {
	__u64 cookie;
	__u64 cgroup_id;
	__u64 start_ns; /* CLOCK_BOOTTIME, of the process `pid` */
	__u64 in_flight_bytes;
	__u64 pacing_rate_bytes_per_s; /* ~0: the socket does not pace */
	__u64 delivery_rate_bytes_per_s;
	__u64 acked_bytes; /* payload, as the next one, since the connection began */
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
	__u32 delivered;       /* segments, including those acknowledged selectively; wraps */
	__u32 latest_rtt_us;   /* of the packet acknowledged last; 0: none */
	__u32 receiver_rtt_us; /* at the receiver, from echoed timestamps; 0: none */
	__u32 pid;             /* 0: no known process uses the socket */
	__u32 state;
	__u32 ca_state;
	char command[GW_COMMAND_LEN];
	char congestion_control[GW_CA_NAME_LEN];
	struct gw_tuple tuple;
	__u32 uid;      /* of the user that made the socket */
	__u32 priority; /* SO_PRIORITY */
	__u8 tos;       /* IP_TOS: the DSCP and two bits of ECN */
	__u8 tclass;    /* the same for IPv6 */
	__u16 protocol; /* of UDP, the fields of TCP are not set */
	__u32 reserved; /* fills the hole */
};

enum gw_event_kind {
	GW_EVENT_OPEN = 1,   /* handshake complete */
	GW_EVENT_STATE,      /* from, to: TCP states */
	GW_EVENT_CLOSE,      /* from: the state it was in */
	GW_EVENT_RETRANSMIT, /* count: segments since the socket's last such event */
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
	GW_UNCHANGED, /* the clamp already has the wanted value */
	GW_DEFERRED,  /* loss recovery: ca_state says which */
	GW_FOREIGN,   /* conflict: somebody else's clamp is not overridden */
	GW_LOOPBACK,  /* leaves by a loopback interface: never capped */
	GW_FAILED,    /* error says why */
};

/* The outcome for one socket's cap. */
struct gw_outcome {
	__u64 cookie;
	__u32 old_clamp;
	__u32 wanted;
	enum gw_outcome_kind kind;
	__u32 ca_state;
	__s32 error;
	__u32 without_restart; /* the write would have restarted slow start, which was prevented */
};

/* The name of a congestion control; empty: restore the one before ours. */
struct gw_control {
	char name[GW_CA_NAME_LEN];
};

/* The outcome for one socket's congestion control. */
struct gw_control_outcome {
	__u64 cookie;
	enum gw_outcome_kind kind;
	__s32 error;
	char found[GW_CA_NAME_LEN]; /* before */
};

/* The wanted receive window of a connection. */
enum gw_window_wish {
	GW_WINDOW_FREE = 0, /* restored */
	GW_WINDOW_YIELDS = 1,
};

struct gw_receiver_wanted {
	__u32 window;
};

/* The outcome. */
struct gw_receiver_outcome {
	__u64 cookie;
	enum gw_outcome_kind kind;
	__s32 error;
};

/* Somebody else has set a receive window that was ours. */
struct gw_receiver_lost {
	__u64 cookie;
	__u64 found; /* bytes */
};

/* The most that a connection may be paced at; ~0: restore. */
struct gw_rate {
	__u64 bytes_per_s;
};

/* The outcome. */
struct gw_rate_outcome {
	__u64 cookie;
	__u64 found; /* bytes per second, before */
	enum gw_outcome_kind kind;
	__s32 error;
};

/* Settings of a socket that giveway may change, as bits of gw_saved_socket.ours. */
enum gw_setting {
	GW_CWND_CLAMP = 1,
	GW_PACING_RATE = 2,
	GW_WINDOW_CLAMP = 4,
	GW_CONGESTION_CONTROL = 8,
	GW_ACK_CALLBACK = 16, /* the kernel calls rledbat.bpf.c before each packet that the socket sends */
};

/*
 * Saved state: what giveway changed on a socket and the values before, kept in the socket's own storage, so that any
 * process of giveway can undo the change. Written before the change. A later layout only adds fields, in place of
 * `reserved`, so that an older state reads as one whose newer bits are not set; a state of an unknown layout is not
 * touched.
 */
enum gw_saved_layout { GW_SAVED_LAYOUT = 1 };

struct gw_saved_socket {
	__u32 layout;
	__u32 ours;         /* settings that carry our value */
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

/* Datagrams on the peers' port that were dropped before the daemon. */
struct gw_filtered {
	__u64 off_link;      /* from beyond the link */
	__u64 malformed;     /* no length of a report */
	__u64 older_version; /* of the protocol */
	__u8 older_from[16]; /* the latest of these */
	__u64 family;        /* of its address */
};

/* What was restored on one socket, or would be (dry run). */
struct gw_undone {
	__u64 cookie;
	__u32 layout; /* of its saved state; above GW_SAVED_LAYOUT nothing was touched */
	__u32 found;  /* settings that still had our value */
	__u32 clamp;  /* if the cwnd clamp had: our value, and the restored one */
	__u32 clamp_before;
	__s32 error;
	__u32 reserved;
};

/* One step of the table for new connections: applies from this RTT up to the next step's. */
struct gw_new_cap {
	__u32 rtt_floor_us;
	__u32 cap; /* segments */
};

/* The only channel from the policy to new connections: one value, replaced as a whole under its lock. */
struct gw_new_caps {
	struct bpf_spin_lock lock;
	__u32 generation;
	__u32 ifindex; /* of the managed link; 0: none */
	__u32 steps;   /* entries in use, ascending */
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
	GW_TASK_THREAD,   /* of a watched process, and not yet running */
	GW_TASK_EXIT,     /* the last thread of a watched process; cpu_ns: used by all of them */
};

/* The part of a program's arguments that is copied. */
#define GW_ARGUMENTS_BYTES 4096

/* A process, by its id in the initial pid namespace. The arguments of an exec follow, each NUL-terminated. */
struct gw_task_event {
	__u64 t_ns;     /* CLOCK_MONOTONIC */
	__u64 start_ns; /* CLOCK_BOOTTIME, of the thread group */
	__u64 cpu_ns;
	__u64 image; /* of an exec: as in struct gw_process */
	enum gw_task_event_kind kind;
	__u32 tgid;
	__u32 tid;
	__u32 arguments_bytes; /* ~0: unreadable */
};

/*
 * A thread may donate priority as one of a process that a rule raises, and as a request handler; the two are
 * independent.
 */
struct gw_donor_key {
	__u32 tid;
	__u32 of_process;
};

/* A thread that giveway has raised, and the CPU time others have used at its priority since the last read. */
struct gw_donor {
	__u64 donated_ns;
	__u32 tgid; /* its process, where that is accounted for as a whole; 0: only the thread */
	__u32 recipients;
	__u32 recipient; /* process id and name of the latest recipient */
	__u32 naming; /* which use of the thread id: ids are reused, and the previous user may remove its entry late */
	char name[GW_COMMAND_LEN];
};

/* The same, as read. */
struct gw_donated {
	__u64 donated_ns;
	__u32 tid;
	__u32 tgid;
	__u32 recipients; /* threads that have its priority now */
	__u32 recipient;
	char name[GW_COMMAND_LEN];
};

#endif
