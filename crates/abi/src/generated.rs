// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the headers in include/debox say, in Rust?
//!
//! Made by `make abi` and not by hand. A constant that is an array's length is a
//! usize; a field that C calls `type` is called `kind`.
#![allow(rustdoc::broken_intra_doc_links)]

use crate::mirror;

// debox/abi.h

pub const DEBOX_ABI_VERSION: u32 = 1;
pub const DEBOX_SLEEPS_MAX: usize = 16;
pub const DEBOX_COMM_LEN: usize = 16;
/// wall_ns, start_ns
pub const DEBOX_VALID_WALL: u64 = 1 << 0;
/// cpu_ns
pub const DEBOX_VALID_CPU: u64 = 1 << 1;
/// blocked_ns
pub const DEBOX_VALID_BLOCKED: u64 = 1 << 2;
/// runq_ns
pub const DEBOX_VALID_RUNQ: u64 = 1 << 3;
/// minor_faults, major_faults
pub const DEBOX_VALID_FAULTS: u64 = 1 << 4;
/// nvcsw, nivcsw
pub const DEBOX_VALID_SWITCHES: u64 = 1 << 5;
/// sleeps[], sleep_count, sleeps_dropped
pub const DEBOX_VALID_SLEEPS: u64 = 1 << 6;
/// irq_ns
pub const DEBOX_VALID_IRQ: u64 = 1 << 7;
/// trace_count, trace_dropped
pub const DEBOX_VALID_TRACE: u64 = 1 << 8;
/// call_site
pub const DEBOX_VALID_CALL_SITE: u64 = 1 << 9;
/// retval
pub const DEBOX_VALID_RETVAL: u64 = 1 << 10;
/// nr
pub const DEBOX_VALID_NR: u64 = 1 << 11;
/// boundaries stamped in user space
pub const DEBOX_FLAG_WRAP: u32 = 1 << 0;
/// boundaries taken in the kernel
pub const DEBOX_FLAG_BOUNDARY: u32 = 1 << 1;
/// the broker was gone when the call ended
pub const DEBOX_FLAG_STALE: u32 = 1 << 2;
/// the call never returned, or has not yet
pub const DEBOX_FLAG_UNFINISHED: u32 = 1 << 3;
/// nested calls overwrote the kernel's part
pub const DEBOX_FLAG_CLOBBERED: u32 = 1 << 4;
/// a 32-bit call: nr is of the i386 table
pub const DEBOX_FLAG_COMPAT32: u32 = 1 << 5;
/// a signal broke in; the kernel restarts it
pub const DEBOX_FLAG_RESTARTED: u32 = 1 << 6;
/// a span: the sum over a stretch of execution
pub const DEBOX_FLAG_SPAN: u32 = 1 << 7;
/// boundaries stamped by the program's spliced code
pub const DEBOX_FLAG_SPLICE: u32 = 1 << 8;
/// the kernel records no owner for this resource
pub const DEBOX_HOLDER_NONE: u32 = 0;
/// holder_pid owned the lock when we went to sleep
pub const DEBOX_HOLDER_WRITER: u32 = 1;
/// held for reading; holder_pid is one reader, a hint
pub const DEBOX_HOLDER_READER: u32 = 2;
/// waiters_entry: 0 is nobody
pub const DEBOX_SLEEP_WAITERS_ENTRY: u32 = 1 << 0;
/// waiters_exit
pub const DEBOX_SLEEP_WAITERS_EXIT: u32 = 1 << 1;
/// there were at least so many
pub const DEBOX_SLEEP_WAITERS_ENTRY_MORE: u32 = 1 << 2;
pub const DEBOX_SLEEP_WAITERS_EXIT_MORE: u32 = 1 << 3;
/// holder_exit_pid: 0 is nobody else, or withheld
pub const DEBOX_SLEEP_HOLDER_EXIT: u32 = 1 << 4;
/// chain, chain_permille: 0 is no room for more chains
pub const DEBOX_SLEEP_CHAIN: u32 = 1 << 5;
pub const DEBOX_SLEEP_PERMILLE_SHIFT: u32 = 16;
pub const DEBOX_WAITERS_MAX: u32 = 64;
pub const DEBOX_PAGE_SIZE: usize = 4096;
pub const DEBOX_SEGMENT_SLOTS: usize = 32;
pub const DEBOX_BANKS: usize = 2;
pub const DEBOX_BANK_SIZE: usize = 1920;
pub const DEBOX_CONTROL_SETTLE: u32 = 1 << 0;
pub const DEBOX_SEQ_SPLICED: u64 = 1 << 63;
pub const DEBOX_SITES_MAX: usize = 16384;
pub const DEBOX_SITE_NONE: u32 = 0xffffffff;
pub const DEBOX_LABEL_LEN: usize = 24;
pub const DEBOX_FUNCTION_LEN: usize = 64;
pub const DEBOX_FILE_LEN: usize = 112;
pub const DEBOX_SITE_EMPTY: u32 = 0;
pub const DEBOX_SITE_RESOLVED: u32 = 1;
/// no rule matched: the label is the function
pub const DEBOX_SITE_FLAG_UNLABELLED: u32 = 1 << 0;
/// it ends when all CPUs have left what they read (RCU)
pub const DEBOX_SITE_FLAG_GRACE_PERIOD: u32 = 1 << 1;
pub const DEBOX_SHARED_MAGIC: u32 = 0x58304265;
pub const DEBOX_FEATURE_SLEEPS: u64 = 1 << 0;
pub const DEBOX_FEATURE_FAULTS: u64 = 1 << 1;
pub const DEBOX_FEATURE_MAJOR_FAULTS: u64 = 1 << 2;
pub const DEBOX_FEATURE_LOCKS: u64 = 1 << 3;
pub const DEBOX_FEATURE_WAKERS: u64 = 1 << 4;
pub const DEBOX_FEATURE_RUNQ: u64 = 1 << 5;
pub const DEBOX_FEATURE_SITES: u64 = 1 << 6;
/// of whoever asked for it
pub const DEBOX_FEATURE_IRQ: u64 = 1 << 7;
pub const DEBOX_HIST_MIN_EXP: u32 = 4;
pub const DEBOX_HIST_MAX_EXP: u32 = 40;
pub const DEBOX_HIST_SUB: u32 = 8;
pub const DEBOX_HIST_BUCKETS: usize = 290;
pub const DEBOX_ROWS_MAX: usize = 192;
pub const DEBOX_NR_SLOTS: usize = 1024;
/// key of 32-bit call n is DEBOX_NR_COMPAT + n
pub const DEBOX_NR_COMPAT: u32 = 512;
/// key of waits outside of calls (user page faults)
pub const DEBOX_NR_OUTSIDE: u32 = 1022;
/// key of numbers beyond the tables
pub const DEBOX_NR_UNKNOWN: u32 = 1023;
pub const DEBOX_SITE_ROWS_MAX: usize = 2048;
/// the first bound is 2^-20 s
pub const DEBOX_SLEEP_MIN_EXP: u32 = 20;
/// the last one 2^14 s
pub const DEBOX_SLEEP_MAX_EXP: u32 = 14;
pub const DEBOX_SLEEP_BUCKETS: usize = 70;
pub const DEBOX_SLEEP_BOUND_EVEN: u64 = 16384000000000;
pub const DEBOX_SLEEP_BOUND_ODD: u64 = 23170475005920;
pub const DEBOX_IRQ_ROWS_MAX: usize = 128;
pub const DEBOX_IRQ_NAME_LEN: usize = 32;
/// number: of the line; name: its handler's
pub const DEBOX_IRQ_DEVICE: u32 = 1;
/// number: the processor's vector
pub const DEBOX_IRQ_VECTOR: u32 = 2;
/// number: of the soft interrupt
pub const DEBOX_IRQ_SOFT: u32 = 3;
pub const DEBOX_IRQ_KIND_SHIFT: u32 = 56;
/// 32 bits; below them a hash of the name
pub const DEBOX_IRQ_NUMBER_SHIFT: u32 = 24;
/// inside a call that boundary capture has seen begin, or found asleep
pub const DEBOX_AWAY_CALL: u32 = 1 << 0;
/// blocked
pub const DEBOX_AWAY_ASLEEP: u32 = 1 << 1;
/// off the CPU: blocked, preempted, or waiting for its turn
pub const DEBOX_AWAY_OFF: u32 = 1 << 2;
/// with details: life is of it, since its row was last added to
pub const DEBOX_AWAY_LIFE: u32 = 1 << 3;
/// CALL: a spliced program's; blocked_ns and runq_ns are of this stretch alone
pub const DEBOX_AWAY_SPLICED: u32 = 1 << 4;
/// another account has it: all of this is of when it was taken
pub const DEBOX_AWAY_TAKEN: u32 = 1 << 5;
/// ASLEEP: above it DEBOX_CHAIN_REST, _FIRST or _LOOP, as of a sleep that is over
pub const DEBOX_AWAY_LINK_SHIFT: u32 = 8;
pub const DEBOX_EVENTS_BYTES: usize = 1 << 20;
pub const DEBOX_KEY_USED: u64 = 1 << 63;
/// 10 bits: nr key of the call
pub const DEBOX_KEY_NR_SHIFT: u32 = 53;
/// 15 bits: site, DEBOX_KEY_SITE_NONE: unknown
pub const DEBOX_KEY_SITE_SHIFT: u32 = 38;
pub const DEBOX_KEY_SITE_NONE: u32 = 0x7fff;
pub const DEBOX_USER_FRAMES_MAX: usize = 32;
pub const DEBOX_USER_STACKS_MAX: usize = 8192;
pub const DEBOX_USER_FILES_MAX: usize = 512;
pub const DEBOX_PATH_LEN: usize = 240;
pub const DEBOX_FRAME_FILE_SHIFT: u32 = 48;
pub const DEBOX_FRAME_VDSO: u32 = 0xfffe;
/// more frames than were asked for, or fit
pub const DEBOX_STACK_CUT: u32 = 1 << 0;
/// a file's unwind table was not there yet: guessed by frame pointer
pub const DEBOX_STACK_PENDING: u32 = 1 << 1;
/// the walk ended before the outermost frame
pub const DEBOX_STACK_LOST: u32 = 1 << 2;
/// bucket i: wall times below 2^(i+1) ns, the last one holds the rest
pub const DEBOX_COARSE_BUCKETS: usize = 40;
pub const DEBOX_CALL_SITE_ROWS_MAX: usize = 4096;
pub const DEBOX_PATH_ROWS_MAX: usize = 8192;
pub const DEBOX_CULPRIT_HOLDER_WRITER: u32 = 1;
/// one of perhaps several: a hint
pub const DEBOX_CULPRIT_HOLDER_READER: u32 = 2;
/// pid 0: an interrupt
pub const DEBOX_CULPRIT_WAKER: u32 = 3;
/// 2 bits
pub const DEBOX_CULPRIT_KIND_SHIFT: u32 = 36;
/// 11 bits: nr + 1 of the call the culprit was in; 0: none or unknown
pub const DEBOX_CULPRIT_NR_SHIFT: u32 = 24;
pub const DEBOX_CULPRIT_PID_MASK: u32 = 0x3fffff;
pub const DEBOX_CULPRIT_ROWS_MAX: usize = 4096;
pub const DEBOX_THREAD_ROWS_MAX: usize = 1024;
pub const DEBOX_CONDITIONS_MAX: usize = 8;
pub const DEBOX_FIELD_WALL_NS: u32 = 0;
pub const DEBOX_FIELD_CPU_NS: u32 = 1;
pub const DEBOX_FIELD_BLOCKED_NS: u32 = 2;
pub const DEBOX_FIELD_RUNQ_NS: u32 = 3;
pub const DEBOX_FIELD_RETVAL: u32 = 4;
pub const DEBOX_FIELD_MINOR_FAULTS: u32 = 5;
pub const DEBOX_FIELD_MAJOR_FAULTS: u32 = 6;
pub const DEBOX_FIELD_SLEEPS: u32 = 7;
pub const DEBOX_FIELD_PREEMPTIONS: u32 = 8;
pub const DEBOX_FIELD_PID: u32 = 9;
pub const DEBOX_FIELD_TID: u32 = 10;
/// most other waiters at any of its sleeps
pub const DEBOX_FIELD_WAITERS: u32 = 11;
pub const DEBOX_FIELD_IRQ_NS: u32 = 12;
pub const DEBOX_FIELDS: usize = 13;
pub const DEBOX_CONDITION_ON: u32 = 1 << 0;
/// the thread's command name must equal comm
pub const DEBOX_CONDITION_COMM: u32 = 1 << 1;
/// ... must differ from it
pub const DEBOX_CONDITION_COMM_NOT: u32 = 1 << 2;
/// at least one sleep at a site of sites[]
pub const DEBOX_CONDITION_SITES: u32 = 1 << 3;
/// no sleep at a site of sites[]
pub const DEBOX_CONDITION_SITES_NOT: u32 = 1 << 4;
/// send an event
pub const DEBOX_CONDITION_EVENT: u32 = 1 << 5;
/// signal to the thread, else to its process
pub const DEBOX_CONDITION_SIGNAL_THREAD: u32 = 1 << 6;
pub const DEBOX_CONDITION_LABELS: u32 = 1 << 7;
pub const DEBOX_LABELS_MAX: usize = 256;
pub const DEBOX_LABEL_UNKNOWN: u32 = 0;
/// no rule gives one
pub const DEBOX_LABEL_NONE: u32 = 255;
/// fill call_sites[] with the call site alone
pub const DEBOX_DETAIL_CALL_SITES: u32 = 1 << 0;
/// ... with whole user stacks; paths[] too
pub const DEBOX_DETAIL_STACKS: u32 = 1 << 1;
pub const DEBOX_DETAIL_THREADS: u32 = 1 << 2;
/// slow_ns[] and conditions[] are looked at
pub const DEBOX_DETAIL_EVENTS: u32 = 1 << 3;
/// events carry a user stack
pub const DEBOX_DETAIL_EVENT_STACKS: u32 = 1 << 4;
/// without REQ_BOUNDARY: each sleep in a call is judged, alone, by conditions[], and by slow_ns[] with DETAIL_EVENTS
pub const DEBOX_DETAIL_SLEEPS: u32 = 1 << 5;
pub const DEBOX_CHAINS_MAX: usize = 16384;
/// one that is longer ends in DEBOX_CHAIN_DEEPER
pub const DEBOX_CHAIN_DEPTH_MAX: u32 = 16;
/// not a chain: never given out
pub const DEBOX_CHAIN_NONE: u32 = 0;
/// comm slept at site, in call nr, until its parent ended
pub const DEBOX_CHAIN_SLEEP: u32 = 1;
/// comm ran its own code
pub const DEBOX_CHAIN_RAN_USER: u32 = 2;
/// comm ran in call nr
pub const DEBOX_CHAIN_RAN_CALL: u32 = 3;
/// comm ran, own code and calls not told apart
pub const DEBOX_CHAIN_RAN: u32 = 4;
/// comm waited for a CPU
pub const DEBOX_CHAIN_RUNQ: u32 = 5;
/// an interrupt of a device: comm is its name
pub const DEBOX_CHAIN_DEVICE: u32 = 6;
/// a block device: comm is its name, nr what it did (REQ_OP_*)
pub const DEBOX_CHAIN_DISK: u32 = 7;
/// a time set before
pub const DEBOX_CHAIN_TIMER: u32 = 8;
/// packets that came
pub const DEBOX_CHAIN_NETWORK: u32 = 9;
/// another interrupt: nr is the vector of a soft one, -1 a hard one
pub const DEBOX_CHAIN_INTERRUPT: u32 = 10;
/// comm woke us; what it did then, in call nr if not -1, is not known any more, or not yet
pub const DEBOX_CHAIN_EARLIER: u32 = 11;
/// comm woke us, in call nr, and was not followed
pub const DEBOX_CHAIN_WOKEN: u32 = 12;
/// who woke us was not seen
pub const DEBOX_CHAIN_UNSEEN: u32 = 13;
/// nobody yet: the sleep was not over (made by clients)
pub const DEBOX_CHAIN_NOT_OVER: u32 = 15;
/// comm woke us; it had slept, for more than is kept apart
pub const DEBOX_CHAIN_SLEPT: u32 = 16;
/// the time that the call would wait at most was over: nothing had come
pub const DEBOX_CHAIN_LIMIT: u32 = 17;
pub const DEBOX_CHAIN_GRACE_PERIOD: u32 = 18;
/// more than there are
pub const DEBOX_CHAIN_KINDS: u32 = 32;
/// longer than is kept
pub const DEBOX_CHAIN_DEEPER: u32 = 14;
/// SLEEP: whose parent is who held what was waited for
pub const DEBOX_CHAIN_HELD: u32 = 1 << 0;
/// SLEEP: at its resting place, with nothing to do (struct debox_life_time)
pub const DEBOX_CHAIN_REST: u32 = 1 << 1;
/// SLEEP of another user's task: comm is the group of its label (made by the broker)
pub const DEBOX_CHAIN_CLASS: u32 = 1 << 3;
/// SLEEP: a thread of the same account ended it
pub const DEBOX_CHAIN_OWN: u32 = 1 << 4;
/// SLEEP: where it was seen to wait first, which may turn out to be that
pub const DEBOX_CHAIN_FIRST: u32 = 1 << 2;
/// SLEEP elsewhere of a thread that rests where it waits for many things at once
pub const DEBOX_CHAIN_LOOP: u32 = 1 << 5;
pub const DEBOX_OBJECT_NONE: u32 = 0;
pub const DEBOX_OBJECT_FILE: u32 = 1;
pub const DEBOX_OBJECT_DIRECTORY: u32 = 2;
/// a device: rdev
pub const DEBOX_OBJECT_CHARACTER: u32 = 3;
/// the same
pub const DEBOX_OBJECT_BLOCK: u32 = 4;
/// a pipe with a name
pub const DEBOX_OBJECT_FIFO: u32 = 5;
/// ino is its number
pub const DEBOX_OBJECT_PIPE: u32 = 6;
pub const DEBOX_OBJECT_SOCKET: u32 = 7;
/// text is the kernel's name of its kind, as "[eventpoll]"
pub const DEBOX_OBJECT_ANON: u32 = 8;
/// a file with a name and no place, as "memfd:..."
pub const DEBOX_OBJECT_PSEUDO: u32 = 9;
/// text is the string passed
pub const DEBOX_OBJECT_PATH: u32 = 10;
/// ino is its address, in process pid
pub const DEBOX_OBJECT_FUTEX: u32 = 11;
pub const DEBOX_OBJECT_OTHER: u32 = 12;
pub const DEBOX_OBJECT_DELETED: u32 = 1 << 0;
/// text is not all of it: of files the front is missing, else the end
pub const DEBOX_OBJECT_CUT: u32 = 1 << 1;
/// text could not be read
pub const DEBOX_OBJECT_UNREAD: u32 = 1 << 2;
/// peer_pid is another user's, and 0
pub const DEBOX_OBJECT_WITHHELD: u32 = 1 << 3;
/// local address and port are there
pub const DEBOX_OBJECT_LOCAL: u32 = 1 << 4;
/// peer address and port are there
pub const DEBOX_OBJECT_PEER: u32 = 1 << 5;
/// text is the name of the peer's socket
pub const DEBOX_OBJECT_TEXT_PEER: u32 = 1 << 6;
/// a port of a passing connection was left out
pub const DEBOX_OBJECT_ANY_PORT: u32 = 1 << 7;
/// of several inodes: ino is the first one's
pub const DEBOX_OBJECT_SEVERAL: u32 = 1 << 8;
/// taken as the call ended: it never left the CPU
pub const DEBOX_OBJECT_LATE: u32 = 1 << 9;
pub const DEBOX_OBJECT_UNSURE: u32 = 1 << 10;
pub const DEBOX_OBJECT_TEXT_LEN: usize = 240;
pub const DEBOX_OBJECTS_MAX: usize = 4096;
pub const DEBOX_OBJECT_ROWS_MAX: usize = 8192;
/// in a key: its object found no room
pub const DEBOX_OBJECT_NO_ROOM: u32 = 0xffffffff;
/// in the program's own code
pub const DEBOX_ON_CPU_USER: u32 = 0;
/// in the kernel, in a call
pub const DEBOX_ON_CPU_CALL: u32 = 1;
/// in the kernel for something else: a fault, the way back from a call
pub const DEBOX_ON_CPU_KERNEL: u32 = 2;
/// in a soft interrupt that came while it had the CPU
pub const DEBOX_ON_CPU_INTERRUPT: u32 = 3;
pub const DEBOX_ON_CPU_CLASSES: usize = 4;
pub const DEBOX_ON_CPU_GROUPS_MAX: usize = 512;
pub const DEBOX_FRAME_KERNEL: u32 = 0xffff;
pub const DEBOX_FRAME_PYTHON: u32 = 0xfffd;
pub const DEBOX_PYTHON_TEXT: usize = 64;
pub const DEBOX_PYTHON_FUNCTIONS_MAX: usize = 2048;
/// 13 bits: number of the stack of the kernel's frames
pub const DEBOX_ON_CPU_KERNEL_SHIFT: u32 = 13;
/// 10 bits: nr key, DEBOX_NR_OUTSIDE: in none of the program's calls
pub const DEBOX_ON_CPU_NR_SHIFT: u32 = 26;
/// 2 bits
pub const DEBOX_ON_CPU_CLASS_SHIFT: u32 = 36;
/// 9 bits
pub const DEBOX_ON_CPU_GROUP_SHIFT: u32 = 38;
pub const DEBOX_ON_CPU_ROWS_MAX: usize = 16384;
pub const DEBOX_PROGRAMS_MAX: usize = 1024;
pub const DEBOX_LIVES_MAX: usize = 4096;
/// rows in use beyond which new processes are summed up by control group,
pub const DEBOX_LIVES_ALONE: u32 = 2560;
/// and beyond which new control groups are
pub const DEBOX_LIVES_GROUPED: u32 = 3072;
/// of a key: its lower half is that of a control group's number, and no pid
pub const DEBOX_LIFE_GROUP: u64 = 1 << 62;
pub const DEBOX_TITLE_LEN: usize = 128;
/// on a CPU, in its own code
pub const DEBOX_CRITICAL_OWN: u32 = 1;
/// on a CPU, in calls
pub const DEBOX_CRITICAL_CALLS: u32 = 2;
/// on a CPU, ending
pub const DEBOX_CRITICAL_EXIT: u32 = 3;
/// waiting for a CPU
pub const DEBOX_CRITICAL_RUNQ: u32 = 4;
/// asleep: the chain says for what
pub const DEBOX_CRITICAL_BLOCKED: u32 = 5;
pub const DEBOX_CRITICAL_KINDS: usize = 8;
pub const DEBOX_CRITICAL_PROGRAM_SHIFT: u32 = 48;
pub const DEBOX_CRITICAL_KIND_SHIFT: u32 = 32;
/// a power of two
pub const DEBOX_CRITICAL_PARTS_MAX: usize = 32;
/// below 2 us, 4 us, ...; the last one holds the rest
pub const DEBOX_ACTIVITY_BUCKETS: usize = 24;
pub const DEBOX_ACTIVITY_MIN_EXP: u32 = 11;
pub const DEBOX_ACTIVITIES_MAX: usize = 128;
/// one finished call: slow, or meeting a condition
pub const DEBOX_EVENT_CALL: u32 = 1;
/// at least slow_ns
pub const DEBOX_EVENT_SLOW: u32 = 1 << 0;
/// a condition's label was not known yet: the client judges
pub const DEBOX_EVENT_UNCERTAIN: u32 = 1 << 1;
pub const DEBOX_EVENT_COMPAT32: u32 = 1 << 3;
pub const DEBOX_EVENT_SLEEP: u32 = 1 << 4;
pub const DEBOX_EVENT_SLEEPS_MAX: usize = 8;

mirror! {
    /// One blocking place inside one call (the paper's PerSleepInfo).
    debox_sleep = 96, 8 {
        /// blocked here in all
        total_ns: u64 = 0,
        /// longest single sleep
        max_ns: u64 = 8,
        /// index into the site table
        site: u32 = 16,
        /// how often
        count: u32 = 20,
        /// other threads waiting for the same when the last sleep began
        waiters_entry: u32 = 24,
        /// ... and when it ended
        waiters_exit: u32 = 28,
        /// thread id of the lock's owner, 0 unknown or withheld
        holder_pid: u32 = 32,
        /// thread id of who woke us last, 0 unknown or withheld
        waker_pid: u32 = 36,
        /// DEBOX_HOLDER_*
        holder_kind: u32 = 40,
        /// DEBOX_SLEEP_*
        flags: u32 = 44,
        holder_comm: [u8; 16] = 48,
        waker_comm: [u8; 16] = 64,
        /// the call the holder was in; -1 none or unknown
        holder_nr: i32 = 80,
        /// thread id of who held the lock when the last sleep ended
        holder_exit_pid: u32 = 84,
        /// what the longest sleep waited for: explains the longest part of it
        chain: u32 = 88,
        /// so much of it
        chain_permille: u32 = 92,
    }
}

mirror! {
    /// The account of one call, of any capture, in any language.
    debox_info = 1768, 8 {
        /// sizeof(struct debox_info) of the writer
        size: u32 = 0,
        /// DEBOX_FLAG_*
        flags: u32 = 4,
        /// DEBOX_VALID_*
        valid: u64 = 8,
        /// the thread's own running number of the call
        call_seq: u64 = 16,
        /// system call number; -1 unknown
        nr: i32 = 24,
        /// entries used in sleeps[]
        sleep_count: u32 = 28,
        /// the kernel's return value: -errno on failure
        retval: i64 = 32,
        /// CLOCK_MONOTONIC at entry
        start_ns: u64 = 40,
        /// = cpu_ns + blocked_ns + runq_ns (+ irq_ns)
        wall_ns: u64 = 48,
        /// on a CPU
        cpu_ns: u64 = 56,
        /// asleep until woken
        blocked_ns: u64 = 64,
        /// runnable, waiting for a CPU
        runq_ns: u64 = 72,
        /// interrupts that landed in the call; only where asked for
        irq_ns: u64 = 80,
        /// in user mode beside the call, off CPU or in (measured) interrupts: not
        /// part of wall_ns
        outside_ns: u64 = 88,
        /// return address in the program
        call_site: u64 = 96,
        minor_faults: u32 = 104,
        major_faults: u32 = 108,
        /// voluntary context switches
        nvcsw: u32 = 112,
        /// involuntary ones
        nivcsw: u32 = 116,
        /// sleeps that found no room in sleeps[]
        sleeps_dropped: u32 = 120,
        trace_count: u32 = 124,
        sleeps_dropped_ns: u64 = 128,
        trace_dropped: u32 = 136,
        /// thread group
        pid: u32 = 140,
        /// thread
        tid: u32 = 144,
        /// calls summed up here: 1, or a span's number of wrapped calls
        calls: u32 = 148,
        reserved: [u64; 10] = 152,
        sleeps: [debox_sleep; 16] = 232,
    }
}

mirror! {
    debox_control = 4096, 8 {
        /// the open call's number, 0 outside calls. Written last at
        /// begin, first at end. The reader runs on the same CPU or
        /// after a context switch, so a compiler barrier is enough.
        open_seq: u64 = 0,
        /// -1: take it from the thread's registers
        nr: i32 = 8,
        /// nesting level of the open call
        level: u32 = 12,
        call_site: u64 = 16,
        /// 0..DEBOX_SLEEPS_MAX, larger counts as the maximum
        max_sleeps: u32 = 24,
        /// DEBOX_CONTROL_*
        flags: u32 = 28,
        /// trace entries wanted of each call (trace.h); 0: none
        max_trace: u32 = 32,
        reserved0: u32 = 36,
        reserved: [u64; 3] = 40,
        /// libdebox's own; the kernel side never looks
        user: [u8; 4032] = 64,
    }
}

mirror! {
    /// Sums over the thread's whole watched life: two reads make a span.
    debox_totals = 192, 8 {
        /// all sleeps, inside and outside of calls
        blocked_ns: u64 = 0,
        /// all waits for a CPU
        runq_ns: u64 = 8,
        /// of blocked_ns: in user mode (page faults)
        outside_blocked_ns: u64 = 16,
        /// of runq_ns: preempted in user mode
        outside_runq_ns: u64 = 24,
        /// number of sleeps
        sleeps: u64 = 32,
        /// page faults taken in kernel mode
        kernel_faults: u64 = 40,
        /// major ones among all faults, of user mode too
        major_faults: u64 = 48,
        nvcsw: u64 = 56,
        nivcsw: u64 = 64,
        /// blocked time that found no room in a record
        dropped_ns: u64 = 72,
        /// all interrupts, in and outside of calls; 0 where not asked for
        irq_ns: u64 = 80,
        reserved: [u64; 13] = 88,
    }
}

mirror! {
    debox_bank = 1920, 8 {
        info: debox_info = 0,
        pad: [u8; 152] = 1768,
    }
}

mirror! {
    debox_record = 4096, 8 {
        /// the slot's thread, 0 when free; claimed and freed by the kernel side
        tid: u32 = 0,
        tgid: u32 = 4,
        /// counts the threads that had this slot
        generation: u64 = 8,
        totals: debox_totals = 16,
        /// 1 while the thread is off the CPU. A thread that finds it set about
        /// itself was switched back in unseen: some kernels hide switches away
        /// from processes they protect. The open bank then lacks its last sleep,
        /// until the next event; DEBOX_CONTROL_SETTLE says how to make one.
        away: u32 = 208,
        /// 1: what happens in spliced calls is recorded as well, while libdebox has none
        /// open: in bank 1 if the call interrupted another one, else in bank 0. As of the
        /// last event.
        spliced: u32 = 212,
        reserved: [u64; 5] = 216,
        bank: [debox_bank; 2] = 256,
    }
}

mirror! {
    /// The text of one site. `state` is stored last with release order by the
    /// broker and must be loaded with acquire order.
    debox_site = 256, 4 {
        /// DEBOX_SITE_*
        state: u32 = 0,
        /// the first site with the same label and place: print them as one
        merged: u32 = 4,
        /// 0: no debug information
        line: u32 = 8,
        /// byte offset inside the function
        offset: u32 = 12,
        label: [u8; 24] = 16,
        function: [u8; 64] = 40,
        /// empty without debug information
        file: [u8; 112] = 104,
        /// DEBOX_SITE_FLAG_*
        flags: u32 = 216,
        reserved: [u32; 9] = 220,
    }
}

mirror! {
    debox_shared = 200, 8 {
        magic: u32 = 0,
        abi_version: u32 = 4,
        broker_pid: u32 = 8,
        /// Byte offset, in this page, of a robust mutex's lock word that the
        /// broker's main thread holds. The kernel sets FUTEX_OWNER_DIED in it when
        /// the broker dies, also by SIGKILL, before its BPF programs go away: so
        /// word & 0x40000000 (or word == 0) means that records are stale.
        alive_offset: u32 = 12,
        site_count: u32 = 16,
        /// sizeof(struct debox_site)
        site_entry_size: u32 = 20,
        /// DEBOX_FEATURE_* that are attached
        features: u64 = 24,
        reserved: [u64; 5] = 32,
        mutex: [u8; 128] = 72,
    }
}

mirror! {
    /// One system call of an account, on one CPU. Index 0 is never used.
    debox_row = 2456, 8 {
        /// calls that returned
        count: u64 = 0,
        /// of those: returned -errno
        errors: u64 = 8,
        /// of those: interrupted, to be restarted by the kernel
        restarted: u64 = 16,
        /// calls that never returned (exit); not in count, their time is in wall_ns
        unfinished: u64 = 24,
        wall_ns: u64 = 32,
        max_ns: u64 = 40,
        blocked_ns: u64 = 48,
        runq_ns: u64 = 56,
        minor_faults: u64 = 64,
        major_faults: u64 = 72,
        nvcsw: u64 = 80,
        nivcsw: u64 = 88,
        irq_ns: u64 = 96,
        /// of the errors: -ENOENT
        missing: u64 = 104,
        /// calls that returned 1: a read or write of one byte
        ones: u64 = 112,
        /// DEBOX_REQ_AUDIT: calls that the kernel saw begin, and their program said so,
        told: u64 = 120,
        /// and those of which it did not
        untold: u64 = 128,
        hist: [u64; 290] = 136,
    }
}

mirror! {
    debox_account_cpu = 471552, 8 {
        rows: [debox_row; 192] = 0,
    }
}

mirror! {
    /// Where one system call blocked.
    /// hist, and longest_*, are of sleeps that are over, each whole: one that another account was told
    /// the begin of (it has handed its thread over) is here with that. How often this account saw a
    /// sleep end is the sum of hist, so no copy can have one without the other.
    /// Who slept longest is written by one CPU at a time: it makes longest_begun one more, writes, and
    /// then longest_told the same. So what a copy that was made from the front to the back has of it
    /// belongs together if both are equal.
    debox_site_row = 680, 8 {
        /// 0 empty, else 1<<63 | nr key << 32 | site
        key: u64 = 0,
        /// of sleeps that are over, since this account has had the thread
        total_ns: u64 = 8,
        max_ns: u64 = 16,
        /// sum over the sleeps of which they are known
        waiters_entry: u64 = 24,
        waiters_max: u64 = 32,
        /// so many sleeps
        waiters_known: u64 = 40,
        /// of sleeps that are over, before this account had the thread
        before_ns: u64 = 48,
        /// 0; who copies the row adds those that are not over,
        asleep: u64 = 56,
        /// ... and how long they have slept here
        asleep_ns: u64 = 64,
        longest_told: u64 = 72,
        /// 0: none is known. One that two CPUs saw end at once may be missing
        longest_ns: u64 = 80,
        /// CLOCK_MONOTONIC
        longest_end_ns: u64 = 88,
        /// the thread's name as it fell asleep
        longest_comm: [u8; 16] = 96,
        longest_begun: u64 = 112,
        hist: [u64; 70] = 120,
    }
}

mirror! {
    debox_irq_row = 96, 8 {
        /// 0 free, else 1 << 63 | kind | number | hash
        key: u64 = 0,
        /// that landed in calls
        count: u64 = 8,
        total_ns: u64 = 16,
        max_ns: u64 = 24,
        /// ... between calls, in the program's own code
        outside_count: u64 = 32,
        outside_ns: u64 = 40,
        outside_max_ns: u64 = 48,
        reserved: [u64; 1] = 56,
        name: [u8; 32] = 64,
    }
}

mirror! {
    debox_account = 1409192, 8 {
        /// row indices handed out, 1..
        rows_used: u32 = 0,
        cpus: u32 = 4,
        /// threads (first ones of processes included) cloned under watch; not
        /// those that were there when the watch began
        threads_started: u64 = 8,
        threads_ended: u64 = 16,
        /// threads that could not be watched: no memory
        threads_unwatched: u64 = 24,
        /// calls whose number found no free row
        rows_dropped: u64 = 32,
        /// sleeps that found no free site row
        sites_dropped: u64 = 40,
        sites_dropped_ns: u64 = 48,
        /// sleeps whose stack could not be taken
        sites_unknown: u64 = 56,
        sites_unknown_ns: u64 = 64,
        /// exec of a set-user-id, set-group-id program or one with capabilities
        left_privileged_exec: u64 = 72,
        processes_started: u64 = 80,
        /// exec of a program that may be run and not read
        left_unreadable_exec: u64 = 88,
        /// changed their user or group ids or capabilities
        left_credentials: u64 = 96,
        /// closed themselves (PR_SET_DUMPABLE), or their process did
        left_undumpable: u64 = 104,
        /// another account has them now
        left_taken: u64 = 112,
        /// interrupts that found no row; their time is in the calls'
        irqs_dropped: u64 = 120,
        irqs_dropped_ns: u64 = 128,
        /// calls that slept as their thread's watch began: of them what came after
        calls_begun_before: u64 = 136,
        /// in calls of spliced programs that these did not tell of: by site alone
        sleeps_untold: u64 = 144,
        sleeps_untold_ns: u64 = 152,
        reserved: [u64; 1] = 160,
        /// nr key -> row index, 0 none
        row_of: [u32; 1024] = 168,
        sites: [debox_site_row; 2048] = 4264,
        irqs: [debox_irq_row; 128] = 1396904,
    }
}

mirror! {
    /// Where the time of threads went, from first to last sight: life_ns is the sum of the
    /// parts after it (rest_ns is part of blocked_ns), to the nanosecond.
    debox_life_time = 120, 8 {
        life_ns: u64 = 0,
        /// on a CPU, in none of its calls: its own code, and faults of it
        own_ns: u64 = 8,
        /// on a CPU, in system calls (accounts with boundaries; else own_ns has it)
        calls_ns: u64 = 16,
        /// on a CPU, on its way out of the world
        exit_ns: u64 = 24,
        /// asleep in calls
        blocked_ns: u64 = 32,
        /// ... of this: at its resting place, with nothing to do
        rest_ns: u64 = 40,
        /// asleep outside of calls: faults, exit
        outside_ns: u64 = 48,
        /// by a signal, or a tracer
        stopped_ns: u64 = 56,
        /// could have run, and had no CPU
        runq_ns: u64 = 64,
        minor_faults: u64 = 72,
        major_faults: u64 = 80,
        /// The same time on a CPU as the kernel counts it: by ticks, or exactly where it is
        /// built so. Of many ticks the ratio tells how much of own_ns the kernel took.
        user_ns: u64 = 88,
        /// calls_ns, exit_ns, and faults and interrupts of own_ns
        system_ns: u64 = 96,
        /// Interrupts that landed in calls_ns, and in own_ns; 0 unless the account measures them.
        irq_ns: u64 = 104,
        irq_outside_ns: u64 = 112,
    }
}

mirror! {
    debox_away = 216, 8 {
        pid: u32 = 0,
        tid: u32 = 4,
        /// OFF: nr key of the call that it is in, DEBOX_NR_OUTSIDE none
        key: u32 = 8,
        /// ASLEEP: where; DEBOX_SITE_NONE: not known
        site: u32 = 12,
        /// DEBOX_AWAY_*
        flags: u32 = 16,
        /// LIFE: its number among the programs of struct debox_lives
        program: u32 = 20,
        /// CALL: since it began, or its watch did
        wall_ns: u64 = 24,
        /// of the call so far (CALL), else of this stretch off the CPU
        blocked_ns: u64 = 32,
        runq_ns: u64 = 40,
        /// CALL: interrupts that landed in it; see debox_row
        irq_ns: u64 = 48,
        /// ASLEEP: of this sleep so far
        asleep_ns: u64 = 56,
        comm: [u8; 16] = 64,
        life: debox_life_time = 80,
        /// LIFE: its process's, as in struct debox_life, when rows are of many; else 0
        cgroup: u64 = 200,
        reserved: [u64; 1] = 208,
    }
}

mirror! {
    debox_user_stack = 280, 8 {
        /// of frames, never 0; 0: free. Written first
        hash: u64 = 0,
        /// frames used; written last: 0 while being filled
        depth: u32 = 8,
        /// DEBOX_STACK_*
        flags: u32 = 12,
        /// a process it was seen in
        pid: u32 = 16,
        /// index of the program's own call site: the first frame outside of
        /// the C library or the language's runtime
        site_frame: u32 = 20,
        /// innermost first
        frames: [u64; 32] = 24,
    }
}

mirror! {
    debox_user_file = 264, 8 {
        /// 0: free
        ino: u64 = 0,
        /// kernel's encoding: major << 20 | minor
        dev: u32 = 8,
        /// 1 once path is complete
        state: u32 = 12,
        /// a process that had it mapped
        pid: u32 = 16,
        reserved0: u32 = 20,
        /// as the process's mount namespace shows it; may be cut at the
        /// front, then it does not begin with '/'
        path: [u8; 240] = 24,
    }
}

mirror! {
    debox_call_site_row = 256, 8 {
        /// USED | nr key << NR_SHIFT | user stack index
        key: u64 = 0,
        count: u64 = 8,
        errors: u64 = 16,
        wall_ns: u64 = 24,
        max_ns: u64 = 32,
        blocked_ns: u64 = 40,
        runq_ns: u64 = 48,
        minor_faults: u64 = 56,
        major_faults: u64 = 64,
        irq_ns: u64 = 72,
        reserved: [u64; 2] = 80,
        hist: [u32; 40] = 96,
    }
}

mirror! {
    debox_path_row = 32, 8 {
        /// USED | nr key << NR_SHIFT | site << SITE_SHIFT | user stack index (0: unknown)
        key: u64 = 0,
        count: u64 = 8,
        total_ns: u64 = 16,
        max_ns: u64 = 24,
    }
}

mirror! {
    debox_culprit_row = 56, 8 {
        /// USED | nr key << NR_SHIFT | site << SITE_SHIFT | kind | nr + 1 | pid
        key: u64 = 0,
        count: u64 = 8,
        total_ns: u64 = 16,
        max_ns: u64 = 24,
        /// of the last one seen; pid in the key is the process
        tid: u32 = 32,
        /// 1 + where a holder was in its program, a number in stacks[] (holder_stack
        /// below); 1: not known; 0: while the row is being claimed
        place: u32 = 36,
        comm: [u8; 16] = 40,
    }
}

mirror! {
    debox_thread_row = 120, 8 {
        /// 0: free. Row 0 sums up the threads that found no row
        tid: u32 = 0,
        tgid: u32 = 4,
        /// as of its last call
        comm: [u8; 16] = 8,
        /// CLOCK_MONOTONIC
        first_ns: u64 = 24,
        /// 0: lives
        ended_ns: u64 = 32,
        count: u64 = 40,
        errors: u64 = 48,
        wall_ns: u64 = 56,
        blocked_ns: u64 = 64,
        runq_ns: u64 = 72,
        minor_faults: u64 = 80,
        major_faults: u64 = 88,
        /// in its calls
        irq_ns: u64 = 96,
        irq_outside_ns: u64 = 104,
        /// of a spliced thread: calls and, << 32, errors as it told them last
        told: u64 = 112,
    }
}

mirror! {
    /// All of its parts must hold (a conjunction). `serial` rises with each change;
    /// a condition whose flags lack ON is not looked at.
    debox_condition = 4512, 8 {
        /// DEBOX_CONDITION_*
        flags: u32 = 0,
        /// sent to the caller as the call returns; 0: none
        signal: u32 = 4,
        /// bit n: min[n] <= field n <= max[n] is asked
        fields: u32 = 8,
        reserved0: u32 = 12,
        /// acts at most so often; 0: without limit
        limit: u64 = 16,
        /// ... and not again before this time has passed
        interval_ns: u64 = 24,
        comm: [u8; 16] = 32,
        min: [i64; 13] = 48,
        max: [i64; 13] = 152,
        /// bit = nr key
        calls: [u64; 16] = 256,
        /// bit = site; the client sets them as sites get their text
        sites: [u64; 256] = 384,
        /// sites that the client has judged; a sleep at another one makes
        /// the answer uncertain: DEBOX_EVENT_UNCERTAIN
        known: [u64; 256] = 2432,
        /// bit = label; with CONDITION_LABELS
        labels: [u64; 4] = 4480,
    }
}

mirror! {
    debox_account_control = 44352, 8 {
        /// DEBOX_DETAIL_*
        flags: u32 = 0,
        /// entries in use
        conditions: u32 = 4,
        /// DEBOX_REQ_SPLICE: CLOCK_MONOTONIC is ticks of the time stamp counter x this, 32 bits of which
        /// are after the point, and this; as of now.
        tick_rate: u64 = 8,
        tick_offset_ns: i64 = 16,
        /// ... when its command was let go; 0: there is none
        begins_ns: u64 = 24,
        reserved: [u64; 4] = 32,
        /// by nr key: a call (or sleep in it) that took so long is worth an event; 0: none is
        slow_ns: [u64; 1024] = 64,
        condition: [debox_condition; 8] = 8256,
    }
}

mirror! {
    /// What the kernel side knows of a condition.
    debox_condition_state = 64, 8 {
        /// calls that met it
        matched: u64 = 0,
        /// signals sent
        acted: u64 = 8,
        /// matched, but held back by limit or interval
        limited: u64 = 16,
        uncertain: u64 = 24,
        last_ns: u64 = 32,
        reserved: [u64; 3] = 40,
    }
}

mirror! {
    /// Below 4 MiB: older kernels (6.1, 6.12) have no larger elements of an array map.
    debox_details = 4092664, 8 {
        events_sent: u64 = 0,
        /// found no room in the ring
        events_dropped: u64 = 8,
        /// calls that found no row, or no stack
        call_sites_dropped: u64 = 16,
        call_sites_dropped_ns: u64 = 24,
        /// user stacks that found no place
        stacks_dropped: u64 = 32,
        /// walks that met a file without an unwind table
        stacks_pending: u64 = 40,
        /// walks that found no call site at all
        stacks_failed: u64 = 48,
        paths_dropped: u64 = 56,
        paths_dropped_ns: u64 = 64,
        culprits_dropped: u64 = 72,
        culprits_dropped_ns: u64 = 80,
        files_dropped: u64 = 88,
        /// threads that are summed up in row 0
        threads_dropped: u64 = 96,
        /// indices handed out: 1..
        stacks_used: u32 = 104,
        files_used: u32 = 108,
        threads_used: u32 = 112,
        reserved0: u32 = 116,
        /// of this account among all of the broker's; never 0
        serial: u64 = 120,
        reserved: [u64; 15] = 128,
        condition: [debox_condition_state; 8] = 248,
        culprits: [debox_culprit_row; 4096] = 760,
        paths: [debox_path_row; 8192] = 230136,
        threads: [debox_thread_row; 1024] = 492280,
        files: [debox_user_file; 512] = 615160,
        call_sites: [debox_call_site_row; 4096] = 750328,
        stacks: [debox_user_stack; 8192] = 1798904,
    }
}

mirror! {
    debox_chain = 64, 8 {
        /// DEBOX_CHAIN_*, written last
        kind: u32 = 0,
        /// 0: this is the root
        parent: u32 = 4,
        /// SLEEP: where; DEBOX_SITE_NONE: not known
        site: u32 = 8,
        /// nr key of the system call (see DEBOX_NR_COMPAT), -1 none
        nr: i32 = 12,
        /// whose thread; what the broker withholds depends on it
        uid: u32 = 16,
        /// a thread it was seen of
        tid: u32 = 20,
        /// links from here to the root, this one included
        depth: u32 = 24,
        /// DEBOX_CHAIN_HELD, _REST, _FIRST, _CLASS, _OWN, _LOOP
        flags: u32 = 28,
        comm: [u8; 16] = 32,
        /// RAN_USER, RAN: where that was, a number in stacks[] of ...
        user_stack: u32 = 48,
        /// ... the account with this serial (its low half); 0: not taken
        serial: u32 = 52,
        reserved: [u64; 1] = 56,
    }
}

mirror! {
    debox_chain_sum = 24, 8 {
        /// sleeps, or parts of them
        count: u64 = 0,
        total_ns: u64 = 8,
        max_ns: u64 = 16,
    }
}

mirror! {
    /// Of one account. sum[0]: those that found no room among the chains.
    debox_chain_sums = 393280, 8 {
        reserved: [u64; 8] = 0,
        sum: [debox_chain_sum; 16384] = 64,
    }
}

mirror! {
    debox_object = 328, 8 {
        /// of what it is told apart by, never 0; 0: free, or not in a table
        hash: u64 = 0,
        ino: u64 = 8,
        /// DEBOX_OBJECT_*, written last
        kind: u32 = 16,
        flags: u32 = 20,
        /// kernel's encoding: major << 20 | minor
        dev: u32 = 24,
        rdev: u32 = 28,
        /// ANON, FUTEX: of this process
        pid: u32 = 32,
        /// the descriptor; -1 none. Of many, in a table: 0 to all but ANON
        fd: i32 = 36,
        /// unix sockets: who connected, or listened; 0 not known
        peer_pid: u32 = 40,
        /// AF_*
        family: u16 = 44,
        /// SOCK_*
        socket_type: u16 = 46,
        /// IPPROTO_*
        protocol: u16 = 48,
        local_port: u16 = 50,
        peer_port: u16 = 52,
        reserved0: u16 = 54,
        /// network order; IPv4: the first four
        local: [u8; 16] = 56,
        peer: [u8; 16] = 72,
        text: [u8; 240] = 88,
    }
}

mirror! {
    debox_object_row = 32, 8 {
        /// 0 empty, else 1 << 63 | nr key << 32 | number of the object; 0: none, or not known
        key: u64 = 0,
        /// sleeps
        count: u64 = 8,
        total_ns: u64 = 16,
        max_ns: u64 = 24,
    }
}

mirror! {
    debox_objects = 1605696, 8 {
        /// that of the details
        serial: u64 = 0,
        rows_dropped: u64 = 8,
        rows_dropped_ns: u64 = 16,
        reserved: [u64; 5] = 24,
        /// the first is not used
        objects: [debox_object; 4096] = 64,
        rows: [debox_object_row; 8192] = 1343552,
    }
}

mirror! {
    debox_on_cpu_group = 64, 8 {
        /// of the name; 0: free. The first is of threads that found no group
        hash: u64 = 0,
        samples: [u64; 4] = 8,
        comm: [u8; 16] = 40,
        reserved: [u64; 1] = 56,
    }
}

mirror! {
    debox_python_function = 136, 8 {
        /// 0: free
        hash: u64 = 0,
        /// what was too long is cut off at its end
        name: [u8; 64] = 8,
        /// ... at its beginning
        file: [u8; 64] = 72,
    }
}

mirror! {
    debox_on_cpu_row = 16, 8 {
        /// USED | ...; of stacks 0: none, or no room
        key: u64 = 0,
        count: u64 = 8,
    }
}

mirror! {
    debox_on_cpu = 2867328, 8 {
        /// that of the details, whose files[] the frames are in
        serial: u64 = 0,
        /// 0: there is no clock
        hz: u32 = 8,
        /// then: why, an errno
        error: i32 = 12,
        rows_dropped: u64 = 16,
        /// samples whose stack, or its callers, found no room
        stacks_dropped: u64 = 24,
        /// walks that met a file without an unwind table
        stacks_pending: u64 = 32,
        /// samples of threads that may not be seen, or not any more, if that is not known yet
        withheld: u64 = 40,
        stacks_used: u32 = 48,
        reserved0: u32 = 52,
        /// frames of Python functions that found no room
        python_dropped: u64 = 56,
        reserved: [u64; 8] = 64,
        groups: [debox_on_cpu_group; 512] = 128,
        rows: [debox_on_cpu_row; 16384] = 32896,
        /// Frame 0 is one byte behind the start of the instruction that ran: like
        /// the others, it lies behind what it names.
        stacks: [debox_user_stack; 8192] = 295040,
        python: [debox_python_function; 2048] = 2588800,
    }
}

mirror! {
    debox_program = 24, 8 {
        /// 0 empty; of its name
        key: u64 = 0,
        comm: [u8; 16] = 8,
    }
}

mirror! {
    debox_life = 304, 8 {
        /// 0 empty; else 1 << 63 | program << 32 | pid, or see DEBOX_LIFE_GROUP
        key: u64 = 0,
        /// its process's, when the row was made; 0: rows of many
        parent: u32 = 8,
        /// that began under this name, or came to it
        threads: u32 = 12,
        /// first threads among them
        processes: u32 = 16,
        /// of these, those that came to it by exec
        execs: u32 = 20,
        /// CLOCK_MONOTONIC: of the first thread's beginning
        first_ns: u64 = 24,
        /// of what was added last
        last_ns: u64 = 32,
        time: debox_life_time = 40,
        /// its process's, by number in the unified hierarchy, at its last beginning
        /// or exec here; 0: not known, or of many
        cgroup: u64 = 160,
        reserved: [u64; 1] = 168,
        /// the last exec's arguments, each with a 0 behind it; cut
        title: [u8; 128] = 176,
    }
}

mirror! {
    debox_critical_part = 16, 8 {
        /// program << 48 | DEBOX_CRITICAL_* << 32 | chain
        key: u64 = 0,
        ns: u64 = 8,
    }
}

mirror! {
    debox_critical = 584, 8 {
        /// by kind: what found no room
        other_ns: [u64; 8] = 0,
        used: u32 = 64,
        reserved0: u32 = 68,
        part: [debox_critical_part; 32] = 72,
    }
}

mirror! {
    debox_activity_bucket = 64, 8 {
        count: u64 = 0,
        /// the sum of the four after it
        total_ns: u64 = 8,
        own_ns: u64 = 16,
        calls_ns: u64 = 24,
        blocked_ns: u64 = 32,
        runq_ns: u64 = 40,
        /// the longest wait in one of them,
        longest_ns: u64 = 48,
        /// and for what; 0: none
        chain: u32 = 56,
        reserved0: u32 = 60,
    }
}

mirror! {
    debox_activity = 1568, 8 {
        /// 0 empty; else 1 << 63 | program << 32 | nr key of the call in which it rests
        key: u64 = 0,
        max_ns: u64 = 8,
        reserved: [u64; 2] = 16,
        bucket: [debox_activity_bucket; 24] = 32,
    }
}

mirror! {
    debox_lives = 1471280, 8 {
        /// that of the details
        serial: u64 = 0,
        /// CLOCK_MONOTONIC: the first thread was bound
        begin_ns: u64 = 8,
        /// the path's; 0: its process lives
        end_ns: u64 = 16,
        rows_used: u64 = 24,
        /// stretches of life that found no row
        rows_dropped: u64 = 32,
        dropped: debox_life_time = 40,
        /// whose end the path leads to: the first process bound
        critical_pid: u32 = 160,
        /// names that found no number; theirs is 0
        programs_dropped: u32 = 164,
        /// that found no row
        activities_dropped: u64 = 168,
        reserved: [u64; 7] = 176,
        critical: debox_critical = 232,
        activities: [debox_activity; 128] = 816,
        /// the first is not used
        programs: [debox_program; 1024] = 201520,
        rows: [debox_life; 4096] = 226096,
    }
}

mirror! {
    /// One sleep of a single call, in order; not merged.
    debox_event_sleep = 128, 8 {
        /// CLOCK_MONOTONIC
        start_ns: u64 = 0,
        blocked_ns: u64 = 8,
        /// after the wake-up
        runq_ns: u64 = 16,
        site: u32 = 24,
        waiters_entry: u32 = 28,
        waiters_exit: u32 = 32,
        /// DEBOX_HOLDER_*
        holder_kind: u32 = 36,
        /// thread id
        holder_pid: u32 = 40,
        /// the call the holder was in; -1 none or unknown
        holder_nr: i32 = 44,
        waker_pid: u32 = 48,
        waker_nr: i32 = 52,
        /// DEBOX_SLEEP_*; above, what `chain` explains of it
        flags: u32 = 56,
        /// ... when it ended
        holder_exit_kind: u32 = 60,
        holder_exit_pid: u32 = 64,
        holder_exit_nr: i32 = 68,
        holder_comm: [u8; 16] = 72,
        waker_comm: [u8; 16] = 88,
        holder_exit_comm: [u8; 16] = 104,
        /// that explains the longest part of it; 0: there was no room
        chain: u32 = 120,
        /// of a lock of the program: where the holder was as the sleep began, in the call
        /// holder_nr; that is -1: where its last call had been made; 0: not known
        holder_stack: u32 = 124,
    }
}

mirror! {
    debox_event_call = 1544, 8 {
        /// of this event
        size: u32 = 0,
        /// DEBOX_EVENT_CALL
        kind: u32 = 4,
        /// DEBOX_EVENT_*
        flags: u32 = 8,
        /// nr key
        key: u32 = 12,
        pid: u32 = 16,
        tid: u32 = 20,
        comm: [u8; 16] = 24,
        retval: i64 = 40,
        args: [u64; 6] = 48,
        /// CLOCK_MONOTONIC
        start_ns: u64 = 96,
        wall_ns: u64 = 104,
        cpu_ns: u64 = 112,
        blocked_ns: u64 = 120,
        runq_ns: u64 = 128,
        /// 0 as well where it is not measured
        irq_ns: u64 = 136,
        minor_faults: u32 = 144,
        major_faults: u32 = 148,
        nvcsw: u32 = 152,
        nivcsw: u32 = 156,
        /// index into stacks[], 0 none
        user_stack: u32 = 160,
        /// bit n: met condition n
        conditions: u32 = 164,
        /// bit n: met condition n but for a label not known yet
        uncertain: u32 = 168,
        /// sent to the caller, 0 none
        signal: u32 = 172,
        sleep_count: u32 = 176,
        sleeps_dropped: u32 = 180,
        sleeps_dropped_ns: u64 = 184,
        /// what the call worked on
        object: debox_object = 192,
        sleeps: [debox_event_sleep; 8] = 520,
    }
}

// debox/protocol.h

pub const DEBOX_PROTOCOL_VERSION: u32 = 1;
pub const DEBOX_SOCKET_PATH: &str = "/run/debox/debox.sock";
pub const DEBOX_ENV_SOCKET: &str = "DEBOX_SOCKET";
pub const DEBOX_ENV_COLLECT: &str = "DEBOX_COLLECT";
pub const DEBOX_ENV_IRQ: &str = "DEBOX_IRQ";
pub const DEBOX_MSG_SLOTS: u32 = 1;
pub const DEBOX_MSG_ACCOUNT: u32 = 2;
pub const DEBOX_MSG_JOIN: u32 = 3;
pub const DEBOX_MSG_WATCH: u32 = 4;
pub const DEBOX_MSG_SITE_STACKS: u32 = 6;
pub const DEBOX_MSG_TRACE: u32 = 7;
pub const DEBOX_MSG_CHAINS: u32 = 8;
pub const DEBOX_MSG_LABELS: u32 = 9;
pub const DEBOX_MSG_AWAY: u32 = 10;
pub const DEBOX_AWAY_MAX: u32 = 65536;
pub const DEBOX_MSG_KERNEL_FUNCTIONS: u32 = 11;
pub const DEBOX_MSG_SELECT: u32 = 12;
pub const DEBOX_MSG_BOUNDARY: u32 = 13;
pub const DEBOX_MSG_YIELD: u32 = 14;
pub const DEBOX_MSG_COSTS: u32 = 15;
pub const DEBOX_MSG_STATUS: u32 = 5;
/// SLOTS, ACCOUNT: take call boundaries in the kernel
pub const DEBOX_REQ_BOUNDARY: u32 = 1 << 0;
/// SLOTS: records say what sleeps waited for (debox_sleep.chain)
pub const DEBOX_REQ_CHAINS: u32 = 1 << 4;
/// JOIN, WATCH, SELECT: leave children alone, and what comes later
pub const DEBOX_REQ_NOFOLLOW: u32 = 1 << 1;
/// WATCH: the children that it has, too, and theirs
pub const DEBOX_REQ_DESCENDANTS: u32 = 1 << 7;
pub const DEBOX_REQ_AUDIT: u32 = 1 << 13;
pub const DEBOX_REQ_OPEN_COUNTED: u32 = 1 << 11;
pub const DEBOX_REQ_RENAMES: u32 = 1 << 12;
pub const DEBOX_REQ_EXECUTES: u32 = 1 << 15;
pub const DEBOX_REQ_OWNERS_FIRST: u32 = 1 << 14;
pub const DEBOX_REQ_DETAILS: u32 = 1 << 2;
pub const DEBOX_REQ_USER_STACKS: u32 = 1 << 3;
pub const DEBOX_REQ_IRQ: u32 = 1 << 5;
pub const DEBOX_REQ_ON_CPU: u32 = 1 << 6;
pub const DEBOX_ON_CPU_HZ_MAX: u32 = 1000;
pub const DEBOX_REQ_SPLICE: u32 = 1 << 10;
/// COSTS: of the programs in the kernel as well
pub const DEBOX_REQ_RUN_TIME: u32 = 1 << 16;
pub const DEBOX_COSTS_RUN_TIME: u32 = 1 << 0;
pub const DEBOX_COSTS_TABLES: u32 = 1 << 1;
pub const DEBOX_COSTS_CPU: u32 = 1 << 2;
pub const DEBOX_COSTS_MEMORY: u32 = 1 << 3;
pub const DEBOX_SELECT_UIDS_MAX: usize = 16;
pub const DEBOX_SELECT_COMMS_LEN: usize = 256;
pub const DEBOX_SELECT_CGROUPS_LEN: usize = 2048;
pub const DEBOX_SELECT_RANK_MAX: u32 = 65535;
pub const DEBOX_COLLECT_MAGIC: u32 = 0x77304265;
pub const DEBOX_WRAP_ROWS: usize = 256;

mirror! {
    debox_request = 64, 4 {
        /// sizeof(struct debox_request) of the sender
        size: u32 = 0,
        /// DEBOX_PROTOCOL_VERSION
        version: u32 = 4,
        /// DEBOX_MSG_*
        kind: u32 = 8,
        /// DEBOX_REQ_*
        flags: u32 = 12,
        /// WATCH; BOUNDARY: a thread
        pid: i32 = 16,
        /// ACCOUNT, with ON_CPU
        hz: u32 = 20,
        reserved: [u32; 10] = 24,
    }
}

mirror! {
    debox_reply = 384, 8 {
        /// sizeof(struct debox_reply) of the broker
        size: u32 = 0,
        version: u32 = 4,
        /// of the request
        kind: u32 = 8,
        /// 0 or -errno
        status: i32 = 12,
        /// descriptors that came along
        fds: u32 = 16,
        /// SLOTS: slots in the segment (DEBOX_SEGMENT_SLOTS)
        slots: u32 = 20,
        /// ACCOUNT: elements of the per-CPU map
        cpus: u32 = 24,
        /// SLOTS, JOIN, WATCH, SELECT: threads bound now
        threads: u32 = 28,
        /// ACCOUNT: bytes from one CPU's element to the next
        cpu_stride: u64 = 32,
        /// DEBOX_FEATURE_* attached now
        features: u64 = 40,
        /// STATUS
        slots_used: u64 = 48,
        /// STATUS
        accounts_used: u64 = 56,
        /// STATUS: stacks taken the slow way
        site_walks: u64 = 64,
        /// STATUS: stacks recognised
        site_hits: u64 = 72,
        /// STATUS: with site verification on; must be 0
        site_mismatches: u64 = 80,
        /// STATUS: walks that the kernel failed to make
        site_failures: u64 = 88,
        /// STATUS: threads without memory for their state
        storage_failures: u64 = 96,
        /// STATUS: new threads that found no slot at once
        slots_exhausted: u64 = 104,
        /// STATUS: switches back that the kernel did not show
        switches_hidden: u64 = 112,
        /// WATCH, SELECT: of those threads, first ones of a process
        processes: u64 = 120,
        /// what went wrong and the remedy, for people
        text: [u8; 256] = 128,
    }
}

mirror! {
    debox_costs = 64, 8 {
        /// sizeof(struct debox_costs) of the broker
        size: u32 = 0,
        /// DEBOX_COSTS_*
        known: u32 = 4,
        /// of its programs, in the times in which the kernel took it
        run_time_ns: u64 = 8,
        /// of its maps in the kernel
        tables_bytes: u64 = 16,
        /// of the broker's process and what that started
        cpu_ns: u64 = 24,
        /// of the same: what no other process has
        memory_bytes: u64 = 32,
        reserved: [u64; 3] = 40,
    }
}

mirror! {
    debox_select = 2496, 4 {
        /// head.size = sizeof(struct debox_select)
        head: debox_request = 0,
        /// effective user ids that follow
        uids: u32 = 64,
        uid: [u32; 16] = 68,
        /// DEBOX_SELECT_RANK_MAX at most; 0 with DEBOX_REQ_NOFOLLOW
        rank: u32 = 132,
        reserved: [u32; 14] = 136,
        comms: [u8; 256] = 192,
        cgroups: [u8; 2048] = 448,
    }
}

mirror! {
    debox_collect = 64, 4 {
        size: u32 = 0,
        version: u32 = 4,
        stripes: u32 = 8,
        /// sizeof(struct debox_wrap_stripe)
        stripe_size: u32 = 12,
        reserved: [u32; 12] = 16,
    }
}

mirror! {
    debox_wrap_row = 2424, 8 {
        /// 0 free; else 1<<63 | nr
        used: u64 = 0,
        /// return address of the wrapped call in the program
        call_site: u64 = 8,
        count: u64 = 16,
        errors: u64 = 24,
        wall_ns: u64 = 32,
        max_ns: u64 = 40,
        blocked_ns: u64 = 48,
        runq_ns: u64 = 56,
        minor_faults: u64 = 64,
        major_faults: u64 = 72,
        nvcsw: u64 = 80,
        nivcsw: u64 = 88,
        irq_ns: u64 = 96,
        hist: [u64; 290] = 104,
    }
}

mirror! {
    /// One thread at a time writes a stripe, so its counters are plain.
    debox_wrap_stripe = 620608, 8 {
        /// 0: free
        owner_tid: u32 = 0,
        rows_used: u32 = 4,
        /// calls that found no row
        dropped: u64 = 8,
        dropped_ns: u64 = 16,
        /// calls that ended after the broker was gone
        stale: u64 = 24,
        reserved: [u64; 4] = 32,
        rows: [debox_wrap_row; 256] = 64,
    }
}

mirror! {
    debox_wrap_header = 256, 4 {
        magic: u32 = 0,
        version: u32 = 4,
        pid: u32 = 8,
        /// 1: the broker gave slots; 0: wall times only
        measured: u32 = 12,
        /// threads that found no stripe
        threads_lost: u32 = 16,
        /// not 0: it forbade itself system calls or time stamps (seccomp,
        /// PR_SET_TSC); what came later is not all counted
        restricted: u32 = 20,
        reserved: [u32; 10] = 24,
        /// why not measured
        why: [u8; 192] = 64,
    }
}

// debox/trace.h

pub const DEBOX_TRACE_DEFAULT: u32 = 200;
pub const DEBOX_TRACE_MAX: u32 = 16384;
pub const DEBOX_TRACE_FUNCTIONS_MAX: usize = 8192;
pub const DEBOX_TRACE_DEPTH_MAX: u32 = 64;
pub const DEBOX_TRACE_WAY_NONE: u32 = 0;
/// kprobe.session, Linux 6.10
pub const DEBOX_TRACE_WAY_SESSION: u32 = 1;
/// a pair of kprobe.multi, Linux 5.18
pub const DEBOX_TRACE_WAY_MULTI: u32 = 2;
/// a pair of fentry and fexit for each function
pub const DEBOX_TRACE_WAY_FENTRY: u32 = 3;
/// static tracepoints only: coarser
pub const DEBOX_TRACE_WAY_TRACEPOINT: u32 = 4;
/// had not returned when the call, or its thread, ended
pub const DEBOX_TRACE_OPEN: u32 = 1 << 0;
/// a tracepoint that was passed: it has no duration
pub const DEBOX_TRACE_POINT: u32 = 1 << 1;
/// made of tracepoints
pub const DEBOX_TRACE_FLAG_COARSE: u32 = 1 << 0;
/// the call never returned
pub const DEBOX_TRACE_FLAG_UNFINISHED: u32 = 1 << 1;
/// nr is of the i386 table
pub const DEBOX_TRACE_FLAG_COMPAT32: u32 = 1 << 2;
pub const DEBOX_TRACE_STATE_STARTING: u32 = 0;
pub const DEBOX_TRACE_STATE_ON: u32 = 1;
/// `text` says why
pub const DEBOX_TRACE_STATE_FAILED: u32 = 2;
pub const DEBOX_TRACE_STATE_STOPPED: u32 = 3;
pub const DEBOX_TRACE_MAGIC: u32 = 0x63304265;
pub const DEBOX_TRACE_TABLE_SIZE: usize = 528384;
pub const DEBOX_REQ_TRACE_ACCOUNT: u32 = 1 << 8;
pub const DEBOX_REQ_TRACE_STOP: u32 = 1 << 9;
pub const DEBOX_TRACE_PATTERNS_LEN: usize = 7808;
pub const DEBOX_TRACE_CALLS_MAX: usize = 32;

mirror! {
    /// One function that the call ran through (the paper's CallTrace).
    debox_trace_entry = 32, 8 {
        /// after debox_trace.start_ns; in a copy from libdebox: after the call began
        start_ns: u64 = 0,
        /// from entry to return, sleeps included
        total_ns: u64 = 8,
        /// of it: not in functions that are traced as well
        self_ns: u64 = 16,
        /// number in the table
        function: u32 = 24,
        /// functions above it in this trace
        depth: u16 = 28,
        /// DEBOX_TRACE_*
        flags: u16 = 30,
    }
}

mirror! {
    /// The head of a buffer; entries follow. Entries stand in the order of entry.
    debox_trace = 128, 8 {
        /// owner, 0 free
        tid: u32 = 0,
        /// nesting level of the calls it holds
        level: u32 = 4,
        /// the call whose trace this is
        call_seq: u64 = 8,
        /// CLOCK_MONOTONIC: the call's begin (account), its first entry's (slots)
        start_ns: u64 = 16,
        /// account: from sys_enter to sys_exit
        wall_ns: u64 = 24,
        /// account
        retval: i64 = 32,
        nr: i32 = 40,
        /// DEBOX_TRACE_FLAG_*
        flags: u32 = 44,
        /// entries in use
        count: u32 = 48,
        /// entries that found no room, or were too deep
        dropped: u32 = 52,
        pid: u32 = 56,
        reserved: [u32; 17] = 60,
    }
}

mirror! {
    /// One function, over all calls of an account.
    debox_trace_sum = 32, 8 {
        calls: u64 = 0,
        /// recursion counts once
        total_ns: u64 = 8,
        self_ns: u64 = 16,
        max_ns: u64 = 24,
    }
}

mirror! {
    debox_trace_sums = 270464, 8 {
        /// calls that were traced
        calls: u64 = 0,
        entries_dropped: u64 = 8,
        /// threads that found no buffer
        threads_untraced: u64 = 16,
        /// returns of functions whose entry was not seen, and the other way round
        unmatched: u64 = 24,
        /// slowest calls that found no buffer to stay in
        unkept: u64 = 32,
        reserved: [u64; 11] = 40,
        /// By key of the call (DEBOX_NR_*): its slowest one; wall_ns / 256 << 20 |
        /// number of the buffer + 1, 0 none.
        slowest: [u64; 1024] = 128,
        functions: [debox_trace_sum; 8192] = 8320,
    }
}

mirror! {
    debox_trace_function = 64, 1 {
        name: [u8; 64] = 0,
    }
}

mirror! {
    debox_trace_table = 1152, 8 {
        magic: u32 = 0,
        /// stored last with release order
        state: u32 = 4,
        /// DEBOX_TRACE_WAY_*
        way: u32 = 8,
        /// names that follow at DEBOX_PAGE_SIZE
        functions: u32 = 12,
        buffers: u32 = 16,
        capacity: u32 = 20,
        stride: u64 = 24,
        /// functions that were asked for and cannot be traced here
        refused: u32 = 32,
        reserved0: u32 = 36,
        /// entries and returns that the kernel did not deliver, of all processes;
        /// up to date when STOPPED
        missed: u64 = 40,
        /// how long attaching took
        attach_ns: u64 = 48,
        reserved: [u64; 9] = 56,
        /// for people: what is missing, or why it failed
        text: [u8; 1024] = 128,
    }
}

mirror! {
    debox_trace_request = 8192, 4 {
        /// head.size = sizeof(struct debox_trace_request)
        head: debox_request = 0,
        /// entries of one call; 0: DEBOX_TRACE_DEFAULT
        capacity: u32 = 64,
        /// that may be traced at one time; 0: the broker's choice
        threads: u32 = 68,
        /// DEBOX_TRACE_WAY_NONE: the best that this kernel allows
        way: u32 = 72,
        calls_count: u32 = 76,
        /// ACCOUNT: keys of the calls to trace; none: all
        calls: [u32; 32] = 80,
        reserved: [u32; 44] = 208,
        /// Patterns with * and ?, separated by commas; empty: the broker's default.
        /// Root and CAP_PERFMON only.
        patterns: [u8; 7808] = 384,
    }
}
