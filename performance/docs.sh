#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What do README.md and docs/bench.md say was measured? Measures it (about 20
# minutes, on a machine that does nothing else) and writes it there, with its
# charts. Nothing is written before all of it has been measured. With --quick
# (a minute) it only shows what it would say: such figures are not for keeping.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
debox=$top/target/release/debox
[ -x "$debox" ] || {
	echo "bench: target/release/debox is missing: run make build" >&2
	exit 1
}
[ "$(id -u)" = 0 ] || {
	echo "bench: DeBox attaches BPF programs for this: run it as root (debox bench os works without)" >&2
	exit 1
}
for tool in strace perf bpftrace ltrace nginx wrk redis-benchmark fio; do
	PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null ||
		echo "bench: $tool is not installed, and will be missing from the tables: make setup-bench" >&2
done
keep=1
for word; do [ "$word" != --quick ] || keep=0; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$top"
for kind in os self; do
	"$debox" bench $kind "$@" --json -o "$work/$kind.json"
	"$debox" bench $kind --color never --load "$work/$kind.json" -o "$work/$kind.txt" --figures "$work/figures"
done
if [ $keep = 0 ]; then
	cat "$work/os.txt" "$work/self.txt"
	exit
fi
python3 performance/docs.py "$work"
"$debox" bench self --load "$work/self.json" --markdown README.md >/dev/null
echo "bench: written to README.md"
