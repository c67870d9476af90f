/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One budget from a request's arrival to its answer: what arrival.bpf.c, admission.bpf.c and the daemon tell each other.
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
	__u64 barred_until_ns; /* its handlers overran: they get no priority until then */
	__u32 budget_us;       /* from a request's arrival to the last bit of its answer */
	__u32 priority;        /* SCHED_FIFO's */
	__u32 uid;             /* whose sockets it means: nobody else's port gets anybody a priority */
	__u32 reserved;
};

/* A power of two: requests that wait in a socket, with their deadlines. Of more than that the oldest are forgotten. */
#define GW_REQUESTS 32

/* Of a socket of a chain: in its storage. Deadline 0: a message without one. */
struct gw_requests {
	__u64 due_ns[GW_REQUESTS];
	__u64 answer_ns; /* of the request that was received last: what is sent now is its answer */
	__u32 arrived;   /* counts of all time, modulo GW_REQUESTS where they stand */
	__u32 received;
	__u32 tid;       /* the thread that received last */
	__u32 reserved;
};

/* A thread that receives requests. */
struct gw_handler {
	__u64 socket;   /* the one whose requests wake it: its address, never followed */
	__u64 until_ns; /* the deadline of its latest request: what it does until then is this request's */
	__u32 priority;
	struct gw_chain_key chain;
};

enum gw_handler_event_kind {
	GW_RAISE = 1, /* a request is here, and the thread is ordinary */
	GW_LOWER,     /* something else is here, and the thread is not */
};

struct gw_handler_event {
	__u64 t_ns;
	__u64 until_ns;
	enum gw_handler_event_kind kind;
	__u32 tid;
	__u32 pid;
	__u32 priority;
	struct gw_chain_key chain;
	__u32 reserved;
};

struct gw_arrival_counters {
	__u64 requests;    /* with a deadline, that reached a socket */
	__u64 woken;       /* of these, that woke their handler */
	__u64 raises;      /* asked of the daemon */
	__u64 lowers;
	__u64 events_lost; /* the daemon did not look in */
};

#endif
