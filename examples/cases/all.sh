#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Does the first sentence of each case say what its author knows to be so?
cases=$(cd "$(dirname "$0")" && pwd)
failed=
for case in "$cases"/*.sh; do
	name=$(basename "$case" .sh)
	case $name in all | common) continue ;; esac
	echo "-- $name"
	"$case"
	case $? in
	0 | 77) ;;
	*) failed="$failed $name" ;;
	esac
done
[ -z "$failed" ] || echo "FAILED:$failed"
[ -z "$failed" ]
