# SPDX-License-Identifier: MIT OR Apache-2.0
"""How does a case have DeBox watch a program, and keep what it said?

A watch leaves two files beside each other: what a reader sees (`NAME.txt`) and the same
report as JSON (`NAME.json`), both of one recording, so that a figure and the output
that it is made of never come from two runs.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import case

TOP = pathlib.Path(__file__).resolve().parents[1]
DEBOX = pathlib.Path(os.environ.get("DEBOX", TOP / "target/release/debox"))
BEGINS_S = 30.0
# A running broker's socket, which DeBox knows by this name.
SOCKET = "DEBOX_SOCKET"
# The broker's shell, to which Ctrl-C does not come: its standard input ends when whoever began it does, in whatever way. Then the broker ends, and
# its folder goes; before that a disk that lies in it, which its own watcher takes away.
UNTIL_THE_END = 'folder=$1; shift; "$@" < /dev/null & cat; kill $!; wait; n=0; while [ -e "$folder/disk" ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done; rm -rf --one-file-system "$folder"'


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


def answers(socket: pathlib.Path) -> bool:
    with contextlib.suppress(WatchError):
        debox("status", "--socket", str(socket))
        return True
    return False


@contextlib.contextmanager
def broker() -> Iterator[pathlib.Path]:
    """A folder that is there for as long, with the broker's socket in it (`broker`). With a broker that is there
    already, DeBox begins in a moment; while nobody watches, nothing of it is in the kernel's way."""
    program = DEBOX.parent / "deboxd"
    if not os.access(program, os.X_OK):
        raise WatchError(f"{program} is not there: make build, or name a debox in $DEBOX that has deboxd beside it")
    work = pathlib.Path(tempfile.mkdtemp(prefix="debox-case-"))
    # deboxd runs as a user of its own.
    work.chmod(0o755)
    socket, log = work / "broker", work / "deboxd.log"
    with log.open("w") as to:
        process = subprocess.Popen(["/bin/sh", "-c", UNTIL_THE_END, "sh", str(work), str(program), "--everybody", "--socket", str(socket)], stdin=subprocess.PIPE, stdout=to, stderr=to, start_new_session=True)
    try:
        end = time.monotonic() + BEGINS_S
        while not answers(socket):
            if time.monotonic() > end:
                raise WatchError(f"deboxd does not answer at {socket} in {BEGINS_S:.0f} s: {log.read_text().strip()[-500:]}")
            time.sleep(0.02)
        yield work
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait()


class Watch:
    """`with Watch(out, "name", pids): …` - the processes, and what they start, from when the body begins to its end."""

    def __init__(self, folder: pathlib.Path, name: str, pids: list[int], *options: str) -> None:
        self.recording = folder / f"{name}.debox"
        self.text, self.json = folder / f"{name}.txt", folder / f"{name}.json"
        which = [word for pid in pids for word in ("-p", str(pid))]
        self.argv = [*case.DIES_TOO, str(DEBOX), "attach", *which, "-o", str(self.recording), *options]

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
