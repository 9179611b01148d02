# SPDX-License-Identifier: MIT OR Apache-2.0
"""What do the checks of a guest have in common, and who runs them?

Runs inside the guests that run.py boots, on their second serial line, which
nothing else writes to. One line each:

    ok NAME (1.2 s)           a check passed
    FAIL NAME why             ... or not; the traceback goes to the console
    note TEXT                 something worth reading
    cell ROW<tab>TEXT         what docs/KERNELS.md says of this kernel
    file NAME BASE64          kept by the host in target/vm/guest/*/saved/

    guest.py                  run the suite named on the kernel's command line
    guest.py --list SUITE ONLY    names of its checks
    guest.py --smoke SUITE        those of them that `make test` runs
    guest.py --modules SUITE  files of Python that it needs
    guest.py --native SUITE   row<tab>name: tests that ask the same of the machine's own kernel
"""

import base64
import bisect
import collections
import ctypes
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback

HERE = "/debox"
MS = 1_000_000
CHECKS = []
SMOKE = []
NATIVE = []
# As `debox doctor` calls them.
WAYS_TO_PROBE = ("fentry", "kprobe", "kprobe.multi", "kprobe.session")
CELLS = {}
Check = collections.namedtuple("Check", "name function rows always last")


def check(name, *arguments, feature=None, always=False, last=False, smoke=False):
    """Declares a check: `@check("name")` over a function.

    The function passes unless it raises or leaves something attached to the
    kernel. `arguments` are handed to it.
    `feature` is a row of docs/KERNELS.md, or several: it says yes on a kernel where
    all checks of that row pass, unless cell() put something else there.
    `always`: others need it, so it runs before and with any of them.
    `last`: it looks at what the others left, and ends the shared broker.
    `smoke`: `make test` runs it, and not `make test-all` only.
    """

    def add(function):
        rows = (feature,) if isinstance(feature, str) else feature or ()
        CHECKS.append(Check(name, lambda: function(*arguments), rows, always, last))
        if function is rust_test:
            NATIVE.extend((row, arguments[1]) for row in rows)
        if smoke:
            SMOKE.append(name)
        return function

    return add


def emit(*words):
    print(*words, flush=True)


def note(*words):
    """Tells the reader of the run something."""
    emit("note", " ".join(str(w) for w in words))


def native(row, *names):
    """Tests of the machine itself that ask its kernel what the checks of a row ask in guests."""
    NATIVE.extend((row, name) for name in names)


def native_needs(row, *ways, otherwise="no"):
    """What a row says of the machine's own kernel where `debox doctor` found none of these ways to probe functions."""
    NATIVE.append((row, f"!{' '.join(ways or WAYS_TO_PROBE)}!{otherwise}"))


def native_needs_probes():
    """All rows declared so far that nothing native is said of need probes on functions."""
    said = {row for row, _ in NATIVE}
    for row in dict.fromkeys(row for check in CHECKS for row in check.rows):
        if row not in said:
            native_needs(row)


def cell(row, text):
    """What docs/KERNELS.md says in `row` for this kernel."""
    CELLS[row] = text


def save(name, text):
    """Keeps a text on the host: target/vm/guest/KERNEL-SUITE/saved/NAME."""
    emit("file", name, base64.b64encode(text.encode()).decode())


class Wrong(Exception):
    def __str__(self):
        return " ".join(str(a) for a in self.args)


def expect(true, *what):
    if not true:
        raise Wrong(" ".join(str(w) for w in what))


def equal(have, want, *what):
    expect(have == want, *what, "is", have, "instead of", want)


def execute(command, expected=0, **more):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, **more)
    expect(done.returncode == expected, command, "ended with", done.returncode, done.stderr[-1500:], done.stdout[-300:])
    return done


# -- under `debox run` --------------------------------------------------------


class Report:
    def __init__(self, command, options=(), expected=0):
        path = "/tmp/report.json"
        if os.path.exists(path):
            os.unlink(path)
        execute([f"{HERE}/debox", "run", "--json", "-o", path, *options, "--", *command], expected)
        with open(path) as file:
            self.all = json.load(file)
        self.sound()

    def sound(self):
        expect(self.all["calls"], "no calls at all")
        for row in self.all["calls"]:
            equal(row["cpu_ns"] + row["blocked_ns"] + row["runq_ns"], row["wall_ns"], "the sum of", row)
            expect(row["max_ns"] <= row["wall_ns"], row)
            equal(sum(b["count"] for b in row["histogram"]), row["count"], "the histogram of", row)
        for note in self.all["notes"]:
            expect(
                note["kind"] not in ("rows_dropped", "sites_dropped", "threads_unwatched", "inconsistent", "stale"),
                note,
            )

    def call(self, name, abi=64):
        for row in self.all["calls"]:
            if row["name"] == name and row["abi"] == abi:
                return row
        return {"count": 0, "errors": 0, "unfinished": 0, "restarted": 0}

    def blocked(self, call):
        return [r for r in self.all["blocking"] if r["call"] == call]


def shared():
    """Options of `debox run` that spare it a broker of its own."""
    return ["--socket", shared_broker().socket]


def calls(*arguments, program="calls", expected=0):
    return Report([f"{HERE}/{program}", *arguments], shared(), expected=expected)


# -- bracketed by libdebox ----------------------------------------------------


class Broker:
    def __init__(self, *options, socket="/run/debox-test.sock"):
        self.socket = socket
        self.log = open(f"{socket}.log", "w+")
        self.process = subprocess.Popen(
            [f"{HERE}/deboxd", "--everybody", "--socket", self.socket, *options], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )
        for _ in range(300):
            if self.process.poll() is not None:
                break
            if self.status(None):
                return
            time.sleep(0.1)
        self.log.seek(0)
        raise Wrong("deboxd does not answer:", self.log.read()[-6000:])

    def status(self, expected=0):
        done = subprocess.run(
            [f"{HERE}/debox", "status", "--json", "--socket", self.socket], capture_output=True, text=True, timeout=60
        )
        if done.returncode != 0:
            expect(expected is None, "debox status:", done.stderr)
            return None
        return json.loads(done.stdout)

    def bracketed(self, *arguments):
        environment = dict(os.environ, DEBOX_SOCKET=self.socket)
        done = execute([f"{HERE}/truth", "-b", "-d", "/var/tmp", *arguments], env=environment)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        equal(self.process.wait(30), 0, "deboxd's exit status")


def record(line):
    """What holds for the record of every call."""
    r = line["record"]
    equal(r["valid"] & 0b110001111111, 0b110001111111, "what was measured of", line)
    equal(r["cpu_ns"] + r["blocked_ns"] + r["runq_ns"], r["wall_ns"], "the sum of", line)
    expect(r["wall_ns"] + r["outside_ns"] <= line["user_ns"] + 1000, "longer than seen from outside:", line)
    equal(sum(s["total_ns"] for s in r["sleeps"]), r["blocked_ns"], "the sleeps of", line)
    for s in r["sleeps"]:
        equal(s["err"], 0, "the error of a site's text in", line)
        expect(s["count"] >= 1 and s["max_ns"] <= s["total_ns"], line)
    return r


def sleep_at(r, label):
    found = [s for s in r["sleeps"] if s["label"] == label]
    equal(len(found), 1, "the number of sleeps labelled", label, "in", r)
    return found[0]


SHARED = []
AT_REST = {}


def shared_broker():
    """One broker for all checks that do not care: loading takes seconds here."""
    if not SHARED:
        SHARED.append(Broker(socket="/run/debox-shared.sock"))
        AT_REST["with the shared broker"] = footprint()
    return SHARED[0]


def shared_broker_stop():
    """Ends it; checks that look for what stays behind want that first."""
    while SHARED:
        SHARED.pop().__exit__()


def one(*arguments):
    lines = shared_broker().bracketed(*arguments)
    equal(len(lines), 1, "lines")
    return lines[0]


def rust_test(program, name):
    """A test of tests/PROGRAM.rs, in a guest as on the machine itself."""
    environment = dict(
        os.environ, DEBOX_TEST_PROGRAMS=HERE, DEBOX_TEST_BROKER=shared_broker().socket, DEBOX_TEST_SLOW="1", RUST_BACKTRACE="0"
    )
    done = subprocess.run(
        [f"{HERE}/{program}-tests", "--exact", name, "--nocapture"], env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
    )  # fmt: skip
    expect(done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-1500:])


def command_line(name):
    """A word of the kernel's command line, as run.py set it."""
    with open("/proc/cmdline") as file:
        for word in file.read().split():
            if word.startswith(name + "="):
                return word[len(name) + 1 :]
    return ""


# -- what is left behind ------------------------------------------------------


def bpf_ids(command):
    """All ids that BPF_PROG_GET_NEXT_ID (11), BPF_MAP_ (12) or BPF_LINK_ (31) shows."""
    libc = ctypes.CDLL(None, use_errno=True)
    found, last = [], 0
    while True:
        attributes = (ctypes.c_uint32 * 32)(last)
        if libc.syscall(321, command, attributes, 12):
            return found
        last = attributes[1]
        found.append(last)


def bpf_maps():
    """What the kernel says of every map: name, value_size, max_entries."""
    libc = ctypes.CDLL(None, use_errno=True)
    maps = []
    for number in bpf_ids(12):
        # BPF_MAP_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD with a bpf_map_info:
        # type, id, key_size, value_size, max_entries, map_flags, name[16]
        fd = libc.syscall(321, 14, (ctypes.c_uint32 * 3)(number), 12)
        if fd < 0:
            continue
        info = (ctypes.c_uint32 * 64)()
        address = ctypes.addressof(info)
        ask = (ctypes.c_uint32 * 4)(fd, ctypes.sizeof(info), address & 0xFFFFFFFF, address >> 32)
        failed = libc.syscall(321, 15, ask, 16)
        os.close(fd)
        if not failed:
            name = bytes(info)[24:40].split(b"\0")[0].decode()
            maps.append({"name": name, "value_size": info[3], "max_entries": info[4]})
    return maps


def lines_of(path):
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


TRACING = "/sys/kernel/tracing"


def trampolines():
    with open("/proc/kallsyms", "rb") as file:
        return file.read().count(b"bpf_trampoline_")


# What tracing puts into the kernel. Asked after every check, and with -icount
# time is instructions: what takes long comes last, and is asked only when all
# before it is as it was.
FOOTPRINT = {
    "BPF programs": lambda: len(bpf_ids(11)),
    "BPF maps": lambda: len(bpf_ids(12)),
    "BPF links": lambda: len(bpf_ids(31)),
    "functions traced": lambda: len(lines_of(f"{TRACING}/enabled_functions")),
    "kprobes": lambda: len(lines_of("/sys/kernel/debug/kprobes/list")),
    "probe events": lambda: len(lines_of(f"{TRACING}/dynamic_events")),
    "tracefs instances": lambda: sorted(os.listdir(f"{TRACING}/instances")),
    "tracer": lambda: lines_of(f"{TRACING}/current_tracer"),
    "trampolines": trampolines,
}


def footprint():
    """All of it, to be compared before and after."""
    return {what: ask() for what, ask in FOOTPRINT.items()}


def footprint_expect(before, patience_s=60, but=()):
    """The kernel frees programs a while after their last user: waits for that."""
    end = time.monotonic() + patience_s
    while True:
        # The time is what counts, not how often.
        late = time.monotonic() >= end
        differs = {}
        for what, ask in FOOTPRINT.items():
            now = ask() if what not in but and (late or not differs) else before[what]
            if now != before[what]:
                differs[what] = f"{before[what]} -> {now}"
        if not differs:
            return
        if late:
            raise Wrong("left behind:", differs)
        time.sleep(0.2)


def footprint_expect_rest():
    """A check is over when the kernel is as it was: with the broker that the checks share, or without.

    That broker keeps the maps of slots for the next thread, and its threads
    wait in the kernel in functions that may have been traced: what they will
    return through is theirs until then, or until it ends (the last check).
    """
    if SHARED:
        footprint_expect(AT_REST["with the shared broker"], but=["BPF maps", "trampolines"])
    else:
        footprint_expect(AT_REST["alone"])


def symbols_in(text):
    """Kernel addresses in a text, with the functions that they lie in."""
    symbols = sorted((int(line.split()[0], 16), line.split()[2]) for line in lines_of("/proc/kallsyms"))
    addresses = [a for a, _ in symbols]

    def named(match):
        at = bisect.bisect_right(addresses, int(match.group(), 16)) - 1
        return f"{symbols[at][1]}+{int(match.group(), 16) - addresses[at]:#x}"

    return re.sub(r"\b[0-9a-f]{16}\b", named, text)


def kernel_log_expect_clean():
    words = ("BUG:", "WARNING:", "Oops", "general protection", "self-detected", "detected stall", "lockdep", "Call Trace", "hung_task")
    bad = [line for line in execute(["/bin/dmesg"]).stdout.splitlines() if any(w in line for w in words)]
    expect(not bad, bad)


# -- the runner ----------------------------------------------------------------


def chosen(names):
    """All checks, or those in a list with commas."""
    names = names.split(",") if names else [c.name for c in CHECKS]
    if not any(c.name in names for c in CHECKS):
        return []
    return sorted((c for c in CHECKS if c.always or c.name in names), key=lambda c: c.last - c.always)


def load(suites):
    for suite in suites.split(",") if suites else []:
        importlib.import_module(f"suites.{suite}")


def run():
    passed = failed = 0
    load(command_line("debox.suite"))
    rows = {}
    checks = chosen(command_line("debox.only"))
    AT_REST["alone"] = footprint()
    for name, function, its_rows, _, _ in checks:
        begin = time.monotonic()
        good = False
        try:
            function()
            footprint_expect_rest()
        except Exception as error:
            failed += 1
            why = str(error) if isinstance(error, Wrong) else repr(error)
            emit("FAIL", name, " ".join(why.split())[:1500])
            traceback.print_exc()
            if name == "programs-load":
                emit("note nothing else can work")
                break
        else:
            good = True
            passed += 1
            emit("ok", name, f"({time.monotonic() - begin:.1f} s)")
        for row in its_rows:
            rows[row] = rows.get(row, True) and good
    shared_broker_stop()
    for row, good in rows.items():
        emit(f"cell {row}\t{(CELLS.pop(row, None) or 'yes') if good else 'FAILED'}")
    for row, text in CELLS.items():
        emit(f"cell {row}\t{text}")
    emit(f"note {passed} passed, {failed} failed")
    return passed != len(checks)


def modules(suite):
    """Files of Python that a suite has loaded, for an initramfs."""
    import encodings.ascii
    import encodings.latin_1
    import select
    import selectors

    assert encodings.ascii and encodings.latin_1 and select and selectors
    load(suite)
    mine = os.path.dirname(os.path.abspath(__file__))
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(mine):
            print(file)


def main():
    if sys.argv[1:2] == ["--list"]:
        load(sys.argv[2])
        print("\n".join(c.name for c in chosen(sys.argv[3])))
    elif sys.argv[1:2] == ["--smoke"]:
        load(sys.argv[2])
        print("\n".join(SMOKE))
    elif sys.argv[1:2] == ["--native"]:
        load(sys.argv[2])
        print("\n".join("\t".join(pair) for pair in NATIVE))
    elif sys.argv[1:2] == ["--modules"]:
        modules(sys.argv[2])
    elif command_line("debox.command"):
        sys.exit(subprocess.run(["/bin/sh", f"{HERE}/command"], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT).returncode != 0)
    else:
        sys.exit(run())


if __name__ == "__main__":
    # The suites import this file as a module; there must be one copy of it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import guest

    guest.main()
