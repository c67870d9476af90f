/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Flows whose arriving packets are background: admission records them as it sends, ingress.bpf.c looks them up. The
 * daemon makes both objects use the same map.
 */
#ifndef GIVEWAY_BACKGROUND_ANSWERS_H
#define GIVEWAY_BACKGROUND_ANSWERS_H

#include "queueing.h"

/* By their remote end and local port. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct gw_background_key);
	__type(value, __u8);
} background_answers SEC(".maps");

#endif
