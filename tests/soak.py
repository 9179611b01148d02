#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does DeBox stay as it is when it is left on, whatever the machine and its disk do meanwhile?

MINUTES=90 tests/soak.py (`make soak`): a broker and an agent that watches the whole machine, while
processes, threads and control groups come and go, clients attach and leave, the agent and once the
broker are killed, and the disk becomes full. Every ten seconds it is looked at, and at the end judged;
target/soak/report.md has both, status 1 says that something did not hold, 77 that it could not run.

In the first half the agent is killed every two minutes. In the second nobody kills it: growth shows
only in a life that is long enough.
"""

import collections
import calendar
import ctypes
import json
import mmap
import os
import pathlib
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TOP = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "tests"))
from fresh_start import fresh_environment, fresh_start  # noqa: E402

BIN = TOP / "target/release"
OUT = TOP / "target/soak"

# What is done, ten times what a busy build machine of this size does in the mean of a day (2 CPUs).
FORKS_PER_S = 60
NEW_NAME_EVERY = 10  # of so many processes one has a name that was never there
THREADS_AT_ONCE = 64
THREAD_STORMS_PER_S = 2
CONTAINER_EVERY_S = 5
CLIENT_EVERY_S = 6
KILL_EVERY_S = 120
SNAPSHOT_EVERY_S = 150
RELOAD_EVERY_S = 60
FULL_S = 45
# How it is looked at.
SCRAPE_EVERY_S = 5
SAMPLE_EVERY_S = 10
PERIOD_S = 20
KEEP_S = 180
RING_MB = 16
KEPT_MOST = 5
DISK_MB = 128
PROGRAMS = 200
WAITS = 400
# What must hold.
SCRAPE_MEDIAN_MS = 50
GROWTH = 0.10  # of the mean, and
GROWTH_BYTES = 8 << 20  # whichever is more
GROWTH_FDS = 4
FILLED_S = 120  # of a life: its tables fill up to their bounds
CHECKPOINT_S = 10  # of the present period that much goes with a kill
START_S = 15
LOST_SHARE = 0.01
LOST_THREADS = 300  # begun between a scrape and the reading of what was begun
MINUTES_MIN = 10

PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, PR_SET_NAME = 36, 1, 15
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
LIBC = ctypes.CDLL(None, use_errno=True)
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def now():
    return time.monotonic()


def say(what):
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def checked(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# --- What is done to the machine: programs of their own, by the word behind --work -----------------


def named(name):
    LIBC.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


class Counts:
    """What the workers have begun, in memory that a kill does not take away."""

    NAMES = ("forks", "threads", "containers", "ticks")

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 8 * len(self.NAMES))

    def add(self, name, by):
        at = 8 * self.NAMES.index(name)
        struct.pack_into("Q", self.memory, at, struct.unpack_from("Q", self.memory, at)[0] + by)

    def all(self):
        return dict(zip(self.NAMES, struct.unpack_from(f"{len(self.NAMES)}Q", self.memory), strict=True))


def paced(per_s):
    due = now()
    while True:
        yield
        due = max(due + 1 / per_s, now() - 1)
        time.sleep(max(0, due - now()))


def work_forks(counts):
    named("soak-forks")
    for number, _ in enumerate(paced(FORKS_PER_S)):
        pid = os.fork()
        if pid == 0:
            if number % NEW_NAME_EVERY == 0:
                named(f"s{os.getpid()}-{number}")
            time.sleep(0.002)
            os._exit(0)
        counts.add("forks", 1)
        os.waitpid(pid, 0)


def work_threads(counts):
    named("soak-threads")
    lock = threading.Lock()

    def body():
        with lock:
            time.sleep(0.0005)

    for _ in paced(THREAD_STORMS_PER_S):
        all_threads = [threading.Thread(target=body) for _ in range(THREADS_AT_ONCE)]
        for thread in all_threads:
            thread.start()
        counts.add("threads", len(all_threads))
        for thread in all_threads:
            thread.join()


def work_tick(counts):
    """One thread that lives all the time: its life must be all there."""
    named("soak-tick")
    while True:
        time.sleep(0.05)
        counts.add("ticks", 1)


def work_victim(_):
    """Whom clients attach to, and so take from the agent."""
    named("soak-victim")
    while True:
        time.sleep(0.01)
        os.stat("/")


def groups():
    """Where control groups can be made: [(hierarchy, below which)]; with a limit of CPU time first."""
    found = []
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup2" or kind == "cgroup" and "cpu" in options.split(","):
            found.append((kind, pathlib.Path(place)))
    return found


def group_make(kind, folder):
    folder.mkdir()
    try:
        if kind == "cgroup":
            (folder / "cpu.cfs_quota_us").write_text("5000")
        elif (folder / "cpu.max").exists():
            (folder / "cpu.max").write_text("5000 100000")
    except OSError:
        pass  # without a limit it is a container as well


def group_remove(folder):
    """Who was in it has ended, but the kernel may not be through with that."""
    for _ in range(100):
        try:
            return folder.rmdir()
        except OSError as error:
            trouble = error
        time.sleep(0.05)
    say(f"left behind: {trouble}")


def work_containers(counts):
    named("soak-boxes")
    parents = [(kind, place / "soak") for kind, place in groups()]
    for number, _ in enumerate(paced(1 / CONTAINER_EVERY_S)):
        name = f"docker-{os.getpid():032x}{number:032x}.scope"
        made = []
        for kind, parent in parents:
            group_make(kind, parent / name)
            made.append(parent / name)
        pids = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                for folder in made:
                    (folder / "cgroup.procs").write_text("0")
                named(f"box{number}")
                end = now() + 3
                while now() < end:
                    sum(range(20_000))
                    time.sleep(0.01)
                os._exit(0)
            pids.append(pid)
        counts.add("forks", len(pids))
        counts.add("containers", 1)
        for pid in pids:
            os.waitpid(pid, 0)
        for folder in made:
            group_remove(folder)


WORKS = {"forks": work_forks, "threads": work_threads, "tick": work_tick, "victim": work_victim, "containers": work_containers}


# --- Looking -----------------------------------------------------------------------------------


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            text = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text()
            found += [int(word) for word in text.split()]
    except OSError:
        pass
    return found


def tree(pid):
    """It and what it started, as it is."""
    all_pids = [pid]
    for one in all_pids:
        all_pids += children(one)
    return all_pids


def usage(pid):
    """Bytes resident, open descriptors and seconds of CPU, with what it started."""
    rss = fds = cpu = 0
    for one in tree(pid):
        try:
            words = pathlib.Path(f"/proc/{one}/stat").read_text().rsplit(") ", 1)[1].split()
            rss += int(words[21]) * PAGE
            cpu += (int(words[11]) + int(words[12])) / TICKS
            fds += len(os.listdir(f"/proc/{one}/fd"))
        except (OSError, IndexError):
            continue
    return rss, fds, cpu


def map_bytes(pid):
    """Kernel memory of the BPF maps that it holds, each once."""
    maps = {}
    try:
        for entry in os.scandir(f"/proc/{pid}/fdinfo"):
            try:
                text = pathlib.Path(entry.path).read_text()
            except OSError:
                continue
            lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            if "map_id" in lines:
                maps[int(lines["map_id"])] = int(lines["memlock"])
    except OSError:
        return None
    return sum(maps.values())


def series_of(text):
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            # Behind it there may be an exemplar.
            name, value = line.split(" # ")[0].rsplit(" ", 1)
            found[name] = float(value)
    return found


def rise(points):
    """By how much the line that fits best rises from the first to the last, and the mean."""
    if len(points) < 3:
        return 0.0, 0.0
    xs, ys = zip(*points)
    line = statistics.linear_regression(xs, ys)
    return line.slope * (xs[-1] - xs[0]), statistics.mean(ys)


def pipe_us():
    """What a switch to another process and back costs now, microseconds; the least of five."""
    times = []
    for _ in range(5):
        output = subprocess.run(["perf", "bench", "-f", "simple", "sched", "pipe", "-l", "100000"], capture_output=True, text=True, timeout=120, check=True)
        times.append(float(output.stdout.split()[0]) * 1e6 / 100_000)
    return min(times)


# --- The run -----------------------------------------------------------------------------------


class Life:
    """One agent from its first figures to its end."""

    def __init__(self, process, begin):
        self.process = process
        self.begin = begin
        # Recordings are named by the clock of the day, which may go otherwise in an hour.
        self.begin_unix = time.time() - (now() - begin)
        self.end = self.end_unix = None
        self.how = ""
        self.ending = False
        self.first = None  # (when, series, counts)
        self.last = None
        self.scrapes = 0

    def over(self):
        self.end, self.end_unix = now(), time.time()


class Soak:
    def __init__(self, minutes, folder):
        self.length = minutes * 60
        self.folder = folder
        self.disk = folder / "disk"
        self.flight = self.disk / "flight"
        self.socket = folder / "debox.sock"
        self.config = folder / "agent.toml"
        self.said = folder / "said.txt"
        self.lives = []
        self.samples = []
        self.scrape_ms = []
        self.unanswered = []
        self.back = []
        self.recordings = {}  # name: (seconds, life's number) or what is wrong
        self.clients = collections.Counter()
        self.clients_wrong = []
        self.failed = []
        self.held = []
        self.events = []
        self.workers = []
        self.broker = None
        self.broker_since = 0
        self.prometheus = None
        self.costs = {}
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}

    def event(self, what):
        self.events.append((now() - self.begin, what))
        say(what)

    def start(self, command, **options):
        """Whoever it starts ends with it."""

        def before():
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

        return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, env=self.environment, preexec_fn=before, **options)

    def broker_start(self):
        with open(self.folder / "broker.txt", "ab") as said:
            self.broker = self.start([BIN / "deboxd", "--everybody", "--socket", self.socket], stdout=said, stderr=said)
        until = now() + 60
        while now() < until:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
                    asked.connect(str(self.socket))
                break
            except OSError:
                time.sleep(0.05)
        else:
            raise RuntimeError("deboxd does not listen after 60 s: " + (self.folder / "broker.txt").read_text()[-500:])
        self.broker_since = now()

    def agent_start(self):
        from_here = self.said.stat().st_size if self.said.exists() else 0
        with open(self.said, "ab") as said:
            process = self.start([BIN / "debox", "agent", "--socket", self.socket, "--config", self.config], stdout=said, stderr=said)
        until = now() + 60
        while now() < until and process.poll() is None:
            if b"figures at " in self.said.read_bytes()[from_here:]:
                with self.lock:
                    self.lives.append(Life(process, now()))
                return
            time.sleep(0.05)
        raise RuntimeError("the agent says no figures: " + self.said.read_bytes()[from_here:].decode(errors="replace")[-500:])

    def agent_end(self, number, how):
        life = self.lives[-1]
        if life.end is None:
            life.ending = True
            life.process.send_signal(number)
            life.process.wait(timeout=60)
            life.over()
            life.how = how

    def prometheus_start(self):
        if not shutil.which("prometheus"):
            return
        config = self.folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {SCRAPE_EVERY_S}s, scrape_timeout: {SCRAPE_EVERY_S}s}}\n"
            f"scrape_configs: [{{job_name: debox, static_configs: [{{targets: ['127.0.0.1:{self.port}']}}]}}]\n"
        )
        self.prometheus_port = port_free()
        self.prometheus = self.start(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.prometheus_port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def prometheus_says(self, expression):
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=20) as answer:
            result = json.load(answer)["data"]["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def scrape(self):
        """One by one; those at which no agent is there by our own doing are none."""
        due = now()
        while not self.stopping.is_set():
            due += SCRAPE_EVERY_S
            with self.lock:
                life = self.lives[-1]
            begin = now()
            counts = self.counts.all()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as answer:
                    text = answer.read().decode()
            except (OSError, urllib.error.URLError) as error:
                if life is self.lives[-1] and not life.ending and life.process.poll() is None:
                    self.unanswered.append(f"{begin - self.begin:.0f} s: {error}")
                self.stopping.wait(max(0, due - now()))
                continue
            took = (now() - begin) * 1000
            series = series_of(text)
            # What another agent answered is nobody's.
            if life is self.lives[-1] and not life.ending:
                self.scrape_ms.append((begin, took))
                if life.last:
                    for name, value in life.last[1].items():
                        if name.split("{")[0].endswith("_total") and series.get(name, -1) < value:
                            self.back.append(f"{begin - self.begin:.0f} s: {name}: {value} to {series.get(name)}")
                life.scrapes += 1
                life.last = (begin, series, counts)
                life.first = life.first or life.last
            self.stopping.wait(max(0, due - now()))

    def client(self, number):
        victim = str(self.victim.pid)
        commands = [
            ["attach", "--socket", self.socket, "-p", victim, "-d", "2s", "--capture=sleeps"],
            ["run", "--socket", self.socket, "--capture=boundary", "--", "sh", "-c", "for i in 1 2 3; do /bin/true; done"],
            ["top", "--socket", self.socket, "--comm", "soak-victim", "--batch", "2"],
            ["attach", "--socket", self.socket, "-p", victim, "-d", "2s"],
            ["attach", "--socket", self.socket, "-p", victim, "-d", "30s"],  # killed before it ends
        ]
        command = commands[number % len(commands)]
        process = self.start([BIN / "debox", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until_killed = number % len(commands) == len(commands) - 1
        broker = self.broker
        try:
            _, said = process.communicate(timeout=4 if until_killed else 60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.clients["killed"] += 1
            if not until_killed:
                self.clients_wrong.append(f"{command[0]} did not end in 60 s")
            return
        self.clients[command[0]] += 1
        # Who has lost its broker has a reason.
        if process.returncode != 0 and broker is self.broker and not self.stopping.is_set():
            self.clients_wrong.append(f"{command[0]}: status {process.returncode}: {said.decode(errors='replace').strip()[-300:]}")

    def clients_go(self):
        number = 0
        while not self.stopping.wait(CLIENT_EVERY_S):
            if self.broker.poll() is None:
                self.client(number)
                number += 1

    def read_recordings(self):
        """Each once, while the ring has it."""
        while not self.stopping.wait(3):
            for path in sorted(self.flight.glob("*.debox")):
                if path.name not in self.recordings and not path.name.endswith(".part.debox"):
                    self.read_recording(path)

    def read_recording(self, path):
        output = subprocess.run([BIN / "debox", "report", "--json", path], capture_output=True, timeout=120, env=self.environment)
        if not path.exists():
            return  # the ring went on
        try:
            self.recordings[path.name] = json.loads(output.stdout)["run"]["wall_ns"] / 1e9
        except (ValueError, KeyError):
            self.recordings[path.name] = f"status {output.returncode}: {output.stderr.decode(errors='replace').strip()[-300:]}"

    def sample(self):
        life = self.lives[-1]
        agent = usage(life.process.pid)
        broker = usage(self.broker.pid)
        ring = []
        for path in self.flight.glob("*.debox"):
            try:
                is_at = path.stat()
            except OSError:
                continue
            ring.append((is_at.st_size, time.time() - is_at.st_mtime, path.name))
        whole = [one for one in ring if not one[2].endswith(".part.debox")]
        last = life.last[1] if life.last else {}
        self.samples.append({
            "at": now() - self.begin, "life": len(self.lives), "broker_life": self.broker.pid,
            "agent_rss": agent[0], "agent_fds": agent[1], "agent_cpu": agent[2],
            "broker_rss": broker[0], "broker_fds": broker[1], "broker_cpu": broker[2],
            "maps": map_bytes(self.broker.pid),
            "ring_bytes": sum(one[0] for one in ring), "ring_files": len(ring), "ring_largest": max((one[0] for one in ring), default=0),
            "ring_oldest_s": max((one[1] for one in ring), default=0), "whole": len(whole),
            "series": len(last), "programs": len({name.split(",state")[0] for name in last if name.startswith("debox_thread_seconds")}),
            "waits": sum(1 for name in last if name.startswith("debox_sleeps_total")),
            "groups": sum(1 for name in last if name.startswith("debox_cpu_throttled")),
            "load": os.getloadavg()[0],
        })  # fmt: skip

    def fill(self):
        path = self.disk / "filled"
        with open(path, "wb", buffering=0) as file:
            block = bytes(1 << 20)
            for size in (1 << 20, 4096):
                try:
                    while True:
                        file.write(block[:size])
                except OSError:
                    pass
        self.event("the disk is full")
        return now() + FULL_S

    def script(self):
        """What is done when, seconds from the begin."""
        half = self.length / 2
        kills = [at for at in range(KILL_EVERY_S, int(half), KILL_EVERY_S)]
        # The first over the start of an agent, which then finds no room.
        fulls = [kills[1] - 15 if len(kills) > 1 else kills[0] - 15, half * 0.9, self.length * 0.7]
        script = [(at, "kill") for at in kills] + [(at, "full") for at in fulls]
        script += [(kills[len(kills) // 2] + KILL_EVERY_S / 2, "broker")]
        script += [(at, "snapshot") for at in range(SNAPSHOT_EVERY_S, int(self.length), SNAPSHOT_EVERY_S)]
        script += [(at + 7, "reload") for at in range(RELOAD_EVERY_S, int(self.length), RELOAD_EVERY_S)]
        return sorted(script)

    def do(self, what):
        life = self.lives[-1]
        if what == "kill":
            self.agent_end(signal.SIGKILL, "killed")
            self.event("the agent is killed")
            self.agent_start()
        elif what == "broker":
            # It ends by itself now: what it answers meanwhile is not asked for.
            life.ending = True
            self.broker.kill()
            self.broker.wait()
            self.event("the broker is killed")
            life.process.wait(timeout=60)
            life.over()
            life.how = "lost its broker"
            self.event(f"the agent ended with status {life.process.returncode}")
            self.broker_start()
            self.agent_start()
        elif what == "full":
            self.full_until = self.fill()
        elif what == "snapshot":
            life.process.send_signal(signal.SIGUSR1)
        elif what == "reload":
            life.process.send_signal(signal.SIGHUP)

    def run(self):
        self.begin = now()
        checked(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount namespace")
        self.disk.mkdir()
        checked(LIBC.mount(b"none", str(self.disk).encode(), b"tmpfs", 0, f"size={DISK_MB}m".encode()), "tmpfs")
        self.port = port_free()
        self.config.write_text(
            f'[[policy]]\nname = "all"\nperiod = "{PERIOD_S}s"\n[flight]\ndirectory = "{self.flight}"\nkeep = "{KEEP_S}s"\nsize_mb = {RING_MB}\nbefore = "1m"\n'
            f"kept_most = {KEPT_MOST}\n[fleet]\nto = \"{self.disk / 'fleet'}\"\nhost = \"soak\"\nevery = \"1m\"\n"
            f'[metrics]\nlisten = "127.0.0.1:{self.port}"\nblocking_rows = {WAITS}\nprograms = {PROGRAMS}\n'
        )
        counts = self.folder / "counts"
        counts.write_bytes(bytes(8 * len(Counts.NAMES)))
        self.counts = Counts(counts)
        perf = shutil.which("perf") is not None
        if perf:
            self.costs["begin, without"] = pipe_us()
        self.broker_start()
        self.agent_start()
        if perf:
            self.costs["begin, with"] = pipe_us()
        self.groups_begin()
        works = [work for work in WORKS if work != "containers" or self.groups_made]
        for work in works:
            worker = self.start([sys.executable, __file__, "--work", work, counts])
            self.workers.append(worker)
            if work == "victim":
                self.victim = worker
        self.prometheus_start()
        threads = [threading.Thread(target=body, daemon=True) for body in (self.scrape, self.clients_go, self.read_recordings)]
        self.begin = now()
        for thread in threads:
            thread.start()
        self.full_until = None
        script = self.script()
        next_sample = now() + SAMPLE_EVERY_S
        while now() < self.begin + self.length:
            if script and now() - self.begin >= script[0][0]:
                self.do(script.pop(0)[1])
            if self.full_until and now() >= self.full_until:
                (self.disk / "filled").unlink()
                self.full_until = None
                self.event("the disk has room")
            if now() >= next_sample:
                next_sample += SAMPLE_EVERY_S
                self.sample()
                for worker, work in zip(self.workers, works, strict=True):
                    if worker.poll() is not None:
                        raise RuntimeError(f"the worker {work} ended with status {worker.returncode}")
                life = self.lives[-1]
                if life.process.poll() is not None:
                    life.over()
                    life.how = f"ended by itself, status {life.process.returncode}"
                    self.event("the agent ended by itself")
                    self.agent_start()
                if self.broker.poll() is not None:
                    raise RuntimeError(f"the broker ended by itself, status {self.broker.returncode}")
            time.sleep(0.2)
        self.finish(threads, perf)

    def finish(self, threads, perf):
        self.stopping.set()
        for thread in threads:
            thread.join(timeout=90)
        for worker in self.workers:
            worker.kill()
            worker.wait()
        if self.prometheus:
            window = f"[{int(self.length)}s]"
            self.prometheus_said = [self.prometheus_says(text) for text in (f"count_over_time(up{window})", f"sum_over_time(up{window})", f"quantile_over_time(0.5, scrape_duration_seconds{window})")]
        if perf:
            time.sleep(2)
            self.costs["end, with"] = pipe_us()
        self.agent_end(signal.SIGTERM, "asked to end")
        if perf:
            self.costs["end, without"] = pipe_us()
        self.kept = 0
        for path in sorted(self.flight.rglob("*.debox")):
            if path.parent != self.flight:
                self.kept += 1
            if path.name not in self.recordings:
                self.read_recording(path)
        self.judge()

    def groups_begin(self):
        self.groups_made = []
        self.groups_not = ""
        for _, place in groups():
            try:
                (place / "soak").mkdir(exist_ok=True)
                self.groups_made.append(place / "soak")
            except OSError as error:
                self.groups_not = f"{place}: {error}"
        if not self.groups_made:
            say(f"NOT RUN: containers: no control group can be made ({self.groups_not or 'no hierarchy is mounted'})")

    def end(self):
        """Whatever happened: nothing stays."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self.stopping.set()
        until = now() + 10
        while now() < until:
            left = tree(os.getpid())[1:]
            if not left:
                break
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                pass
            time.sleep(0.1)
        for folder in getattr(self, "groups_made", []):
            for group in [*(inner for inner in folder.iterdir() if inner.is_dir()), folder]:
                group_remove(group)
        if os.path.ismount(self.disk):
            LIBC.umount2(str(self.disk).encode(), 2)

    # --- The judgement -------------------------------------------------------------------------

    def holds(self, well, what):
        (self.held if well else self.failed).append(what)

    def judge_growth(self):
        half = [s for s in self.samples if s["at"] >= self.length / 2]
        # What a life fills at its begin is not growth: the tables up to their bounds.
        begun = self.lives[-1].begin - self.begin + FILLED_S
        last = [s for s in half if s["life"] == len(self.lives) and s["broker_life"] == self.broker.pid and s["at"] >= begun]
        for key, what in (("agent_rss", "memory of the agent"), ("broker_rss", "memory of the broker"), ("maps", "kernel memory of the broker's maps")):
            points = [(s["at"], s[key]) for s in last if s[key] is not None]
            if not points:
                self.held.append(f"{what}: NOT READ here")
                continue
            by, mean = rise(points)
            most = max(GROWTH * mean, GROWTH_BYTES)
            self.holds(by <= most, f"{what}: {by / 2**20:+.1f} MiB in {(points[-1][0] - points[0][0]) / 60:.0f} min at {mean / 2**20:.1f} MiB (at most {most / 2**20:.1f})")
        for key, what in (("agent_fds", "descriptors of the agent"), ("broker_fds", "descriptors of the broker")):
            by, mean = rise([(s["at"], s[key]) for s in last])
            self.holds(by <= GROWTH_FDS, f"{what}: {by:+.1f} at {mean:.0f} (at most {GROWTH_FDS})")
        self.holds(len(last) >= 12, f"samples of the second half in one life: {len(last)} (at least 12)")

    def judge_ring(self):
        # What is being written is of no bound: the present period, and its whole file beside it.
        over = [s for s in self.samples if s["ring_bytes"] > (RING_MB << 20) + 2 * s["ring_largest"]]
        most = max(s["ring_bytes"] for s in self.samples)
        self.holds(not over, f"ring: {most / 2**20:.1f} MiB at most (bound {RING_MB} and what is being written)")
        oldest = max(s["ring_oldest_s"] for s in self.samples)
        # It is looked at when a period ends.
        most = KEEP_S + 2 * PERIOD_S + SAMPLE_EVERY_S
        self.holds(oldest <= most, f"ring: the oldest was {oldest:.0f} s old (bound {most}: keep, and the period that is under way)")
        bad = {name: what for name, what in self.recordings.items() if isinstance(what, str)}
        self.holds(not bad, f"recordings: {len(self.recordings)} read by debox report, {len(bad)} not {list(bad.items())[:2] if bad else ''}")

    def judge_scrapes(self):
        times = [took for _, took in self.scrape_ms]
        median = statistics.median(times)
        self.holds(median <= SCRAPE_MEDIAN_MS, f"scrapes: {len(times)}, median {median:.1f} ms (at most {SCRAPE_MEDIAN_MS}), 99 of 100 within {statistics.quantiles(times, n=100)[98]:.0f} ms, longest {max(times):.0f} ms")
        self.holds(not self.unanswered, f"scrapes without an answer while the agent was there: {len(self.unanswered)} {self.unanswered[:3] or ''}")
        self.holds(not self.back, f"counters that went back within a life: {len(self.back)} {self.back[:3] or ''}")
        if self.prometheus:
            asked, up, median_s = self.prometheus_said
            starts = len(self.lives)
            # It may find nobody while an agent starts.
            self.holds(asked >= self.length / SCRAPE_EVERY_S * 0.9 and asked - up <= 3 * starts, f"Prometheus: {asked:.0f} scrapes, {asked - up:.0f} found nobody (at most {3 * starts}), median {median_s * 1000:.1f} ms")
        for key, most in (("programs", PROGRAMS), ("waits", WAITS), ("groups", PROGRAMS)):
            seen = max(s[key] for s in self.samples)
            self.holds(seen <= most + 1, f"series: {key}: {seen} at most (bound {most}, and one for others)")

    def judge_losses(self):
        begun = seen = short = 0
        left = collections.Counter()
        for number, life in enumerate(self.lives, 1):
            if not life.first or life.last is life.first:
                # One that lived for less than two scrapes has none to compare.
                if life.end - life.begin < 4 * SCRAPE_EVERY_S:
                    continue
                self.failed.append(f"agent {number}: no figures of it")
                continue
            (begin, first, counts), (end, last, later) = life.first, life.last
            for name, value in last.items():
                if name.startswith("debox_incomplete_total"):
                    left[name.split('"')[1]] += value
            made = sum(later[key] - counts[key] for key in ("forks", "threads"))
            told = last["debox_threads_total"] - first["debox_threads_total"]
            begun += made
            seen += told
            short += max(0, made - told - LOST_THREADS)
            tick = sum(last[name] - first.get(name, 0) for name in last if name.startswith('debox_thread_seconds_total{program="soak-tick"'))
            wall = end - begin
            # What is read is up to a second old, on both ends; and a thread's parts follow when it next runs.
            self.holds(abs(tick - wall) <= 2.5 + LOST_SHARE * wall, f"agent {number}: of {wall:.0f} s of a thread's life {tick:.1f} s are told")
            self.judge_life(number, life, last)
        self.holds(short <= LOST_SHARE * begun, f"threads and processes: {begun} begun by the storms, {seen:.0f} told (with those of others); {short:.0f} missing, at most {LOST_SHARE:.0%}")
        told = ", ".join(f"{what} {count:.0f}" for what, count in sorted(left.items())) or "nothing"
        self.holds(left["threads_left"] > 0, f"debox_incomplete_total, of all agents: {told}; clients took threads, so threads_left is not 0")
        self.holds(left["inconsistent"] == 0, "debox_incomplete_total: nothing inconsistent")

    def judge_life(self, number, life, last):
        """Its time is in recordings, or its periods are counted as lost."""
        lost = last.get("debox_recordings_lost_total", 0)
        begin, end = life.begin_unix, life.end_unix
        spans = {}
        for name, seconds in self.recordings.items():
            if isinstance(seconds, float):
                # Who is killed between the two leaves a period's parts beside its whole.
                stamp = name.split(".")[0]
                spans[stamp] = max(seconds, spans.get(stamp, 0))
        covered = 0
        for stamp, seconds in spans.items():
            at = calendar.timegm(time.strptime(stamp[:16], "%Y%m%dT%H%M%SZ"))
            if begin - 2 <= at < end - 0.5:
                covered += seconds
        missing = (end - begin) - covered
        counted = lost * PERIOD_S
        # Who was killed has lost what it had not written yet.
        most = counted + (CHECKPOINT_S if life.how == "killed" else 0) + 3 + 0.02 * (end - begin)
        self.holds(missing <= most, f"agent {number} ({life.how}): {end - begin:.0f} s, {covered:.0f} s recorded, {lost:.0f} recordings lost by its count: {missing:.0f} s are missing (at most {most:.0f})")

    def judge_rest(self):
        self.holds(not self.clients_wrong, f"clients: {dict(self.clients)}, failed {len(self.clients_wrong)} {self.clients_wrong[:3] or ''}")
        kept = len([*(self.flight / "kept").iterdir()])
        self.holds(0 < kept <= KEPT_MOST, f"kept: {kept} folders (bound {KEPT_MOST}), {self.kept} recordings")
        said = self.said.read_text(errors="replace")
        self.holds("No space left" in said, "a full disk was said")
        self.holds("goes on" in said, "and that there was room again")
        fleet = [life.last[1] for life in self.lives if life.last]
        written = sum(series.get('debox_fleet_periods_total{outcome="written"}', 0) for series in fleet)
        dropped = sum(series.get('debox_fleet_periods_total{outcome="dropped"}', 0) for series in fleet)
        self.holds(written > 0, f"fleet's tables: {written:.0f} periods written, {dropped:.0f} dropped by count")
        by_itself = [life.how for life in self.lives if "itself" in life.how]
        self.holds(not by_itself, f"agents that ended by themselves: {len(by_itself)} {by_itself[:2] or ''}")

    def judge(self):
        self.judge_growth()
        self.judge_ring()
        self.judge_scrapes()
        self.judge_losses()
        self.judge_rest()

    def report(self, trouble):
        counts = self.counts.all() if hasattr(self, "counts") else {}
        lines = ["# Soak", "", f"{self.length / 60:.0f} minutes, {time.strftime('%Y-%m-%d %H:%M', time.gmtime())}, Linux {os.uname().release}, {os.cpu_count()} CPUs"]
        lines += [f"Begun: {counts}; clients: {dict(self.clients)}; agents: {len(self.lives)}", ""]
        if getattr(self, "groups_not", ""):
            lines += [f"Control groups: {self.groups_not}", ""]
        for tool in ("perf", "prometheus"):
            if not shutil.which(tool):
                lines += [f"NOT RUN: what needs {tool}, which is not installed", ""]
        if trouble:
            lines += [f"**It ended before its time: {trouble}**", ""]
        lines += ["## Held", "", *(f"- {what}" for what in self.held), "", "## Did not hold", "", *(f"- {what}" for what in self.failed or ["nothing"]), ""]
        lines += ["## What it costs", "", "| | microseconds for a message to another process and back |", "|---|---|", *(f"| {when} | {us:.2f} |" for when, us in self.costs.items()), ""]
        lines += ["## What was done", "", *(f"- {at / 60:.1f} min: {what}" for at, what in self.events), ""]
        lines += ["## Each minute", "", "| min | agent MiB | fds | CPU % | broker MiB | fds | CPU % | maps MiB | ring MiB | files | series | load |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]
        per = 60 // SAMPLE_EVERY_S
        for was, s in zip(self.samples[::per], self.samples[per::per], strict=False):
            wall = s["at"] - was["at"]

            def share(key, life):
                return f"{(s[key] - was[key]) / wall * 100:.1f}" if s[life] == was[life] else "(new)"

            maps = "" if s["maps"] is None else f"{s['maps'] / 2**20:.1f}"
            lines.append(
                f"| {s['at'] / 60:.1f} | {s['agent_rss'] / 2**20:.1f} | {s['agent_fds']} | {share('agent_cpu', 'life')} | {s['broker_rss'] / 2**20:.1f} | {s['broker_fds']} |"
                f" {share('broker_cpu', 'broker_life')} | {maps} | {s['ring_bytes'] / 2**20:.2f} | {s['ring_files']} | {s['series']} | {s['load']:.1f} |"
            )
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "report.md").write_text("\n".join(lines) + "\n")
        lives = [{"begin": life.begin - self.begin, "end": life.end and life.end - self.begin, "how": life.how, "first": life.first, "last": life.last} for life in self.lives]
        all_seen = {"samples": self.samples, "lives": lives, "scrape_ms": self.scrape_ms, "recordings": self.recordings, "counts": counts}
        (OUT / "seen.json").write_text(json.dumps(all_seen) + "\n")
        for name in ("said.txt", "broker.txt"):
            if (self.folder / name).exists():
                shutil.copy(self.folder / name, OUT / name)


def port_free():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def main():
    if sys.argv[1:2] == ["--work"]:
        return WORKS[sys.argv[2]](Counts(sys.argv[3]))
    fresh_start()
    fresh_environment()
    minutes = float(os.environ.get("MINUTES", "90"))
    if minutes < MINUTES_MIN:
        print(f"MINUTES is {minutes:g}: at least {MINUTES_MIN}, as a life of the agent has to be long enough to show growth")
        return 2
    if os.geteuid() != 0:
        print("NOT RUN: soak needs root")
        return 77
    for name in ("debox", "deboxd", "debox-agent"):
        if not (BIN / name).exists():
            print(f"{BIN / name} is missing: make build")
            return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    checked(LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    checked(LIBC.unshare(CLONE_NEWNS), "mount namespace")
    trouble = ""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        os.chmod(folder, 0o755)
        soak = Soak(minutes, pathlib.Path(folder))
        try:
            soak.run()
        except KeyboardInterrupt:
            trouble = "interrupted"
        except SystemExit:
            trouble = "asked to end"
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            trouble = str(error)
        finally:
            soak.end()
            soak.report(trouble)
    for what in soak.failed:
        print(f"DID NOT HOLD: {what}")
    if trouble:
        print(f"it ended before its time: {trouble}")
    print(f"{len(soak.held)} held, {len(soak.failed)} did not; {OUT / 'report.md'}")
    return 1 if trouble or soak.failed else 0


if __name__ == "__main__":
    sys.exit(main())
