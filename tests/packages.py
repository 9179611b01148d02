#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Is what `make packages` makes whole, the same each time, and gone again when it is purged?

Needs root (a Debian of its own is made, below /var/tmp, and entered with chroot) and
a mirror of Debian. All that is mounted there is mounted in namespaces that end with
the commands that need it: nothing is mounted in what is removed.
"""

import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fresh_start import fresh_environment, fresh_start  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[1]
OUT = TOP / "target/packages"
VERSION = re.search(r'^version = "(.*)"$', (TOP / "Cargo.toml").read_text(), re.M)[1]
NEWER = VERSION + "+newer"
MAIN = ("debox", "debox-agent", "libdebox-dev")
SYMBOLS = ("debox-dbgsym", "debox-agent-dbgsym")
NOBODY = 65534
SECONDS = 900
MIRRORS = {"debian": "http://deb.debian.org/debian", "ubuntu": "http://archive.ubuntu.com/ubuntu"}
# Where Debian has what setup/install.sh puts elsewhere.
MOVED = ((r"^usr/share/zsh/site-functions/", "usr/share/zsh/vendor-completions/"), (r"^(usr/)?lib/systemd/", "usr/lib/systemd/"))
# What dpkg, the loader, systemd-analyze and the manual remember, and users that stay (docs/packages.md).
REMEMBERED = re.compile(
    r"var/lib/dpkg/(status|available|lock|lock-frontend|status-old|diversions.*|statoverride.*|triggers/.*)$|var/log/|var/cache/(ldconfig|man)/"
    r"|run/systemd(/systemd-units-load)?$|etc/(ld\.so\.cache|(passwd|group|shadow|gshadow)-?|\.pwd\.lock)$"
)


def run(*command, status=0, **options):
    got = subprocess.run([str(word) for word in command], text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, **options)
    if status is not None and got.returncode != status:
        raise AssertionError(f"{command}: status {got.returncode}\n{got.stdout}\n{got.stderr}")
    return got


def temporary(case):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="debox-packages-", dir="/var/tmp"))
    directory.chmod(0o755)
    case.addCleanup(shutil.rmtree, directory)
    return directory


def deb(package, folder=OUT):
    (found,) = folder.glob(f"{package}_*.deb")
    return found


def field(package, name):
    return run("dpkg-deb", "-f", deb(package), name).stdout.strip()


def tarball():
    (found,) = OUT.glob(f"debox-{VERSION}-*-linux.tar.gz")
    return found


def pack():
    """{file: sha256} of what is made."""
    run(TOP / "setup/pack.sh")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in OUT.iterdir()}


def setUpModule():
    global first, second
    first, second = pack(), pack()


class Made(unittest.TestCase):
    def unpacked(self, package):
        folder = temporary(self)
        run("dpkg-deb", "-x", deb(package), folder)
        return folder

    def test_the_same_twice(self):
        self.assertEqual(first, second)
        packages = {path.name.split("_")[0] for path in OUT.glob("*.deb")}
        self.assertEqual(packages, {*MAIN, *SYMBOLS})
        self.assertEqual(len(first), len(packages) + 1, first)

    def test_lintian_finds_nothing(self):
        user = ["--allow-root"] if os.geteuid() == 0 else []
        said = run("lintian", *user, "--display-info", "--fail-on", "none", *sorted(OUT.glob("*.deb"))).stdout.splitlines()
        # It has remarks that are no warnings: that it looked at all.
        self.assertTrue([line for line in said if line.startswith("I: ")], said)
        self.assertEqual([line for line in said if re.search(r"^[EW]: |(unused|mismatched)-override", line)], [])
        # Why stands above what is overridden.
        for path in TOP.glob("setup/debian/*.lintian-overrides"):
            self.assertTrue(path.read_text().startswith("# "), path)

    def test_each_file_that_is_installed_is_in_one_package(self):
        stage = temporary(self)
        architecture = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").stdout.strip()
        run(TOP / "setup/install.sh", "install",
            env={**os.environ, "PREFIX": "/usr", "LIBDIR": f"/usr/lib/{architecture}", "DESTDIR": str(stage), "SYMBOLS": "within"})  # fmt: skip
        wanted = self.files(stage)
        got = {}
        for package in MAIN:
            folder = self.unpacked(package)
            for name, path in self.files(folder).items():
                if name.startswith(("usr/share/doc/", "usr/share/lintian/")):
                    continue
                self.assertNotIn(name, got)
                got[name] = path
                with self.subTest(name):
                    self.assertIn(name, wanted)
                    self.same(wanted[name], path)
        self.assertEqual(set(got), set(wanted))

    def files(self, folder):
        found = {}
        for path in folder.rglob("*"):
            if path.is_file() or path.is_symlink():
                name = str(path.relative_to(folder))
                for pattern, there in MOVED:
                    name = re.sub(pattern, there, name)
                if name.startswith("usr/share/man/"):
                    name = name.removesuffix(".gz")
                found[name] = path
        return found

    def same(self, source, packed):
        if source.is_symlink():
            self.assertEqual(os.readlink(source), os.readlink(packed))
            return
        if packed.is_symlink():
            # A page of another one's text is a link in Debian.
            self.assertRegex(source.read_text(), rf"^\.so man\d/{re.escape(os.readlink(packed).removesuffix('.gz'))}\n$")
            return
        before, now = source.read_bytes(), packed.read_bytes()
        if before.startswith((b"\x7fELF", b"!<arch>")):
            # Stripped.
            self.assertLess(len(now), len(before))
            self.assertNotIn(".debug_info", run("readelf", "-SW", packed).stdout)
            return
        self.assertEqual(before, gzip.decompress(now) if packed.suffix == ".gz" else now)

    def test_what_packages_say_of_themselves(self):
        for package in (*MAIN, *SYMBOLS):
            with self.subTest(package):
                self.assertEqual(field(package, "Version"), VERSION)
                self.assertRegex(field(package, "Maintainer"), "^DeBox developers <")
                folder = temporary(self)
                run("dpkg-deb", "-R", deb(package), folder)
                run("md5sum", "-c", "--quiet", "--strict", "DEBIAN/md5sums", cwd=folder)
                summed = len((folder / "DEBIAN/md5sums").read_text().splitlines())
                files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and "DEBIAN" not in path.parts]
                self.assertEqual(summed, len(files))
                kib = sum(path.stat().st_size for path in files) / 1024
                self.assertAlmostEqual(int(field(package, "Installed-Size")), kib, delta=100 + kib / 100)
                owners = {line.split()[1] for line in run("dpkg-deb", "-c", deb(package)).stdout.splitlines()}
                self.assertEqual(owners, {"root/root"})
        self.assertRegex(field("debox", "Depends"), r"libc6 \(>= .*libelf1")
        self.assertIn(f"debox (= {VERSION})", field("libdebox-dev", "Depends"))
        self.assertRegex(field("debox-agent", "Depends"), "procps.*systemd-sysusers")

    def test_licences_of_others_are_handed_on(self):
        for package in ("debox", "debox-agent"):
            folder = self.unpacked(package) / "usr/share/doc" / package
            self.assertIn("GPL-2.0 or BSD-2-Clause", (folder / "copyright").read_text())
            text = gzip.decompress((folder / "third-party-licences.gz").read_bytes()).decode()
            for crate in ("clap", "libbpf-rs", "libbpf-sys", "gimli"):
                self.assertRegex(text, rf"(?m)^{crate} [\d.]+\S*: \S+")
            self.assertNotIn("debox-", text)
            # Made by the compiler, and part of no program.
            self.assertNotRegex(text, r"(?m)^(serde_derive|cc) [\d.]+: ")
            self.assertGreater(text.count("Permission is hereby granted"), 10)

    def test_programs_are_small_and_gdb_finds_their_symbols(self):
        symbols = temporary(self)
        for package in SYMBOLS:
            run("dpkg-deb", "-x", deb(package), symbols)
        for package, program in (("debox", "bin/debox"), ("debox-agent", "sbin/deboxd"), ("debox-agent", "libexec/debox-agent"), ("debox-agent", "libexec/debox-serve")):
            path = self.unpacked(package) / "usr" / program
            self.assertLess(path.stat().st_size, 20_000_000)
            debug = f"set debug-file-directory {symbols}/usr/lib/debug"
            self.assertRegex(run("gdb", "-nx", "-batch", "-iex", debug, "-ex", "info line main", path).stdout, r"Line \d+ of ")

    def test_the_tarball_runs_from_any_folder(self):
        folder = temporary(self)
        run("tar", "xzf", tarball(), "-C", folder)
        (top,) = folder.iterdir()
        self.assertEqual(top.name, tarball().name.removesuffix(".tar.gz"))
        self.assertEqual({line.split()[1] for line in run("tar", "tvzf", tarball()).stdout.splitlines()}, {"root/root"} if os.geteuid() else {"0/0"})
        self.assertLessEqual({"README.md", "LICENSE-MIT", "LICENSE-APACHE", "LICENSE-BPF"}, {path.name for path in top.iterdir()})
        moved = folder / "elsewhere" / "here"
        moved.parent.mkdir()
        top.rename(moved)
        home = folder / "home"
        home.mkdir()
        if os.geteuid() == 0:
            os.chown(home, NOBODY, NOBODY)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        options = {"cwd": home, "env": {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C"}, **user}
        debox = moved / "bin/debox"
        self.assertEqual(run(debox, "--version", **options).stdout, f"debox {VERSION}\n")
        for words, library in ((["select"], "libdebox-select.so"), (["run", "--capture=splice"], "debox-splice.bin")):
            maps = run(debox, *words, "--", "cat", "/proc/self/maps", **options).stdout
            self.assertRegex(maps, rf"{moved}/\S*/{library}")
        self.assertRegex(run(debox, "run", "--", "/bin/true", **options).stderr, r"(?m)^\s*execve\b")
        self.assertIn(str(moved), run("man", "-M", moved / "share/man", "-w", "debox-run", **options).stdout)


class Debian:
    """A Debian in a folder, with what our packages need and not them."""

    def __init__(self, mirror, suite):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="debox-packages-", dir="/var/tmp"))
        self.root = self.directory / "root"
        # Of alternatives the first.
        needed = {re.split(r"[ |:]", name)[0] for package in MAIN for name in field(package, "Depends").split(", ")}
        include = {"man-db", "gcc", "libc6-dev", "pkg-config"} | needed - set(MAIN)
        # What it mounts goes with the namespace, however it ends.
        run("unshare", "--mount", "--propagation", "private",
            "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--include=" + ",".join(sorted(include)), suite, self.root, mirror)  # fmt: skip

    def remove(self):
        mounted = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
        within = [place for place in mounted if pathlib.Path(place).is_relative_to(self.directory)]
        assert not within, f"{within} is mounted: {self.directory} is left as it is"
        shutil.rmtree(self.directory)

    def run(self, *command, user=0, status=0, **environment):
        return run("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", f"--mount-proc={self.root}/proc",
                   "chroot", f"--userspec={user}:{user}", self.root, *command, status=status,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", **environment})  # fmt: skip

    def install(self, folder):
        there = self.root / "tmp/packages"
        there.mkdir()
        for package in (*MAIN, *SYMBOLS):
            shutil.copy(deb(package, folder), there)
        self.run("sh", "-c", "exec dpkg --install /tmp/packages/*.deb")
        shutil.rmtree(there)

    def files(self):
        """What is there, and of files when they were written."""
        found = {}
        for folder, folders, names in os.walk(self.root):
            if pathlib.Path(folder) == self.root:
                folders[:] = [name for name in folders if name not in ("proc", "sys", "dev", "tmp")]
            for name in (*folders, *names):
                path = pathlib.Path(folder, name)
                told = path.lstat()
                directory = path.is_dir() and not path.is_symlink()
                found[str(path.relative_to(self.root))] = (told.st_mode, told.st_uid, *(() if directory else (told.st_size, told.st_mtime_ns)))
        return found

    def lines(self, name):
        return set((self.root / name).read_text().splitlines())


@unittest.skipUnless(os.geteuid() == 0, "NOT RUN: installing in a Debian of its own needs root")
class Installed(unittest.TestCase):
    def newer(self):
        """The packages as the next version would be."""
        folder = temporary(self)
        for package in (*MAIN, *SYMBOLS):
            inside = folder / package
            run("dpkg-deb", "-R", deb(package), inside)
            control = inside / "DEBIAN/control"
            text = control.read_text()
            control.write_text(text.replace(f"Version: {VERSION}\n", f"Version: {NEWER}\n").replace(f"(= {VERSION})", f"(= {NEWER})"))
            # Not compressed: that takes the time.
            run("dpkg-deb", "-Znone", "--root-owner-group", "-b", inside, folder / f"{package}_{NEWER}_all.deb")
        return folder

    def test_installed_upgraded_removed_purged(self):
        system = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', pathlib.Path("/etc/os-release").read_text(), re.M))
        mirror, suite = MIRRORS.get(system["ID"]), system.get("VERSION_CODENAME")
        try:
            urllib.request.urlopen(f"{mirror}/dists/{suite}/InRelease", timeout=20).close()
        except (OSError, ValueError) as error:
            print(f"NOT RUN: no mirror of Debian answers for {suite}: {error}")
            return
        debian = Debian(mirror, suite)
        self.addCleanup(debian.remove)
        before, users = debian.files(), debian.lines("etc/passwd")

        debian.install(OUT)
        self.works(debian, VERSION)
        self.assertEqual(debian.run("systemctl", "is-enabled", "deboxd.socket").stdout, "enabled\n")
        self.assertRegex("\n".join(debian.lines("etc/passwd") - users), r"^debox:[^\n]*:/usr/sbin/nologin$")
        debian.run("systemd-analyze", "verify", "deboxd.socket", "deboxd.service")

        # What an administrator has chosen stays so.
        debian.run("systemctl", "disable", "deboxd.socket")
        debian.install(self.newer())
        self.works(debian, NEWER)
        self.assertEqual(debian.run("systemctl", "is-enabled", "deboxd.socket", status=1).stdout, "disabled\n")
        debian.run("systemctl", "enable", "deboxd.socket")

        # As runs of root leave it.
        kept = debian.root / "var/cache/debox/splice/copy"
        kept.parent.mkdir(parents=True)
        kept.write_text("")
        ours = (*MAIN, *SYMBOLS)
        debian.run("dpkg", "--remove", *ours)
        self.assertTrue(kept.exists())
        self.assertFalse((debian.root / "usr/bin/debox").exists())
        debian.run("dpkg", "--purge", *ours)
        after = debian.files()
        left = {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        self.assertEqual({name: told for name, told in left.items() if not REMEMBERED.search(name)}, {})
        self.assertNotIn("debox", debian.run("dpkg-query", "-W").stdout)
        self.assertNotIn("debox", debian.run("ldconfig", "-p").stdout)

    def works(self, debian, version):
        self.assertEqual(debian.run("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n", *MAIN, *SYMBOLS).stdout.splitlines(),
                         sorted(f"{package} {version} ii " for package in (*MAIN, *SYMBOLS)))  # fmt: skip
        self.assertEqual(debian.run("dpkg", "--verify", *MAIN, *SYMBOLS).stdout, "")
        self.assertEqual(debian.run("debox", "--version").stdout, f"debox {VERSION}\n")
        self.assertRegex(debian.run("deboxd", "--version").stdout, "^deboxd ")
        cache = debian.root / "tmp/cache"
        cache.mkdir(exist_ok=True)
        os.chown(cache, NOBODY, NOBODY)
        ran = debian.run("debox", "run", "--capture=splice", "--", "/bin/true", user=NOBODY, XDG_CACHE_HOME="/tmp/cache")
        for call in ("execve", "exit_group"):
            self.assertRegex(ran.stderr, rf"(?m)^\s*{call}\b")
        for page, section in (("debox", 1), ("debox_last", 3), ("deboxd", 8)):
            self.assertEqual(debian.run("man", "-w", page).stdout, f"/usr/share/man/man{section}/{page}.{section}.gz\n")
        self.assertIn("debox", debian.run("bash", "-c", ". /usr/share/bash-completion/completions/debox; complete -p debox").stdout)
        flags = debian.run("pkg-config", "--cflags", "--libs", "debox").stdout.split()
        self.assertIn("-ldebox", flags)
        shutil.copy(TOP / "examples/bracket.c", debian.root / "tmp")
        debian.run("cc", "-Wall", "-Wextra", "-Werror", "-o", "/tmp/bracket", "/tmp/bracket.c", *flags)
        self.assertIn("libdebox.so.0", debian.run("ldd", "/tmp/bracket").stdout)
        self.assertIn("DeBoxInfo", debian.run("/tmp/bracket", user=NOBODY).stdout)


if __name__ == "__main__":
    fresh_start()
    fresh_environment()
    unittest.main()
