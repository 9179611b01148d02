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

native(LAYOUT, "c_and_cxx_and_rust_agree")
native(LIBRARY, "c-tests")

def run(*command, **environment):
    # They look for the libraries where they were built, which need not be a
    # place that the guest has.
    return execute([f"{HERE}/{command[0]}", *command[1:]], env=dict(os.environ, LD_LIBRARY_PATH=HERE, **environment))


@check("before", always=True)
def _():
    equal(os.uname().release, command_line("debox.release"), "the release")
    BEFORE.update(footprint())
    # As the source tree has it beside c/tests.
    os.symlink(HERE, "/release")


@check("layout", feature=LAYOUT)
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


# tests/storms.rs. Only on the machine itself: what Python has a thousand threads for, and what
# takes an emulated machine too long.
RUST = {"storms": ["memory_of_a_thousand_threads", "a_million_sleeps_are_explained", "a_ring_of_a_thousand_threads_is_explained"]}
for name, feature in (
    ("threads_and_processes_by_the_thousand", STORM),
    ("slots_are_reused", STORM),
    ("killed_at_random_moments", KILLED),
    ("records_are_stale_without_a_broker", STALE),
):
    check(name, "storms", name, feature=feature)(rust_test)


@check("nothing-stays-attached", feature=STAYS)
def _():
    shared_broker_stop()
    footprint_expect(BEFORE)


@check("kernel-log-is-clean")
def _():
    kernel_log_expect_clean()
