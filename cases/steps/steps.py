#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which bottleneck does DeBox show at each step of the server, and what does it bring to mend it?

    steps.py --out DIR [--quick] [--only DESIGN]

Files of a mix like SPECweb99's on a slow disk, a server whose memory they do not fit in,
clients with lines of 400 kbit/s. Each design (designs.py) and each peer begins with
nothing in memory. DeBox watches the loop's process of each design alone, in a run of its own after
the measured one, so that no number has it in.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

CASES = pathlib.Path(__file__).resolve().parents[1]
for folder in (CASES, CASES / "disk", CASES / "peers", CASES / "steps"):
    sys.path.insert(0, str(folder))

import case  # noqa: E402
import designs  # noqa: E402
import figure  # noqa: E402
import peers  # noqa: E402
import slow_disk  # noqa: E402
import watch  # noqa: E402

LOAD = watch.TOP / "target/release/load"
FLASH = watch.TOP / "target/cases/flash"
WARMING, WARMING_S = 64, 1.5
# `load find` takes what sockets hold before its first run for an idle server's: what the warming left there is gone by then.
AFTER_WARMING_S = 1.0
# By then all connections of the generator have begun: they do so one after the other, within a second.
BEGUN_S = 1.5
# Of its limit: with so much the processes' own there is next to none for files.
OWN_SHARE = 0.9
WAITS_FOR_WORK = ("epoll_wait", "epoll_pwait")
STARTS = ("clone", "fork", "vfork", "clone3")


class Plan(NamedTuple):
    directories: int  # 5 MB each
    memory_mib: int  # of the server, with its page cache
    latency_s: float
    arms: int
    bandwidth_bytes_per_s: float
    connections: int
    warm_up_s: int | None  # None: until the throughput is level, by the generator's test
    seconds: int
    watched_s: float
    cgi_percent: float


QUICK = Plan(directories=60, memory_mib=64, latency_s=0.006, arms=4, bandwidth_bytes_per_s=40e6, connections=450, warm_up_s=4, seconds=4, watched_s=2.5, cgi_percent=0.5)
# The same load, so that the steps are the same ones.
FULL = QUICK._replace(warm_up_s=None, seconds=20, watched_s=10)
LEVEL_MOST_S = 60


# Names the state of a disk that is up and has the files: whoever runs several cases makes it once for all.
SHARED = "DEBOX_CASE_DISK"


def disk_of(state: pathlib.Path, plan: Plan) -> slow_disk.SlowDisk:
    return slow_disk.SlowDisk(state, int((plan.directories * 5.2 + 80) * (1 << 20)), plan.latency_s, plan.arms, plan.bandwidth_bytes_per_s)


@contextlib.contextmanager
def with_files(state: pathlib.Path, plan: Plan, quick: bool = True) -> Iterator[slow_disk.SlowDisk]:
    """A slow disk as fio sees it (printed, and beside it as disk.txt), and the files on it."""
    with disk_of(state, plan) as disk:
        rows = disk.calibrate(*slow_disk.CALIBRATED_QUICK) if quick else disk.calibrate()
        state.with_suffix(".txt").write_text(disk.table(rows) + "\n")
        with disk.undelayed():
            subprocess.run([*case.DIES_TOO, str(LOAD), "files", "--root", str(disk.data / "root"), "--directories", str(plan.directories)], check=True, stdout=subprocess.DEVNULL)
        yield disk


@contextlib.contextmanager
def site(out: pathlib.Path, plan: Plan) -> Iterator[tuple[slow_disk.SlowDisk, slow_disk.MemoryGroup, pathlib.Path]]:
    """The files on their slow disk, and the memory that a server has."""
    shared = os.environ.get(SHARED)
    with contextlib.nullcontext(disk_of(pathlib.Path(shared), plan)) if shared else with_files(out / "disk", plan) as disk:
        with disk.memory_group(plan.memory_mib << 20) as group:
            yield disk, group, disk.data / "root"


def warmed(server: peers.Server, plan: Plan, disk: slow_disk.SlowDisk, *words: str) -> None:
    """Memory holds what it comes to hold under such requests, in a moment: meanwhile the disk does not delay."""
    file = pathlib.Path(server.work, "warm")
    with disk.undelayed():
        load(server.port, plan, "run", "--connections", str(WARMING), "--kbit", "0", "--warm-up", "0", "--seconds", str(WARMING_S), *words, file=file)
    time.sleep(AFTER_WARMING_S)


def clients(port: int, plan: Plan, *words: str) -> list[str]:
    return [*case.DIES_TOO, str(LOAD), *words, "--server", f"127.0.0.1:{port}", "--directories", str(plan.directories), "--cgi", str(plan.cgi_percent)]


def load(port: int, plan: Plan, *words: str, file: pathlib.Path) -> dict[str, Any]:
    argv = [*clients(port, plan, *words), "--json", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise RuntimeError(f"{' '.join(argv)}: status {done.returncode}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def flash(root: pathlib.Path, design: designs.Design, group: slow_disk.MemoryGroup, *words: str, cwd: str = "/") -> peers.Server:
    port = peers.free_port()
    argv = [str(FLASH), "--root", str(root), "--port", str(port), "--believed", str(group.limit_bytes * 3 // 4 >> 20), *designs.argv(design), *words]
    return peers.Server(f"flash, {design.name}", argv, port, enter=group.command, cwd=cwd)


def warm_up(seconds: float | None, most_s: float = LEVEL_MOST_S) -> list[str]:
    return ["--warm-up", "auto", "--warm-up-most", str(most_s)] if seconds is None else ["--warm-up", str(seconds)]


def measured(server: peers.Server, plan: Plan, disk: slow_disk.SlowDisk, out: pathlib.Path, name: str, *words: str) -> dict[str, Any]:
    group = disk.memory_group(plan.memory_mib << 20)
    before_disk, before_s, before_memory = disk.counts(), server.cpu_s(), group.pressure()
    options = ["run", "--connections", str(plan.connections), *warm_up(plan.warm_up_s), "--seconds", str(plan.seconds), *words]
    result = load(server.port, plan, *options, file=out / f"{name}.load.json")
    cpu_s, after_disk, memory = server.cpu_s() - before_s, disk.counts(), group.pressure()
    whole = result["groups"]["all"]
    return {
        "conforming_percent": result["conforming"]["percent"],
        "requests_per_s": result["requests_per_second"],
        "megabits_per_s": result["bytes_per_second"] * 8 / 1e6,
        "errors": sum(result["errors"].values()),
        "error_kinds": result["errors"],
        "waited_ms": {of: whole["waited"][f"{of}_us"] / 1000 for of in ("mean", "p50", "p95", "p99")},
        "cdfs": {of: whole[of]["cdf"] for of in ("waited", "first_byte", "whole")},
        "kinds": {kind: {of: result["groups"][kind]["waited"][f"{of}_us"] / 1000 for of in ("p5", "p50", "p95", "mean")} for kind in ("static", "dynamic") if result["groups"][kind]["requests"]},
        "server_cpu_s": cpu_s,
        "seconds": result["seconds"] + result["warm_up"]["seconds"],
        "warm_up_s": result["warm_up"]["seconds"],
        "is_level": result["warm_up"]["stationary"],
        "had_trend": result["measured_level"] is False,
        "warnings": result["warnings"],
        "memory": memory | {of: memory[of] - before_memory[of] for of in ("at_limit", "killed")},
        "disk_reads": after_disk["reads"] - before_disk["reads"],
        "generator_is_bottleneck": result["generator"]["is_bottleneck"],
    }


@contextlib.contextmanager
def under_load(server: peers.Server, plan: Plan) -> Iterator[None]:
    """Asked as while it was measured, for as long as a watch takes. All connections have begun."""
    argv = clients(server.port, plan, "run", "--connections", str(plan.connections), "--warm-up", "2", "--seconds", str(plan.watched_s + 6))
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(BEGUN_S)
        yield
    finally:
        process.terminate()
        process.wait()


def watched(server: peers.Server, plan: Plan, out: pathlib.Path, name: str) -> dict[str, Any]:
    """What DeBox says of the process that has the loop, under the same load."""
    with under_load(server, plan):
        seen = watch.for_seconds(out, name, [server.pid], plan.watched_s, "--no-follow", "--capture", "boundary", "--call-site")
    report = seen.report()
    life = next((row for row in report["lives"] if row["pid"] == server.pid), {})
    asleep: dict[str, dict[str, list[int]]] = {}
    for row in report["blocking"]:
        # Where it waits for work, it loses nothing.
        if row["call"] in WAITS_FOR_WORK:
            continue
        cell = asleep.setdefault(row["label"], {}).setdefault(row["call"] or "(no call)", [0, 0])
        cell[0] += row["count"]
        cell[1] += row["total_ns"]
    # Each point: the calls from the one before it to it.
    by_invocation = {
        name: [[point["first"] + point["count"], point["wall_ns"] / point["count"] / 1e6] for row in report["history"] if row["call"] in calls for point in row["points"] if point["count"]]
        for name, calls in (("fork", STARTS), ("mmap", ("mmap",)))
    }
    return {
        "by_invocation": by_invocation,
        "mappings": max((gauge["mappings"] for gauge in report["gauges"]), default=None),
        "verdict": seen.first_sentences(),
        "asleep": asleep,
        "sendfile": [{key: row[key] for key in ("total_ns", "count", "label", "function")} for row in report["blocking"] if row["call"] == "sendfile"],
        "call_sites": sorted(
            ({key: row[key] for key in ("call", "place", "count", "wall_ns", "blocked_ns")} for row in report["call_sites"] if row["call"] not in WAITS_FOR_WORK),
            key=lambda row: -row["wall_ns"],
        )[:8],
        "asleep_ns": sum(cell[1] for calls in asleep.values() for cell in calls.values()),
        "life_ns": life.get("life_ns"),
        "calls": [{key: row[key] for key in ("name", "count", "wall_ns", "cpu_ns", "blocked_ns", "max_ns")} for n, row in enumerate(report["calls"]) if n < 12 or row["name"] in STARTS],
    }


def table_4(name: str, asleep: dict[str, dict[str, list[int]]]) -> str:
    """As the paper's: a column for each label, in it the calls that slept there, and how often."""
    columns = sorted(asleep.items(), key=lambda item: -sum(cell[1] for cell in item[1].values()))[:5]
    if not columns:
        return f"**{name}**: it slept in no call but where it waits for work.\n"
    heads = [f"{label} / {sum(cell[0] for cell in calls.values()):,}" for label, calls in columns]
    cells = [[f"{call} / {cell[0]:,} ({cell[1] / 1e6:,.0f} ms)" for call, cell in sorted(calls.items(), key=lambda item: -item[1][1])[:5]] for _, calls in columns]
    rows = [[column[i] if i < len(column) else "" for column in cells] for i in range(max(map(len, cells)))]
    lines = [f"**{name}**", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def table_5(results: dict[str, Any]) -> list[str]:
    """Of those that call it."""
    rows = [f"| {name} | {row['total_ns'] / 1e3:,.0f} | {row['count']:,} | {row['label']} | {row['function']} |" for name, result in results["designs"].items() for row in result.get("debox", {}).get("sendfile", [])[:3]]
    if not rows:
        return []
    return ["Where `sendfile` blocked (the paper's Table 5):", "", "| design | time, µs | times | label | in the kernel |", "|---|---:|---:|---|---|", *rows, ""]


def starts(results: dict[str, Any]) -> list[str]:
    """What it takes the loop to start a program."""
    rows = []
    for name, result in results["designs"].items():
        for row in result.get("debox", {}).get("calls", []):
            if row["name"] in STARTS and row["count"] > 1:
                rows.append(f"| {name} | {row['name']} | {row['count']:,} | {row['wall_ns'] / row['count'] / 1e3:,.0f} | {(row['blocked_ns'] or 0) / row['wall_ns']:.0%} | {result['debox']['mappings'] or 0:,} |")
    if not rows:
        return []
    return ["What it takes the loop to start a CGI program:", "", "| design | call | calls | each, µs | blocked | mappings |", "|---|---|---:|---:|---:|---:|", *rows, ""]


def by_call_site(results: dict[str, Any]) -> list[str]:
    """The three places of each design that its loop's calls take longest at."""
    lines = ["From where the loop makes the calls that take it longest (the paper's section 5.5; where it waits for work left out):", ""]
    lines += ["| design | call | place in the server | calls | each, µs | blocked |", "|---|---|---|---:|---:|---:|"]
    for name, result in results["designs"].items():
        for row in result.get("debox", {}).get("call_sites", [])[:3]:
            each, blocked = row["wall_ns"] / row["count"] / 1e3, (row["blocked_ns"] or 0) / max(row["wall_ns"], 1)
            lines.append(f"| {name} | {row['call']} | {row['place']} | {row['count']:,} | {each:,.1f} | {blocked:.0%} |")
    return [*lines, ""]


def run(out: pathlib.Path, quick: bool, only: list[str] | None = None) -> dict[str, Any]:
    plan = QUICK if quick else FULL
    results: dict[str, Any] = {"plan": plan._asdict(), "designs": {}, "peers": {}}
    with site(out, plan) as (disk, group, root):
        for design in (*designs.DESIGNS, *designs.OTHERS):
            if design.name not in only if only else quick and design in designs.OTHERS:
                continue
            name = design.name.replace(" ", "-").replace("'", "").replace(",", "")
            disk.remount()
            with flash(root, design, group) as server:
                result = measured(server, plan, disk, out, name)
                # Workers that block wait for work in other calls, and processes are not the one that is looked at.
                if design.switches["model"] == "amped":
                    result["debox"] = watched(server, plan, out, name)
            results["designs"][design.name] = result
            tell(design.name, result)
        for name, start in peers.PEERS.items():
            if only and name not in only:
                continue
            disk.remount()
            workers = {"apache2-prefork": plan.connections + 16}.get(name, 2)
            with start(str(root), workers=workers, enter=group.command) as server:
                results["peers"][name] = measured(server, plan, disk, out, name, "--static-only")
            tell(name, results["peers"][name])
    (out / "steps.json").write_text(json.dumps(results, indent=1))
    (out / "steps.md").write_text(page(results))
    figures(out, results)
    return results


def cpu_text(result: dict[str, Any]) -> str:
    """Of its time until the throughput was level, which is not everybody's, and of what was counted."""
    return f"{result['server_cpu_s'] / result['seconds']:.1%}"


def tell(name: str, result: dict[str, Any]) -> None:
    print(f"{name}: {result['conforming_percent']:.0f} % conforming, {result['requests_per_s']:.0f} requests/s, waited p50 {result['waited_ms']['p50']:.2f} p99 {result['waited_ms']['p99']:.1f} ms, "
          f"CPU {cpu_text(result)} of one, {result['errors']} errors, counted from {result['warm_up_s']:.0f} s on" + (", NOT LEVEL" if result["is_level"] is False else "") + (", NOT LEVEL WHILE MEASURED" if result["had_trend"] else "") + (f"; the loop slept {result['debox']['asleep_ns'] / 1e6:.0f} ms" if "debox" in result else ""), flush=True)  # fmt: skip


def warmed_up(plan: dict[str, Any], everyone: dict[str, Any], most_s: float = LEVEL_MOST_S) -> list[str]:
    """From when on it was counted, and who was at no level then."""
    from_s = [result["warm_up_s"] for result in everyone.values()]
    if not from_s:
        return []
    uneven = [name for name, result in everyone.items() if result["is_level"] is False]
    told = f"Counted from {min(from_s):.0f} to {max(from_s):.0f} s after the start on"
    if plan["warm_up_s"] is not None:
        return [f"{told}, which need not be a steady state."]
    return [f"{told}, as soon as the throughput was level" + (f"; after {most_s} s it was not of: {', '.join(uneven)}." if uneven else ".")]


def kinds_text(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1])) or "none"


def without_answers(name: str, result: dict[str, Any], memory_mib: int) -> str:
    """What is known of a server of which no answer was right. Of memory only where its group says so."""
    return f"Not one right answer of {name}; errors: {kinds_text(result['error_kinds'])}.{memory_text(result, memory_mib)}"


def memory_text(result: dict[str, Any], memory_mib: int) -> str:
    """What its group says of want, if it does. What it holds at the end is little where its processes were killed."""
    memory = result["memory"]
    full = memory["own_bytes"] >= OWN_SHARE * (memory_mib << 20)
    if not (memory["killed"] or full):
        return ""
    held = f"{memory['own_bytes'] >> 20} of {memory_mib} MiB beside pages of files, " if full else ""
    return f" Its memory group: {held}at its limit {memory['at_limit']:,} times, {memory['killed']:,} processes killed for that."


def marked(name: str, result: dict[str, Any]) -> str:
    return f"{name} †" if result["had_trend"] else name


def warned(everyone: dict[str, Any]) -> list[str]:
    """What the generator says of its runs, and what the mark means."""
    lines = ["† The throughput rose or fell while it was measured.", ""] if any(result["had_trend"] for result in everyone.values()) else []
    told = [f"- {name}: {warning}" for name, result in everyone.items() for warning in result["warnings"]]
    return [*lines, *(["The generator warns:", "", *told, ""] if told else [])]


def page(results: dict[str, Any]) -> str:
    lines = ["| design | conforming | requests/s | errors | waited p50 | p99 | server CPU, of one | the loop asleep, not for work |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    everyone = {**results["designs"], **{f"{name} (files only)": result for name, result in results["peers"].items()}}
    silent = [without_answers(name, result, results["plan"]["memory_mib"]) for name, result in everyone.items() if not result["requests_per_s"]]
    wanting = [(name, memory_text(result, results["plan"]["memory_mib"])) for name, result in everyone.items() if result["requests_per_s"]]
    silent += [f"{name}:{told}" for name, told in wanting if told]
    failed = [f"{name}: {kinds_text(result['error_kinds'])}" for name, result in everyone.items() if result["errors"] and result["requests_per_s"]]
    for name, result in everyone.items():
        asleep = f"{result['debox']['asleep_ns'] / result['debox']['life_ns']:.0%}" if result.get("debox", {}).get("life_ns") else ""
        waited = result["waited_ms"]
        if not result["requests_per_s"]:
            lines.append(f"| {marked(name, result)} | 0 % | 0 | {result['errors']:,} | | | {cpu_text(result)} | |")
            continue
        lines.append(f"| {marked(name, result)} | {result['conforming_percent']:.0f} % | {result['requests_per_s']:.0f} | {result['errors']:,} | {waited['p50']:.2f} ms | {waited['p99']:.0f} ms | {cpu_text(result)} | {asleep} |")
    lines += ["", *silent, *([f"Errors, by kind: {'; '.join(failed)}."] if failed else []), *warmed_up(results["plan"], everyone), "", *warned(everyone)]
    for of, head in ((designs.DESIGNS, "Each design is the one before it, but:"), (designs.OTHERS, "The same code in other ways:")):
        told = [f"- {design.name}: {design.change} (in the paper {design.paper})" for design in of if design.name in results["designs"]]
        lines += [head, "", *told, ""] if told else []
    lines += ["", "How long requests of files and for pages made by the server waited (the paper's Table 6), ms:", "", "| design | | 5 % | 50 % | 95 % | mean |", "|---|---|---:|---:|---:|---:|"]
    for name, result in results["designs"].items():
        lines += [f"| {name} | {kind} | {told['p5']:.2f} | {told['p50']:.2f} | {told['p95']:.1f} | {told['mean']:.2f} |" for kind, told in result["kinds"].items()]
    lines += ["", *starts(results), *table_5(results), *by_call_site(results), "Where the loop slept, but for work, by label and call (Table 4), and DeBox's first sentences:", ""]
    for name, result in results["designs"].items():
        if "debox" in result:
            lines += [table_4(name, result["debox"]["asleep"]), "```", *result["debox"]["verdict"], "```", ""]
    return "\n".join(lines)


def figures(out: pathlib.Path, results: dict[str, Any]) -> None:
    everyone = {**results["designs"], **results["peers"]}
    names = list(everyone)
    figure.bars(out / "conforming.svg", "Connections served at 320 kbit/s or more", "conforming, %", names, [figure.Series("", [], [r["conforming_percent"] for r in everyone.values()])])
    for call, number in (("fork", 5), ("mmap", 6)):
        seen = [(name, r["debox"], r["debox"]["by_invocation"][call]) for name, r in results["designs"].items() if len(r.get("debox", {}).get("by_invocation", {}).get(call, [])) > 1]
        trends = [figure.Series(f"{name}, {told['mappings']} mappings", [n for n, _ in points], [ms for _, ms in points]) for name, told, points in seen]
        if trends:
            figure.lines(out / f"{call}.svg", f"{call} in the loop's process, by invocation (the paper's Figure {number})", "invocation", "ms", trends)
    for of, title in (("waited", "For how long the server owed bytes of an answer (the paper's Figure 10)"), ("first_byte", "Until the first byte"), ("whole", "Until the last byte, over a line of 400 kbit/s")):
        cdfs = [figure.Series(name, [max(us, 1) / 1000 for us, _ in r["cdfs"][of]], [100 * share for _, share in r["cdfs"][of]]) for name, r in everyone.items() if r["cdfs"][of]]
        figure.distributions(out / f"{of.replace('_', '-')}.svg", title, "ms", cdfs)


def main() -> int:
    parser = case.arguments(__doc__)
    parser.add_argument("--only", action="append", help="one design or peer, by its name; may be repeated")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    run(args.out.resolve(), args.quick, args.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
