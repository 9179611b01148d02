# SPDX-License-Identifier: MIT OR Apache-2.0
"""What did the paper see, and what is seen today?

Draws the paper's figures from what proxy.py measured, and writes the page around them.
Sentences about today are made of the numbers of this run.
"""

import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import figure
from cputime import HZ, KERNEL, LIBRARY, PARTS, PROGRAM, WAIT, WALK, WATCHING, Profile, together, uncertainty
from figure import Series

NAMES = ("poll", "poll, library", "epoll")
# Of each figure: its title today, and what the paper saw.
PAPER = {
    "figure1.svg": (
        "Figure 1: what waiting costs, haproxy with poll, 500 requests a second",
        "up to 53 % of the CPU in select() and 11 % in the program's loop over its bitmaps, much the same for 10 and 50 hot connections.",
    ),
    "figure3.svg": (
        "Figure 3: answering time of the proxy, 1,259 bytes",
        "750 cold connections drastically reduce the unmodified kernel's throughput; with new select and ufalloc the time is nearly that without them.",
    ),
    "figure4.svg": ("Figure 4: idle CPU of the proxy, 1,259 bytes", "the modified kernel has far more idle time at low rates."),
    "figure5.svg": ("Figure 5: answering time of the proxy, 8 KiB", "higher throughput and lower times at all rates, but not as near to the naive benchmark."),
    "figure6.svg": ("Figure 6: idle CPU of the proxy, 8 KiB", "the unmodified kernel had no idle time at any rate, the new one some up to 300 requests a second."),
    "figure7.svg": ("Figure 7: CPU by part and rate", "the new ufalloc() removes the cost of allocating descriptors, up to a fifth of the CPU, and the new select() most of select()'s."),
    "figure8.svg": (
        "Figure 8: answering time of a server (then thttpd, now lighttpd)",
        "58 % more throughput at 1,259 bytes; at 100 requests a second 16 % idle before, 88 % after.",
    ),
    "figure9.svg": ("Figure 9: throughput against idle connections", "from 0 to 2,000 cold connections the unmodified kernel's throughput drops by 44 %, with both changes by 14 %."),
    "figure10.svg": (
        "Figure 10: CPU against the rate, no cache",
        "idle time falls by 1.67 points for a request a second before and by 1.34 after; idle CPU is used up at 58 and 69 requests a second (Table 4).",
    ),
    "figure11.svg": (
        "Figure 11: the rate by the minute, in the busiest hours",
        "bursts; with caching the proxy stands still for many seconds every half minute while dirty pages go to disk, and then catches up.",
    ),
    "figure12.svg": ("Figure 12: CPU against the rate, with a cache", "much the same gain with caching, at steeper slopes (2.31 before, 1.87 after, Table 9)."),
    "figure13.svg": (
        "Figure 13: CPU against the rate, another program (then Squid, now lighttpd's mod_proxy)",
        "1.69 points before, 1.26 after; used up at 55 and 83 requests a second (Table 15).",
    ),
    "figure14.svg": (
        "Figure 14: the kernel's part of the wait, by function",
        "with the modified kernel, NetCache spent more in the check of single sockets, Squid more in select() itself, which it called with small sets too often.",
    ),
}
RATES = {"haproxy, 1259 bytes": ("figure3.svg", "figure4.svg"), "haproxy, 8192 bytes": ("figure5.svg", "figure6.svg"), "lighttpd": ("figure8.svg",)}
DAYS = {"haproxy": "figure10.svg", "haproxy, cache": "figure12.svg", "lighttpd": "figure13.svg"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if n == 0 else "---:" for n in range(len(head))) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    return f"{values[0]:{form}} ({values[1]:{form}}–{values[2]:{form}})"


def of_a_cpu(profile: dict[str, Any], part: str) -> float:
    """Per cent of one CPU, by the number of samples."""
    return 100 * profile["debox"]["parts"][part] / (profile["seconds"] * HZ)


def of_busy(told: dict[str, Any], count: float) -> float:
    """Per cent of its CPU time, without what it costs to be watched."""
    return 100 * count / max(1, told["samples"] - told["parts"][WATCHING])


class Page:
    def __init__(self, out: pathlib.Path, result: dict[str, Any]) -> None:
        self.out, self.result, self.text = out, result, []

    def add(self, *paragraphs: str) -> None:
        self.text += [paragraph.rstrip("\n") + "\n" for paragraph in paragraphs]

    def figure(self, file: str, today: str, draw: Callable[[pathlib.Path], None]) -> None:
        title, paper = PAPER[file]
        draw(self.out / file)
        self.add(f"![{title}]({file})", f"**{title}.** The paper: {paper} Today: {today}")

    # --- the paper's figures ---------------------------------------------------

    def figure1(self) -> None:
        profiles = self.result["figure1"]
        series = []
        for part, mode in ((WAIT, "kernel"), (WALK, "own walk")):
            for hot in sorted({p["hot"] for p in profiles}, reverse=True):
                some = [p for p in profiles if p["hot"] == hot]
                series.append(Series(f"{mode}, {hot} hot", [p["idle"] for p in some], [of_a_cpu(p, part) for p in some]))
        last = profiles[-1]
        self.figure(
            "figure1.svg",
            f"with {last['idle']:,} idle connections {of_a_cpu(last, WAIT):.0f} % of a CPU in poll() in the kernel and {of_a_cpu(last, WALK):.1f} % in haproxy's walk.",
            lambda file: figure.lines(file, "CPU in poll() and around it, by DeBox's samples", "idle connections", "% of a CPU", series),
        )

    def rate_figures(self) -> None:
        for name, told in self.result["against_rate"].items():
            lines = told["lines"]
            best = {line: max(p["per_second"][0] for p in points) for line, points in lines.items()}
            most = ", ".join(f"{line} {best[line]:,.0f}{'' if points[-1]['saturated'] else ' or more'}" for line, points in lines.items())
            first = {line: points[0] for line, points in lines.items()}
            for file in RATES[name]:
                idle = file in ("figure4.svg", "figure6.svg")
                value: Callable[[dict[str, Any]], float] = (lambda p: max(0, 100 - p["cpu_percent"][0])) if idle else (lambda p: p["p50_us"][0])
                series = [Series(line, [p["per_second"][0] for p in points], [value(p) for p in points]) for line, points in lines.items()]
                today = (
                    f"at {first['poll']['asked']} a second idle CPU is " + ", ".join(f"{line} {100 - p['cpu_percent'][0]:.0f} %" for line, p in first.items()) + "."
                    if idle
                    else f"with {told['idle']:,} idle connections, requests a second at most: {most}. A request counts from when it was due. Each line ends where less than 95 % of what was asked was done."
                )
                y = "idle, % of a CPU" if idle else "median answering time, µs"
                self.figure(file, today, lambda file, y=y, series=series, idle=idle: figure.lines(file, "", "requests per second", y, series, log_y=not idle))
            rows = [[line, f"{p['asked']:,}", spread(p["per_second"]), spread(p["cpu_us"]), spread(p["p50_us"]), spread(p["p99_us"])] for line, points in lines.items() for p in points]
            self.add(f"{name}; medians of the rounds, and their range:", table(("", "asked/s", "done/s", "CPU a request, µs", "p50, µs", "p99, µs"), rows))

    def figure7(self) -> None:
        profiles = self.result["figure7"]
        names = [f"{p['way']} {p['rate']}/s" for p in profiles]
        allocation = [100 * p["debox"]["descriptors"] / (p["seconds"] * HZ) for p in profiles]
        parts = [(WAIT, (WAIT,)), (LIBRARY, (LIBRARY,)), (WALK, (WALK,)), ("all other", (PROGRAM, KERNEL))]
        series = [Series(name, [], [sum(of_a_cpu(p, part) for part in which) - (0 if name != "all other" else took) for p, took in zip(profiles, allocation, strict=True)]) for name, which in parts]
        series.append(Series("allocation of descriptors", [], allocation))
        self.figure(
            "figure7.svg",
            f"allocating a descriptor takes {max(allocation):.2f} % of a CPU at most (Linux searches two levels of bitmaps, as the paper's change did); the wait is what is left to be saved: "
            + ", ".join(f"{p['way']} {of_a_cpu(p, WAIT) + of_a_cpu(p, LIBRARY):.1f} %" for p in profiles[-3:])
            + f" of a CPU in the kernel's wait and the library at {profiles[-1]['rate']} a second.",
            lambda file: figure.bars(file, f"haproxy, {profiles[0]['idle']:,} idle connections", "% of a CPU", names, series, stacked=True),
        )

    def figure9(self) -> None:
        told = self.result["against_idle"]
        today = []
        for name, rows in told.items():
            change = {way: rows[-1]["ways"][way]["per_second"][0] / m["per_second"][0] - 1 for way, m in rows[0]["ways"].items()}
            today.append(f"{name}: " + ", ".join(f"{way} {100 * by:+.0f} %" for way, by in change.items()) + f" from 0 to {rows[-1]['idle']:,}")
        series = [Series(way, [r["idle"] for r in told["haproxy"]], [r["ways"][way]["per_second"][0] for r in told["haproxy"]]) for way in NAMES]
        title = "haproxy, a connection for each request, 50 at a time"
        self.figure("figure9.svg", "; ".join(today) + ".", lambda file: figure.lines(file, title, "idle connections", "requests per second", series))
        for name, rows in told.items():
            ways = list(rows[0]["ways"])
            self.add(
                f"{name}; medians of the rounds, and their range:",
                table(
                    ("idle", *(f"{way}, {what}" for way in ways for what in ("requests/s", "CPU a request, µs"))),
                    [[f"{r['idle']:,}", *(spread(r["ways"][way][what]) for way in ways for what in ("per_second", "cpu_us"))] for r in rows],
                ),
            )

    def breakdown(self) -> None:
        self.add("## Where the CPU time goes (the paper's Tables 1, 2, 6, 7, 10–13, 16 and Figure 14)")
        profiles = self.result["breakdown"] + self.result["select_breakdown"]
        self.add(
            f"By DeBox's clock, {HZ} times a second, in per cent of the CPU time without what being watched took. *{WALK}*: the function that calls select, poll or epoll_wait, itself. "
            f"*{WAIT}* includes epoll_wait and epoll_ctl. The paper: 22 % select and 18 % ufalloc of the CPU before, 11 % and nothing after, "
            "and then 16 % in the program's loop (Tables 1 and 2); on the live proxy 40–44 % of the busy CPU before, 25–30 % after.",
            table(
                ("", "requests/s", "samples", *(part for part in PARTS if part != WATCHING), "CPU a request, µs", f"({WATCHING})"),
                [
                    [p["name"], f"{p['requests'] / p['seconds']:,.0f}", f"{p['debox']['samples']}", *(f"{of_busy(p['debox'], p['debox']['parts'][part]):.1f} %" for part in PARTS if part != WATCHING),
                     f"{1e6 * (p['debox']['samples'] - p['debox']['parts'][WATCHING]) / HZ / p['requests']:.0f}", f"{100 * p['debox']['parts'][WATCHING] / p['debox']['samples']:.1f} %"]
                    for p in profiles
                ],
            ),
        )  # fmt: skip
        shown = self.result["breakdown"][-3:]
        totals = {f: [of_busy(p["debox"], p["debox"]["functions"].get(f, 0)) for p in shown] for f in {f for p in shown for f in p["debox"]["functions"]}}
        rows = sorted((item for item in totals.items() if max(item[1]) >= 1.5), key=lambda item: -sum(item[1]))
        self.add(
            f"Functions by their own time, {shown[0]['idle']:,} idle connections, {shown[0]['rate']} requests a second (? is a function without a name):",
            table(("function", *(p["way"] for p in shown)), [[f"`{name}`", *(f"{v:.1f} %" for v in values)] for name, values in rows]),
        )
        waits = {f for p in shown for f in p["debox"]["functions"] if f.endswith(", wait)")}
        most = sorted(waits, key=lambda f: -max(p["debox"]["functions"].get(f, 0) for p in shown))[:7]
        series = [Series(p["way"], [], [of_busy(p["debox"], p["debox"]["functions"].get(f, 0)) for f in most]) for p in shown]
        all_of_them = ", ".join(f"{p['way']} {sum(one.y):.1f} %" for p, one in zip(shown, series, strict=True))
        self.figure(
            "figure14.svg",
            f"of its CPU time {all_of_them} are in the functions shown, those of the wait that take most with any of the ways ({most[0].split(' ')[0]} first).",
            lambda file: figure.bars(file, f"{shown[0]['idle']:,} idle connections", "% of CPU time", [f.split(" ")[0] for f in most], series),
        )
        checked = [p for p in profiles if "perf" in p]
        if not checked:
            self.add(f"Cross-check: not made, {self.result['cross_check_missing']}.")
            return
        rows = [(p["name"], Profile(**p["debox"]), Profile(**p["perf"])) for p in checked]
        # Of few samples each, so chance is large; all together it is small.
        rows.append(("all of these", *(together(side) for side in ([mine for _, mine, _ in rows], [others for _, _, others in rows]))))
        apart = [(name, part, a.percent(part) - b.percent(part), uncertainty(a, b, part), a, b) for name, a, b in rows for part in PARTS]
        beyond = sum(abs(d) > max(u, 0.5) for _, _, d, u, *_ in apart[: -len(PARTS)])
        pooled = max(apart[-len(PARTS) :], key=lambda one: abs(one[2]))
        waits = {p["name"]: [100 * p[who]["parts"][WAIT] / p[who]["samples"] for who in ("debox", "perf")] + [p["wait_measured"]] for p in checked}
        furthest = max(waits, key=lambda name: abs(waits[name][0] - waits[name][1]))
        nearer = "DeBox's" if abs(waits[furthest][0] - waits[furthest][2]) < abs(waits[furthest][1] - waits[furthest][2]) else "perf's"
        self.add(
            "Cross-check: `perf record -e cpu-clock` looked at the same time, and names frames and calls its own way. "
            "DeBox minus perf in points of all samples, and in brackets how far chance (95 %) takes two such counts apart. "
            f"{beyond} of {len(apart) - len(PARTS)} lie beyond that, and of all samples together the widest is {pooled[2]:+.1f} ({pooled[1]}; ± {pooled[3]:.1f}). "
            "The last column is the wait alone: DeBox's samples, perf's, and what DeBox measured at the ends of the calls, which has the interrupts that came meanwhile in it. "
            f"Where the two differ most about it ({furthest}: {waits[furthest][0]:.1f} and {waits[furthest][1]:.1f} %), {nearer} is nearer to what was measured, {waits[furthest][2]:.1f} %. "
            "(DeBox's clock belongs to the CPU, perf's to the thread; most likely they differ about the moment in which a thread gets a CPU that was idle.)",
            table(
                ("", "samples", *PARTS, "the wait: sampled, perf, measured"),
                [[name, f"{a.samples:,}, {b.samples:,}", *(f"{d:+.1f} ({u:.1f})" for other, _, d, u, *_ in apart if other == name), ", ".join(f"{w:.1f} %" for w in waits.get(name, ()))] for name, a, b in rows],
            ),
        )

    # --- the day ---------------------------------------------------------------

    def days(self) -> None:
        plan = self.result["plan"]
        self.add(
            "## A day (the paper's section 6, Figures 10–13)",
            f"{plan['samples']} samples of a day, each {plan['sample_s']} s of its own rate: time is compressed, rates are not. "
            f"Up to {plan['most_rate']} requests a second by the day's curve, in bursts with a heavy tail; "
            "idle connections follow, 12 for a request a second as in the paper (1,714 descriptors, 139 requests a second). "
            "Each request is a connection of its own, due by the clock, and its time counts from then.",
        )
        for program, rows in self.result["day"].items():
            fits, series, regressions = [], [], {}
            for way, each in rows.items():
                rate = [r["per_second"] for r in each]
                for mode, values in (
                    ("idle", [100 - r["cpu_percent"] for r in each]),
                    ("kernel", [r["kernel_percent"] for r in each]),
                    ("user", [r["cpu_percent"] - r["kernel_percent"] for r in each]),
                ):
                    slope, intercept = statistics.linear_regression(rate, values)
                    flat = len(set(values)) == 1
                    fits.append([way, mode, f"{100 * slope:+.2f}", "-" if flat else f"{statistics.correlation(rate, values):+.2f}", f"{-intercept / slope:,.0f}" if mode == "idle" else ""])
                    regressions[way, mode] = slope, intercept
                    if mode != "user":
                        series.append(Series(f"{mode}, {way}", rate, values))
            idle = {way: regressions[way, "idle"] for way in rows}
            today = (
                "idle time falls for 100 requests a second by "
                + ", ".join(f"{-100 * slope:.1f} ({way})" for way, (slope, _) in idle.items())
                + " points; the lines meet zero at "
                + ", ".join(f"{-intercept / slope:,.0f}" for slope, intercept in idle.values())
                + " requests a second."
            )
            self.figure(DAYS[program], today, lambda file, series=series: figure.scatter(file, "each point a sample of the day", "requests per second", "% of a CPU", series))
            self.add(f"{program}: regressions over {plan['samples']} samples", table(("", "CPU", "slope, points for 100 requests/s", "correlation", "zero at, requests/s"), fits))
        day = self.result["day"]["haproxy"]
        self.figure11(day)
        cpu = [Series(way, [r["hour"] for r in each], [r["cpu_percent"] for r in each]) for way, each in day.items()]
        figure.lines(self.out / "day-cpu.svg", "haproxy's CPU through the day", "hour", "% of a CPU", cpu)
        self.add("![CPU through the day](day-cpu.svg)")
        told = self.result["day_answers"]
        distributions = [Series(way, [max(1, us) for us, _ in one["cdf"]], [100 * share for _, share in one["cdf"]]) for way, one in told["haproxy"].items()]
        figure.distributions(self.out / "day-answers.svg", "A day's answering times, haproxy", "µs", distributions)
        latest = max(one["late_us"] for ways in told.values() for one in ways.values())
        self.add(
            "![A day's answering times](day-answers.svg)",
            "Answering times of all requests of the day, from when each was due:",
            table(
                ("", "requests", "p50, µs", "p90, µs", "p99, µs", "p99.9, µs", "longest, µs", "CPU of the day", "most of a sample"),
                [
                    [f"{program}: {way}", f"{one['requests']:,}", *(f"{one[which]:,.0f}" for which in ("p50_us", "p90_us", "p99_us", "p999_us", "most_us")),
                     f"{statistics.mean(r['cpu_percent'] for r in self.result['day'][program][way]):.1f} %", f"{max(r['cpu_percent'] for r in self.result['day'][program][way]):.0f} %"]
                    for program, ways in told.items() for way, one in ways.items()
                ],
            ),
            f"The clients themselves sent at most {latest / 1e3:.1f} ms late; that is in the times.",
        )  # fmt: skip

    def figure11(self, day: dict[str, list[dict[str, Any]]]) -> None:
        """The busiest five quarter hours, minute by minute."""
        seconds, samples = self.result["plan"]["sample_s"], self.result["plan"]["samples"]
        count = max(2, round(5 * samples / 96))
        poll = day["poll"]
        first = max(range(len(poll) - count + 1), key=lambda at: sum(r["asked"] for r in poll[at : at + count]))
        bins = 15

        def rates(each: list[dict[str, Any]], what: str) -> list[float]:
            return [bins / seconds * sum(int(t / seconds * bins) == n for t in r[what]) for r in each[first : first + count] for n in range(bins)]

        minutes = list(range(count * bins))
        asked = Series("asked", minutes, rates(poll, "due_s"))
        answered = [Series(way, minutes, rates(day[way], "done_s")) for way in NAMES[:2]]
        late = [sum(t >= seconds for r in day[way][first : first + count] for t in r["done_s"]) for way in NAMES[:2]]
        silent = [sum(rate == 0 and was > 0 for rate, was in zip(one.y, asked.y, strict=True)) for one in answered]
        self.figure(
            "figure11.svg",
            f"bursts as well, but from the requests; minutes in which something was asked and nothing answered: {silent[0]} with poll, {silent[1]} with the library, of {len(minutes)}; "
            f"answered after their quarter hour was over, and not shown: {late[0]} and {late[1]}. No cache on a disk stands behind these proxies, so the paper's stops have no counterpart.",
            lambda file: figure.lines(file, "haproxy", "minute", "requests per second", [asked, *answered]),
        )


def write(out: pathlib.Path, result: dict[str, Any]) -> None:
    page = Page(out, result)
    limits = result["limits"]
    page.add("# The proxy: select and poll with many idle connections")
    page.add(
        f"Banga and Mogul's experiments (1998) on haproxy and lighttpd of today, Linux {result['kernel']}, {'quick: numbers are for a first look' if result['quick'] else 'full'}. "
        f"{result['requests']:,} requests, {result['failed']} wrong, late, or cut off. "
        f"Limits here: {limits['descriptors']:,} descriptors for a process, two for a connection of a proxy, so {limits['idle_most']:,} idle connections at most; "
        f"select() itself ends at descriptor {limits['select'] - 1:,} (FD_SETSIZE). Server on one CPU, clients and origin on another; all ways of waiting run at once and are asked in turns."
    )
    page.figure9()
    page.figure1()
    page.rate_figures()
    page.figure7()
    page.breakdown()
    page.days()
    (out / "proxy.md").write_text("\n".join(page.text))
