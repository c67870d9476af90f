// SPDX-License-Identifier: GPL-2.0-only
/*
 * Request chains: a request's deadline goes with it to the thread that handles it, and on to the answer.
 *
 *   tcx ingress          a packet for a chain's port: stores its deadline in this CPU's ring of packets not yet delivered
 *   sk_data_ready        the packet is in its socket, on the same CPU: moves the deadline to the socket's storage, and asks the
 *                        daemon to raise the socket's thread if it is running without real-time priority
 *   sched_waking         wakes a thread that receives from the socket: asks the daemon to raise it if it is not real-time;
 *                        if something else wakes it after the deadline, asks to lower it
 *   sock_recv_length     a thread has received the packet: it is the handler from now on, and what this socket sends is the
 *                        answer (see admission.bpf.c)
 *
 * The kernel skips a tracing program where a task was preempted within that same program on the same CPU. So each step
 * makes up for a skipped one: a wake-up also takes a deadline that no delivery has taken, and a receipt counts the
 * messages still queued in the socket.
 *
 * A handler that receives only requests keeps its priority from one to the next, without an event, since a priority
 * costs nothing while the thread sleeps. Only the daemon sets a priority. Only a thread that has received from this
 * very socket is raised, and only a socket of the rule's user counts: an unrelated thread that an interrupt wakes in
 * between gets nothing.
 */
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_tracing.h>
#include "chain.h"
#include "read_packet.h"
#include "sockets.h"

char LICENSE[] SEC("license") = "GPL";

#define TCX_NEXT (-1)
#define MSG_PEEK 2
#define SCHED_FIFO 1
#define TASK_RUNNING 0

extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct gw_chain_key);
	__type(value, struct gw_chain_rule);
} chain_rules SEC(".maps");

/* By thread id. A thread removes its entry at its end. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct gw_handler);
} chain_handlers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} handler_events SEC(".maps");

/* tcx sees a batch of packets before the first is delivered, so several are pending at once. A power of two. */
#define PENDING 16
/* A packet not delivered this long after its arrival was dropped on the way. */
#define PENDING_NS (2 * NSEC_PER_MSEC)

struct pending {
	__u64 at_ns;
	__u64 due_ns; /* 0: free, or delivered */
	struct gw_chain_key chain;
	__u32 reserved;
};

/* The packets that this CPU passes up the stack. */
struct arrival {
	struct pending pending[PENDING]; /* a ring */
	__u64 socket;                    /* that the latest request has reached, until its handler is woken; 0: none */
	__u64 due_ns;                    /* of that request */
	__u32 next;                      /* index of the oldest in the ring */
	__u32 waiting;                   /* pending ones, including those too old to be taken */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrival);
} arrivals SEC(".maps");

struct gw_arrival_counters arrival_counters;

/* Puts the shared type into the skeleton. */
struct gw_handler_event *event_type __attribute__((unused));

static __always_inline struct arrival *this_arrival(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&arrivals, &key);
}

SEC("tcx/ingress")
int gw_note_arrival(struct __sk_buff *skb)
{
	struct arrival *arrival = this_arrival();
	struct gw_chain_rule *rule;
	struct gw_chain_key chain;
	struct packet p = {};
	__u32 budget_us;
	__u64 now_ns;

	if (!arrival)
		return TCX_NEXT;
	/* A fragmented datagram is delivered with its last fragment, which carries no port. */
	if (!read_packet(skb, &p) || p.fragment_at || p.more_fragments)
		return TCX_NEXT;
	read_ports(skb, &p);
	chain = (struct gw_chain_key){ .local_port = p.tuple.remote_port, .protocol = p.protocol };
	rule = bpf_map_lookup_elem(&chain_rules, &chain);
	if (!rule)
		return TCX_NEXT;
	budget_us = rule->budget_us;
	if (p.has_option && p.option_us < budget_us)
		budget_us = p.option_us;
	now_ns = bpf_ktime_get_ns();
	arrival->waiting += !arrival->pending[arrival->next % PENDING].due_ns;
	arrival->pending[arrival->next++ % PENDING] = (struct pending){
		.at_ns = now_ns,
		.due_ns = now_ns + 1000ULL * budget_us,
		.chain = chain,
	};
	return TCX_NEXT;
}

static __always_inline struct gw_chain_key chain_of(const struct sock *sk)
{
	return (struct gw_chain_key){ .local_port = sk->__sk_common.skc_num, .protocol = sk->sk_protocol };
}

static __always_inline bool is_same(const struct gw_chain_key *a, const struct gw_chain_key *b)
{
	return a->local_port == b->local_port && a->protocol == b->protocol;
}

/* Takes the deadline of this chain's oldest pending packet; 0: none. */
static __always_inline __u64 take_pending(struct arrival *arrival, const struct gw_chain_key *chain, __u64 now_ns)
{
	for (int n = 0; n < PENDING; n++) {
		struct pending *pending = &arrival->pending[(arrival->next + n) % PENDING];
		__u64 due_ns = pending->due_ns;

		if (!due_ns || !is_same(chain, &pending->chain) || pending->at_ns + PENDING_NS < now_ns)
			continue;
		pending->due_ns = 0;
		arrival->waiting--;
		return due_ns;
	}
	return 0;
}

static __always_inline bool is_raised(const struct task_struct *p, const struct gw_handler *handler)
{
	return p->policy == SCHED_FIFO && p->rt_priority == handler->priority;
}

static __always_inline void report(const struct task_struct *p, struct gw_handler *handler,
				   enum gw_handler_event_kind kind, __u64 now_ns)
{
	struct gw_handler_event *event = bpf_ringbuf_reserve(&handler_events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&arrival_counters.events_lost, 1);
		return;
	}
	*event = (struct gw_handler_event){
		.t_ns = now_ns,
		.until_ns = handler->until_ns,
		.cpu_ns = p->se.sum_exec_runtime,
		.kind = kind,
		.tid = p->pid,
		.pid = p->tgid,
		.priority = handler->priority,
		.chain = handler->chain,
	};
	handler->reported = 1;
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
	if (kind != GW_ENDED)
		__sync_fetch_and_add(kind == GW_RAISE ? &arrival_counters.raises : &arrival_counters.lowers, 1);
}

/* The thread has a request with this deadline. A thread that is real-time already keeps its priority. */
static __always_inline void begin_request(const struct task_struct *p, struct gw_handler *handler, __u64 due_ns,
				    __u64 now_ns)
{
	struct gw_chain_rule *rule = bpf_map_lookup_elem(&chain_rules, &handler->chain);

	if (handler->until_ns < due_ns)
		handler->until_ns = due_ns;
	if (rule && now_ns >= rule->suspended_until_ns && p->prio >= MAX_RT_PRIO)
		report(p, handler, GW_RAISE, now_ns);
}

/*
 * A request is queued behind the handler's current work. As with priority inheritance, that work then runs at the
 * request's priority.
 */
static __noinline int raise_busy_handler(struct gw_requests *requests, __u64 due_ns)
{
	struct gw_handler *handler;
	struct task_struct *p;
	__u32 tid;

	if (!requests)
		return 0;
	tid = requests->tid;
	handler = tid ? bpf_map_lookup_elem(&chain_handlers, &tid) : NULL;
	p = handler ? bpf_task_from_pid(tid) : NULL;
	if (!p)
		return 0;
	if (p->__state == TASK_RUNNING)
		begin_request(p, handler, due_ns, bpf_ktime_get_ns());
	bpf_task_release(p);
	return 0;
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(gw_note_delivery, struct sock *sk)
{
	struct arrival *arrival = this_arrival();
	struct gw_requests *requests;
	struct gw_chain_rule *rule;
	struct gw_chain_key chain;
	__u64 due_ns;

	if (!arrival || !in_our_netns(sk))
		return 0;
	chain = chain_of(sk);
	rule = bpf_map_lookup_elem(&chain_rules, &chain);
	if (!rule || sk->sk_uid.val != rule->uid || sk->__sk_common.skc_state == TCP_LISTEN)
		return 0;
	requests = bpf_sk_storage_get(&chain_requests, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!requests)
		return 0;
	due_ns = take_pending(arrival, &chain, bpf_ktime_get_ns());
	requests->due_ns[requests->arrived++ % GW_REQUESTS] = due_ns;
	arrival->socket = due_ns ? (__u64)sk : 0;
	arrival->due_ns = due_ns;
	if (!due_ns)
		return 0;
	__sync_fetch_and_add(&arrival_counters.requests, 1);
	raise_busy_handler(requests, due_ns);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(gw_note_waking, struct task_struct *p)
{
	struct arrival *arrival = this_arrival();
	struct gw_handler *handler;
	__u64 now_ns, due_ns = 0;
	__u32 tid;

	if (!arrival || (!arrival->socket && !arrival->waiting && p->policy != SCHED_FIFO))
		return 0;
	tid = p->pid;
	handler = bpf_map_lookup_elem(&chain_handlers, &tid);
	if (!handler)
		return 0;
	now_ns = bpf_ktime_get_ns();
	if (arrival->socket == handler->socket) {
		arrival->socket = 0;
		due_ns = arrival->due_ns;
	} else if (arrival->waiting) {
		due_ns = take_pending(arrival, &handler->chain, now_ns);
	}
	if (due_ns > now_ns) {
		__sync_fetch_and_add(&arrival_counters.woken, 1);
		begin_request(p, handler, due_ns, now_ns);
	} else if (handler->until_ns < now_ns && is_raised(p, handler)) {
		report(p, handler, GW_LOWER, now_ns);
	}
	return 0;
}

/* Messages queued in the socket. */
static __always_inline __u32 queued_messages(struct sock *sk)
{
	struct udp_sock *udp = (struct udp_sock *)sk;

	return BPF_CORE_READ(sk, sk_receive_queue.qlen) + BPF_CORE_READ(udp, reader_queue.qlen);
}

/* The deadline of the message just received; of a stream, where one receipt takes all, of the first. */
static __always_inline __u64 take_request(struct gw_requests *requests, struct sock *sk)
{
	bool is_stream = sk->sk_protocol == IPPROTO_TCP;
	__u32 taken = requests->received;

	requests->received = requests->arrived;
	if (!is_stream) {
		requests->received -= queued_messages(sk);
		taken = requests->received - 1;
	} else if (taken == requests->arrived) {
		return 0;
	}
	return requests->arrived - taken > GW_REQUESTS ? 0 : requests->due_ns[taken % GW_REQUESTS];
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(gw_note_receipt, struct sock *sk, int ret, int flags)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct gw_requests *requests;
	struct gw_handler *handler;
	__u64 due_ns, now_ns;
	__u32 tid = p->pid;

	if (ret < 0 || flags & MSG_PEEK || !in_our_netns(sk))
		return 0;
	requests = bpf_sk_storage_get(&chain_requests, sk, NULL, 0);
	if (!requests)
		return 0;
	now_ns = bpf_ktime_get_ns();
	due_ns = take_request(requests, sk);
	requests->tid = tid;
	handler = bpf_map_lookup_elem(&chain_handlers, &tid);
	/* The newest message, which woke the thread; only its delivery was skipped. */
	if (due_ns <= now_ns && requests->received == requests->arrived && handler && handler->socket == (__u64)sk)
		due_ns = handler->until_ns;
	requests->answer_ns = due_ns;
	if (!handler || handler->socket != (__u64)sk) {
		struct gw_chain_key chain = chain_of(sk);
		struct gw_chain_rule *rule = bpf_map_lookup_elem(&chain_rules, &chain);
		struct gw_handler new = { .socket = (__u64)sk, .chain = chain };

		if (!rule)
			return 0;
		new.priority = rule->priority;
		new.reported = handler ? handler->reported : 0;
		bpf_map_update_elem(&chain_handlers, &tid, &new, BPF_ANY);
		handler = bpf_map_lookup_elem(&chain_handlers, &tid);
		if (!handler)
			return 0;
	}
	if (due_ns > now_ns)
		begin_request(p, handler, due_ns, now_ns);
	else if (handler->until_ns < now_ns && is_raised(p, handler))
		report(p, handler, GW_LOWER, now_ns);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(gw_forget_handler, struct task_struct *p)
{
	__u32 tid = p->pid;
	struct gw_handler *handler = bpf_map_lookup_elem(&chain_handlers, &tid);

	if (!handler)
		return 0;
	if (handler->reported)
		report(p, handler, GW_ENDED, bpf_ktime_get_ns());
	bpf_map_delete_elem(&chain_handlers, &tid);
	return 0;
}
