// SPDX-License-Identifier: GPL-2.0-only
/*
 * Processes and threads as the kernel knows them, read without files. Any process that may read a directory can hold
 * its lock as long as it likes, in /proc and in cgroups too: the daemon's threads at high priority must not wait for
 * it.
 *
 *   gw_list_processes   each process of a network namespace, in brief
 *   gw_list_prints      the same processes, by a fingerprint that shows whether one has changed
 *   gw_list_elsewhere   those with explicit classification that are in another namespace
 *   gw_list_threads     of one process or one thread, by the iterator's parameter
 *   gw_show_process     everything that rules match on, of the process that is the parameter, or one of its threads
 *   gw_show_cgroup      path and owner of the cgroup that is the parameter
 *
 * Everything is read without a lock, while the process runs. The reader holds a pidfd, and checks afterwards whether
 * the process still lives. Changes nothing.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "tasks.h"
#include "nice.h"

char LICENSE[] SEC("license") = "GPL";

#define TASK_RUNNING 0
#define TASK_STOPPED_BIT 0x4 /* __TASK_STOPPED */
#define TASK_FROZEN 0x8000   /* since 6.1 */
#define PF_EXITING 0x4
#define SIGNAL_GROUP_EXIT 0x4
#define DEEPEST 32
#define DEEPEST_GROUP 16
#define POLICY_IDLE 5

const volatile __u32 netns_inum;

/* Too large for the stack. Each of the daemon's threads loads its own object, so these have one user at a time. */
struct gw_process process_record;
struct gw_cgroup cgroup_record;
__u64 shown_session;

/* Puts the type into the skeleton. */
struct gw_thread *thread_type __attribute__((unused));
struct gw_fingerprint *fingerprint_type __attribute__((unused));
struct gw_elsewhere *elsewhere_type __attribute__((unused));

/*
 * The outermost names come first, so that nesting cgroups does not hide them: of a path too deep only these are
 * returned, with a last name that says so. Returns whether that is so.
 */
static __noinline int name_cgroup(struct gw_cgroup_names *to, struct cgroup *cgroup)
{
	static const char cut[] = "...";
	int level = BPF_CORE_READ(cgroup, level);
	__u32 at = 0;

	for (int depth = 1; depth <= DEEPEST && depth <= level && at <= GW_PATH_BYTES - sizeof(cut); depth++) {
		struct cgroup *ancestor = NULL;
		long bytes;

		bpf_probe_read_kernel(&ancestor, sizeof(ancestor),
				      (void *)cgroup + bpf_core_field_offset(cgroup->ancestors) +
					      depth * sizeof(ancestor));
		bytes = bpf_probe_read_kernel_str(to->names + at, GW_NAME_BYTES, BPF_CORE_READ(ancestor, kn, name));
		if (bytes <= 0 || bytes > GW_NAME_BYTES)
			break;
		at += bytes;
		if (depth == level) {
			to->bytes = at;
			return 0;
		}
	}
	to->bytes = at;
	if (!level)
		return 0;
	if (at <= GW_PATH_BYTES + GW_NAME_BYTES - sizeof(cut)) {
		__builtin_memcpy(to->names + at, cut, sizeof(cut));
		to->bytes = at + sizeof(cut);
	}
	return 1;
}

static __always_inline __u32 netns_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, nsproxy, net_ns, ns.inum);
}

static __always_inline __u32 state_of(struct task_struct *task)
{
	__u32 state = task->__state == TASK_RUNNING ? GW_AWAKE : 0;

	if (task->flags & PF_EXITING || BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT)
		state |= GW_ENDING;
	if (task->__state & (TASK_STOPPED_BIT | TASK_FROZEN))
		state |= GW_STOPPED;
	return state;
}

/* By its inode. Only a process that may write to a directory can name a file in it, in whatever mount namespace. */
static __always_inline __u64 directory_of(struct file *file)
{
	return BPF_CORE_READ(file, f_path.dentry, d_parent, d_inode, i_ino);
}

/* It was removed, or another was renamed over it. */
static __always_inline bool is_gone(struct file *file)
{
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);

	return !BPF_CORE_READ(dentry, d_hash.pprev) && BPF_CORE_READ(dentry, d_parent) != dentry;
}

static __always_inline void list(struct seq_file *seq, struct task_struct *task, struct mm_struct *mm)
{
	struct file *file = BPF_CORE_READ(mm, exe_file);
	struct gw_thread thread = {
		.start_ns = BPF_CORE_READ(task, group_leader, start_boottime),
		.cpu_ns = task->se.sum_exec_runtime,
		.inode = BPF_CORE_READ(file, f_inode, i_ino),
		.gone_from = is_gone(file) ? directory_of(file) : 0,
		.tgid = task->tgid,
		.tid = task->pid,
		.uid = BPF_CORE_READ(task, real_cred, uid.val),
		.netns_inum = netns_of(task),
		.state = state_of(task),
		.tasks = BPF_CORE_READ(task, signal, nr_threads),
	};

	bpf_seq_write(seq, &thread, sizeof(thread));
}

SEC("iter/task")
int gw_list_processes(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct mm_struct *mm;

	if (!task || task->pid != task->tgid)
		return 0;
	mm = task->mm;
	if (mm && netns_of(task) == netns_inum)
		list(ctx->meta->seq, task, mm);
	return 0;
}

SEC("iter/task")
int gw_list_threads(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (task)
		list(ctx->meta->seq, task, task->mm);
	return 0;
}

/* The group that real-time bandwidth is shared out by, where it is (CONFIG_RT_GROUP_SCHED). */
static __always_inline void show_share(struct gw_process *to, struct task_struct *task)
{
	struct task_group *group = NULL;
	struct cgroup *cgroup;

	to->share_kind = GW_NO_SHARE;
	if (!bpf_core_field_exists(group->rt_bandwidth) || !bpf_core_field_exists(task->sched_task_group))
		return;
	group = BPF_CORE_READ(task, sched_task_group);
	cgroup = BPF_CORE_READ(group, css.cgroup);
	if (!cgroup)
		return;
	to->share_us = BPF_CORE_READ(group, rt_bandwidth.rt_runtime);
	/* ~0: no limit. */
	if (to->share_us > 0)
		to->share_us /= 1000;
	if (name_cgroup(&to->share, cgroup))
		to->share.bytes = ~0U;
	if (BPF_CORE_READ(cgroup, root, hierarchy_id))
		to->share_kind = GW_SHARE_V1;
	else if (to->share.bytes)
		to->share_kind = GW_SHARE_V2;
}

static __always_inline bool is_idle_group(struct task_struct *task)
{
	struct task_group *group = NULL;

	if (!bpf_core_field_exists(group->idle) || !bpf_core_field_exists(task->sched_task_group))
		return false;
	group = BPF_CORE_READ(task, sched_task_group);
	for (int depth = 0; group && depth < DEEPEST_GROUP; depth++) {
		if (BPF_CORE_READ(group, idle) > 0)
			return true;
		group = BPF_CORE_READ(group, parent);
	}
	return false;
}

/* Values that giveway has set are not the user's. */
static __always_inline __u32 idleness_of(struct task_struct *task)
{
	__u32 by_us = niceness_by_us(task), idleness = 0;

	if (task->static_prio == NICE_19_PRIO && !(by_us & GW_NICE))
		idleness |= GW_NICE_19;
	if (task->policy == POLICY_IDLE)
		idleness |= GW_SCHED_IDLE;
	if (ioprio_of(task) >> IOPRIO_CLASS_SHIFT == IOPRIO_CLASS_IDLE && !(by_us & GW_IO_CLASS))
		idleness |= GW_IO_IDLE;
	if (is_idle_group(task))
		idleness |= GW_GROUP_IDLE;
	return idleness;
}

static __always_inline void show_record(struct gw_process *to, struct task_struct *task)
{
	struct gw_record *record = bpf_task_storage_get(&gw_records_3, task, NULL, 0);
	struct gw_rates unlimited = {};
	struct gw_by_rule none = {};

	to->chosen = record ? record->class : 0;
	to->chosen_by = record ? record->uid : 0;
	to->chosen_limit = record ? record->limit : 0;
	to->chosen_rates = record ? record->rates : unlimited;
	to->by_hand = record ? record->by_hand : 0;
	to->inherited = record ? record->inherited : none;
}

static __always_inline void show_executable(struct gw_process *to, struct mm_struct *mm)
{
	struct file *file = mm->exe_file;
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	to->inode = BPF_CORE_READ(inode, i_ino);
	to->directory = directory_of(file);
	to->is_gone = is_gone(file);
	to->device = BPF_CORE_READ(inode, i_sb, s_dev);
	to->exe_mode = BPF_CORE_READ(inode, i_mode);
	to->exe_uid = BPF_CORE_READ(inode, i_uid.val);
	if (bpf_d_path(&file->f_path, to->exe, sizeof(to->exe)) < 0)
		to->exe[0] = 0;
}

SEC("iter/task")
int gw_show_process(struct bpf_iter__task *ctx)
{
	struct gw_process *to = &process_record;
	struct task_struct *task = ctx->task;
	struct mm_struct *mm;

	if (!task)
		return 0;
	mm = task->mm;
	/* The first living thread of a process will do. */
	if (!mm || shown_session == ctx->meta->session_id)
		return 0;
	to->start_ns = BPF_CORE_READ(task, group_leader, start_boottime);
	to->image = (__u64)mm;
	to->execs = task->self_exec_id;
	to->tgid = task->tgid;
	to->parent = BPF_CORE_READ(task, real_parent, tgid);
	to->uid = BPF_CORE_READ(task, real_cred, uid.val);
	to->euid = BPF_CORE_READ(task, real_cred, euid.val);
	to->tasks = BPF_CORE_READ(task, signal, nr_threads);
	to->netns_inum = netns_of(task);
	to->idleness = idleness_of(task);
	show_record(to, task);
	show_executable(to, mm);
	name_cgroup(&to->cgroup, BPF_CORE_READ(task, cgroups, dfl_cgrp));
	show_share(to, task);
	/* An exec in between may have given this memory to another program. */
	if (task->mm == mm && !bpf_seq_write(ctx->meta->seq, to, sizeof(*to)))
		shown_session = ctx->meta->session_id;
	return 0;
}

SEC("iter/task")
int gw_list_prints(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_fingerprint print = {};
	struct gw_saved_task *saved;
	struct gw_record *record;

	if (!task || task->pid != task->tgid || !task->mm || netns_of(task) != netns_inum)
		return 0;
	record = bpf_task_storage_get(&gw_records_3, task, NULL, 0);
	print.start_ns = task->start_boottime;
	print.image = (__u64)task->mm;
	print.cgroup_id = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	print.tgid = task->tgid;
	print.uid = BPF_CORE_READ(task, real_cred, uid.val);
	print.idleness = idleness_of(task);
	if (record) {
		print.chosen = record->class | record->limit << 16;
		print.inherited = record->inherited.rule;
		print.inherited_from = record->inherited.rule ? record->inherited.pid : 0;
		print.named = record->own.rule;
		print.by_hand = record->by_hand;
	}
	saved = niceness_by_us(task) ? saved_of(task) : NULL;
	print.nice_by = saved ? saved->origin : 0;
	print.nice_cause = saved ? saved->cause : 0;
	bpf_seq_write(ctx->meta->seq, &print, sizeof(print));
	return 0;
}

SEC("iter/task")
int gw_list_elsewhere(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct gw_elsewhere found = {};
	struct gw_record *record;

	if (!task || task->pid != task->tgid || !task->mm)
		return 0;
	found.netns_inum = netns_of(task);
	if (found.netns_inum == netns_inum)
		return 0;
	record = bpf_task_storage_get(&gw_records_3, task, NULL, 0);
	if (!record || !(record->class || record->limit || record->by_hand))
		return 0;
	found.start_ns = task->start_boottime;
	found.tgid = task->tgid;
	found.uid = BPF_CORE_READ(task, real_cred, uid.val);
	bpf_probe_read_kernel_str(found.command, sizeof(found.command), task->comm);
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}

SEC("iter/cgroup")
int gw_show_cgroup(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cgroup = ctx->cgroup;
	struct kernfs_iattrs *attributes = NULL;

	if (!cgroup)
		return 0;
	name_cgroup(&cgroup_record.names, cgroup);
	/* Directories of the root user's own have none. */
	if (bpf_core_field_exists(cgroup->kn->iattr))
		attributes = BPF_CORE_READ(cgroup, kn, iattr);
	cgroup_record.uid = attributes ? BPF_CORE_READ(attributes, ia_uid.val) : 0;
	bpf_seq_write(ctx->meta->seq, &cgroup_record, sizeof(cgroup_record));
	return 0;
}
