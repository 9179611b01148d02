#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A transaction that does not end, blocked by another one; and many that only commit.
. "$(dirname "$0")/common.sh"
need python3 setpriv psql
bin=$(dirname "$(readlink -f "$(command -v initdb || ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null | tail -1)" 2>/dev/null)" 2>/dev/null)
[ -x "$bin/initdb" ] || cannot "not installed: initdb (package postgresql)"

# The server refuses to run as root. (No function: $! is to be the server's own.)
nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
mkdir data socket
chown 65534:65534 data socket
chmod 755 "$place"
$nobody "$bin/initdb" -D "$place/data" -U nobody -A trust >/dev/null
port=$(free_port)
$nobody "$bin/postgres" -D "$place/data" -p $port -k "$place/socket" -h '' >server.log 2>&1 &
server=$!
children="$children $server"
sql() { $nobody psql -q -h "$place/socket" -p $port -U nobody -d postgres "$@"; }
await sql -c 'select 1' || { cat server.log >&2; exit 1; }
sql -c 'create table account (id int primary key, amount int); insert into account values (1, 100)'

title "a transaction that waits for another one's lock"
# A client that computes in the middle of its transaction.
(
	echo "begin; update account set amount = amount - 1 where id = 1;"
	sleep 12
	echo "commit;"
) | sql >/dev/null &
children="$children $!"
sleep 1
sql -c "set application_name = 'blocked'; update account set amount = amount + 1 where id = 1" >/dev/null &
blocked=$!
children="$children $blocked"
sleep 0.5
backend=$(sql -At -c "select pid from pg_stat_activity where wait_event_type = 'Lock'")
sql -At -c "select 'pg_stat_activity: ', wait_event_type, wait_event, 'blocked by', pg_blocking_pids(pid) from pg_stat_activity where pid = $backend"
"$debox" attach --stacks -d 5s --quiet -o report.txt -p "$backend"
verdict 'lock' 'no loss'
wait $blocked

title "commits only"
# Until it is ended: how many fit into the watch depends on the disk.
yes "update account set amount = amount + 1 where id = 1;" | sql >/dev/null 2>&1 &
load=$!
children="$children $load"
sleep 0.5
backend=$(sql -At -c "select pid from pg_stat_activity where query like 'update account%' order by backend_start desc limit 1")
"$debox" attach --stacks -d 4s --quiet -o report.txt -p "$backend"
verdict 'fdatasync|fsync|waiting for a CPU' 'in epoll|in recv'
sql -c "select pg_terminate_backend($backend)" >/dev/null
wait $load || true
kill $server
wait $server || true
