#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does `make test` run? Everything, in this order; the first failure of a
# part does not stop the others, but the end says which failed. No part waits for
# ever: see part.py.
set -u
cd "$(dirname "$0")/.." || exit 1

logs=target/tests
rm -rf $logs
mkdir -p $logs
failed=""
parts=0
# part NAME SECONDS COMMAND...: about four times of what it takes on two CPUs.
part() {
	name=$1
	limit=$2
	shift 2
	parts=$((parts + 1))
	log=$logs/$parts.log
	echo
	echo "== $name"
	begin=$(date +%s)
	{ tests/part.py "$limit" "$@" 2>&1; echo $? >$log.status; } | tee $log
	if [ "$(cat $log.status)" = 0 ]; then
		echo "== $name: ok, $(($(date +%s) - begin)) s"
	else
		echo "== $name: FAILED, $(($(date +%s) - begin)) s"
		failed="$failed $name;"
		echo "$name" >$log.failed
	fi
}

# What went wrong in a part: the lines that say so, for whoever sees only the
# end of a long output.
wrong() {
	echo "-- $(cat "$1.log.failed")"
	grep -nE 'FAIL|RAN OUT OF TIME|panicked|assertion|left:|right:|differs|error(:|\[)|did not run|-- Linux|Sanitizer' "$1.log" |
		grep -v 'test result: ok' | cut -c1-600 | tail -n 40
}

# Servers that tests start listen on loopback only, on free ports.
export NO_COLOR=1
part "parts: what runs out of time, what is left behind" 300 python3 tests/part_test.py
part "programs that the tests run" 900 make --no-print-directory test-programs c-examples
part "libdebox and the interposer in C (fake broker, sanitizers)" 600 make --no-print-directory c-tests
part "scalable select and poll: the same answers as the system calls" 3600 make --no-print-directory select-tests
part "installed: what a stranger gets from a prefix alone" 900 python3 tests/installed.py
part "crates: layout, labels, reports, broker, command line" 5400 \
	cargo test --release --workspace --exclude debox-tests --no-fail-fast --quiet
part "fuzz: every target over its corpus and 10 s" 3600 fuzz/run.sh -s 10
part "truth: programs with a known answer" 1800 cargo test --release -p debox-tests --test truth
part "details: call sites, culprits, threads" 1800 cargo test --release -p debox-tests --test details
part "cross-checks: strace, perf, schedstat, nginx, redis" 1800 cargo test --release -p debox-tests --test cross
part "behaviour: the same with and without" 1800 cargo test --release -p debox-tests --test behaviour
part "security: the broker's user and unit, who may use it, promises and their tests" 1800 \
	cargo test --release -p debox-tests --test security
part "recordings: history, trends, culprits, call sites, kill -9" 1800 cargo test --release -p debox-tests --test record
part "storms: threads, processes, kill -9" 1800 cargo test --release -p debox-tests --test storms
part "kernels: records, storms, call traces and debox kern in guests with Linux 6.1 and 6.12" 5400 tests/vm/run.py
part "labels: share of blocked time without one" 1200 \
	python3 tests/labels/stress.py --short --debox target/release/debox

echo
if [ -n "$failed" ]; then
	for log in "$logs"/*.log.failed; do
		wrong "${log%.log.failed}"
	done
	echo "FAILED:$failed"
	exit 1
fi
echo "all parts passed"
