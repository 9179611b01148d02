#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does each peer serve the right bytes, and is it gone afterwards, whatever ended it?

A peer that is not installed is named as not tested, with what installs it.
"""

import hashlib
import http.client
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "cases/peers"))
import peers  # noqa: E402
from peers import PEERS, PeerError, Server  # noqa: E402

FILES = {"dir00000/class0_1": 102, "dir00000/class1_9": 9216, "dir00001/class2_5": 51200, "dir00001/class3_9": 921600}
VARIANTS = {"nginx": ("", "threads", "cache", "threads+cache+reuseport")}

# Argument: the peer. Says the pids of all its processes, then waits to be killed.
RUNNER = """
import sys
sys.path.insert(0, sys.argv[1])
from peers import PEERS
with PEERS[sys.argv[2]](sys.argv[3], workers=2) as server:
    print(server.work, *[process.pid for process in server.processes()], flush=True)
    sys.stdin.read()
"""
# Leaves a daemon in a session of its own, and one child that has worked and ended; listens.
DAEMON = """
import os, signal, socket, sys, time
if os.fork() == 0:
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
    os._exit(0)
os.wait()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    os._exit(0)
os.wait()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True: listener.accept()
"""


def content(name):
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (FILES[name] // len(seed) + 1))[: FILES[name]]


def alive(pids):
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory(prefix="debox-peers-test-")
        cls.root = cls.work.name
        os.chmod(cls.root, 0o755)
        for name in FILES:
            file = pathlib.Path(cls.root, name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content(name))

    @classmethod
    def tearDownClass(cls):
        cls.work.cleanup()

    def wait_gone(self, pids, work):
        end = time.monotonic() + 10
        while (alive(pids) or os.path.exists(work)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual((alive(pids), os.path.exists(work)), ([], False))

    def serves(self, server):
        """Everything twice, over one connection."""
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.connect()
        socket = connection.sock
        for name in [*FILES, *FILES]:
            connection.request("GET", f"/{name}")
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200, server.said())
            self.assertEqual(answer.read(), content(name), name)
            self.assertIs(connection.sock, socket, "the connection did not persist")
        connection.request("GET", "/nothing")
        answer = connection.getresponse()
        self.assertEqual((answer.status, bool(answer.read())), (404, True))
        connection.close()

    def peer(self, name):
        try:
            return PEERS[name](self.root, workers=2)
        except PeerError as error:
            self.assertIn("apt-get install", str(error))
            print(f"NOT RUN: {name}: {error}")
            return None

    def test_serve(self):
        for name, start in PEERS.items():
            for variant in VARIANTS.get(name, ("",)):
                with self.subTest(name=name, variant=variant):
                    if not self.peer(name):
                        continue
                    with start(self.root, workers=2, variant=variant) as server:
                        self.serves(server)
                        pids = [process.pid for process in server.processes()]
                        self.assertEqual(server.pid, pids[0])
                        self.assertGreaterEqual(len(pids), 3, "one and two workers")
                        if os.geteuid() == 0:
                            # Each gives it up by itself; those that serve have done so already.
                            until = time.monotonic() + 10
                            while 0 in (users := [os.stat(f"/proc/{pid}").st_uid for pid in pids[1:]]):
                                self.assertLess(time.monotonic(), until, f"a worker is still root: {users}")
                                time.sleep(0.02)
                        work = server.work
                    self.assertEqual(alive(pids), [])
                    self.assertFalse(os.path.exists(work))
                    with self.assertRaises(PeerError):
                        start(self.root, variant="nonsense")

    def test_runner_killed(self):
        for name in PEERS:
            with self.subTest(name=name):
                if not self.peer(name):
                    continue
                argv = [sys.executable, "-c", RUNNER, str(TOP / "cases/peers"), name, self.root]
                with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
                    work, *pids = runner.stdout.readline().split()
                    pids = [int(pid) for pid in pids]
                    self.assertEqual(alive(pids), pids)
                    runner.send_signal(signal.SIGKILL)
                self.wait_gone(pids, work)

    def test_daemons_and_cpu_time(self):
        """Processes that left the session and ignore SIGTERM end, and ended ones count."""
        asked, peers.END_S = peers.END_S, 0.5
        port = peers.free_port()
        try:
            with Server("daemon", [sys.executable, "-c", DAEMON, str(port)], port) as server:
                end = time.monotonic() + 10
                while len(server.processes()) != 2 and time.monotonic() < end:
                    time.sleep(0.01)
                pids = [process.pid for process in server.processes()]
                self.assertEqual(len(pids), 2)
                self.assertGreaterEqual(server.cpu_s(), 0.28)
        finally:
            peers.END_S = asked
        self.assertEqual(alive(pids), [])

    def test_cannot_start(self):
        port = peers.free_port()
        with self.assertRaisesRegex(PeerError, "cannot run /nowhere/server"), Server("missing", ["/nowhere/server"], port):
            pass
        with self.assertRaisesRegex(PeerError, "ended with 3 .*: alas"), Server("failing", ["/bin/sh", "-c", "echo alas; exit 3"], port):
            pass
        with self.assertRaisesRegex(PeerError, "no_such_program is missing: apt-get install --no-install-recommends package"):
            peers.find("no_such_program", "package")
        if os.geteuid() == 0:
            os.chmod(self.root, 0o700)
            try:
                with self.assertRaisesRegex(PeerError, "chmod o\\+x"):
                    peers.quoted(self.root)
            finally:
                os.chmod(self.root, 0o755)

    def test_enter(self):
        """The command may be changed, as a memory group does."""
        port = peers.free_port()
        with Server("entered", [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], port, enter=lambda argv: ["/usr/bin/env", "ENTERED=yes", *argv], cwd=self.root) as server:
            self.assertIn(b"ENTERED=yes", pathlib.Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0"))


if __name__ == "__main__":
    unittest.main()
