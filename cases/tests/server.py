#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does cases/flash give the right bytes in every combination of its switches, and leave nothing behind?

    server.py [FLASH] [--only WORD ...]
    server.py [FLASH] --load     instead: requests/s beside nginx, in memory (wrk, nginx)

Takes target/cases/flash if it is there and newer than its sources, else builds
one with cc. WORDs choose combinations by their switches, and checks by name.
"""

import ctypes
import fcntl
import itertools
import json
import mmap
import multiprocessing
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

CASES = Path(__file__).resolve().parents[1]
SOURCES = CASES / "flash"
MASK = (1 << 64) - 1
SLOW = float(os.environ.get("DEBOX_TEST_TIME", "1"))  # sanitizers and loaded machines need more time
PROCESSES = 4
CLASSES = (102, 1024, 10240, 102400)


class Wrong(Exception):
    """What a check saw, and what it expected."""


def expect(what: str, seen: object, wanted: object) -> None:
    if seen != wanted:
        short = [repr(value)[:120] for value in (seen, wanted)]
        raise Wrong(f"{what}: {short[0]}, expected {short[1]}")


# --- files -----------------------------------------------------------------


def content(directory: int, kind: int, file: int) -> bytes:
    """The bytes of a file, as the load generator knows them too."""
    size = file * CLASSES[kind]
    words = []
    base = (((directory * 4 + kind) * 16 + file) << 32) + 0x9E3779B97F4A7C15
    for k in range((size + 7) // 8):
        z = (base + k) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(z ^ (z >> 31))
    return struct.pack(f"<{len(words)}Q", *words)[:size]


def make_files(root: Path, files: dict[str, bytes]) -> None:
    """Two directories: all of classes 0 to 2, and the smallest and largest of class 3. Their bytes are computed once."""
    chosen = [(d, k, f) for d in (0, 1) for k in range(4) for f in range(1, 10) if k < 3 or f in (1, 9)]
    for directory, kind, file in chosen:
        name = f"dir{directory:05}/class{kind}_{file}"
        files[name] = files.get(name) or content(directory, kind, file)
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(files[name])
    files["empty"] = b""
    (root / "empty").write_bytes(b"")
    (root / "with space").write_bytes(b"blank\n")
    files["with space"] = b"blank\n"
    (root / "outside").symlink_to("/etc/passwd")
    (root / "inside").symlink_to("dir00000/class0_1")
    os.mkfifo(root / "fifo")


def cached_pages(path: Path) -> int:
    """How many pages of a file are in the page cache; mincore(2) has no side effect."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        pages = (ctypes.c_ubyte * ((len(mapping) + 4095) // 4096))()
        view = ctypes.c_char.from_buffer(mapping)
        if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapping)), pages):
            raise OSError(ctypes.get_errno(), "mincore")
        del view
        return sum(page & 1 for page in pages)


def make_cold(path: Path, data: bytes) -> None:
    """A new file that is on the disk only. One that was sent before may stay cached: its pages wait in skbs whose freeing is deferred."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        until = time.monotonic() + 5 * SLOW
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while pages := cached_pages(path):
            if time.monotonic() > until:
                raise Wrong(f"{pages} pages of {path.name} do not leave the page cache")
            time.sleep(0.001)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def dynamic(data: bytes, ad: int) -> bytes:
    head = f"<html><head><title>debox</title></head><body><p>ad {ad}</p><pre>\n"
    return head.encode() + data + b"\n</pre></body></html>\n"


# --- server and client -----------------------------------------------------


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += [int(child), *children(int(child))]
        except OSError:
            pass
    return found


def alive(pids: list[int]) -> list[int]:
    """Which of them have not ended; who has is at most a zombie that waits for init."""
    left = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                left.append(pid)
        except OSError:
            pass
    return left


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Server:
    """A running flash; its last words are checked when it ends."""

    def __init__(self, flash: Path, root: Path, switches: list[str], cgroup: Path | None = None) -> None:
        command = [str(flash), "--root", str(root), "--port", "0", *switches]
        enter = (lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid()))) if cgroup else None
        self.errors = open(root.parent / f"said{os.getpid()}", "a+")
        self.begin = self.errors.tell()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True, preexec_fn=enter)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        if not match:
            self.process.wait()
            raise Wrong(f"start: {line!r}, {self.said()!r}")
        self.port = int(match.group(1))
        self.pid = self.process.pid

    def said(self) -> str:
        return Path(self.errors.name).read_text()[self.begin:]

    def counters(self) -> dict[str, int]:
        before = len(self.said())
        self.process.send_signal(signal.SIGUSR1)
        for _ in range(int(300 * SLOW)):
            if self.said()[before:].endswith("}\n"):
                return json.loads(self.said()[before:])
            time.sleep(0.01)
        raise Wrong("SIGUSR1: no counters on stderr")

    def held(self) -> tuple[int, int]:
        """How many descriptors the server's processes have open, and how many processes there are."""
        pids = [self.pid, *children(self.pid)]
        return sum(descriptors(pid) for pid in pids), len(pids)

    def idle(self) -> tuple[int, int]:
        """The same as soon as helpers have closed what they inherited: each keeps stdin, stdout, stderr, the root and its socket."""
        until = time.monotonic() + 2 * SLOW
        while any(descriptors(pid) != 5 for pid in children(self.pid)) and time.monotonic() < until:
            time.sleep(0.002)
        return self.held()

    def stop(self) -> None:
        pids = children(self.pid)
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(3 * SLOW)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            raise Wrong("SIGTERM: still there after seconds") from error
        expect("exit status after SIGTERM", (status, re.findall(r"(?m)^(?!\{).+", self.said())[:8]), (0, []))
        until = time.monotonic() + 2 * SLOW
        while left := alive(pids):
            if time.monotonic() > until:
                raise Wrong(f"SIGTERM left processes {left}")
            time.sleep(0.005)


class Client:
    """A connection that speaks HTTP as it is told, right or wrong."""

    def __init__(self, server: Server, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(8 * SLOW)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", server.port))
        self.rest = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def more(self) -> bool:
        data = self.socket.recv(1 << 18)
        self.rest += data
        return bool(data)

    def answer(self, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in self.rest:
            if not self.more():
                raise Wrong(f"the connection ended in an answer's head: {self.rest[:80]!r}")
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        headers = {key.lower(): value for key, value in (line.split(": ", 1) for line in lines[1:])}
        length = 0 if head_only else int(headers["content-length"])
        parts, have = [self.rest], len(self.rest)
        while have < length:
            data = self.socket.recv(1 << 18)
            if not data:
                raise Wrong(f"the connection ended after {have} of {length} bytes")
            parts.append(data)
            have += len(data)
        body = b"".join(parts)
        self.rest = body[length:]
        return int(lines[0].split()[1]), headers, body[:length]

    def get(self, target: str, extra: str = "", method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        self.send(f"{method} {target} HTTP/1.1\r\nHost: x\r\n{extra}\r\n".encode())
        return self.answer(method == "HEAD")

    def ended(self) -> bool:
        return not self.rest and not self.more()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


# --- what every combination must do ----------------------------------------


def static_files(server: Server, files: dict[str, bytes]) -> None:
    with Client(server) as client:
        for name in ("dir00000/class0_1", "dir00001/class1_5", "dir00000/class2_9", "dir00001/class3_1", "dir00000/class3_9", "empty"):
            for _ in range(2):
                status, headers, body = client.get("/" + name)
                expect(f"GET {name}", (status, body), (200, files[name]))
            status, seen, _ = client.get("/" + name, method="HEAD")
            expect(f"HEAD {name}", (status, seen["content-length"]), (200, headers["content-length"]))
        for target, name in (("/with%20space", "with space"), ("//dir00000//class0_1", "dir00000/class0_1"), ("/dir00000%2Fclass0_%31?x", "dir00000/class0_1"),
                             ("http://x/dir00000/class0_1", "dir00000/class0_1"), ("/inside", "dir00000/class0_1")):
            expect(f"GET {target}", client.get(target)[::2], (200, files[name]))
        for target in ("/", "/none", "/dir00000", "/dir00000/", "/dir00000/class0_1/x", "/outside", "/fifo", "/" + "a" * 300):
            expect(f"GET {target[:30]}", client.get(target)[0], 404)
        expect("GET after all that", client.get("/dir00000/class0_1")[::2], (200, files["dir00000/class0_1"]))


def ranges(server: Server, files: dict[str, bytes]) -> None:
    name = "dir00001/class3_9"
    data, size = files[name], len(files[name])
    last = size - 1
    wanted: list[tuple[str, int, tuple[int, int]]] = [
        ("bytes=0-0", 206, (0, 1)), ("bytes=1-4095", 206, (1, 4096)), (f"bytes=131071-{131073}", 206, (131071, 131074)),
        ("bytes=4097-", 206, (4097, size)), ("bytes=-1", 206, (last, size)), (f"bytes=-{size + 9}", 206, (0, size)),
        (f"bytes={last}-{size + 9}", 206, (last, size)), (f"bytes={size}-", 416, (0, 0)), ("bytes=-0", 416, (0, 0)),
        ("bytes=5-4", 200, (0, size)), ("bytes=a-b", 200, (0, size)), ("bytes=0-1,3-4", 200, (0, size)), ("lines=0-1", 200, (0, size)),
        ("bytes=--5", 200, (0, size)), ("bytes=-5-", 200, (0, size)), ("bytes=-", 200, (0, size)), ("bytes=5", 200, (0, size)),
    ]
    with Client(server) as client:
        for value, status, (first, end) in wanted:
            seen, headers, body = client.get("/" + name, f"Range: {value}\r\n")
            expect(f"Range: {value}", seen, status)
            if status != 416:
                expect(f"bytes of Range: {value}", body, data[first:end])
            content_range = {206: f"bytes {first}-{end - 1}/{size}", 416: f"bytes */{size}", 200: None}[status]
            expect(f"Content-Range of {value}", headers.get("content-range"), content_range)
        expect("Range of an empty file", client.get("/empty", "Range: bytes=0-\r\n")[0], 416)
        expect("If-Range", client.get("/" + name, 'Range: bytes=0-0\r\nIf-Range: "x"\r\n')[::2], (200, data))


def dynamic_pages(server: Server, files: dict[str, bytes]) -> None:
    with Client(server) as client:
        for name in ("dir00000/class0_2", "dir00000/class3_9", "empty"):
            expect(f"dynamic {name}", client.get(f"/dynamic/{name}?ad=4294967295")[::2], (200, dynamic(files[name], 4294967295)))
        status, headers, _ = client.get("/dynamic/dir00000/class0_2?ad=7", method="HEAD")
        expect("dynamic HEAD", (status, int(headers["content-length"])), (200, len(dynamic(files["dir00000/class0_2"], 7))))
        expect("dynamic of no file", client.get("/dynamic/none?ad=1")[0], 404)
    for query in ("", "?ad=", "?ad=x", "?ad=4294967296"):
        with Client(server) as client:
            expect(f"dynamic with {query!r}", client.get("/dynamic/dir00000/class0_2" + query)[0], 400)


def cgi_programs(server: Server, files: dict[str, bytes]) -> None:
    name = "dir00001/class3_1"
    for target, status, body in ((f"/cgi/{name}?ad=3", 200, dynamic(files[name], 3)), ("/cgi/none?ad=3", 404, None), ("/cgi/outside?ad=3", 404, None), (f"/cgi/{name}?ad=x", 400, None)):
        with Client(server) as client:
            seen, headers, got = client.get(target)
            expect(f"GET {target}", seen, status)
            if body:
                expect(f"bytes of {target}", got, body)
            expect(f"end after {target}", (headers["connection"], client.ended()), ("close", True))
    with Client(server) as client:
        status, headers, _ = client.get(f"/cgi/{name}?ad=3", method="HEAD")
        expect("CGI HEAD", (status, int(headers["content-length"])), (200, len(dynamic(files[name], 3))))


def posts(server: Server, root: Path, token: str) -> None:
    bodies = [f"{token}&n=0", f"{token}&" + "y" * 8000, f"{token}&n=2"]
    with Client(server) as client:
        for body in bodies:
            extra = f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n"
            client.send(f"POST /post HTTP/1.1\r\nHost: x\r\n{extra}\r\n".encode())
            client.send(body.encode())
            page = f"<html><body>{len(body)} bytes taken</body></html>\n".encode()
            expect("POST", client.answer()[::2], (200, page))
    lines = [line for line in (root / "post.log").read_text().splitlines() if line.startswith(token)]
    expect("post.log", lines, bodies)


def keep_alive(server: Server, files: dict[str, bytes], token: str) -> None:
    name = "dir00000/class1_1"
    with Client(server) as client:
        client.send(f"GET /{name} HTTP/1.0\r\n\r\n".encode())
        expect("HTTP/1.0", (client.answer()[::2], client.ended()), ((200, files[name]), True))
    with Client(server) as client:
        for _ in range(2):
            client.send(f"GET /{name} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode())
            status, headers, body = client.answer()
            expect("HTTP/1.0 keep-alive", (status, headers.get("connection"), body), (200, "keep-alive", files[name]))
    with Client(server) as client:
        status, headers, body = client.get("/" + name, "Connection: close\r\n")
        expect("Connection: close", (status, headers["connection"], body, client.ended()), (200, "close", files[name], True))
    with Client(server) as client:  # pipelined, bare line ends and empty lines among them
        client.send(f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n\r\nHEAD /{name} HTTP/1.1\nHost: x\n\nPOST /post HTTP/1.1\r\nHost: x\r\nContent-Length: {len(token) + 2}\r\n\r\np={token}".encode()
                    + f"GET /dynamic/{name}?ad=5 HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                    + f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 100 + f"GET /cgi/{name}?ad=5 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        expect("pipelined GET", client.answer()[::2], (200, files[name]))
        expect("pipelined HEAD", client.answer(True)[0], 200)
        expect("pipelined POST", client.answer()[0], 200)
        expect("pipelined dynamic", client.answer()[::2], (200, dynamic(files[name], 5)))
        expect("pipelined 404", client.answer()[0], 404)
        for _ in range(100):
            expect("pipelined GET of 100", client.answer()[::2], (200, files[name]))
        expect("pipelined CGI", client.answer()[::2], (200, dynamic(files[name], 5)))


BAD = [
    (b"nonsense\r\n\r\n", 400), (b"GET /\r\n\r\n", 400), (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400), (b"GET /a\0b HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"G=T / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /dir00000/..%2f..%2fetc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /%2e%2E/etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /cgi/..?ad=1 HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /dir00000/. HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /" + b"a/" * 400 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /%2 HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", 405), (b"GET /post HTTP/1.1\r\nHost: x\r\n\r\n", 405), (b"POST /empty HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", 405),
    (b"POST /post HTTP/1.1\r\nHost: x\r\n\r\n", 411), (b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 8193\r\n\r\n" + b"x" * 8193, 413),
    (b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400), (b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400), (b"POST /post HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    (b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na\nb", 400), (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 431), (b"x" * 9000, 431),
]


def bad_requests(server: Server) -> None:
    for request, status in BAD:
        with Client(server) as client:
            client.send(request)
            seen, headers, _ = client.answer()
            expect(f"{request[:50]!r}", seen, status)
            expect(f"end after {request[:50]!r}", (headers["connection"], client.ended()), ("close", True))


def slow_clients(server: Server, files: dict[str, bytes]) -> None:
    name = "dir00001/class3_9"
    with Client(server, receive_buffer=4096) as client:  # takes little at a time, others are served meanwhile
        for part in (b"GE", b"T /", name.encode(), b" HTTP/1.1\r", b"\nHost: x\r\n\r", b"\n"):
            client.send(part)
            time.sleep(0.001)
        data = b""
        while len(data) < 20000:
            data += client.socket.recv(2048)
            if len(data) < 5000:
                with Client(server) as other:
                    expect("another client beside a slow one", other.get("/empty")[0], 200)
        client.rest = data
        expect("slow client", client.answer()[2], files[name])


def aborts(server: Server) -> None:
    for request, wait in ((b"", 0.0), (b"GET /dir0", 0.0), (b"GET /dir00000/class3_9 HTTP/1.1\r\nHost: x\r\n\r\n", 0.001), (b"GET /cgi/dir00000/class3_9?ad=1 HTTP/1.1\r\nHost: x\r\n\r\n", 0.001),
                          (b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", 0.0), (b"GET /dynamic/dir00000/class3_9?ad=1 HTTP/1.1\r\nHost: x\r\n\r\n" * 4, 0.0)):
        for end in (Client.reset, lambda client: client.socket.close()):
            client = Client(server)
            client.send(request)
            time.sleep(wait)
            end(client)


def cold_files(server: Server, root: Path, files: dict[str, bytes]) -> None:
    data = files["dir00000/class3_9"][:300000]
    make_cold(root / "cold", data)
    with Client(server) as client:
        for _ in range(2):
            expect("cold file", client.get("/cold")[::2], (200, data))
    (root / "cold").unlink()


def batch(server: Server, root: Path, files: dict[str, bytes], token: str) -> None:
    cold_files(server, root, files)
    static_files(server, files)
    ranges(server, files)
    dynamic_pages(server, files)
    cgi_programs(server, files)
    posts(server, root, token)
    keep_alive(server, files, token)
    bad_requests(server)


def settled(server: Server, wanted: tuple[int, int], what: str) -> None:
    until = time.monotonic() + 3 * SLOW
    while (seen := server.held()) != wanted:
        if time.monotonic() > until:
            raise Wrong(f"{what}: descriptors, processes {seen}, before {wanted}")
        time.sleep(0.005)


def no_connections(server: Server, what: str) -> None:
    until = time.monotonic() + 4 * SLOW
    while left := server.counters()["connections_open"]:
        if time.monotonic() > until:
            raise Wrong(f"{what}: {left}")
        time.sleep(0.02)


def combination(flash: Path, root: Path, files: dict[str, bytes], switches: list[str], number: int) -> None:
    server = Server(flash, root, switches)
    try:
        idle = server.held() if "processes" in switches else server.idle()
        batch(server, root, files, f"c{number}a")
        counted = server.counters()
        open_files = counted["files_open"]
        if "processes" not in switches:
            settled(server, (idle[0] + open_files, idle[1]), "after the first requests")
        before = server.held()
        slow_clients(server, files)
        aborts(server)
        if "processes" not in switches:  # there, each process has files of its own open
            settled(server, before, "after slow and aborted requests")
        no_connections(server, "connections left open")
        meaning(switches, server.counters())
    finally:
        server.stop()


def meaning(switches: list[str], counted: dict[str, int]) -> None:
    """Did the switches do what they say?"""
    chosen = dict(zip(switches[::2], switches[1::2]))
    names, residency = chosen.get("--names", "loop"), chosen.get("--residency", "none")
    expect("helpers open", counted["jobs_open"] > 0, names != "loop")
    expect("helpers append", counted["jobs_append"] > 0, names != "loop")
    if residency != "nowait":  # its own read-ahead may be done before it looks again
        expect("helpers read", counted["jobs_read"] > 0, residency != "none")
    expect("believed resident", counted["believed_resident"] > 0, residency == "heuristic")
    expect("found resident", counted["resident"] > 0, residency not in ("none", "heuristic"))
    expect("mapped", counted["files_mapped"] > 0, chosen.get("--send") == "writev" or residency == "mincore")
    expect("not cached names", counted["names_not_cached"] > 0, names == "cached")


def combinations() -> list[list[str]]:
    """Every combination of switches that means something; what flash refuses is not among them."""
    cgi = list(itertools.product(("fork", "vfork", "persistent"), ("pipe", "socket")))
    names = ("loop", "path", "descriptor", "cached")
    amped = list(itertools.product(("writev", "sendfile"), ("none", "heuristic", "mincore", "cachestat", "nowait", "both")))
    result = []
    for (send, residency), name, (start, answer) in itertools.product([*amped, ("uring", "none")], names, cgi):
        result.append(["--model", "amped", "--send", send, "--residency", residency, "--names", name, "--cgi", start, "--cgi-answer", answer, "--helpers", "3"])
    for model, send, (start, answer) in itertools.product(("threads", "processes"), ("writev", "sendfile"), cgi):
        result.append(["--model", model, "--workers", "4", "--send", send, "--cgi", start, "--cgi-answer", answer])
    # Only where sendfile(2) sends; a CGI program's answer is always by writev(2), so one way to start it is enough.
    apart = [switches for switches in result if {"sendfile", "persistent", "socket"} <= {*switches}]
    return result + [[*switches, "--head", "apart"] for switches in apart]


# --- what some designs must do ----------------------------------------------


def small_cache(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """With room for two files, many clients at once get the right bytes, and two stay open."""
    for extra in ("--send writev --names cached", "--send sendfile --names path", "--send uring --names descriptor", "--model threads --workers 8"):
        server = Server(flash, root, [*extra.split(), "--cache", "2", "--mapped", "2", "--helpers", "2"])
        wrong: list[str] = []

        def ask(server: Server = server, wrong: list[str] = wrong) -> None:
            try:
                with Client(server) as client:
                    for name, data in files.items():
                        expect(name, client.get("/" + name.replace(" ", "%20"))[::2], (200, data))
            except (Wrong, OSError) as error:
                wrong.append(str(error))

        try:
            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            expect(f"{extra}: eight clients", wrong, [])
            with Client(server) as client:
                client.get("/empty")
                client.get("/inside")
                client.get("/with%20space")
            open_files = server.counters()["files_open"]
            if open_files > 2:
                raise Wrong(f"{extra}: {open_files} files open, 2 allowed")
        finally:
            server.stop()


def time_limits(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """A request that does not end gets 408; who asks nothing or takes nothing is left."""
    for extra in ("--send sendfile", "--send uring", "--model threads", "--model processes"):
        server = Server(flash, root, [*extra.split(), "--timeout", "1"])
        try:
            with Client(server) as half, Client(server) as body, Client(server) as idle, Client(server, 4096) as stuck:
                half.send(b"GET / HT")
                body.send(b"POST /post HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
                stuck.send(b"GET /dir00000/class3_9 HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
                expect(f"{extra}: half a request", (half.answer()[0], half.ended()), (408, True))
                expect(f"{extra}: half a body", (body.answer()[0], body.ended()), (408, True))
                expect(f"{extra}: nothing", idle.ended(), True)
                no_connections(server, f"{extra}: who takes nothing keeps a connection")
        finally:
            server.stop()


def answered_within(server: Server, target: str, wanted: bytes) -> float:
    start = time.monotonic()
    with Client(server) as client:
        expect(target, client.get(target)[::2], (200, wanted))
    return time.monotonic() - start


def slow_open(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """A file whose open() waits (somebody has a lease on it) holds up the loop with --names loop only."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    name = "dir00001/class0_9"
    for names in ("loop", "path", "descriptor", "cached"):
        server = Server(flash, root, ["--names", names])
        try:
            answered_within(server, "/dir00000/class0_1", files["dir00000/class0_1"])
            lease = os.open(root / name, os.O_RDWR)
            fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            with Client(server) as waiting:
                waiting.send(f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                time.sleep(0.05)
                release = threading.Timer(0.6 * SLOW, os.close, (lease,))
                release.start()
                took = answered_within(server, "/dir00000/class0_1", files["dir00000/class0_1"])
                expect(f"--names {names}: another client waits too ({took * 1000:.0f} ms)", took > 0.3 * SLOW, names == "loop")
                expect(f"--names {names}: the one that waited", waiting.answer()[::2], (200, files[name]))
                release.join()
        finally:
            server.stop()


def read_bytes(pid: int) -> int:
    """What a process itself made the disk read."""
    return int(re.search(r"(?m)^read_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text()).group(1))


def slow_read(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """A file that comes slowly from the disk holds up the loop, or starts reads in it, in some designs and not in others."""
    device = os.stat(root).st_dev
    throttle = Path(f"/sys/fs/cgroup/blkio/flash-test-{os.getpid()}")
    disk = f"{os.major(device)}:{os.minor(device)}"
    if not Path("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device").exists() or os.geteuid() or not os.path.exists(f"/sys/dev/block/{disk}"):
        print("  NOT RUN: slow_read needs root, a file system on a disk, and the blkio controller of cgroup v1")
        return
    data = files["dir00000/class3_9"]
    # Does the loop wait for missing pages; for those that are being read (where the first wait left any); does it start reads?
    designs = (
        ("sendfile", "none", True, False, True), ("writev", "none", True, False, True), ("uring", "none", False, False, True),
        ("sendfile", "heuristic", False, False, False), ("sendfile", "cachestat", False, True, False), ("sendfile", "nowait", False, False, True),
        ("writev", "mincore", False, False, False), ("sendfile", "mincore", False, False, False), ("sendfile", "both", False, False, False),
    )
    throttle.mkdir()
    try:
        (throttle / "blkio.throttle.read_bps_device").write_text(f"{disk} 1000000")
        for send, residency, waits_missing, waits_reading, reads in designs:
            design = f"--send {send} --residency {residency}"
            name = f"slow-{send}-{residency}"
            make_cold(root / name, data)
            server = Server(flash, root, ["--send", send, "--residency", residency, "--names", "cached"], throttle)
            try:
                answered_within(server, "/dir00001/class0_1", files["dir00001/class0_1"])
                before = read_bytes(server.pid)
                request = f"GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                with Client(server) as first, Client(server) as second:
                    for client, waits, pages in ((first, waits_missing, "missing pages"), (second, waits_reading, "pages that are being read")):
                        client.send(request)
                        time.sleep(0.02)
                        took = answered_within(server, "/dir00001/class0_1", files["dir00001/class0_1"])
                        expect(f"{design}: another client waits for {pages} too ({took * 1000:.0f} ms)", took > 0.05, waits)
                    expect(f"{design}: those that waited", [client.answer()[::2] for client in (first, second)], [(200, data)] * 2)
                expect(f"{design}: the loop reads from the disk", read_bytes(server.pid) > before, reads)
            finally:
                server.stop()
    finally:
        until = time.monotonic() + 3
        while throttle.exists() and time.monotonic() < until:
            try:
                throttle.rmdir()
            except OSError:
                time.sleep(0.01)


def lost_processes(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """When a helper is killed the server says so and ends; when the server is killed, all that it started end."""
    for victim in ("helper", "server"):
        server = Server(flash, root, ["--helpers", "2", "--cgi", "persistent", "--residency", "mincore"])
        pids = sorted(children(server.pid))
        os.kill(pids[-1] if victim == "helper" else server.pid, signal.SIGKILL)
        status = server.process.wait(3 * SLOW)
        if victim == "helper":
            expect("a helper was killed", (status, "helper" in server.said()), (1, True))
        until = time.monotonic() + 2 * SLOW
        while left := alive(pids):
            if time.monotonic() > until:
                raise Wrong(f"{victim} killed: processes {left} stay")
            time.sleep(0.01)


def refused(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """Switches that mean nothing, alone or together, are refused with a remedy."""
    for switches, words in (("--model threads --names cached", "leave --names loop"), ("--send uring --residency both", "--residency none"), ("--helpers 0", "1 or more"),
                            ("--send mmap", "must be one of"), ("--port 99999", "from 0 to 65535"), ("--root /none", "--root"), ("--cache", "no value"), ("--x 1", "no switch")):
        done = subprocess.run([flash, "--root", root, *switches.split()], capture_output=True, text=True, timeout=5 * SLOW)
        expect(f"{switches}", (done.returncode, words in done.stderr), (1, True))


def segments(server: Server, target: str, wanted: bytes) -> int:
    """Of TCP, in which the answer came: tcpi_data_segs_in."""
    with Client(server) as client:
        expect(target, client.get(target)[::2], (200, wanted))
        return struct.unpack_from("I", client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 152)[0]


def heads(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """A small answer's head and data are in one packet, or in one each."""
    name = "dir00000/class1_1"
    for switches, packets in (("--send sendfile --head together", 1), ("--send sendfile --head apart", 2), ("--send writev --head apart", 1)):
        server = Server(flash, root, switches.split())
        try:
            answered_within(server, f"/{name}", files[name])
            expect(f"{switches}: packets", segments(server, f"/{name}", files[name]), packets)
        finally:
            server.stop()


def curl(*words: str, status: int = 0) -> bytes:
    done = subprocess.run(["curl", "--disable", "--silent", "--show-error", "--noproxy", "*", *words], capture_output=True, timeout=8 * SLOW)
    expect(f"curl {' '.join(words)}", (done.returncode, done.stderr[:80] if not status else b""), (status, b""))
    return done.stdout


def curls(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """curl, whose HTTP is not ours, gets the same: whole files, parts, a head alone, several over one connection, one that is missing."""
    if not shutil.which("curl"):
        print("  NOT RUN: curls: curl is missing: apt-get install curl")
        return
    name, small = "dir00001/class3_9", "dir00000/class0_1"
    data = files[name]
    for switches in ("--send sendfile", "--send writev --residency mincore", "--model threads"):
        server = Server(flash, root, switches.split())
        try:
            at = f"http://127.0.0.1:{server.port}/"
            expect(f"{switches}: curl's GET", curl(at + name), data)
            for part, first, end in (("0-0", 0, 1), ("4097-131073", 4097, 131074), ("900000-", 900000, len(data)), ("-5", len(data) - 5, len(data))):
                expect(f"{switches}: curl --range {part}", curl("--range", part, at + name), data[first:end])
            head = curl("--head", at + name).decode().lower().splitlines()
            expect(f"{switches}: curl --head", ("http/1.1 200" in head[0], f"content-length: {len(data)}" in head), (True, True))
            asked = [word for path in (small, name, "none", small) for word in ("--output", "/dev/null", at + path)]
            told = curl("--write-out", "%{http_code} %{num_connects}\n", *asked).decode().split("\n")
            expect(f"{switches}: four of curl over one connection", told, ["200 1", "200 0", "404 0", "200 0", ""])
            curl("--fail", at + "none", status=22)
        finally:
            server.stop()


def length(flash: Path, root: Path, files: dict[str, bytes]) -> None:
    """As cases/README.md says: lines that are neither blank nor comment alone."""
    text = "".join(re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), source.read_text(), flags=re.S) for source in SOURCES.glob("*.[ch]"))
    lines = sum(bool(line.strip()) for line in text.splitlines())
    said = int(re.search(r"([\d,]+) lines of code in its", (CASES / "README.md").read_text())[1].replace(",", ""))
    expect("lines of code", (lines, lines <= 1200), (said, True))


SPECIAL = (length, small_cache, heads, curls, time_limits, slow_open, slow_read, lost_processes, refused)


# --- load --------------------------------------------------------------------

NGINX = """{user} worker_processes 1; daemon off; pid {where}/pid; error_log {where}/error;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; keepalive_requests 100000000; open_file_cache max=4096 inactive=60s;
client_body_temp_path {where}/b; proxy_temp_path {where}/p; fastcgi_temp_path {where}/f; uwsgi_temp_path {where}/u; scgi_temp_path {where}/s;
server {{ listen 127.0.0.1:{port}; root {where}; }} }}
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wrk(port: int, pid: int) -> tuple[float, float]:
    """Requests per second, and microseconds of the server's CPU for each."""
    before = cpu_seconds(pid)
    said = subprocess.run(["wrk", "-t1", "-c64", "-d2", f"http://127.0.0.1:{port}/kilobyte"], capture_output=True, text=True, check=True, timeout=30).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        raise Wrong(said)
    requests = int(re.search(r"(\d+) requests in", said).group(1))
    return float(re.search(r"Requests/sec: +([\d.]+)", said).group(1)), (cpu_seconds(pid) - before) / requests * 1e6


def load(flash: Path, where: Path) -> int:
    """A 1 kB file, 64 connections, rounds that alternate; fails if the best is more than 10 % below nginx in both measures."""
    (where / "kilobyte").write_bytes(content(0, 1, 1))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (where / "nginx.conf").write_text(NGINX.format(where=where, port=port, user="" if os.geteuid() else "user root;"))
    nginx = subprocess.Popen(["/usr/sbin/nginx", "-p", where, "-c", where / "nginx.conf"], stderr=subprocess.DEVNULL)
    servers: list[Server] = []
    try:
        until = time.monotonic() + 5
        while not children(nginx.pid) and time.monotonic() < until:
            time.sleep(0.05)
        rivals = [("nginx, open_file_cache", port, children(nginx.pid)[0])]
        for switches in ("--residency none", "--residency both", "--residency mincore", "--send writev", "--send uring"):
            servers.append(Server(flash, where, switches.split()))
            rivals.append((switches, servers[-1].port, servers[-1].pid))
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in rivals}
        for _ in range(3):
            for name, to, pid in rivals:
                seen[name].append(wrk(to, pid))
        for name, rounds in seen.items():
            print(f"{name:24} {max(r for r, _ in rounds):8,.0f} requests/s at best, {min(c for _, c in rounds):5.1f} µs CPU a request")
        theirs, ours = seen["nginx, open_file_cache"], seen["--residency both"]
        slow = max(r for r, _ in ours) < 0.9 * max(r for r, _ in theirs) and min(c for _, c in ours) > 1.1 * min(c for _, c in theirs)
        return 1 if slow else 0
    finally:
        for server in servers:
            server.stop()
        nginx.terminate()
        nginx.wait()


# --- run ---------------------------------------------------------------------


def build(where: Path) -> Path:
    ready = CASES.parent / "target" / "cases" / "flash"
    sources = sorted(SOURCES.glob("*.[ch]"))
    if ready.exists() and ready.stat().st_mtime >= max(source.stat().st_mtime for source in sources):
        return ready
    flash = where / "flash"
    subprocess.run(["cc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o", flash, *(s for s in sources if s.suffix == ".c"), "-lpthread"], check=True)
    return flash


def take_root(roots: multiprocessing.Queue) -> None:
    """Each process of the pool has files of its own: others' reading would make cold files warm."""
    global own_root
    own_root = roots.get()


def one(task: tuple[str, Path, dict[str, bytes], object, int]) -> tuple[str, str]:
    """Runs one combination or check; the name and what was wrong with it."""
    name, flash, files, what, number = task
    root = own_root
    try:
        if callable(what):
            what(flash, root, files)
        else:
            combination(flash, root, files, what, number)
    except (Wrong, OSError, KeyError, ValueError) as error:
        where = [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]
        return name, f"{' > '.join(where)}: {type(error).__name__}: {error}"
    return name, ""


def main() -> int:
    arguments = sys.argv[1:]
    words = arguments[arguments.index("--only") + 1:] if "--only" in arguments else []
    given = arguments[0] if arguments and not arguments[0].startswith("--") else None
    start = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the pool's processes too: servers, files and cgroup go away
    with tempfile.TemporaryDirectory(prefix="flash-test-") as directory:
        where = Path(directory)
        flash = Path(given).resolve() if given else build(where)
        if "--load" in arguments:
            (where / "load").mkdir()
            return load(flash, where / "load")
        roots: multiprocessing.Queue = multiprocessing.Queue()
        files: dict[str, bytes] = {}
        for worker in range(PROCESSES):
            root = where / f"root{worker}"
            root.mkdir()
            make_files(root, files)
            roots.put(root)
        everything: list[tuple[str, object]] = [(check.__name__, check) for check in SPECIAL]
        everything += [(" ".join(switches), switches) for switches in combinations()]
        chosen = [(name, what) for name, what in everything if all(word in name.split() for word in words)]
        tasks = [(name, flash, files, what, number) for number, (name, what) in enumerate(chosen)]
        failed = 0
        with multiprocessing.Pool(PROCESSES, take_root, (roots,)) as pool:
            for name, wrong in pool.imap_unordered(one, tasks):
                if wrong:
                    failed += 1
                    print(f"FAILED {name}\n  {wrong}", flush=True)
            # Not ended by a signal, which they take for an early end: one may have it while it holds what the others wait for.
            pool.close()
            pool.join()
        special = sum(callable(what) for _, what in chosen)
        print(f"{len(chosen) - special} combinations of switches and {special} checks, {failed} failed, {time.monotonic() - start:.0f} s")
        if not chosen:
            print("nothing of that name")
        if not failed and chosen == everything:
            print("server: all passed")  # docs/KERNELS.md says so of this machine's kernel
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
