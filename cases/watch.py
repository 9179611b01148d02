# SPDX-License-Identifier: MIT OR Apache-2.0
"""How does a case have DeBox watch a program, and keep what it said?

A watch leaves two files beside each other: what a reader sees (`NAME.txt`) and the same
report as JSON (`NAME.json`), both of one recording, so that a figure and the output
that it is made of never come from two runs.
"""

import json
import os
import pathlib
import signal
import subprocess
import time
from typing import Any

TOP = pathlib.Path(__file__).resolve().parents[1]
DEBOX = pathlib.Path(os.environ.get("DEBOX", TOP / "target/release/debox"))
BEGINS_S = 30.0


class WatchError(Exception):
    """What happened, and what helps."""


def debox(*words: str, timeout_s: float = 60.0) -> str:
    """Its output."""
    if not DEBOX.exists():
        raise WatchError(f"{DEBOX} is not there: make build, or name one in $DEBOX")
    done = subprocess.run([str(DEBOX), *words], capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise WatchError(f"debox {' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Watch:
    """`with Watch(out, "name", pids): …` - the processes, and what they start, from when the body begins to its end."""

    def __init__(self, folder: pathlib.Path, name: str, pids: list[int], *options: str) -> None:
        self.recording = folder / f"{name}.debox"
        self.text, self.json = folder / f"{name}.txt", folder / f"{name}.json"
        which = [word for pid in pids for word in ("-p", str(pid))]
        self.argv = [str(DEBOX), "attach", *which, "-o", str(self.recording), *options]

    def __enter__(self) -> "Watch":
        for file in (self.recording, self.text, self.json):
            file.unlink(missing_ok=True)
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        # It says so when the watch has begun.
        for line in self.process.stderr:
            if "watching" in line:
                return self
            self.said = line
        raise WatchError(f"{' '.join(self.argv)}: status {self.process.wait()}: {getattr(self, 'said', '').strip()}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            _, said = self.process.communicate(timeout=BEGINS_S)
        except subprocess.TimeoutExpired as late:
            self.process.kill()
            raise WatchError(f"{' '.join(self.argv)} did not end in {BEGINS_S:.0f} s") from late
        if kind:
            return
        if self.process.returncode:
            raise WatchError(f"{' '.join(self.argv)}: status {self.process.returncode}: {said.strip()}")
        self.text.write_text(debox("report", str(self.recording)))
        self.json.write_text(debox("report", "--json", str(self.recording)))

    def report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.json.read_text())
        return loaded

    def first_sentences(self) -> list[str]:
        """The verdict, up to the first empty line of what a reader sees."""
        return self.text.read_text().split("\n\n", 1)[0].splitlines()


def for_seconds(folder: pathlib.Path, name: str, pids: list[int], seconds: float, *options: str) -> Watch:
    """Watches for so long, and returns what there is to read."""
    with Watch(folder, name, pids, *options) as watch:
        time.sleep(seconds)
    return watch
