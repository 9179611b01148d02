// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a process stopped at its execve, made to run a little code of ours, and let go?
//!
//! By ptrace, for some microseconds: from just before an execve to the new program's first
//! instruction. A thread of ours traces one at a time, and only it may.

use crate::state::PAGE;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

pub type Registers = libc::user_regs_struct;

/// What happened to it.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is a new program, with this pid.
    Exec(i32),
    /// It stopped for this signal, or was asked to stop (0).
    Signal(i32, i32),
    /// Job control.
    Group(i32),
    Gone,
    /// Somebody wants this thread's attention.
    Interrupted,
}

fn ptrace(request: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: requests that read or write our memory get pointers to live objects below.
    match unsafe { libc::ptrace(request, pid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// It goes on meanwhile.
pub fn seize(tid: i32) -> io::Result<()> {
    ptrace(
        libc::PTRACE_SEIZE,
        tid,
        0,
        libc::PTRACE_O_TRACEEXEC as usize,
    )
}

pub fn interrupt(pid: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0)
}

pub fn go_on(pid: i32, signal: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_CONT, pid, 0, signal as usize)
}

/// Stays stopped, until job control continues it.
pub fn listen(pid: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_LISTEN, pid, 0, 0)
}

pub fn detach(pid: i32, signal: i32) -> io::Result<()> {
    ptrace(libc::PTRACE_DETACH, pid, 0, signal as usize)
}

/// Whether it is a child of ours, whose end is for whoever waits for it.
fn is_our_child(pid: i32) -> bool {
    let about = crate::proc::text(pid, "stat").unwrap_or_default();
    let parent = (about.rsplit_once(')'))
        .and_then(|(_, after)| after.split_ascii_whitespace().nth(1)?.parse().ok());
    parent == Some(std::process::id())
}

/// The next stop of what this thread traces.
pub fn wait() -> io::Result<Stop> {
    // Of this thread: no child of another one of ours is looked at.
    let mine = libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: plain data.
    let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | mine;
    // SAFETY: a local for what is told.
    if unsafe { libc::waitid(libc::P_ALL, 0, &mut about, flags) } < 0 {
        return interrupted_or_gone();
    }
    // SAFETY: the kernel has set it for this kind.
    let pid = unsafe { about.si_pid() };
    let ended = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&about.si_code);
    if ended && is_our_child(pid) {
        return Ok(Stop::Gone);
    }
    let mut status = 0;
    // SAFETY: writes one int.
    if unsafe { libc::waitpid(pid, &mut status, mine) } < 0 {
        return interrupted_or_gone();
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Stop::Gone);
    }
    let signal = libc::WSTOPSIG(status);
    Ok(match status >> 16 {
        libc::PTRACE_EVENT_EXEC => Stop::Exec(pid),
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Signal(pid, 0),
        libc::PTRACE_EVENT_STOP => Stop::Group(pid),
        _ => Stop::Signal(pid, signal),
    })
}

fn interrupted_or_gone() -> io::Result<Stop> {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINTR) => Ok(Stop::Interrupted),
        Some(libc::ECHILD) => Ok(Stop::Gone),
        _ => Err(error),
    }
}

pub fn registers(pid: i32) -> io::Result<Registers> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    ptrace(
        libc::PTRACE_GETREGS,
        pid,
        0,
        registers.as_mut_ptr() as usize,
    )?;
    // SAFETY: any bytes are registers, and the kernel has written them.
    Ok(unsafe { registers.assume_init() })
}

pub fn registers_set(pid: i32, registers: &Registers) -> io::Result<()> {
    ptrace(
        libc::PTRACE_SETREGS,
        pid,
        0,
        std::ptr::from_ref(registers) as usize,
    )
}

/// What stands behind the call by which `Stopped::run`'s code stops itself: `ud2`.
const CODE_END: [u8; 2] = [0x0f, 0x0b];

/// A program that stands at its first instruction.
pub struct Stopped {
    pub pid: i32,
    pub registers: Registers,
    /// Came while it was made to do something; given back as it is let go.
    signals: Vec<i32>,
}

impl Stopped {
    pub fn new(pid: i32) -> io::Result<Self> {
        Ok(Self {
            pid,
            registers: registers(pid)?,
            signals: Vec::new(),
        })
    }

    /// 64-bit code of this machine's.
    pub fn is_native(&self) -> bool {
        self.registers.cs == 0x33
    }

    /// Runs `code`, which ends by stopping itself, in the place of what it stands at; what it leaves
    /// in its registers. What was there is there again then.
    ///
    /// # Errors
    /// When it ended meanwhile, or cannot be written.
    pub fn run(&mut self, code: &[u8], with: &Registers) -> io::Result<Registers> {
        let memory = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/mem", self.pid))?;
        // Within the page that it stands in, of which it is known that it is there.
        let page = self.registers.rip & !(PAGE - 1);
        let at = self.registers.rip.min(page + PAGE - code.len() as u64);
        let mut before = vec![0; code.len()];
        memory.read_exact_at(&mut before, at)?;
        memory.write_all_at(code, at)?;
        let all = Registers {
            rip: at,
            // No call is to be restarted.
            orig_rax: u64::MAX,
            ..*with
        };
        let ran = registers_set(self.pid, &all).and_then(|()| self.until_stopped(code, at));
        memory.write_all_at(&before, at)?;
        ran
    }

    fn until_stopped(&mut self, code: &[u8], at: u64) -> io::Result<Registers> {
        loop {
            go_on(self.pid, 0)?;
            loop {
                match wait()? {
                    Stop::Signal(_, libc::SIGSTOP) => {
                        let all = registers(self.pid)?;
                        let gone = all.rip.wrapping_sub(at);
                        let rest = usize::try_from(gone).ok().and_then(|n| code.get(n..));
                        if rest.is_some_and(|rest| rest.starts_with(&CODE_END)) {
                            return Ok(all);
                        }
                        // Somebody else's.
                        self.signals.push(libc::SIGSTOP);
                    }
                    Stop::Signal(_, signal) => {
                        if signal != 0 {
                            self.signals.push(signal);
                        }
                    }
                    Stop::Interrupted => continue,
                    Stop::Group(_) => {}
                    Stop::Exec(_) | Stop::Gone => {
                        return Err(io::Error::from_raw_os_error(libc::ESRCH));
                    }
                }
                break;
            }
        }
    }

    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let local = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let remote = libc::iovec {
            iov_base: address as *mut libc::c_void,
            iov_len: bytes.len(),
        };
        // SAFETY: reads `bytes`; the other process's memory is its own business.
        let n = unsafe { libc::process_vm_writev(self.pid, &local, 1, &remote, 1, 0) };
        match usize::try_from(n) {
            Ok(n) if n == bytes.len() => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// It goes on where `registers` says.
    pub fn let_go(self) -> io::Result<()> {
        let all = Registers {
            orig_rax: u64::MAX,
            ..self.registers
        };
        registers_set(self.pid, &all)?;
        let mut signals = self.signals.into_iter();
        let first = signals.next().unwrap_or(0);
        for signal in signals {
            // SAFETY: to a process that is stopped by us.
            unsafe { libc::kill(self.pid, signal) };
        }
        detach(self.pid, first)
    }
}
