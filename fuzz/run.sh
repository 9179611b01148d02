#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Does any input of the fuzz targets break something? See docs/fuzzing.md.
#
#   fuzz/run.sh [-s SECONDS] [TARGET...]   every target over its corpus, then
#                                          SECONDS of new inputs (default 60)
#   fuzz/run.sh -m [TARGET...]             takes what was found before and covers
#                                          more into the corpus
#   fuzz/run.sh TARGET FILE...             these inputs once
#
# Exits with 1 when an input failed; it is kept and named.
set -eu
from=$PWD
cd "$(dirname "$0")"

all=$(sed -n 's|^path = "\(.*\)\.rs"|\1|p' targets/Cargo.toml)
seconds=60
merge=no
while getopts s:m option; do
	case $option in
	s) seconds=$OPTARG ;;
	m) merge=yes ;;
	*)
		sed -n 's/^#   *//p' "$0" >&2
		exit 2
		;;
	esac
done
shift $((OPTIND - 1))
case $seconds in
'' | *[!0-9]* | 0)
	echo "fuzz: -s takes seconds above 0, not '$seconds'" >&2
	exit 2
	;;
esac

# Coverage is measured by LLVM's own instrumentation, which stable Rust has;
# only AddressSanitizer would need a nightly one. The flags are for the target
# only (--target), not for build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
out=$PWD/../target/fuzz
flags="--cfg fuzzing -Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
	flags="$flags -Cllvm-args=-sanitizer-coverage-$option"
done
echo "fuzz: building the targets for libFuzzer, by $(rustc --version)"
RUSTFLAGS="$flags" CARGO_INCREMENTAL=0 cargo build --quiet --release --bins \
	--manifest-path targets/Cargo.toml --target "$host" --target-dir "$out"

found=$out/found
failures=$out/failures
mkdir -p "$failures"
options="-timeout=20 -rss_limit_mb=1024 -malloc_limit_mb=512 -print_final_stats=1"
# Each target's longest input: what is longer says nothing new.
length() {
	case $1 in
	protocol | collected | wire) echo 8300 ;;
	expression | policy) echo 4200 ;;
	labels | symbols) echo 16384 ;;
	*) echo 65536 ;;
	esac
}

# A target by its name on one or several paths; says how it went.
fuzz_one() {
	target=$1
	shift
	log=$out/$target.log
	# A panic's place and text are worth more than its stack.
	if RUST_BACKTRACE=0 "$out/$host/release/$target" $options -artifact_prefix="$failures/$target-" \
		-max_len="$(length "$target")" "$@" >"$log" 2>&1; then
		return 0
	fi
	grep -aE "panicked at|^[^#=].*(left|right):|ERROR|SUMMARY" "$log" -A2 | head -n 20
	input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
	echo "fuzz: $target FAILED, all it said is in $log"
	[ -z "$input" ] || echo "fuzz: the input is kept; run it again: fuzz/run.sh $target $input"
	return 1
}

stat() {
	sed -n "s/^stat::$2: *//p" "$out/$1.log"
}

case "${2:-}" in
*/*)
	target=$1
	shift
	for input; do
		case $input in
		/*) ;;
		*) input=$from/$input ;;
		esac
		set -- "$@" "$input"
		shift
	done
	fuzz_one "$target" "$@" && echo "fuzz: $target: $# input(s), nothing failed"
	exit
	;;
esac

[ $# -gt 0 ] || set -- $all
failed=""
for target; do
	case " $(echo $all) " in
	*" $target "*) ;;
	*)
		echo "fuzz: there is no target $target; there are:" $all >&2
		exit 2
		;;
	esac
	mkdir -p "corpus/$target" "$found/$target"
	kept=$(ls "corpus/$target" | wc -l)
	if [ $merge = yes ]; then
		fuzz_one "$target" -merge=1 "corpus/$target" "$found/$target" || failed="$failed $target"
		echo "fuzz: $target: $kept inputs were in the corpus, now $(ls "corpus/$target" | wc -l)"
		continue
	fi
	# First what is known, then what chance makes of it.
	if ! fuzz_one "$target" -runs=0 "corpus/$target"; then
		failed="$failed $target"
		continue
	fi
	before=$(sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p' "$out/$target.log")
	if ! fuzz_one "$target" -max_total_time="$seconds" "$found/$target" "corpus/$target"; then
		failed="$failed $target"
		continue
	fi
	after=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$out/$target.log" | tail -n 1)
	echo "fuzz: $target: $kept inputs of the corpus, then $(stat "$target" number_of_executed_units)" \
		"runs in $seconds s, $(stat "$target" peak_rss_mb) MB; edges covered: ${before:-?}, now ${after:-?}"
done
if [ -n "$failed" ]; then
	echo "fuzz: FAILED:$failed"
	exit 1
fi
