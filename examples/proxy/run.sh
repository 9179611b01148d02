#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Can the finding of the KernInst paper be made again?
#
#   examples/proxy/run.sh            here, if this kernel lets its functions be
#                                    measured, else in a guest
#   examples/proxy/run.sh --here     on this machine (root): an ext4 in a file
#   examples/proxy/run.sh --guest    in a guest under QEMU (tests/vm), 6.12
#
# Prints what docs/finding.md holds. Needs `make build`.
set -eu
cd "$(dirname "$0")/../.."
debox=target/release/debox
[ -x $debox ] || {
	echo "run.sh: $debox is missing: make build" >&2
	exit 1
}
where=${1:-}
if [ -z "$where" ]; then
	where=--guest
	if [ "$(id -u)" = 0 ] && $debox kern --list do_sys_openat2 >/dev/null 2>&1; then where=--here; fi
fi
mkdir -p target/proxy
${CC:-cc} -O2 -Wall -static -o target/proxy/proxy examples/proxy/proxy.c

case $where in
--here)
	work=$(mktemp -d)
	cleanup() {
		umount "$work/mnt" 2>/dev/null || true
		rm -rf "$work"
	}
	trap cleanup EXIT
	trap 'exit 1' INT TERM
	truncate -s 1G "$work/disk"
	mkfs.ext4 -q -F "$work/disk"
	mkdir "$work/mnt"
	mount -o loop,sync "$work/disk" "$work/mnt"
	sh examples/proxy/finding.sh $debox target/proxy/proxy "$work/mnt"
	;;
--guest)
	tests/vm/run.py -k "${KERNEL:-6.12}" -s proxy >&2
	cat "target/vm/guest/${KERNEL:-6.12}-proxy/saved/finding.md"
	;;
*)
	sed -n 's/^#   examples/usage: examples/p' "$0" >&2
	exit 2
	;;
esac
