// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tells of the starts of processes that rules may mean, and of the threads and the end of those that are held.
 *
 * A machine may start hundreds of processes a second that nobody asked about. So everything is filtered here: an exec
 * is told when the new file's inode number or the real user is watched, a new thread and an end only of a held thread
 * group. The inode number alone does not say which file it is, for devices number theirs alike; the reader looks again.
 *
 * The hooks are machine-wide: execs count only in one network namespace. Who is held was found there, and stays held
 * wherever it goes.
 *
 * Nothing here changes a process.
 */
#include "kernel_types.h"
#include "giveway.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define EVENTS_BYTES (256 * 1024)
#define MAX_FILES 4096
#define MAX_USERS 4096
#define MAX_HELD 65536
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

/* Thread groups, by the initial pid namespace's numbers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_HELD);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENTS_BYTES);
} events SEC(".maps");

/* Events that found the ring buffer full. */
__u64 lost_events;

/* Puts the types of the border into the skeleton. */
struct gw_task_event *event_type __attribute__((unused));

static __always_inline bool is_held(__u32 tgid)
{
	return bpf_map_lookup_elem(&held, &tgid);
}

static __always_inline bool is_watched(struct task_struct *task, struct linux_binprm *bprm)
{
	__u64 inode = bprm->file->f_inode->i_ino;
	__u32 uid = task->cred->uid.val;

	if (!bpf_map_lookup_elem(&watched_files, &inode) && !bpf_map_lookup_elem(&watched_uids, &uid))
		return false;
	return task->nsproxy->net_ns->ns.inum == netns_inum;
}

static __always_inline void tell(enum gw_task_event_kind kind, struct task_struct *task, __u64 cpu_ns)
{
	struct gw_task_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&lost_events, 1);
		return;
	}
	e->t_ns = bpf_ktime_get_ns();
	e->start_ns = task->group_leader->start_boottime;
	e->cpu_ns = cpu_ns;
	e->kind = kind;
	e->tgid = task->tgid;
	e->tid = task->pid;
	e->reserved = 0;
	bpf_ringbuf_submit(e, 0);
}

/* Runs in the process, after the new program's credentials are in force. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(gw_see_exec, struct task_struct *task, int old_pid, struct linux_binprm *bprm)
{
	if (is_held(task->tgid) || is_watched(task, bprm))
		tell(GW_TASK_EXEC, task, 0);
	return 0;
}

/* Runs in the parent, before the new thread first runs. */
SEC("tp_btf/task_newtask")
int BPF_PROG(gw_see_thread, struct task_struct *task, unsigned long clone_flags)
{
	if ((clone_flags & CLONE_THREAD) && is_held(task->tgid))
		tell(GW_TASK_THREAD, task, 0);
	return 0;
}

/* Two threads that end together may both be the last one: the reader must stand being told twice. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(gw_see_exit, struct task_struct *task)
{
	__u64 cpu_ns;

	if (!is_held(task->tgid) || task->signal->live.counter)
		return 0;
	cpu_ns = task->signal->sum_sched_runtime + task->se.sum_exec_runtime;
	/* A leader that ended before its threads is not counted there: it stays until they are gone. */
	if (task->group_leader != task)
		cpu_ns += task->group_leader->se.sum_exec_runtime;
	tell(GW_TASK_EXIT, task, cpu_ns);
	return 0;
}
