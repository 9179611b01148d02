// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does the command start, watched from its first call and no earlier?
//!
//! The child of fork sends the request to join the account over the inherited
//! connection, since the broker goes by who sends. debox receives the answer
//! and sets a flag in memory that both share; the child waits for it without a
//! system call and calls execve next. So whenever the broker puts it under
//! watch, the first call that begins after that is the execve, and nothing of
//! debox is counted. debox has other threads (the private broker), so the child
//! makes system calls only and allocates nothing.

use crate::command::Command;
use crate::error::Error;
use crate::inherited::Inherited;
use debox_abi::*;
use debox_client::Connection;
use std::cell::UnsafeCell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// The environment of the command: debox's own, with a few variables set.
pub struct Environment {
    strings: Vec<CString>,
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

impl Environment {
    /// Takes debox's environment as it is, entries without `=` included.
    pub fn inherited() -> Self {
        let mut strings = Vec::new();
        // SAFETY: a NULL-terminated array of strings; no thread of debox
        // changes the environment.
        unsafe {
            let mut entry = environ;
            while !entry.is_null() && !(*entry).is_null() {
                strings.push(std::ffi::CStr::from_ptr(*entry).to_owned());
                entry = entry.add(1);
            }
        }
        Self { strings }
    }

    fn prefix(name: &str) -> Vec<u8> {
        format!("{name}=").into_bytes()
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let prefix = Self::prefix(name);
        let found = self
            .strings
            .iter()
            .find(|s| s.as_bytes().starts_with(&prefix))?;
        Some(&found.as_bytes()[prefix.len()..])
    }

    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), Error> {
        let mut entry = Self::prefix(name);
        self.strings.retain(|s| !s.as_bytes().starts_with(&entry));
        entry.extend_from_slice(value);
        let entry = CString::new(entry)
            .map_err(|_| Error::Usage(format!("the value of {name} holds a NUL byte")))?;
        self.strings.push(entry);
        Ok(())
    }
}

/// What the child reports when it does not get as far as the command.
#[repr(C)]
#[derive(Clone, Copy)]
struct Failure {
    stage: u32,
    errno: i32,
}
const STAGE_JOIN: u32 = 1;
const STAGE_EXEC: u32 = 2;

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

/// Where the child waits until the command may start.
struct Gate(*mut Shared);

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

impl Gate {
    /// Dropped by the thread that made it, which owns `life`.
    fn new() -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                DEBOX_PAGE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let gate = Self(memory.cast());
        // SAFETY: ours, zeroed, and unknown to anybody else.
        match unsafe { life_begin(gate.shared().life.get()) } {
            0 => Ok(gate),
            code => {
                // SAFETY: mapped above; nothing else knows the address.
                unsafe { libc::munmap(memory, DEBOX_PAGE_SIZE) };
                std::mem::forget(gate);
                Err(io::Error::from_raw_os_error(code))
            }
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped and aligned, zero is a value of both fields; unmapped
        // only by drop.
        unsafe { &*self.0 }
    }

    /// In the child: true when the command may start. No system calls, unless
    /// the child would else keep the CPU from others of its real-time priority.
    fn wait(&self, yields: bool) -> bool {
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
            if yields {
                // SAFETY: no memory involved.
                unsafe { libc::sched_yield() };
            }
        }
    }

    fn set(&self, word: u32) {
        self.shared().word.store(word, Ordering::Release);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // SAFETY: ours, and no reference outlives self. Unlocked first, since a
        // robust lock stands in a list of the thread that holds it.
        unsafe {
            libc::pthread_mutex_unlock(self.shared().life.get());
            libc::munmap(self.0.cast(), DEBOX_PAGE_SIZE);
        }
    }
}

pub struct Started {
    pub pid: libc::pid_t,
    pub since: Instant,
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Forks, joins and executes; returns once the command runs or has failed to.
pub fn start(
    command: &Command,
    environment: &Environment,
    inherited: &Inherited,
    connection: &Connection,
    follow: bool,
    before: impl FnOnce(u32) -> Result<(), Error>,
) -> Result<Started, Error> {
    // Everything that allocates happens before the fork.
    let argv = pointers(&command.argv);
    let envp = pointers(&environment.strings);
    // For a script without an interpreter line, what execvp does.
    let shell = c"/bin/sh";
    let mut shell_argv = vec![shell.as_ptr(), command.path.as_ptr()];
    shell_argv.extend_from_slice(&argv[1..]);
    let request = debox_request::new(DEBOX_MSG_JOIN, if follow { 0 } else { DEBOX_REQ_NOFOLLOW });
    let gate = Gate::new().map_err(Error::system("sharing memory with the command's process"))?;
    // SAFETY: no memory involved.
    let yields =
        unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO;

    let mut ends = [-1; 2];
    // SAFETY: fills a local; both ends are owned at once.
    let (read_end, write_end) = unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(Error::system("creating a pipe")(io::Error::last_os_error()));
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    // SAFETY: the child only makes system calls (below) and then executes.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::system("starting a process")(
            io::Error::last_os_error(),
        ));
    }
    if pid == 0 {
        let fail = |stage: u32, errno: i32| -> ! {
            let failure = Failure { stage, errno };
            // SAFETY: writes a local; _exit runs no handlers of the parent's.
            unsafe {
                libc::write(
                    write_end.as_raw_fd(),
                    (&raw const failure).cast(),
                    size_of::<Failure>(),
                );
                libc::_exit(125)
            }
        };
        inherited.restore_in_child();
        if let Err(error) = connection.send(request.as_bytes()) {
            fail(STAGE_JOIN, error.raw_os_error().unwrap_or(libc::EIO));
        }
        if !gate.wait(yields) {
            // SAFETY: as above; the parent knows why.
            unsafe { libc::_exit(125) };
        }
        // SAFETY: NULL-terminated arrays made before the fork.
        unsafe {
            libc::execve(command.path.as_ptr(), argv.as_ptr(), envp.as_ptr());
            if *libc::__errno_location() == libc::ENOEXEC {
                libc::execve(shell.as_ptr(), shell_argv.as_ptr(), envp.as_ptr());
                *libc::__errno_location() = libc::ENOEXEC;
            }
            fail(STAGE_EXEC, *libc::__errno_location());
        }
    }
    drop(write_end);
    let reap = || {
        // SAFETY: reaps our own child.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    };
    let since = match answered(connection, &read_end) {
        // The child failed, or was killed: the pipe tells below.
        None => Instant::now(),
        Some(Ok(_)) => {
            if let Err(error) = before(pid as u32) {
                gate.set(GATE_CANCELLED);
                reap();
                return Err(error);
            }
            let since = Instant::now();
            gate.set(GATE_OPEN);
            since
        }
        Some(Err(error)) => {
            gate.set(GATE_CANCELLED);
            reap();
            return Err(match error {
                debox_client::Error::Refused { text, .. } => Error::CannotWatch { why: text },
                error => error.into(),
            });
        }
    };
    let mut failure = Failure { stage: 0, errno: 0 };
    let got = loop {
        // SAFETY: fills a local of that size.
        let got = unsafe {
            libc::read(
                read_end.as_raw_fd(),
                (&raw mut failure).cast(),
                size_of::<Failure>(),
            )
        };
        if got >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break got;
        }
    };
    if got != size_of::<Failure>() as isize {
        // The pipe closed: the command runs (or was killed on its way, which
        // its wait status tells).
        return Ok(Started { pid, since });
    }
    reap();
    let source = io::Error::from_raw_os_error(failure.errno);
    let name = command.argv[0].to_string_lossy().into_owned();
    Err(match failure.stage {
        STAGE_EXEC if failure.errno == libc::ENOENT => Error::NotExecutable {
            command: name,
            source: io::Error::other("its interpreter does not exist"),
        },
        STAGE_EXEC => Error::NotExecutable {
            command: name,
            source,
        },
        _ => Error::CannotWatch {
            why: format!("the broker does not listen any more: {source}"),
        },
    })
}

/// The broker's answer to the child's request; None when the child is gone.
fn answered(connection: &Connection, child: &OwnedFd) -> Option<Result<(), debox_client::Error>> {
    let mut list = [connection.as_fd().as_raw_fd(), child.as_raw_fd()].map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        // SAFETY: a valid list of its length.
        let ready = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, 60_000) };
        if ready < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        // The child first: it keeps the connection open, whatever happens.
        if list[1].revents != 0 {
            return None;
        }
        return Some(connection.answer(DEBOX_MSG_JOIN).map(drop));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Forks a process that may only read, write and exit from now on (it is
    /// killed for anything else), waits at the gate and writes what it got.
    fn waiter(gate: &Gate, write_end: libc::c_int) -> libc::pid_t {
        // SAFETY: the child makes system calls only.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) != 0 {
                    libc::_exit(9);
                }
                let answer = if gate.wait(false) { b'y' } else { b'n' };
                libc::write(write_end, (&raw const answer).cast(), 1);
                libc::syscall(libc::SYS_exit, 0);
            }
            assert!(pid > 0);
            pid
        }
    }

    fn pipe() -> (OwnedFd, OwnedFd) {
        let mut ends = [-1; 2];
        // SAFETY: fills a local; both ends are owned at once.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
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
            let gate = Gate::new().unwrap();
            let (read_end, write_end) = pipe();
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
        let (read_end, write_end) = pipe();
        // SAFETY: as above; stands for debox.
        let debox = unsafe { libc::fork() };
        if debox == 0 {
            if let Ok(gate) = Gate::new() {
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
