// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a process become the command, watched from its first call and no
//! earlier?
//!
//! The child of fork does what has to be done from within it (it asks a broker
//! to be watched, since the broker goes by who asks), waits at the gate, and
//! calls execve next. debox has other threads (the private broker), so the child
//! makes system calls only and allocates nothing.

use crate::child::Child;
use crate::environment::Environment;
use crate::error::{Error, FAILED};
use crate::gate::{Gate, Hold, pipe, read, write};
use crate::inherited::Inherited;
use crate::program::Program;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// What the command gets as standard input, output and error; None: debox's.
pub type Streams<'a> = [Option<BorrowedFd<'a>>; 3];

/// A command made ready.
pub struct Start<'a> {
    pub program: &'a Program,
    pub environment: &'a Environment,
    pub inherited: &'a Inherited,
    pub streams: Streams<'a>,
}

/// For the child: it did not get as far as the command. Four bytes each.
const STAGE_PREPARE: i32 = 1;
const STAGE_EXEC: i32 = 2;

/// What execve takes.
struct Words<'a> {
    argv: Vec<*const libc::c_char>,
    /// For a script without an interpreter line, what execvp does.
    shell_argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    start: &'a Start<'a>,
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

impl Words<'_> {
    /// Becomes the command, or says why not. System calls only.
    fn exec(&self) -> io::Error {
        let path = self.start.program.path.as_ptr();
        // SAFETY: NULL-terminated arrays of strings that live as long as self.
        unsafe {
            libc::execve(path, self.argv.as_ptr(), self.envp.as_ptr());
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::ENOEXEC) {
                let shell = self.shell_argv.as_ptr();
                libc::execve(*shell, shell, self.envp.as_ptr());
            }
            error
        }
    }
}

impl<'a> Start<'a> {
    /// With debox's own standard streams.
    pub fn new(
        program: &'a Program,
        environment: &'a Environment,
        inherited: &'a Inherited,
    ) -> Self {
        Self {
            program,
            environment,
            inherited,
            streams: [None; 3],
        }
    }

    fn words(&self) -> Words<'_> {
        let argv = pointers(&self.program.argv);
        let mut shell_argv = vec![c"/bin/sh".as_ptr(), self.program.path.as_ptr()];
        shell_argv.extend_from_slice(&argv[1..]);
        Words {
            argv,
            shell_argv,
            envp: pointers(&self.environment.strings),
            start: self,
        }
    }

    /// Puts signals, limits and streams in place. System calls only.
    fn restore(&self) {
        self.inherited.restore();
        for (number, stream) in self.streams.iter().enumerate() {
            if let Some(stream) = stream {
                // SAFETY: both are descriptors; the copy outlives exec.
                unsafe { libc::dup2(stream.as_raw_fd(), number as i32) };
            }
        }
    }

    /// debox becomes the command, or says why not.
    pub fn become_it(&self) -> Error {
        let words = self.words();
        self.restore();
        self.program.not_executable(words.exec())
    }

    /// Starts it at once.
    pub fn start(&self) -> Result<Child, Error> {
        self.hold(Hold::Asleep, || Ok(()))?.start()
    }

    /// Forks a process that does `first`, system calls only, and waits.
    pub fn hold(
        &self,
        hold: Hold,
        first: impl FnOnce() -> io::Result<()>,
    ) -> Result<Held<'a>, Error> {
        // Everything that allocates happens before the fork.
        let words = self.words();
        let gate = Gate::new(hold).map_err(Error::system("holding the command's process"))?;
        let (failure, failed) = pipe().map_err(Error::system("creating a pipe"))?;
        // SAFETY: the child only makes system calls (below) and then executes.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(Error::system("starting a process")(
                io::Error::last_os_error(),
            ));
        }
        if pid == 0 {
            let fail = |stage: i32, error: &io::Error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                write(
                    &failed,
                    &(i64::from(stage) << 32 | i64::from(errno)).to_ne_bytes(),
                );
            };
            self.restore();
            match first() {
                Err(error) => fail(STAGE_PREPARE, &error),
                Ok(()) if gate.wait() => fail(STAGE_EXEC, &words.exec()),
                Ok(()) => {}
            }
            // SAFETY: runs no handlers of the parent's.
            unsafe { libc::_exit(FAILED) };
        }
        Ok(Held {
            child: Some(Child::new(pid)),
            gate,
            failure,
            program: self.program,
        })
    }
}

/// A process that waits to become the command. It is gone when this is dropped,
/// by the thread that made it.
pub struct Held<'a> {
    child: Option<Child>,
    gate: Gate,
    failure: OwnedFd,
    program: &'a Program,
}

impl AsFd for Held<'_> {
    /// Readable when the process has failed or died.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.failure.as_fd()
    }
}

impl Held<'_> {
    pub fn pid(&self) -> i32 {
        self.child.as_ref().map_or(0, Child::pid)
    }

    /// Returns once the command runs or has failed to.
    pub fn start(mut self) -> Result<Child, Error> {
        let since = Instant::now();
        self.gate.open();
        let mut failure = [0; 8];
        let failed = read(&self.failure, &mut failure) == failure.len();
        let Some(mut child) = self.child.take() else {
            unreachable!("taken only here, by value");
        };
        child.since = since;
        if !failed {
            // The pipe closed: the command runs (or was killed on its way,
            // which its end tells).
            return Ok(child);
        }
        child.reap();
        let failure = i64::from_ne_bytes(failure);
        let source = io::Error::from_raw_os_error(failure as i32);
        Err(match (failure >> 32) as i32 {
            STAGE_EXEC => self.program.not_executable(source),
            _ => Error::NotPrepared {
                command: self.program.name(),
                source,
            },
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            self.gate.close();
            child.reap();
        }
    }
}
