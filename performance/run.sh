#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does DeBox cost on this machine? Prints one table; writes it, with every
# variant behind it, to docs/PERFORMANCE.md.
#
#   performance/run.sh            a few minutes
#   performance/run.sh --quick    under a minute; prints only
#   performance/run.sh --help     other options
#
# Needs what `make build` leaves in target/release, root, and two CPUs; nginx,
# wrk, strace, perf and bpftrace are compared with when they are installed
# (make setup-test).
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
for file in debox deboxd debox-bench-hooks libdebox.so libdebox-wrap.so; do
	[ -e "$top/target/release/$file" ] || {
		echo "bench: target/release/$file is missing: run make build" >&2
		exit 1
	}
done
make -s -f "$top/performance/build.mk"
exec python3 "$top/performance/bench.py" "$@"
