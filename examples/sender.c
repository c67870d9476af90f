/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sends packets that must leave within DEADLINE_MS milliseconds: sender ADDRESS PORT DEADLINE_MS PACKETS
 *
 * If giveway cannot send a packet in time, sendmsg fails with ENOBUFS at once: the sender can then send something
 * smaller, something newer, or nothing. Build: cc -o sender sender.c
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/net_tstamp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static int open_socket(const char *address, int port)
{
	struct sock_txtime deadlines = { .clockid = CLOCK_MONOTONIC, .flags = SOF_TXTIME_DEADLINE_MODE };
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int s = socket(AF_INET, SOCK_DGRAM, 0), on = 1;

	if (s < 0 || inet_pton(AF_INET, address, &to.sin_addr) != 1 ||
	    setsockopt(s, SOL_IP, IP_RECVERR, &on, sizeof(on)) || /* reports refusals */
	    setsockopt(s, SOL_SOCKET, SO_TXTIME, &deadlines, sizeof(deadlines)) ||
	    connect(s, (struct sockaddr *)&to, sizeof(to)))
		return -1;
	return s;
}

static ssize_t send_until(int s, const void *data, size_t bytes, uint64_t deadline_ns)
{
	union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(uint64_t))]; } control = {};
	struct iovec what = { .iov_base = (void *)data, .iov_len = bytes };
	struct msghdr m = { .msg_iov = &what, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };

	*CMSG_FIRSTHDR(&m) = (struct cmsghdr){ CMSG_LEN(sizeof(deadline_ns)), SOL_SOCKET, SCM_TXTIME };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &deadline_ns, sizeof(deadline_ns));
	return sendmsg(s, &m, 0);
}

int main(int argc, char **argv)
{
	char packet[1000] = "";
	int s, refused = 0, n = 0;
	struct timespec now;

	if (argc != 5)
		return fputs("sender ADDRESS PORT DEADLINE_MS PACKETS\n", stderr), 1;
	errno = EINVAL; /* inet_pton does not set it */
	s = open_socket(argv[1], atoi(argv[2]));
	for (; s >= 0 && n < atoi(argv[4]); n++) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (send_until(s, packet, sizeof(packet), now.tv_sec * 1000000000ull + now.tv_nsec + atoi(argv[3]) * 1000000ull) >= 0)
			continue;
		if (errno != ENOBUFS)
			break;
		refused++; /* the link is busy until the deadline: this example drops the packet */
	}
	if (s < 0 || n < atoi(argv[4]))
		return perror("sender"), 1;
	return printf("sent %d refused %d\n", n - refused, refused) < 0;
}
