#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""One call in hundreds waits long: how had the program come to make it, and what did it believe?

    moment.py --out DIR [--quick]

The paper's section 5.3: a blocking open() is found rarely, so the program calls abort() as it
sees one, and gdb shows the stack. Here DeBox has the condition, and no line of the program changes:
of the design that believes what is in memory (steps/designs.py, 5), the first sendfile that waits
longer than any single read of the disk leaves a core, whose stack and variables are asked. What they
say is then tried: the same design with less belief.
"""

import json
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time
from typing import Any

CASES = pathlib.Path(__file__).resolve().parents[1]
for folder in (CASES, CASES / "disk", CASES / "peers", CASES / "steps"):
    sys.path.insert(0, str(folder))

import case  # noqa: E402
import designs  # noqa: E402
import slow_disk  # noqa: E402
import steps  # noqa: E402
from peers import PeerError  # noqa: E402
from slow_disk import DiskError, MemoryGroup, SlowDisk  # noqa: E402
from watch import DEBOX, WatchError  # noqa: E402

DESIGN = next(design for design in designs.DESIGNS if design.switches["residency"] == "heuristic")
# Of the state that sends: what is sent, and what the heuristic went by (flash/residency.c).
ASKED = {
    "name": "c->file->name",
    "at": "c->at",
    "bytes": "c->end - c->at",
    "helper_read_it": "c->job_done",
    "believed_to": "c->file->believed_to",
    "loaded_since": "'residency.c'::loaded_bytes - c->file->loaded_at",
    "trusted_mb": "options.believed_mb",
}
WAITS_S = 20.0
CORE_S = 30.0  # to be written
LESS = (32, 24, 16, 8, 4)  # MB to believe in


def condition(plan: steps.Plan) -> str:
    """Three reads of the disk, one behind the other."""
    return f"call == sendfile && blocked > {plan.latency_s * 3e3:.0f}ms"


def stop(pid: int, when: str) -> list[str]:
    """What DeBox says as the condition is met; the program leaves a core there."""
    argv = [str(DEBOX), "attach", "-p", str(pid), "--no-follow", "--capture", "boundary", "-q", "--on", when, "--do", "stack", "--limit", "1", "--do", "core", "-d", f"{WAITS_S:.0f}s"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=WAITS_S + 60, check=False)
    if "SIGABRT" not in done.stderr:
        raise WatchError(f"{' '.join(argv)}: no call met it in {WAITS_S:.0f} s: {done.stderr.strip()[-500:]}")
    lines = done.stderr.splitlines()
    # Its report of all calls until then comes behind.
    return [line for line in lines[: next(n for n, line in enumerate(lines) if "SIGABRT" in line) + 1] if "watching" not in line]


def asked_of(core: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """gdb's stack, and the values of what is asked."""
    argv = ["gdb", "-batch", "-nx", "-ex", "bt", "-ex", "frame function state_send", *(word for what in ASKED.values() for word in ("-ex", f"output {what}", "-ex", r"echo \n"))]
    done = subprocess.run([*argv, str(steps.FLASH), str(core)], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    # Before it, gdb shows where the program ended, and behind it the frame that is chosen.
    stack = [line for line in lines if re.match(r"#\d+ ", line)][1:-1]
    said = lines[-len(ASKED) :]
    return stack, dict(zip(ASKED, (re.sub(r'^0x[0-9a-f]+ |"', "", line) for line in said), strict=True))


def believing(megabytes: int, plan: steps.Plan, disk: SlowDisk, group: MemoryGroup, root: pathlib.Path, out: pathlib.Path) -> dict[str, Any]:
    disk.remount()
    with steps.flash(root, DESIGN, group, "--believed", str(megabytes)) as server:
        steps.warmed(server, plan, disk)
        result = steps.measured(server, plan, disk, out, f"believed-{megabytes}")
        return result | {"debox": steps.watched(server, plan, out, f"believed-{megabytes}")}


def found(folder: pathlib.Path) -> pathlib.Path:
    end = time.monotonic() + 10
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    while not (cores := sorted(folder.glob("core*"))):
        if time.monotonic() > end:
            raise WatchError(f"no core in {folder}: core_pattern is {pattern!r}; `sysctl kernel.core_pattern=core` leaves them there")
        time.sleep(0.05)
    return cores[0]


def run(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    if not shutil.which("gdb"):
        raise WatchError("gdb is missing: apt-get install gdb")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plan = steps.QUICK._replace(warm_up_s=1, seconds=3, watched_s=2) if quick else steps.FULL._replace(warm_up_s=6, seconds=15)
    dump = out / "dump"  # where the program leaves its core
    resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
    with steps.site(out, plan) as (disk, group, root), case.passing(dump):
        disk.remount()
        with steps.flash(root, DESIGN, group, cwd=str(dump)) as server:
            # It has sent more than its memory holds.
            steps.warmed(server, plan, disk)
            argv = steps.clients(server.port, plan, "run", "--connections", str(plan.connections), "--warm-up", "0", "--seconds", "60")
            process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                said = stop(server.pid, condition(plan))
            finally:
                process.terminate()
                process.wait()
            core = found(dump)
            if not slow_disk.wait_until(lambda: not server.processes(), CORE_S):
                raise WatchError(f"{server.name} is not gone {CORE_S:.0f} s after its core began: {core} may never be whole")
        stack, values = asked_of(core)
        # What it knew of was sent, at the most so much ago, and the pages had gone: half of it is on the safe side.
        trusted = int(values["trusted_mb"])
        less = max(1, (int(values["loaded_since"]) >> 20) // 2)
        tried = {str(mb): believing(mb, plan, disk, group, root, out) for mb in ((trusted, less) if quick else sorted({trusted, *LESS, less}, reverse=True))}
    result = {"tried": tried, "design": DESIGN.name, "condition": condition(plan), "said": said, "stack": stack, "values": values}
    (out / "moment.json").write_text(json.dumps(result, indent=1))
    (out / "moment.md").write_text(page(result))
    return result


def page(result: dict[str, Any]) -> str:
    values = result["values"]
    since_mb = int(values["loaded_since"]) / (1 << 20)
    shown = [re.sub(r"0x[0-9a-f]+ in |=(\w+@entry=)?0x[0-9a-f]{8,}", "", line) for line in result["stack"]]
    lines = [f"`debox attach --capture boundary --on '{result['condition']}' --do stack --limit 1 --do core`:", "", "```", *result["said"], "```", ""]
    lines += ["gdb on that core:", "", "```", *shown, "```", ""]
    lines += ["| of the state that sends | |", "|---|---|", *(f"| `{what}` | {values[name]} |" for name, what in ASKED.items()), ""]
    why = "a helper had just read it" if values["helper_read_it"] == "true" else f"the heuristic believed the first {int(values['believed_to']):,} bytes in memory, since {since_mb:.1f} MB were sent since, of {values['trusted_mb']} that memory is trusted to hold"
    lines += [f"It sends `{values['name']}` from byte {int(values['at']):,}: {why}. The pages had gone all the same.", ""]
    lines += ["With less belief:", "", "| MB | conforming | waited, median | 99 % | reads of the disk, a second | the loop asleep, not for work |", "|---:|---:|---:|---:|---:|---:|"]
    for megabytes, told in result["tried"].items():
        cells = [f"{told['conforming_percent']:.0f} %", f"{told['waited_ms']['p50']:.2f} ms", f"{told['waited_ms']['p99']:.0f} ms", f"{told['disk_reads'] / told['seconds']:.0f}", f"{told['debox']['asleep_ns'] / told['debox']['life_ns']:.1%}"]
        lines.append(f"| {megabytes} | " + " | ".join(cells) + " |")
    lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (WatchError, DiskError, PeerError)))
