// SPDX-License-Identifier: GPL-2.0-only
/*
 * Nice 19 and the idle I/O class for processes that are background by rule or by choice: which threads are to have it,
 * which have it by us, and which are to get back what they had. The daemon sets the values, by system calls on the
 * threads that are named here, since no program can.
 *
 *   gw_inherit_nice  hands a note on to what a task starts, which has inherited the values themselves
 *   gw_inherit_late  the same, for whom the first has missed; counts whom both have
 *   gw_want_nice     notes, for all threads of the process that is the parameter, what they had; or that they are to get it
 *                    back, and with them all that have it for this process's sake
 *   gw_settle_nice   over all tasks: brings the notes up to date with what the tasks have, and lists what is to be set, what is to
 *                    be restored, and what somebody else has set since
 *
 * A note is good for as long as its cause (a rule) is active and its origin (a process) has not been released. Nobody is
 * ever told of one task: what is not set or put back yet is found by the next scan, however it came about. So the undo of
 * a dead daemon is this scan, with no cause active.
 *
 * A fork copies the values early and tells of the new task late, and its parent may be restored in between. So notes stay
 * when all is restored, and a task that has just been made, and has what its parent has no more, has it by us.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "nice.h"

char LICENSE[] SEC("license") = "GPL";

#define PF_EXITING 0x4
#define POLICY_FIFO 1
#define POLICY_RR 2
#define POLICY_IDLE 5
#define POLICY_DEADLINE 6
#define IOPRIO_CLASS_RT 1
#define NICE_0_PRIO 120
/* As /proc tells starts, and so the daemon. */
#define START_NS (10 * NSEC_PER_MSEC)

/* What gw_want_nice is to do. */
struct gw_nice_order {
	__u64 start_ns; /* of the process */
	__u32 cause;    /* 0: it is to get back what it had */
	__u32 reserved;
};

/* Of a thread that gw_want_nice has met. */
struct gw_nice_wanted {
	__u32 tid;
	__u32 tgid;
	__u32 is_news;  /* to be set, or to be restored */
	__u32 has;      /* is ours already */
	__s32 nice;     /* before */
	__u32 ioprio;   /* before */
	__u32 policy;
	__u32 reserved;
};

/* Of a thread, by gw_settle_nice. */
struct gw_nice_task {
	__u64 start_ns; /* of its process */
	__u32 tid;
	__u32 tgid;
	__u32 set;
	__u32 back;  /* to these: */
	__s32 nice;
	__u32 ioprio;
	__u32 taken; /* somebody else has set these instead: */
	__s32 nice_now;
	__u32 ioprio_now;
	__u32 reserved;
};

struct gw_nice_origin {
	__u64 start_ns;
	__u32 tgid;
	__u32 reserved;
};

struct gw_nice_turn {
	__u64 session;
	__u64 listed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_nice_order);
} nice_orders SEC(".maps");

/* Numbers of rules. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, __u32);
	__type(value, __u8);
} nice_causes SEC(".maps");

/* Processes that were released, until the next scan has found all that had it for their sake. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct gw_nice_origin);
	__type(value, __u8);
} nice_released SEC(".maps");

/* How many tasks of each user a scan has listed. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct gw_nice_turn);
} nice_turns SEC(".maps");

/* Tasks that have their niceness from their parent, and no note of it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} nice_unnoted SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;

/* In a scan. */
const volatile __u32 most_of_user;
/* Nobody is left who knows more: threads with real time get back what lies below it, too. */
const volatile __u32 is_end;
/* Only says what would be restored. */
const volatile __u32 dry_run;

/* Puts the types into the skeleton. */
struct gw_nice_wanted *wanted_type __attribute__((unused));
struct gw_nice_task *task_type __attribute__((unused));
enum gw_niceness *niceness_type __attribute__((unused));

static __always_inline bool is_realtime(struct task_struct *task)
{
	return task->policy == POLICY_FIFO || task->policy == POLICY_RR || task->policy == POLICY_DEADLINE;
}

static __always_inline __u64 start_of(struct task_struct *task)
{
	__u64 start_ns = BPF_CORE_READ(task, group_leader, start_boottime);

	return start_ns - start_ns % START_NS;
}

/*
 * A note for a new task: what it has now, it has from its parent. Nobody gets more by it than the kernel would have given
 * without us: from a parent with SCHED_RESET_ON_FORK no negative nice value is inherited. Only who may raise takes that
 * flag away, so it is there still. Returns whether there is nothing left to note.
 */
static __always_inline bool hand_on(const struct gw_nice_note *from, struct task_struct *parent, struct task_struct *task)
{
	__u32 has = niceness_of(task), no_more = has & ~niceness_of(parent);
	struct gw_nice_note note = *from;

	note.ours = has & (from->ours | from->wanted | (from->once & no_more));
	note.wanted = from->wanted & ~has;
	note.returning = 0;
	note.taken = 0;
	note.once = note.ours;
	note.since_ns = task->start_boottime;
	/* What is not ours yet, it has of its own. */
	if (!(note.ours & GW_NICE))
		note.nice_before = task->static_prio - NICE_0_PRIO;
	else if (note.nice_before < 0 && BPF_CORE_READ_BITFIELD_PROBED(parent, sched_reset_on_fork))
		note.nice_before = 0;
	if (!(note.ours & GW_IO_CLASS))
		note.ioprio_before = ioprio_of(task);
	if (!(note.ours | note.wanted))
		return true;
	return bpf_task_storage_get(&gw_nice_notes, task, &note, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* Runs in the parent, before the new task first runs. The kernel skips it where it has just preempted it on the same CPU. */
SEC("tp_btf/task_newtask")
int BPF_PROG(gw_inherit_nice, struct task_struct *task, unsigned long clone_flags)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct gw_nice_note *from = bpf_task_storage_get(&gw_nice_notes, parent, NULL, 0);

	if (from)
		hand_on(from, parent, task);
	return 0;
}

/*
 * The same, a little later, with interrupts off: nothing preempts it, so it is never skipped. It comes second, since there is not
 * always memory to be had there (PREEMPT_RT; before Linux 6.4 not safely). So whoever it leaves without a note is counted.
 */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(gw_inherit_late, struct task_struct *task)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct gw_nice_note *from = bpf_task_storage_get(&gw_nice_notes, parent, NULL, 0);
	__u32 first = 0;
	__u64 *unnoted;

	if (!from || bpf_task_storage_get(&gw_nice_notes, task, NULL, 0))
		return 0;
	if (LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 4, 0) && hand_on(from, parent, task))
		return 0;
	unnoted = niceness_of(task) & (from->ours | from->wanted) ? bpf_map_lookup_elem(&nice_unnoted, &first) : NULL;
	if (unnoted)
		__sync_fetch_and_add(unnoted, 1);
	return 0;
}

/* What may be lowered of it: nothing of what has real time, or is idle already. */
static __always_inline __u32 lowerable(struct task_struct *task)
{
	__u32 io_class = ioprio_of(task) >> IOPRIO_CLASS_SHIFT, may = 0;

	if (is_realtime(task) || task->policy == POLICY_IDLE)
		return 0;
	if (task->static_prio < NICE_19_PRIO)
		may |= GW_NICE;
	if (io_class != IOPRIO_CLASS_IDLE && io_class != IOPRIO_CLASS_RT && bpf_core_field_exists(task->io_context) &&
	    !shares_io_class(task))
		may |= GW_IO_CLASS;
	return may;
}

/* The note of a task, which it gets now if it has inherited without one. NULL: nothing of it is by us. */
static __always_inline struct gw_nice_note *noted(struct task_struct *task)
{
	struct gw_nice_note *note = bpf_task_storage_get(&gw_nice_notes, task, NULL, 0), own;

	if (note)
		return note;
	note = note_of(task);
	if (!note)
		return NULL;
	own = *note;
	own.ours = own.once = niceness_by_us(task);
	own.wanted = own.returning = own.taken = 0;
	/* Who started it, and what that one handed on, nobody knows any more: nothing that is not everybody's. */
	if (own.nice_before < 0)
		own.nice_before = 0;
	if (!own.ours)
		return NULL;
	return bpf_task_storage_get(&gw_nice_notes, task, &own, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

static __always_inline bool want(struct task_struct *task, const struct gw_nice_order *order, struct gw_nice_wanted *w)
{
	struct gw_nice_note *note = noted(task);
	struct gw_nice_note none = {};
	__u32 may;

	if (!note)
		note = bpf_task_storage_get(&gw_nice_notes, task, &none, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!note)
		return false;
	/* What has been restored meanwhile is no longer ours, and what has not is not what the user gave. */
	note->ours &= ~(note->returning & ~niceness_of(task));
	note->returning = 0;
	may = lowerable(task) & ~(note->ours | note->wanted | note->taken);
	if (may & GW_NICE)
		note->nice_before = task->static_prio - NICE_0_PRIO;
	if (may & GW_IO_CLASS)
		note->ioprio_before = ioprio_of(task);
	if (!note->since_ns)
		note->since_ns = bpf_ktime_get_boot_ns();
	note->origin = task->tgid;
	note->origin_start_ns = start_of(task);
	note->cause = order->cause;
	note->wanted |= may;
	note->once |= may;
	w->is_news = note->wanted;
	w->has = note->ours;
	w->nice = note->nice_before;
	w->ioprio = note->ioprio_before;
	return true;
}

static __always_inline bool release(struct task_struct *task, struct gw_nice_wanted *w)
{
	struct gw_nice_note *note = noted(task);

	if (!note)
		return false;
	note->cause = 0;
	w->is_news = note->ours | note->wanted;
	/* What somebody else has set stays. */
	w->nice = w->is_news & GW_NICE ? note->nice_before : task->static_prio - NICE_0_PRIO;
	w->ioprio = w->is_news & GW_IO_CLASS ? note->ioprio_before : ioprio_of(task);
	return true;
}

SEC("iter/task")
int gw_want_nice(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_nice_origin origin = {};
	struct gw_nice_wanted w = {};
	struct gw_nice_order *order;
	__u32 first = 0;
	__u8 yes = 1;

	order = bpf_map_lookup_elem(&nice_orders, &first);
	if (!task || !order || start_of(task) != order->start_ns)
		return 0;
	w.tid = task->pid;
	w.tgid = task->tgid;
	w.policy = task->policy;
	origin.start_ns = order->start_ns;
	origin.tgid = task->tgid;
	if (order->cause) {
		bpf_map_delete_elem(&nice_released, &origin);
		if (!want(task, order, &w))
			return 0;
	} else {
		bpf_map_update_elem(&nice_released, &origin, &yes, BPF_ANY);
		if (!release(task, &w))
			return 0;
	}
	bpf_seq_write(ctx->meta->seq, &w, sizeof(w));
	return 0;
}

static __always_inline bool is_installed(const struct gw_nice_note *note)
{
	struct gw_nice_origin origin = { .start_ns = note->origin_start_ns, .tgid = note->origin };
	__u32 cause = note->cause;

	return cause && bpf_map_lookup_elem(&nice_causes, &cause) && !bpf_map_lookup_elem(&nice_released, &origin);
}

/* Whether it is still its user's turn in this scan. */
static __always_inline bool has_turn(struct task_struct *task, __u64 session)
{
	__u32 uid = BPF_CORE_READ(task, real_cred, uid.val);
	struct gw_nice_turn *turn = bpf_map_lookup_elem(&nice_turns, &uid);
	struct gw_nice_turn first = { .session = session, .listed = 1 };

	if (!turn || turn->session != session) {
		bpf_map_update_elem(&nice_turns, &uid, &first, BPF_ANY);
		return true;
	}
	return turn->listed++ < most_of_user;
}

/* What follows from what the task has; the note says so once it is listed. */
static __always_inline struct gw_nice_note settled(struct task_struct *task, const struct gw_nice_note *note)
{
	__u32 has = niceness_of(task), lost;
	struct gw_nice_note now = *note;

	if (!is_installed(note))
		now.cause = 0;
	now.ours |= note->wanted & has;
	now.wanted &= ~has;
	if (!now.cause || is_realtime(task))
		now.wanted = 0;
	lost = now.ours & ~has;
	now.ours &= has;
	now.taken |= lost & ~note->returning;
	now.returning = !now.cause && (is_end || !is_realtime(task)) ? now.ours : 0;
	return now;
}

SEC("iter/task")
int gw_settle_nice(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_nice_note *note, now;
	struct gw_nice_task t = {};

	/* What ends starts nothing any more. A zombie cannot be restored, and stays for as long as its parent likes. */
	if (!task || task->flags & PF_EXITING)
		return 0;
	note = noted(task);
	if (!note)
		return 0;
	if (!(note->ours | note->wanted))
		return 0;
	now = settled(task, note);
	t.set = now.wanted;
	t.back = now.returning;
	t.taken = now.taken & ~note->taken;
	if (t.set | t.back | t.taken) {
		if (!has_turn(task, ctx->meta->session_id))
			return 0;
		t.start_ns = start_of(task);
		t.tid = task->pid;
		t.tgid = task->tgid;
		t.nice = note->nice_before;
		t.ioprio = note->ioprio_before;
		t.nice_now = task->static_prio - NICE_0_PRIO;
		t.ioprio_now = ioprio_of(task);
		if (bpf_seq_write(ctx->meta->seq, &t, sizeof(t)))
			return 0;
	}
	if (!dry_run)
		*note = now;
	return 0;
}
