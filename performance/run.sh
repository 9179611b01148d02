#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What do the documents say was measured? Measures it, on a machine that does
# nothing else, and writes it there with its charts, when all of it is done.
#
#   performance/run.sh            both of these (40 minutes)
#   performance/run.sh self       what DeBox costs: docs/PERFORMANCE.md, README.md
#   performance/run.sh os         what the kernel charges: docs/bench.md
#   ... --quick                   a minute; only prints: such figures are not for keeping
#
# What else is said goes to `debox bench`. Needs root and what `make build`
# leaves in target/release.
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
case ${1:-} in
os | self) kinds=$1 && shift ;;
*) kinds="os self" ;;
esac
keep=1
for word; do [ "$word" != --quick ] || keep=0; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$top"
for kind in $kinds; do
	"$debox" bench "$kind" "$@" --json -o "$work/$kind.json"
	"$debox" bench "$kind" --color never --load "$work/$kind.json" -o "$work/$kind.txt" --figures "$work/figures"
	[ $kind = os ] || "$debox" bench self --load "$work/self.json" --markdown -o "$work/self.md"
	[ $keep = 1 ] || cat "$work/$kind.txt"
done
[ $keep = 0 ] || python3 performance/docs.py "$work" $kinds
