# SPDX-License-Identifier: MIT OR Apache-2.0
"""How is one case run by itself?

    NAME.py --out DIR [--quick]
"""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

Run = Callable[..., dict[str, Any]]
# What is begun so does not outlive the case, or the runner, that is killed.
DIES_TOO = ("setpriv", "--pdeathsig", "KILL")


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a directory for the results")
    parser.add_argument("--quick", action="store_true", help="a first look, well below a minute or few of them")
    return parser


def main(run: Run, about: str | None, errors: tuple[type[Exception], ...], right: Callable[[dict[str, Any]], bool] = lambda _: True, *, only: str = "") -> int:
    """Shows what the case wrote for a reader. `errors`: those that say what happened and what helps; `right`:
    of what it measured; `only`: what some of can be chosen, whose names `run` gets as a third argument."""
    parser = arguments(about)
    if only:
        parser.add_argument("--only", action="append", help=f"one {only}, by its name; may be repeated")
    given = parser.parse_args()
    name = pathlib.Path(sys.argv[0])
    try:
        result = run(given.out, given.quick, *([given.only] if only else []))
    except errors as error:
        print(f"{name.name}: {error}", file=sys.stderr)
        return 1
    print((given.out / f"{name.stem}.md").read_text())
    return 0 if right(result) else 1
