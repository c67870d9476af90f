#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sends packets that must have left within DEADLINE_MS milliseconds: sender.py ADDRESS PORT DEADLINE_MS PACKETS

A packet that giveway cannot get out in time comes back as ENOBUFS from sendmsg, before it has cost anything: that is
the moment to send something smaller, something newer, or nothing.
"""

import errno
import socket
import struct
import sys
import time

# What Python's socket module has no names for (linux/in.h, linux/net_tstamp.h, asm-generic/socket.h).
IP_RECVERR = 11
SO_TXTIME = SCM_TXTIME = 61
SOF_TXTIME_DEADLINE_MODE = 1


def open_socket(address, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)  # so that refusals are told
    deadlines = struct.pack("=iI", time.CLOCK_MONOTONIC, SOF_TXTIME_DEADLINE_MODE)
    s.setsockopt(socket.SOL_SOCKET, SO_TXTIME, deadlines)
    s.connect((address, port))
    return s


def send_until(s, data, deadline_ns):
    """Whether the packet will have left by then; if not, it was not sent."""
    try:
        s.sendmsg([data], [(socket.SOL_SOCKET, SCM_TXTIME, struct.pack("=Q", deadline_ns))])
        return True
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise
        return False


def main(address, port, deadline_ms, packets):
    s = open_socket(address, int(port))
    packet = bytes(1000)
    refused = 0
    for _ in range(int(packets)):
        deadline_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) + int(deadline_ms) * 1_000_000
        if not send_until(s, packet, deadline_ns):
            refused += 1  # the link is taken until the deadline: here, this packet is given up
    print(f"sent {int(packets) - refused} refused {refused}")


if len(sys.argv) != 5:
    sys.exit("sender.py ADDRESS PORT DEADLINE_MS PACKETS")
main(*sys.argv[1:])
