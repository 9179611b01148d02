#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A loop that starts a program ten thousand times: is it the programs, or their number?
. "$(dirname "$0")/common.sh"

cat >loop.sh <<'EOF'
i=0
while [ $i -lt 10000 ]; do
	/bin/true
	i=$((i + 1))
done
EOF

title "10,000 times /bin/true"
"$debox" run --quiet -o report.txt -- sh loop.sh
getrusage sh loop.sh
verdict 'true ran 10,000 times' 'wait4'
