# SPDX-License-Identifier: MIT OR Apache-2.0
"""How is one case run by itself?

    NAME.py --out DIR [--quick]
"""

import argparse
import contextlib
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

Run = Callable[..., dict[str, Any]]
# What is begun so does not outlive the case, or the runner, that is killed.
DIES_TOO = ("setpriv", "--pdeathsig", "KILL")
# A shell whose standard input ends when whoever began it does, in whatever way. What still writes into the folder then ends as well.
REMOVES = 'cat; n=0; until rm -rf --one-file-system "$1" || [ $n -ge 100 ]; do sleep 0.1; n=$((n + 1)); done'


@contextlib.contextmanager
def passing(folder: pathlib.Path) -> Iterator[None]:
    """A folder that is made anew, and goes at the end or when this process is killed."""
    shutil.rmtree(folder, ignore_errors=True)
    # Ctrl-C is not for it.
    with subprocess.Popen(["/bin/sh", "-c", REMOVES, "sh", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True):
        folder.mkdir()
        yield


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
