#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Does a stranger get along with nothing but what `make install` installs?

Everything below is compiled and run against an installed prefix alone, in a
directory from which the source tree cannot be seen, as the user 65534 where
that can be.

Programs in the documents are tested so: every block fenced as c, cpp or rust in
README.md and docs/*.md is compiled. One with a `main` is a program: it must
build without a warning, run, and end with 0. One without is the inside of a
function, after the includes of the block before it. There is no way to mark a
block as untested.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fresh_start import fresh_start  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[1]
OUT = TOP / "target/release"
PRODUCTS = ("debox", "deboxd", "debox-agent", "debox-serve", "debox-fleet", "libdebox.so.0", "libdebox.a", "libdebox-wrap.so", "libdebox-select.so", "debox-splice.bin")
NOBODY = 65534
SECONDS = 300
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def documents():
    """[(document, line, language, text)] of all fenced programs."""
    found = []
    for path in [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]:
        lines = path.read_text().split("\n")
        begin = None
        for number, line in enumerate(lines):
            if match := re.match(r"```(\w*)\s*$", line):
                if begin is None:
                    begin = (number, match[1])
                else:
                    if begin[1] in ("c", "cpp", "rust"):
                        found.append((path.name, begin[0] + 1, begin[1], "\n".join(lines[begin[0] + 1 : number]) + "\n"))
                    begin = None
    return found


def as_program(language, text, before):
    if re.search(r"\bmain\(", text):
        return text
    if language == "rust":
        return f"fn main() -> Result<(), Box<dyn std::error::Error>> {{\n{text}\nOk(())\n}}\n"
    includes = "\n".join(re.findall(r"^#include.*$", before, re.M)) or "#include <debox.h>"
    return f"{includes}\nint main(void)\n{{\n{text}\nreturn 0;\n}}\n"


class Stranger:
    """A directory of the user 65534 (of this one, where that cannot be), with the tree in it."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="debox-stranger-", dir="/var/tmp"))
        self.directory.chmod(0o755)
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self.tree = self.directory / "tree"
        names = subprocess.run(["git", "-C", TOP, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
        ignore = shutil.ignore_patterns("target", ".git", "bench", "vm")
        if names.returncode:
            shutil.copytree(TOP, self.tree, ignore=ignore, symlinks=True)
        else:
            for name in names.stdout.split("\n"):
                source = TOP / name
                if name and (source.is_file() or source.is_symlink()):
                    (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, self.tree / name, follow_symlinks=False)
        self.home = self.directory / "home"
        self.home.mkdir()
        if self.user:
            for path in [self.home, self.tree, *self.tree.rglob("*")]:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        # Not the stranger's own: `make install` takes them as they are.
        (self.tree / "target/release").mkdir(parents=True)
        for product in PRODUCTS:
            shutil.copy(OUT / product, self.tree / "target/release" / product)

    def run(self, *command, user=True, status=0, umask=0o022, **environment):
        got = subprocess.run(
            [str(word) for word in command], cwd=self.home if user else "/", text=True, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=SECONDS, umask=umask,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C", **environment},
            **(self.user if user else {}),
        )  # fmt: skip
        if status is not None and got.returncode != status:
            raise AssertionError(f"{command}: status {got.returncode}\n{got.stdout}\n{got.stderr}")
        return got

    def make(self, *words, **options):
        return self.run("make", "-C", self.tree, *words, **options)

    def write(self, name, text):
        path = self.home / name
        path.write_text(text)
        return path


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stranger = Stranger()
        cls.addClassCleanup(shutil.rmtree, cls.stranger.directory)
        cls.prefix = cls.stranger.home / "opt"
        # Twice, and with the umask of the careful.
        for _ in range(2):
            cls.stranger.make("install", f"PREFIX={cls.prefix}", umask=0o077)
        # Only what is installed is left to find.
        cls.stranger.tree.rename(cls.stranger.directory / "hidden")
        (cls.stranger.directory / "hidden").chmod(0)

    def package(self, *options):
        at = self.prefix / "lib/pkgconfig"
        return self.stranger.run("pkg-config", f"--with-path={at}", *options, "debox").stdout.split()

    def compiled(self, source, *options, flags=None):
        program = source.with_suffix("")
        compiler = ["c++", "-std=c++11"] if source.suffix == ".cc" else ["cc"]
        flags = self.package("--cflags", "--libs") if flags is None else flags
        self.stranger.run(*compiler, "-O2", *WARNINGS, "-o", program, source, *options, *flags)
        return program

    def output(self, program, **environment):
        return self.stranger.run(program, LD_LIBRARY_PATH=str(self.prefix / "lib"), **environment).stdout

    def test_programs_are_small_and_their_symbols_lie_beside_them(self):
        for program in ("bin/debox", "sbin/deboxd"):
            path = self.prefix / program
            symbols = path.parent / ".debug" / (path.name + ".debug")
            self.assertLessEqual(path.stat().st_size, 20_000_000, program)
            sections = self.stranger.run("readelf", "-SW", path).stdout
            self.assertNotIn(".debug_info", sections)
            self.assertIn(".gnu_debuglink", sections)
            self.assertIn(".debug_info", self.stranger.run("readelf", "-SW", symbols).stdout)
            found = self.stranger.run("gdb", "-nx", "-batch", "-ex", "info line main", path).stdout
            self.assertRegex(found, r"Line \d+ of ", program)

    def test_programs_of_the_documents(self):
        counts = {"c": 0, "cpp": 0, "rust": 0}
        before = ""
        for document, line, language, text in documents():
            with self.subTest(document=document, line=line):
                counts[language] += 1
                text, before = as_program(language, text, before), text
                if language == "rust":
                    self.output(self.rust(text))
                    continue
                suffix = {"c": ".c", "cpp": ".cc"}[language]
                source = self.stranger.write(f"document-{line}{suffix}", text)
                self.assertTrue(self.output(self.compiled(source)))
        self.assertTrue(all(counts.values()), counts)

    def test_the_program_of_the_readme_linked_statically(self):
        text = next(text for name, _, language, text in documents() if (name, language) == ("README.md", "c"))
        source = self.stranger.write("static.c", text)
        program = self.compiled(source, "-static", flags=self.package("--static", "--cflags", "--libs"))
        self.assertIn("DeBoxInfo", self.stranger.run(program).stdout)

    def test_every_c_example(self):
        examples = sorted((TOP / "examples").glob("*.c"))
        self.assertTrue(any("debox_compat.h" in path.read_text() for path in examples))
        for path in examples:
            with self.subTest(path.name):
                source = self.stranger.write(f"example-{path.name}", path.read_text())
                self.compiled(source, flags=[*self.package("--cflags", "--libs"), "-ldebox-wrap", "-lpthread"])

    def test_every_header_alone(self):
        installed = {str(path.relative_to(self.prefix)) for path in self.prefix.glob("include/**/*.h")}
        self.assertEqual(installed, {str(path.relative_to(TOP)) for path in TOP.glob("include/**/*.h")})
        for name in sorted(installed):
            for suffix in (".c", ".cc"):
                with self.subTest(name + suffix):
                    source = self.stranger.write("header" + suffix, f"#include <{name[8:]}>\nint main(void) {{ return 0; }}\n")
                    self.compiled(source)

    def test_the_interposer_as_a_library(self):
        source = self.stranger.write("wrapped.c", """
            #include <debox.h>
            #include <fcntl.h>
            int main(void)
            {
                struct debox_info info = { .size = sizeof info };
                debox_open(0);
                return open("/etc/passwd", O_RDONLY) < 0 || debox_last(&info) || info.nr != 257;
            }""")
        self.output(self.compiled(source, "-Wl,--no-as-needed", flags=[*self.package("--cflags", "--libs"), "-ldebox-wrap"]))

    def rust(self, text):
        """The project of somebody who does what README.md says."""
        project = pathlib.Path(tempfile.mkdtemp(dir=self.stranger.directory))
        self.addCleanup(shutil.rmtree, project)
        project.chmod(0o755)
        (project / "src").mkdir()
        (project / "src/main.rs").write_text(text)
        (project / "Cargo.toml").write_text('[package]\nname = "stranger"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n')
        # Versions that are at hand: this must not need the network.
        shutil.copy(TOP / "Cargo.lock", project)
        environment = {**os.environ, "CARGO_TARGET_DIR": str(project / "target")}
        environment.pop("MAKEFLAGS", None)
        for words in (["add", "--path", self.prefix / "share/debox/rust/debox"], ["build"]):
            # cargo and its cache are this user's; what it makes the stranger runs.
            got = subprocess.run(["cargo", *words, "--offline"], cwd=project, env=environment, text=True,
                                 capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)  # fmt: skip
            self.assertEqual(got.returncode, 0, got.stderr)
        return project / "target/debug/stranger"

    def test_the_rust_example(self):
        program = self.rust((TOP / "crates/debox/examples/read_file.rs").read_text())
        self.assertIn("all of it: span of 2 calls", self.stranger.run(program, "/etc/passwd").stdout)

    def test_links_and_modes(self):
        link = self.prefix / "lib/libdebox.so"
        self.assertEqual(os.readlink(link), "libdebox.so.0")
        soname = self.stranger.run("readelf", "-d", link).stdout
        self.assertIn("[libdebox.so.0]", soname)
        for path in self.prefix.rglob("*"):
            wanted = 0o755 if path.is_dir() or path.parent.name in ("bin", "sbin", "libexec") or re.search(r"\.so(\.|$)", path.name) else 0o644
            if not path.is_symlink() and path != self.prefix:
                self.assertEqual(path.stat().st_mode & 0o777, wanted, path)
        self.assertIn(str(self.prefix), self.stranger.run("man", "-M", self.prefix / "share/man", "-w", "debox-run").stdout)

    def test_parts_of_their_own_are_found(self):
        debox = self.prefix / "bin/debox"
        missing = self.stranger.home / "no-agent.toml"
        self.assertIn(str(missing), self.stranger.run(debox, "agent", "--check", "--config", missing, status=125).stderr)
        self.assertIn("HOST:PORT", self.stranger.run(debox, "serve", "--listen", "nowhere", status=2).stderr)
        boards = self.prefix / "share/debox/dashboards"
        self.assertEqual({path.name for path in boards.iterdir()}, {path.name for path in (TOP / "dashboards").iterdir() if path.suffix in (".json", ".yml")})

    def assert_units(self, prefix, root=""):
        units = sorted(pathlib.Path(f"{root}{prefix}/lib/systemd/system").iterdir())
        self.assertEqual([u.name for u in units], sorted(p.name for p in TOP.glob("systemd/*.s*")))
        for unit in units:
            self.assertNotRegex(unit.read_text(), r"@[A-Z]+@")
        starts = re.findall(r"^ExecStart=(\S+)", "".join(unit.read_text() for unit in units), re.M)
        self.assertEqual(starts, [f"{prefix}/bin/debox", f"{prefix}/sbin/deboxd"])
        for start in starts:
            self.assertTrue(os.access(f"{root}{start}", os.X_OK), start)

    def test_units(self):
        self.assert_units(self.prefix)
        self.assertRegex(self.stranger.run(self.prefix / "sbin/deboxd", "--version").stdout, "deboxd")

    def test_debox_finds_its_libraries(self):
        maps = self.stranger.run(self.prefix / "bin/debox", "select", "--", "cat", "/proc/self/maps")
        self.assertIn(str(self.prefix / "lib/libdebox-select.so"), maps.stdout)
        maps = self.stranger.run(self.prefix / "bin/debox", "run", "--capture=splice", "--", "cat", "/proc/self/maps")
        self.assertIn(str(self.prefix / "lib/debox-splice.bin"), maps.stdout)
        self.assertRegex(maps.stderr, r"(?m)^\s*openat\b")
        if os.environ.get("DEBOX_TEST_NO_BPF") == "1":
            print("NOT RUN: debox run --capture=wrap (DEBOX_TEST_NO_BPF=1)")
            return
        maps = self.stranger.run(self.prefix / "bin/debox", "run", "--capture=wrap", "--", "cat", "/proc/self/maps", user=False)
        for name in ("libdebox-wrap.so", "libdebox.so.0"):
            self.assertIn(str(self.prefix / "lib" / name), maps.stdout)
        self.assertRegex(maps.stderr, r"(?m)^\s*openat\b")


class Packaged(unittest.TestCase):
    def test_destdir(self):
        stranger = Stranger()
        self.addCleanup(shutil.rmtree, stranger.directory)
        stage = stranger.home / "stage"
        stranger.make("install", "PREFIX=/usr", f"DESTDIR={stage}")
        Installed.assert_units(self, "/usr", str(stage))
        self.assertEqual([path.name for path in stage.iterdir()], ["usr"])
        # Nothing tells of where it was staged.
        for path in stage.rglob("*"):
            if path.is_file() and path.suffix in (".pc", ".service", ".toml", ""):
                self.assertNotIn(str(stage).encode(), path.read_bytes(), path)
        text = next(text for _, _, language, text in documents() if language == "c")
        source = stranger.write("note.c", text)
        environment = {"PKG_CONFIG_SYSROOT_DIR": str(stage), "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1",
                       "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1", "PKG_CONFIG_LIBDIR": str(stage / "usr/lib/pkgconfig")}  # fmt: skip
        flags = stranger.run("pkg-config", "--cflags", "--libs", "debox", **environment).stdout.split()
        self.assertIn(f"-I{stage}/usr/include", flags)
        stranger.run("cc", *WARNINGS, "-o", source.with_suffix(""), source, *flags)
        ran = stranger.run(source.with_suffix(""), LD_LIBRARY_PATH=f"{stage}/usr/lib")
        self.assertIn("DeBoxInfo", ran.stdout)
        stranger.make("uninstall", "PREFIX=/usr", f"DESTDIR={stage}")
        # The prefix alone, and nothing in it.
        self.assertEqual(list(stage.rglob("*")), [stage / "usr"])

    def test_uninstall_leaves_what_is_not_ours(self):
        stranger = Stranger()
        self.addCleanup(shutil.rmtree, stranger.directory)
        prefix = stranger.home / "opt"
        where = [f"PREFIX={prefix}", f"LIBDIR={prefix}/lib/x86_64-linux-gnu"]
        stranger.make("install", *where)
        kept = prefix / "share/man/man1/theirs.1"
        kept.write_text("")
        stranger.make("uninstall", *where)
        self.assertEqual(set(prefix.rglob("*")), {kept, *list(kept.parents)[:3]})
        stranger.make("uninstall", *where)

    def test_what_cannot_be_is_said(self):
        stranger = Stranger()
        self.addCleanup(shutil.rmtree, stranger.directory)
        got = stranger.make("install", "PREFIX=relative", status=2)
        self.assertIn("must begin with /", got.stderr)
        (stranger.tree / "target/release/libdebox.a").unlink()
        got = stranger.make("install", f"PREFIX={stranger.home}/opt", status=2)
        self.assertIn("libdebox.a is missing: run `make build` first", got.stderr)


if __name__ == "__main__":
    fresh_start()
    unittest.main()
