#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What does an answer cost by how its head and its data get into the socket?

    small.py --out DIR [--quick]

The paper's Figure 7: a single file in memory, over connections that stay, as fast as it goes: one
writev of head and mapped pages, sendfile behind a head that went out in a packet of its own, and
sendfile whose head waits for the data (the paper's changed sendfile; here MSG_MORE). A
client takes a CPU as well: so the server's CPU time of a request is told beside the throughput.
"""

import json
import pathlib
import statistics
import subprocess
import sys
from typing import Any

CASES = pathlib.Path(__file__).resolve().parents[1]
for folder in (CASES, CASES / "disk", CASES / "peers", CASES / "steps"):
    sys.path.insert(0, str(folder))

import case  # noqa: E402
import figure  # noqa: E402
import peers  # noqa: E402
import steps  # noqa: E402

CONNECTIONS = 16
WAYS = {
    "writev": ["--send", "writev", "--residency", "none"],
    "sendfile, head apart": ["--send", "sendfile", "--residency", "none", "--head", "apart"],
    "sendfile": ["--send", "sendfile", "--residency", "none"],
}
# Class and number of a file of the mix: its size is their product.
CLASS_BYTES = (102, 1024, 10240, 102400)
QUICK = ((1, 1), (2, 1))
FULL = ((0, 1), (0, 5), (1, 1), (1, 2), (1, 5), (2, 1), (2, 2), (2, 5), (3, 1), (3, 5))


def ask(server: peers.Server, kind: int, number: int, seconds: float, file: pathlib.Path) -> dict[str, float]:
    size = CLASS_BYTES[kind] * number
    before = server.cpu_s()
    words = ["run", "--server", f"127.0.0.1:{server.port}", "--directories", "1", "--page", f"/dir00000/class{kind}_{number}", "--page-bytes", str(size), "--static-only", "--kbit", "0"]
    words += ["--connections", str(CONNECTIONS), "--new-connection-every", "0", "--warm-up", "0", "--seconds", str(seconds), "--json", str(file)]
    subprocess.run([*case.DIES_TOO, str(steps.LOAD), *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    told = json.loads(file.read_text())
    return {"megabits_per_s": told["bytes_per_second"] * 8e-6, "requests_per_s": told["requests_per_second"], "cpu_us": (server.cpu_s() - before) * 1e6 / told["requests"]}


def run(out: pathlib.Path, quick: bool) -> dict[str, Any]:
    files, seconds, rounds = (QUICK, 0.3, 3) if quick else (FULL, 0.7, 5)
    out.mkdir(parents=True, exist_ok=True)
    taken: dict[str, list[list[dict[str, float]]]] = {way: [[] for _ in files] for way in WAYS}
    root = out.resolve() / "root"
    with case.passing(root):
        subprocess.run([*case.DIES_TOO, str(steps.LOAD), "files", "--root", str(root), "--directories", "1"], check=True, stdout=subprocess.DEVNULL)
        for at, (kind, number) in enumerate(files):
            # In turns, so that what the machine does meanwhile meets all alike.
            for turn in range(rounds):
                for place in range(len(WAYS)):
                    way = list(WAYS)[(place + turn) % len(WAYS)]
                    port = peers.free_port()
                    with peers.Server(way, [str(steps.FLASH), "--root", str(root), "--port", str(port), *WAYS[way]], port) as server:
                        taken[way][at].append(ask(server, kind, number, seconds, out / "small.load.json"))
    (out / "small.load.json").unlink()
    sizes = [CLASS_BYTES[kind] * number for kind, number in files]
    result = {"sizes": sizes, "ways": {way: [{key: statistics.median(one[key] for one in of_size) for key in of_size[0]} for of_size in row] for way, row in taken.items()}}
    (out / "small.json").write_text(json.dumps(result, indent=1))
    lines = ["Medians; Mbit/s, and µs of the server's CPU time for a request (the paper's Figure 7):", "", "| bytes | " + " | ".join(WAYS) + " |", "|---:|" + "---:|" * len(WAYS)]
    lines += [f"| {size:,} | " + " | ".join(f"{row[at]['megabits_per_s']:,.0f}; {row[at]['cpu_us']:.1f}" for row in result["ways"].values()) + " |" for at, size in enumerate(sizes)]
    (out / "small.md").write_text("\n".join(lines) + "\n")
    for key, y, name in (("megabits_per_s", "Mbit/s", "small"), ("cpu_us", "µs of the server's CPU time for a request", "small-cpu")):
        series = [figure.Series(way, sizes, [one[key] for one in row]) for way, row in result["ways"].items()]
        figure.lines(out / f"{name}.svg", "One file in memory, by its size (the paper's Figure 7)", "bytes", y, series, log_x=True, log_y=True)
    return result


if __name__ == "__main__":
    sys.exit(case.main(run, __doc__, (peers.PeerError, OSError)))
