#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How much does each server deliver as its files outgrow its memory, and how long do answers take there?

    sizes.py --out DIR [--quick] [--only SERVER]

The paper's sections 6.2 and 7: files only, clients whose lines have no limit, five requests a
connection. First as much as each server can, for sets of files of half its memory, one and a half of
it, and more than three (Tables 8 and 10). Then, with the largest, all get the same rate, nine
tenths (quick: six) of what the slowest can, and count from when a request should have begun (Figures 11
and 12, Tables 7 and 10). Before each, the disk does without its delays until memory is full: a cold
server would be behind from the begin.
"""

import itertools
import json
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

CASES = pathlib.Path(__file__).resolve().parents[1]
for folder in (CASES, CASES / "disk", CASES / "peers", CASES / "steps"):
    sys.path.insert(0, str(folder))

import case  # noqa: E402
import designs  # noqa: E402
import figure  # noqa: E402
import peers  # noqa: E402
import slow_disk  # noqa: E402
import steps  # noqa: E402

# Those of the paper, to its gigabyte of memory.
SHARES = (0.5, 1.5, 3.3)
# That ask, as much as is answered; and at most, where they keep a rate.
ASKING, AT_ONCE = 64, 512
EVERY = 5
DIRECTORY_MB = 5.0
ORIGINAL, FLASH, FINAL = designs.DESIGNS[0], designs.DESIGNS[1], designs.DESIGNS[-1]
# Two other ways not to wait in the loop: the kernel's own threads read, or there is no loop.
OF_TODAY = {"model": "amped", "send": "uring", "residency": "none", "names": "cached", "cgi": "persistent", "cgi-answer": "socket", "helpers": "8"}
RING = designs.Design("io_uring", OF_TODAY, "no counterpart", "io_uring reads what is not in memory")
THREADS = designs.Design("threads", {"model": "threads", "workers": str(AT_ONCE), "send": "sendfile"}, "6.3: parallelism without end", "a thread for each connection")


class Plan(NamedTuple):
    shares: tuple[float, ...]
    servers: tuple[str, ...]
    warm_up_s: float | None  # None: until the throughput is level, by the generator's test
    seconds: int
    rate_share: float = 0.9


SERVERS = (ORIGINAL.name, FLASH.name, FINAL.name, designs.COPIED.name, RING.name, THREADS.name, "nginx", peers.TUNED, "lighttpd", "apache2-event")
QUICK = Plan(SHARES[::2], (ORIGINAL.name, FINAL.name, "nginx"), 0.5, 2, 0.6)  # in two seconds nobody is to fall behind for good
FULL = Plan(SHARES, SERVERS, None, 10)
# For one try of that test, and a second: forty runs wait for it.
LEVEL_MOST_S = 30


class CpuClock:
    """A server's CPU time, twice a second: so that it can be told of the time that counts, and not of that before."""

    def __init__(self, server: peers.Server) -> None:
        self._server = server
        self._samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _take(self) -> None:
        self._samples.append((time.monotonic(), self._server.cpu_s()))

    def _run(self) -> None:
        while not self._over.wait(0.5):
            self._take()

    def __enter__(self) -> "CpuClock":
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._take()

    def last(self, seconds: float) -> float:
        """Of the last so many seconds until it was stopped."""
        end, used = self._samples[-1]
        begin = max(end - seconds, self._samples[0][0])
        for (t0, s0), (t1, s1) in itertools.pairwise(self._samples):
            if t0 <= begin <= t1:
                return used - (s0 + (s1 - s0) * (begin - t0) / (t1 - t0))
        raise ValueError(f"{seconds} s of {end - self._samples[0][0]:.1f} s")


def starts(root: pathlib.Path, group: slow_disk.MemoryGroup) -> dict[str, Callable[[], peers.Server]]:
    made: dict[str, Callable[[], peers.Server]] = {design.name: lambda design=design: steps.flash(root, design, group) for design in (*designs.DESIGNS, designs.COPIED, RING, THREADS)}
    return made | {name: lambda start=start: start(str(root), workers=2, enter=group.command) for name, start in peers.PEERS.items()}


def ask(server: peers.Server, plan: Plan, directories: int, file: pathlib.Path, *words: str) -> dict[str, Any]:
    options = ["--static-only", "--kbit", "0", "--new-connection-every", str(EVERY), *steps.warm_up(plan.warm_up_s, LEVEL_MOST_S), "--seconds", str(plan.seconds)]
    with CpuClock(server) as clock:
        result = steps.load(server.port, steps.QUICK._replace(directories=directories), "run", *options, *words, file=file)
    return {
        "megabits_per_s": result["bytes_per_second"] * 8 / 1e6,
        "requests_per_s": result["requests_per_second"],
        "errors": sum(result["errors"].values()),
        "asked": result["requests"] + sum(result["errors"].values()),
        "generator_is_bottleneck": result["generator"]["is_bottleneck"],
        "server_cpu_us": clock.last(result["seconds"]) * 1e6 / max(result["requests"], 1),
        "warm_up_s": result["warm_up"]["seconds"],
        "is_level": result["warm_up"]["stationary"],
        "times": {of: result["groups"]["all"][of] for of in ("first_byte", "whole")},
    }


def run(out: pathlib.Path, quick: bool, only: list[str] | None = None) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    plan = QUICK if quick else FULL
    site = steps.QUICK
    directories = [max(1, round(share * site.memory_mib * 1.048576 / DIRECTORY_MB)) for share in plan.shares]
    names = [name for name in plan.servers if not only or name in only]
    capacity: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    times: dict[str, dict[str, Any]] = {}
    with steps.site(out.resolve(), site._replace(directories=directories[-1])) as (disk, group, root):
        start = starts(root, group)
        for count in directories:
            for name in names:
                disk.remount()
                with start[name]() as server:
                    steps.warmed(server, site._replace(directories=count), disk, "--static-only")
                    told = ask(server, plan, count, out / f"{name}-{count}.load.json", "--connections", str(ASKING))
                capacity[name].append(told)
                print(f"{name}, {count * DIRECTORY_MB:.0f} MB: {told['megabits_per_s']:.0f} Mbit/s, {told['requests_per_s']:.0f} requests/s, {told['errors']} errors", flush=True)
        rate = round(plan.rate_share * min(told[-1]["requests_per_s"] for told in capacity.values()))
        for name in names:
            disk.remount()
            with start[name]() as server:
                steps.warmed(server, site._replace(directories=directories[-1]), disk, "--static-only")
                times[name] = ask(server, plan, directories[-1], out / f"{name}-rate.load.json", "--connections", str(AT_ONCE), "--rate", str(rate))
            whole = times[name]["times"]["whole"]
            print(f"{name}, {rate} requests/s: {whole['p50_us'] / 1e3:.2f} ms median, {whole['mean_us'] / 1e3:.1f} mean, {times[name]['errors']} errors", flush=True)
    result = {"plan": plan._asdict(), "memory_mib": site.memory_mib, "megabytes": [count * DIRECTORY_MB for count in directories], "rate": rate, "capacity": capacity, "times": times}
    (out / "sizes.json").write_text(json.dumps(result, indent=1))
    (out / "sizes.md").write_text(page(result))
    figures(out, result)
    return result


def page(result: dict[str, Any]) -> str:
    sets = [f"{megabytes:.0f} MB" for megabytes in result["megabytes"]]
    lines = [f"As much as each can, Mbit/s, with {result['memory_mib']} MiB of memory (the paper's Tables 8 and 10):", "", "| | " + " | ".join(sets) + " |", "|---|" + "---:|" * len(sets)]
    marked = False
    for name, row in result["capacity"].items():
        cells = [f"{told['megabits_per_s']:.0f}{' *' if told['generator_is_bottleneck'] else ''}" for told in row]
        marked = marked or any(told["generator_is_bottleneck"] for told in row)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "\\* the clients had no more time: the server may do more."] if marked else []
    lines += ["", "The server's CPU time for a request of these, µs:", "", "| | " + " | ".join(sets) + " |", "|---|" + "---:|" * len(sets)]
    lines += [f"| {name} | " + " | ".join(f"{told['server_cpu_us']:.1f}" for told in row) + " |" for name, row in result["capacity"].items()]
    everyone = {f"{name} ({of})": told for name, row in result["capacity"].items() for of, told in zip(sets, row, strict=True)}
    lines += ["", *steps.warmed_up(result["plan"], everyone | {f"{name} ({result['rate']}/s)": told for name, told in result["times"].items()}, LEVEL_MOST_S)]
    lines += ["", f"All at {result['rate']} requests a second, {sets[-1]} (Tables 7 and 10), ms:", "", "| | first byte, 5 % | 50 % | 95 % | mean | whole answer, 5 % | 50 % | 95 % | mean | failed |", "|---|" + "---:|" * 9]
    for name, told in result["times"].items():
        cells = [f"{told['times'][of][key] / 1e3:.2f}" for of in ("first_byte", "whole") for key in ("p5_us", "p50_us", "p95_us", "mean_us")]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {told['errors']} of {told['asked']:,} |")
    return "\n".join(lines) + "\n"


def figures(out: pathlib.Path, result: dict[str, Any]) -> None:
    lines = [figure.Series(name, result["megabytes"], [told["megabits_per_s"] for told in row]) for name, row in result["capacity"].items()]
    figure.lines(out / "capacity.svg", f"As much as each can, with {result['memory_mib']} MiB of memory (Tables 8, 10)", "MB of files", "Mbit/s", lines, log_y=True)
    for of, title in (("first_byte", "Until the first byte"), ("whole", "Until the last byte")):
        cdfs = [figure.Series(name, [max(us, 1) / 1e3 for us, _ in told["times"][of]["cdf"]], [100 * share for _, share in told["times"][of]["cdf"]]) for name, told in result["times"].items() if told["times"][of]["cdf"]]
        figure.distributions(out / f"times-{of.replace('_', '-')}.svg", f"{title}, {result['rate']} requests a second, {result['megabytes'][-1]:.0f} MB (Figures 11, 12)", "ms", cdfs)


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (), only="server"))
