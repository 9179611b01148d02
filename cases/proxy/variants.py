# SPDX-License-Identifier: MIT OR Apache-2.0
"""How do a proxy and servers of others start so that they wait with select, poll or epoll,
without and with libdebox-select, and how are they asked?

One CPU has the server that is measured, the other one the clients and the origin behind
the proxy, as in `debox bench select`, whose clients (`debox bench load`) these are.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from peers import PeerError, Server, free_port
from watch import DEBOX

SERVERS_CPU, CLIENTS_CPU = 0, 1
SIZES = (1259, 8192)  # the paper's two
# A connection that asks has two descriptors in a proxy, one that is idle one; the rest is for
# listening, logs and the private descriptor.
DESCRIPTORS_LEFT = 300
PROGRAMS = {"haproxy": "haproxy", "lighttpd": "lighttpd", "webfsd": "webfs"}
SELECT_SETSIZE = 1024


class Variant(NamedTuple):
    name: str
    wait: str  # select, poll, epoll
    library: bool


POLL, LIBRARY, EPOLL = Variant("poll", "poll", False), Variant("poll, library", "poll", True), Variant("epoll", "epoll", False)
SELECT, SELECT_LIBRARY = Variant("select", "select", False), Variant("select, library", "select", True)
WAYS = (POLL, LIBRARY, EPOLL)


def missing() -> list[str]:
    """What has to be installed."""
    return [package for program, package in PROGRAMS.items() if not executable(program)]


def executable(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def descriptors_most() -> int:
    """That one process may have (RLIMIT_NOFILE's hard limit)."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def pin(pid: int, cpu: int) -> None:
    """Where there is no such CPU it stays where it is."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(pid, {cpu})


def cpu_ns(pid: int) -> int:
    """CPU time of all its threads, by the process's own clock."""
    return time.clock_gettime_ns(~pid << 3 | 2)


@contextlib.contextmanager
def started(server: Server, cpu: int) -> Iterator[Server]:
    with server:
        pin(server.pid, cpu)
        yield server


def _with_library(argv: list[str], library: bool) -> list[str]:
    # It becomes the command: the process is the server itself.
    return [str(DEBOX), "select", "--", *argv] if library else argv


def origin() -> Server:
    """What stands behind the proxies: GET /N has N bytes."""
    port = free_port()
    return Server("origin", [str(DEBOX), "bench", "serve", "epoll", "--port", str(port)], port)


def plain(variant: Variant) -> Server:
    """The small server of `bench select`, which makes its set anew before each call."""
    port = free_port()
    return Server(variant.name, _with_library([str(DEBOX), "bench", "serve", variant.wait, "--port", str(port)], variant.library), port)


def _program(name: str) -> str:
    found = executable(name)
    if not found:
        raise PeerError(f"{name} is not installed: apt install {PROGRAMS[name]}")
    return found


def haproxy(variant: Variant, origin_port: int, connections: int, cache: bool = False) -> Server:
    """Each request goes to the origin, over connections that are kept, or with `cache` only
    the first."""
    port = free_port()
    configuration = f"""\
global
  maxconn {connections}
  nbthread 1
  {"noepoll" if variant.wait != "epoll" else ""}
  {"nopoll" if variant.wait == "select" else ""}
defaults
  mode http
  timeout client 3600s
  timeout http-request 3600s
  timeout http-keep-alive 3600s
  timeout connect 5s
  timeout server 5s
cache pages
  total-max-size 4
  max-age 3600
frontend clients
  bind 127.0.0.1:{port}
  {"http-request cache-use pages" if cache else ""}
  default_backend origin
backend origin
  http-reuse always
  {"http-response set-header Cache-Control max-age=3600" if cache else ""}
  {"http-response cache-store pages" if cache else ""}
  server origin 127.0.0.1:{origin_port}
"""
    argv = [_program("haproxy"), "-db", "-q", "-f", "@WORK@/configuration"]
    return Server(variant.name, _with_library(argv, variant.library), port, configuration)


def lighttpd(variant: Variant, connections: int, origin_port: int | None = None) -> Server:
    """With an origin a proxy, which opens a connection to it for each request; without one a
    server of files."""
    port = free_port()
    proxy = f"""
server.modules += ( "mod_proxy" )
proxy.server = ( "" => ( ( "host" => "127.0.0.1", "port" => {origin_port} ) ) )
"""
    configuration = f"""\
server.document-root = "@WORK@"
server.port = {port}
server.bind = "127.0.0.1"
server.event-handler = "{"linux-sysepoll" if variant.wait == "epoll" else variant.wait}"
server.max-fds = {min(2 * connections + 100, descriptors_most())}
server.max-connections = {connections}
server.max-keep-alive-requests = 65535
server.max-keep-alive-idle = 3600
server.max-read-idle = 3600
server.max-write-idle = 3600
server.listen-backlog = 1024
server.feature-flags = ( "server.graceful-shutdown-timeout" => 1 )
{proxy if origin_port else ""}"""
    argv = [_program("lighttpd"), "-D", "-f", "@WORK@/configuration"]
    return PageServer(variant.name, _with_library(argv, variant.library), port, configuration)


def webfs(variant: Variant, connections: int) -> Server:
    """A server of files that knows select only, and looks at each of its connections after it."""
    port = free_port()
    # With more than nine tenths of what it may have open, it keeps none alive.
    argv = [_program("webfsd"), "-F", "-4", "-i", "127.0.0.1", "-t", "3600", "-p", str(port), "-c", str(2 * connections), "-r", "@WORK@"]
    return PageServer(variant.name, _with_library(argv, variant.library), port)


class PageServer(Server):
    """Has the pages in its directory."""

    def __enter__(self) -> Server:
        super().__enter__()
        for size in SIZES:
            with open(f"{self.work}/{size}", "wb") as page:
                page.write(b"x" * size)
            os.chmod(f"{self.work}/{size}", 0o644)
        os.chmod(self.work, 0o755)
        return self


class Outcome(NamedTuple):
    requests: int
    seconds: float
    wrong: int
    stalled: int
    dropped: int
    p50_us: float
    p99_us: float
    longest_us: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


class Load:
    """Clients in a process of their own, with their connections open: run(seconds), as often as wanted.

    With a rate, a request is due by the clock but is not asked before a connection is free; its
    time counts from when it was due, so that a server that stalls is not spared the wait.
    """

    def __init__(self, port: int, idle: int, hot: int, *, size: int = SIZES[0], close: bool = True, rate: float | None = None) -> None:
        self.argv = [str(DEBOX), "bench", "load", "--port", str(port), "--idle", str(idle), "--hot", str(hot), "--path", f"/{size}"]
        self.argv += ["--close"] * close + (["--rate", str(rate)] if rate else [])

    def __enter__(self) -> "Load":
        self.process = subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        pin(self.process.pid, CLIENTS_CPU)
        self._answer()
        return self

    def _answer(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"{' '.join(self.argv)} ended with {self.process.wait()}; its own words are above")
        return line

    def run(self, seconds: float) -> Outcome:
        assert self.process.stdin
        print(round(seconds * 1e6), file=self.process.stdin, flush=True)
        n = [float(word) for word in self._answer().split()]
        return Outcome(int(n[0]), n[1], int(n[2]), int(n[3]), int(n[4]), *n[5:])

    def __exit__(self, *_: object) -> None:
        # It ends when there is nobody to ask it.
        self.process.communicate()


class Measured(NamedTuple):
    """Of the rounds: median, and the range."""

    per_second: tuple[float, float, float]
    cpu_us: tuple[float, float, float]  # of a request
    cpu_percent: tuple[float, float, float]  # of a CPU
    p50_us: tuple[float, float, float]
    p99_us: tuple[float, float, float]
    requests: int
    failed: int


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    half = len(ordered) // 2
    median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return median, ordered[0], ordered[-1]


def turns(running: Sequence[tuple[Server, Load]], seconds: float, rounds: int) -> list[Measured]:
    """Each is asked in turn, in another order in each round, so that what the machine does
    meanwhile meets all alike."""
    pids = [server.pid for server, _ in running]
    for _, load in running:
        load.run(0.15)
    taken: list[list[tuple[Outcome, float]]] = [[] for _ in running]
    for turn in range(rounds):
        for place in range(len(running)):
            at = (place + turn) % len(running)
            before = cpu_ns(pids[at])
            outcome = running[at][1].run(seconds)
            taken[at].append((outcome, (cpu_ns(pids[at]) - before) / 1e3))
    result = []
    for each in taken:
        outcomes = [outcome for outcome, _ in each]
        result.append(
            Measured(
                middle([o.per_second for o in outcomes]),
                middle([us / max(1, o.requests) for o, us in each]),
                middle([us / 1e4 / o.seconds for o, us in each]),
                middle([o.p50_us for o in outcomes]),
                middle([o.p99_us for o in outcomes]),
                sum(o.requests for o in outcomes),
                sum(o.wrong + o.stalled + o.dropped for o in outcomes),
            )
        )
    return result
