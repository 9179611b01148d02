#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Do the pages say what the results have, and does a case clean up? What can be told without a server, a disk or rights.

    quick.py
"""

import contextlib
import importlib.util
import io
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
for module in ("matplotlib", "markdown"):
    if importlib.util.find_spec(module) is None:
        print(f"NOT RUN: {module} is missing: apt-get install python3-{module}")
        sys.exit(77)
for folder in ("", "disk", "peers", "steps", "sizes", "helpers", "most", "proxy"):
    sys.path.insert(0, str(TOP / "cases" / folder))
import designs  # noqa: E402
import figure  # noqa: E402
import helpers  # noqa: E402
import most  # noqa: E402
import page as proxy_page  # noqa: E402
import run  # noqa: E402
import sizes  # noqa: E402
import steps  # noqa: E402
from cputime import PARTS, WAIT  # noqa: E402

CDF = [[100, 0.5], [2000, 1.0]]
DEBOX = {
    "by_invocation": {"fork": [[1, 0.8], [9, 2.8]], "mmap": [[100, 0.01], [200, 0.02]]}, "mappings": 33, "asleep": {"page-in": {"sendfile": [5, 7_000_000]}},
    "sendfile": [{"total_ns": 7_000_000, "count": 5, "label": "page-in", "function": "filemap_get_pages"}],
    "call_sites": [{"call": "sendfile", "place": "answer_send (answer.c:111)", "count": 5, "wall_ns": 7_100_000, "blocked_ns": 7_000_000}],
    "calls": [{"name": "clone", "count": 4, "wall_ns": 8_000_000, "cpu_ns": 7_000_000, "blocked_ns": 0, "max_ns": 3_000_000}],
    "asleep_ns": 7_000_000, "life_ns": 10_000_000, "verdict": ["It sleeps."],
}  # fmt: skip
MEASURED = {
    "conforming_percent": 59.0, "requests_per_s": 10.0, "errors": 0, "error_kinds": {}, "waited_ms": {"mean": 1.0, "p50": 1.0, "p95": 2.0, "p99": 2.0}, "server_cpu_s": 0.1, "warm_up_s": 12.0, "is_level": True, "had_trend": False,
    "warnings": [], "memory": {"at_limit": 900, "killed": 0, "own_bytes": 9 << 20}, "cdfs": dict.fromkeys(("waited", "first_byte", "whole"), CDF), "kinds": {"static": {"p5": 0.1, "p50": 1.0, "p95": 5.0, "mean": 2.0}},
    "seconds": 30.0, "disk_reads": 60,
}  # fmt: skip
SILENT = MEASURED | {"requests_per_s": 0.0, "conforming_percent": 0.0, "errors": 753, "error_kinds": {"reset": 2, "silent": 751}, "cdfs": dict.fromkeys(("waited", "first_byte", "whole"), []), "kinds": {}}


@contextlib.contextmanager
def undrawn():
    """Figures are made, but not drawn, which takes most of their time: the file is empty."""

    def save(made, file):
        file.touch()
        figure.pyplot.close(made)

    kept, figure._save = figure._save, save
    try:
        yield
    finally:
        figure._save = kept


class Steps(unittest.TestCase):
    def results(self, **peers):
        shown = {"loop": MEASURED | {"debox": DEBOX, "is_level": False}, "maps": MEASURED | {"debox": DEBOX, "had_trend": True, "warnings": ["the throughput rose or fell"]}, designs.COPIED.name: MEASURED | {"debox": DEBOX | {"sendfile": [], "asleep": {}}}}
        return json.loads(json.dumps({"plan": steps.FULL._asdict(), "designs": shown, "peers": peers}))

    def test_tables_and_figures(self):
        results = self.results(nginx=MEASURED, apache2=MEASURED | {"errors": 1013, "error_kinds": {"closed": 1013}})
        with tempfile.TemporaryDirectory() as out, undrawn():
            steps.figures(pathlib.Path(out), results)
            self.assertEqual({file.name for file in pathlib.Path(out).glob("*.svg")}, {"conforming.svg", "fork.svg", "mmap.svg", "waited.svg", "first-byte.svg", "whole.svg"})
        text = steps.page(results)
        for line in ("| loop | static | 0.10 | 1.00 | 5.0 | 2.00 |", "| page-in / 5 |", "| sendfile / 5 (7 ms) |", "| loop | 59 % | 10 | 0 | 1.00 ms | 2 ms | 0.3% | 70% |", "| loop | 7,000 | 5 | page-in | filemap_get_pages |",
                     "| loop | sendfile | answer_send (answer.c:111) | 5 | 1,420.0 | 99% |", "| loop | clone | 4 | 2,000 | 0% | 33 |", "**exact, maps**: it slept in no call but where it waits for work.",
                     "Counted from 12 to 12 s after the start on, as soon as the throughput was level; after 60 s it was not of: loop.",
                     "| maps † | 59 % |", "\n† The throughput rose or fell while it was measured.\n", "\n- maps: the throughput rose or fell\n",
                     "| apache2 (files only) | 59 % | 10 | 1,013 |", "Errors, by kind: apache2 (files only): 1,013 closed.", "- exact, maps: as `exact`, but"):
            self.assertIn(line, text)

    def test_a_server_without_a_right_answer_is_told_with_what_is_known_and_no_more(self):
        text = steps.page(self.results(prefork=SILENT))
        self.assertIn("| prefork (files only) | 0 % | 0 | 753 | | |", text)
        self.assertIn("Not one right answer of prefork (files only); errors: 751 silent, 2 reset.\n", text)
        self.assertNotIn("MiB", text)
        for memory, said in (({"own_bytes": 62 << 20}, "62 of 64 MiB beside pages of files, at its limit 900 times, 0 processes killed"), ({"killed": 3}, "Its memory group: at its limit 900 times, 3 processes killed")):
            self.assertIn(said, steps.page(self.results(prefork=SILENT | {"memory": SILENT["memory"] | memory})))

    def test_nothing_at_all_is_a_page_too(self):
        self.assertIn("| design |", steps.page({"plan": steps.QUICK._asdict(), "designs": {}, "peers": {}}))


class Helpers(unittest.TestCase):
    def test_the_page_does_not_say_for_whom_a_page_is_waited(self):
        asleep = {"loop": {"labels": {}, "sleeps": 0, "ms": 0, "verdict": []}, "helpers": {"labels": {"page-in": [100, 900.0], "page-lock": [1, 2.0], "inode-lock": [1, 3.0]}, "sleeps": 102, "ms": 905.0, "verdict": []}}
        row = {"1": MEASURED | {"debox": asleep}, "16": MEASURED | {"debox": asleep, "had_trend": True, "is_level": False, "warnings": ["the throughput rose or fell"]}}
        text = helpers.page(steps.FULL._asdict(), {"exact": row})
        for line in ("| helpers | 1 | 16 † |", "| ... of it at page-in | 900 ms | 900 ms |", "| ... at locks of names, inodes and pages | 5 ms | 5 ms |", "after 60 s it was not of: exact, 16 helpers.", "- exact, 16 helpers: the throughput rose or fell", "1: helpers slept at page-in (100, 900 ms), inode-lock"):
            self.assertIn(line, text)
        self.assertNotIn("of it for each other |", text)


class Most(unittest.TestCase):
    def found(self, *runs, highest=400, **more):
        told = [{"connections": n, "conforming_percent": percent, "errors": 0, "stationary": True, "settled": True, "passed": percent >= 95} for n, percent in runs]
        monotone = not any(not a["passed"] and any(b["passed"] and b["connections"] >= a["connections"] for b in told) for a in told)
        return {"highest": highest, "at_upper_end": False, "monotone": monotone, "limited_by_generator": False, "steps": told, **more}

    def test_what_was_found_is_told(self):
        runs = ((200, 100.0), (400, 97.0), (800, 20.0))
        found = self.found(*runs)
        text = most.page(most.FULL, {"files": {"loop": found, "nginx": self.found(*runs[:2], (800, 99.0), highest=800, at_upper_end=True)}, "all": {"loop": self.found((200, 10.0), highest=None)}})
        for line in ("| loop | 400 | below 200 | 4 |", "| nginx | 800 or more |  | 3 |", "- loop, files only, ended at 400: 200 (100 %), 400 (97 %), 800 (20 %)", "- loop, all, ended at none: 200 (10 %)"):
            self.assertIn(line, text)
        for word in ("†", "not level", "not settled"):
            self.assertNotIn(word, text)

    def test_runs_that_contradict_each_other_are_a_range(self):
        contradicted = self.found((300, 100.0), (600, 58.0), (450, 100.0), (637, 100.0), (675, 30.0), highest=562)
        contradicted["steps"][1] |= {"errors": 1200, "stationary": False, "settled": False}
        cold = self.found((300, 61.0), (300, 100.0), highest=300)
        text = most.page(most.FULL, {"files": {"nginx": contradicted, "loop": cold}})
        for line in ("| nginx | 450 to 637 † |", "| loop | below 300 to 300 † |", "† Not monotone:", "600 (58 %, 1,200 errors, not level, not settled)", "*not level*:", "*not settled*:"):
            self.assertIn(line, text)


class Sizes(unittest.TestCase):
    def test_tables(self):
        one = {"megabits_per_s": 900.0, "requests_per_s": 100.0, "errors": 1, "asked": 1000, "generator_is_bottleneck": True, "server_cpu_us": 20.04, "warm_up_s": 17.2, "is_level": True, "times": {of: {"p5_us": 50, "p50_us": 120, "p95_us": 500, "mean_us": 480.0, "cdf": CDF} for of in ("first_byte", "whole")}}
        names = (sizes.FINAL.name, designs.COPIED.name)
        late = one | {"warm_up_s": 30.0, "is_level": False}
        result = {"plan": sizes.FULL._asdict(), "memory_mib": 64, "megabytes": [35.0, 220.0], "rate": 90, "capacity": {name: [one, one] for name in names}, "times": {sizes.FINAL.name: one, designs.COPIED.name: late}}
        text = sizes.page(result)
        for line in ("| exact, maps | 900 * | 900 * |", "| exact, maps | 20.0 | 20.0 |", "Counted from 17 to 30 s", "after 30 s it was not of: exact, maps (90/s).", "| exact, maps | 0.05 | 0.12 | 0.50 | 0.48 | 0.05 | 0.12 | 0.50 | 0.48 | 1 of 1,000 |"):
            self.assertIn(line, text)
        self.assertIn(designs.COPIED.name, sizes.SERVERS)

    def test_cpu_time_is_of_the_last_seconds(self):
        class Server:
            def cpu_s(self):
                return 0.0

        clock = sizes.CpuClock(Server())
        # Half of a CPU for ten seconds, then all of it.
        clock._samples = [(0.0, 1.0), (10.0, 6.0), (14.0, 10.0)]
        self.assertAlmostEqual(clock.last(4.0), 4.0)
        self.assertAlmostEqual(clock.last(6.0), 5.0)
        self.assertAlmostEqual(clock.last(20.0), 9.0)


class Proxy(unittest.TestCase):
    def test_the_page_has_all_figures_and_says_what_the_numbers_do(self):
        parts = dict.fromkeys(PARTS, 10)

        def profile(way, idle, rate, hot, polled):
            functions = {"sock_poll (kernel, wait)": polled, "tcp_poll (kernel, wait)": 5, "? (haproxy)": 7}
            told = {"samples": 60, "parts": parts | {WAIT: 10}, "functions": functions, "descriptors": 1}
            return {"way": way, "name": f"haproxy, {way}, {idle} idle", "idle": idle, "hot": hot, "rate": rate, "seconds": 2.0, "requests": 1000, "debox": told, "perf": told, "wait_measured": 17.0}

        three = (10.0, 9.0, 11.0)
        measured = {"per_second": three, "cpu_us": three, "cpu_percent": three, "p50_us": three, "p99_us": three, "requests": 10, "failed": 0}
        ways = dict.fromkeys(proxy_page.NAMES, measured)
        breakdown = [profile(way, 4800, 400, 50, polled) for way, polled in zip(proxy_page.NAMES, (30, 20, 10), strict=True)]
        samples = [{"hour": float(n), "asked": 3, "idle": 10 * n, "per_second": 10.0 + n, "cpu_percent": 5.0 + 2 * n, "kernel_percent": 3.0 + n, "done_s": [0.1, 0.2], "due_s": [0.1, 0.15]} for n in range(12)]
        answers = {"requests": 36, "late_us": 900, "mean_us": 400.0, "p50_us": 300, "p90_us": 400, "p99_us": 500, "p999_us": 600, "most_us": 700, "cdf": CDF}
        result = {
            "limits": {"descriptors": 20000, "idle_most": 9850, "select": 1024}, "kernel": "6.18", "quick": True, "requests": 36, "failed": 0, "cross_check_missing": None,
            "plan": {"samples": 12, "sample_s": 0.3, "most_rate": 400},
            "against_idle": {"haproxy": [{"idle": idle, "ways": ways} for idle in (0, 2000)]},
            "against_rate": {name: {"idle": 2000, "size": 1259, "lines": {way: [{"asked": rate, "saturated": rate == 2000, **measured} for rate in (250, 2000)] for way in proxy_page.NAMES}} for name in proxy_page.RATES},
            "figure1": breakdown[:1], "figure7": breakdown, "breakdown": breakdown, "select_breakdown": breakdown[:1],
            "day": {program: dict.fromkeys(proxy_page.NAMES, samples) for program in proxy_page.DAYS}, "day_answers": {program: dict.fromkeys(proxy_page.NAMES, answers) for program in proxy_page.DAYS},
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as directory, undrawn():
            out = pathlib.Path(directory)
            proxy_page.write(out, json.loads(json.dumps(result)))
            self.assertEqual({file.name for file in out.glob("*.svg")}, {*proxy_page.PAPER, "day-cpu.svg", "day-answers.svg"})
            text = (out / "proxy.md").read_text()
        for words in ("of its CPU time poll 70.0 %, poll, library 50.0 %, epoll 30.0 % are in the functions shown", "(sock_poll first)", "A request counts from when it was due.", "0 of 24 lie beyond that", "36 requests, 0 wrong, late, or cut off"):
            self.assertIn(words, text)


class Runner(unittest.TestCase):
    def test_what_failed_is_on_the_page(self):
        with tempfile.TemporaryDirectory() as directory:
            out = pathlib.Path(directory)
            (out / "rcu").mkdir()
            (out / "rcu/rcu.md").write_text("| a |\n|---|\n| <b> |\n")
            run.page(out, {"rcu": 3.0}, {"disk": "no <loop> device", "steps": "there was no slow disk", "small": ""})
            for name, escaped in (("index.md", "no <loop> device"), ("index.html", "no &lt;loop&gt; device")):
                text = (out / name).read_text()
                for words in (f"It failed: {escaped}", "It failed: there was no slow disk. Nothing of it is here.", "It failed. Nothing of it is here.", "Took 3 s" if name == "index.md" else "<td>&lt;b&gt;</td>"):
                    self.assertIn(words, text)

    def test_a_disk_that_does_not_come_up_leaves_what_was_done(self):
        done = {}

        def by_itself(program, words, environment):
            done[program.stem] = "DEBOX_CASE_DISK" in environment
            return 0

        def no_disk(*_):
            raise steps.slow_disk.DiskError("no loop device")

        import watch

        chosen = [case for case in run.ALL if case.folder in ("rare", "steps", "small")]
        with tempfile.TemporaryDirectory() as out, contextlib.ExitStack() as stack:
            for of, name, instead in ((run, "by_itself", by_itself), (steps, "with_files", no_disk), (watch, "broker", lambda: contextlib.nullcontext(pathlib.Path(out)))):
                stack.callback(setattr, of, name, getattr(of, name))
                setattr(of, name, instead)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                took, failed = run.cases(pathlib.Path(out), chosen, False)
        self.assertEqual(done, {"rare": False, "small": False})
        self.assertEqual((set(took), failed), ({"rare", "small"}, {"disk": "no loop device", "steps": "there was no slow disk"}))

    def test_where_cores_go(self):
        self.assertEqual([run.leaves_cores(pattern) for pattern in ("core", "core.%p", "|/usr/share/apport/apport %p", "/var/crash/core", "%e.core")], [True, True, False, False, False])

    def ended(self, code, number, *words):
        """A program of its own, which says so when it is to be ended by a signal."""
        with subprocess.Popen([sys.executable, "-c", code, str(TOP / "cases"), *words], stdout=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)) as process:
            self.assertEqual(process.stdout.readline(), "begun\n")
            process.send_signal(number)
            return process.wait(10)

    def test_a_case_that_is_interrupted_cleans_up_before_its_runner_ends(self):
        with tempfile.TemporaryDirectory() as directory:
            program, cleaned = pathlib.Path(directory, "case.py"), pathlib.Path(directory, "cleaned")
            program.write_text(f"import time\ntry:\n    print('begun', flush=True)\n    time.sleep(60)\nfinally:\n    time.sleep(0.2)\n    open({str(cleaned)!r}, 'a').write('x')\n")
            code = "import pathlib, sys; sys.path.insert(0, sys.argv[1]); sys.stderr = open('/dev/null', 'w'); import run; run.by_itself(pathlib.Path(sys.argv[2]), [], {})"
            self.assertNotEqual(self.ended(code, signal.SIGINT, str(program)), 0)
            self.assertEqual(cleaned.read_text(), "x")

    def test_a_folder_goes_with_who_made_it(self):
        code = "import pathlib, sys, time; sys.path.insert(0, sys.argv[1]); import case\nwith case.passing(pathlib.Path(sys.argv[2])) as _:\n    pathlib.Path(sys.argv[2], 'file').touch(); print('begun', flush=True); time.sleep(60)"
        for number in (signal.SIGKILL, signal.SIGINT):
            with tempfile.TemporaryDirectory() as directory:
                folder = pathlib.Path(directory, "made")
                with contextlib.redirect_stderr(io.StringIO()):
                    self.ended("import sys; sys.stderr = open('/dev/null', 'w')\n" + code, number, str(folder))
                end = time.monotonic() + 5
                while folder.exists() and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertFalse(folder.exists(), number)


if __name__ == "__main__":
    unittest.main()
