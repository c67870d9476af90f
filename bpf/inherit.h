/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a task has its class from, in the task's own storage: it goes with the task, and there is nothing to clear up. Only
 * a task that has something to hand on, or has inherited something, has such a record. inherit.bpf.c hands it on.
 *
 * The daemon pins the map, so that a new daemon finds the records of the one before. The map's name has the number of the
 * layout: it changes with any struct below.
 */
#ifndef GIVEWAY_INHERIT_H
#define GIVEWAY_INHERIT_H

#define GW_NAME_OF_TASK 16

/* Bytes a second, of what is sent and of what is received; 0: not limited. */
struct gw_rates {
	__u64 up;
	__u64 down;
};

/* A rule that names a process, and what it starts. */
struct gw_by_rule {
	__u64 rule;     /* its number; 0: none */
	__u64 start_ns; /* of the process that it names, CLOCK_BOOTTIME */
	__u64 execs;    /* that process's count of execs: the program that is meant */
	__u32 pid;
	__u32 uid;      /* as which that process has handed it on */
	char name[GW_NAME_OF_TASK];
};

struct gw_record {
	/* By `giveway exec`, for the task and all that it starts. */
	__u32 class; /* 1 + the class's number; 0: none */
	__u32 uid;   /* who chose it, or the limit */
	__u32 limit; /* its number; 0: none */
	__u32 parent; /* the process that has started this one */
	struct gw_rates rates; /* of the limit */
	__u64 parent_start_ns;
	__u64 image; /* since whose exec it is so; 0: it has executed nothing since its fork */
	__u64 by_hand; /* a bit for each setting by hand (`giveway class set PID`) that is for the task and all that it starts */
	__u32 hand_treatment; /* of what it connects, by the one that was set last (queueing.h); 0: nothing is said */
	__u32 hand_by_root; /* bits of that which root has set: limits, which others do not replace */
	struct gw_by_rule own;       /* by which the process hands its class on */
	struct gw_by_rule inherited; /* from what has started it */
};

struct gw_chosen_limit {
	struct gw_rates rates;
	__u32 number;
	__u32 class; /* 1 + the class's number */
	__u32 uid;   /* who chose it */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_record);
} gw_records_3 SEC(".maps");

#endif
