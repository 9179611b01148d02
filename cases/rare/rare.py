#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Of a thousand calls one takes 1 ms, and the mean is many times as long: which tool shows
that, says that it is a few calls and why, and what does the tool itself cost?

The argument of section 2 of the DeBox paper, and its Figures 1 and 2. rare.c is the program
that is looked at; it reads the clock before and after each call, so that in every run what a
tool says can be held against what was. It runs in turn without a tool and under each of them
(tools.py); what they print is kept beside the results. Then:

- the same symptom from another cause (a page that is not in memory), under strace and DeBox;
- the clock around a call that waits for nothing, with another program on its CPU, against
  DeBox's own time of the same calls (Figures 1 and 2).

A tool that is not installed has a row that says so. Needs root, as the slow disk does.
"""

import array
import contextlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "cases"), str(TOP / "cases/disk"), str(TOP / "cases/rare")]
import case  # noqa: E402
import figure  # noqa: E402
import tools  # noqa: E402
from figure import Series  # noqa: E402
from slow_disk import DiskError, SlowDisk  # noqa: E402
from tools import SLOW_NS, SPLICE, STRACE_COUNTS, TOOLS, RareError, Times, Tool, said, span  # noqa: E402
from watch import DEBOX, WatchError, broker, debox  # noqa: E402

EVERY = 1000
LATENCY_S = 0.00085  # of the disk; with the way there and back the call takes 1 ms
CC = ("cc", "-std=gnu11", "-O2", "-g")
BESIDE_CALLS = 100_000  # takes a second: the CPU is taken hundreds of times, many of them as a call ends
# So that other programs do not take the CPU from this one in the midst of a call, which
# would be slow calls of another kind: FIFO, the lowest priority of it.
ALONE = (shutil.which("chrt") or "/usr/bin/chrt", "-f", "1")
WITHOUT = "without a tool"
LINES = 400  # of an output that are kept


class Bench:
    """The programs, their file on the slow disk, and one run after the other."""

    def __init__(self, out: pathlib.Path, work: pathlib.Path, disk: SlowDisk, socket: pathlib.Path, calls: int) -> None:
        self.out, self.work, self.calls = out, work, calls
        # The broker has to read the spliced images to find call sites: a folder that debox makes would be open to root alone.
        images = work / "cache/debox/splice"
        images.mkdir(parents=True)
        for folder in (images, images.parent, images.parent.parent):
            folder.chmod(0o755)
        self.environment = {**os.environ, "DEBOX_SOCKET": str(socket), "XDG_CACHE_HOME": str(work / "cache")}
        self.file = disk.data / "file"
        with disk.undelayed():
            self.file.write_bytes(os.urandom(4096) * (calls // EVERY + 2))
        source, libraries = str(TOP / "cases/rare/rare.c"), DEBOX.parent
        for name, options in (("rare", []), ("rare-gprof", ["-pg"]), ("rare-in-band", ["-DIN_BAND", f"-I{TOP / 'include'}", f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ldebox"])):
            said([*CC, "-o", str(work / name), source, *options])

    def words(self, program: str, cause: str, calls: int, every: int = EVERY) -> list[str]:
        return [str(self.work / program), cause, str(self.file), str(calls), "times", str(every)]

    def measure(self, command: list[str]) -> tuple[array.array, float, str, str]:
        """The numbers that the program wrote, how long its loop took, and what was printed."""
        times = self.work / "times"
        times.unlink(missing_ok=True)
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, errors="replace", timeout=tools.TIMEOUT_S, check=False, env=self.environment)
        ran = re.search(r"^([\d.]+) s, [01]$", done.stdout, re.M)
        if not ran or not times.exists():
            raise RareError(f"{' '.join(command)}: status {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
        numbers = array.array("I")
        numbers.frombytes(times.read_bytes())
        return numbers, float(ran[1]), done.stdout, done.stderr

    def run(self, tool: Tool | None, cause: str = "lock") -> tuple[Times, str]:
        words = [*ALONE, *self.words("rare-gprof" if tool is tools.GPROF else "rare", cause, self.calls)]
        numbers, run_s, printed, complained = self.measure(tool.command(self.work, words) if tool else words)
        return Times(numbers, run_s), tool.output(self.work, printed, complained) if tool else ""

    def keep(self, name: str, text: str) -> None:
        """What a tool printed, as NAME.txt; of DeBox also the report as JSON. Of a long list of
        calls the first and the last are enough to be read."""
        file = self.out / re.sub(r"\W+", "-", name)
        if "debox" in name:
            file.with_suffix(".json").write_text(text)
            text = debox("report", str(self.work / "rare.debox"))
        lines = text.splitlines(keepends=True)
        if len(lines) > LINES:
            lines[LINES // 2 : -LINES // 2] = [f"... {len(lines) - LINES:,} lines ...\n"]
        file.with_suffix(".txt").write_text("".join(lines))


def compare(bench: Bench, rounds: int, chosen: Sequence[Tool]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Every tool in every round, one after the other: what the first round shows and the run times
    of all; and how DeBox and the program's clock agree."""
    took, _ = bench.run(None)
    rows: list[dict[str, Any]] = [{"tool": WITHOUT, **tools.Said(took.rise(), "lseek", took.rare(), "", took.share, took.curve())._asdict()}]
    rows += [{"tool": tool.name} for tool in chosen]
    runs_s: list[list[float]] = [[] for _ in rows]
    agree: dict[str, Any] = {}
    for turn in range(rounds):
        for row, run_s, tool in zip(rows, runs_s, [None, *chosen], strict=True):
            program, _, package = tool.needs.partition(" ") if tool else ("", "", "")
            if program and not shutil.which(program):
                row["not_run"] = f"{program} is not installed (apt-get install {package})"
            if "not_run" in row:
                continue
            try:
                times, text = bench.run(tool)
            except RareError as error:
                if not program:
                    raise
                row["not_run"] = str(error)
                continue
            run_s.append(times.run_s)
            if tool and turn == 0:
                bench.keep(tool.name, text)
                row |= tool.read(text, times)._asdict() | {"took": times.summary(), "took_share": times.share, "took_curve": times.curve()}
                if tool is SPLICE:
                    agree = agreement(json.loads(text), times)
    for row, run_s in zip(rows, runs_s, strict=True):
        ratios = [own / alone for own, alone in zip(run_s, runs_s[0], strict=False)]
        if ratios:
            row["cost"] = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "run_s": run_s}
    return rows, agree


def agreement(report: dict[str, Any], times: Times) -> dict[str, Any]:
    """DeBox and the program's own clock in the same run, in this order."""
    row = next(row for row in report["calls"] if row["name"] == "lseek")
    found = {"slow": (tools.slow_calls(row), times.slow), "mean_ns": (row["mean_ns"], round(times.mean_ns)), "max_ns": (row["max_ns"], times.sorted[-1])}
    within = {"slow": 0.01, "mean_ns": 0.1, "max_ns": 0.1}
    return {**found, "agree": all(abs(found[name][0] - found[name][1]) <= found[name][1] * part for name, part in within.items()), "waits": tools.waits(report, "lseek")._asdict()}


def page(bench: Bench) -> dict[str, Any]:
    """The other cause: does what strace prints differ from that of the first, and what DeBox says?"""
    times, counts = bench.run(STRACE_COUNTS, "page")
    bench.keep("page, strace -c -w", counts)
    shown = tools.strace_counts(counts, times)
    times, text = bench.run(SPLICE, "page")
    bench.keep("page, debox, splice", text)
    found = tools.of_debox(text, times, "pread64")
    return {"took": times.summary(), "rise": times.rise(), "strace": shown.rare, "rare": found.rare, "why": found.why, "waits": tools.waits(json.loads(text), "pread64")._asdict()}


@contextlib.contextmanager
def competitor() -> Iterator[None]:
    """Computes on the CPU that the program makes its calls on, the first that it may use; for a minute at most."""
    process = subprocess.Popen([*case.DIES_TOO, sys.executable, "-S", "-E", "-c", "import signal; signal.alarm(60)\nwhile True: pass"], stdin=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        yield
    finally:
        process.kill()
        process.wait()


def figures_1_and_2(bench: Bench) -> dict[str, Any]:
    """No call waits for anything; now and then the competitor has the CPU between clock and call."""
    with competitor():
        numbers, run_s, *_ = bench.measure(bench.words("rare-in-band", "lock", BESIDE_CALLS, 4 * BESIDE_CALLS))
    clock, whole = numbers[0::2], numbers[1::2]
    part = len(clock) // 100
    begins = range(0, len(clock), part)
    series = [Series(name, begins, [max(values[n : n + part]) / 1e3 for n in begins]) for name, values in (("the clock (Figure 1)", clock), ("DeBox (Figure 2)", whole))]
    figure.lines(bench.out / "figures-1-2.svg", f"lseek beside a program that computes: the longest of each {part:,} calls", "call", "time, µs", series, log_y=True)
    return {"clock": Times(clock, run_s).summary(), "debox": Times(whole, run_s).summary()}


# --- what is shown


def cost_text(median: float, low: float, high: float, **_: Any) -> str:
    return f"{median:.2f}×" + (f" ({low:.2f} to {high:.2f})" if low < high else "")


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| tool | that there is a problem | which call | that it is rare and long | where it blocked, and behind whom | run time |", "|---|---|---|---|---|---:|"]
    for row in rows:
        if "not_run" in row:
            lines.append(f"| {row['tool']} | not run: {row['not_run']} | | | | |")
            continue
        name, cost = ("the program's own clock", "1") if row["tool"] == WITHOUT else (row["tool"], cost_text(**row["cost"]))
        lines.append(f"| {name} | {' | '.join(row[key] or 'no' for key in ('problem', 'call', 'rare', 'why'))} | {cost} |")
    return "\n".join(lines)


def figures(out: pathlib.Path, rows: list[dict[str, Any]]) -> None:
    without, *ran = [row for row in rows if "not_run" not in row]
    names = [f"{row['tool']}: {row['cost']['median']:.2f}" for row in ran]
    figure.bars(out / "cost.svg", "Run time under each tool; without one it is 1", "times", names, [Series("", [], [row["cost"]["median"] for row in ran])])
    shares = [row for row in ran if row["share"] is not None]
    bars = [Series("by the program's clock", [], [100 * row["took_share"] for row in shares]), Series("by the tool", [], [100 * row["share"] for row in shares])]
    figure.bars(out / "share.svg", "What lseek took of the run's time, in the same run", "%", [row["tool"] for row in shares], bars)
    curves = [(f"{WITHOUT}: the clock", without["curve"])]
    curves += [(f"{row['tool']}: the clock", row["took_curve"]) for row in ran if row["tool"] == SPLICE.name]
    curves += [(f"{row['tool']}: what it says", row["curve"]) for row in ran if row["curve"] and row["tool"] in (SPLICE.name, "strace -T", "bpftrace")]
    series = [Series(name, [ns / 1e3 for ns, share in curve if share], [100 * share for _, share in curve if share]) for name, curve in curves]
    figure.lines(out / "distribution.svg", "lseek: calls that took so long or longer", "µs", "% of the calls", series, log_x=True, log_y=True)


def markdown(result: dict[str, Any]) -> str:
    clock, own, other = result["figures_1_and_2"]["clock"], result["figures_1_and_2"]["debox"], result["page"]
    agree = {name: f"{span(pair[0])} and {span(pair[1])}" for name, pair in result["agreement"].items() if name.endswith("_ns")}
    slow = "{} and {}".format(*result["agreement"]["slow"])
    both = "\n".join(f"| {name} | {span(clock[key])} | {span(own[key])} |" for name, key in (("min", "min_ns"), ("median", "p50_ns"), ("mean", "mean_ns"), ("max", "max_ns")))
    return f"""# One call in a thousand

{result['calls']:,} calls of lseek, one in {EVERY:,} of which finds the file's position locked by a process that reads from a
slow disk. What each tool shows, read out of what it printed{f" in the first of {result['rounds']} rounds" if result['rounds'] > 1 else ""}; run time against that
without a tool{' in the same round, median (lowest to highest)' if result['rounds'] > 1 else ''}.

{table(result['tools'])}

DeBox (splice capture) and the program's own clock in one run: slow calls {slow}, mean {agree['mean_ns']}, longest {agree['max_ns']}:
{'they agree' if result['agreement']['agree'] else '**they do not agree**'} (within 1 %, 10 % and 10 %).

## The same symptom from another cause

pread of 64 bytes, one in {EVERY:,} of a page that is not in memory: {other['rise']}.

- strace -c -w: {other['strace']}
- DeBox: {other['rare']}; {other['why']}

## The clock around a call (Figures 1 and 2, Table 1)

lseek that waits for nothing, and another program on its CPU. {span(SLOW_NS)} or more: {clock['slow']} calls by the clock, {own['slow']} by DeBox.

| | clock before and after | DeBox |
|---|---:|---:|
{both}
"""


def run(out: pathlib.Path, quick: bool, chosen: Sequence[Tool] = TOOLS) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    calls, rounds = (20_000, 1) if quick else (100_000, 5)
    with contextlib.ExitStack() as stack:
        work = stack.enter_context(broker())
        disk = stack.enter_context(SlowDisk(work / "disk", 64 << 20, LATENCY_S, bandwidth_bytes_per_s=0))
        bench = Bench(out.resolve(), work, disk, work / "broker", calls)
        rows, agree = compare(bench, rounds, chosen)
        result = {"calls": calls, "rounds": rounds, "tools": rows, "agreement": agree, "page": page(bench), "figures_1_and_2": figures_1_and_2(bench)}
    figures(out, rows)
    (out / "rare.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "rare.md").write_text(markdown(result))
    return result


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (RareError, DiskError, WatchError), lambda result: result["agreement"]["agree"]))
