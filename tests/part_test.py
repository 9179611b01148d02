#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does a part of `make test` end in time, name what ran, and leave nothing behind?
And does the runner of all parts see what failed, what was left out, and what is alone?"""

import contextlib
import io
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import parts  # noqa: E402
import run  # noqa: E402
import rust  # noqa: E402
from fresh_start import fresh_start  # noqa: E402

# By this interpreter: `python3` may be a shell script of a version manager, which
# complains of the locale that a test sets.
PART = (sys.executable, str(HERE / "part.py"))
ENDED_S = 60


def alive(pid):
    try:
        return pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def part(limit, script, environment=None, **options):
    return subprocess.run(
        [*PART, str(limit), "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=ENDED_S, env={**os.environ, "DEBOX_TEST_TIME": "1", **(environment or {})}, **options,
    )  # fmt: skip


class Parts(unittest.TestCase):
    def assert_gone(self, output):
        pids = [int(p) for p in re.findall(r"pid=(\d+)", output)]
        self.assertTrue(pids, output)
        self.assertFalse([p for p in pids if alive(p)], output)

    def test_status_and_output_pass(self):
        got = part(30, "echo one; echo two >&2; exit 7")
        self.assertEqual(got.returncode, 7)
        self.assertRegex(got.stdout, "^one\ntwo\npart: [0-9.]+ s of CPU time\n$")
        self.assertEqual(part(30, "kill -9 $$").returncode, 128 + 9)

    def test_what_runs_out_of_time_is_named_and_ended(self):
        # A daemon in a session of its own that ignores what it can.
        got = part(2, """setsid sh -c 'trap "" TERM INT HUP; echo pid=$$; while :; do sleep 1; done' &
                         echo pid=$$; echo the last line; exec sleep 1000.5""")
        self.assertEqual(got.returncode, 124)
        for wanted in ("RAN OUT OF TIME: not done after 2 s", "| the last line", "sleep 1000.5"):
            self.assertIn(wanted, got.stdout)
        self.assert_gone(got.stdout)

    def test_what_is_left_behind_is_named_and_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            # The part ends when the daemon is what it is to be named as.
            begun = pathlib.Path(folder, "begun")
            got = part(30, f"""setsid sh -c 'echo pid=$$; echo $$ > {begun}; exec sleep 1000.25' &
                               until [ "$(cat /proc/$(cat {begun})/comm)" = sleep ] 2> /dev/null; do sleep 0.01; done
                               exit 3""")
        self.assertEqual(got.returncode, 3)
        self.assertIn("left behind", got.stdout)
        self.assertIn("sleep 1000.25", got.stdout)
        self.assert_gone(got.stdout)

    def test_interrupted_it_ends_all(self):
        running = subprocess.Popen([*PART, "100", "sh", "-c", "echo pid=$$; exec sleep 1000"], stdout=subprocess.PIPE)
        line = running.stdout.readline().decode()
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(ENDED_S), 128 + signal.SIGTERM)
        running.stdout.close()
        self.assert_gone(line)

    def test_whoever_starts_it_leaves_nothing_to_it(self):
        script = ("grep -E 'Sig(Blk|Ign)' /proc/self/status; umask; readlink /proc/self/fd/0;"
                  "ulimit -c; ulimit -n; echo $DEBOX_SOCKET $LC_ALL")  # fmt: skip
        def told(*arguments, **options):
            return part(30, script, *arguments, **options).stdout.rpartition("part: ")[0]

        plain = told()
        # What make starts ignores the two signals that libc keeps for itself, 32 and 33.
        self.assertRegex(plain, "SigBlk:\t0+\nSigIgn:\t0{7}[01][08]0{7}\n0022\n/dev/null\n.*\n.*\nC.UTF-8\n")

        def odd():
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM})
            os.umask(0o077)
            os.close(0)
            for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
                _, most = resource.getrlimit(limit)
                resource.setrlimit(limit, (20 if most == resource.RLIM_INFINITY else min(20, most), most))

        environment = {"DEBOX_SOCKET": "/elsewhere", "LC_ALL": "de_DE"}
        self.assertEqual(told(environment, preexec_fn=odd), plain)

    def test_with_nohup_a_hang_up_ends_nothing(self):
        running = subprocess.Popen(["nohup", *PART, "100", "sh", "-c", "echo ready; sleep 1; echo done"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        self.assertEqual(running.stdout.readline(), "ready\n")
        time.sleep(0.2)
        running.send_signal(signal.SIGHUP)
        self.assertRegex(running.communicate(timeout=ENDED_S)[0], "^done\n")
        self.assertEqual(running.returncode, 0)


class Runs(unittest.TestCase):
    def ran(self, *scripts, allowed=()):
        """The runner after these parts: (when, script), each named after its place."""
        with tempfile.TemporaryDirectory() as logs:
            these = [parts.Part(f"part {n}", "check", 30, ("sh", "-c", script), when) for n, (when, script) in enumerate(scripts)]
            runner = run.Runner(these, allowed, {}, pathlib.Path(logs), cpus=2)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                runner.run_all()
                runner.bad = runner.report()
            runner.said = said.getvalue()
            return runner

    def test_what_fails_has_failed_and_is_said_again(self):
        runner = self.ran(("beside", "echo fine"), ("beside", "echo 'this panicked here'; exit 3"))
        self.assertEqual(runner.bad, 1)
        self.assertIn("-- part 1\n1:this panicked here", runner.said)
        self.assertIn("\nFAILED: part 1\n", runner.said)
        self.assertEqual(self.ran(("alone", "true")).bad, 0)

    def test_what_is_left_out_is_counted_and_fails_when_nobody_knows_why(self):
        scripts = ("beside", "echo 'NOT RUN: no such tool'"), ("beside", "echo no such machine; exit 77")
        runner = self.ran(*scripts)
        self.assertEqual(runner.bad, 2)
        self.assertIn("-- left out: 2\n", runner.said)
        self.assertIn("unexpected: NOT RUN: no such tool", runner.said)
        runner = self.ran(*scripts, allowed=[("no such (tool|machine)", "it is not here")])
        self.assertEqual(runner.bad, 0)
        self.assertIn("[it is not here]", runner.said)

    def test_what_passed_only_when_run_again_is_said_and_can_be_too_much(self):
        runner = self.ran(("beside", "echo '-- passed only when run again alone: a, b'"))
        self.assertEqual(runner.bad, 0)
        self.assertIn("-- passed only when run again: 2\n  a (part 0)\n  b (part 0)\n", runner.said)
        runner = self.ran(*[("beside", "echo '-- passed only when run again alone: a, b'")] * 3)
        self.assertEqual(runner.bad, 1)
        self.assertIn("FAILED: 6 tests passed only when run again", runner.said)

    def test_at_most_two_tests_are_run_again(self):
        with tempfile.TemporaryDirectory() as d:
            # Fails as often as its argument's file has lines left.
            file = pathlib.Path(d, "tests")
            file.write_text(
                "#!/bin/sh\n"
                f'for name in ${{6:-one two three}}; do if [ -s {d}/$name ]; then sed -i 1d {d}/$name; echo "test $name ... FAILED <0.1s>"; bad=1; fi; done\n'
                "exit ${bad:-0}\n"
            )
            file.chmod(0o755)
            every = {"group": (d, str(file))}
            for times, passes in (({"one": 1}, True), ({"one": 2}, False), ({"one": 1, "two": 1}, True), (dict(one=1, two=1, three=1), False)):
                for name in ("one", "two", "three"):
                    pathlib.Path(d, name).write_text("x\n" * times.get(name, 0))
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    status, failed = rust.run("group", *every["group"], [])
                    self.assertTrue(status)
                    self.assertEqual(failed, list(times))
                    self.assertEqual(rust.once_more({"group": failed}, every), passes, said.getvalue())
                self.assertEqual(f"-- passed only when run again alone: {', '.join(times)}\n" in said.getvalue(), passes)
            self.assertFalse(rust.once_more({"debox-broker::trust": ["one"]}, {"debox-broker::trust": (d, str(file))}))

    def test_some_run_beside_each_other_and_some_alone(self):
        wait = "touch {0}; for i in $(seq 100); do [ ! -e {1} ] || exit 0; sleep 0.1; done; exit 1"
        with tempfile.TemporaryDirectory() as d:
            one, other, here = f"{d}/one", f"{d}/other", f"{d}/here"
            alone = f"[ ! -e {here} ] && touch {here} && sleep 0.3 && rm {here}"
            runner = self.ran(("alone", alone), ("alone", alone), ("beside", wait.format(one, other)), ("beside", wait.format(other, one)))
            self.assertEqual(runner.bad, 0, runner.said)

    def test_without_what_others_need_nothing_begins(self):
        runner = self.ran(("beside", "true"), ("first", "false"))
        self.assertEqual(runner.bad, 2)
        self.assertIn("NOT BEGUN: part 0", runner.said)

    def test_the_list(self):
        names = [p.name for p in parts.PARTS]
        self.assertEqual(len(names), len(set(names)))
        for p in parts.PARTS:
            self.assertIn(p.tier, parts.TIERS)
            self.assertIn(p.when, ("first", "beside", "quiet", "alone"))
            self.assertFalse(p.tier == "check" and (p.root or p.kernel), p)
            self.assertTrue(not p.within or p.within in names, p)
            for word in p.command:
                self.assertTrue("/" not in word or (HERE.parent / word).exists(), p)

    def test_groups_are_named_as_rust_py_knows_them(self):
        for p in parts.PARTS:
            if "tests/rust.py" in p.command:
                words = p.command[p.command.index("tests/rust.py") + 1 :]
                words = words[: words.index("--")] if "--" in words else words
                for word in (word for word in words if not word.startswith("--")):
                    self.assertRegex(word, r"^[a-z-]+(::([a-z_]+|\*))?$", p.name)

    def test_no_part_is_in_no_tier(self):
        everything = parts.of_tier("test-all")
        for p in parts.PARTS:
            self.assertTrue(p in everything or p.within in [other.name for other in everything], p)


if __name__ == "__main__":
    fresh_start()
    unittest.main()
