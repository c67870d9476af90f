/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What was chosen for a task (`giveway exec --class`), in the task's own storage: it goes with the task, and there is
 * nothing to clear up. The daemon writes the first one of a tree, choices.bpf.c hands it on.
 */
#ifndef GIVEWAY_CHOICE_H
#define GIVEWAY_CHOICE_H

struct gw_choice {
	__u32 class; /* 1 + the class's number */
	__u32 uid;   /* who chose it */
	__u32 limit; /* number of a rate limit; 0: none */
	__u32 reserved;
	__u64 bytes_per_s; /* of that */
};

struct gw_chosen_limit {
	__u32 number;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_choice);
} choices SEC(".maps");

#endif
