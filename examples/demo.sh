#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does DeBox show that was hidden before? Two runs on real input, as
# `make demo` starts them:
#
#   1. a program that asks about one of its own calls (the paper's Figure 4)
#   2. a program that knows nothing of DeBox (tar), accounted for as a whole
#
# Needs root or sudo, or a permanent broker. Leaves nothing behind.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
out=$top/target/release

say() { printf '%s\n' "$*"; }
title() { printf '\n== %s\n\n' "$*"; }

for part in debox deboxd; do
	[ -x "$out/$part" ] || { say "demo: $out/$part is not built: run make build" >&2; exit 1; }
done
# As the user who calls, so that nothing in target/ becomes root's.
if [ "${DEBOX_DEMO_BUILT:-}" != yes ]; then
	make --no-print-directory -s -C "$top" c-examples >&2
fi

# A permanent broker serves everybody; else one has to be started, which takes
# privileges.
broker=${DEBOX_SOCKET:-}
if [ -z "$broker" ] && "$out/debox" status >/dev/null 2>&1; then
	broker=/run/debox/debox.sock
fi
if [ -z "$broker" ] && [ "$(id -u)" != 0 ]; then
	if command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
		say "Starting a broker takes root: going on with sudo."
		exec sudo DEBOX_DEMO_BUILT=yes "$top/examples/demo.sh"
	fi
	say "demo: there is no broker at /run/debox/debox.sock, and you are not root to start one." >&2
	say "Run 'sudo make demo', or have the administrator start deboxd. What is missing here:" >&2
	"$out/debox" doctor --color never | grep --no-group-separator -A2 '^  no ' >&2 || true
	say "All of it: $out/debox doctor" >&2
	exit 1
fi

work=
deboxd=
broker_stop() {
	[ -n "$deboxd" ] || return 0
	kill "$deboxd" 2>/dev/null || true
	wait "$deboxd" 2>/dev/null || true
	deboxd=
}
cleanup() {
	trap - EXIT
	trap '' INT TERM HUP
	broker_stop
	[ -z "$work" ] || rm -rf "$work"
}
trap cleanup EXIT
trap 'cleanup; exit 130' INT
trap 'cleanup; exit 143' TERM HUP

# On a disk: what lies in memory cannot be made to be read again.
for parent in "${TMPDIR:-/var/tmp}" /var/tmp "$top/target" "${HOME:-/}"; do
	[ -d "$parent" ] && [ -w "$parent" ] || continue
	case $(stat -f -c %T "$parent") in tmpfs | ramfs) continue ;; esac
	work=$(mktemp -d "$parent/debox-demo.XXXXXX")
	break
done
[ -n "$work" ] || { say "demo: no writable directory on a disk; set TMPDIR to one" >&2; exit 1; }

if [ -z "$broker" ]; then
	broker=$work/broker.sock
	"$out/deboxd" --everybody --socket "$broker" &
	deboxd=$!
	# The BPF programs are loaded once, at its start.
	tries=0
	until "$out/debox" status --socket "$broker" >/dev/null 2>&1; do
		tries=$((tries + 1))
		if ! kill -0 "$deboxd" 2>/dev/null || [ $tries -gt 100 ]; then
			say "demo: the broker did not start. What this machine allows:" >&2
			"$out/debox" doctor --color never >&2 || true
			exit 1
		fi
		sleep 0.1
	done
fi
title "1. One system call, asked about by its own program"
say "examples/figure4.c maps a 10 MB file that is not in memory and copies it with a"
say "single write(). To the program this is one slow call. Its record says why: each"
say "page had to be read from the disk in the middle of it, and then the copy written."
say "First as in Figure 4 of the DeBox paper (its labels have 7 letters), then in full."
say
DEBOX_SOCKET=$broker "$out/examples/c-figure4" "$work"
broker_stop

for tree in /usr/include /usr/share/doc "$top"; do
	[ -d "$tree" ] && [ "$(find "$tree" -type f 2>/dev/null | head -n 300 | wc -l)" = 300 ] && break
done
title "2. A whole program that knows nothing of DeBox"
set -- tar czf "$work/x.tar.gz" -C / "${tree#/}"
say "debox run --top 8 -- $*"
say
say "One row per system call: ON-CPU + BLOCKED + RUNQ (waiting for a CPU) = TOTAL. Below"
say "it, where in the kernel the calls blocked: wait-child is tar waiting for its gzip to"
say "end, pipe-write tar waiting for gzip to take more, page-in and buffer-io the disk."
say
# Its report goes to standard error, so that it never mixes with tar's output.
"$out/debox" run --top 8 -- "$@" 2>&1

title "Go on"
say "debox run -- ANY COMMAND       account for any program        (debox run --help)"
say "debox attach -p PID -d 10      ... for one that runs already"
say "debox doctor                   what works on this machine, what does not, and why"
say "debox is $out/debox. For your own programs: README.md,"
say "examples/bracket.c, span.c, history.c, chain.c."
