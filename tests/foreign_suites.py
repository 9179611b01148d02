#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Do the tests of others end with `debox run --capture=splice` as they do without?

    foreign_suites.py [--only WORD]

stress-ng's stressors one by one, each of which verifies what it does, and modules of CPython's own
tests; as an ordinary user, without a broker. What differs once is done twice more, both ways: a test that has
failed without as well says nothing.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

TOP = pathlib.Path(__file__).resolve().parents[1]
DEBOX = TOP / "target/release/debox"
NOBODY = 65534
SECONDS = 300
# Of the classes os, scheduler, signal, pipe and filesystem; not those that want all memory, or devices.
STRESSORS = """
    access affinity alarm bad-altstack chdir chmod context daemon dentry dir dup epoll eventfd exec exit-group fallocate
    fault fcntl fifo file-ioctl flock fork fpunch fstat full funccall futex get getdent getrandom handle hrtimers
    inotify io-uring itimer kcmp kill lease link lockf lockofd madvise membarrier memfd mincore misaligned mlock mmap
    mmapfixed mprotect mq mremap msg msync munmap nanosleep nice null open personality pidfd pipe pipeherd poll prctl
    procfs pthread ptrace rename rlimit rseq schedpolicy seccomp seek sem sem-sysv set shm shm-sysv sigabrt
    sigchld sigfd sigfpe sigio signal signest sigpending sigpipe sigq sigrt sigsegv sigsuspend sigtrap
    sleep sock sockfd sockpair softlockup spawn splice switch symlink sysinfo tee timer timerfd unshare userfaultfd
    usersyscall utime vdso vfork vm-splice wait xattr yield zombie
""".split()
MODULES = """
    test_os test_signal test_threadsignals test_subprocess test_threading test_thread test_posix test_select
    test_selectors test_poll test_epoll test_mmap test_faulthandler test_io test_fcntl test_wait3 test_wait4
    test_fork1 test_queue test_tempfile test_shutil test_pty test_asyncio
""".split()
SPLICED = [str(DEBOX), "run", "--capture=splice", "-q", "-o", "/dev/null", "--"]


class Place:
    """A folder of the ordinary user, in which a suite runs."""

    def __init__(self, folder):
        self.folder = folder
        self.user = {} if os.geteuid() else {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def run(self, words, spliced):
        """Status, and what it wrote."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": self.folder, "LC_ALL": "C.UTF-8", "XDG_CACHE_HOME": f"{self.folder}/cache"}
        argv = [*(SPLICED if spliced else []), *words]
        try:
            done = subprocess.run(argv, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=SECONDS, start_new_session=True, **self.user)  # fmt: skip
        except subprocess.TimeoutExpired:
            return "no end", ""
        return done.returncode, done.stdout.decode(errors="replace")


def stressor(place, name, spliced):
    """Its status: 0 right, 2 wrong, 3 and 4 not here."""
    status, said = place.run(["stress-ng", "--temp-path", place.folder, "--verify", "--timeout", "1", f"--{name}", "1"], spliced)
    return {status}, said


def module(place, name, spliced):
    """Its tests that failed."""
    report = pathlib.Path(place.folder, "report.xml")
    report.unlink(missing_ok=True)
    status, said = place.run(["/usr/bin/python3", "-m", "test", "--junit-xml", str(report), name], spliced)
    if not report.exists():
        return {status}, said
    cases = xml.etree.ElementTree.parse(report).getroot().iter("testcase")
    return {case.get("name") for case in cases if case.find("failure") is not None or case.find("error") is not None} | {status}, said


def differs(place, run, name):
    """What it ended with three times when it was spliced, and never without; what it wrote then; whether it is right
    without."""
    bare, _ = run(place, name, False)
    found, said = run(place, name, True)
    for _ in range(2):
        if found <= bare:
            break
        bare |= run(place, name, False)[0]
        again, said = run(place, name, True)
        found &= again
    return found - bare, said, bare == {0}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="stressors or modules of this name; may be repeated")
    only = parser.parse_args().only
    suites = [(stressor, STRESSORS, shutil.which("stress-ng"), "stress-ng"), (module, MODULES, pathlib.Path("/usr/lib/python3.11/test/test_os.py").exists(), "libpython3.11-testsuite")]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="debox-suites-") as folder:
        os.chmod(folder, 0o755)
        home = pathlib.Path(folder, "home")
        home.mkdir()
        if not os.geteuid():
            os.chown(home, NOBODY, NOBODY)
        place = Place(str(home))
        for run, names, there, package in suites:
            if not there:
                print(f"NOT RUN: {package} is not installed")
                continue
            compared = right = 0
            for name in names if not only else [name for name in names if name in only]:
                more, said, is_right = differs(place, run, name)
                compared += 1
                right += is_right
                if more:
                    failed += 1
                    print(f"{name}: with splice capture alone: {sorted(map(str, more))}\n{said[-2000:]}")
            print(f"{run.__name__}s: {compared} compared, {right} of them right without", flush=True)
            if right < compared / 2:
                print("too few to say anything")
                failed += 1
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
