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


def attached():
    """Cheap to ask: time here is instructions, and passes slowly."""
    return {"links": len(bpf_ids(31)), "functions": len(lines_of("/sys/kernel/tracing/enabled_functions"))}


def attached_expect(before):
    for _ in range(100):
        now = attached()
        if now == before:
            return
        time.sleep(0.2)
    raise Wrong("still attached:", now, "instead of", before)


def here(way):
    new = tuple(int(n) for n in os.uname().release.split("+")[0].split("-")[0].split(".")[:2]) >= (6, 10)
    return way >= 3 or new


def check_way(way):
    broker = shared_broker()
    before = attached()
    if not here(way):
        # Nothing to measure: that it is refused is what there is to see.
        environment = dict(os.environ, DEBOX_SOCKET=broker.socket)
        done = execute([f"{HERE}/traced", "-d", "/var/tmp", "-f", FUNCTIONS, "-w", str(way), "plain"], 3, env=environment)
        expect(f"kprobe.{WAYS[way]}: " in done.stderr and "debox doctor" in done.stderr, done.stderr)
        attached_expect(before)
        note(f"{WAYS[way]}: not on this kernel")
        return
    rows, traces = measure(way)
    # "bare" is bare only when the trace before is gone for good.
    attached_expect(before)
    first = POINTS if way == 4 else "vfs_read"
    equal([f for f in traces["pread"] if f in (POINTS, "vfs_read", "rw_verify_area")][:1], [first], "the functions of pread")
    base, off, idle, on = (rows[w] for w in ("bare", "bracketed, no trace", "bracketed, thread did not ask", "bracketed, traced"))
    for call in ("getppid", "pread"):
        expect(on[call] > idle[call] >= off[call] >= base[call], "the order of", rows)
    per_function = (on["pread"] - idle["pread"]) / max(1, len(traces["pread"]))
    expect(per_function < 6000, "one traced function costs", per_function, "instructions")
    again, _ = measure(way)
    attached_expect(before)
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
    before = attached()
    rows = {}
    traces = {"boundary, no trace": [], "boundary, traced": ["--trace", FUNCTIONS]}
    for what, options in traces.items():
        command = [f"{HERE}/debox", "run", "--json", "-o", "/tmp/cost.json", *shared(), *options, "--", f"{HERE}/traced", "-d", "/var/tmp", "bare"]
        rows[what] = json.loads(execute(command).stdout.splitlines()[0])
        attached_expect(before)
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


@check("cost-log-is-clean")
def _():
    kernel_log_expect_clean()
