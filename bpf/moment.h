/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Times that are kept to be compared later (moments; durations are none), where they have 32 bits. Milliseconds of these
 * come round after 49.7 days, and a plain comparison is wrong after half of that. Where there is room a moment has 64 bits
 * and needs nothing of this: nanoseconds, or what a clock of these is divided by.
 *
 * A 32-bit moment is a struct, so that no two can be compared but by its age. Its age is exact up to GW_OLD_MS, and never
 * given as more: whoever keeps moments has them bounded in each epoch (`begins_epoch`), which forgets what is older.
 *
 * All moments of 32 bits:
 *   ledbat/rule.h        struct ledbat: base_since, mode_since, between, clear, yield_end, loss, band, round, foreign
 *   ledbat/receiver.h    TCP's timestamp that the remote host echoes (`echoed_ms`)
 *   rledbat.bpf.c        the kernel's icsk_ack.lrcvtime, jiffies (`age_of`)
 *   qdisc/realtime.h     when a packet with a deadline was promised, ns, in the packet (`age_of`)
 *   admission/users.h    epochs of 8.6 s (come round after 1,169 years), which are compared for equality and the next
 * Packets and bytes that are compared modulo 2^32 (`round_end`, sequence numbers) are no times: an idle connection's stand.
 */
#ifndef GIVEWAY_MOMENT_H
#define GIVEWAY_MOMENT_H

/* The lower half of a clock in milliseconds; 0: none, or long ago. */
struct gw_moment {
	__u32 ms;
};

/* 24.9 days. */
#define GW_OLD_MS (1U << 31)
/* 4.7 hours; numbers of 16 bits come round after 34 years. */
#define GW_EPOCH_SHIFT 24
/* So many epochs without a look, and 32 bits no longer tell how old a moment is. */
#define GW_EPOCHS_TOLD ((GW_OLD_MS >> GW_EPOCH_SHIFT) - 2)

static __always_inline struct gw_moment moment_of(__u64 now_ms)
{
	struct gw_moment m = { .ms = (__u32)now_ms ?: 1 };

	return m;
}

static __always_inline struct gw_moment no_moment(void)
{
	struct gw_moment m = { .ms = 0 };

	return m;
}

/* Up to GW_OLD_MS. What is ahead of now is as old as now. */
static __always_inline __u32 age_ms(struct gw_moment m, __u64 now_ms)
{
	__u32 age = (__u32)now_ms - m.ms;

	if (!m.ms)
		return GW_OLD_MS;
	if (age > GW_OLD_MS + (2U << GW_EPOCH_SHIFT))
		return 0;
	return age < GW_OLD_MS ? age : GW_OLD_MS;
}

/* Ask at whatever happens. True: a new epoch has begun, and each moment is to be bounded; all of them are old where `*is_long`. */
static __always_inline bool begins_epoch(__u16 *epoch, __u64 now_ms, bool *is_long)
{
	__u16 now = now_ms >> GW_EPOCH_SHIFT, passed = now - *epoch;

	if (!passed)
		return false;
	*is_long = passed >= GW_EPOCHS_TOLD;
	*epoch = now;
	return true;
}

static __always_inline struct gw_moment bounded(struct gw_moment m, __u64 now_ms, bool is_long)
{
	return is_long || age_ms(m, now_ms) >= GW_OLD_MS ? no_moment() : m;
}

/* Of what a bare 32-bit time of somebody else's says: up to 2^31 of its units; ~0U: not known, for it would be older, or ahead. */
static __always_inline __u32 age_of(__u32 then, __u32 now)
{
	__u32 age = now - then;

	return age < 1U << 31 ? age : ~0U;
}

/* The moment of our clock whose lower half comes back to us; 0: there is none within 2^31 ms. */
static __always_inline __u64 echoed_ms(__u32 echo, __u64 now_ms)
{
	__u32 age = age_of(echo, (__u32)now_ms);

	return age == ~0U || age >= now_ms ? 0 : now_ms - age;
}

#endif
