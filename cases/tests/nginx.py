#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does DeBox say what blocks nginx's event loop, do its numbers agree with the disk's and the clients' own, and does the patched nginx answer as ever?

The clients are held against a server whose delays are known. Needs root, /dev/fuse, loop
devices, fio, nginx and a C compiler. The patched nginx is tested where it was built
(cases/nginx/build.sh, $DEBOX_NGINX_BUILD).
"""

import http.client
import importlib.util
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zlib

TOP = pathlib.Path(__file__).resolve().parents[2]
# This file has its name, too.
_spec = importlib.util.spec_from_file_location("nginx_case", TOP / "cases/nginx/nginx.py")
case = importlib.util.module_from_spec(_spec)
sys.modules["nginx_case"] = case
_spec.loader.exec_module(case)
sys.path.insert(0, str(TOP / "cases/nginx"))
import clients  # noqa: E402
import slow_disk  # noqa: E402

STALL_S, EVERY = 0.1, 100
DATA = b"x" * 300


class Stalling(threading.Thread):
    """Answers one request after the other, and stands still before each 100th."""

    def __init__(self, data=DATA, close_after=0):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.data, self.close_after = self.listener.getsockname()[1], data, close_after
        self.start()

    def run(self):
        poll, count, open_ones = select.epoll(), 0, {}
        poll.register(self.listener, select.EPOLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.listener.fileno():
                    client, _ = self.listener.accept()
                    open_ones[client.fileno()] = client
                    poll.register(client, select.EPOLLIN)
                    continue
                client = open_ones[descriptor]
                if not client.recv(65536) or (self.close_after and count >= self.close_after):
                    poll.unregister(client)
                    open_ones.pop(descriptor).close()
                    continue
                count += 1
                if count % EVERY == 0:
                    time.sleep(STALL_S)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self.data) + self.data)


class Clients(unittest.TestCase):
    TARGET = ("/x", len(DATA), zlib.crc32(DATA))

    def test_all_that_was_due_in_a_stall_is_late(self):
        answers = clients.run(Stalling().port, 8, 2.0, 400, [self.TARGET])
        self.assertEqual(answers["errors"], [])
        self.assertEqual((answers["asked"], len(answers["times_ns"])), (800, 800))
        times = sorted(answers["times_ns"])
        # Of 250 ms the last 100: 40 %, between 0 and 100 ms late, so a fifth more than 50. A
        # client that waits for its answers before it asks again would see 8 of 800.
        late = sum(ns > STALL_S / 2 * 1e9 for ns in times) / len(times)
        self.assertGreater(late, 0.12)
        self.assertGreaterEqual(times[-1], STALL_S * 0.95e9)
        self.assertGreaterEqual(case.quantiles_ms(times)["p99"], STALL_S * 800)

    def test_as_fast_as_they_are_answered(self):
        answers = clients.run(Stalling().port, 1, 5.0, 0, [self.TARGET] * 350)
        self.assertEqual((answers["asked"], len(answers["times_ns"]), answers["errors"]), (350, 350, []))
        self.assertEqual(sum(ns >= STALL_S * 1e9 for ns in answers["times_ns"]), 3)

    def test_what_is_wrong_is_said(self):
        answers = clients.run(Stalling(data=b"y" * len(DATA)).port, 1, 1.0, 0, [self.TARGET])
        self.assertRegex(answers["errors"][0], "/x: HTTP/1.1 200 OK, 300 of 300 bytes, other bytes")
        answers = clients.run(Stalling(close_after=5).port, 2, 1.0, 0, [self.TARGET] * 20)
        self.assertEqual((len(answers["times_ns"]), answers["errors"]), (5, ["closed by the server"] * 2))


def traces():
    """What there is on the machine of disks of this process."""
    place = f"/debox-nginx-{os.getpid()}/"
    found = [line for line in pathlib.Path("/proc/mounts").read_text().splitlines() if place in line]
    return found + [line for line in subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True, check=True).stdout.splitlines() if place in line]


class OnSlowDisk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        work = tempfile.TemporaryDirectory(prefix="debox-nginx-test-")
        cls.addClassCleanup(work.cleanup)
        cls.work = pathlib.Path(work.name)
        os.chmod(cls.work, 0o755)
        program = cls.work / "slowdisk"
        subprocess.run(["cc", "-std=gnu11", "-O2", "-o", str(program), str(TOP / "cases/disk/slowdisk.c")], check=True)
        # The disk of the case is one of these.
        case.SlowDisk = lambda state: slow_disk.SlowDisk(state, slowdisk=program)


class Nginx(OnSlowDisk):
    def test_quick_run(self):
        self.assertEqual(traces(), [])
        found = case.run(self.work / "out", quick=True)
        self.assertEqual(traces(), [])
        self.assertEqual(json.loads((self.work / "out/nginx.json").read_text())["measured"], found["measured"])
        self.assertIn("open_file_cache", (self.work / "out/nginx-paced.svg").read_text())
        self.assertIn("fio/model", (self.work / "out/nginx.md").read_text())

        for name, one in found["watched"].items():
            seen = one["clients"]
            self.assertGreaterEqual(seen["cold"], 50)
            self.assertEqual(one["opens"]["count"], seen["hot"] + seen["cold"])
            of = {call: [row for row in one["blocking"] if row["call"] == call] for call in ("openat", "sendfile")}
            names = [row for row in of["openat"] if row["label"] == "buffer-io"]
            data = [row for row in of["sendfile"] if row["label"] == "page-in"]
            sleeps, read = sum(row["count"] for row in names), sum(row["count"] for row in data)
            # Each cold file has a directory and a page; now and then a piece of the inodes as well.
            self.assertGreaterEqual(sleeps, 0.9 * seen["cold"])
            self.assertAlmostEqual(sleeps + read, seen["disk_reads"], delta=0.1 * seen["disk_reads"])
            # A read takes the disk 3 ms at least.
            slept_ns = sum(row["total_ns"] for row in names)
            self.assertGreaterEqual(slept_ns / sleeps, 2.9e6)
            self.assertAlmostEqual(slept_ns, one["opens"]["blocked_ns"], delta=0.02 * slept_ns)
            self.assertIn("openat: buffer-io", " ".join(one["verdict"]), name)
            # What the loop did not do meanwhile, by its activities: with a pool all of it is openat.
            loop_ns = one["loop"]["all"]["blocked_ns"]
            expected_ns = slept_ns + (0 if name == "nginx" else sum(row["total_ns"] for row in data))
            self.assertAlmostEqual(loop_ns, expected_ns, delta=0.15 * expected_ns)
        alone = found["watched"]["nginx without a pool"]
        self.assertRegex(" ".join(alone["verdict"]), "loop of nginx was blocked .* by (openat|sendfile)")
        self.assertRegex(" ".join(alone["loop_blocked"]), "loop of nginx was blocked .* by openat")

        measured = found["measured"]
        # Kept open, names are not needed again; each first time they are.
        self.assertGreater(measured["nginx"]["again"]["reads_per_cold"]["median"], 0.9)
        self.assertLess(measured["open_file_cache"]["again"]["reads_per_cold"]["median"], 0.1)
        self.assertGreater(measured["open_file_cache"]["paced"]["reads_per_cold"]["median"], 1.5)


class Build(unittest.TestCase):
    def test_what_builds_ends_with_who_asked_for_it(self):
        with tempfile.TemporaryDirectory(prefix="debox-nginx-test-") as work:
            script, pids = pathlib.Path(work, "build"), pathlib.Path(work, "built/pids")
            script.write_text('#!/bin/sh\nsh -c "sleep 61 & echo \\$\\$ \\$! > $1/new; mv $1/new $1/pids; wait"\n')
            script.chmod(0o755)
            code = "import importlib.util, pathlib, sys; spec = importlib.util.spec_from_file_location('nginx_case', sys.argv[1]); case = importlib.util.module_from_spec(spec); sys.modules['nginx_case'] = case; spec.loader.exec_module(case); case.build(pathlib.Path(sys.argv[2]))"
            asks = subprocess.Popen([sys.executable, "-c", code, str(TOP / "cases/nginx/nginx.py"), str(script)], env={**os.environ, "DEBOX_NGINX_BUILD": str(pids.parent)})
            self.assertTrue(slow_disk.wait_until(pids.exists, 20.0))
            found = [int(word) for word in pids.read_text().split()]
            self.assertEqual(len(found), 2)
            asks.kill()
            asks.wait()
            self.assertTrue(slow_disk.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in found), 5.0))


class Patched(OnSlowDisk):
    """Not what it is for (the full run measures that), but that its answers are those of nginx."""

    def test_answers(self):
        if not (case.BUILD / case.PATCHED.program).exists():
            print(f"NOT RUN: no patched nginx in {case.BUILD}: cases/nginx/build.sh {case.BUILD}")
            return
        with slow_disk.SlowDisk(self.work / "disk", slowdisk=self.work / "slowdisk") as disk:
            with disk.undelayed():
                targets = case.fill(disk.data, range(60))
                (disk.data / "dir00000/closed").write_text("no")
                (disk.data / "dir00000/closed").chmod(0)
                (disk.data / "dir00000/link").symlink_to("../dir00001/class0_5")
            answers = {}
            for variant in (case.AS_IS, case.PATCHED):
                disk.remount()
                with case.nginx(variant, disk.data) as server:
                    pid = case.worker(server)
                    said = answers[variant.name] = [
                        self.ask(server, "GET", "/dir00000/class0_5"),
                        self.ask(server, "HEAD", "/dir00002/class0_5"),
                        self.ask(server, "GET", "/dir00003/class0_5", {"Range": "bytes=10-19"}),
                        self.ask(server, "GET", "/dir00004/none"),
                        self.ask(server, "GET", "/nodir/none"),
                        self.ask(server, "GET", "/dir00005"),
                        self.ask(server, "GET", "/dir00006/"),
                        self.ask(server, "POST", "/dir00007/class0_5"),
                        self.ask(server, "GET", "/dir00000/closed"),
                        self.ask(server, "GET", "/dir00000/link"),
                        self.ask(server, "GET", "/dir00008/class0_5/x"),
                        self.ask(server, "GET", "/dir00009/class0_5", {"Connection": "close"}),
                    ]
                    self.assertEqual([one[0] for one in said], [200, 200, 206, 404, 404, 301, 403, 405, 403, 200, 404, 200])
                    self.pipelined(server, targets[10:20])
                    opened = len(os.listdir(f"/proc/{pid}/fd"))
                    # Gone before their names are known.
                    for path, _, _ in targets[20:50]:
                        with socket.create_connection(("127.0.0.1", server.port)) as client:
                            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    for target in targets[50:]:
                        status, _, body = self.ask(server, "GET", target[0])
                        self.assertEqual((status, len(body), zlib.crc32(body)), (200, *target[1:]))
                    self.assertEqual(case.worker(server), pid)
                    self.assertTrue(slow_disk.wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= opened, 5.0))
                    self.assertNotRegex(server.said(), "alert|emerg")
            self.assertEqual(answers[case.PATCHED.name], answers[case.AS_IS.name])

    def ask(self, server, method, path, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        kept = ("content-length", "content-range", "content-type", "etag", "last-modified", "accept-ranges", "connection")
        return answer.status, {name.lower(): value for name, value in answer.getheaders() if name.lower() in kept}, body

    def pipelined(self, server, targets):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            client.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path, _, _ in targets))
            file = client.makefile("rb")
            for path, length, crc in targets:
                self.assertIn(b"200", file.readline(), path)
                while file.readline() != b"\r\n":
                    pass
                self.assertEqual(zlib.crc32(file.read(length)), crc, path)


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("nginx.py: needs root (mounts, loop devices, DeBox attaches to a process)")
    unittest.main()
