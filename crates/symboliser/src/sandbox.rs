// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is the symboliser, and who else parses foreign bytes, still able to do?
//!
//! Read descriptors that it is handed, use memory and a processor within
//! limits, answer on its socket (or where it may write), and end. Whatever cannot be given up is a
//! reason not to begin: nothing is parsed then.

use std::io;

/// Nobody's, where it can be had.
const NOBODY: libc::uid_t = 65534;
/// Memory of its own, beside the files that it maps.
const DATA_BYTES: u64 = 1 << 30;
/// With the files.
const ADDRESS_BYTES: u64 = 32 << 30;
/// Longer than any use; each request has a much shorter one in the parent.
const CPU_SECONDS: u64 = 3600;
const DESCRIPTORS: u64 = 64;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// Why nothing is parsed.
#[derive(Debug)]
pub enum Refusal {
    /// Capabilities can only be given up by exec here.
    Again,
    Told(String),
}

fn failed(what: &str) -> Refusal {
    Refusal::Told(format!("{what}: {}", io::Error::last_os_error()))
}

fn limit(resource: u32, value: u64) -> Result<(), Refusal> {
    let mut now = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a local of the right type.
    if unsafe { libc::getrlimit(resource, &mut now) } != 0 {
        return Err(failed("reading its limits"));
    }
    let value = value.min(now.rlim_max);
    let wanted = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: as above.
    if unsafe { libc::setrlimit(resource, &wanted) } == 0 {
        return Ok(());
    }
    // A service's filter may forbid even less: as good, if it is little anyway.
    if now.rlim_cur <= value {
        return Ok(());
    }
    Err(failed("limiting its memory and time"))
}

/// The signals that a terminal sends are for the parent, which ends this
/// process by closing the socket, or by SIGKILL.
fn signals_block() {
    // SAFETY: a local set, filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

impl CapData {
    /// Inheritable ones give nothing without an exec of a file that has them.
    fn holds(&self) -> bool {
        self.effective != 0 || self.permitted != 0
    }
}

const CAP_VERSION_3: u32 = 0x2008_0522;

fn capabilities() -> Result<[CapData; 2], Refusal> {
    let header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 has a header of 8 and data of 24 bytes, as these are.
    if unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) } != 0 {
        return Err(failed("reading its capabilities"));
    }
    Ok(data)
}

fn prctl(option: i32, value: libc::c_ulong) -> i32 {
    // SAFETY: options that take numbers only.
    unsafe {
        libc::prctl(
            option,
            value,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        )
    }
}

fn privileges_drop() -> Result<(), Refusal> {
    prctl(
        libc::PR_CAP_AMBIENT,
        libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong,
    );
    for capability in 0..64 {
        // Refused without CAP_SETPCAP; with no_new_privs and without exec the
        // bounding set gives nothing.
        prctl(libc::PR_CAPBSET_DROP, capability);
    }
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // Refused in a user namespace that has no other user, and below a broker
    // that gave CAP_SETUID up. Root without a capability, and with no call left
    // that asks whose process it is, is an ordinary user.
    // SAFETY: no memory but three locals.
    unsafe {
        libc::getresuid(&mut real, &mut effective, &mut saved);
        if real == 0 || effective == 0 || saved == 0 {
            libc::syscall(libc::SYS_setgroups, 0usize, std::ptr::null::<libc::gid_t>());
            libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY);
            libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY);
        }
    }
    // Only if there is one: a service's filter may end who asks.
    if capabilities()?.iter().any(CapData::holds) {
        let header = CapHeader {
            version: CAP_VERSION_3,
            pid: 0,
        };
        let none = [CapData::default(); 2];
        // SAFETY: as in capabilities().
        unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    }
    if prctl(libc::PR_SET_NO_NEW_PRIVS, 1) != 0 {
        return Err(failed("giving up new privileges"));
    }
    // Nobody of the same user reads or changes its memory.
    if prctl(libc::PR_SET_DUMPABLE, 0) != 0 {
        return Err(failed("closing its memory to others"));
    }
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);

    // What is in force, not what was asked for.
    if capabilities()?.iter().any(CapData::holds) {
        return Err(Refusal::Again);
    }
    if prctl(libc::PR_GET_NO_NEW_PRIVS, 0) != 1 || prctl(libc::PR_GET_DUMPABLE, 0) != 0 {
        return Err(Refusal::Told("it could still gain privileges".into()));
    }
    Ok(())
}

/// Gives up everything but what the filter lets through. Descriptors 0, 1 and
/// 2 stay; it may write to those in `writes`. For a process that has one thread.
///
/// # Errors
/// What cannot be given up.
pub fn confine(writes: &[u32]) -> Result<(), Refusal> {
    signals_block();
    // SAFETY: no memory. Nothing of this process uses them: it has just begun.
    if unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) } != 0 {
        return Err(failed("closing what it inherited"));
    }
    privileges_drop()?;
    for (resource, value) in [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_MSGQUEUE, 0),
        (libc::RLIMIT_NPROC, 0),
        (libc::RLIMIT_NOFILE, DESCRIPTORS),
        (libc::RLIMIT_CPU, CPU_SECONDS),
        (libc::RLIMIT_DATA, DATA_BYTES),
        (libc::RLIMIT_AS, ADDRESS_BYTES),
    ] {
        limit(resource, value)?;
    }
    filter_install(writes)
}

const fn stmt(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

const fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const SET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// `offsetof(struct seccomp_data, ...)`
const NR: u32 = 0;
const ARCH: u32 = 4;
/// The low half of an argument; the high half follows.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Calls that change nothing outside of this process.
const ALLOWED: [libc::c_long; 22] = [
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    // What abort() and the unwinder of panics use.
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_getaffinity,
];

/// Calls that are let through if an argument has a value.
fn filter(pid: u32, writes: &[u32]) -> Vec<libc::sock_filter> {
    let mut program = vec![
        stmt(LOAD, ARCH),
        jump(EQUAL, AUDIT_ARCH_X86_64, 1, 0),
        stmt(RETURN, KILL),
        // x32's numbers have bit 30 and equal none of those below.
        stmt(LOAD, NR),
    ];
    for nr in ALLOWED {
        program.extend([jump(EQUAL, nr as u32, 0, 1), stmt(RETURN, ALLOW)]);
    }
    // Nothing is made executable.
    for nr in [libc::SYS_mmap, libc::SYS_mprotect] {
        program.extend([
            jump(EQUAL, nr as u32, 0, 4),
            stmt(LOAD, argument(2)),
            jump(SET, libc::PROT_EXEC as u32, 1, 0),
            stmt(RETURN, ALLOW),
            stmt(RETURN, KILL),
        ]);
    }
    // Messages on the socket, which is descriptor 0.
    for (nr, fds) in [
        (libc::SYS_recvmsg, &[0][..]),
        (libc::SYS_sendto, &[0]),
        (libc::SYS_write, writes),
    ] {
        let after = 2 * fds.len() as u8 + 2;
        program.extend([jump(EQUAL, nr as u32, 0, after), stmt(LOAD, argument(0))]);
        for fd in fds {
            program.extend([jump(EQUAL, *fd, 0, 1), stmt(RETURN, ALLOW)]);
        }
        program.push(stmt(RETURN, KILL));
    }
    // abort(), so that the parent can tell it from a forbidden call.
    program.extend([
        jump(EQUAL, libc::SYS_tgkill as u32, 0, 5),
        stmt(LOAD, argument(0)),
        jump(EQUAL, pid, 0, 3),
        stmt(LOAD, argument(2)),
        jump(EQUAL, libc::SIGABRT as u32, 0, 1),
        stmt(RETURN, ALLOW),
        stmt(RETURN, KILL),
    ]);
    program
}

fn filter_install(writes: &[u32]) -> Result<(), Refusal> {
    let program = filter(std::process::id(), writes);
    let fprog = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: a program of that length, which the kernel copies.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0u32,
            &raw const fprog,
        )
    };
    if result != 0 {
        return Err(failed("installing its system call filter"));
    }
    Ok(())
}

/// What [`attempt`] tries.
pub const ATTEMPTS: [&str; 20] = [
    "open",
    "openat",
    "openat2",
    "socket",
    "connect",
    "execve",
    "fork",
    "clone3",
    "ptrace",
    "process_vm_readv",
    "kill the parent",
    "abort the parent",
    "executable memory",
    "write to its socket's peer by another call",
    "prctl",
    "bpf",
    "io_uring_setup",
    "unlink",
    "dup",
    "32-bit call",
];

/// Tries one thing that the filter forbids. It does not return, if the filter
/// is what it should be.
pub fn attempt(what: u8) {
    let path = c"/etc/passwd".as_ptr();
    let none = std::ptr::null::<u8>();
    // SAFETY: calls that would at most read a string of ours; the filter ends
    // the process at each of them.
    unsafe {
        match what {
            0 => libc::syscall(libc::SYS_open, path, libc::O_RDONLY),
            1 => libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY),
            2 => libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path, none, 0usize),
            3 => libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0),
            4 => libc::syscall(libc::SYS_connect, 0, none, 0),
            5 => libc::syscall(libc::SYS_execve, c"/bin/true".as_ptr(), none, none),
            6 => libc::syscall(libc::SYS_fork),
            7 => libc::syscall(libc::SYS_clone3, none, 0usize),
            8 => libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, none, none),
            9 => libc::syscall(libc::SYS_process_vm_readv, 1, none, 0, none, 0, 0),
            10 => libc::syscall(libc::SYS_kill, libc::getpid(), 0),
            11 => libc::syscall(libc::SYS_tgkill, 1, 1, libc::SIGABRT),
            12 => libc::syscall(
                libc::SYS_mmap,
                none,
                4096usize,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0usize,
            ),
            13 => libc::syscall(libc::SYS_write, 0, path, 1usize),
            14 => libc::syscall(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0),
            15 => libc::syscall(libc::SYS_bpf, 0, none, 0),
            16 => libc::syscall(libc::SYS_io_uring_setup, 1, none),
            17 => libc::syscall(libc::SYS_unlink, c"/nonexistent/file".as_ptr()),
            18 => libc::syscall(libc::SYS_dup, 0),
            19 => call_32_bit(),
            _ => 0,
        };
    }
}

/// getpid of the 32-bit interface, which has another number there.
fn call_32_bit() -> libc::c_long {
    let result: u32;
    // SAFETY: no memory; the interface may change r8 to r11.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("eax") 20u32 => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel would run it, over (number, architecture, arguments).
    fn judge(program: &[libc::sock_filter], nr: u32, arch: u32, args: [u64; 6]) -> u32 {
        let mut data = [0u8; 64];
        data[0..4].copy_from_slice(&nr.to_ne_bytes());
        data[4..8].copy_from_slice(&arch.to_ne_bytes());
        for (index, arg) in args.iter().enumerate() {
            data[16 + 8 * index..24 + 8 * index].copy_from_slice(&arg.to_ne_bytes());
        }
        let (mut at, mut a) = (0, 0u32);
        loop {
            let i = program[at];
            at += 1;
            let skip = |met: bool| usize::from(if met { i.jt } else { i.jf });
            match u32::from(i.code) {
                LOAD => {
                    let k = i.k as usize;
                    a = u32::from_ne_bytes(data[k..k + 4].try_into().unwrap());
                }
                EQUAL => at += skip(a == i.k),
                SET => at += skip(a & i.k != 0),
                RETURN => return i.k,
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn nothing_but_what_is_listed() {
        let program = filter(42, &[2]);
        let run = |nr: u32, args| judge(&program, nr, AUDIT_ARCH_X86_64, args);
        let zero = [0u64; 6];
        let mut allowed = Vec::new();
        for nr in 0..1024 {
            // Of those with conditions, arguments that meet none.
            if run(nr, [77, 77, 4, 77, 77, 77]) == ALLOW {
                allowed.push(libc::c_long::from(nr));
            }
            assert_eq!(run(nr | 0x4000_0000, zero), KILL, "x32 {nr}");
            assert_eq!(judge(&program, nr, 0x4000_0003, zero), KILL, "i386 {nr}");
        }
        let mut listed = ALLOWED.to_vec();
        listed.sort_unstable();
        assert_eq!(allowed, listed);
        let with = |nr: libc::c_long, args| run(nr as u32, args);
        assert_eq!(with(libc::SYS_mmap, [0, 0, 3, 0, 0, 0]), ALLOW);
        assert_eq!(with(libc::SYS_mmap, [0, 0, 5, 0, 0, 0]), KILL);
        assert_eq!(with(libc::SYS_mprotect, [0, 0, 7, 0, 0, 0]), KILL);
        assert_eq!(with(libc::SYS_recvmsg, zero), ALLOW);
        assert_eq!(with(libc::SYS_recvmsg, [3, 0, 0, 0, 0, 0]), KILL);
        assert_eq!(with(libc::SYS_sendto, [2, 0, 0, 0, 0, 0]), KILL);
        assert_eq!(with(libc::SYS_tgkill, [42, 42, 6, 0, 0, 0]), ALLOW);
        assert_eq!(with(libc::SYS_tgkill, [43, 42, 6, 0, 0, 0]), KILL);
        assert_eq!(with(libc::SYS_tgkill, [42, 42, 9, 0, 0, 0]), KILL);
        assert_eq!(with(libc::SYS_write, [0, 0, 0, 0, 0, 0]), KILL);
        assert_eq!(with(libc::SYS_write, [1, 0, 0, 0, 0, 0]), KILL);
        let program = filter(42, &[1, 2]);
        for (fd, verdict) in [(0, KILL), (1, ALLOW), (2, ALLOW), (3, KILL)] {
            let args = [fd, 0, 0, 0, 0, 0];
            let write = libc::SYS_write as u32;
            assert_eq!(judge(&program, write, AUDIT_ARCH_X86_64, args), verdict);
        }
    }
}
