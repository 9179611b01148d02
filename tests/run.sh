#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does `make test` run? Everything, in this order; the first failure of a
# part does not stop the others, but the end says which failed.
set -u
cd "$(dirname "$0")/.." || exit 1

logs=target/tests
rm -rf $logs
mkdir -p $logs
failed=""
parts=0
part() {
	name=$1
	shift
	parts=$((parts + 1))
	log=$logs/$parts.log
	echo
	echo "== $name"
	begin=$(date +%s)
	{ "$@" 2>&1; echo $? >$log.status; } | tee $log
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
	grep -nE 'FAIL|panicked|assertion|left:|right:|differs|error(:|\[)|did not run|-- Linux|Sanitizer' "$1.log" |
		grep -v 'test result: ok' | cut -c1-600 | tail -n 40
}

# Servers that tests start listen on loopback only, on free ports.
export NO_COLOR=1
part "programs that the tests run" make --no-print-directory test-programs c-examples
part "libdebox and the interposer in C (fake broker, sanitizers)" make --no-print-directory c-tests
part "scalable select and poll: the same answers as the system calls" make --no-print-directory select-tests
part "crates: layout, labels, reports, broker, command line" \
	cargo test --release --workspace --exclude debox-tests --no-fail-fast --quiet
part "truth: programs with a known answer" cargo test --release -p debox-tests --test truth
part "details: call sites, culprits, threads" cargo test --release -p debox-tests --test details
part "cross-checks: strace, perf, schedstat, nginx, redis" cargo test --release -p debox-tests --test cross
part "behaviour: the same with and without" cargo test --release -p debox-tests --test behaviour
part "recordings: history, trends, culprits, call sites, kill -9" cargo test --release -p debox-tests --test record
part "storms: threads, processes, kill -9" cargo test --release -p debox-tests --test storms
part "kernels: records, storms, call traces and debox kern in guests with Linux 6.1 and 6.12" tests/vm/run.py
part "labels: share of blocked time without one" \
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
