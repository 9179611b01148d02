# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which cases are there, and what is left of a run of all?

Called by run.sh. Each case leaves its tables, figures and DeBox's own output in a folder of its
own; index.md and index.html put them one after the other. What several need is made once, here: a
broker, and a slow disk, which is held against fio and has the files.
"""

import argparse
import contextlib
import ctypes
import html
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
import traceback
from typing import NamedTuple

for folder in ("", "disk", "peers", "steps"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / folder))

CASES = pathlib.Path(__file__).resolve().parent
DISK = "disk"
PR_SET_PDEATHSIG = 1


class Case(NamedTuple):
    folder: str  # and its module's name
    question: str
    paper: str
    on_disk: bool = False  # that is shared
    full_only: bool = False  # unless it is asked for


ALL = (
    Case("rare", "What do the tools show of one call in a thousand that takes a millisecond?", "section 2, Figures 1 and 2, Table 1"),
    Case("steps", "A web server on a slow disk, made fast step by step by what DeBox says of it", "sections 5 and 6.1, Tables 4 to 6, Figures 5, 6 and 10", True),
    Case("moment", "One call in hundreds waits long: how had the program come to make it?", "section 5.3", True),
    Case("small", "What does an answer cost by how its head and its data get into the socket?", "section 5.6, Figure 7"),
    Case("sizes", "How much does each server deliver as its files outgrow its memory, and how long do answers take?", "sections 6.2 and 7, Tables 7, 8 and 10, Figures 11 and 12", True),
    Case("helpers", "How many helpers does the server need, and when do more stand in each other's way?", "section 6.3, Table 9", True),
    Case("most", "How many connections does each server serve well at most?", "sections 5 and 7, Figure 8", True, True),
    Case("nginx", "nginx opens files on its event loop", "none: a bottleneck of today, in a server of others"),
    Case("rcu", "A call that grows the table of descriptors waits for all CPUs", "none: a bottleneck of today"),
    Case("proxy", "select and poll in a proxy with idle connections", "Banga and Mogul, sections 5 and 6"),
)


def leaves_cores(pattern: str) -> bool:
    """Whether a core is a file `core...` in the directory that its process was in."""
    return pattern.startswith("core") and "/" not in pattern


def needed(chosen: list[Case]) -> list[str]:
    """What is missing, with what brings it."""
    import peers

    names = {case.folder for case in chosen}
    missing = []
    if os.geteuid():
        missing.append("root: the slow disk is mounted, and memory groups are made")
    for program, package in (("fio", "fio"), ("mkfs.ext4", "e2fsprogs"), ("losetup", "mount"), ("strace", "strace"), ("perf", "linux-perf"), ("gdb", "gdb"), ("setpriv", "util-linux"), ("cc", "gcc libc6-dev")):
        if not shutil.which(program):
            missing.append(f"{program}: apt-get install {package}")
    servers = [("nginx", "nginx-light"), ("lighttpd", "lighttpd"), ("apache2", "apache2")] + ([("haproxy", "haproxy"), ("webfsd", "webfs")] if "proxy" in names else [])
    for program, package in servers:
        try:
            peers.find(program, package)
        except peers.PeerError as error:
            missing.append(str(error))
    for module in ("matplotlib", "markdown"):
        if importlib.util.find_spec(module) is None:
            missing.append(f"{module}: apt-get install python3-{module}")
    for built in ("release/debox", "release/deboxd", "release/load", "cases/flash", "cases/slowdisk", "cases/rcu"):
        if not (CASES.parent / "target" / built).exists():
            missing.append(f"target/{built}: make build case-programs")
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if "moment" in names and not leaves_cores(pattern):
        missing.append(f"cores beside the program (kernel.core_pattern is {pattern!r}): sysctl kernel.core_pattern=core")
    return missing


def machine() -> str:
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    release = ".".join(os.uname().release.split("-")[0].split(".")[:3])
    return f"{processor[1] if processor else os.uname().machine}, {os.cpu_count()} CPUs, Linux {release}"


def with_figures(text: str, folder: pathlib.Path) -> str:
    """HTML with its figures in it: where they are named, or else at the end."""
    left = sorted(folder.glob("*.svg"))

    def figure(file: pathlib.Path) -> str:
        svg = file.read_text()
        return f"<figure>{svg[svg.index('<svg') :]}</figure>"

    def named(match: re.Match[str]) -> str:
        file = folder / match[1]
        if file not in left:
            return match[0]
        left.remove(file)
        return figure(file)

    text = re.sub(r'<p><img[^>]* src="([^"/]+\.svg)"[^>]*></p>', named, text)
    return text + "".join(figure(file) for file in left)


def page(out: pathlib.Path, done: dict[str, float], failed: dict[str, str]) -> None:
    """As Markdown, and as one page with the figures in it. `failed`: what is known of why."""
    import markdown  # not before it is known to be there

    converter = markdown.Markdown(extensions=["tables", "fenced_code", "toc"], extension_configs={"toc": {"baselevel": 3}})
    # What programs and their names say is text, not HTML.
    converter.preprocessors.deregister("html_block")
    converter.inlinePatterns.deregister("html")
    lines = ["# The case study", "", f"{machine()}; {time.strftime('%Y-%m-%d')}.", ""]
    parts = [f"<h1>The case study</h1><p>{html.escape(machine())}; {time.strftime('%Y-%m-%d')}.</p>"]
    if DISK in done or DISK in failed:
        lines += ["## The slow disk", ""]
        parts.append("<h2>The slow disk</h2>")
    if DISK in done:
        fio = (out / f"{DISK}.txt").read_text()
        lines += ["```", fio, "```", ""]
        parts.append(f"<pre>{html.escape(fio)}</pre>")
    if DISK in failed:
        lines += [f"It failed: {failed[DISK]}", ""]
        parts.append(f"<p><strong>It failed: {html.escape(failed[DISK])}</strong></p>")
    for case in ALL:
        folder = out / case.folder
        if case.folder in failed:
            told = f"It failed{failed[case.folder] and ': '}{failed[case.folder]}. Nothing of it is here."
            lines += [f"## {case.question}", "", told, ""]
            parts.append(f"<h2>{html.escape(case.question)}</h2><p><strong>{html.escape(told)}</strong></p>")
        if case.folder not in done:
            continue
        text = (folder / f"{case.folder}.md").read_text() if (folder / f"{case.folder}.md").exists() else ""
        figures = [file for file in sorted(folder.glob("*.svg")) if f"]({file.name})" not in text]
        lines += [f"## {case.question}", "", f"In the papers: {case.paper}. Took {done[case.folder]:.0f} s.", "", re.sub(r"\]\(([^/)]+\.svg)\)", rf"]({case.folder}/\1)", text), "", *(f"![]({case.folder}/{file.name})" for file in figures), ""]
        parts.append(f"<h2>{html.escape(case.question)}</h2><p>In the papers: {html.escape(case.paper)}.</p>{with_figures(converter.convert(text), folder)}")
    (out / "index.md").write_text("\n".join(lines))
    style = "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;display:block;overflow-x:auto}td,th{border-bottom:1px solid #ddd;padding:.2em .7em;text-align:left;vertical-align:top}td[style*=right]{white-space:nowrap}pre{background:#f6f6f6;padding:.7em;white-space:pre-wrap;font-size:13px}figure{margin:1em 0;overflow-x:auto}"
    (out / "index.html").write_text(f"<!doctype html><html lang=en><meta charset=utf-8><title>The case study</title><style>{style}</style><body>{''.join(parts)}</body></html>")


def main() -> int:
    parser = argparse.ArgumentParser(prog="cases/run.sh", description="The case study: see cases/README.md")
    parser.add_argument("--full", action="store_true", help="two hours and more instead of five minutes, and most is among them")
    parser.add_argument("--out", type=pathlib.Path, default=CASES.parent / "target/cases/out", help="where all goes (default: target/cases/out)")
    parser.add_argument("--only", action="append", choices=[case.folder for case in ALL], help="this case; may be repeated")
    args = parser.parse_args()
    began = time.monotonic()
    chosen = [case for case in ALL if (case.folder in args.only if args.only else args.full or not case.full_only)]
    if missing := needed(chosen):
        print("cases/run.sh: not all is here that it needs:\n  " + "\n  ".join(missing), file=sys.stderr)
        return 2
    out = args.out.resolve()
    import watch  # not before what it needs is known to be there

    try:
        done, failed = cases(out, chosen, args.full)
    except watch.WatchError as error:
        print(f"cases/run.sh: {error}", file=sys.stderr)
        return 1
    page(out, done, failed)
    (out / "run.json").write_text(json.dumps({"machine": machine(), "full": args.full, "seconds": done, "failed": list(failed)}))
    print("\n".join(["seconds:", *(f"  {name:8} {seconds:6.1f}" for name, seconds in done.items()), f"  {'all':8} {time.monotonic() - began:6.1f}"]))
    print(f"all of it: {out}/index.html" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def by_itself(program: pathlib.Path, words: list[str], environment: dict[str, str]) -> int:
    """Its status. In a process of its own, so that what fails in one leaves the others: as a fork, which has what takes
    half a second to be loaded. It does not outlive this one, and Ctrl-C does not come to it: it is asked to end once."""
    sys.stdout.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(status)
            os.setsid()
            os.environ.update(environment)
            sys.argv = [str(program), *words]
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1 if end.code else 0
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except KeyboardInterrupt:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        try:
            os.kill(child, signal.SIGINT)
            os.waitpid(child, 0)  # it cleans up
        except BaseException:  # a second Ctrl-C
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise


def cases(out: pathlib.Path, chosen: list[Case], full: bool) -> tuple[dict[str, float], dict[str, str]]:
    """How long each took, the disk among them, and who failed, with what is known of why."""
    import steps
    import watch
    from slow_disk import DiskError

    done: dict[str, float] = {}
    failed: dict[str, str] = {}
    environment = dict(os.environ)
    last = max((n for n, case in enumerate(chosen) if case.on_disk), default=None)
    with watch.broker() as work, contextlib.ExitStack() as disk:
        environment[watch.SOCKET] = str(work / "broker")
        for n, case in enumerate(chosen):
            folder = out / case.folder
            folder.mkdir(parents=True, exist_ok=True)
            for figure in folder.glob("*.svg"):
                figure.unlink()  # of an earlier run, with perhaps other ones
            if case.on_disk and steps.SHARED not in environment and DISK not in failed:
                print("== The slow disk, and its files", flush=True)
                began = time.monotonic()
                try:
                    disk.enter_context(steps.with_files(out / DISK, steps.QUICK, not full))
                    environment[steps.SHARED] = str(out / DISK)
                    done[DISK] = time.monotonic() - began
                except (DiskError, OSError, subprocess.SubprocessError) as error:
                    print(f"run.py: {error}", file=sys.stderr)
                    failed[DISK] = str(error)
            if case.on_disk and DISK in failed:
                failed[case.folder] = "there was no slow disk"
                continue
            print(f"== {case.question}", flush=True)
            began = time.monotonic()
            if by_itself(CASES / case.folder / f"{case.folder}.py", ["--out", str(folder), *([] if full else ["--quick"])], environment):
                failed[case.folder] = ""
            else:
                done[case.folder] = time.monotonic() - began
            if n == last and DISK in done:
                began = time.monotonic()
                try:
                    disk.close()
                    done[DISK] += time.monotonic() - began
                except DiskError as error:
                    print(f"run.py: {error}", file=sys.stderr)
                    failed[DISK] = str(error)
    return done, failed


if __name__ == "__main__":
    sys.exit(main())
