#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Says that this machine is doing what runs in a cgroup, for as long as a command runs: focus.py CGROUP COMMAND...

CGROUP is a directory, as /sys/fs/cgroup/system.slice/teleop.service. Meanwhile bulk transfers outside of it are background:
all of them if root says so, else this user's own. A robot's program does the same around what it is doing.
"""

import json
import os
import socket
import subprocess
import sys
import threading

FOR_S = 10  # said anew before this is over; if this program dies, the word ends by itself


def ask(request):
    """One request, one line of JSON back: {"ok": ...} or {"error": "..."}."""
    place = f"/run/giveway/netns-{os.stat('/proc/self/ns/net').st_ino}"
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(2)  # a daemon that does not answer must not hold up the robot
        s.connect(f"{place}/control")
        s.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(s.makefile().readline())
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["ok"]


def say(cgroup):
    """The work goes on without it, so it raises nothing."""
    try:
        # The cgroup's id is the inode of its directory.
        told = ask({"request": "focus", "cgroup": os.stat(cgroup).st_ino, "for_s": FOR_S})
        return ", ".join(one["cgroup"] for one in told["focus"])
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        print(f"focus.py: {error}", file=sys.stderr)


def keep_saying(cgroup, over):
    while not over.wait(FOR_S / 2):
        say(cgroup)


def main(cgroup, *command):
    if told := say(cgroup):
        print(f"active: {told}", file=sys.stderr)
    over = threading.Event()
    threading.Thread(target=keep_saying, args=(cgroup, over), daemon=True).start()
    try:
        return subprocess.run(command).returncode
    finally:
        over.set()
        try:
            ask({"request": "focus_clear"})
        except (OSError, ValueError, RuntimeError):
            pass  # it ends by itself


if len(sys.argv) < 3:
    sys.exit("focus.py CGROUP COMMAND...")
sys.exit(main(*sys.argv[1:]))
