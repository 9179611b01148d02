# SPDX-License-Identifier: MIT OR Apache-2.0
"""The case study's server"""

from guest import *

import pathlib
import resource

# The guest is slow, and stalls.
os.environ.setdefault("DEBOX_TEST_TIME", "20")
CASES = pathlib.Path(__file__).resolve().parents[2] / "../cases"
sys.path[:0] = [HERE, str(CASES / "tests"), str(CASES / "steps")]

import designs
import server

PROGRAMS = ["cases/flash"]
FILES = ["cases/tests/server.py", "cases/steps/designs.py"]
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


# All combinations of switches, and the same of lost processes: cases/tests/server.py.
for row in (ALONE, EXACT, PASSED, LOST):
    native(row, "server")
