#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which licences do the crates of others ask to be handed on with our programs?

Prints, for what is linked into them, name, version, licence and authors, then
each text that lies beside their sources once, with who brought it. Cargo says what
is linked; sources are where it put them for the build.
"""

import json
import pathlib
import re
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = {"debox", "deboxd", "debox-agent", "debox-fleet"}
TEXT = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)")
# Rust's own library is in every program.
RUST = "the Rust standard library: MIT OR Apache-2.0; The Rust Project contributors"


def metadata():
    host = re.search(r"^host: (.*)$", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout, re.M)[1]
    command = ["cargo", "metadata", "--locked", "--quiet", "--format-version=1", "--filter-platform", host]
    got = subprocess.run(command, cwd=TOP, stdout=subprocess.PIPE, text=True)
    if got.returncode:
        sys.exit("licences: cargo metadata failed: its last lines say why")
    return json.loads(got.stdout)


def linked(told):
    """The packages of others that are linked into PROGRAMS, by name and version."""
    packages = {package["id"]: package for package in told["packages"]}
    nodes = {node["id"]: node for node in told["resolve"]["nodes"]}

    def kinds(package):
        return {kind for target in package["targets"] for kind in target["kind"]}

    def builds(package):
        return any("bin" in target["kind"] and target["name"] in PROGRAMS for target in package["targets"])

    left = [package["id"] for package in packages.values() if not package["source"] and builds(package)]
    assert len(left) == len(PROGRAMS), left
    seen = set()
    while left:
        one = left.pop()
        # What runs in the compiler is in no program.
        if one in seen or "proc-macro" in kinds(packages[one]):
            continue
        seen.add(one)
        left += [dep["pkg"] for dep in nodes[one]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    return sorted((packages[one] for one in seen if packages[one]["source"]), key=lambda package: (package["name"], package["version"]))


def texts(package):
    """[(name, text)] beside a package's sources: also of C libraries in a folder of it."""
    top = pathlib.Path(package["manifest_path"]).parent
    found = {path for pattern in ("*", "*/*") for path in top.glob(pattern) if TEXT.match(path.name) and path.is_file()}
    if package["license_file"]:
        found.add(top / package["license_file"])
    code = {".rs", ".c", ".h", ".html", ".py", ".toml"}
    return [(str(path.relative_to(top)), path.read_text(errors="replace").strip()) for path in sorted(found) if path.suffix not in code]


def main():
    print(f"What others wrote that is in debox, deboxd, debox-agent and debox-fleet\n\n{RUST}")
    brought = {}
    for package in linked(metadata()):
        authors = "".join(f"; {author}" for author in package["authors"])
        print(f"{package['name']} {package['version']}: {package['license']}{authors}")
        for name, text in texts(package):
            # The same text is set otherwise here and there.
            _, who = brought.setdefault(" ".join(text.split()), (text, []))
            who.append(f"{package['name']} {package['version']} ({name})")
    for text, who in brought.values():
        print("\n" + "-" * 72 + "\n" + ",\n".join(who) + ":\n\n" + text)


if __name__ == "__main__":
    main()
