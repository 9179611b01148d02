#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Is what `cargo publish` would upload whole, and does `cargo install debox` need no clang?

setup/crates.py packs the crates. Here they are unpacked elsewhere, and the command is built of
nothing but them (and others' crates) with a PATH that has a C compiler and no clang. What is
installed then has to count calls, and as root to tell what they wait for.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fresh_start import fresh_environment, fresh_start  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[1]
OUT = TOP / "target/crates"
VERSION = re.search(r'^version = "(.*)"$', (TOP / "Cargo.toml").read_text(), re.M)[1]
NOBODY = 65534
SECONDS = 2400


def run(*command, status=0, **options):
    got = subprocess.run([str(word) for word in command], text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, **options)
    if status is not None and got.returncode != status:
        raise AssertionError(f"{command}: status {got.returncode}\n{got.stdout}\n{got.stderr}")
    return got


def published():
    """{name: whether it is} of the workspace's packages."""
    told = json.loads(run("cargo", "metadata", "--no-deps", "--format-version", "1", "--offline", cwd=TOP).stdout)
    # Null: to every registry.
    return {package["name"]: package["publish"] is None for package in told["packages"]}


# What cargo says where it cannot ask the registry.
OFFLINE = re.compile(r"[Cc]ould ?n.t resolve host|failed to (download|query|fetch)|Timeout was reached|failed to connect|network failure")


class Crates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = run(TOP / "setup/crates.py", status=None)
        if made.returncode and OFFLINE.search(made.stderr):
            print("NOT RUN: the registry of crates does not answer")
            raise unittest.SkipTest("the registry of crates does not answer")
        assert made.returncode == 0, made.stderr
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="debox-crates-", dir="/var/tmp"))
        cls.folder.chmod(0o755)
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Not below the tree, whose workspace they would be part of.
        cls.unpacked = cls.folder / "unpacked"
        cls.unpacked.mkdir()
        for path in (OUT / "packages").glob("*.crate"):
            with tarfile.open(path) as archive:
                # A link would lead out of it.
                assert all(entry.isfile() for entry in archive), path
            run("tar", "xzf", path, "-C", cls.unpacked)

    def packed(self):
        return {path.name.removesuffix(f"-{VERSION}"): path for path in self.unpacked.iterdir()}

    def test_all_are_there_that_are_published(self):
        wanted = {name for name, is_published in published().items() if is_published}
        self.assertIn("debox", wanted)
        self.assertEqual(set(self.packed()), wanted)

    def test_what_they_say_of_themselves(self):
        packed, all_ours = self.packed(), published()
        for name, folder in packed.items():
            with self.subTest(name):
                manifest = tomllib.loads((folder / "Cargo.toml").read_text())
                package = manifest["package"]
                for field in ("description", "repository", "license", "rust-version"):
                    self.assertTrue(package.get(field), field)
                self.assertEqual(package["license"], "MIT OR Apache-2.0")
                for kind in ("dependencies", "build-dependencies", "dev-dependencies"):
                    for key, wanted in manifest.get(kind, {}).items():
                        self.assertNotIn("path", wanted, key)
                        other = wanted.get("package", key) if isinstance(wanted, dict) else key
                        if other in all_ours:
                            self.assertIn(other, packed)
                            self.assertEqual(wanted["version"], VERSION)

    def test_what_is_compiled_lies_in_them(self):
        bpf = self.packed()["debox-bpf"]
        objects = {path.name for path in (bpf / "compiled").iterdir()}
        self.assertEqual(objects, {path.name.removesuffix(".c") + ".o" for path in (TOP / "bpf").glob("*.bpf.c")})
        for name in objects:
            self.assertIn("Linux BPF", run("readelf", "-h", bpf / "compiled" / name).stdout)
        # And what it was compiled of, as its licence wants.
        self.assertEqual({path.name for path in (bpf / "bpf").iterdir()}, {path.name for path in (TOP / "bpf").iterdir()})
        runtime = self.packed()["debox-splice"] / "compiled/debox-splice.bin"
        self.assertEqual(runtime.read_bytes(), (TOP / "target/release/debox-splice.bin").read_bytes())

    def path_without_clang(self):
        folder = self.folder / "path"
        folder.mkdir()
        for place in ("/usr/bin", "/bin", str(pathlib.Path(shutil.which("cargo")).parent)):
            for program in pathlib.Path(place).iterdir():
                link = folder / program.name
                if not re.match(r"clang|llvm|rustfmt|cargo-fmt", program.name) and not link.is_symlink():
                    link.symlink_to(program)
        self.assertIsNone(shutil.which("clang", path=str(folder)))
        return str(folder)

    def install(self, name, path):
        """As `cargo install NAME` does it, if the registry had these packages."""
        patches = self.folder / "patches.toml"
        lines = [f'{other} = {{ path = "{folder}" }}' for other, folder in self.packed().items() if other != name]
        patches.write_text("\n".join(["[patch.crates-io]", *lines]) + "\n")
        run("cargo", "install", "--debug", "--config", patches, "--path", self.packed()[name], "--root", self.folder / "installed",
            cwd=self.folder, env={**os.environ, "PATH": path, "CARGO_TARGET_DIR": str(OUT / "target")})  # fmt: skip

    def test_installed_without_clang_and_run(self):
        path = self.path_without_clang()
        self.install("debox", path)
        programs = self.folder / "installed/bin"
        self.assertEqual({program.name for program in programs.iterdir()}, {"debox"})
        debox = programs / "debox"
        self.assertEqual(run(debox, "--version").stdout, f"debox {VERSION}\n")
        home = self.folder / "home"
        home.mkdir()
        users = [{}]
        if os.geteuid() == 0:
            os.chown(home, NOBODY, NOBODY)
            users = [{"user": NOBODY, "group": NOBODY, "extra_groups": []}]
        # Whoever has no privileges has calls counted, by the runtime that lies in the program.
        for user in users:
            options = {"cwd": home, "env": {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C"}, **user}
            maps = run(debox, "run", "--capture=splice", "--", "cat", "/proc/self/maps", **options)
            self.assertRegex(maps.stdout, rf"{home}/\.cache/debox/splice/[0-9a-f]+\.runtime")
            self.assertRegex(maps.stderr, r"(?m)^\s*execve\b")
        # What is not in it says so, and how it comes.
        said = run(debox, "agent", "--check", status=None)
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("cargo install debox-agent", said.stderr)
        self.install("debox-agent", path)
        self.assertIn("nothing is wrong" if pathlib.Path("/etc/debox/agent.toml").exists() else "the defaults", run(debox, "agent", "--check").stdout)
        if os.geteuid() != 0:
            print("NOT RUN: what is waited for needs root")
            return
        report = self.folder / "report.json"
        run(debox, "run", "--json", "-o", report, "--", "sleep", "0.1", env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")})
        told = json.loads(report.read_text())
        (slept,) = [row for row in told["calls"] if row["name"] == "clock_nanosleep"]
        self.assertEqual(slept["count"], 1)
        self.assertGreaterEqual(slept["blocked_ns"], 99_000_000)
        self.assertTrue([row for row in told["blocking"] if row["label"] == "nanosleep"])


if __name__ == "__main__":
    fresh_start()
    fresh_environment()
    unittest.main()
