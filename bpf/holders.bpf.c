// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lists the processes of the reader's own program that hold Unix sockets of this network namespace. The kernel's list
 * of sockets shows who made one, but anyone who was given it may bind it; only its holder shows whose a name is.
 *
 * A file counts if a process of root's, of this program and in this network namespace, has opened it itself: one from
 * before an exec may come from another process. The iterator sees the pid namespaces below the reader's own, and so all
 * processes only from the initial one. Changes nothing.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define AF_UNIX 1
#define NAME_WORDS 8 /* of a program; longer names are compared up to here */

struct gw_holder {
	__u64 cookie; /* of the socket; 0: not assigned yet */
	__u64 inode;  /* of the socket */
	__u32 pid;    /* of the process, in the pid namespace of the reader */
	__u32 reserved;
};

/* Puts the type into the skeleton. */
struct gw_holder *holder_type __attribute__((unused));

const volatile __u32 netns_inum;

static __always_inline void name_program(struct mm_struct *mm, __u64 *to)
{
	bpf_probe_read_kernel_str(to, NAME_WORDS * sizeof(*to),
				  BPF_CORE_READ(mm, exe_file, f_path.dentry, d_name.name));
}

/* Compares names, since the file may have been replaced. */
static __always_inline bool is_same_program(struct task_struct *task, struct task_struct *other)
{
	__u64 one[NAME_WORDS] = {}, two[NAME_WORDS] = {};

	name_program(BPF_CORE_READ(task, mm), one);
	name_program(BPF_CORE_READ(other, mm), two);
	for (int at = 0; at < NAME_WORDS; at++) {
		if (one[at] != two[at])
			return false;
	}
	return one[0] != 0;
}

static __always_inline bool is_closed_on_exec(struct task_struct *task, __u32 fd)
{
	unsigned long *bits = BPF_CORE_READ(task, files, fdt, close_on_exec), word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), bits + fd / 64);
	return word >> fd % 64 & 1;
}

/* Its pid in this namespace of this level. */
static __always_inline __u32 number_of(struct task_struct *task, struct pid_namespace *ns, __u32 level)
{
	struct pid *pid = BPF_CORE_READ(task, group_leader, thread_pid);
	struct upid *number;

	if (BPF_CORE_READ(pid, level) < level)
		return 0;
	number = (void *)pid + bpf_core_field_offset(pid->numbers) + level * bpf_core_type_size(struct upid);
	return BPF_CORE_READ(number, ns) == ns ? BPF_CORE_READ(number, nr) : 0;
}

static __always_inline __u32 number_for(struct task_struct *reader, struct task_struct *task)
{
	struct pid *pid = BPF_CORE_READ(reader, thread_pid);
	__u32 level = BPF_CORE_READ(pid, level);
	struct upid *number =
		(void *)pid + bpf_core_field_offset(pid->numbers) + level * bpf_core_type_size(struct upid);

	return number_of(task, BPF_CORE_READ(number, ns), level);
}

SEC("iter/task_file")
int gw_list_holders(struct bpf_iter__task_file *ctx)
{
	struct task_struct *reader = (void *)bpf_get_current_task();
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct gw_holder holder = {};
	struct socket *socket;
	struct sock *sk;

	if (!file || !task)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = BPF_CORE_READ(socket, sk);
	if (!sk || BPF_CORE_READ(sk, __sk_common.skc_family) != AF_UNIX ||
	    BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) != netns_inum)
		return 0;
	if (BPF_CORE_READ(task, real_cred, uid.val) || BPF_CORE_READ(task, real_cred, euid.val))
		return 0;
	/* The reader's own threads may be in several namespaces. */
	if (task->tgid != BPF_CORE_READ(reader, tgid) &&
	    BPF_CORE_READ(task, nsproxy, net_ns, ns.inum) != netns_inum)
		return 0;
	if (!is_closed_on_exec(task, ctx->fd) || !is_same_program(task, reader))
		return 0;
	holder.cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);
	holder.inode = BPF_CORE_READ(file, f_inode, i_ino);
	holder.pid = number_for(reader, task);
	if (holder.pid)
		bpf_seq_write(ctx->meta->seq, &holder, sizeof(holder));
	return 0;
}
