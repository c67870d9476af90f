/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The origin of a task's class, in the task's own storage: it goes with the task. Only a task that has something to
 * hand on, or has inherited something, has a record. inherit.bpf.c hands it on.
 *
 * The daemon pins the map, so that a new daemon finds the previous one's records. The map's name has the number of the
 * layout: it changes with any struct below.
 */
#ifndef GIVEWAY_INHERIT_H
#define GIVEWAY_INHERIT_H

#define GW_NAME_OF_TASK 16

/* Bytes per second, sent and received; 0: not limited. */
struct gw_rates {
	__u64 up;
	__u64 down;
};

/* A rule that names a process, and what that process starts. */
struct gw_by_rule {
	__u64 rule;     /* its number; 0: none */
	__u64 start_ns; /* of the process that it names, CLOCK_BOOTTIME */
	__u64 execs;    /* that process's count of execs: identifies the program */
	__u32 pid;
	__u32 uid; /* of that process when it handed the rule on */
	char name[GW_NAME_OF_TASK];
};

struct gw_record {
	/* By `giveway exec`, for the task and all its descendants. */
	__u32 class;           /* 1 + the class's number; 0: none */
	__u32 uid;             /* who chose the class or the limit */
	__u32 limit;           /* its number; 0: none */
	__u32 parent;          /* the process that started this one */
	struct gw_rates rates; /* of the limit */
	__u64 parent_start_ns;
	__u64 image; /* the exec that it dates from; 0: no exec since its fork */
	__u64 by_hand; /* a bit for each setting by hand (`giveway class set PID`) of the task and its descendants */
	__u32 hand_treatment; /* for what it connects, by the latest such setting (queueing.h); 0: none */
	__u32 hand_by_root; /* bits of the limits that root has set, which others do not replace */
	struct gw_by_rule own; /* that the process hands on */
	struct gw_by_rule inherited; /* from its parent */
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
