// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the kernel say of a process, in as few reads as can be?
//!
//! Each execve waits for this, so files of /proc are read with a buffer in which they
//! mostly are whole.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const BUFFER: usize = 16 << 10;

/// # Errors
/// When the process is gone, or is not for us to read.
pub fn read(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    let mut file = File::open(format!("/proc/{pid}/{name}"))?;
    let (mut bytes, mut used) = (vec![0; BUFFER], 0);
    loop {
        if used == bytes.len() {
            bytes.resize(2 * used, 0);
        }
        match file.read(&mut bytes[used..])? {
            0 => break,
            n => used += n,
        }
    }
    bytes.truncate(used);
    Ok(bytes)
}

/// # Errors
/// As `read`.
pub fn text(pid: i32, name: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read(pid, name)?).into_owned())
}

/// What the kernel says of one mapping: `struct procmap_query` of linux/fs.h (6.11).
#[repr(C)]
#[derive(Default)]
struct MapsQuery {
    size: u64,
    flags: u64,
    address: u64,
    /// Begin, end, flags, page size, offset.
    mapping: [u64; 5],
    inode: u64,
    device: [u32; 2],
    /// Of the name and the build id, which are not asked for.
    sizes: [u32; 2],
    places: [u64; 2],
}

/// `_IOWR('f', 17, struct procmap_query)`.
const MAPS_QUERY: libc::c_ulong =
    3 << 30 | (size_of::<MapsQuery>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 17;

/// Whether it has this file (major and minor number of the device, inode) mapped at an address. False
/// where the kernel cannot be asked so (before 6.11), too.
pub fn has_mapped(pid: i32, address: u64, device: [u32; 2], inode: u64) -> bool {
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let mut query = MapsQuery {
        size: size_of::<MapsQuery>() as u64,
        address,
        ..MapsQuery::default()
    };
    // SAFETY: the kernel reads and writes a struct of the size that it is told.
    let found = unsafe { libc::ioctl(maps.as_raw_fd(), MAPS_QUERY, &mut query) } == 0;
    found && query.device == device && query.inode == inode
}

/// The PID namespace that it is in; None: it is gone, or not for us to read.
pub fn pid_namespace(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The user namespace; None: the same.
pub fn user_namespace(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/user")).ok()
}

/// Whether its thread is the only one of its process, which has memory of its own (after vfork it is the parent's):
/// nobody else runs the code that is written over then. False where that is not known.
pub fn is_alone(tid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{tid}/task")).map_or(0, Iterator::count);
    tasks == 1 && parent(tid).is_some_and(|parent| has_own_memory(tid, parent))
}

/// Whether two processes have each its memory. False where that is not known.
pub fn has_own_memory(one: i32, other: i32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: numbers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) };
    // One that is gone has none.
    order > 0 || (order < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH))
}

fn parent(tid: i32) -> Option<i32> {
    let numbers = numbers_of(&text(tid, "status").ok()?, "PPid:");
    numbers.first().map(|parent| *parent as i32)
}

/// The numbers of a line of its status.
pub fn numbers_of(status: &str, name: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap_or_default().split_ascii_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// By whose rights it opens files: the effective user id. None: it is gone.
pub fn user(pid: i32) -> Option<u32> {
    numbers_of(&text(pid, "status").ok()?, "Uid:")
        .get(1)
        .copied()
}

/// Whether its own user may look at its memory: not of a program that he may not read.
pub fn is_readable(pid: i32) -> bool {
    // Not of the folder, which is his in any case.
    let owner = fs::metadata(format!("/proc/{pid}/status")).map(|is| is.uid());
    owner.is_ok_and(|owner| user(pid) == Some(owner))
}

/// Whether its user and groups may read a file, by its mode alone.
pub fn may_read(pid: i32, file: &fs::Metadata) -> bool {
    let Ok(status) = text(pid, "status") else {
        return false;
    };
    let of = |name: &str| numbers_of(&status, name).get(1).copied();
    let bit = match () {
        () if of("Uid:") == Some(0) => return true,
        () if of("Uid:") == Some(file.uid()) => 0o400,
        () if of("Gid:") == Some(file.gid()) => 0o040,
        () if numbers_of(&status, "Groups:").contains(&file.gid()) => 0o040,
        () => 0o004,
    };
    file.mode() & bit != 0
}

/// Memory of another process.
///
/// # Errors
/// When it is not there, or not for us to read.
pub fn memory_read(pid: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    match memory_read_some(pid, address, into)? {
        n if n == into.len() => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// ... as much as is there of it.
///
/// # Errors
/// As `memory_read`.
pub fn memory_read_some(pid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: into.len(),
    };
    // SAFETY: writes `into`, which lives, up to its length.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// # Errors
/// As `memory_read`.
pub fn word(pid: i32, address: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    memory_read(pid, address, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

pub fn long_of(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

pub fn int_of(bytes: &[u8], at: usize) -> i32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, i32::from_le_bytes)
}

fn numbers(folder: &str) -> impl Iterator<Item = i32> + use<> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All processes.
pub fn all() -> impl Iterator<Item = i32> {
    numbers("/proc")
}

pub fn threads(pid: i32) -> impl Iterator<Item = i32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Whose thread this is.
pub fn process(tid: i32) -> Option<i32> {
    let numbers = numbers_of(&text(tid, "status").ok()?, "Tgid:");
    numbers.first().map(|process| *process as i32)
}

/// The name of its program's file.
pub fn program(pid: i32) -> Option<String> {
    let file = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = file.file_name()?.to_string_lossy();
    Some(name.strip_suffix(" (deleted)").unwrap_or(&name).to_owned())
}

/// Who traces a thread, by name (gdb, strace, rr).
pub fn tracer(tid: i32) -> Option<String> {
    let status = text(tid, "status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    let pid: i32 = line.trim().parse().ok().filter(|pid| *pid != 0)?;
    let name = text(pid, "comm").unwrap_or_default();
    Some(format!("{} ({pid})", name.trim_end()))
}

/// Neither has it ended, nor is it about to.
pub fn lives(pid: i32) -> bool {
    lives_as(pid, pid)
}

/// What the kernel says of a thread from its state on (`stat` of proc(5)); None: it is not there.
fn stat(pid: i32, tid: i32) -> Option<String> {
    let stat = text(pid, &format!("task/{tid}/stat")).ok()?;
    // Behind the name, which may hold anything.
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

/// The letter that the kernel has for what it does; None: it is not there.
pub fn state(pid: i32, tid: i32) -> Option<u8> {
    stat(pid, tid)?.bytes().next()
}

/// The same of a thread.
pub fn lives_as(pid: i32, tid: i32) -> bool {
    stat(pid, tid).is_some_and(|stat| stat_lives(&stat))
}

/// On its way out it has given up its memory, and goes by `R` or `D` until it is a zombie.
fn stat_lives(stat: &str) -> bool {
    const PF_EXITING: u32 = 4;
    let mut words = stat.split_ascii_whitespace();
    let state = words.next().and_then(|word| word.bytes().next());
    let flags = words.nth(5).and_then(|word| word.parse::<u32>().ok());
    state.is_some_and(|state| !b"ZXx".contains(&state))
        && flags.is_none_or(|flags| flags & PF_EXITING == 0)
}

/// Process and thread, in the innermost PID namespace that it is in.
///
/// # Errors
/// When it is gone.
pub fn own_ids(tid: i32) -> io::Result<(u32, u32)> {
    let status = text(tid, "status")?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next_back()?.parse().ok()
    };
    let gone = || io::Error::from_raw_os_error(libc::ESRCH);
    (of("NStgid:").zip(of("NSpid:"))).ok_or_else(gone)
}

/// Whether a thread sleeps in a futex call for this word, by its own address for it.
pub fn waits_for(tid: i32, word: u64) -> bool {
    let call = text(tid, "syscall").unwrap_or_default();
    let mut words = call.split_ascii_whitespace();
    let nr = words.next().and_then(|nr| nr.parse().ok());
    let first =
        (words.next()).and_then(|hex| u64::from_str_radix(hex.trim_start_matches("0x"), 16).ok());
    nr == Some(libc::SYS_futex) && first == Some(word)
}

const PAGE: u64 = crate::state::PAGE;
/// Of an entry of /proc/PID/pagemap.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// It is a file's, or shared.
const OF_FILE: u64 = 1 << 61;

/// What the kernel says of the pages in [start, end): each one's address and entry.
fn pages(pid: i32, start: u64, end: u64) -> io::Result<impl Iterator<Item = (u64, u64)>> {
    use std::os::unix::fs::FileExt;
    const AT_ONCE: u64 = 1 << 16;
    let map = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut all = Vec::new();
    let mut at = start;
    while at < end {
        let n = ((end - at) / PAGE).min(AT_ONCE);
        let mut entries = vec![0; 8 * n as usize];
        map.read_exact_at(&mut entries, at / PAGE * 8)?;
        let each = (0..n).map(|i| (at + i * PAGE, long_of(&entries, 8 * i as usize)));
        all.extend(each.filter(|(_, entry)| entry & (PRESENT | SWAPPED) != 0));
        at += n * PAGE;
    }
    Ok(all.into_iter())
}

/// Pages of a private mapping of a file that are not the file's any more.
///
/// # Errors
/// When it is gone, or is not for us to read.
pub fn own_pages(pid: i32, start: u64, end: u64) -> io::Result<Vec<u64>> {
    let own = pages(pid, start, end)?.filter(|(_, entry)| entry & OF_FILE == 0);
    Ok(own.map(|(at, _)| at).collect())
}

/// Parts of [start, end) that hold something.
///
/// # Errors
/// As `own_pages`.
pub fn present(pid: i32, start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for (at, _) in pages(pid, start, end)? {
        match parts.last_mut() {
            Some((_, last)) if *last == at => *last = at + PAGE,
            _ => parts.push((at, at + PAGE)),
        }
    }
    Ok(parts)
}

/// What it may do, as far as a program that another one starts may do less: capabilities, effective and permitted, and the
/// user namespace that they are of, if that is not known; None: it is gone, or not for us to look at.
pub fn powers(pid: i32, users: Option<PathBuf>) -> Option<([u32; 4], PathBuf)> {
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, pid as u32];
    let mut sets = [0u32; 6];
    // SAFETY: a header and room for two sets of three words, as that version has them.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    let users = users.or_else(|| user_namespace(pid))?;
    let [effective, permitted, _, effective_more, permitted_more, _] = sets;
    let all = [effective, effective_more, permitted, permitted_more];
    (got == 0).then_some((all, users))
}

/// What it may do, as the kernel tells it; None: it is gone.
pub fn rights(pid: i32) -> Option<String> {
    const OF_RIGHTS: [&str; 10] = [
        "Uid:",
        "Gid:",
        "Groups:",
        "CapInh:",
        "CapPrm:",
        "CapEff:",
        "CapBnd:",
        "CapAmb:",
        "NoNewPrivs:",
        "Seccomp:",
    ];
    let status = text(pid, "status").ok()?;
    let lines = status.lines();
    let of = lines.filter(|line| OF_RIGHTS.iter().any(|name| line.starts_with(name)));
    let users = user_namespace(pid)?;
    let mut rights: Vec<&str> = of.collect();
    let users = users.to_string_lossy();
    rights.push(&users);
    Some(rights.join("\n"))
}

/// Whether who had the rights `before` has none in `now`, both of [`rights`], that it had not: each id and capability was
/// there, and all else is as it was.
pub fn gains_nothing(now: &str, before: &str) -> bool {
    let within = |(now, before): (&str, &str)| {
        let (name, is) = now.split_once(':').unwrap_or(("", now));
        let Some(was) = before
            .strip_prefix(name)
            .map(|was| was.trim_start_matches(':'))
        else {
            return false;
        };
        let words = |text: &'_ str| -> Vec<String> {
            text.split_ascii_whitespace().map(str::to_owned).collect()
        };
        match name {
            "Uid" | "Gid" => {
                let was = words(was);
                words(is).iter().all(|id| was.contains(id))
            }
            _ if name.starts_with("Cap") => {
                let set = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
                set(is)
                    .zip(set(was))
                    .is_some_and(|(is, was)| is & !was == 0)
            }
            _ => is == was,
        }
    };
    now.lines().count() == before.lines().count() && now.lines().zip(before.lines()).all(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_rights_are_told_from_others() {
        let all = "Uid:\t0\t0\t0\t0\nGid:\t7\t8\t8\t8\nGroups:\t4 5 \nCapEff:\t00000000000001ff\nNoNewPrivs:\t0\nuser:[1]";
        let with = |from: &str, to: &str| {
            assert!(all.contains(from), "{from}");
            all.replace(from, to)
        };
        assert!(gains_nothing(all, all));
        assert!(gains_nothing(&with("01ff", "0000"), all));
        assert!(!gains_nothing(all, &with("01ff", "01fe")));
        assert!(gains_nothing(&with("7\t8", "8\t8"), all));
        assert!(!gains_nothing(all, &with("7\t8", "8\t8")));
        assert!(!gains_nothing(&with("0\t0\t0", "0\t9\t0"), all));
        for (from, to) in [
            ("4 5", "4"),
            ("NoNewPrivs:\t0", "NoNewPrivs:\t1"),
            ("[1]", "[2]"),
        ] {
            assert!(!gains_nothing(&with(from, to), all));
            assert!(!gains_nothing(all, &with(from, to)));
        }
        assert!(!gains_nothing(&with("\nuser:[1]", ""), all));
        let own = rights(std::process::id() as i32).unwrap();
        assert!(gains_nothing(&own, &own));
    }

    #[test]
    fn who_is_on_its_way_out_does_not_live() {
        let of = |state: &str, flags: u32| stat_lives(&format!("{state} 1 2 2 0 -1 {flags} 0 0"));
        assert!(of("R", 0x40_0000) && of("S", 0x40_0100));
        assert!(!of("R", 0x40_0004) && !of("D", 0x40_0104));
        assert!(!of("Z", 0x40_0000) && !of("X", 0x40_0000));
        assert!(lives(std::process::id() as i32));
    }
}
