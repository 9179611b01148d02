#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What do requests for files in memory pay when nginx opens other, cold files on its event loop?

One worker that reads in a pool of threads already (sendfile, aio threads), so what is left
on the loop is openat(). Two kinds of requests at once: hot ones, for files that are
in memory and not on the slow disk at all, and cold ones, each for a file in a directory
of its own whose name nobody has asked for since the disk was mounted. Measured in each
round, for each variant: hot ones alone; both, at a given rate; the same names again after
the kernel has forgotten them (open_file_cache has not); both, cold ones as fast as they
are answered (names that are looked up beforehand are so once more). DeBox watches runs of their own, the first of them of a worker without a pool, which
is nothing but its loop. Variants: Debian's nginx; with open_file_cache; and, in the full
run, without the pool, with all names looked up beforehand, and built from Debian's source
(build.sh) without and with open-in-threads.patch.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

TOP = pathlib.Path(__file__).resolve().parents[2]
for folder in ("cases", "cases/disk", "cases/peers"):
    sys.path.insert(0, str(TOP / folder))
import case  # noqa: E402
import figure  # noqa: E402
import peers  # noqa: E402
from case import DIES_TOO  # noqa: E402
from peers import FILES, USER, PeerError, Server, group_name  # noqa: E402
from slow_disk import CALIBRATED_QUICK, DiskError, SlowDisk, loops, wait_until  # noqa: E402
from slow_disk import run as command  # noqa: E402
from watch import Watch, WatchError  # noqa: E402

CLIENTS = pathlib.Path(__file__).with_name("clients.py")
BUILD = pathlib.Path(os.environ.get("DEBOX_NGINX_BUILD", TOP / "target/cases/nginx"))
BUILD_S = 1200.0
MASK = (1 << 64) - 1
CLASS, FILE, FILE_BYTES = 0, 5, 510  # of the file set: class 0, file 5
HOT_FILES, HOT_CONNECTIONS, HOT_PER_S = 16, 16, 400
COLD_CONNECTIONS, COLD_PER_S = 16, 100
THREADS = 32  # more than cold connections: none waits for a free one
LOOKUPS = 8  # threads that look names up beforehand
TAIL_POINTS = 60


class CaseError(Exception):
    """What happened, and what helps."""


class Variant(NamedTuple):
    name: str
    program: str  # "": the installed one
    cache: bool = False
    looked_up: bool = False
    pool: bool = True


class Sizes(NamedTuple):
    rounds: int
    alone_s: float
    paced_s: float
    most_s: float
    directories: int


QUICK = Sizes(1, 0.4, 1.2, 0.7, 350)
FULL = Sizes(3, 1.5, 5.0, 3.0, 3000)
NO_POOL, AS_IS = Variant("nginx without a pool", "", pool=False), Variant("nginx", "")
CACHE, LOOKED_UP = Variant("open_file_cache", "", cache=True), Variant("names looked up before", "", looked_up=True)
UNPATCHED, PATCHED = Variant("built, unpatched", "nginx-unpatched"), Variant("built, patched", "nginx-patched")
PHASES = {"alone": "hot ones alone", "paced": f"with {COLD_PER_S} cold ones a second", "again": "the same names again, forgotten by the kernel", "most": "cold ones as fast as they are answered"}


def content(directory: int) -> bytes:
    """Of the file of a directory, as the file set of the case study has it."""
    words = bytearray()
    for k in range((FILE_BYTES + 7) // 8):
        z = ((((directory * 4 + CLASS) * 16 + FILE) << 32 | k) + 0x9E3779B97F4A7C15) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        words += (z ^ z >> 31).to_bytes(8, "little")
    return bytes(words[:FILE_BYTES])


def fill(root: pathlib.Path, directories: range) -> list[tuple[str, int, int]]:
    """Targets of clients.py."""
    targets = []
    for directory in directories:
        place, data = root / f"dir{directory:05}", content(directory)
        place.mkdir()
        (place / f"class{CLASS}_{FILE}").write_bytes(data)
        targets.append((f"/{place.name}/class{CLASS}_{FILE}", len(data), zlib.crc32(data)))
    return targets


def nginx(variant: Variant, cold: pathlib.Path) -> Server:
    """Hot files are what lies in `hot` of the directory that it has until its end."""
    program = str(BUILD / variant.program) if variant.program else peers.find("nginx", "nginx-light")
    port = peers.free_port()
    cache = f"open_file_cache max={FILES // 4} inactive=10m; open_file_cache_valid 10m; open_file_cache_min_uses 1;" if variant.cache else ""
    temporary = "\n    ".join(f"{kind}_temp_path @WORK@/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    text = f"""
daemon off;
{f"user {USER} {group_name()};" if os.geteuid() == 0 else ""}
pid @WORK@/nginx.pid;
error_log stderr warn;
worker_processes 1;
worker_rlimit_nofile {FILES};
{f"thread_pool files threads={THREADS} max_queue=65536;" if variant.pool else ""}
events {{ worker_connections 1024; use epoll; }}
http {{
    access_log off;
    default_type application/octet-stream;
    sendfile on;
    {"aio threads=files;" if variant.pool else ""}
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_requests 1000000;
    {cache}
    {temporary}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        root {peers.quoted(str(cold))};
        location /hot/ {{ root @WORK@; }}
    }}
}}
"""
    return Server(variant.name, [program, "-c", "@WORK@/configuration", "-p", "@WORK@", "-e", "stderr"], port, text)


def worker(server: Server) -> int:
    """The one process that serves. It begins after the master has begun to listen."""

    def workers() -> list[int]:
        return [process.pid for process in server.processes() if process.parent == server.pid]

    if not wait_until(lambda: len(workers()) == 1, 5.0):
        raise CaseError(f"{server.name} has {len(workers())} workers, not one: {server.said()}")
    return workers()[0]


class Clients:
    """Hot and cold requests, each kind from a process of its own."""

    def __init__(self, port: int, seconds: float, hot: list[Any], cold: list[Any] | None = None, cold_per_s: float = 0) -> None:
        kinds = {"hot": (HOT_CONNECTIONS, HOT_PER_S, hot)}
        if cold is not None:
            kinds["cold"] = (COLD_CONNECTIONS, cold_per_s, cold)
        self.seconds, self.processes = seconds, {}
        for kind, (connections, rate, targets) in kinds.items():
            process = subprocess.Popen([*DIES_TOO, sys.executable, str(CLIENTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdin
            json.dump({"port": port, "connections": connections, "seconds": seconds, "rate": rate, "targets": targets}, process.stdin)
            process.stdin.close()
            process.stdin = None
            self.processes[kind] = process

    def answers(self) -> dict[str, Any]:
        found = {}
        for kind, process in self.processes.items():
            try:
                said, _ = process.communicate(timeout=self.seconds + 30)
            except subprocess.TimeoutExpired as late:
                for other in self.processes.values():
                    other.kill()
                    other.wait()
                raise CaseError(f"the {kind} clients did not end") from late
            if process.returncode:
                raise CaseError(f"the {kind} clients ended with status {process.returncode}; they say why above")
            found[kind] = json.loads(said)
            if found[kind]["errors"]:
                raise CaseError(f"{len(found[kind]['errors'])} of {found[kind]['asked']} {kind} requests failed: {found[kind]['errors'][0]}")
        return found


def forget(disk: SlowDisk) -> None:
    """Names and blocks of directories of this disk go out of the kernel's memory, as when it
    is short. A remount also drops names of a disk with open files; unmounting does not."""
    (loop,) = loops(disk.disk)
    command("mount", "-o", "remount", str(disk.data))
    command("blockdev", "--flushbufs", f"/dev/{loop}")


def look_up(disk: SlowDisk, cold: list[Any]) -> float:
    """All names, from outside, in how many seconds."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(LOOKUPS) as pool:
        list(pool.map(lambda target: os.stat(str(disk.data) + target[0]), cold))
    return time.monotonic() - begin


def phase(server: Server, disk: SlowDisk, *arguments: Any) -> dict[str, Any]:
    cpu_s, reads = server.cpu_s(), disk.counts()["reads"]
    answers = Clients(server.port, *arguments).answers()
    cpu_s, reads = server.cpu_s() - cpu_s, disk.counts()["reads"] - reads
    return {**answers, "cpu_s": cpu_s, "disk_reads": reads}


class Case:
    """The disk with its files, and the servers on it."""

    def __init__(self, disk: SlowDisk, sizes: Sizes) -> None:
        self.disk, self.sizes = disk, sizes
        with disk.undelayed():
            self.cold = fill(disk.data, range(sizes.directories))
        random.Random(1).shuffle(self.cold)
        self.paced = self.cold[: int(COLD_PER_S * sizes.paced_s)]

    @contextlib.contextmanager
    def serving(self, variant: Variant) -> Iterator[Server]:
        with nginx(variant, self.disk.data) as server:
            place = pathlib.Path(server.work, "hot")
            place.mkdir()
            self.hot = [(f"/hot{path}", size, crc) for path, size, crc in fill(place, range(100_000 - HOT_FILES, 100_000))]
            yield server

    def measure(self, variant: Variant) -> dict[str, Any]:
        self.disk.remount()
        found: dict[str, Any] = {}
        if variant.looked_up:
            found["look_up_s"] = look_up(self.disk, self.cold)
        with self.serving(variant) as server:
            found["alone"] = phase(server, self.disk, self.sizes.alone_s, self.hot)
            found["paced"] = phase(server, self.disk, self.sizes.paced_s, self.hot, self.paced, COLD_PER_S)
            forget(self.disk)
            found["again"] = phase(server, self.disk, self.sizes.paced_s, self.hot, self.paced, COLD_PER_S)
            if variant.looked_up:
                look_up(self.disk, self.cold)
            found["most"] = phase(server, self.disk, self.sizes.most_s, self.hot, self.cold[len(self.paced) :], 0)
        return found

    def watched(self, out: pathlib.Path, name: str, variant: Variant) -> dict[str, Any]:
        """What the clients saw, and what DeBox says of the worker in the same seconds."""
        # Without a pool each cold one holds the loop up twice.
        cold_per_s = COLD_PER_S if variant.pool else COLD_PER_S / 2
        self.disk.remount()
        with self.serving(variant) as server:
            pid = worker(server)
            with Watch(out, name, [pid], "--stacks") as watch:
                seen = phase(server, self.disk, self.sizes.paced_s, self.hot, self.paced, cold_per_s)
        report = watch.report()
        # Of the loop's time between two waits for events.
        loop = next((row for row in report["activities"] if row["call"] == "epoll_wait"), None)
        return {
            "clients": {"hot_ms": quantiles_ms(seen["hot"]["times_ns"]), "hot": len(seen["hot"]["times_ns"]), "cold": len(seen["cold"]["times_ns"]), "disk_reads": seen["disk_reads"]},
            "cold_per_s": cold_per_s,
            "verdict": watch.first_sentences(),
            "loop_blocked": [found["title"] for found in report["findings"] if found["title"].startswith("The loop of ")],
            "opens": next(({key: row[key] for key in ("count", "wall_ns", "blocked_ns", "p99_ns", "max_ns")} for row in report["calls"] if row["name"] == "openat"), None),
            "blocking": [{key: row[key] for key in ("call", "label", "function", "count", "total_ns", "max_ns")} for row in report["blocking"]],
            "loop": loop and {key: loop[key] for key in ("count", "p50_ns", "p99_ns", "max_ns", "all", "slow", "slow_count")},
        }  # fmt: skip


def quantiles_ms(times_ns: list[int]) -> dict[str, float]:
    ordered = sorted(times_ns)
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6 for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each phase medians over the rounds, with the least and the most."""
    found: dict[str, Any] = {}
    for name in PHASES:
        of = [one[name] for one in rounds]
        row: dict[str, Any] = {"hot": len(of[0]["hot"]["times_ns"])}
        for kind in ("hot", "cold"):
            if kind in of[0]:
                each = [quantiles_ms(one[kind]["times_ns"]) for one in of]
                row |= {f"{kind}_{quantile}_ms": spread([one[quantile] for one in each]) for quantile in each[0]}
        if "cold" in of[0]:
            row["cold_per_s"] = spread([len(one["cold"]["times_ns"]) / one["cold"]["took_ns"] * 1e9 for one in of])
            row["reads_per_cold"] = spread([one["disk_reads"] / len(one["cold"]["times_ns"]) for one in of])
        answers = [sum(len(one[kind]["times_ns"]) for kind in ("hot", "cold") if kind in one) for one in of]
        row["cpu_us_per_request"] = spread([one["cpu_s"] * 1e6 / count for one, count in zip(of, answers, strict=True)])
        row["client_late_ms"] = spread([one["hot"]["late_ns"] / 1e6 for one in of])
        found[name] = row
    if "look_up_s" in rounds[0]:
        found["look_up_s"] = spread([one["look_up_s"] for one in rounds])
    return found


def tail(name: str, times_ns: list[int]) -> figure.Series:
    """The share of requests, in percent, that took longer."""
    ordered = sorted(times_ns)
    count = len(ordered)
    # As many points for the slowest hundredth as for the hundredth before.
    shares = [count ** (-step / TAIL_POINTS) for step in range(TAIL_POINTS + 1)]
    places = sorted({min(count - 1, count - round(count * share)) for share in shares})
    return figure.Series(name, [ordered[place] / 1e6 for place in places], [100 * (count - place) / count for place in places])


def build(program: pathlib.Path = pathlib.Path(__file__).with_name("build.sh")) -> str:
    """What was built. make and all that it starts end with this process, too: under a guard, as a server."""
    BUILD.mkdir(parents=True, exist_ok=True)
    asked, ask = os.pipe()
    argv = peers.guarded(tempfile.mkdtemp(prefix="debox-peer-"), [str(program), str(BUILD)])
    with subprocess.Popen(argv, stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as building:
        os.close(asked)
        try:
            said, _ = building.communicate(timeout=BUILD_S)
        except subprocess.TimeoutExpired as late:
            raise CaseError(f"building nginx in {BUILD} took more than {BUILD_S:.0f} s") from late
        finally:
            os.close(ask)  # ends what still runs
    if building.returncode:
        raise CaseError(f"nginx cannot be built: {said.strip()}")
    return said.strip()


def run(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"kernel": os.uname().release, "quick": quick}
    variants = [AS_IS, CACHE]
    if not quick:
        found["built"] = build()
        variants = [NO_POOL, *variants, LOOKED_UP, UNPATCHED, PATCHED]
    sizes = QUICK if quick else FULL
    # It goes with the disk, also when this process is killed.
    with SlowDisk(pathlib.Path(tempfile.gettempdir(), f"debox-nginx-{os.getpid()}")) as disk:
        found["disk"] = {"latency_ms": disk.latency_s * 1e3, "arms": disk.arms, "bandwidth_mb_per_s": disk.bandwidth_bytes_per_s / 1e6}
        found["fio"] = disk.table(disk.calibrate(*CALIBRATED_QUICK) if quick else disk.calibrate())
        case = Case(disk, sizes)
        rounds: dict[str, list[dict[str, Any]]] = {variant.name: [] for variant in variants}
        for _ in range(sizes.rounds):
            for variant in variants:
                rounds[variant.name].append(case.measure(variant))
        watches = {"nginx-no-pool": NO_POOL, "nginx-as-is": AS_IS} | ({} if quick else {"nginx-patched": PATCHED})
        found["watched"] = {variant.name: case.watched(out, name, variant) for name, variant in watches.items()}
    found["measured"] = {name: summary(of) for name, of in rounds.items()}
    draw(out, rounds)
    (out / "nginx.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "nginx.md").write_text("\n".join(text(found)) + "\n")
    return found


def draw(out: pathlib.Path, rounds: dict[str, list[dict[str, Any]]]) -> None:
    """All rounds of a variant together; the share that is slower shows what a p99 is made of."""

    def together(name: str, of: str) -> list[int]:
        return [ns for one in rounds[name] for ns in one[of]["hot"]["times_ns"]]

    for of, title in (("paced", f"Requests for files in memory, with {COLD_PER_S} cold ones a second beside"), ("most", "The same, cold ones as fast as they are answered")):
        series = [tail("no cold ones", together(AS_IS.name, "alone")), *(tail(name, together(name, of)) for name in rounds)]
        figure.lines(out / f"nginx-{of}.svg", title, "took longer than, ms", "share of requests, %", series, log_x=True, log_y=True)


def text(found: dict[str, Any]) -> Iterator[str]:
    disk = found["disk"]
    yield "# nginx opens files on its event loop"
    yield ""
    yield f"One worker, sendfile, aio threads ({THREADS}); {HOT_PER_S} hot requests a second; slow disk {disk['latency_ms']:g} ms × {disk['arms']} arms, {disk['bandwidth_mb_per_s']:g} MB/s; Linux {found['kernel']}."
    yield f"Medians of the rounds (least to most). Source: {found['built']}." if "built" in found else "Medians of the rounds (least to most)."
    yield from ("", "```", found["fio"], "```")
    for name, title in PHASES.items():
        cold = name != "alone"
        yield ""
        yield f"## {title[0].upper()}{title[1:]}"
        yield ""
        yield "| variant | hot p50, ms | hot p99, ms | hot max, ms |" + (" cold answers/s | cold p50, ms | cold p99, ms | disk reads/cold answer |" if cold else "") + " CPU, µs/request |"
        yield "|---|---:|---:|---:|" + ("---:|---:|---:|---:|" if cold else "") + "---:|"
        for variant, of in found["measured"].items():
            keys = ["hot_p50_ms", "hot_p99_ms", "hot_max_ms"] + (["cold_per_s", "cold_p50_ms", "cold_p99_ms", "reads_per_cold"] if cold else []) + ["cpu_us_per_request"]
            yield f"| {variant} | " + " | ".join(shown(of[name][key]) for key in keys) + " |"
    for variant, of in found["measured"].items():
        if "look_up_s" in of:
            yield ""
            yield f"{variant}: that took {shown(of['look_up_s'])} s."
    for variant, one in found["watched"].items():
        yield ""
        yield f"## Watched: {variant}"
        yield ""
        yield from ("    " + said for said in one["verdict"])
        yield ""
        clients, opens, loop = one["clients"], one["opens"], one["loop"]
        yield f"Its clients: {clients['hot']} hot answers, p99 {clients['hot_ms']['p99']:.1f} ms, {clients['cold']} cold ones at {one['cold_per_s']:g} a second; {clients['disk_reads']} reads of the disk."
        yield f"DeBox: {opens['count']} openat, {opens['blocked_ns'] / 1e6:.0f} ms blocked, the longest {opens['max_ns'] / 1e6:.1f} ms."
        if loop:
            yield f"The loop had something to do {loop['count']} times for {loop['all']['total_ns'] / 1e6:.0f} ms, {loop['all']['blocked_ns'] / loop['all']['total_ns']:.0%} of it blocked."
        yield from (f"{found}." for found in one["loop_blocked"])
        yield ""
        yield "| call | blocked on | at | sleeps | together, ms | longest, ms |"
        yield "|---|---|---|---:|---:|---:|"
        for row in one["blocking"]:
            if row["call"] not in ("futex", "epoll_wait"):
                yield f"| {row['call']} | {row['label']} | {row['function']} | {row['count']} | {row['total_ns'] / 1e6:.0f} | {row['max_ns'] / 1e6:.1f} |"


def shown(of: dict[str, float]) -> str:
    def short(value: float) -> str:
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"

    return short(of["median"]) if of["least"] == of["most"] else f"{short(of['median'])} ({short(of['least'])} to {short(of['most'])})"


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (CaseError, DiskError, PeerError, WatchError)))
