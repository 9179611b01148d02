// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is a case called in tables, and what exactly is it?

/// (id, title, what it is)
pub const TITLES: &[(&str, &str, &str)] = &[
    (
        "trivial/function",
        "function call",
        "an empty function, not inlined: no kernel at all",
    ),
    (
        "trivial/vdso",
        "clock_gettime (vDSO)",
        "libc's function, answered without the kernel",
    ),
    ("trivial/getpid", "getpid", ""),
    ("trivial/getppid", "getppid", ""),
    ("trivial/gettid", "gettid", ""),
    ("trivial/getuid", "getuid", ""),
    ("trivial/uname", "uname", "copies 390 bytes to the program"),
    ("trivial/times", "times", "sums up the times of the process"),
    (
        "trivial/clock_gettime",
        "clock_gettime (call)",
        "the same as above, by the system call",
    ),
    ("trivial/close-bad", "close(-1)", "fails at once: EBADF"),
    ("trivial/read-0", "read of 0 bytes", "from /dev/zero"),
    ("trivial/write-null", "write of 1 byte", "to /dev/null"),
    (
        "trivial/no-such-call",
        "no such call",
        "a number beyond the table: ENOSYS",
    ),
    (
        "trivial/io_uring-nop",
        "io_uring no-op",
        "one submitted and waited for in one call",
    ),
    (
        "trivial/io_uring-nops",
        "io_uring 32 no-ops",
        "32 submitted and waited for in one call",
    ),
    (
        "switch/signal",
        "signal, handler",
        "tgkill and sigsuspend; a handler runs at each end",
    ),
    (
        "switch/signal-wait",
        "signal, no handler",
        "tgkill and sigtimedwait",
    ),
    ("switch/pipe", "pipe", "two pipes, one byte"),
    (
        "switch/pipe-threads",
        "pipe, threads",
        "the same between two threads of one process",
    ),
    ("switch/socket", "unix socket", "a socket pair, one byte"),
    ("switch/eventfd", "eventfd", "two eventfds"),
    (
        "switch/futex",
        "futex",
        "a word in shared memory, between processes",
    ),
    (
        "switch/condvar",
        "pthread condition",
        "between two threads; signalled after the mutex is unlocked",
    ),
    ("switch-calls/signal", "signal, handler", "calls only"),
    (
        "switch-calls/signal-wait",
        "signal, no handler",
        "calls only",
    ),
    ("switch-calls/pipe", "pipe", "calls only"),
    ("switch-calls/socket", "unix socket", "calls only"),
    ("switch-calls/eventfd", "eventfd", "calls only"),
    ("switch-calls/futex", "futex", "calls only"),
    ("switch-calls/condvar", "pthread condition", "calls only"),
    (
        "fault/none",
        "no fault",
        "a page that is there: what the touching costs",
    ),
    (
        "fault/zero-fill",
        "zero-filled",
        "first write to new memory, 4 KiB pages",
    ),
    (
        "fault/zero-page-read",
        "zero page, read",
        "first read of new memory: the shared zero page",
    ),
    (
        "fault/copy-on-write",
        "copy on write",
        "first write to a page shared with a forked child",
    ),
    (
        "fault/huge",
        "huge page",
        "one 2 MiB page, all of it touched; huge pages advised",
    ),
    (
        "fault/file-mapped",
        "file, one fault",
        "first read of a mapped file in the page cache, one in each 2 MiB",
    ),
    (
        "fault/file-around",
        "file, page by page",
        "the same in a row: a fault maps its neighbours as well",
    ),
    (
        "fault/file-private-write",
        "file, private write",
        "first write to a private mapping: a copy",
    ),
    (
        "fault/map-populate",
        "MAP_POPULATE",
        "mmap with the pages at once, then touched: per page",
    ),
    (
        "fault/madvise-populate",
        "MADV_POPULATE_WRITE",
        "the same by madvise",
    ),
    (
        "fault/prefaulted-before",
        "pre-faulted by a thread",
        "the thread was done before: what is left",
    ),
    (
        "fault/prefaulted-beside",
        "pre-faulting alongside",
        "the thread touches at the same time",
    ),
    ("descriptor/open", "open", "of /dev/null"),
    ("descriptor/dup", "dup", ""),
    (
        "descriptor/dup-search",
        "dup, must search",
        "after a low number was freed and taken again",
    ),
    ("descriptor/socket", "socket", "TCP"),
    (
        "descriptor/accept",
        "accept",
        "a waiting connection on loopback",
    ),
    ("wait/select", "select", "one ready, the others idle"),
    ("wait/poll", "poll", "one ready, the others idle"),
    ("wait/epoll", "epoll_wait", "one ready, the others idle"),
];

/// The title of a case, or its id.
pub fn title(id: &str) -> String {
    let found = TITLES
        .iter()
        .filter(|(key, _, _)| {
            id == *key || id.strip_prefix(key).is_some_and(|r| r.starts_with('/'))
        })
        .max_by_key(|(key, _, _)| key.len());
    found.map_or_else(|| id.to_owned(), |(_, title, _)| (*title).to_owned())
}

pub fn explanation(id: &str) -> &'static str {
    TITLES
        .iter()
        .find(|(key, _, _)| id == *key)
        .map_or("", |(_, _, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_key_names_a_case() {
        assert_eq!(title("switch/pipe/same"), "pipe");
        assert_eq!(title("switch/pipe-threads/same"), "pipe, threads");
        assert_eq!(title("wait/poll/1000"), "poll");
        assert_eq!(title("unknown/x"), "unknown/x");
    }
}
