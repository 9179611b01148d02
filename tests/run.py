#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How are the parts of a tier run, and what is said at the end?

    run.py check|test|test-all [NAME...]    the parts (parts.py) of a tier, or those
                                            of them with these words in their names
    run.py TIER --list                      their names, and what they need

First what others need, then what measures nothing, two more at a time than there
are CPUs, then what asks when things happen and mostly waits, two at a time, and at
last, one by one, what measures. What a part says is shown whole
when it ends, what went wrong in it once more at the end. No part waits for ever:
see part.py.

A part ends with 0 (passed), 77 (could not run here) or anything else (failed).
What it left out it says in lines with `NOT RUN`; what is left out and is not
known to parts.py has failed.
"""

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import parts
import rust
from fresh_start import fresh_start

TOP = pathlib.Path(__file__).resolve().parents[1]
LOGS = TOP / "target/tests"
NOT_HERE = 77
SLOWEST = 20
WRONG = re.compile(r"FAIL|RAN OUT OF TIME|panicked|assertion|left:|right:|differs|error(:|\[)|did not run|-- Linux|Sanitizer")
WRONG_LINES, WRONG_COLUMNS = 40, 600
AGAIN = re.compile(f"^{rust.AGAIN}(.*)$", re.M)
# So many can be the machine's fault; of more something is wrong.
MOST_AGAIN = 4
# A test of Rust's, and a check of a guest.
TIMES = (
    re.compile(r"^test (?P<what>\S+) .*ok <(?P<seconds>[\d.]+)s>", re.M),
    re.compile(r"^ +(?P<guest>\d\S* \S+) +ok (?P<what>\S+) \((?P<seconds>[\d.]+) s\)", re.M),
)


def cpu_seconds(log):
    """What a part used, as part.py says in its last line."""
    found = re.findall(r"^part: ([\d.]+) s of CPU time$", log, re.M)
    return float(found[-1]) if found else 0.0


class Result:
    """How a part ended, and what it told on the way."""

    def __init__(self, part, status, seconds, log, allowed):
        self.part, self.seconds, self.log = part, seconds, log
        self.cpu_s = cpu_seconds(log)
        skips = [line.strip() for line in log.splitlines() if "NOT RUN" in line]
        if status == NOT_HERE and not skips:
            said = [line for line in log.splitlines() if line.strip() and not line.startswith("part: ")]
            skips = ["NOT RUN: " + (said or ["it does not say why"])[-1]]
        self.skips = [(line, next((why for pattern, why in allowed if re.search(pattern, line)), None)) for line in skips]
        self.unexpected = [line for line, why in self.skips if why is None]
        self.again = [name for names in AGAIN.findall(log) for name in names.split(", ")]
        self.failed = status not in (0, NOT_HERE) or bool(self.unexpected)
        self.word = "FAILED" if self.failed else "could not run" if status == NOT_HERE else "ok"

    def times(self):
        """(seconds, what) of each test that tells."""
        for pattern in TIMES:
            for match in pattern.finditer(self.log):
                guest = match.groupdict().get("guest")
                yield float(match["seconds"]), f"{match['what']} ({guest or self.part.name})"

    def wrong(self):
        """The lines that say what went wrong, for whoever sees only the end of a long output."""
        lines = [(n, line) for n, line in enumerate(self.log.splitlines(), 1) if WRONG.search(line) and "test result: ok" not in line]
        out = [f"{n}:{line[:WRONG_COLUMNS]}" for n, line in lines[-WRONG_LINES:]]
        return "\n".join([f"-- {self.part.name}", *out, *(f"unexpected: {line}" for line in self.unexpected)])


class Runner:
    def __init__(self, chosen, allowed, environment, logs=LOGS, cpus=None):
        self.chosen, self.allowed, self.logs = chosen, allowed, logs
        self.environment = {**os.environ, **environment}
        self.cpus = cpus or len(os.sched_getaffinity(0))
        self.results, self.running = [], set()
        self.stopped = False
        self.lock = threading.Lock()

    def say(self, *words):
        with self.lock:
            print(*words, sep="\n", flush=True)

    def run(self, part):
        if self.stopped:
            return
        begin = time.monotonic()
        self.say(f"== {part.name}: begins")
        file = self.logs / (re.sub(r"\W+", "-", part.name) + ".log")
        with open(file, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(TOP / "tests/part.py"), str(part.limit_s), *part.command],
                cwd=TOP, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            self.running.add(process)
            status = process.wait()
            self.running.discard(process)
        result = Result(part, status, time.monotonic() - begin, file.read_text(errors="replace"), self.allowed)
        self.results.append(result)
        self.say("", f"== {part.name}", result.log.rstrip(),
                 f"== {part.name}: {result.word}, {result.seconds:.0f} s, {result.cpu_s:.0f} s of CPU time")  # fmt: skip

    def run_all(self):
        self.logs.mkdir(parents=True, exist_ok=True)
        for old in self.logs.glob("*.log"):
            old.unlink()
        # Most parts wait half of their time: two more than there are CPUs.
        for when, at_once in (("first", 1), ("beside", self.cpus + 2), ("quiet", 2), ("alone", 1)):
            # The longest first, so that none is left over at the end.
            these = sorted((p for p in self.chosen if p.when == when), key=lambda p: -p.limit_s if at_once > 1 else 0)
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                for done in [pool.submit(self.run, part) for part in these]:
                    done.result()
            if when == "first" and any(r.failed for r in self.results):
                break

    def stop(self, *_):
        """Ends what runs; part.py ends what that started."""
        self.stopped = True
        for process in list(self.running):
            process.send_signal(signal.SIGTERM)

    def report(self):
        """Says how it went; the number of parts that failed."""
        failed = [r for r in self.results if r.failed]
        not_begun = [p.name for p in self.chosen if not any(r.part is p for r in self.results)]
        slowest = [t for r in self.results for t in r.times()] + [(r.seconds, f"all of: {r.part.name}") for r in self.results]
        print(f"\n-- the slowest {SLOWEST}")
        for seconds, what in sorted(slowest, reverse=True)[:SLOWEST]:
            print(f"{seconds:8.1f} s  {what}")
        skips = [(r, line, why) for r in self.results for line, why in r.skips]
        print(f"\n-- left out: {len(skips)}")
        for result, line, why in skips:
            print(f"  {result.part.name}: {line[:WRONG_COLUMNS]} [{why or 'UNEXPECTED: parts.py gives no reason'}]")
        again = [f"{name} ({r.part.name})" for r in self.results for name in r.again]
        print(f"\n-- passed only when run again: {len(again)}")
        for name in again:
            print(f"  {name}")
        for result in failed:
            print("\n" + result.wrong())
        print()
        if not_begun:
            print(f"NOT BEGUN: {'; '.join(not_begun)}")
        if failed:
            print(f"FAILED: {'; '.join(r.part.name for r in failed)}")
        if len(again) > MOST_AGAIN:
            print(f"FAILED: {len(again)} tests passed only when run again; the machine's fault can be {MOST_AGAIN}")
        bad = len(failed) + len(not_begun) + (len(again) > MOST_AGAIN)
        if not bad:
            print(f"all {len(self.results)} parts passed")
        return bad


def show(chosen):
    for p in chosen:
        needs = " ".join(word for word, needed in (("root", p.root), ("kernel", p.kernel)) if needed)
        print(f"{p.tier:9} {p.when:7} {p.limit_s:5} s  {needs:12} {p.name}")


def main():
    words = sys.argv[1:]
    tier = words.pop(0) if words else ""
    if tier not in parts.TIERS:
        sys.exit(__doc__)
    chosen = parts.of_tier(tier)
    if words == ["--list"]:
        return show(chosen)
    if words:
        chosen = [p for p in chosen if p.when == "first" or any(word in p.name for word in words)]
    if os.geteuid() and any(p.root for p in chosen):
        sys.exit(f"make {tier} needs root; what every user can run is make check")
    # nohup means it to outlive the terminal: that is asked before all signals are as in a shell.
    ends = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    fresh_start()
    begin = time.monotonic()
    runner = Runner(chosen, parts.allowed(tier), parts.environment(tier))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, runner.stop if number in ends else signal.SIG_IGN)
    runner.run_all()
    bad = runner.report()
    cpu_s = sum(r.cpu_s for r in runner.results)
    print(f"make {tier}: {time.monotonic() - begin:.0f} s on {runner.cpus} CPUs, {cpu_s:.0f} s of CPU time")
    return 1 if bad or runner.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
