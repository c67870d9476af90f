/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The saved state of a reniced task: what it had before nice 19 and the idle I/O class, kept in the task's own storage
 * and written before these are set. A new task inherits both from the kernel, and the saved state from nice.bpf.c. The
 * daemon pins the map, so that it outlives the programs; an entry goes with its task.
 *
 * Readers: nice.bpf.c, which keeps it up to date; tasks and admission, to tell giveway's values from the user's.
 */
#ifndef GIVEWAY_NICE_H
#define GIVEWAY_NICE_H

#define IOPRIO_CLASS_SHIFT 13
#define IOPRIO_CLASS_IDLE 3

enum gw_niceness {
	GW_NICE = 1,     /* nice 19 */
	GW_IO_CLASS = 2, /* the idle I/O class */
};

/* For admission. */
enum gw_nice_makers {
	GW_NICE_BY_USERS,
	GW_NICE_SAVED,      /* and by giveway, with saved state */
	GW_NICE_BY_ANYBODY, /* and by giveway, with unreadable saved state */
};

/* Sets of enum gw_niceness. */
struct gw_saved_task {
	__u64 since_ns;        /* when it was written, CLOCK_BOOTTIME; a younger task may have inherited it */
	__u64 origin_start_ns; /* of the process on whose account it is */
	__u32 origin;
	__u32 cause;     /* the number of a rule; 0: none any more */
	__u32 wanted;    /* to be set */
	__u32 ours;      /* set by us and still so */
	__u32 returning; /* of ours: being restored */
	__u32 ever_ours; /* has ever been ours */
	__u32 taken;     /* was ours until somebody else set it: a conflict, not overridden again */
	__s32 nice_before;
	__u32 ioprio_before;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_saved_task);
} gw_saved_tasks SEC(".maps");

static __always_inline __u32 ioprio_of(struct task_struct *task)
{
	struct io_context *io;

	if (!bpf_core_field_exists(task->io_context))
		return 0;
	io = BPF_CORE_READ(task, io_context);
	return io ? BPF_CORE_READ(io, ioprio) : 0;
}

/* Whether setting the task's I/O class also sets it for others without a saved state of their own (CLONE_IO). */
static __always_inline bool shares_io_class(struct task_struct *task)
{
	struct io_context *io = BPF_CORE_READ(task, io_context);

	if (!io)
		return false;
	return !bpf_core_field_exists(io->active_ref) || BPF_CORE_READ(io, active_ref.counter) > 1;
}

/* Which of our values the task has. */
static __always_inline __u32 niceness_of(struct task_struct *task)
{
	__u32 has = task->static_prio == NICE_19_PRIO ? GW_NICE : 0;

	return has | (ioprio_of(task) == IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT ? GW_IO_CLASS : 0);
}

/*
 * The saved state that explains the task's values. A task may have inherited without one, where no program ran to copy
 * it or had memory: a task younger than its process's or its parent's saved state has its niceness from there.
 */
static __always_inline struct gw_saved_task *saved_of(struct task_struct *task)
{
	struct gw_saved_task *saved = bpf_task_storage_get(&gw_saved_tasks, task, NULL, 0);
	struct task_struct *from;

	if (saved || !niceness_of(task))
		return saved;
	from = task->pid != task->tgid ? task->group_leader : task->real_parent;
	saved = from ? bpf_task_storage_get(&gw_saved_tasks, from, NULL, 0) : NULL;
	return saved && task->start_boottime > saved->since_ns ? saved : NULL;
}

/* What giveway has set, and so is not the user's choice. */
static __always_inline __u32 niceness_by_us(struct task_struct *task)
{
	struct gw_saved_task *saved = saved_of(task);

	return saved ? (saved->ours | saved->wanted) & niceness_of(task) : 0;
}

#endif
