#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""What is in the image of the agent, and how does it come to be without a daemon and without root?

    setup/image.py FOLDER IMAGE.tar     (by setup/pack.sh; docs/packages.md, "The image")

FOLDER is what the packages debox and debox-agent unpack to. Of it the image has the
command and the agent, and of this machine the libraries that they are linked with. It
is an OCI image layout in a tar: one layer, its configuration, a manifest and an index,
each by its checksum. Nothing in it is of the day or of the user who makes it.

The user is not root: a program of root's with CAP_BPF among the machine's processes
could be signalled into more than it has. Who is not root has capabilities by the file
that he executes, and that file is debox-agent.
"""

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
import time
import zlib

TOP = pathlib.Path(__file__).resolve().parents[1]
SOURCE = "https://github.com/debox/debox"
USER, UID = "debox", 65532
PORT = 9464
PROGRAMS = ("usr/bin/debox", "usr/libexec/debox-agent")
AGENT = PROGRAMS[1]
# BPF, PERFMON: to load, attach and watch. SYSLOG: addresses in kallsyms. Numbers of linux/capability.h.
CAPABILITIES = {"CAP_SYSLOG": 34, "CAP_PERFMON": 38, "CAP_BPF": 39}
FOLDERS = {"tmp": 0o1777, "proc": 0o755, "sys": 0o755, "dev": 0o755, "etc/debox": 0o755, "var/lib/debox/flight": 0o750}
OWN = {"var/lib/debox/flight"}
# Where libraries and programs are, on a machine whose /usr is merged.
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def capability_attribute():
    """vfs_cap_data of version 2, effective: what the kernel reads of security.capability."""
    bits = sum(1 << number for number in CAPABILITIES.values())
    words = (0x0200_0001, bits & 0xFFFF_FFFF, 0, bits >> 32, 0)
    return b"".join(word.to_bytes(4, "little") for word in words)


def libraries(programs):
    """{name in the image: file} of what the loader would load; its own name is in each program."""
    found = {}
    for program in programs:
        for line in run("ldd", program).splitlines():
            # NAME => PATH (0x...), or the loader: PATH (0x...)
            if match := re.search(r"(?:=> )?(/\S+) \(0x", line):
                path = pathlib.Path(match[1])
                real = path.resolve()
                place = str((path.parent.resolve() / path.name).relative_to("/"))
                found[place if place.startswith("usr/") else f"usr/{place}"] = real
            elif "not found" in line:
                sys.exit(f"image: {program} needs {line.split()[0]}, which is not here: install it")
    return found


def packages_of(files):
    """Debian's names of the packages that brought these files."""
    names = set()
    for path in files:
        # dpkg knows a file by the name that it had in its package: before or after /usr was merged.
        for name in (str(path), str(path).removeprefix("/usr")):
            told = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True).stdout
            if told:
                names.add(told.split(": ")[0].split(",")[0])
                break
        else:
            sys.exit(f"image: no Debian package brought {path}: its licence cannot be told")
    return sorted(names)


class Layer:
    def __init__(self, epoch):
        self.epoch = epoch
        # {name: (TarInfo, bytes)}
        self.entries = {}

    def put(self, name, kind, mode, data=b"", link="", uid=0, attributes=None):
        for parent in reversed(pathlib.PurePosixPath(name).parents[:-1]):
            if str(parent) not in self.entries:
                self.put(str(parent), tarfile.DIRTYPE, 0o755)
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode, self.epoch, len(data), link
        info.uid = info.gid = uid
        if attributes:
            info.pax_headers = attributes
        self.entries[name] = (info, data)

    def folder(self, name, mode, uid=0):
        self.put(name, tarfile.DIRTYPE, mode, uid=uid)

    def link(self, name, to):
        self.put(name, tarfile.SYMTYPE, 0o777, link=to)

    def text(self, name, text):
        self.put(name, tarfile.REGTYPE, 0o644, text.encode())

    def file(self, name, source, attributes=None):
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        self.put(name, tarfile.REGTYPE, mode, pathlib.Path(source).read_bytes(), attributes=attributes)

    def tar(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(self.entries):
                info, data = self.entries[name]
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()


def gzipped(data):
    """Without a name and a time."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def root_file_system(folder, epoch):
    layer = Layer(epoch)
    for name, to in LINKS.items():
        layer.folder(to, 0o755)
        layer.link(name, to)
    for name, mode in FOLDERS.items():
        layer.folder(name, mode, UID if name in OWN else 0)
    attribute = {"SCHILY.xattr.security.capability": capability_attribute().decode("utf-8", "surrogateescape")}
    for name in PROGRAMS:
        layer.file(name, folder / name, attribute if name == AGENT else None)
    needed = libraries(folder / name for name in PROGRAMS)
    for name, path in needed.items():
        layer.file(name, path)
    layer.file("etc/debox/agent.toml", folder / "usr/share/debox/agent.toml")
    layer.text("etc/passwd", f"root:x:0:0:root:/:/usr/sbin/nologin\n{USER}:x:{UID}:{UID}:DeBox agent:/:/usr/sbin/nologin\n")
    layer.text("etc/group", f"root:x:0:\n{USER}:x:{UID}:\n")
    # Ours, and those of the libraries: their texts, and for who looks for known defects their versions.
    for name in ("debox", "debox-agent"):
        for path in sorted((folder / "usr/share/doc" / name).glob("*")):
            if path.name == "copyright" or path.name.startswith("third-party-licences"):
                layer.file(f"usr/share/doc/{name}/{path.name}", path)
    packages = packages_of(needed.values())
    for package in packages:
        name = package.split(":")[0]
        layer.file(f"usr/share/doc/{name}/copyright", pathlib.Path("/usr/share/doc", name, "copyright"))
        layer.text(f"var/lib/dpkg/status.d/{name}", run("dpkg-query", "-s", package))
    for path in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()):
        if path.is_symlink():
            layer.link(f"usr/share/common-licenses/{path.name}", os.readlink(path))
        else:
            layer.file(f"usr/share/common-licenses/{path.name}", path)
    return layer.tar()


def main():
    folder, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if not shutil.which("dpkg-query"):
        sys.exit("image: dpkg-query is missing: the licences of libraries are known on Debian and Ubuntu only")
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    version = re.search(r'^version = "(.*)"$', (TOP / "Cargo.toml").read_text(), re.M)[1]
    revision = subprocess.run(["git", "-C", TOP, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    labels = {
        "org.opencontainers.image.title": "debox-agent",
        "org.opencontainers.image.description": "What a machine waits for, for Prometheus, and the last recordings",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.source": SOURCE,
        "org.opencontainers.image.documentation": f"{SOURCE}/blob/main/docs/packages.md",
        **({"org.opencontainers.image.revision": revision} if revision else {}),
    }
    blobs = {}

    def blob(kind, data):
        name = hashlib.sha256(data).hexdigest()
        blobs[name] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{name}", "size": len(data)}

    def packed(value):
        return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"

    layer = root_file_system(folder, epoch)
    configuration = {
        "architecture": run("dpkg", "--print-architecture").strip(),
        "os": "linux",
        "created": created,
        "config": {
            "User": f"{UID}:{UID}",
            "Entrypoint": ["/usr/bin/debox", "agent"],
            "Env": ["PATH=/usr/bin"],
            "WorkingDir": "/",
            "ExposedPorts": {f"{PORT}/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "setup/image.py"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", packed(configuration)),
        "layers": [blob("layer.v1.tar+gzip", gzipped(layer))],
        "annotations": labels,
    }
    described = blob("manifest.v1+json", packed(manifest))
    # The second is what containerd and Docker name it by.
    described["annotations"] = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"docker.io/library/debox-agent:{version}"}
    described["platform"] = {key: configuration[key] for key in ("architecture", "os")}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}

    archive = Layer(epoch)
    for name, data in {"oci-layout": packed({"imageLayoutVersion": "1.0.0"}), "index.json": packed(index),
                       **{f"blobs/sha256/{name}": data for name, data in blobs.items()}}.items():  # fmt: skip
        archive.put(name, tarfile.REGTYPE, 0o644, data)
    target.write_bytes(archive.tar())


if __name__ == "__main__":
    main()
