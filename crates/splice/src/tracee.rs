// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a process stopped, made to run a little code of ours, and let go?
//!
//! By ptrace, for some microseconds: from just before an execve to the new program's first
//! instruction, or where it runs, with all its threads. Only the thread of ours that traces them may.

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
    wait_of(libc::P_ALL, 0, 0).map(|stop| stop.unwrap_or(Stop::Interrupted))
}

/// The next one of a thread.
pub fn wait_for(tid: i32) -> io::Result<Stop> {
    wait_of(libc::P_PID, tid, 0).map(|stop| stop.unwrap_or(Stop::Interrupted))
}

/// ... if it has come already.
pub fn look_for(tid: i32) -> io::Result<Option<Stop>> {
    wait_of(libc::P_PID, tid, libc::WNOHANG)
}

/// None: nothing has come, with WNOHANG.
fn wait_of(of: libc::idtype_t, id: i32, more: i32) -> io::Result<Option<Stop>> {
    // Of this thread: no child of another one of ours is looked at.
    let mine = libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: plain data.
    let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | mine | more;
    // SAFETY: a local for what is told.
    if unsafe { libc::waitid(of, id as libc::id_t, &mut about, flags) } < 0 {
        return interrupted_or_gone().map(Some);
    }
    // SAFETY: the kernel has set it for this kind; it is 0 where nothing has come.
    let pid = unsafe { about.si_pid() };
    if pid == 0 {
        return Ok(None);
    }
    let ended = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&about.si_code);
    if ended && is_our_child(pid) {
        return Ok(Some(Stop::Gone));
    }
    let mut status = 0;
    // SAFETY: writes one int.
    if unsafe { libc::waitpid(pid, &mut status, mine) } < 0 {
        return interrupted_or_gone().map(Some);
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Some(Stop::Gone));
    }
    let signal = libc::WSTOPSIG(status);
    Ok(Some(match status >> 16 {
        libc::PTRACE_EVENT_EXEC => Stop::Exec(pid),
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Signal(pid, 0),
        libc::PTRACE_EVENT_STOP => Stop::Group(pid),
        _ => Stop::Signal(pid, signal),
    }))
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

/// Makes one call, and stops as `Stopped::run` wants it: syscall; mov r15, rax; tgkill(r13, r14, SIGSTOP).
const CALL: [u8; 25] = [
    0x0f, 0x05, 0x49, 0x89, 0xc7, 0x44, 0x89, 0xef, 0x44, 0x89, 0xf6, 0xba, 0x13, 0, 0, 0, 0xb8,
    0xea, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b,
];

/// A thread that stands still.
pub struct Stopped {
    pub pid: i32,
    pub registers: Registers,
    /// Where code of ours may be written for a moment.
    place: u64,
    /// Process and thread, as it knows itself.
    ids: [i32; 2],
    /// Came while it was made to do something; given back as it is let go.
    pub signals: Vec<i32>,
}

impl Stopped {
    pub fn new(pid: i32) -> io::Result<Self> {
        let registers = registers(pid)?;
        Ok(Self {
            pid,
            registers,
            place: registers.rip,
            ids: [pid; 2],
            signals: Vec::new(),
        })
    }

    /// Code of ours is written here from now on, which nobody executes meanwhile.
    pub fn code_at(&mut self, place: u64) {
        self.place = place;
    }

    /// In a PID namespace of its own it has other numbers.
    pub fn known_as(&mut self, process: i32, thread: i32) {
        self.ids = [process, thread];
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
        // Within the page, of which it is known that it is there.
        let page = self.place & !(PAGE - 1);
        let at = self.place.min(page + PAGE - code.len() as u64);
        let mut before = vec![0; code.len()];
        memory.read_exact_at(&mut before, at)?;
        memory.write_all_at(code, at)?;
        let ran = self.run_at(code, at, with);
        memory.write_all_at(&before, at)?;
        ran
    }

    /// The same of code that lies there.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_at(&mut self, code: &[u8], at: u64, with: &Registers) -> io::Result<Registers> {
        let all = Registers {
            rip: at,
            // No call is to be restarted.
            orig_rax: u64::MAX,
            ..*with
        };
        registers_set(self.pid, &all)?;
        self.until_stopped(code, at)
    }

    /// It makes a system call.
    ///
    /// # Errors
    /// Those of the call, and as `run`.
    pub fn call(&mut self, nr: i64, args: [u64; 6]) -> io::Result<u64> {
        let with = Registers {
            rax: nr as u64,
            rdi: args[0],
            rsi: args[1],
            rdx: args[2],
            r10: args[3],
            r8: args[4],
            r9: args[5],
            r13: self.ids[0] as u64,
            r14: self.ids[1] as u64,
            ..self.registers
        };
        match self.run(&CALL, &with)?.r15 as i64 {
            error @ -4095..=-1 => Err(io::Error::from_raw_os_error(-error as i32)),
            result => Ok(result as u64),
        }
    }

    fn until_stopped(&mut self, code: &[u8], at: u64) -> io::Result<Registers> {
        loop {
            go_on(self.pid, 0)?;
            loop {
                match wait_for(self.pid)? {
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

    /// It goes on where `registers` says, in no call.
    pub fn let_go(mut self) -> io::Result<()> {
        self.registers.orig_rax = u64::MAX;
        self.go_on()
    }

    /// It stands where `registers` says, in the call that it was in.
    pub fn set(&self) -> io::Result<()> {
        registers_set(self.pid, &self.registers)
    }

    /// ... and goes on there.
    pub fn go_on(self) -> io::Result<()> {
        self.set()?;
        let mut signals = self.signals.into_iter();
        let first = signals.next().unwrap_or(0);
        for signal in signals {
            // SAFETY: to a process that is stopped by us.
            unsafe { libc::kill(self.pid, signal) };
        }
        detach(self.pid, first)
    }
}
