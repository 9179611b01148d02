#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What do select and poll cost a proxy of today, and what does libdebox-select save, as Banga and
Mogul asked of theirs (Scalable kernel performance for Internet servers under realistic loads,
1998, sections 3, 5 and 6)?

    proxy.py --out DIR [--quick]

haproxy between clients and an origin waits with poll, with poll and the library, and with epoll;
lighttpd is the second program; for select, whose sets end at 1,024 descriptors, there are
webfs and the plain server of `debox bench serve`. All ways of waiting run at the same time and
are asked in turns. Writes DIR/proxy.md (figures and tables, with what the paper saw),
proxy.json, the figures, and DeBox's own reports of the profiles. Wants root (or a broker
and perf's rights), two CPUs, haproxy, lighttpd and webfs; perf for the cross-check.
"""

import contextlib
import json
import pathlib
import platform
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

CASES = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(CASES), str(CASES / "peers"), str(CASES / "proxy")]

import case  # noqa: E402
import cputime  # noqa: E402
import day as days  # noqa: E402
import page  # noqa: E402
import variants  # noqa: E402
from cputime import PARTS, Perf  # noqa: E402
from peers import Server  # noqa: E402
from variants import DESCRIPTORS_LEFT, EPOLL, POLL, SELECT, SELECT_LIBRARY, SIZES, WAYS, Load, Measured, Variant, started, turns  # noqa: E402
from watch import Watch  # noqa: E402

HOT = 50
# The paper's: the day's most descriptors to its most requests in a second, 1,714 to 139.
IDLE_PER_RATE = 12


class Plan(NamedTuple):
    idles: tuple[int, ...]
    turn_s: float
    rounds: int
    rates: tuple[int, ...]
    rates_idle: int
    sizes: tuple[int, ...]
    more: bool  # lighttpd, select, and connections that are kept
    profile_s: float
    figure1_idles: tuple[int, ...]
    figure1_hots: tuple[int, ...]
    figure7_rates: tuple[int, ...]
    profiles: tuple[tuple[int, int], ...]  # idle connections, rate
    days: tuple[str, ...]
    samples: int
    sample_s: float
    most_rate: int


# Without profiles of their own, Figures 1 and 7 have those of the breakdown.
QUICK = Plan((0, 2000), 0.2, 2, (250, 2000), 2000, SIZES[:1], False, 0.8, (), (), (), ((2000, 500),), ("haproxy",), 12, 0.2, 400)
FULL = Plan(
    (0, 250, 500, 1000, 2000, 4000, 9600), 0.3, 4, (100, 250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 10000), 2000, SIZES, True, 2.0,
    (0, 500, 1000, 2000, 4000, 8000), (10, 50), (220, 500, 1000, 2000), ((750, 220), (4800, 400)), ("haproxy", "haproxy, cache", "lighttpd"), 96, 0.3, 400,
)  # fmt: skip


BEGIN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGIN:6.1f} s  {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def opened(servers: Sequence[Server], idle: Sequence[int]) -> Iterator[list[Server]]:
    """Running, each with its idle connections."""
    with contextlib.ExitStack() as stack:
        for server, count in zip(servers, idle, strict=True):
            stack.enter_context(started(server, variants.SERVERS_CPU))
            if count:
                stack.enter_context(Load(server.port, count, 0))
        yield list(servers)


class Case:
    def __init__(self, out: pathlib.Path, plan: Plan, origin_port: int) -> None:
        self.out, self.plan, self.origin = out, plan, origin_port
        self.most = (variants.descriptors_most() - DESCRIPTORS_LEFT) // 2
        self.result: dict[str, Any] = {"limits": {"descriptors": variants.descriptors_most(), "idle_most": self.most, "select": variants.SELECT_SETSIZE}}
        self.requests = self.failed = 0
        self.idles = tuple(sorted({min(idle, self.most) for idle in plan.idles}))

    def haproxy(self, way: Variant, idle: int, cache: bool = False) -> Server:
        return variants.haproxy(way, self.origin, idle + HOT + 100, cache)

    def lighttpd_proxy(self, way: Variant, idle: int) -> Server:
        return variants.lighttpd(way, idle + HOT + 100, self.origin)

    def count(self, measured: Sequence[Measured]) -> None:
        self.requests += sum(m.requests for m in measured)
        self.failed += sum(m.failed for m in measured)

    # --- 1: against the number of idle connections ---------------------------

    def against_idle(self, name: str, servers: Any, ways: Sequence[Variant], idles: Sequence[int], close: bool) -> None:
        """As fast as they can. `servers(way, idle)` makes one."""
        rows = []
        for idle in idles:
            with opened([servers(way, idle) for way in ways], [0] * len(ways)) as running, contextlib.ExitStack() as stack:
                # Hot ones in the middle of the idle ones.
                loads = [stack.enter_context(Load(server.port, idle, HOT, close=close)) for server in running]
                measured = turns(list(zip(running, loads, strict=True)), self.plan.turn_s, self.plan.rounds)
            self.count(measured)
            rows.append({"idle": idle, "ways": {way.name: m._asdict() for way, m in zip(ways, measured, strict=True)}})
            say(f"  {name}, {idle} idle: " + ", ".join(f"{way.name} {m.per_second[0]:,.0f}/s {m.cpu_us[0]:.0f} µs" for way, m in zip(ways, measured, strict=True)))
        self.result.setdefault("against_idle", {})[name] = rows

    # --- 2: against the rate of requests --------------------------------------

    def against_rate(self, name: str, servers: Any, size: int) -> None:
        """Until each does less than 95 % of what is asked: that is its last point."""
        idle = min(self.plan.rates_idle, self.most)
        lines = [(way.name, way, idle) for way in WAYS] + [("poll, no idle", POLL, 0)]
        points: dict[str, list[dict[str, Any]]] = {line: [] for line, _, _ in lines}
        with opened([servers(way, count) for _, way, count in lines], [count for _, _, count in lines]) as running:
            left = list(range(len(lines)))
            for rate in self.plan.rates:
                with contextlib.ExitStack() as stack:
                    asked = [(running[at], stack.enter_context(Load(running[at].port, 0, HOT, size=size, rate=rate))) for at in left]
                    measured = turns(asked, self.plan.turn_s, self.plan.rounds) if asked else []
                self.count(measured)
                for at, m in zip(list(left), measured, strict=True):
                    saturated = m.per_second[0] < 0.95 * rate
                    points[lines[at][0]].append({"asked": rate, "saturated": saturated, **m._asdict()})
                    if saturated:
                        left.remove(at)
                say(f"  {name}, {rate}/s: " + ", ".join(f"{lines[at][0]} {points[lines[at][0]][-1]['p50_us'][0]:.0f} µs" for at in left))
        self.result.setdefault("against_rate", {})[name] = {"idle": idle, "size": size, "lines": points}

    # --- 3: profiles ----------------------------------------------------------

    def profile(self, name: str, server: Server, program: str, idle: int, hot: int, rate: float, check: bool) -> dict[str, Any]:
        """DeBox's, and beside it at the same time perf's."""
        file = "profile-" + name.replace(", ", "-").replace(" ", "-")
        with opened([server], [idle]), Load(server.port, 0, hot, rate=rate) as load:
            load.run(0.2)
            perf = Perf(self.out / f"{file}.perf", server.pid) if check else None
            with Watch(self.out, file, [server.pid], "--hz", str(cputime.HZ)) as watch, perf or contextlib.nullcontext():
                # Longer where two are compared: a server with little to do has few samples.
                outcome = load.run(self.plan.profile_s * (2 if check else 1))
        watch.recording.unlink()
        report = watch.report()
        told = cputime.of_debox(report, program)
        result: dict[str, Any] = {"name": name, "idle": idle, "hot": hot, "rate": rate, "seconds": outcome.seconds, "requests": outcome.requests}
        result |= {"debox": told._asdict(), "wait_measured": cputime.measured(report)}
        self.requests += outcome.requests
        self.failed += outcome.wrong + outcome.stalled + outcome.dropped
        if perf:
            result["perf"] = perf.profile()._asdict()
            perf.file.unlink()
        say(f"  {name}: {told.samples} samples, " + ", ".join(f"{part} {told.percent(part):.0f} %" for part in PARTS))
        return result

    def profiles(self) -> None:
        plan = self.plan
        why_not = cputime.perf_missing()
        self.result["cross_check_missing"] = why_not
        self.result["breakdown"] = [
            {"way": way.name, **self.profile(f"haproxy, {way.name}, {idle} idle, {rate} a second", self.haproxy(way, idle), "haproxy", idle, HOT, rate, not why_not)}
            for idle, rate in plan.profiles
            for way in WAYS
        ]
        # Near saturation, so that there are many samples.
        self.result["select_breakdown"] = [
            {"way": way.name, **self.profile(f"webfs, {way.name}, 900 idle, 2000 a second", variants.webfs(way, 1000), "webfsd", 900, HOT, 2000, not why_not)}
            for way in (SELECT, SELECT_LIBRARY)[not plan.more :]
        ]
        self.result["figure1"] = [
            self.profile(f"haproxy, poll, {idle} idle, {hot} hot", self.haproxy(POLL, idle), "haproxy", idle, hot, 500, False)
            for idle in (min(idle, self.most) for idle in plan.figure1_idles)
            for hot in plan.figure1_hots
        ] or self.result["breakdown"][:1]
        idle = min(plan.rates_idle, self.most)
        self.result["figure7"] = [
            {"way": way.name, **self.profile(f"haproxy, {way.name}, {rate} a second", self.haproxy(way, idle), "haproxy", idle, HOT, rate, False)}
            for rate in plan.figure7_rates
            for way in WAYS
        ] or self.result["breakdown"]

    # --- 4: a day --------------------------------------------------------------

    def day(self, program: str) -> None:
        plan = self.plan
        most_idle = min(IDLE_PER_RATE * plan.most_rate, self.most)
        samples = days.day(plan.samples, plan.sample_s, plan.most_rate, most_idle)
        make = {"haproxy": self.haproxy, "haproxy, cache": lambda way, idle: self.haproxy(way, idle, True), "lighttpd": self.lighttpd_proxy}[program]
        with opened([make(way, most_idle) for way in WAYS], [0] * len(WAYS)) as running:
            # The kernel tells its part in steps of 10 ms; what it was in all is known better.
            used = lambda at: (variants.cpu_ns(running[at].pid) / 1e9, kernel_s(running[at].pid))  # noqa: E731
            played, seen = days.play(self.out, [server.port for server in running], SIZES[0], samples, plan.sample_s, used, lambda pid: variants.pin(pid, variants.CLIENTS_CPU))
        rows: dict[str, list[dict[str, Any]]] = {way.name: [] for way in WAYS}
        for at, way in enumerate(WAYS):
            self.requests += played[at]["requests"]
            self.failed += sum(played[at]["errors"].values()) + played[at]["idle_closed"]
            for number, sample in enumerate(samples):
                begin = days.slot(number, at, len(WAYS), plan.sample_s)
                due_s, done_s = (days.within(played[at], what, begin, begin + plan.sample_s + days.REST_S) for what in ("asked", "answered"))
                (before, kernel_before), (after, kernel_after) = seen[at][number]
                # It has as long as it took to answer all.
                seconds = max([plan.sample_s, *done_s])
                row = {"hour": sample.hour, "asked": len(due_s), "idle": sample.idle, "per_second": len(done_s) / seconds, "cpu_percent": 100 * (after - before) / seconds}
                row |= {"kernel_percent": 100 * min(after - before, kernel_after - kernel_before) / seconds, "done_s": done_s, "due_s": due_s}
                rows[way.name].append(row)
        say(f"  a day of {program}: " + ", ".join(f"{name} {statistics.mean(r['cpu_percent'] for r in each):.1f} % CPU" for name, each in rows.items()))
        self.result.setdefault("day", {})[program] = rows
        told = ("mean_us", "p50_us", "p90_us", "p99_us", "p999_us", "most_us", "cdf")
        self.result.setdefault("day_answers", {})[program] = {
            way.name: {"requests": one["requests"], "late_us": one["generator"]["timer_late_most_us"], **{key: one["groups"]["all"]["whole"][key] for key in told}} for way, one in zip(WAYS, played, strict=True)
        }


def kernel_s(pid: int) -> float:
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(words[12]) / 100


def run(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    missing = variants.missing()
    if missing:
        raise SystemExit(f"proxy: missing {', '.join(missing)}: apt install {' '.join(missing)}")
    out.mkdir(parents=True, exist_ok=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (variants.descriptors_most(),) * 2)
    plan = QUICK if quick else FULL
    with started(variants.origin(), variants.CLIENTS_CPU) as origin:
        case = Case(out, plan, origin.port)
        say("throughput against idle connections")
        case.against_idle("haproxy", case.haproxy, WAYS, case.idles, True)
        if plan.more:
            case.against_idle("haproxy, connections kept", case.haproxy, WAYS, case.idles, False)
            # It reckons two descriptors a connection, and they must fit into its set.
            case.against_idle("haproxy, select", case.haproxy, (SELECT, SELECT_LIBRARY, EPOLL), (0, 100, 200, 300), True)
            case.against_idle("select server", lambda way, _: variants.plain(way), (SELECT, SELECT_LIBRARY, EPOLL), (0, 250, 500, 900), True)
        say("answering time and idle CPU against the rate")
        for size in plan.sizes:
            case.against_rate(f"haproxy, {size} bytes", case.haproxy, size)
        if plan.more:
            case.against_rate("lighttpd", lambda way, idle: variants.lighttpd(way, idle + HOT + 100), SIZES[0])
        say("profiles")
        case.profiles()
        say("days")
        for program in plan.days:
            case.day(program)
    case.result |= {
        "quick": quick,
        "kernel": platform.release(),
        "seconds": round(time.monotonic() - BEGIN),
        "requests": case.requests,
        "failed": case.failed,
        "plan": plan._asdict(),
    }
    page.write(out, case.result)
    # Of the days the samples, without each single request.
    for row in (row for ways in case.result["day"].values() for rows in ways.values() for row in rows):
        for single in ("done_s", "due_s"):
            del row[single]
    (out / "proxy.json").write_text(json.dumps(case.result, indent=1) + "\n")
    say(f"{case.requests} requests, {case.failed} failed: {out / 'proxy.md'}")
    return case.result


def main() -> int:
    given = case.arguments((__doc__ or "").split("\n\n")[0]).parse_args()
    return 1 if run(given.out, given.quick)["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
