#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many helpers does the server need, and when do more of them stand in each other's way?

    helpers.py --out DIR [--quick]

The paper's section 6.3 and Table 9: with too few the disk is not used, with too many they waited for
each other and the loop for them. Same files, disk, memory and clients as in steps/; the final
design, and the one whose loop opens again what a helper has opened (steps/designs.py, 2). DeBox
watches the loop and the helpers in a run of its own after the measured one.
"""

import contextlib
import json
import pathlib
import sys
import time
from typing import Any

CASES = pathlib.Path(__file__).resolve().parents[1]
for folder in (CASES, CASES / "disk", CASES / "peers", CASES / "steps"):
    sys.path.insert(0, str(folder))

import case  # noqa: E402
import designs  # noqa: E402
import figure  # noqa: E402
import peers  # noqa: E402
import steps  # noqa: E402
import watch  # noqa: E402
from slow_disk import DiskError  # noqa: E402

HELPERS = (1, 2, 4, 8, 16)
AGAIN, FINAL = designs.DESIGNS[1], designs.DESIGNS[-1]
# Where the loop waits for work, and helpers for a job.
AT_REST = {"loop": ("epoll_wait", "epoll_pwait"), "helpers": ("recvmsg",)}
# Of directories, inodes and pages, which those who work on the same files could hold from each other. Not all that they
# wait for each other: who waits for a page that another one reads is at page-in, as who reads it is.
LOCKS = ("inode-lock", "inode-wait", "dentry-lookup", "page-lock")


def watched(server: peers.Server, plan: steps.Plan, out: pathlib.Path, name: str) -> dict[str, Any]:
    """Of the loop and of the helpers: how often and for how long they slept but for work, each second."""
    loop = server.pid
    who = {"loop": [loop], "helpers": [child.pid for child in peers.below(loop)]}
    with steps.under_load(server, plan), contextlib.ExitStack() as stack:
        seen = {part: stack.enter_context(watch.Watch(out, f"{name}-{part}", pids, "--no-follow", "--capture", "sleeps")) for part, pids in who.items()}
        time.sleep(plan.watched_s)
    told: dict[str, Any] = {}
    for part, one in seen.items():
        report = one.report()
        seconds = report["run"]["wall_ns"] / 1e9
        rows = [row for row in report["blocking"] if row["call"] not in AT_REST[part]]
        labels: dict[str, list[float]] = {}
        for row in rows:
            cell = labels.setdefault(row["label"], [0, 0])
            cell[0] += row["count"] / seconds
            cell[1] += row["total_ns"] / 1e6 / seconds
        told[part] = {"labels": labels, "sleeps": sum(count for count, _ in labels.values()), "ms": sum(ms for _, ms in labels.values()), "verdict": one.first_sentences()}
    return told


def run(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    plan = steps.QUICK._replace(warm_up_s=2, seconds=3, watched_s=2) if quick else steps.FULL._replace(seconds=15, watched_s=8)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    with steps.site(out.resolve(), plan) as (disk, group, root):
        for design in (FINAL,) if quick else (AGAIN, FINAL):
            for count in (1, 8) if quick else HELPERS:
                disk.remount()
                name = f"{design.name}-{count}"
                with steps.flash(root, design, group, "--helpers", str(count)) as server:
                    result = steps.measured(server, plan, disk, out, name)
                    result["debox"] = watched(server, plan, out, name)
                results.setdefault(design.name, {})[str(count)] = result
                steps.tell(f"{design.name}, {count} helpers", result | {"debox": {"asleep_ns": result["debox"]["loop"]["ms"] * 1e6 * plan.watched_s}})
    (out / "helpers.json").write_text(json.dumps({"plan": plan._asdict(), "designs": results}, indent=1))
    (out / "helpers.md").write_text(page(plan._asdict(), results))
    lines = [figure.Series(name, [int(count) for count in row], [one["conforming_percent"] for one in row.values()]) for name, row in results.items()]
    figure.lines(out / "helpers.svg", "Connections served at 320 kbit/s or more (the paper's Table 9)", "helpers", "conforming, %", lines, log_x=True)
    return results


def page(plan: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    everyone = {f"{name}, {count} helpers": one for name, row in results.items() for count, one in row.items()}
    lines = [*steps.warmed_up(plan, everyone), "", *steps.warned(everyone)]
    for name, row in results.items():
        lines += [f"**{name}** (the paper's Table 9; sleeps for work are left out):", "", "| helpers | " + " | ".join(steps.marked(count, one) for count, one in row.items()) + " |", "|---|" + "---:|" * len(row)]
        told = {
            "conforming": [f"{one['conforming_percent']:.1f} %" for one in row.values()],
            "errors": [f"{one['errors']:,}" for one in row.values()],
            "waited, median": [f"{one['waited_ms']['p50']:.2f} ms" for one in row.values()],
            "waited, 99 %": [f"{one['waited_ms']['p99']:.0f} ms" for one in row.values()],
            "reads of the disk, a second, from the start on": [f"{one['disk_reads'] / one['seconds']:.0f}" for one in row.values()],
            "sleeps of the loop, a second": [f"{one['debox']['loop']['sleeps']:.0f}" for one in row.values()],
            "the loop asleep, of a second": [f"{one['debox']['loop']['ms']:.0f} ms" for one in row.values()],
            "sleeps of the helpers, a second": [f"{one['debox']['helpers']['sleeps']:.0f}" for one in row.values()],
            "they asleep, of a second, all together": [f"{one['debox']['helpers']['ms']:.0f} ms" for one in row.values()],
            "... of it at page-in": [f"{one['debox']['helpers']['labels'].get('page-in', (0, 0))[1]:.0f} ms" for one in row.values()],
            "... at locks of names, inodes and pages": [f"{sum(ms for label, (_, ms) in one['debox']['helpers']['labels'].items() if label in LOCKS):.0f} ms" for one in row.values()],
        }
        lines += [f"| {what} | " + " | ".join(cells) + " |" for what, cells in told.items()]
        lines.append("")
        for count, one in row.items():
            slept = sorted(one["debox"]["helpers"]["labels"].items(), key=lambda item: -item[1][1])[:4]
            lines.append(f"{count}: helpers slept at " + ", ".join(f"{label} ({times:.0f}, {ms:.0f} ms)" for label, (times, ms) in slept) + " a second.")
            lines.append("")
    lines += ["Who waits for a page that another helper reads sleeps at `page-in`, as the one that reads it: what of that is for each other the table does not say.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (watch.WatchError, DiskError, peers.PeerError)))
