# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a call trace costs, in instructions

The guest counts them, so the numbers are exact and repeatable; they are shown,
kept, and held against bounds that only a mistake would break.
"""

from guest import *  # noqa: F403

PROGRAMS = ["release/debox", "release/deboxd", "release/libdebox.so.0", "truth/traced"]
ICOUNT = True
LIMIT_S = 840

# One function in getppid, two in pread.
FUNCTIONS = "__do_sys_getppid,__x64_sys_getppid,vfs_read,rw_verify_area"
WAYS = {1: "session", 2: "multi", 3: "fentry", 4: "tracepoint"}
# A tracepoint that every call passes once.
POINTS = "sys_enter"
SEEN = {}


def measure(way):
    broker = shared_broker()
    environment = dict(os.environ, DEBOX_SOCKET=broker.socket)
    done = execute([f"{HERE}/traced", "-d", "/var/tmp", "-f", POINTS if way == 4 else FUNCTIONS, "-w", str(way), "cost"], env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rows = {line["what"]: line for line in lines if line["step"] == "cost"}
    traces = {line["step"]: [e[0] for e in line["entries"]] for line in lines if "entries" in line}
    return rows, traces


def here(way):
    new = tuple(int(n) for n in os.uname().release.split("+")[0].split("-")[0].split(".")[:2]) >= (6, 10)
    return way >= 3 or new


def check_way(way):
    broker = shared_broker()
    if not here(way):
        # Nothing to measure: that it is refused is what there is to see.
        environment = dict(os.environ, DEBOX_SOCKET=broker.socket)
        done = execute([f"{HERE}/traced", "-d", "/var/tmp", "-f", FUNCTIONS, "-w", str(way), "plain"], 3, env=environment)
        expect(f"kprobe.{WAYS[way]}: " in done.stderr and "debox doctor" in done.stderr, done.stderr)
        footprint_expect_rest()
        note(f"{WAYS[way]}: not on this kernel")
        return
    rows, traces = measure(way)
    # "bare" is bare only when the trace before is gone for good.
    footprint_expect_rest()
    first = POINTS if way == 4 else "vfs_read"
    equal([f for f in traces["pread"] if f in (POINTS, "vfs_read", "rw_verify_area")][:1], [first], "the functions of pread")
    base, off, idle, on = (rows[w] for w in ("bare", "bracketed, no trace", "bracketed, thread did not ask", "bracketed, traced"))
    for call in ("getppid", "pread"):
        expect(on[call] > idle[call] >= off[call] >= base[call], "the order of", rows)
    per_function = (on["pread"] - idle["pread"]) / max(1, len(traces["pread"]))
    expect(per_function < 6000, "one traced function costs", per_function, "instructions")
    again, _ = measure(way)
    footprint_expect_rest()
    for what, row in rows.items():
        for call in ("getppid", "pread"):
            expect(abs(again[what][call] - row[call]) <= max(40, row[call] // 20), "not repeatable:", what, call, row, again[what])
    for what, row in rows.items():
        note(f"{WAYS[way]:8} {what:52} getppid {row['getppid']:6} pread {row['pread']:6}")
    note(f"{WAYS[way]:8} functions: getppid {traces['getppid']}, pread {traces['pread']}")
    SEEN[WAYS[way]] = {"rows": rows, "traces": traces}
    save("cost.json", json.dumps(SEEN))


for way in WAYS:
    check(f"cost-{WAYS[way]}", way, feature="cost of a call trace is exact and bounded")(check_way)


@check("cost-boundary", feature="cost of a call trace is exact and bounded")
def _():
    rows = {}
    traces = {"boundary, no trace": [], "boundary, traced": ["--trace", FUNCTIONS]}
    for what, options in traces.items():
        command = [f"{HERE}/debox", "run", "--json", "-o", "/tmp/cost.json", *shared(), *options, "--", f"{HERE}/traced", "-d", "/var/tmp", "bare"]
        rows[what] = json.loads(execute(command).stdout.splitlines()[0])
        footprint_expect_rest()
    with open("/tmp/cost.json") as file:
        functions = {f["function"]: f["calls"] for f in json.load(file)["trace"]["functions"]}
    expect(functions.get("vfs_read", 0) > 600, functions)
    off, on = rows["boundary, no trace"], rows["boundary, traced"]
    for call in ("getppid", "pread"):
        expect(on[call] > off[call], "the order of", rows)
    expect((on["pread"] - off["pread"]) / 3 < 6000, rows)
    for what, row in rows.items():
        note(f"boundary {what:52} getppid {row['getppid']:6} pread {row['pread']:6}")
    SEEN["boundary"] = {"rows": rows}
    save("cost.json", json.dumps(SEEN))


def bare():
    return json.loads(execute([f"{HERE}/traced", "-d", "/var/tmp", "bare"]).stdout.splitlines()[0])


def learning():
    instances = "/sys/kernel/tracing/instances"
    return [
        i for i in os.listdir(instances)
        if i.startswith("debox-learn-") and lines_of(f"{instances}/{i}/tracing_on") == ["1"]
    ]  # fmt: skip


@check("cost-learn", feature="cost of a call trace is exact and bounded")
def _():
    """While the first pass of --trace learn looks at functions: the same as above.

    Of all functions, switching the tracer on and off takes a minute here.
    """
    run = [f"{HERE}/debox", "run", "-o", "/dev/null", *shared(), "--trace", f"learn:{FUNCTIONS}", "--"]
    rows = {"bare": bare()}
    # Fewer calls than it learns from: all of them are made meanwhile.
    done = execute([*run, f"{HERE}/traced", "-d", "/var/tmp", "bare"])
    rows["boundary, learning"] = json.loads(done.stdout.splitlines()[0])
    expect("it passed" in done.stderr, "it does not say what it learned:", done.stderr)
    footprint_expect_rest()
    # Another process, in the two seconds that it lasts.
    for _ in range(5):
        program = subprocess.Popen([*run, "/bin/sleep", "50"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not learning() and program.poll() is None:
            expect(time.monotonic() < end, "it does not begin to learn")
            time.sleep(0.01)
        row = bare()
        still = learning()
        # Before it attaches to what it learned: that takes long.
        program.terminate()
        equal(program.wait(60), -signal.SIGTERM, "the program's exit status")
        footprint_expect_rest()
        if still:
            rows["unwatched process, another learns"] = row
            break
    else:
        raise Wrong("learning was over before anything could be measured")
    for call in ("getppid", "pread"):
        counts = [rows[w][call] for w in ("bare", "unwatched process, another learns", "boundary, learning")]
        expect(counts == sorted(counts) and counts[0] < counts[2] < 200_000, call, rows)
    for what, row in rows.items():
        note(f"learn    {what:52} getppid {row['getppid']:6} pread {row['pread']:6}")
    SEEN["learn"] = {"rows": rows}
    save("cost.json", json.dumps(SEEN))


@check("cost-log-is-clean")
def _():
    kernel_log_expect_clean()


native_needs_probes()
