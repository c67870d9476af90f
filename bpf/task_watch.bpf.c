// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reports starts of processes that rules may match, and new threads and ends of watched processes.
 *
 * A machine may start hundreds of processes a second that no rule matches. So the filter is here: an exec is reported
 * if the new file's inode number or the real user is watched, a new thread and an exit only for a watched thread group.
 * The inode number alone does not identify a file, since each device has its own; the reader checks again.
 *
 * The arguments of an exec are read here, where the kernel has just written them and before the program runs: later
 * they are the program's own memory, and may be mapped to a file that never answers.
 *
 * The hooks are machine-wide: execs count only in one network namespace. A watched process was found there, and stays
 * watched even if it moves to another one.
 *
 * Changes no process.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define EVENTS_BYTES (512 * 1024)
#define CHUNK_BYTES 256
#define MAX_FILES 4096
#define MAX_USERS 4096
#define MAX_PROCESSES 65536
#define CLONE_THREAD 0x00010000

const volatile __u32 netns_inum;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_FILES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} watched_files SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_USERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} watched_uids SEC(".maps");

/* Thread groups, by their ids in the initial pid namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} watched_tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
} events SEC(".maps");

/* Events that found the ring buffer full. */
__u64 lost_events;

/* Puts the shared types into the skeleton. */
struct gw_task_event *event_type __attribute__((unused));

static __always_inline bool is_watched_process(__u32 tgid)
{
	return bpf_map_lookup_elem(&watched_tasks, &tgid);
}

static __always_inline bool is_watched(struct task_struct *task, struct linux_binprm *bprm)
{
	__u64 inode = bprm->file->f_inode->i_ino;
	__u32 uid = task->cred->uid.val;

	if (!bpf_map_lookup_elem(&watched_files, &inode) && !bpf_map_lookup_elem(&watched_uids, &uid))
		return false;
	return task->nsproxy->net_ns->ns.inum == netns_inum;
}

static __always_inline void fill(struct gw_task_event *e, enum gw_task_event_kind kind, struct task_struct *task,
				 __u64 cpu_ns)
{
	e->t_ns = bpf_ktime_get_ns();
	e->start_ns = task->group_leader->start_boottime;
	e->cpu_ns = cpu_ns;
	e->image = 0;
	e->kind = kind;
	e->tgid = task->tgid;
	e->tid = task->pid;
	e->arguments_bytes = 0;
}

static __always_inline void report(enum gw_task_event_kind kind, struct task_struct *task, __u64 cpu_ns)
{
	struct gw_task_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&lost_events, 1);
		return;
	}
	fill(e, kind, task, cpu_ns);
	bpf_ringbuf_submit(e, 0);
}

/* From the calling process's memory to the bytes after the event. */
static __always_inline bool copy_arguments(struct bpf_dynptr *record, unsigned long from, __u32 bytes)
{
	for (__u32 at = 0; at < GW_ARGUMENTS_BYTES; at += CHUNK_BYTES) {
		void *chunk;
		__u32 left;

		if (at >= bytes)
			break;
		chunk = bpf_dynptr_data(record, sizeof(struct gw_task_event) + at, CHUNK_BYTES);
		left = bytes - at;
		if (left > CHUNK_BYTES)
			left = CHUNK_BYTES;
		if (!chunk || bpf_probe_read_user(chunk, left, (void *)(from + at)))
			return false;
	}
	return true;
}

static __always_inline void report_exec(struct task_struct *task)
{
	struct mm_struct *mm = task->mm;
	unsigned long from = mm->arg_start, to = mm->arg_end;
	__u32 bytes = to - from < GW_ARGUMENTS_BYTES ? to - from : GW_ARGUMENTS_BYTES;
	__u32 room = (bytes + CHUNK_BYTES - 1) & ~(CHUNK_BYTES - 1);
	struct gw_task_event *e;
	struct bpf_dynptr record;

	if (bpf_ringbuf_reserve_dynptr(&events, sizeof(*e) + room, 0, &record)) {
		__sync_fetch_and_add(&lost_events, 1);
		bpf_ringbuf_discard_dynptr(&record, 0);
		return;
	}
	e = bpf_dynptr_data(&record, 0, sizeof(*e));
	if (e) {
		fill(e, GW_TASK_EXEC, task, 0);
		e->image = (__u64)mm;
		e->arguments_bytes = copy_arguments(&record, from, bytes) ? bytes : ~0U;
	}
	bpf_ringbuf_submit_dynptr(&record, 0);
}

/* Runs in the process, after the new program's credentials are active. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(gw_see_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	if (is_watched_process(task->tgid) || is_watched(task, bprm))
		report_exec(task);
	return 0;
}

/* Runs in the parent, before the new thread first runs. */
SEC("tp_btf/task_newtask")
int BPF_PROG(gw_see_thread, struct task_struct *task, unsigned long clone_flags)
{
	if ((clone_flags & CLONE_THREAD) && is_watched_process(task->tgid))
		report(GW_TASK_THREAD, task, 0);
	return 0;
}

/* Two threads that exit together may both be the last one: the reader must handle two reports. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(gw_see_exit, struct task_struct *task)
{
	__u64 cpu_ns;

	if (!is_watched_process(task->tgid) || task->signal->live.counter)
		return 0;
	cpu_ns = task->signal->sum_sched_runtime + task->se.sum_exec_runtime;
	/* A leader that exited before its threads is not in the sum: its task stays until they are gone. */
	if (task->group_leader != task)
		cpu_ns += task->group_leader->se.sum_exec_runtime;
	report(GW_TASK_EXIT, task, cpu_ns);
	return 0;
}
