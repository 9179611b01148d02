# SPDX-License-Identifier: MIT OR Apache-2.0
"""Storms, kill -9, and the layout that all parts share

The C tests of libdebox and of the interposer, as they stand, and the storms of
tests/storms.rs with what must come out of them.
"""

from guest import *  # noqa: F403

# Not here: `condition` (arithmetic only, a minute in an emulated machine) and
# `signals` (its timer leaves an emulated program no time of its own).
C_TESTS = ("library", "watch", "interposer", "collect", "fake_broker", "two_copies", "bracket-cxx", "compat_paper", "layout-c", "layout-cxx")
PROGRAMS = [
    "release/debox", "release/deboxd", "release/libdebox-wrap.so", "release/libdebox.so.0",
    "truth/truth", "truth/calls", "truth/storm", *[f"c/tests/{name}" for name in C_TESTS],
]  # fmt: skip

LAYOUT = "the layout in C and C++ is the one that the kernel side writes"
LIBRARY = "libdebox and the interposer: threads, signals, forks, lost brokers"
STORM = "threads and processes by the hundred: none lost, none counted twice"
KILLED = "kill -9 of program, client and broker at any moment"
STALE = "records say when the broker is gone"
STAYS = "nothing stays attached after a storm"

WRAP = {"LD_PRELOAD": f"{HERE}/libdebox-wrap.so"}
BEFORE = {}


def run(*command, **environment):
    # They look for the libraries where they were built, which need not be a
    # place that the guest has.
    return execute([f"{HERE}/{command[0]}", *command[1:]], env=dict(os.environ, LD_LIBRARY_PATH=HERE, **environment))


def gone(process):
    if process.poll() is None:
        process.kill()
    process.wait()


@check("before", always=True)
def _():
    equal(os.uname().release, command_line("debox.release"), "the release")
    BEFORE.update(footprint())
    # As the source tree has it beside c/tests.
    os.symlink(HERE, "/release")


@check("layout", feature=LAYOUT, smoke=True)
def _():
    c, cxx = run("layout-c").stdout, run("layout-cxx").stdout
    expect(len(c.splitlines()) > 300, "only", len(c.splitlines()), "lines of layout")
    equal(c, cxx, "the layout in C++")
    sizes = {line.split()[0]: int(line.split()[2]) for line in c.splitlines() if line.split()[1] == "-"}
    # What this kernel holds of the maps that the programs write records into.
    client = subprocess.Popen(
        [f"{HERE}/debox", "run", *shared(), "-o", "/dev/null", "--", f"{HERE}/truth", "-b", "nanosleep", "15000"],
        env=dict(os.environ, DEBOX_SOCKET=shared_broker().socket), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 60
    while True:
        status = shared_broker().status()
        if status["slots_used"] and status["accounts_used"]:
            break
        expect(time.monotonic() < end, "the client got no slot and account:", status)
        time.sleep(0.1)
    values = {m["value_size"] for m in bpf_maps()}
    equal(client.wait(60), 0, "the client's end")
    for struct in ("debox_record", "debox_control", "debox_account", "debox_account_cpu"):
        expect(sizes[struct] in values, "no map of this kernel has values of", sizes[struct], "bytes, the size of", struct, "but", sorted(values))


for arguments in (
    ("library",),
    ("watch",),
    ("interposer",),
    ("fake_broker", f"{HERE}/two_copies", "alone"),
    ("collect",),
    ("bracket-cxx",),
    ("fake_broker", f"{HERE}/compat_paper"),
):
    name = "-".join(os.path.basename(a) for a in arguments)
    check(f"c-{name}", *arguments, feature=LIBRARY)(run)


@check("c-two_copies-shared", feature=LIBRARY)
def _():
    run("fake_broker", f"{HERE}/two_copies", "shared", **WRAP)


def made(text):
    threads, processes = text.split()[:2]
    return int(threads), int(processes)


@check("storm-boundary", feature=STORM, smoke=True)
def _():
    command = [f"{HERE}/storm", "64", "24", "2", "2"]
    path = "/tmp/storm.json"
    done = execute([f"{HERE}/debox", "run", *shared(), "--json", "-o", path, "--", *command])
    threads, processes = made(done.stdout)
    with open(path) as file:
        report = json.load(file)
    expect(threads >= 128 and processes >= 48, threads, processes)
    equal(report["totals"]["threads_started"], threads + processes, "threads started")
    equal(report["totals"]["processes_started"], processes, "processes started")
    called = next(r["count"] for r in report["calls"] if r["name"] == "getppid")
    expect(threads <= called <= threads + processes, called, "calls of", threads, "threads and", processes, "processes")


@check("slots-are-used-again", feature=STORM)
def _():
    r = Report([f"{HERE}/calls", "threads", "300", "4"], ["--wrap", *shared()])
    equal(r.call("getppid")["count"], 1200, "getppid")
    expect(not [n for n in r.all["notes"] if n["kind"] == "wrap_threads_lost"], r.all["notes"])
    r = Report([f"{HERE}/storm", "64", "16", "2"], ["--wrap", *shared()])
    equal(shared_broker().status()["slots_used"], 0, "slots in use afterwards")


def children(pid):
    """Names of a process's children."""
    pids = " ".join(lines_of(f"/proc/{pid}/task/{pid}/children")).split()
    return [name for child in pids for name in lines_of(f"/proc/{child}/comm")]


@check("killed-at-any-moment", feature=KILLED)
def _():
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for round in range(3):
        broker = Broker(socket=f"/run/debox-kill{round}.sock")
        program = subprocess.Popen(
            [f"{HERE}/debox", "run", "-o", "/dev/null", "--socket", broker.socket, "--", f"{HERE}/storm", "32", "8", "1"], **quiet
        )
        client = subprocess.Popen(
            [f"{HERE}/truth", "-b", "getpid", "20000"], env=dict(os.environ, DEBOX_SOCKET=broker.socket), **quiet
        )
        end = time.monotonic() + 60
        # A broker that dies before the program began makes `debox run` say so.
        while "storm" not in children(program.pid):
            expect(time.monotonic() < end, "the program does not begin in round", round)
            time.sleep(0.05)
        # Another moment in each round.
        time.sleep(0.05 + 0.3 * round)
        which = round % 3
        (broker.process, program, client)[which].kill()
        if which != 1:
            equal(program.wait(90), 0, "the watched program's exit status in round", round)
        gone(program)
        gone(client)
        if which == 0:
            equal(broker.process.wait(30), -signal.SIGKILL, "the broker's end")
            continue
        end = time.monotonic() + 30
        while True:
            status = broker.status()
            if not status["slots_used"] and not status["accounts_used"]:
                break
            expect(time.monotonic() < end, "the broker still watches the dead in round", round, status)
            time.sleep(0.1)
        broker.__exit__()


@check("stale-records", feature=STALE, smoke=True)
def _():
    broker = Broker(socket="/run/debox-stale.sock")
    client = subprocess.Popen(
        [f"{HERE}/truth", "-b", "getpid", "3000000"],
        env=dict(os.environ, DEBOX_SOCKET=broker.socket), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        record = json.loads(client.stdout.readline())["record"]
        equal(record["flags"] & 4, 0, "stale at first:", record)
        broker.process.kill()
        broker.process.wait()
        end = time.monotonic() + 60
        while not record["flags"] & 4:
            expect(time.monotonic() < end, "no record says that the broker is gone:", record)
            record = json.loads(client.stdout.readline())["record"]
        equal(record["valid"] & 0x7F, 1, "a stale record knows its wall time only:", record)
    finally:
        gone(client)


@check("nothing-stays-attached", feature=STAYS, smoke=True)
def _():
    shared_broker_stop()
    footprint_expect(BEFORE)


@check("kernel-log-is-clean", smoke=True)
def _():
    kernel_log_expect_clean()
