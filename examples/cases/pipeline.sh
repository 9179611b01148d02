#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Three programs and two pipes, and the one in the middle is slow: who waits, and
# whom is it worth to make faster?
. "$(dirname "$0")/common.sh"
need python3

cat >middle.py <<'EOF'
import sys
for line in sys.stdin:
    print(sum(int(digit) ** 9 for digit in line.strip() * 30))
EOF

title "seq | python3 | sort"
"$debox" run --quiet -o report.txt -- sh -c "seq 100000 | '$python' middle.py | sort -n >sorted"
seq 100000 >numbers
getrusage sh -c "exec '$python' middle.py <numbers"
verdict 'python3[^:]*: .*computing in its own code' 'pipe-read|pipe-write|wait4'
