#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does a part of `make test` end in time, name what ran, and leave nothing behind?"""

import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
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
        self.assertEqual((got.returncode, got.stdout), (7, "one\ntwo\n"))
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
        got = part(30, "setsid sh -c 'echo pid=$$; exec sleep 1000.25' & sleep 0.5; exit 3")
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
        plain = part(30, script).stdout
        self.assertRegex(plain, "SigBlk:\t0+\nSigIgn:\t0+\n0022\n/dev/null\n.*\n.*\nC.UTF-8\n")

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
        self.assertEqual(part(30, script, environment, preexec_fn=odd).stdout, plain)

    def test_with_nohup_a_hang_up_ends_nothing(self):
        running = subprocess.Popen(["nohup", *PART, "100", "sh", "-c", "echo ready; sleep 1; echo done"],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        self.assertEqual(running.stdout.readline(), "ready\n")
        time.sleep(0.2)
        running.send_signal(signal.SIGHUP)
        self.assertEqual(running.communicate(timeout=ENDED_S)[0], "done\n")
        self.assertEqual(running.returncode, 0)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    from fresh_start import fresh_start

    fresh_start()
    unittest.main()
