#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A program that only computes: is that said, and not some call that hardly waited?
. "$(dirname "$0")/common.sh"
need python3

cat >program.py <<'EOF'
def spectral(n):
    return sum(1.0 / ((i + j) * (i + j + 1) / 2 + i + 1) for i in range(n) for j in range(n))
print(f"{spectral(2600):.3f}")
EOF

title "a program that computes"
"$debox" run --quiet -o report.txt -- "$python" program.py
getrusage "$python" program.py
verdict 'python3[^:]*: .*computing in its own code' 'pipe|waiting in'
