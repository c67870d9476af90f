// SPDX-License-Identifier: GPL-2.0-only
/*
 * A class that was chosen for a process holds for every thread and process that it starts from then on, for theirs, and
 * across exec: one look-up at each start of a task on this machine. Loaded with the first choice. Changes no task.
 *
 * `gw_list_limits` names the rate limits that tasks have.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "choice.h"

char LICENSE[] SEC("license") = "GPL";

extern int LINUX_KERNEL_VERSION __kconfig;

/* Puts the type into the skeleton. */
struct gw_choice *choice_type __attribute__((unused));
struct gw_chosen_limit *limit_type __attribute__((unused));

static __always_inline void hand_on(struct task_struct *task)
{
	struct gw_choice *chosen = bpf_task_storage_get(&choices, bpf_get_current_task_btf(), NULL, 0);

	if (chosen)
		bpf_task_storage_get(&choices, task, chosen, BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* Runs in the parent, before the new task first runs. The kernel skips it where it has just preempted it on the same CPU. */
SEC("tp_btf/task_newtask")
int BPF_PROG(gw_inherit, struct task_struct *task, unsigned long clone_flags)
{
	hand_on(task);
	return 0;
}

/* For whom the first has missed: nothing preempts this one (nice.bpf.c). What has a choice keeps it. */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(gw_inherit_late, struct task_struct *task)
{
	if (LINUX_KERNEL_VERSION >= KERNEL_VERSION(6, 4, 0))
		hand_on(task);
	return 0;
}

SEC("iter/task")
int gw_list_limits(struct bpf_iter__task *ctx)
{
	struct gw_chosen_limit found = {};
	struct task_struct *task = ctx->task;
	struct gw_choice *chosen;

	chosen = task ? bpf_task_storage_get(&choices, task, NULL, 0) : NULL;
	if (!chosen || !chosen->limit)
		return 0;
	found.number = chosen->limit;
	bpf_seq_write(ctx->meta->seq, &found, sizeof(found));
	return 0;
}
