// SPDX-License-Identifier: GPL-2.0-only
/*
 * Inheritance of classes: a process hands its class, by explicit classification or by a rule that names it, on to what
 * it starts. Each task that inherits has a record (inherit.h).
 *
 *   gw_inherit       copies the record to a new task
 *   gw_inherit_late  the same, where the kernel skipped the first
 *   gw_see_exec      after an exec, the previous program's rule is inherited, and the new program's counts where it names
 *                    only the file: so what it starts at once inherits too
 *   gw_hand_down     over all tasks: applies the daemon's orders, which rule names which process; and, by the process tree,
 *                    to what was started before
 *   gw_set_by_hand   over all tasks: sets a setting by hand on a process and its descendants, as far as the process tree
 *                    shows them; or removes it
 *   gw_list_by_hand  the tasks' settings by hand
 *   gw_list_limits   the tasks' rate limits
 *   gw_list_inheriting  the processes with a record
 *
 * Costs one lookup at each start of a task, and at each exec. Changes no task.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "inherit.h"
#include "queueing.h"

char LICENSE[] SEC("license") = "GPL";

#define PF_EXITING 0x4
#define INIT 1
/* The resolution of start times in /proc, which the daemon uses. */
#define START_NS (10 * NSEC_PER_MSEC)

struct gw_executable {
	__u64 inode;
	__u32 device; /* as in mountinfo: major << 20 | minor */
	__u32 owner;  /* in btrfs, another user's subvolume may have the same inode numbers */
};

struct gw_process_key {
	__u64 start_ns; /* as in /proc */
	__u32 tgid;
	__u32 reserved;
};

struct gw_name_order {
	__u64 rule;       /* that names the process; 0: none */
	__u64 image;      /* that the order applies to */
	__u64 execs;      /* of the process, written here */
	__u64 is_applied; /* written here, with what its heirs inherit: */
	struct gw_by_rule handed_on;
};

/* Sets or removes a setting by hand. */
struct gw_hand_order {
	__u64 bit;
	__u64 start_ns; /* of the process, as in /proc; 0: the setting is removed */
	__u32 tgid;
	__u32 uid;       /* only this user's processes, by real uid; ~0: everybody's */
	__u32 treatment; /* for what they connect, until the daemon knows the socket; 0: none any more */
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gw_hand_order);
} hand_orders SEC(".maps");

/* Of rules that match by the executable alone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gw_executable);
	__type(value, __u64);
} rule_of_file SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct gw_process_key);
	__type(value, struct gw_name_order);
} name_orders SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;

const volatile __u32 netns_inum;

/* Puts the types into the skeleton. */
struct gw_record *record_type __attribute__((unused));
struct gw_rates *rates_type __attribute__((unused));
struct gw_chosen_limit *limit_type __attribute__((unused));
struct gw_executable *executable_type __attribute__((unused));
struct gw_process_key *key_type __attribute__((unused));
struct gw_name_order *order_type __attribute__((unused));
struct gw_hand_order *hand_order_type __attribute__((unused));

static __always_inline struct gw_record *record_of(struct task_struct *task)
{
	return bpf_task_storage_get(&gw_records_3, task, NULL, 0);
}

static __always_inline __u32 uid_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, real_cred, uid.val);
}

/* What a process hands on by rule. */
static __always_inline struct gw_by_rule by_rule(const struct gw_record *record, struct task_struct *of)
{
	struct gw_by_rule by = record->inherited;

	if (record->own.rule) {
		by = record->own;
		by.uid = uid_of(of);
	}
	return by;
}

static __always_inline bool is_from(const struct gw_by_rule *by, const struct gw_by_rule *other)
{
	return by->rule == other->rule && by->pid == other->pid && by->start_ns == other->start_ns &&
	       by->execs == other->execs;
}

/*
 * A thread shares its process's record. A new process inherits it; its own rule is the same until it executes another
 * program.
 */
static __always_inline void hand_on(struct task_struct *parent, struct task_struct *task)
{
	struct gw_record *from = record_of(parent);
	struct gw_record record;

	if (!from || !(from->class || from->limit || from->own.rule || from->inherited.rule || from->by_hand))
		return;
	record = *from;
	if (task->tgid != parent->tgid) {
		record.inherited = by_rule(from, parent);
		record.parent = parent->tgid;
		record.parent_start_ns = BPF_CORE_READ(parent, group_leader, start_boottime);
		record.image = 0;
	}
	/* Keeps an existing record. */
	bpf_task_storage_get(&gw_records_3, task, &record, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* Runs in the parent, before the new task runs. The kernel skips it where it has just preempted it on the same CPU. */
SEC("tp_btf/task_newtask")
int BPF_PROG(gw_inherit, struct task_struct *task, unsigned long clone_flags)
{
	hand_on(bpf_get_current_task_btf(), task);
	return 0;
}

/* Where the kernel skipped the first: nothing preempts this one (nice.bpf.c). */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(gw_inherit_late, struct task_struct *task)
{
	if (LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 4, 0))
		hand_on(bpf_get_current_task_btf(), task);
	return 0;
}

static __always_inline void name(struct gw_by_rule *own, struct task_struct *task, __u64 rule)
{
	own->rule = 0;
	own->pid = task->tgid;
	own->start_ns = BPF_CORE_READ(task, group_leader, start_boottime);
	own->execs = task->self_exec_id;
	own->uid = uid_of(task);
	BPF_CORE_READ_STR_INTO(&own->name, task, group_leader, comm);
	own->rule = rule;
}

/* Runs in the process, after the new program's credentials are active. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(gw_see_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	struct gw_executable file = {};
	struct gw_record none = {};
	struct gw_record *record;
	__u64 *rule = NULL;

	if (task->tgid == INIT)
		return 0;
	if (task->nsproxy->net_ns->ns.inum == netns_inum) {
		file.inode = bprm->file->f_inode->i_ino;
		file.device = bprm->file->f_inode->i_sb->s_dev;
		file.owner = bprm->file->f_inode->i_uid.val;
		rule = bpf_map_lookup_elem(&rule_of_file, &file);
	}
	record = bpf_task_storage_get(&gw_records_3, task, &none, rule ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	/* Another daemon's program may have run already, during a takeover. */
	if (!record || record->image == (__u64)task->mm)
		return 0;
	/* From here on its class comes from its previous program, whatever happens to its parent's. */
	if (record->own.rule)
		record->parent = 0;
	record->inherited = by_rule(record, task);
	record->own.rule = 0;
	record->image = (__u64)task->mm;
	if (rule)
		name(&record->own, task, *rule);
	return 0;
}

static __always_inline struct gw_name_order *order_for(__u32 tgid, __u64 start_ns)
{
	struct gw_process_key key = { .start_ns = start_ns - start_ns % START_NS, .tgid = tgid };

	return bpf_map_lookup_elem(&name_orders, &key);
}

/* Applies the daemon's order. */
static __always_inline struct gw_record *apply_order(struct gw_name_order *order, struct task_struct *task,
					      struct gw_record *record)
{
	struct gw_record none = {};

	if ((__u64)task->mm != order->image || task->tgid == INIT)
		return record;
	if (order->rule && !record)
		record = bpf_task_storage_get(&gw_records_3, task, &none, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!record)
		return NULL;
	if (!order->rule)
		record->own.rule = 0;
	else if (record->own.rule != order->rule)
		name(&record->own, task, order->rule);
	record->image = order->image;
	order->execs = task->self_exec_id;
	order->handed_on = by_rule(record, task);
	order->is_applied = 1;
	return record;
}

/* A thread that was created meanwhile. */
static __always_inline void follow_leader(struct task_struct *task, struct gw_record *record)
{
	struct task_struct *leader = task->group_leader;
	struct gw_record *of_process = leader ? record_of(leader) : NULL;

	if (!of_process)
		return;
	if (!record)
		hand_on(leader, task);
	else if (!is_from(&record->own, &of_process->own) || !is_from(&record->inherited, &of_process->inherited)) {
		record->own = of_process->own;
		record->inherited = of_process->inherited;
	}
}

/*
 * By its parent, while that still runs the program that started it. An orphan's parent is an ancestor or init, and may
 * not be the one that started it; but the process that it inherited from may have another rule by now.
 */
static __always_inline void follow_parent(struct task_struct *task, struct gw_record *record)
{
	struct task_struct *parent = task->real_parent;
	struct task_struct *leader = parent ? parent->group_leader : NULL;
	struct gw_record *of_parent = leader ? record_of(leader) : NULL;
	struct gw_record made = {};
	struct gw_name_order *order;

	if (of_parent && leader->tgid != INIT && task->parent_exec_id == leader->self_exec_id) {
		struct gw_by_rule from = by_rule(of_parent, leader);

		if (!record && (of_parent->class || from.rule)) {
			made = *of_parent;
			made.own.rule = 0;
			made.inherited = from;
			made.image = 0;
			made.parent = leader->tgid;
			made.parent_start_ns = leader->start_boottime;
			bpf_task_storage_get(&gw_records_3, task, &made, BPF_LOCAL_STORAGE_GET_F_CREATE);
			return;
		}
		if (record && record->parent == (__u32)leader->tgid && record->parent_start_ns == leader->start_boottime) {
			if (!is_from(&record->inherited, &from))
				record->inherited = from;
			return;
		}
	}
	if (!record || !record->inherited.rule)
		return;
	order = order_for(record->inherited.pid, record->inherited.start_ns);
	if (order && order->is_applied && order->execs == record->inherited.execs && !is_from(&record->inherited, &order->handed_on))
		record->inherited = order->handed_on;
}

/* Run once to name the processes of the orders, and again for those that inherit from them. */
SEC("iter/task")
int gw_hand_down(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_record *record;
	struct gw_name_order *order;

	if (!task || !task->mm || task->flags & PF_EXITING)
		return 0;
	record = record_of(task);
	if (task->pid != task->tgid) {
		follow_leader(task, record);
		return 0;
	}
	order = order_for(task->tgid, task->start_boottime);
	if (order)
		record = apply_order(order, task, record);
	follow_parent(task, record);
	return 0;
}

static __always_inline bool has_by_hand(struct task_struct *task, __u64 bit)
{
	struct gw_record *record = task ? record_of(task) : NULL;

	return record && record->by_hand & bit;
}

/* The process itself, its descendants, and their threads. init is the parent of all orphans. */
static __always_inline bool is_target(struct gw_hand_order *order, struct task_struct *task)
{
	struct task_struct *leader = task->group_leader, *parent;

	if (!leader || leader->tgid == INIT || (order->uid != ~0U && uid_of(task) != order->uid))
		return false;
	if ((__u32)leader->tgid == order->tgid)
		return leader->start_boottime - leader->start_boottime % START_NS == order->start_ns;
	if (task != leader)
		return has_by_hand(leader, order->bit);
	parent = leader->real_parent;
	return parent && has_by_hand(parent->group_leader, order->bit);
}

/* A limit set by root stays when another user sets one for the same direction. */
static __always_inline void set_treatment(struct gw_record *record, const struct gw_hand_order *order)
{
	__u32 limits[2] = { GW_LIMIT_MASK << GW_LIMIT_SHIFT, (__u32)GW_LIMIT_MASK << GW_DOWNLOAD_SHIFT };
	bool is_by_root = order->uid == ~0U;
	__u32 treatment = order->treatment & GW_CLASS_MASK, i;

	if (!order->treatment) {
		record->hand_treatment = 0;
		record->hand_by_root = 0;
		return;
	}
	for (i = 0; i < 2; i++) {
		bool is_kept = record->hand_by_root & limits[i] && !is_by_root;
		__u32 limit = order->treatment & limits[i];

		if (limit && is_by_root)
			record->hand_by_root |= limits[i];
		treatment |= limit && !is_kept ? limit : record->hand_treatment & limits[i];
	}
	record->hand_treatment = treatment;
}

/* Lists each process that was changed: as long as it lists any, there may be more descendants. */
SEC("iter/task")
int gw_set_by_hand(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_process_key key = {};
	struct gw_record none = {};
	struct gw_hand_order *order;
	struct gw_record *record;
	__u32 first = 0;

	order = bpf_map_lookup_elem(&hand_orders, &first);
	if (!task || !order)
		return 0;
	record = record_of(task);
	if (!order->start_ns) {
		if (!record || !(record->by_hand & order->bit))
			return 0;
		record->by_hand &= ~order->bit;
		record->hand_treatment = 0;
		record->hand_by_root = 0;
	} else {
		if (record && record->by_hand & order->bit) {
			set_treatment(record, order);
			return 0;
		}
		if (task->flags & PF_EXITING || !task->mm || !is_target(order, task))
			return 0;
		if (!record)
			record = bpf_task_storage_get(&gw_records_3, task, &none, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!record)
			return 0;
		record->by_hand |= order->bit;
		set_treatment(record, order);
	}
	key.start_ns = BPF_CORE_READ(task, group_leader, start_boottime);
	key.tgid = task->tgid;
	bpf_seq_write(ctx->meta->seq, &key, sizeof(key));
	return 0;
}

SEC("iter/task")
int gw_list_by_hand(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_record *record = task ? record_of(task) : NULL;

	/* An ending task hands nothing on. */
	if (record && record->by_hand && !(task->flags & PF_EXITING))
		bpf_seq_write(ctx->meta->seq, &record->by_hand, sizeof(record->by_hand));
	return 0;
}

/* Of a process. */
SEC("iter/task")
int gw_list_inheriting(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_record *record = task && task->pid == task->tgid && task->mm ? record_of(task) : NULL;

	if (record && (record->class || record->limit || record->own.rule || record->inherited.rule || record->by_hand))
		bpf_seq_write(ctx->meta->seq, &task->tgid, sizeof(task->tgid));
	return 0;
}

SEC("iter/task")
int gw_list_limits(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_chosen_limit found = {};
	struct gw_record *record = task ? record_of(task) : NULL;

	if (!record || !record->limit)
		return 0;
	found.rates = record->rates;
	found.number = record->limit;
	found.class = record->class;
	found.uid = record->uid;
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
