#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What do README.md and docs/bench.md say was measured? Measures it (about 20
# minutes; --quick: less than one) and writes it there, with its charts.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
debox=$top/target/release/debox
[ -x "$debox" ] || {
	echo "bench: target/release/debox is missing: run make build" >&2
	exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
cd "$top"
"$debox" bench os "$@" --color never --json "$work/os.json" --html "$work/os.html" >"$work/os.txt"
"$debox" bench self "$@" --color never --json "$work/self.json" --html "$work/self.html" \
	--markdown README.md >"$work/self.txt"
python3 bench/docs.py "$work"
