#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# An application server under load, whose requests now and then wait for the disk
# behind one lock: what do its workers wait for, but for work?
. "$(dirname "$0")/common.sh"
need python3 wrk
# A package's is for the distribution's interpreter.
"$python" -c 'import gunicorn' 2>/dev/null || python=/usr/bin/python3
"$python" -c 'import gunicorn' 2>/dev/null || cannot "not installed: gunicorn (its package, or pip install gunicorn)"

cat >app.py <<'EOF'
import os, threading
lock = threading.Lock()
log = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

def app(environ, start_response):
    with lock:
        os.write(log, b"x" * 200)
        os.fsync(log)
    start_response("200 OK", [("Content-Length", "3")])
    return [b"ok\n"]
EOF

port=$(free_port)
HOME=$place "$python" -m gunicorn --log-level error -k gthread --threads 4 -w 1 -b 127.0.0.1:$port app:app &
server=$!
children="$children $server"
await python3 -c "import socket; socket.create_connection(('127.0.0.1', $port))"

title "gunicorn, four threads, fsync behind a lock"
wrk -t1 -c4 -d8s http://127.0.0.1:$port/ >load.txt &
load=$!
children="$children $load"
sleep 1
"$debox" attach --stacks -d 5s --quiet -o report.txt -p $server
# Python has two locks here, its own and the program's. Both are futexes; only where the
# holder was seen to sleep is fsync named.
verdict 'in fsync|in futex' 'epoll|accept|nanosleep'
wait $load
grep -E 'requests in|Latency' load.txt
