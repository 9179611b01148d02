# SPDX-License-Identifier: MIT OR Apache-2.0
# What do all cases need? A place, debox, and to leave nothing behind.
# Sourced by the scripts beside it.

set -eu
cases=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$cases/../.." && pwd)
debox=${DEBOX:-$root/target/release/debox}
export LC_ALL=C NO_COLOR=1

[ "$(id -u)" = 0 ] || { echo "run it as root: debox starts a private broker then" >&2; exit 1; }
[ -x "$debox" ] || { echo "no $debox: run make, or set DEBOX" >&2; exit 1; }

need() {
	for tool; do
		command -v "$tool" >/dev/null || { echo "not installed: $tool" >&2; exit 1; }
	done
}

# On a disk: /tmp is memory on many machines, and memory never waits.
place=$(mktemp -d "${CASE_DIR:-/var/tmp}/debox-case.XXXXXX")
children=
loop=
cleanup() {
	for child in $children; do kill "$child" 2>/dev/null || true; done
	cd /
	if [ -n "$loop" ]; then
		umount "$place/disk" 2>/dev/null || umount --lazy "$place/disk" 2>/dev/null || true
		losetup --detach "$loop" 2>/dev/null || true
	fi
	rm -rf "$place"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
cd "$place"

# A fresh ext4 with a journal, of so many megabytes, at $place/disk: a case is
# then the same everywhere, and unmounting makes it cold without emptying the
# whole machine's caches. Direct I/O, so that the image is not cached either.
disk() {
	truncate -s "$1M" image
	loop=$(losetup --find --show --direct-io=on image) || {
		echo "this case needs a loop device (CONFIG_BLK_DEV_LOOP; not in most containers)" >&2
		exit 1
	}
	mkfs.ext4 -q -F "$loop"
	mkdir disk
	mount "$loop" disk
}

# The interpreter itself, not a version manager's script.
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')

title() { printf '\n== %s\n' "$*"; }

# The calls and places with the most blocked time, of a command.
blocked() { "$debox" run --sort blocked --top "$1" --quiet -o report.txt -- sh -c "$2"; cat report.txt; }

free_port() {
	python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
