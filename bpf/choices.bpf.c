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

/* Puts the type into the skeleton. */
struct gw_choice *choice_type __attribute__((unused));
struct gw_chosen_limit *limit_type __attribute__((unused));

/* Runs in the parent, before the new task first runs. */
SEC("tp_btf/task_newtask")
int BPF_PROG(gw_inherit, struct task_struct *task, unsigned long clone_flags)
{
	struct gw_choice *chosen = bpf_task_storage_get(&choices, bpf_get_current_task_btf(), NULL, 0);

	if (chosen)
		bpf_task_storage_get(&choices, task, chosen, BPF_LOCAL_STORAGE_GET_F_CREATE);
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
