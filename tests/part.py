#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How does a part of `make test` end, whatever happens in it?

    part.py SECONDS COMMAND...

Runs the command in a session of its own and ends with its status. After SECONDS
(times $DEBOX_TEST_TIME, for slow machines) it says what still ran, and ends
that. What a part leaves behind is named and ended, too: as the subreaper of all
that it starts, this process finds daemons as well, and no process of others.
The last line says how much CPU time all of them used.
"""

import ctypes
import os
import pathlib
import re
import resource
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fresh_start import fresh_environment, fresh_start  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
LAST_LINES = 25
# Until what was asked to end is killed; until what is ending has ended.
GRACE_S, ENDING_S = 10, 3
RAN_OUT = 124  # as timeout(1)


def parents():
    """The parent of each process."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_bytes()
            except OSError:
                continue
            state, parent = stat[stat.rindex(b")") + 2 :].split()[:2]
            if state != b"Z":
                found[int(entry)] = int(parent)
    return found


def descendants():
    """What this process started, and what that started: [(depth, pid)]."""
    children = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found = []

    def below(pid, depth):
        for child in sorted(children.get(pid, ())):
            found.append((depth, child))
            below(child, depth + 1)

    below(os.getpid(), 0)
    return found


def described(pid):
    """Command line, and the names of its threads: those of Rust's tests are the tests'."""
    proc = pathlib.Path("/proc", str(pid))
    try:
        words = proc.joinpath("cmdline").read_bytes().decode(errors="backslashreplace").split("\0")
        names = [t.joinpath("comm").read_text(errors="backslashreplace").strip() for t in proc.glob("task/*")]
    except OSError:
        return "(ended)"
    line = " ".join(words).strip()[:300] or f"[{names[0] if names else '?'}]"
    others = sorted(set(names[1:]))[:20]
    return repr(line)[1:-1] + (f"  (threads: {', '.join(others)})" if others else "")


class Part:
    def __init__(self, limit, command):
        self.limit = limit
        self.tail = []
        self.status = None
        read, write = os.pipe()
        self.out = read
        # stdin: nothing a test runs may wait for whoever started the tests.
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=write, stderr=write, start_new_session=True
        )
        os.close(write)

    def reap(self):
        """Collects what ended, adopted processes as well."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.process.pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = self.process.returncode = code if code >= 0 else 128 - code

    def say(self, text):
        self.show(f"{text}\n".encode(errors="backslashreplace"))

    def show(self, data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def pass_on(self, seconds):
        """Shows what came within the time; false at the end of all output."""
        ready, _, _ = select.select([self.out], [], [], seconds)
        if not ready:
            return True
        data = os.read(self.out, 1 << 16)
        self.show(data)
        lines = (self.tail.pop() if self.tail else b"") + data
        self.tail = (self.tail + lines.split(b"\n"))[-LAST_LINES - 1 :]
        return bool(data)

    def run(self):
        """Until the command ends (what it left may hold its output open), or the time is up."""
        end = time.monotonic() + self.limit
        output = True
        while time.monotonic() < end:
            if output:
                output = self.pass_on(0.2)
            else:
                time.sleep(0.05)
            self.reap()
            if self.status is not None:
                while output and select.select([self.out], [], [], 0)[0]:
                    output = self.pass_on(0)
                return self.status
        self.say(f"\nRAN OUT OF TIME: not done after {self.limit:.0f} s. Its last lines were:")
        for line in self.tail[-LAST_LINES:] if self.tail and self.tail[-1] else self.tail[:-1]:
            self.show(b"    | " + line + b"\n")
        for line in self.tail:
            if match := re.search(rb"test (\S+) has been running for over", line):
                self.say(f"RAN OUT OF TIME: {match[1].decode(errors='replace')} was running")
        self.say("RAN OUT OF TIME: these processes ran and are ended now:")
        self.list_running()
        return RAN_OUT

    def list_running(self):
        for depth, pid in descendants():
            self.say(f"    {'  ' * depth}{pid} {described(pid)}")

    def end_all(self):
        """Ends every process below this one; again, since they may have started others."""
        begin = time.monotonic()
        while running := descendants():
            number = signal.SIGTERM if time.monotonic() - begin < GRACE_S else signal.SIGKILL
            for _, pid in reversed(running):
                try:
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass
            until = time.monotonic() + 0.5
            while time.monotonic() < until and descendants():
                self.reap()
                time.sleep(0.02)
        self.reap()

    def clean(self):
        until = time.monotonic() + ENDING_S
        while descendants() and time.monotonic() < until:
            self.reap()
            time.sleep(0.02)
        if descendants():
            self.say("left behind, and ended now:")
            self.list_running()
            self.end_all()


class Interrupted(Exception):
    pass


def interrupted(number, _frame):
    raise Interrupted(number)


def main():
    limit = float(sys.argv[1]) * float(os.environ.get("DEBOX_TEST_TIME") or 1)
    # Whoever starts this with nohup means it to outlive the terminal.
    ends = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    fresh_start()
    fresh_environment()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    part = Part(limit, sys.argv[2:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted if number in ends else signal.SIG_IGN)
    try:
        status = part.run()
        if status == RAN_OUT and part.status is None:
            part.end_all()
        else:
            part.clean()
    except Interrupted as which:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        part.end_all()
        status = 128 + which.args[0]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    part.say(f"part: {used.ru_utime + used.ru_stime:.1f} s of CPU time")
    return status


if __name__ == "__main__":
    sys.exit(main())
