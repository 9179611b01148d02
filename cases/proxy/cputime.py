# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where does the CPU time of a server that waits for many connections go?

Two who look by the clock, at the same time: DeBox ("on the CPU") and perf, and of each the
samples in six parts. They share nothing but the kernel's clock: DeBox says what call a
thread was in and names frames by its own unwinder; for perf the call is that of the kernel's
stack, frames come from perf's unwinder, and functions without a name from the program's
table for unwinding (.eh_frame_hdr).

The program's own walk is the time in that very function which calls select, poll or
epoll_wait: it makes the set, and looks through what came back. Its callees do not count.
"""

import bisect
import collections
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
from typing import Any, NamedTuple

import case

WAIT = "select/poll in the kernel"
LIBRARY = "the library"
WALK = "the program's own walk"
PROGRAM = "the rest of the program"
KERNEL = "the rest of the kernel"
WATCHING = "being watched"
PARTS = (WAIT, LIBRARY, WALK, PROGRAM, KERNEL, WATCHING)
WAITS = {"select", "pselect6", "poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_pwait2"}
# The library's way to tell epoll of the set, and epoll's users' own.
OF_WAITS = WAITS | {"epoll_ctl"}
LIBRARY_FILE = "libdebox-select.so"
# What DeBox and perf do at the ends of calls and of their own clocks.
WATCHERS = re.compile(r"^(bpf_|__bpf_|perf_|__perf_|trace_call_bpf)")
HZ = 997


class Frame(NamedTuple):
    function: str
    module: str | None  # None: the kernel


class Profile(NamedTuple):
    samples: int
    parts: dict[str, int]
    functions: dict[str, int]  # "name (where)", its own samples
    descriptors: int  # samples in the allocation of a descriptor

    def percent(self, part: str) -> float:
        return 100 * self.parts[part] / max(1, self.samples)


ALLOCATION = {"alloc_fd", "__alloc_fd", "get_unused_fd_flags", "find_next_fd", "expand_files"}


def _watched(kernel: list[str]) -> bool:
    return any(WATCHERS.match(function) for function in kernel)


def _profile(samples: list[tuple[int, str, Frame, list[str]]]) -> Profile:
    """Of each: how many, its part, what ran, the kernel's functions."""
    parts = dict.fromkeys(PARTS, 0)
    functions: collections.Counter[str] = collections.Counter()
    allocation = total = 0
    for count, part, frame, kernel in samples:
        parts[part] += count
        total += count
        where = frame.module or "kernel"
        functions[f"{frame.function} ({where}{', wait' if part == WAIT else ''})"] += count
        allocation += count * bool(ALLOCATION.intersection(kernel))
    return Profile(total, parts, dict(functions.most_common()), allocation)


# --- DeBox -------------------------------------------------------------------


def of_debox(report: dict[str, Any], program: str) -> Profile:
    """`program`: the name of the server's own file. Of functions without names DeBox tells who
    called them and no more, so two that one function calls count as one."""
    told = report["on_cpu"]
    functions, frames = told["functions"], told["frames"]

    def chain(at: int | None) -> list[tuple[int, Frame]]:
        """Innermost first, each with its place in the tree."""
        found = []
        while at is not None:
            function = functions[frames[at]["function"]]
            found.append((at, Frame(function["name"] or "?", function["module"])))
            at = frames[at]["caller"]
        return found

    def own(stack: list[tuple[int, Frame]]) -> int | None:
        return next((at for at, frame in stack if frame.module == program), None)

    chains = [chain(row["frame"]) for row in told["rows"]]
    walkers = {own(stack) for row, stack in zip(told["rows"], chains, strict=True) if row["call"] in WAITS and row["kind"] == "call"}
    samples = []
    for row, stack in zip(told["rows"], chains, strict=True):
        kernel = [frame.function for _, frame in stack if frame.module is None]
        user = [(at, frame) for at, frame in stack if frame.module is not None]
        # The kernel's part of a wait that has no frame is told by its kind alone.
        ran = stack[0][1] if stack else Frame("?", None if row["kind"] != "user" else program)
        if _watched(kernel):
            part = WATCHING
        elif row["kind"] == "call" and row["call"] in OF_WAITS:
            part = WAIT
        elif row["kind"] != "user":
            part = KERNEL
        elif user and (user[0][1].module == LIBRARY_FILE or any(f.module == LIBRARY_FILE for _, f in user[1:3]) and user[0][1].module != program):
            part = LIBRARY  # or what libc does for it
        elif user and user[0][0] in walkers:
            part = WALK
        else:
            part = PROGRAM
        samples.append((row["samples"], part, ran, kernel))
    return _profile(samples)


def measured(report: dict[str, Any]) -> float:
    """Per cent of the CPU time that the calls of WAIT took, measured at their ends, not
    sampled: with the interrupts that came meanwhile and a part of what measuring takes."""
    took = sum(call["cpu_ns"] for call in report["calls"] if call["name"] in OF_WAITS)
    return 100 * took / max(1, sum(life["own_ns"] + life["calls_ns"] for life in report["lives"]))


# --- perf --------------------------------------------------------------------


def function_starts(file: pathlib.Path) -> list[int]:
    """Where functions begin, as places in the file, which is how perf tells addresses: the table
    that unwinders search (64-bit, little endian; as linkers write it, 4 bytes relative to itself)."""
    data = file.read_bytes()
    place, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, at) for at in range(place, place + size * count, size)]
    loaded = [(address, offset, length) for kind, _, offset, address, _, length in headers if kind == 1]
    table = next(((offset, address) for kind, _, offset, address, *_ in headers if kind == 0x6474E550), None)  # PT_GNU_EH_FRAME
    if not table or data[table[0] : table[0] + 4] != b"\x01\x1b\x03\x3b":
        raise ValueError(f"{file} has no .eh_frame_hdr of the usual form: perf's samples cannot be told apart")
    first, entries = table[0] + 12, struct.unpack_from("<I", data, table[0] + 8)[0]
    starts = [table[1] + start for start, _ in struct.iter_unpack("<ii", data[first : first + 8 * entries])]
    return sorted(start - address + offset for address, offset, length in loaded for start in starts if address <= start < address + length)


class Perf:
    """`with Perf(file, pid): …`; then profile()."""

    def __init__(self, file: pathlib.Path, pid: int) -> None:
        self.file, self.pid = file, pid
        self.executable = pathlib.Path(f"/proc/{pid}/exe").resolve()

    def __enter__(self) -> "Perf":
        asked, self.ask = os.pipe()
        self.answered, answer = os.pipe()
        # Off until asked: it takes a while to begin. 1 KiB of the stack is enough to get from libc
        # into the program.
        argv = [*case.DIES_TOO, "perf", "record", "-q", "-e", "cpu-clock", "-F", str(HZ), "--call-graph", "dwarf,1024", "-p", str(self.pid), "-o", str(self.file), "-D", "-1", f"--control=fd:{asked},{answer}"]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=(asked, answer))
        os.close(asked)
        os.close(answer)
        self._command("enable")
        return self

    def _command(self, word: str) -> None:
        os.write(self.ask, f"{word}\n".encode())
        if not os.read(self.answered, 16):
            raise ValueError(f"perf record ended with {self.process.wait()}: {self.process.stderr.read().strip() if self.process.stderr else ''}")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        _, self.said = self.process.communicate(timeout=20)
        os.close(self.ask)
        os.close(self.answered)

    def profile(self) -> Profile:
        argv = ["perf", "script", "-i", str(self.file), "--no-inline", "-F", "ip,sym,dso"]
        text = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
        starts, program = function_starts(self.executable), str(self.executable)
        stacks = []
        for block in text.split("\n\n"):
            found = [re.match(r"\s*([0-9a-f]+) (.+) \((.*)\)$", line) for line in block.splitlines()]
            # The kernel's frames, and where the program's end perf sets one of -1.
            stack = [(int(m[1], 16), m[2], m[3]) for m in found if m and m[1] != "f" * 16]
            kernel = [name for ip, name, _ in stack if ip >> 63]
            if stack:
                stacks.append((kernel, self._call(kernel), [frame for frame in stack if not frame[0] >> 63]))
        if not stacks:
            raise ValueError(f"perf record has no samples: {self.said.strip()}")

        def function(ip: int) -> int:
            """Which of the program's functions it lies in."""
            return bisect.bisect_right(starts, ip)

        # A return address lies behind the call.
        callers = (next((function(ip - 1) for ip, _, dso in user if dso == program), None) for _, call, user in stacks if call in WAITS)
        walkers = {caller for caller in callers if caller is not None}
        samples = []
        for kernel, call, user in stacks:
            inside = [pathlib.Path(dso).name for _, _, dso in user]
            if kernel:
                part = WATCHING if _watched(kernel) else WAIT if call in OF_WAITS else KERNEL
                ran = Frame(kernel[0], None)
            else:
                ip, name, dso = user[0]
                ran = Frame(name if name != "[unknown]" else "?", inside[0])
                if inside[0] == LIBRARY_FILE or LIBRARY_FILE in inside[1:3] and dso != program:
                    part = LIBRARY
                elif dso == program and function(ip) in walkers:
                    part = WALK
                else:
                    part = PROGRAM
            samples.append((1, part, ran, kernel))
        return _profile(samples)

    @staticmethod
    def _call(kernel: list[str]) -> str | None:
        """The system call, unless a soft interrupt came meanwhile, which has its own work."""
        if any(name in ("handle_softirqs", "__do_softirq", "__softirqentry_text_start") for name in kernel):
            return None
        return next((m[1] for name in kernel if (m := re.match(r"__x64_sys_(\w+)$|__arm64_sys_(\w+)$", name))), None)


def perf_missing() -> str | None:
    return None if shutil.which("perf") else "perf is not installed (apt install linux-perf)"


def together(profiles: list[Profile]) -> Profile:
    parts = {part: sum(p.parts[part] for p in profiles) for part in PARTS}
    return Profile(sum(p.samples for p in profiles), parts, {}, sum(p.descriptors for p in profiles))


def uncertainty(a: Profile, b: Profile, part: str) -> float:
    """In percentage points: how far two counts of the same may differ by chance (95 %)."""
    share = (a.parts[part] + b.parts[part]) / max(1, a.samples + b.samples)
    return 196 * (share * (1 - share) * (1 / max(1, a.samples) + 1 / max(1, b.samples))) ** 0.5
