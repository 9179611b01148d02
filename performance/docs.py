#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How do the measured parts get into docs/bench.md? Called by performance/docs.sh
with the directory that has os.txt, os.html, self.txt and self.html.

The charts of the pages become files of their own, which carry their colours,
light and dark, with them."""

import html
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def colours():
    """The page's colours, and the rules that charts use."""
    css = (TOP / "crates/output/assets/page.css").read_text()
    light = re.search(r":root \{([^}]*)\}", css)[1]
    dark = re.search(r':root:not\(\[data-theme="light"\]\) \{([^}]*)\}', css)[1]
    rules = "\n".join(
        re.sub(r"svg\.chart ", "", line)
        for line in css.splitlines()
        if line.startswith("svg.chart ") and not line.startswith("svg.chart {")
    )
    clean = lambda text: re.sub(r"color-scheme: \w+;", "", text)
    return (
        f"svg{{{clean(light)}}}\n@media (prefers-color-scheme: dark){{svg{{{clean(dark)}}}}}\n"
        "svg{font-family:system-ui,'DejaVu Sans',sans-serif;background:var(--card)}\n" + rules
    )


def charts(page, name):
    """Writes every figure of a page; (caption, file, legend) of each."""
    style = colours()
    found = []
    for figure in re.findall(r"<figure>(.*?)</figure>", page, re.S):
        caption = html.unescape(re.search(r"<figcaption>(.*?)</figcaption>", figure)[1])
        svg = re.search(r"<svg.*</svg>", figure, re.S)[0]
        legend = re.findall(r"background:var\((--\w+)\)\"></i>(.*?)</li>", figure)
        slug = re.sub(r"[^a-z0-9]+", "-", caption.lower()).strip("-")
        width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
        # The legend goes below, in rows that fit.
        x, y, items = 10.0, height + 16, ""
        for colour, text in legend:
            need = 26 + 6.8 * len(html.unescape(text))
            if x + need > width and x > 10:
                x, y = 10.0, y + 18
            items += (
                f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" rx="2" style="fill:var({colour})"/>'
                f'<text x="{x + 15:.0f}" y="{y:.0f}">{text}</text>'
            )
            x += need
        total = y + 8 if legend else height
        svg = re.sub(r'viewBox="[^"]*"', f'viewBox="0 0 {width:.0f} {total:.0f}"', svg, count=1)
        svg = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        svg = svg.replace(">", f"><style>{style}</style>", 1)
        svg = svg[: svg.rindex("</svg>")] + items + "</svg>\n"
        path = f"docs/bench/{name}-{slug}.svg"
        (TOP / path).write_text(svg)
        found.append((caption, path.removeprefix("docs/")))
    return found


def main():
    work = Path(sys.argv[1])
    folder = TOP / "docs/bench"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    parts = []
    for name in ("os", "self"):
        text = (work / f"{name}.txt").read_text().rstrip()
        parts.append(f"### `debox bench {name}`\n\n```text\n{text}\n```")
        for caption, path in charts((work / f"{name}.html").read_text(), name):
            parts.append(f"**{caption}**\n\n![{caption}]({path})")
    document = TOP / "docs/bench.md"
    old = document.read_text()
    if BEGIN not in old or END not in old:
        raise SystemExit(f"{document} has lost its markers {BEGIN} and {END}: put them back")
    new = old[: old.index(BEGIN)] + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + old[old.index(END) :]
    document.write_text(new)
    print(f"bench: written to docs/bench.md and docs/bench/ ({sum(1 for _ in folder.glob('*.svg'))} charts)")


if __name__ == "__main__":
    main()
