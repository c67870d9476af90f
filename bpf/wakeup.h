/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What `giveway jitter` and its recorder share: each CPU's ring, and when each measuring thread was woken. User space
 * maps both read-only.
 */
#ifndef GIVEWAY_WAKEUP_H
#define GIVEWAY_WAKEUP_H

#define GW_INTERVALS 4096 /* a power of two: 20 ms of a flood, seconds of normal work */
#define GW_MEASURING_THREADS 256
#define GW_TASK_COMM_LEN 16

enum gw_interval_kind {
	GW_THREAD,  /* id: thread id, 0 is the idle thread */
	GW_SOFTIRQ, /* id: its vector */
	GW_IRQ,     /* id: its number */
	GW_VECTOR,  /* id: enum gw_vector */
	GW_KINDS,
};

enum gw_vector {
	GW_VECTOR_TIMER,
	GW_VECTOR_RESCHEDULE,
	GW_VECTOR_CALL,
	GW_VECTOR_WORK,
};

/* CLOCK_MONOTONIC. Intervals of different kinds nest. */
struct gw_interval {
	__u64 from_ns; /* 0: since before the recorder began */
	__u64 to_ns;
	__u64 position;  /* number of the interval, from 1; 0 while it is being written */
	__u32 stolen_ns; /* by the hypervisor, since the interval before in this ring */
	__u32 id;
	__s32 priority; /* of a thread, in the kernel's scale: below 0 deadline, below 100 real-time */
	__u16 kind;
	__u16 policy;
	char name[GW_TASK_COMM_LEN];
};

struct gw_ring {
	__u64 next;      /* number of intervals begun */
	__u64 stolen_ns; /* as the hypervisor counts */
	__u64 since_ns[GW_KINDS];
	struct gw_interval intervals[GW_INTERVALS];
};

struct gw_waking {
	__u64 t_ns;
	__u32 cpu; /* where the timer expired */
	__u32 reserved;
};

struct gw_introduction {
	__u32 number; /* which of the measuring threads */
};

#endif
