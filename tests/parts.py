# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which parts do `make check`, `make test` and `make test-all` have?

Each tier has the parts of the tiers before it as well. A new test program in
Rust needs no line here: what is in no part of its own is in "crates".
"""

import os
import sys
from typing import NamedTuple

TIERS = ("check", "test", "test-all")


class Part(NamedTuple):
    name: str
    tier: str  # the first that has it
    # About four times of what it takes on two busy CPUs, and more than that; of
    # those that run beside each other the one with the longest begins first.
    limit_s: int
    command: tuple
    # "first": others need it; "quiet": it asks when things happen, beside such that mostly wait as well; "alone": it
    # measures times, or takes all CPUs
    when: str = "beside"
    root: bool = False
    kernel: bool = False  # loads BPF programs
    within: str = ""  # a part of a later tier that runs all of it


def make(*targets):
    return ("make", "--no-print-directory", *targets)


def python(*words):
    # By this interpreter: `python3` may be a shell script of a version manager.
    return (sys.executable, *words)


def rust(*groups, options=()):
    return python("tests/rust.py", *groups, *(("--", *options) if options else ()))


def watching(*groups, options=()):
    """Tests that watch programs while others compute beside them."""
    command = rust(*groups, options=options)
    return (*command[:2], "--once-more", *command[2:])


# Tests of crates that need BPF or root for most of what they ask, or watch programs while others compute.
WITH_KERNEL = ("debox-broker::trust", "debox-cli::acting", "debox-cli::foreign", "debox-cli::hostile", "debox-cli::kernel",
               "debox-cli::select", "debox-cli::spliced", "debox-cli::spliced_attach", "debox-cli::spliced_memory", "debox-cli::spliced_programs", "debox-cli::spliced_sample", "debox-cli::why", "debox-probe::boundary_record", "debox-splice::counts",
               "debox-unwind::live")  # fmt: skip
# Those that hold times against each other.
WITH_CLOCK = ("debox-bench::sanity", "debox-cli::bench", "debox::wall")
# Those that mostly wait: for periods to end, for what was sent to come, for others' servers.
AGENT = ("debox-agent", "debox-agent::*")
FLEET = ("debox-fleet", "debox-fleet::*")
# Those of `debox bench self`, minutes long.
COSTS = "self_"
SERVERS = ("nginx_under_wrk", "redis_under_its_benchmark")

PARTS = (
    Part("programs that the tests run", "check", 1800, make(f"-j{os.cpu_count()}", "test-programs", "c-examples", "c-test-programs", "case-programs"), "first"),
    Part("Rust tests, built", "check", 3600, rust("--list"), "first"),
    Part("parts: what runs out of time, what is left behind, what counts as failed", "check", 300, python("tests/part_test.py")),
    Part("clippy", "check", 1200, ("tests/lint.sh", "clippy")),
    Part("rustfmt", "check", 300, ("tests/lint.sh", "rustfmt")),
    Part("clang-format", "check", 300, ("tests/lint.sh", "clang-format")),
    Part("the fuzzers' Cargo.lock", "check", 300, ("tests/lint.sh", "lock")),
    Part("libdebox and the interposer in C (fake broker, sanitizers)", "check", 600, make("c-tests")),
    Part("scalable select and poll: the same answers as the system calls", "check", 2400, make("select-tests")),
    Part("installed: what a stranger gets from a prefix alone", "check", 900, python("tests/installed.py")),
    Part("dashboards and alerts ask for what the agent exposes", "check", 300, python("tests/dashboards.py")),
    Part("case study: what its pages say, and what a case cleans up", "check", 60, ("/usr/bin/python3", "cases/tests/quick.py")),  # as cases/run.sh has it
    Part("crates: layout, labels, reports, protocol, command line", "check", 1800,
         rust("--but", "debox-tests::*", "debox-report::chromium", "debox-serve::chromium", "debox-cases-load::load", *AGENT, *FLEET, *WITH_KERNEL, *WITH_CLOCK)),
    Part("crates: the agent, and where it sends to", "check", 1800, watching(*AGENT)),
    Part("crates: the fleet", "check", 1800, rust(*FLEET)),
    Part("crates: examples of the documents", "check", 600, ("cargo", "test", "--release", "--workspace", "--doc", "--quiet")),

    Part("crates: with the kernel", "test", 1800, watching(*WITH_KERNEL), root=True, kernel=True),
    Part("scalable select and poll: where the machine has no epoll watches left", "test", 300, make("select-tests-alone"), "alone", root=True),
    Part("crates: with the clock", "test", 1800, watching(*WITH_CLOCK, options=["--skip", COSTS]), "alone", root=True, kernel=True),
    Part("guest: Linux 6.1, smoke", "test", 1800, python("tests/vm/run.py", "-k", "6.1", "-j", "1", "--smoke"), root=True, within="guest: Linux 6.1"),
    Part("guest: Linux 6.12, smoke", "test", 1800, python("tests/vm/run.py", "-k", "6.12", "-j", "1", "--smoke"), root=True, within="guest: Linux 6.12"),
    Part("truth: programs with a known answer", "test", 1800, watching("debox-tests::truth"), "quiet", root=True, kernel=True),
    Part("details: call sites, culprits, threads", "test", 1800, watching("debox-tests::details"), root=True, kernel=True),
    Part("chains: what was waited for, link by link", "test", 1800, watching("debox-tests::chains"), root=True, kernel=True),
    Part("lives: where the time of threads went", "test", 900, watching("debox-tests::lives"), "quiet", root=True, kernel=True),
    Part("whom: names, control groups, users, descendants, PID namespaces", "test", 900, watching("debox-tests::whom"), root=True, kernel=True),
    Part("locks: who holds what is waited for, how many others wait", "test", 1800, watching("debox-tests::locks"), root=True, kernel=True),
    Part("objects: which file, which peer", "test", 1800, watching("debox-tests::objects"), root=True, kernel=True),
    Part("interrupts: where they landed", "test", 900, watching("debox-tests::irq"), "alone", root=True, kernel=True),
    Part("on the CPU: which functions, and how sure", "test", 900, watching("debox-tests::on_cpu"), "alone", root=True, kernel=True),
    Part("cross-checks: strace, perf, schedstat", "test", 1800,
         watching("debox-tests::cross", options=[w for name in SERVERS for w in ("--skip", name)]), "quiet", root=True, kernel=True),
    Part("behaviour: the same with and without", "test", 1800, watching("debox-tests::behaviour"), root=True, kernel=True),
    Part("security: the broker's user and unit, who may use it, promises and their tests", "test", 1800,
         rust("debox-tests::security"), root=True, kernel=True),
    Part("recordings: history, trends, culprits, call sites, kill -9", "test", 1800, watching("debox-tests::record"), "quiet", root=True, kernel=True),
    Part("case study: the server in each of its designs", "test", 600, python("cases/tests/server.py"), root=True),
    Part("case study: the slow disk, and what a killed run leaves", "test", 300, python("cases/tests/disk.py"), root=True),
    Part("case study: servers of others", "test", 300, python("cases/tests/peers.py"), root=True),

    Part("packages: made twice, judged by lintian, installed in a Debian and purged; the tarball without a library; the image as Kubernetes gives it", "test-all", 3600,
         python("tests/packages.py"), root=True, kernel=True),
    Part("crates: packed as for an upload, and the command installed of them without clang", "test-all", 3600, python("tests/crates.py"), root=True, kernel=True),
    Part("systemd: the packages in guests that boot with it, from installed to purged", "test-all", 3600, python("tests/vm/booted.py"), root=True),
    Part("costs: what `debox bench self` measures", "test-all", 1800, watching("debox-cli::bench", options=[COSTS]), "alone", root=True, kernel=True),
    Part("cross-checks: nginx, redis", "test-all", 1800, watching("debox-tests::cross", options=["--exact", *SERVERS]), "alone", root=True, kernel=True),
    Part("cross-checks: PostgreSQL, MariaDB, SQLite", "test-all", 900, watching("debox-tests::databases"), "alone", root=True, kernel=True),
    Part("suites of others, spliced: stress-ng's and CPython's", "test-all", 3600, python("tests/foreign_suites.py"), "alone"),
    Part("examples: the first sentence of each case", "test-all", 1800, ("examples/cases/all.sh",), "alone", root=True, kernel=True),
    Part("reports in Chromium", "test-all", 1800, rust("debox-report::chromium")),
    Part("pages of debox serve in Chromium", "test-all", 1800, rust("debox-serve::chromium"), root=True, kernel=True),
    Part("storms: threads, processes, kill -9", "test-all", 1800, watching("debox-tests::storms"), "alone", root=True, kernel=True),
    Part("scalable select and poll: servers under load, CPython's tests", "test-all", 3600, ("tests/select/run.sh",), "alone"),
    Part("case study: the load generator", "test-all", 900, rust("debox-cases-load::load"), "alone"),
    Part("case study: experiments with the server on its slow disk", "test-all", 1500, python("cases/tests/steps.py"), "alone", root=True, kernel=True),
    Part("case study: one call in a thousand", "test-all", 600, python("cases/tests/rare.py"), "alone", root=True, kernel=True),
    Part("case study: nginx opens files in its loop", "test-all", 600, python("cases/tests/nginx.py"), "alone", root=True, kernel=True),
    Part("case study: the table of descriptors grows", "test-all", 300, python("cases/tests/rcu.py"), "alone", root=True, kernel=True),
    Part("case study: select and poll in a proxy", "test-all", 600, python("cases/tests/proxy.py"), "alone", root=True, kernel=True),
    Part("fuzz: every target over its corpus, and 10 s", "test-all", 3600, ("fuzz/run.sh", "-s", "10")),
    Part("guest: Linux 6.1", "test-all", 7200, python("tests/vm/run.py", "-k", "6.1", "-j", "1"), root=True),
    Part("guest: Linux 6.12", "test-all", 7200, python("tests/vm/run.py", "-k", "6.12", "-j", "1"), root=True),
    Part("labels: share of blocked time without one", "test-all", 1200,
         python("tests/labels/stress.py", "--short", "--debox", "target/release/debox"), "alone", root=True, kernel=True),
)  # fmt: skip

# What may be left out, why, and in which tiers.
NO_ROOT = (r"needs? root|needs BPF|DEBOX_TEST_NO_BPF|only root can|takes root", "make check needs neither root nor BPF")
ALLOWED = (
    (r"clang-format \d+ is missing", "not every distribution has this version, and others write some lines otherwise"),
    (r"cargo cannot resolve fuzz/targets/Cargo.toml", "its dependencies are known where the fuzzers have been built, or the network is there"),
    (r"slow_read needs root, a file system on a disk", "hosts with control groups of version 2 only have no blkio controller of version 1"),
    (r"no patched nginx in", "it is built from Debian's source (cases/nginx/build.sh), which the network has"),
    (r"no mirror of Debian answers", "a Debian to install packages in comes from the network"),
    (r"the registry of crates does not answer", "what is already published is asked of it"),
    (r"threads are not taken to another CPU where there is one alone", "it is about two CPUs"),
    (r"no valgrind is installed", "it needs the loader's symbols (libc6-dbg), which not every distribution has beside it"),
    (r"no prometheus is installed", "its package starts a server where there is systemd, and the agent's form is tested without"),
    (r"no chDB is installed", "it is large (ClickHouse's engine), and what is written is tested without"),
    (r"no server that speaks S3 is installed", "it is a Python package that make setup-all installs, and directories are tested without"),
    (r"no OpenTelemetry collector is built", "it is built from Go modules, by a newer Go than many distributions have; a server of the tests' own takes the same"),
    (r"no JDK is installed", "it is large, and Go and Python show the same"),
    (r"no Python whose functions are read", "Debian 12 has 3.11, other distributions may have older or newer ones"),
    (r"hierarchy of control groups is not mounted here", "hosts with control groups of version 1 only have none"),
    (r"PID namespaces are refused here", "containers and some distributions refuse them"),
    (r"user namespaces are refused here", "containers and some distributions refuse them"),
    (r"set-user-id programs are refused in", "some machines mount /tmp with nosuid"),
)


def of_tier(tier):
    """The parts of a tier: those of the tiers before it, but what a part of its own runs as well."""
    chosen = [p for p in PARTS if TIERS.index(p.tier) <= TIERS.index(tier)]
    return [p for p in chosen if not any(p.within == other.name for other in chosen)]


def allowed(tier):
    return [NO_ROOT, *ALLOWED] if tier == "check" else list(ALLOWED)


def environment(tier):
    return {"NO_COLOR": "1", **({"DEBOX_TEST_NO_BPF": "1"} if tier == "check" else {})}
