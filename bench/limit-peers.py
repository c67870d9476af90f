#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One download limit, kept by giveway and by other tools.

Two network namespaces, a veth pair between them, CUBIC, and one limit on a client that receives as much as it can. Each cell
starts the client once and takes what it received; QUIC cells take what left the limit's device, headers included.
Needs root, ip, wget, minimum rate, and in the interpreter's environment traffictoll (`tt`) and aioquic:

    python3 bench/limit-peers.py --giveway target/release/giveway --out DIR

Prints one line a cell and writes DIR/peers.json: `window_min` and `window_max` of all windows of ten seconds from the second
second on, `first_second`, all of the limit (payload; the limit counts headers, so at most 0.956); `excess_kb`, the most that
came before its time at the limit; `cpu_s`, user and system time of the tool and the client. Cells `beside` have what another
download gets on a link of 100 Mbit/s beside 20 Mbit/s that a limit of giveway's holds, or that their sender paces.
"""

import argparse
import asyncio
import json
import os
import resource
import selectors
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import time

PORT = 5401
DEVICE, FAR = "10.79.1.1", "10.79.1.2"
LINK = "wlan0"
STEP_S = 0.25
SO_MAX_PACING_RATE = 47
LOAD_MBIT, LOAD_CONNECTIONS = 20.0, 4
WINDOW_S = 10.0
TOOLS = ["giveway-rule", "giveway-exec", "minimum rate", "traffictoll"]


def run(line, **options):
    return subprocess.run(shlex.split(line), check=True, stdin=subprocess.DEVNULL, **options)


# --- The two ends: this script again, inside a namespace. ---


def serve_tcp(port=PORT, pace_bytes_per_s=None):
    listener = socket.create_server(("0.0.0.0", port), backlog=64)
    print("ready", flush=True)
    zeros = bytes(1 << 16)
    while True:
        connection, _ = listener.accept()
        if pace_bytes_per_s:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pace_bytes_per_s)
        if os.fork() == 0:
            try:
                # For wget; the others count these bytes with the rest.
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while True:
                    connection.sendall(zeros)
            except OSError:
                os._exit(0)
        connection.close()


def receive_tcp(connections, seconds, port=PORT):
    count([socket.create_connection((FAR, port)) for _ in range(connections)], seconds)


def receive_by_wget(connections, seconds, before):
    """minimum rate stands before functions of the C library that Python does not call."""
    line = f"{before} wget -q -O - http://{FAR}:{PORT}/"
    started = [subprocess.Popen(shlex.split(line), stdout=subprocess.PIPE, bufsize=0) for _ in range(connections)]
    count([process.stdout for process in started], seconds)
    for process in started:
        process.kill()


def count(sources, seconds):
    """Prints the time and the bytes so far, every STEP_S."""
    waits = selectors.DefaultSelector()
    began = time.monotonic()
    for source in sources:
        waits.register(source, selectors.EVENT_READ)
    received, due, samples = 0, 0.0, []
    while (at := time.monotonic() - began) < seconds:
        if at >= due:
            samples.append((round(at, 4), received))
            due += STEP_S
        for key, _ in waits.select(max(0.0, min(due, seconds) - at)):
            received += len(os.read(key.fd, 1 << 16))
    samples.append((seconds, received))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"samples": samples, "cpu_s": used.ru_utime + used.ru_stime}), flush=True)


def serve_quic(folder):
    from aioquic.asyncio import QuicConnectionProtocol, serve
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import StreamDataReceived

    class Endless(QuicConnectionProtocol):
        def quic_event_received(self, event):
            if isinstance(event, StreamDataReceived):
                self.write(event.stream_id)

        def write(self, stream):
            # As much as the congestion window lets go, and a little more.
            pending = self._quic._streams[stream].sender._buffer
            if len(pending) < 1 << 20:
                self._quic.send_stream_data(stream, bytes(1 << 18))
                self.transmit()
            asyncio.get_event_loop().call_later(0.005, self.write, stream)

    async def go():
        configuration = QuicConfiguration(is_client=False, alpn_protocols=["endless"])
        configuration.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        await serve("0.0.0.0", PORT, configuration=configuration, create_protocol=Endless)
        print("ready", flush=True)
        await asyncio.Future()

    asyncio.run(go())


def receive_quic(seconds):
    from aioquic.asyncio import connect
    from aioquic.quic.configuration import QuicConfiguration

    async def go():
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["endless"], verify_mode=ssl.CERT_NONE)
        configuration.max_data = configuration.max_stream_data = 1 << 30
        async with connect(FAR, PORT, configuration=configuration) as connection:
            reader, writer = await connection.create_stream()
            writer.write(b"go")
            received, began = 0, time.monotonic()
            while time.monotonic() - began < seconds:
                received += len(await reader.read(1 << 16))
            print(json.dumps({"received": received}), flush=True)
            os._exit(0)

    asyncio.run(go())


# --- One cell. ---


class Place:
    """Two namespaces and the wire; gone at the end."""

    def __enter__(self):
        self.device, self.far = (f"gwp-{end}-{os.getpid()}" for end in ("device", "far"))
        for name in (self.device, self.far):
            run(f"ip netns add {name}")
        run(f"ip link add {LINK} netns {self.device} type veth peer name {LINK} netns {self.far}")
        for name, address in ((self.device, DEVICE), (self.far, FAR)):
            run(f"ip -n {name} address add {address}/24 dev {LINK}")
            run(f"ip -n {name} link set {LINK} up")
            run(f"ip -n {name} link set lo up")
        self.started = []
        return self

    def start(self, at, line, **options):
        words = ["ip", "netns", "exec", at, *shlex.split(line)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, text=True, **options)
        self.started.append(process)
        return process

    def cpu_s(self, process):
        fields = open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def passed(self):
        shown = run(f"ip -n {self.device} -json -s link show dev giveway-down", capture_output=True)
        return json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"]

    def __exit__(self, *_):
        for process in reversed(self.started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        for name in (self.device, self.far):
            run(f"ip netns delete {name}")


def me(role):
    return f"{sys.executable} {os.path.abspath(__file__)} --role {shlex.quote(role)}"


def install(place, tool, limit, folder, giveway):
    """Starts what keeps the limit; gives back its process and what stands before the client's command."""
    if tool.startswith("giveway"):
        rule = f'[[rule]]\nport = {PORT}\nclass = "standard"\ndownload_limit_mbit = {limit}\n'
        open(f"{folder}/giveway.toml", "w").write(rule if tool == "giveway-rule" else "")
        line = f"{giveway} run --config {folder}/giveway.toml --interface {LINK}"
        daemon = place.start(place.device, line, stderr=open(f"{folder}/giveway.log", "w"))
        time.sleep(4)
        before = "" if tool == "giveway-rule" else f"{giveway} exec --down {limit}mbit --"
        return daemon, before
    if tool == "minimum rate":
        # Both have limits of their own, of 10 KB/s where none is given.
        limits = f"-d {limit * 125:.0f} -u {limit * 125:.0f} -n {folder}/socket"
        return place.start(place.device, f"trickled -f {limits}"), f"minimum rate {limits}"
    run(f"ip -n {place.device} link add ifb0 type ifb")
    run(f"ip -n {place.device} link set ifb0 up")
    open(f"{folder}/tt.yaml", "w").write(
        f"processes:\n  client:\n    download: {limit}mbit\n    match:\n      - cmdline: .*receive_tcp.*\n"
    )
    tt = os.path.join(os.path.dirname(sys.executable), "tt")
    daemon = place.start(place.device, f"{tt} {LINK} {folder}/tt.yaml", stderr=open(f"{folder}/tt.log", "w"))
    time.sleep(3)
    return daemon, ""


def judge(samples, limit, seconds):
    of_limit = lambda mbit: round(mbit / limit, 4)
    later = [(at, got) for at, got in samples if at >= 1.0]
    length = min(WINDOW_S, seconds - 2.0)
    rates = []
    for at, got in later:
        end = next(((a, g) for a, g in later if a - at >= length), None)
        if end:
            rates.append((end[1] - got) * 8e-6 / (end[0] - at))
    first = next(got for at, got in samples if at >= 1.0)
    excess = max(got - limit * 125_000 * at for at, got in samples)
    return {
        "window_min": of_limit(min(rates)),
        "window_max": of_limit(max(rates)),
        "first_second": of_limit(first * 8e-6),
        "excess_kb": round(excess / 1e3),
    }


def tcp(tool, limit, connections, seconds, giveway):
    with Place() as place, tempfile.TemporaryDirectory() as folder:
        server = place.start(place.far, me("serve_tcp()"), stdout=subprocess.PIPE)
        server.stdout.readline()
        daemon, before = install(place, tool, limit, folder, giveway)
        began_s = place.cpu_s(daemon) if daemon else 0.0
        client = f"{before} {me(f'receive_tcp({connections},{seconds})')}"
        if tool == "minimum rate":
            client = me(f"receive_by_wget({connections},{seconds},'{before}')")
        client = place.start(place.device, client, stdout=subprocess.PIPE)
        told = json.loads(client.stdout.read())
        client.wait()
        figures = judge(told["samples"], limit, seconds)
        spent_s = place.cpu_s(daemon) - began_s if daemon else 0.0
        return figures | {"cpu_s": round(told["cpu_s"] + spent_s, 2)}


def quic(name, serve, receive, limit, seconds, giveway):
    """What leaves the limit's device, headers included."""
    with Place() as place, tempfile.TemporaryDirectory() as folder:
        run(
            f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=giveway -keyout {folder}/key.pem -out {folder}/cert.pem",
            stderr=subprocess.DEVNULL,
        )
        server = place.start(place.far, serve.format(folder=folder, port=PORT), stdout=subprocess.PIPE)
        server.stdout.readline()
        daemon, before = install(place, "giveway-rule", limit, folder, giveway)
        place.start(place.device, receive.format(seconds=seconds + 5, far=f"{FAR}:{PORT}"), stdout=subprocess.DEVNULL)
        began, samples = None, []
        while began is None or time.monotonic() - began < seconds:
            passed = place.passed()
            if began is None and passed:
                began, first = time.monotonic(), passed
            if began is not None:
                samples.append((time.monotonic() - began, passed - first))
            time.sleep(STEP_S if began else 0.01)
        return judge(samples, limit, seconds)


def beside(is_limited, seconds, giveway):
    """A download without a limit on a link of 100 Mbit/s, beside one that is held to 20 by giveway, or paced so by its sender."""
    paced = int(LOAD_MBIT * 125_000 * 0.956 / LOAD_CONNECTIONS)
    with Place() as place, tempfile.TemporaryDirectory() as folder:
        run(f"tc -n {place.far} qdisc add dev {LINK} root tbf rate 100mbit burst 16k latency 50ms")
        load_port, other_port = PORT, PORT + 1
        for role in (f"serve_tcp({load_port},{None if is_limited else paced})", f"serve_tcp({other_port})"):
            place.start(place.far, me(role), stdout=subprocess.PIPE).stdout.readline()
        if is_limited:
            install(place, "giveway-rule", LOAD_MBIT, folder, giveway)
        load = place.start(
            place.device, me(f"receive_tcp({LOAD_CONNECTIONS},{seconds + 2},{load_port})"), stdout=subprocess.PIPE
        )
        time.sleep(2)
        other = place.start(place.device, me(f"receive_tcp(1,{seconds},{other_port})"), stdout=subprocess.PIPE)
        mbit = [json.loads(end.stdout.read())["samples"][-1][1] * 8e-6 for end in (other, load)]
        return {"other_mbit": round(mbit[0] / seconds, 3), "load_mbit": round(mbit[1] / (seconds + 2), 3)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--role", help=argparse.SUPPRESS)
    arguments.add_argument("--giveway", default="target/release/giveway")
    arguments.add_argument("--out", default="out/limit-peers")
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--limits", type=float, nargs="*", default=[2.5, 20.0, 200.0])
    arguments.add_argument("--connections", type=int, nargs="+", default=[1, 4])
    arguments.add_argument("--tools", nargs="*", default=TOOLS)
    arguments.add_argument("--quic-limits", type=float, nargs="*", default=[2.5, 20.0])
    arguments.add_argument("--beside-rounds", type=int, default=5)
    arguments.add_argument(
        "--quic",
        nargs=3,
        action="append",
        metavar=("NAME", "SERVE", "RECEIVE"),
        default=[],
        help="another implementation: a server that prints a line when it is ready ({folder}: key.pem, cert.pem; {port}), "
        "and a client ({seconds}; {far})",
    )
    given = arguments.parse_args()
    if given.role:
        return eval(given.role)
    giveway = os.path.abspath(given.giveway)
    os.makedirs(given.out, exist_ok=True)
    results = {}

    def note(name, figures):
        results[name] = figures
        print(name, json.dumps(figures), flush=True)
        with open(f"{given.out}/peers.json", "w") as file:
            json.dump({"seconds": given.seconds, "kernel": os.uname().release, "cells": results}, file, indent=1)

    for limit in given.limits:
        for connections in given.connections:
            for tool in given.tools:
                note(f"{tool}/{connections}/{limit:g}", tcp(tool, limit, connections, given.seconds, giveway))
    for round_ in range(given.beside_rounds):
        for is_limited in (True, False):
            name = f"beside/{'limited' if is_limited else 'paced'}/{round_ + 1}"
            note(name, beside(is_limited, given.seconds, giveway))
    own = ("aioquic", me('serve_quic("{folder}")'), me("receive_quic({seconds})"))
    for name, serve, receive in [own, *given.quic]:
        for limit in given.quic_limits:
            note(f"{name}/{limit:g}", quic(name, serve, receive, limit, given.seconds, giveway))


if __name__ == "__main__":
    main()
