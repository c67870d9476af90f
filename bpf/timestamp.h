/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Timestamps of 32 bits that are kept to be compared later (not durations). Milliseconds in 32 bits wrap after 49.7
 * days, and a plain comparison is wrong after half of that. Where there is room a timestamp has 64 bits and needs none
 * of this.
 *
 * A 32-bit timestamp is a struct, so that two can only be compared by age. Its age is exact up to GW_OLD_MS, and never
 * given as more: its holder bounds all of them once in each epoch (`begins_epoch`), which clears older ones.
 *
 * All timestamps of 32 bits:
 *
 *   ledbat/rule.h        struct ledbat: base_since, mode_since, between, clear, yield_end, loss, band, round, foreign
 *   ledbat/receiver.h    TCP's timestamp that the remote host echoes (`echoed_ms`)
 *   rledbat.bpf.c        the kernel's icsk_ack.lrcvtime, jiffies (`age_of`)
 *   qdisc/realtime.h     when a packet with a deadline was promised, ns, in the packet (`age_of`)
 *   admission/users.h    epochs of 8.6 s (wrap after 1,169 years), which are compared for equality and the next
 *
 * Packets and bytes that are compared modulo 2^32 (`round_end`, sequence numbers) are no times: on an idle connection
 * they stand still.
 */
#ifndef GIVEWAY_TIMESTAMP_H
#define GIVEWAY_TIMESTAMP_H

/* The lower half of a clock in milliseconds; 0: none, or long ago. */
struct gw_timestamp {
	__u32 ms;
};

/* 24.9 days. */
#define GW_OLD_MS (1U << 31)
/* 4.7 hours; numbers of 16 bits wrap after 34 years. */
#define GW_EPOCH_SHIFT 24
/* After so many epochs without a check, 32 bits no longer hold a timestamp's age. */
#define GW_EPOCHS_KNOWN ((GW_OLD_MS >> GW_EPOCH_SHIFT) - 2)

static __always_inline struct gw_timestamp timestamp_of(__u64 now_ms)
{
	struct gw_timestamp m = { .ms = (__u32)now_ms ?: 1 };

	return m;
}

static __always_inline struct gw_timestamp no_timestamp(void)
{
	struct gw_timestamp m = { .ms = 0 };

	return m;
}

/* Up to GW_OLD_MS. A timestamp in the future has age 0. */
static __always_inline __u32 age_ms(struct gw_timestamp m, __u64 now_ms)
{
	__u32 age = (__u32)now_ms - m.ms;

	if (!m.ms)
		return GW_OLD_MS;
	if (age > GW_OLD_MS + (2U << GW_EPOCH_SHIFT))
		return 0;
	return age < GW_OLD_MS ? age : GW_OLD_MS;
}

/* Call on every event. True: a new epoch has begun, and each timestamp has to be bounded; all are old if `*is_long`. */
static __always_inline bool begins_epoch(__u16 *epoch, __u64 now_ms, bool *is_long)
{
	__u16 now = now_ms >> GW_EPOCH_SHIFT, passed = now - *epoch;

	if (!passed)
		return false;
	*is_long = passed >= GW_EPOCHS_KNOWN;
	*epoch = now;
	return true;
}

static __always_inline struct gw_timestamp bounded(struct gw_timestamp m, __u64 now_ms, bool is_long)
{
	return is_long || age_ms(m, now_ms) >= GW_OLD_MS ? no_timestamp() : m;
}

/*
 * The age of somebody else's 32-bit time: up to 2^31 of its units; ~0U: unknown, since it would be older, or in the
 * future.
 */
static __always_inline __u32 age_of(__u32 then, __u32 now)
{
	__u32 age = now - then;

	return age < 1U << 31 ? age : ~0U;
}

/* The time of our clock whose lower half is echoed; 0: none within 2^31 ms. */
static __always_inline __u64 echoed_ms(__u32 echo, __u64 now_ms)
{
	__u32 age = age_of(echo, (__u32)now_ms);

	return age == ~0U || age >= now_ms ? 0 : now_ms - age;
}

#endif
