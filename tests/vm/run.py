#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does DeBox work on other kernels than the one that runs here?

Boots Debian's kernels in QEMU (by KVM where the machine has it, else emulated) with what
`make build test-programs` left in target/, and runs suites of checks inside
(suites/*.py, see README.md). Ends with 0 only when every guest ran all of its
checks and all passed.
"""

import argparse
import base64
import concurrent.futures
import fcntl
import functools
import importlib
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import rust  # noqa: E402
from fresh_start import fresh_start  # noqa: E402
from guest import WAYS_TO_PROBE  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[2]
HERE = TOP / "tests/vm"
WORK = TOP / "target/vm"
TARGET = TOP / "target"
DOCUMENT = TOP / "docs/KERNELS.md"
KERNELS = ("6.1", "6.12")
NATIVELY = "natively"
# Checks that no slowness of the machine can excuse: once failed is failed.
EXACT = (
    "sites-verified", "nothing-stays-attached", "nothing-stays-behind", "kernel-log-is-clean", "cost-log-is-clean",
    "kern-log-is-clean", "trace-log-is-clean", "layout", "kern-counts-calls", "kern-counts-session", "kern-counts-multi",
    "kern-counts-fentry", "kern-counts-kprobe", "agrees-with-function-graph", "run-sums-are-exact",
)  # fmt: skip
# What init.c writes to isa-debug-exit, as QEMU's exit status.
ALL_PASSED, SOME_FAILED = 2 * 0x10 + 1, 2 * 0x11 + 1
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "depmod": "kmod",
    "mkfs.ext4": "e2fsprogs",
    "xz": "xz-utils",
    "gcc": "gcc",
    "strip": "binutils",
    "dpkg-deb": "dpkg",
    "setpriv": "util-linux",
}
APPLETS = (
    "sh cat ls sleep true dmesg tar dd sync seq ps mkdir rm cp mv ln head tail grep wc find touch echo kill id mount umount chmod sort uniq cut tr"
).split()

os.environ["PATH"] += ":/usr/sbin:/sbin"
print_lock = threading.Lock()


class Stop(Exception):
    """Nothing can be run; the text says why and what to do."""


def say(*words):
    with print_lock:
        print(*words, flush=True)


def call(*command, **more):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)
    if done.returncode:
        raise Stop(f"{shlex.join(map(str, command))} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


# -- kernels ----------------------------------------------------------------------


def numbers(text):
    return [int(n) for n in re.findall(r"\d+", text)]


def package_pattern(version):
    """Debian 12's names: 6.1 is the release's own kernel, others are backports."""
    if version == "6.1":
        return re.compile(r"linux-image-6\.1\.0-\d+-cloud-amd64")
    return re.compile(rf"linux-image-{re.escape(version)}\.\d+\+deb\d+-cloud-amd64")


def packages_known(version):
    """Names of all packages of a version that apt has heard of, newest first."""
    if not shutil.which("apt-cache"):
        return []
    names = subprocess.run(["apt-cache", "pkgnames", f"linux-image-{version}"], capture_output=True, text=True).stdout.split()
    return sorted((n for n in set(names) if package_pattern(version).fullmatch(n)), key=numbers, reverse=True)


def packages_kept(version):
    """Files that lie in target/vm/, newest first."""
    found = [f for f in WORK.glob("linux-image-*_amd64.deb") if package_pattern(version).fullmatch(f.name.split("_")[0])]
    return sorted(found, key=lambda f: numbers(f.name), reverse=True)


def package_fetch(version):
    """The newest package of a version as a file: from target/vm/, else by apt."""
    errors = []

    def from_apt():
        # An index that is out of date names packages that are gone: of two
        # the older may still be there.
        for name in packages_known(version)[:3]:
            for file in packages_kept(version):
                if file.name.startswith(name + "_"):
                    return file
            say(f"-- fetching {name}")
            done = subprocess.run(
                ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name],
                cwd=WORK, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )
            if done.returncode == 0:
                return next(f for f in packages_kept(version) if f.name.startswith(name + "_"))
            errors.append(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"apt-get download {name} failed")
        return None

    file = from_apt()
    if not file and os.geteuid() == 0 and shutil.which("apt-get"):
        done = subprocess.run(["apt-get", "update", "-q"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            errors.append("apt-get update: " + done.stderr.strip()[-300:])
        file = from_apt()
    if not file and packages_kept(version):
        file = packages_kept(version)[0]
        say(f"-- apt has no newer kernel, taking {file.name} from target/vm/")
    if not file:
        raise Stop(
            f"Debian's package of Linux {version} cannot be had: {'; '.join(errors) or 'apt knows none'}.\n"
            f"  Connect this machine to a Debian 12 mirror (with bookworm-security) and run `apt-get update`, or put\n"
            f"  a file linux-image-{version}*-cloud-amd64_*_amd64.deb into {WORK.relative_to(TOP)}/."
        )
    return file


class Kernel:
    """An unpacked kernel package."""

    def __init__(self, version):
        self.version = version
        package = package_fetch(version)
        self.release = package.name.split("_")[0].removeprefix("linux-image-")
        self.package = package.name.split("_")[1]
        self.tree = WORK / "kernel" / self.release
        if not (self.tree / "complete").exists():
            shutil.rmtree(self.tree, ignore_errors=True)
            self.tree.mkdir(parents=True)
            call("dpkg-deb", "-x", package, self.tree)
            call("depmod", "-b", self.tree, self.release)
            (self.tree / "complete").touch()
        self.image = self.tree / f"boot/vmlinuz-{self.release}"

    def modules(self, names, root):
        """Copies modules and what they need into `root`, and their order."""
        (root / "modules").mkdir(parents=True)
        order = []
        for name in names:
            shown = subprocess.run(
                ["modprobe", "-d", self.tree, "-S", self.release, "--show-depends", name],
                capture_output=True, text=True,
            )
            # crc32c is built into some kernels: then nothing is to be loaded
            for line in shown.stdout.splitlines():
                words = line.split()
                if words[:1] != ["insmod"]:
                    continue
                path = pathlib.Path(words[1])
                plain = path.name.removesuffix(".xz")
                if plain in order:
                    continue
                order.append(plain)
                if path.suffix == ".xz":
                    with open(root / "modules" / plain, "wb") as out:
                        subprocess.run(["xz", "-dc", path], stdout=out, check=True)
                else:
                    shutil.copy(path, root / "modules" / plain)
        (root / "modules/order").write_text("".join(f"{name}\n" for name in order))


# -- what a guest's memory disk holds -------------------------------------------------


class Tree:
    """The root of an initramfs under construction."""

    def __init__(self, root):
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)

    def put(self, source, inside=None):
        """A file, and when it is a program the libraries that it needs."""
        target = self.root / str(inside or source).lstrip("/")
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        shown = subprocess.run(["ldd", source], capture_output=True, text=True)
        for library in re.findall(r"(/[^ ]+) \(0x", shown.stdout):
            self.put(library)

    def pack(self, file):
        names = call("find", ".", cwd=self.root)
        with open(file, "wb") as out:
            subprocess.run(
                ["cpio", "-o", "-H", "newc", "-R", "0:0", "--quiet"], input=names.encode(), stdout=out, cwd=self.root, check=True
            )


def interpreter():
    """Where python3 really lies: it finds its library from there."""
    return call("python3", "-I", "-S", "-c", "import os, sys; print(os.path.realpath(sys.executable))").strip()


def tree_of(suite, where, extra):
    tree = Tree(where)
    for directory in ("bin", "debox/suites"):
        (tree.root / directory).mkdir(parents=True)
    call("gcc", "-O1", "-Wall", "-static", "-o", tree.root / "init", HERE / "init.c")
    shutil.copy(HERE / "setup", tree.root / "setup")
    tree.put(shutil.which("busybox"), "/bin/busybox")
    for applet in APPLETS:
        (tree.root / "bin" / applet).symlink_to("busybox")
    for name in suite.programs:
        file = TARGET / name
        if not file.exists():
            raise Stop(f"target/{name} is missing: make build test-programs")
        tree.put(file, f"/debox/{file.name}")
    for program in suite.rust:
        tree.put(rust_tests(program), f"/debox/{program}-tests")
        call("strip", "--strip-debug", tree.root / f"debox/{program}-tests")
    for file in suite.files + extra:
        tree.put(TOP / file, f"/debox/{pathlib.Path(file).name}")
    # Debug information is most of their size, and all of it would be memory.
    for name in ("debox", "deboxd"):
        if (tree.root / "debox" / name).exists():
            call("strip", "--strip-debug", tree.root / "debox" / name)
    python = interpreter()
    tree.put(python)
    (tree.root / "bin/python3").symlink_to(python)
    shutil.copy(HERE / "guest.py", tree.root / "debox/")
    for file in (HERE / "suites").glob("*.py"):
        shutil.copy(file, tree.root / "debox/suites")
    for file in call(python, "-I", "-S", HERE / "guest.py", "--modules", suite.parts).split():
        tree.put(file)
    # Compiling them takes an emulated machine seconds. By the hash: a memory
    # disk does not keep the times of files.
    call(python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", tree.root)
    return tree


@functools.cache
def rust_tests(program):
    """The test program of tests/PROGRAM.rs, as cargo builds it."""
    return pathlib.Path(rust.groups()[f"debox-tests::{program}"][1])


class Suite:
    """What suites/NAME.py asks for, or several of them in one guest; defaults for what they leave out."""

    def __init__(self, name, *parts):
        self.name, self.parts = name, ",".join(parts or [name] if name else [])
        sys.path.insert(0, str(HERE))
        modules = [importlib.import_module(f"suites.{part}") for part in self.parts.split(",") if part]

        def wish(what, otherwise):
            """The most that one of them wants."""
            return max((getattr(module, what, otherwise) for module in modules), default=otherwise)

        def wish_all(what, otherwise=()):
            wanted = [getattr(module, what, otherwise) for module in modules] or [otherwise]
            return list(dict.fromkeys(one for some in wanted for one in some))

        self.programs = wish_all("PROGRAMS", ["release/debox", "release/deboxd", "release/libdebox-wrap.so", "release/libdebox.so.0"])
        self.files = wish_all("FILES")
        self.rust = {program: tests for module in modules for program, tests in getattr(module, "RUST", {}).items()}
        self.modules = ["virtio_pci", "virtio_blk", "ext4", "crc32c", *wish_all("MODULES")]
        self.cpus = wish("CPUS", 2)
        self.memory_mb = wish("MEMORY_MB", 1536)
        self.limit_s = wish("LIMIT_S", 600)
        self.icount = wish("ICOUNT", False)
        self.disk_mb = wish("DISK_MB", 1024)
        self.disk_options = wish("DISK_OPTIONS", "")
        self.kernels = next((module.KERNELS for module in modules if hasattr(module, "KERNELS")), None)
        self.title = (modules[0].__doc__ or "").strip().splitlines()[0] if modules else ""

    def expected(self, only):
        """Names of the checks that a guest has to make."""
        shown = call(interpreter(), "-I", "-S", HERE / "guest.py", "--list", self.parts, only)
        return shown.split()

    def rust_missing(self):
        """Tests of its Rust programs that it neither runs nor names as not for guests."""
        names = set(self.expected("")) if self.rust else set()
        for program, not_here in self.rust.items():
            listed = call(rust_tests(program), "--list", "--format", "terse")
            tests = re.findall(r"^(\S+): test$", listed, re.M)
            yield from (name for name in tests if name not in names and name not in not_here)


def smoke_of(suite):
    """Names of the checks that say in a minute whether this suite's kernel side works at all."""
    return call(interpreter(), "-I", "-S", HERE / "guest.py", "--smoke", suite).split()


def suites_all():
    return sorted(f.stem for f in (HERE / "suites").glob("*.py") if not f.stem.startswith("_"))


def kvm():
    """Whether this machine can run guests itself: /dev/kvm alone may be there without any use."""
    if os.environ.get("DEBOX_TEST_KVM") == "0":
        return False
    flags = re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return bool({"vmx", "svm"} & set(flags[1].split() if flags else ())) and os.access("/dev/kvm", os.R_OK | os.W_OK)


def cpu_seconds(pid):
    """What a process has used: says on a busy machine how long it would take."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# -- one guest ----------------------------------------------------------------------------


class Guest:
    def __init__(self, kernel, suite, arguments, extra, only, again=False):
        self.kernel, self.suite, self.arguments, self.only = kernel, suite, arguments, only
        self.label = f"{kernel.version} {suite.name or 'command'}" + (" again" if again else "")
        self.directory = WORK / "guest" / self.label.replace(" ", "-")
        self.extra = extra
        self.passed, self.failed, self.notes, self.cells = [], [], [], {}
        self.why = ""
        self.seconds = self.cpu_s = 0.0
        self.exact = False

    def prepare(self, common):
        self.common = common
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        root = Tree(self.directory / "root")
        self.kernel.modules(self.suite.modules, root.root)
        if self.arguments.run:
            (root.root / "debox").mkdir()
            (root.root / "debox/command").write_text(self.arguments.run + "\n")
        root.pack(self.directory / "modules.cpio")
        with open(self.directory / "initramfs", "wb") as out:
            for part in (common, self.directory / "modules.cpio"):
                with open(part, "rb") as file:
                    shutil.copyfileobj(file, out)
        shutil.rmtree(root.root)
        disk = self.directory / "disk"
        with open(disk, "wb") as file:
            file.truncate(self.suite.disk_mb << 20)
        call("mkfs.ext4", "-q", "-F", disk)

    def command(self):
        # With HPET, which 6.1 prefers here, reading the time leaves the emulated CPU.
        # no_timer_check: beside others with real-time priority the first tick can come so late that the
        # kernel gives up.
        suite, words = self.suite, ["console=ttyS0", "quiet", "panic=-1", "tsc=reliable", "no_timer_check"]
        words += [f"debox.release={self.kernel.release}", f"debox.suite={suite.parts}", f"debox.only={self.only}"]
        if self.arguments.run:
            words.append("debox.command=1")
        drive = f"file={self.directory}/disk,if=virtio,format=raw,cache=unsafe"
        if suite.disk_options:
            drive += "," + suite.disk_options
        # One thread for all of a guest's CPUs: with more, QEMU now and then runs
        # an instruction that another CPU has just patched back (attaching and
        # detaching patches kernel code), and the guest dies of a stray int3.
        # And without fast string instructions: a kernel that finds them clears
        # and copies byte by byte with `rep`, which QEMU does one byte at a time.
        # That was a third of all time in the kernel.
        speed = ["-accel", "tcg,thread=single", "-smp", str(suite.cpus), "-cpu", "max,-erms,-fsrm"]
        if kvm():
            speed = ["-accel", "kvm", "-smp", str(suite.cpus), "-cpu", "host"]
        if suite.icount:
            # The guest's time-stamp counter then ticks once an instruction.
            speed = ["-accel", "tcg,thread=single", "-smp", "1", "-cpu", "max", "-icount", "shift=0,sleep=off"]
        return [
            # A guest does not outlive the run that is killed.
            "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *speed, "-m", str(suite.memory_mb),
            "-nodefaults", "-nographic", "-no-reboot",
            "-serial", f"file:{self.directory}/console", "-serial", f"file:{self.directory}/results",
            "-device", "isa-debug-exit,iobase=0x501,iosize=1", "-drive", drive,
            "-kernel", str(self.kernel.image), "-initrd", str(self.directory / "initramfs"),
            "-append", " ".join(words),
        ]  # fmt: skip

    def line(self, text):
        """One line that the guest printed: protocol of guest.py."""
        kind, _, rest = text.partition(" ")
        if self.arguments.run:
            say(text)
        elif kind == "ok":
            self.passed.append(rest.split()[0])
            say(f"   {self.label:<11} {text}")
        elif kind == "FAIL":
            self.failed.append(rest.split()[0])
            self.exact = self.exact or rest.split()[0] in EXACT or "left behind" in rest
            say(f"   {self.label:<11} {text}")
        elif kind == "cell":
            row, _, value = rest.partition("\t")
            self.cells[row] = value
        elif kind == "file":
            name, _, data = rest.partition(" ")
            (self.directory / "saved").mkdir(exist_ok=True)
            (self.directory / "saved" / os.path.basename(name)).write_bytes(base64.b64decode(data))
        elif text:
            say(f"   {self.label:<11} {text}")

    def boot(self):
        begin = time.monotonic()
        limit = self.arguments.limit or self.suite.limit_s
        results = self.directory / "results"
        results.touch()
        (self.directory / "console").touch()
        guest = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        rest = b""
        with open(results, "rb") as file:
            while True:
                self.cpu_s = cpu_seconds(guest.pid) or self.cpu_s
                ended = guest.poll() is not None
                rest += file.read()
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    self.line(line.decode(errors="replace").rstrip("\r"))
                if ended:
                    break
                if time.monotonic() - begin > limit:
                    guest.kill()
                    self.why = f"not done after {limit} s"
                time.sleep(0.2)
        self.seconds = time.monotonic() - begin
        # A disk of a gigabyte and a memory disk are of no use afterwards.
        for name in ("disk", "initramfs", "modules.cpio"):
            (self.directory / name).unlink(missing_ok=True)
        if guest.returncode not in (ALL_PASSED, SOME_FAILED) and not self.why:
            error = guest.stderr.read().decode(errors="replace").strip()[-500:]
            self.why = f"QEMU ended with {guest.returncode} {error}".rstrip()
        self.status = guest.returncode
        self.silent = guest.returncode == 0 and not any((self.directory / name).stat().st_size for name in ("console", "results"))

    def judge(self, expected):
        """How many failures there were; what did not run has failed."""
        missing = [name for name in expected if name not in self.passed and name not in self.failed]
        if missing:
            self.why += ("; " if self.why else "") + "did not run: " + " ".join(missing)
        failures = len(self.failed) + len(missing)
        if not failures and (self.status != ALL_PASSED or len(self.passed) != len(expected)):
            failures = 1
            self.why = self.why or f"passed {len(self.passed)} of {len(expected)} checks, status {self.status}"
        say(
            f"-- Linux {self.kernel.release}, {self.suite.name}: {len(self.passed)} passed, {failures} failed "
            f"(of {len(expected)}), {self.seconds:.0f} s, {self.cpu_s:.0f} s of them on a CPU" + (f": {self.why}" if self.why else "")
        )
        if failures:
            console = (self.directory / "console").read_text(errors="replace").splitlines()
            for line in console[-25:]:
                say(f"   {self.label} console: {line}")
        return failures


# -- the table -------------------------------------------------------------------------


def native():
    """(Head, row -> cell) of the machine's own kernel: what the last `make test-all`
    or `make test` ran on it, by the logs that it left."""
    said = {}
    for log in (TARGET / "tests").glob("*.log"):
        text = log.read_text(errors="replace")
        for name, word in re.findall(r"^test (\S+) \.\.\. (?:.*\b)?(ok|FAILED)\b", text, re.M):
            said.setdefault(name, []).append(word)
        for name in re.findall(r"NOT RUN: (\S+) needs", text):
            said.setdefault(name, []).append("not tried")
        for name in re.findall(r"^(\S+): all passed$", text, re.M):
            said[name] = ["ok"]
    refused = refusals()
    cells = {}
    for suite in suites_all():
        for line in call(interpreter(), "-I", "-S", HERE / "guest.py", "--native", suite).splitlines():
            row, _, name = line.partition("\t")
            words = said.get(name, ["not tried"])
            if name.startswith("!"):
                ways, otherwise = name[1:].split("!")
                words = [otherwise] if all(way in refused for way in ways.split()) else ["not tried"]
            cells.setdefault(row, set()).update(words)
    word = {row: next((w for w in ("FAILED", "not tried") if w in words), min(words - {"ok"}, default="yes")) for row, words in cells.items()}
    return native_name(), word


def native_name():
    return f"Linux {'.'.join(os.uname().release.split('.')[:2])}, {NATIVELY}"


@functools.cache
def refusals():
    """Way to probe functions -> why this machine's own kernel refuses it."""
    done = subprocess.run([TARGET / "release/debox", "doctor", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    checks = json.loads(done.stdout)["checks"]
    return {c["name"]: f"{c['found']} (remedy: {c['remedy']})" for c in checks if c["state"] == "degraded" and c["name"] in WAYS_TO_PROBE}


def table(guests, kernels):
    """docs/KERNELS.md as these runs make it."""
    rows = {}
    for guest in guests:
        for row, value in guest.cells.items():
            rows.setdefault((guest.suite.name, row), {})[guest.kernel.version] = value
    out = (HERE / "KERNELS.head.md").read_text().rstrip() + "\n"
    names = " | ".join(f"Linux {k.version}" for k in kernels)
    out += f"\n| | {names} |\n|---|{'---|' * len(kernels)}\n"
    out += "| Debian's package | " + " | ".join(k.package for k in kernels) + " |\n"
    last = None
    for (suite, row), cells in rows.items():
        if suite != last:
            title = next(g.suite.title for g in guests if g.suite.name == suite)
            out += f"| **{title}** |" + " |" * len(kernels) + "\n"
            last = suite
        out += f"| {row} | " + " | ".join(cells.get(k.version, "not tried") for k in kernels) + " |\n"
    return with_native(out)


def with_native(text):
    """The table with a last column for the machine's own kernel, where that was tested."""
    head, cells = native()
    if "yes" not in cells.values():
        return text
    lines = [line.rstrip() for line in text.splitlines()]
    first = next(line for line in lines if line.startswith("| |")).strip("|").split("|")
    columns = len(first) - (first[-1].strip().endswith(NATIVELY))
    out = []
    for line in lines[: len(lines) - next((n for n, line in enumerate(reversed(lines)) if line.startswith("|")), 0)]:
        if line.startswith("|"):
            old = [c.strip() for c in line[1:].removesuffix("|").split("|")][:columns]
            new = {"": head, "---": "---", "Debian's package": "no guest"}.get(old[0])
            new = new or ("" if old[0].startswith("**") else cells.get(old[0], "not tried"))
            line = "|---" * len(old) + "|---|" if old[0] == "---" else f"| {' | '.join([*old, new])} |".replace("|  |", "| |").replace("|  |", "| |")
        out.append(line)
    if why := refusals():
        out += ["", f"{head}: what `debox doctor` said of the ways to probe functions that", "it refuses:", ""]
        out += [f"- {way}: {text}" for way, text in why.items()]
    return "\n".join(out) + "\n"


def columns_of(text):
    """"Linux VERSION" -> feature -> cell, of a table."""
    rows = [[c.strip() for c in line[1:].rstrip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    features = [row for row in rows[1:] if row[0] != "Debian's package" and any(row[1:])]
    return {name: {row[0]: row[n] for row in features} for n, name in enumerate(rows[0]) if n}


def table_check(new):
    """The committed table must not say anything of these kernels that the runs do not."""
    if not DOCUMENT.exists():
        say(f"-- {DOCUMENT.relative_to(TOP)} is missing: write it with tests/vm/run.py --write-table")
        return 1
    failures = fresh = 0
    committed = columns_of(DOCUMENT.read_text())
    for kernel, want in columns_of(new).items():
        have = committed.get(kernel, {})
        for f in sorted(have | want):
            # What a machine runs natively, and what its kernel is, is the machine's.
            if kernel.endswith(NATIVELY) and (not have or want.get(f, "not tried") == "not tried"):
                continue
            if f not in have:
                fresh += 1
                say(f"-- {DOCUMENT.relative_to(TOP)} lacks “{f}” of {kernel}")
            elif have[f] != want.get(f, "not tried"):
                failures += 1
                say(f"-- {DOCUMENT.relative_to(TOP)} says of {kernel}, “{f}”: {have[f]}, but these runs say: {want.get(f, 'not tried')}")
    if failures or fresh:
        say("-- bring it up to date with tests/vm/run.py --write-table")
    return 1 if failures else 0


def lock(what):
    """Runs of different kernels may go on beside each other; held until closed."""
    file = open(WORK / f"lock-{what}", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"-- waiting for another run in this tree to end ({what})")
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def main():
    fresh_start()
    parser = argparse.ArgumentParser(prog="tests/vm/run.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("-k", "--kernel", action="append", metavar="VERSION", help=f"kernel to boot (again for more; default {' '.join(KERNELS)})")
    parser.add_argument("-s", "--suite", action="append", metavar="NAME", help=f"suite to run (again for more; default all: {' '.join(suites_all())})")
    parser.add_argument("-o", "--only", default="", metavar="CHECK,CHECK", help="only these checks")
    parser.add_argument("--smoke", action="store_true", help="only the checks marked so: does the kernel side work at all?")
    parser.add_argument("--native", action="store_true", help="no guests: write the column of this machine's own kernel, by the last make test")
    parser.add_argument("-j", "--jobs", type=int, default=3, metavar="N", help="guests side by side (default 3: each waits a sixth of its time)")
    parser.add_argument("-l", "--limit", type=int, metavar="SECONDS", help="time limit of a guest (default: what its suite says)")
    parser.add_argument("--run", metavar="COMMAND", help="no checks: run a shell command in a guest and show its output")
    parser.add_argument("--put", action="append", default=[], metavar="FILE", help="with --run: also put FILE into the guest's /debox/")
    parser.add_argument("--icount", action="store_true", help="with --run: one CPU whose time-stamp counter counts instructions")
    parser.add_argument("--write-table", action="store_true", help="write docs/KERNELS.md from these runs (needs all kernels and suites)")
    arguments = parser.parse_args()
    if arguments.native:
        DOCUMENT.write_text(with_native(DOCUMENT.read_text()))
        return 0
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            raise Stop(f"{tool} is missing: make setup-test, or apt-get install {package}")
    WORK.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    versions = sorted(set(arguments.kernel or KERNELS), key=numbers)
    locks = [lock(version) for version in versions]
    with lock("packages"):
        kernels = [Kernel(version) for version in versions]
    names = arguments.suite or suites_all()
    smoke = {name: smoke_of(name) for name in names} if arguments.smoke else {}
    if arguments.run:
        suites = [Suite(None)]
    elif arguments.smoke:
        # One guest for all: to boot and to load is half of what it costs.
        parts = [name for name in names if smoke[name]]
        suites = [Suite("smoke", *parts)] if parts else []
    else:
        suites = [Suite(name) for name in names]
    if arguments.run and arguments.icount:
        suites[0].icount = True
    only_names = [n for n in arguments.only.split(",") if n]
    only = {s.name: ",".join(itertools.chain(*smoke.values())) if arguments.smoke else arguments.only for s in suites}
    expected = {s.name: [] if arguments.run else s.expected(only[s.name]) for s in suites}
    suites = [s for s in suites if arguments.run or expected[s.name]]
    unknown = [n for n in only_names if not any(n in names for names in expected.values())]
    if unknown:
        raise Stop(f"no such check: {' '.join(unknown)}")
    for suite in suites:
        if missing := list(suite.rust_missing()):
            raise Stop(f"tests/vm/suites/{suite.name}.py lacks these tests of tests/*.rs: {' '.join(missing)}")
    guests = []
    scratch = WORK / ("build-" + "-".join(versions))
    for suite in suites:
        extra = [str(pathlib.Path(f).resolve()) for f in arguments.put]
        tree = tree_of(suite, scratch / "root", extra)
        common = scratch / f"{suite.name or 'command'}.cpio"
        tree.pack(common)
        for kernel in kernels:
            if suite.kernels and kernel.version not in suite.kernels:
                continue
            guest = Guest(kernel, suite, arguments, extra, only[suite.name])
            guest.prepare(common)
            guests.append(guest)
    say(f"-- {len(guests)} guests, {min(arguments.jobs, len(guests))} at a time; set up in {time.monotonic() - begin:.0f} s")

    def boot(guest):
        guest.boot()
        # The emulator's end and not the kernel's: it had not said a word.
        if guest.silent:
            say(f"-- Linux {guest.kernel.release}, {guest.suite.name or 'command'}: {guest.why} before the kernel said anything; booting once more")
            guest.why = ""
            guest.prepare(guest.common)
            guest.boot()

    def job(guest):
        say(f"-- Linux {guest.kernel.release}, {guest.suite.name or 'command'}: booting")
        boot(guest)
        if arguments.run:
            if guest.status != ALL_PASSED:
                say(f"-- the command failed, or the guest did not end well {guest.why}; console: {guest.directory}/console")
            return guest.status != ALL_PASSED
        failures = guest.judge(expected[guest.suite.name])
        # An emulated machine stalls at any moment, for seconds. What failed once
        # for that passes in a guest of its own; what is wrong fails again.
        if failures and failures == len(guest.failed) and failures <= rust.MOST_AGAIN and not guest.exact:
            say(f"-- Linux {guest.kernel.release}, {guest.suite.name}: once more, alone: {' '.join(guest.failed)}")
            second = Guest(guest.kernel, guest.suite, arguments, guest.extra, ",".join(guest.failed), again=True)
            second.prepare(guest.common)
            boot(second)
            if not second.judge(guest.suite.expected(second.only)):
                unsteady.extend(f"{guest.label}: {name}" for name in guest.failed)
                guest.passed += guest.failed
                guest.cells.update({row: text for row, text in second.cells.items() if guest.cells.get(row) == "FAILED"})
                failures = 0
            guest.cpu_s += second.cpu_s
        return failures

    unsteady = []
    with concurrent.futures.ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        # The longest first (as their limits say), so that none is left over at the end.
        failures = sum(pool.map(job, sorted(guests, key=lambda g: -g.suite.limit_s)))
    shutil.rmtree(scratch, ignore_errors=True)
    if not arguments.run:
        total = sum(len(g.passed) for g in guests)
        whole = not arguments.only and not arguments.suite and not arguments.smoke
        if whole and not failures:
            text = table(guests, kernels)
            if arguments.write_table and len(kernels) == len(KERNELS):
                DOCUMENT.write_text(text)
                say(f"-- wrote {DOCUMENT.relative_to(TOP)}")
            else:
                failures += table_check(text)
        elif arguments.write_table:
            say("-- the table is written only when all guests passed all of their checks")
        cpu_s = sum(g.cpu_s for g in guests)
        if unsteady:
            say(f"{rust.AGAIN}{', '.join(unsteady)}")
        say(f"-- kernels: {total} passed, {failures} failed, {time.monotonic() - begin:.0f} s ({cpu_s:.0f} s of CPU time)")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stop as error:
        print(f"tests/vm: {error}", file=sys.stderr)
        sys.exit(2)
