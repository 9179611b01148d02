#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Do real programs work as before with libdebox-select.so? Servers under a load
# that opens, closes and resets connections at random (each request answered in
# time, no descriptor left over), and CPython's own tests of select and poll.
#
#   SELECT_SECONDS   how long each server is under load (default 5)
set -u
cd "$(dirname "$0")/../.." || exit 1
debox=$PWD/target/release/debox
library=$PWD/target/release/libdebox-select.so
seconds=${SELECT_SECONDS:-5}
work=$(mktemp -d)
server=""
failed=0
cleanup() {
	[ -z "$server" ] || pkill -9 -P "$server" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

head -c 1259 /dev/zero >"$work/1259"
chmod 755 "$work"

port() {
	python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

complain() {
	echo "select/run.sh: $*" >&2
	failed=1
}

# How many descriptors the server has open: its own, and epoll instances.
descriptors() {
	pid=$(pgrep -P "$server") || return 1
	ls -l "/proc/$pid/fd" 2>/dev/null | awk '/eventpoll/ { epoll++; next } / -> / { own++ } END { print own + 0, epoll + 0 }'
}

# under_load NAME IDLE LOAD-OPTIONS COMMAND...
under_load() {
	name=$1 idle=$2 options=$3
	shift 3
	# Without its full looks, the library has nothing that makes good a lost
	# wake-up.
	nice "$debox" select --stats --recheck 1h -- "$@" >"$work/out" 2>"$work/err" </dev/null &
	server=$!
	tries=0
	until "$debox" bench load --idle 0 --hot 1 -d 1s --port "$port" >/dev/null 2>&1; do
		tries=$((tries + 1))
		if [ $tries -gt 20 ] || ! kill -0 $server 2>/dev/null; then
			complain "$name does not serve: $(tail -n 3 "$work/err")"
			break
		fi
		sleep 0.2
	done
	sleep 0.5
	if ! before=$(descriptors); then
		complain "$name: its descriptors cannot be seen"
		before="0 0"
	fi
	# shellcheck disable=SC2086
	result=$("$debox" bench load --idle "$idle" --hot 20 -d "${seconds}s" --churn --port "$port" $options) ||
		complain "$name: a request was not answered, or wrongly"
	echo "  $name: $result"
	# The server notices the ends of its connections.
	tries=0
	after=$(descriptors) || after="1000000 0"
	while [ "${after% *}" -gt "${before% *}" ] && [ $tries -lt 50 ]; do
		sleep 0.1
		tries=$((tries + 1))
		after=$(descriptors) || after="1000000 0"
	done
	[ "${after% *}" -le "${before% *}" ] ||
		complain "$name: ${before% *} descriptors before, ${after% *} after"
	# Four sets a thread at most, and what the server has of its own.
	[ "${after#* }" -le $((${before#* } + 8)) ] ||
		complain "$name: ${before#* } epoll instances before, ${after#* } after"
	kill -TERM $server 2>/dev/null
	tries=0
	while kill -0 $server 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -ne 100 ] || { complain "$name does not end"; kill -9 $server; }
		sleep 0.1
	done
	wait $server 2>/dev/null
	server=""
	grep -q 'calls served' "$work/err" || complain "$name: the library served no call"
}

port=$(port)
under_load "plain select server" 500 "" "$debox" bench serve select --port "$port"
port=$(port)
under_load "plain poll server, new connections" 500 --close "$debox" bench serve poll --port "$port"

port=$(port)
cat >"$work/lighttpd.conf" <<END
server.document-root = "$work"
server.port = $port
server.bind = "127.0.0.1"
server.event-handler = "poll"
server.max-fds = 4096
server.max-connections = 2048
server.max-keep-alive-requests = 1000000
END
under_load "lighttpd, poll" 700 "" lighttpd -D -f "$work/lighttpd.conf"

port=$(port)
cat >"$work/haproxy.cfg" <<END
global
  maxconn 2000
  nbthread 2
defaults
  mode http
  timeout client 600s
  timeout connect 5s
  timeout server 5s
frontend f
  bind 127.0.0.1:$port
  http-request return status 200 content-type text/plain file $work/1259 if { path /1259 }
END
under_load "haproxy, poll, 2 threads" 700 "" haproxy -de -db -q -f "$work/haproxy.cfg"
# Its select poller wants no more descriptors than FD_SETSIZE.
port=$(port)
sed -i "s/maxconn 2000/maxconn 400/; s/nbthread 2/nbthread 1/; s/bind .*/bind 127.0.0.1:$port/" "$work/haproxy.cfg"
under_load "haproxy, select" 300 "" haproxy -de -dp -db -q -f "$work/haproxy.cfg"

port=$(port)
under_load "webfs, select" 500 "" webfsd -F -4 -i 127.0.0.1 -t 600 -p "$port" -c 900 -r "$work"

# Each process has an account of its own, also one that was forked before it, or
# its parent, waited for much.
cat >"$work/children.py" <<'END'
import os, select, socket, sys
def wait():
    p, pairs = select.poll(), [socket.socketpair() for _ in range(100)]
    for a, b in pairs:
        p.register(a, select.POLLIN)
    for _ in range(20):
        p.poll(0)
if len(sys.argv) > 1:
    wait()
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        wait()
        sys.exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
print(os.getpid(), *children)
END
for first in "" first; do
	# shellcheck disable=SC2086
	DEBOX_SELECT=stats LD_PRELOAD=$library /usr/bin/python3 "$work/children.py" $first \
		>"$work/out" 2>"$work/err"
	for pid in $(cut -d ' ' -f 2- "$work/out"); do
		grep -A 20 "(process $pid)" "$work/err" | grep -q 'poll and ppoll calls served' ||
			complain "a forked process ($first) has no account: $(cat "$work/err")"
	done
	echo "  forked processes${first:+, the parent waited before}: each has its account"
done

# The interpreter whose tests the package has: Debian's. The tests of vsock wait
# for the host in some virtual machines, with and without the library.
python="/usr/bin/python3 -m test --timeout 900 --ignore *VSOCK*"
set -f
for tests in "test_select test_poll test_selectors test_socket" "test_asyncio"; do
	cd "$work" || exit 1
	# shellcheck disable=SC2086
	if DEBOX_SELECT=threshold=1 LD_PRELOAD=$library timeout 1000 \
		$python $tests >with.txt 2>&1 </dev/null; then
		echo "  CPython, $tests: pass"
		continue
	fi
	# Those that fail without the library, too, say nothing about it.
	names() { sed -n 's/^\(FAIL\|ERROR\): \(.*\)/\2/p' "$1" | sort -u; }
	# shellcheck disable=SC2086
	timeout 1000 $python $tests >without.txt 2>&1 </dev/null
	names with.txt >with.names
	names without.txt >without.names
	if ! grep -q '^Tests result: ' with.txt; then
		tail -n 20 with.txt >&2
		complain "CPython, $tests: the interpreter did not come to its end"
	elif [ ! -s with.names ]; then
		tail -n 20 with.txt >&2
		complain "CPython, $tests: did not run"
	elif [ -n "$(comm -23 with.names without.names)" ]; then
		comm -23 with.names without.names >&2
		complain "CPython, $tests: these fail with the library only"
	else
		echo "  CPython, $tests: as without the library ($(wc -l <with.names) fail either way)"
	fi
	cd - >/dev/null || exit 1
done
[ $failed = 0 ] && echo "select/run.sh: all passed"
exit $failed
