#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How does a proxy's day go by in minutes?

`day()` makes it: 96 quarter hours, as the paper's samples. Time is compressed, rates are not: a
quarter hour of 17 requests a second becomes half a second of 17 requests a second. The rate
follows the hours; within a sample requests come in bursts whose sizes have a heavy tail, as
browsers send them. Idle connections follow the rate, a step behind, and some come and go.
The same seed gives the same day.

Run as a program (`day.py PORT SIZE`) it is the clients of one proxy: a line on standard
input, a sample as JSON, is played, and answered by a line of what came of it. A request
is a connection of its own, as HTTP/1.0's. It is sent when it is due whatever the proxy does
(an open loop), and its time counts from when it was due, so that a proxy that stands still
is not asked less.
"""

import contextlib
import heapq
import json
import math
import random
import select
import socket
import sys
import time
from typing import Any, NamedTuple

HOURS = 24
DEADLINE_S = 5.0
IP_BIND_ADDRESS_NO_PORT = 24
# Pareto: a mean of 3 requests a burst, and now and then a hundred; 2 ms apart on average.
BURST_ALPHA, BURST_MOST, BURST_APART_S = 1.5, 100, 0.002
COME_AND_GO = 0.05  # of the idle connections, each sample


class Sample(NamedTuple):
    hour: float
    rate: float  # that the day's curve has
    due_s: list[float]
    idle: int


def curve(hour: float) -> float:
    """The part of the day's highest rate: quiet nights, a steep morning, a dip at noon, an evening."""
    bump = lambda at, width: math.exp(-(((hour - at) / width) ** 2))  # noqa: E731
    return min(1.0, 0.08 + 0.92 * bump(10.5, 2.2) + 0.85 * bump(15, 2.4) + 0.25 * bump(20, 2.5))


def day(samples: int, sample_s: float, most_rate: float, most_idle: int, seed: int = 1) -> list[Sample]:
    draw = random.Random(seed)
    mean_burst = sum(min(BURST_MOST, int(draw.paretovariate(BURST_ALPHA))) for _ in range(100_000)) / 100_000
    made: list[Sample] = []
    before = curve(0)
    for number in range(samples):
        hour = HOURS * number / samples
        rate = most_rate * curve(hour)
        due: list[float] = []
        at = 0.0
        while (at := at + draw.expovariate(rate / mean_burst)) < sample_s:
            next_due = at
            for _ in range(min(BURST_MOST, int(draw.paretovariate(BURST_ALPHA)))):
                if next_due < sample_s:
                    due.append(next_due)
                next_due += draw.expovariate(1 / BURST_APART_S)
        made.append(Sample(hour, rate, sorted(due), round(most_idle * before)))
        before = curve(hour)
    return made


class Asked:
    """One request."""

    def __init__(self, due: float) -> None:
        self.due, self.got, self.head, self.length = due, 0, b"", -1

    def take(self, data: bytes) -> None:
        if self.length < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            self.got, data = len(self.head) - end - 4, b""
            lengths = [line.split(b":")[1] for line in self.head[:end].lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self.length = int(lengths[0]) if lengths else 0
        self.got += len(data)

    def right(self, size: int) -> bool:
        return self.head[:12] in (b"HTTP/1.1 200", b"HTTP/1.0 200") and self.got == self.length == size


class Clients:
    def __init__(self, port: int, size: int) -> None:
        self.server, self.size = ("127.0.0.1", port), size
        self.request = f"GET /{size} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        self.epoll = select.epoll()
        self.waiting: dict[int, tuple[socket.socket, Asked]] = {}
        self.idle: list[socket.socket] = []
        self.opened = 0
        self.draw = random.Random(port)

    def _connect(self) -> socket.socket:
        client = socket.socket()
        # From several addresses: one has no more than 28,000 ports.
        self.opened += 1
        client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        client.bind((f"127.0.1.{1 + self.opened % 8}", 0))
        client.setblocking(False)
        client.connect_ex(self.server)
        return client

    def _step_idle(self, wanted: int) -> None:
        """One nearer to what is wanted, or one for another."""
        if len(self.idle) >= wanted and self.idle:
            at = self.draw.randrange(len(self.idle))
            self.idle[at].close()
            self.idle[at] = self.idle[-1]
            self.idle.pop()
        if len(self.idle) < wanted:
            self.idle.append(self._connect())

    def play(self, sample: dict[str, Any]) -> dict[str, Any]:
        seconds, wanted, due = sample["seconds"], sample["idle"], sample["due_s"]
        begin = time.monotonic()
        steps = abs(wanted - len(self.idle)) + int(COME_AND_GO * min(wanted, len(self.idle)))
        events = [(at, 0) for at in due] + [(seconds * (n + 0.5) / steps, 1) for n in range(steps)]
        heapq.heapify(events)
        result: dict[str, Any] = {"times_us": [], "done_s": [], "wrong": 0, "stalled": 0, "dropped": 0, "late_us": []}
        while True:
            now = time.monotonic() - begin
            while events and events[0][0] <= now:
                at, idle = heapq.heappop(events)
                if idle:
                    self._step_idle(wanted)
                else:
                    result["late_us"].append(round(1e6 * (time.monotonic() - begin - at)))
                    self._ask(begin + at)
            if not events and not self.waiting and now >= seconds:
                break
            if now >= seconds + DEADLINE_S:
                break
            until = events[0][0] if events else seconds if now < seconds else seconds + DEADLINE_S
            for descriptor, _ in self.epoll.poll(max(0.0, until - now), 256):
                self._read(descriptor, begin, result)
        for descriptor in list(self.waiting):
            result["stalled"] += 1
            self._forget(descriptor)
        result["idle_gone"] = self._idle_gone()
        result["idle"] = len(self.idle)
        return result

    def _ask(self, due: float) -> None:
        client = self._connect()
        self.waiting[client.fileno()] = client, Asked(due)
        # On loopback the connection is there by now, unless the proxy's queue is full.
        with contextlib.suppress(BlockingIOError):
            client.send(self.request)
            self.epoll.register(client, select.EPOLLIN)
            return
        self.epoll.register(client, select.EPOLLOUT)

    def _forget(self, descriptor: int) -> None:
        client, _ = self.waiting.pop(descriptor)
        self.epoll.unregister(client)
        client.close()

    def _read(self, descriptor: int, begin: float, result: dict[str, Any]) -> None:
        client, asked = self.waiting[descriptor]
        try:
            data = client.recv(1 << 16)
        except BlockingIOError:  # connected
            client.send(self.request)
            self.epoll.modify(client, select.EPOLLIN)
            return
        except OSError:
            data = b""
        asked.take(data)
        # Whole when the length is there; the connection's end says the same a little later.
        if data and not (0 <= asked.length <= asked.got):
            return
        self._forget(descriptor)
        now = time.monotonic()
        if not asked.head:
            result["dropped"] += 1
            return
        result["wrong"] += not asked.right(self.size)
        result["stalled"] += now - asked.due > DEADLINE_S
        result["times_us"].append(round(1e6 * (now - asked.due)))
        result["done_s"].append(round(now - begin, 4))

    def _idle_gone(self) -> int:
        """Connections that the proxy should have kept; they are opened anew."""
        gone = 0
        for at, client in enumerate(self.idle):
            try:
                client.recv(1)
            except BlockingIOError:
                continue
            except OSError:
                pass
            gone += 1
            client.close()
            self.idle[at] = self._connect()
        return gone


def main() -> int:
    clients = Clients(int(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        print(json.dumps(clients.play(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
