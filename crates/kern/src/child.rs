// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a command started so that nothing of it goes unmeasured?
//!
//! Its process exists, and is put into the set of measured processes, before
//! it becomes the command.

use std::ffi::{CString, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use crate::error::Error;

/// A command that waits to be started, runs, or has ended.
pub struct Child {
    pub pid: i32,
    start: Option<std::fs::File>,
    failed: std::fs::File,
    status: Option<i32>,
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: two new descriptors that nobody else owns.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

impl Child {
    /// Forks. Must be called before any thread is started.
    pub fn prepare(words: &[OsString]) -> Result<Child, Error> {
        let arguments: Vec<CString> = words
            .iter()
            .map(|w| CString::new(w.as_bytes()))
            .collect::<Result<_, _>>()
            .map_err(|_| Error::Usage("an argument holds a NUL byte".into()))?;
        let mut pointers: Vec<*const libc::c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let (start_read, start_write) = pipe().map_err(Error::system("pipe"))?;
        let (fail_read, fail_write) = pipe().map_err(Error::system("pipe"))?;
        // SAFETY: the child calls only async-signal-safe functions until execvp.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(Error::system("fork")(io::Error::last_os_error()));
        }
        if pid == 0 {
            let mut byte = 0u8;
            // SAFETY: live descriptors, one byte of room; execvp's arguments
            // were made before the fork and end with a null.
            unsafe {
                libc::close(start_write.as_raw_fd());
                let got = libc::read(
                    start_read.as_raw_fd(),
                    std::ptr::from_mut(&mut byte).cast(),
                    1,
                );
                if got == 1 {
                    libc::execvp(pointers[0], pointers.as_ptr());
                    let errno = *libc::__errno_location();
                    libc::write(
                        fail_write.as_raw_fd(),
                        std::ptr::from_ref(&errno).cast(),
                        size_of::<i32>(),
                    );
                }
                libc::_exit(127);
            }
        }
        Ok(Child {
            pid,
            start: Some(start_write.into()),
            failed: fail_read.into(),
            status: None,
        })
    }

    /// Lets it become the command.
    pub fn start(&mut self, name: &str) -> Result<(), Error> {
        let Some(mut start) = self.start.take() else {
            return Ok(());
        };
        start
            .write_all(b"x")
            .map_err(Error::system(format!("starting {name}")))?;
        drop(start);
        let mut errno = [0u8; 4];
        if self.failed.read_exact(&mut errno).is_ok() {
            let error = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
            self.wait(true);
            return Err(Error::Usage(match error.kind() {
                io::ErrorKind::NotFound => format!("{name}: command not found"),
                _ => format!("{name}: {error}"),
            }));
        }
        Ok(())
    }

    /// Its status as a shell would say it, if it has ended.
    pub fn wait(&mut self, block: bool) -> Option<i32> {
        if self.status.is_some() {
            return self.status;
        }
        let mut status = 0;
        let flags = if block { 0 } else { libc::WNOHANG };
        loop {
            // SAFETY: our own child, and room for its status.
            let ended = unsafe { libc::waitpid(self.pid, &mut status, flags) };
            if ended == self.pid {
                break;
            }
            if ended < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted && block
            {
                continue;
            }
            return None;
        }
        self.status = Some(if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            128 + libc::WTERMSIG(status)
        });
        self.status
    }

    /// Ends it: SIGTERM, and SIGKILL if that does not help within two seconds.
    /// Returns its status.
    pub fn end(&mut self) -> Option<i32> {
        if self.start.is_some() {
            return None;
        }
        for signal in [libc::SIGTERM, libc::SIGKILL] {
            self.signal(signal);
            for _ in 0..200 {
                if let Some(status) = self.wait(false) {
                    return Some(status);
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
        self.wait(true)
    }

    fn signal(&self, signal: i32) {
        if self.status.is_none() {
            // SAFETY: our own child, not waited for yet, so the pid is its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Not started: it sees the end of the pipe and ends.
        if self.start.take().is_some() {
            self.wait(true);
        }
    }
}
