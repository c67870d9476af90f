/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Processes and threads, as tasks.bpf.c reports them. Ids are those of the initial pid namespace. Native-endian,
 * without holes.
 */
#ifndef GIVEWAY_TASKS_H
#define GIVEWAY_TASKS_H

#include <linux/types.h>
#include "inherit.h"

#define GW_NAME_BYTES 256  /* one name in a path, with its NUL */
#define GW_PATH_BYTES 1024 /* a path; of a longer one only the outer part */

enum gw_thread_state {
	GW_AWAKE = 1,   /* runs or is runnable */
	GW_ENDING = 2,  /* exiting, or its process was killed: runs no code of its own any more */
	GW_STOPPED = 4, /* stopped by a signal, or frozen: somebody else decides when it runs again */
};

/* Of a thread. */
struct gw_thread {
	__u64 start_ns;  /* of its process, CLOCK_BOOTTIME */
	__u64 cpu_ns;    /* used so far */
	__u64 inode;     /* of its process's executable; 0: a thread of the kernel */
	__u64 gone_from; /* the inode of the directory that its executable was removed from; 0: it still exists */
	__u32 tgid;
	__u32 tid;
	__u32 uid; /* the real one */
	__u32 netns_inum;
	enum gw_thread_state state; /* any of them */
	__u32 tasks;                /* of its process */
};

/* Identifies a state of a process: if any field changes, the process may have become another. */
struct gw_fingerprint {
	__u64 start_ns;
	__u64 image;
	__u64 cgroup_id;
	__u32 tgid;
	__u32 uid;
	__u32 idleness;       /* enum gw_idleness */
	__u32 chosen;         /* class | rate limit << 16, of inherit.h */
	__u32 nice_by;        /* the process on whose account giveway has reniced it, or its parent; 0: not reniced */
	__u32 nice_cause;     /* the rule; 0: being restored */
	__u32 inherited_from; /* the process */
	__u32 reserved;
	__u64 inherited; /* the number of a rule, of inherit.h; 0: none */
	__u64 named;     /* the rule that it hands on itself */
	__u64 by_hand;   /* settings by hand, of inherit.h */
};

/* A process with explicit classification that is in another network namespace by now. */
struct gw_elsewhere {
	__u64 start_ns;
	__u32 tgid;
	__u32 netns_inum;
	__u32 uid;
	__u32 reserved;
	char command[16]; /* TASK_COMM_LEN */
};

/* The names of a cgroup's ancestors and its own, outermost first, NUL-terminated; the root has none. */
struct gw_cgroup_names {
	__u32 bytes; /* ~0: unknown */
	char names[GW_PATH_BYTES + GW_NAME_BYTES];
};

struct gw_cgroup {
	__u32 uid; /* owner of its directory */
	struct gw_cgroup_names names;
};

enum gw_share_kind {
	GW_NO_SHARE, /* the kernel has no real-time bandwidth per group, or the group is the root of cgroup v2 */
	GW_SHARE_V1,
	GW_SHARE_V2,
};

/* The user's own mark that nobody waits for a process. */
enum gw_idleness {
	GW_NICE_19 = 1,
	GW_SCHED_IDLE = 2,
	GW_IO_IDLE = 4,
	GW_GROUP_IDLE = 8, /* cpu.idle of its cgroup, or of one above it */
};

struct gw_process {
	__u64 start_ns;
	__u64 image;     /* another after each exec; compared for equality only */
	__u64 execs;     /* its count of execs, including those before its forks */
	__u64 inode;     /* of its executable */
	__u64 directory; /* inode of the directory that has, or had, its name */
	__u64 is_gone;   /* the name was removed */
	__s64 share_us;  /* real-time bandwidth per period, of its group in cgroup v1 */
	__u32 device;    /* of the executable's file system, as mountinfo numbers it: major << 20 | minor */
	__u32 exe_mode;
	__u32 exe_uid;
	__u32 tgid;
	__u32 parent;
	__u32 uid;
	__u32 euid;
	__u32 tasks;
	__u32 netns_inum;
	enum gw_share_kind share_kind;
	enum gw_idleness idleness; /* any of them, of its main thread */
	__u32 chosen;              /* a class by inherit.h; 0: none */
	__u32 chosen_by;
	__u32 chosen_limit;
	struct gw_rates chosen_rates;
	__u64 by_hand; /* settings by hand, of inherit.h */
	struct gw_by_rule inherited;
	char exe[GW_PATH_BYTES];       /* for the reader's root; empty if too long */
	struct gw_cgroup_names cgroup; /* in cgroup v2 */
	struct gw_cgroup_names share;  /* the group that real-time bandwidth is shared out by */
};

#endif
