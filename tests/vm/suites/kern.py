# SPDX-License-Identifier: MIT OR Apache-2.0
"""Metrics in kernel functions (`debox kern`)"""

import fcntl
import re
import select
import struct

from guest import *

PROGRAMS = ["release/debox", "truth/calls", "truth/truth", "truth/storm", "proxy/proxy"]
LIMIT_S = 1800
NEW = os.uname().release.startswith("6.12")
ALL_WAYS = {"session": "kprobe.session", "multi": "kprobe.multi", "fentry": "fentry/fexit", "kprobe": "kprobe"}
# 6.1 has neither of the first two.
WAYS = list(ALL_WAYS)[0 if NEW else 2:]


def kern(*arguments, expected=0):
    done = execute([f"{HERE}/debox", "kern", "--quiet", "--json", "-o", "/tmp/kern.json", *arguments], expected)
    if expected:
        return done.stderr
    with open("/tmp/kern.json") as file:
        return json.load(file)


def totals(document):
    return {r["name"]: r["totals"] for r in document["resources"]}


def functions_for(way, names):
    """schedule() by fentry and fexit is refused: see kern-waiting-functions."""
    return [name for name in names if (way, name) != ("fentry", "schedule")]


native("`debox kern`: system calls", "kern_says_its_schema_first_and_how_a_call_is_measured")


@check("kern-counts-calls", feature="`debox kern`: system calls", smoke=True)
def _():
    document = kern("getppid()", "--", f"{HERE}/calls", "getppid", "1000")
    equal(totals(document)["getppid()"]["calls"], 1000, "getppid")


def counts_functions(way):
    if way not in WAYS:
        cell(f"`debox kern`: functions by {ALL_WAYS[way]}", "no")
        why = kern("__x64_sys_close", "--way", way, "-d", "1s", expected=125)
        expect(f"cannot be measured by {ALL_WAYS[way]}" in why, why)
        return
    # Two witnesses that know nothing of each other: tracepoint and function.
    document = kern("close()", "__x64_sys_close", "--way", way, "--", f"{HERE}/calls", "errors", "500")
    seen = totals(document)
    equal(seen["__x64_sys_close"]["calls"], seen["close()"]["calls"], "close by", way, "beside its tracepoint")
    expect(seen["close()"]["calls"] >= 500, seen)
    equal(seen["__x64_sys_close"]["returned"], seen["__x64_sys_close"]["calls"], "returns")
    # The function lies inside of the call, also in time.
    expect(seen["__x64_sys_close"]["total_ns"] <= seen["close()"]["total_ns"], seen)
    equal(seen["close()"]["total_ns"] - seen["close()"]["self_ns"], seen["__x64_sys_close"]["total_ns"], "the rest")


for way, name in ALL_WAYS.items():
    check(f"kern-counts-{way}", way, feature=f"`debox kern`: functions by {name}")(counts_functions)


@check("kern-latency-of-a-sleep", feature="`debox kern`: latency, time off the CPU", smoke=True)
def _():
    document = kern("hrtimer_nanosleep", "clock_nanosleep()", "--", f"{HERE}/truth", "nanosleep", "60")
    for name, t in totals(document).items():
        expect(t["max_ns"] >= 60 * MS and t["off_cpu_ns"] >= 30 * MS, name, t)


def sleepers(way):
    # The shell is ended with the tool, its sleepers are not.
    command = "for i in 1 2 3 4 5 6; do sleep 600 >/dev/null 2>&1 & echo $! >>/tmp/sleepers; done; wait"
    if os.path.exists("/tmp/sleepers"):
        os.unlink("/tmp/sleepers")
    try:
        document = kern("hrtimer_nanosleep", "--way", way, "-d", "5s", "--", "sh", "-c", command)
        # Detached while they sleep on in there. Of fentry and fexit the kernel
        # keeps what they will return through until they do: it is gone
        # afterwards.
        equal(len(bpf_ids(31)), AT_REST["alone"]["BPF links"], "BPF links while the threads are still inside")
        pids = [int(line) for line in lines_of("/tmp/sleepers")]
        equal([os.path.exists(f"/proc/{pid}") for pid in pids], [True] * 6, "sleepers that live")
    finally:
        for pid in lines_of("/tmp/sleepers"):
            os.kill(int(pid), signal.SIGKILL)
    t = totals(document)["hrtimer_nanosleep"]
    last = document["resources"][0]["series"][-1]["concurrency"]
    if way in ("session", "multi"):
        # Before 6.14 all functions have two instances for each CPU in common:
        # who finds none is not seen to return, and not timed.
        expect(t["calls"] >= 1 and 0.9 < last <= 6.001, "calls", t, "threads inside at the end", last)
        note(f"{ALL_WAYS[way]}: of 6 sleepers", t["calls"], "were seen")
    else:
        equal((t["calls"], t["inside_now"], t["returned"]), (6, 6, 0), "calls, inside, returned")
        expect(5.9 < last <= 6.001, "threads inside at the end:", last)


@check("kern-concurrency-of-sleepers", feature="`debox kern`: threads inside that do not return")
def _():
    for way in WAYS:
        sleepers(way)
        footprint_expect_rest()


@check("kern-waiting-functions", feature="`debox kern`: functions in which idle threads stay")
def _():
    # Their threads would keep what fentry and fexit put there for hours.
    document = kern("schedule", "-d", "2s", "--", f"{HERE}/storm", "4", "4", "1")
    expect(document["resources"][0]["way"] != ALL_WAYS["fentry"], document["resources"][0]["way"])
    expect(totals(document)["schedule"]["calls"] > 0, totals(document))
    why = kern("schedule", "--way", "fentry", "-d", "1s", expected=125)
    expect("stay inside of it for hours" in why, why)


@check("kern-killed-inside", feature="`debox kern`: threads killed inside")
def _():
    victims = "for i in 1 2 3 4 5 6; do sleep 600 >/dev/null 2>&1 & p=\"$p $!\"; done; sleep 4; kill -9 $p; wait; sleep 2"
    document = kern("hrtimer_nanosleep", "clock_nanosleep()", "-d", "40s", "--", "sh", "-c", victims)
    for name, t in totals(document).items():
        expect(t["calls"] >= 8 and t["inside_now"] == 0, name, t)


@check("kern-never-returns", feature="`debox kern`: functions that never return")
def _():
    # More threads than a probe on returns has instances, and soon enough one after
    # another that those of the dead are not yet free.
    document = kern("do_exit", "exit_group()", "--", "sh", "-c", "i=0; while [ $i -lt 40 ]; do /bin/true; i=$((i+1)); done")
    for name, t in totals(document).items():
        equal((t["calls"], t["returned"]), (41, 0), "calls of 40 processes and the shell, returned", name, t)
        equal(t["never_returned"] + t["inside_now"], t["calls"], "threads that ended inside", name, t)


@check("kern-life-of-processes", feature="`debox kern`: fork, exec and exit paths")
def _():
    functions = ["kernel_clone", "copy_process", "bprm_execve", "begin_new_exec", "do_exit", "exit_mmap", "wait_consider_task"]
    load = f"for i in 1 2 3; do {HERE}/storm 8 8 1; done; for i in 1 2 3 4 5 6 7 8 9; do /bin/true; done"
    document = kern(*functions, "--", "sh", "-c", load)
    seen = totals(document)
    expect(seen["kernel_clone"]["calls"] >= 9 and seen["do_exit"]["calls"] >= 9, seen)
    equal(seen["kernel_clone"]["returned"], seen["kernel_clone"]["calls"], "clones that returned")


@check("kern-what-bpf-uses", feature="`debox kern`: functions that BPF itself uses")
def _():
    wanted = ["_raw_spin_lock", "_raw_spin_lock_irqsave", "kmem_cache_alloc", "ktime_get_mono_fast_ns", "schedule",
              "finish_task_switch.isra.0", "bpf_get_current_task", "array_map_lookup_elem", "update_curr", "__rcu_read_lock",
              "kfree", "try_to_wake_up", "perf_trace_buf_alloc", "irq_enter_rcu", "hrtimer_interrupt"]
    there = set(line.split()[2] for line in lines_of("/proc/kallsyms"))
    wanted = [name for name in wanted if name in there]
    expect(len(wanted) >= 8, wanted)
    for way in WAYS:
        document = kern(*functions_for(way, wanted), "--way", way, "--max-overhead", "100", "-d", "2s", "--", f"{HERE}/storm", "8", "8", "1")
        seen = totals(document)
        expect(seen["kfree"]["calls"] > 0, way, seen)
    # What every fentry program runs through before it can tell that it is inside
    # of itself: Linux 6.1 would attach to it, and stand still.
    why = kern("__rcu_read_lock", "--way", "fentry", "-d", "1s", expected=125)
    expect("runs through it" in why, why)


@check("kern-storm-of-attaching", feature="`debox kern`: attach and detach storms")
def _():
    load = subprocess.Popen(["sh", "-c", f"while true; do {HERE}/storm 4 4 1; sleep 0.3; done"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)
    try:
        for way in WAYS:
            kern(*functions_for(way, ["vfs_read", "vfs_write", "do_exit", "schedule"]), "--way", way, "-d", "0.2s")
    finally:
        os.killpg(load.pid, signal.SIGKILL)
        load.wait()


@check("kern-sigkill", feature="`debox kern`: detached after SIGKILL of the tool")
def _():
    for way in WAYS:
        tool = subprocess.Popen([f"{HERE}/debox", "kern", "--text", "--way", way, "-i", "0.3", "vfs_read", "vfs_write", "read()"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = tool.stdout.readline()
        expect("s" in line, way, "printed nothing")
        expect(len(bpf_ids(11)) > AT_REST["alone"]["BPF programs"], way, "attached nothing")
        tool.send_signal(signal.SIGKILL)
        tool.wait()
        footprint_expect_rest()


@check("kern-limit", feature="`debox kern`: limit of functions")
def _():
    why = kern("ext4_*", "-d", "1s", expected=125)
    expect("--max-functions" in why and "at most 200" in why, why)
    few = ["ext4_file_*"]
    why = kern(*few, "--max-functions", "2", "-d", "1s", expected=125)
    expect("at most 2 " in why, why)
    document = kern(*few, "--max-functions", "60", "--", f"{HERE}/proxy", "-p", "-d", "/var/tmp", "-n", "30")
    called = {n: t for n, t in totals(document).items() if t["calls"]}
    expect("ext4:ext4_file_write_iter" in called or "ext4_file_write_iter" in called, sorted(totals(document)))
    expect(len(document["resources"]) > 2, sorted(totals(document)))
    if NEW:  # elsewhere so many would take minutes
        document = kern("ext4_*", "--max-functions", "3000", "--", f"{HERE}/proxy", "-p", "-d", "/var/tmp", "-n", "30")
        called = {n: t for n, t in totals(document).items() if t["calls"]}
        # The files are there from before.
        expect("ext4_file_open" in called and called["ext4_file_open"]["calls"] >= 30, sorted(called))
        expect(len(document["resources"]) > 300, len(document["resources"]))


@check("kern-cost-before", feature="`debox kern`: the cost is shown before attaching")
def _():
    load = ["--", "dd", "if=/dev/zero", "of=/dev/null", "bs=256k", "count=100000000"]
    listing = execute([f"{HERE}/debox", "kern", "--list", "vfs_read"])
    expect(re.search(r"vfs_read: by \S+: about [0-9.]+ s to attach", listing.stdout), listing.stdout)
    # Each step before it is taken. (By kprobes, which attach in a moment on
    # all kernels.)
    done = execute([f"{HERE}/debox", "kern", "--auto", "vfs_read", "--way", "kprobe", "--depth", "1", "--branches", "1",
                    "-i", "0.3", *load])
    lines = [l for l in done.stderr.splitlines() if "vfs_read" in l]
    expect(len(lines) >= 3, done.stderr)
    expect(re.search(r"vfs_read: by kprobe\S*: about [0-9.]+ s to attach, [0-9.]+ s to detach, and [0-9.]+ µs a call", done.stderr) or
           re.search(r"about [0-9.]+ s to attach, [0-9.]+ s to detach, and [0-9.]+ µs a call", lines[0]), done.stderr)
    expect("vfs_read itself: " in lines[0] and "to attach" in lines[0], lines)
    expect("what vfs_read calls: " in lines[1] and "to attach" in lines[1], lines)
    expect("%  vfs_read" in "\n".join(lines[2:]), lines)


@check("kern-overhead", feature="`debox kern`: what is called too often is taken out")
def _():
    load = ["--", "dd", "if=/dev/zero", "of=/dev/null", "bs=4k", "count=100000000"]
    # Some thousand calls a second here, of a quarter of a microsecond each.
    document = kern("vfs_read", "--max-overhead", "0.02", "-i", "0.4", "-d", "60s", *load)
    row = document["resources"][0]
    equal(row["removed"], "called too often", "what became of it")
    expect(row["totals"]["calls"] > 0, row["totals"])
    expect([n for n in document["notes"] if "was taken out (limit: --max-overhead 0.02)" in n], document["notes"])
    document = kern("--auto", "vfs_read", "--max-overhead", "0.02", "-i", "0.4", "-d", "60s", *load)
    verdict = document["path"]["branches"][0]["verdict"]
    expect("was taken out (limit: --max-overhead 0.02)" in verdict, verdict)


@check("kern-answers", feature="`debox kern`: says why a function cannot be measured", smoke=True)
def _():
    answers = {
        "vfs_raed": "vfs_read",
        "xfs:xfs_lookup": "modprobe xfs",
        "nosuch()": "no system call",
        "vfs_read+0xfffff": "bytes long",
        # Entry code: no probe, for whatever reason this kernel has.
        "asm_exc_page_fault": ("no probe may enter", "notrace"),
        # In every kernel's source, and in no kernel's symbols.
        "rcu_read_lock": "inlined",
    }
    expect(not [l for l in lines_of("/proc/kallsyms") if l.split()[2] == "rcu_read_lock"], "rcu_read_lock is a function here")
    # A name that several functions have.
    names = {}
    for line in lines_of("/proc/kallsyms"):
        words = line.split()
        if words[1] in "tT" and not words[2].startswith("__pfx"):
            names.setdefault(words[2], set()).add(words[0])
    several = sorted(n for n, places in names.items() if len(places) in (2, 3) and n.isidentifier())
    expect(several, "no ambiguous name")
    answers[several[0]] = f"{several[0]}@2"
    # Alone it ends with its answer; beside what can be measured all answer.
    why = kern("vfs_raed", "-d", "1s", expected=125)
    expect("vfs_read" in why, why)
    done = execute([f"{HERE}/debox", "kern", "--text", *answers, "read()", "-d", "1s"])
    for name, words in answers.items():
        # The name is in each answer: of each only the line that has it.
        lines = [l for l in done.stderr.splitlines() if name.split("+")[0].split(":")[-1].rstrip("()") in l]
        expect(lines, "no answer for", name, ":", done.stderr)
        words = (words,) if isinstance(words, str) else words
        expect(any(w in l for l in lines for w in words), name, "->", done.stderr)
    expect(f"functions are called {several[0]}" in done.stderr, done.stderr)


@check("kern-instruction", feature="`debox kern`: single instructions")
def _():
    listing = execute([f"{HERE}/debox", "kern", "--list", "vfs_read"]).stdout
    places = [line.split()[0] for line in listing.splitlines() if "rw_verify_area" in line and "+0x" in line]
    expect(places, listing)
    document = kern(places[0], "vfs_read", "--", f"{HERE}/calls", "getppid", "1")
    seen = totals(document)
    equal(seen[places[0]]["calls"], seen["vfs_read"]["calls"], "the instruction, beside its function")


@check("kern-restrictions", feature="`debox kern`: restricted to process, cgroup, call, call site")
def _():
    load = [f"{HERE}/proxy", "-d", "/var/tmp/p", "-n", "20", "-r", "100"]
    os.makedirs("/var/tmp/p", exist_ok=True)
    execute([f"{HERE}/proxy", "-p", "-d", "/var/tmp/p", "-n", "20"])
    os.makedirs("/tmp/cg", exist_ok=True)
    execute(["busybox", "mount", "-t", "cgroup2", "cgroup2", "/tmp/cg"])
    try:
        os.makedirs("/tmp/cg/inside", exist_ok=True)
        os.makedirs("/tmp/cg/other", exist_ok=True)
        script = ["sh", "-c", "echo $$ >/tmp/cg/inside/cgroup.procs; exec \"$@\"", "sh", *load]
        # One function, six metrics.
        document = kern("vfs_read", "vfs_read@call=read", "vfs_read@call=write", "vfs_read@pid=1",
                        "vfs_read@cgroup=/tmp/cg/inside", "vfs_read@cgroup=/tmp/cg/other", "--", *script)
        n = [r["totals"]["calls"] for r in document["resources"]]
        expect(n[0] > 50 and n[0] - 20 <= n[1] <= n[0], "in read:", n)
        equal((n[2], n[3], n[5]), (0, 0, 0), "in write, pid 1, the other cgroup", n)
        expect(0 < n[4] <= n[0], "the cgroup:", n)
    finally:
        execute(["busybox", "umount", "/tmp/cg"])
    # Where does object_write() open? The answer to a wrong place tells.
    for function in ("object_write", "main"):
        why = kern("openat()", "--from", f"{HERE}/proxy:{function}", "-d", "1s", expected=125)
        found = re.search(function + r"\+0x[0-9a-f]+(?= \((?:__)?(?:libc_)?open(?:64)?\))", why)
        if found:
            break
    expect(found, "no call of open:", why)
    everywhere = totals(kern("openat()", "--", *load))["openat()"]["calls"]
    here = totals(kern("openat()", "--from", f"{HERE}/proxy:{found[0]}", "--", *load))["openat()"]["calls"]
    expect(0 < here < everywhere, "opens from", found[0], here, "of", everywhere)


@check("kern-auto", feature="`debox kern --auto`: down into the callee that dominates")
def _():
    document = kern("--auto", "read", "-i", "0.3", "--depth", "3", "--branches", "1", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=256k", "count=100000000")
    path = document["path"]
    equal(path["method"], "measured", "the method")
    steps = path["branches"][0]["steps"]
    names = [s["function"] for s in steps]
    expect("vfs_read" in names, names)
    # vfs_read calls the file's own function through a pointer.
    indirect = [c["function"] for s in steps for c in s["callees"] if c["indirect"]]
    expect("read_iter_zero" in indirect or "read_zero" in indirect, indirect, names)
    for s in steps:
        expect(s["share"] > 0.05 and s["calls"] > 0, s)


@check("kern-auto-finds-the-call", feature="`debox kern --auto`: down into the callee that dominates")
def _():
    # No resource is named: the system call with the most time, which is not the one that waits.
    script = "sleep 15 & exec dd if=/dev/zero of=/dev/null bs=1024k count=100000000"
    document = kern("--auto", "--way", "kprobe", "-i", "0.3", "--depth", "2", "--branches", "1", "--", "sh", "-c", script)
    path = document["path"]
    equal(path["root"], "read()", "the heaviest call")
    names = [s["function"] for s in path["branches"][0]["steps"]]
    expect(names[0] == "read()" and len(names) > 1, names)


@check("kern-auto-sampled", feature="`debox kern --auto --sampled`: from stacks")
def _():
    document = kern("--auto", "--sampled", "read", "-d", "4s", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=256k", "count=100000000")
    path = document["path"]
    equal(path["method"], "sampled", "the method")
    names = [s["function"] for s in path["branches"][0]["steps"]]
    expect("vfs_read" in names, names)


class Terminal:
    """What a program shows on 120 x 40 characters."""

    def __init__(self, command):
        self.fd, there = os.openpty()
        fcntl.ioctl(there, 0x5414, struct.pack("HHHH", 40, 120, 0, 0))  # TIOCSWINSZ
        self.rows = [[" "] * 120 for _ in range(40)]
        self.at = (0, 0)
        self.rest = ""
        self.process = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, start_new_session=True,
                                        env=dict(os.environ, TERM="xterm"))
        os.close(there)

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.rows)

    def read(self):
        if not select.select([self.fd], [], [], 0.2)[0]:
            return
        text = self.rest + os.read(self.fd, 65536).decode(errors="replace")
        self.rest = ""
        i = 0
        while i < len(text):
            if text[i] == "\x1b":
                end = i + 2
                if text[i + 1 : i + 2] == "[":
                    while end < len(text) and not text[end].isalpha():
                        end += 1
                if end >= len(text):
                    self.rest = text[i:]
                    return
                if text[end] == "J":
                    self.rows = [[" "] * 120 for _ in range(40)]
                elif text[end] == "K":
                    self.rows[self.at[0]] = [" "] * 120
                elif text[end] == "H":
                    row, _, column = text[i + 2 : end].partition(";")
                    self.at = (int(row or 1) - 1, int(column or 1) - 1)
                i = end + 1
                continue
            if text[i] >= " ":
                row, column = self.at
                if row < 40 and column < 120:
                    self.rows[row][column] = text[i]
                self.at = (row, column + 1)
            i += 1

    def until(self, true, *what):
        end = time.monotonic() + 150
        while not true():
            expect(time.monotonic() < end, *what, "- on the screen:", self.text())
            self.read()

    def wait(self, words, what):
        self.until(lambda: words in self.text(), what, "- no", repr(words))

    def look(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()

    def inside(self, name):
        """The column INSIDE of a function; None: it has no row."""
        lines = self.text().splitlines()
        header = [l for l in lines if l.startswith("FUNCTION")]
        row = [l for l in lines if l.startswith(f"■ {name} ")]
        if not header or not row:
            return None
        words = row[0][header[0].index("INSIDE"):].split()
        return words[0] if words else ""

    def is_timed(self, name):
        return re.fullmatch(r"[0-9.]+", self.inside(name) or "") and float(self.inside(name)) > 0

    def keys(self, text):
        os.write(self.fd, text.encode())


@check("kern-screen", feature="`debox kern` in a terminal: plot, insert, change, refine by a key, remove")
def _():
    screen = Terminal([f"{HERE}/debox", "kern", "vfs_read", "-i", "0.5", "--max-overhead", "100", "--depth", "2", "--branches", "1",
                       "--html", "/tmp/screen.html", "--",
                       "dd", "if=/dev/zero", "of=/dev/null", "bs=256k", "count=100000000"])
    try:
        screen.wait("vfs_read", "the table")
        # An axis, and a curve in dots.
        end = time.monotonic() + 60
        while not any("\u2800" < c <= "\u28ff" for c in screen.text()) and time.monotonic() < end:
            screen.read()
        expect(any("\u2800" < c <= "\u28ff" for c in screen.text()), "no curve:", screen.text())
        screen.keys("avfs_write\r")
        screen.wait("to attach", "what it costs, before")
        expect(screen.inside("vfs_write") is None, "attached before it was asked:", screen.text())
        screen.keys("\r")
        screen.wait("vfs_write inserted, 1 function", "inserted while it runs")
        screen.until(lambda: screen.is_timed("vfs_write"), "vfs_write has no time")
        screen.keys("\r")
        screen.wait("that vfs_read calls", "what the callees cost, before")
        screen.keys("\r")
        screen.wait("callees of vfs_read inserted", "Enter refines")
        screen.wait("rw_verify_area", "a callee")
        save("screen.txt", screen.text())
        screen.keys("m")
        screen.wait("99th percentile of latency", "m plots another metric")
        screen.keys("mmmm")
        screen.until(lambda: "threads inside" in screen.text().splitlines()[0] and "," not in screen.text().splitlines()[0], "m comes round")
        screen.keys("p")
        screen.wait("(paused)", "p pauses")
        screen.keys("p")
        screen.until(lambda: "(paused)" not in screen.text(), "p goes on")
        screen.keys("n")
        screen.wait("Notes (any key)", "n shows notes")
        screen.keys(" ")
        screen.keys("w")
        screen.wait("written: /tmp/screen.html", "w writes the page")
        expect("</html>" in "".join(lines_of("/tmp/screen.html")), "no page")
        # What is removed takes nothing of the others with it, in a program that
        # is in all of them at every moment.
        screen.keys("d")
        screen.wait("vfs_read removed", "d removes")
        screen.look(3)
        expect(screen.inside("rw_verify_area") is None, "below nothing:", screen.text())
        screen.until(lambda: screen.is_timed("vfs_write"), "vfs_write has no time after the removal of vfs_read")
        screen.keys("c")
        screen.wait("> vfs_write", "c takes up what is there")
        screen.keys("@call=write\r")
        screen.wait("to attach", "what the change costs, before")
        screen.keys("\r")
        screen.wait("changed to vfs_write@call=write", "c changes")
        screen.look(3)
        screen.wait("vfs_write [dd, in write]", "the changed metric")
        screen.until(lambda: screen.is_timed("vfs_write"), "the changed metric has no time")
        equal(screen.text().count("■ vfs_write"), 1, "rows of vfs_write")
        screen.keys("A")
        screen.wait("Attach?", "what the way costs, before")
        screen.keys("\r")
        screen.wait("Where the time of vfs_write", "A refines to the end")
        save("refined.txt", screen.text())
        # Share, self, off the CPU, calls, time of each.
        first = re.search(r"vfs_write +([0-9.]+)% +\S+ +\S+ +([0-9,]+) +([0-9.]+) (ns|µs|ms)", screen.text())
        expect(first, "the root has no share and no time:", screen.text())
        expect(float(first[1]) > 99 and float(first[3]) > 0, first[0])
        screen.keys(" ")
        screen.until(lambda: screen.is_timed("vfs_write"), "the root is measured again")
        screen.keys("avfs_read\r")
        screen.wait("to attach", "what it costs to have it again")
        screen.keys("\r")
        screen.until(lambda: screen.is_timed("vfs_read"), "vfs_read, removed and inserted again, has no time")
        save("again.txt", screen.text())
        screen.keys("q")
        end = time.monotonic() + 60
        while screen.process.poll() is None and time.monotonic() < end:
            try:
                screen.read()
            except OSError:
                break  # all ends of the terminal are closed
        equal(screen.process.wait(60), 0, "exit status")
    finally:
        if screen.process.poll() is None:
            os.killpg(screen.process.pid, signal.SIGKILL)
        os.close(screen.fd)


@check("kern-html", feature="`debox kern --html`")
def _():
    kern("vfs_read", "vfs_write", "--html", "/tmp/kern.html", "-i", "0.2", "--", f"{HERE}/proxy", "-p", "-d", "/var/tmp", "-n", "30")
    with open("/tmp/kern.html") as file:
        page = file.read()
    expect("<svg" in page and "vfs_write" in page and page.rstrip().endswith("</html>"), page[:300])
    expect("How long each call took" in page and page.count("</title></rect>") > 1, "no distribution of latency")
    expect("http://" not in page and "https://" not in page and "<script" not in page, "not complete in itself")
    save("kern.html", page)


@check("kern-log-is-clean", last=True, smoke=True)
def _():
    kernel_log_expect_clean()


for way in ALL_WAYS.values():
    native_needs(f"`debox kern`: functions by {way}", way.partition("/")[0])
native("`debox kern`: says why a function cannot be measured", "function_probes_or_a_clear_word")
native("`debox kern --auto --sampled`: from stacks", "kern_finds_the_function_by_stacks")
NATIVELY = {  # with a system call in the function's place
    "latency, time off the CPU": "kern_measures_calls_on_any_kernel",
    "threads inside that do not return": "kern_measures_calls_on_any_kernel",
    "threads killed inside": "kern_measures_calls_on_any_kernel",
    "restricted to process, cgroup, call, call site": "kern_measures_calls_on_any_kernel",
    "what is called too often is taken out": "kern_measures_calls_on_any_kernel",
}
for row, test in {**{f"`debox kern`: {row}": test for row, test in NATIVELY.items()}, "`debox kern --html`": "kern_measures_calls_on_any_kernel"}.items():
    native(row, test)
    native_needs(row, otherwise="system calls only")
for row in (": detached after SIGKILL of the tool", " in a terminal: plot, insert, change, refine by a key, remove"):
    native_needs(f"`debox kern`{row}", otherwise="not tried")
native_needs_probes()
