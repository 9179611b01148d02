#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which few of 20,000 socket() calls take milliseconds, why, and what takes that away?

A process's table of descriptors doubles when it is full. With a second thread, which could
be looking something up in the old one, the call that finds it full waits for a grace
period of RCU (expand_fdtable, synchronize_rcu). The fix is one descriptor with a high
number, before there are threads. Runs interleaved: one thread, two, two with the fix;
the program times its own calls, and DeBox watches runs of their own.
"""

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "cases"))
import case  # noqa: E402
import figure  # noqa: E402
from watch import Watch, WatchError  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("DEBOX_RCU", TOP / "target/cases/rcu"))
CALLS, QUICK_CALLS, SPARE = 20_000, 4_200, 100
LABEL = "fd-table"
ROUNDS, RUN_S = 7, 60.0


class RcuError(Exception):
    """What happened, and what helps."""


class Call(NamedTuple):
    descriptor: int
    ns: int
    sleeps: int


class Variant(NamedTuple):
    name: str
    threads: int
    reserve: bool


VARIANTS = (Variant("two threads", 2, False), Variant("two threads, table large from the start", 2, True), Variant("one thread", 1, False))


def limit() -> int:
    """Descriptors that a process can have here."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard if 0 <= hard < 1 << 30 else 1 << 30


class Program:
    """A run of rcu that waits for go()."""

    def __init__(self, call: str, calls: int, variant: Variant) -> None:
        if not PROGRAM.exists():
            raise RcuError(f"{PROGRAM} is not there: make case-programs, or cc -std=gnu11 -O2 -g -o {PROGRAM} cases/rcu/rcu.c")
        reserve = calls + SPARE // 2 if variant.reserve else 0
        self.process = subprocess.Popen([*case.DIES_TOO, str(PROGRAM), call, str(calls), str(variant.threads), str(reserve)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Program":
        self._expect("ready")
        return self

    def _expect(self, word: str) -> None:
        assert self.process.stdout
        if self.process.stdout.readline() != f"{word}\n":
            raise RcuError(f"{PROGRAM} ended with status {self.process.wait(RUN_S)} before it said {word!r}; it says why above")

    def _send(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def go(self) -> None:
        """Until all calls are made."""
        self._send()
        self._expect("made")

    def calls(self) -> list[Call]:
        assert self.process.stdout
        self._send()
        return [Call(*map(int, line.split())) for line in self.process.stdout]

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def one(call: str, calls: int, variant: Variant) -> list[Call]:
    with Program(call, calls, variant) as program:
        program.go()
        return program.calls()


def watched(out: pathlib.Path, name: str, call: str, calls: int, variant: Variant) -> dict[str, Any]:
    """What the program itself saw, and what DeBox says of the same calls."""
    with Program(call, calls, variant) as program:
        with Watch(out, name, [program.process.pid]) as watch:
            program.go()
        made = program.calls()
    slept = [one for one in made if one.sleeps]
    report = watch.report()
    rows = [row for row in report["blocking"] if row["call"] == call]
    slow = [row for row in report["slow_calls"] if row["call"] == call and any(report["sites"][sleep["site"]]["label"] == LABEL for sleep in row["sleeps"])]
    sites = [site for site in report["sites"] if site["label"] == LABEL]
    return {
        "program": {"calls": len(made), "slept": len(slept), "slept_ns": sum(one.ns for one in slept), "max_ns": max(one.ns for one in made), "descriptors": [one.descriptor for one in slept]},
        "debox": {
            "calls": sum(row["count"] for row in report["calls"] if row["name"] == call),
            "blocked": [{key: row[key] for key in ("label", "function", "count", "total_ns", "max_ns")} for row in rows],
            "slow_descriptors": sorted(row["retval"] for row in slow),
            "path": sites[0]["frames"] if sites else [],
            "advice": [found["text"] for found in report["findings"] if call in found["title"] and "table of open files" in found["title"]],
        },
        "verdict": watch.first_sentences(),
    }  # fmt: skip


def summary(rounds: list[list[Call]]) -> dict[str, Any]:
    """Medians over the rounds, with the least and the most."""
    slept = [[one for one in made if one.sleeps] for made in rounds]
    grown = sorted({one.descriptor for made in slept for one in made})
    return {
        "rounds": len(rounds),
        "slept": spread([len(made) for made in slept]),
        "slept_ms": spread([sum(one.ns for one in made) / 1e6 for made in slept]),
        "all_ms": spread([sum(one.ns for one in made) / 1e6 for made in rounds]),
        "median_us": spread([statistics.median(one.ns for one in made) / 1e3 for made in rounds]),
        "by_descriptor_ms": {number: spread([one.ns / 1e6 for made in slept for one in made if one.descriptor == number]) for number in grown},
    }


def spread(values: list[Any]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def line(name: str, rounds: list[list[Call]]) -> figure.Series:
    """Of each descriptor its fastest round, since what else runs here only lengthens; of each
    eighth of an octave the slowest descriptor."""
    least: dict[int, int] = {}
    for made in rounds:
        for one in made:
            least[one.descriptor] = min(one.ns, least.get(one.descriptor, one.ns))
    bins: dict[int, tuple[int, int]] = {}
    for number, ns in least.items():
        octave = number.bit_length()
        place = octave * 8 + (number * 8 >> octave - 1) - 8
        if ns > bins.get(place, (0, 0))[1]:
            bins[place] = (number, ns)
    points = [bins[place] for place in sorted(bins)]
    return figure.Series(name, [number for number, _ in points], [ns / 1e3 for _, ns in points])


def run(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    calls = min(QUICK_CALLS if quick else CALLS, limit() - SPARE)
    kinds = ("socket",) if quick else ("socket", "open")
    found: dict[str, Any] = {"calls": calls, "kernel": os.uname().release, "measured": {}, "watched": {}}
    for kind in kinds:
        made: dict[str, list[list[Call]]] = {variant.name: [] for variant in VARIANTS}
        for _ in range(3 if quick else ROUNDS):
            for variant in VARIANTS:
                made[variant.name].append(one(kind, calls, variant))
        found["measured"][kind] = {name: summary(rounds) for name, rounds in made.items()}
        figure.lines(
            out / f"rcu-{kind}.svg", f"{kind}(): the time of a call, by the descriptor that it gives", "descriptor", "µs (slowest of its neighbours)",
            [line(name, rounds) for name, rounds in made.items()], log_x=True, log_y=True,
        )  # fmt: skip
    for name, variant in (("rcu-as-is", VARIANTS[0]), ("rcu-fixed", VARIANTS[1])):
        found["watched"][variant.name] = watched(out, name, "socket", calls, variant)
    (out / "rcu.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "rcu.md").write_text(text(found))
    return found


def text(found: dict[str, Any]) -> str:
    before, after = (found["watched"][variant.name] for variant in VARIANTS[:2])
    lines = [
        "# A table of descriptors that grows", "",
        f"{found['calls']:,} calls, Linux {found['kernel']}; medians of the rounds (least to most).", "",
        "| call | process | calls that slept | these together, ms | all calls, ms | median call, µs |",
        "|---|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for kind, variants in found["measured"].items():
        for name, row in variants.items():
            cells = [shown(row[key], digits) for key, digits in (("slept", 0), ("slept_ms", 1), ("all_ms", 1), ("median_us", 2))]
            lines.append(f"| {kind} | {name} | {' | '.join(cells)} |")
    lines += ["", "The calls that slept with two threads:", "", "| descriptor | " + " | ".join(f"{kind}, ms" for kind in found["measured"]) + " |", "|---:|" + "---:|" * len(found["measured"])]
    columns = [variants[VARIANTS[0].name]["by_descriptor_ms"] for variants in found["measured"].values()]
    for number in sorted({number for column in columns for number in column}):
        lines.append(f"| {number} | " + " | ".join(shown(column[number], 1) if number in column else "-" for column in columns) + " |")
    for title, one in (("As it is", before), ("With a table that is large from the start", after)):
        lines += ["", f"{title}, watched:", "", *("    " + said for said in one["verdict"]), ""]
        lines.append(f"The program itself: {one['program']['slept']} of {one['program']['calls']:,} calls slept, {one['program']['slept_ns'] / 1e6:.1f} ms together.")
        for row in one["debox"]["blocked"]:
            lines.append(f"DeBox: {row['count']} sleeps, {row['total_ns'] / 1e6:.1f} ms, {row['label']} in {row['function']}; the kernel's path: {' → '.join(one['debox']['path'])}.")
        lines += [f"DeBox's advice: {advice}" for advice in one["debox"]["advice"]]
    return "\n".join(lines) + "\n"


def shown(of: dict[str, float], digits: int) -> str:
    return f"{of['median']:.{digits}f} ({of['least']:.{digits}f} to {of['most']:.{digits}f})"


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (RcuError, WatchError)))
