/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Request chains, with one time budget from a request's arrival to its answer: what arrival.bpf.c, admission.bpf.c and
 * the daemon share. Times are CLOCK_MONOTONIC in nanoseconds. Native-endian, without holes.
 */
#ifndef GIVEWAY_CHAIN_H
#define GIVEWAY_CHAIN_H

#include <linux/types.h>

/* A local service. */
struct gw_chain_key {
	__u16 local_port; /* host order */
	__u8 protocol;
	__u8 reserved;
};

/* Written by the daemon, as a whole. */
struct gw_chain_rule {
	__u64 suspended_until_ns; /* its handlers exceeded their CPU budget: no priority until then */
	__u32 budget_us; /* from a request's arrival to the last bit of its answer */
	__u32 priority; /* of SCHED_FIFO */
	__u32 uid; /* owner of the matching sockets: another user's socket on this port gives no priority */
	__u32 reserved;
};

/* Requests queued in a socket: a power of two. Beyond that the oldest lose their deadlines. */
#define GW_REQUESTS 32

/* In the storage of a chain's socket. Deadline 0: a message without one. */
struct gw_requests {
	__u64 due_ns[GW_REQUESTS];
	__u64 answer_ns; /* deadline of the request received last: what is sent now is its answer */
	__u32 arrived;   /* total; its place in the ring is this modulo GW_REQUESTS */
	__u32 received;
	__u32 tid; /* the thread that received last */
	__u32 reserved;
};

/* Requests received by a chain's sockets: arrival.bpf.c writes, admission.bpf.c reads. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_requests);
} chain_requests SEC(".maps");

/* A thread that receives requests. */
struct gw_handler {
	__u64 socket;   /* whose requests wake it: its address, never dereferenced */
	__u64 until_ns; /* the deadline of its latest request, which it works on until then */
	__u32 priority;
	struct gw_chain_key chain;
	__u32 reported; /* the daemon knows of it, and has to learn of its end */
	__u32 reserved;
};

enum gw_handler_event_kind {
	GW_RAISE = 1, /* a request has arrived, and the thread is not real-time */
	GW_LOWER,     /* something else has arrived, and the thread still has the priority we gave it */
	GW_ENDED,     /* a thread that was raised, or was to be, has ended */
};

struct gw_handler_event {
	__u64 t_ns;
	__u64 until_ns;
	__u64 cpu_ns; /* total CPU time of an ended thread */
	enum gw_handler_event_kind kind;
	__u32 tid;
	__u32 pid;
	__u32 priority;
	struct gw_chain_key chain;
	__u32 reserved;
};

struct gw_arrival_counters {
	__u64 requests; /* that reached a socket with a deadline */
	__u64 woken;    /* of these, how many woke their handler */
	__u64 raises;   /* requested of the daemon */
	__u64 lowers;
	__u64 events_lost; /* ring buffer full */
};

#endif
