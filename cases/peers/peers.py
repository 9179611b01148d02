#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How do the servers of others serve the same files, each as well as it can, as a child
of this process that surely ends?

`PEERS` names them: a peer takes the files' directory, a number of workers and options, and
gives a `Server`, which is a context manager; `Server(name, argv)` runs any other
program with the same interface. Each listens on a free port of 127.0.0.1.

A server runs under a guard (this file, run as a program): it is the reaper of all that
the server starts, daemons as well, ends them when asked or when its own starter has
died by whatever signal, and so knows the CPU time of those that have ended.

Rights: nginx's, lighttpd's and apache2's processes that serve run as `nobody` where
this is root, as they would anywhere; the files must be readable to all. The masters of
nginx and apache2 stay root.
"""

import contextlib
import ctypes
import functools
import grp
import os
import pathlib
import pwd
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
START_S, END_S = 10.0, 2.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
USER = "nobody"
# What each may have: as many as may be without more rights, within reason. A connection
# needs two, its own and its file's; the rest is for nginx's cache of open files.
FILES = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1] % (1 << 63), 65536)
CONNECTIONS = FILES // 4
Enter = Callable[[list[str]], list[str]]


class PeerError(Exception):
    """What happened, and what helps."""


class Process(NamedTuple):
    pid: int
    parent: int
    command: str
    ticks: int  # its own
    ended_ticks: int  # of its children that it has waited for


def processes() -> dict[int, Process]:
    """All that are no zombies, and zombies whose ticks nobody has taken yet."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = pathlib.Path("/proc", entry, "stat").read_text(errors="replace")
                words = stat[stat.rindex(")") + 2 :].split()
                ticks = [int(word) for word in words[11:15]]
                found[int(entry)] = Process(int(entry), int(words[1]), stat[stat.index("(") + 1 : stat.rindex(")")], ticks[0] + ticks[1], ticks[2] + ticks[3])
    return found


def own_cpu_s(process: Process) -> float:
    """Of all its threads, by the clock that each process has (clock_getcpuclockid(3))."""
    try:
        return time.clock_gettime(~process.pid << 3 | 2)
    except OSError:  # it has ended meanwhile
        return process.ticks / TICKS_PER_S


def below(pid: int, everyone: dict[int, Process] | None = None) -> list[Process]:
    """Its descendants, parents first."""
    everyone = everyone or processes()
    found, parents = [], [pid]
    while parents:
        children = [process for process in everyone.values() if process.parent in parents]
        found += children
        parents = [child.pid for child in children]
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """A running server: `port`, `pid`, processes(), cpu_s(), and its end."""

    def __init__(
        self,
        name: str,
        argv: list[str],
        port: int,
        configuration: str = "",
        environment: dict[str, str] | None = None,
        enter: Enter | None = None,
        cwd: str = "/",
    ) -> None:
        """`argv` listens on `port` and stays in the foreground. `enter` changes the
        command, as a memory group does (slow_disk.py, MemoryGroup.command). @WORK@ in
        `argv` and `configuration` is a directory that it has until its end, where
        `configuration` lies as the file `configuration`."""
        self.name, self.port, self.cwd, self.configuration = name, port, cwd, configuration
        self.argv = enter(argv) if enter else argv
        self.environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> "Server":
        self._ask, guards = os.pipe()
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.work = tempfile.mkdtemp(prefix="debox-peer-")
        argv = [word.replace("@WORK@", self.work) for word in self.argv]
        pathlib.Path(self.work, "configuration").write_text(self.configuration.replace("@WORK@", self.work))
        if os.geteuid() == 0:
            user = pwd.getpwnam(USER)
            os.chown(self.work, user.pw_uid, user.pw_gid)
        # The guard sees the end of this process as the end of its standard input.
        self._guard = subprocess.Popen(guarded(self.work, argv), stdin=self._ask, stdout=self.log, stderr=self.log, env=self.environment, cwd=self.cwd, start_new_session=True)
        os.close(self._ask)
        self._ask = guards
        try:
            self._wait()
        except BaseException:
            self.end()
            raise
        return self

    def _wait(self) -> None:
        """Until it takes connections."""
        end = time.monotonic() + START_S
        while True:
            if self._guard.poll() is not None:
                raise PeerError(f"{self.name} ended with {self._guard.returncode} before it listened on port {self.port}: {self.said()}")
            with socket.socket() as client:
                client.settimeout(1)
                if client.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if time.monotonic() > end:
                raise PeerError(f"{self.name} does not listen on port {self.port} after {START_S:.0f} s: {self.said()}")
            time.sleep(0.01)

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:].strip() or "it says nothing"

    @property
    def pid(self) -> int:
        """The process that was started."""
        for process in processes().values():
            if process.parent == self._guard.pid:
                return process.pid
        raise PeerError(f"{self.name} has ended: {self.said()}")

    def processes(self) -> list[Process]:
        return below(self._guard.pid)

    def cpu_s(self) -> float:
        """Of all its processes; of ended ones in steps of 10 ms. Missing are children that
        nobody waits for because their parent ignores SIGCHLD."""
        everyone = processes()
        its = below(self._guard.pid, everyone)
        ended = everyone[self._guard.pid].ended_ticks + sum(process.ended_ticks for process in its)
        return ended / TICKS_PER_S + sum(own_cpu_s(process) for process in its)

    def end(self) -> None:
        os.close(self._ask)
        self._guard.terminate()  # where a fork of this process has the pipe open, too
        self._guard.wait()
        self.log.close()

    def __exit__(self, *_: object) -> None:
        self.end()


def guarded(work: str, argv: list[str]) -> list[str]:
    return [sys.executable, "-S", "-E", str(pathlib.Path(__file__).resolve()), "guard", work, *argv]


def guard(work: str, argv: list[str]) -> int:
    """Runs `argv` until standard input ends or it does; then ends all that came of it and
    removes its directory."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise PeerError(f"cannot become the reaper of what a server starts: {os.strerror(ctypes.get_errno())}")
    asked = os.dup(0)
    os.set_inheritable(asked, False)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    child = os.fork()
    if child == 0:
        # Where the guard itself is killed, at least this one goes with it.
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # Python ignores these two, and that would be inherited.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    status = None
    waiting = select.poll()
    waiting.register(asked, select.POLLIN | select.POLLHUP)
    waiting.register(woken, select.POLLIN)
    while status is None:
        ready = dict(waiting.poll())
        if asked in ready:
            break
        if signal.SIGTERM in os.read(woken, 4096):
            break
        status = reaped(child)
    _end(child, status is None)
    shutil.rmtree(work, ignore_errors=True)
    return 0 if status is None else os.waitstatus_to_exitcode(status) % 256


def reaped(child: int) -> int | None:
    """Takes all that have ended; the status of `child`, if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return found
            if pid == child:
                found = status
    return found


def _end(child: int, runs: bool) -> None:
    """Asks the server, so that it may clean up; kills what has not followed."""
    if runs:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
    begin = time.monotonic()
    while left := below(os.getpid()):
        late = time.monotonic() - begin > END_S
        for process in left:
            # What outlives the server is killed at once.
            if late or not runs:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        if reaped(child) is not None:
            runs = False
        time.sleep(0.005)


def find(program: str, package: str) -> str:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")
    if not path:
        raise PeerError(f"{program} is missing: apt-get install --no-install-recommends {package}")
    return path


def group_name() -> str:
    return grp.getgrgid(pwd.getpwnam(USER).pw_gid).gr_name


def nginx(root: str, workers: int = 2, variant: str = "", enter: Enter | None = None) -> Server:
    """`variant`: "threads" reads files in a pool of threads when they are not in memory,
    "cache" keeps descriptors open (open_file_cache), "reuseport" gives each worker a
    listening socket of its own; several are joined by +."""
    chosen = set(variant.split("+")) - {""}
    if unknown := chosen - {"threads", "cache", "reuseport"}:
        raise PeerError(f"nginx has no variant {', '.join(unknown)}: threads, cache, reuseport, or several joined by +")
    program, port = find("nginx", "nginx-light"), free_port()
    user = f"user {USER} {group_name()};" if os.geteuid() == 0 else ""
    pool = "thread_pool files threads=32 max_queue=65536;" if "threads" in chosen else ""
    aio = "aio threads=files;" if "threads" in chosen else ""
    cache = f"open_file_cache max={FILES // 4} inactive=10m; open_file_cache_valid 10m; open_file_cache_min_uses 1; open_file_cache_errors on;" if "cache" in chosen else ""
    temporary = "\n    ".join(f"{kind}_temp_path @WORK@/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    # sendfile_max_chunk is what one sendfile may send before the others have their turn.
    text = f"""
daemon off;
{user}
pid @WORK@/nginx.pid;
error_log stderr warn;
worker_processes {workers};
worker_rlimit_nofile {FILES};
{pool}
events {{ worker_connections {CONNECTIONS}; use epoll; }}
http {{
    access_log off;
    default_type application/octet-stream;
    sendfile on;
    sendfile_max_chunk 512k;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_timeout 60s;
    keepalive_requests 1000000;
    reset_timedout_connection on;
    server_tokens off;
    {aio}
    {cache}
    {temporary}
    server {{
        listen 127.0.0.1:{port} backlog=4096{' reuseport' if 'reuseport' in chosen else ''};
        root {quoted(root)};
        location / {{ }}
    }}
}}
"""
    name = f"nginx{'+' if chosen else ''}{variant}"
    return Server(name, [program, "-c", "@WORK@/configuration", "-p", "@WORK@", "-e", "stderr"], port, text, enter=enter)


def lighttpd(root: str, workers: int = 2, variant: str = "", enter: Enter | None = None) -> Server:
    """One process per worker; with 1 it is the process that was started."""
    if variant:
        raise PeerError(f"lighttpd has no variant {variant}")
    program, port = find("lighttpd", "lighttpd"), free_port()
    user = f'server.username = "{USER}"\nserver.groupname = "{group_name()}"' if os.geteuid() == 0 else ""
    text = f"""
server.document-root = {quoted(root)}
server.bind = "127.0.0.1"
server.port = {port}
{user}
server.max-worker = {workers if workers > 1 else 0}
server.event-handler = "linux-sysepoll"
server.network-backend = "sendfile"
server.listen-backlog = 4096
server.max-fds = {FILES}
server.max-connections = {CONNECTIONS}
server.max-keep-alive-requests = 1000000
server.max-keep-alive-idle = 60
server.upload-dirs = ( "@WORK@" )
server.tag = "lighttpd"
server.stat-cache-engine = "simple"
mimetype.assign = ( "" => "application/octet-stream" )
"""
    return Server("lighttpd", [program, "-D", "-f", "@WORK@/configuration"], port, text, enter=enter)


def apache_event(root: str, workers: int = 2, variant: str = "", enter: Enter | None = None) -> Server:
    """`workers` processes with 64 threads each: the threads serve, one process's listener waits."""
    threads = 64
    mpm = f"""
ServerLimit {workers}
StartServers {workers}
ThreadLimit {threads}
ThreadsPerChild {threads}
MaxRequestWorkers {workers * threads}
MinSpareThreads {workers * threads}
MaxSpareThreads {workers * threads}
AsyncRequestWorkerFactor 64
MaxConnectionsPerChild 0
"""
    return _apache("event", mpm, root, variant, enter)


def apache_prefork(root: str, workers: int = 256, variant: str = "", enter: Enter | None = None) -> Server:
    """`workers` processes, each of which serves one connection at a time: with fewer of them
    than persistent connections the rest wait until one of those is idle for KeepAliveTimeout."""
    mpm = f"""
ServerLimit {workers}
StartServers {workers}
MinSpareServers {workers}
MaxSpareServers {workers}
MaxRequestWorkers {workers}
MaxConnectionsPerChild 0
"""
    return _apache("prefork", mpm, root, variant, enter)


def _apache(mpm: str, limits: str, root: str, variant: str, enter: Enter | None) -> Server:
    if variant:
        raise PeerError(f"apache2 has no variant {variant}")
    program, port = find("apache2", "apache2"), free_port()
    modules = pathlib.Path("/usr/lib/apache2/modules")
    loaded = "\n".join(f"LoadModule {name}_module {modules}/mod_{name}.so" for name in (f"mpm_{mpm}", "authz_core"))
    user = f"User {USER}\nGroup {group_name()}" if os.geteuid() == 0 else ""
    text = f"""
ServerRoot "@WORK@"
DefaultRuntimeDir "@WORK@"
PidFile "@WORK@/apache2.pid"
Mutex sem
ServerName localhost
ServerTokens Prod
Listen 127.0.0.1:{port}
ListenBacklog 4096
{loaded}
{user}
{limits}
ErrorLog /dev/stderr
LogLevel warn
Timeout 60
KeepAlive On
KeepAliveTimeout 60
MaxKeepAliveRequests 0
EnableSendfile On
HostnameLookups Off
DocumentRoot {quoted(root)}
<Directory />
    Require all denied
    AllowOverride None
    Options FollowSymLinks
</Directory>
<Directory {quoted(root)}>
    Require all granted
</Directory>
"""
    # Debian's environment variables (envvars) are not used.
    return Server(f"apache2-{mpm}", [program, "-DFOREGROUND", "-f", "@WORK@/configuration"], port, text, enter=enter)


def quoted(path: str) -> str:
    """A directory of files for a configuration."""
    if re.search(r'["\\$\s{};]', str(path)):
        raise PeerError(f"{path!r} cannot stand in every server's configuration: give a directory without spaces, quotes, $, ; and braces")
    whole = pathlib.Path(path).resolve()
    for directory in (whole, *whole.parents):
        if os.geteuid() == 0 and not directory.stat().st_mode & 0o001:
            raise PeerError(f"{directory} is closed to {USER}, as whom the server serves {whole}: chmod o+x {directory}")
    return f'"{whole}"'


# As it is installed nginx reads files in its loop, and opens them anew for each request: it has both ways out, for who asks.
TUNED = "nginx+threads+cache"
PEERS: dict[str, Callable[..., Server]] = {
    "nginx": nginx,
    TUNED: functools.partial(nginx, variant="threads+cache"),
    "lighttpd": lighttpd,
    "apache2-event": apache_event,
    "apache2-prefork": apache_prefork,
}


if __name__ == "__main__":
    if sys.argv[1:2] != ["guard"] or len(sys.argv) < 4:
        sys.exit("peers.py: this file is run by itself, as: peers.py guard DIRECTORY COMMAND...; import it for PEERS")
    sys.exit(guard(sys.argv[2], sys.argv[3:]))
