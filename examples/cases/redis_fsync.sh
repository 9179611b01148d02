#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does Redis pay for `appendfsync always`, and which of its threads?
. "$(dirname "$0")/common.sh"
need redis-server redis-benchmark redis-cli python3 mkfs.ext4 losetup
disk 300

for policy in always everysec; do
	title "appendfsync $policy"
	mkdir disk/$policy
	port=$(free_port)
	cat >load.sh <<EOF
tries=0
until redis-cli -h 127.0.0.1 -p $port ping >/dev/null 2>&1; do
	tries=\$((tries + 1))
	[ \$tries -lt 100 ] || exit 1
	sleep 0.1
done
redis-benchmark -h 127.0.0.1 -p $port -n 3000 -c 8 -t set -q | tr '\\r' '\\n' | grep 'requests per second' | tail -1
redis-cli -h 127.0.0.1 -p $port shutdown nosave
EOF
	sh load.sh &
	load=$!
	children="$children $load"
	"$debox" run --sort blocked --top 4 --quiet -o report.txt -- redis-server --port $port --bind 127.0.0.1 \
		--appendonly yes --appendfsync $policy --save '' --dir "$place/disk/$policy" --daemonize no >/dev/null
	wait $load
	cat report.txt
	[ $policy != always ] || says 'redis-server: [^,]* in fdatasync'
done
