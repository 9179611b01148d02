# SPDX-License-Identifier: MIT OR Apache-2.0
"""How do the figures of the case study look?

SVG, one style for all: text as text, no date and no random ids within, so that the same
numbers give the same file.
"""

import pathlib
import re
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402

# Told apart by those who do not tell red from green, and in print.
COLOURS = ("#0b5fa5", "#d1641b", "#3a8f5d", "#8c4a9e", "#6b6b6b", "#b8860b", "#a11d33", "#17a2b8")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", ":")
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "debox",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    # Over lines, it would not be legible without a ground.
    "legend.framealpha": 0.7,
    "legend.edgecolor": "none",
}


class Series(NamedTuple):
    name: str
    x: Sequence[float]
    y: Sequence[float]


def _axes(title: str, x: str, y: str, log_x: bool, log_y: bool) -> tuple[Any, Any]:
    pyplot.rcParams.update(STYLE)
    figure, axes = pyplot.subplots(figsize=(6.2, 3.6))
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    if log_y:
        axes.set_yscale("log")
        # Within a decade or two the powers of ten alone say too little.
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
        axes.yaxis.set_minor_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    return figure, axes


def _legend(axes: Any, count: int, where: str = "best") -> None:
    """Many names go beside the figure, where they hide nothing."""
    if count > 2:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    elif count > 1:
        axes.legend(loc=where)


def _save(figure: Any, file: pathlib.Path) -> None:
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": "DeBox"})
    pyplot.close(figure)
    # A hundredth of a point is less than anybody sees, and six digits are a third of the file.
    file.write_text(re.sub(r"(-?\d+\.\d\d)\d+", r"\1", file.read_text()))


def lines(file: pathlib.Path, title: str, x: str, y: str, series: Sequence[Series], *, log_x: bool = False, log_y: bool = False, from_zero: bool = True) -> None:
    figure, axes = _axes(title, x, y, log_x, log_y)
    for n, one in enumerate(series):
        axes.plot(one.x, one.y, label=one.name, color=COLOURS[n % len(COLOURS)], linestyle=DASHES[n // len(COLOURS) % len(DASHES)], marker=MARKERS[n % len(MARKERS)], markersize=4, linewidth=1.5)
    if from_zero and not log_y:
        axes.set_ylim(bottom=0)
    _legend(axes, len(series))
    _save(figure, file)


def scatter(file: pathlib.Path, title: str, x: str, y: str, series: Sequence[Series]) -> None:
    """Points in percent, and through each series its regression line."""
    figure, axes = _axes(title, x, y, False, False)
    for n, one in enumerate(series):
        colour = COLOURS[n % len(COLOURS)]
        axes.plot(one.x, one.y, linestyle="", marker=MARKERS[n % len(MARKERS)], markersize=3, alpha=0.6, color=colour, label=one.name)
        slope, intercept = statistics.linear_regression(one.x, one.y)
        ends = [min(one.x), max(one.x)]
        axes.plot(ends, [intercept + slope * end for end in ends], color=colour, linewidth=1)
    axes.set_ylim(0, 100)
    _legend(axes, len(series))
    _save(figure, file)


def _thinned(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    kept_x, kept_y = [], []
    for n, (at, share) in enumerate(zip(x, y, strict=True)):
        if not kept_y or share - kept_y[-1] >= 0.25 or n == len(x) - 1:
            kept_x.append(at)
            kept_y.append(share)
    return kept_x, kept_y


def distributions(file: pathlib.Path, title: str, x: str, series: Sequence[Series], *, log_x: bool = True) -> None:
    """Of each: values, and the share in percent that is not above them. Steps that nobody would see are left out."""
    series = [Series(one.name, *_thinned(one.x, one.y)) for one in series]
    figure, axes = _axes(title, x, "share not above, %", log_x, False)
    for n, one in enumerate(series):
        axes.step(one.x, one.y, where="post", label=one.name, color=COLOURS[n % len(COLOURS)], linestyle=DASHES[n // len(COLOURS) % len(DASHES)], linewidth=1.5)
    axes.set_ylim(0, 100)
    _legend(axes, len(series), "lower right")
    _save(figure, file)


def bars(file: pathlib.Path, title: str, y: str, names: Sequence[str], series: Sequence[Series], *, stacked: bool = False) -> None:
    """`series`: of each its values in the order of `names` (its x is not used)."""
    figure, axes = _axes(title, "", y, False, False)
    width = 0.8 if stacked else 0.8 / max(1, len(series))
    below = [0.0] * len(names)
    for n, one in enumerate(series):
        at = [i if stacked else i - 0.4 + width * (n + 0.5) for i in range(len(names))]
        axes.bar(at, one.y, width=width, bottom=below if stacked else None, label=one.name, color=COLOURS[n % len(COLOURS)])
        if stacked:
            below = [a + b for a, b in zip(below, one.y, strict=True)]
    axes.set_xticks(range(len(names)), names, rotation=20 if max(map(len, names)) > 9 else 0, ha="right" if max(map(len, names)) > 9 else "center")
    axes.grid(axis="x", visible=False)
    _legend(axes, len(series))
    _save(figure, file)
