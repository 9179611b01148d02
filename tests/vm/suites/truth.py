# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a call's record and account say

An emulated machine is slow and stalls at any moment, so times are bounded from
below only; counts, labels and sums are exact.
"""

from guest import *  # noqa: F403

PROGRAMS = [
    "release/debox", "release/deboxd", "release/libdebox-wrap.so", "release/libdebox.so.0",
    "truth/truth", "truth/calls", "truth/calls-static", "truth/calls-32", "truth/gocalls", "truth/storm",
]  # fmt: skip
# So slow that reading a file in is seen to block.
DISK_OPTIONS = "throttling.bps-read=6000000"

# Rows of docs/KERNELS.md.
PROGRAMS_LOAD = "BPF programs load and attach"
DOCTOR = "`debox doctor` finds all that the basic features need"
RUN_WRAP = "wrap capture under `debox run --wrap`"
RUN = "boundary capture: exact counts through threads, fork, vfork, exec, kill, 32-bit, static and Go programs"
SLEEP = "records: sleeps, their labels and times, wrap capture"
RUNSLEEP = "accounts: blocking places, boundary capture"
FAULTS = "page faults in the call that took them"
PAGE_IN = "major faults apart from minor ones"
RUNQ = "waits for a CPU apart from sleeps"
INODE_LOCK = "who held the lock, who woke the sleeper"
SPAN = "spans"
SITES_VERIFIED = "sites recognised in the raw stack, none wrong"
NOTHING_STAYS_ATTACHED = "nothing stays attached afterwards"

BEFORE = {}



@check("kernel-is-the-one-under-test", always=True)
def _():
    equal(os.uname().release, command_line("debox.release"), "the release")
    BEFORE.update(footprint())


@check("programs-load", feature=PROGRAMS_LOAD, smoke=True)
def _():
    with Broker("-vvv") as broker:
        broker.bracketed("nanosleep", "1")


@check("doctor", feature=DOCTOR, smoke=True)
def _():
    doctor = json.loads(execute([f"{HERE}/debox", "doctor", "--json"]).stdout)
    expect(doctor["ok"], doctor["verdict"])
    refused = [c for c in doctor["checks"] if c["state"] not in ("ok", "degraded", "info")]
    expect(not [c for c in refused if c["basic"]], refused)
    by_name = {c["name"]: c["state"] for c in doctor["checks"]}
    # All that these kernels are known to have.
    for name in ("bpf-load", "sched_switch", "sys_enter", "contention_begin", "sched_waking", "task-iterator",
                 "perf-major-faults", "frozen-maps", "kernel-symbols", "sched-info"):
        equal(by_name.get(name), "ok", "doctor's word on", name, "in", doctor["checks"])


@check("run-getppid", feature=RUN, smoke=True)
def _():
    equal(calls("getppid", "1000").call("getppid")["count"], 1000, "getppid")


@check("run-threads", feature=RUN)
def _():
    r = calls("threads", "50", "10")
    equal(r.call("getppid")["count"], 500, "getppid")
    equal(r.all["totals"]["threads_started"], 50, "threads started")


@check("run-fork", feature=RUN, smoke=True)
def _():
    r = calls("fork", "20")
    equal(r.call("getppid")["count"], 20, "getppid")
    equal(r.call("exit_group")["unfinished"], 21, "exits")


@check("run-vfork", feature=RUN)
def _():
    r = calls("vfork", "10")
    equal(r.call("vfork")["count"], 10, "vfork")
    equal(r.call("execve")["count"], 11, "execve")
    expect([b for b in r.blocked("vfork") if b["label"] == "vfork"], r.blocked("vfork"))


@check("run-exec", feature=RUN)
def _():
    r = calls("exec", "5")
    equal(r.call("getppid")["count"], 6, "getppid")
    equal(r.call("execve")["count"], 6, "execve")


@check("run-thread-exec", feature=RUN)
def _():
    calls("thread-exec", expected=7)


@check("run-killed", feature=RUN, smoke=True)
def _():
    r = calls("killed", expected=-signal.SIGKILL)
    read = r.call("read")
    equal(read["unfinished"] + read["restarted"], 1, "reads that were killed:", read)
    expect([b for b in r.blocked("read") if b["label"] == "pipe-read"], "no pipe-read:", r.blocked("read"))


@check("run-errors", feature=RUN)
def _():
    equal(calls("errors", "77").call("close")["errors"], 77, "errors of close")


@check("run-handler", feature=RUN)
def _():
    r = calls("handler", "20")
    equal(r.call("getppid")["count"], 21, "getppid")


@check("run-unknown-call", feature=RUN)
def _():
    r = calls("unknown")
    equal(sum(c["errors"] for c in r.all["calls"] if c["nr"] is None), 1, "unknown calls")


@check("run-static", feature=RUN)
def _():
    equal(calls("getppid", "1000", program="calls-static").call("getppid")["count"], 1000, "getppid")


@check("run-32-bit", feature=RUN)
def _():
    r = calls("getppid", "500", program="calls-32")
    equal(r.call("getppid", 32)["count"], 500, "32-bit getppid")
    equal(r.call("getppid")["count"], 0, "64-bit getppid")


@check("run-go", feature=RUN)
def _():
    r = calls("300", program="gocalls")
    equal(r.call("getppid")["count"], 1200, "getppid")
    expect(
        [b for b in r.blocked("read") if b["label"] == "pipe-read" and b["max_ns"] > 20 * MS],
        "no pipe-read of 20 ms:", r.all["blocking"],
    )


@check("run-wrap", feature=RUN_WRAP, smoke=True)
def _():
    r = Report([f"{HERE}/truth", "-d", "/var/tmp", "pipe", "40"], ["--wrap"])
    expect([b for b in r.blocked("read") if b["label"] == "pipe-read" and b["max_ns"] > 20 * MS], r.all["blocking"])


def due_ns(ms):
    """What the call must have slept at least. Its end is set before it begins to
    wait (by a timer, or by a child with a clock of its own), and where the
    machine stalls in between, part of the time has gone by then."""
    return ms * MS // 2


def blocks_bracketed(scenario, ms, label):
    r = record(one(scenario, str(ms)))
    s = sleep_at(r, label)
    expect(s["total_ns"] >= due_ns(ms), "blocked for only", s)
    expect(r["nvcsw"] >= 1, r)


def blocks_run(scenario, ms, call, label):
    r = Report([f"{HERE}/truth", "-d", "/var/tmp", scenario, str(ms)], shared())
    at = sum(b["total_ns"] for b in r.blocked(call) if b["label"] == label)
    expect(at >= due_ns(ms), call, "blocked at", label, "for", at, "ns only:", r.blocked(call))


for name, ms, call, label in (
    ("nanosleep", 50, "clock_nanosleep", "nanosleep"),
    ("pipe", 200, "read", "pipe-read"),
    ("futex", 50, "futex", "futex"),
    ("flock", 200, "flock", "flock"),
    ("accept", 200, "accept4", "sock-accept"),
):
    check(f"{name}-bracketed", name, ms, label, feature=SLEEP)(blocks_bracketed)
    check(f"{name}-run", name, ms, call, label, feature=RUNSLEEP)(blocks_run)


@check("eintr", feature=SLEEP, smoke=True)
def _():
    line = one("eintr", "200")
    equal((line["value"], line["errno"]), (-1, 4), "the call's own result")
    r = record(line)
    equal(r["retval"], -4, "the record's result")
    expect(sleep_at(r, "pipe-read")["total_ns"] >= 100 * MS, line)


@check("restart-bracketed", feature=SLEEP)
def _():
    line = one("restart", "200")
    equal(line["value"], 1, "bytes")
    s = sleep_at(record(line), "pipe-read")
    expect(s["total_ns"] >= due_ns(400) and s["count"] >= 2, line)


@check("restart-run", feature=RUNSLEEP, smoke=True)
def _():
    r = Report([f"{HERE}/truth", "-d", "/var/tmp", "restart", "60"], shared())
    expect(r.call("read")["restarted"] >= 1, r.call("read"))


@check("faults-bracketed", feature=FAULTS)
def _():
    line = one("faults", "300")
    r = record(line)
    equal((r["minor_faults"], r["major_faults"]), (300, 0), "faults of", line)


@check("faults-run", feature=FAULTS, smoke=True)
def _():
    # With a broker of its own, as `debox run` has it where none is permanent.
    r = Report([f"{HERE}/truth", "faults", "300"])
    n = r.call("read")["minor_faults"]
    # The dynamic loader's reads fault a few more.
    expect(300 <= n < 340, n, "minor faults of read")


def perf_event_paranoid(value):
    with open("/proc/sys/kernel/perf_event_paranoid", "w") as file:
        file.write(value)


def page_in():
    line = one("page-in", "10")
    r = record(line)
    expect([s for s in r["sleeps"] if s["label"] == "page-in"], "no page-in:", line)
    expect(line["majflt"] >= 1, "the file was cached:", line)
    expect(abs(r["minor_faults"] + r["major_faults"] - line["minflt"] - line["majflt"]) <= 2, line)
    equal(r["nvcsw"], line["nvcsw"], "voluntary switches, getrusage's beside it, of", line)
    return line, r


@check("page-in", feature=PAGE_IN)
def _():
    # Debian's default, 3, is Debian's own: perf events for nobody without
    # CAP_SYS_ADMIN, which deboxd gives up. 2 is the kernel's default.
    perf_event_paranoid("2")
    line, r = page_in()
    equal(r["major_faults"], line["majflt"], "major faults, getrusage's beside it, of", line)


@check("page-in-without-perf-events")
def _():
    perf_event_paranoid("3")
    line, r = page_in()
    expect(r["major_faults"] in (0, line["majflt"]), "some major faults, but not all:", line)


@check("fsync", feature=SLEEP, smoke=True)
def _():
    line = one("fsync", "4")
    r = record(line)
    expect(r["blocked_ns"] > 0, line)
    known = ("page-writeback", "journal-commit", "device-flush", "block-io", "buffer-io", "buffer-write", "block-request", "page-lock")
    for s in r["sleeps"]:
        expect(s["label"] in known, s["label"], "in", line)


@check("runq", feature=RUNQ)
def _():
    lines = shared_broker().bracketed("runq", "40")
    equal(len(lines), 40, "lines")
    runq = books = close = slept = 0
    for line in lines:
        r = record(line)
        # Where the machine stalls, the 3 ms are over before the thread sleeps.
        slept += r["blocked_ns"] >= 2 * MS
        expect(r["blocked_ns"] > 0 or r["nvcsw"] == 0, line)
        runq += r["runq_ns"]
        books += line["wait_ns"]
        # The thread may wait between the two readings outside of the call, too.
        close += abs(r["runq_ns"] - line["wait_ns"]) <= 1000
    expect(slept >= 20, slept, "of 40 sleeps took their time:", lines)
    expect(runq > 5 * MS, "a hog on the same CPU, and no wait:", runq, "ns")
    expect(close >= 20, close, "of 40 waits agree with schedstat to 1 us:",
           [(x["record"]["runq_ns"], x["wait_ns"]) for x in lines])
    expect(runq <= books + 40_000, "more than the kernel's own book:", runq, ">", books)


@check("hog", feature=RUNQ)
def _():
    line = one("hog", "2")
    equal(line["conserved"], 1, "conservation in", line)
    expect(line["outside_ns"] > 2 * MS, "the hog never got in:", line)
    expect(all(r <= u for r, u in zip(line["record_max_ns"], line["user_max_ns"])), line)
    expect(line["runq_beyond_1ms"] < line["user_beyond_1ms"], line)


@check("inode-lock", feature=INODE_LOCK)
def _():
    line = one("inode-lock", "256")
    s = sleep_at(record(line), "inode-lock")
    expect(s["total_ns"] > MS, line)
    equal(s["holder_pid"], line["other"], "the holder in", line)
    equal(s["waker_pid"], line["other"], "the waker in", line)


@check("span", feature=SPAN)
def _():
    line = one("span", "40")
    r = line["record"]
    equal(r["cpu_ns"] + r["blocked_ns"] + r["runq_ns"], r["wall_ns"], "the sum of", line)
    expect(r["blocked_ns"] >= due_ns(40) and r["wall_ns"] >= 50 * MS and r["cpu_ns"] > 0, line)
    # A preemption's two ends are stamped microseconds apart from the scheduler's.
    expect(r["runq_ns"] <= line["wait_ns"] + 50_000, line)


@check("sites-verified", feature=SITES_VERIFIED)
def _():
    with Broker("--verify-sites") as broker:
        script = (
            "for i in 1 2 3; do T pipe 5; T futex 5; T flock 5; T accept 5; T fsync 2; T page-in 4; T inode-lock 30; done "
            "&& tar cf /var/tmp/a.tar /lib && sync "
            "&& (seq 1500 | while read a; do echo $a; done) | (while read a; do :; done) "
            f"&& {HERE}/storm 16 16 2"
        ).replace("T ", f"{HERE}/truth -d /var/tmp ")
        # Twice: what was learned in the first round is recognised in the second.
        for _ in range(2):
            Report(["/bin/sh", "-c", script], ["--socket", broker.socket])
        status = broker.status()
        if status["site_mismatches"]:
            for line in lines_of(broker.log.name):
                if "recognised wrongly" in line:
                    note(symbols_in(line))
    equal(status["site_mismatches"], 0, "mismatches in", status)
    expect(status["site_hits"] > 200 and status["site_hits"] > status["site_walks"], status)
    note(f"{status['site_hits']} sites recognised and verified, {status['site_walks']} walked, {status['site_failures']} walks failed, 0 differ")


@check("nothing-stays-attached", feature=NOTHING_STAYS_ATTACHED, smoke=True)
def _():
    shared_broker_stop()
    footprint_expect(BEFORE)


@check("kernel-log-is-clean", smoke=True)
def _():
    kernel_log_expect_clean()
