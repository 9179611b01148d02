#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How long does each of many GET requests take, when they are due at given times?

    clients.py < JSON: port, connections, seconds, rate (0: as fast as they are answered), targets

A target is path, length and CRC-32 of its answer. Paced requests are due at equal
distances, wait for a free connection if they must, and are timed from when they were due:
a server that stands still for 100 ms is seen by all that came in that time. Writes JSON:
for each answer its time in ns, how late the client itself was at worst, and the errors.
"""

import collections
import gc
import json
import select
import socket
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

PATIENCE_S = 10.0  # after the last was due


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received, self.due_ns = b"", 0
        self.target: Sequence[Any] = ()

    def ask(self, target: Sequence[Any], due_ns: int) -> None:
        self.target, self.due_ns, self.received = target, due_ns, b""
        # Small enough for any socket buffer.
        self.socket.sendall(f"GET {target[0]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def answered(self) -> str | None:
        """None: not yet whole; else what is wrong with it."""
        part = self.socket.recv(1 << 18)
        if not part:
            return "closed by the server"
        self.received += part
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return None
        lines = head.decode("latin-1").split("\r\n")
        lengths = [int(line.split(":")[1]) for line in lines[1:] if line.lower().startswith("content-length:")]
        if not lengths:
            return f"no length: {lines[0]}"
        if len(body) < lengths[0]:
            return None
        _, length, crc = self.target
        if not lines[0].startswith("HTTP/1.1 200") or len(body) != length or zlib.crc32(body) != crc:
            return f"{self.target[0]}: {lines[0]}, {len(body)} of {length} bytes" + ("" if len(body) != length else ", other bytes")
        return ""


def run(port: int, connections: int, seconds: float, rate: float, targets: list[Sequence[Any]]) -> dict[str, Any]:
    """`targets` are asked for one after the other, paced ones from the beginning again."""
    gc.disable()
    poll = select.epoll()
    everyone: dict[int, Connection] = {}
    for _ in range(connections):
        connection = Connection(port)
        everyone[connection.socket.fileno()] = connection
        poll.register(connection.socket, select.EPOLLIN)
    free = collections.deque(everyone.values())
    times_ns, errors, late_ns, asked = [], [], 0, 0
    begin_ns = time.monotonic_ns()
    end_ns = begin_ns + int(seconds * 1e9)
    last_ns = begin_ns
    while True:
        now_ns = time.monotonic_ns()
        # Only these may be sent now; what waits for a connection is due all the same.
        while free:
            due_ns = begin_ns + int(asked / rate * 1e9) if rate else now_ns
            if due_ns > now_ns or due_ns >= end_ns or (not rate and asked >= len(targets)):
                break
            connection = free.popleft()
            late_ns = max(late_ns, now_ns - max(due_ns, last_ns))
            connection.ask(targets[asked % len(targets)], due_ns)
            asked += 1
            now_ns = time.monotonic_ns()
        next_ns = begin_ns + int(asked / rate * 1e9) if rate else (now_ns if asked < len(targets) else end_ns)
        over = next_ns >= end_ns
        if over and len(free) == len(everyone):
            break
        if now_ns > end_ns + PATIENCE_S * 1e9:
            errors.append(f"{len(everyone) - len(free)} not answered {PATIENCE_S:.0f} s after the last was due")
            break
        wait_s = 0.1 if over or not free else max(0.0, (next_ns - now_ns) / 1e9)
        for descriptor, _ in poll.poll(wait_s):
            connection = everyone[descriptor]
            wrong = connection.answered()
            if wrong is None:
                continue
            last_ns = time.monotonic_ns()
            if wrong:
                errors.append(wrong)
                if wrong.startswith("closed"):
                    connection.socket.close()
                    del everyone[descriptor]
                    continue
            else:
                times_ns.append(last_ns - connection.due_ns)
            free.append(connection)
        if not everyone:
            break
    poll.close()
    for connection in everyone.values():
        connection.socket.close()
    return {"times_ns": times_ns, "asked": asked, "late_ns": late_ns, "errors": errors, "took_ns": last_ns - begin_ns}


if __name__ == "__main__":
    json.dump(run(**json.load(sys.stdin)), sys.stdout)
