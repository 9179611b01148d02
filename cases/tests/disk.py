#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does the slow disk keep its bytes and take its time, and is it surely gone afterwards?

Needs root, /dev/fuse and loop devices, fio and a C compiler. Times are bounded from
below, as the model has them; from above only where four arms must beat one.
"""

import concurrent.futures
import contextlib
import io
import json
import mmap
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "cases/disk"))
import slow_disk  # noqa: E402
from slow_disk import DiskError, MemoryGroup, SlowDisk  # noqa: E402

SCRIPT = str(TOP / "cases/disk/slow_disk.py")
STEPS = ("make_file", "make_filesystem", "start", "wait_started", "attach", "mount")
NOBODY = 65534
SMALL = {"size_bytes": 64 << 20, "latency_s": 0.001, "bandwidth_bytes_per_s": 200e6}

# Argument: directory, slowdisk, "after" or "before" a step, the step, whether watched.
KILLED = """
import os, signal, sys
sys.path.insert(0, os.path.dirname(sys.argv[6]))
from slow_disk import SlowDisk
state, slowdisk, when, step, watched = sys.argv[1:6]
class Killed(SlowDisk):
    def stepped(self, name):
        if (when, step) == ("after", name):
            os.kill(os.getpid(), signal.SIGKILL)
    def _note(self, name):
        super()._note(name)
        if (when, step) == ("before", name):
            os.kill(os.getpid(), signal.SIGKILL)
with Killed(state, size_bytes=64 << 20, watched=watched == "True", slowdisk=slowdisk) as disk, disk.memory_group(64 << 20) as group:
    import subprocess
    server = subprocess.Popen(group.command(["sleep", "60"]), cwd=disk.data)
    while not group.processes():
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


def cached_pages(file):
    said = subprocess.run(["fincore", "--bytes", "--json", "--output", "PAGES", str(file)], capture_output=True, text=True, check=True).stdout
    return int(json.loads(said)["fincore"][0]["pages"])


def read_directly(file, offset, size):
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, size) as buffer:
            return os.preadv(descriptor, [buffer], offset)
    finally:
        os.close(descriptor)


class Disk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory(prefix="debox-disk-")
        cls.slowdisk = os.path.join(cls.work.name, "slowdisk")
        subprocess.run(["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", cls.slowdisk, str(TOP / "cases/disk/slowdisk.c")], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.work.cleanup()

    def setUp(self):
        self.state = os.path.join(self.work.name, self.id().rsplit(".", 1)[1])
        self.before = self.traces()
        self.assertEqual(self.before, [])

    def tearDown(self):
        left = self.traces()
        if left:  # for the tests after this one
            with contextlib.suppress(DiskError):
                SlowDisk(self.state).down()
        self.assertEqual(left, [])

    def traces(self):
        """What there is of this test's disk on the machine, by all that would show it."""
        found = [line for line in pathlib.Path("/proc/mounts").read_text().splitlines() if self.work.name in line]
        found += [line for line in subprocess.run(["losetup", "--list", "--noheadings"], capture_output=True, text=True, check=True).stdout.splitlines() if self.work.name in line]
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if self.state in line and int(entry.name) != os.getpid():
                    found.append(line)
        group = SlowDisk(self.state).memory_group(0).path
        found += [str(path) for path in (pathlib.Path(self.state), group) if path.exists()]
        return found

    def disk(self, **options):
        return SlowDisk(self.state, slowdisk=self.slowdisk, **{**SMALL, **options})

    def test_bytes(self):
        data = os.urandom(3 << 20)
        with self.disk() as disk:
            (disk.data / "file").write_bytes(data)
            disk.remount()
            self.assertEqual((disk.data / "file").read_bytes(), data)
            counts = disk.counts()
            # Under ext4 and the loop device lies what we serve: all bytes went through it.
            self.assertGreaterEqual(counts["written_bytes"], len(data))
            self.assertGreaterEqual(counts["read_bytes"], len(data))
            # And they are where they should be, contiguous on a new file system.
            self.assertIn(data[: 1 << 20], disk.backing.read_bytes())

    def test_remount_makes_cold(self):
        with self.disk() as disk:
            file = disk.data / "file"
            file.write_bytes(bytes(1 << 20))
            self.assertEqual(cached_pages(file), 256)
            disk.remount()
            self.assertEqual(cached_pages(file), 0)
            before = disk.counts()["read_bytes"]
            file.read_bytes()
            self.assertGreaterEqual(disk.counts()["read_bytes"] - before, 1 << 20)
            before = disk.counts()["read_bytes"]
            file.read_bytes()
            self.assertEqual(disk.counts()["read_bytes"], before)

    def test_remount_is_cold_though_others_copied_the_mount(self):
        with self.disk() as disk:
            file = disk.data / "file"
            file.write_bytes(bytes(1 << 20))
            held = subprocess.Popen(["unshare", "-m", "sh", "-c", "echo; exec sleep 0.5"], stdout=subprocess.PIPE)
            with held:
                held.stdout.readline()
                disk.remount()
            self.assertEqual(cached_pages(file), 0)

    def timed(self, disk, readers, reads, size):
        file = disk.data / "file"
        if not file.exists():
            with disk.undelayed():
                file.write_bytes(os.urandom(4 << 20))
        self.assertTrue(disk.counts()["delays"])

        def reader(number):
            for turn in range(reads):
                offset = (number * reads + turn) * size % (4 << 20)
                self.assertEqual(read_directly(file, offset, size), size)

        with concurrent.futures.ThreadPoolExecutor(readers) as pool:
            begin = time.monotonic()
            list(pool.map(reader, range(readers)))
            return time.monotonic() - begin

    def test_latency_and_arms(self):
        with self.disk(latency_s=0.020, arms=4, bandwidth_bytes_per_s=0) as disk:
            self.assertGreaterEqual(self.timed(disk, 1, 1, 4096), 0.020)
            self.assertGreaterEqual(self.timed(disk, 1, 5, 4096), 0.100)
            self.assertGreaterEqual(self.timed(disk, 8, 4, 4096), 8 * 4 * 0.020 / 4)
            # By what the disk said, not by how long a busy machine took: of four none waits for an arm.
            before = disk.counts()
            self.timed(disk, 4, 4, 4096)
            self.assertEqual(disk.counts()["reads"] - before["reads"], 16)
            self.assertEqual(disk.counts()["delay_ns"] - before["delay_ns"], 16 * 20_000_000)
        with self.disk(latency_s=0.020, arms=1, bandwidth_bytes_per_s=0) as disk:
            self.timed(disk, 1, 1, 4096)
            before = disk.counts()
            self.assertGreaterEqual(self.timed(disk, 8, 4, 4096), 8 * 4 * 0.020)
            self.assertGreater(disk.counts()["delay_ns"] - before["delay_ns"], 2 * 32 * 20_000_000)
            self.assertGreaterEqual(disk.counts()["queued_max"], 4)

    def test_bandwidth_is_shared(self):
        with self.disk(latency_s=0, arms=8, bandwidth_bytes_per_s=2e6) as disk:
            self.assertGreaterEqual(self.timed(disk, 4, 2, 65536), 8 * 65536 / 2e6 * 0.999)

    def test_fio_agrees(self):
        with self.disk(latency_s=0.003, arms=4, bandwidth_bytes_per_s=60e6) as disk, contextlib.redirect_stdout(io.StringIO()) as printed:
            one, eight, undelayed = disk.calibrate(0.3, 4 << 20, (1, 8), (4096,))
        self.assertAlmostEqual(one["model_iops"], 325.9, places=1)
        self.assertAlmostEqual(eight["model_iops"], 1303.7, places=1)
        for row in (one, eight):  # no faster than its model; fio counts what is under way at the end
            self.assertLess(row["iops"], row["model_iops"] * 1.1)
            self.assertGreaterEqual(row["mean_ms"], 3.0)
        self.assertGreater(undelayed["iops"], eight["iops"])
        self.assertIn("fio/model", printed.getvalue())
        self.assertIn("NOT CALIBRATED: 1 of 2", disk.table([dict(one, iops=one["model_iops"] * 0.84), dict(eight, iops=eight["model_iops"] * 0.86)]))
        self.assertIn("all within 15%", disk.table([dict(one, iops=one["model_iops"] * 1.14)]))

    def test_memory_group(self):
        with self.disk() as disk:
            file = disk.data / "file"
            with disk.undelayed():
                file.write_bytes(bytes(24 << 20))
            disk.remount()
            with disk.memory_group(8 << 20) as group:
                subprocess.run(group.command(["cat", str(file)]), stdout=subprocess.DEVNULL, check=True)
                self.assertLessEqual(group.used_bytes(), 8 << 20)
                self.assertGreater(cached_pages(file), 0)
                self.assertLessEqual(cached_pages(file) * 4096, 8 << 20)
                # Of files alone: at its limit, and nobody wants for memory.
                read = group.pressure()
                self.assertGreater(read["at_limit"], 0)
                self.assertEqual(read["killed"], 0)
                self.assertLess(read["own_bytes"], 6 << 20)
            self.assertFalse(group.path.exists())
            with disk.memory_group(24 << 20) as group:
                taken = "import sys; kept = bytearray(b'x') * (%d << 20); print(len(kept), flush=True); sys.stdin.read()"
                with subprocess.Popen(group.command([sys.executable, "-S", "-E", "-c", taken % 12]), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                    process.stdout.readline()
                    self.assertGreater(group.pressure()["own_bytes"], 12 << 20)
                    process.stdin.close()
                self.assertEqual(group.pressure()["killed"], 0)
                self.assertEqual(subprocess.run(group.command([sys.executable, "-S", "-E", "-c", taken % 64]), stdin=subprocess.DEVNULL, check=False).returncode, -signal.SIGKILL)
                self.assertEqual(group.pressure()["killed"], 1)

    def test_hierarchies(self):
        with tempfile.TemporaryDirectory() as two:
            controllers = pathlib.Path(two, "cgroup.controllers")
            text = f"cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 {two} cgroup2 rw 0 0\n"
            controllers.write_text("cpu memory pids\n")
            self.assertEqual(MemoryGroup.hierarchy(text), (2, pathlib.Path(two)))
            controllers.write_text("cpu pids\n")
            self.assertEqual(MemoryGroup.hierarchy(text)[0], 1)
            with self.assertRaisesRegex(DiskError, "mount -t cgroup2"):
                MemoryGroup.hierarchy("proc /proc proc rw 0 0\n")

    def killed(self, when, step, watched):
        argv = [sys.executable, "-c", KILLED, self.state, self.slowdisk, when, step, str(watched), SCRIPT]
        self.assertEqual(subprocess.run(argv, check=False, stdout=subprocess.DEVNULL).returncode, -signal.SIGKILL)
        self.assertNotEqual(self.traces(), [])

    def test_killed_at_each_step(self):
        """down takes away what is left; once more it has nothing to do."""
        for when, step in [*(("after", step) for step in STEPS), *(("before", step) for step in STEPS[:3]), ("up", "")]:
            with self.subTest(when=when, step=step):
                self.killed(when, step, False)
                for _ in range(2):
                    subprocess.run([sys.executable, SCRIPT, "down", "--state", self.state], check=True)
                    self.assertEqual(self.traces(), [])

    def test_watched(self):
        """Nobody calls down: slowdisk does when its runner is killed."""
        for when, step in (("after", "wait_started"), ("after", "attach"), ("up", "")):
            with self.subTest(when=when, step=step):
                self.killed(when, step, True)
                self.assertTrue(slow_disk.wait_until(lambda: not self.traces(), 15), self.traces())

    def test_slowdisk_killed(self):
        disk = self.disk().up()
        (disk.data / "file").write_bytes(bytes(1 << 20))
        os.kill(disk._pid(), signal.SIGKILL)
        disk.down()

    def test_slowdisk_stopped(self):
        """With dirty pages, which it would have to take before it can be unmounted."""
        disk = self.disk().up()
        (disk.data / "file").write_bytes(bytes(1 << 20))
        os.kill(disk._pid(), signal.SIGSTOP)
        longest, slow_disk.UNMOUNT_S = slow_disk.UNMOUNT_S, 1.0
        try:
            disk.down()
        finally:
            slow_disk.UNMOUNT_S = longest

    def test_in_use(self):
        disk = self.disk().up()
        user = subprocess.Popen(["sleep", "60"], cwd=disk.data)
        longest, slow_disk.UNMOUNT_S = slow_disk.UNMOUNT_S, 0.2
        try:
            with self.assertRaisesRegex(DiskError, rf"in use by .*{user.pid} \(sleep\)"):
                disk.down()
            self.assertTrue(os.path.ismount(disk.data))
        finally:
            slow_disk.UNMOUNT_S = longest
            user.kill()
            user.wait()
        disk.down()

    def test_not_ours(self):
        with self.disk() as disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "foreign", str(disk.data)], check=True)
            try:
                (disk.data / "precious").write_text("kept")
                with self.assertRaisesRegex(DiskError, "not this disk"):
                    disk.down()
                self.assertEqual((disk.data / "precious").read_text(), "kept")
            finally:
                subprocess.run(["umount", str(disk.data)], check=True)

    def test_refused(self):
        with self.disk() as disk, self.assertRaisesRegex(DiskError, "holds a disk already"):
            self.disk().up()
        with self.assertRaisesRegex(DiskError, "slowdisk is missing: make case-programs"):
            self.disk().__class__(self.state, slowdisk="/nowhere/slowdisk").up()
        os.mkdir(self.state)
        precious = pathlib.Path(self.state, "precious")
        precious.write_text("kept")
        with self.assertRaisesRegex(DiskError, "not empty"):
            self.disk().up()
        self.disk().down()
        self.assertEqual(precious.read_text(), "kept")
        precious.unlink()
        os.rmdir(self.state)
        self.assertFalse(disk.state.exists())

    def test_directory_of_another_stays(self):
        os.mkdir(self.state)
        with self.disk():
            pass
        self.assertEqual(os.listdir(self.state), [])
        os.rmdir(self.state)

    def test_needs_root(self):
        os.chmod(self.work.name, 0o755)
        script = shutil.copy(SCRIPT, self.work.name)
        done = subprocess.run(["/usr/bin/python3", script, "up", "--state", self.state], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("needs root", done.stderr)


if __name__ == "__main__":
    if os.geteuid():
        print("NOT RUN: mounting needs root")
        sys.exit(77)
    for needed, remedy in (("/dev/fuse", "CONFIG_FUSE_FS"), ("/dev/loop-control", "CONFIG_BLK_DEV_LOOP")):
        if not os.path.exists(needed):
            print(f"NOT RUN: {needed} is missing ({remedy})")
            sys.exit(77)
    if not shutil.which("fio"):
        print("NOT RUN: fio is missing: apt-get install fio")
        sys.exit(77)
    unittest.main()
