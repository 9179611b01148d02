#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Is the tree written as it should be? lint.sh clippy|rustfmt; status 77 where
# the tool is missing.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
clippy) set -- cargo clippy --release --workspace --all-targets --quiet -- -D warnings ;;
rustfmt) set -- cargo fmt --all --check ;;
*)
	echo "usage: tests/lint.sh clippy|rustfmt" >&2
	exit 2
	;;
esac
if ! cargo "$2" --version >/dev/null 2>&1; then
	echo "NOT RUN: cargo $2 is missing: rustup component add clippy rustfmt"
	exit 77
fi
exec "$@"
