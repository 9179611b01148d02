#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Is the tree written as it should be? lint.sh clippy|rustfmt|clang-format|lock; status
# 77 where the tool is missing. lint.sh clang-format -i writes it so.
set -eu
cd "$(dirname "$0")/.."

# Each version writes some lines otherwise: only this one is asked.
CLANG_FORMAT=14
clang_format() {
	for tool in clang-format-$CLANG_FORMAT clang-format; do
		case $("$tool" --version 2>/dev/null) in
		*" version $CLANG_FORMAT."*)
			# But what `make abi` writes.
			find . \( -path ./target -o -path ./build -o -path ./tests/abi/layout.c \) -prune -o -type f \( -name '*.[ch]' -o -name '*.cc' \) -print |
				sort | xargs "$tool" "${@:---dry-run}" --Werror
			exit
			;;
		esac
	done
	echo "NOT RUN: clang-format $CLANG_FORMAT is missing ($(clang-format --version 2>&1 | head -n 1)): apt-get install clang-format-$CLANG_FORMAT"
	exit 77
}

# The fuzzers are a workspace of their own, which no other command resolves: its lock goes
# stale when a crate of ours gets a new dependency. Cargo has what it must know of the
# fuzzers' own dependencies where they have been built once; else it asks the network.
lock() {
	manifest=fuzz/targets/Cargo.toml
	for how in --offline --quiet; do
		said=$(CARGO_NET_RETRY=0 CARGO_HTTP_TIMEOUT=10 cargo metadata --locked $how --manifest-path $manifest --format-version 1 2>&1 >/dev/null) && exit
		case $said in
		*"--locked was passed"*)
			echo "${manifest%toml}lock is stale; write it anew: cargo update --workspace --manifest-path $manifest"
			exit 1
			;;
		# All is resolved by then.
		*"failed to download"*) exit 0 ;;
		esac
	done
	echo "$said"
	echo "NOT RUN: cargo cannot resolve $manifest without the network"
	exit 77
}

case ${1:-} in
clang-format)
	shift
	clang_format "$@"
	;;
lock) lock ;;
clippy) set -- cargo clippy --release --workspace --all-targets --quiet -- -D warnings ;;
rustfmt) set -- cargo fmt --all --check ;;
*)
	echo "usage: tests/lint.sh clippy|rustfmt|lock|clang-format [-i]" >&2
	exit 2
	;;
esac
if ! cargo "$2" --version >/dev/null 2>&1; then
	echo "NOT RUN: cargo $2 is missing: rustup component add clippy rustfmt"
	exit 77
fi
exec "$@"
