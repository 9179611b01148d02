// SPDX-License-Identifier: MIT OR Apache-2.0
//! What happens between processes: who is believed, who is kept apart, and what
//! remains when one of them is killed?
//!
//! This binary is its own helper: started with `--helper WHAT` it plays a
//! client or a broker. It has no test harness, because a harness would run
//! tests in threads, and because helpers must not be tests.

#[path = "common/mod.rs"]
mod common;

use common::*;
use debox_abi::*;
use debox_broker::{BrokerError, Config, Limits, SenderProof, Shares};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const NOBODY: u32 = 65534;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).map(String::as_str) == Some("--helper") {
        return helper(&args[2], &args[3..]);
    }
    // Not in a thread: one test changes its user id, and /proc shows the first
    // thread's.
    let failed = std::panic::catch_unwind(|| tests(&args)).is_err();
    drop(HELPER.lock().map(|mut helper| helper.take()));
    if failed {
        std::process::exit(1);
    }
}

fn tests(args: &[String]) {
    let tests: &[(&str, bool, fn())] = &[
        (
            "each_process_gets_its_own",
            false,
            each_process_gets_its_own,
        ),
        (
            "the_heir_of_a_socket_is_itself",
            false,
            the_heir_of_a_socket_is_itself,
        ),
        (
            "slots_of_a_dead_process_go_back",
            false,
            slots_of_a_dead_process_go_back,
        ),
        (
            "a_killed_client_gives_everything_back",
            false,
            a_killed_client_gives_everything_back,
        ),
        (
            "a_sender_that_is_gone_gets_nothing",
            false,
            a_sender_that_is_gone_gets_nothing,
        ),
        (
            "a_killed_broker_is_seen_to_be_dead",
            false,
            a_killed_broker_is_seen_to_be_dead,
        ),
        (
            "a_broker_without_descriptors_lives_on",
            false,
            a_broker_without_descriptors_lives_on,
        ),
        ("others_may_not_watch", true, others_may_not_watch),
        (
            "root_of_a_user_namespace_may_not_watch",
            true,
            root_of_a_user_namespace_may_not_watch,
        ),
        (
            "credentials_cannot_be_forged",
            true,
            credentials_cannot_be_forged,
        ),
        (
            "an_account_stays_its_users_in_roots_hands",
            true,
            an_account_stays_its_users_in_roots_hands,
        ),
        (
            "what_a_privileged_program_is_told_to_write_is_refused",
            true,
            what_a_privileged_program_is_told_to_write_is_refused,
        ),
        (
            "a_process_of_an_entered_namespace_cannot_be_claimed",
            true,
            a_process_of_an_entered_namespace_cannot_be_claimed,
        ),
        (
            "root_without_capabilities_may_not_watch",
            true,
            root_without_capabilities_may_not_watch,
        ),
        (
            "a_worker_that_dropped_privileges_gets_slots",
            true,
            a_worker_that_dropped_privileges_gets_slots,
        ),
        (
            "one_user_cannot_take_it_all",
            true,
            one_user_cannot_take_it_all,
        ),
        (
            "a_flood_of_questions_starves_nobody",
            true,
            a_flood_of_questions_starves_nobody,
        ),
        (
            "six_users_cannot_lock_others_out",
            true,
            six_users_cannot_lock_others_out,
        ),
        (
            "subordinate_ids_count_for_their_owner",
            true,
            subordinate_ids_count_for_their_owner,
        ),
        (
            "a_private_broker_serves_its_own",
            true,
            a_private_broker_serves_its_own,
        ),
        (
            "a_watched_worker_reaches_the_private_broker",
            true,
            a_watched_worker_reaches_the_private_broker,
        ),
        (
            "rings_are_for_the_privileged_on_kernels_that_need_it",
            true,
            rings_are_for_the_privileged_on_kernels_that_need_it,
        ),
        (
            "memory_counts_until_it_is_let_go",
            true,
            memory_counts_until_it_is_let_go,
        ),
        (
            "deboxd_starts_serves_and_stops",
            true,
            deboxd_starts_serves_and_stops,
        ),
        (
            "deboxd_takes_systemds_socket",
            true,
            deboxd_takes_systemds_socket,
        ),
        (
            "deboxd_tells_the_watchdog_that_its_loop_goes_on",
            true,
            deboxd_tells_the_watchdog_that_its_loop_goes_on,
        ),
        (
            "deboxd_without_privileges_says_what_to_do",
            true,
            deboxd_without_privileges_says_what_to_do,
        ),
    ];
    let filter = args.iter().skip(1).find(|arg| !arg.starts_with('-'));
    let mut left_out = 0;
    for (name, needs_root, test) in tests {
        if filter.is_some_and(|filter| !name.contains(filter.as_str())) {
            continue;
        }
        print!("test {name} ... ");
        std::io::stdout().flush().unwrap();
        if *needs_root && !common::needs::root() {
            left_out += 1;
            continue;
        }
        let began = std::time::Instant::now();
        test();
        println!("ok <{:.3}s>", began.elapsed().as_secs_f64());
    }
    println!("{} tests, {left_out} left out", tests.len());
}

// ------------------------------------------------------------------ helpers

/// A helper in a process of its own, spoken to in lines.
struct Helper {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

static HELPER: std::sync::Mutex<Option<tempfile::TempDir>> = std::sync::Mutex::new(None);

/// The helper binary where every user can run it: the target directory may be
/// below somebody's home.
fn binary() -> std::path::PathBuf {
    let mut helper = HELPER.lock().unwrap();
    let dir = helper.get_or_insert_with(|| {
        let dir = tempfile::tempdir().unwrap();
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), all).unwrap();
        std::fs::copy(std::env::current_exe().unwrap(), dir.path().join("helper")).unwrap();
        dir
    });
    dir.path().join("helper")
}

fn command(what: &str, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .arg("--helper")
        .arg(what)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

impl Helper {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn client(broker: &Running, args: &[&str]) -> Self {
        let path = broker.path.to_str().unwrap();
        Self::start(command("client", &[&[path], args].concat()))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// One request, "kind flags pid"; the answer is "status threads marks text".
    fn ask(&mut self, kind: u32, flags: u32, pid: i32) -> (i32, Vec<u64>, String) {
        self.tell(&format!("{kind} {flags} {pid}"));
        let line = self.line();
        let mut words = line.splitn(3, ' ');
        let status = words
            .next()
            .unwrap()
            .parse()
            .unwrap_or_else(|_| panic!("answer {line:?}"));
        let marks = words
            .next()
            .unwrap()
            .split(',')
            .filter(|mark| !mark.is_empty())
            .map(|mark| mark.parse().unwrap())
            .collect();
        (status, marks, words.next().unwrap_or("").to_owned())
    }

    /// With the number of descriptors in place of what is in them.
    fn ask_status(&mut self, kind: u32) -> (i32, u64, String) {
        let (status, count, text) = self.ask(kind, 0, 0);
        (status, count[0], text)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn helper(what: &str, args: &[String]) {
    match what {
        // Asks what its standard input says, over a new connection or, given
        // "-" for a path, over an inherited one at descriptor 3.
        "client" => {
            if args
                .get(1)
                .is_some_and(|what| what.starts_with("when-told"))
            {
                std::io::stdin().read_line(&mut String::new()).unwrap();
            }
            if args.get(1).is_some_and(|what| what == "when-told-drop") {
                // As a server's worker does.
                // SAFETY: this program has no other threads.
                match unsafe { libc::fork() } {
                    0 => drop_to_nobody(),
                    // SAFETY: our own child.
                    worker => unsafe {
                        libc::waitpid(worker, std::ptr::null_mut(), 0);
                        return;
                    },
                }
            }
            let client = if args[0] == "-" {
                // SAFETY: descriptor 3 was left open for us, nothing owns it.
                Client(unsafe { OwnedFd::from_raw_fd(3) })
            } else {
                Client::connect(Path::new(&args[0]))
            };
            match args.get(1).map(String::as_str) {
                // SAFETY: the child sleeps, then is gone; nothing of ours runs in it.
                Some("and-fork") => unsafe {
                    if libc::fork() == 0 {
                        for fd in 0..3 {
                            libc::close(fd);
                        }
                        libc::sleep(20);
                        libc::_exit(0);
                    }
                },
                Some("and-drop") => drop_to_nobody(),
                _ => {}
            }
            for line in std::io::stdin().lines() {
                let line = line.unwrap();
                let numbers: Vec<i64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
                let mut request = debox_request::new(numbers[0] as u32, numbers[1] as u32);
                request.pid = numbers[2] as i32;
                let (reply, fds) = client.ask(&request);
                // The real maps bear no marks.
                if args.get(1).is_some_and(|what| what == "when-told-drop") {
                    println!("{} {} {}", reply.status, fds.len(), reply.text());
                    continue;
                }
                // The last descriptor is the shared memory.
                let marks: Vec<String> = fds
                    .iter()
                    .take(fds.len().saturating_sub(1))
                    .map(|fd| mark_of(fd).to_string())
                    .collect();
                println!("{} {} {}", reply.status, marks.join(","), reply.text());
            }
        }
        // Asks for slots over and over, keeps the mappings and closes all else;
        // so does its child.
        "keeper" => {
            let mut kept = 0;
            let mut refused = false;
            while !refused && kept < 2000 {
                let client = Client::connect(Path::new(&args[0]));
                let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
                refused = reply.status != 0;
                if let Some(record) = fds.first() {
                    // SAFETY: a new mapping, which stays.
                    unsafe {
                        rustix::mm::mmap(
                            std::ptr::null_mut(),
                            4096,
                            rustix::mm::ProtFlags::READ,
                            rustix::mm::MapFlags::SHARED,
                            record,
                            0,
                        )
                    }
                    .unwrap();
                    kept += 1;
                }
            }
            // SAFETY: this process has one thread.
            let child = unsafe { libc::fork() };
            if child != 0 {
                println!("{kept}");
            }
            let _ = std::io::stdin().read(&mut [0]);
        }
        // Says with which words it is turned away.
        "refused" => {
            let client = Client::connect(Path::new(&args[0]));
            let (reply, _) = client.reply();
            println!("{} {}", reply.status, reply.text());
        }
        // Sends SLOTS and is gone before anybody can answer.
        "hit-and-run" => {
            let client = if args[0] == "-" {
                // SAFETY: as above.
                Client(unsafe { OwnedFd::from_raw_fd(3) })
            } else {
                Client::connect(Path::new(&args[0]))
            };
            client
                .send(debox_request::new(DEBOX_MSG_SLOTS, 0).as_bytes())
                .unwrap();
        }
        // A program that writes to its standard output what it is told to.
        "echo" => {
            let bytes: Vec<u8> = args.iter().map(|byte| byte.parse().unwrap()).collect();
            // As a daemon would: all of root, not the effective id only.
            // SAFETY: no memory involved; fails where it is not set-user-id.
            unsafe { libc::setresuid(0, 0, 0) };
            // In one piece: std's standard output cuts at a byte that is a newline.
            let written = rustix::io::write(std::io::stdout(), &bytes).unwrap();
            assert_eq!(written, bytes.len());
            let _ = std::io::stdin().read(&mut [0]);
        }
        // Connects, opens an account if told to, and lets a program write
        // bytes to that socket.
        "deputy" => {
            let client = Client::connect(Path::new(&args[1]));
            if args[2] == "1" {
                assert_eq!(
                    client
                        .ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0))
                        .0
                        .status,
                    0
                );
            }
            let mut program = Command::new(&args[3]);
            program.args(["--helper", "echo"]).args(&args[4..]);
            program.stdout(Stdio::from(client.0.try_clone().unwrap()));
            // It ends when we do; killing it may not be ours, nor can it be waited
            // for while we hold its input open.
            #[allow(clippy::zombie_processes)]
            let _child = program.stdin(Stdio::piped()).spawn().unwrap();
            let (reply, fds) = client.reply();
            println!("{} {} {}", reply.status, fds.len(), reply.text());
            let _ = std::io::stdin().read(&mut [0]);
        }
        // Makes a user and a PID namespace, in which its child claims to be
        // the process with the number that is told.
        "namespace" => claim(Path::new(&args[0])),
        // Claims to be another process or user.
        "forger" => {
            let client = Client::connect(Path::new(&args[0]));
            let (pid, uid) = (args[1].parse().unwrap(), args[2].parse().unwrap());
            match send_forged(&client, DEBOX_MSG_SLOTS, pid, uid) {
                Ok(()) => println!("sent"),
                Err(error) => println!("{}", error.raw_os_error().unwrap()),
            }
        }
        // Opens connections and segments until it is refused, then stays.
        "glutton" => {
            let mut held = Vec::new();
            let refused = loop {
                let client = Client::connect(Path::new(&args[0]));
                let kind = args
                    .get(1)
                    .map_or(DEBOX_MSG_SLOTS, |kind| kind.parse().unwrap());
                if client.send(debox_request::new(kind, 0).as_bytes()).is_err() {
                    break client.reply().0;
                }
                let (reply, _) = client.reply();
                if reply.status != 0 {
                    break reply;
                }
                held.push(client);
            };
            println!("{} {} {}", held.len(), refused.status, refused.text());
            let _ = std::io::stdin().read(&mut [0]);
        }
        // As many accounts as it is given, and over each one question after the other.
        "flood" => {
            let path = Path::new(&args[0]);
            let accounts: Vec<Client> = std::iter::from_fn(|| {
                let client = Client::connect(path);
                let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
                (reply.status == 0).then_some(client)
            })
            .collect();
            println!("{}", accounts.len());
            std::thread::scope(|scope| {
                for client in &accounts {
                    scope.spawn(|| {
                        let away = debox_request::new(DEBOX_MSG_AWAY, 0);
                        loop {
                            assert_eq!(client.ask(&away).0.status, 0);
                        }
                    });
                }
            });
        }
        // A broker over the fake kernel side, until killed.
        "broker" => {
            let broker = Running::with(
                Config {
                    limits: Limits {
                        total: Shares {
                            connections: 100_000,
                            segments: 100_000,
                            accounts: 100_000,
                            in_flight: 100_000,
                        },
                        segments_per_process: 100_000,
                        ..Limits::default()
                    },
                    ..Config::default()
                },
                FakeKernel::new(),
            );
            // After the start: the broker fits its own limit to what it finds.
            if let Some(limit) = args.first() {
                let limit = limit.parse().unwrap();
                let limit = rustix::process::Rlimit {
                    current: Some(limit),
                    maximum: Some(limit),
                };
                rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
            }
            println!("{}", broker.path.display());
            let _ = std::io::stdin().read(&mut [0]);
            drop(broker);
        }
        other => panic!("no helper {other:?}"),
    }
}

fn drop_to_nobody() {
    // SAFETY: no memory involved.
    unsafe {
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
    }
}

/// Lets the child have `fd` as its descriptor 3.
fn inherit(command: &mut Command, fd: &OwnedFd) {
    let fd = fd.as_raw_fd();
    // SAFETY: dup2 is async-signal-safe; fd is open in the child, a copy of ours.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(fd, 3) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            if fd == 3 {
                libc::fcntl(3, libc::F_SETFD, 0);
            }
            Ok(())
        });
    }
}

/// The part of an attacker who is root of a namespace of his own.
fn claim(path: &Path) {
    let me = rustix::process::getuid().as_raw();
    // SAFETY: no memory involved.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) } != 0 {
        println!("refused {}", std::io::Error::last_os_error());
        return;
    }
    std::fs::write("/proc/self/setgroups", "deny").unwrap();
    std::fs::write("/proc/self/uid_map", format!("0 {me} 1")).unwrap();
    std::fs::write("/proc/self/gid_map", format!("0 {me} 1")).unwrap();
    // SAFETY: this process has one thread; the child goes on as a process of
    // its own and its parent only waits.
    let child = unsafe { libc::fork() };
    if child > 0 {
        println!("ready {child}");
        // SAFETY: reaps the child.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        return;
    }
    let client = Client::connect(path);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ').map(|word| word.parse::<u32>().unwrap());
        let (kind, pid) = (words.next().unwrap(), words.next().unwrap());
        if let Err(error) = send_forged(&client, kind, pid as i32, 0) {
            println!("cannot claim: {error}");
            continue;
        }
        let (reply, fds) = client.reply();
        println!("{} {} {}", reply.status, fds.len(), reply.text());
    }
}

fn send_forged(client: &Client, kind: u32, pid: i32, uid: u32) -> std::io::Result<()> {
    let request = debox_request::new(kind, 0);
    let mut iov = libc::iovec {
        iov_base: request.as_bytes().as_ptr().cast_mut().cast(),
        iov_len: 64,
    };
    let mut control = [0u64; 8];
    // SAFETY: header points to live buffers; the control buffer has room for
    // one ucred and is aligned for cmsghdr.
    let sent = unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut iov;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        let size = size_of::<libc::ucred>() as u32;
        header.msg_controllen = libc::CMSG_SPACE(size) as _;
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_CREDENTIALS;
        (*message).cmsg_len = libc::CMSG_LEN(size) as _;
        let ucred = libc::ucred { pid, uid, gid: uid };
        libc::CMSG_DATA(message)
            .cast::<libc::ucred>()
            .write_unaligned(ucred);
        libc::sendmsg(client.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
    };
    if sent < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn owner(mark: u64) -> u32 {
    (mark >> 32) as u32
}

// -------------------------------------------------------------------- tests

fn proofs() -> [Config; 2] {
    [SenderProof::MessagePidfd, SenderProof::StartTime].map(|proof| Config {
        sender_proof: Some(proof),
        ..Config::default()
    })
}

fn each_process_gets_its_own() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        let mut helpers: Vec<Helper> = (0..4).map(|_| Helper::client(&broker, &[])).collect();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..3 {
            for helper in &mut helpers {
                let pid = helper.pid();
                let (status, marks, text) = helper.ask(DEBOX_MSG_SLOTS, 0, 0);
                assert_eq!(status, 0, "{text}");
                assert_eq!(marks.len(), 2);
                assert_eq!(marks[0], marks[1], "both maps of one segment");
                assert_eq!(owner(marks[0]), pid, "a process gets only its own");
                assert!(seen.insert(marks[0]), "nobody gets a segment twice");
            }
        }
        assert_eq!(broker.kernel.held(), (12, 0));
        drop(helpers);
        broker.kernel.wait_held((0, 0));
    }
}

fn the_heir_of_a_socket_is_itself() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        let client = broker.client();
        assert_eq!(
            client
                .ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0))
                .0
                .status,
            0
        );
        let mut command = command("client", &["-"]);
        inherit(&mut command, &client.0);
        let mut heir = Helper::start(command);
        let (status, _, text) = heir.ask(DEBOX_MSG_JOIN, 0, 0);
        assert_eq!(status, 0, "{text}");
        let pid = heir.pid();
        {
            let state = broker.kernel.state();
            let account = state.accounts.values().next().unwrap();
            assert_eq!(
                account.joins,
                [(pid, true)],
                "the child joined, not its parent"
            );
        }
        // For anything else it has to connect by itself.
        for kind in [DEBOX_MSG_SLOTS, DEBOX_MSG_ACCOUNT, DEBOX_MSG_WATCH] {
            let (status, marks, text) = heir.ask(kind, 0, i32::from(kind == DEBOX_MSG_WATCH));
            assert_eq!((status, marks.len()), (-libc::EPERM, 0), "{text}");
            assert!(text.contains("of your own"), "{text}");
        }
        // The parent still is itself on the same socket.
        assert_eq!(
            client.ask(&debox_request::new(DEBOX_MSG_JOIN, 0)).0.status,
            0
        );
        let state = broker.kernel.state();
        let account = state.accounts.values().next().unwrap();
        assert_eq!(account.joins.last(), Some(&(std::process::id(), true)));
    }
}

fn slots_of_a_dead_process_go_back() {
    let broker = Running::new();
    let client = broker.client();
    assert_eq!(
        client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0)).0.status,
        0
    );
    // Connects, asks twice, and leaves the socket to a child.
    let mut parent = Helper::client(&broker, &["and-fork"]);
    assert_eq!(parent.ask(DEBOX_MSG_SLOTS, 0, 0).0, 0);
    assert_eq!(parent.ask(DEBOX_MSG_SLOTS, 0, 0).0, 0);
    assert_eq!(broker.kernel.held(), (3, 0));
    parent.kill();
    // The socket lives on in its child.
    broker.kernel.wait_held((1, 0));
    assert_eq!(
        client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0)).0.status,
        0
    );
    assert!(
        broker
            .kernel
            .state()
            .segments
            .values()
            .all(|s| s.tgid == std::process::id())
    );
}

fn a_killed_client_gives_everything_back() {
    let broker = Running::new();
    let mut client = Helper::client(&broker, &[]);
    assert_eq!(client.ask(DEBOX_MSG_SLOTS, 0, 0).0, 0);
    assert_eq!(client.ask(DEBOX_MSG_ACCOUNT, 0, 0).0, 0);
    assert_eq!(client.ask(DEBOX_MSG_JOIN, 0, 0).0, 0);
    assert_eq!(broker.kernel.held(), (1, 1));
    client.kill();
    broker.kernel.wait_held((0, 0));
}

fn a_sender_that_is_gone_gets_nothing() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        for _ in 0..20 {
            let mut child = command("hit-and-run", &[broker.path.to_str().unwrap()])
                .spawn()
                .unwrap();
            child.wait().unwrap();
            // Either the broker was quick enough, and then the segment went
            // back at its death, or it was not.
            broker.serves_well();
            broker.kernel.wait_held((0, 0));
        }
        // Over a socket that lives on, so that the answer can be seen.
        let client = broker.client();
        let mut command = command("hit-and-run", &["-"]);
        inherit(&mut command, &client.0);
        command.spawn().unwrap().wait().unwrap();
        let (reply, fds) = client.reply();
        assert!(
            [-libc::ESRCH, -libc::EPERM].contains(&reply.status),
            "{}",
            reply.text()
        );
        assert!(fds.is_empty());
        assert_eq!(broker.kernel.held(), (0, 0));
    }
}

fn a_killed_broker_is_seen_to_be_dead() {
    let mut broker = Helper::start(command("broker", &[]));
    let path = broker.line();
    let client = Client::connect(Path::new(&path));
    let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    assert_eq!(reply.status, 0, "{}", reply.text());
    // SAFETY: a new mapping of the first page; only ever read.
    let page = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            4096,
            rustix::mm::ProtFlags::READ,
            rustix::mm::MapFlags::SHARED,
            &fds[2],
            0,
        )
    }
    .unwrap();
    // SAFETY: inside the page, aligned; volatile since others write it.
    let (shared, word) = unsafe {
        let shared = page.cast::<debox_shared>().read_volatile();
        let word = page.byte_add(shared.alive_offset as usize).cast::<u32>();
        (shared, move || word.read_volatile())
    };
    assert_eq!(shared.broker_pid, broker.pid());
    let tid = word() & 0x3fff_ffff;
    assert!(Path::new(&format!("/proc/{}/task/{tid}", broker.pid())).exists());
    assert_eq!(word() & 0x4000_0000, 0, "alive");
    broker.kill();
    assert_eq!(word() & 0x4000_0000, 0x4000_0000, "FUTEX_OWNER_DIED");
    assert!(client.closed());
    let leftover = Path::new(&path).parent().unwrap().to_owned();
    std::fs::remove_dir_all(leftover).unwrap();
}

fn a_broker_without_descriptors_lives_on() {
    // Room for some hundred connections only, by EMFILE and not by a limit.
    let mut broker = Helper::start(command("broker", &["96"]));
    let path = broker.line();
    let path = Path::new(&path);
    let mut clients = Vec::new();
    for _ in 0..400 {
        clients.push(Client::connect(path));
    }
    // Those at the front are served, as far as descriptors reach.
    let status = debox_request::new(DEBOX_MSG_STATUS, 0);
    assert_eq!(clients[0].ask(&status).0.status, 0);
    // With their end, those in the queue come in.
    let last = clients.pop().unwrap();
    drop(clients);
    assert_eq!(last.ask(&status).0.status, 0);
    let (reply, fds) = last.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
    let directory = path.parent().unwrap().to_owned();
    broker.kill();
    std::fs::remove_dir_all(directory).unwrap();
}

fn as_nobody(broker: &Running) -> Helper {
    let mut command = command("client", &[broker.path.to_str().unwrap()]);
    command.uid(NOBODY).gid(NOBODY);
    Helper::start(command)
}

fn others_may_not_watch() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        let mut target = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = target.id() as i32;
        let mut nobody = as_nobody(&broker);
        let (status, marks, text) = nobody.ask(DEBOX_MSG_SLOTS, 0, 0);
        assert_eq!(status, 0, "its own slots it gets: {text}");
        assert_eq!(owner(marks[0]), nobody.pid());
        assert!(
            broker
                .kernel
                .state()
                .segments
                .values()
                .all(|s| s.uid == NOBODY)
        );
        assert_eq!(nobody.ask(DEBOX_MSG_ACCOUNT, 0, 0).0, 0);
        let (status, _, text) = nobody.ask(DEBOX_MSG_WATCH, 0, pid);
        assert_eq!(status, -libc::EPERM);
        assert!(
            text.contains("CAP_PERFMON") && text.contains("uid 65534"),
            "{text}"
        );
        let own = nobody.pid() as i32;
        assert_eq!(
            nobody.ask(DEBOX_MSG_WATCH, 0, own).0,
            -libc::EPERM,
            "JOIN is for that"
        );
        let (status, _, text) = nobody.ask(DEBOX_MSG_COSTS, DEBOX_REQ_RUN_TIME, 0);
        assert_eq!(status, -libc::EPERM, "others' use is in it");
        assert!(text.contains("CAP_PERFMON"), "{text}");
        assert_eq!(nobody.ask(DEBOX_MSG_JOIN, 0, 0).0, 0);
        let state = broker.kernel.state();
        assert!(
            state
                .accounts
                .values()
                .all(|a| a.joins == [(nobody.pid(), true)])
        );
        drop(state);
        target.kill().unwrap();
        target.wait().unwrap();
    }
}

fn root_of_a_user_namespace_may_not_watch() {
    let broker = Running::new();
    let mut target = Command::new("sleep").arg("100").spawn().unwrap();
    let mut command = command("client", &[broker.path.to_str().unwrap()]);
    command.uid(NOBODY).gid(NOBODY);
    // SAFETY: unshare is async-signal-safe. After it the child has all
    // capabilities, in a namespace of its own.
    unsafe {
        command.pre_exec(|| {
            if libc::unshare(libc::CLONE_NEWUSER) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // The exec would take the capabilities away again, since nobody is
            // mapped to root: keep them as ambient ones.
            let mut sets = rustix::thread::capabilities(None)?;
            sets.inheritable = sets.permitted;
            rustix::thread::set_capabilities(None, sets)?;
            for capability in [
                rustix::thread::CapabilitySet::PERFMON,
                rustix::thread::CapabilitySet::SYS_ADMIN,
            ] {
                rustix::thread::configure_capability_in_ambient_set(capability, true)?;
            }
            Ok(())
        });
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            print!("(user namespaces are refused here: {error}; NOT RUN) ");
            target.kill().unwrap();
            target.wait().unwrap();
            return;
        }
    };
    let mut child = child;
    let lines = BufReader::new(child.stdout.take().unwrap());
    let mut inside = Helper { child, lines };
    let status = std::fs::read_to_string(format!("/proc/{}/status", inside.pid())).unwrap();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:\t"))
        .unwrap();
    let effective = u64::from_str_radix(effective, 16).unwrap();
    assert_ne!(
        effective & (1 << 38),
        0,
        "it does look privileged: {effective:x}"
    );
    assert_eq!(inside.ask(DEBOX_MSG_ACCOUNT, 0, 0).0, 0);
    let (status, _, text) = inside.ask(DEBOX_MSG_WATCH, 0, target.id() as i32);
    assert_eq!(status, -libc::EPERM);
    assert!(text.contains("user namespace"), "{text}");
    let (status, _, text) = inside.ask(DEBOX_MSG_COSTS, 0, 0);
    assert_eq!(status, -libc::EPERM, "{text}");
    target.kill().unwrap();
    target.wait().unwrap();
}

fn credentials_cannot_be_forged() {
    let broker = Running::new();
    let path = broker.path.to_str().unwrap();
    let me = std::process::id().to_string();
    for (pid, uid) in [(me.as_str(), "65534"), (me.as_str(), "0")] {
        let mut command = command("forger", &[path, pid, uid]);
        command.uid(NOBODY).gid(NOBODY);
        let mut forger = Helper::start(command);
        assert_eq!(
            forger.line(),
            libc::EPERM.to_string(),
            "the kernel refuses it"
        );
    }
    assert_eq!(broker.kernel.state().created, 0);
}

fn an_account_stays_its_users_in_roots_hands() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        // A connection and account of nobody's, then in root's hands: as a
        // set-user-id program would inherit them.
        let client = broker.client();
        let status = debox_request::new(DEBOX_MSG_STATUS, 0);
        assert_eq!(client.ask(&status).0.status, 0, "it is taken as root's");
        // SAFETY: a raw setresuid changes this thread only, and is undone below.
        let become_user = |uid: u32| unsafe {
            // While it is allowed: before, or after.
            if uid != 0 {
                assert_eq!(libc::syscall(libc::SYS_setresgid, uid, uid, uid), 0);
            }
            assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, 0), 0);
            if uid == 0 {
                assert_eq!(libc::syscall(libc::SYS_setresgid, 0, 0, 0), 0);
            }
        };
        become_user(NOBODY);
        let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
        become_user(0);
        assert_eq!(reply.status, 0, "{}", reply.text());
        // The account was opened by a process whose saved uid is root's, so
        // what counts is that the message said nobody.
        // So is what the kernel side goes by when somebody joins it (tests/trust.rs).
        let watcher = broker
            .kernel
            .state()
            .accounts
            .values()
            .next()
            .unwrap()
            .watcher;
        assert_eq!((watcher.uid, watcher.gid), (NOBODY, NOBODY));
        assert!(!watcher.privileged && !watcher.sys_ptrace);
        assert_eq!(watcher.cap_permitted, 0);
        let mut target = Command::new("sleep").arg("100").spawn().unwrap();
        let (reply, _) = client.ask(&debox_request::watch(target.id() as i32, 0));
        assert_eq!(reply.status, -libc::EPERM, "{}", reply.text());
        assert!(reply.text().contains("of your own"), "{}", reply.text());
        target.kill().unwrap();
        target.wait().unwrap();
    }
}

/// A set-user-id program of root's, for everybody; None where the file system
/// does not allow them.
fn set_user_id_copy(dir: &Path) -> Option<std::path::PathBuf> {
    let path = dir.join("set-user-id");
    std::fs::copy(binary(), &path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&path, mode).unwrap();
    let nosuid = rustix::fs::statvfs(&path)
        .unwrap()
        .f_flag
        .contains(rustix::fs::StatVfsMountFlags::NOSUID);
    (!nosuid).then_some(path)
}

/// CVE-2014-0181's shape: an ordinary user connects, and a set-user-id program
/// of root's writes what he wants to its standard output, which is the socket.
fn what_a_privileged_program_is_told_to_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), all).unwrap();
    let Some(program) = set_user_id_copy(dir.path()) else {
        print!(
            "(set-user-id programs are refused in {}; NOT RUN) ",
            dir.path().display()
        );
        return;
    };
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        let me = std::process::id() as i32;
        for (kind, pid) in [
            (DEBOX_MSG_SLOTS, 0),
            (DEBOX_MSG_ACCOUNT, 0),
            (DEBOX_MSG_JOIN, 0),
            (DEBOX_MSG_WATCH, me),
            (DEBOX_MSG_TRACE, 0),
        ] {
            // His own connection and, but for ACCOUNT, his own account.
            let mut request = debox_request::new(kind, 0);
            request.pid = pid;
            let bytes: Vec<u8> = if kind == DEBOX_MSG_TRACE {
                let mut trace = debox_trace_request::zeroed();
                trace.head = debox_request::new(kind, 0);
                trace.head.size = size_of::<debox_trace_request>() as u32;
                trace.as_bytes().to_vec()
            } else {
                request.as_bytes().to_vec()
            };
            let mut words: Vec<String> = vec!["connect".into(), broker.path.display().to_string()];
            words.push(i32::from(kind != DEBOX_MSG_ACCOUNT).to_string());
            words.push(program.display().to_string());
            words.extend(bytes.iter().map(u8::to_string));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut command = command("deputy", &words);
            command.uid(NOBODY).gid(NOBODY);
            let mut user = Helper::start(command);
            let line = user.line();
            assert!(
                line.starts_with(&format!("-{} 0 ", libc::EPERM)),
                "request type {kind}: {line}"
            );
            let (segments, accounts) = broker.kernel.held();
            assert_eq!(segments, 0, "request type {kind}");
            assert_eq!(accounts, usize::from(kind != DEBOX_MSG_ACCOUNT));
            assert!(
                broker
                    .kernel
                    .state()
                    .accounts
                    .values()
                    .all(|account| account.joins.is_empty()),
                "request type {kind}"
            );
            drop(user);
            broker.kernel.wait_held((0, 0));
        }
    }
}

/// Who is root of a user and PID namespace of his own can name any process in
/// it, one that root of the machine has put there, too.
fn a_process_of_an_entered_namespace_cannot_be_claimed() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        let mut command = command("namespace", &[broker.path.to_str().unwrap()]);
        command.uid(NOBODY).gid(NOBODY);
        let mut attacker = Helper::start(command);
        let line = attacker.line();
        let Some(inside) = line.strip_prefix("ready ") else {
            print!("(user namespaces are refused here: {line}; NOT RUN) ");
            return;
        };
        // Root enters the PID namespace, as nsenter --pid does, and stays root.
        let namespace = std::fs::File::open(format!("/proc/{inside}/ns/pid")).unwrap();
        let mut command = Command::new("sleep");
        command.arg("100");
        let raw = namespace.as_raw_fd();
        // SAFETY: system calls only. After setns the next child is inside: the
        // one that goes on to sleep, while the one in between waits for it.
        unsafe {
            command.pre_exec(move || {
                if libc::setns(raw, libc::CLONE_NEWPID) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                match libc::fork() {
                    0 => Ok(()),
                    child if child > 0 => {
                        // Not the pipe by which the exec is told to have failed.
                        for fd in 3..256 {
                            libc::close(fd);
                        }
                        libc::waitpid(child, std::ptr::null_mut(), 0);
                        libc::_exit(0)
                    }
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let mut entered = command.spawn().unwrap();
        let children = format!("/proc/{0}/task/{0}/children", entered.id());
        let mut roots = 0u32;
        wait_for("root's process in the namespace", || {
            roots = std::fs::read_to_string(&children)
                .unwrap_or_default()
                .trim()
                .parse()
                .unwrap_or(0);
            roots != 0
        });
        let status = std::fs::read_to_string(format!("/proc/{roots}/status")).unwrap();
        let there = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .and_then(|line| line.split_ascii_whitespace().last())
            .unwrap();
        for kind in [DEBOX_MSG_SLOTS, DEBOX_MSG_ACCOUNT, DEBOX_MSG_JOIN] {
            attacker.tell(&format!("{kind} {there}"));
            let line = attacker.line();
            assert!(
                line.starts_with(&format!("-{} 0 ", libc::EPERM)),
                "request type {kind}: {line}"
            );
        }
        assert_eq!(broker.kernel.state().created, 0);
        // As himself he is served.
        attacker.tell(&format!("{DEBOX_MSG_SLOTS} 1"));
        let line = attacker.line();
        assert!(line.starts_with("0 3 "), "{line}");
        let pid = rustix::process::Pid::from_raw(roots as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        entered.wait().unwrap();
        drop(attacker);
        let inside = rustix::process::Pid::from_raw(inside.parse().unwrap()).unwrap();
        let _ = rustix::process::kill_process(inside, rustix::process::Signal::KILL);
        broker.kernel.wait_held((0, 0));
    }
}

fn root_without_capabilities_may_not_watch() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        let mut command = command("client", &[broker.path.to_str().unwrap()]);
        // SAFETY: system calls only. Root stays uid 0, but the exec gives it
        // nothing that is not in the bounding set.
        unsafe {
            command.pre_exec(|| {
                for capability in 0..64 {
                    libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
                }
                Ok(())
            });
        }
        let mut root = Helper::start(command);
        assert_eq!(root.ask(DEBOX_MSG_ACCOUNT, 0, 0).0, 0);
        let me = std::process::id() as i32;
        let (status, _, text) = root.ask(DEBOX_MSG_WATCH, 0, me);
        assert_eq!(status, -libc::EPERM, "{text}");
        assert!(
            text.contains("uid 0 without them") && text.contains("CAP_PERFMON"),
            "{text}"
        );
        // What is for everybody it has.
        assert_eq!(root.ask(DEBOX_MSG_JOIN, 0, 0).0, 0);
        assert_eq!(root.ask(DEBOX_MSG_SLOTS, 0, 0).0, 0);
    }
}

fn a_worker_that_dropped_privileges_gets_slots() {
    for config in proofs() {
        let broker = Running::with(config, FakeKernel::new());
        let mut worker = Helper::client(&broker, &["and-drop"]);
        let (status, _, text) = worker.ask(DEBOX_MSG_SLOTS, 0, 0);
        assert_eq!(status, 0, "{text}");
        let state = broker.kernel.state();
        assert!(state.segments.values().all(|s| s.uid == NOBODY));
    }
}

fn one_user_cannot_take_it_all() {
    let shares = |connections, segments, accounts| Shares {
        connections,
        segments,
        accounts,
        in_flight: 1000,
    };
    let limits = Limits {
        total: shares(40, 30, 4),
        per_uid: shares(20, 10, 1),
        reserved_for_root: Shares {
            in_flight: 0,
            ..shares(5, 5, 1)
        },
        segments_per_process: 100,
        ..Limits::default()
    };
    let broker = Running::with(
        Config {
            limits,
            ..Config::default()
        },
        FakeKernel::new(),
    );
    let path = broker.path.to_str().unwrap();
    let mut gluttons = Vec::new();
    for (uid, share) in [(NOBODY, 10), (1234, 5), (1235, 2), (1236, 1)] {
        let mut command = command("glutton", &[path]);
        command.uid(uid).gid(uid);
        let mut glutton = Helper::start(command);
        let line = glutton.line();
        assert!(
            line.starts_with(&format!("{share} -{} ", libc::ENOSPC)),
            "{line}"
        );
        gluttons.push(glutton);
    }
    // 18 of 30 are taken: root has all the others.
    let mut root = Helper::start(command("glutton", &[path]));
    let line = root.line();
    assert!(
        line.starts_with(&format!("12 -{} ", libc::ENOSPC)),
        "{line}"
    );
    drop(root);
    drop(gluttons);
    broker.kernel.wait_held((0, 0));
    broker.serves_well();
}

fn glutton(broker: &Running, uid: u32, kind: u32) -> (Helper, usize) {
    let path = broker.path.to_str().unwrap();
    let mut command = command("glutton", &[path, &kind.to_string()]);
    command.uid(uid).gid(uid);
    let mut glutton = Helper::start(command);
    let line = glutton.line();
    assert!(line.contains(&format!(" -{} ", libc::ENOSPC)), "{line}");
    let taken = line.split(' ').next().unwrap().parse().unwrap();
    (glutton, taken)
}

/// One user asks again and again, over all of its accounts, which of its threads are
/// asleep; another one's question is the next but one, each time.
fn a_flood_of_questions_starves_nobody() {
    let broker = Running::new();
    let mut command = command("flood", &[broker.path.to_str().unwrap()]);
    command.uid(2000).gid(2000);
    let mut flood = Helper::start(command);
    let accounts: usize = flood.line().parse().unwrap();
    assert!(accounts >= 4, "{accounts} accounts");
    let client = broker.client();
    let status = debox_request::new(DEBOX_MSG_STATUS, 0);
    assert_eq!(
        client
            .ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0))
            .0
            .status,
        0
    );
    let of_flood = |id: &u32| broker.kernel.state().accounts[id].uid == 2000;
    for _ in 0..20 {
        let before = broker.kernel.state().away_told.len();
        wait_for("the flood", || {
            broker.kernel.state().away_told.len() > before + 2 * accounts
        });
        broker.kernel.state().away_slow = true;
        wait_for("the kernel side to be at work", || {
            broker.kernel.state().at_work
        });
        client
            .send(debox_request::new(DEBOX_MSG_AWAY, 0).as_bytes())
            .unwrap();
        // The loop answers, and so has read what was sent before.
        for _ in 0..3 {
            assert_eq!(broker.client().ask(&status).0.status, 0);
        }
        let from = broker.kernel.state().away_told.len();
        broker.kernel.state().away_slow = false;
        assert_eq!(client.reply().0.status, 0);
        let told = broker.kernel.state().away_told[from..].to_vec();
        let ours = told.iter().position(|id| !of_flood(id));
        // The one that was at work, and one of the flood's turn.
        assert!(ours.is_some_and(|at| at <= 2), "{ours:?} of {told:?}");
    }
    drop((flood, client));
    broker.kernel.wait_held((0, 0));
}

/// With the limits that deboxd has.
fn six_users_cannot_lock_others_out() {
    let broker = Running::new();
    let mut greedy = Vec::new();
    for uid in 2000..2006 {
        let (helper, taken) = glutton(&broker, uid, DEBOX_MSG_ACCOUNT);
        assert!((1..=8).contains(&taken));
        greedy.push(helper);
    }
    let mut nobody = as_nobody(&broker);
    let (status, _, text) = nobody.ask(DEBOX_MSG_ACCOUNT, 0, 0);
    assert_eq!(status, 0, "{text}");
    drop((greedy, nobody));
    broker.kernel.wait_held((0, 0));
}

fn subordinate_ids_count_for_their_owner() {
    let dir = tempfile::tempdir().unwrap();
    let files = [dir.path().join("subuid"), dir.path().join("passwd")];
    std::fs::write(&files[0], "ann:100000:65536\n").unwrap();
    std::fs::write(&files[1], "ann:x:2000:2000::/:/bin/sh\n").unwrap();
    let broker = Running::with(
        Config {
            subordinate_ids: Some(files),
            ..Config::default()
        },
        FakeKernel::new(),
    );
    let (ann, taken) = glutton(&broker, 2000, DEBOX_MSG_ACCOUNT);
    assert_eq!(taken, 8);
    let (inside, taken) = glutton(&broker, 100_007, DEBOX_MSG_ACCOUNT);
    assert_eq!(taken, 0, "that is ann, too");
    let (other, taken) = glutton(&broker, 165_536, DEBOX_MSG_ACCOUNT);
    assert!(taken > 0, "the first that is not hers");
    // What the kernel side is told is who it really is.
    let state = broker.kernel.state();
    assert!(
        state
            .accounts
            .values()
            .all(|a| [2000, 165_536].contains(&a.uid))
    );
    drop(state);
    drop((ann, inside, other));
    broker.kernel.wait_held((0, 0));
}

/// The private broker's directory can be passed by everybody, for the workers
/// of servers.
fn a_private_broker_serves_its_own() {
    let kernel = FakeKernel::new();
    let made = kernel.clone();
    let private = debox_broker::Private::start_with(move || Ok((made, FakeResolver))).unwrap();
    let path = private.socket_path().to_str().unwrap().to_owned();
    let own = Client::connect(Path::new(&path));
    let (reply, _) = own.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    assert_eq!(reply.status, 0, "{}", reply.text());
    let mut command = command("refused", &[&path]);
    command.uid(NOBODY).gid(NOBODY);
    let mut stranger = Helper::start(command);
    let line = stranger.line();
    assert!(
        line.starts_with(&format!("-{} ", libc::EACCES)) && line.contains("private broker"),
        "{line}"
    );
    // Over a socket that one of its own has passed on: the same.
    let mut command = self::command("client", &["-"]);
    inherit(&mut command, &own.0);
    command.uid(NOBODY).gid(NOBODY);
    let mut heir = Helper::start(command);
    let (status, _, text) = heir.ask(DEBOX_MSG_JOIN, 0, 0);
    assert_eq!(status, -libc::EACCES, "{text}");
    // A process that is watched is served.
    let mut command = self::command("client", &[&path, "when-told"]);
    command.uid(NOBODY).gid(NOBODY);
    let mut worker = Helper::start(command);
    kernel.state().watched.push(worker.pid());
    worker.tell("go");
    let (status, _, text) = worker.ask(DEBOX_MSG_SLOTS, 0, 0);
    assert_eq!(status, 0, "{text}");
    drop((own, heir, worker, stranger));
    private.stop().unwrap();
    kernel.wait_held((0, 0));
}

/// The same with the real kernel side, which knows whom it watches.
fn a_watched_worker_reaches_the_private_broker() {
    let private = debox_broker::Private::start(debox_broker::PrivateOptions::default()).unwrap();
    let path = private.socket_path().to_str().unwrap().to_owned();
    let own = Client::connect(Path::new(&path));
    let (reply, _) = own.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    assert_eq!(reply.status, 0, "{}", reply.text());
    let mut stranger = command("refused", &[&path]);
    stranger.uid(NOBODY).gid(NOBODY);
    let line = Helper::start(stranger).line();
    assert!(line.starts_with(&format!("-{} ", libc::EACCES)), "{line}");
    // Started by root, watched, and then somebody else.
    let mut command = command("client", &[&path, "when-told-drop"]);
    command.uid(0);
    let mut worker = Helper::start(command);
    let (reply, _) = own.ask(&debox_request::watch(worker.pid() as i32, 0));
    assert_eq!(reply.status, 0, "{}", reply.text());
    worker.tell("go");
    let (status, marks, text) = worker.ask_status(DEBOX_MSG_SLOTS);
    assert_eq!((status, marks), (0, 3), "{text}");
    drop((own, worker));
    private.stop().unwrap();
}

fn rings_are_for_the_privileged_on_kernels_that_need_it() {
    for (release, refused) in [("6.1.96", true), ("6.1.97", false)] {
        let broker = Running::with(
            Config {
                kernel: Some(debox_probe::KernelVersion::parse(release, "")),
                ..Config::default()
            },
            FakeKernel::new(),
        );
        let flags = DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS;
        let mut nobody = as_nobody(&broker);
        let (status, _, text) = nobody.ask(DEBOX_MSG_ACCOUNT, flags, 0);
        if refused {
            assert_eq!(status, -libc::EOPNOTSUPP);
            assert!(
                text.contains("6.1.96") && text.contains("CVE-2024-41009"),
                "{text}"
            );
            // Without rings it is served.
            let (status, _, text) = nobody.ask(DEBOX_MSG_ACCOUNT, DEBOX_REQ_BOUNDARY, 0);
            assert_eq!(status, 0, "{text}");
        } else {
            assert_eq!(status, 0, "{text}");
        }
        let root = broker.client();
        let (reply, _) = root.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, flags));
        assert_eq!(reply.status, 0, "{}", reply.text());
    }
}

/// A process that maps its segments and closes the socket keeps memory, and a
/// child of its that inherits the mapping keeps it longer. With the real kernel
/// side, which sees that.
fn memory_counts_until_it_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), all).unwrap();
    let path = dir.path().join("sock");
    let manager = Manager::new(dir.path(), "notify");
    let _daemon = Daemon::start(
        deboxd()
            .arg("--socket")
            .arg(&path)
            .env("NOTIFY_SOCKET", &manager.name),
    );
    assert_eq!(manager.state(), "READY=1");
    let keeper = || {
        let mut command = command("keeper", &[path.to_str().unwrap()]);
        command.uid(NOBODY).gid(NOBODY);
        Helper::start(command)
    };
    let mut first = keeper();
    let kept: usize = first.line().parse().unwrap();
    assert!((1..=512).contains(&kept), "{kept} segments in all");
    // Others of the same user find nothing, though no connection is open.
    let mut second = keeper();
    assert_eq!(second.line(), "0");
    // Nor when the process is gone that asked, but not its child.
    // (Not by waiting for it, which would close its standard input.)
    let pid = rustix::process::Pid::from_raw(first.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(keeper().line(), "0");
    // Its child goes when we close its standard input.
    drop(first);
    wait_for("the memory to be gone", || {
        let mut third = keeper();
        let found: usize = third.line().parse().unwrap();
        found > 0
    });
}

// ------------------------------------------------------- the real deboxd

fn deboxd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deboxd"));
    command.arg("--everybody");
    command
}

/// deboxd leaves root, so what it shall reach must be open to others.
fn directory_for_all() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    dir
}

/// A datagram socket that plays the service manager.
struct Manager {
    socket: std::os::unix::net::UnixDatagram,
    name: String,
}

impl Manager {
    fn new(dir: &Path, name: &str) -> Self {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixDatagram};
        let (address, name) = match name.strip_prefix('@') {
            Some(rest) => (
                SocketAddr::from_abstract_name(rest).unwrap(),
                name.to_owned(),
            ),
            None => {
                let path = dir.join(name);
                (
                    SocketAddr::from_pathname(&path).unwrap(),
                    path.to_str().unwrap().to_owned(),
                )
            }
        };
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        if !name.starts_with('@') {
            // As systemd's own: services of any user tell it their state.
            std::fs::set_permissions(&name, PermissionsExt::from_mode(0o777)).unwrap();
        }
        socket
            .set_read_timeout(Some(std::time::Duration::from_secs(20)))
            .unwrap();
        Self { socket, name }
    }

    fn state(&self) -> String {
        let mut buffer = [0; 256];
        let length = self
            .socket
            .recv(&mut buffer)
            .expect("a message of deboxd's");
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }
}

/// A deboxd that does not outlive a test that fails.
struct Daemon(Child);

impl Daemon {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn terminate(
    Daemon(child): &mut Daemon,
    signal: rustix::process::Signal,
) -> std::process::ExitStatus {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
    child.wait().unwrap()
}

fn serves_for_real(path: &Path) {
    let client = Client::connect(path);
    let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
    assert!(reply.threads >= 1);
    assert_ne!(reply.features & DEBOX_FEATURE_SLEEPS, 0);
    // The real record map can be read and not be written, the control map both.
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let size = DEBOX_PAGE_SIZE * DEBOX_SEGMENT_SLOTS;
    for (fd, protection, allowed) in [
        (&fds[0], ProtFlags::READ, true),
        (&fds[0], ProtFlags::READ | ProtFlags::WRITE, false),
        (&fds[1], ProtFlags::READ | ProtFlags::WRITE, true),
        (&fds[2], ProtFlags::READ | ProtFlags::WRITE, false),
    ] {
        // SAFETY: a new mapping, unmapped at once, never looked into.
        unsafe {
            let map = mmap(
                std::ptr::null_mut(),
                size,
                protection,
                MapFlags::SHARED,
                fd,
                0,
            );
            assert_eq!(map.is_ok(), allowed, "{protection:?}: {map:?}");
            if let Ok(map) = map {
                munmap(map, size).unwrap();
            }
        }
    }
    let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, DEBOX_REQ_BOUNDARY));
    assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
    let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_JOIN, 0));
    assert_eq!(reply.status, 0, "{}", reply.text());
    assert!(reply.threads >= 1);
    let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_STATUS, 0));
    assert_eq!((reply.slots_used, reply.accounts_used), (32, 1));
    drop(client);
    wait_for("deboxd to detach", || {
        let (reply, _) = Client::connect(path).ask(&debox_request::new(DEBOX_MSG_STATUS, 0));
        (reply.slots_used, reply.accounts_used, reply.features) == (0, 0, 0)
    });
}

fn deboxd_starts_serves_and_stops() {
    let dir = directory_for_all();
    let path = dir.path().join("run/debox.sock");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let manager = Manager::new(dir.path(), &format!("notify-{}", signal.as_raw()));
        let mut child = Daemon::start(
            deboxd()
                .arg("--socket")
                .arg(&path)
                .env("NOTIFY_SOCKET", &manager.name),
        );
        assert_eq!(manager.state(), "READY=1");
        serves_for_real(&path);
        let second = deboxd().arg("--socket").arg(&path).output().unwrap();
        assert!(!second.status.success());
        let text = String::from_utf8(second.stderr).unwrap();
        assert!(
            text.contains(&format!("another broker (process {})", child.id())),
            "{text}"
        );
        // Reading rules anew is no reason to stop.
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        serves_for_real(&path);
        assert!(terminate(&mut child, signal).success());
        assert_eq!(manager.state(), "STOPPING=1");
        assert!(!path.exists(), "the socket file is gone");
    }
    // Killed, it leaves a socket file; the next one replaces it.
    let manager = Manager::new(dir.path(), "@debox-broker-test-notify");
    let mut child = Daemon::start(
        deboxd()
            .arg("--socket")
            .arg(&path)
            .env("NOTIFY_SOCKET", &manager.name),
    );
    assert_eq!(manager.state(), "READY=1");
    terminate(&mut child, rustix::process::Signal::KILL);
    assert!(path.exists());
    let mut child = Daemon::start(
        deboxd()
            .arg("--socket")
            .arg(&path)
            .env("NOTIFY_SOCKET", &manager.name),
    );
    assert_eq!(manager.state(), "READY=1");
    serves_for_real(&path);
    assert!(terminate(&mut child, rustix::process::Signal::TERM).success());
}

fn deboxd_takes_systemds_socket() {
    use rustix::net::*;
    let dir = directory_for_all();
    let path = dir.path().join("sock");
    let socket = |kind| {
        let fd = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let _ = std::fs::remove_file(&path);
        bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        // As in the unit file: PassCredentials=yes.
        sockopt::set_socket_passcred(&fd, true).unwrap();
        listen(&fd, 16).unwrap();
        fd
    };
    // LISTEN_PID has to name the process itself, so a shell sets it and execs.
    let start = |fd: &OwnedFd, notify: &str| {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\"")
            .arg(env!("CARGO_BIN_EXE_deboxd"))
            .env("NOTIFY_SOCKET", notify);
        inherit(&mut command, fd);
        command
    };
    let manager = Manager::new(dir.path(), "notify");
    let fd = socket(SocketType::SEQPACKET);
    // Asked before the broker is there, as socket activation allows.
    let early = Client::connect(&path);
    early
        .send(debox_request::new(DEBOX_MSG_STATUS, 0).as_bytes())
        .unwrap();
    let mut child = Daemon::start(&mut start(&fd, &manager.name));
    assert_eq!(manager.state(), "READY=1");
    assert_eq!(early.reply().0.status, 0);
    serves_for_real(&path);
    assert!(terminate(&mut child, rustix::process::Signal::TERM).success());
    assert!(path.exists(), "the socket file is systemd's to remove");

    let wrong = socket(SocketType::STREAM);
    let output = start(&wrong, &manager.name).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("ListenSequentialPacket="), "{text}");
}

fn deboxd_tells_the_watchdog_that_its_loop_goes_on() {
    let dir = directory_for_all();
    let path = dir.path().join("run/debox.sock");
    let manager = Manager::new(dir.path(), "notify");
    let start = |pid: &str| {
        // WATCHDOG_PID has to name the process itself, so a shell sets it and execs.
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("WATCHDOG_PID={pid} exec \"$0\" \"$@\""))
            .arg(env!("CARGO_BIN_EXE_deboxd"))
            .args(["--everybody", "--socket"])
            .arg(&path)
            .env("NOTIFY_SOCKET", &manager.name)
            .env("WATCHDOG_USEC", "200000");
        Daemon::start(&mut command)
    };
    let mut child = start("$$");
    assert_eq!(manager.state(), "READY=1");
    let begin = std::time::Instant::now();
    // The first of them may have waited.
    for _ in 0..4 {
        assert_eq!(manager.state(), "WATCHDOG=1");
    }
    // Every half of the time, and not as often as it can.
    assert!(begin.elapsed() >= std::time::Duration::from_millis(150));
    serves_for_real(&path);
    assert!(terminate(&mut child, rustix::process::Signal::TERM).success());
    while manager.state() != "STOPPING=1" {}

    // What is asked of another process is not asked of this one.
    let mut child = start("1");
    assert_eq!(manager.state(), "READY=1");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(terminate(&mut child, rustix::process::Signal::TERM).success());
    assert_eq!(manager.state(), "STOPPING=1");
}

fn deboxd_without_privileges_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let copy = dir.path().join("deboxd");
    std::fs::copy(env!("CARGO_BIN_EXE_deboxd"), &copy).unwrap();
    let output = Command::new(&copy)
        .arg("--everybody")
        .arg("--socket")
        .arg(dir.path().join("sock"))
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("lacks CAP_BPF and CAP_PERFMON") && text.contains("setcap"),
        "{text}"
    );
    assert!(!dir.path().join("sock").exists());
    // The library says the same, as a type.
    let error = std::thread::spawn(|| {
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            },
        )
        .unwrap();
        debox_broker::Private::start(debox_broker::PrivateOptions::default()).err()
    })
    .join()
    .unwrap();
    assert!(
        matches!(error, Some(BrokerError::NotPermitted { .. })),
        "{error:?}"
    );
}
