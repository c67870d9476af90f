/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The user of a packet, and that user's share of the promises. Anyone may ask for deadlines, so while several users do,
 * each has a share of the time to its deadlines; beyond its share, a promise must leave most of that time free
 * (`crowd_ns` in slack.h). That keeps nobody below the whole rate: leftover time is open to all, but only in short
 * queues.
 *
 * Packets without a socket, such as forwarded ones, are of one user. A user with many uids (subordinate ones, in a user
 * namespace) counts as many users.
 */
#ifndef GIVEWAY_ADMISSION_USERS_H
#define GIVEWAY_ADMISSION_USERS_H

#include "../link.h"
#include "../sockets.h"

/* A user counts for one to two epochs of 8.6 s after it has asked for a deadline. */
#define EPOCH_SHIFT 33
/* The least charge for a packet, so that small ones do not fill the band: it holds GW_PROMISES of them. */
#define LEAST_CHARGE_NS (((__u64)GW_SLOTS << GW_SLOT_SHIFT) / GW_PROMISES)

/* Above this number of users, shares stop shrinking: one user with many uids must not leave nothing to the others. */
#define MOST_SHARES 16

struct user {
	__u64 charged_ns; /* until when its promises would keep a link of its share busy */
	__u32 epoch;      /* of its last request */
	__u32 reserved;
};

/*
 * By link and by a hash of the uid: two users with the same hash share a share. Entries expire with time, so nothing
 * has to be removed.
 */
#define USERS_SHIFT 10

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS << USERS_SHIFT);
	__type(key, __u32);
	__type(value, struct user);
} users SEC(".maps");

/* What bpf_get_socket_uid() returns without a socket. */
#define NOBODY 65534

/* The same without a call, since each packet with a deadline needs it. */
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

/* The number of users that ask for deadlines, including this one. Under the lock. */
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
 * Until when a link of the user's share would be busy with one more promise. A lone user is charged as one of two, so
 * that its promises already count when another comes.
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

/* A lone user owes nothing beyond the deadline that it was just promised. */
static __always_inline void charge_alone(struct user *user, __u64 charged_ns, __u64 deadline_ns)
{
	if (charged_ns > deadline_ns)
		charged_ns = deadline_ns;
	if (charged_ns > user->charged_ns)
		user->charged_ns = charged_ns;
}

#endif
