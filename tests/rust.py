#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How are the Rust tests of a part run, and what did each take?

    rust.py [--once-more] [GROUP...] [--but GROUP...] [-- OPTION...]

A group is CRATE (its unit tests) or CRATE::FILE (its tests/FILE.rs), as `--list`
shows them, or CRATE::* (all of tests/); none means all. Options go to the tests (`--skip NAME`, `--exact
NAME`). What a test did not run it says in a line `NOT RUN: why`, which is shown
though the test passed.

With --once-more up to two tests that failed are run again when all others have
ended, and pass when they pass then, which is said. It is for tests that watch a
machine on which others compute too: a thread that gets no CPU for 50 ms is told
of rightly, and is not what the test is about. What others may see is not asked twice.
"""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parents[1]
BUILD = ("cargo", "test", "--release", "--workspace", "--no-run", "--message-format=json-render-diagnostics")

FAILED = re.compile(r"test (\S+) (?:- should panic )?\.\.\. FAILED")
MOST_AGAIN = 2
# Once failed is failed: what others may see, and can do.
NEVER_AGAIN = ("debox-broker::trust", "debox-cli::hostile", "debox-tests::security")
AGAIN = "-- passed only when run again alone: "


def groups():
    """The test programs, built when they are not up to date: group -> (directory of its crate, file)."""
    done = subprocess.run(BUILD, cwd=TOP, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    found = {}
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if said.get("reason") != "compiler-artifact" or not said["profile"]["test"] or not said["executable"]:
            continue
        directory = pathlib.Path(said["manifest_path"]).parent
        crate = re.sub(r"@.*", "", said["package_id"].rpartition("#")[2])
        if crate[0].isdigit():
            crate = directory.name
        # By their folders: crates/cli is published as debox, and crates/debox as libdebox.
        crate = {"debox": "debox-cli", "libdebox": "debox"}.get(crate, crate)
        kind, name = said["target"]["kind"][0], said["target"]["name"]
        group = {"test": f"{crate}::{name}", "bin": f"{crate} ({name})", "example": f"{crate} (example {name})"}.get(kind, crate)
        found[group] = (directory, said["executable"])
    return found


def of(group, names):
    """Whether a name stands for the group: `debox-cli` is also `debox-cli (deboxd)`."""
    crate, of_file, _ = group.partition("::")
    return group in names or group.partition(" (")[0] in names or bool(of_file) and f"{crate}::*" in names


def run(group, directory, file, options):
    """Shows what the program says, but of tests that passed only what did not run; its status, and what failed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    print(f"-- {group}", flush=True)
    # The standard library shows the time of each test to those who are allowed
    # what is not stable: it is a matter of this output only.
    process = subprocess.Popen(
        [file, "-Zunstable-options", "--report-time", "--show-output", *options],
        cwd=directory, env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, stdout=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    passed_said, test, failed = False, "", []
    for line in process.stdout:
        if match := FAILED.match(line):
            failed.append(match[1])
        passed_said = line == "successes:\n" or passed_said and line != "failures:\n" and not line.startswith("test result")
        if not passed_said:
            if line.strip() and line != "running 0 tests\n":
                print(line, end="", flush=True)
        elif match := re.fullmatch(r"---- (\S+) stdout ----\n", line):
            test = match[1]
        elif line.startswith("NOT RUN"):
            print(f"{line.strip()} ({test})", flush=True)
    process.stdout.close()
    status = process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"-- {group}: {'ok' if not status else f'FAILED ({status})'}, {time.monotonic() - begin:.1f} s, {cpu:.1f} s of CPU time", flush=True)
    return status, failed


def once_more(failed, every):
    """Whether the tests that failed (group -> names) all pass when each runs alone."""
    if any(not names or group in NEVER_AGAIN for group, names in failed.items()) or sum(map(len, failed.values())) > MOST_AGAIN:
        return False
    for group, names in failed.items():
        for name in names:
            print(f"-- once more, alone: {name}", flush=True)
            if run(group, *every[group], ["--exact", name])[0]:
                return False
    print(f"{AGAIN}{', '.join(name for names in failed.values() for name in names)}")
    return True


def main():
    words = sys.argv[1:]
    again = words[:1] == ["--once-more"]
    words = words[again:]
    options = []
    if "--" in words:
        options = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    but = []
    if "--but" in words:
        but = words[words.index("--but") + 1 :]
        words = words[: words.index("--but")]
    every = groups()
    if words == ["--list"]:
        print("\n".join(sorted(every)))
        return 0
    unknown = [name for name in words + but if not any(of(group, [name]) for group in every)]
    if unknown:
        sys.exit(f"rust.py: there is no {', '.join(unknown)}; there are: {', '.join(sorted(every))}")
    chosen = [g for g in sorted(every) if (not words or of(g, words)) and not of(g, but)]
    ended = {group: run(group, *every[group], options) for group in chosen}
    failed = {group: names for group, (status, names) in ended.items() if status}
    if failed and not (again and once_more(failed, every)):
        print(f"FAILED: {', '.join(failed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
