// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the six numbers that a system call was made with mean, and which of
//! them names what it works on?
//!
//! All of it is data: `data/arguments.txt`. The kernel side gets the objects of that
//! table, people get the texts.

use crate::syscalls::{syscall_name, syscall_number, syscall_number_compat};
use std::collections::HashMap;
use std::sync::LazyLock;

/// How the argument of a call names its object; the numbers are those of
/// `bpf/object.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ObjectBy {
    Descriptor = 1,
    Path = 2,
    Futex = 3,
    Poll = 4,
}

/// Which argument of a call names its object, and which descriptor is gone after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectArgument {
    pub nr: u32,
    /// `nr` is an i386 number.
    pub compat: bool,
    /// How, and which argument.
    pub object: Option<(ObjectBy, u8)>,
    /// The argument with a socket's address.
    pub address: Option<u8>,
    pub removes: Option<Removes>,
}

/// What a call takes out of the table of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removes {
    /// That of this argument.
    One(u8),
    Many,
}

/// An argument as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: &'static str,
    pub text: String,
    pub value: u64,
    pub kind: Kind,
}

impl Argument {
    /// Whether it is a place in memory.
    pub fn is_address(&self) -> bool {
        matches!(
            self.kind,
            Kind::Path | Kind::Futex | Kind::Poll | Kind::Address | Kind::Pointer | Kind::Timespec
        )
    }
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Descriptor,
    Directory,
    Path,
    Futex,
    Poll,
    Address,
    Pointer,
    /// A place in memory with a length of time or a moment, as the call has it.
    Timespec,
    Signed,
    Unsigned,
    Size,
    Hex,
    Mode,
    Milliseconds,
    Named(&'static str),
    /// Of a socket: which list, the level before it says.
    SocketOption,
}

impl Kind {
    fn of(word: &'static str) -> Kind {
        match word {
            "fd" => Kind::Descriptor,
            "dirfd" => Kind::Directory,
            "path" => Kind::Path,
            "futex" => Kind::Futex,
            "poll" => Kind::Poll,
            "sockaddr" => Kind::Address,
            "pointer" => Kind::Pointer,
            "timespec" => Kind::Timespec,
            "int" => Kind::Signed,
            "uint" => Kind::Unsigned,
            "size" => Kind::Size,
            "hex" => Kind::Hex,
            "mode" => Kind::Mode,
            "ms" => Kind::Milliseconds,
            "sockopt" => Kind::SocketOption,
            name => Kind::Named(name),
        }
    }
}

struct Parameter {
    name: &'static str,
    kind: Kind,
    object: bool,
    removes: Option<Removes>,
}

struct Names {
    /// Bits that hold one of several values.
    fields: Vec<(u64, Vec<(&'static str, u64)>)>,
    flags: Vec<(&'static str, u64)>,
    /// No flags: the whole number is one value.
    one: bool,
}

struct Table {
    names: HashMap<&'static str, Names>,
    calls: HashMap<&'static str, Vec<Parameter>>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::new(include_str!("../data/arguments.txt")));

/// As in C; the embedded table has no others.
fn number(text: &str) -> u64 {
    let parsed = if let Some(hex) = text.strip_prefix("0x") {
        u64::from_str_radix(hex, 16)
    } else if text.len() > 1 && text.starts_with('0') {
        u64::from_str_radix(text, 8)
    } else {
        text.parse()
    };
    parsed.expect("a number of the embedded table is written as in C")
}

fn named(word: &'static str) -> (&'static str, u64) {
    let (name, value) = word
        .split_once('=')
        .expect("an entry of the embedded table is NAME=NUMBER");
    (name, number(value))
}

impl Names {
    fn new(words: impl Iterator<Item = &'static str>, one: bool) -> Names {
        let mut names = Names {
            fields: Vec::new(),
            flags: Vec::new(),
            one,
        };
        let mut field: Option<Vec<(&'static str, u64)>> = None;
        for word in words {
            let word = match word.strip_prefix('(') {
                Some(first) => {
                    field = Some(Vec::new());
                    first
                }
                None => word,
            };
            match (word.split_once(")/"), &mut field) {
                (Some((last, mask)), Some(values)) => {
                    values.push(named(last));
                    names.fields.push((number(mask), std::mem::take(values)));
                    field = None;
                }
                (_, Some(values)) => values.push(named(word)),
                (_, None) => names.flags.push(named(word)),
            }
        }
        // Flags of several bits stand before those that are part of them.
        if !one {
            names
                .flags
                .sort_by_key(|(_, bits)| std::cmp::Reverse(bits.count_ones()));
        }
        names
    }

    fn text(&self, value: u64) -> String {
        if self.one {
            let known = self.flags.iter().find(|(_, number)| *number == value);
            return match known {
                Some((name, _)) => (*name).to_owned(),
                None => format!("{}", value as i64),
            };
        }
        let mut left = value;
        let mut words: Vec<String> = Vec::new();
        for (mask, values) in &self.fields {
            let part = value & mask;
            left &= !mask;
            match values.iter().find(|(_, number)| *number == part) {
                // A field's zero is told only by name.
                Some((name, _)) if *name != "0" => words.push((*name).to_owned()),
                None if part != 0 => words.push(format!("{part:#x}")),
                _ => {}
            }
        }
        for (name, bits) in &self.flags {
            if *bits != 0 && left & bits == *bits {
                words.push((*name).to_owned());
                left &= !bits;
            }
        }
        if left != 0 {
            words.push(format!("{left:#x}"));
        }
        if words.is_empty() {
            return "0".to_owned();
        }
        words.join("|")
    }
}

impl Table {
    fn new(text: &'static str) -> Table {
        let mut table = Table {
            names: HashMap::new(),
            calls: HashMap::new(),
        };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                None => {}
                Some(kind @ ("set" | "list")) => {
                    let name = words
                        .next()
                        .expect("a set of the embedded table has a name");
                    table.names.insert(name, Names::new(words, kind == "list"));
                }
                Some(call) => {
                    let parameters = words.zip(0u8..).map(|(word, index)| {
                        let (name, kind) = word
                            .split_once(':')
                            .expect("an argument of the embedded table is NAME:TYPE");
                        Parameter {
                            name: name.trim_start_matches(['*', '-']),
                            kind: Kind::of(kind),
                            object: name.starts_with('*'),
                            removes: match name {
                                name if name.starts_with("--") => Some(Removes::Many),
                                name if name.starts_with('-') => Some(Removes::One(index)),
                                _ => None,
                            },
                        }
                    });
                    table.calls.insert(call, parameters.collect());
                }
            }
        }
        table
    }
}

/// Of all calls that have one, or take one away.
pub fn object_arguments() -> Vec<ObjectArgument> {
    let mut list = Vec::new();
    for (call, parameters) in &TABLE.calls {
        let object = parameters.iter().position(|p| p.object).map(|index| {
            let by = match parameters[index].kind {
                Kind::Path => ObjectBy::Path,
                Kind::Futex => ObjectBy::Futex,
                Kind::Poll => ObjectBy::Poll,
                _ => ObjectBy::Descriptor,
            };
            (by, index as u8)
        });
        let removes = parameters.iter().find_map(|p| p.removes);
        if object.is_none() && removes.is_none() {
            continue;
        }
        let address = parameters.iter().position(|p| p.kind == Kind::Address);
        for (nr, compat) in [
            (syscall_number(call), false),
            (syscall_number_compat(call), true),
        ] {
            let nr = nr.and_then(|nr| u32::try_from(nr).ok());
            list.extend(nr.map(|nr| ObjectArgument {
                nr,
                compat,
                object,
                address: address.map(|at| at as u8),
                removes,
            }));
        }
    }
    list
}

fn text(kind: Kind, value: u64, before: Option<u64>) -> String {
    let pointer = |value: u64| match value {
        0 => "NULL".to_owned(),
        value => format!("{value:#x}"),
    };
    match kind {
        Kind::Descriptor => format!("{}", value as i32),
        Kind::Directory if value as i32 == libc::AT_FDCWD => "AT_FDCWD".to_owned(),
        Kind::Directory => format!("{}", value as i32),
        Kind::Path | Kind::Futex | Kind::Poll | Kind::Address | Kind::Pointer | Kind::Timespec => {
            pointer(value)
        }
        Kind::Signed if value >> 32 == 0 => format!("{}", value as i32),
        Kind::Signed => format!("{}", value as i64),
        Kind::Unsigned => format!("{}", value as u32),
        Kind::Size => format!("{value}"),
        Kind::Hex if value < 10 => format!("{value}"),
        Kind::Hex => format!("{value:#x}"),
        Kind::Mode => format!("{:#o}", value as u32),
        Kind::Milliseconds if (value as i32) < 0 => "for ever".to_owned(),
        Kind::Milliseconds => format!("{} ms", value as i32),
        Kind::Named(name) => match TABLE.names.get(name) {
            // Their registers' upper halves mean nothing.
            Some(names) => names.text(value & 0xffff_ffff),
            None => format!("{value:#x}"),
        },
        Kind::SocketOption => {
            let list = match before {
                Some(0) => "sol_ip",
                Some(1) => "sol_socket",
                Some(6) => "sol_tcp",
                Some(17) => "sol_udp",
                Some(41) => "sol_ipv6",
                _ => "",
            };
            text(Kind::Named(list), value, None)
        }
    }
}

/// The arguments of call `nr`, in order; `None` of a call that the table does not know.
/// Strings and structs that arguments point to are not in them.
pub fn arguments(nr: i32, compat: bool, args: &[u64; 6]) -> Option<Vec<Argument>> {
    let parameters = TABLE.calls.get(syscall_name(nr, compat).as_ref())?;
    // A mode is read by the kernel only where a file may be made.
    let made = |flags: u64| flags & 0o100 != 0 || flags & 0o20_200_000 == 0o20_200_000;
    let opens = parameters
        .iter()
        .position(|p| p.kind == Kind::Named("open"))
        .and_then(|at| args.get(at));
    let mut list = Vec::new();
    for (at, (parameter, value)) in parameters.iter().zip(args).enumerate() {
        if parameter.name == "_"
            || (parameter.kind == Kind::Mode && opens.is_some_and(|f| !made(*f)))
        {
            continue;
        }
        let (mut name, mut kind) = (parameter.name, parameter.kind);
        // Of a futex's further arguments those that its operation takes.
        if parameters[0].kind == Kind::Futex && parameters[1].kind == Kind::Named("futex_op") {
            let waits = matches!(args[1] & 0x7f, 0 | 9);
            let lock = matches!(args[1] & 0x7f, 6 | 7 | 8 | 13);
            let wakes = matches!(args[1] & 0x7f, 1 | 10);
            if (at >= 4 && (waits || lock || wakes)) || (at == 3 && wakes) || (at == 2 && lock) {
                continue;
            }
            let timed = waits || lock || args[1] & 0x7f == 11;
            if at == 3 && !timed {
                (name, kind) = ("val2", Kind::Unsigned);
            }
        }
        let before = at
            .checked_sub(1)
            .and_then(|before| args.get(before))
            .copied();
        list.push(Argument {
            name,
            text: text(kind, *value, before),
            value: *value,
            kind,
        });
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(nr: libc::c_long, args: [u64; 6]) -> String {
        let words: Vec<String> = arguments(nr as i32, false, &args)
            .unwrap_or_default()
            .into_iter()
            .map(|a| format!("{}={}", a.name, a.text))
            .collect();
        words.join(" ")
    }

    #[test]
    fn arguments_are_told_by_name() {
        let at = libc::AT_FDCWD as u32 as u64;
        let flags = (libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_SYNC) as u64;
        assert_eq!(
            told(libc::SYS_openat, [at, 0x1000, flags, 0o644, 9, 9]),
            "dirfd=AT_FDCWD pathname=0x1000 flags=O_RDWR|O_SYNC|O_CREAT|O_CLOEXEC mode=0o644"
        );
        assert_eq!(
            told(libc::SYS_openat, [at, 0x1000, 0, 0o644, 9, 9]),
            "dirfd=AT_FDCWD pathname=0x1000 flags=O_RDONLY"
        );
        let wait = (libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG) as u64;
        assert_eq!(
            told(libc::SYS_futex, [0x10, wait, 2, 0, 0, 7]),
            "uaddr=0x10 op=FUTEX_WAIT_BITSET|FUTEX_PRIVATE_FLAG val=2 timeout=NULL"
        );
        assert_eq!(
            told(libc::SYS_futex, [0x10, 3, 1, 2, 0x20, 0]),
            "uaddr=0x10 op=FUTEX_REQUEUE val=1 val2=2 uaddr2=0x20 val3=0"
        );
        let (prot, map) = (
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        assert_eq!(
            told(
                libc::SYS_mmap,
                [0, 4096, prot as u64, map as u64, u64::MAX, 0]
            ),
            "addr=NULL length=4096 prot=PROT_READ|PROT_EXEC flags=MAP_PRIVATE|MAP_ANONYMOUS fd=-1 offset=0"
        );
        assert_eq!(
            told(libc::SYS_setsockopt, [3, 6, 1, 0x10, 4, 0]),
            "fd=3 level=SOL_TCP optname=TCP_NODELAY optval=0x10 optlen=4"
        );
        assert_eq!(
            told(libc::SYS_setsockopt, [3, 1, 20, 0x10, 16, 0]),
            "fd=3 level=SOL_SOCKET optname=SO_RCVTIMEO optval=0x10 optlen=16"
        );
        assert_eq!(
            told(libc::SYS_kill, [u64::MAX, 9, 0, 0, 0, 0]),
            "pid=-1 sig=SIGKILL"
        );
        assert_eq!(
            told(libc::SYS_epoll_wait, [5, 0x10, 64, u32::MAX.into(), 0, 0]),
            "epfd=5 events=0x10 maxevents=64 timeout=for ever"
        );
        assert_eq!(
            told(libc::SYS_flock, [4, 6, 0, 0, 0, 0]),
            "fd=4 operation=LOCK_EX|LOCK_NB"
        );
        assert_eq!(told(libc::SYS_getpid, [1; 6]), "");
        // Bits that have no name are not lost.
        assert_eq!(
            told(libc::SYS_msync, [0, 1, 0x108, 0, 0, 0]),
            "addr=NULL length=1 flags=0x108"
        );
    }

    #[test]
    fn constants_are_those_of_libc() {
        let of = |set: &str, name: &str| {
            let names = &TABLE.names[set];
            let fields = names.fields.iter().flat_map(|(_, values)| values);
            let found = fields.chain(&names.flags).find(|(n, _)| *n == name);
            found.unwrap_or_else(|| panic!("no {name} in {set}")).1
        };
        for (set, name, value) in [
            ("open", "O_DIRECT", libc::O_DIRECT as u64),
            ("open", "O_TMPFILE", libc::O_TMPFILE as u64),
            ("open", "O_SYNC", libc::O_SYNC as u64),
            ("open", "O_PATH", libc::O_PATH as u64),
            ("map", "MAP_POPULATE", libc::MAP_POPULATE as u64),
            (
                "map",
                "MAP_FIXED_NOREPLACE",
                libc::MAP_FIXED_NOREPLACE as u64,
            ),
            ("msg", "MSG_NOSIGNAL", libc::MSG_NOSIGNAL as u64),
            ("msg", "MSG_WAITALL", libc::MSG_WAITALL as u64),
            ("clone", "CLONE_NEWNET", libc::CLONE_NEWNET as u64),
            (
                "clone",
                "CLONE_CHILD_CLEARTID",
                libc::CLONE_CHILD_CLEARTID as u64,
            ),
            ("wait", "__WALL", libc::__WALL as u32 as u64),
            ("fcntl", "F_OFD_SETLKW", libc::F_OFD_SETLKW as u64),
            ("fcntl", "F_SETPIPE_SZ", libc::F_SETPIPE_SZ as u64),
            (
                "madvise",
                "MADV_POPULATE_WRITE",
                libc::MADV_POPULATE_WRITE as u64,
            ),
            ("sol_socket", "SO_SNDTIMEO", libc::SO_SNDTIMEO as u64),
            ("sol_tcp", "TCP_USER_TIMEOUT", libc::TCP_USER_TIMEOUT as u64),
            (
                "futex_op",
                "FUTEX_CMP_REQUEUE_PI",
                libc::FUTEX_CMP_REQUEUE_PI as u64,
            ),
            ("signal", "SIGSYS", libc::SIGSYS as u64),
            ("flock", "LOCK_NB", libc::LOCK_NB as u64),
            ("at", "AT_EMPTY_PATH", libc::AT_EMPTY_PATH as u64),
            ("socktype", "SOCK_SEQPACKET", libc::SOCK_SEQPACKET as u64),
            ("whence", "SEEK_HOLE", libc::SEEK_HOLE as u64),
            ("clock", "CLOCK_TAI", libc::CLOCK_TAI as u64),
        ] {
            assert_eq!(of(set, name), value, "{name}");
        }
    }

    /// A misspelt call or set would be told as nothing.
    #[test]
    fn every_word_of_the_table_is_known() {
        for name in TABLE.names.keys() {
            assert_eq!(
                Kind::of(name),
                Kind::Named(name),
                "a set is named as a type"
            );
        }
        for (call, parameters) in &TABLE.calls {
            let known = syscall_number(call).is_some() || syscall_number_compat(call).is_some();
            assert!(known, "{call} is no system call");
            assert!(parameters.len() <= 6, "{call}");
            assert!(
                parameters.iter().filter(|p| p.object).count() <= 1,
                "{call}"
            );
            for parameter in parameters {
                if let Kind::Named(name) = parameter.kind {
                    assert!(TABLE.names.contains_key(name), "{call}: no set {name}");
                }
            }
        }
    }

    #[test]
    fn objects_are_found_by_number() {
        let list = object_arguments();
        let of = |nr: libc::c_long, compat| {
            let found = list
                .iter()
                .find(|o| o.nr == nr as u32 && o.compat == compat);
            found.map(|o| (o.object, o.address, o.removes))
        };
        assert_eq!(
            of(libc::SYS_read, false),
            Some((Some((ObjectBy::Descriptor, 0)), None, None))
        );
        assert_eq!(
            of(libc::SYS_sendto, false),
            Some((Some((ObjectBy::Descriptor, 0)), Some(4), None))
        );
        assert_eq!(
            of(libc::SYS_openat, false),
            Some((Some((ObjectBy::Path, 1)), None, None))
        );
        assert_eq!(
            of(libc::SYS_futex, false),
            Some((Some((ObjectBy::Futex, 0)), None, None))
        );
        assert_eq!(
            of(libc::SYS_poll, false),
            Some((Some((ObjectBy::Poll, 0)), None, None))
        );
        assert_eq!(
            of(libc::SYS_close, false),
            Some((None, None, Some(Removes::One(0))))
        );
        assert_eq!(
            of(libc::SYS_dup2, false),
            Some((None, None, Some(Removes::One(1))))
        );
        assert_eq!(
            of(libc::SYS_close_range, false),
            Some((None, None, Some(Removes::Many)))
        );
        assert_eq!(of(libc::SYS_getpid, false), None);
        // i386
        assert_eq!(
            of(3, true),
            Some((Some((ObjectBy::Descriptor, 0)), None, None))
        );
    }
}
