#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""How do DeBox's crates come to be what `cargo publish` would upload, and what needs no clang to install?

    setup/crates.py [--verify]     (by `make crates`; docs/packages.md, "From crates.io")

A crate has nothing but what lies in its own folder: what it shares with others of the tree are
links there, which cargo packs as what they lead to. What a package has and the tree has not is
compiled: the BPF objects, and the runtime of spliced programs. So the tree is copied to
target/crates/tree, these are put in, and cargo packs that as for an upload (`cargo publish
--workspace --dry-run`, which asks the registry what is there already, and uploads nothing).
Packages are in target/crates/packages.

--verify: cargo builds each of them, against the others as they are packed.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[1]
OUT = TOP / "target/crates"
TREE = OUT / "tree"
RUNTIME = TOP / "target/release/debox-splice.bin"
# Which crates' build scripts leave BPF objects.
LOADERS = ("debox-probe", "debox-kern", "debox-why")


def cargo(*words, **more):
    done = subprocess.run(["cargo", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **more)
    if done.returncode:
        sys.exit(f"crates: cargo {' '.join(words)} failed: its last lines say why")
    return done.stdout


def objects():
    """The BPF objects that `make build` has put into the programs."""
    said = cargo("build", "--release", "--workspace", "--bins", "--message-format=json-render-diagnostics", cwd=TOP)
    found = {}
    for line in said.splitlines():
        told = json.loads(line)
        if told["reason"] == "build-script-executed" and any(f"#{name}@" in told["package_id"] for name in LOADERS):
            for path in pathlib.Path(told["out_dir"]).glob("*.bpf.o"):
                found[path.name] = path
    sources = {path.name.removesuffix(".c") + ".o" for path in (TOP / "bpf").glob("*.bpf.c")}
    if set(found) != sources:
        sys.exit(f"crates: of {', '.join(sorted(set(found) ^ sources))} there is an object or a source, not both")
    return found


def tree():
    """What is in the repository, and of what is compiled what a package has to have."""
    shutil.rmtree(TREE, ignore_errors=True)
    told = subprocess.run(["git", "-C", TOP, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, text=True)
    if told.returncode:
        # Where there is no repository: all that is not made.
        shutil.copytree(TOP, TREE, symlinks=True, ignore=shutil.ignore_patterns("target", "__pycache__"))
    for name in told.stdout.split("\0"):
        source = TOP / name
        if name and (source.is_file() or source.is_symlink()):
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, TREE / name, follow_symlinks=False)
    if not RUNTIME.is_file():
        sys.exit(f"crates: {RUNTIME} is missing: run `make build` first")
    for name, path in [*objects().items(), (RUNTIME.name, RUNTIME)]:
        folder = TREE / "crates" / ("splice" if path == RUNTIME else "bpf") / "compiled"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(path, folder / name)


def main():
    words = sys.argv[1:]
    if words not in ([], ["--verify"]):
        sys.exit(__doc__)
    packages = OUT / "packages"
    shutil.rmtree(packages, ignore_errors=True)
    tree()
    # One place of what is built, for the next time.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(OUT / "target")}
    made = OUT / "target/package"
    shutil.rmtree(made, ignore_errors=True)
    cargo("publish", "--workspace", "--dry-run", "--allow-dirty", *([] if words else ["--no-verify"]), cwd=TREE, env=environment)
    packages.mkdir(parents=True)
    # Cargo keeps them beside each other, and for those that are built as a registry of their own.
    for path in sorted(made.rglob("tmp-crate/*.crate")) or sorted(made.glob("*.crate")):
        shutil.copy(path, packages)
        print(f"{path.stat().st_size // 1024:6} KiB {path.name}")


if __name__ == "__main__":
    main()
