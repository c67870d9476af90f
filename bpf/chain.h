/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One budget from a request's arrival to its answer: what arrival.bpf.c, admission.bpf.c and the daemon share.
 * Times are CLOCK_MONOTONIC in nanoseconds. Native-endian, without holes.
 */
#ifndef GIVEWAY_CHAIN_H
#define GIVEWAY_CHAIN_H

#include <linux/types.h>

/* Of a local service. */
struct gw_chain_key {
	__u16 local_port; /* host order */
	__u8 protocol;
	__u8 reserved;
};

/* Written by the daemon, as a whole. */
struct gw_chain_rule {
	__u64 suspended_until_ns; /* its handlers exceeded their CPU budget: no priority until then */
	__u32 budget_us;       /* from a request's arrival to the last bit of its answer */
	__u32 priority;        /* SCHED_FIFO's */
	__u32 uid;             /* owner of the sockets that match: another user's socket on this port gives no priority */
	__u32 reserved;
};

/* Requests that wait in a socket, with their deadlines: a power of two. Of more than that the oldest are forgotten. */
#define GW_REQUESTS 32

/* In the storage of a chain's socket. Deadline 0: a message without one. */
struct gw_requests {
	__u64 due_ns[GW_REQUESTS];
	__u64 answer_ns; /* deadline of the request received last: what is sent now is its answer */
	__u32 arrived;   /* total; its place in the ring is this modulo GW_REQUESTS */
	__u32 received;
	__u32 tid;       /* the thread that received last */
	__u32 reserved;
};

/* Requests received by the sockets of a chain: arrival.bpf.c writes, admission.bpf.c reads. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_requests);
} chain_requests SEC(".maps");

/* A thread that receives requests. */
struct gw_handler {
	__u64 socket;   /* whose requests wake it: its address, never dereferenced */
	__u64 until_ns; /* the deadline of its latest request: until then the thread works on this request */
	__u32 priority;
	struct gw_chain_key chain;
	__u32 told;     /* the daemon was told of it, and is told of its end */
	__u32 reserved;
};

enum gw_handler_event_kind {
	GW_RAISE = 1, /* a request has come, and the thread is not real-time */
	GW_LOWER,     /* something else has come, and the thread still has the priority we gave it */
	GW_ENDED,     /* a thread that was raised, or was to be, has ended */
};

struct gw_handler_event {
	__u64 t_ns;
	__u64 until_ns;
	__u64 cpu_ns; /* of an ended thread: all that it has used */
	enum gw_handler_event_kind kind;
	__u32 tid;
	__u32 pid;
	__u32 priority;
	struct gw_chain_key chain;
	__u32 reserved;
};

struct gw_arrival_counters {
	__u64 requests;    /* with a deadline that reached a socket */
	__u64 woken;       /* of these, how many woke their handler */
	__u64 raises;      /* requested of the daemon */
	__u64 lowers;
	__u64 events_lost; /* the daemon did not read in time */
};

#endif
