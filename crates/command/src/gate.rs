// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does the command's process wait until it may become the command?
//!
//! Spinning, it makes no system call, so that whoever begins to count its calls
//! meanwhile sees the execve first. Asleep, it costs nothing, however long it
//! takes. Both see that debox has died.

use std::cell::UnsafeCell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// How the command's process waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// For milliseconds.
    Spinning,
    Asleep,
}

const PAGE: usize = 4096;

pub(crate) enum Gate {
    Spinning(Spin),
    Asleep { child: OwnedFd, parent: OwnedFd },
}

impl Gate {
    /// Dropped by the thread that made it; what waits is then sent away.
    pub(crate) fn new(hold: Hold) -> io::Result<Self> {
        Ok(match hold {
            Hold::Spinning => Gate::Spinning(Spin::new()?),
            Hold::Asleep => {
                let (child, parent) = pipe()?;
                Gate::Asleep { child, parent }
            }
        })
    }

    /// In the child: true when the command may start.
    pub(crate) fn wait(&self) -> bool {
        match self {
            Gate::Spinning(spin) => spin.wait(),
            Gate::Asleep { child, parent } => {
                // SAFETY: the copy of this process only, so that the pipe ends
                // with debox; nobody uses it any more.
                unsafe { libc::close(parent.as_raw_fd()) };
                let mut word = [0];
                read(child, &mut word) == 1 && word == [1]
            }
        }
    }

    /// Sends it away.
    pub(crate) fn close(&self) {
        match self {
            Gate::Spinning(spin) => spin.set(GATE_CANCELLED),
            Gate::Asleep { parent, .. } => write(parent, &[0]),
        }
    }

    pub(crate) fn open(&self) {
        match self {
            Gate::Spinning(spin) => spin.set(GATE_OPEN),
            Gate::Asleep { parent, .. } => write(parent, &[1]),
        }
    }
}

/// Both ends are closed by exec.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: fills a local; both ends are owned at once.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// How many bytes came; system calls only.
pub(crate) fn read(from: &OwnedFd, bytes: &mut [u8]) -> usize {
    loop {
        // SAFETY: the buffer is valid for its length.
        let got = unsafe { libc::read(from.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
        if got >= 0 {
            return got as usize;
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return 0;
        }
    }
}

/// So few bytes go whole, or nobody is there to read them; system calls only.
pub(crate) fn write(to: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the buffer is valid for its length.
    unsafe { libc::write(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
}

/// Turns of the child's waiting loop between two looks whether debox still lives.
const TURNS: u32 = 1 << 12;

/// What parent and child share.
#[repr(C)]
struct Shared {
    word: AtomicU32,
    /// debox holds it as long as it lives: when it dies, the kernel says so in
    /// the lock itself (robust_list(2)), where the child sees it without a
    /// system call, which would be counted.
    life: UnsafeCell<libc::pthread_mutex_t>,
}

/// Where the child waits with no system call.
pub(crate) struct Spin {
    shared: *mut Shared,
    /// Whether others of its real-time priority would else never run.
    yields: bool,
}

const GATE_SHUT: u32 = 0;
const GATE_OPEN: u32 = 1;
const GATE_CANCELLED: u32 = 2;

/// Makes the lock and takes it: 0, or an errno.
///
/// # Safety
/// `life` is memory of the caller's own.
unsafe fn life_begin(life: *mut libc::pthread_mutex_t) -> libc::c_int {
    let mut how = std::mem::MaybeUninit::uninit();
    // SAFETY: `how` is initialised before it is used.
    unsafe {
        let code = libc::pthread_mutexattr_init(how.as_mut_ptr());
        if code != 0 {
            return code;
        }
        let mut code =
            libc::pthread_mutexattr_setpshared(how.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
        if code == 0 {
            code = libc::pthread_mutexattr_setrobust(how.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
        }
        if code == 0 {
            code = libc::pthread_mutex_init(life, how.as_ptr());
        }
        libc::pthread_mutexattr_destroy(how.as_mut_ptr());
        if code == 0 {
            code = libc::pthread_mutex_lock(life);
        }
        code
    }
}

impl Spin {
    /// Dropped by the thread that made it, which owns `life`.
    fn new() -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: no memory involved.
        let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
        let gate = Self {
            shared: memory.cast(),
            yields: policy == libc::SCHED_FIFO,
        };
        // SAFETY: ours, zeroed, and unknown to anybody else.
        match unsafe { life_begin(gate.shared().life.get()) } {
            0 => Ok(gate),
            code => {
                // SAFETY: mapped above; nothing else knows the address.
                unsafe { libc::munmap(memory, PAGE) };
                std::mem::forget(gate);
                Err(io::Error::from_raw_os_error(code))
            }
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped and aligned, zero is a value of both fields; unmapped
        // only by drop.
        unsafe { &*self.shared }
    }

    /// In the child: true when the command may start. No system calls, unless
    /// the child would else keep the CPU from others of its real-time priority.
    fn wait(&self) -> bool {
        loop {
            for _ in 0..TURNS {
                // Acquire and Release order nothing else here; the word is all.
                match self.shared().word.load(Ordering::Acquire) {
                    GATE_SHUT => std::hint::spin_loop(),
                    word => return word == GATE_OPEN,
                }
            }
            // SAFETY: initialised before the fork; a try touches nothing but the
            // lock and this thread's own list.
            let life = unsafe { libc::pthread_mutex_trylock(self.shared().life.get()) };
            if life != libc::EBUSY {
                // Dead, or opened in between and done with.
                return self.shared().word.load(Ordering::Acquire) == GATE_OPEN;
            }
            if self.yields {
                // SAFETY: no memory involved.
                unsafe { libc::sched_yield() };
            }
        }
    }

    fn set(&self, word: u32) {
        self.shared().word.store(word, Ordering::Release);
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        if self.shared().word.load(Ordering::Relaxed) == GATE_SHUT {
            self.set(GATE_CANCELLED);
        }
        // SAFETY: ours, and no reference outlives self. Unlocked first, since a
        // robust lock stands in a list of the thread that holds it.
        unsafe {
            libc::pthread_mutex_unlock(self.shared().life.get());
            libc::munmap(self.shared.cast(), PAGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Forks a process that may only read, write and exit from now on (it is
    /// killed for anything else), waits at the gate and writes what it got.
    fn waiter(gate: &Spin, write_end: libc::c_int) -> libc::pid_t {
        // SAFETY: the child makes system calls only.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) != 0 {
                    libc::_exit(9);
                }
                let answer = if gate.wait() { b'y' } else { b'n' };
                libc::write(write_end, (&raw const answer).cast(), 1);
                libc::syscall(libc::SYS_exit, 0);
            }
            assert!(pid > 0);
            pid
        }
    }

    /// Nothing when the writer died without a word.
    fn answer(read_end: &OwnedFd) -> Option<u8> {
        let mut byte = 0u8;
        // SAFETY: one byte of a local.
        let got = unsafe { libc::read(read_end.as_raw_fd(), (&raw mut byte).cast(), 1) };
        (got == 1).then_some(byte)
    }

    #[test]
    fn a_long_wait_makes_no_system_call() {
        for (word, wanted) in [(GATE_OPEN, b'y'), (GATE_CANCELLED, b'n')] {
            let gate = Spin::new().unwrap();
            let (read_end, write_end) = pipe().unwrap();
            let pid = waiter(&gate, write_end.as_raw_fd());
            drop(write_end);
            std::thread::sleep(Duration::from_millis(700));
            gate.set(word);
            // At once, as start() does: the child may be between two looks.
            drop(gate);
            assert_eq!(answer(&read_end), Some(wanted));
            // SAFETY: our own child.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }

    #[test]
    fn the_wait_ends_when_debox_is_killed() {
        let (read_end, write_end) = pipe().unwrap();
        // SAFETY: as above; stands for debox.
        let debox = unsafe { libc::fork() };
        if debox == 0 {
            if let Ok(gate) = Spin::new() {
                waiter(&gate, write_end.as_raw_fd());
                // SAFETY: waits to be killed.
                unsafe { libc::raise(libc::SIGSTOP) };
            }
            // SAFETY: never returns into the tests.
            unsafe { libc::_exit(1) };
        }
        drop(write_end);
        // SAFETY: our own child.
        unsafe {
            libc::waitpid(debox, std::ptr::null_mut(), libc::WUNTRACED);
            libc::kill(debox, libc::SIGKILL);
            libc::waitpid(debox, std::ptr::null_mut(), 0);
        }
        assert_eq!(answer(&read_end), Some(b'n'));
    }
}
