#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Why does a Python program stand still that only writes a log? Its log goes
# through a pipe to a reader that falls behind.
. "$(dirname "$0")/common.sh"
need python3

cat >program.py <<'EOF'
import logging, logging.handlers, queue, sys, time

log = logging.getLogger("app")
log.setLevel(logging.INFO)
out = logging.StreamHandler(sys.stdout)
if sys.argv[1] == "queue":
    # The fix: requests put records into memory; one thread waits for the pipe.
    records = queue.SimpleQueue()
    listener = logging.handlers.QueueListener(records, out)
    listener.start()
    log.addHandler(logging.handlers.QueueHandler(records))
else:
    log.addHandler(out)

slowest, begin = 0.0, time.monotonic()
for number in range(1500):
    start = time.monotonic()
    sum(range(2000))                              # the work of a request
    log.info("request %d: %s", number, "x" * 200)
    slowest = max(slowest, time.monotonic() - start)
print(f"requests: {time.monotonic() - begin:.2f} s, slowest {slowest * 1000:.1f} ms", file=sys.stderr)
if sys.argv[1] == "queue":
    listener.stop()
EOF

# A log shipper that handles 16 KiB in 50 ms.
cat >shipper.py <<'EOF'
import os, time
while os.read(0, 16384):
    time.sleep(0.05)
EOF

for way in direct queue; do
	title "logging: $way"
	mkfifo "pipe.$way"
	"$python" shipper.py <"pipe.$way" &
	children="$children $!"
	"$debox" run --sort blocked --top 3 --quiet -o report.txt -- "$python" program.py $way >"pipe.$way"
	cat report.txt
	[ $way != direct ] || says 'write: pipe-write'
done
