#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What does DeBox cost on this machine, line by line of its goals?

Measures everything that docs/PERFORMANCE.md says and writes it there, between
the markers; prints the first table to the terminal. Called by performance/run.sh.

How: variants of one measurement take turns within one run, each round begins
with another one, the measured program is pinned to one CPU, and the first
variant (the bare one) is there twice: what its two halves differ by is noise,
and a goal missed by less than that is called so. Minima are compared, medians
stand beside them. Every process that is started is ended by its own id, also
after Ctrl-C; nothing listens anywhere but on loopback.
"""

import argparse
import ctypes
import os
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
OUT = TOP / "target/release"
BENCH = TOP / "target/bench"
DOCUMENT = TOP / "docs/PERFORMANCE.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, MEASURED_CPU = CPUS[0], CPUS[-1]
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)


class Failed(Exception):
    """A measurement that cannot be made, with the reason."""


def say(text):
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------- processes


def children(pid):
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found = []
    for task in tasks:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            pass
    return found


def descendants(pid):
    found = children(pid)
    return found + [grand for child in found for grand in descendants(child)]


def end_all():
    """Ends whatever is left of what this process has started (it adopts
    orphans, so that is all of it)."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        while left := descendants(os.getpid()):
            for pid in left:
                try:
                    os.kill(pid, sig)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            if time.monotonic() > deadline:
                break


def start(command, cpu=None, env=None, **options):
    def before():
        # Its own session: Ctrl-C reaches this program only, which ends the rest.
        os.setsid()
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})

    return subprocess.Popen(
        [str(c) for c in command],
        preexec_fn=before,
        env={**os.environ, **(env or {})},
        **options,
    )


def links_attached():
    """How many BPF programs hang on tracepoints now, by whomever: between two
    measurements none of ours does, and others' are in every number."""
    get_next, get_fd, get_info = 31, 30, 15  # enum bpf_cmd
    found, number = 0, 0
    while True:
        attr = ctypes.create_string_buffer(struct.pack("=III", number, 0, 0), 128)
        if LIBC.syscall(321, get_next, attr, 128):
            return found
        number = struct.unpack_from("=II", attr)[1]
        attr = ctypes.create_string_buffer(struct.pack("=I", number), 128)
        fd = LIBC.syscall(321, get_fd, attr, 128)
        if fd < 0:
            continue
        info = ctypes.create_string_buffer(256)
        attr = ctypes.create_string_buffer(struct.pack("=IIQ", fd, 256, ctypes.addressof(info)), 128)
        if LIBC.syscall(321, get_info, attr, 128) == 0:
            found += struct.unpack_from("=I", info)[0] in (1, 2)  # raw tracepoint, tracing
        os.close(fd)


def finish(process, timeout=30):
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Failed(f"{process.args[0]} did not end in {timeout} s") from None


class Lines:
    """A program that answers one line with one line."""

    def __init__(self, command, **options):
        self.process = start(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, **options
        )
        self.pid = self.process.pid
        self.name = Path(str(command[0])).name

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        answer = self.process.stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise Failed(f"{self.name}: '{line}' failed: {answer or 'it ended'}")
        return answer

    def values(self, line):
        return [float(v) for v in self.ask(line).split()]

    def close(self):
        self.process.stdin.close()
        finish(self.process)


class Broker:
    def __init__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="debox-bench-")
        os.chmod(self.directory.name, 0o755)
        self.socket = self.directory.name + "/debox.sock"
        self.process = start([OUT / "deboxd", "--everybody", "--socket", self.socket], cpu=SERVER_CPU)
        self.pid = self.process.pid
        for _ in range(200):
            if self.status():
                return
            time.sleep(0.05)
        raise Failed("deboxd does not answer; see its message above")

    def status(self):
        command = [OUT / "debox", "status", "--json", "--socket", self.socket]
        return subprocess.run(command, capture_output=True).returncode == 0

    def close(self):
        self.process.terminate()
        finish(self.process)
        self.directory.cleanup()


# ------------------------------------------------------------- statistics


class Variant:
    def __init__(self, name, measure, prepare=None):
        self.name, self.measure, self.prepare = name, measure, prepare
        self.samples, self.rounds = [], []

    def take(self):
        if self.prepare:
            self.prepare()
        values = self.measure()
        self.samples += values
        self.rounds.append(min(values))

    @property
    def min(self):
        return min(self.samples)

    @property
    def median(self):
        return statistics.median(self.samples)


def interleave(variants, rounds):
    for r in range(rounds):
        for i in range(len(variants)):
            variants[(i + r) % len(variants)].take()


def paired(variant, base):
    """The median over the rounds of the ratio of minima within a round: what
    disturbs the machine for longer than a round falls out, and so does one
    lucky minimum."""
    return statistics.median(v / b for v, b in zip(variant.rounds, base.rounds))


def noise(bare, again):
    """By how much the same thing differs from itself: of minima."""
    return abs(again.min - bare.min)


def verdict(value, goal, spread):
    if value <= goal:
        return "yes"
    if value - spread <= goal:
        return "not distinguishable from the goal"
    return "**no**"


class Row:
    def __init__(self, what, goal, measured, reached):
        self.what, self.goal, self.measured, self.reached = what, goal, measured, reached


class Section:
    """One measurement: rows of the first table, and a table of its own."""

    def __init__(self, title, text=""):
        self.title, self.text, self.rows, self.table = title, text, [], []

    def variants(self, variants, unit, to=None):
        base = to or variants[0]
        self.table = [
            f"| | min {unit} | median {unit} | ratio of minima | ratio of medians | added (minima) |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for v in variants:
            self.table.append(
                f"| {v.name} | {v.min:,.1f} | {v.median:,.1f} | {v.min / base.min:.3f} "
                f"| {v.median / base.median:.3f} | {v.min - base.min:+,.1f} |"
            )


# ------------------------------------------------------------- the lines


def raw_variants(path):
    found = []
    for line in Path(path).read_text().splitlines():
        name, to, values = line.split("\t")
        v = Variant(name.strip(), None)
        v.samples = [float(x) for x in values.split()]
        v.to = int(to)
        found.append(v)
    return found


def wrap_calls(quick):
    """getpid and pread, wrap capture, through a broker."""
    rounds = 151 if quick else 1501
    section = Section(
        "Wrap capture: one call",
        "`performance/wrap_getpid.c`, a client of `deboxd`; everything on, nothing happens inside the calls. "
        "The library's function is the base of the first and third part, the bare instruction that of the second.",
    )
    broker = Broker()
    raw = broker.directory.name + "/raw"
    try:
        program = start(
            [BENCH / "wrap_getpid", "--raw", raw, rounds],
            cpu=MEASURED_CPU,
            env={"DEBOX_SOCKET": broker.socket},
            stdout=subprocess.PIPE,
            text=True,
        )
        head = program.stdout.readline()
        program.stdout.read()
        if finish(program, 120) or "records: measured" not in head:
            raise Failed(f"wrap_getpid: {head}")
        found = raw_variants(raw)
    finally:
        broker.close()
    parts = [[v for v in found if v.to == base] for base in sorted({v.to for v in found})]
    for part in parts:
        whole = Section("")
        whole.variants(part, "ns")
        section.table += whole.table if not section.table else whole.table[2:]
    getpid, bare, pread, _ = parts
    for part, what, goal in ((getpid, "getpid", 1.20), (pread, "pread of 4096 cached bytes", 1.05)):
        base, again, bracket, interposed = part[:4]
        by = {v.name: v for v in part}
        spread = noise(base, again) / base.min
        clock, rusage = by["clock_gettime bracket"], by["getrusage bracket"]
        for v, how in ((bracket, "DEBOX_CALL bracket"), (interposed, "interposed")):
            ratio = v.min / base.min
            section.rows.append(
                Row(
                    f"{what}, wrap capture, {how}",
                    f"≤ {goal:.2f}×",
                    f"{ratio:.3f}× (median {v.median / base.median:.3f}×; {base.min:.0f} → {v.min:.0f} ns); "
                    f"null {again.min / base.min:.3f}×; brackets of clock_gettime {clock.min / base.min:.2f}×, "
                    f"getrusage {rusage.min / base.min:.2f}×"
                    + (f"; floor: two time stamps alone +{bare[1].min - bare[0].min:.0f} ns" if part is getpid else ""),
                    verdict(ratio, goal, spread),
                )
            )
    return section


def wrap_collect(quick):
    """getpid under `debox run --wrap --call-site`."""
    rounds = 101 if quick else 1001
    section = Section(
        "`debox run --wrap --call-site`: one call",
        "The same program under the command: the interposer counts by call and call site.",
    )
    with tempfile.TemporaryDirectory(prefix="debox-bench-") as directory:
        raw = directory + "/raw"
        command = [OUT / "debox", "run", "--wrap", "--call-site", "-o", "/dev/null", "--"]
        command += [BENCH / "wrap_getpid", "--raw", raw, rounds]
        program = start(command, cpu=MEASURED_CPU, stdout=subprocess.PIPE, text=True)
        head = program.stdout.readline()
        program.stdout.read()
        if finish(program, 120) or "measured; interposer counts" not in head:
            raise Failed(f"wrap_getpid under debox run --wrap: {head}")
        found = raw_variants(raw)
    part = [v for v in found if v.to == 0]
    section.variants(part, "ns")
    for base in sorted({v.to for v in found} - {0, 8}):
        more = Section("")
        more.variants([v for v in found if v.to == base], "ns")
        section.table += more.table[2:]
    base, again, _, counted = part[:4]
    ratio = counted.min / base.min
    turns = [v for v in found if "in turn" in v.name or v.to == found[-1].to]
    ratio = max(ratio, turns[1].min / turns[0].min)
    section.rows.append(
        Row(
            "getpid, `run --wrap` counting by call and call site",
            "≤ 1.40×",
            f"{counted.min / base.min:.3f}× (median {counted.median / base.median:.3f}×; "
            f"{base.min:.0f} → {counted.min:.0f} ns); with another call in turn {turns[1].min / turns[0].min:.3f}× "
            f"(median {turns[1].median / turns[0].median:.3f}×); null {again.min / base.min:.3f}×",
            verdict(ratio, 1.40, noise(base, again) / base.min),
        )
    )
    return section


class Kernel:
    """The worker, somebody else who is watched instead, and the hooks."""

    def __init__(self):
        self.hooks = Lines([OUT / "debox-bench-hooks"], cpu=SERVER_CPU)
        self.worker = Lines([BENCH / "loops", MEASURED_CPU])
        self.other = start(["sleep", "infinity"])

    def close(self):
        self.worker.close()
        self.hooks.close()
        self.other.kill()
        self.other.wait()

    def loop(self, what):
        return lambda: self.worker.values(what)

    def put(self, command):
        return lambda: self.hooks.ask(command)

    def watched(self, how):
        """The worker watched, with its sleeps' sites learned as a broker does."""

        def prepare():
            self.hooks.ask(f"watch {how} {self.worker.pid}")
            for _ in range(3):
                self.worker.ask("pingpong 300 1")
                self.hooks.ask("learn")

        return prepare


def boundary_calls(quick):
    """What a system call costs: watched, not watched, the kernel's floor."""
    rounds, loop = (8, "getpid 5000 8") if quick else (40, "getpid 10000 10")
    k = Kernel()
    section = Section(
        "Boundary capture, and other processes: one call",
        "`performance/loops.c` with the programs of `bpf/` attached and taken away between rounds "
        "(`performance/hooks.rs`). The floor: empty programs on sys_enter and sys_exit; then with one reading "
        "of the clock in each, which no record of a wall time can do without.",
    )
    try:
        run = k.loop(loop)
        variants = [
            Variant("bare", run, k.put("off")),
            Variant("bare again", run, k.put("off")),
            Variant("floor: empty programs", run, k.put("floor empty")),
            Variant("floor again", run, k.put("floor empty")),
            Variant("floor + 2 clock readings", run, k.put("floor clock")),
            Variant("watched, boundary capture", run, k.put(f"watch boundary {k.worker.pid}")),
            Variant("another process watched, boundary capture", run, k.put(f"watch boundary {k.other.pid}")),
            Variant("another process watched, wrap capture", run, k.put(f"watch wrap {k.other.pid}")),
        ]
        interleave(variants, rounds)
    finally:
        k.close()
    section.variants(variants, "ns")
    bare, again, floor, floor2, clock, ours, other, wrap_other = variants
    spread = noise(bare, again)
    floor_spread = max(spread, noise(floor, floor2))
    ratio, null = paired(wrap_other, bare), paired(again, bare)
    section.rows += [
        Row(
            "another process's getpid while somebody is watched by wrap capture",
            "1.00×",
            f"{ratio:.3f}× (median of ratios within rounds; minima {wrap_other.min / bare.min:.3f}×); "
            f"null {null:.3f}×, minima {again.min / bare.min:.3f}×",
            "yes" if ratio <= 1 + max(0.01, abs(null - 1)) else "**no**",
        ),
        Row(
            "getpid, boundary capture, watched",
            "≤ floor + 110 ns",
            f"floor {ours.min - floor.min:+.0f} ns (medians {ours.median - floor.median:+.0f}): "
            f"bare {bare.min:.0f}, floor {floor.min:.0f}, with 2 clock readings {clock.min:.0f}, "
            f"ours {ours.min:.0f} ns; null floor {floor2.min - floor.min:+.0f} ns",
            verdict(ours.min - floor.min, 110, floor_spread),
        ),
        Row(
            "another process's getpid during boundary capture",
            "≤ floor + 15 ns",
            f"floor {other.min - floor.min:+.0f} ns (medians {other.median - floor.median:+.0f}); "
            f"null floor {floor2.min - floor.min:+.0f} ns",
            verdict(other.min - floor.min, 15, floor_spread),
        ),
    ]
    return section


def sleeps(quick):
    """What a sleep of a watched thread costs, and a switch between others."""
    rounds, loop = (4, "300 8") if quick else (30, "1000 8")
    k = Kernel()
    broker = None
    try:
        broker = Broker()
        client = Lines([BENCH / "loops", MEASURED_CPU], env={"DEBOX_SOCKET": broker.socket})

        def measured(what):
            return lambda: k.worker.values(f"{what} {loop}")

        def opened():
            k.hooks.ask("off")
            client.ask("open")
            client.ask("pingpong-wrap 1000 1")
            time.sleep(0.02)
            client.ask("pingpong-wrap 1000 1")

        def closed():
            k.hooks.ask("off")
            client.ask("close")

        def wrapped():
            values = client.values(f"pingpong-wrap {loop}")
            client.ask("close")
            return values

        pong = [
            Variant("bare", measured("pingpong"), k.put("off")),
            Variant("bare again", measured("pingpong"), k.put("off")),
            Variant("floor: an empty program on sched_switch", measured("pingpong"), k.put("floor switch")),
            Variant("two others switch, hooks attached", measured("pingpong"), k.put(f"watch wrap {k.other.pid}")),
            Variant(
                "... without the hook on sched_waking", measured("pingpong"), k.put(f"watch nowakers {k.other.pid}")
            ),
            Variant("one sleep watched, wrap, account", measured("pingpong"), k.watched("wrap")),
            Variant("... without the hook on sched_waking", measured("pingpong"), k.watched("nowakers")),
            Variant(
                "two others switch, boundary hooks attached",
                measured("pingpong"),
                k.put(f"watch boundary {k.other.pid}"),
            ),
            Variant("one sleep and 2 calls watched, boundary", measured("pingpong"), k.watched("boundary")),
            Variant("bare, second program", lambda: client.values(f"pingpong {loop}"), closed),
            Variant("one sleep watched, wrap, libdebox record", wrapped, opened),
        ]
        interleave(pong, rounds)
        # What the two watched calls of a round trip cost without a sleep.
        call = "getpid 3000 8"
        calls = [
            Variant("", k.loop(call), k.put(f"watch boundary {k.other.pid}")),
            Variant("", k.loop(call), k.put(f"watch boundary {k.worker.pid}")),
        ]
        interleave(calls, rounds)
        first = k.hooks.ask(f"watch wrap {k.worker.pid}")
        k.watched("wrap")()
        k.worker.ask(f"pingpong {loop}")
        counters = k.hooks.ask("learn") or first
        turns = [
            Variant("bare", measured("yield"), k.put("off")),
            Variant("bare again", measured("yield"), k.put("off")),
            Variant("floor: an empty program on sched_switch", measured("yield"), k.put("floor switch")),
            Variant("two others switch, hooks attached", measured("yield"), k.put(f"watch wrap {k.other.pid}")),
        ]
        interleave(turns, rounds)
        client.close()
    finally:
        k.close()
        if broker:
            broker.close()
    pipe = Section(
        "A sleep: pipe round trip on one CPU",
        "Two processes, two pipes, one CPU: four system calls, two switches, two sleeps, two wake-ups a round trip. "
        "Only one of the two is watched, so a round trip has one watched sleep (and one watched switch back).",
    )
    pipe.variants(pong, "ns")
    pipe.table += ["", f"Stacks recognised and walked while measuring: `{counters.removeprefix('ok ')}`"]
    bare, again, floor, others, nowake, account, account_nowake, others2, boundary, bare2, record = pong
    two_calls = 2 * (calls[1].min - calls[0].min)
    asleep = boundary.min - others2.min - two_calls
    pipe.table += [
        "",
        "Boundary capture charges the round trip's four calls, too. Of what it adds to the bare round trip, "
        f"{others2.min - bare.min:,.0f} ns are the hooks' for unwatched threads, {two_calls:,.0f} ns those of the "
        f"watched thread's two calls (measured with getpid), and {asleep:,.0f} ns the sleep's own.",
    ]
    spread = max(noise(bare, again), noise(bare, bare2))
    pipe.rows += [
        Row(
            "one sleep of a watched thread (pipe round trip on one CPU)",
            "≤ +1.0 µs",
            f"wrap with libdebox {(record.min - bare2.min) / 1e3:+.2f} µs, account of `run --wrap` "
            f"{(account.min - bare.min) / 1e3:+.2f} µs, boundary {asleep / 1e3:+.2f} µs "
            f"(with the floor and own cost of 4 calls {(boundary.min - bare.min) / 1e3:+.2f}; of {bare.min / 1e3:.2f} µs; floor {(floor.min - bare.min) / 1e3:+.2f}; "
            f"null {(again.min - bare.min) / 1e3:+.2f}; medians "
            f"{(record.median - bare2.median) / 1e3:+.2f}, {(account.median - bare.median) / 1e3:+.2f}, "
            f"{(boundary.median - bare.median) / 1e3:+.2f})",
            verdict(max(record.min - bare2.min, account.min - bare.min, asleep), 1000, spread),
        )
    ]
    switch = Section(
        "A switch between threads that are not watched",
        "Two SCHED_FIFO processes that yield to each other: ns per `sched_yield()` with the switch it makes. "
        "Beside it the same with the pipes above.",
    )
    switch.variants(turns, "ns")
    t_bare, t_again, t_floor, t_others = turns
    switch.rows += [
        Row(
            "a context switch between unwatched tasks while hooks are attached",
            "≤ +5 %",
            f"pipe round trip {100 * (others.min / bare.min - 1):+.1f} % (floor "
            f"{100 * (floor.min / bare.min - 1):+.1f} %, null {100 * (again.min / bare.min - 1):+.1f} %, without wakers "
            f"{100 * (nowake.min / bare.min - 1):+.1f} %); sched_yield {100 * (t_others.min / t_bare.min - 1):+.1f} % "
            f"(floor {100 * (t_floor.min / t_bare.min - 1):+.1f} %, null {100 * (t_again.min / t_bare.min - 1):+.1f} %)",
            verdict(others.min / bare.min, 1.05, spread / bare.min),
        )
    ]
    return [pipe, switch]


# ------------------------------------------------------------- the peers

BPFTRACE = """
tracepoint:raw_syscalls:sys_enter /pid == cpid/ { @start[tid] = nsecs; }
tracepoint:raw_syscalls:sys_exit /@start[tid]/ {
  @count[args->id] = count(); @total[args->id] = sum(nsecs - @start[tid]); delete(@start[tid]);
}
"""


def tools():
    """Others that count a program's system calls: name, command before the
    program's, calls a round."""
    run = [OUT / "debox", "run", "-o", "/dev/null"]
    return [
        ("bare", [], 20000),
        ("bare again", [], 20000),
        ("debox run --wrap", [*run, "--wrap", "--"], 20000),
        ("debox run --wrap --call-site", [*run, "--wrap", "--call-site", "--"], 20000),
        ("debox run", [*run, "--"], 20000),
        ("perf trace -s", ["perf", "trace", "-s", "-o", "/dev/null", "--"], 1000),
        ("strace -f -c", ["strace", "-f", "-c", "-o", "/dev/null", "--"], 1000),
        ("bpftrace, count and total by call", ["bpftrace", "-q", "-e", BPFTRACE, "-c"], 20000),
        ("syscount -L", ["syscount-bpfcc", "-L"], 20000),
    ]


def peers(quick):
    section = Section(
        "The same job by other tools: one getpid",
        "`performance/calls.c` under each tool, tool and program on one CPU, a fresh process each time.",
    )
    missing = []
    with tempfile.TemporaryDirectory(prefix="debox-bench-") as directory:
        raw = directory + "/raw"
        variants = []
        for name, prefix, calls in tools():
            if prefix and not shutil.which(str(prefix[0])):
                missing.append(f"{name}: not installed")
                continue

            def measure(prefix=prefix, calls=calls, name=name):
                program = [str(BENCH / "calls"), str(calls), "10", raw]
                Path(raw).unlink(missing_ok=True)
                if name.startswith("bpftrace"):
                    program = [" ".join(program)]
                if name.startswith("syscount"):
                    return measure_syscount(prefix, program, raw)
                process = start(
                    [*prefix, *program],
                    cpu=MEASURED_CPU,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                errors = process.stderr.read()
                finish(process)
                if not Path(raw).exists():
                    lines = errors.strip().splitlines()
                    raise Failed(lines[-1] if lines else "no output")
                return [float(v) for v in Path(raw).read_text().split()]

            try:
                measure()  # does it run here at all? Caches warm up, too.
                variants.append(Variant(name, measure))
            except Failed as error:
                missing.append(f"{name} does not run here: {error}")
        interleave(variants, 1 if quick else 8)
    section.variants(variants, "ns")
    if missing:
        section.table += [""] + [f"- {line}" for line in missing]
    base = variants[0]
    text = ", ".join(f"{v.name} {v.min / base.min:.3g}×" for v in variants[1:])
    section.rows.append(Row("getpid under whole tools", "(comparison)", text, ""))
    return section


def measure_syscount(prefix, program, raw):
    worker = start([*program, "wait"], cpu=MEASURED_CPU)
    tool = start(
        [*prefix, "-p", worker.pid],
        cpu=MEASURED_CPU,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # It says "Tracing" when it is in place, or ends.
        os.set_blocking(tool.stdout.fileno(), True)
        if "Tracing" not in tool.stdout.readline():
            lines = tool.stderr.read().strip().splitlines()
            raise Failed(lines[-1] if lines else "it does not start")
        worker.send_signal(signal.SIGUSR1)
        finish(worker)
        return [float(v) for v in Path(raw).read_text().split()]
    finally:
        worker.kill()
        worker.wait()
        tool.send_signal(signal.SIGINT)
        try:
            tool.wait(5)
        except subprocess.TimeoutExpired:
            tool.kill()
            tool.wait()


# ------------------------------------------------------------- nginx

NGINX = """
user {user};
worker_processes 1;
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
  uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
  server {{ listen 127.0.0.1:{port}; root {dir}/www; location = /status {{ stub_status; }} }}
}}
"""


def port_free():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu_ns(pid):
    """CPU time of a process up to now: its CPU clock (clock_getcpuclockid).
    /proc/PID/schedstat says the same up to the last tick."""
    return time.clock_gettime_ns(~pid << 3 | 2)


class Nginx:
    """One server, by itself or under a tool."""

    def __init__(self, prefix):
        self.directory = tempfile.TemporaryDirectory(prefix="debox-bench-")
        d = Path(self.directory.name)
        os.chmod(d, 0o755)
        (d / "www").mkdir()
        (d / "www/index.html").write_bytes(b"x" * 1024)
        self.port = port = port_free()
        self.url = f"http://127.0.0.1:{port}/index.html"
        (d / "nginx.conf").write_text(NGINX.format(dir=d, port=port, user="nobody nogroup"))
        self.process = start(
            [*prefix, shutil.which("nginx"), "-c", d / "nginx.conf", "-p", d],
            cpu=SERVER_CPU,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.master = self.worker = None
        for _ in range(400):
            if self.process.poll() is not None:
                raise Failed(f"nginx or its tool ended: {self.process.stderr.read()[-300:]}")
            try:
                self.master = int((d / "nginx.pid").read_text())
                found = children(self.master)
                with socket.create_connection(("127.0.0.1", port), 1):
                    pass
                if found:
                    self.worker = found[0]
                    break
            except (OSError, ValueError):
                pass
            time.sleep(0.02)
        if not self.worker:
            raise Failed("nginx does not start")

    def requests(self):
        """How many requests it has served; asking is one more."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as s:
            s.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            text = b""
            while part := s.recv(4096):
                text += part
        return int(re.search(rb"requests\s+\d+\s+\d+\s+(\d+)", text)[1])

    def load(self, slices):
        """Loads it for a moment of warming up and `slices` tenths of a second:
        requests a second by wrk, ns of the worker's CPU a request for each."""
        first = self.requests()
        command = ["wrk", "-t1", "-c64", "-d600s", self.url]
        wrk = start(command, cpu=MEASURED_CPU, stdout=subprocess.PIPE, text=True)
        time.sleep(0.4)
        found = []
        cpu, served = cpu_ns(self.worker), self.requests()
        for _ in range(slices):
            time.sleep(0.1)
            cpu2, served2 = cpu_ns(self.worker), self.requests()
            found.append((cpu2 - cpu) / max(1, served2 - served))
            cpu, served = cpu2, served2
        # wrk ends with its summary
        wrk.send_signal(signal.SIGINT)
        text = wrk.stdout.read()
        finish(wrk)
        total = re.search(r"(\d+) requests in", text)
        rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
        if not total or not rate or "Non-2xx" in text or "Socket errors" in text:
            raise Failed("wrk: " + text.replace("\n", " "))
        # The server's own count against wrk's: up to 64 are cut off at the end.
        extra = self.requests() - first - int(total[1]) - slices - 2
        if not -2 <= extra <= 130:
            raise Failed(f"nginx counted {extra} requests more than wrk")
        return float(rate[1]), found

    def close(self):
        # The server first: a tool that is killed may leave it running.
        if self.master:
            os.kill(self.master, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stderr.close()
        self.directory.cleanup()


def nginx(quick):
    for tool in ("nginx", "wrk"):
        if not shutil.which(tool):
            raise Failed(f"{tool} is not installed: make setup-test")
    run = [OUT / "debox", "run", "-o", "/dev/null"]
    ours = [
        ("bare", []),
        ("bare again", []),
        ("debox run --wrap", [*run, "--wrap", "--"]),
        ("debox run", [*run, "--"]),
    ]
    others = [
        ("strace -f -c", ["strace", "-f", "-c", "-o", "/dev/null", "--"]),
        ("perf trace -s", ["perf", "trace", "-s", "-o", "/dev/null", "--"]),
    ]
    rates, missing = {}, []

    def variant(name, prefix):
        def measure():
            server = Nginx(prefix)
            try:
                rate, slices = server.load(6)
            finally:
                server.close()
            rates.setdefault(name, []).append(rate)
            # What else the machine does comes in bursts: the calmest tenth of a second.
            return [min(slices)]

        return Variant(name, measure)

    variants = [variant(*v) for v in ours]
    interleave(variants, 2 if quick else 30)
    for name, prefix in others:
        if not shutil.which(prefix[0]):
            missing.append(f"{name}: not installed")
            continue
        other = variant(name, prefix)
        try:
            interleave([other], 1 if quick else 2)
            variants.append(other)
        except Failed as error:
            missing.append(f"{name}: {error}")
    section = Section(
        "nginx: one request for 1 KB",
        f"nginx with one worker on CPU {SERVER_CPU}, wrk with 64 connections on CPU {MEASURED_CPU}, a fresh server "
        "each time, 0.4 s of warming up. CPU time of the worker by requests in each tenth of a second (the "
        "server's own count, which must agree with wrk's at the end); a round's value is its lowest of 6, and "
        "minima and medians are over the rounds. Requests a second are wrk's, the best round.",
    )
    section.variants(variants, "ns")
    section.table[0] += " requests/s | times fewer |"
    section.table[1] += "---:|---:|"
    best = max(rates["bare"] + rates["bare again"])
    for i, v in enumerate(variants):
        rate = max(rates[v.name])
        section.table[i + 2] += f" {rate:,.0f} | {best / rate:.2f} |"
    section.table += [""] + [f"- {line}" for line in missing] if missing else []
    bare, again, wrap, boundary = variants[:4]
    null = paired(again, bare)
    both = Variant("", None)
    both.rounds = [(x + y) / 2 for x, y in zip(bare.rounds, again.rounds)]
    for v, goal in ((wrap, 1.03), (boundary, 1.15)):
        what = "wrap" if v is wrap else "boundary"
        ratio = paired(v, both)
        section.rows.append(
            Row(
                f"nginx 1 KB under wrk, server CPU per request, {what}",
                f"≤ +{100 * (goal - 1):.0f} %",
                f"{100 * (ratio - 1):+.1f} % (median of ratios within rounds; minima "
                f"{100 * (v.min / min(both.rounds) - 1):+.1f} %; bare {bare.min / 1e3:.2f} µs); null {100 * (null - 1):+.1f} %, "
                f"minima {100 * (again.min / bare.min - 1):+.1f} %; throughput {best / max(rates[v.name]):.2f}× lower",
                verdict(ratio, goal, abs(null - 1)),
            )
        )
    text = ", ".join(f"{v.name} {best / max(rates[v.name]):.3g}×" for v in variants[4:])
    if text:
        section.rows.append(Row("nginx throughput under other tools: times lower", "(comparison)", text, ""))
    return section


# ------------------------------------------------------------- memory


def rss_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])


def maps_shared(pid):
    """What a process has mapped of DeBox: bytes of BPF maps, how many of them,
    bytes of memory files."""
    slots = regions = table = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if "bpf-map" in line:
            slots += high - low
            regions += 1
        elif "memfd:debox" in line:
            table += high - low
    return slots, regions, table


def memory(quick):
    threads = 1000
    broker = Broker()
    try:
        before = rss_kib(broker.pid)
        client = start(
            [BENCH / "threads", threads],
            env={"DEBOX_SOCKET": broker.socket},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if client.stdout.readline().strip() != "ready":
            raise Failed("target/bench/threads: see its message above")
        rss = rss_kib(broker.pid)
        slots, regions, table = maps_shared(client.pid)
        client.stdin.close()
        if finish(client):
            raise Failed("target/bench/threads failed")
    finally:
        broker.close()
    if not slots:
        raise Failed("no map of slots found in the client")
    header = (TOP / "include/debox/abi.h").read_text()
    segment = int(re.search(r"#define DEBOX_SEGMENT_SLOTS\s+(\d+)", header)[1])
    # Two maps a segment, record and control.
    per_slot = slots / (regions / 2 * segment)
    per = slots / (threads + 1)
    section = Section("Memory", f"A client with {threads:,} threads, each with a record, and its broker.")
    section.table = [
        "| | |",
        "|---|---:|",
        f"| slots mapped by the client | {slots:,} bytes in {regions // 2} segments of {segment} slots |",
        f"| table of sites, one for all clients | {table:,} bytes |",
        f"| broker, resident, before | {before:,} KiB |",
        f"| broker, resident, {threads:,} threads | {rss:,} KiB |",
    ]
    section.rows += [
        Row(
            "shared memory a watched thread",
            "≤ 8 KiB",
            f"{per_slot:,.0f} bytes a slot ({per:,.0f} a thread when the slots left over in the last segment are "
            f"counted, {threads:,} threads)",
            "yes" if per_slot <= 8192 else "**no**",
        ),
        Row(
            "broker with 1,000 threads, resident",
            "≤ 40 MiB",
            f"{rss / 1024:.1f} MiB ({before / 1024:.1f} before)",
            "yes" if rss <= 40 * 1024 else "**no**",
        ),
    ]
    return section


# ------------------------------------------------------------- the document


def machine():
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    release = ".".join(os.uname().release.split(".")[:2])
    virtual = " (virtual machine)" if "hypervisor" in Path("/proc/cpuinfo").read_text() else ""
    return f"{cpu[1] if cpu else os.uname().machine}, {len(CPUS)} CPUs{virtual}, Linux {release}"


def table(sections):
    lines = ["| | goal | measured | reached |", "|---|---|---|---|"]
    for s in sections:
        lines += [f"| {r.what} | {r.goal} | {r.measured} | {r.reached} |" for r in s.rows]
    return "\n".join(lines)


def document(sections, load, foreign):
    head = f"Machine: {machine()}. Load average at the start: {load[0]:.2f} (other work on the machine is noise here)."
    if foreign:
        head += f" Somebody else's BPF programs were attached {', '.join(foreign)}: their cost is in the numbers."
    parts = [BEGIN, head, table(sections)]
    for s in sections:
        parts += [f"### {s.title}", s.text, "\n".join(s.table)]
    text = "\n\n".join(p for p in parts if p) + f"\n\n{END}"
    old = DOCUMENT.read_text()
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{DOCUMENT} has lost its markers {BEGIN} and {END}: put them back")
    DOCUMENT.write_text(old[: old.index(BEGIN)] + text + old[old.index(END) + len(END) :])


MEASUREMENTS = [
    ("wrap", wrap_calls),
    ("collect", wrap_collect),
    ("boundary", boundary_calls),
    ("sleeps", sleeps),
    ("peers", peers),
    ("nginx", nginx),
    ("memory", memory),
]


def main():
    names = [name for name, _ in MEASUREMENTS]
    parser = argparse.ArgumentParser(prog="performance/run.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, more noise; prints only")
    parser.add_argument("--only", choices=names, action="append", help="only this measurement; prints only")
    parser.add_argument("--details", action="store_true", help="print every variant as well")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("the benchmarks attach BPF programs: run them as root")
    if len(CPUS) < 2:
        parser.error("two CPUs are needed: one is measured, the other drives")
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    # This program itself must not run where it measures.
    os.sched_setaffinity(0, {SERVER_CPU})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    load, sections, failed, foreign = os.getloadavg(), [], False, []
    try:
        for name, measure in MEASUREMENTS:
            if options.only and name not in options.only:
                continue
            begin = time.monotonic()
            if links_attached():
                foreign.append(f"before {name}")
            try:
                done = measure(options.quick)
            except Failed as error:
                failed = True
                done = Section(f"{name}: not measured", str(error))
                done.rows.append(Row(name, "", f"not measured: {error}", "**no**"))
            sections += done if isinstance(done, list) else [done]
            # Ours go with a moment's delay.
            time.sleep(0.3)
            if links_attached():
                foreign.append(f"after {name}")
            say(f"bench: {name}: {time.monotonic() - begin:.0f} s")
    except KeyboardInterrupt:
        say("bench: interrupted; everything that was started is ended")
        return 130
    finally:
        end_all()
    if foreign:
        say(f"bench: somebody else's BPF programs were attached {', '.join(foreign)}: their cost is in the numbers")
    print(table(sections))
    if options.details:
        for s in sections:
            print(f"\n{s.title}\n" + "\n".join(s.table))
    if not (options.quick or options.only):
        document(sections, load, foreign)
        say(f"bench: written to {DOCUMENT.relative_to(TOP)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
