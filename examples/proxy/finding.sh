#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Why is a proxy's open() slow, and what helps? The finding of the KernInst
# paper, again: measured, explained, changed, measured.
#
#   finding.sh DEBOX PROXY DIRECTORY     DIRECTORY on an ext4, mounted sync
#
# Prints Markdown. For root; a busybox shell is enough. OBJECTS and REQUESTS
# set the size.
set -eu
debox=$1
proxy=$2
directory=$3/proxy-cache
objects=${OBJECTS:-600}
requests=${REQUESTS:-300}
forget=20

"$proxy" -p -d "$directory" -n "$objects" 2>/dev/null || {
	mkdir -p "$directory"
	"$proxy" -p -d "$directory" -n "$objects"
}
sync

cat <<END
# The finding of the KernInst paper, again

Tamches and Miller (*Using Dynamic Kernel Instrumentation for Kernel and
Application Tuning*) found a web proxy to spend 40 % of its time in \`open\`, for
two reasons: it truncated files in order to use them again, and the cache of
names was too small for its directory tree. Without a look into the kernel
neither would have been found. This page is what \`examples/proxy/run.sh\`
printed: the same program in small, the same question to \`debox kern\`.

Linux $(uname -r), $objects objects, one file each, in a tree of three levels on ext4, mounted
\`sync\`: as the paper's UFS did, the file system writes changed metadata before
the call returns. After every $forget requests the caches of names and inodes are
emptied: they are too small. Half of the requests are hits and only read.

In an emulated guest times are not those of real hardware; compare shares.

## The program as it is

END

show() {
	title=$1
	shift
	echo "    \$ $title"
	"$@" 2>&1 | sed 's/^/    /'
	echo
}

run() { # options of proxy
	show "proxy $*" "$proxy" -d "$directory" -n "$objects" -r "$requests" "$@"
}

watch() { # options of proxy
	show "debox kern 'openat()' 'ftruncate()' 'write()' 'read()' -- proxy $*" \
		"$debox" kern -q 'openat()' 'ftruncate()' 'write()' 'read()' -- \
		"$proxy" -d "$directory" -n "$objects" -r "$requests" "$@"
}

watch -c $forget
cat <<END
\`INSIDE\` is the paper's concurrency: as the program has one thread, it is the
share of its time. Why is open slow?

END
show "debox kern --auto openat -- proxy -c $forget" \
	"$debox" kern --auto openat --quiet -i "${INTERVAL:-1}" -- \
	"$proxy" -d "$directory" -n "$objects" -r 100000000 -c $forget
cat <<END
One way down leads through \`do_truncate\` to the journal: the truncated inode is
written before open returns (\`ufs_itrunc\` and \`ufs_iupdat\` in the paper). The
other leads through \`ext4_lookup\` to reading directories and inodes that no cache
holds any more (\`ufs_dirlook\` in the paper).

## One slow open, function by function

The call trace keeps the slowest call as it was:

END
functions='do_filp_open,path_openat,link_path_walk*,walk_component,lookup_open*,ext4_lookup,__ext4_find_entry,ext4_read_bh*'
functions="$functions,__ext4_iget,ext4_get_inode_loc*,__ext4_get_inode_loc*,__wait_on_buffer,do_truncate,notify_change,ext4_setattr"
functions="$functions,ext4_truncate,ext4_ext_truncate,ext4_evict_inode,__ext4_journal_stop,jbd2_journal_stop,jbd2_log_wait_commit,schedule"
echo "    \$ debox run --trace 'path_openat,...,do_truncate,...,schedule' --call openat -- proxy -c $forget"
"$debox" run --trace "$functions" --call openat -- \
	"$proxy" -d "$directory" -n "$objects" -r "$requests" -c $forget 2>&1 |
	sed -n '/^call trace/,$p' | sed 's/^/    /;s/ *$//' | head -100
cat <<END

## First fix: the program does not truncate

As in the paper: no \`O_TRUNC\`; when the new contents are written, \`ftruncate\`
cuts off what the old file was longer (\`proxy -f\`).

END
watch -c $forget -f
cat <<END
## Second fix: caches that are large enough

END
watch
cat <<END
## Both

END
watch -f
cat <<END
## The program's own clock, without anything attached

END
echo "| | |"
echo "|---|---|"
line() {
	name=$1
	shift
	echo "| $name | $("$proxy" -d "$directory" -n "$objects" -r "$requests" "$@") |"
}
line "as it is" -c $forget
line "no O_TRUNC" -c $forget -f
line "larger caches"
line "both" -f
