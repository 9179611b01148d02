# SPDX-License-Identifier: MIT OR Apache-2.0
"""The kernel functions that calls run through: the call trace

What DeBox says is compared with the kernel's own function_graph tracer, run
here on the same calls, and with what is known about the calls.
"""

import re
import threading

from guest import *  # noqa: F403

PROGRAMS = [
    "release/debox", "release/deboxd", "release/libdebox-wrap.so", "release/libdebox.so.0",
    "truth/truth", "truth/calls", "truth/storm", "truth/traced",
]  # fmt: skip
LIMIT_S = 840

BAND = "call trace in band (libdebox, `DeBoxControl`)"
RUN = "call trace of programs that are not linked (`debox run --trace`)"
FTRACE = "the trace agrees with function_graph"
COARSE = "coarse trace of tracepoints, marked as such"
LEARN = "functions learned from the calls (`--trace learn`)"
HARM = "tracing exec, fork, exit, killed threads, recursion, storms: nothing stays behind"

TRACING = "/sys/kernel/tracing"
OPEN, POINT = 1, 2
WAYS = {1: "kprobe.session", 2: "kprobe.multi", 3: "fentry/fexit", 4: "tracepoints"}
BEFORE = {}
# Few functions, so that fentry pairs (0.3 s each here) stay affordable.
FEW = "do_sys_openat2,path_openat,vfs_open,vfs_read,vfs_write,vfs_unlink,ext4_file_write_iter,ext4_unlink,generic_perform_write,do_unlinkat"


def session_here():
    return tuple(int(n) for n in os.uname().release.split("-")[0].split("+")[0].split(".")[:2]) >= (6, 10)


def best_way():
    return 1 if session_here() else 3


def traced(*arguments, options=(), expected=0, broker=None, environment=None):
    broker = broker or shared_broker()
    environment = dict(os.environ, DEBOX_SOCKET=broker.socket, **(environment or {}))
    for attempt in range(4):
        try:
            done = execute([f"{HERE}/traced", "-d", "/var/tmp", *options, *arguments], expected, env=environment)
            return [json.loads(line) for line in done.stdout.splitlines()]
        except Wrong as wrong:
            # libdebox waits 5 s for an answer: too short for an emulated
            # broker on a busy machine.
            if "timed out" not in str(wrong) or attempt == 3:
                raise


def sound(step):
    """What holds for every trace."""
    entries = step["entries"]
    equal(step["count"], len(entries), "entries of", step["step"])
    open_at = []  # (depth, start, end)
    below = [0] * len(entries)  # what an entry's direct children took
    parent = []
    for i, (_, depth, _, total, _, _) in enumerate(entries):
        parent = parent[:depth] + [i]
        if depth:
            below[parent[depth - 1]] += total
    for (function, _, _, total, own, _), others in zip(entries, below):
        equal(own, max(0, total - others), "own time of", function, "in", step["step"], entries)
    for function, depth, start, total, own, flags in entries:
        expect(own <= total, "own time above all time:", function, step["step"])
        expect(flags == 0, function, "has flags", flags, "in", step["step"])
        while open_at and open_at[-1][0] >= depth:
            open_at.pop()
        equal(depth, open_at[-1][0] + 1 if open_at else 0, "the depth of", function, "in", step["step"])
        if open_at:
            expect(start >= open_at[-1][1], function, "began before its caller")
            expect(start + total <= open_at[-1][2] + 1, function, "ended after its caller, in", step["step"])
        # Preempted between the stamp and the kernel: no part of the call, but
        # of the time since it began.
        last = step["wall_ns"] + step["outside_ns"]
        expect(start + total <= last + 2000, function, "ended", start + total - last, "ns after its call", step["step"], step)
        open_at.append((depth, start, start + total))
    return entries


@check("before", always=True)
def _():
    BEFORE.update(footprint())


@check("kernel-offers-its-way", feature="way of tracing that is picked", smoke=True)
def _():
    state = traced("pipe", "1", options=["-f", "vfs_read"])[-1]
    equal(state["way"], best_way(), "the way")
    cell("way of tracing that is picked", WAYS[state["way"]])
    note("attaching to one function took", state["attach_ns"] // MS, "ms")


@check("doctor-says-which", feature="`debox doctor` says which way works")
def _():
    doctor = json.loads(execute([f"{HERE}/debox", "doctor", "--json"]).stdout)
    states = {c["name"]: c["state"] for c in doctor["checks"]}
    equal(states.get("fentry"), "ok", "fentry")
    equal(states.get("kprobe.session") == "ok", session_here(), "kprobe.session in", states)


def ways_here():
    return (1, 2, 3) if session_here() else (3,)


@check("right-functions-in-order", feature=BAND, smoke=True)
def _():
    for way in ways_here():
        steps = {s["step"]: s for s in traced("files", options=["-f", FEW, "-w", str(way)])}
        equal(steps["state"]["way"], way, "the way")
        right_functions(steps)


def right_functions(steps):
    names = {s: [e[0] for e in sound(steps[s])] for s in ("create", "write", "read", "close", "open-trunc", "unlink", "open-absent")}
    equal(names["create"][:2], ["do_sys_openat2", "path_openat"], "create")
    expect("vfs_open" in names["create"], names["create"])
    equal(names["write"], ["vfs_write", "ext4_file_write_iter", "generic_perform_write"], "write")
    equal(names["read"], ["vfs_read"], "read")
    equal(names["close"], [], "close")
    equal(names["unlink"], ["do_unlinkat", "vfs_unlink", "ext4_unlink"], "unlink")
    equal(names["open-absent"], ["do_sys_openat2", "path_openat"], "open of what is not there")
    equal(steps["open-absent"]["retval"], -2, "its result")
    for step in names:
        expect(steps[step]["valid"] >> 8 & 1, step, "has no valid trace")
        equal(steps[step]["dropped"], 0, "dropped in", step)


@check("entries-without-room-are-counted", feature=BAND)
def _():
    whole = {s["step"]: s for s in traced("files", options=["-f", FEW])}
    cut = {s["step"]: s for s in traced("files", options=["-f", FEW, "-n", "2"])}
    for step in ("create", "write", "unlink"):
        equal(cut[step]["count"], min(2, whole[step]["count"]), "entries of", step)
        equal(cut[step]["count"] + cut[step]["dropped"], whole[step]["count"], "kept and dropped of", step)
        equal([e[0] for e in cut[step]["entries"]], [e[0] for e in whole[step]["entries"]][:2], "what is kept of", step)
        equal(cut[step]["dropped"], cut[step]["trace_dropped"], "the record's own number")


# Passed once for each page that is written.
PER_PAGE = "ext4_file_write_iter,balance_dirty_pages_ratelimited"


@check("more-than-the-papers-limit", feature=BAND)
def _():
    row = "entries of one call beyond the paper's 200"
    steps = {s["step"]: s for s in traced("many", options=["-f", PER_PAGE, "-n", "4000", "-m", "4000"])}
    names = [e[0] for e in sound(steps["many"])]
    equal(names[0], "ext4_file_write_iter", "the first of", len(names))
    equal(names.count("balance_dirty_pages_ratelimited"), 512, "the pages of one call")
    equal(steps["many"]["dropped"], 0, "dropped")
    cell(row, "yes")
    # The paper's own struct has room for 200.
    s = traced("compat-many", options=["-f", PER_PAGE, "-n", "600"])[0]
    equal((s["nr"], s["depth"], s["named"]), (18, 200, 1), "call, entries and the last one's name in", s)
    # Each page passes one, the call one more; what found no room is in the record.
    equal(s["trace_dropped"], len(names) - 200, "entries dropped beyond the paper's limit in", s)
    if not session_here():
        cell(row, "yes; of 64 functions at most")
        return
    # Hundreds of functions.
    steps = {s["step"]: s for s in traced("files", options=["-n", "4000", "-m", "4000"])}
    longest = max(s["count"] for s in steps.values() if "count" in s)
    expect(longest > 200, "the longest trace has", longest)
    equal(sum(s.get("dropped", 0) for s in steps.values()), 0, "dropped")
    for s in steps.values():
        if "entries" in s:
            sound(s)
    note("longest trace:", longest, "entries;", steps["state"]["functions"], "functions attached in",
         steps["state"]["attach_ns"] // MS, "ms")


@check("through-the-interposer", feature=BAND)
def _():
    # A call that the program does not bracket itself.
    steps = traced("plain", options=["-f", "vfs_read"], environment={"LD_PRELOAD": f"{HERE}/libdebox-wrap.so"})
    s = steps[0]
    equal((s["step"], s["nr"]), ("plain", 17), "the last call")
    equal([e[0] for e in sound(s)], ["vfs_read"], "its trace")


@check("per-thread", feature=BAND)
def _():
    steps = traced("threads", options=["-f", "vfs_read,proc_reg_read_iter"])
    on = [s for s in steps if s["step"] == "thread-on"]
    off = [s for s in steps if s["step"] == "thread-off"]
    equal((len(on), len(off)), (2, 2), "threads")
    for s in on:
        equal([e[0] for e in sound(s)][:1], ["vfs_read"], "a thread that asked")
    for s in off:
        equal((s["read"], s["valid"] >> 8 & 1), (-61, 0), "a thread that did not ask")


@check("on-and-off", feature=BAND)
def _():
    steps = traced("toggle", "20", options=["-f", "vfs_read"])
    on = [s for s in steps if s["step"] == "on"]
    equal(len(on), 20, "rounds")
    for s in on:
        equal([e[0] for e in sound(s)], ["vfs_read"], "while on")
    for s in steps:
        if s["step"] == "off":
            equal(s["read"], -61, "while off")


@check("nested-calls-apart", feature=BAND)
def _():
    s = traced("nested", options=["-f", "vfs_read"])[0]
    equal(s["retval"], 1, "bytes")
    names = [e[0] for e in s["entries"]]
    # The kernel restarts the outer read: twice through vfs_read, and nothing
    # of the handler's own call.
    equal(names, ["vfs_read", "vfs_read"], "the outer call's trace")


@check("sleeping-function", feature=BAND)
def _():
    s = traced("pipe", "3000", options=["-f", "vfs_read,pipe_read,anon_pipe_read"])[0]
    entries = sound(s)
    expect(len(entries) >= 2, entries)
    expect(entries[0][3] >= 2_500 * MS, "vfs_read took only", entries[0][3])
    expect(entries[0][4] < entries[0][3] // 2, "the sleep is the callee's own:", entries)


@check("fork-and-wait", feature=HARM)
def _():
    steps = {s["step"]: s for s in traced("fork", options=["-f", "kernel_clone,copy_process,do_wait"])}
    names = [e[0] for e in sound(steps["fork"])]
    equal(names[:1], ["kernel_clone"], "fork")


@check("compat", feature=BAND)
def _():
    s = traced("compat", options=["-f", "vfs_read"])[0]
    equal((s["nr"], s["depth"]), (17, 1), "call and entries in", s)
    equal(s["entries"][0][0], "vfs_read", "the function")
    expect(s["entries"][0][1] > 0, s)


@check("unprivileged-is-refused", feature="who may trace")
def _():
    broker = shared_broker()
    environment = dict(os.environ, DEBOX_SOCKET=broker.socket)
    os.chmod(broker.socket, 0o666)
    done = subprocess.run(
        [f"{HERE}/traced", "-d", "/var/tmp", "pipe", "1"], env=environment, user=1000, capture_output=True, text=True, timeout=100
    )
    equal(done.returncode, 3, "exit status", done.stderr)
    expect("--trace-for-all" in done.stderr, done.stderr)
    cell("who may trace", "root, CAP_PERFMON; all with --trace-for-all")


# -- against the kernel's own tracer ----------------------------------------------


def graph(functions, action):
    """(depth, function) that function_graph sees in `action`'s child process."""

    def put(name, text):
        with open(f"{TRACING}/{name}", "w") as file:
            file.write(text)

    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    os.read(ready[0], 1)
    put("set_ftrace_pid", str(child))
    put("set_ftrace_filter", "\n".join(functions))
    put("current_tracer", "function_graph")
    for option in ("funcgraph-irqs",):
        try:
            put(f"options/{option}", "0")
        except OSError:
            pass
    put("trace", "")
    put("tracing_on", "1")
    os.write(go[1], b"x")
    status = os.waitpid(child, 0)[1]
    put("tracing_on", "0")
    with open(f"{TRACING}/trace") as file:
        text = file.read()
    put("current_tracer", "nop")
    put("set_ftrace_filter", "")
    put("set_ftrace_pid", "")
    put("tracing_on", "1")
    put("trace", "")
    for fd in (*ready, *go):
        os.close(fd)
    equal(status, 0, "the traced child's status")
    seen, depth = [], 0
    for line in text.splitlines():
        body = line.split("|", 1)[-1]
        name = re.match(r"\s*([A-Za-z0-9_.]+)(?: \[\w+\])?\(\)( \{|;)", body)
        if name:
            seen.append((depth, name.group(1)))
            depth += name.group(2) == " {"
        elif body.strip().startswith("}"):
            depth = max(0, depth - 1)
    return seen


def ops():
    """The same calls as `traced files`, by Python's own thin wrappers."""
    path = "/var/tmp/graph-file"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o644)
    os.write(fd, b"x" * 8192)
    os.pread(fd, 8192, 0)
    os.unlink(path)
    os._exit(0)


AGAINST = ["do_sys_openat2", "path_openat", "vfs_open", "ext4_create", "vfs_write", "ext4_file_write_iter",
           "generic_perform_write", "vfs_read", "ext4_file_read_iter", "do_unlinkat", "vfs_unlink", "ext4_unlink"]  # fmt: skip


@check("agrees-with-function-graph", feature=FTRACE)
def _():
    if os.path.exists("/var/tmp/graph-file"):
        os.unlink("/var/tmp/graph-file")
    theirs = graph(AGAINST, ops)
    steps = {s["step"]: s for s in traced("files", options=["-f", ",".join(AGAINST)])}
    ours = []
    for step in ("create", "write", "read", "unlink"):
        ours += [(e[1], e[0]) for e in sound(steps[step])]
    equal(ours, theirs, "DeBox's functions beside function_graph's")
    note(len(theirs), "functions in the same order and depth as function_graph saw them")


# -- under `debox run` ---------------------------------------------------------------


def run_traced(command, options, expected=0):
    path = "/tmp/trace.json"
    execute([f"{HERE}/debox", "run", "--json", "-o", path, *shared(), *options, "--", *command], expected)
    with open(path) as file:
        report = json.load(file)
    trace = report["trace"]
    for call in trace["slowest"]:
        for e in call["entries"]:
            expect(e["start_ns"] <= call["wall_ns"], e, call["call"])
    return report, trace


@check("run-sums-are-exact", feature=RUN, smoke=True)
def _():
    for options in ([], ["--capture=wrap"]):
        report, trace = run_traced([f"{HERE}/calls", "getppid", "10"], ["--trace", "vfs_read,ksys_read,do_sys_openat2", *options])
        equal((trace["missed"], trace["unmatched"], trace["threads_untraced"]), (0, 0, 0), "missed")
        functions = {f["function"]: f for f in trace["functions"]}
        if not options:
            opens = [c for c in report["calls"] if c["name"] == "openat"][0]["count"]
            equal(functions["do_sys_openat2"]["calls"], opens, "do_sys_openat2 beside openat's count")
        expect(functions["vfs_read"]["calls"] >= 1, functions)
        slowest = {c["call"]: c for c in trace["slowest"]}
        equal(slowest["openat"]["entries"][0]["function"], "do_sys_openat2", "openat's first function")
        for f in functions.values():
            expect(f["self_ns"] <= f["total_ns"] and f["max_ns"] <= f["total_ns"], f)


@check("run-chosen-calls-only", feature=RUN)
def _():
    _, trace = run_traced(["/bin/sh", "-c", "cat /etc/none /proc/self/stat >/dev/null; true"],
                          ["--trace", FEW, "--call", "openat"])
    equal([c["call"] for c in trace["slowest"]], ["openat"], "calls")
    expect("vfs_read" not in [f["function"] for f in trace["functions"]], trace["functions"])


@check("run-text", feature=RUN)
def _():
    script = "for i in 1 2 3 4 5; do echo $i > /var/tmp/t$i; done; sync; rm /var/tmp/t?"
    done = execute([f"{HERE}/debox", "run", *shared(), "--trace", "default", "--trace-max", "2000", "--", "/bin/sh", "-c", script])
    expect("call trace" in done.stderr and "slowest" in done.stderr, done.stderr[-2000:])
    save("run.txt", done.stderr)
    expect(not [l for l in done.stderr.splitlines() if "[" in l and "\x1b" in l], "colours without a terminal")


@check("run-names-what-is-absent", feature=RUN)
def _():
    done = subprocess.run([f"{HERE}/debox", "run", *shared(), "--trace", "no_such_function", "--way", "fentry", "--", "/bin/true"],
                          capture_output=True, text=True, timeout=100)
    equal(done.returncode, 125, "exit status")
    expect("no_such_function" in done.stderr, done.stderr)
    _, trace = run_traced(["/bin/true"], ["--trace", "vfs_read,no_such_function"])
    expect("no_such_function" in trace["text"], trace["text"])


@check("coarse-in-band-is-marked", feature=COARSE)
def _():
    steps = {s["step"]: s for s in traced("files", options=["-w", "4", "-n", "2000", "-m", "2000"])}
    equal(steps["state"]["way"], 4, "the way")
    expect("static tracepoints" in steps["state"]["text"], steps["state"])
    for name in ("create", "write", "fsync", "unlink"):
        step = steps[name]
        equal(step["flags"] & 1, 1, "the mark of", name)
        expect(step["entries"], "no tracepoint in", name)
        for function, depth, start, total, own, flags in step["entries"]:
            # Passed, and no time; or a pair, and a time.
            expect(flags == 2 and total == 0 or flags == 0 and own <= total, function, flags, total, own)
    sync = [e for e in steps["fsync"]["entries"] if e[0].startswith("ext4_sync_file")]
    expect(sync and sync[0][3] > 0, "ext4_sync_file's pair has no time:", steps["fsync"]["entries"])


@check("coarse-report-says-so", feature=COARSE)
def _():
    command = ["/bin/sh", "-c", "echo x > /var/tmp/coarse; sync; rm /var/tmp/coarse"]
    for wrap in ([], ["--capture=wrap"]):
        _, trace = run_traced(command, ["--trace", "default", "--way", "tracepoints", *wrap])
        equal((trace["coarse"], trace["way"]), (True, "tracepoints"), "how it was taken")
        expect([f for f in trace["functions"] if f["function"].startswith("ext4_")], trace["functions"])
    done = execute([f"{HERE}/debox", "run", *shared(), "--trace", "default", "--way", "tracepoints", "--", *command])
    expect("coarse" in done.stderr, done.stderr[-2000:])
    save("coarse.txt", done.stderr)


# A call that nothing else in the program makes, for so many seconds.
TRUNCATES = """
import os, sys, time
open("/var/tmp/learned", "w").close()
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    os.truncate("/var/tmp/learned", 4096)
    os.truncate("/var/tmp/learned", 0)
"""
# Few functions: to switch the tracer on for all of them takes half a minute here.
AMONG = "learn:*do_*truncate,vfs_*,notify_change,setattr_*,ext4_setattr,ext4_truncate,ext4_mark*,ext4_ext_*"


@check("learns-what-a-call-passes", feature=LEARN)
def _():
    load = ["/bin/python3", "-I", "-S", "-c", TRUNCATES, "30"]
    _, trace = run_traced(load, ["--trace", AMONG, "--call", "truncate", "--capture=wrap"])
    expect("were learned from" in trace["text"], trace["text"])
    note(trace["text"][:300])
    equal([c["call"] for c in trace["slowest"]], ["truncate"], "calls")
    names = [f["function"] for f in trace["functions"]]
    for name in ("do_truncate", "notify_change", "ext4_setattr", "ext4_truncate"):
        expect(name in names, "no", name, "in", names)
    # The program reads, too, and pattern and kernel have vfs_read.
    expect("vfs_read" not in names and trace["functions_traced"] < 60, names, trace["functions_traced"])
    expect(not [d for d in os.listdir(f"{TRACING}/instances") if "debox" in d], "instances stay")


@check("attach-learns", feature=LEARN)
def _():
    load = subprocess.Popen(["/bin/python3", "-I", "-S", "-c", TRUNCATES, "90"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        path = "/tmp/trace.json"
        execute([f"{HERE}/debox", "attach", "-p", str(load.pid), "-d", "3", "--json", "-o", path, *shared(),
                 "--trace", AMONG, "--call", "truncate"])
        with open(path) as file:
            trace = json.load(file)["trace"]
    finally:
        load.kill()
        load.wait()
    expect("were learned from" in trace["text"], trace["text"])
    equal([c["call"] for c in trace["slowest"]], ["truncate"], "calls")
    expect("ext4_truncate" in [f["function"] for f in trace["functions"]], trace["functions"])
    expect(not [d for d in os.listdir(f"{TRACING}/instances") if "debox" in d], "instances stay")


@check("learning-is-told-what-it-misses", feature=LEARN)
def _():
    done = execute([f"{HERE}/debox", "run", *shared(), "--trace", "learn:do_sys_open*,path_openat,vfs_*", "--call", "openat",
                    "--", "/bin/cat", "/proc/self/stat"])
    expect("ended while its functions were learned" in done.stderr, done.stderr[:1000])
    expect("do_sys_openat2" in done.stderr, done.stderr[:1000])
    expect(not [d for d in os.listdir(f"{TRACING}/instances") if "debox" in d], "instances stay")


@check("killed-while-learning", feature=LEARN)
def _():
    tool = subprocess.Popen([f"{HERE}/debox", "run", "-q", *shared(), "--trace", "learn", "--call", "getppid", "--", "/bin/sleep", "60"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    mine = f"{TRACING}/instances/debox-learn-{tool.pid}"
    while not os.path.exists(mine) or lines_of(f"{mine}/current_tracer") != ["function"]:
        expect(time.monotonic() < end and tool.poll() is None, "it does not learn", tool.poll())
        time.sleep(0.1)
    tool.kill()
    tool.wait()
    end = time.monotonic() + 60
    while os.path.exists(mine):
        expect(time.monotonic() < end, "the instance stays after SIGKILL")
        time.sleep(0.2)


# -- what may not harm ------------------------------------------------------------------

PATHS = "bprm_execve,begin_new_exec,load_elf_binary,kernel_clone,copy_process,do_exit,mmput,exit_mmap,do_group_exit,vfs_read"


@check("exec-fork-exit", feature=HARM)
def _():
    _, trace = run_traced(["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8; do /bin/true; done"], ["--trace", PATHS])
    functions = {f["function"]: f["calls"] for f in trace["functions"]}
    expect(functions.get("kernel_clone", 0) >= 8, functions)
    expect(functions.get("bprm_execve", 0) >= 8, functions)
    ended = [c for c in trace["slowest"] if c["unfinished"]]
    expect([c for c in ended if c["call"] == "exit_group"], [c["call"] for c in trace["slowest"]])


@check("killed-in-a-traced-function", feature=HARM, smoke=True)
def _():
    _, trace = run_traced([f"{HERE}/calls", "killed"], ["--trace", "vfs_read,pipe_read,anon_pipe_read"], expected=-signal.SIGKILL)
    reads = [c for c in trace["slowest"] if c["call"] == "read"]
    expect(reads, [c["call"] for c in trace["slowest"]])


@check("storm-of-threads", feature=HARM)
def _():
    _, trace = run_traced([f"{HERE}/storm", "8", "8", "2"], ["--trace", "vfs_read,vfs_write,do_futex,kernel_clone,do_exit"])
    equal(trace["threads_untraced"], 0, "threads without a buffer")
    expect(trace["calls"] > 100, trace["calls"])


@check("functions-that-bpf-uses", feature=HARM)
def _():
    # The tracer's own way: what it cannot deliver it counts.
    for way in ways_here():
        _, trace = run_traced(["/bin/sh", "-c", "cat /proc/self/status >/dev/null"],
                          ["--way", {1: "session", 2: "multi", 3: "fentry"}[way], "--trace", "bpf_task_storage_get,bpf_task_storage_get_recur,ktime_get_mono_fast_ns,bpf_get_attach_cookie_kprobe_multi,vfs_read,migrate_disable,migrate_enable,__rcu_read_lock"])
        expect([f for f in trace["functions"] if f["function"] == "vfs_read"], WAYS[way], trace["functions"])


@check("functions-that-threads-stay-in", feature=HARM)
def _():
    # fentry and fexit would leave what idle threads return through, for hours.
    _, trace = run_traced(["/bin/sh", "-c", "sleep 0.01; cat /proc/self/status >/dev/null"], ["--trace", "vfs_read,schedule", "--way", "fentry"])
    expect("idle threads stay inside" in trace["text"], trace["text"])
    equal([f["function"] for f in trace["functions"]], ["vfs_read"], "functions")


@check("attach-and-detach-storm", feature=HARM)
def _():
    stop = []

    def load():
        while not stop:
            with open("/proc/self/stat") as file:
                file.read()

    busy = threading.Thread(target=load)
    busy.start()
    try:
        for _ in range(12 if session_here() else 5):
            steps = traced("toggle", "1", options=["-f", "vfs_read,vfs_open"])
            equal([e[0] for e in steps[0]["entries"]], ["vfs_read"], "in the storm")
    finally:
        stop.append(1)
        busy.join()


@check("broker-killed-while-tracing", feature=HARM)
def _():
    broker = Broker()
    environment = dict(os.environ, DEBOX_SOCKET=broker.socket)
    child = subprocess.Popen([f"{HERE}/traced", "-f", "vfs_read", "-d", "/var/tmp", "pipe", "3000"], env=environment,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(2)
    broker.process.kill()
    broker.process.wait()
    # The call returns all the same.
    out = child.communicate(timeout=60)[0]
    expect('"retval": 1' in out or child.returncode == 3, out, child.returncode)


@check("nothing-stays-behind", feature=HARM, last=True, smoke=True)
def _():
    shared_broker_stop()
    footprint_expect(BEFORE, 60)


@check("trace-log-is-clean", feature=HARM, last=True, smoke=True)
def _():
    kernel_log_expect_clean()


native_needs("way of tracing that is picked", otherwise="tracepoints")
native("`debox doctor` says which way works", "function_probes_or_a_clear_word")
native(COARSE, "function_probes_or_a_clear_word")
native_needs("who may trace", otherwise="not tried")
native_needs_probes()
