// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who sent this message, is that process still the same one, and what may it do?
//!
//! A process id alone proves nothing: the sender may have ended and its number
//! may belong to somebody else by the time we look. So the process is held by
//! a pidfd, everything is read from /proc, and only then is the pidfd asked
//! whether the process still lives: if it does, all that was read was its own.
//!
//! The sender that a message names proves little more: who is privileged in the
//! user namespace of a PID namespace may name any process in it, and a
//! privileged program may have been told to write what it does not understand
//! to a socket that it inherited. What nobody can choose is who connected and
//! with which ids, so every sender is measured against that ([`Peer`]).

use crate::message::{Credentials, Refusal};
use crate::socket::{self, Ancillary};
use debox_probe::Watcher;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
/// The number of the first user namespace: PROC_USER_INIT_INO of the kernel.
const USER_NS_FIRST: u32 = 0xeffffffd;
/// PF_KTHREAD in the flags field of /proc/PID/stat.
const PF_KTHREAD: u64 = 0x0020_0000;

/// How the sender of a message is told from a process that got its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderProof {
    /// The kernel attaches a pidfd of the sender to each message
    /// (SO_PASSPIDFD, Linux 6.5).
    MessagePidfd,
    /// Before 6.5: the kernel stamps each message with the time it was sent;
    /// a process that started later did not send it.
    StartTime,
}

/// A process that is known to be the one that was meant.
#[derive(Debug)]
pub(crate) struct Process {
    pub pid: u32,
    pub pidfd: OwnedFd,
    pub facts: Facts,
}

/// What /proc says about a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub tgid: u32,
    /// Real, effective, saved, file system.
    pub uids: [u32; 4],
    pub gids: [u32; 4],
    pub cap_permitted: u64,
    pub cap_effective: u64,
    pub kernel_thread: bool,
    /// In clock ticks since boot.
    start_ticks: u64,
    /// None where it may not be looked at.
    user_namespace: Option<(u64, u64)>,
    pid_namespace: Option<(u64, u64)>,
}

/// The process that connected.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The ids are the effective ones at connect().
    pub credentials: Credentials,
    /// As it was when the connection was taken; None when it had ended by then
    /// or was no longer who it was at connect() (a set-user-id program that
    /// inherited the socket by exec, say).
    facts: Option<Facts>,
    pidfd: Option<OwnedFd>,
}

impl Peer {
    pub fn of(fd: BorrowedFd, credentials: Credentials) -> Peer {
        let pidfd = match socket::peer_pidfd(fd) {
            Err(Errno::NOPROTOOPT) => open(0, credentials.pid).ok().flatten(),
            other => other.ok(),
        };
        let facts = pidfd.as_ref().and_then(|pidfd| {
            let facts = facts(credentials.pid)?;
            // Root may drop its privileges at any time.
            let same = credentials.uid == 0
                || (facts.uids[1] == credentials.uid && facts.gids[1] == credentials.gid);
            (same && alive(pidfd)).then_some(facts)
        });
        Peer {
            credentials,
            facts,
            pidfd,
        }
    }

    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// It is known by its start from now on, which costs no descriptor.
    pub fn without_pidfd(self) -> Peer {
        Peer {
            pidfd: None,
            ..self
        }
    }

    fn facts(&self, kind: u32) -> Result<&Facts, Refusal> {
        self.facts.as_ref().ok_or_else(|| {
            Refusal::new(
                kind,
                libc::EPERM,
                format!(
                    "process {}, which connected, had ended or changed its user before it was \
                     served; open a connection of your own.",
                    self.credentials.pid
                ),
            )
        })
    }

    /// Refuses a sender that is not the process that connected.
    pub fn is_sender(&self, kind: u32, sender: &Process) -> Result<(), Refusal> {
        let facts = self.facts(kind)?;
        // The number alone could be another's by now; with the same start it
        // is not.
        if sender.pid == self.credentials.pid && sender.facts.start_ticks == facts.start_ticks {
            return Ok(());
        }
        Err(Refusal::new(
            kind,
            libc::EPERM,
            format!(
                "this request is for the process that connected ({}), not for process {}, which \
                 shares or inherited its socket; open a connection of your own.",
                self.credentials.pid, sender.pid
            ),
        ))
    }

    /// Refuses a sender with ids or capabilities that the process that
    /// connected did not have: a privileged program may have been made to write
    /// this to a socket that it inherited. Root may have become anybody since.
    pub fn lends_to(&self, kind: u32, sender: &Process) -> Result<(), Refusal> {
        let facts = self.facts(kind)?;
        let root = self.credentials.uid == 0;
        let within = |now: &[u32; 4], then: &[u32; 4]| now.iter().all(|id| then.contains(id));
        let ids = root
            || (within(&sender.facts.uids, &facts.uids) && within(&sender.facts.gids, &facts.gids));
        // In a user namespace of its own everybody has all capabilities, and
        // there only.
        let own_namespace = sender.facts.user_namespace != facts.user_namespace
            && sender.facts.user_namespace.is_some()
            && sender.facts.user_namespace != namespace(std::process::id(), "user");
        let capabilities = own_namespace || sender.facts.cap_permitted & !facts.cap_permitted == 0;
        if ids && capabilities {
            return Ok(());
        }
        let [ruid, euid, ..] = sender.facts.uids;
        let [rgid, egid, ..] = sender.facts.gids;
        Err(Refusal::new(
            kind,
            libc::EPERM,
            format!(
                "process {} (uid {ruid}, effective {euid}, gid {rgid}, effective {egid}) has other \
                 ids or more capabilities than uid {} gid {}, who connected; open a connection of \
                 your own.",
                sender.pid, self.credentials.uid, self.credentials.gid
            ),
        ))
    }

    /// Whether who connected may watch others: Err says why not.
    pub fn may_watch_others(&self, target: u32) -> Result<(), String> {
        self.facts(0)
            .map_err(|refusal| refusal.text)?
            .may_watch_others(self.credentials.pid, target)
    }
}

impl Process {
    /// The sender of a message, held fast.
    pub fn sender(
        kind: u32,
        credentials: Credentials,
        ancillary: &mut Ancillary,
        proof: SenderProof,
    ) -> Result<Process, Refusal> {
        let pid = credentials.pid;
        let gone = || {
            Refusal::new(
                kind,
                libc::ESRCH,
                format!("process {pid}, which sent this request, has ended."),
            )
        };
        let pidfd = match (proof, ancillary.pidfd.take()) {
            (SenderProof::MessagePidfd, Some(Ok(fd))) => fd,
            (SenderProof::MessagePidfd, Some(Err(libc::EMFILE | libc::ENFILE))) => {
                return Err(out_of_descriptors(kind));
            }
            (SenderProof::MessagePidfd, _) => return Err(gone()),
            (SenderProof::StartTime, _) => open(kind, pid)?.ok_or_else(gone)?,
        };
        let facts = facts(pid).ok_or_else(gone)?;
        if !alive(&pidfd) {
            return Err(gone());
        }
        if proof == SenderProof::StartTime && !started_before(&facts, ancillary.age) {
            return Err(gone());
        }
        // Who is privileged in a user namespace may name another process of
        // its PID namespaces, but its own user and group ids only.
        if !facts.uids[..3].contains(&credentials.uid)
            || !facts.gids[..3].contains(&credentials.gid)
        {
            return Err(Refusal::new(
                kind,
                libc::EPERM,
                format!(
                    "the sender says that it is process {pid} with uid {} and gid {}, but that \
                     process has uid {} and gid {}; send as yourself.",
                    credentials.uid, credentials.gid, facts.uids[0], facts.gids[0]
                ),
            ));
        }
        Ok(Process { pid, pidfd, facts })
    }

    /// The process that a WATCH names.
    pub fn target(kind: u32, pid: u32) -> Result<Process, Refusal> {
        let gone = || {
            Refusal::new(
                kind,
                libc::ESRCH,
                format!("there is no process {pid}; `ps -e` lists those that exist."),
            )
        };
        // A thread's id is refused by pidfd_open, with EINVAL before 6.9 and
        // ENOENT since, so /proc is asked first.
        let tgid = facts(pid).ok_or_else(gone)?.tgid;
        if tgid != pid {
            return Err(Refusal::new(
                kind,
                libc::ESRCH,
                format!("{pid} is a thread of process {tgid}; give the process id."),
            ));
        }
        let pidfd = open(kind, pid)?.ok_or_else(gone)?;
        // Only now: the number may have changed hands since.
        let facts = facts(pid).ok_or_else(gone)?;
        if facts.kernel_thread {
            return Err(Refusal::new(
                kind,
                libc::EINVAL,
                format!(
                    "{pid} is a kernel thread: it makes no system calls that could be watched."
                ),
            ));
        }
        if !alive(&pidfd) {
            return Err(gone());
        }
        Ok(Process { pid, pidfd, facts })
    }

    pub fn alive(&self) -> bool {
        alive(&self.pidfd)
    }

    /// Whether this process may watch others: Err says why not.
    pub fn may_watch_others(&self, target: u32) -> Result<(), String> {
        self.facts.may_watch_others(self.pid, target)
    }

    /// The process as a reader of what is recorded. A set-user-id program's
    /// capabilities do not count: it reads for its user.
    pub fn watcher(&self, sender: Credentials, privileged: bool) -> Watcher {
        let facts = &self.facts;
        let all = |ids: &[u32; 4], id: u32| ids.iter().all(|&have| have == id);
        let user_ns = facts.user_namespace.map(|(_, number)| number as u32);
        let able =
            all(&facts.uids, sender.uid) && all(&facts.gids, sender.gid) && user_ns.is_some();
        Watcher {
            uid: sender.uid,
            gid: sender.gid,
            euid: able.then_some(sender.uid),
            cap_permitted: if able { facts.cap_permitted } else { 0 },
            sys_ptrace: able && facts.cap_effective & (1 << CAP_SYS_PTRACE) != 0,
            user_ns: user_ns.unwrap_or(USER_NS_FIRST),
            privileged,
        }
    }
}

impl Facts {
    fn may_watch_others(&self, pid: u32, target: u32) -> Result<(), String> {
        let has = |cap: u32| self.cap_effective & (1 << cap) != 0;
        if !has(CAP_PERFMON) && !has(CAP_SYS_ADMIN) {
            let uid = self.uids[0];
            return Err(format!(
                "watching process {target} needs CAP_PERFMON or CAP_SYS_ADMIN; you are uid {uid} \
                 without them{}",
                if uid == 0 {
                    " (CapEff in /proc/self/status): root has given them up. Keep CAP_PERFMON \
                     (capsh, AmbientCapabilities=, docker --cap-add), or ask from outside."
                } else {
                    ". Use sudo, or start the program under `debox run`."
                }
            ));
        }
        // The capabilities in /proc are those of the process's own user
        // namespace, where anybody can be root; and a process id of another
        // PID namespace means somebody else here.
        for (theirs, file, what) in [
            (self.user_namespace, "user", "user"),
            (self.pid_namespace, "pid", "PID"),
        ] {
            match (theirs, namespace(std::process::id(), file)) {
                (Some(theirs), Some(ours)) if theirs == ours => {}
                (Some(_), Some(_)) => {
                    return Err(format!(
                        "watching process {target} is for processes of the broker's own {what} \
                         namespace; you are in another one. Ask from outside of the container."
                    ));
                }
                _ => {
                    return Err(format!(
                        "cannot check your {what} namespace (/proc/{pid}/ns/{file}); give deboxd \
                         CAP_SYS_PTRACE, as its systemd unit does."
                    ));
                }
            }
        }
        Ok(())
    }
}

fn out_of_descriptors(kind: u32) -> Refusal {
    Refusal::new(
        kind,
        libc::ENFILE,
        "the broker has no file descriptor left; try again later, or raise LimitNOFILE of deboxd.",
    )
}

fn open(kind: u32, pid: u32) -> Result<Option<OwnedFd>, Refusal> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Err(out_of_descriptors(kind)),
        Err(_) => Ok(None),
    }
}

/// A pidfd is readable once the process has ended, also as a zombie.
fn alive(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&now)), Ok(0))
}

fn facts(pid: u32) -> Option<Facts> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let facts = parse_facts(&status, &stat)?;
    Some(Facts {
        user_namespace: namespace(pid, "user"),
        pid_namespace: namespace(pid, "pid"),
        ..facts
    })
}

fn parse_facts(status: &str, stat: &[u8]) -> Option<Facts> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let hex = |name| u64::from_str_radix(field(name)?, 16).ok();
    let ids = |name| -> Option<[u32; 4]> {
        let mut words = field(name)?.split_ascii_whitespace();
        let mut id = || words.next()?.parse().ok();
        Some([id()?, id()?, id()?, id()?])
    };
    // The command in field 2 may hold anything, also ") " and newlines; the
    // last ") " ends it.
    let end = stat.windows(2).rposition(|pair| pair == b") ")?;
    let rest = std::str::from_utf8(&stat[end + 2..]).ok()?;
    let mut rest = rest.split_ascii_whitespace();
    // Counting from field 3: flags is field 9, starttime field 22.
    let flags: u64 = rest.nth(6)?.parse().ok()?;
    let start_ticks = rest.nth(12)?.parse().ok()?;
    Some(Facts {
        tgid: field("Tgid")?.parse().ok()?,
        uids: ids("Uid")?,
        gids: ids("Gid")?,
        cap_permitted: hex("CapPrm")?,
        cap_effective: hex("CapEff")?,
        kernel_thread: flags & PF_KTHREAD != 0,
        start_ticks,
        user_namespace: None,
        pid_namespace: None,
    })
}

/// Whether the process existed when a message of that age was sent. One tick
/// of grace: start times are rounded down to ticks, so an equal one is older.
fn started_before(facts: &Facts, message_age: Duration) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now_ns = now.tv_sec as u128 * 1_000_000_000 + now.tv_nsec as u128;
    let sent_ns = now_ns.saturating_sub(message_age.as_nanos());
    // Not rustix's: it reads /proc/self/auxv, which is closed to a deboxd that has
    // become another user (before Linux 6.4 it has no other way), and panics.
    // SAFETY: no memory involved.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u128;
    let started_ns = facts.start_ticks as u128 * 1_000_000_000 / ticks;
    started_ns <= sent_ns
}

fn namespace(pid: u32, kind: &str) -> Option<(u64, u64)> {
    let meta = fs::metadata(format!("/proc/{pid}/ns/{kind}")).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Raises the soft limit of open files to the hard one; returns both as they
/// were, for children that should not inherit ours.
pub fn nofile_raise() -> rustix::process::Rlimit {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    if before.current != before.maximum
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, soft = ?before.current, "the limit of open files stays as it is");
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_cannot_fake_the_fields_behind_it() {
        let status = "Name:\tx\nTgid:\t77\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapPrm:\t0000000000000003\n\
                      CapEff:\t0000004000000000\n";
        let stat = b"77 (a) R 1 ) S 9 9 9 9 9 2097152 10 11 12 13 14 15 16 17 18 19 20 21 4242 0";
        let facts = parse_facts(status, stat).unwrap();
        assert_eq!(facts.tgid, 77);
        assert_eq!(facts.uids, [1, 2, 3, 4]);
        assert_eq!(facts.gids, [5, 6, 7, 8]);
        assert!(facts.kernel_thread);
        assert_eq!(facts.start_ticks, 4242);
        assert_eq!(facts.cap_effective, 1 << CAP_PERFMON);
    }

    #[test]
    fn own_facts_agree_with_the_kernel() {
        let me = facts(std::process::id()).unwrap();
        assert_eq!(me.tgid, std::process::id());
        assert_eq!(me.uids[0], rustix::process::getuid().as_raw());
        assert!(!me.kernel_thread);
        assert!(started_before(&me, Duration::ZERO));
        // A message from before this process began was not sent by it.
        assert!(!started_before(&me, Duration::from_secs(100_000_000)));
    }

    #[test]
    fn a_thread_is_not_a_process() {
        std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let refusal = Process::target(4, tid).unwrap_err();
            assert_eq!(refusal.errno, libc::ESRCH);
            assert!(
                refusal
                    .text
                    .contains(&format!("process {}", std::process::id()))
            );
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_ended_process_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let fd = pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(!alive(&fd));
    }
}
