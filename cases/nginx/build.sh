#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# How does Debian's nginx come from its source, once as it is and once with the patch?
#
#	build.sh DIRECTORY
#
# leaves DIRECTORY/nginx-unpatched and DIRECTORY/nginx-patched, built with the same
# options, and the source in DIRECTORY/source, with which a next run needs no network.
# What the build needs only there (regular expressions, compression) is left out.
# Takes a minute of CPU. Nothing is installed, and the machine's apt is not changed.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
patch=$here/open-in-threads.patch
# Of Debian 12; what Debian adds is held against its .dsc.
original=nginx_1.22.1.orig.tar.gz
original_sha256=9ebb333a9e82b952acd3e2b4aeb1d4ff6406f72491bab6cd9fe69f0dea737f31

fail() {
	echo "build.sh: $*" >&2
	exit 1
}

[ $# -eq 1 ] || fail "give one directory to build in, not $#"
for program in apt-get cc dpkg-source make patch; do
	command -v $program >/dev/null || fail "$program is missing: apt-get install build-essential dpkg-dev"
done
mkdir -p "$1/source"
work=$(CDPATH='' cd -- "$1" && pwd)
log=$work/build.log
: >"$log"

# Of this machine's own package sources those that are Debian's, asked for source packages.
download() {
	apt=$work/apt
	rm -rf "$apt"
	mkdir -p "$apt/lists/partial" "$apt/archives/partial"
	apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		sed -n 's/^Debian /deb-src /p' | sort -u >"$apt/sources.list"
	[ -s "$apt/sources.list" ] || fail "apt knows no package source of Debian here: put the source package nginx 1.22.1 (.dsc and both .tar) into $work/source"
	set -- -q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt" -o APT::Sandbox::User=root
	apt-get "$@" update >>"$log" 2>&1 || fail "apt-get update failed: $log"
	# A mirror may lack the newest.
	for version in $(apt-cache "$@" showsrc nginx | sed -n 's/^Version: \(1\.22\.1-.*\)/\1/p' | sort -Vru); do
		if (cd "$work/source" && apt-get "$@" --download-only source "nginx=$version") >>"$log" 2>&1; then
			rm -rf "$apt"
			return
		fi
		rm -f "$work"/source/*
	done
	fail "no source of nginx 1.22.1 can be had (Debian 12 has it): $log"
}

[ -f "$work/source/$original" ] || download
echo "$original_sha256  $work/source/$original" | sha256sum --check --status || fail "$work/source/$original is not nginx 1.22.1 as it was released (SHA-256 $original_sha256): remove it"
set -- "$work"/source/nginx_1.22.1-*.dsc
[ $# -eq 1 ] && [ -f "$1" ] || fail "$work/source has $# files nginx_1.22.1-*.dsc, not one: empty it"

# Both as they would come now?
now() {
	for built in "$work/nginx-unpatched" "$work/nginx-patched"; do
		[ "$built" -nt "$patch" ] && [ "$built" -nt "$here/build.sh" ] && [ "$built" -nt "$1" ] || return 1
	done
}
if now "$1"; then
	echo "$(basename "$1" .dsc), built before"
	exit
fi

rm -rf "$work/tree"
# It holds what it unpacks against the checksums of the .dsc.
dpkg-source --no-copy --extract "$1" "$work/tree" >>"$log" 2>&1 || fail "dpkg-source does not take $1: $log"
cd "$work/tree"
./configure --with-threads --with-http_v2_module --without-http_rewrite_module --without-http_gzip_module --with-cc-opt='-g -O2' >>"$log" 2>&1 || fail "configure failed: $log"
make >>"$log" 2>&1 || fail "make failed: $log"
cp objs/nginx "$work/nginx-unpatched"
patch --forward --strip=1 <"$patch" >>"$log" || fail "the patch does not fit $1: $log"
make >>"$log" 2>&1 || fail "make failed with the patch: $log"
cp objs/nginx "$work/nginx-patched"
rm -rf "$work/tree"
echo "$(basename "$1" .dsc), built now"
