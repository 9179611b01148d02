#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Do the packages do under systemd what their units say, from installed to purged?

    tests/vm/booted.py [-k VERSION]...

Boots a Debian of its own (mmdebstrap) in QEMU, with systemd as PID 1 and none of ours in it,
on Debian's 6.1 and 6.12. In it under_systemd.py installs the packages, has the socket start
the broker, stops both services for their watchdogs and reloads them; then the machine boots
once more from the same disk, with what is enabled, and the packages are upgraded under a
client and purged. Each boot ends with 0 only when all its steps passed.
Needs root, and a mirror of Debian the first time: that Debian stays in target/vm/.
"""

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
import run as guests  # noqa: E402 (before tests/run.py can be found)
import packages as packed  # noqa: E402
import under_systemd  # noqa: E402
from fresh_start import fresh_environment, fresh_start  # noqa: E402

TOP = guests.TOP
WORK = guests.WORK / "booted"
PACKAGES = WORK / "packages"
INSIDE = pathlib.Path("debox-test")
# Beside what the packages need: what a server has, and what the steps are written in.
INCLUDE = {"systemd-sysv", "procps", "python3-minimal", "libpython3-stdlib", "util-linux", "login", "passwd"}
MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c")
BOOT_LIMIT_S = 1800
# Of an initramfs: no more than to get to the disk.
INIT = """#!/bin/busybox sh
# SPDX-License-Identifier: MIT OR Apache-2.0
/bin/busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do /bin/busybox insmod "/modules/$module"; done </modules/order
/bin/busybox mount -t ext4 /dev/vda /disk
/bin/busybox mount --move /dev /disk/dev
exec /bin/busybox switch_root /disk /sbin/init
"""
# init.c runs /setup, and tells QEMU how it ended.
SETUP = f"exec python3 -u /{INSIDE}/under_systemd.py </dev/null >/dev/ttyS1 2>/dev/ttyS0\n"
UNIT = f"""[Unit]
Description=DeBox's steps under systemd
After=multi-user.target
[Service]
Type=exec
ExecStart=/{INSIDE}/ended
"""


def debian():
    """A tar of the release that runs here, with what the packages need and not them."""
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', pathlib.Path("/etc/os-release").read_text(), re.M))
    mirror, suite = packed.MIRRORS.get(system["ID"]), system.get("VERSION_CODENAME")
    include = sorted(INCLUDE | packed.needed(PACKAGES))
    name = hashlib.sha256(" ".join([suite, *include]).encode()).hexdigest()[:16]
    kept = guests.WORK / f"debian-{name}.tar"
    if not kept.exists():
        guests.say("-- making a Debian to boot")
        made = kept.with_suffix(".part.tar")
        made.unlink(missing_ok=True)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
             "--include=" + ",".join(include), suite, made, mirror],
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            print(f"NOT RUN: no mirror of Debian answers for {suite}: {done.stderr.strip()[-300:]}")
            sys.exit(77)
        made.rename(kept)
    return kept


def root_of(tar, folder):
    """That Debian with the steps and the packages in it."""
    guests.call("tar", "-xf", tar, "-C", folder)
    inside = folder / INSIDE
    inside.mkdir()
    guests.call("gcc", "-O1", "-Wall", "-static", "-o", inside / "ended", guests.HERE / "init.c")
    shutil.copy(guests.HERE / "under_systemd.py", inside)
    # Not compressed: an emulated machine has to unpack them.
    for name, version in (("now", packed.VERSION), ("newer", packed.NEWER)):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
            packed.repacked(pathlib.Path(made), under_systemd.PACKAGES, PACKAGES, version)
            (inside / name).mkdir()
            for path in pathlib.Path(made).glob("*.deb"):
                shutil.copy(path, inside / name)
    shutil.copy(shutil.which("busybox"), folder / "bin/busybox")
    (folder / "setup").write_text(SETUP)
    units = folder / "etc/systemd/system"
    (units / "debox-test.service").write_text(UNIT)
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/debox-test.service").symlink_to("../debox-test.service")
    # Without udev nothing says that the console is there.
    (units / "serial-getty@ttyS0.service").symlink_to("/dev/null")
    # What a package must not do in a chroot it must here.
    (folder / "usr/sbin/policy-rc.d").unlink(missing_ok=True)
    (folder / "etc/machine-id").write_text("")
    (folder / "var/log/journal").mkdir(exist_ok=True)


class Machine:
    def __init__(self, kernel, root):
        self.kernel = kernel
        self.directory = WORK / kernel.version
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.disk = self.directory / "disk"
        with open(self.disk, "wb") as file:
            file.truncate(3 << 30)
        guests.call("mkfs.ext4", "-q", "-F", "-d", root, self.disk)
        tree = guests.Tree(self.directory / "root")
        for folder in ("bin", "dev", "disk"):
            (tree.root / folder).mkdir()
        shutil.copy(shutil.which("busybox"), tree.root / "bin/busybox")
        kernel.modules(MODULES, tree.root)
        (tree.root / "init").write_text(INIT)
        (tree.root / "init").chmod(0o755)
        tree.pack(self.directory / "initramfs")
        shutil.rmtree(tree.root)

    def boot(self, stage):
        """Whether all steps of that stage passed."""
        speed = ["-accel", "tcg,thread=single", "-smp", "2", "-cpu", "max,-erms,-fsrm"]
        if guests.kvm():
            speed = ["-accel", "kvm", "-smp", "2", "-cpu", "host"]
        words = ["console=ttyS0", "quiet", "panic=-1", "tsc=reliable", "no_timer_check", "systemd.show_status=0",
                 "systemd.default_timeout_start_sec=600", f"debox.stage={stage}"]  # fmt: skip
        results = self.directory / f"results-{stage}"
        begin = time.monotonic()
        with open(self.directory / "qemu", "w+") as said:
            machine = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *speed, "-m", "2048", "-nodefaults", "-nographic", "-no-reboot",
                 "-serial", f"file:{self.directory}/console-{stage}", "-serial", f"file:{results}",
                 "-device", "isa-debug-exit,iobase=0x501,iosize=1", "-drive", f"file={self.disk},if=virtio,format=raw,cache=unsafe",
                 "-kernel", str(self.kernel.image), "-initrd", str(self.directory / "initramfs"), "-append", " ".join(words)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
            try:
                status = machine.wait(BOOT_LIMIT_S)
            except subprocess.TimeoutExpired:
                machine.kill()
                machine.wait()
                status = f"none after {BOOT_LIMIT_S} s"
            said.seek(0)
            error = said.read().strip()
        lines = results.read_text(errors="replace").splitlines() if results.exists() else []
        for line in lines:
            guests.say(f"   {self.kernel.version} {line}")
        passed = [line.split()[1] for line in lines if line.startswith("ok ")]
        wanted = under_systemd.names(stage)
        good = passed == wanted and status == guests.ALL_PASSED
        guests.say(f"-- Linux {self.kernel.release}, boot {stage}: {len(passed)} of {len(wanted)} steps passed, {time.monotonic() - begin:.0f} s")
        if not good:
            guests.say(f"   QEMU's status {status} {error}")
            console = self.directory / f"console-{stage}"
            for line in console.read_text(errors="replace").splitlines()[-40:] if console.exists() else []:
                guests.say(f"   console: {line}")
        return good


def main():
    fresh_start()
    fresh_environment()
    parser = argparse.ArgumentParser(prog="tests/vm/booted.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("-k", "--kernel", action="append", metavar="VERSION", help=f"kernel to boot (again for more; default {' '.join(guests.KERNELS)})")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("NOT RUN: a Debian of its own needs root")
        return 77
    WORK.mkdir(parents=True, exist_ok=True)
    with guests.lock("booted"):
        # Without those that have symbols, which take most of the time.
        guests.call(TOP / "setup/pack.sh", "deb", env={**os.environ, "PACKAGES": str(PACKAGES), "DEB_BUILD_OPTIONS": "noautodbgsym"})
        tar = debian()
        with guests.lock("packages"):
            kernels = [guests.Kernel(version) for version in sorted(set(arguments.kernel or guests.KERNELS), key=guests.numbers)]
        with tempfile.TemporaryDirectory(prefix="debox-booted-", dir="/var/tmp") as folder:
            root_of(tar, pathlib.Path(folder))
            machines = [Machine(kernel, folder) for kernel in kernels]
        good = True
        for machine in machines:
            # What the first boot left is what the second begins with.
            good = machine.boot(1) and machine.boot(2) and good
            machine.disk.unlink()
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except guests.Stop as error:
        print(f"tests/vm: {error}", file=sys.stderr)
        sys.exit(2)
