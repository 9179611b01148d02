#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What does a commit wait for? SQLite with one transaction for each row, in its
# default journal mode, then with its write-ahead log, then many rows at once.
. "$(dirname "$0")/common.sh"
need python3 mkfs.ext4 losetup
disk 300

cat >program.py <<'EOF'
import sqlite3, sys, time

mode, rows, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
base = sqlite3.connect(f"disk/{mode}-{batch}.db", isolation_level=None)
base.execute(f"pragma journal_mode={mode}")
base.execute("pragma synchronous=full")
base.execute("create table t (id integer primary key, body text)")
times = []
for first in range(0, rows, batch):
    start = time.monotonic()
    base.execute("begin")
    for _ in range(batch):
        base.execute("insert into t (body) values (?)", ("x" * 200,))
    base.execute("commit")
    times.append(time.monotonic() - start)
times.sort()
print(f"{rows} rows: {sum(times):.2f} s, {rows / sum(times):.0f} rows/s, "
      f"commit: median {times[len(times) // 2] * 1000:.2f} ms", file=sys.stderr)
EOF

title "rollback journal, one row in a transaction"
blocked 6 "exec $python program.py delete 300 1"
says 'fdatasync'
title "write-ahead log, one row in a transaction"
blocked 4 "exec $python program.py wal 300 1"
title "write-ahead log, 50 rows in a transaction"
blocked 4 "exec $python program.py wal 300 50"
