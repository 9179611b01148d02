// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is system call number N called, and which number has a name?

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

/// x32 calls carry this bit in their number (`__X32_SYSCALL_BIT`).
const X32_BIT: i32 = 0x4000_0000;

static NATIVE: LazyLock<Table> =
    LazyLock::new(|| Table::new(include_str!("../data/syscalls_64.tsv")));
static COMPAT: LazyLock<Table> =
    LazyLock::new(|| Table::new(include_str!("../data/syscalls_32.tsv")));

struct Table {
    names: Vec<&'static str>,
    numbers: HashMap<&'static str, i32>,
}

impl Table {
    fn new(text: &'static str) -> Table {
        let mut names = Vec::new();
        let mut numbers = HashMap::new();
        for (nr, name) in table(text) {
            let index = nr as usize;
            if names.len() <= index {
                names.resize(index + 1, "");
            }
            names[index] = name;
            numbers.insert(name, nr);
        }
        Table { names, numbers }
    }

    fn name(&self, nr: i32) -> Option<&'static str> {
        let name = self.names.get(usize::try_from(nr).ok()?)?;
        (!name.is_empty()).then_some(name)
    }
}

/// The lines `number TAB name` of an embedded table; `#` opens a comment.
pub(crate) fn table(text: &'static str) -> impl Iterator<Item = (i32, &'static str)> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (nr, name) = line
                .split_once('\t')
                .expect("an embedded table line is NUMBER TAB NAME");
            (
                nr.parse().expect("an embedded table number is decimal"),
                name,
            )
        })
}

/// The name of a system call as the kernel's own table has it. `compat` takes
/// the i386 table. Numbers beyond the tables come back as `syscall_N`, x32
/// calls with the prefix `x32_`, a negative number (not known) as `unknown`.
pub fn syscall_name(nr: i32, compat: bool) -> Cow<'static, str> {
    if nr < 0 {
        return Cow::Borrowed("unknown");
    }
    if compat {
        return match COMPAT.name(nr) {
            Some(name) => Cow::Borrowed(name),
            None => Cow::Owned(format!("syscall_{nr}")),
        };
    }
    if nr & X32_BIT != 0 {
        let low = nr & !X32_BIT;
        // 512.. are x32's own numbers; below it shares the 64-bit table.
        return match NATIVE.name(low) {
            Some(name) => Cow::Owned(format!("x32_{name}")),
            None => Cow::Owned(format!("x32_{low}")),
        };
    }
    match NATIVE.name(nr) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("syscall_{nr}")),
    }
}

/// The x86-64 number of a system call; also of the form `syscall_N`.
pub fn syscall_number(name: &str) -> Option<i32> {
    number_in(&NATIVE, name)
}

/// The i386 number of a system call; also of the form `syscall_N`.
pub fn syscall_number_compat(name: &str) -> Option<i32> {
    number_in(&COMPAT, name)
}

fn number_in(table: &Table, name: &str) -> Option<i32> {
    table.numbers.get(name).copied().or_else(|| {
        let digits = name.strip_prefix("syscall_")?;
        // "+5" parses as a number but is none of ours.
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse().ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_constants_agree() {
        let known = [
            ("read", libc::SYS_read),
            ("pread64", libc::SYS_pread64),
            ("sendfile", libc::SYS_sendfile),
            ("newfstatat", libc::SYS_newfstatat),
            ("accept4", libc::SYS_accept4),
            ("execveat", libc::SYS_execveat),
            ("statx", libc::SYS_statx),
            ("rseq", libc::SYS_rseq),
            ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
            ("io_uring_enter", libc::SYS_io_uring_enter),
            ("clone3", libc::SYS_clone3),
            ("futex_waitv", libc::SYS_futex_waitv),
            ("mseal", libc::SYS_mseal),
        ];
        for (name, nr) in known {
            assert_eq!(syscall_name(nr as i32, false), name);
            assert_eq!(syscall_number(name), Some(nr as i32));
        }
    }

    #[test]
    fn i386_has_its_own_numbers() {
        assert_eq!(syscall_name(4, true), "write");
        assert_eq!(syscall_name(4, false), "stat");
        assert_eq!(syscall_name(252, true), "exit_group");
        assert_eq!(syscall_name(192, true), "mmap2");
        assert_eq!(syscall_name(422, true), "futex_time64");
        assert_eq!(syscall_name(384, true), "arch_prctl");
        assert_eq!(syscall_number_compat("socketcall"), Some(102));
        assert_eq!(syscall_number("socketcall"), None);
    }

    #[test]
    fn newest_calls_have_one_number_in_both_tables() {
        for (name, nr) in [
            ("cachestat", 451),
            ("map_shadow_stack", 453),
            ("statmount", 457),
            ("mseal", 462),
            ("setxattrat", 463),
            ("getxattrat", 464),
            ("listxattrat", 465),
            ("removexattrat", 466),
            ("open_tree_attr", 467),
            ("file_getattr", 468),
            ("file_setattr", 469),
        ] {
            assert_eq!(syscall_name(nr, false), name);
            assert_eq!(syscall_name(nr, true), name);
        }
    }

    #[test]
    fn tables_have_no_holes_and_no_name_twice() {
        for nr in (0..=336).chain(424..=469) {
            let name = syscall_name(nr, false);
            assert!(
                !name.starts_with("syscall_"),
                "no name for x86-64 call {nr}"
            );
            assert_eq!(syscall_number(&name), Some(nr));
        }
        // 222, 223, 251, 285, 387..392 and 415 were never given out on i386.
        let holes: Vec<i32> = (0..=469)
            .filter(|&nr| syscall_name(nr, true).starts_with("syscall_"))
            .collect();
        assert_eq!(
            holes,
            [222, 223, 251, 285, 387, 388, 389, 390, 391, 392, 415]
        );
    }

    #[test]
    fn unknown_numbers_keep_their_number() {
        assert_eq!(syscall_name(1000, false), "syscall_1000");
        assert_eq!(syscall_name(400, false), "syscall_400");
        assert_eq!(syscall_name(i32::MAX, true), "syscall_2147483647");
        assert_eq!(syscall_name(-1, false), "unknown");
        assert_eq!(syscall_name(X32_BIT | 1, false), "x32_write");
        assert_eq!(syscall_name(X32_BIT | 520, false), "x32_520");
        assert_eq!(syscall_number("syscall_1000"), Some(1000));
        assert_eq!(syscall_number("syscall_+5"), None);
        assert_eq!(syscall_number("syscall_"), None);
        assert_eq!(syscall_number("nonsense"), None);
    }
}
