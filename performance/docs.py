#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How do the measured parts get into their documents? Called by performance/run.sh
with the directory that has os.txt, self.txt, self.md and the charts of both in
figures/, and with which of the two were measured."""

import html
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
DOCUMENTS = {"os": "docs/bench.md", "self": "docs/PERFORMANCE.md"}
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(name, measured):
    """Replaces what stands between the markers of a document."""
    old = (TOP / name).read_text()
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{name} has lost its markers {BEGIN} and {END}: put them back")
    head, tail = old[: old.index(BEGIN)], old[old.index(END) :]
    (TOP / name).write_text(f"{head}{BEGIN}\n\n{measured}\n\n{tail}")
    print(f"bench: written to {name}")


def main():
    work = Path(sys.argv[1])
    folder = TOP / "docs/bench"
    folder.mkdir(exist_ok=True)
    for name in sys.argv[2:]:
        for file in folder.glob(f"{name}-*.svg"):
            file.unlink()
        parts = [f"```text\n{(work / f'{name}.txt').read_text().rstrip()}\n```"]
        for file in sorted((work / "figures").glob(f"{name}-*.svg")):
            picture = file.read_text()
            (folder / file.name).write_text(picture)
            caption = html.unescape(re.search(r"<text[^>]*>(.*?)</text>", picture)[1])
            parts.append(f"![{caption}](bench/{file.name})")
        write(DOCUMENTS[name], "\n\n".join(parts))
        if (short := work / f"{name}.md").exists():
            write("README.md", short.read_text().strip())


if __name__ == "__main__":
    main()
