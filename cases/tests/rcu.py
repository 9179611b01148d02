#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does DeBox name the calls that a growing table of descriptors holds up, and none where it is large?

Its counts and times are held against what the program measured itself. Needs root.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "cases/rcu"))
import rcu  # noqa: E402


class Rcu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory(prefix="debox-rcu-")
        cls.addClassCleanup(cls.work.cleanup)
        rcu.PROGRAM = pathlib.Path(cls.work.name, "rcu")
        subprocess.run(["cc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o", str(rcu.PROGRAM), str(TOP / "cases/rcu/rcu.c")], check=True)
        cls.out = pathlib.Path(cls.work.name, "out")
        cls.found = rcu.run(cls.out, quick=True)

    def test_as_it_is(self):
        one = self.found["watched"]["two threads"]
        program, debox = one["program"], one["debox"]
        # It doubles from what the parent had, 64 or 256, on.
        self.assertGreaterEqual(program["slept"], 4)
        for number in program["descriptors"]:
            self.assertEqual(number & (number - 1), 0, f"{number} is no power of two")
        self.assertEqual(debox["calls"], program["calls"])
        row = max(debox["blocked"], key=lambda row: row["total_ns"])
        self.assertEqual((row["label"], row["function"], row["count"]), ("fd-table", "expand_files", program["slept"]))
        # The program's time of these calls is all of their time: what they ran and waited for a CPU, too.
        self.assertLessEqual(row["total_ns"], program["slept_ns"])
        self.assertGreater(row["total_ns"], 0.5 * program["slept_ns"])
        self.assertIn("synchronize_rcu", " ".join(debox["path"]))
        # Slow calls are told with what they returned.
        self.assertTrue(debox["slow_descriptors"])
        self.assertLessEqual(set(debox["slow_descriptors"]), set(program["descriptors"]))
        # Who wakes it runs the call-back of a grace period, and did nothing for it.
        self.assertIn("socket: fd-table ← an RCU grace period", " ".join(" ".join(one["verdict"]).split()))
        self.assertTrue(debox["advice"])

    def test_fixed(self):
        one = self.found["watched"]["two threads, table large from the start"]
        # What else may sleep in there (memory that is not at hand) both must see.
        self.assertEqual(sum(row["count"] for row in one["debox"]["blocked"]), one["program"]["slept"])
        self.assertNotIn("fd-table", [row["label"] for row in one["debox"]["blocked"]])
        self.assertEqual(one["debox"]["calls"], one["program"]["calls"])
        self.assertNotIn("fd-table", " ".join(one["verdict"]))

    def test_unwatched(self):
        measured = self.found["measured"]["socket"]
        grown = set(measured["two threads"]["by_descriptor_ms"])
        self.assertGreaterEqual(measured["two threads"]["slept"]["least"], 4)
        for name in ("one thread", "two threads, table large from the start"):
            self.assertEqual(grown & set(measured[name]["by_descriptor_ms"]), set())

    def test_outputs(self):
        self.assertEqual(json.loads((self.out / "rcu.json").read_text())["calls"], self.found["calls"])
        self.assertIn("two threads", (self.out / "rcu-socket.svg").read_text())
        self.assertIn("fd-table", (self.out / "rcu.md").read_text())

    def test_errors(self):
        with self.assertRaisesRegex(rcu.RcuError, "ended with status 1"), rcu.Program("socket", rcu.limit() + 1, rcu.VARIANTS[0]) as program:
            program.go()
        there, rcu.PROGRAM = rcu.PROGRAM, pathlib.Path(self.work.name, "nowhere")
        try:
            with self.assertRaisesRegex(rcu.RcuError, "make case-programs"):
                rcu.one("socket", 1, rcu.VARIANTS[0])
        finally:
            rcu.PROGRAM = there


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("rcu.py: needs root (DeBox attaches to a process)")
    unittest.main()
