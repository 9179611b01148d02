// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does every message get what the protocol promises, and every malformed one a
//! refusal that says what to do?

mod common;

use common::*;
use debox_abi::*;
use debox_broker::{Config, Limits, SenderProof, Shares};
use debox_probe::NewStack;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

fn me() -> u32 {
    std::process::id()
}

/// Either way of telling who sent a message must do.
fn both_proofs(test: impl Fn(Config)) {
    for proof in [SenderProof::StartTime, SenderProof::MessagePidfd] {
        test(Config {
            sender_proof: Some(proof),
            ..Config::default()
        });
    }
}

struct View {
    base: *mut std::ffi::c_void,
    size: usize,
}

impl View {
    fn new(fd: &OwnedFd, size: usize) -> Self {
        // SAFETY: a new mapping.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .unwrap();
        Self { base, size }
    }
    fn shared(&self) -> debox_shared {
        // SAFETY: mapped for at least a page.
        unsafe { self.base.cast::<debox_shared>().read_volatile() }
    }
    fn site(&self, id: usize) -> Option<debox_site> {
        // SAFETY: the whole table is mapped.
        unsafe {
            debox_site::load(
                self.base
                    .byte_add(DEBOX_PAGE_SIZE)
                    .cast::<debox_site>()
                    .add(id),
            )
        }
    }
    fn alive_word(&self) -> u32 {
        let offset = self.shared().alive_offset as usize;
        assert!(offset + 4 <= DEBOX_PAGE_SIZE);
        // SAFETY: in the first page.
        unsafe { self.base.byte_add(offset).cast::<u32>().read_volatile() }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: ours, and no reference into it lives.
        unsafe { munmap(self.base, self.size) }.unwrap();
    }
}

/// No way leads to writable memory behind this descriptor.
fn assert_unwritable(fd: &OwnedFd) {
    assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
    assert!(rustix::fs::ftruncate(fd, 0).is_err());
    let reopened = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd)),
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let descriptors = [Some(fd.as_fd()), reopened.as_ref().ok().map(|f| f.as_fd())];
    for fd in descriptors.into_iter().flatten() {
        // SAFETY: a new mapping; expected to be refused.
        let writable = unsafe {
            mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        };
        assert!(writable.is_err());
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
    }
    let view = View::new(fd, 4096);
    // SAFETY: the range is mapped; expected to be refused.
    let upgraded = unsafe {
        rustix::mm::mprotect(
            view.base,
            4096,
            rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
        )
    };
    assert!(upgraded.is_err());
}

#[test]
fn slots_are_the_senders_own() {
    both_proofs(|config| {
        let broker = Running::with(config, FakeKernel::new());
        let client = broker.client();
        let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, DEBOX_REQ_BOUNDARY));
        assert_eq!(reply.status, 0, "{}", reply.text());
        assert_eq!(reply.slots as usize, DEBOX_SEGMENT_SLOTS);
        assert_eq!(reply.threads, 3);
        assert_eq!(reply.features, FEATURES);
        assert_eq!(fds.len(), 3);
        for map in &fds[..2] {
            assert_eq!((mark_of(map) >> 32) as u32, me());
        }
        assert_eq!(
            View::new(&fds[2], DEBOX_SHARED_SIZE).shared().magic,
            DEBOX_SHARED_MAGIC
        );
        let held: Vec<_> = broker.kernel.state().segments.values().cloned().collect();
        assert_eq!(
            held,
            [FakeSegment {
                tgid: me(),
                uid: rustix::process::getuid().as_raw(),
                boundary: true
            }]
        );
        drop(client);
        broker.kernel.wait_held((0, 0));
    });
}

#[test]
fn shared_memory_says_who_lives_and_nobody_else_can_write_it() {
    let mut broker = Running::new();
    let client = broker.client();
    let (_, fds) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    assert_unwritable(&fds[2]);
    let view = View::new(&fds[2], DEBOX_SHARED_SIZE);
    let shared = view.shared();
    assert_eq!(shared.magic, DEBOX_SHARED_MAGIC);
    assert_eq!(shared.abi_version, DEBOX_ABI_VERSION);
    assert_eq!(shared.broker_pid, me());
    assert_eq!(shared.site_entry_size as usize, size_of::<debox_site>());
    assert_eq!(shared.features, FEATURES);
    let word = view.alive_word();
    assert_ne!(word & 0x3fff_ffff, 0);
    assert_eq!(word & 0x4000_0000, 0);
    let thread = format!("/proc/self/task/{}", word & 0x3fff_ffff);
    assert!(
        std::path::Path::new(&thread).exists(),
        "the word holds the broker's thread id"
    );
    broker.stop();
    assert_eq!(view.alive_word(), 0, "an orderly end leaves the word empty");
}

#[test]
fn accounts_take_the_joiners() {
    both_proofs(|config| {
        let broker = Running::with(config, FakeKernel::new());
        let client = broker.client();
        let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_JOIN, 0));
        assert_eq!(reply.status, -libc::ENOENT);
        assert!(
            reply.text().contains("DEBOX_MSG_ACCOUNT first"),
            "{}",
            reply.text()
        );

        let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, DEBOX_REQ_BOUNDARY));
        assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
        assert_eq!((reply.cpus, reply.cpu_stride), (2, 463_872));

        let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
        assert_eq!(reply.status, -libc::EEXIST);

        for (flags, follow) in [(0, true), (DEBOX_REQ_NOFOLLOW, false)] {
            let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_JOIN, flags));
            assert_eq!(
                (reply.status, reply.threads, fds.len()),
                (0, 5, 0),
                "{}",
                reply.text()
            );
            let state = broker.kernel.state();
            let account = state.accounts.values().next().unwrap();
            assert_eq!(account.joins.last(), Some(&(me(), follow)));
            assert!(account.boundary);
        }
        drop(client);
        broker.kernel.wait_held((0, 0));
    });
}

#[test]
fn status_counts() {
    let broker = Running::new();
    let client = broker.client();
    client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let (reply, fds) = broker
        .client()
        .ask(&debox_request::new(DEBOX_MSG_STATUS, 0));
    assert!(fds.is_empty());
    assert_eq!(reply.status, 0);
    assert_eq!((reply.slots_used, reply.accounts_used), (64, 1));
    assert_eq!(
        (reply.site_walks, reply.site_hits, reply.site_mismatches),
        (11, 22, 33)
    );
    assert_eq!(
        (
            reply.site_failures,
            reply.storage_failures,
            reply.slots_exhausted,
            reply.switches_hidden
        ),
        (44, 55, 66, 77)
    );
}

#[test]
fn watch_wants_a_process() {
    let broker = Running::new();
    let client = broker.client();
    if !rustix::process::getuid().is_root() {
        let (reply, _) = client.ask(&debox_request::watch(1, 0));
        assert_eq!(reply.status, -libc::EPERM);
        return;
    }
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let pid = child.id();
    let (reply, _) = client.ask(&debox_request::watch(pid as i32, 0));
    assert_eq!(
        reply.status,
        -libc::ENOENT,
        "no account yet: {}",
        reply.text()
    );
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let (reply, _) = client.ask(&debox_request::watch(pid as i32, DEBOX_REQ_NOFOLLOW));
    assert_eq!((reply.status, reply.threads), (0, 5), "{}", reply.text());
    child.kill().unwrap();
    child.wait().unwrap();
    let (reply, _) = client.ask(&debox_request::watch(pid as i32, 0));
    assert_eq!(reply.status, -libc::ESRCH);
    assert!(
        reply.text().contains(&format!("no process {pid}")),
        "{}",
        reply.text()
    );
    // A kernel thread (its parent is 2) makes no system calls.
    let kernel_thread = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
                stat.rsplit(") ").next().unwrap_or("").split(' ').nth(1) == Some("2")
            })
        });
    match kernel_thread {
        Some(pid) => {
            let (reply, _) = client.ask(&debox_request::watch(pid, 0));
            assert_eq!(reply.status, -libc::EINVAL, "{}", reply.text());
        }
        None => eprintln!("kernel threads are not visible here (PID namespace): not tried"),
    }
    let state = broker.kernel.state();
    assert_eq!(
        state.accounts.values().next().unwrap().joins,
        [(pid, false)]
    );
}

#[test]
fn whom_to_watch_can_be_told_by_anybody() {
    let broker = Running::new();
    let client = broker.client();
    let ask = |request: &debox_select| {
        client.send(request.as_bytes()).unwrap();
        let (reply, fds) = client.reply();
        assert_eq!((reply.kind, fds.len()), (DEBOX_MSG_SELECT, 0));
        reply
    };
    let text = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let comms = text(&["nginx*", "php"]);
    let good = debox_select::new(0, &[0, 65534], &comms, &text(&["/a/*"]), 0).unwrap();
    let reply = ask(&good);
    assert_eq!(reply.status, -libc::ENOENT, "no account: {}", reply.text());
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let reply = ask(&good);
    assert_eq!(
        (reply.status, reply.threads, reply.processes),
        (0, 7, 2),
        "{}",
        reply.text()
    );
    let all = debox_select::new(DEBOX_REQ_NOFOLLOW, &[], &[], &[], 0).unwrap();
    assert_eq!(ask(&all).status, 0);
    {
        let state = broker.kernel.state();
        let asked = &state.accounts.values().next().unwrap().selects;
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0].uids, [0, 65534]);
        assert_eq!((asked[0].comms.len(), asked[0].cgroups.len()), (2, 1));
        assert!(asked[0].comms[0].fits(b"nginx") && asked[0].comms[1].fits(b"php"));
        assert!(asked[0].follow && !asked[1].follow);
        // The client and the broker, which are one process here.
        assert_eq!(asked[0].except, [std::process::id(); 2]);
    }
    type Change = fn(&mut debox_select);
    let changes: [(&str, Change); 10] = [
        ("reserved", |s| s.reserved[13] = 1),
        ("users", |s| s.uids = 17),
        ("zero byte", |s| s.comms = [b'a'; 256]),
        ("bracket", |s| s.cgroups[0] = b'['),
        ("ASCII", |s| s.comms[0] = b'\n'),
        ("flags", |s| s.head.flags = DEBOX_REQ_BOUNDARY),
        ("pid", |s| s.head.pid = 1),
        ("rank", |s| s.rank = DEBOX_SELECT_RANK_MAX + 1),
        ("rank", |s| s.head.flags = DEBOX_REQ_OWNERS_FIRST),
        ("rank", |s| {
            s.rank = 1;
            s.head.flags = DEBOX_REQ_NOFOLLOW;
        }),
    ];
    for (what, change) in changes {
        let mut bad = good;
        change(&mut bad);
        let reply = ask(&bad);
        assert_eq!(reply.status, -libc::EINVAL, "{what}: {}", reply.text());
        assert!(reply.text().contains(what), "{what}: {}", reply.text());
    }
    let policy = debox_select::new(DEBOX_REQ_OWNERS_FIRST, &[], &[], &[], 7).unwrap();
    assert_eq!(ask(&policy).status, 0);
    let reply = client.ask(&debox_request::new(DEBOX_MSG_YIELD, 0)).0;
    assert_eq!((reply.kind, reply.status), (DEBOX_MSG_YIELD, 0));
    {
        let state = broker.kernel.state();
        let account = state.accounts.values().next().unwrap();
        let ranks: Vec<u32> = account.selects.iter().map(|whom| whom.rank).collect();
        assert_eq!((ranks, account.yields), (vec![0, 0, 7], 1));
        let owners_first = account.selects.iter().map(|whom| whom.owners_first);
        assert_eq!(owners_first.collect::<Vec<_>>(), [false, false, true]);
    }
    assert!(debox_select::new(0, &[0; 17], &[], &[], 0).is_err());
    assert!(debox_select::new(0, &[], &text(&[&"x".repeat(256)]), &[], 0).is_err());
}

#[test]
fn a_process_that_dies_while_it_is_bound_is_unbound() {
    let broker = Running::new();
    let client = broker.client();
    if !common::needs::root() {
        return;
    }
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let pid = child.id();
    broker.kernel.state().dies_in_join = Some(child);
    // Its number could have been another's when the kernel side looked.
    let (reply, _) = client.ask(&debox_request::watch(pid as i32, 0));
    assert_eq!(reply.status, -libc::ESRCH, "{}", reply.text());
    let state = broker.kernel.state();
    let account = state.accounts.values().next().unwrap();
    assert_eq!(account.joins, [(pid, true)]);
    assert_eq!(account.leaves, [pid], "what was bound is undone");
}

#[test]
fn malformed_requests_are_refused_with_a_remedy() {
    let good = debox_request::new(DEBOX_MSG_SLOTS, 0);
    let with = |change: &dyn Fn(&mut debox_request)| {
        let mut request = good;
        change(&mut request);
        request.as_bytes().to_vec()
    };
    // (what, bytes, errno, a word of the text, the connection goes on)
    let cases: Vec<(&str, Vec<u8>, i32, &str, bool)> = vec![
        ("empty", vec![], libc::EBADMSG, "too short", false),
        ("3 bytes", vec![64, 0, 0], libc::EBADMSG, "too short", false),
        (
            "7 bytes",
            vec![64, 0, 0, 0, 1, 0, 0],
            libc::EBADMSG,
            "too short",
            false,
        ),
        (
            "header only",
            good.as_bytes()[..16].to_vec(),
            libc::EMSGSIZE,
            "64 bytes",
            false,
        ),
        (
            "one byte short",
            good.as_bytes()[..63].to_vec(),
            libc::EMSGSIZE,
            "64 bytes",
            false,
        ),
        (
            "one byte long",
            [good.as_bytes(), &[0]].concat(),
            libc::EMSGSIZE,
            "has 65",
            false,
        ),
        (
            "100 KB",
            [good.as_bytes(), &vec![0; 100_000]].concat(),
            libc::EMSGSIZE,
            "has 100064",
            false,
        ),
        (
            "size 0",
            with(&|r| r.size = 0),
            libc::EMSGSIZE,
            "says 0",
            false,
        ),
        (
            "size 65",
            with(&|r| r.size = 65),
            libc::EMSGSIZE,
            "says 65",
            false,
        ),
        (
            "version 0",
            with(&|r| r.version = 0),
            libc::EPROTONOSUPPORT,
            "version 0",
            false,
        ),
        (
            "version 2",
            with(&|r| r.version = 2),
            libc::EPROTONOSUPPORT,
            "same release",
            false,
        ),
        (
            "type 0",
            with(&|r| r.kind = 0),
            libc::EOPNOTSUPP,
            "not known",
            true,
        ),
        (
            "type 66",
            with(&|r| r.kind = 66),
            libc::EOPNOTSUPP,
            "not known",
            true,
        ),
        (
            "type 2^32-1",
            with(&|r| r.kind = u32::MAX),
            libc::EOPNOTSUPP,
            "not known",
            true,
        ),
        (
            "unknown flag",
            with(&|r| r.flags = 4),
            libc::EINVAL,
            "flags 0x4",
            true,
        ),
        (
            "another type's flag",
            with(&|r| r.flags = DEBOX_REQ_NOFOLLOW),
            libc::EINVAL,
            "flags 0x2",
            true,
        ),
        (
            "flag for STATUS",
            with(&|r| {
                r.kind = DEBOX_MSG_STATUS;
                r.flags = 1
            }),
            libc::EINVAL,
            "flags 0x1",
            true,
        ),
        (
            "flag for COSTS",
            with(&|r| {
                r.kind = DEBOX_MSG_COSTS;
                r.flags = DEBOX_REQ_RUN_TIME | 1
            }),
            libc::EINVAL,
            "flags 0x1",
            true,
        ),
        (
            "reserved",
            with(&|r| r.reserved[9] = 1),
            libc::EINVAL,
            "reserved",
            true,
        ),
        (
            "pid for SLOTS",
            with(&|r| r.pid = 1),
            libc::EINVAL,
            "pid is 1",
            true,
        ),
        (
            "WATCH 0",
            with(&|r| r.kind = DEBOX_MSG_WATCH),
            libc::EINVAL,
            "pid 0",
            true,
        ),
        (
            "WATCH -1",
            with(&|r| {
                r.kind = DEBOX_MSG_WATCH;
                r.pid = -1
            }),
            libc::EINVAL,
            "pid -1",
            true,
        ),
        (
            "WATCH of no process",
            with(&|r| {
                r.kind = DEBOX_MSG_WATCH;
                r.pid = i32::MAX
            }),
            if rustix::process::getuid().is_root() {
                libc::ENOENT
            } else {
                libc::EPERM
            },
            "",
            true,
        ),
    ];
    let broker = Running::new();
    for (what, bytes, errno, word, goes_on) in cases {
        let client = broker.client();
        client.send(&bytes).unwrap();
        let (reply, fds) = client.reply();
        assert_eq!(reply.status, -errno, "{what}: {}", reply.text());
        assert!(reply.text().contains(word), "{what}: {}", reply.text());
        assert!(reply.text().len() < 255, "{what}: the text fits");
        assert!(fds.is_empty());
        if bytes.len() >= 12 {
            assert_eq!(reply.kind.to_ne_bytes(), bytes[8..12], "{what}");
        }
        if goes_on {
            let (reply, fds) = client.ask(&good);
            assert_eq!(
                (reply.status, fds.len()),
                (0, 3),
                "after {what}: {}",
                reply.text()
            );
        } else {
            assert!(client.closed(), "{what} ends the connection");
        }
    }
    broker.kernel.wait_held((0, 0));
    broker.serves_well();
}

#[test]
fn the_kernel_keeps_descriptors_from_the_broker() {
    let broker = Running::new();
    let client = broker.client();
    let status = debox_request::new(DEBOX_MSG_STATUS, 0);
    // Before the broker has accepted it or after, it is all the same.
    let sent = [(); 2].map(|()| {
        let sent = client.send_with(status.as_bytes(), &[client.0.as_fd()]);
        if sent.is_err() {
            assert_eq!(client.ask(&status).0.status, 0, "the connection goes on");
        }
        sent.map_err(|error| error.raw_os_error())
    });
    if broker.let_descriptors_in() {
        assert_eq!(sent, [Err(Some(libc::EPERM)); 2]);
    } else {
        eprintln!("NOT RUN: SO_PASSRIGHTS needs Linux 6.16");
    }
}

#[test]
fn smuggled_descriptors_are_closed() {
    both_proofs(|config| {
        let broker = Running::with(config, FakeKernel::new());
        broker.let_descriptors_in();
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let good = debox_request::new(DEBOX_MSG_SLOTS, 0);
        for count in [1, 2, 5, 100, 253] {
            let client = broker.client();
            client
                .send_with(good.as_bytes(), &vec![writer.as_fd(); count])
                .unwrap();
            let (reply, fds) = client.reply();
            assert_eq!(reply.status, -libc::EPROTO, "{}", reply.text());
            assert!(reply.text().contains("descriptors"), "{}", reply.text());
            assert!(fds.is_empty());
            assert!(client.closed());
        }
        // In a packet that nobody reads, too: the broker may be quicker and
        // close first, so it is tried often.
        for _ in 0..50 {
            let client = broker.client();
            client.send(&[1]).unwrap();
            match client.send_with(good.as_bytes(), &[writer.as_fd()]) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                Err(error) => panic!("{error}"),
            }
        }
        broker.serves_well();
        // With our own copy gone, every copy must be: the pipe reads as ended.
        drop(writer);
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        wait_for("the last copy of the pipe to be closed", || {
            matches!(rustix::io::read(&reader, &mut [0u8; 1]), Ok(0))
        });
    });
}

/// A socket whose last close waits, as long as its owner said, for a peer that
/// does not read.
fn lingering() -> (OwnedFd, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut near, &[0; 65536]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(1000))).unwrap();
    (near.into(), far)
}

#[test]
fn a_descriptor_that_lingers_holds_up_nobody() {
    both_proofs(|config| {
        let status = debox_request::new(DEBOX_MSG_STATUS, 0);
        for hangs_up in [false, true] {
            let broker = Running::with(config.clone(), FakeKernel::new());
            broker.let_descriptors_in();
            let other = broker.client();
            assert_eq!(other.ask(&status).0.status, 0);
            // What it sends while its request is carried out lies in the queue.
            broker.kernel.state().slow = true;
            let client = broker.client();
            client
                .send(debox_request::new(DEBOX_MSG_ACCOUNT, 0).as_bytes())
                .unwrap();
            wait_for("the kernel side to be at work", || {
                broker.kernel.state().at_work
            });
            let (near, far) = lingering();
            client
                .send_with(status.as_bytes(), &[near.as_fd()])
                .unwrap();
            // The packet alone holds it now, so the broker's is the last close.
            drop(near);
            let client = (!hangs_up).then_some(client);
            broker.kernel.state().slow = false;
            wait_for("the account", || broker.kernel.state().created == 1);
            // An answer comes within the client's time limit, a hundredth of
            // what that close waits for.
            for _ in 0..20 {
                assert_eq!(other.ask(&status).0.status, 0);
                std::thread::sleep(Duration::from_millis(5));
            }
            broker.kernel.wait_held((0, 0));
            assert_eq!(other.ask(&status).0.status, 0);
            if let Some(client) = client {
                assert_eq!(client.reply().0.status, 0);
                let (reply, _) = client.reply();
                assert_eq!(reply.status, -libc::EPROTO, "{}", reply.text());
                assert!(client.closed());
            }
            drop(far);
        }
    });
}

#[test]
fn what_the_kernel_side_refuses_is_told() {
    let broker = Running::new();
    let client = broker.client();
    for kind in [DEBOX_MSG_SLOTS, DEBOX_MSG_ACCOUNT] {
        broker.kernel.state().fail_next = Some(not_permitted());
        let (reply, fds) = client.ask(&debox_request::new(kind, 0));
        assert_eq!(
            (reply.status, reply.text(), fds.len()),
            (-libc::EPERM, not_permitted().to_string().as_str(), 0)
        );
    }
    broker.kernel.wait_held((0, 0));
    let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    assert_eq!(reply.status, 0, "the connection goes on");
}

#[test]
fn limits_are_kept_and_told() {
    // Others have shares: see limits.rs and processes.rs.
    if !common::needs::root() {
        return;
    }
    let shares = |connections, segments, accounts| Shares {
        connections,
        segments,
        accounts,
        in_flight: 100,
    };
    let limits = Limits {
        total: shares(4, 5, 2),
        per_uid: shares(4, 5, 2),
        reserved_for_root: shares(0, 0, 0),
        segments_per_process: 3,
        ..Limits::default()
    };
    let broker = Running::with(
        Config {
            limits,
            ..Config::default()
        },
        FakeKernel::new(),
    );
    let slots = debox_request::new(DEBOX_MSG_SLOTS, 0);
    let (a, b, c) = (broker.client(), broker.client(), broker.client());
    // Per process, over all connections.
    for client in [&a, &b, &c] {
        assert_eq!(client.ask(&slots).0.status, 0);
    }
    let (reply, fds) = a.ask(&slots);
    assert_eq!((reply.status, fds.len()), (-libc::ENOSPC, 0));
    assert!(
        reply.text().contains("the limit of one process is 3"),
        "{}",
        reply.text()
    );
    drop(c);
    broker.kernel.wait_held((2, 0));
    assert_eq!(a.ask(&slots).0.status, 0);
    // Accounts.
    let account = debox_request::new(DEBOX_MSG_ACCOUNT, 0);
    let c = broker.client();
    assert_eq!(a.ask(&account).0.status, 0);
    assert_eq!(b.ask(&account).0.status, 0);
    let (reply, _) = c.ask(&account);
    assert_eq!(reply.status, -libc::ENOSPC);
    assert!(reply.text().contains("accounts open"), "{}", reply.text());
    // Connections.
    let d = broker.client();
    assert_eq!(d.ask(&debox_request::new(DEBOX_MSG_STATUS, 0)).0.status, 0);
    for _ in 0..50 {
        let one_too_many = broker.client();
        let (reply, _) = one_too_many.reply();
        assert_eq!(reply.status, -libc::EUSERS, "{}", reply.text());
        assert!(
            reply.text().contains("connections open"),
            "{}",
            reply.text()
        );
        assert!(one_too_many.closed());
    }
    drop(d);
    wait_for("room for a connection", || {
        let client = broker.client();
        client
            .send(debox_request::new(DEBOX_MSG_STATUS, 0).as_bytes())
            .is_ok()
            && matches!(client.receive(), Answer::Reply(reply, _) if reply.status == 0)
    });
}

#[test]
fn silent_clients_are_closed_and_holders_are_not() {
    let limits = Limits {
        first_request: Duration::from_millis(200),
        idle: Duration::from_millis(500),
        ..Limits::default()
    };
    let broker = Running::with(
        Config {
            limits,
            ..Config::default()
        },
        FakeKernel::new(),
    );
    let holder = broker.client();
    assert_eq!(
        holder.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0)).0.status,
        0
    );
    let talker = broker.client();
    assert_eq!(
        talker
            .ask(&debox_request::new(DEBOX_MSG_STATUS, 0))
            .0
            .status,
        0
    );
    let silent = broker.client();
    let babbler = broker.client();
    let mut junk = debox_request::new(99, 0);
    junk.pid = 1;
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(150) {
        assert_eq!(babbler.ask(&junk).0.status, -libc::EOPNOTSUPP);
        std::thread::sleep(Duration::from_millis(30));
    }
    // Invalid requests do not buy time.
    for client in [&silent, &babbler] {
        let (reply, _) = client.reply();
        assert_eq!(reply.status, -libc::ETIMEDOUT);
        assert!(client.closed());
    }
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(150) && took < Duration::from_secs(5),
        "{took:?}"
    );
    let (reply, _) = talker.reply();
    assert_eq!(reply.status, -libc::ETIMEDOUT);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(
        holder
            .ask(&debox_request::new(DEBOX_MSG_STATUS, 0))
            .0
            .status,
        0
    );
    assert_eq!(broker.kernel.held(), (1, 0));
}

#[test]
fn a_client_that_does_not_read_is_dropped() {
    let broker = Running::new();
    let client = broker.client();
    assert_eq!(
        client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0)).0.status,
        0
    );
    let status = debox_request::new(DEBOX_MSG_STATUS, 0);
    let mut sent = 0u32;
    // Our send blocks only if the broker stops reading, which it must not.
    while client.send(status.as_bytes()).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "never dropped");
    }
    broker.kernel.wait_held((0, 0));
    broker.serves_well();
}

#[test]
fn half_closed_clients_still_get_their_reply() {
    let broker = Running::new();
    let client = broker.client();
    client
        .send(debox_request::new(DEBOX_MSG_STATUS, 0).as_bytes())
        .unwrap();
    rustix::net::shutdown(&client.0, rustix::net::Shutdown::Write).unwrap();
    assert_eq!(client.reply().0.status, 0);
    assert!(client.closed());
}

#[test]
fn every_copy_of_the_socket_has_to_go() {
    let broker = Running::new();
    let client = broker.client();
    client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let copy = rustix::io::fcntl_dupfd_cloexec(&client.0, 0).unwrap();
    drop(client);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(broker.kernel.held(), (1, 1));
    drop(copy);
    broker.kernel.wait_held((0, 0));
}

/// Of the whole test: the answers are there, or the loop waits for others' work.
#[test]
fn status_is_answered_while_others_work() {
    let broker = Running::new();
    let status = debox_request::new(DEBOX_MSG_STATUS, 0);
    broker.kernel.state().slow = true;
    let slow = broker.client();
    slow.send(debox_request::new(DEBOX_MSG_ACCOUNT, 0).as_bytes())
        .unwrap();
    wait_for("the kernel side to be at work", || {
        broker.kernel.state().at_work
    });
    // In the queue behind it.
    let behind: Vec<Client> = (0..20).map(|_| broker.client()).collect();
    for client in &behind {
        client
            .send(debox_request::new(DEBOX_MSG_SLOTS, 0).as_bytes())
            .unwrap();
    }
    for _ in 0..100 {
        let client = broker.client();
        assert_eq!(client.ask(&status).0.status, 0);
    }
    assert!(
        broker.kernel.state().at_work,
        "it was at work all the while"
    );
    // Who asks and leaves is not waited for either, and leaves nothing.
    let gone = broker.client();
    gone.send(debox_request::new(DEBOX_MSG_ACCOUNT, 0).as_bytes())
        .unwrap();
    drop(gone);
    assert_eq!(broker.client().ask(&status).0.status, 0);
    broker.kernel.state().slow = false;
    let (reply, fds) = slow.reply();
    assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
    for client in &behind {
        let (reply, fds) = client.reply();
        assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
    }
    drop((slow, behind));
    broker.kernel.wait_held((0, 0));
}

/// The unwind tables of a client with many programs take their time: neither
/// the loop nor the kernel side waits for them.
#[test]
fn tables_of_one_client_are_waited_for_by_nobody_else() {
    let broker = Running::new();
    broker.kernel.state().hold_tables = true;
    let flags = DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS | DEBOX_REQ_USER_STACKS;
    let heavy = broker.client();
    heavy
        .send(debox_request::new(DEBOX_MSG_ACCOUNT, flags).as_bytes())
        .unwrap();
    wait_for("the tables to be asked for", || {
        !broker.kernel.state().tables.is_empty()
    });
    broker.serves_well();
    // Its account waits, and the other's has gone.
    broker.kernel.wait_held((0, 0));
    let ready = broker.kernel.state().tables.pop().unwrap();
    ready();
    let (reply, fds) = heavy.reply();
    assert_eq!((reply.status, fds.len()), (0, 9), "{}", reply.text());
    // Tables that never come are not waited for for ever.
    let second = broker.client();
    let (reply, fds) = second.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, flags));
    assert_eq!((reply.status, fds.len()), (0, 9), "{}", reply.text());
    let late = broker.kernel.state().tables.pop().unwrap();
    late();
    broker.serves_well();
}

#[test]
fn the_functions_of_sites_are_one_piece_of_memory() {
    let broker = Running::new();
    let client = broker.client();
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let ask = || {
        let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_SITE_STACKS, 0));
        assert_eq!((reply.status, fds.len()), (0, 1), "{}", reply.text());
        fds.into_iter().next().unwrap()
    };
    let read = |fd: OwnedFd| std::io::read_to_string(std::fs::File::from(fd)).unwrap();
    let first = ask();
    broker.kernel.announce(vec![NewStack {
        id: 4,
        frames: vec![1],
        label: 0,
    }]);
    wait_for("the site", || read(ask()).contains("4\tentry;pipe_read\n"));
    // However many are held, and whenever they were asked for.
    let place = |fd: &OwnedFd| {
        let stat = rustix::fs::fstat(fd).unwrap();
        (stat.st_dev, stat.st_ino)
    };
    let held: Vec<OwnedFd> = (0..500).map(|_| ask()).collect();
    for fd in &held {
        assert_eq!(place(fd), place(&first));
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
    }
    assert_eq!(rustix::fs::fstat(&first).unwrap().st_mode & 0o777, 0o400);
    assert_eq!(read(first), "4\tentry;pipe_read\n");
}

/// Whoever asks is answered when the kernel side gives labels; it is told once.
#[test]
fn labels_have_numbers_for_all_clients() {
    let broker = Running::new();
    let client = broker.client();
    let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_LABELS, 0));
    assert_eq!(reply.status, -libc::ENOENT, "without an account");
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    for _ in 0..2 {
        let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_LABELS, 0));
        assert_eq!((reply.status, fds.len()), (0, 1), "{}", reply.text());
        let mut bytes = vec![0; 1 << 16];
        let length = rustix::io::pread(&fds[0], &mut bytes, 0).unwrap();
        let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
        assert!(text.lines().any(|line| line == "pipe-read"), "{text}");
        assert_eq!(broker.kernel.state().label_tables, 1);
    }
    let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_STATUS, 0));
    assert_eq!(reply.status, 0, "it is heard after an answer given at once");
}

/// Slots give links only to who asked for them.
#[test]
fn links_are_for_slots_with_chains() {
    let broker = Running::new();
    for (flags, status) in [(0, -libc::ENOENT), (DEBOX_REQ_CHAINS, 0)] {
        let client = broker.client();
        let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, flags));
        assert_eq!(reply.status, 0, "{}", reply.text());
        let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_CHAINS, 0));
        assert_eq!(reply.status, status, "{}", reply.text());
        assert_eq!(fds.len(), usize::from(status == 0));
    }
    let client = broker.client();
    let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, DEBOX_REQ_CHAINS));
    assert_eq!(
        reply.status,
        -libc::EINVAL,
        "accounts have them by themselves"
    );
}

/// Whoever has an account may hand its own threads over; nobody else's are touched by it.
#[test]
fn spliced_threads_are_handed_to_the_boundary() {
    let broker = Running::new();
    let client = broker.client();
    let flags = DEBOX_REQ_OPEN_COUNTED | DEBOX_REQ_RENAMES;
    let (reply, _) = client.ask(&debox_request::boundary(7, flags));
    assert_eq!(reply.status, -libc::ENOENT, "without an account");
    client.ask(&debox_request::new(
        DEBOX_MSG_ACCOUNT,
        DEBOX_REQ_SPLICE | DEBOX_REQ_DETAILS,
    ));
    for (request, status) in [
        (debox_request::boundary(7, flags), 0),
        (debox_request::boundary(8, 0), 0),
        (debox_request::boundary(8, DEBOX_REQ_EXECUTES), 0),
        (debox_request::boundary(0, 0), -libc::EINVAL),
        (debox_request::boundary(-1, 0), -libc::EINVAL),
        (
            debox_request::boundary(9, DEBOX_REQ_NOFOLLOW),
            -libc::EINVAL,
        ),
    ] {
        let (reply, fds) = client.ask(&request);
        assert_eq!((reply.status, fds.len()), (status, 0), "{}", reply.text());
    }
    let state = broker.kernel.state();
    let account = state.accounts.values().next().unwrap();
    let tids: Vec<_> = (account.boundaries.iter())
        .map(|b| (b.tid, b.open_counted, b.renames, b.executes))
        .collect();
    let asked = [
        (7, true, true, false),
        (8, false, false, false),
        (8, false, false, true),
    ];
    assert_eq!(tids, asked);
}

/// Anew with every request.
#[test]
fn threads_off_the_cpu_are_told() {
    let broker = Running::new();
    let client = broker.client();
    let request = debox_request::new(DEBOX_MSG_AWAY, 0);
    let (reply, _) = client.ask(&request);
    assert_eq!(reply.status, -libc::ENOENT, "without an account");
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    for tids in [&[][..], &[7, 8], &[9]] {
        broker.kernel.state().away = tids
            .iter()
            .map(|tid| debox_away {
                tid: *tid,
                flags: DEBOX_AWAY_ASLEEP,
                ..debox_away::zeroed()
            })
            .collect();
        let (reply, fds) = client.ask(&request);
        assert_eq!((reply.status, fds.len()), (0, 1), "{}", reply.text());
        let mut bytes = vec![0; 4096];
        let length = rustix::io::pread(&fds[0], &mut bytes, 0).unwrap();
        let told: Vec<u32> = bytes[..length]
            .chunks_exact(size_of::<debox_away>())
            .map(|bytes| debox_away::read_from(bytes).unwrap().tid)
            .collect();
        assert_eq!(told, tids);
        assert!(rustix::io::pwrite(&fds[0], b"x", 0).is_err());
    }
}

/// What is not known is marked, and has no value; who may not watch others is told nothing.
#[test]
fn what_watching_takes_is_told_to_who_may_watch_others() {
    let broker = Running::new();
    let client = broker.client();
    let ask = |flags| client.ask(&debox_request::new(DEBOX_MSG_COSTS, flags));
    let costs = |fd: &OwnedFd| {
        let mut bytes = [0; 2 * size_of::<debox_costs>()];
        let length = rustix::io::pread(fd, &mut bytes, 0).unwrap();
        assert_eq!(length, size_of::<debox_costs>());
        assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
        debox_costs::read_from(&bytes).unwrap()
    };
    if !rustix::process::getuid().is_root() {
        for flags in [0, DEBOX_REQ_RUN_TIME] {
            let (reply, fds) = ask(flags);
            assert_eq!((reply.status, fds.len()), (-libc::EPERM, 0));
            assert!(reply.text().contains("CAP_PERFMON"), "{}", reply.text());
        }
        return;
    }
    let own = DEBOX_COSTS_CPU | DEBOX_COSTS_MEMORY;
    let (reply, fds) = ask(0);
    assert_eq!((reply.status, fds.len()), (0, 1), "{}", reply.text());
    let told = costs(&fds[0]);
    assert_eq!(told.size as usize, size_of::<debox_costs>());
    assert_eq!(told.known, own);
    // This process's.
    assert!(told.cpu_ns > 0 && told.memory_bytes > 100_000);
    assert_eq!((told.run_time_ns, told.tables_bytes), (0, 0));

    broker.kernel.state().tables_bytes = Some(5_000);
    let (reply, fds) = ask(DEBOX_REQ_RUN_TIME);
    assert_eq!((reply.status, fds.len()), (0, 2), "{}", reply.text());
    let told = costs(&fds[0]);
    let all = own | DEBOX_COSTS_TABLES | DEBOX_COSTS_RUN_TIME;
    assert_eq!(told.known, all);
    assert_eq!((told.run_time_ns, told.tables_bytes), (1_500, 5_000));
    assert_eq!(mark_of(&fds[1]), STATISTICS);
    assert_eq!(reply.text(), "");

    let why = "not without CAP_SYS_ADMIN";
    broker.kernel.state().no_statistics = Some(why.to_owned());
    let (reply, fds) = ask(DEBOX_REQ_RUN_TIME);
    assert_eq!((reply.status, fds.len()), (0, 1), "{}", reply.text());
    assert_eq!(costs(&fds[0]).known, own | DEBOX_COSTS_TABLES);
    assert_eq!(costs(&fds[0]).run_time_ns, 0);
    assert_eq!(reply.text(), why);
}

/// A clock has a rate, and none without one; the kernel's functions are told by name.
#[test]
fn a_clock_is_for_accounts_with_details() {
    let broker = Running::new();
    let details = DEBOX_REQ_BOUNDARY | DEBOX_REQ_DETAILS;
    let request = |kind, flags, hz| debox_request {
        hz,
        ..debox_request::new(kind, flags)
    };
    for (kind, flags, hz) in [
        (DEBOX_MSG_ACCOUNT, details | DEBOX_REQ_ON_CPU, 0),
        (
            DEBOX_MSG_ACCOUNT,
            details | DEBOX_REQ_ON_CPU,
            DEBOX_ON_CPU_HZ_MAX + 1,
        ),
        (DEBOX_MSG_ACCOUNT, details, 99),
        (DEBOX_MSG_ACCOUNT, DEBOX_REQ_BOUNDARY | DEBOX_REQ_ON_CPU, 99),
        (DEBOX_MSG_SLOTS, 0, 99),
    ] {
        let (reply, fds) = broker.client().ask(&request(kind, flags, hz));
        assert_eq!((reply.status, fds.len()), (-libc::EINVAL, 0), "{hz}");
    }
    let client = broker.client();
    let functions = debox_request::new(DEBOX_MSG_KERNEL_FUNCTIONS, 0);
    let (reply, _) = client.ask(&functions);
    assert_eq!(reply.status, -libc::ENOENT, "without an account");
    let (reply, fds) = client.ask(&debox_request::account(details, 99));
    assert_eq!((reply.status, fds.len()), (0, 10), "{}", reply.text());
    let (reply, fds) = client.ask(&functions);
    assert_eq!((reply.status, fds.len()), (0, 1), "{}", reply.text());
    let mut bytes = vec![0; 4096];
    let length = rustix::io::pread(&fds[0], &mut bytes, 0).unwrap();
    // Of two functions one has a name.
    assert_eq!(&bytes[..length], b"7\tpipe_read\n");
    assert!(rustix::io::pwrite(&fds[0], b"x", 0).is_err());
}

/// They come once, in the order of their numbers, in one file for all who may read
/// the same.
#[test]
fn the_links_of_chains_are_one_piece_of_memory() {
    let broker = Running::new();
    let client = broker.client();
    let (reply, _) = client.ask(&debox_request::new(DEBOX_MSG_CHAINS, 0));
    assert_eq!(reply.status, -libc::ENOENT, "without an account");
    client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let link = |parent, tid| debox_chain {
        kind: DEBOX_CHAIN_SLEEP,
        parent,
        tid,
        ..debox_chain::zeroed()
    };
    let ask = || {
        let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_CHAINS, 0));
        assert_eq!((reply.status, fds.len()), (0, 1), "{}", reply.text());
        fds.into_iter().next().unwrap()
    };
    let parents = |fd: &OwnedFd| -> Vec<u32> {
        let mut bytes = vec![0; 4096];
        let length = rustix::io::pread(fd, &mut bytes, 0).unwrap();
        let links = bytes[..length].chunks_exact(size_of::<debox_chain>());
        links
            .map(|bytes| debox_chain::read_from(bytes).unwrap().parent)
            .collect()
    };
    broker.kernel.state().chains = vec![link(0, 7), link(1, 8)];
    let first = ask();
    assert_eq!(parents(&first), [0, 1]);
    broker.kernel.state().chains.push(link(2, 9));
    let second = ask();
    assert_eq!(parents(&second), [0, 1, 2]);
    assert_eq!(parents(&first), [0, 1, 2], "the same file");
    assert!(rustix::io::pwrite(&second, b"x", 0).is_err());
    assert!(rustix::fs::ftruncate(&second, 0).is_err());
}

#[test]
fn descriptors_that_are_not_read_are_its_users() {
    if !common::needs::root() {
        return;
    }
    let limits = Limits::default();
    let broker = Running::with(
        Config {
            limits: Limits {
                total: Shares {
                    in_flight: 7,
                    ..limits.total
                },
                ..limits
            },
            ..Config::default()
        },
        FakeKernel::new(),
    );
    let slots = debox_request::new(DEBOX_MSG_SLOTS, 0);
    let unread: Vec<Client> = (0..3).map(|_| broker.client()).collect();
    for client in &unread {
        client.send(slots.as_bytes()).unwrap();
    }
    broker.kernel.wait_held((3, 0));
    let status = debox_request::new(DEBOX_MSG_STATUS, 0);
    let other = broker.client();
    assert_eq!(other.ask(&status).0.status, 0);
    let mut refused = None;
    wait_for("nine descriptors in flight", || {
        let (reply, _) = broker.client().ask(&slots);
        refused = (reply.status != 0).then_some(reply);
        refused.is_some()
    });
    let refused = refused.unwrap();
    assert_eq!(refused.status, -libc::ETOOMANYREFS);
    assert!(
        refused.text().contains("unread replies"),
        "{}",
        refused.text()
    );
    // What carries none is served; and reading makes room.
    assert_eq!(other.ask(&status).0.status, 0);
    unread[0].reply();
    assert_eq!(other.ask(&slots).0.status, 0);
    // Hanging up on the broker's side does not: they still lie there.
    unread[1].send(&[1]).unwrap();
    let again = broker.client();
    again.send(slots.as_bytes()).unwrap();
    wait_for("no more than before", || {
        broker.client().ask(&slots).0.status == -libc::ETOOMANYREFS
    });
    drop(unread);
    wait_for("room again", || {
        let (reply, _) = broker.client().ask(&slots);
        reply.status == 0
    });
}

fn sites_of(broker: &Running) {
    let client = broker.client();
    let (_, fds) = client.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, 0));
    let view = View::new(&fds[2], DEBOX_SHARED_SIZE);
    let stack = |id, frame| NewStack {
        id,
        frames: vec![frame, 0xffff_ffff_8100_0000],
        label: 0,
    };
    broker
        .kernel
        .announce(vec![stack(9, 1), stack(4, 1), stack(5, 2)]);
    wait_for("three sites", || {
        [4, 5, 9].iter().all(|&id| view.site(id).is_some())
    });
    let site = view.site(9).unwrap();
    assert_eq!(
        (
            site.label(),
            site.function(),
            site.file(),
            site.line,
            site.offset,
            site.merged,
            site.flags
        ),
        ("pipe-read", "pipe_read", "fs/pipe.c", 345, 7, 4, 0)
    );
    assert_eq!(view.site(4).unwrap().merged, 4);
    let plain = view.site(5).unwrap();
    assert_eq!((plain.merged, plain.flags), (5, DEBOX_SITE_FLAG_UNLABELLED));
    assert_eq!((plain.file(), plain.line), ("", 0));
    assert!(view.site(0).is_none());
    assert_eq!(view.shared().site_count, 10);
    wait_for("the kernel side to be told", || {
        broker.kernel.state().merged.len() == 3
    });
    assert_eq!(broker.kernel.state().merged, [(4, 4), (5, 5), (9, 4)]);

    // A name that is an address, a number that is taken, one out of range.
    broker.kernel.announce(vec![
        stack(12, 0xffff_ffff_8123_4567),
        stack(4, 2),
        stack(DEBOX_SITES_MAX as u32, 1),
        stack(u32::MAX, 1),
        stack(DEBOX_SITES_MAX as u32 - 1, 1),
    ]);
    wait_for("the last site", || view.site(DEBOX_SITES_MAX - 1).is_some());
    let hidden = view.site(12).unwrap();
    assert_eq!(
        (hidden.label(), hidden.function()),
        ("[unknown]", "[unknown]")
    );
    assert_eq!(
        view.site(4).unwrap().label(),
        "pipe-read",
        "a published site never changes"
    );
    // SAFETY: the whole mapping is readable.
    let bytes = unsafe { std::slice::from_raw_parts(view.base.cast::<u8>(), DEBOX_SHARED_SIZE) };
    for window in bytes.windows(4) {
        assert_ne!(
            window,
            0xffff_ffff_u32.to_ne_bytes(),
            "half of a kernel address"
        );
    }
}

#[test]
fn new_stacks_become_sites() {
    sites_of(&Running::new());
}

#[test]
fn new_stacks_are_fetched_where_they_are_not_announced() {
    sites_of(&Running::with(Config::default(), FakeKernel::mute()));
}

#[test]
fn private_broker_serves_and_goes() {
    let kernel = FakeKernel::new();
    let made = kernel.clone();
    let private = debox_broker::Private::start_with(move || Ok((made, FakeResolver))).unwrap();
    let path = private.socket_path().to_owned();
    let client = Client::connect(&path);
    assert_eq!(
        client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0)).0.status,
        0
    );
    private.stop().unwrap();
    kernel.wait_held((0, 0));
    assert!(client.closed());
    assert!(!path.parent().unwrap().exists());
}

#[test]
fn private_broker_that_cannot_start_says_why() {
    let error = debox_broker::Private::start_with(|| -> Result<(FakeKernel, FakeResolver), _> {
        Err(not_permitted().into())
    })
    .err()
    .expect("refused");
    assert_eq!(error.to_string(), not_permitted().to_string());
    assert_eq!(error.errno(), libc::EPERM);
}
