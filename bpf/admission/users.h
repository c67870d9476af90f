/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whose packet it is, and whether its user has had its share of what can be promised. Anyone may ask for deadlines, so
 * while several users do, each has a share of the time to its deadlines; beyond it a promise must leave most of that
 * time free (`crowd_ns` in slack.h). That holds nobody below the whole rate: what is left over is anyone's, but only in
 * short queues.
 *
 * What has no socket, as what is forwarded, is one user's. A user who may use many numbers (subordinate ones, by a user
 * namespace) counts as many.
 */
#ifndef GIVEWAY_ADMISSION_USERS_H
#define GIVEWAY_ADMISSION_USERS_H

#include "../link.h"
#include "../sockets.h"

/* A user counts for one to two of these after it has asked for a deadline: 8.6 s each. */
#define EPOCH_SHIFT 33
/* Each packet is charged at least this, so that small ones do not fill the band: it holds GW_PROMISES of them. */
#define LEAST_CHARGE_NS (((__u64)GW_SLOTS << GW_SLOT_SHIFT) / GW_PROMISES)

/* With more users than these, shares are as if there were so many: one who has many numbers shall not leave nothing. */
#define MOST_SHARES 16

struct user {
	__u64 charged_ns; /* until when its promises would keep a link of its share busy */
	__u32 epoch;      /* in which it asked last */
	__u32 reserved;
};

/*
 * By the link, and a hash of the uid: two users with the same one share a share. What is kept of a user is over with time,
 * so nothing has to be removed.
 */
#define USERS_SHIFT 10

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS << USERS_SHIFT);
	__type(key, __u32);
	__type(value, struct user);
} users SEC(".maps");

/* What bpf_get_socket_uid() gives where there is no socket. */
#define NOBODY 65534

/* As that, without a call: each packet with a deadline comes by here. */
static __always_inline __u32 uid_of(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = bpf_cast_to_kern_ctx(skb);
	struct sock *sk = kernel_skb->sk;

	return sk && is_full(sk) ? sk->sk_uid.val : NOBODY;
}

static __always_inline __u32 hash_of_user(__u32 uid)
{
	return (uid + 1) * 2654435761u;
}

static __always_inline __u32 place_of_user(__u32 number, __u32 uid)
{
	return number << USERS_SHIFT | hash_of_user(uid) >> (32 - USERS_SHIFT);
}

static __always_inline struct user *user_at(__u32 number, __u32 uid)
{
	__u32 place = place_of_user(number, uid);

	return bpf_map_lookup_elem(&users, &place);
}

/* How many users ask for deadlines, this one included. Under the lock. */
static __always_inline __u32 count_users(struct gw_link *link, struct user *user, __u64 now_ns)
{
	__u32 epoch = (now_ns >> EPOCH_SHIFT) + 1, users;

	if (link->epoch != epoch) {
		link->users_before = link->epoch + 1 == epoch ? link->users : 0;
		link->users = 0;
		link->epoch = epoch;
	}
	if (user->epoch != epoch) {
		user->epoch = epoch;
		link->users++;
	}
	users = link->users > link->users_before ? link->users : link->users_before;
	return users < MOST_SHARES ? users : MOST_SHARES;
}

/*
 * Until when a link of the user's share would be busy with one more promise. Who is alone is charged as one of two, so
 * that what it holds already counts when another comes.
 */
static __always_inline __u64 charge(const struct gw_link_config *config, const struct user *user, __u32 users,
				    __u64 work_ns, __u32 packets, __u64 now_ns)
{
	__u64 begin_ns = user->charged_ns > now_ns ? user->charged_ns : now_ns;
	__u64 least_ns = packets * LEAST_CHARGE_NS;
	__u64 charged_ns = work_ns > least_ns ? work_ns : least_ns;

	if (users < 2)
		users = 2;
	return begin_ns + (config->user_percent ? charged_ns * 100 / config->user_percent : charged_ns * users);
}

/* Alone, a user owes nothing beyond the deadline that it was just promised. */
static __always_inline void charge_alone(struct user *user, __u64 charged_ns, __u64 deadline_ns)
{
	if (charged_ns > deadline_ns)
		charged_ns = deadline_ns;
	if (charged_ns > user->charged_ns)
		user->charged_ns = charged_ns;
}

#endif
