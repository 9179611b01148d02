#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Is what DeBox says of the one call in a thousand what the program itself measured, and is
the cause the one that was made?
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
# slow_disk.py looks here, as the Makefile builds it; a test of a single part brings its own.
if not os.environ.get("DEBOX_SLOWDISK") and not (TOP / "target/cases/slowdisk").exists():
    BUILT = tempfile.TemporaryDirectory(prefix="debox-slowdisk-")
    os.environ["DEBOX_SLOWDISK"] = f"{BUILT.name}/slowdisk"
    subprocess.run(["cc", "-std=gnu11", "-O2", "-o", os.environ["DEBOX_SLOWDISK"], str(TOP / "cases/disk/slowdisk.c")], check=True)
sys.path.insert(0, str(TOP / "cases/rare"))
import rare  # noqa: E402
import tools  # noqa: E402

SOURCE = TOP / "cases/rare/rare.c"
CALLS = 20_000
MISSING = tools.Tool("missing", "no_such_program package", tools.before("no_such_program"), tools.errors, tools.gprof)
PERF = next(tool for tool in tools.TOOLS if tool.name == "perf record")


def left() -> set[str]:
    """Directories, mounts and processes of runs of the case."""
    mounts = {line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines() if "debox-rare-" in line}
    processes = set()
    for status in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"debox-rare-" in status.read_bytes():
                processes.add(str(status))
        except OSError:
            continue
    return mounts | processes | {str(file) for file in pathlib.Path(tempfile.gettempdir()).glob("debox-rare-*")}


class Quick(unittest.TestCase):
    """One quick run, with the tools that the rest of the test needs."""

    @classmethod
    def setUpClass(cls):
        cls.before = left()
        cls.out = pathlib.Path(tempfile.mkdtemp(prefix="debox-test-"))
        cls.result = rare.run(cls.out, True, (PERF, tools.STRACE_TIMES, MISSING, tools.SPLICE, tools.BOUNDARY))
        cls.rows = {row["tool"]: row for row in cls.result["tools"]}

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.out)

    def report(self, name):
        return json.loads((self.out / f"{name}.json").read_text())

    def made(self, took):
        """The program has met the slow calls that were made for it, and hardly any others."""
        self.assertEqual(took["count"], CALLS)
        self.assertAlmostEqual(took["slow"], CALLS // rare.EVERY, delta=2)

    def test_lock_agrees(self):
        took, agree = self.rows["debox, splice"]["took"], self.result["agreement"]
        self.made(took)
        self.assertEqual(agree["slow"][1], took["slow"])
        # One in a hundred of 20 is none.
        self.assertEqual(agree["slow"][0], took["slow"])
        self.assertAlmostEqual(agree["mean_ns"][0] / took["mean_ns"], 1, delta=0.1)
        self.assertAlmostEqual(agree["max_ns"][0] / took["max_ns"], 1, delta=0.1)
        self.assertTrue(agree["agree"])

    def test_boundary(self):
        """In the kernel the way into it and out is not seen, a part of each call: only the long ones agree."""
        took = self.rows["debox, boundary"]["took"]
        (row,) = [row for row in self.report("debox-boundary")["calls"] if row["name"] == "lseek"]
        self.made(took)
        self.assertEqual(tools.slow_calls(row), took["slow"])
        self.assertAlmostEqual(row["max_ns"] / took["max_ns"], 1, delta=0.1)

    def test_lock_cause(self):
        line = next(n for n, text in enumerate(SOURCE.read_text().splitlines(), 1) if re.search(r"= call\(", text))
        for name in ("debox-splice", "debox-boundary"):
            with self.subTest(name=name):
                found = tools.waits(self.report(name), "lseek")
                self.assertEqual((found.label, found.function), ("file-position", "fdget_pos"))
                self.assertEqual((found.holder, found.holder_call), ("reader", "read"))
                self.assertEqual(found.chain[0], "reader in read: page-in")
                self.assertGreater(len(found.chain), 1)
                # The compiler makes a jump of the call: of call() and main() the one that is left.
                self.assertEqual(found.place, f"main (rare.c:{line})")

    def test_page(self):
        page = self.result["page"]
        self.made(page["took"])
        self.assertEqual((page["waits"]["label"], page["waits"]["holder"]), ("page-in", ""))
        self.assertAlmostEqual(page["waits"]["count"], CALLS // rare.EVERY + 1, delta=2)

    def test_clock_beside_the_call(self):
        shown = self.result["figures_1_and_2"]
        self.assertGreaterEqual(shown["clock"]["slow"], 4)
        self.assertLessEqual(shown["debox"]["slow"], shown["clock"]["slow"] // 4)
        self.assertLess(shown["debox"]["max_ns"], shown["clock"]["max_ns"])

    def test_tools(self):
        self.assertRegex(self.rows["perf record"]["problem"], r"^no: \d+% of the samples")
        strace = self.rows["strace -T"]
        self.assertAlmostEqual(strace["share"] / strace["took_share"], 1, delta=0.9)
        self.assertGreater(strace["cost"]["median"], 1.5)
        self.assertEqual(self.rows["missing"]["not_run"], "no_such_program is not installed (apt-get install package)")
        text = (self.out / "rare.md").read_text()
        for words in ("| missing | not run:", "held by reader in read", "they agree"):
            self.assertIn(words, text)
        for name in ("cost", "share", "distribution", "figures-1-2"):
            self.assertIn("</svg>", (self.out / f"{name}.svg").read_text())

    def test_nothing_left(self):
        self.assertEqual(left() - self.before, set())


class Words(unittest.TestCase):
    def test_a_time_below_zero_is_no_long_call(self) -> None:
        times = tools.Times([10_000.0] * 998 + [1_000_000.0] * 2, run_s=1.0)
        said = tools.perf_trace(
            "     21.398 (18446744073695.906 ms): rare/15301 lseek(fd: 4</f>, whence: CUR)    = 15302 (rare)\n"
            "     49.353 ( 1.000 ms): rare/15301 lseek(fd: 4</f>, whence: CUR)    = 12288\n"
            "     80.695 ( 1.000 ms): rare/15301 lseek(fd: 4</f>, whence: CUR)    = 16384\n"
            "   lseek               1000      0    11.980     0.010     0.012     1.000      4.48%\n",
            times,
        )
        self.assertEqual(said.problem, "no: mean 12 µs, 1.2 times that of the calls below 500 µs")
        self.assertEqual(said.rare, "2 of 1,000 took 500 µs or more, the longest 1 ms; 1 more with a time below zero")


    def test_a_mean_that_is_as_ever_shows_no_problem(self) -> None:
        self.assertRegex(tools.Times([50_000.0] * 999 + [1_000_000.0], run_s=1.0).rise(), "^no: mean 51 µs, 1 times")
        self.assertRegex(tools.Times([200.0] * 999 + [1_000_000.0], run_s=1.0).rise(), "^mean 1.2 µs, 6 times")


class Program(unittest.TestCase):
    def test_refuses(self):
        with tempfile.TemporaryDirectory() as work:
            program, short = f"{work}/rare", pathlib.Path(work, "short")
            subprocess.run([*rare.CC, "-Wall", "-Wextra", "-Werror", "-o", program, str(SOURCE)], check=True)
            short.write_bytes(bytes(3 * 4096))
            cases = {("lock",): "usage:", ("neither", short, "10", "times"): "usage:", ("page", "missing", "10", "times"): "missing; give a file", ("page", short, "10000", "times"): "no page for call 2500", ("lock", short, "10000", "times"): "the reader finds no further page"}
            for words, complaint in cases.items():
                with self.subTest(words=words):
                    done = subprocess.run([program, *map(str, words)], cwd=work, capture_output=True, text=True, timeout=20, check=False)
                    self.assertIn(complaint, done.stderr)
                    self.assertGreater(done.returncode, 0)
                    self.assertFalse(pathlib.Path(work, "times").exists())


if __name__ == "__main__":
    if os.geteuid():
        print("NOT RUN: the slow disk needs root")
        sys.exit(77)
    if len(os.sched_getaffinity(0)) < 2:
        print("NOT RUN: the program needs two CPUs: allow two (taskset)")
        sys.exit(77)
    for program, package in (("perf", "linux-perf"), ("strace", "strace"), ("chrt", "util-linux")):
        if not shutil.which(program):
            print(f"NOT RUN: {program} is missing: apt-get install {package}")
            sys.exit(77)
    unittest.main()
