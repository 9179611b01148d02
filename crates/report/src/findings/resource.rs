// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a label mean for somebody who wants less waiting?
//!
//! One entry for each label of labels/linux.toml (a test compares them). The
//! rules name the place; this table says of which cause it is a part, how to
//! say it in a sentence, and what can be done.

/// What kind of wait it is, which decides how it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is nothing to do, or the program asked to sleep: no loss.
    Idle,
    /// Waits for input from another thread or program. Long waits are no
    /// loss (there was nothing to do), short ones may be.
    Input,
    /// Somebody else is in the way or too slow.
    Loss,
}

pub struct Resource {
    /// Labels of one group have one cause and make one finding.
    pub group: &'static str,
    pub kind: Kind,
    /// Completes "openat waiting for …".
    pub what: &'static str,
    /// What can be done.
    pub advice: &'static str,
}

use Kind::{Idle, Input, Loss};

const READ: &str = "The data was not in the page cache. Read it ahead (readahead(2), posix_fadvise(2) with POSIX_FADV_WILLNEED), keep the working set smaller than the free memory, or hand such reads to other threads. If the cache is only cold after a start, judge a second run.";
const SYNC: &str = "Each such call waits until the data is on stable storage. Sync less often (several changes per sync), use fdatasync(2) where the file's size does not change, or sync in another thread; a disk with a protected write cache makes flushes cheap.";
const WRITEBACK: &str = "Data is just on its way to the disk. Write less or more evenly, start write-back earlier (sync_file_range(2)), or move this file to a faster disk.";
const LOCK: &str = "Somebody else holds a lock of the kernel. See who under culprits: spread the work over several directories or files, do it at another time, or do it once instead of in every process.";
const SPACE: &str = "The threads of the process share one address space, and whoever maps, unmaps or faults locks it. Map less often (larger pieces, MAP_POPULATE, an allocator that keeps its arenas), or use processes instead of threads.";
const MEMORY: &str = "Memory is short. Give the program or its control group more, let it use less, or limit what else runs on the machine.";
const DIRTY: &str = "More is written than the disk takes. Write less, or start write-back earlier (vm.dirty_background_bytes, sync_file_range(2)).";
const FS: &str = "Threads change the same file system structures at the same time. Fewer writers at once, larger changes, or separate files help.";
const USER_LOCK: &str = "Threads of the program wait for each other: a mutex, a condition variable or a queue. Hold the lock for a shorter time or split it; call sites and wakers show which. Workers that wait for work look the same, and are no loss.";
const FILE_LOCK: &str = "Another process holds a lock on the file. Hold it for a shorter time, lock parts of the file, or wait less often.";
const CONSUMER: &str = "Whoever should read at the other end does not keep up. Make the reader faster, write less (log less), enlarge the buffer, or write from a thread that may wait.";
const PRODUCER: &str = "Whoever should write at the other end had nothing yet. Look at what that side does in the meantime; if it had nothing to do, this is no loss.";
const SERVER: &str = "The answer of a server is awaited. Look there, cache its answers, or ask for several things at once.";
const NETWORK: &str = "The other side or the network is slow to answer. Keep connections open, send requests together, or look at the other side.";
const DEVICE: &str = "The device or its queue is the limit: fewer or larger requests, a faster device, or less of what else uses it.";
const NOTHING: &str = "Nothing is lost here: the program had nothing to do.";
const SYSTEM: &str = "Something in the system as a whole is being changed or set up; do that less often, or not while the program runs.";
const KERNEL_LOCK: &str =
    "A lock in the kernel is held by another thread; its place and the culprits show which.";
const STOPPED: &str = "The process was stopped from outside; its own code has no part in it.";
const START: &str = "A program is being started or ended. Start fewer processes, keep them (a pool of workers), and start them from a small process.";

/// (label, group, kind, what, advice)
const RESOURCES: &[(&str, &str, Kind, &str, &str)] = &[
    (
        "oom",
        "memory",
        Loss,
        "memory in a full control group",
        MEMORY,
    ),
    (
        "memory-throttle",
        "memory",
        Loss,
        "the memory limit of its control group (memory.high)",
        MEMORY,
    ),
    (
        "memory-compaction",
        "memory",
        Loss,
        "memory to be made contiguous",
        MEMORY,
    ),
    (
        "memory-reclaim",
        "memory",
        Loss,
        "memory to be freed",
        MEMORY,
    ),
    (
        "swap-in",
        "memory",
        Loss,
        "pages to come back from swap",
        MEMORY,
    ),
    (
        "page-migration",
        "memory",
        Loss,
        "pages that are being moved",
        MEMORY,
    ),
    ("hugetlb", "memory", Loss, "huge pages", MEMORY),
    (
        "userfaultfd",
        "userfaultfd",
        Loss,
        "another program to answer a page fault",
        SERVER,
    ),
    (
        "dirty-throttle",
        "dirty",
        Loss,
        "the disk, because too much written data is outstanding",
        DIRTY,
    ),
    (
        "mmap-lock",
        "mmap-lock",
        Loss,
        "the address space's lock",
        SPACE,
    ),
    ("fs-frozen", "frozen", Loss, "a frozen file system", STOPPED),
    (
        "io-throttle",
        "device",
        Loss,
        "the block device's queue, which is throttled",
        DEVICE,
    ),
    (
        "request-queue",
        "device",
        Loss,
        "a free place in the block device's queue",
        DEVICE,
    ),
    (
        "device-discard",
        "device",
        Loss,
        "blocks to be discarded",
        DEVICE,
    ),
    (
        "direct-io",
        "direct-io",
        Loss,
        "direct transfers from and to the disk",
        DEVICE,
    ),
    (
        "block-io",
        "device",
        Loss,
        "requests to a block device",
        DEVICE,
    ),
    (
        "device-flush",
        "sync",
        Loss,
        "the disk to write out its cache",
        SYNC,
    ),
    ("journal-commit", "sync", Loss, "the journal commit", SYNC),
    (
        "page-writeback",
        "writeback",
        Loss,
        "pages that are being written to disk",
        WRITEBACK,
    ),
    (
        "inode-writeback",
        "writeback",
        Loss,
        "inodes that are being written to disk",
        WRITEBACK,
    ),
    (
        "buffer-write",
        "writeback",
        Loss,
        "file system blocks that are being written",
        WRITEBACK,
    ),
    (
        "page-in",
        "read",
        Loss,
        "pages of files to be read from disk",
        READ,
    ),
    (
        "page-io",
        "read",
        Loss,
        "pages that are being read or written",
        READ,
    ),
    (
        "page-lock",
        "read",
        Loss,
        "pages that another thread is working on",
        READ,
    ),
    (
        "buffer-io",
        "read",
        Loss,
        "directories and inodes to be read from disk",
        READ,
    ),
    (
        "inode-wait",
        "read",
        Loss,
        "inodes that another thread reads or discards",
        READ,
    ),
    (
        "dentry-lookup",
        "read",
        Loss,
        "another thread to look up the same name",
        READ,
    ),
    (
        "journal-start",
        "fs",
        Loss,
        "room in the file system's journal",
        FS,
    ),
    (
        "journal-buffer",
        "fs",
        Loss,
        "blocks that are being written to the journal",
        FS,
    ),
    ("fs-space", "fs", Loss, "the file system to make room", FS),
    (
        "extent-lock",
        "fs",
        Loss,
        "the lock of a part of the file",
        FS,
    ),
    (
        "btree-lock",
        "fs",
        Loss,
        "the lock of the file system's tree",
        FS,
    ),
    (
        "buffer-lock",
        "fs",
        Loss,
        "the lock of a file system block",
        FS,
    ),
    (
        "superblock-lock",
        "fs",
        Loss,
        "the file system's superblock lock",
        FS,
    ),
    ("inode-lock", "inode-lock", Loss, "the inode lock", LOCK),
    (
        "file-position",
        "file-position",
        Loss,
        "the position of an open file that another thread is using",
        "Use pread(2) and pwrite(2), which have no common position, or one open file for each thread.",
    ),
    (
        "fd-table",
        "fd-table",
        Loss,
        "the table of open files, which another thread is enlarging",
        "The table doubles as more files are open at once, and threads wait an RCU grace period for it. Close files earlier, or let it grow once at the start (dup2(2) to a high number and close).",
    ),
    (
        "exec-lock",
        "start",
        Loss,
        "a process that is just starting a program",
        START,
    ),
    (
        "tracing-lock",
        "system",
        Loss,
        "the lock of kernel tracing",
        SYSTEM,
    ),
    (
        "code-patching",
        "system",
        Loss,
        "the kernel changing its own code (a probe or a tracepoint switched on or off)",
        SYSTEM,
    ),
    (
        "rename-lock",
        "rename",
        Loss,
        "the file system's lock for moving directories",
        "Directories of one file system move one at a time. Rename within one directory where that will do, or move fewer directories.",
    ),
    (
        "lru-drain",
        "memory",
        Loss,
        "pages being collected from all CPUs",
        "mlock(2), page migration and memory policies make every CPU hand in its pages. Lock or move memory in fewer and larger pieces.",
    ),
    ("quota-lock", "quota", Loss, "the file system's quota", FS),
    (
        "block-device-lock",
        "system",
        Loss,
        "a block device that is being opened, closed or set up",
        SYSTEM,
    ),
    (
        "keyring-lock",
        "keyring",
        Loss,
        "the lock of the kernel's keyrings",
        KERNEL_LOCK,
    ),
    (
        "ipc-lock",
        "ipc",
        Loss,
        "the table of System V IPC",
        "Create and remove queues, semaphores and shared memory less often; their use alone does not take this lock.",
    ),
    (
        "anon-vma-lock",
        "anon-vma",
        Loss,
        "the lock of private memory shared since a fork",
        "Processes forked from one another share this lock. Fork from a small process (posix_spawn(3), a helper), and map less often in the children.",
    ),
    (
        "kernfs-lock",
        "kernfs",
        Loss,
        "the tree of sysfs or of the control groups",
        "Keep files of sysfs and of control groups open instead of looking them up each time, and make fewer of them.",
    ),
    (
        "file-map-lock",
        "file-map",
        Loss,
        "the lock of all mappings of one file",
        "Many processes map and unmap the same file. Map it once and keep it, or start fewer processes that do.",
    ),
    (
        "seq-file-lock",
        "file-position",
        Loss,
        "another thread's reading of the same open file",
        "Open the file once for each thread, or use pread(2).",
    ),
    (
        "writepages-lock",
        "fs",
        Loss,
        "ext4's lock over writing back",
        FS,
    ),
    (
        "cgroup-lock",
        "cgroup",
        Loss,
        "the lock of all control groups",
        "Make, change and remove control groups less often, and place a process in its group as it starts (clone3 with CLONE_INTO_CGROUP).",
    ),
    (
        "file-lock-table",
        "file-lock-table",
        Loss,
        "the list of all file locks",
        "Do not read /proc/locks in a loop.",
    ),
    (
        "mount-lock",
        "mount-lock",
        Loss,
        "the lock of the mount table",
        SYSTEM,
    ),
    ("nfs", "nfs", Loss, "the NFS server", SERVER),
    ("smb", "smb", Loss, "the SMB server", SERVER),
    ("9p", "9p", Loss, "the 9p server", SERVER),
    (
        "fuse",
        "fuse",
        Loss,
        "the program behind a FUSE file system",
        SERVER,
    ),
    (
        "fuse-daemon",
        "idle",
        Idle,
        "requests to a FUSE file system",
        NOTHING,
    ),
    (
        "pipe-lock",
        "pipe-lock",
        Loss,
        "another thread that uses the same pipe",
        LOCK,
    ),
    ("pipe-read", "pipe-read", Input, "data in a pipe", PRODUCER),
    (
        "pipe-write",
        "pipe-write",
        Loss,
        "room in a full pipe",
        CONSUMER,
    ),
    (
        "fifo-open",
        "fifo-open",
        Input,
        "the other end of a named pipe to be opened",
        PRODUCER,
    ),
    (
        "futex",
        "futex",
        Input,
        "locks and conditions of the program itself",
        USER_LOCK,
    ),
    (
        "futex-pi",
        "futex",
        Loss,
        "priority-inheriting locks of the program itself",
        USER_LOCK,
    ),
    ("flock", "file-lock", Loss, "a flock() lock", FILE_LOCK),
    (
        "posix-lock",
        "file-lock",
        Loss,
        "an fcntl() lock",
        FILE_LOCK,
    ),
    (
        "lease-break",
        "file-lock",
        Loss,
        "another program to give back its lease on a file",
        FILE_LOCK,
    ),
    (
        "sock-lock",
        "sock-lock",
        Loss,
        "another thread inside a call on the same socket",
        LOCK,
    ),
    (
        "unix-accept",
        "idle",
        Idle,
        "connections to a unix socket",
        NOTHING,
    ),
    (
        "unix-connect",
        "unix-connect",
        Loss,
        "a place in the unix socket's queue of connections",
        CONSUMER,
    ),
    (
        "unix-lock",
        "sock-lock",
        Loss,
        "another thread that reads from the same unix socket",
        LOCK,
    ),
    (
        "unix-recv",
        "unix-recv",
        Input,
        "messages in a unix socket",
        PRODUCER,
    ),
    (
        "unix-send",
        "unix-send",
        Loss,
        "room in a unix socket",
        CONSUMER,
    ),
    (
        "netlink-recv",
        "idle",
        Idle,
        "messages from the kernel (netlink)",
        NOTHING,
    ),
    (
        "netlink-send",
        "netlink-send",
        Loss,
        "room in a netlink socket",
        CONSUMER,
    ),
    ("packet-recv", "idle", Idle, "packets", NOTHING),
    (
        "vsock-accept",
        "idle",
        Idle,
        "connections from virtual machines",
        NOTHING,
    ),
    (
        "vsock-connect",
        "sock-connect",
        Loss,
        "a connection to a virtual machine",
        NETWORK,
    ),
    (
        "vsock-recv",
        "sock-recv",
        Input,
        "data from a virtual machine",
        PRODUCER,
    ),
    (
        "vsock-send",
        "sock-send",
        Loss,
        "room in the send buffer to a virtual machine",
        CONSUMER,
    ),
    ("sock-accept", "idle", Idle, "connections", NOTHING),
    (
        "sock-connect",
        "sock-connect",
        Loss,
        "connections to be established",
        NETWORK,
    ),
    (
        "sock-close",
        "sock-send",
        Loss,
        "sent data to arrive before a socket is closed",
        NETWORK,
    ),
    (
        "sock-send",
        "sock-send",
        Loss,
        "room in a socket's send buffer",
        CONSUMER,
    ),
    (
        "sock-recv",
        "sock-recv",
        Input,
        "data from the network",
        NETWORK,
    ),
    (
        "rtnl-lock",
        "rtnl-lock",
        Loss,
        "the lock of the network configuration",
        SYSTEM,
    ),
    (
        "epoll-lock",
        "epoll-lock",
        Loss,
        "another thread that uses the same epoll set",
        LOCK,
    ),
    ("epoll", "idle", Idle, "events (epoll)", NOTHING),
    ("select", "idle", Idle, "events (select)", NOTHING),
    ("poll", "idle", Idle, "events (poll)", NOTHING),
    (
        "eventfd",
        "eventfd",
        Input,
        "an event counter (eventfd)",
        PRODUCER,
    ),
    ("timerfd", "idle", Idle, "a timer", NOTHING),
    ("signalfd", "idle", Idle, "signals", NOTHING),
    (
        "inotify",
        "idle",
        Idle,
        "changes of files (inotify)",
        NOTHING,
    ),
    (
        "fanotify",
        "idle",
        Idle,
        "changes of files (fanotify)",
        NOTHING,
    ),
    (
        "fanotify-permission",
        "fanotify-permission",
        Loss,
        "a scanner to allow the access to a file",
        "A virus scanner or the like looks at each file first: exempt these files or this program.",
    ),
    (
        "io-uring",
        "io-uring",
        Input,
        "operations given to io_uring",
        "The operations themselves take this long: look at what they do and to which files or sockets.",
    ),
    (
        "io-uring-idle",
        "idle",
        Idle,
        "work for io_uring's own threads",
        NOTHING,
    ),
    (
        "aio",
        "aio",
        Input,
        "operations given to AIO",
        "The operations themselves take this long: look at what they do and to which files.",
    ),
    ("tun-read", "idle", Idle, "packets for a tunnel", NOTHING),
    ("kernel-log", "idle", Idle, "the kernel's log", NOTHING),
    ("input-event", "idle", Idle, "keys, mouse or touch", NOTHING),
    ("sound", "sound", Input, "the sound card", DEVICE),
    ("gpu", "gpu", Loss, "the graphics card", DEVICE),
    (
        "kvm-halt",
        "idle",
        Idle,
        "a virtual CPU that has nothing to do",
        NOTHING,
    ),
    (
        "random",
        "random",
        Loss,
        "the random number generator to be seeded",
        SYSTEM,
    ),
    ("tty-read", "idle", Idle, "input from the terminal", NOTHING),
    (
        "tty-write",
        "tty-write",
        Loss,
        "the terminal to take output",
        CONSUMER,
    ),
    (
        "tty-lock",
        "tty-lock",
        Loss,
        "another thread that uses the same terminal",
        LOCK,
    ),
    ("msgqueue", "msgqueue", Input, "a message queue", PRODUCER),
    ("semop", "semop", Input, "a System V semaphore", USER_LOCK),
    (
        "vfork",
        "start",
        Idle,
        "the child of vfork() to call exec",
        START,
    ),
    ("wait-child", "idle", Idle, "children to end", NOTHING),
    (
        "nanosleep",
        "idle",
        Idle,
        "a time that the program asked for",
        NOTHING,
    ),
    ("signal-wait", "idle", Idle, "signals", NOTHING),
    ("ptrace", "stopped", Loss, "a debugger", STOPPED),
    (
        "signal-stop",
        "stopped",
        Loss,
        "SIGCONT after having been stopped",
        STOPPED,
    ),
    (
        "cgroup-freezer",
        "stopped",
        Loss,
        "its control group to be thawed",
        STOPPED,
    ),
    ("freezer", "stopped", Loss, "the system to resume", STOPPED),
    (
        "seccomp-notify",
        "seccomp-notify",
        Loss,
        "a supervisor to decide about the call (seccomp)",
        SERVER,
    ),
    (
        "coredump",
        "coredump",
        Loss,
        "a core dump to be written",
        "The process crashed. Find out why, or limit the size of core dumps (ulimit -c).",
    ),
    (
        "exec",
        "start",
        Loss,
        "the other threads to end before a new program starts",
        START,
    ),
    (
        "task-exit",
        "start",
        Loss,
        "the end of a process to be finished",
        START,
    ),
    (
        "cpu-migration",
        "cpu-migration",
        Loss,
        "a thread to leave its CPU",
        SYSTEM,
    ),
    (
        "user-helper",
        "user-helper",
        Loss,
        "a program that the kernel started",
        SYSTEM,
    ),
    (
        "bpf-wait",
        "bpf-wait",
        Loss,
        "BPF programs to be attached or removed",
        SYSTEM,
    ),
    (
        "perf-event",
        "perf-event",
        Loss,
        "performance counters to be set up",
        SYSTEM,
    ),
    ("rcu-wait", "rcu-wait", Loss, "an RCU grace period", SYSTEM),
    (
        "workqueue",
        "workqueue",
        Loss,
        "work that was handed to a kernel thread",
        KERNEL_LOCK,
    ),
    (
        "rt-spinlock",
        "kernel-lock",
        Loss,
        "a spinlock of the kernel",
        KERNEL_LOCK,
    ),
    (
        "mutex",
        "kernel-lock",
        Loss,
        "a mutex of the kernel",
        KERNEL_LOCK,
    ),
    (
        "percpu-rwsem",
        "kernel-lock",
        Loss,
        "a reader-writer lock of the kernel",
        KERNEL_LOCK,
    ),
    (
        "rwsem",
        "kernel-lock",
        Loss,
        "a reader-writer lock of the kernel",
        KERNEL_LOCK,
    ),
    (
        "semaphore",
        "kernel-lock",
        Loss,
        "a semaphore of the kernel",
        KERNEL_LOCK,
    ),
];

/// None for labels of the user's own rules and for unlabelled functions.
pub fn resource(label: &str) -> Option<Resource> {
    let (_, group, kind, what, advice) = RESOURCES.iter().find(|r| r.0 == label)?;
    Some(Resource {
        group,
        kind: *kind,
        what,
        advice,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_of_the_rules_has_words() {
        let rules = include_str!("../../../../labels/linux.toml");
        let labels: Vec<&str> = rules
            .lines()
            .filter_map(|line| line.strip_prefix("label = \"")?.split('"').next())
            .collect();
        assert!(labels.len() > 100, "{} labels", labels.len());
        for label in &labels {
            assert!(resource(label).is_some(), "no words for {label}");
        }
        for (label, ..) in RESOURCES {
            assert!(labels.contains(label), "{label} is not a label");
            let twice = RESOURCES.iter().filter(|r| r.0 == *label).count();
            assert_eq!(twice, 1, "{label}");
        }
    }
}
