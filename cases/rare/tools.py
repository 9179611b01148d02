# SPDX-License-Identifier: MIT OR Apache-2.0
"""How is each tool used on rare.c, and what does it show of the one call in a thousand?

A tool is a command, where its output is, and how that is read: `TOOLS`. What it shows is
taken out of what it printed; what it could show is not assumed.
"""

import array
import json
import pathlib
import re
import statistics
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

from watch import DEBOX, debox

SLOW_NS = 1 << 19  # an edge of DeBox's histograms
GRID_NS = [100 * 2 ** (n / 2) for n in range(36)]
TIMEOUT_S = 300.0
Curve = list[tuple[float, float]]  # a time in ns, and the share of the calls that took at least so long


class RareError(Exception):
    """What happened, and what helps."""


# A mean that is less than so many times that of the usual calls shows no problem.
RISEN = 1.5


def span(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


class Times:
    """What the program's own clock says of its calls."""

    def __init__(self, values_ns: list[float] | array.array, run_s: float) -> None:
        self.sorted, self.run_s = sorted(values_ns), run_s
        self.count, self.total_ns = len(self.sorted), sum(self.sorted)
        self.slow = sum(ns >= SLOW_NS for ns in self.sorted)
        self.mean_ns = self.total_ns / self.count
        self.usual_ns = sum(self.sorted[: self.count - self.slow]) / max(1, self.count - self.slow)
        self.share = self.total_ns / 1e9 / run_s

    def curve(self) -> Curve:
        return [(ns, sum(value >= ns for value in self.sorted) / self.count) for ns in GRID_NS]

    def rise(self) -> str:
        return rise(self.mean_ns, self.usual_ns, SLOW_NS)

    def rare(self) -> str:
        return few(self.slow, self.count, self.sorted[-1])

    def summary(self) -> dict[str, Any]:
        numbers = {"min": self.sorted[0], "p50": self.sorted[self.count // 2], "mean": round(self.mean_ns), "max": self.sorted[-1], "usual": round(self.usual_ns)}
        return {"count": self.count, "slow": self.slow, **{f"{name}_ns": ns for name, ns in numbers.items()}}


def rise(mean_ns: float, usual_ns: float, below_ns: float) -> str:
    told = f"mean {span(mean_ns)}, {mean_ns / usual_ns:.2g} times that of the calls below {span(below_ns)}"
    return told if mean_ns >= RISEN * usual_ns else f"no: {told}"


def few(slow: int, count: int, longest_ns: float) -> str:
    return f"{slow:,} of {count:,} took {span(SLOW_NS)} or more, the longest {span(longest_ns)}"


class Said(NamedTuple):
    """What a tool shows. Empty: it does not."""

    problem: str = ""
    call: str = ""
    rare: str = ""
    why: str = ""
    share: float | None = None  # of the run's time, given to the call
    curve: Curve = []


Output = Callable[[pathlib.Path, str, str], str]


class Tool(NamedTuple):
    name: str
    needs: str  # a program, and the package that it is in
    command: Callable[[pathlib.Path, list[str]], list[str]]
    output: Output  # of the directory that it was run in, standard output, and errors
    read: Callable[[str, Times], Said]


def said(command: list[str], cwd: pathlib.Path | None = None, errors: bool = False) -> str:
    """Its standard output, or that and its errors."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise RareError(f"{command[0]} is not installed: apt-get install gcc binutils") from error
    if done.returncode:
        raise RareError(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout + done.stderr if errors else done.stdout


# --- samples of the CPU


def sampled(share: float, what: str, times: Times) -> Said:
    """Shown is what has at least half of the samples that its time is worth."""
    numbers = f"{share:.0%} of the samples, of the run's time it took {times.share:.0%}"
    return Said(f"{what}: {numbers}", what, share=share) if share >= times.share / 2 else Said(f"no: {numbers}", share=share)


def gprof(text: str, times: Times) -> Said:
    row = re.search(r"^ *([\d.]+) .* call$", text, re.M)
    return sampled(float(row[1]) / 100 if row else 0.0, "call()", times)


def perf_record(text: str, times: Times) -> Said:
    """With callers, the row of lseek that has most contains the others."""
    return sampled(max((float(row[1]) / 100 for row in re.finditer(r"^ *([\d.]+)% .*lseek", text, re.M)), default=0.0), "lseek", times)


# --- the call's ends


def strace_counts(text: str, times: Times) -> Said:
    rows = [(name, int(calls), *map(float, rest)) for name, calls, *rest in re.findall(r"^(\w+) +(\d+) +([\d.]+) ([\d.]+) +(\d+) ([\d.]+)$", text, re.M) if name != "total"]
    row = next(row for row in rows if row[0] in ("lseek", "pread64") and row[1] >= times.count)
    name, calls, total_s, least_s, mean_us, most_s = row
    rank = sorted(rows, key=lambda one: -one[2]).index(row) + 1
    numbers = f"mean {mean_us:.0f} µs, longest {span(most_s * 1e9)}"
    return Said(f"in part: {numbers}", f"{name}, row {rank} of {len(rows)}", f"in part: of {calls:,} the shortest {span(least_s * 1e9)}, {numbers}; not how many are long", share=total_s / times.run_s)


def strace_times(text: str, times: Times) -> Said:
    own = Times([float(row[1]) * 1e9 for row in re.finditer(r"lseek.*<([\d.]+)>$", text, re.M)], times.run_s)
    return Said(own.rise(), "lseek, each with its arguments", own.rare(), "", own.share, own.curve())


def perf_trace(text: str, times: Times) -> Said:
    row = re.search(r"^ *lseek +(\d+) +\d+ +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)", text, re.M)
    shown_ms = [float(line[1]) for line in re.finditer(r"\( *([\d.]+) ms\): \S+ lseek\(", text)]
    # perf trace (6.1) can begin with one of 2^64 ns less some milliseconds: the difference of two stamps in the other order.
    long_ms = [ms for ms in shown_ms if ms < times.run_s * 1e3]
    if not row:
        raise RareError("perf trace shows no lseek: run it by hand to see why")
    calls, total_ms, mean_ms, most_ms = int(row[1]), float(row[2]), float(row[4]), float(row[5])
    usual_ms = (total_ms - sum(long_ms)) / (calls - len(long_ms))
    lost = f"; {times.count - calls} calls are missing" if calls < times.count else ""
    if len(long_ms) < len(shown_ms):
        lost += f"; {len(shown_ms) - len(long_ms)} more with a time below zero"
    return Said(rise(mean_ms * 1e6, usual_ms * 1e6, 5e5), "lseek, the long ones with the file", f"{len(long_ms)} of {calls:,} took 500 µs or more, the longest {span(most_ms * 1e6)}{lost}", share=total_ms / 1e3 / times.run_s)


# --- sleeps


def perf_lock(text: str, _: Times) -> Said:
    """Each row's stack stands below it."""
    row = re.search(r"^ *(\d+) +([\d.]+ \w+) +([\d.]+ \w+) +([\d.]+ \w+) +mutex .*\n(?:\s+0x.*\n)*?\s+0x.*fdget_pos.*\n.*lseek", text, re.M)
    if not row:
        return Said()
    return Said(f"{row[1]} waits, {row[2]}", "lseek, in the stack", f"in part: {row[1]} waits, mean {row[4]}, longest {row[3]}; not of how many calls", "mutex in fdget_pos, in the stack; not behind whom")


def perf_sched(text: str, _: Times) -> Said:
    """A sleep is from the switch away, with its stack, to the line of who woke the thread."""
    since_s, waits_ns, wakers = None, [], set()
    for line in text.splitlines():
        row = re.match(r" *([\d.]+) \[\d+\] +([^\[]+)\[(\d+)", line)
        if row and row[2] == "rare" and "fdget_pos" in line and " D " in line:
            since_s, tid = float(row[1]), row[3]
        elif row and since_s is not None and re.search(rf"awakened: rare\[{tid}\]", line):
            waits_ns.append((float(row[1]) - since_s) * 1e9)
            wakers.add(row[2])
            since_s = None
    slow = [ns for ns in waits_ns if ns >= SLOW_NS]
    if not slow:
        return Said()
    numbers = f"in part: {len(slow)} sleeps of {span(SLOW_NS)} or more, mean {span(statistics.mean(slow))}, longest {span(max(slow))}; not of how many calls"
    return Said(f"{len(slow)} sleeps, {span(sum(slow))}", "lseek, in the stack", numbers, f"fdget_pos, in the stack; woken by {', '.join(sorted(wakers))}")


OFF_CPU = """
tracepoint:syscalls:sys_enter_lseek /pid == cpid/ { @begin[tid] = nsecs; }
tracepoint:syscalls:sys_exit_lseek /@begin[tid]/ { @lseek_ns = hist(nsecs - @begin[tid]); delete(@begin[tid]); }
tracepoint:sched:sched_waking /@begin[args->pid]/ { @woken_by[comm] = count(); }
tracepoint:sched:sched_switch /@begin[args->prev_pid]/ { @off[args->prev_pid] = nsecs; @stack[args->prev_pid] = kstack; }
tracepoint:sched:sched_switch /@off[args->next_pid]/ {
	@blocked_us[@stack[args->next_pid]] = hist((nsecs - @off[args->next_pid]) / 1000);
	delete(@off[args->next_pid]);
}
END { clear(@begin); clear(@off); clear(@stack); }
"""
POWERS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bpftrace_command(work: pathlib.Path, words: list[str]) -> list[str]:
    (work / "off_cpu.bt").write_text(OFF_CPU)
    return ["bpftrace", "-o", "bpftrace.txt", "-c", " ".join(words), "off_cpu.bt"]


def bpftrace(text: str, _: Times) -> Said:
    histogram = re.search(r"^@lseek_ns: *\n((?:\[.*\n)+)", text, re.M)
    if not histogram:
        raise RareError("bpftrace shows no lseek: run it by hand to see why")
    buckets = [(float(row[1]) * POWERS[row[2]], int(row[3])) for row in re.finditer(r"^\[(\d+)([KMG]?), \S+\) +(\d+)", histogram[1], re.M)]
    slow, count = sum(n for ns, n in buckets if ns >= SLOW_NS), sum(n for _, n in buckets)
    curve = [(ns, sum(n for other, n in buckets if other >= ns) / count) for ns, _ in buckets]
    wakers = re.findall(r"^@woken_by\[(.*)\]", text, re.M)
    why = f"fdget_pos, in the stack; woken by {', '.join(wakers)}" if "fdget_pos" in text else ""
    return Said(f"{slow} calls of {span(SLOW_NS)} or more", "lseek, the one that was asked for", f"{slow} of {count:,} took {span(SLOW_NS)} or more", why, curve=curve)


# --- DeBox


class Waits(NamedTuple):
    """What a call mostly blocked on, as DeBox says."""

    label: str
    function: str
    count: int
    mean_ns: int
    max_ns: int
    holder: str  # empty: nobody
    holder_call: str
    chain: list[str]  # what was waited for, link by link
    place: str  # in the program; empty: not known


ENDS = {
    "limit": "its own time limit", "timer": "a timer", "network": "the network", "interrupt": "an interrupt", "runq": "{comm} waited for a CPU", "ran_user": "{comm} ran its own code",
    "ran_call": "{comm} ran in {call}", "ran": "{comm} ran", "disk": "disk {comm}: {operation}", "device": "device {comm}", "woken": "{comm}, not followed yet",
}  # fmt: skip


def chain(report: dict[str, Any], link: int | None) -> list[str]:
    """What was waited for, and what that waited for, to where it ends or is not known."""
    words = []
    while link is not None:
        one = report["chain_links"][link]
        asleep = f"{one['comm']} in {one['call']}: " if one["call"] else f"{one['comm']}: "
        words.append(asleep + report["sites"][one["site"]]["label"] if one["kind"] == "sleep" and one["site"] is not None else ENDS.get(one["kind"], f"{one['kind']} {{comm}}").format(**one))
        link = one["parent"]
    return words


def waits(report: dict[str, Any], call: str) -> Waits:
    row = next(row for row in report["blocking"] if row["call"] == call)
    held = next((who for who in report.get("culprits", []) if (who["call"], who["label"], who["role"]) == (call, row["label"], "holder")), None)
    # The first link is the wait itself, the second what it was for. Of what it was for, and of
    # the ways on from there, those that most of the time went.
    ways = [(words[1:], way["total_ns"]) for way in report.get("chains", []) if (words := chain(report, way["first"]))[0].endswith(f" in {call}: {row['label']}")]
    next_ns: dict[str, int] = {}
    for words, total_ns in ways:
        next_ns[words[0]] = next_ns.get(words[0], 0) + total_ns
    longest, _ = max(ways, key=lambda way: (next_ns[way[0][0]], way[1]), default=([], 0))
    slow = next((one for one in report.get("slow_calls", []) if one["call"] == call and one["sleeps"] and one["stack"] is not None), None)
    place = ""
    if slow:
        stack = report["stacks"][slow["stack"]]
        frame = stack["frames"][stack["site_frame"]]
        place = f"{frame['function']} ({pathlib.Path(frame['file'] or '').name}:{frame['line']})"
    behind = (held["comm"], held["culprit_call"] or "") if held else ("", "")
    return Waits(row["label"], row["function"], row["count"], row["mean_ns"], row["max_ns"], *behind, longest, place)


def slow_calls(row: dict[str, Any]) -> int:
    return sum(bucket["count"] for bucket in row["histogram"] if bucket["from_ns"] >= SLOW_NS)


def of_debox(text: str, times: Times, call: str = "lseek") -> Said:
    report = json.loads(text)
    found = waits(report, call)
    behind = f", held by {found.holder} in {found.holder_call}" if found.holder else ""
    why = " ← ".join([f"{found.label} ({found.function}){behind}", *found.chain])
    where = f"{call}, {found.place}" if found.place else call
    row = next((row for row in report["calls"] if row["name"] == call), None)
    if not row:  # --capture=sleeps
        numbers = f"{found.count} sleeps, mean {span(found.mean_ns)}, longest {span(found.max_ns)}"
        return Said(f"{found.count} sleeps, {span(found.count * found.mean_ns)}", where, f"in part: {numbers}; not of how many calls", why)
    buckets = row["histogram"]
    curve = [(float(bucket["from_ns"]), sum(other["count"] for other in buckets if other["from_ns"] >= bucket["from_ns"]) / row["count"]) for bucket in buckets]
    rare = f"{few(slow_calls(row), row['count'], row['max_ns'])}; blocked {found.count} times, {span(found.mean_ns)} each"
    return Said(f"mean {span(row['mean_ns'])}, median {span(row['p50_ns'])}", where, rare, why, row["wall_ns"] / 1e9 / times.run_s, curve)


# --- how each is used


def errors(_: pathlib.Path, __: str, stderr: str) -> str:
    return stderr


def written(name: str) -> Output:
    return lambda work, *_: (work / name).read_text(errors="replace")


def then(*command: str) -> Output:
    return lambda work, *_: said(list(command), work)


def before(*command: str) -> Callable[[pathlib.Path, list[str]], list[str]]:
    return lambda _, words: [*command, *words]


def perf_lock_output(work: pathlib.Path, *_: str) -> str:
    """-v shows the stacks, and before the table what perf has to say of itself."""
    text = said(["perf", "lock", "contention", "-v", "-i", "lock.data"], work, errors=True)
    return text[text.rfind("\n", 0, text.index("contended")) + 1 :]


def perf_sched_output(work: pathlib.Path, *_: str) -> str:
    """It tells of the whole machine: the lines in which the program is named."""
    lines = said(["perf", "sched", "timehist", "-i", "sched.data", "-w", "--state"], work).splitlines(keepends=True)
    return "".join(line for n, line in enumerate(lines) if n < 3 or "rare[" in line)


def debox_tool(name: str, *options: str) -> Tool:
    return Tool(name, "", before(str(DEBOX), "run", *options, "-o", "rare.debox", "--"), lambda work, *_: debox("report", "--json", str(work / "rare.debox")), of_debox)


COLUMNS = "name,calls,total-time,min-time,avg-time,max-time"
PERF_REPORT = ("perf", "report", "-i", "perf.data", "--stdio", "--children", "-g", "none", "--sort", "comm,symbol")
GPROF = Tool("gprof", "gprof binutils", before(), then("gprof", "-b", "rare-gprof", "gmon.out"), gprof)
STRACE_COUNTS = Tool("strace -c -w", "strace strace", before("strace", "-f", "-c", "-w", "-U", COLUMNS), errors, strace_counts)
STRACE_TIMES = Tool("strace -T", "strace strace", before("strace", "-f", "-T", "-o", "strace.txt"), written("strace.txt"), strace_times)
SPLICE = debox_tool("debox, splice", "--capture=splice")
BOUNDARY = debox_tool("debox, boundary", "--call-site")
TOOLS = (
    GPROF,
    Tool("perf record", "perf linux-perf", before("perf", "record", "-q", "-e", "cpu-clock", "-F", "999", "-g", "-o", "perf.data"), then(*PERF_REPORT), perf_record),
    Tool("perf sched", "perf linux-perf", before("perf", "sched", "record", "-g", "-o", "sched.data"), perf_sched_output, perf_sched),
    Tool("perf lock", "perf linux-perf", before("perf", "lock", "record", "-o", "lock.data"), perf_lock_output, perf_lock),
    Tool("perf trace -S", "perf linux-perf", before("perf", "trace", "-S", "--duration", "0.5", "-o", "trace.txt"), written("trace.txt"), perf_trace),
    STRACE_COUNTS,
    STRACE_TIMES,
    Tool("bpftrace", "bpftrace bpftrace", bpftrace_command, written("bpftrace.txt"), bpftrace),
    debox_tool("debox, sleeps", "--capture=sleeps"),
    SPLICE,
    BOUNDARY,
)
