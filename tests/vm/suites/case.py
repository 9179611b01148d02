# SPDX-License-Identifier: MIT OR Apache-2.0
"""The case study's server"""

from guest import *

import pathlib
import resource

# The guest is slow, and stalls.
os.environ.setdefault("DEBOX_TEST_TIME", "20")
CASES = pathlib.Path(__file__).resolve().parents[2] / "../cases"
sys.path[:0] = [HERE, str(CASES / "tests"), str(CASES / "steps"), str(CASES / "disk")]

import designs
import server
import slow_disk

PROGRAMS = ["cases/flash"]
FILES = ["cases/tests/server.py", "cases/steps/designs.py", "cases/disk/slow_disk.py"]
LIMIT_S = 170
FLASH = pathlib.Path(HERE, "flash")
# Of a disk: pages of files in memory alone are never missing.
WHERE = pathlib.Path("/var/tmp/case")
FIRST, FINAL = designs.DESIGNS[0], designs.DESIGNS[-1]
# A login has so many; the server wants them for files that it keeps open.
DESCRIPTORS = 65536
MADE = {}  # the files that are served
# Rows of docs/KERNELS.md.
ALONE = "right bytes, nothing left behind: the first design, one event loop for all"
PASSED = "right bytes, nothing left behind: helpers pass descriptors (SCM_RIGHTS)"
EXACT = "right bytes, nothing left behind: the last design, by openat2(RESOLVE_CACHED), cachestat(2) and RWF_NOWAIT"
LOST = "a helper or the server is killed: all that it started ends"
NEW = os.uname().release.startswith("6.12")


def cachestat():
    """cachestat(2) came with 6.5."""
    return ctypes.CDLL(None, use_errno=True).syscall(451, -1, None, None, 0) == -1 and ctypes.get_errno() != 38


def root():
    """With the files in it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    where = WHERE / "root"
    if not where.exists():
        where.mkdir(parents=True)
        server.make_files(where, MADE)
    return where


def serves(design, **instead):
    """The right bytes, cold and warm, whole and in parts, dynamic and CGI, for slow clients and those that go."""
    switches = {**design.switches, **instead, "helpers": "3"}
    server.combination(FLASH, root(), MADE, [word for name, value in switches.items() for word in (f"--{name}", value)], designs.DESIGNS.index(design))


@check("case-original", feature=ALONE)
def _():
    serves(FIRST)


@check("case-final", feature=EXACT)
def _():
    equal(cachestat(), NEW, "cachestat(2) there")
    if NEW:
        serves(FINAL)
        return
    # It says what is missing, and what to choose. With that it is the paper's: an exact check, and maps for it.
    done = execute([str(FLASH), "--root", "/", *designs.argv(FINAL)], expected=1)
    expect("choose --residency mincore" in done.stderr, done.stderr)
    serves(FINAL, residency="mincore")
    cell(EXACT, "with mincore(2): no cachestat(2)")


@check("case-helpers-pass-descriptors", feature=PASSED)
def _():
    serves(designs.DESIGNS[2])


@check("case-lost-processes", feature=LOST)
def _():
    server.lost_processes(FLASH, root(), MADE)
    kernel_log_expect_clean()


@check("case-memory-group-of-cgroup-v2")
def _():
    limit = 8 << 20
    place, file = pathlib.Path("/var/tmp/cgroup2"), WHERE / "larger"
    WHERE.mkdir(parents=True, exist_ok=True)
    place.mkdir(exist_ok=True)
    execute(["mount", "-t", "cgroup2", "none", str(place)])
    try:
        with open(file, "wb") as larger:
            larger.write(bytes(3 * limit))
            os.fsync(larger.fileno())
            os.posix_fadvise(larger.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with slow_disk.MemoryGroup("guest", limit, f"none {place} cgroup2 rw 0 0\n") as group:
            equal(group.version, 2, "the hierarchy")
            with open(file, "rb") as larger:
                subprocess.run(group.command(["cat"]), stdin=larger, stdout=subprocess.DEVNULL, check=True)
            expect(limit // 2 < group.used_bytes() <= limit, f"{group.used_bytes()} bytes of {limit}")
            events = dict(line.split() for line in (group.path / "memory.events").read_text().splitlines())
            expect(int(events["max"]) > 0 and events["oom_kill"] == "0", events)
            kept = subprocess.Popen(group.command(["sleep", "1000"]))
            expect(slow_disk.wait_until(lambda: kept.pid in group.processes(), 20), "it comes into its group")
        expect(not group.path.exists() and kept.wait() == -signal.SIGKILL, "what ran in it is gone with it")
    finally:
        execute(["umount", str(place)])
        file.unlink(missing_ok=True)


# All combinations of switches, and the same of lost processes: cases/tests/server.py.
for row in (ALONE, EXACT, PASSED, LOST):
    native(row, "server")
