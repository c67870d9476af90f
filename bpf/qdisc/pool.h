/* SPDX-License-Identifier: GPL-2.0-only */
/* Storage of queued packets: places in a static pool, linked by index into FIFOs. Knows no band and no order. */
#ifndef GIVEWAY_QDISC_POOL_H
#define GIVEWAY_QDISC_POOL_H

#define POOL 8192 /* of one instance; entry 0 stands for none */

/* A place for a packet. */
struct place {
	struct sk_buff __kptr *skb;
	__u64 queued_ns;
	__u64 deadline_ns;
	__u32 work_ns; /* promised; 0: none */
	__u32 link_bytes;
	__u32 bytes;
	__u32 tcp_bytes; /* `bytes` if the stamp has STAMP_TCP, else 0 */
	__u32 next;
	__u32 reserved;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, GW_LINKS * POOL);
	__type(key, __u32);
	__type(value, struct place);
} pool SEC(".maps");

struct fifo {
	__u32 head;
	__u32 tail;
};

/* An instance's free places. */
struct places {
	__u32 returned; /* head of the list of returned ones */
	__u32 fresh;    /* the last one ever taken: those after it are unused */
};

/* Of an instance's places, by index. */
static __always_inline struct place *place_at(__u32 number, __u32 index)
{
	__u32 key = number * POOL + (index & (POOL - 1));

	return bpf_map_lookup_elem(&pool, &key);
}

/* NULL: none is free. */
static __always_inline struct place *take_place(struct places *places, __u32 number, __u32 *index)
{
	struct place *place;

	*index = places->returned ? places->returned : places->fresh + 1;
	if (*index >= POOL)
		return NULL;
	place = place_at(number, *index);
	if (!place)
		return NULL;
	if (places->returned)
		places->returned = place->next;
	else
		places->fresh = *index;
	return place;
}

static __always_inline void return_place(struct places *places, struct place *place, __u32 index)
{
	place->next = places->returned;
	places->returned = index;
}

static __always_inline void push(struct fifo *fifo, __u32 number, __u32 index)
{
	struct place *last = fifo->head ? place_at(number, fifo->tail) : NULL;

	if (last)
		last->next = index;
	else
		fifo->head = index;
	fifo->tail = index;
}

static __always_inline __u32 pop(struct fifo *fifo, __u32 number)
{
	__u32 index = fifo->head;
	struct place *place = index ? place_at(number, index) : NULL;

	if (!place)
		return 0;
	fifo->head = place->next;
	return index;
}

#endif
