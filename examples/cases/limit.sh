#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# A program in a control group that may use a fifth of a CPU: is it the program?
. "$(dirname "$0")/common.sh"
need python3

if [ -d /sys/fs/cgroup/cpu ] && group=$(mktemp -d /sys/fs/cgroup/cpu/debox-case.XXXXXX); then
	echo 100000 >"$group/cpu.cfs_period_us"
	echo 20000 >"$group/cpu.cfs_quota_us"
elif grep -qs cpu /sys/fs/cgroup/cgroup.subtree_control && group=$(mktemp -d /sys/fs/cgroup/debox-case.XXXXXX); then
	echo "20000 100000" >"$group/cpu.max"
else
	cannot "this case needs a control group with the cpu controller that root can make"
fi

cat >program.py <<'EOF'
total = 0
for i in range(12_000_000):
    total += i
print(total)
EOF

title "a fifth of a CPU"
"$debox" run --quiet -o report.txt -- sh -c "echo \$\$ >'$group/cgroup.procs'; exec '$python' program.py"
grep -E 'periods|throttled' "$group/cpu.stat"
verdict 'A limit, not the program: the control group .*debox-case' 'others used'
