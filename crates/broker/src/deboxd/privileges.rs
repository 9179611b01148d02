// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which powers does the broker keep, and has it really given up the others?
//!
//! Started as root it becomes another user for good. Started as a user of its
//! own (by its unit) it has no more than it needs, and the unit's system call
//! filter leaves nothing with which that could be changed: so nothing is asked
//! of the kernel that is not needed. In both cases what is in force is read
//! back, and the broker does not serve with more.

use crate::error::StartError;
use crate::user::User;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
};
use std::io;

/// BPF and PERFMON: load and attach, whenever the first watcher comes. SYSLOG:
/// kallsyms, also when a module was loaded later. SYS_PTRACE: which namespaces
/// a process is in that asks, what another user's process has mapped, and files
/// in containers; its other use is taken away again by [`PTRACE_CALLS`]. Not
/// SYS_RESOURCE: descriptors in flight are bounded below
/// RLIMIT_NOFILE, and since 5.11 maps are not charged to RLIMIT_MEMLOCK.
pub const KEPT: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYSLOG)
    .union(CapabilitySet::SYS_PTRACE);

/// Calls with which CAP_SYS_PTRACE reaches into other processes. The broker
/// only looks at /proc with it, where the modes of files keep it, a user who is
/// not root, from memory, environments and descriptors.
const PTRACE_CALLS: [libc::c_long; 6] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
];

/// Refuses [`PTRACE_CALLS`], for good, to this thread and those it starts.
fn ptrace_calls_refuse() -> io::Result<()> {
    // Offsets of struct seccomp_data.
    const NR: u32 = 0;
    const ARCH: u32 = 4;
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    const X32: u32 = 0x4000_0000;
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
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // Other architectures number these calls differently: none of their calls.
    let mut filter = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0),
        answer(refuse),
        load(NR),
        jump(libc::BPF_JGE, X32, 0, 1),
        answer(refuse),
    ];
    for call in PTRACE_CALLS {
        filter.push(jump(libc::BPF_JEQ, call as u32, 0, 1));
        filter.push(answer(refuse));
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program points to `filter`, which outlives the call; the
    // kernel copies it.
    let status = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER as libc::c_ulong,
            &raw const program,
        )
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Becomes `user` with no capabilities but [`KEPT`], and with no way back.
/// `socket_group`, if any, is the one group besides: it lets the broker give
/// its socket to that group.
pub fn switch(user: &User, socket_group: Option<u32>) -> Result<(), StartError> {
    let failed = |step| {
        move |source: io::Error| StartError::Switch {
            uid: user.uid,
            step,
            source,
        }
    };
    let failed_errno = |step| move |errno: rustix::io::Errno| failed(step)(errno.into());
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if !KEPT.contains(one) {
            // EINVAL: this kernel does not have it. EPERM: without CAP_SETPCAP
            // the set stays, and no_new_privs makes it meaningless.
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    // Otherwise leaving user 0 takes all capabilities.
    set_keep_capabilities(true).map_err(failed_errno("PR_SET_KEEPCAPS"))?;
    let groups: Vec<libc::gid_t> = socket_group.into_iter().collect();
    let check = |step, status: libc::c_int| match status {
        0 => Ok(()),
        _ => Err(failed(step)(io::Error::last_os_error())),
    };
    // SAFETY: `groups` lives through the call and has the length given; the
    // others take numbers.
    unsafe {
        check("setgroups", libc::setgroups(groups.len(), groups.as_ptr()))?;
        check("setresgid", libc::setresgid(user.gid, user.gid, user.gid))?;
        check("setresuid", libc::setresuid(user.uid, user.uid, user.uid))?;
    }
    let now = capabilities(None).map_err(failed_errno("capget"))?;
    let kept = now.permitted & KEPT;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(failed_errno("capset"))?;
    // Root's home is not for us: its label rules and caches could not be read.
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
        // SAFETY: called from main before any other thread is started.
        unsafe { std::env::remove_var(name) };
    }
    Ok(())
}

/// What neither a program that is started nor this process itself shall have
/// any more, as far as there is something to give up.
pub fn drop_rest() -> Result<(), StartError> {
    let failed = |what: &'static str| {
        move |errno: rustix::io::Errno| StartError::Unverified {
            what,
            source: errno.into(),
        }
    };
    set_no_new_privs(true).map_err(failed("no_new_privs"))?;
    // A program that it starts (the one that reads programs' symbols) gets none.
    clear_ambient_capability_set().map_err(failed("ambient capabilities"))?;
    ptrace_calls_refuse().map_err(|source| StartError::Filter { source })?;
    let now = capabilities(None).map_err(failed("capabilities"))?;
    if !KEPT.contains(now.permitted) {
        let kept = now.permitted & KEPT;
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        // Refused by a filter it stays as it is, which `verify` then tells.
        let _ = set_capabilities(None, sets);
    }
    Ok(())
}

/// What is in force, in words.
#[derive(Debug)]
pub struct InForce {
    pub uid: u32,
    pub gid: u32,
    pub capabilities: String,
}

/// Reads back as whom this process runs and what it may do.
///
/// # Errors
/// [`StartError::Powerful`] when a user id or the group id is 0, a capability
/// is held that is not needed, or new privileges can still be had.
pub fn verify() -> Result<InForce, StartError> {
    let failed = |what| move |source| StartError::Unverified { what, source };
    let powerful = |what: String| StartError::Powerful { what };
    let (mut uids, mut gids) = ([0; 3], [0; 3]);
    let ([ruid, euid, suid], [rgid, egid, sgid]) = (&mut uids, &mut gids);
    // SAFETY: six live, distinct integers.
    let status = unsafe { libc::getresuid(ruid, euid, suid) | libc::getresgid(rgid, egid, sgid) };
    if status != 0 {
        return Err(failed("user ids")(io::Error::last_os_error()));
    }
    if uids.contains(&0) {
        return Err(powerful(format!("user id 0 (its ids are {uids:?})")));
    }
    let mut groups = rustix::process::getgroups().map_err(|e| failed("groups")(e.into()))?;
    groups.extend(gids.map(rustix::process::Gid::from_raw));
    if groups.iter().any(|group| group.is_root()) {
        return Err(powerful("group id 0".to_owned()));
    }
    let now = capabilities(None).map_err(|e| failed("capabilities")(e.into()))?;
    let held = now.permitted | now.effective;
    if !KEPT.contains(held) {
        return Err(powerful(names(held - KEPT)));
    }
    if !rustix::thread::no_new_privs().map_err(|e| failed("no_new_privs")(e.into()))? {
        return Err(powerful("a way to new privileges".to_owned()));
    }
    Ok(InForce {
        uid: uids[1],
        gid: gids[1],
        capabilities: names(now.effective),
    })
}

fn names(set: CapabilitySet) -> String {
    let names: Vec<String> = (0..64)
        .map(|number| CapabilitySet::from_bits_retain(1 << number))
        .filter(|one| set.contains(*one))
        .map(|one| match one.iter_names().next() {
            Some((name, _)) => format!("CAP_{name}"),
            None => format!("capability {}", one.bits().trailing_zeros()),
        })
        .collect();
    if names.is_empty() {
        "no capability".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_their_names() {
        assert_eq!(
            names(KEPT),
            "CAP_SYS_PTRACE, CAP_SYSLOG, CAP_PERFMON, CAP_BPF"
        );
        assert_eq!(names(CapabilitySet::empty()), "no capability");
        assert_eq!(
            names(CapabilitySet::from_bits_retain(1 << 62)),
            "capability 62"
        );
    }

    #[test]
    fn nothing_reaches_into_other_processes() {
        // A filter is its thread's own.
        std::thread::spawn(|| {
            set_no_new_privs(true).unwrap();
            ptrace_calls_refuse().unwrap();
            let me = std::process::id();
            let mut byte = 0u8;
            let iov = libc::iovec {
                iov_base: (&raw mut byte).cast(),
                iov_len: 1,
            };
            // SAFETY: a process may read and write one byte of its own memory,
            // which the filter refuses before it happens.
            let refused = unsafe {
                [
                    libc::ptrace(libc::PTRACE_SEIZE, me, 0, 0),
                    libc::process_vm_readv(me as i32, &iov, 1, &iov, 1, 0) as i64,
                    libc::process_vm_writev(me as i32, &iov, 1, &iov, 1, 0) as i64,
                    libc::syscall(libc::SYS_pidfd_getfd, -1, 0, 0),
                ]
                .map(|status| (status, io::Error::last_os_error().raw_os_error()))
            };
            for answer in refused {
                assert_eq!(answer, (-1, Some(libc::EPERM)));
            }
            assert!(std::fs::read("/proc/self/maps").is_ok());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn root_is_not_served() {
        // The tests run as root in most places; elsewhere there is nothing to see.
        if rustix::process::geteuid().is_root() {
            let text = verify().unwrap_err().to_string();
            assert!(text.contains("user id 0"), "{text}");
        }
    }
}
