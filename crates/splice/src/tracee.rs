// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a process stopped, made to run a little code of ours, and let go?
//!
//! By ptrace, for some microseconds: from just before an execve to the new program's first
//! instruction, or where it runs, with all its threads. Only the thread of ours that traces them may.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::time::Duration;

pub type Registers = libc::user_regs_struct;

/// What happened to it.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is a new program, with this pid.
    Exec(i32),
    /// It stopped for this signal, or was asked to stop (0).
    Signal(i32, i32),
    /// Job control, by this signal.
    Group(i32, i32),
    /// It begins or ends a call, as whoever let it go on wanted to see.
    Call(i32),
    /// Which one, if that is known; else 0.
    Gone(i32),
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

/// Whether this user may trace at all, tried with a child that does nothing: SELinux and containers may forbid it.
///
/// # Errors
/// When it is refused.
pub fn may_trace() -> io::Result<()> {
    let parent = std::process::id();
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            while libc::getppid() as u32 == parent {
                libc::pause();
            }
            libc::_exit(0)
        }
    }
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    let traced = seize(child);
    // SAFETY: a child of ours that is not waited for yet.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        while libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
    traced
}

/// It goes on meanwhile.
pub fn seize(tid: i32) -> io::Result<()> {
    ptrace(
        libc::PTRACE_SEIZE,
        tid,
        0,
        (libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_TRACESYSGOOD) as usize,
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

/// Whether it is a process that is a child of ours, whose end is for whoever waits for it.
fn is_our_child(pid: i32) -> bool {
    let status = crate::proc::text(pid, "status").unwrap_or_default();
    let is = |name: &str, number: u32| crate::proc::numbers_of(&status, name) == [number];
    is("PPid:", std::process::id()) && is("Tgid:", pid as u32)
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
        return Ok(Some(Stop::Gone(pid)));
    }
    let mut status = 0;
    // SAFETY: writes one int.
    if unsafe { libc::waitpid(pid, &mut status, mine) } < 0 {
        return interrupted_or_gone().map(Some);
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Some(Stop::Gone(pid)));
    }
    let signal = libc::WSTOPSIG(status);
    Ok(Some(match status >> 16 {
        libc::PTRACE_EVENT_EXEC => Stop::Exec(pid),
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Signal(pid, 0),
        libc::PTRACE_EVENT_STOP => Stop::Group(pid, signal),
        // By PTRACE_O_TRACESYSGOOD.
        _ if signal == libc::SIGTRAP | 0x80 => Stop::Call(pid),
        _ => Stop::Signal(pid, signal),
    }))
}

fn interrupted_or_gone() -> io::Result<Stop> {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINTR) => Ok(Stop::Interrupted),
        Some(libc::ECHILD) => Ok(Stop::Gone(0)),
        _ => Err(error),
    }
}

/// What becomes of one that this thread traces, and does not stand still as it should: it was killed, which nobody else is
/// told of before, or it has executed something.
pub fn reap(pid: i32) {
    loop {
        if detach(pid, 0).is_ok() {
            return;
        }
        match wait_for(pid) {
            Ok(Stop::Gone(_)) | Err(_) => return,
            Ok(_) => {}
        }
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

/// Where the kernel stops it in a call, and what came of it.
fn call_info(pid: i32) -> io::Result<libc::ptrace_syscall_info> {
    let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let bytes = size_of::<libc::ptrace_syscall_info>();
    let at = info.as_mut_ptr() as usize;
    ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, bytes, at)?;
    // SAFETY: plain data, of which the kernel has written what it knows.
    Ok(unsafe { info.assume_init() })
}

/// Registers up to ss, as `user_regs_struct` begins.
const FRAME_BYTES: usize = 21 * 8;

/// Code that makes one call, and where it may lie.
pub struct Caller<'a> {
    pub code: &'a [u8],
    pub place: u64,
}

impl Caller<'_> {
    /// What it takes, with the registers behind it.
    pub fn bytes(code: &[u8]) -> u64 {
        (code.len() + FRAME_BYTES) as u64
    }
}

/// A thread that stands still.
pub struct Stopped {
    pub pid: i32,
    pub registers: Registers,
    /// It stands where it is to be told whether it gets this one; 0: elsewhere.
    pub arrives: i32,
    /// Came while it was made to do something; given back as it is let go.
    signals: Vec<i32>,
}

impl Stopped {
    pub fn new(pid: i32) -> io::Result<Self> {
        Ok(Self {
            pid,
            registers: registers(pid)?,
            arrives: 0,
            signals: Vec::new(),
        })
    }

    /// 64-bit code of this machine's.
    pub fn is_native(&self) -> bool {
        self.registers.cs == 0x33
    }

    fn memory(&self) -> io::Result<File> {
        let path = format!("/proc/{}/mem", self.pid);
        OpenOptions::new().read(true).write(true).open(path)
    }

    /// Writes code of ours where nobody's is (`spare.rs`), in pages that it may not write itself.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_code(&self, at: u64, code: &[u8]) -> io::Result<()> {
        self.memory()?.write_all_at(code, at)
    }

    /// ... and what was there.
    ///
    /// # Errors
    /// As of `write_code`.
    pub fn lay(&self, at: u64, code: &[u8]) -> io::Result<Vec<u8>> {
        let memory = self.memory()?;
        let mut before = vec![0; code.len()];
        memory.read_exact_at(&mut before, at)?;
        memory.write_all_at(code, at)?;
        Ok(before)
    }

    /// It stands at `registers` instead, in no call; not for good.
    ///
    /// # Errors
    /// When it is gone.
    pub fn divert(&self, registers: &Registers) -> io::Result<()> {
        let registers = Registers {
            orig_rax: u64::MAX,
            ..*registers
        };
        registers_set(self.pid, &registers)
    }

    /// A thread that runs stands still, in whatever call it is.
    ///
    /// # Errors
    /// When it may not be traced, or has ended.
    pub fn of_running(tid: i32) -> io::Result<Self> {
        seize(tid)?;
        Self::interrupted(tid).inspect_err(|_| reap(tid))
    }

    fn interrupted(tid: i32) -> io::Result<Self> {
        interrupt(tid)?;
        let mut signals = Vec::new();
        loop {
            match wait_for(tid)? {
                Stop::Signal(_, 0) | Stop::Group(..) => break,
                Stop::Exec(_) | Stop::Gone(_) => {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Stop::Signal(_, signal) => {
                    signals.push(signal);
                    go_on(tid, 0)?;
                }
                Stop::Call(_) => go_on(tid, 0)?,
                Stop::Interrupted => {}
            }
        }
        let stopped = Self::new(tid)?;
        Ok(Self { signals, ..stopped })
    }

    /// It goes on up to the end of the call whose instruction ends at `behind`: what came of it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn call_end(&mut self, behind: u64) -> io::Result<i64> {
        loop {
            self.arrived();
            ptrace(libc::PTRACE_SYSCALL, self.pid, 0, 0)?;
            if self.next_stop()? == Stop::Call(self.pid) {
                let info = call_info(self.pid)?;
                if info.op == libc::PTRACE_SYSCALL_INFO_EXIT && info.instruction_pointer == behind {
                    // SAFETY: it is what the kernel tells at the end of a call.
                    return Ok(unsafe { info.u.exit.sval });
                }
            }
        }
    }

    /// It makes a system call, by `code` (SPLICE_CALL), which is laid at `place` meanwhile. Should we
    /// end, it goes on where `registers` says.
    ///
    /// # Errors
    /// Those of the call, and when it has ended.
    pub fn call(&mut self, maker: &Caller<'_>, nr: i64, args: [u64; 6]) -> io::Result<u64> {
        let mut code = maker.code.to_vec();
        code.extend(self.frame());
        let before = self.lay(maker.place, &code)?;
        let made = self.divert(&Registers {
            rip: maker.place,
            rax: nr as u64,
            rdi: args[0],
            rsi: args[1],
            rdx: args[2],
            r10: args[3],
            r8: args[4],
            r9: args[5],
            ..self.registers
        });
        let result = made.and_then(|()| {
            let result = self.call_end(maker.place + 2)?;
            self.park()?;
            Ok(result)
        });
        // First: should we end, it goes on where it stands.
        self.set()?;
        self.lay(maker.place, &before)?;
        match result? {
            error @ -4095..=-1 => Err(io::Error::from_raw_os_error(-error as i32)),
            result => Ok(result as u64),
        }
    }

    /// From the end of a call into a stop from which it can go on in one that it was taken out of: the
    /// kernel makes calls again only where it looks for signals. It executes nothing.
    pub fn park(&mut self) -> io::Result<()> {
        interrupt(self.pid)?;
        loop {
            self.arrived();
            go_on(self.pid, 0)?;
            if matches!(self.next_stop()?, Stop::Signal(_, 0) | Stop::Group(..)) {
                return Ok(());
            }
        }
    }

    /// It goes on, until `reached`; then it stands still again.
    ///
    /// # Errors
    /// When it has ended, and those of `reached`.
    pub fn run_until(&mut self, mut reached: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
        self.arrived();
        go_on(self.pid, 0)?;
        while !reached()? {
            match look_for(self.pid)? {
                Some(stop) => {
                    self.stopped(&stop)?;
                    go_on(self.pid, 0)?;
                }
                None => std::thread::sleep(Duration::from_micros(30)),
            }
        }
        interrupt(self.pid)?;
        while !matches!(self.next_stop()?, Stop::Signal(_, 0) | Stop::Group(..)) {
            go_on(self.pid, 0)?;
        }
        Ok(())
    }

    /// It is made to go on without the signal that it stands at.
    fn arrived(&mut self) {
        let signal = std::mem::take(&mut self.arrives);
        self.signals.extend((signal != 0).then_some(signal));
    }

    fn next_stop(&mut self) -> io::Result<Stop> {
        loop {
            match wait_for(self.pid)? {
                Stop::Interrupted => {}
                stop => return self.stopped(&stop).map(|()| stop),
            }
        }
    }

    /// Signals are kept.
    fn stopped(&mut self, stop: &Stop) -> io::Result<()> {
        match stop {
            Stop::Exec(_) | Stop::Gone(_) => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Stop::Signal(_, signal @ 1..) => {
                self.signals.push(*signal);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Where it would be had nobody come: what the kernel would make again, begins again.
    pub fn frame(&self) -> [u8; FRAME_BYTES] {
        const RESTART_BLOCK: i64 = -516;
        const RESTARTS: [i64; 4] = [RESTART_BLOCK, -514, -513, -512];
        let r = &self.registers;
        let again = r.orig_rax as i64 >= 0 && RESTARTS.contains(&(r.rax as i64));
        let (rax, rip) = match (again, r.rax as i64) {
            (true, RESTART_BLOCK) => (libc::SYS_restart_syscall as u64, r.rip - 2),
            (true, _) => (r.orig_rax, r.rip - 2),
            (false, _) => (r.rax, r.rip),
        };
        let all = [
            r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, rax, r.rcx, r.rdx,
            r.rsi, r.rdi, r.orig_rax, rip, r.cs, r.eflags, r.rsp, r.ss,
        ];
        let mut frame = [0; FRAME_BYTES];
        for (to, word) in frame.chunks_exact_mut(8).zip(all) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        frame
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

    /// What came meanwhile is for it: where it stands now it is not asked which signal it gets.
    pub fn signals_back(&self) {
        for signal in &self.signals {
            // SAFETY: to a thread that is stopped by us.
            unsafe { libc::syscall(libc::SYS_tkill, self.pid, *signal) };
        }
    }

    /// It goes on where it stands.
    pub fn let_go(self) -> io::Result<()> {
        self.signals_back();
        detach(self.pid, self.arrives)
    }

    /// It stands where `registers` says, in the call that it was in.
    pub fn set(&self) -> io::Result<()> {
        registers_set(self.pid, &self.registers)
    }

    /// ... and goes on there.
    pub fn go_on(self) -> io::Result<()> {
        self.set()?;
        self.let_go()
    }
}
