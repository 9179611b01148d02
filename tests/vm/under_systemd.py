# SPDX-License-Identifier: MIT OR Apache-2.0
"""What has to hold of the packages on a machine whose PID 1 is systemd?

Runs inside the guests that booted.py boots, as root, on their second serial line: a line `ok
NAME` for each step, or `FAIL NAME why`. Steps follow each other: the first that fails ends it.
The machine boots twice; `debox.stage` on the kernel's command line says which time it is.
An emulated machine is slow: nothing here has to be quick, only to come.
"""

import glob
import grp
import json
import os
import pathlib
import pwd
import re
import signal
import stat
import subprocess
import sys
import time
import traceback
import urllib.request

# In the order in which dpkg is given them.
PACKAGES = ("debox", "debox-agent")
SOCKET, BROKER, AGENT = "deboxd.socket", "deboxd.service", "debox-agent.service"
FLIGHT = "/var/lib/debox/flight"
CONFIGURATION = "/etc/debox/agent.toml"
MEMBER, STRANGER = "member", "stranger"
# What may be exposed, by `systemd-analyze security`: of 10.
EXPOSED_MOST = 2.5
PATIENCE_S = 400
STEPS = []


def step(stage):
    def add(function):
        STEPS.append((stage, function.__name__.replace("_", "-"), function))
        return function

    return add


def names(stage):
    return [name for its, name, _ in STEPS if its == stage]


class Wrong(Exception):
    pass


def expect(true, *what):
    if not true:
        raise Wrong(" ".join(str(w) for w in what))


def of(user, *command):
    """A command as that user's login would run it."""
    told = pwd.getpwnam(user)
    home = f"HOME={told.pw_dir}"
    return ("setpriv", f"--reuid={told.pw_uid}", f"--regid={told.pw_gid}", "--init-groups", "env", home, *command)


def run(*command, status=0, user=None):
    if user:
        command = of(user, *command)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"})  # fmt: skip
    expect(status is None or done.returncode == status, command, "ended with", done.returncode, done.stdout[-1500:], done.stderr[-1500:])
    return done


def install(which):
    folder = pathlib.Path(__file__).parent / which
    run("dpkg", "--install", *(str(path) for name in PACKAGES for path in folder.glob(f"{name}_*.deb")))


def shown(unit, name):
    return run("systemctl", "show", "-P", name, unit).stdout.strip()


def come(what, true, patience_s=PATIENCE_S):
    """Waits for it; what it is then."""
    until = time.monotonic() + patience_s
    while True:
        found = true()
        if found:
            return found
        expect(time.monotonic() < until, what, "has not come in", patience_s, "s")
        time.sleep(0.5)


def active(unit):
    return come(f"{unit} active", lambda: shown(unit, "ActiveState") == "active")


def journal(unit):
    return run("journalctl", "--no-pager", "-b", "-o", "cat", "-u", unit).stdout


def exposed(unit):
    said = run("systemd-analyze", "security", "--no-pager", unit, status=None).stdout
    return float(re.search(r"Overall exposure level for \S+: ([\d.]+)", said)[1])


def figures():
    with urllib.request.urlopen("http://127.0.0.1:9464/metrics", timeout=120) as answer:
        return answer.read().decode()


def running(program):
    found = []
    for path in glob.glob("/proc/[0-9]*/exe"):
        try:
            target = os.readlink(path)
        except OSError:
            continue
        if target.removesuffix(" (deleted)").endswith("/" + program):
            found.append(int(path.split("/")[2]))
    return found


def spliceable():
    """An emulated CPU's time stamp counter may not be good enough."""
    checks = json.loads(run("debox", "doctor", "--json", status=None).stdout)["checks"]
    (splice,) = [check for check in checks if check["name"] == "splice"]
    return splice["state"] == "ok"


def configuration_is_for_the_group():
    told = os.stat(CONFIGURATION)
    expect((stat.S_IMODE(told.st_mode), told.st_uid, grp.getgrgid(told.st_gid).gr_name) == (0o640, 0, "debox"), told)


@step(1)
def installed():
    come("the end of the boot", lambda: run("systemctl", "is-system-running", status=None).stdout.strip() in ("running", "degraded", "starting"))
    install("now")
    for unit, enabled, state in ((SOCKET, "enabled", "active"), (BROKER, "indirect", "inactive"), (AGENT, "disabled", "inactive")):
        have = run("systemctl", "is-enabled", unit, status=None).stdout.strip(), shown(unit, "ActiveState")
        expect(have == (enabled, state), unit, have)
    told = os.stat("/run/debox/debox.sock")
    expect((stat.S_IMODE(told.st_mode), grp.getgrgid(told.st_gid).gr_name) == (0o660, "debox"), told)
    configuration_is_for_the_group()
    for user in (MEMBER, STRANGER):
        run("useradd", "--create-home", user)
    run("usermod", "--append", "--groups", "debox", MEMBER)


@step(1)
def the_first_connection_starts_the_broker():
    expect(shown(BROKER, "MainPID") == "0", "it runs already")
    # It is waited for as long as it loads its BPF programs.
    run("debox", "status", "--json", user=MEMBER)
    active(BROKER)
    expect(int(shown(BROKER, "MainPID")) in running("deboxd"), "MainPID")
    status = dict(re.findall(r"^(\w+):\s+(.*)$", pathlib.Path(f"/proc/{shown(BROKER, 'MainPID')}/status").read_text(), re.M))
    expect(pwd.getpwuid(int(status["Uid"].split()[0])).pw_name == "debox", status["Uid"])
    # CAP_SYS_PTRACE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF
    expect(int(status["CapEff"], 16) == 1 << 19 | 1 << 34 | 1 << 38 | 1 << 39 and status["NoNewPrivs"] == "1", status)


@step(1)
def members_are_told_and_strangers_are_not():
    report = "/tmp/member.json"
    run("debox", "run", "--json", "-o", report, "--", "sleep", "0.2", user=MEMBER)
    told = json.loads(pathlib.Path(report).read_text())
    (slept,) = [row for row in told["calls"] if row["name"] == "clock_nanosleep"]
    expect(slept["count"] == 1 and slept["blocked_ns"] > 180_000_000, slept)
    refused = run("debox", "status", user=STRANGER, status=None)
    expect(refused.returncode != 0 and "debox" in refused.stderr, refused)


@step(1)
def the_agent_starts_and_says_so():
    run("systemctl", "enable", "--now", AGENT)
    active(AGENT)
    said = come("the agent's line", lambda: re.search(r"watching the whole machine; recordings in (\S+); figures at (\S+)", journal(AGENT)))
    expect(said[1] == FLIGHT, said)
    text = figures()
    expect("debox_thread_seconds_total{" in text, text[:500])
    # What a member starts stays in its watch, and is counted all the same; by itself, so where that can be.
    report = "/tmp/beside.json"
    done = run("debox", "run", "--json", "-o", report, "--", "sleep", "0.2", user=MEMBER, status=None)
    if not spliceable():
        expect(done.returncode == 125 and "in an account of another user" in done.stderr, done.returncode, done.stderr)
        return
    expect(done.returncode == 0, done.returncode, done.stderr)
    told = json.loads(pathlib.Path(report).read_text())
    (slept,) = [row for row in told["calls"] if row["name"] == "clock_nanosleep"]
    expect(slept["count"] == 1 and slept["wall_ns"] > 199_000_000, slept)
    expect("splice_not_measured" in {note["kind"] for note in told["notes"]}, told["notes"])


@step(1)
def reloaded_and_no_other_process():
    before = [shown(unit, "MainPID") for unit in (BROKER, AGENT)]
    run("systemctl", "reload", BROKER)
    pathlib.Path(CONFIGURATION).write_text('[[policy]]\nname = "machine"\nperiod = "5s"\nowners_first = true\n')
    run("systemctl", "reload", AGENT)
    come("that the file was read", lambda: f"{CONFIGURATION}: read again" in journal(AGENT))
    expect([shown(unit, "MainPID") for unit in (BROKER, AGENT)] == before, "another process")
    run("debox", "status", user=MEMBER)
    come("a recording of a period", lambda: glob.glob(f"{FLIGHT}/*.debox"))


@step(1)
def stopped_for_good_and_begun_anew():
    """Who is stopped (SIGSTOP) tells nobody that he goes on."""
    for unit in (BROKER, AGENT):
        drop_in = pathlib.Path(f"/run/systemd/system/{unit}.d/quick.conf")
        drop_in.parent.mkdir(parents=True)
        # Slow as the machine is, and not a minute.
        drop_in.write_text("[Service]\nWatchdogSec=40s\nTimeoutAbortSec=2s\n")
    run("systemctl", "daemon-reload")
    for unit in (AGENT, BROKER):
        # Without the agent the broker begins with its first connection.
        run("systemctl", "restart", unit)
        active(unit)
    active(AGENT)
    for unit in (AGENT, BROKER):
        old, restarts = int(shown(unit, "MainPID")), int(shown(unit, "NRestarts"))
        # Longer than the watchdog waits: it is fed.
        time.sleep(45)
        expect(int(shown(unit, "MainPID")) == old, unit, "was begun anew without a reason", journal(unit)[-1500:])
        os.kill(old, signal.SIGSTOP)
        come(f"a new {unit}", lambda: int(shown(unit, "NRestarts")) > restarts and int(shown(unit, "MainPID")) not in (0, old))
        active(unit)
        expect("watchdog" in run("journalctl", "--no-pager", "-b", "-u", unit).stdout.lower(), journal(unit)[-1500:])
    # The agent's broker has died: it ends, and systemd begins it anew.
    active(AGENT)
    come("figures", lambda: shown(AGENT, "ActiveState") == "active" and "debox_thread_seconds_total{" in figures_or_none())


def figures_or_none():
    try:
        return figures()
    except OSError:
        return ""


@step(1)
def little_is_exposed():
    told = {unit: exposed(unit) for unit in (BROKER, AGENT)}
    print(f"note exposed: {told}")
    expect(all(level <= EXPOSED_MOST for level in told.values()), told)


@step(2)
def the_agent_runs_since_the_boot():
    active(SOCKET)
    active(AGENT)
    active(BROKER)
    come("figures", lambda: "debox_thread_seconds_total{" in figures_or_none())
    # At the first attempt: it has waited for a broker that still loaded its programs.
    expect(shown(AGENT, "NRestarts") == "0" and "watching the whole machine" in journal(AGENT), journal(AGENT))
    # Recordings are from before, too.
    oldest = min(os.stat(path).st_mtime for path in glob.glob(f"{FLIGHT}/*.debox"))
    booted = time.time() - float(pathlib.Path("/proc/uptime").read_text().split()[0])
    expect(oldest < booted, oldest, booted)


@step(2)
def a_snapshot_is_kept():
    run("debox", "snapshot")
    come("what is kept", lambda: glob.glob(f"{FLIGHT}/kept/*/*.debox"))


@step(2)
def upgraded_under_a_client():
    before = {unit: shown(unit, "MainPID") for unit in (BROKER, AGENT)}
    report = "/tmp/through.json"
    client = subprocess.Popen(of(MEMBER, "debox", "run", "--json", "-o", report, "--", "sh", "-c", "read line; sleep 0.1"),
                              stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip

    def begun():
        if client.poll() is not None:
            raise Wrong(f"the client ended with {client.returncode}: {client.stderr.read()}")
        return [pid for pid in running("dash") if f"PPid:\t{client.pid}\n" in pathlib.Path(f"/proc/{pid}/status").read_text()]

    come("its command", begun)
    install("newer")
    for unit in (BROKER, AGENT):
        come(f"a new {unit}", lambda: shown(unit, "MainPID") not in ("0", before[unit]))
        active(unit)
    # Its program goes on and ends as it would have, and the report says what is missing of it.
    _, said = client.communicate("\n", timeout=600)
    expect(client.returncode == 0, client.returncode, said)
    told = json.loads(pathlib.Path(report).read_text())
    expect("stale" in {note["kind"] for note in told["notes"]} or "broker" in said, told["notes"], said)
    come("figures", lambda: "debox_thread_seconds_total{" in figures_or_none())
    run("debox", "run", "--", "true", user=MEMBER)
    expect(run("systemctl", "is-enabled", AGENT).stdout == "enabled\n", "the agent is disabled")
    # What an administrator wrote, and who reads it.
    expect('period = "5s"' in pathlib.Path(CONFIGURATION).read_text(), "the agent's file is another one")
    configuration_is_for_the_group()


@step(2)
def purged_and_nothing_left():
    run("dpkg", "--purge", *PACKAGES)
    expect(not running("deboxd") and not running("debox-agent"), "processes")
    for unit in (SOCKET, BROKER, AGENT):
        have = shown(unit, "LoadState"), shown(unit, "ActiveState")
        expect(have == ("not-found", "inactive"), unit, have)
    left = run("find", "/etc", "/usr", "/lib", "/var", "/run", "-xdev", "-iname", "*debox*").stdout.split()
    # What the steps brought; what dpkg remembers is the architecture's own.
    ours = re.compile(r"^/etc/systemd/system/(multi-user\.target\.wants/)?debox-test\.service$|^/run/systemd/")
    expect(not [path for path in left if not ours.search(path)], left)
    for path in ("/etc/debox", "/run/debox", "/var/lib/debox", "/var/cache/debox", "/run/debox-agent"):
        expect(not os.path.lexists(path), path)
    programs = json.loads(run("sh", "-c", "ls /sys/fs/bpf | wc -l").stdout)
    expect(programs == 0, "something is pinned", programs)


def main():
    (stage,) = re.findall(r"\bdebox\.stage=(\d)\b", pathlib.Path("/proc/cmdline").read_text())
    for its, name, function in STEPS:
        if its != int(stage):
            continue
        begin = time.monotonic()
        try:
            function()
        except Exception as error:
            print("FAIL", name, " ".join((str(error) if isinstance(error, Wrong) else repr(error)).split())[:3000])
            traceback.print_exc()
            for unit in (SOCKET, BROKER, AGENT):
                print("\n".join(run("journalctl", "--no-pager", "-b", "-n", "25", "-u", unit, status=None).stdout.splitlines()), file=sys.stderr)
            return 1
        print(f"ok {name} ({time.monotonic() - begin:.0f} s)")
    # What was written has to be on the disk: nobody shuts this machine down.
    os.sync()
    return 0


if __name__ == "__main__":
    sys.exit(main())
