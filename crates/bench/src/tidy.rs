// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is nothing left behind, also after Ctrl-C or a kill?
//!
//! Files have no names (O_TMPFILE) where that can be; a directory that must
//! have one is removed by its guard. Every process that is started dies with
//! this one (PR_SET_PDEATHSIG, set before exec), and its own children die with
//! it in the same way. Every wait looks whether somebody asked for the end.

use crate::Error;
use debox_command::stop;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// # Errors
/// [`Error::Interrupted`] after a signal.
pub fn go_on() -> Result<(), Error> {
    if stop::asked() {
        Err(Error::Interrupted)
    } else {
        Ok(())
    }
}

/// Makes the command's process end with the thread that starts it (which is
/// the main thread, everywhere here), in a process group of its own, so that
/// Ctrl-C reaches this program only.
/// `cpus`: where it may run; none: where this process may.
pub fn bind(command: &mut Command, cpus: impl IntoIterator<Item = usize>, inherit: Option<i32>) {
    let parent = std::process::id();
    // SAFETY: all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        // SAFETY: looks at the set's own length.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: system calls only, between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::setpgid(0, 0);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
            if libc::CPU_COUNT(&set) > 0 {
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
            }
            if let Some(fd) = inherit {
                libc::fcntl(fd, libc::F_SETFD, 0);
            }
            Ok(())
        });
    }
}

/// A child that is killed, with its process group, and reaped when dropped.
pub struct Guarded {
    pub child: Child,
}

impl Guarded {
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self, Error> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|source| Error::System {
            what: format!("starting {name}"),
            source,
        })?;
        Ok(Self { child })
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, not yet reaped.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Waits for its end, looking out for interruptions.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; [`Error::Unavailable`] when it takes longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<std::process::ExitStatus, Error> {
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(source) => {
                    return Err(Error::System {
                        what: "wait".into(),
                        source,
                    });
                }
            }
            go_on()?;
            if begin.elapsed() > limit {
                return Err(Error::Unavailable(format!(
                    "no end after {} s",
                    limit.as_secs()
                )));
            }
            let pause = if begin.elapsed() < Duration::from_millis(50) {
                1
            } else {
                10
            };
            std::thread::sleep(Duration::from_millis(pause));
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            // It has ended; members of its group may not have.
        }
        // SAFETY: the group was made by bind(); its number is not reused as
        // long as the leader is not reaped or members live. A group that is
        // gone is an error that does not matter.
        unsafe { libc::kill(-(self.child.id() as i32), libc::SIGKILL) };
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end; its standard output and error.
///
/// # Errors
/// As [`Guarded::wait`]; the exit status is the caller's to judge.
pub fn run(
    command: &mut Command,
    cpus: impl IntoIterator<Item = usize>,
    inherit: Option<i32>,
    limit: Duration,
) -> Result<(std::process::ExitStatus, String, String), Error> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    bind(command, cpus, inherit);
    let mut guarded = Guarded::spawn(command)?;
    let collect = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = from.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = collect(Box::new(guarded.child.stdout.take().expect("piped")));
    let err = collect(Box::new(guarded.child.stderr.take().expect("piped")));
    let status = guarded.wait(limit)?;
    // Grandchildren may hold the pipes: they go with the group.
    drop(guarded);
    let text = |t: std::thread::JoinHandle<String>| t.join().unwrap_or_default();
    Ok((status, text(out), text(err)))
}
