# SPDX-License-Identifier: MIT OR Apache-2.0
"""How is one case run by itself?

    NAME.py --out DIR [--quick]
"""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

Run = Callable[[pathlib.Path, bool], dict[str, Any]]


def arguments(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a directory for the results")
    parser.add_argument("--quick", action="store_true", help="a first look, well below a minute or few of them")
    return parser


def main(run: Run, about: str | None, errors: tuple[type[Exception], ...], right: Callable[[dict[str, Any]], bool] = lambda _: True) -> int:
    """Shows what the case wrote for a reader. `errors`: those that say what happened and what helps; `right`:
    of what it measured."""
    given = arguments(about).parse_args()
    name = pathlib.Path(sys.argv[0])
    try:
        result = run(given.out, given.quick)
    except errors as error:
        print(f"{name.name}: {error}", file=sys.stderr)
        return 1
    print((given.out / f"{name.stem}.md").read_text())
    return 0 if right(result) else 1
