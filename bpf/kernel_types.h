/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's types, with only the fields that are used here. Offsets are not these but the running kernel's: the
 * loader relocates every access (CO-RE), so the build needs no BTF of the machine that it happens on.
 */
#ifndef GIVEWAY_KERNEL_TYPES_H
#define GIVEWAY_KERNEL_TYPES_H

#include <linux/bpf.h>
#include <stdbool.h>

#define AF_INET 2
#define AF_INET6 10
#define AF_PACKET 17
#define SOCK_RAW 3
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_MPTCP 262
#define PF_KTHREAD 0x00200000
#define NICE_19_PRIO 139
#define MAX_RT_PRIO 100 /* of task_struct.prio: below it is real-time */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define CLOCK_MONOTONIC 1
#define ENOENT 2
#define ENOMEM 12
#define SOL_TCP 6
#define TCP_MAXSEG 2
#define TCP_WINDOW_CLAMP 10
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008 /* Linux 6.12 */
#define TCP_CONGESTION 13
#define SOL_SOCKET 1
#define SO_MAX_PACING_RATE 47
#define IFF_LOOPBACK 0x8
#define USEC_PER_SEC 1000000ULL
#define NSEC_PER_SEC 1000000000ULL
#define NSEC_PER_MSEC 1000000ULL

/* include/net/tcp_states.h */
enum {
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT = 2,
	TCP_TIME_WAIT = 6,
	TCP_CLOSE = 7,
	TCP_LISTEN = 10,
	TCP_NEW_SYN_RECV = 12,
};

/* enum tcp_ca_state of include/uapi/linux/tcp.h */
enum {
	TCP_CA_OPEN = 0,
	TCP_CA_DISORDER = 1,
	TCP_CA_CWR = 2,
	TCP_CA_LOSS = 4,
};

/* enum tcp_ca_event of include/net/tcp.h */
enum tcp_ca_event {
	CA_EVENT_TX_START,
};

/* enum sk_pacing of include/net/sock.h: the socket paces itself unless fq does it. */
enum {
	SK_PACING_NONE = 0,
	SK_PACING_NEEDED = 1,
};

/* Of bpf_for; newer than Debian 12's <linux/bpf.h>. */
struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct nf_conn {
	unsigned long status;
};

struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};

typedef struct {
	__s64 counter;
} atomic64_t;

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	unsigned char skc_state;
	int skc_bound_dev_if;
	unsigned long skc_flags;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	atomic64_t skc_cookie;
};

struct net_device {
	int ifindex;
	unsigned int flags;
	possible_net_t nd_net;
};

struct dst_entry {
	struct net_device *dev;
};

typedef struct {
	unsigned int val;
} kuid_t;

struct kernfs_iattrs {
	kuid_t ia_uid;
};

struct kernfs_node {
	__u64 id;
	const char *name;
	struct kernfs_iattrs *iattr; /* NULL: nobody has changed any */
};

struct cgroup_root {
	int hierarchy_id; /* 0: cgroup v2 */
};

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
	int level;                  /* 0: the root */
	struct cgroup *ancestors[]; /* by level, itself among them */
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct sock_cgroup_data {
	struct cgroup *cgroup;
};

typedef struct {
	int owned;
} socket_lock_t;

/* include/net/sock.h; only its name counts, the loader asks the kernel for its value */
enum sock_flags {
	SOCK_TXTIME = 23,
};

struct sk_buff_head {
	__u32 qlen;
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	socket_lock_t sk_lock;
	struct socket *sk_socket;
	__u16 sk_type;
	__u16 sk_protocol;
	__u8 sk_clockid;
	__u8 sk_txtime_deadline_mode : 1;
	kuid_t sk_uid;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	__u32 sk_priority;
	int sk_rcvbuf;
	__u32 sk_pacing_status;
	struct dst_entry *sk_dst_cache;
	struct sock_cgroup_data sk_cgrp_data;
};

struct socket {
	struct file *file;
	struct sock *sk;
};

struct udp_sock {
	struct sk_buff_head reader_queue;
};

struct ipv6_pinfo {
	__u8 tclass;
};

struct inet_sock {
	struct sock sk;
	struct ipv6_pinfo *pinet6;
	__be16 inet_sport;
	__u8 tos;
};

struct rate_sample {
	__u32 prior_delivered;
	long rtt_us;
	int losses;
	__u32 acked_sacked;
	__u32 prior_in_flight;
};

struct tcp_congestion_ops {
	__u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, __u32 ack, __u32 acked);
	void (*set_state)(struct sock *sk, __u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event ev);
	void (*cwnd_event_tx_start)(struct sock *sk); /* Linux 7.1 */
	__u32 (*undo_cwnd)(struct sock *sk);
	void (*cong_control)(struct sock *sk, __u32 ack, int flag, const struct rate_sample *rs);
	void (*init)(struct sock *sk);
	void (*release)(struct sock *sk);
	char name[16];
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
	void *icsk_ulp_data;
	const struct tcp_congestion_ops *icsk_ca_ops;
	__u8 icsk_ca_state : 5;
	struct {
		__u32 lrcvtime; /* jiffies */
		__u16 rcv_mss;
	} icsk_ack;
	__u64 icsk_ca_priv[13];
};

/* net/mptcp/protocol.h: what a connection that belongs to an MPTCP socket knows of it. */
struct mptcp_subflow_context {
	struct sock *conn;
};

/* CUBIC's own, in icsk_ca_priv (net/ipv4/tcp_cubic.c). */
struct bictcp {
	__u32 last_max_cwnd;
	__u8 found;
};

struct minmax_sample {
	__u32 t;
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_options_received {
	__u32 rcv_tsecr; /* as we sent it, without the socket's offset */
	__u8 saw_tstamp : 1;
	__u8 num_sacks;
	__u16 user_mss;
};

struct tcp_sack_block {
	__u32 start_seq;
	__u32 end_seq;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	bool is_mptcp;
	struct tcp_options_received rx_opt;
	__u32 mss_cache;
	__u64 tcp_mstamp; /* us */
	__u64 bytes_acked;
	__u32 delivered;
	__u32 snd_cwnd;
	__u32 lost_out;
	__u32 sacked_out;
	__u32 retrans_out;
	__u32 packets_out;
	__u32 snd_ssthresh;
	struct minmax rtt_min;
	__u32 write_seq;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 mdev_us;
	__u32 srtt_us;
	__u32 rate_delivered;
	__u32 rate_interval_us;
	__u32 snd_cwnd_clamp;
	__u32 window_clamp;
	__u32 total_retrans;
	__u64 bytes_received;
	__u32 rcv_nxt;
	__u32 rcv_wup; /* rcv_nxt when the window was last offered, and that window */
	__u32 rcv_wnd;
	__u32 data_segs_in; /* packets with data, in whatever order */
	struct {
		__u32 rtt_us;
	} rack;
	struct {
		__u32 rtt_us; /* times 8 */
	} rcv_rtt_est;
	struct tcp_sack_block selective_acks[4];
	__u8 ecn_flags;
	__u8 is_cwnd_limited : 1; /* cwnd is what holds it back */
	__u8 scaling_ratio;       /* of 256: how much of a buffer is offered as a window */
	__u8 bpf_sock_ops_cb_flags;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	struct sock *sk;
	char cb[48];
	unsigned int len;
	__u32 hash;
	__s64 tstamp;
	__u16 network_header;
	__u16 mac_header;
	unsigned int end;
	unsigned char *head;
	unsigned char *data;
	__u8 tc_skip_classify : 1;
};

struct skb_shared_info {
	unsigned short gso_segs;
};

struct bpf_sock_addr_kern {
	struct sock *sk;
};

struct qdisc_skb_cb {
	unsigned int pkt_len;
	__u16 pkt_segs; /* not in 6.18 */
	unsigned char data[20];
};

struct qdisc_skb_head {
	__u32 qlen;
};

struct gnet_stats_queue {
	__u32 backlog;
	__u32 drops;
	__u32 overlimits;
};

struct netdev_queue {
	struct net_device *dev;
};

struct Qdisc {
	__u32 limit;
	struct netdev_queue *dev_queue;
	struct qdisc_skb_head q;
	struct gnet_stats_queue qstats;
};

/* include/linux/pid_types.h */
enum pid_type {
	PIDTYPE_PID,
	PIDTYPE_TGID,
};

struct nlattr;
struct netlink_ext_ack;

struct bpf_sk_buff_ptr {
	struct sk_buff *skb;
};

struct Qdisc_ops {
	char id[16];
	int (*enqueue)(struct sk_buff *skb, struct Qdisc *sch, struct sk_buff **to_free);
	struct sk_buff *(*dequeue)(struct Qdisc *sch);
	int (*init)(struct Qdisc *sch, struct nlattr *arg, struct netlink_ext_ack *extack);
	void (*reset)(struct Qdisc *sch);
	void (*destroy)(struct Qdisc *sch);
};

typedef struct {
	int counter;
} atomic_t;

struct cred {
	kuid_t uid;
	kuid_t euid;
	kuid_t fsuid;
};

struct nsproxy {
	struct net *net_ns;
};

struct signal_struct {
	atomic_t live;
	int nr_threads;
	unsigned int flags;
	unsigned long long sum_sched_runtime;
};

/* kernel/sched/sched.h: a CPU's run queue, its clock, and its account of what the hypervisor took. */
struct rq {
	__u64 clock_task;
	__u64 prev_steal_time_rq;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	__u64 exec_start;
	__u64 sum_exec_runtime;
	struct cfs_rq *cfs_rq;
};

/* kernel/locking/rtmutex_common.h: a lock with priority inheritance, and a thread that waits for one. */
struct rt_mutex_base {
	struct task_struct *owner;
};

struct rt_mutex_waiter {
	struct rt_mutex_base *lock;
};

struct rt_bandwidth {
	__u64 rt_runtime; /* ns */
};

struct task_group {
	struct cgroup_subsys_state css;
	struct task_group *parent;
	struct rt_bandwidth rt_bandwidth;
	int idle;
};

struct io_context {
	atomic_t active_ref; /* tasks that share it */
	unsigned short ioprio;
};

struct hlist_bl_node {
	struct hlist_bl_node **pprev;
};

struct qstr {
	const unsigned char *name;
};

/* The name of a file in a directory; no longer hashed once it is another file's, or nobody's. */
struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};

struct path {
	struct dentry *dentry;
};

struct super_block {
	unsigned int s_dev;
};

struct inode {
	unsigned short i_mode;
	kuid_t i_uid;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
};

struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
	struct file *exe_file;
};

struct fdtable {
	unsigned long *close_on_exec; /* a bit for each descriptor */
};

struct files_struct {
	struct fdtable *fdt;
};

struct pid_namespace;

/* A number in a pid namespace. */
struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;    /* of the innermost pid namespace; 0: the initial one */
	struct upid numbers[]; /* by level */
};

struct task_struct {
	unsigned int __state;
	unsigned int on_cpu; /* an int, since 7.x a u8: only what is unsigned is adjusted to either */
	int pid;
	int tgid;
	unsigned int flags;
	int prio;
	int static_prio;
	int normal_prio;
	struct sched_entity se;
	unsigned int rt_priority;
	unsigned int policy;
	unsigned sched_reset_on_fork : 1;
	struct mm_struct *mm;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct files_struct *files;
	__u64 start_boottime;
	const struct cred *real_cred;
	const struct cred *cred;
	struct css_set *cgroups;
	struct task_group *sched_task_group;
	struct io_context *io_context;
	struct nsproxy *nsproxy;
	struct signal_struct *signal;
	__u64 self_exec_id;   /* one more with each exec; a fork copies it */
	__u64 parent_exec_id; /* its parent's, at the fork */
	struct rt_mutex_waiter *pi_blocked_on;
	char comm[16];
};

struct linux_binprm {
	struct file *file;
};

struct seq_file {
	unsigned long size;
	unsigned long count;
};

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__cgroup {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct bpf_iter__bpf_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop

#endif
