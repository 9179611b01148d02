// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a user without privileges see a thread exactly when ptrace would let
//! them, whatever it does while it is watched?
//!
//! A real deboxd, watchers of uid 65534, and programs that gain privileges,
//! change their ids or close themselves. Each makes calls that no library
//! makes by itself (getpgrp), so whatever of them is in an account or a record
//! page was seen. Like tests/processes.rs this binary is its own helper and has
//! no harness; and it is its own victim, in copies with other modes.

#[path = "common/mod.rs"]
#[allow(unused)]
mod common;

use common::Client;
use debox_abi::*;
use debox_client::Mapping;
use std::io::Write;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const NOBODY: u32 = 65534;
/// The call that tells.
const MARK: usize = libc::SYS_getpgrp as usize;
const MARKS: u64 = 60;
/// The sleep that tells, where calls are not counted.
const NAP: usize = libc::SYS_rt_sigtimedwait as usize;
/// Tries of each race: on code that checks before it binds most of them leak.
const TRIES: u32 = 25;
/// How long each goes on after the answer.
const WHILE: std::time::Duration = std::time::Duration::from_millis(20);

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("--victim") => return victim(&args[2]),
        Some("--watch") => return watch(&args[2..]),
        Some("--slots") => return slots(&args[2..]),
        Some("--intruder") => return intruder(Path::new(&args[2])),
        Some("--away") => return away(&args[2..]),
        _ => {}
    }
    if !common::needs::bpf() {
        return;
    }
    type Test = (&'static str, fn(&World));
    let tests: &[Test] = &[
        ("what_ptrace_allows_is_seen", what_ptrace_allows_is_seen),
        (
            "join_then_exec_of_a_privileged_program_shows_nothing",
            join_then_exec_of_a_privileged_program_shows_nothing,
        ),
        (
            "slots_then_exec_of_a_privileged_program_shows_nothing",
            slots_then_exec_of_a_privileged_program_shows_nothing,
        ),
        (
            "programs_that_ptrace_refuses_leave_at_exec",
            programs_that_ptrace_refuses_leave_at_exec,
        ),
        (
            "a_sleep_inside_of_exec_is_of_the_exec",
            a_sleep_inside_of_exec_is_of_the_exec,
        ),
        ("who_closes_itself_leaves", who_closes_itself_leaves),
        (
            "sleepers_of_a_process_that_was_closed_are_not_told",
            sleepers_of_a_process_that_was_closed_are_not_told,
        ),
        ("who_changes_its_ids_leaves", who_changes_its_ids_leaves),
        (
            "other_ids_at_the_same_address_are_seen",
            other_ids_at_the_same_address_are_seen,
        ),
        (
            "who_gives_up_capabilities_stays",
            who_gives_up_capabilities_stays,
        ),
        (
            "a_privileged_heir_of_the_socket_is_not_bound",
            a_privileged_heir_of_the_socket_is_not_bound,
        ),
        ("what_is_closed_is_not_bound", what_is_closed_is_not_bound),
        (
            "nobody_leaves_a_privileged_watch_by_joining_another",
            nobody_leaves_a_privileged_watch_by_joining_another,
        ),
        (
            "an_account_of_the_same_user_takes_over_and_that_is_counted",
            an_account_of_the_same_user_takes_over_and_that_is_counted,
        ),
    ];
    let filter = args.iter().skip(1).find(|arg| !arg.starts_with('-'));
    let world = World::new();
    for (name, test) in tests {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        print!("test {name} ... ");
        std::io::stdout().flush().unwrap();
        let began = std::time::Instant::now();
        test(&world);
        println!("ok <{:.3}s>", began.elapsed().as_secs_f64());
    }
}

// -------------------------------------------------------------------- world

/// A deboxd and copies of this program: plain, set-user-id, set-group-id, and
/// one that may be run but not read. Not below /tmp, which may be nosuid.
struct World {
    dir: tempfile::TempDir,
    socket: PathBuf,
    broker: Child,
}

const PLAIN: &str = "plain";
const SETUID: &str = "setuid";
const SETGID: &str = "setgid";
const UNREADABLE: &str = "unreadable";

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(dir.path(), 0o755);
        let itself = std::env::current_exe().unwrap();
        for (name, bits) in [
            (PLAIN, 0o755),
            (SETUID, 0o4755),
            (SETGID, 0o2755),
            (UNREADABLE, 0o711),
        ] {
            let copy = dir.path().join(name);
            std::fs::copy(&itself, &copy).unwrap();
            mode(&copy, bits);
        }
        let socket = dir.path().join("sock");
        let broker = Command::new(env!("CARGO_BIN_EXE_deboxd"))
            .arg("--everybody")
            .arg("--socket")
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let world = Self {
            dir,
            socket,
            broker,
        };
        common::wait_for("deboxd", || Client::try_connect(&world.socket).is_ok());
        world
    }

    fn program(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn nobody(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program(PLAIN));
        command.args(args).uid(NOBODY).gid(NOBODY);
        command
    }

    /// What a watcher of uid 65534 sees of `program`, which plays `what`.
    fn watch(&self, how: &str, program: &str, what: &str) -> Seen {
        let socket = self.socket.to_str().unwrap();
        Seen::of(&mut self.nobody(&["--watch", socket, how, &self.program(program), what]))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.broker.kill();
        let _ = self.broker.wait();
    }
}

/// A watcher's last line: numbers by name.
#[derive(Debug)]
struct Seen(String);

impl Seen {
    fn of(command: &mut Command) -> Self {
        let output = command
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}: {text}", output.status);
        Self(text.lines().last().unwrap_or_default().to_owned())
    }

    fn number(&self, name: &str) -> u64 {
        let prefix = format!("{name}=");
        let word = self.0.split(' ').find_map(|w| w.strip_prefix(&prefix));
        word.unwrap_or_else(|| panic!("no {name} in {self:?}"))
            .parse()
            .unwrap()
    }

    fn left(&self) -> [u64; 5] {
        ["exec", "unreadable", "credentials", "undumpable", "taken"].map(|name| self.number(name))
    }
}

// ------------------------------------------------------------------ victims

fn mark(times: u64) {
    for _ in 0..times {
        // SAFETY: no arguments.
        unsafe { libc::syscall(libc::SYS_getpgrp) };
    }
}

fn undumpable() {
    // SAFETY: no memory involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
}

fn ok(result: libc::c_long) {
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn victim(what: &str) {
    match what {
        "mark" => mark(MARKS),
        // Until whoever started it closes the other end of standard input.
        "slowly" => {
            let mut end = [libc::pollfd {
                fd: 0,
                events: libc::POLLIN,
                revents: 0,
            }];
            // SAFETY: a valid list of one.
            while unsafe { libc::poll(end.as_mut_ptr(), 1, 0) } == 0 {
                mark(1);
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        }
        "undumpable" => {
            undumpable();
            mark(MARKS);
        }
        // By another thread, while this one runs.
        "undumpable-thread" => {
            std::thread::spawn(undumpable).join().unwrap();
            mark(MARKS);
        }
        "undumpable-child" => {
            undumpable();
            // SAFETY: the child only makes system calls.
            let child = unsafe { libc::fork() };
            mark(MARKS);
            if child == 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: our own child.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        // Readable again afterwards: what counts then are the ids.
        "uid" | "gid" => {
            // SAFETY: system calls without memory.
            unsafe {
                ok(if what == "uid" {
                    libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234)
                } else {
                    libc::syscall(libc::SYS_setresgid, 1234, 1234, 1234)
                });
                ok(libc::c_long::from(libc::prctl(libc::PR_SET_DUMPABLE, 1)));
            }
            mark(MARKS);
        }
        // One thread sleeps all the while; the other closes the process when told.
        "closed-asleep" => {
            std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60)));
            let mut told = [libc::pollfd {
                fd: 0,
                events: libc::POLLIN,
                revents: 0,
            }];
            // SAFETY: valid lists, of one and of none.
            unsafe {
                while libc::poll(told.as_mut_ptr(), 1, -1) != 1 {}
                undumpable();
                libc::poll(std::ptr::null_mut(), 0, 60_000);
            }
        }
        // Joins by itself, over the connection that it inherited.
        "heir" => {
            // SAFETY: left open for us, nothing owns it.
            let client = Client(unsafe { OwnedFd::from_raw_fd(9) });
            let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_JOIN, 0));
            mark(MARKS);
            let text = reply.text();
            assert_eq!(reply.status, -libc::EPERM, "{text}");
            assert!(text.contains("ids are not all uid 65534"), "{text}");
        }
        "capset" => {
            let none = rustix::thread::CapabilitySet::empty();
            let sets = rustix::thread::CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            };
            rustix::thread::set_capabilities(None, sets).unwrap();
            mark(MARKS);
        }
        "other-ids-again" => {
            for _ in 0..REUSES {
                // SAFETY: the child only makes system calls.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    other_ids_again();
                }
                assert_eq!(reap(child), 0);
            }
        }
        // A namespace that its user owns, and may see everything in.
        "namespace" => {
            // SAFETY: no memory involved.
            unsafe { libc::unshare(libc::CLONE_NEWUSER) };
            mark(MARKS);
        }
        other => panic!("no victim {other:?}"),
    }
}

/// How many processes try to get credentials at an address that they had
/// before; where only addresses are compared, some of them do.
const REUSES: u32 = 40;

/// Has its credentials replaced (its ids stay), gives the kernel time to free
/// the old ones without a sleep, and changes its ids then: the new ones may lie where the
/// old ones did. Nothing else shows it: the dumpable attribute is set back.
fn other_ids_again() -> ! {
    let nap = |call: usize, ns| {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: ns,
        };
        // SAFETY: the time is a local; neither call writes anything for null.
        unsafe {
            if call == NAP {
                let none: u64 = 0;
                libc::syscall(
                    NAP as libc::c_long,
                    &raw const none,
                    0usize,
                    &raw const time,
                    8,
                );
            } else {
                libc::nanosleep(&raw const time, std::ptr::null_mut());
            }
        }
    };
    // What is freed on a CPU is given out again on that CPU.
    let cpu = rustix::thread::sched_getcpu();
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpu);
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let capabilities = rustix::thread::capabilities(None).unwrap();
    // Away from those that were made in other processes.
    rustix::thread::set_capabilities(None, capabilities).unwrap();
    nap(0, 100_000); // they are looked at
    rustix::thread::set_capabilities(None, capabilities).unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_millis(30);
    while std::time::Instant::now() < until {
        std::hint::spin_loop();
    }
    // SAFETY: system calls without memory, and the end of this process.
    unsafe {
        ok(libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234));
        ok(libc::c_long::from(libc::prctl(libc::PR_SET_DUMPABLE, 1)));
        nap(NAP, 100_000);
        libc::_exit(0)
    }
}

// ----------------------------------------------------------------- watchers

fn map(fd: &OwnedFd, size: usize) -> Mapping {
    Mapping::new(fd, size).unwrap()
}

/// What stands there while the kernel goes on writing it.
fn copy<T: Pod>(from: &Mapping, offset: usize) -> Box<T> {
    let mut copy = T::zeroed_box();
    from.copy_words(offset, copy.as_bytes_mut());
    copy
}

/// An account, as its client maps it.
struct Account {
    client: Client,
    head: Mapping,
    cpus: Mapping,
    details: Option<Mapping>,
    count: usize,
    stride: usize,
    _fds: Vec<OwnedFd>,
}

impl Account {
    fn open(socket: &Path, flags: u32) -> Self {
        let client = Client::connect(socket);
        let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, flags));
        assert_eq!(reply.status, 0, "{}", reply.text());
        let count = reply.cpus as usize;
        let stride = reply.cpu_stride as usize;
        let details = (flags & DEBOX_REQ_DETAILS != 0).then(|| {
            control_ask_for_all(&fds[4]);
            map(&fds[2], size_of::<debox_details>())
        });
        Self {
            head: map(&fds[0], size_of::<debox_account>()),
            cpus: map(&fds[1], stride * count),
            details,
            client,
            count,
            stride,
            _fds: fds,
        }
    }

    fn head(&self) -> Box<debox_account> {
        copy(&self.head, 0)
    }

    fn calls(&self, key: usize) -> u64 {
        let row = self.head().row_of[key] as usize;
        if row == 0 {
            return 0;
        }
        (0..self.count)
            .map(|cpu| {
                let rows: Box<debox_account_cpu> = copy(&self.cpus, cpu * self.stride);
                rows.rows[row].count + rows.rows[row].unfinished
            })
            .sum()
    }

    /// Sleeps in a call.
    fn sleeps(&self, key: usize) -> u64 {
        let of = |row: &&debox_site_row| row.key != 0 && (row.key >> 32) & 0x3ff == key as u64;
        self.head()
            .sites
            .iter()
            .filter(of)
            .map(|row| row.count())
            .sum()
    }

    /// Call sites, paths and events that are there of a call.
    fn traces(&self, key: usize) -> u64 {
        let Some(details) = &self.details else {
            return 0;
        };
        let details: Box<debox_details> = copy(details, 0);
        let of = |key_in_row: u64| {
            key_in_row != 0 && (key_in_row >> DEBOX_KEY_NR_SHIFT) & 0x3ff == key as u64
        };
        (details.call_sites.iter().filter(|row| of(row.key)).count()
            + details.paths.iter().filter(|row| of(row.key)).count()) as u64
    }

    fn print(&self, status: i32) {
        let head = self.head();
        println!(
            "status={} marks={} naps={} traces={} prctl={} setresuid={} setresgid={} exec={} unreadable={} \
             credentials={} undumpable={} taken={} started={} ended={}",
            -status,
            self.calls(MARK),
            self.sleeps(NAP),
            self.traces(MARK),
            self.calls(libc::SYS_prctl as usize),
            self.calls(libc::SYS_setresuid as usize),
            self.calls(libc::SYS_setresgid as usize),
            head.left_privileged_exec,
            head.left_unreadable_exec,
            head.left_credentials,
            head.left_undumpable,
            head.left_taken,
            head.threads_started,
            head.threads_ended,
        );
    }
}

/// Call sites with stacks, threads and an event of every call.
fn control_ask_for_all(fd: &OwnedFd) {
    // SAFETY: the client's own page, written before anybody is watched.
    unsafe {
        let control = rustix::mm::mmap(
            std::ptr::null_mut(),
            size_of::<debox_account_control>(),
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            fd,
            0,
        )
        .unwrap()
        .cast::<debox_account_control>();
        (&raw mut (*control).slow_ns).write([1; DEBOX_NR_SLOTS]);
        (&raw mut (*control).flags).write(
            DEBOX_DETAIL_CALL_SITES
                | DEBOX_DETAIL_STACKS
                | DEBOX_DETAIL_THREADS
                | DEBOX_DETAIL_EVENTS
                | DEBOX_DETAIL_EVENT_STACKS,
        );
    }
}

/// The other end of a child's standard input. `before` runs in the child.
fn fork_exec(program: &str, args: &[&str], before: impl FnOnce()) -> (libc::pid_t, OwnedFd) {
    let strings: Vec<std::ffi::CString> = [program]
        .iter()
        .chain(args)
        .map(|s| std::ffi::CString::new(*s).unwrap())
        .collect();
    let mut argv: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
    argv.push(std::ptr::null());
    let (input, other_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    // SAFETY: the child makes system calls only, on memory made before the fork.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::dup2(input.as_raw_fd(), 0);
            before();
            libc::execv(argv[0], argv.as_ptr());
            libc::_exit(127);
        }
        (pid, other_end)
    }
}

fn reap(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status
}

/// Puts a child into an account and has it execute a program: "waiting" for the
/// answer first, "racing" it, or "unasked" (the program may ask itself).
/// "sleeping": waiting, and only sleeps are observed.
fn watch(args: &[String]) {
    let [socket, how, program, what] = args else {
        panic!("{args:?}")
    };
    let flags = match how.as_str() {
        "sleeping" => 0,
        _ => DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS,
    };
    let account = Account::open(Path::new(socket), flags);
    let join = debox_request::new(DEBOX_MSG_JOIN, 0);
    let waits = matches!(how.as_str(), "waiting" | "sleeping");
    let asks = how != "unasked";
    let socket = account.client.0.as_raw_fd();
    let (child, input) = fork_exec(program, &["--victim", what], || {
        // SAFETY: a copy of an open descriptor, for the program to inherit.
        unsafe { libc::dup2(socket, 9) };
        if asks {
            account.client.send(join.as_bytes()).unwrap();
        }
        if waits {
            // SAFETY: a byte of a local.
            unsafe { libc::read(0, [0u8].as_mut_ptr().cast(), 1) };
        }
    });
    let status = if asks {
        account.client.reply().0.status
    } else {
        0
    };
    if waits {
        rustix::io::write(&input, &[0]).unwrap();
    } else {
        std::thread::sleep(WHILE);
    }
    drop(input);
    assert_eq!(reap(child), 0, "the program runs as it does alone");
    account.print(status);
}

/// A child connects a socket that this process shares, asks for slots and
/// executes a program; whatever of that program appears in the record pages.
fn slots(args: &[String]) {
    let [socket, program] = args else {
        panic!("{args:?}")
    };
    use rustix::net::*;
    let fd = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let client = Client(fd);
    let address = SocketAddrUnix::new(socket.as_str()).unwrap();
    let request = debox_request::new(DEBOX_MSG_SLOTS, DEBOX_REQ_BOUNDARY);
    let (child, input) = fork_exec(program, &["--victim", "slowly"], || {
        connect(&client.0, &address).unwrap();
        client.send(request.as_bytes()).unwrap();
    });
    // Connected by the child; until then receiving fails.
    let (reply, fds) = loop {
        match rustix::net::getpeername(&client.0) {
            Ok(_) => break client.reply(),
            Err(_) => std::thread::yield_now(),
        }
    };
    let mut marks = 0u64;
    let until = std::time::Instant::now() + WHILE;
    if reply.status == 0 {
        let pages = map(&fds[0], DEBOX_PAGE_SIZE * DEBOX_SEGMENT_SLOTS);
        loop {
            for slot in 0..DEBOX_SEGMENT_SLOTS {
                let bank = slot * DEBOX_PAGE_SIZE + offset_of!(debox_record, bank);
                let nr = pages.load_acquire(bank + offset_of!(debox_info, nr));
                marks += u64::from(nr == MARK as u32);
            }
            if std::time::Instant::now() > until {
                break;
            }
        }
    }
    drop(input);
    reap(child);
    println!("status={} marks={marks}", -reply.status);
}

/// How many threads of a child are told to be asleep, before it closes itself and after.
fn away(args: &[String]) {
    let [socket, program] = args else {
        panic!("{args:?}")
    };
    let account = Account::open(Path::new(socket), DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS);
    let (child, input) = fork_exec(program, &["--victim", "closed-asleep"], || {
        let join = debox_request::new(DEBOX_MSG_JOIN, 0);
        account.client.send(join.as_bytes()).unwrap();
    });
    assert_eq!(account.client.reply().0.status, 0);
    let told = || {
        let (reply, fds) = account.client.ask(&debox_request::new(DEBOX_MSG_AWAY, 0));
        assert_eq!(reply.status, 0, "{}", reply.text());
        let mut bytes = vec![0; 64 << 10];
        let length = rustix::io::pread(&fds[0], &mut bytes, 0).unwrap();
        let all = bytes[..length]
            .chunks_exact(size_of::<debox_away>())
            .map(|bytes| debox_away::read_from(bytes).unwrap());
        all.filter(|away| away.pid == child as u32)
            .collect::<Vec<_>>()
    };
    let asleep = |told: &[debox_away]| {
        let asleep = told
            .iter()
            .filter(|away| away.flags & DEBOX_AWAY_ASLEEP != 0);
        asleep.count()
    };
    common::wait_or_say(
        || asleep(&told()) == 2,
        || {
            let told = told();
            let told = told
                .iter()
                .map(|away| (away.tid, away.key, away.flags, away.site));
            let threads = std::fs::read_dir(format!("/proc/{child}/task")).unwrap();
            let stat = |thread: std::fs::DirEntry| {
                std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default()
            };
            format!(
                "both threads to sleep; told: {:?}; there are {:?}",
                told.collect::<Vec<_>>(),
                threads.flatten().map(stat).collect::<Vec<_>>()
            )
        },
    );
    let owner = || {
        let file = std::fs::metadata(format!("/proc/{child}/environ")).unwrap();
        std::os::unix::fs::MetadataExt::uid(&file)
    };
    assert_eq!(owner(), NOBODY);
    rustix::io::write(&input, &[0]).unwrap();
    // Files of a closed process in /proc are root's.
    common::wait_for("it to close itself", || owner() == 0);
    println!("after={}", asleep(&told()));
    // SAFETY: our own child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    reap(child);
}

/// Opens an account of its own and joins it, then works.
fn intruder(socket: &Path) {
    let account = Account::open(socket, DEBOX_REQ_BOUNDARY);
    let (reply, _) = account.client.ask(&debox_request::new(DEBOX_MSG_JOIN, 0));
    mark(MARKS);
    account.print(reply.status);
}

// -------------------------------------------------------------------- tests

fn what_ptrace_allows_is_seen(world: &World) {
    for what in ["mark", "namespace"] {
        let seen = world.watch("waiting", PLAIN, what);
        assert_eq!(seen.number("status"), 0, "{seen:?}");
        assert_eq!(seen.number("marks"), MARKS, "{what}: {seen:?}");
        assert!(seen.number("traces") > 0, "{seen:?}");
        assert_eq!(seen.left(), [0; 5], "{what}: {seen:?}");
    }
    let socket = world.socket.to_str().unwrap();
    let seen = Seen::of(&mut world.nobody(&["--slots", socket, &world.program(PLAIN)]));
    assert_eq!(seen.number("status"), 0, "slots too");
}

fn join_then_exec_of_a_privileged_program_shows_nothing(world: &World) {
    for program in [SETUID, SETGID, UNREADABLE] {
        for _ in 0..TRIES {
            let seen = world.watch("racing", program, "slowly");
            assert_eq!(
                (seen.number("marks"), seen.number("traces")),
                (0, 0),
                "{program}: {seen:?}"
            );
        }
    }
}

fn slots_then_exec_of_a_privileged_program_shows_nothing(world: &World) {
    let socket = world.socket.to_str().unwrap();
    for program in [SETUID, SETGID, UNREADABLE] {
        for _ in 0..TRIES {
            let seen = Seen::of(&mut world.nobody(&["--slots", socket, &world.program(program)]));
            assert_eq!(seen.number("marks"), 0, "{program}: {seen:?}");
        }
    }
}

fn programs_that_ptrace_refuses_leave_at_exec(world: &World) {
    for (program, left) in [
        (SETUID, [1, 0, 0, 0, 0]),
        (SETGID, [1, 0, 0, 0, 0]),
        (UNREADABLE, [0, 1, 0, 0, 0]),
    ] {
        let seen = world.watch("waiting", program, "mark");
        assert_eq!(seen.number("status"), 0, "{seen:?}");
        assert_eq!(seen.number("marks"), 0, "{program}: {seen:?}");
        assert_eq!(seen.number("traces"), 0, "{program}: {seen:?}");
        assert_eq!(seen.left(), left, "{program}: {seen:?}");
    }
}

/// The kernel reads a page of the new program after it took on its ids, and
/// waits for it, before it says that there was an exec.
fn a_sleep_inside_of_exec_is_of_the_exec(world: &World) {
    for (program, left) in [
        (SETUID, [1, 0, 0, 0, 0]),
        (SETGID, [1, 0, 0, 0, 0]),
        (UNREADABLE, [0, 1, 0, 0, 0]),
    ] {
        let file = std::fs::File::open(world.program(program)).unwrap();
        file.sync_all().unwrap();
        for _ in 0..5 {
            // While the last one that ran it is ending, it stays.
            common::wait_for("the program to leave memory", || {
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                cached_pages(&file) == 0
            });
            let seen = world.watch("waiting", program, "mark");
            assert_eq!(seen.number("marks"), 0, "{program}: {seen:?}");
            assert_eq!(seen.left(), left, "{program}: {seen:?}");
        }
    }
}

/// How much of a file is in memory.
fn cached_pages(file: &std::fs::File) -> usize {
    let size = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0u8; size.div_ceil(4096)];
    // SAFETY: a new mapping, never touched; `pages` has a byte for each page.
    unsafe {
        let at = rustix::mm::mmap(
            std::ptr::null_mut(),
            size,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::SHARED,
            file,
            0,
        )
        .unwrap();
        assert_eq!(libc::mincore(at, size, pages.as_mut_ptr()), 0);
        rustix::mm::munmap(at, size).unwrap();
    }
    pages.iter().filter(|page| **page & 1 == 1).count()
}

fn who_closes_itself_leaves(world: &World) {
    for (what, threads) in [
        ("undumpable", 1),
        ("undumpable-thread", 2),
        ("undumpable-child", 1),
    ] {
        let seen = world.watch("waiting", PLAIN, what);
        assert_eq!(seen.number("marks"), 0, "{what}: {seen:?}");
        assert_eq!(seen.number("traces"), 0, "{what}: {seen:?}");
        assert_eq!(seen.left(), [0, 0, 0, threads, 0], "{what}: {seen:?}");
    }
}

/// Nor its thread that has slept since before.
fn sleepers_of_a_process_that_was_closed_are_not_told(world: &World) {
    let socket = world.socket.to_str().unwrap();
    let seen = Seen::of(&mut world.nobody(&["--away", socket, &world.program(PLAIN)]));
    assert_eq!(seen.number("after"), 0, "{seen:?}");
}

/// A watcher and a program with these capabilities, both uid 65534.
fn with_capabilities(command: &mut Command) {
    use rustix::thread::*;
    let wanted = CapabilitySet::SETUID | CapabilitySet::SETGID;
    // SAFETY: system calls only. Runs after uid and gid were set, which is
    // why they are kept and made ambient here.
    unsafe {
        command.pre_exec(move || {
            ok(libc::syscall(
                libc::SYS_prctl,
                libc::PR_SET_KEEPCAPS,
                1,
                0,
                0,
                0,
            ));
            // Goes on while others work: leaving the CPU is a sleep that is seen.
            let priority = 1u32;
            ok(libc::syscall(
                libc::SYS_sched_setscheduler,
                0,
                libc::SCHED_FIFO,
                &raw const priority,
            ));
            ok(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY));
            ok(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY));
            set_capabilities(
                None,
                CapabilitySets {
                    effective: wanted,
                    permitted: wanted,
                    inheritable: wanted,
                },
            )?;
            for one in [CapabilitySet::SETUID, CapabilitySet::SETGID] {
                configure_capability_in_ambient_set(one, true)?;
            }
            Ok(())
        });
    }
}

fn watch_with_capabilities(world: &World, how: &str, what: &str) -> Seen {
    let mut command = Command::new(world.program(PLAIN));
    let socket = world.socket.to_str().unwrap();
    command.args(["--watch", socket, how, &world.program(PLAIN), what]);
    with_capabilities(&mut command);
    Seen::of(&mut command)
}

fn who_changes_its_ids_leaves(world: &World) {
    for (what, call) in [("uid", "setresuid"), ("gid", "setresgid")] {
        let seen = watch_with_capabilities(world, "waiting", what);
        assert_eq!(seen.number("status"), 0, "{seen:?}");
        assert_eq!(seen.number("marks"), 0, "{what}: {seen:?}");
        assert_eq!(
            seen.number(call),
            0,
            "the call that changed it, too: {seen:?}"
        );
        assert_eq!(seen.left(), [0, 0, 1, 0, 0], "{what}: {seen:?}");
    }
}

fn other_ids_at_the_same_address_are_seen(world: &World) {
    let seen = watch_with_capabilities(world, "sleeping", "other-ids-again");
    assert_eq!(seen.number("naps"), 0, "{seen:?}");
    assert_eq!(seen.left(), [0, 0, u64::from(REUSES), 0, 0], "{seen:?}");
}

fn who_gives_up_capabilities_stays(world: &World) {
    let seen = watch_with_capabilities(world, "waiting", "capset");
    assert_eq!(seen.number("marks"), MARKS, "{seen:?}");
    assert_eq!(seen.left(), [0; 5], "{seen:?}");
}

fn a_privileged_heir_of_the_socket_is_not_bound(world: &World) {
    for program in [SETUID, SETGID] {
        let seen = world.watch("unasked", program, "heir");
        assert_eq!(seen.number("marks"), 0, "{seen:?}");
    }
}

fn what_is_closed_is_not_bound(world: &World) {
    // SAFETY: this program has no other threads; the child ends below.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls without memory; ids of this process only.
        unsafe {
            ok(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY));
            ok(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY));
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
        }
        let account = Account::open(&world.socket, DEBOX_REQ_BOUNDARY);
        undumpable();
        let (reply, _) = account.client.ask(&debox_request::new(DEBOX_MSG_JOIN, 0));
        let text = reply.text();
        let mut good = reply.status == -libc::EPERM
            && text.contains("ptrace would refuse uid 65534")
            && text.contains("prctl(PR_SET_DUMPABLE, 1)");
        if !good {
            eprintln!("JOIN: {} {text}", reply.status);
        }
        // Its own slots are another matter: it has called no exec since it was
        // forked, so it is certain who asks.
        let (reply, _) = account.client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
        if reply.status != 0 {
            eprintln!("SLOTS: {} {}", reply.status, reply.text());
            good = false;
        }
        // SAFETY: ends this process without the parent's handlers.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert_eq!(reap(child), 0);
}

fn nobody_leaves_a_privileged_watch_by_joining_another(world: &World) {
    let account = Account::open(&world.socket, DEBOX_REQ_BOUNDARY);
    let socket = world.socket.to_str().unwrap().to_owned();
    let mut command = world.nobody(&["--intruder", &socket]);
    let fd = account.client.0.as_raw_fd();
    // SAFETY: system calls, and a packet on the stack. The ids are still root's.
    unsafe {
        command.pre_exec(move || {
            let client = std::mem::ManuallyDrop::new(Client(OwnedFd::from_raw_fd(fd)));
            client.send(debox_request::new(DEBOX_MSG_JOIN, 0).as_bytes())?;
            assert_eq!(client.reply().0.status, 0);
            Ok(())
        });
    }
    let seen = Seen::of(&mut command);
    assert_eq!(seen.number("status"), libc::EBUSY as u64, "{seen:?}");
    assert_eq!(seen.number("marks"), 0, "{seen:?}");
    assert_eq!(account.calls(MARK), MARKS, "root sees them all");
    assert_eq!(account.head().left_taken, 0);
}

fn an_account_of_the_same_user_takes_over_and_that_is_counted(world: &World) {
    // `watch` starts the intruder in place of a victim.
    let socket = world.socket.to_str().unwrap();
    let link = world.dir.path().join("intrude");
    std::fs::write(
        &link,
        format!(
            "#!/bin/sh\nexec {} --intruder {socket}\n",
            world.program(PLAIN)
        ),
    )
    .unwrap();
    std::fs::set_permissions(&link, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = world.nobody(&["--watch", socket, "waiting", link.to_str().unwrap(), "x"]);
    let output = command.stdout(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let seen: Vec<Seen> = text.lines().map(|line| Seen(line.to_owned())).collect();
    let [inner, outer] = &seen[..] else {
        panic!("{text}")
    };
    assert_eq!(inner.number("status"), 0, "{text}");
    assert_eq!(inner.number("marks"), MARKS, "{text}");
    assert_eq!(outer.number("marks"), 0, "{text}");
    assert_eq!(outer.left(), [0, 0, 0, 0, 1], "{text}");
}
