/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Flows whose arriving packets are background: admission records them as it sends, ingress.bpf.c looks them up. The
 * daemon makes both objects use the same map.
 */
#ifndef GIVEWAY_BACKGROUND_ANSWERS_H
#define GIVEWAY_BACKGROUND_ANSWERS_H

#include "queueing.h"

struct background_answer {
	struct gw_background_key flow;
	__u8 protocol;
	__u8 reserved[3];
};

/* When this machine last sent to it in the background, to the second. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct background_answer);
	__type(value, __u64);
} background_answers SEC(".maps");

#define ANSWER_RENEWED_NS 1000000000ULL
/* A flow that has another class since, or another's that has its ports, is not background for longer. */
#define ANSWER_EXPECTED_NS 10000000000ULL

#endif
