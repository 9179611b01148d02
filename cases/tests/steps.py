#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Do the experiments with the server on its slow disk say what is so, and leave nothing behind, killed or not?

    steps.py
"""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
for folder in ("", "disk", "peers", "steps", "moment", "sizes", "helpers", "small"):
    sys.path.insert(0, str(TOP / "cases" / folder))
import helpers  # noqa: E402
import moment  # noqa: E402
import peers  # noqa: E402
import run  # noqa: E402
import server  # noqa: E402
import sizes  # noqa: E402
import slow_disk  # noqa: E402
import small  # noqa: E402

BACKED = slow_disk.TOP / "target"  # a disk's file system: control groups of tmpfs pay for what lies there


# All that cases start, by the names that the kernel has of them: of nginx also the two that are built.
PROGRAMS = {
    "flash", "flash-helper", "flash-cgi", "load", "slowdisk", "debox", "deboxd", "fio", "perf", "strace", "bpftrace", "gdb", "rare", "rare-gprof", "rare-in-band", "rcu",
    "nginx", "nginx-unpatched", "nginx-patched", "lighttpd", "apache2", "haproxy", "webfsd",
}  # fmt: skip


def left() -> set[str]:
    """What an experiment could leave."""
    group = slow_disk.MemoryGroup.hierarchy(pathlib.Path("/proc/mounts").read_text())[1]
    made = {str(mount.place) for mount in slow_disk.mounts()} | {str(path) for path in group.glob("debox-case-*")}
    made |= {file.read_text().strip() for file in pathlib.Path("/sys/block").glob("loop*/loop/backing_file")}
    made |= {str(path) for kind in ("case-*", "peer-*", "nginx-[0-9]*") for path in pathlib.Path(tempfile.gettempdir()).glob(f"debox-{kind}")}
    running = {process.pid: process.command for process in peers.processes().values() if process.command in PROGRAMS}
    # No zombies: slowdisk is init's child, which may take its time.
    return made | {f"{pid} {running[pid]}" for pid in server.alive(list(running))}


def running(pid: int, words: list[str]) -> bool:
    """A program, and an argument of it."""
    try:
        said = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False
    return pathlib.PurePath(said[0]).name == words[0] and set(words[1:]) <= set(said)


class Experiments(unittest.TestCase):
    def setUp(self):
        self.before = left()
        self.out = pathlib.Path(tempfile.mkdtemp(prefix="experiments-", dir=BACKED))
        self.addCleanup(shutil.rmtree, self.out)

    def nothing_left(self, within_s=1.0):
        end = time.monotonic() + within_s
        # The disk, small's files and moment's core, of a case by itself or of a runner.
        made = lambda: {str(path) for name in ("disk", "root", "dump") for below in ("", "*/") for path in self.out.glob(below + name)}  # noqa: E731
        while (more := left() - self.before | made()) and time.monotonic() < end:
            time.sleep(0.1)
        log = self.out / "disk/slowdisk.log"
        self.assertEqual(more, set(), log.read_text() if log.exists() else "")

    def test_the_core_shows_the_call_that_debox_told_of(self):
        told = moment.run(self.out, True)
        values = told["values"]
        self.assertTrue(all(name in "\n".join(told["stack"]) for name in ("answer_send", "state_send", "loop_run", "main")), told["stack"])
        self.assertIn(f"/{values['name']})", told["said"][-1])
        self.assertIn("SIGABRT", told["said"][-1])
        self.assertTrue(any("page-in" in line for line in told["said"]))
        if values["helper_read_it"] == "false":
            # What it believed, or it would have asked a helper.
            self.assertGreaterEqual(int(values["believed_to"]), min(128 << 10, int(values["bytes"])))
            self.assertLessEqual(int(values["loaded_since"]), int(values["trusted_mb"]) << 20)
        before, after = list(told["tried"].values())
        self.assertLess(after["debox"]["asleep_ns"], before["debox"]["asleep_ns"] / 2)
        self.assertFalse((self.out / "dump").exists())
        self.nothing_left()

    def test_more_helpers_use_the_disk(self):
        row = helpers.run(self.out, True)[helpers.FINAL.name]
        one, eight = row["1"], row["8"]
        self.assertGreater(eight["disk_reads"] / eight["seconds"], 1.3 * one["disk_reads"] / one["seconds"])
        self.assertGreater(eight["conforming_percent"], one["conforming_percent"])
        for told in row.values():
            self.assertEqual(told["errors"], 0)
            self.assertLess(told["debox"]["loop"]["ms"], 100)
        # One helper sleeps for a second in a second at most, eight for eight.
        self.assertLess(one["debox"]["helpers"]["ms"], 1100)
        self.assertGreater(eight["debox"]["helpers"]["ms"], one["debox"]["helpers"]["ms"])
        self.assertIn("| conforming |", (self.out / "helpers.md").read_text())
        self.nothing_left()

    def test_the_sizes_of_files_and_of_memory(self):
        sizes.QUICK, kept = sizes.Plan(sizes.SHARES[::2], (sizes.ORIGINAL.name, sizes.FINAL.name), 1, 2), sizes.QUICK
        self.addCleanup(setattr, sizes, "QUICK", kept)
        told = sizes.run(self.out, True)
        for name, row in told["capacity"].items():
            self.assertGreater(row[0]["megabits_per_s"], 1.5 * row[1]["megabits_per_s"], name)
        self.assertGreater(told["capacity"][sizes.FINAL.name][1]["megabits_per_s"], 1.5 * told["capacity"][sizes.ORIGINAL.name][1]["megabits_per_s"])
        for one in told["times"].values():
            self.assertEqual(one["errors"], 0)
            self.assertAlmostEqual(one["asked"] / 2 / told["rate"], 1, delta=0.3)
            self.assertLessEqual(one["times"]["first_byte"]["p50_us"], one["times"]["whole"]["p50_us"])
        for name in ("capacity", "times-first-byte", "times-whole"):
            self.assertIn("</svg>", (self.out / f"{name}.svg").read_text())
        self.nothing_left()

    def test_a_head_of_its_own_costs_a_packet(self):
        ways = small.run(self.out, True)["ways"]
        for apart, together in zip(ways["sendfile, head apart"], ways["sendfile"], strict=True):
            self.assertGreater(apart["cpu_us"], together["cpu_us"])
        self.assertFalse((self.out / "root").exists())
        self.nothing_left()

    def test_what_is_killed_leaves_nothing(self):
        process = subprocess.Popen([sys.executable, str(TOP / "cases/sizes/sizes.py"), "--quick", "--out", str(self.out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while not any("load" in name for name in left() - self.before if name[0].isdigit()) or not list(self.out.glob("disk/data/root/dir00041")):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        time.sleep(2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.nothing_left(20.0)

    def test_a_runner_that_is_killed_at_any_step_leaves_nothing(self):
        """Each step is known by the words of a command that runs then; those of the disk itself are killed one by one in disk.py."""
        for words in (["deboxd", "--everybody"], ["fio"], ["load", "files"], ["load", "run"], ["debox", "attach"]):
            with self.subTest(words[-1]):
                process = subprocess.Popen([sys.executable, str(TOP / "cases/run.py"), "--only", "helpers", "--out", str(self.out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                end = time.monotonic() + 60
                while not any(running(one.pid, words) for one in peers.below(process.pid)):
                    self.assertLess(time.monotonic(), end)
                    self.assertIsNone(process.poll())
                process.send_signal(signal.SIGKILL)
                process.wait()
                self.nothing_left(20.0)

    def test_each_case_that_is_killed_leaves_nothing(self):
        """At some moment in the midst of it."""
        for one in run.ALL:
            after_s = random.uniform(0.2, 1.2)
            with self.subTest(one.folder, after_s=after_s):
                argv = [sys.executable, str(TOP / "cases/run.py"), "--only", one.folder, "--out", str(self.out)]
                process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
                self.assertTrue(any(line.startswith(f"== {one.question}") for line in process.stdout), "it ended before")
                time.sleep(after_s)
                self.assertIsNone(process.poll(), "it was over before")
                process.send_signal(signal.SIGKILL)
                process.stdout.close()
                process.wait()
                self.nothing_left(20.0)

    def test_a_runner_that_is_interrupted_has_its_case_clean_up(self):
        for name, words in (("small", ["load", "run"]), ("moment", ["load", "run"])):
            with self.subTest(name):
                argv = [sys.executable, str(TOP / "cases/run.py"), "--only", name, "--out", str(self.out)]
                process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
                end = time.monotonic() + 60
                while not any(running(one.pid, words) for one in peers.below(process.pid)):
                    self.assertLess(time.monotonic(), end)
                    self.assertIsNone(process.poll())
                process.send_signal(signal.SIGINT)
                self.assertNotEqual(process.wait(60), 0)
                # By then, and not when somebody else has noticed.
                self.nothing_left()


if __name__ == "__main__":
    if os.geteuid():
        print("NOT RUN: the slow disk needs root")
        sys.exit(77)
    for program, package in (("gdb", "gdb"), ("nginx", "nginx-light")):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin"):
            print(f"NOT RUN: {program} is missing: apt-get install {package}")
            sys.exit(77)
    unittest.main()
