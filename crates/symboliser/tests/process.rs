// SPDX-License-Identifier: MIT OR Apache-2.0
//! Can the symboliser do anything but name places, whoever it has become?

#[path = "../../../tests/needs.rs"]
mod needs;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use debox_symboliser::{ATTEMPTS, Lost, Part, Symboliser, Unusable};

fn libc() -> File {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("libc.so")).unwrap();
    File::open(format!("/{}", line.split_once('/').unwrap().1)).unwrap()
}

fn started() -> Symboliser {
    let mut symboliser = Symboliser::new();
    assert_eq!(symboliser.pid(), None, "nothing was asked");
    symboliser.libc(&libc()).unwrap();
    symboliser
}

/// Each is tried from inside, and each is the end of it.
#[test]
fn what_is_forbidden_ends_it() {
    for (what, text) in ATTEMPTS.iter().enumerate() {
        let mut symboliser = started();
        let error = symboliser.attempt(what as u8).unwrap_err();
        let forbidden = Lost::Signal("a system call that is forbidden to it");
        assert_eq!(error, Unusable::Lost(forbidden), "{text}");
        assert_eq!(symboliser.ends(), 1);
        // And then it goes on, in another life.
        let life = symboliser.life();
        symboliser.libc(&libc()).unwrap();
        assert_eq!(symboliser.life(), life + 1, "{text}");
    }
    let past = ATTEMPTS.len() as u8;
    assert_eq!(started().attempt(past), Ok(()), "nothing is tried");
}

fn status_of(pid: u32) -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    text.lines()
        .filter_map(|line| line.split_once(":\t"))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// What the kernel says of it.
#[test]
fn it_has_nothing() {
    let symboliser = started();
    let pid = symboliser.pid().unwrap();
    let status = status_of(pid);
    let of = |name: &str| {
        let found = status.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("{name}")).1.as_str()
    };
    for set in ["CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(of(set), "0000000000000000", "{set}");
    }
    // In a user namespace of one user there is no other to become.
    let all_users = fs::read_to_string("/proc/self/uid_map").unwrap();
    let all_users = all_users.split_whitespace().nth(2) == Some("4294967295");
    // SAFETY: no memory, and never fails.
    if unsafe { libc::geteuid() } == 0 && all_users {
        assert_eq!(of("CapBnd"), "0000000000000000");
        assert_eq!(of("Uid"), "65534\t65534\t65534\t65534");
        assert_eq!(of("Gid"), "65534\t65534\t65534\t65534");
        assert_eq!(of("Groups"), "");
    }
    assert_eq!((of("NoNewPrivs"), of("Seccomp")), ("1", "2"));
    assert_eq!(of("Threads"), "1");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    for name in ["Max core file size", "Max file size", "Max processes"] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        let words: Vec<&str> = line[name.len()..].split_whitespace().collect();
        assert_eq!(words[..2], ["0", "0"], "{line}");
    }
    // Seen by root only: it is not dumpable.
    if let Ok(list) = fs::read_dir(format!("/proc/{pid}/fd")) {
        let mut open: Vec<String> = list
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        open.sort();
        assert_eq!(open, ["0", "1", "2"]);
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(environment.is_empty());
    }
    drop(symboliser);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

/// Started by hand, by anybody, it ends at once, without a word to a terminal.
#[test]
fn by_hand() {
    for stdin in [Stdio::null(), Stdio::piped()] {
        let output = Command::new("/proc/self/exe")
            .arg0("debox-symboliser")
            .arg("--serve")
            .stdin(stdin)
            .output()
            .unwrap();
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
    // Other words are the program's own.
    let output = Command::new("/proc/self/exe")
        .args(["--serve", "--list"])
        .output()
        .unwrap();
    assert!(!output.stdout.is_empty() || !output.stderr.is_empty());
}

/// Somebody ends it, or stops it for ever: the next question is answered.
#[test]
fn it_is_started_again() {
    let mut symboliser = started();
    let pid = symboliser.pid().unwrap() as libc::pid_t;
    // SAFETY: no memory; a child of ours that nobody has waited for.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    let error = symboliser.libc(&libc()).unwrap_err();
    assert_eq!(error, Unusable::Lost(Lost::Signal("killed")));
    symboliser.libc(&libc()).unwrap();
    assert_eq!(symboliser.ends(), 1);
    // Signals of a terminal do nothing.
    let pid = symboliser.pid().unwrap() as libc::pid_t;
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGTSTP,
    ] {
        // SAFETY: as above.
        unsafe { libc::kill(pid, signal) };
    }
    symboliser.libc(&libc()).unwrap();
    assert_eq!(symboliser.pid(), Some(pid as u32));
}

/// The unwind table that comes back is the one that is made here.
#[test]
fn unwind_tables() {
    let mut symboliser = started();
    let options = debox_unwind::Options {
        file_name: Some("libc.so.6".into()),
        ..debox_unwind::Options::default()
    };
    let here = debox_unwind::table(&libc(), &options).unwrap();
    let max = Duration::from_secs(10);
    let there = symboliser
        .table(&libc(), "libc.so.6", 1 << 21, max)
        .unwrap();
    assert!(there.len() > 1000);
    assert!(here.rows == there, "{} {}", here.rows.len(), there.len());
    let few = symboliser
        .table(&libc(), "libc.so.6", 100, max)
        .unwrap_err();
    assert!(few.to_string().contains("limit of 100"), "{few}");
    let mut text = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut text, b"#!/bin/sh\n").unwrap();
    let error = symboliser.table(&text, "", 100, max).unwrap_err();
    assert_eq!(error, Unusable::Refused("not an ELF file".into()));
    assert_eq!(symboliser.ends(), 0);
}

/// Files, maps and names that it has never heard of.
#[test]
fn questions_about_nothing() {
    let mut symboliser = started();
    assert_eq!(
        symboliser.name(7, 1, true).unwrap_err(),
        Unusable::Forgotten
    );
    assert_eq!(symboliser.map_name(7, 1), Err(Unusable::Forgotten));
    let error = symboliser.load(7, Part::Link, &libc()).unwrap_err();
    assert_eq!(error, Unusable::Forgotten);
    symboliser.load(7, Part::Main, &libc()).unwrap();
    let error = symboliser.load(7, Part::Alt, &libc()).unwrap_err();
    assert_eq!(error, Unusable::Refused("its build id is another".into()));
    assert_eq!(symboliser.ends(), 0);
}

/// A copy of this test that others can run, as cargo's directory may be closed
/// to them.
fn copy_for_others() -> (tempfile::TempDir, Command) {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("process");
    fs::copy("/proc/self/exe", &copy).unwrap();
    for path in [dir.path(), &copy] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).unwrap();
    }
    let mut command = Command::new(&copy);
    command.env("AS_USER", "1").current_dir("/");
    (dir, command)
}

/// Not in the copies that this test runs as others.
fn is_root() -> bool {
    std::env::var_os("AS_USER").is_none() && needs::root()
}

fn passes(command: &mut Command) {
    let output = loop {
        match command.output() {
            // Another test's child, on its way to exec, still has the copy open
            // for writing.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::yield_now();
            }
            done => break done.unwrap(),
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {output:?}");
}

/// An ordinary user has it as root has, and one in a user namespace of a
/// container, where root is all there is.
#[test]
fn as_an_ordinary_user() {
    if !is_root() {
        return;
    }
    let (_dir, mut command) = copy_for_others();
    passes(command.uid(65534).gid(65534));
    let mut inside = Command::new("unshare");
    inside
        .args(["--user", "--map-root-user"])
        .arg(command.get_program())
        .env("AS_USER", "1")
        .current_dir("/");
    passes(inside.uid(65534).gid(65534));
}

/// As deboxd's unit has it: another user with ambient capabilities, and a
/// filter that refuses every call that changes privileges.
fn as_service(refused: &'static [libc::c_long]) -> std::io::Result<()> {
    const CAP_SYS_PTRACE: libc::c_ulong = 19;
    let header = [0x2008_0522u32, 0];
    let set = 1u32 << CAP_SYS_PTRACE;
    let data = [set, set, set, 0, 0, 0];
    let deny = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let line = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let end = libc::BPF_RET | libc::BPF_K;
    let mut program = vec![line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for nr in refused {
        program.extend([line(equal, 0, 1, *nr as u32), line(end, 0, 0, deny)]);
    }
    program.push(line(end, 0, 0, libc::SECCOMP_RET_ALLOW));
    let fprog = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let done = |result: libc::c_long| match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: numbers, and pointers to locals of the kernel's layout.
    unsafe {
        let none = 0 as libc::c_ulong;
        done(libc::prctl(libc::PR_SET_KEEPCAPS, 1 as libc::c_ulong, none, none, none).into())?;
        done(libc::syscall(
            libc::SYS_setgroups,
            0,
            std::ptr::null::<u32>(),
        ))?;
        done(libc::syscall(libc::SYS_setresgid, 65533, 65533, 65533))?;
        done(libc::syscall(libc::SYS_setresuid, 65533, 65533, 65533))?;
        done(libc::syscall(
            libc::SYS_capset,
            header.as_ptr(),
            data.as_ptr(),
        ))?;
        let raise = libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong;
        done(libc::prctl(libc::PR_CAP_AMBIENT, raise, CAP_SYS_PTRACE, none, none).into())?;
        done(
            libc::prctl(
                libc::PR_SET_NO_NEW_PRIVS,
                1 as libc::c_ulong,
                none,
                none,
                none,
            )
            .into(),
        )?;
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        done(libc::syscall(libc::SYS_seccomp, mode, 0, &raw const fprog))
    }
}

#[test]
fn as_a_service_under_a_filter() {
    const PRIVILEGED: &[libc::c_long] = &[
        libc::SYS_capset,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setgroups,
        libc::SYS_setrlimit,
    ];
    if !is_root() {
        return;
    }
    let (_dir, mut command) = copy_for_others();
    // SAFETY: what it does between fork and exec allocates, in a process whose
    // only other threads wait.
    passes(unsafe { command.pre_exec(|| as_service(PRIVILEGED)) });
}

/// What cannot be given up is a reason not to begin.
#[test]
fn without_limits_nothing_is_read() {
    const LIMITS: &[libc::c_long] = &[libc::SYS_prlimit64];
    if is_root() {
        let (_dir, mut command) = copy_for_others();
        command
            .args(["--exact", "without_limits_nothing_is_read"])
            .env("WITHOUT_LIMITS", "1");
        // SAFETY: as above.
        passes(unsafe { command.pre_exec(|| as_service(LIMITS)) });
    }
    if std::env::var_os("WITHOUT_LIMITS").is_some() {
        let error = Symboliser::new().libc(&libc()).unwrap_err();
        let Unusable::Lost(Lost::Start(why)) = error else {
            panic!("{error:?}");
        };
        assert!(why.contains("confined") && why.contains("limits"), "{why}");
    }
}
