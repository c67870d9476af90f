/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one place that writes a socket's congestion control, for iter/tcp programs, which hold the socket's lock. The
 * previous one is restored by its name; where it no longer exists (its module was unloaded), Reno replaces it, which
 * every kernel has.
 */
#ifndef GIVEWAY_CONTROL_H
#define GIVEWAY_CONTROL_H

static __always_inline bool read_control(struct tcp_sock *tp, char name[GW_CA_NAME_LEN])
{
	const struct tcp_congestion_ops *ca = tp->inet_conn.icsk_ca_ops;

	return ca && bpf_core_read_str(name, GW_CA_NAME_LEN, &ca->name) >= 0;
}

static __always_inline bool is_same_control(const char a[GW_CA_NAME_LEN], const char b[GW_CA_NAME_LEN])
{
	for (int i = 0; i < GW_CA_NAME_LEN; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

static __always_inline void copy_control(char to[GW_CA_NAME_LEN], const char from[GW_CA_NAME_LEN])
{
	for (int i = 0; i < GW_CA_NAME_LEN; i++)
		to[i] = from[i];
}

/* Whether the socket's present congestion control is the one that we set. */
static __always_inline bool is_our_control(const struct gw_saved_socket *saved, const char present[GW_CA_NAME_LEN])
{
	return saved && is_known(saved) && (saved->ours & GW_CONGESTION_CONTROL) &&
	       is_same_control(saved->control_ours, present);
}

static __always_inline int write_control(struct tcp_sock *tp, const char wanted[GW_CA_NAME_LEN])
{
	char name[GW_CA_NAME_LEN];

	copy_control(name, wanted);
	return bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
}

static __always_inline int restore_control(struct tcp_sock *tp, const struct gw_saved_socket *saved)
{
	static const char always_there[GW_CA_NAME_LEN] = "reno";
	int error = write_control(tp, saved->control_before);

	return error == -ENOENT ? write_control(tp, always_there) : error;
}

#endif
