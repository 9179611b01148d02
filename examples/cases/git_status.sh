#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Why does `git status` take so long the first time? In a large tree that is not
# in memory it waits for the disk, one inode after the other.
. "$(dirname "$0")/common.sh"
need git python3 mkfs.ext4 losetup
disk 400

cat >make_tree.py <<'EOF'
import os
for d in range(400):
    os.makedirs(f"disk/tree/d{d % 20}/s{d}")
    for f in range(50):
        with open(f"disk/tree/d{d % 20}/s{d}/f{f}.c", "w") as file:
            file.write(f"int f{d}_{f};\n")
EOF
python3 make_tree.py
cd disk/tree
git init -q . 2>/dev/null
# Nothing in the background: it would keep the disk busy.
git config gc.auto 0
git config maintenance.auto false
git -c core.fsync=none add .
git -c user.name=n -c user.email=e@example.org commit -qm one
sync

# What is not mounted is not cached.
cold() { cd "$place"; umount disk; mount "$loop" disk; cd disk/tree; }

run() {
	"$debox" run --sort blocked --top 5 --quiet -o "$place/report.txt" -- git "$@" status --short
	cat "$place/report.txt"
}

title "cold, one thread (core.preloadIndex=false)"
cold
run -c core.preloadIndex=false
says 'newfstatat: buffer-io|waiting for a CPU'
title "cold, several threads look at the index (core.preloadIndex=true, git's default)"
cold
run -c core.preloadIndex=true
title "warm"
run -c core.preloadIndex=true
