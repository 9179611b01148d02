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

# What cannot run here: says so, and ends as tests do that did not run.
cannot() {
	echo "NOT RUN: $*" >&2
	exit 77
}
need() {
	for tool; do
		command -v "$tool" >/dev/null || cannot "not installed: $tool"
	done
}

# On a disk: /tmp is memory on many machines, and memory never waits.
place=$(mktemp -d "${CASE_DIR:-/var/tmp}/debox-case.XXXXXX")
children=
loop=
group= # a control group, for as long as the case runs
cleanup() {
	status=$?
	for child in $children; do kill "$child" 2>/dev/null || true; done
	cd /
	if [ -n "$loop" ]; then
		umount "$place/disk" 2>/dev/null || umount --lazy "$place/disk" 2>/dev/null || true
		losetup --detach "$loop" 2>/dev/null || true
	fi
	[ -z "$group" ] || rmdir "$group" || status=1
	rm -rf "$place"
	[ "$status" != 0 ] || exit $failed
	exit $status
}
trap cleanup EXIT
trap 'exit 1' INT TERM
cd "$place"

# A fresh ext4 with a journal, of so many megabytes, at $place/disk: a case is
# then the same everywhere, and unmounting makes it cold without emptying the
# whole machine's caches. Direct I/O, so that the image is not cached either.
disk() {
	truncate -s "$1M" image
	loop=$(losetup --find --show --direct-io=on image) ||
		cannot "this case needs a loop device (CONFIG_BLK_DEV_LOOP; not in most containers)"
	mkfs.ext4 -q -F "$loop"
	mkdir disk
	mount "$loop" disk
}

# The interpreter itself, not a version manager's script.
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')

title() { printf '\n== %s\n' "$*"; }

# The sentences at a report's beginning, in one line.
sentences() { sed -n '2,/^$/p' "$1" | tr -s ' \n' ' '; }

# Shows a report, and holds its sentences against an expert's: what must be said, and
# what must not. Each is an extended regular expression.
report=$place/report.txt
failed=0
says() {
	# What is said of rests is said of no wait.
	said=$(sentences "$report" | sed 's/; the other [0-9]* % of the time it slept until something came[^;.]*//')
	if ! printf '%s' "$said" | grep -Eq -- "$1"; then
		echo "NOT SAID: $1" >&2
		failed=1
	fi
	if [ -n "${2:-}" ] && printf '%s' "$said" | grep -Eq -- "$2"; then
		echo "SAID WRONGLY: $2" >&2
		failed=1
	fi
}
verdict() {
	sed "/^$/q" "$report"
	says "$@"
}

# The calls and places with the most blocked time, of a command.
blocked() { "$debox" run --sort blocked --top "$1" --quiet -o report.txt -- sh -c "$2"; cat report.txt; }

# By other means: what the kernel says of a command's CPU time.
getrusage() {
	python3 - "$@" <<-'EOF'
		import resource, subprocess, sys, time
		begin = time.monotonic()
		subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
		used = resource.getrusage(resource.RUSAGE_CHILDREN)
		print(f"by getrusage: {time.monotonic() - begin:.2f} s, user {used.ru_utime:.2f} s, system {used.ru_stime:.2f} s, "
		      f"{used.ru_minflt:,} page faults")
	EOF
}

# Until a command succeeds, ten seconds at most.
await() {
	tries=0
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ $tries -lt 100 ] || { echo "not within 10 s: $*" >&2; return 1; }
		sleep 0.1
	done
}

free_port() {
	python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
