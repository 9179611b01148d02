#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How many connections does each server serve well at most, on the slow disk?

    most.py --out DIR [--quick] [--only SERVER]

SPECweb99's score, as the paper's Figure 8 has it: the highest number of connections of which 95 %
get 320 kbit/s or more (`load find`: doubled until it fails, then halved, and what was found must
pass twice more). Files only, so that servers of others can take part; and all designs
with dynamic pages and CGI. A server that memory or a queue carries for some seconds would get a better score than it keeps, so a run is
not to be short: this is for the full study. Before each search memory is filled while the disk does without its delays; each run
begins when the one before has left nothing in sockets, or after five seconds, and counts when the throughput is level, or after 18;
of which that was not so is marked. Where a number failed and one
that is not below it passed, the score is a range. Same files, disk and memory as in steps/.
"""

import json
import pathlib
import sys
from typing import Any, NamedTuple

CASES = pathlib.Path(__file__).resolve().parents[1]
for folder in (CASES, CASES / "disk", CASES / "peers", CASES / "steps", CASES / "sizes"):
    sys.path.insert(0, str(folder))

import case  # noqa: E402
import designs  # noqa: E402
import figure  # noqa: E402
import peers  # noqa: E402
import steps  # noqa: E402
from sizes import FINAL, ORIGINAL, starts  # noqa: E402


class Plan(NamedTuple):
    servers: tuple[str, ...]
    whole_mix: tuple[str, ...]
    least: int
    most: int
    within_percent: int
    warm_up_s: int | None  # None: until the throughput is level, by the generator's test
    seconds: int


# For one try of the test that it is level: with more of them the searches took three hours. Whoever was not level is marked.
LEVEL_MOST_S = 18
QUICK = Plan((FINAL.name,), (), 300, 1200, 50, 4, 4)
FULL = Plan((ORIGINAL.name, FINAL.name, designs.COPIED.name, "nginx", peers.TUNED, "lighttpd", "apache2-event"), (*(design.name for design in designs.DESIGNS), designs.COPIED.name), 300, 2400, 10, None, 8)


def run(out: pathlib.Path, quick: bool, only: list[str] | None = None) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    plan = QUICK if quick else FULL
    found: dict[str, dict[str, Any]] = {}
    with steps.site(out.resolve(), steps.QUICK) as (disk, group, root):
        start = starts(root, group)
        for mix, names in (("files", plan.servers), ("all", plan.whole_mix)):
            for name in names:
                if only and name not in only:
                    continue
                disk.remount()
                words = ["find", "--from", str(plan.least), "--to", str(plan.most), "--within", str(plan.within_percent), *steps.warm_up(plan.warm_up_s, LEVEL_MOST_S), "--seconds", str(plan.seconds)]
                mix_words = ["--static-only"] if mix == "files" else []
                with start[name]() as server:
                    steps.warmed(server, steps.QUICK, disk, *mix_words)
                    told = steps.load(server.port, steps.QUICK, *words, *mix_words, file=out / f"{name}-{mix}.find.json")
                found.setdefault(mix, {})[name] = told
                print(f"{name}, {mix}: {said(told)}, {len(told['steps'])} runs", flush=True)
    (out / "most.json").write_text(json.dumps({"plan": plan._asdict(), "found": found}, indent=1))
    (out / "most.md").write_text(page(plan, found))
    names = list(dict.fromkeys(name for told in found.values() for name in told))
    series = [figure.Series({"files": "files only", "all": "with dynamic pages and CGI"}[mix], [], [told.get(name, {}).get("highest") or 0 for name in names]) for mix, told in found.items()]
    figure.bars(out / "most.svg", "Most connections of which 95 % conform (the paper's Figure 8)", "connections", names, series)
    return found


def said(told: dict[str, Any]) -> str:
    """The score; where runs contradict each other, from the highest number below which none failed to the highest that passed."""
    over = " or more" if told["at_upper_end"] else " (the clients had no more time)" if told["limited_by_generator"] else ""
    if told["monotone"]:
        return f"below {told['steps'][0]['connections']}" if told["highest"] is None else f"{told['highest']}{over}"
    passed = [step["connections"] for step in told["steps"] if step["passed"]]
    failed = min(step["connections"] for step in told["steps"] if not step["passed"])
    safe = max((n for n in passed if n < failed), default=None)
    return (f"below {failed}" if safe is None else f"{safe}") + f" to {max(passed)}{over} †"


def of_run(step: dict[str, Any]) -> str:
    told = [f"{step['conforming_percent']:.0f} %"]
    told += [f"{step['errors']:,} errors"] if step["errors"] else []
    told += ["not level"] if step["stationary"] is False else []
    told += ["not settled"] if not step["settled"] else []
    return f"{step['connections']} ({', '.join(told)})"


def page(plan: Plan, found: dict[str, dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for told in found.values() for name in told))
    lines = [f"The highest number of connections of which 95 % conform, within {plan.within_percent} % (the paper's Figure 8):", "", "| | files only | with dynamic pages and CGI | runs |", "|---|---:|---:|---:|"]
    for name in names:
        cells = [said(found[mix][name]) if name in found.get(mix, {}) else "" for mix in ("files", "all")]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {sum(len(told[name]['steps']) for told in found.values() if name in told)} |")
    every = [told for each in found.values() for told in each.values()]
    runs = [step for told in every for step in told["steps"]]
    if not all(told["monotone"] for told in every):
        lines += ["", "† Not monotone: a number failed in one run, and it or a higher one passed in another. From the highest below which none failed to the highest that passed."]
    lines += ["", "Each run: connections, how many of them conformed, and what failed" + ("; *not level*: the throughput was not yet, as it began to count" if any(step["stationary"] is False for step in runs) else "")
              + ("; *not settled*: sockets of the run before still held its bytes" if not all(step["settled"] for step in runs) else "") + ".", ""]  # fmt: skip
    for mix, each in found.items():
        lines += [f"- {name}, {'files only' if mix == 'files' else 'all'}, ended at {told['highest'] or 'none'}: " + ", ".join(of_run(step) for step in told["steps"]) for name, told in each.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (), only="server"))
