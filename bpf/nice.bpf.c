// SPDX-License-Identifier: GPL-2.0-only
/*
 * Renices processes that are background, by implicit or explicit classification: nice 19 and the idle I/O class. Tracks
 * which threads are to get it, which have it by us, and which are to be restored. The daemon sets the values, by system
 * calls on the threads that are listed here, since no BPF program can.
 *
 *   gw_inherit_nice  copies the saved state to a new task, which has inherited the values themselves
 *   gw_inherit_late  the same, where the kernel skipped the first; counts the tasks that both missed
 *   gw_want_nice     for all threads of the process that is the parameter: saves their values, or marks them, and all that
 *                    were reniced on this process's account, to be restored
 *   gw_settle_nice   over all tasks: brings the saved state up to date with the tasks' values, and lists what is to be set,
 *                    what is to be restored, and what somebody else has set since
 *
 * A saved state is valid as long as its cause (a rule) is active and its origin (a process) has not been released. No
 * single task is ever announced: the next scan finds whatever is not set or restored yet. So the undo after a daemon's
 * death is this scan, with no cause active.
 *
 * A fork copies the values early and announces the new task late, and its parent may be restored in between. So a saved
 * state stays after the restore, and a new task with values that its parent no longer has, has them by us.
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
/* The resolution of start times in /proc, which the daemon uses. */
#define START_NS (10 * NSEC_PER_MSEC)

/* The request to gw_want_nice. */
struct gw_nice_order {
	__u64 start_ns; /* of the process */
	__u32 cause;    /* a rule; 0: restore */
	__u32 reserved;
};

/* A thread that gw_want_nice has visited. */
struct gw_nice_wanted {
	__u32 tid;
	__u32 tgid;
	__u32 is_news; /* to be set, or to be restored */
	__u32 has;     /* already ours */
	__s32 nice;    /* before */
	__u32 ioprio;  /* before */
	__u32 policy;
	__u32 reserved;
};

/* A thread in gw_settle_nice's list. */
struct gw_nice_task {
	__u64 start_ns; /* of its process */
	__u32 tid;
	__u32 tgid;
	__u32 set;
	__u32 back; /* to restore, to these values: */
	__s32 nice;
	__u32 ioprio;
	__u32 taken; /* set by somebody else, to these values: */
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

/* Released processes, until the next scan has found everything reniced on their account. */
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

/* Tasks that have inherited niceness without a saved state. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} nice_unsaved SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;

/* Per scan. */
const volatile __u32 most_of_user;
/* The last chance: threads with real-time priority are restored, too. */
const volatile __u32 is_end;
/* Only lists what would be restored. */
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
 * The saved state of a new task: it has its values from its parent. A task must not gain more than it would without us:
 * from a parent with SCHED_RESET_ON_FORK no negative nice value is inherited. Only a privileged process clears that
 * flag, so it is still set. Returns whether nothing is left to save.
 */
static __always_inline bool hand_on(const struct gw_saved_task *from, struct task_struct *parent, struct task_struct *task)
{
	__u32 has = niceness_of(task), no_more = has & ~niceness_of(parent);
	struct gw_saved_task saved = *from;

	saved.ours = has & (from->ours | from->wanted | (from->ever_ours & no_more));
	saved.wanted = from->wanted & ~has;
	saved.returning = 0;
	saved.taken = 0;
	saved.ever_ours = saved.ours;
	saved.since_ns = task->start_boottime;
	/* Values that are not ours yet are its own. */
	if (!(saved.ours & GW_NICE))
		saved.nice_before = task->static_prio - NICE_0_PRIO;
	else if (saved.nice_before < 0 && BPF_CORE_READ_BITFIELD_PROBED(parent, sched_reset_on_fork))
		saved.nice_before = 0;
	if (!(saved.ours & GW_IO_CLASS))
		saved.ioprio_before = ioprio_of(task);
	if (!(saved.ours | saved.wanted))
		return true;
	return bpf_task_storage_get(&gw_saved_tasks, task, &saved, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* Runs in the parent, before the new task runs. The kernel skips it where it has just preempted it on the same CPU. */
SEC("tp_btf/task_newtask")
int BPF_PROG(gw_inherit_nice, struct task_struct *task, unsigned long clone_flags)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct gw_saved_task *from = bpf_task_storage_get(&gw_saved_tasks, parent, NULL, 0);

	if (from)
		hand_on(from, parent, task);
	return 0;
}

/*
 * The same, a little later, with interrupts off: nothing preempts it, so it is never skipped. It comes second, since
 * memory is not always available there (PREEMPT_RT; before Linux 6.4 not safely). It counts the tasks that it leaves
 * without a saved state.
 */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(gw_inherit_late, struct task_struct *task)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	struct gw_saved_task *from = bpf_task_storage_get(&gw_saved_tasks, parent, NULL, 0);
	__u32 first = 0;
	__u64 *unsaved;

	if (!from || bpf_task_storage_get(&gw_saved_tasks, task, NULL, 0))
		return 0;
	if (LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 4, 0) && hand_on(from, parent, task))
		return 0;
	unsaved = niceness_of(task) & (from->ours | from->wanted) ? bpf_map_lookup_elem(&nice_unsaved, &first) : NULL;
	if (unsaved)
		__sync_fetch_and_add(unsaved, 1);
	return 0;
}

/* What may be lowered: nothing on a real-time or idle task. */
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

/* The saved state of a task, created now if it was inherited without one. NULL: nothing is by us. */
static __always_inline struct gw_saved_task *own_saved(struct task_struct *task)
{
	struct gw_saved_task *saved = bpf_task_storage_get(&gw_saved_tasks, task, NULL, 0), own;

	if (saved)
		return saved;
	saved = saved_of(task);
	if (!saved)
		return NULL;
	own = *saved;
	own.ours = own.ever_ours = niceness_by_us(task);
	own.wanted = own.returning = own.taken = 0;
	/* The original parent is unknown by now: restore nothing privileged. */
	if (own.nice_before < 0)
		own.nice_before = 0;
	if (!own.ours)
		return NULL;
	return bpf_task_storage_get(&gw_saved_tasks, task, &own, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

static __always_inline bool want(struct task_struct *task, const struct gw_nice_order *order, struct gw_nice_wanted *w)
{
	struct gw_saved_task *saved = own_saved(task);
	struct gw_saved_task none = {};
	__u32 may;

	if (!saved)
		saved = bpf_task_storage_get(&gw_saved_tasks, task, &none, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!saved)
		return false;
	/* What was restored meanwhile is no longer ours; what was not is no choice of the user's. */
	saved->ours &= ~(saved->returning & ~niceness_of(task));
	saved->returning = 0;
	may = lowerable(task) & ~(saved->ours | saved->wanted | saved->taken);
	if (may & GW_NICE)
		saved->nice_before = task->static_prio - NICE_0_PRIO;
	if (may & GW_IO_CLASS)
		saved->ioprio_before = ioprio_of(task);
	if (!saved->since_ns)
		saved->since_ns = bpf_ktime_get_boot_ns();
	saved->origin = task->tgid;
	saved->origin_start_ns = start_of(task);
	saved->cause = order->cause;
	saved->wanted |= may;
	saved->ever_ours |= may;
	w->is_news = saved->wanted;
	w->has = saved->ours;
	w->nice = saved->nice_before;
	w->ioprio = saved->ioprio_before;
	return true;
}

static __always_inline bool release(struct task_struct *task, struct gw_nice_wanted *w)
{
	struct gw_saved_task *saved = own_saved(task);

	if (!saved)
		return false;
	saved->cause = 0;
	w->is_news = saved->ours | saved->wanted;
	/* A value that somebody else has set stays. */
	w->nice = w->is_news & GW_NICE ? saved->nice_before : task->static_prio - NICE_0_PRIO;
	w->ioprio = w->is_news & GW_IO_CLASS ? saved->ioprio_before : ioprio_of(task);
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

static __always_inline bool is_installed(const struct gw_saved_task *saved)
{
	struct gw_nice_origin origin = { .start_ns = saved->origin_start_ns, .tgid = saved->origin };
	__u32 cause = saved->cause;

	return cause && bpf_map_lookup_elem(&nice_causes, &cause) && !bpf_map_lookup_elem(&nice_released, &origin);
}

/* Whether its user may have another entry in this scan. */
static __always_inline bool may_list(struct task_struct *task, __u64 session)
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

/* The saved state that follows from the task's values; stored once the task is listed. */
static __always_inline struct gw_saved_task settled(struct task_struct *task, const struct gw_saved_task *saved)
{
	__u32 has = niceness_of(task), lost;
	struct gw_saved_task now = *saved;

	if (!is_installed(saved))
		now.cause = 0;
	now.ours |= saved->wanted & has;
	now.wanted &= ~has;
	if (!now.cause || is_realtime(task))
		now.wanted = 0;
	lost = now.ours & ~has;
	now.ours &= has;
	now.taken |= lost & ~saved->returning;
	now.returning = !now.cause && (is_end || !is_realtime(task)) ? now.ours : 0;
	return now;
}

SEC("iter/task")
int gw_settle_nice(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_saved_task *saved, now;
	struct gw_nice_task t = {};

	/* An ending task starts nothing. A zombie cannot be restored, and stays as long as its parent likes. */
	if (!task || task->flags & PF_EXITING)
		return 0;
	saved = own_saved(task);
	if (!saved)
		return 0;
	if (!(saved->ours | saved->wanted))
		return 0;
	now = settled(task, saved);
	t.set = now.wanted;
	t.back = now.returning;
	t.taken = now.taken & ~saved->taken;
	if (t.set | t.back | t.taken) {
		if (!may_list(task, ctx->meta->session_id))
			return 0;
		t.start_ns = start_of(task);
		t.tid = task->pid;
		t.tgid = task->tgid;
		t.nice = saved->nice_before;
		t.ioprio = saved->ioprio_before;
		t.nice_now = task->static_prio - NICE_0_PRIO;
		t.ioprio_now = ioprio_of(task);
		if (bpf_seq_write(ctx->meta->seq, &t, sizeof(t)))
			return 0;
	}
	if (!dry_run)
		*saved = now;
	return 0;
}
