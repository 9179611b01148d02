#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How do the measured parts get into docs/bench.md? Called by performance/docs.sh
with the directory that has os.txt, self.txt and the charts of both in figures/."""

import html
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main():
    work = Path(sys.argv[1])
    folder = TOP / "docs/bench"
    document = TOP / "docs/bench.md"
    old = document.read_text()
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{document} has lost its markers {BEGIN} and {END}: put them back")
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.svg"):
        file.unlink()
    parts = []
    for name in ("os", "self"):
        text = (work / f"{name}.txt").read_text().rstrip()
        parts.append(f"### `debox bench {name}`\n\n```text\n{text}\n```")
        for file in sorted((work / "figures").glob(f"{name}-*.svg")):
            picture = file.read_text()
            (folder / file.name).write_text(picture)
            caption = html.unescape(re.search(r"<text[^>]*>(.*?)</text>", picture)[1])
            parts.append(f"![{caption}](bench/{file.name})")
    new = old[: old.index(BEGIN)] + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + old[old.index(END) :]
    document.write_text(new)
    print(f"bench: written to docs/bench.md and docs/bench/ ({sum(1 for _ in folder.glob('*.svg'))} charts)")


if __name__ == "__main__":
    main()
