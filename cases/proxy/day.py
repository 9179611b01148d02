# SPDX-License-Identifier: MIT OR Apache-2.0
"""How does a proxy's day go by in minutes?

`day()` makes it: 96 quarter hours, as the paper's samples. Time is compressed, rates are not: a
quarter hour of 17 requests a second becomes half a second of 17 requests a second. The rate
follows the hours; within a sample requests come in bursts whose sizes have a heavy tail, as
browsers send them. Idle connections follow the rate, a step behind, and some come and go.
The same seed gives the same day.

`play()` lets proxies go through it side by side, each with clients of its own (`load run
--rates`). They have one clock, and of each sample each proxy has a slot for itself: meanwhile
nobody asks the others. A request is a connection of its own, as HTTP/1.0's. It is sent when it
is due whatever the proxy does (an open loop), and its time counts from when it was due, so that
a proxy that stands still is not asked less.
"""

import contextlib
import json
import math
import pathlib
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import case
from watch import TOP

LOAD = TOP / "target/release/load"
HOURS = 24
# Pareto: a mean of 3 requests a burst, and now and then a hundred; 2 ms apart on average.
BURST_ALPHA, BURST_MOST, BURST_APART_S = 1.5, 100, 0.002
COME_AND_GO = 0.05  # of the idle connections, each sample
# Before the first sample: a few requests, for the night's cache.
LEAD_S, LEAD_RATE = 0.5, 40
# Behind each sample: what was asked at its end is answered in it.
REST_S = 0.1
# For all idle connections to be open.
OPEN_S = 2.0


class Sample(NamedTuple):
    hour: float
    rate: float  # that the day's curve has
    bursts: list[tuple[float, float]]  # from when to when in the sample, each at one rate
    idle: int

    def asked(self) -> float:
        """On average."""
        return sum(to - begin for begin, to in self.bursts) / BURST_APART_S


def curve(hour: float) -> float:
    """The part of the day's highest rate: quiet nights, a steep morning, a dip at noon, an evening."""
    bump = lambda at, width: math.exp(-(((hour - at) / width) ** 2))  # noqa: E731
    return min(1.0, 0.08 + 0.92 * bump(10.5, 2.2) + 0.85 * bump(15, 2.4) + 0.25 * bump(20, 2.5))


def day(samples: int, sample_s: float, most_rate: float, most_idle: int, seed: int = 1) -> list[Sample]:
    draw = random.Random(seed)
    mean_burst = sum(min(BURST_MOST, int(draw.paretovariate(BURST_ALPHA))) for _ in range(100_000)) / 100_000
    made: list[Sample] = []
    before = curve(0)
    for number in range(samples):
        hour = HOURS * number / samples
        rate = most_rate * curve(hour)
        bursts = []
        at = 0.0
        while (at := at + draw.expovariate(rate / mean_burst)) < sample_s:
            requests = min(BURST_MOST, int(draw.paretovariate(BURST_ALPHA)))
            bursts.append((at, min(sample_s, at + requests * BURST_APART_S)))
        made.append(Sample(hour, rate, bursts, round(most_idle * before)))
        before = curve(hour)
    return made


def slot(sample: int, proxy: int, proxies: int, sample_s: float) -> float:
    """When a proxy's turn begins: in each sample another one is the first."""
    return LEAD_S + (sample * proxies + (proxy - sample) % proxies) * (sample_s + REST_S)


def rates(samples: Sequence[Sample], proxy: int, proxies: int, sample_s: float) -> str:
    """One proxy's day as a file for `load run --rates`."""
    lines = [f"0 {LEAD_RATE} {samples[0].idle}", f"{LEAD_S / 2} 0"]
    idle = samples[0].idle
    for number, sample in enumerate(samples):
        begin = slot(number, proxy, proxies, sample_s)
        # Bursts may overlap: then their rates add up.
        changes = sorted([(at, 1) for at, _ in sample.bursts] + [(to, -1) for _, to in sample.bursts])
        lines.append(f"{begin:.6f} 0 {idle}")
        # Some go; as many and what the hour brings come.
        points = [(sample_s / 2, f" {idle - round(COME_AND_GO * min(idle, sample.idle))}"), (sample_s, f" {sample.idle}")]
        at_once = 0
        for at, step in changes:
            while points and points[0][0] <= at:
                passed, count = points.pop(0)
                lines.append(f"{begin + passed:.6f} {at_once / BURST_APART_S:.1f}{count}")
            at_once += step
            lines.append(f"{begin + at:.6f} {at_once / BURST_APART_S:.1f}")
        lines += [f"{begin + passed:.6f} 0{count}" for passed, count in points]
        idle = sample.idle
    lines.append(f"{LEAD_S + len(samples) * proxies * (sample_s + REST_S):.6f} 0 {idle}")
    return "\n".join(lines) + "\n"


def play(out: pathlib.Path, ports: Sequence[int], bytes_of_page: int, samples: Sequence[Sample], sample_s: float, used: Callable[[int], Any], prepare: Callable[[int], None]) -> tuple[list[dict[str, Any]], list[list[tuple[Any, Any]]]]:
    """What came of each proxy's clients (`load`'s JSON), and what `used` said of a proxy as its
    turn in each sample began and ended. `prepare` gets the clients' processes."""
    begin = time.monotonic() + OPEN_S
    files = [out / f"day-{proxy}" for proxy in range(len(ports))]
    with contextlib.ExitStack() as stack:
        clients = []
        for proxy, port in enumerate(ports):
            file = files[proxy]
            file.with_suffix(".rates").write_text(rates(samples, proxy, len(ports), sample_s))
            stack.callback(lambda file=file: [file.with_suffix(end).unlink(missing_ok=True) for end in (".rates", ".json")])
            words = ["--server", f"127.0.0.1:{port}", "--page", f"/{bytes_of_page}", "--page-bytes", str(bytes_of_page), "--directories", "1", "--kbit", "0"]
            words += ["--connections", "500", "--new-connection-every", "1", "--silence", "5", "--rates", str(file.with_suffix(".rates")), "--begin-at", f"{begin:.3f}"]
            client = subprocess.Popen([*case.DIES_TOO, str(LOAD), "run", *words, "--json", str(file.with_suffix(".json"))], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            stack.callback(lambda client=client: (client.kill(), client.wait()))
            prepare(client.pid)
            clients.append(client)
        seen: list[list[tuple[Any, Any]]] = [[] for _ in ports]
        for number in range(len(samples)):
            for place in range(len(ports)):
                proxy = (place + number) % len(ports)
                at = begin + slot(number, proxy, len(ports), sample_s)
                time.sleep(max(0.0, at - time.monotonic()))
                before = used(proxy)
                time.sleep(max(0.0, at + sample_s + REST_S - time.monotonic()))
                seen[proxy].append((before, used(proxy)))
        for client in clients:
            if client.wait(timeout=60) > 1:
                raise RuntimeError(f"{LOAD} ended with {client.returncode}; its own words are above")
        played = [json.loads(file.with_suffix(".json").read_text()) for file in files]
    return played, seen


def within(played: dict[str, Any], what: str, from_s: float, to_s: float) -> list[float]:
    """When requests were `asked` or `answered` in a part of the day, since its begin."""
    step_s, counts = played["timeline"]["step_s"], played["timeline"][what]
    first, last = round(from_s / step_s), round(to_s / step_s)
    return [(n - first) * step_s for n, count in enumerate(counts[first:last], first) for _ in range(count)]
