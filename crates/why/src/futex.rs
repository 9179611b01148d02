// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does a thread in futex() wait for, and who holds it?
//!
//! The kernel knows an address and nothing of the lock around it. The C libraries keep
//! the owner beside the word (glibc), or in it (musl, robust and priority-inheritance
//! mutexes). The memory is the program's and can hold anything, so an owner is named
//! only where the word, the value that was waited with and the fields around it fit
//! one kind of lock, and where the owner is a thread that could hold it; that is for
//! the caller to ask.

/// Of the operation of futex().
const PRIVATE: u32 = 128;
const COMMAND: u32 = 0x7f;
const WAIT: u32 = 0;
const LOCK_PI: u32 = 6;
const WAIT_BITSET: u32 = 9;
const WAIT_REQUEUE_PI: u32 = 11;
const LOCK_PI2: u32 = 13;
/// In the word of a robust, a PI and a musl mutex.
const WAITERS: u32 = 0x8000_0000;
const TID_MASK: u32 = 0x3fff_ffff;
/// glibc's lock word when somebody waits.
const CONTENDED: u32 = 2;
/// glibc's bit of a read-write lock's futexes: somebody waits.
const RWLOCK_USED: u32 = 2;
/// All that glibc's `__kind` may hold: type, robust, PI, PP, shared, elision.
const GLIBC_KIND_MASK: u32 = 0x3f3;
/// musl's lock word of a mutex that keeps no owner: EBUSY.
const MUSL_NORMAL: u32 = 16;

/// Words before the one that is waited at, and from it on.
pub const BEFORE: usize = 3;
pub const FROM: usize = 5;
const WORDS: usize = BEFORE + FROM;

/// What a thread in futex() passed, and what its memory holds now.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    pub operation: u32,
    pub value: u32,
    /// The 12 bytes before the word: a page may begin with it.
    pub before: Option<[u32; BEFORE]>,
    /// The word, and 16 bytes behind it.
    pub from: Option<[u32; FROM]>,
    /// The word alone.
    pub word: Option<u32>,
}

impl Waited {
    pub fn is_private(&self) -> bool {
        self.operation & PRIVATE != 0
    }

    /// Whether this operation waits.
    pub fn waits(&self) -> bool {
        matches!(
            self.operation & COMMAND,
            WAIT | LOCK_PI | WAIT_BITSET | WAIT_REQUEUE_PI | LOCK_PI2
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Owner: a thread's number in its own namespace.
    Mutex {
        owner: u32,
    },
    /// With priority inheritance: the kernel keeps the owner as well.
    PiMutex {
        owner: u32,
    },
    /// A read-write lock that a thread holds for writing.
    Written {
        owner: u32,
    },
    /// A read-write lock that somebody holds for reading; nobody knows who.
    Read,
    /// pthread_join() of a thread.
    Thread {
        tid: u32,
    },
    Condition,
    Semaphore,
    Barrier,
}

/// What its memory says; `callers` are the functions that led to the call, innermost
/// first, as far as they are known.
pub fn lock(waited: &Waited, callers: &[String]) -> Option<Lock> {
    let word = waited.word?;
    let command = waited.operation & COMMAND;
    if matches!(command, LOCK_PI | LOCK_PI2) {
        return Some(Lock::PiMutex {
            owner: word & TID_MASK,
        });
    }
    if !matches!(command, WAIT | WAIT_BITSET) {
        return Some(Lock::Condition).filter(|_| command == WAIT_REQUEUE_PI);
    }
    let called = |part: &str| callers.iter().take(6).any(|name| name.contains(part));
    if called("pthread_cond") || called("cnd_wait") || called("cnd_timedwait") {
        return Some(Lock::Condition);
    }
    if called("sem_wait") || called("sem_timedwait") || called("sem_clockwait") {
        return Some(Lock::Semaphore);
    }
    if called("pthread_barrier_wait") {
        return Some(Lock::Barrier);
    }
    // The kernel itself clears this word when the thread ends, and wakes whoever waits
    // by its address in the machine, not in the process.
    if !waited.is_private() && word == waited.value && word & !TID_MASK == 0 && word > CONTENDED + 1
    {
        return Some(Lock::Thread { tid: word });
    }
    if waited.value & WAITERS != 0 && word & WAITERS != 0 {
        let owner = word & TID_MASK;
        return Some(Lock::Mutex { owner }).filter(|_| owner > MUSL_NORMAL);
    }
    let at = |index: usize| waited.from.map(|words| words[index]);
    if waited.value == CONTENDED
        && word == CONTENDED
        && let (Some(owner), Some(kind)) = (at(2), at(4))
        && owner != 0
        && kind & !GLIBC_KIND_MASK == 0
    {
        return Some(Lock::Mutex { owner });
    }
    read_write(waited)
}

/// glibc's: `readers, writers, wrphase_futex, writers_futex, pad, pad, cur_writer,
/// shared`, waited at its third or its fourth word.
fn read_write(waited: &Waited) -> Option<Lock> {
    let mut words = [0; WORDS];
    words[..BEFORE].copy_from_slice(&waited.before?);
    words[BEFORE..].copy_from_slice(&waited.from?);
    let word = words[BEFORE];
    if word != waited.value || word & !(RWLOCK_USED | 1) != 0 || word & RWLOCK_USED == 0 {
        return None;
    }
    // Readers × 8 and three flags; at least one, or a writer.
    let from = |base: usize| {
        let readers = words[base];
        let writer = words.get(base + 6).copied();
        (readers, writer)
    };
    let (readers, writer) = from(0);
    // At the fourth word: another writer is before us.
    if word & 1 == 1 && readers != 0 && writer.is_some_and(|tid| tid != 0) {
        return Some(Lock::Written {
            owner: writer.unwrap_or(0),
        });
    }
    let base = 1;
    let readers = words[base];
    // At the third: its writer is word 6 of it, 4 behind ours.
    let writer = words.get(base + 6).copied().unwrap_or(0);
    match word & 1 {
        1 if readers != 0 && writer != 0 => Some(Lock::Written { owner: writer }),
        0 if readers >> 3 != 0 && writer == 0 => Some(Lock::Read),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waited(operation: u32, value: u32, before: [u32; 3], at: [u32; 5]) -> Waited {
        Waited {
            operation,
            value,
            before: Some(before),
            from: Some(at),
            word: Some(at[0]),
        }
    }

    fn found(waited: &Waited) -> Option<Lock> {
        lock(waited, &[])
    }

    #[test]
    fn mutexes_of_glibc_have_their_owner_beside_the_word() {
        let normal = waited(128, 2, [7, 7, 7], [2, 0, 1234, 1, 0]);
        assert_eq!(found(&normal), Some(Lock::Mutex { owner: 1234 }));
        let recursive = waited(128, 2, [0, 0, 0], [2, 3, 99, 1, 1]);
        assert_eq!(found(&recursive), Some(Lock::Mutex { owner: 99 }));
        // It was let go meanwhile; no owner; a kind that no mutex has.
        for at in [[0, 0, 1234, 1, 0], [2, 0, 0, 1, 0], [2, 0, 5, 1, 0x4000]] {
            assert_eq!(found(&waited(128, 2, [0; 3], at)), None, "{at:?}");
        }
    }

    #[test]
    fn a_mutex_may_begin_a_page_or_end_one() {
        let mut first = waited(128, 2, [0; 3], [2, 0, 1234, 1, 0]);
        first.before = None;
        assert_eq!(found(&first), Some(Lock::Mutex { owner: 1234 }));
        first.from = None;
        assert_eq!(found(&first), None);
    }

    #[test]
    fn musl_robust_and_pi_mutexes_have_it_in_the_word() {
        let robust = waited(0, WAITERS | 77, [0; 3], [WAITERS | 77, 0, 0, 0, 0]);
        assert_eq!(found(&robust), Some(Lock::Mutex { owner: 77 }));
        let normal = waited(128, WAITERS | 16, [0; 3], [WAITERS | 16, 0, 0, 0, 0]);
        assert_eq!(found(&normal), None);
        let pi = waited(128 | LOCK_PI, 0, [0; 3], [WAITERS | 55, 0, 0, 0, 0]);
        assert_eq!(found(&pi), Some(Lock::PiMutex { owner: 55 }));
    }

    #[test]
    fn read_write_locks() {
        // readers 1, writers 0, wrphase 1|2, writers_futex 1, pads, cur_writer.
        let reader = waited(128, 3, [7, 8 | 1, 0], [3, 1, 0, 0, 4321]);
        assert_eq!(found(&reader), Some(Lock::Written { owner: 4321 }));
        let writer = waited(128, 3, [8 | 1, 1, 1], [3, 0, 0, 4321, 0]);
        assert_eq!(found(&writer), Some(Lock::Written { owner: 4321 }));
        let for_readers = waited(128, 2, [7, 8, 0], [2, 1, 0, 0, 0]);
        assert_eq!(found(&for_readers), Some(Lock::Read));
    }

    #[test]
    fn joined_threads_and_what_has_no_owner() {
        let join = waited(0, 4242, [0; 3], [4242, 0, 0, 0, 0]);
        assert_eq!(found(&join), Some(Lock::Thread { tid: 4242 }));
        let private = waited(128, 4242, [0; 3], [4242, 0, 0, 0, 0]);
        assert_eq!(found(&private), None);
        let mutex_like = waited(128, 2, [0; 3], [2, 0, 1234, 1, 0]);
        let callers = ["__futex_abstimed_wait_common", "pthread_cond_wait"].map(String::from);
        assert_eq!(lock(&mutex_like, &callers), Some(Lock::Condition));
        assert_eq!(found(&waited(1, 2, [0; 3], [2, 0, 1, 1, 0])), None);
    }

    /// Whatever a program writes there: an answer, and no panic.
    #[test]
    fn garbage_is_judged_too() {
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as u32
        };
        for _ in 0..100_000 {
            let at = [next() % 5, next(), next() % 3, next(), next()];
            let garbage = waited(next() & 0x1ff, next() % 5, [next(), next(), next()], at);
            let _ = lock(&garbage, &[]);
        }
    }
}
