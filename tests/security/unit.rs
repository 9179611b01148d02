// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does systemd/deboxd.service give, and how is a program run with that
//! and no more where systemd does not run?
//!
//! The unit file itself is read, and its sets of system calls are those that
//! systemd-analyze lists, so that the test and the unit cannot come to differ.
//! Not done here: the views of the file system (ProtectSystem= and its like),
//! the memory and task limits, and RestrictSUIDSGID=.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Names of capabilities as units write them, by number.
const CAPABILITIES: [(&str, u32); 5] = [
    ("CAP_SYS_PTRACE", 19),
    ("CAP_SYS_RESOURCE", 24),
    ("CAP_SYSLOG", 34),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

pub struct Unit {
    settings: Vec<(String, String)>,
}

impl Unit {
    pub fn read() -> Self {
        let path = debox_tests::root().join("systemd/deboxd.service");
        let text = std::fs::read_to_string(path).expect("systemd/deboxd.service");
        let settings = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self { settings }
    }

    /// The last value, as systemd takes it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).last().copied()
    }

    fn all(&self, name: &str) -> Vec<&str> {
        let of_name = self.settings.iter().filter(|(n, _)| n == name);
        of_name.map(|(_, value)| value.as_str()).collect()
    }

    /// A set of capabilities as bits.
    pub fn capabilities(&self, name: &str) -> u64 {
        let words = self.get(name).unwrap_or("").split_ascii_whitespace();
        words.fold(0, |set, word| {
            let known = CAPABILITIES.iter().find(|(name, _)| *name == word);
            set | 1
                << known
                    .unwrap_or_else(|| panic!("{word} is not in the test's list"))
                    .1
        })
    }

    /// The system calls that SystemCallFilter= leaves: its lines one after
    /// another, the first of which decides that it is a list of what is allowed.
    pub fn calls(&self) -> BTreeSet<String> {
        let mut calls = expand("@default");
        for (index, line) in self.all("SystemCallFilter").into_iter().enumerate() {
            let (taken, words) = match line.strip_prefix('~') {
                Some(words) => (true, words),
                None => (false, line),
            };
            assert!(index > 0 || !taken, "the first SystemCallFilter= allows");
            for word in words.split_ascii_whitespace() {
                for call in expand(word) {
                    if taken {
                        calls.remove(&call);
                    } else {
                        calls.insert(call);
                    }
                }
            }
        }
        calls
    }

    /// Lets `command` run as `uid` with what the unit gives and no more. A call
    /// that the unit refuses with EPERM kills here, so that it cannot be
    /// overlooked.
    pub fn confine(&self, command: &mut Command, uid: u32) {
        let ambient = self.capabilities("AmbientCapabilities");
        let bounding = self.capabilities("CapabilityBoundingSet");
        let umask = self
            .get("UMask")
            .map(|mask| u32::from_str_radix(mask, 8).expect("octal"));
        let files: u64 = self
            .get("LimitNOFILE")
            .expect("LimitNOFILE=")
            .parse()
            .expect("a number");
        assert_eq!(self.get("NoNewPrivileges"), Some("yes"));
        assert_eq!(self.get("MemoryDenyWriteExecute"), Some("yes"));
        let filter = filter(
            &self.calls(),
            self.get("RestrictAddressFamilies") == Some("AF_UNIX"),
        );
        // SAFETY: only system calls on values that were made before the fork.
        unsafe {
            command.pre_exec(move || {
                libc::umask(umask.unwrap_or(0o022));
                become_user(uid, ambient, bounding, files)?;
                check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
                // MemoryDenyWriteExecute=; EINVAL before Linux 6.3.
                const PR_SET_MDWE: i32 = 65;
                libc::prctl(PR_SET_MDWE, 1, 0, 0, 0);
                let program = libc::sock_fprog {
                    len: filter.len() as u16,
                    filter: filter.as_ptr().cast_mut(),
                };
                check(libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER as libc::c_ulong,
                    &raw const program,
                ))
            });
        }
    }
}

fn check(status: i32) -> io::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// struct __user_cap_header_struct and two of __user_cap_data_struct.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// # Safety
/// Async-signal-safe: system calls only.
unsafe fn become_user(uid: u32, ambient: u64, bounding: u64, files: u64) -> io::Result<()> {
    // SAFETY: numbers, and pointers to live locals.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit))?;
        limit.rlim_max = limit.rlim_max.min(files);
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
        for capability in 0..64u64 {
            if bounding & (1 << capability) == 0 {
                // EINVAL: the kernel has fewer.
                libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
            }
        }
        check(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        check(libc::syscall(libc::SYS_setgroups, 0, 0) as i32)?;
        check(libc::syscall(libc::SYS_setresgid, uid, uid, uid) as i32)?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid) as i32)?;
        let header = CapHeader {
            version: 0x2008_0522,
            pid: 0,
        };
        let (low, high) = (ambient as u32, (ambient >> 32) as u32);
        // Effective, permitted, inheritable.
        let data = [low, low, low, high, high, high];
        check(libc::syscall(libc::SYS_capset, &raw const header, &raw const data) as i32)?;
        for capability in (0..64u64).filter(|c| ambient & (1 << c) != 0) {
            const PR_CAP_AMBIENT: i32 = 47;
            const PR_CAP_AMBIENT_RAISE: libc::c_ulong = 2;
            check(libc::prctl(
                PR_CAP_AMBIENT,
                PR_CAP_AMBIENT_RAISE,
                capability,
                0,
                0,
            ))?;
        }
    }
    Ok(())
}

/// The calls of a set, or the one call.
fn expand(name: &str) -> BTreeSet<String> {
    if !name.starts_with('@') {
        return [name.to_owned()].into();
    }
    let output = Command::new("systemd-analyze")
        .args(["syscall-filter", "--no-pager", name])
        .output()
        .expect("systemd-analyze (package systemd)");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && text.contains(name),
        "{name}: {output:?}"
    );
    let members = text.lines().filter(|line| line.starts_with("  "));
    members
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .flat_map(expand)
        .collect()
}

pub fn set(name: &str) -> BTreeSet<String> {
    expand(name)
}

/// The numbers of this machine's calls, from the kernel's header.
fn numbers() -> BTreeMap<String, u32> {
    let text = [
        "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        "/usr/include/asm/unistd_64.h",
    ]
    .iter()
    .find_map(|path| std::fs::read_to_string(path).ok())
    .expect("asm/unistd_64.h (package linux-libc-dev)");
    text.lines()
        .filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '))
        .filter_map(|(name, number)| Some((name.to_owned(), number.trim().parse().ok()?)))
        .collect()
}

/// The filter that systemd would make of it, but killing where that refuses.
fn filter(calls: &BTreeSet<String>, unix_only: bool) -> Vec<libc::sock_filter> {
    const NR: u32 = 0;
    const ARCH: u32 = 4;
    const FIRST_ARGUMENT: u32 = 16;
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    const CLONE_NEW: u32 = 0x7e02_0000;
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |test: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
    let answer = |action: u32| statement(libc::BPF_RET | libc::BPF_K, action);
    let numbers = numbers();
    let (kill, allow) = (libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_ALLOW);
    let errno = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut out = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0),
        answer(kill),
        load(NR),
        // RestrictNamespaces=: flags of clone3 lie in memory, and systemd says
        // that there is no such call.
        jump(libc::BPF_JEQ, libc::SYS_clone3 as u32, 0, 1),
        answer(errno(libc::ENOSYS)),
        jump(libc::BPF_JEQ, libc::SYS_clone as u32, 0, 4),
        load(FIRST_ARGUMENT),
        jump(libc::BPF_JSET, CLONE_NEW, 0, 1),
        answer(errno(libc::EPERM)),
        answer(allow),
        jump(libc::BPF_JEQ, libc::SYS_unshare as u32, 1, 0),
        jump(libc::BPF_JEQ, libc::SYS_setns as u32, 0, 1),
        answer(errno(libc::EPERM)),
    ];
    if unix_only {
        out.extend([
            jump(libc::BPF_JEQ, libc::SYS_socket as u32, 0, 4),
            load(FIRST_ARGUMENT),
            jump(libc::BPF_JEQ, libc::AF_UNIX as u32, 1, 0),
            answer(errno(libc::EAFNOSUPPORT)),
            answer(allow),
        ]);
    }
    // Names of other architectures, and calls newer than this table, have no
    // number here and stay refused.
    for call in calls.iter().filter_map(|name| numbers.get(name)) {
        out.push(jump(libc::BPF_JEQ, *call, 0, 1));
        out.push(answer(allow));
    }
    out.push(answer(kill));
    out
}
