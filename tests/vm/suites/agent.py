# SPDX-License-Identifier: MIT OR Apache-2.0
"""The agent, when the clock of the day is set, and when the machine sleeps

What is measured goes by a clock that nobody sets and that stands while the machine sleeps,
and names of recordings by the one of the day: that one is set back and forward here, and the
machine put to sleep, which no other one can be asked for.
"""

import http.client
import pathlib
import re
import shutil
import socket

from guest import *  # noqa: F403

PROGRAMS = ["release/debox", "release/deboxd", "release/debox-agent"]

FLIGHT = pathlib.Path("/var/tmp/flight")
SOCKET = "/run/figures.sock"
CONFIG = f"""[[policy]]
name = "all"
period = "2s"
[flight]
directory = "{FLIGHT}"
keep = "10m"
[metrics]
listen = "{SOCKET}"
"""
# An hour back, two days on, back to a time before the first, and where it was.
STEPS_S = (-3600, 2 * 86_400, -3 * 86_400, 86_400 + 3600)


def figures():
    """Asked between two readings of the clock that nobody sets."""
    # What was read less than a second ago is what is answered.
    time.sleep(1.1)
    begin = time.monotonic()
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(60)
    connection.sock.connect(SOCKET)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    end = time.monotonic()
    # Behind a value there may be an exemplar.
    lines = [line.split(" # ")[0].rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return begin, end, {series: float(value) for series, value in lines}


def life(series):
    return sum(value for name, value in series.items() if name.startswith('debox_thread_seconds_total{program="ticking"'))


def recordings():
    return {path.name for path in FLIGHT.glob("*.debox") if not path.name.endswith(".part.debox")}


def goes_on(steps):
    """Of each step, a (name, what it does): what is counted stays right, and no recording is lost. The recordings' names."""
    # Of another check that set the clock ahead they would be the newest.
    shutil.rmtree(FLIGHT, ignore_errors=True)
    with Broker() as broker, open("/run/agent.log", "w+") as said:
        config = pathlib.Path("/run/agent.toml")
        config.write_text(CONFIG)
        ticking = subprocess.Popen(["/bin/busybox", "sh", "-c", "echo -n ticking > /proc/$$/comm; while :; do read -t 0.1 nothing; done"], stdin=subprocess.PIPE)
        agent = subprocess.Popen([f"{HERE}/debox", "agent", "--socket", broker.socket, "--config", str(config)], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            until = time.monotonic() + 120
            while "figures at" not in pathlib.Path("/run/agent.log").read_text() and agent.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
            expect(agent.poll() is None, "the agent ended:", pathlib.Path("/run/agent.log").read_text())
            was = figures()
            for step, does in steps:
                before = recordings()
                does()
                time.sleep(5)
                new = figures()
                for name, value in was[2].items():
                    expect(not name.split("{")[0].endswith("_total") or new[2].get(name, -1) >= value, name, "went back:", value, new[2].get(name))
                lived = life(new[2]) - life(was[2])
                # They may be a second old, and a thread's parts follow when it runs next.
                expect(new[0] - was[1] - 2.5 <= lived <= new[1] - was[0] + 2.5, step, ":", lived, "s of a thread's life in", new[0] - was[1])
                expect(before <= recordings(), step, "took", before - recordings())
                was = new
            execute([f"{HERE}/debox", "snapshot", "--directory", str(FLIGHT)])
        finally:
            ticking.kill()
            ticking.wait()
            agent.terminate()
            status = agent.wait(60)
        equal(status, 0, "the agent's exit status")
        said.seek(0)
        text = said.read()
        expect("lost" not in text and "cannot" not in text, "the agent said:", text)
        all_recordings = recordings()
        expect(len(all_recordings) >= 2 * len(steps), "recordings:", all_recordings)
        for name in all_recordings:
            done = execute([f"{HERE}/debox", "report", "--json", str(FLIGHT / name)])
            wall_s = json.loads(done.stdout)["run"]["wall_ns"] / 1e9
            expect(0 < wall_s < 120, name, "is of", wall_s, "s")
    return all_recordings


@check("clock-steps")
def _():
    def step(seconds):
        return lambda: time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)

    all_recordings = goes_on([(f"a step of {step_s} s", step(step_s)) for step_s in STEPS_S])
    note(f"{len(all_recordings)} recordings over {len(STEPS_S)} steps")


def slept_s():
    """How long the machine was suspended since it began."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


@check("suspended")
def _():
    def suspend():
        before_s = slept_s()
        pathlib.Path("/sys/class/rtc/rtc0/wakealarm").write_text("+5")
        pathlib.Path("/sys/power/state").write_text("mem")
        expect(slept_s() - before_s >= 2, "the machine did not sleep:", slept_s() - before_s)

    all_recordings = goes_on([("the first time asleep", suspend), ("the second", suspend)])
    note(f"{len(all_recordings)} recordings, {slept_s():.1f} s asleep")


@check("sleep-meets-a-condition", smoke=True)
def _():
    with Broker() as broker, open("/run/agent.log", "w+") as said:
        config = pathlib.Path("/run/agent.toml")
        config.write_text(
            f"""[[policy]]
name = "all"
[[policy.when]]
condition = "blocked > 200ms && label == nanosleep"
do = ["stack"]
[[policy.when]]
condition = "blocked > 10s && call == clock_nanosleep"
[flight]
directory = ""
[metrics]
listen = "{SOCKET}"
"""
        )
        agent = subprocess.Popen([f"{HERE}/debox", "agent", "--socket", broker.socket, "--config", str(config)], stdin=subprocess.DEVNULL, stdout=said, stderr=said)

        def log():
            return pathlib.Path("/run/agent.log").read_text()

        def appears(what):
            until = time.monotonic() + 120
            while what not in log() and agent.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
            expect(what in log(), "it never said", what, log())

        try:
            appears("figures at")
            begin = time.monotonic()
            execute(["/bin/busybox", "sleep", "0.4"])
            took_ms = (time.monotonic() - begin) * 1000
            appears(" at nanosleep in ")
        finally:
            agent.terminate()
            agent.wait(60)
        # An emulated CPU may be late to begin it and to end it.
        slept = re.findall(r"busybox .* slept ([\d.]+) (ms|s) at nanosleep", log())
        slept_ms = [float(number) * {"ms": 1, "s": 1000}[unit] for number, unit in slept]
        expect(len(slept_ms) == 1 and 200 < slept_ms[0] <= took_ms + 1 and "woken by (interrupt)" in log(), took_ms, log())
