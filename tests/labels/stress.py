#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How much of the time that programs spend blocked has no label?

Runs programs of many kinds, each under `debox run`, and sums up the blocked
time by label:

    stress.py --debox PATH [--short] [--only NAME,…] [--markdown FILE]

`--short` takes a selection, each for a second or so. Root only, as `debox run`.
stress-ng itself runs as nobody, with bounded memory, and networking in a
network name space of its own that has only the loopback device.

Two shares are computed: of all blocked time, and of what is left without the
waits that idle programs are in by their own will (epoll, nanosleep, …), which
would make any share small. Ends with status 1 if either is 1 % or more, and
names the functions that have no label.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
from fresh_start import fresh_start  # noqa: E402

LIMIT = 0.01

# Waits for the next piece of work, or for one's own children, or by the clock.
IDLE = {
    "epoll", "poll", "select", "nanosleep", "wait-child", "signal-wait", "futex",
    "sock-accept", "unix-accept", "sock-recv", "unix-recv", "pipe-read", "eventfd",
    "timerfd", "signalfd", "inotify", "fanotify", "io-uring", "io-uring-idle", "aio",
    "tty-read", "vfork", "msgqueue", "semop", "signal-stop", "ptrace", "cgroup-freezer",
}

# Not run: these are made to exhaust memory, to change the machine (clock,
# modules, CPUs, watchdog, priorities of others), or to feed random arguments to
# every system call, which may hit anything.
EXCLUDED = (
    "bigheap,brk,stack,oom-pipe,mlockmany,resources,softlockup,sysinval,sysbadaddr,"
    "watchdog,clock,cpu-online,memhotplug,reboot,physpage,dev,sysfs,procfs,bad-ioctl,"
    "opcode,race-sched,pageswap,swap,loop,binderfs,efivar,quota,apparmor,klog,smi,"
    "idle-page,dccp,sctp,rawdev,cyclic,spawn,forkheavy,exec,fork,dynlib,full,zombie"
)


class Workload:
    def __init__(self, name, command, needs=(), setup=None, short=False):
        self.name, self.command, self.needs = name, command, needs
        self.setup, self.short = setup, short


def stress_ng(name, stressors, seconds, short=False):
    command = (
        "unshare --net sh -c 'ip link set lo up 2>/dev/null || ifconfig lo up; "
        "exec setpriv --reuid=65534 --regid=65534 --clear-groups "
        "prlimit --as=2000000000 --nproc=4000 "
        f"stress-ng --quiet --temp-path . {stressors} --timeout {seconds} "
        "--hdd-bytes 32m --fallocate-bytes 32m --readahead-bytes 32m --iomix-bytes 32m "
        "--copy-file-bytes 128m --revio-bytes 32m --vm-bytes 64m --mmap-bytes 32m "
        "--sync-file-bytes 32m --shm-bytes 4m --memfd-bytes 32m --tmpfs-mmap-file'"
    )
    return Workload(name, command, ("stress-ng", "setpriv", "prlimit", "unshare"), None, short)


def stress_class(name, seconds=1):
    return stress_ng(
        f"stress-ng --class {name}", f"--class {name} --sequential 2 -x {EXCLUDED}", seconds
    )


NGINX = textwrap.dedent("""
    daemon off; master_process on; worker_processes 2; user root;
    error_log stderr error; pid {dir}/nginx.pid;
    events {{ worker_connections 512; }}
    http {{
      access_log {dir}/access.log; client_body_temp_path {dir}/t1;
      proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3; uwsgi_temp_path {dir}/t4;
      scgi_temp_path {dir}/t5; sendfile on;
      server {{ listen unix:{dir}/web.sock; listen 127.0.0.1:{port}; root {dir}/www; }}
    }}
""")


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def setup_nginx(directory):
    www = os.path.join(directory, "www")
    os.makedirs(www)
    for number in range(64):
        with open(os.path.join(www, f"{number}.bin"), "wb") as file:
            file.write(os.urandom(256 << 10))
        # Written out and dropped from the cache: the server reads from disk.
        with open(os.path.join(www, f"{number}.bin"), "rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    port = free_port()
    with open(os.path.join(directory, "nginx.conf"), "w") as file:
        file.write(NGINX.format(dir=directory, port=port))
    with open(os.path.join(directory, "load.lua"), "w") as file:
        file.write(
            "local n = 0\nrequest = function()\n  n = n + 1\n"
            "  return wrk.format('GET', '/' .. (n % 64) .. '.bin')\nend\n"
        )
    with open(os.path.join(directory, "load.sh"), "w") as file:
        file.write(
            f"nginx -p {directory} -c {directory}/nginx.conf &\nserver=$!\n"
            f"sleep 0.5\nwrk -t1 -c8 -d$1 -s {directory}/load.lua http://127.0.0.1:{port}/ >/dev/null\n"
            "kill -QUIT $server\nwait $server\n"
        )


SQLITE = """
import os, sqlite3, sys, threading
mode, rounds = sys.argv[1], int(sys.argv[2])
with sqlite3.connect("base.db") as base:
    base.execute("pragma journal_mode=" + mode)
    base.execute("create table if not exists t (id integer primary key, body text)")
def work(number):
    base = sqlite3.connect("base.db", timeout=60)
    base.execute("pragma synchronous=full")
    for i in range(rounds):
        with base:
            base.execute("insert into t (body) values (?)", ("x" * 200,))
    base.close()
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


def setup_sqlite(directory):
    with open(os.path.join(directory, "commit.py"), "w") as file:
        file.write(SQLITE)


def setup_make(directory):
    def write(name, text):
        with open(os.path.join(directory, name), "w") as file:
            file.write(text)

    for number in range(12):
        write(f"o{number}.c", f'#include <stdio.h>\nint f{number}(int a) {{ return printf("%d", a); }}\n')
    write("main.c", "int main(void) { return 0; }\n")
    names = " ".join(f"o{number}.o" for number in range(12))
    write("Makefile", f"prog: {names} main.o\n\tcc -o $@ $^\n")


def setup_redis(directory):
    port = free_port()
    with open(os.path.join(directory, "load.sh"), "w") as file:
        file.write(
            f"redis-server --port {port} --bind 127.0.0.1 --appendonly yes --appendfsync always "
            f"--dir {directory} --daemonize no --save '' >/dev/null &\nserver=$!\nsleep 0.5\n"
            f"redis-benchmark -h 127.0.0.1 -p {port} -q -n $1 -c 8 -t set,lpush >/dev/null\n"
            f"redis-cli -h 127.0.0.1 -p {port} shutdown nosave\nwait $server\n"
        )


def fio(name, options, short=False):
    command = (
        "fio --name=job --directory=. --size=48m --time_based --output=/dev/null "
        f"--unlink=1 --runtime={{seconds}} {options}"
    )
    return Workload(f"fio {name}", command, ("fio",), None, short)


GIT = (
    "git -c init.defaultBranch=main init -q r && cd r && git config user.email a@b.c && "
    "git config user.name n && git config core.fsync all && "
    "for d in 1 2 3 4 5; do mkdir $d; for n in `seq 1 {files}`; do echo $d$n > $d/$n; done; done && "
    "git add . && git commit -qm one && git -c gc.pruneExpire=now gc -q && git clone -q . ../copy && "
    "git -C ../copy status >/dev/null && rm -r ../copy && git checkout -q -b two && git status >/dev/null"
)

WORKLOADS = [
    stress_class("io"),
    stress_class("filesystem"),
    stress_class("network"),
    stress_class("os"),
    stress_class("pipe"),
    stress_class("scheduler"),
    stress_class("interrupt"),
    stress_class("vm"),
    stress_class("memory"),
    stress_ng(
        "stress-ng mix",
        "--hdd 1 --dir 1 --rename 1 --pipe 1 --futex 1 --sock 1 --mmap 1 --flock 1 --sem-sysv 1",
        2,
        short=True,
    ),
    fio("random read, direct", "--rw=randread --direct=1 --ioengine=psync", short=True),
    fio("random write, fsync", "--rw=randwrite --fsync=4 --ioengine=psync --numjobs=2", short=True),
    fio("mmap", "--rw=randrw --ioengine=mmap --invalidate=1"),
    fio("libaio", "--rw=randrw --direct=1 --ioengine=libaio --iodepth=8"),
    fio("io_uring", "--rw=randrw --ioengine=io_uring --iodepth=8"),
    fio("splice", "--rw=read --ioengine=splice --invalidate=1"),
    Workload("nginx + wrk", "sh load.sh {seconds}s", ("nginx", "wrk"), setup_nginx, True),
    Workload(
        "sqlite, rollback journal", "python3 commit.py delete {rounds}", ("python3",), setup_sqlite, True
    ),
    Workload("sqlite, WAL", "python3 commit.py wal {rounds}", ("python3",), setup_sqlite),
    Workload(
        "redis, appendfsync always",
        "sh load.sh {requests}",
        ("redis-server", "redis-benchmark", "redis-cli"),
        setup_redis,
    ),
    Workload("git", GIT, ("git",), None, True),
    Workload("make -j4", "make -s -j4 prog", ("make", "cc"), setup_make, True),
    Workload(
        "tar, find, sync",
        "tar cf a.tar /usr/include && find /usr/share -newer a.tar | wc -l >/dev/null; "
        "tar xf a.tar && sync && rm -rf usr a.tar",
        ("tar", "find"),
    ),
]


def run(workload, options):
    directory = tempfile.mkdtemp(prefix="debox-labels-", dir=options.directory)
    os.chmod(directory, 0o777)
    try:
        if workload.setup:
            workload.setup(directory)
        report = os.path.join(directory, "report.json")
        numbers = (
            {"seconds": 1, "rounds": 30, "requests": 300, "files": 20}
            if options.short
            else {"seconds": 5, "rounds": 200, "requests": 3000, "files": 200}
        )
        command = workload.command
        for name, number in numbers.items():
            command = command.replace("{" + name + "}", str(number))
        arguments = [options.debox, "run", "--json", "-o", report]
        if options.labels:
            arguments += ["--labels", options.labels]
        done = subprocess.run(
            arguments + ["--", "sh", "-c", command],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=options.timeout,
            text=True,
        )
        # stress-ng has states of its own for stressors that could not run here.
        allowed = (0, 2, 3, 4) if "stress-ng" in workload.name else (0,)
        if done.returncode not in allowed:
            sys.exit(f"{workload.name}: status {done.returncode}\n{done.stderr}")
        with open(report) as file:
            return json.load(file)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def percent(part, whole):
    return f"{100 * part / whole:.3f} %" if whole else "–"


def main():
    fresh_start()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--debox", default="target/release/debox")
    parser.add_argument("--short", action="store_true", help="a selection, a second each")
    parser.add_argument("--only", help="workloads whose name contains one of these, comma-separated")
    parser.add_argument("--markdown", help="write the table to this file, too")
    parser.add_argument("--labels", help="a file of rules for debox run --labels")
    parser.add_argument("--directory", help="where files are written: a real disk, not tmpfs")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for each workload")
    options = parser.parse_args()
    options.debox = os.path.abspath(options.debox)
    if os.geteuid() != 0:
        sys.exit("stress.py: debox run needs root here")

    chosen = [w for w in WORKLOADS if not options.short or w.short]
    if options.only:
        words = options.only.split(",")
        chosen = [w for w in chosen if any(word in w.name for word in words)]
    missing = sorted({tool for w in chosen for tool in w.needs if not shutil.which(tool)})
    if missing:
        sys.exit(f"stress.py: not installed: {', '.join(missing)} (setup/packages.sh test)")

    rows, everything, unknown = [], collections.Counter(), collections.Counter()
    for workload in chosen:
        report = run(workload, options)
        blocked, where = 0, collections.Counter()
        bad = 0
        for row in report["blocking"]:
            blocked += row["total_ns"]
            if row["unlabelled"]:
                bad += row["total_ns"]
                unknown[f"{row['function']} ({row['call']}, {workload.name})"] += row["total_ns"]
            else:
                where[row["label"]] += row["total_ns"]
        # Sleeps that found no row (tables full) have no label either.
        lost = max(0, report["totals"]["sleeps_ns"] - blocked)
        if lost > 1_000_000:
            unknown[f"no row ({workload.name})"] += lost
            bad += lost
            blocked += lost
        busy = blocked - sum(ns for label, ns in where.items() if label in IDLE)
        rows.append((workload.name, report["totals"]["calls"], blocked, busy, bad, where))
        everything.update(where)
        print(
            f"{workload.name}: {blocked / 1e9:.2f} s blocked, {percent(bad, blocked)} unlabelled, "
            f"{percent(bad, busy)} of {busy / 1e9:.2f} s that were not idle",
            flush=True,
        )

    blocked, busy = sum(r[2] for r in rows), sum(r[3] for r in rows)
    bad = sum(r[4] for r in rows)
    lines = [
        "| workload | calls | blocked, s | not idle, s | unlabelled of blocked | of not idle | most time |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for name, calls, all_ns, busy_ns, bad_ns, where in rows:
        top = ", ".join(label for label, _ in where.most_common(5))
        lines.append(
            f"| {name} | {calls:,} | {all_ns / 1e9:.2f} | {busy_ns / 1e9:.2f} | "
            f"{percent(bad_ns, all_ns)} | {percent(bad_ns, busy_ns)} | {top} |"
        )
    lines.append(
        f"| **all** | {sum(r[1] for r in rows):,} | {blocked / 1e9:.2f} | {busy / 1e9:.2f} | "
        f"**{percent(bad, blocked)}** | **{percent(bad, busy)}** | {len(everything)} labels |"
    )
    print("\n" + "\n".join(lines))
    print("\nlabels: " + ", ".join(f"{l} {ns / 1e9:.3f} s" for l, ns in everything.most_common()))
    if unknown:
        print("\nwithout a label:")
        for what, ns in unknown.most_common(40):
            print(f"  {ns / 1e6:10.3f} ms  {what}")
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write("\n".join(lines) + "\n")
    if not blocked:
        sys.exit("stress.py: nothing was blocked, so nothing was measured")
    if bad >= LIMIT * blocked or bad >= LIMIT * busy:
        sys.exit(f"stress.py: {percent(bad, blocked)} unlabelled, {percent(bad, busy)} of what was not idle")


if __name__ == "__main__":
    main()
