/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What giveway has made of a task that is background: nice 19 and the idle I/O class, noted in the task's own storage
 * before it is set. What the task starts inherits both from the kernel, and the note from nice.bpf.c. The daemon pins
 * the map, so that it outlives the programs; a note goes with its task.
 *
 * Who reads: nice.bpf.c, which keeps it up to date; tasks and admission, which take nothing of it for the user's word.
 */
#ifndef GIVEWAY_NICE_H
#define GIVEWAY_NICE_H

#define IOPRIO_CLASS_SHIFT 13
#define IOPRIO_CLASS_IDLE 3

enum gw_niceness {
	GW_NICE = 1,    /* nice 19 */
	GW_IO_CLASS = 2, /* the idle I/O class */
};

/* As admission is told. */
enum gw_nice_makers {
	GW_NICE_BY_USERS,
	GW_NICE_NOTED,      /* by giveway too, which notes it */
	GW_NICE_BY_ANYBODY, /* by giveway too, and its notes cannot be read */
};

/* Its sets are of enum gw_niceness. */
struct gw_nice_note {
	__u64 since_ns;        /* when it was written, CLOCK_BOOTTIME; a task that is younger than this may have inherited it */
	__u64 origin_start_ns; /* of the process for whose sake it is */
	__u32 origin;
	__u32 cause;     /* the number of a rule; 0: nothing any more */
	__u32 wanted;    /* to be set */
	__u32 ours;      /* set by us and still so */
	__u32 returning; /* of ours: being put back */
	__u32 once;      /* has been ours */
	__u32 taken;     /* was ours until somebody else set it: left alone for good */
	__s32 nice_before;
	__u32 ioprio_before;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct gw_nice_note);
} gw_nice_notes SEC(".maps");

static __always_inline __u32 ioprio_of(struct task_struct *task)
{
	struct io_context *io;

	if (!bpf_core_field_exists(task->io_context))
		return 0;
	io = BPF_CORE_READ(task, io_context);
	return io ? BPF_CORE_READ(io, ioprio) : 0;
}

/* Whether who sets the task's I/O class sets it for others too, which have no note of it (CLONE_IO). */
static __always_inline bool shares_io_class(struct task_struct *task)
{
	struct io_context *io = BPF_CORE_READ(task, io_context);

	if (!io)
		return false;
	return !bpf_core_field_exists(io->active_ref) || BPF_CORE_READ(io, active_ref.counter) > 1;
}

/* What of it the task has as we would set it. */
static __always_inline __u32 niceness_of(struct task_struct *task)
{
	__u32 has = task->static_prio == NICE_19_PRIO ? GW_NICE : 0;

	return has | (ioprio_of(task) == IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT ? GW_IO_CLASS : 0);
}

/*
 * The note by which this task has what it has. A task may have inherited without a note, where no program that
 * hands notes on ran or had memory. Whoever is younger than the
 * note of its process or its parent has its niceness from there.
 */
static __always_inline struct gw_nice_note *note_of(struct task_struct *task)
{
	struct gw_nice_note *note = bpf_task_storage_get(&gw_nice_notes, task, NULL, 0);
	struct task_struct *from;

	if (note || !niceness_of(task))
		return note;
	from = task->pid != task->tgid ? task->group_leader : task->real_parent;
	note = from ? bpf_task_storage_get(&gw_nice_notes, from, NULL, 0) : NULL;
	return note && task->start_boottime > note->since_ns ? note : NULL;
}

/* What of it is giveway's doing, and so nobody's word. */
static __always_inline __u32 niceness_by_us(struct task_struct *task)
{
	struct gw_nice_note *note = note_of(task);

	return note ? (note->ours | note->wanted) & niceness_of(task) : 0;
}

#endif
