#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How does a slow disk come, with a file system on it, and surely go again?

    slow_disk.py up --state DIR [--latency 3ms] [--arms 4] [--bandwidth 60M] [--size 512M]
    slow_disk.py remount|status|calibrate|down --state DIR

DIR/backing (sparse) <- slowdisk, mounted on the file DIR/disk <- a loop device with
direct I/O <- ext4, mounted on DIR/data. All that is made lies in DIR, or is found by
what lies in DIR: a loop device or mount that is not over DIR/disk is never touched, and
what is to be made is noted in DIR/made.json first. `down` after a run that was killed
takes away what it left. As a context manager (`with SlowDisk(state) as disk:`) the
disk also goes when the process that made it is killed: slowdisk watches it.

ext4 has no journal (what a kill leaves is thrown away, and a journal's commits every
five seconds would be the disk's work, not the server's) and no access times.
"""

import argparse
import contextlib
import errno
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
SLOWDISK = pathlib.Path(os.environ.get("DEBOX_SLOWDISK", TOP / "target/cases/slowdisk"))
NEEDED = {"losetup": "mount", "mkfs.ext4": "e2fsprogs", "mount": "mount", "umount": "mount"}
# signals of slowdisk
COUNTS, UNDELAYED, DELAYED = signal.SIGUSR1, signal.SIGRTMIN, signal.SIGRTMIN + 1
UNMOUNT_S = 20.0  # writing out what is dirty takes the disk's time
JOBS, BLOCKS = (1, 2, 4, 8, 16), (4096, 65536)
# What calibrate() takes for a look of a few seconds.
CALIBRATED_QUICK = (0.3, 16 << 20, (1, 16))
TOLERANCE = 0.15


class DiskError(Exception):
    """What happened, and what helps."""


def number(text: str) -> float:
    """As slowdisk reads it: bytes in powers of 1,000."""
    match = re.fullmatch(r"([\d.]+)(s|ms|us|k|M|G|)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no number with one of the units s, ms, us, k, M, G")
    return float(match[1]) * {"": 1, "s": 1, "ms": 1e-3, "us": 1e-6, "k": 1e3, "M": 1e6, "G": 1e9}[match[2]]


class Mount(NamedTuple):
    device: str  # major:minor
    place: pathlib.Path
    kind: str
    source: str


def mounts() -> list[Mount]:
    """In the order in which they were mounted."""
    found = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        words = before.split()
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words[4])
        found.append(Mount(words[2], pathlib.Path(place), *after.split()[:2]))
    return found


def loops(backing: pathlib.Path) -> list[str]:
    """The names of the loop devices over a file."""
    found = []
    for file in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # detached meanwhile
            if file.read_text().removesuffix("\n") == str(backing):
                found.append(file.parts[3])
    return found


def is_mounted_anywhere(loop: str) -> bool:
    """In a mount namespace that was copied meanwhile it may be still: who mounts a device has it to himself."""
    try:
        os.close(os.open(f"/dev/{loop}", os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise DiskError(f"/dev/{loop} cannot be asked whether it is mounted: {error}") from error
        return True
    return False


def users(place: pathlib.Path, device: int | None = None) -> str:
    """Who has files of a mount open, mapped or as its directory, or (with `place` alone,
    unmounted here) has it mounted in a mount namespace of its own: `unshare -m` copies."""
    found, ours = [], os.readlink("/proc/self/ns/mnt")
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            links = [entry / "cwd", entry / "root", *entry.glob("fd/*"), *entry.glob("map_files/*")]
            holds = device is not None and any(_device(link) == device for link in links)
            copied = os.readlink(entry / "ns/mnt") != ours and f" {place} " in (entry / "mountinfo").read_text()
            if holds or copied:
                found.append(f"{entry.name} ({(entry / 'comm').read_text().strip()}{', own mount namespace' if copied else ''})")
    return ", ".join(found) or "nobody that /proc shows"


def _device(path: pathlib.Path) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def run(*command: str, timeout_s: float = 30.0, stuck: Callable[[], None] | None = None) -> str:
    """Its output. What waits for a disk that does not answer cannot even be killed: it is
    not waited for, but where `stuck` ends that wait."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        if not stuck:
            process.kill()
            raise DiskError(f"{' '.join(command)} did not end in {timeout_s:.0f} s") from late
        stuck()
        output, errors = process.communicate(timeout=timeout_s)
    if process.returncode:
        raise DiskError(f"{' '.join(command)}: {errors.strip() or process.returncode}")
    return output


def wait_until(true: Callable[[], Any], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class SlowDisk:
    """A disk in a directory of its own; up() to have it, down() to be rid of it."""

    def __init__(
        self,
        state: str | os.PathLike[str],
        size_bytes: int = 512 << 20,
        latency_s: float = 0.003,
        arms: int = 4,
        bandwidth_bytes_per_s: float = 60e6,
        read_ahead_kb: int | None = None,
        watched: bool = True,
        slowdisk: str | os.PathLike[str] = SLOWDISK,
    ) -> None:
        self.state = pathlib.Path(state).resolve()
        self.size_bytes, self.latency_s, self.arms, self.bandwidth_bytes_per_s = size_bytes, latency_s, arms, bandwidth_bytes_per_s
        self.read_ahead_kb, self.watched, self.slowdisk = read_ahead_kb, watched, pathlib.Path(slowdisk)
        self.backing, self.disk, self.data = self.state / "backing", self.state / "disk", self.state / "data"
        self.log, self.made = self.state / "slowdisk.log", self.state / "made.json"

    # --- up

    def up(self) -> "SlowDisk":
        self._check_needs()
        self._made_state = not self.state.exists()
        self.state.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if self.made.exists():
                raise DiskError(f"{self.state} holds a disk already, or what is left of one: slow_disk.py down --state {self.state}")
            if strangers := [entry.name for entry in self.state.iterdir()]:
                raise DiskError(f"{self.state} is not empty ({', '.join(sorted(strangers)[:5])}): give an empty or a new directory")
            try:
                for step in (self._make_file, self._make_filesystem, self._start, self._wait_started, self._attach, self._mount):
                    name = step.__name__.lstrip("_")
                    self._note(name)
                    step()
                    self.stepped(name)
            except BaseException as error:
                try:
                    self._down()
                except DiskError as second:
                    raise DiskError(f"{error}; what was made so far is not all gone: {second}") from error
                raise
        return self

    def stepped(self, name: str) -> None:
        """After each step of up(): for what wants to know how far it is."""

    def _check_needs(self) -> None:
        if os.geteuid():
            raise DiskError(f"a slow disk needs root (this is user {os.geteuid()}): mounting and loop devices do")
        if not os.path.exists("/dev/fuse"):
            raise DiskError("/dev/fuse is missing: modprobe fuse, or a kernel with CONFIG_FUSE_FS")
        if not os.path.exists("/dev/loop-control"):
            raise DiskError("/dev/loop-control is missing: modprobe loop, or a kernel with CONFIG_BLK_DEV_LOOP")
        for program, package in NEEDED.items():
            if not shutil.which(program):
                raise DiskError(f"{program} is missing: apt-get install {package}")
        if not os.access(self.slowdisk, os.X_OK):
            raise DiskError(f"{self.slowdisk} is missing: make case-programs, or cc -O2 -o {self.slowdisk} cases/disk/slowdisk.c")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The watcher's `down` and another's do not meet."""
        try:
            directory = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield  # nothing is there to be guarded
            return
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)

    def _note(self, step: str) -> None:
        new = self.made.with_suffix(".new")
        new.write_text(json.dumps({"step": step, "pid": os.getpid(), "made_state": self._made_state}) + "\n")
        new.rename(self.made)

    def _make_file(self) -> None:
        with self.backing.open("xb") as file:
            file.truncate(self.size_bytes)
        self.disk.touch(exist_ok=False)
        self.data.mkdir()

    def _make_filesystem(self) -> None:
        """On the file itself, which is no slow disk yet. The inode tables are written
        here, since the kernel would otherwise do so while it is measured."""
        options = "lazy_itable_init=0,nodiscard"
        run("mkfs.ext4", "-q", "-F", "-b", "4096", "-i", "16384", "-O", "^has_journal", "-m", "0", "-E", options, str(self.backing))

    def _start(self) -> None:
        """In a session of its own: Ctrl-C is the runner's, which then takes it down."""
        command = [str(self.slowdisk), "--backing", str(self.backing), "--mount", str(self.disk)]
        command += ["--latency", f"{self.latency_s:.9f}", "--arms", str(self.arms), "--bandwidth", f"{self.bandwidth_bytes_per_s:.0f}"]
        if self.watched:
            down = [sys.executable, str(pathlib.Path(__file__).resolve()), "down", "--state", str(self.state)]
            command += ["--while", str(os.getpid()), "--", *down]
        with self.log.open("xb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/")

    def _wait_started(self) -> None:
        wait_until(lambda: self._disk_mounts() or self._process.poll() is not None, 5.0)
        if not self._disk_mounts():
            raise DiskError(f"slowdisk does not serve {self.disk}: {self.log.read_text().strip() or 'it says nothing'}")

    def _attach(self) -> None:
        try:
            loop = run("losetup", "--find", "--show", "--direct-io=on", str(self.disk)).strip()
        except DiskError as error:
            raise DiskError(f"no loop device free, or none that may be used: {error}; losetup --list shows who has them") from error
        queue = pathlib.Path("/sys/block", pathlib.Path(loop).name, "queue")
        if (queue.parent / "loop/dio").read_text().strip() != "1":
            raise DiskError(f"{loop} over {self.disk} does no direct I/O: its page cache would be a second, fast disk")
        if self.read_ahead_kb is not None:
            (queue / "read_ahead_kb").write_text(str(self.read_ahead_kb))

    def _mount(self) -> None:
        (loop,) = loops(self.disk)
        run("mount", "-t", "ext4", "-o", "noatime,nosuid,nodev,noinit_itable,errors=remount-ro", f"/dev/{loop}", str(self.data))

    # --- down

    def down(self) -> None:
        with self._locked():
            self._down()

    def _disk_mounts(self) -> list[Mount]:
        return [mount for mount in mounts() if mount.place == self.disk and mount.kind == "fuse.slowdisk"]

    def _processes(self) -> list[int]:
        """slowdisk of this directory: as its command line says, whoever started it."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[1:5] == [b"--backing", bytes(self.backing), b"--mount", bytes(self.disk)]:
                    found.append(int(entry.name))
        return found

    def _down(self) -> None:
        if not self.made.exists():
            self.made.with_suffix(".new").unlink(missing_ok=True)
            return
        self.memory_group(0).remove()  # and what runs in it, which would keep the mount busy
        self._unmount()
        for loop in loops(self.disk):
            with contextlib.suppress(DiskError):  # whether it is gone is seen below
                run("losetup", "--detach", f"/dev/{loop}", timeout_s=UNMOUNT_S, stuck=self._kill)
        # It is only marked for that while somebody has it open or mounted.
        if not wait_until(lambda: not loops(self.disk), UNMOUNT_S):
            raise DiskError(f"/dev/{loops(self.disk)[0]} is still open or mounted, by {users(self.data)}: end that, then slow_disk.py down --state {self.state}")
        for _ in self._disk_mounts():
            with contextlib.suppress(DiskError):
                run("umount", str(self.disk), timeout_s=UNMOUNT_S, stuck=self._kill)
        # It ends by itself when it is unmounted; not where it was stopped, or had not
        # yet mounted anything.
        if not wait_until(lambda: not self._running(), 2.0):
            self._kill()
            wait_until(lambda: not self._running(), 2.0)
        self._remove()

    def _kill(self) -> None:
        """Where slowdisk is stopped or stuck: without it all that waits for the disk
        fails, and what is mounted can be unmounted."""
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _running(self) -> bool:
        if (process := getattr(self, "_process", None)) is not None:
            process.poll()
        return bool(self._processes())

    def _unmount(self) -> None:
        """Waits a little for servers that are just ending."""
        numbers = {(pathlib.Path("/sys/block") / loop / "dev").read_text().strip() for loop in loops(self.disk)}
        for mount in reversed(mounts()):
            if mount.place != self.data:
                continue
            if mount.device not in numbers:
                raise DiskError(f"{self.data} is a mount of {mount.source}, which is not this disk: unmount it yourself")
            end = time.monotonic() + UNMOUNT_S
            while True:
                try:
                    run("umount", str(self.data), timeout_s=UNMOUNT_S, stuck=self._kill)
                    break
                except DiskError as error:
                    if not any(m.place == self.data for m in mounts()):
                        break
                    if time.monotonic() > end:
                        raise DiskError(f"{error}; in use by {users(self.data, os.stat(self.data).st_dev)}: end that, then slow_disk.py down --state {self.state}") from error
                    time.sleep(0.05)

    def _remove(self) -> None:
        """By name, never a tree; and nothing in which something is still mounted."""
        if left := [str(mount.place) for mount in mounts() if mount.place.is_relative_to(self.state)]:
            raise DiskError(f"still mounted: {', '.join(left)}; unmount that, then slow_disk.py down --state {self.state}")
        for file in (self.backing, self.disk, self.log):
            file.unlink(missing_ok=True)
        if self.data.exists():
            self.data.rmdir()
        self.made.with_suffix(".new").unlink(missing_ok=True)
        made_state = json.loads(self.made.read_text())["made_state"]
        self.made.unlink()
        if made_state:
            self.state.rmdir()

    def __enter__(self) -> "SlowDisk":
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    # --- while it is up

    def remount(self) -> None:
        """Nothing of the disk is in memory any more: pages, names, inodes, blocks."""
        with self._locked():
            if not loops(self.disk):
                raise DiskError(f"no disk is up in {self.state}: slow_disk.py up --state {self.state}")
            self._unmount()
            (loop,) = loops(self.disk)
            try:
                cold = wait_until(lambda: not is_mounted_anywhere(loop), UNMOUNT_S)
                who = "" if cold else users(self.data)
            finally:
                self._mount()
            if not cold:
                raise DiskError(f"the file system of {self.disk} stays in memory as long as it is mounted elsewhere, by {who}: end that, then remount")

    def memory_group(self, limit_bytes: int) -> "MemoryGroup":
        """For the server that reads this disk; down() removes it, too."""
        return MemoryGroup(f"{zlib.crc32(bytes(self.state)):08x}", limit_bytes)

    def _pid(self) -> int:
        for pid in self._processes():
            return pid
        raise DiskError(f"no slowdisk serves {self.disk}: slow_disk.py down --state {self.state}, then up")

    def counts(self) -> dict[str, Any]:
        """slowdisk's counters since it began, its model, and `delays`."""
        pid = self._pid()
        with self.log.open() as log:
            log.seek(0, os.SEEK_END)
            os.kill(pid, COUNTS)
            line = ""

            def whole() -> bool:
                nonlocal line
                line += log.readline()
                return line.endswith("\n")

            if not wait_until(whole, 5.0):
                raise DiskError(f"slowdisk ({pid}) does not answer: kill -CONT {pid} if it was stopped, else slow_disk.py down --state {self.state}")
        counts: dict[str, Any] = json.loads(line)
        return counts

    @contextlib.contextmanager
    def undelayed(self) -> Iterator[None]:
        """As fast as it can, for filling it. What is written is on the disk at the end."""
        pid = self._pid()
        os.kill(pid, UNDELAYED)
        try:
            yield
            run("sync", "--file-system", str(self.data), timeout_s=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, DELAYED)

    def expected_iops(self, jobs: int, block_bytes: int) -> float:
        """Of jobs that each wait for their one request: as many arms as there are
        requests, or the channel."""
        moving_s = block_bytes / self.bandwidth_bytes_per_s if self.bandwidth_bytes_per_s else 0.0
        arms = min(jobs, self.arms) / (self.latency_s + moving_s)
        return min(arms, 1 / moving_s) if moving_s else arms

    def calibrate(self, seconds: float = 1.0, file_bytes: int = 64 << 20, many: tuple[int, ...] = JOBS, blocks: tuple[int, ...] = BLOCKS) -> list[dict[str, Any]]:
        """What does fio see, with so many jobs, of such blocks? Prints and returns random direct reads of one file on the
        disk; the last rows, without delays, are what slowdisk itself can do at most."""
        for program, package in (("fio", "fio"), ("setpriv", "util-linux")):
            if not shutil.which(program):
                raise DiskError(f"{program} is missing: apt-get install {package}")
        file = self.data / "calibrate"
        with self.undelayed(), file.open("wb") as to:
            for _ in range(file_bytes >> 20):
                to.write(os.urandom(1 << 20))
        rows = [self._fio(file, seconds, jobs, block, self.expected_iops(jobs, block)) for block in blocks for jobs in many]
        with self.undelayed():
            rows += [self._fio(file, seconds, many[-1], block, 0) for block in blocks]
        file.unlink()
        print(self.table(rows), flush=True)
        return rows

    def _fio(self, file: pathlib.Path, seconds: float, jobs: int, block_bytes: int, expected_iops: float) -> dict[str, Any]:
        """`model_iops` 0: the model says nothing of it."""
        # It would make the directory anew that is removed when this process is killed.
        said = run(
            "setpriv", "--pdeathsig", "KILL", "fio", "--name=calibrate", f"--filename={file}", "--rw=randread", "--direct=1", "--ioengine=psync", "--thread",
            f"--bs={block_bytes}", f"--numjobs={jobs}", "--time_based", f"--runtime={seconds * 1000:.0f}ms", "--ramp_time=100ms",
            "--group_reporting", "--randrepeat=0", "--norandommap", "--output-format=json",
            timeout_s=seconds + 20,
        )  # fmt: skip
        read = json.loads(said[said.index("{") :])["jobs"][0]["read"]
        p99_ns = read["clat_ns"]["percentile"]["99.000000"]
        return {"block_bytes": block_bytes, "jobs": jobs, "model_iops": expected_iops, "iops": read["iops"], "mean_ms": read["clat_ns"]["mean"] / 1e6, "p99_ms": p99_ns / 1e6}  # fmt: skip

    def table(self, rows: list[dict[str, Any]]) -> str:
        per_s = f"{self.bandwidth_bytes_per_s / 1e6:g} MB/s" if self.bandwidth_bytes_per_s else "no limit of bytes"
        lines = [f"slow disk: {self.latency_s * 1e3:g} ms, {self.arms} arms, {per_s}; fio's random direct reads"]
        lines.append("  bytes  jobs  model IOPS  fio IOPS  fio/model  mean ms   p99 ms")
        for row in rows:
            ratio = f"{row['iops'] / row['model_iops']:.2f}" if row["model_iops"] else "-"
            model = f"{row['model_iops']:.0f}" if row["model_iops"] else "no delays"
            lines.append("{block_bytes:7d} {jobs:5d} {model:>11} {iops:9.0f} {ratio:>10} {mean_ms:8.2f} {p99_ms:8.2f}".format(**row, model=model, ratio=ratio))
        modelled = [row for row in rows if row["model_iops"]]
        if off := [row for row in modelled if abs(row["iops"] / row["model_iops"] - 1) > TOLERANCE]:
            lines.append(f"NOT CALIBRATED: {len(off)} of {len(modelled)} rows are more than {TOLERANCE:.0%} off the model; the machine is busy, or slowdisk too slow for it")
        else:
            lines.append(f"all within {TOLERANCE:.0%} of the model")
        return "\n".join(lines)


class MemoryGroup:
    """How does a server get less memory than its files have? Its page cache counts, too.

    cgroup v2 where that hierarchy has the memory controller, else v1. What still runs in
    it at the end is killed.
    """

    def __init__(self, name: str, limit_bytes: int, mounts_text: str | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.version, self.root = self.hierarchy(mounts_text if mounts_text is not None else pathlib.Path("/proc/mounts").read_text())
        if not re.fullmatch(r"[\w.-]+", name):
            raise DiskError(f"{name!r} is no name of a memory group: letters, digits, dots and dashes")
        self.path = self.root / f"debox-case-{name}"

    @staticmethod
    def hierarchy(mounts_text: str) -> tuple[int, pathlib.Path]:
        rows = [line.split() for line in mounts_text.splitlines()]
        for _, place, kind, *_ in rows:
            if kind == "cgroup2" and "memory" in (pathlib.Path(place) / "cgroup.controllers").read_text().split():
                return 2, pathlib.Path(place)
        for _, place, kind, options, *_ in rows:
            if kind == "cgroup" and "memory" in options.split(","):
                # Below this process's own group, whose limit then holds as well. In v2
                # a group with processes can have none with controllers below it.
                own = re.search(r"^\d+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:/(.*)$", pathlib.Path("/proc/self/cgroup").read_text(), re.M)
                below = pathlib.Path(place, own[1] if own else "")
                return 1, below if below.is_dir() else pathlib.Path(place)
        raise DiskError("no cgroup hierarchy with the memory controller is mounted: mount -t cgroup2 none /sys/fs/cgroup")

    def __enter__(self) -> "MemoryGroup":
        if self.path.exists():
            self.remove()  # a killed run's
        try:
            if self.version == 2 and "memory" not in (self.root / "cgroup.subtree_control").read_text().split():
                (self.root / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
            names = ("memory.max", "memory.swap.max", "0") if self.version == 2 else ("memory.limit_in_bytes", "memory.swappiness", "0")
            (self.path / names[0]).write_text(str(self.limit_bytes))
            if (self.path / names[1]).exists():
                (self.path / names[1]).write_text(names[2])
        except OSError as error:
            self.remove()
            raise DiskError(f"cannot make the memory group {self.path} (cgroup v{self.version}): {error}; it needs root and a hierarchy that may be written") from error
        return self

    def command(self, argv: list[str]) -> list[str]:
        """The same command, in the group from its first page on."""
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.path / "cgroup.procs"), *argv]

    def processes(self) -> list[int]:
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def used_bytes(self) -> int:
        return int((self.path / ("memory.current" if self.version == 2 else "memory.usage_in_bytes")).read_text())

    def _table(self, name: str) -> dict[str, int]:
        return {key: int(value) for key, value in (line.split() for line in (self.path / name).read_text().splitlines())}

    def pressure(self) -> dict[str, int]:
        """How often it was at its limit, how many processes were killed for that, and what they and the kernel for
        them hold now beside pages of files. At its limit is also who does no more than read files: those pages go."""
        stat = self._table("memory.stat")
        if self.version == 2:
            events = self._table("memory.events")
            kernel = stat.get("kernel", sum(stat.get(part, 0) for part in ("kernel_stack", "pagetables", "slab")))  # since 5.18 in one
            return {"at_limit": events["max"], "killed": events["oom_kill"], "own_bytes": stat["anon"] + kernel}
        kernel_file = self.path / "memory.kmem.usage_in_bytes"
        kernel = int(kernel_file.read_text()) if kernel_file.exists() else 0
        return {"at_limit": int((self.path / "memory.failcnt").read_text()), "killed": self._table("memory.oom_control").get("oom_kill", 0), "own_bytes": stat["rss"] + kernel}

    def remove(self) -> None:
        if not self.path.exists():
            return

        def empty() -> bool:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.processes()

        if not wait_until(empty, 10.0):
            raise DiskError(f"processes of {self.path} do not end: {self.processes()}")

        def removed() -> bool:
            with contextlib.suppress(OSError):  # busy while the last one is being freed
                self.path.rmdir()
            return not self.path.exists()

        if not wait_until(removed, 5.0):
            raise DiskError(f"{self.path} cannot be removed: rmdir {self.path}")

    def __exit__(self, *_: object) -> None:
        self.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("up", "down", "remount", "status", "calibrate"))
    parser.add_argument("--state", required=True, help="a directory for it alone")
    parser.add_argument("--latency", type=number, default=0.003, help="positioning, as 3ms")
    parser.add_argument("--arms", type=int, default=4, help="requests positioned at a time")
    parser.add_argument("--bandwidth", type=number, default=60e6, help="bytes a second, as 60M; 0 for no limit")
    parser.add_argument("--size", type=number, default=512e6, help="as 512M")
    arguments = parser.parse_args()
    try:
        size_bytes = int(arguments.size) // 4096 * 4096
        disk = SlowDisk(arguments.state, size_bytes, arguments.latency, arguments.arms, arguments.bandwidth, watched=False)
        if arguments.command == "up":
            print(disk.up().data)
        elif arguments.command == "down":
            disk.down()
        elif arguments.command == "remount":
            disk.remount()
        else:
            counts = disk.counts()
            disk.latency_s, disk.arms, disk.bandwidth_bytes_per_s = counts["latency_ns"] / 1e9, counts["arms"], counts["bandwidth_bytes_per_s"]
            if arguments.command == "status":
                print(json.dumps({**counts, "data": str(disk.data), "loop": loops(disk.disk)}))
            else:
                disk.calibrate()
    except DiskError as error:
        print(f"slow_disk.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
