#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does the case of the proxy measure what it says: right answers only, every sample in one part,
a load that is what was asked for, and nothing left behind?

Without rights, haproxy, lighttpd or webfs the parts that need them are named as not run, with
what is missing.
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "cases"), str(TOP / "cases/peers"), str(TOP / "cases/proxy")]
import cputime  # noqa: E402
import day  # noqa: E402
import peers  # noqa: E402
import proxy  # noqa: E402
import variants  # noqa: E402
from cputime import KERNEL, LIBRARY, PARTS, PROGRAM, WAIT, WALK, WATCHING  # noqa: E402
from variants import LIBRARY as WITH_LIBRARY  # noqa: E402
from variants import POLL, SIZES, WAYS, Load, started  # noqa: E402

# As small as the case can be.
IDLE = 1500
SMALL = proxy.Plan((0, IDLE), 0.1, 1, (), 0, (), False, 0.5, (), (), (), (), (), 0, 0, 0)
INSTALL = variants.missing()


def replay(port: int, samples: list[day.Sample], seconds: float) -> dict:
    """Through its own clients, by itself."""
    with tempfile.TemporaryDirectory(prefix="debox-day-") as directory:
        [played], seen = day.play(pathlib.Path(directory), [port], SIZES[0], samples, seconds, lambda _: time.monotonic(), lambda _: None)
        assert not os.listdir(directory)
    for before, after in seen[0]:
        assert abs(after - before - seconds - day.REST_S) < 0.05, (before, after)
    return played


class Answers:
    """A server that does one thing with each request."""

    def __init__(self, answer: bytes, delay_s: float = 0) -> None:
        self.answer, self.delay_s = answer, delay_s
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        try:
            while True:
                client, _ = self.listener.accept()
                client.recv(4096)
                time.sleep(self.delay_s)
                if self.answer:
                    client.sendall(self.answer)
                client.close()
        except OSError:
            pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def page(size: int, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} OK\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size


class Day(unittest.TestCase):
    def test_it_is_the_same_each_time_and_has_the_rate_of_its_curve(self):
        made = day.day(96, 5.0, 400, 4800)
        self.assertEqual(made, day.day(96, 5.0, 400, 4800))
        self.assertNotEqual(made, day.day(96, 5.0, 400, 4800, seed=2))
        asked = sum(sample.asked() for sample in made)
        wanted = sum(5.0 * sample.rate for sample in made)
        self.assertAlmostEqual(asked / wanted, 1, delta=0.05)
        night, noon = (sum(s.asked() for s in made if a <= s.hour < b) for a, b in ((1, 5), (9, 13)))
        self.assertGreater(noon, 5 * night)
        self.assertTrue(all(0 <= begin < end <= 5.0 for sample in made for begin, end in sample.bursts))
        # Bursts: the variance of what comes in 100 ms is far above that of single arrivals.
        busy = [sum(max(0, min(end, (n + 1) / 10) - max(begin, n / 10)) for begin, end in s.bursts) / day.BURST_APART_S for s in made if 9 <= s.hour < 16 for n in range(50)]
        mean = sum(busy) / len(busy)
        self.assertGreater(sum((n - mean) ** 2 for n in busy) / len(busy), 2 * mean)

    def test_the_file_of_rates_is_the_day_in_turns(self):
        made = day.day(6, 0.5, 300, 1000)
        taken: list[tuple[float, float]] = []
        for proxy in range(3):
            points = [[float(word) for word in line.split()] for line in day.rates(made, proxy, 3, 0.5).splitlines()]
            self.assertEqual([point[0] for point in points], sorted(point[0] for point in points))
            pieces = [(at, until, rate) for (at, rate, *_), (until, *_) in zip(points, points[1:], strict=False)]
            for number, sample in enumerate(made):
                begin = day.slot(number, proxy, 3, 0.5)
                asked = sum(rate * (min(until, begin + 0.5) - max(at, begin)) for at, until, rate in pieces if begin <= at < begin + 0.5)
                self.assertAlmostEqual(asked, sample.asked(), delta=0.01 + 0.001 * sample.asked())
                idle = [point[2] for point in points if len(point) == 3 and abs(point[0] - begin - 0.5) < 1e-5]
                self.assertEqual(idle, [sample.idle])
                taken.append((begin, begin + 0.5))
            self.assertEqual(sum(rate * (until - at) > 0.01 for at, until, rate in pieces if not any(begin <= at < end for begin, end in taken)), 1)  # before the first
        taken.sort()
        self.assertTrue(all(end <= begin for (_, end), (begin, _) in zip(taken, taken[1:], strict=False)))

    def test_a_request_is_timed_from_when_it_was_due(self):
        """A server that takes 50 ms for each, one after the other: of four in 8 ms the last has waited for three."""
        server = Answers(page(SIZES[0]), 0.05)
        try:
            played = replay(server.port, [day.Sample(0, 0, [(0.01, 0.03)], 0)], 0.1)
        finally:
            server.close()
        due, done = (day.within(played, what, 0, 9) for what in ("asked", "answered"))
        self.assertGreater(len(due), 8)
        self.assertEqual((len(done), played["errors"]), (len(due), {}))
        self.assertGreaterEqual(done[-1] - due[-1], 0.05 * sum(at > day.LEAD_S for at in due) - 0.04)
        self.assertGreaterEqual(played["groups"]["all"]["whole"]["most_us"], 1e6 * (done[-1] - due[-1]) - 2000)

    def test_wrong_and_missing_answers_are_counted(self):
        asked = [day.Sample(0, 0, [(0.0, 0.02)], 0)]
        for answer, counted in ((page(SIZES[0] - 1), "length"), (page(SIZES[0], 503), "status"), (page(SIZES[0])[:-5], "closed"), (b"", "closed")):
            server = Answers(answer)
            try:
                played = replay(server.port, asked, 0.05)
            finally:
                server.close()
            self.assertEqual((set(played["errors"]), played["requests"]), ({counted}, 0), answer[:40])
            self.assertEqual(played["errors"][counted], len(day.within(played, "asked", 0, 9)))


class Parts(unittest.TestCase):
    def test_each_sample_is_in_the_part_that_its_stack_says(self):
        """A made-up report: what ran, its callers, and where that belongs."""
        functions: list[dict] = []
        frames: list[dict] = []

        def stack(*names: str) -> int:
            """Outermost first; "function@module", the kernel's without a module."""
            at = None
            for name in names:
                function, _, module = name.partition("@")
                told = {"name": function if function != "?" else None, "module": module or None}
                if told not in functions:
                    functions.append(told)
                frame = {"function": functions.index(told), "caller": at}
                if frame not in frames:
                    frames.append(frame)
                at = frames.index(frame)
            return at

        program = ("main@p", "run@p")
        rows = [
            (5, "call", "poll", (*program, "?@p", "poll@libc", "do_sys_poll"), WAIT),
            (7, "user", None, (*program, "?@p"), WALK),
            (11, "user", None, (*program, "?@p", "?@p"), PROGRAM),  # what it calls is not the walk
            (13, "user", None, (*program, "handle@p"), PROGRAM),
            (17, "interrupt", "poll", (*program, "?@p", "poll@libc", "do_sys_poll", "handle_softirqs"), KERNEL),
            (19, "call", "sendto", (*program, "handle@p", "send@libc", "tcp_sendmsg"), KERNEL),
            (23, "user", None, (*program, "?@p", "serve@libdebox-select.so"), LIBRARY),
            (29, "user", None, (*program, "?@p", "serve@libdebox-select.so", "memcmp@libc"), LIBRARY),
            (31, "call", "sendto", (*program, "handle@p", "send@libc", "bpf_trace_run2", "bpf_prog_x"), WATCHING),
            (37, "call", "epoll_ctl", (*program, "?@p", "serve@libdebox-select.so", "ep_insert"), WAIT),
            (41, "kernel", None, (), KERNEL),
        ]
        told = {
            "on_cpu": {
                "rows": [{"samples": n, "kind": kind, "call": call, "frame": stack(*names)} for n, kind, call, names, _ in rows],
                "functions": functions,
                "frames": frames,
            }
        }
        profile = cputime.of_debox(told, "p")
        wanted = dict.fromkeys(PARTS, 0)
        for count, *_, part in rows:
            wanted[part] += count
        self.assertEqual(profile.parts, wanted)
        self.assertEqual(profile.samples, sum(row[0] for row in rows))

    def test_the_table_of_functions_is_that_of_readelf(self):
        """Of this Python: each symbol of a function that has unwind information begins one."""
        symbols = subprocess.run(["readelf", "-W", "--debug-dump=frames", sys.executable], capture_output=True, text=True, timeout=20)
        self.assertEqual(symbols.returncode, 0, symbols.stderr)
        told = {int(word[3:].split("..")[0], 16) for line in symbols.stdout.splitlines() if " FDE " in line for word in line.split() if word.startswith("pc=")}
        segments = [line.split() for line in subprocess.run(["readelf", "-lW", sys.executable], capture_output=True, text=True, check=True).stdout.splitlines()]
        loads = [[int(word, 16) for word in words[1:5]] for words in segments if words[:1] == ["LOAD"]]
        places = {start - address + offset for start in told for offset, address, _, size in loads if address <= start < address + size}
        self.assertEqual(places, set(cputime.function_starts(pathlib.Path(sys.executable).resolve())))


@unittest.skipIf(INSTALL, f"NOT RUN: install {' '.join(INSTALL)}")
class Proxies(unittest.TestCase):
    def test_each_proxy_passes_the_pages_on_in_each_way_of_waiting(self):
        with started(variants.origin(), 1) as origin:
            makers = [
                lambda way: variants.haproxy(way, origin.port, 200),
                lambda way: variants.haproxy(way, origin.port, 200, True),
                lambda way: variants.lighttpd(way, 200, origin.port),
                lambda way: variants.lighttpd(way, 200),
            ]
            for number, make in enumerate(makers):
                for way in WAYS:
                    with self.subTest(number=number, way=way.name), started(make(way), 0) as server:
                        # The library serves sets of 64 and more.
                        with Load(server.port, 100, 5, size=SIZES[1]) as load:
                            outcome = load.run(0.2)
                            waits = pathlib.Path(f"/proc/{server.pid}/maps").read_text().count("libdebox-select")
                        self.assertEqual((outcome.wrong, outcome.stalled, outcome.dropped), (0, 0, 0))
                        self.assertGreater(outcome.requests, 0)
                        self.assertEqual(waits > 0, way.library)

    def test_a_replayed_day_asks_what_it_says_and_keeps_its_idle_connections(self):
        samples = day.day(4, 0.2, 150, 300)
        with started(variants.origin(), 1) as origin, started(variants.haproxy(WITH_LIBRARY, origin.port, 800), 0) as server:
            played = replay(server.port, samples, 0.2)
        asked = [len(day.within(played, "asked", at, at + 0.2)) for at in (day.slot(n, 0, 1, 0.2) for n in range(4))]
        self.assertEqual((played["requests"], played["errors"], played["idle_closed"]), (len(day.within(played, "asked", 0, 9)), {}, 0))
        self.assertEqual(played["idle"], max(sample.idle for sample in samples))
        for sample, came in zip(samples, asked, strict=True):
            self.assertLess(abs(came - sample.asked()), 5 + 5 * sample.asked() ** 0.5)

    @unittest.skipIf(os.geteuid(), "NOT RUN: profiles want root")
    def test_a_small_case(self):
        with tempfile.TemporaryDirectory(prefix="debox-proxy-") as directory, started(variants.origin(), 1) as origin:
            case = proxy.Case(pathlib.Path(directory), SMALL, origin.port)
            case.against_idle("haproxy", case.haproxy, WAYS, case.idles, True)
            without = cputime.perf_missing()
            if without:
                print(f"NOT RUN: the cross-check, {without}")
            told = case.profile("small", case.haproxy(POLL, IDLE), "haproxy", IDLE, 10, 400, not without)
            self.assertEqual(case.failed, 0)
            self.assertGreater(case.requests, 100)
            for who in ("debox", "perf"):
                if who in told:
                    profile = cputime.Profile(**told[who])
                    self.assertAlmostEqual(sum(profile.percent(part) for part in PARTS), 100)
                    self.assertGreater(profile.samples, 20, who)
                    self.assertGreater(profile.percent(WAIT), 30, who)
                    self.assertEqual(profile.parts[LIBRARY], 0, who)
            rows = case.result["against_idle"]["haproxy"]
            cpu = {row["idle"]: {way: m["cpu_us"][0] for way, m in row["ways"].items()} for row in rows}
            self.assertGreater(cpu[IDLE]["poll"], cpu[0]["poll"])
        left = [process for process in peers.below(os.getpid()) if process.command != "ps"]
        self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
