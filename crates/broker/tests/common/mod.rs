// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do the tests put on both sides of the broker?
//!
//! A kernel side made of memfds that remembers everything it was asked, a
//! resolver that names stacks after their first frame, a broker in a thread,
//! and a client that can also misbehave.
#![allow(dead_code)]

#[path = "../../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../../tests/needs.rs"]
pub mod needs;

use debox_abi::{Pod, debox_reply, debox_request};
use debox_broker::{Access, Broker, Config, Control, Listener, SiteResolver};
use debox_client::packet;
use debox_labels::{LabelTable, Rules};
use debox_probe::{
    Account, AccountOptions, Bound, Boundary, Costs, Counters, Details, Error, Join, Kernel,
    NewStack, Refused, RunTime, Segment, SegmentOptions, Trace, TraceOptions, TraceTarget,
    WatchedTest, Watcher, Whom,
};
use debox_symbol::Site;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub const FEATURES: u64 = 0b1010;
/// The mark of the descriptor that stands for the kernel's statistics.
pub const STATISTICS: u64 = 0x57a7;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeSegment {
    pub tgid: u32,
    pub uid: u32,
    pub boundary: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeAccount {
    pub uid: u32,
    pub watcher: Watcher,
    pub boundary: bool,
    pub joins: Vec<(u32, bool)>,
    pub leaves: Vec<u32>,
    pub boundaries: Vec<Boundary>,
    pub selects: Vec<Whom>,
    pub yields: u32,
}

#[derive(Default)]
pub struct State {
    pub segments: HashMap<u32, FakeSegment>,
    pub accounts: HashMap<u32, FakeAccount>,
    pub created: u64,
    pub released_twice: u64,
    pub merged: Vec<(u32, u32)>,
    pub waiting: Vec<NewStack>,
    pub chains: Vec<debox_abi::debox_chain>,
    pub away: Vec<debox_abi::debox_away>,
    /// Nobody is told until this is off; which accounts have been, in order.
    pub away_slow: bool,
    pub away_told: Vec<u32>,
    pub label_tables: u32,
    pub fail_next: Option<Error>,
    /// Killed and reaped while it is bound.
    pub dies_in_join: Option<std::process::Child>,
    /// Accounts are not made until this is off; `at_work` while one waits.
    pub slow: bool,
    pub at_work: bool,
    /// Unwind tables are not ready until these are called.
    pub hold_tables: bool,
    pub tables: Vec<Box<dyn FnOnce() + Send>>,
    /// Pieces of memory that somebody keeps.
    pub kept: Vec<u32>,
    /// Processes that are watched, as far as the broker can see.
    pub watched: Vec<u32>,
    /// Of its maps; None: it cannot say.
    pub tables_bytes: Option<u64>,
    /// Why it has no statistics.
    pub no_statistics: Option<String>,
    next: u32,
}

#[derive(Clone)]
pub struct FakeKernel {
    pub state: Arc<Mutex<State>>,
    event: Option<Arc<OwnedFd>>,
}

impl FakeKernel {
    pub fn new() -> Self {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self {
            state: Arc::default(),
            event: Some(Arc::new(event)),
        }
    }

    /// One that cannot announce new stacks.
    pub fn mute() -> Self {
        Self {
            event: None,
            ..Self::new()
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn announce(&self, stacks: Vec<NewStack>) {
        self.state().waiting.extend(stacks);
        if let Some(event) = &self.event {
            rustix::io::write(&**event, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// (segments, accounts) that are held now.
    pub fn held(&self) -> (usize, usize) {
        let state = self.state();
        (state.segments.len(), state.accounts.len())
    }

    pub fn wait_held(&self, wanted: (usize, usize)) {
        wait_for(&format!("kernel side to hold {wanted:?}"), || {
            self.held() == wanted
        });
    }
}

pub fn wait_for(what: &str, check: impl FnMut() -> bool) {
    wait_or_say(check, || what.to_owned());
}

/// For what; it may look what there is instead.
pub fn wait_or_say(mut check: impl FnMut() -> bool, what: impl Fn() -> String) {
    let until = Instant::now() + Duration::from_secs(60);
    while !check() {
        assert!(Instant::now() < until, "waited 60 s for {}", what());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A map: its first bytes say whose it is.
fn map(mark: u64, size: usize, frozen: bool) -> OwnedFd {
    let fd =
        rustix::fs::memfd_create("map", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size as u64).unwrap();
    rustix::io::pwrite(&fd, &mark.to_ne_bytes(), 0).unwrap();
    if frozen {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL).unwrap();
    }
    fd
}

pub fn mark_of(fd: impl AsFd) -> u64 {
    let mut bytes = [0u8; 8];
    assert_eq!(rustix::io::pread(fd, &mut bytes, 0).unwrap(), 8);
    u64::from_ne_bytes(bytes)
}

/// What a kernel says to a broker without privileges.
pub fn not_permitted() -> Error {
    Error::Bpf {
        action: "loading the BPF programs",
        message: "needs CAP_BPF".to_owned(),
        errno: libc::EPERM,
    }
}

/// What the real kernel side asks, as far as the tests over this one need it.
fn may_see(watcher: &Watcher, tgid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{tgid}/status")).unwrap_or_default();
    let mut ids = status.lines().filter_map(|line| line.strip_prefix("Uid:"));
    watcher.privileged
        || ids.all(|ids| {
            let mut ids = ids.split_ascii_whitespace();
            ids.all(|id| id == watcher.uid.to_string())
        })
}

impl Kernel for FakeKernel {
    fn segment_create(
        &mut self,
        tgid: u32,
        watcher: Watcher,
        options: SegmentOptions,
    ) -> Result<Segment, Error> {
        let mut state = self.state();
        if let Some(error) = state.fail_next.take() {
            return Err(error);
        }
        let id = state.next;
        state.next += 1;
        state.created += 1;
        state.segments.insert(
            id,
            FakeSegment {
                tgid,
                uid: watcher.uid,
                boundary: options.boundary,
            },
        );
        let mark = u64::from(tgid) << 32 | u64::from(id);
        Ok(Segment {
            id,
            record: map(mark, 32 * 4096, true),
            control: map(mark, 32 * 4096, false),
            threads: 3,
            memory: vec![id],
        })
    }

    fn segment_release(&mut self, id: u32) {
        let mut state = self.state();
        if state.segments.remove(&id).is_none() {
            state.released_twice += 1;
        }
    }

    fn user_stacks_prepare(&mut self, _uid: u32, _pid: u32, ready: Box<dyn FnOnce() + Send>) {
        let mut state = self.state();
        if state.hold_tables {
            state.tables.push(ready);
        } else {
            ready();
        }
    }

    fn watched_test(&self) -> WatchedTest {
        let state = self.state.clone();
        Box::new(move |pidfd| {
            let info = format!(
                "/proc/self/fdinfo/{}",
                std::os::fd::AsRawFd::as_raw_fd(&pidfd)
            );
            let info = std::fs::read_to_string(info).unwrap();
            let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
            let pid = pid.and_then(|pid| pid.trim().parse().ok());
            pid.is_some_and(|pid| state.lock().unwrap().watched.contains(&pid))
        })
    }

    fn account_create(
        &mut self,
        watcher: Watcher,
        options: AccountOptions,
    ) -> Result<Account, Error> {
        while self.state().slow {
            self.state().at_work = true;
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut state = self.state();
        state.at_work = false;
        if let Some(error) = state.fail_next.take() {
            return Err(error);
        }
        let id = state.next;
        state.next += 1;
        state.created += 1;
        state.accounts.insert(
            id,
            FakeAccount {
                uid: watcher.uid,
                watcher,
                boundary: options.boundary,
                joins: Vec::new(),
                leaves: Vec::new(),
                boundaries: Vec::new(),
                selects: Vec::new(),
                yields: 0,
            },
        );
        Ok(Account {
            id,
            account: map(u64::from(id), 4096, true),
            cpus_map: map(u64::from(id), 4096, true),
            cpus: 2,
            cpu_stride: 463_872,
            memory: vec![id],
            details: options.details.then(|| Details {
                details: map(u64::from(id), 4096, true),
                events: map(u64::from(id), 4096, true),
                control: map(u64::from(id), 4096, false),
                chains: map(u64::from(id), 4096, true),
                objects: map(u64::from(id), 4096, true),
                on_cpu: (options.on_cpu_hz > 0).then(|| map(u64::from(id), 4096, true)),
                lives: map(u64::from(id), 4096, true),
            }),
        })
    }

    fn account_join(&mut self, id: u32, tgid: u32, join: Join) -> Result<Bound, Error> {
        let mut state = self.state();
        if let Some(error) = state.fail_next.take() {
            return Err(error);
        }
        let account = state
            .accounts
            .get_mut(&id)
            .expect("the broker joins only what it holds");
        if !may_see(&account.watcher, tgid) {
            return Err(Error::Refused {
                pid: tgid,
                watcher: account.watcher,
                why: Refused::Ids,
            });
        }
        account.joins.push((tgid, join.follow));
        if let Some(mut child) = state.dies_in_join.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        Ok(Bound {
            threads: 5,
            processes: 1,
        })
    }

    fn account_select(&mut self, id: u32, whom: &Whom) -> Result<Bound, Error> {
        let mut state = self.state();
        if let Some(error) = state.fail_next.take() {
            return Err(error);
        }
        let account = state.accounts.get_mut(&id).expect("held");
        account.selects.push(whom.clone());
        Ok(Bound {
            threads: 7,
            processes: 2,
        })
    }

    fn account_yield(&mut self, id: u32) {
        let mut state = self.state();
        let account = state.accounts.get_mut(&id).expect("held");
        account.yields += 1;
    }

    fn account_boundary(&mut self, id: u32, whose: Boundary) -> Result<u32, Error> {
        let mut state = self.state();
        let account = state.accounts.get_mut(&id).expect("held");
        account.boundaries.push(whose);
        Ok(1)
    }

    fn account_leave(&mut self, id: u32, tgid: u32) {
        let mut state = self.state();
        let account = state.accounts.get_mut(&id).expect("held");
        account.leaves.push(tgid);
    }

    fn account_release(&mut self, id: u32) {
        let mut state = self.state();
        if state.accounts.remove(&id).is_none() {
            state.released_twice += 1;
        }
    }

    fn away(&mut self, id: u32) -> Result<Vec<debox_abi::debox_away>, Error> {
        while self.state().away_slow {
            self.state().at_work = true;
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut state = self.state();
        state.at_work = false;
        assert!(state.accounts.contains_key(&id), "held");
        state.away_told.push(id);
        Ok(state.away.clone())
    }

    fn on_cpu_functions(&mut self, id: u32) -> Vec<(u32, u64)> {
        let state = self.state();
        assert!(state.accounts.contains_key(&id), "held");
        vec![(7, 1), (9, 2)]
    }

    fn memory_held(&mut self, memory: &[u32]) -> Vec<u32> {
        let state = self.state();
        memory
            .iter()
            .copied()
            .filter(|id| state.kept.contains(id))
            .collect()
    }

    fn due(&self) -> Option<Duration> {
        None
    }

    fn chains(&mut self, from: u32) -> Vec<debox_abi::debox_chain> {
        let links = self.state().chains.clone();
        links.into_iter().skip(from as usize - 1).collect()
    }

    fn labels_set(&mut self, table: &LabelTable, numbers: &[u8]) -> Result<(), Error> {
        assert_eq!(table.labels.len(), numbers.len());
        self.state().label_tables += 1;
        Ok(())
    }

    fn trace_start(
        &mut self,
        _id: u32,
        _target: TraceTarget,
        _options: TraceOptions,
    ) -> Result<Trace, Error> {
        Err(Error::Kernel {
            action: "trace functions",
            source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        })
    }

    fn trace_stop(&mut self, _id: u32) {}
    fn trace_release(&mut self, _id: u32) {}

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(|fd| fd.as_fd())
    }

    fn new_stacks(&mut self) -> Vec<NewStack> {
        if let Some(event) = &self.event {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&**event, &mut count);
        }
        std::mem::take(&mut self.state().waiting)
    }

    fn site_merged(&mut self, id: u32, merged: u32) {
        self.state().merged.push((id, merged));
    }

    fn features(&self) -> u64 {
        let (segments, accounts) = self.held();
        if segments + accounts > 0 { FEATURES } else { 0 }
    }

    fn counters(&self) -> Counters {
        Counters {
            site_walks: 11,
            site_hits: 22,
            site_mismatches: 33,
            site_failures: 44,
            storage_failures: 55,
            slots_exhausted: 66,
            switches_hidden: 77,
        }
    }

    fn costs(&self, run_time: bool) -> Costs {
        let state = self.state();
        let taken = || match &state.no_statistics {
            Some(why) => Err(why.clone()),
            None => Ok(RunTime {
                ns: 1_500,
                statistics: Some(map(STATISTICS, 4096, false)),
            }),
        };
        Costs {
            tables_bytes: state.tables_bytes,
            run_time: run_time.then(taken),
        }
    }
}

/// Frame 1 is `pipe_read`, frame 2 something without a rule, others unknown.
pub struct FakeResolver;

impl SiteResolver for FakeResolver {
    fn label_table(&mut self) -> Option<LabelTable> {
        Rules::builtin().table([(1, Some("pipe_read"))].into_iter())
    }

    fn function(&mut self, address: u64) -> Option<String> {
        (address == 1).then(|| "pipe_read".to_owned())
    }

    fn symbols_serial(&self) -> u64 {
        1
    }

    fn resolve(&mut self, frames: &[u64]) -> Site {
        let text = |label: &str, function: &str, line, labelled| Site {
            label: label.to_owned(),
            function: function.to_owned(),
            offset: 7,
            file: if line > 0 {
                "fs/pipe.c".to_owned()
            } else {
                String::new()
            },
            line,
            labelled,
            grace_period: false,
            group: if labelled {
                "input".to_owned()
            } else {
                String::new()
            },
            frames: vec![function.to_owned(), "entry".to_owned()],
        };
        match frames.first() {
            Some(1) => text("pipe-read", "pipe_read", 345, true),
            Some(2) => text("do_something", "do_something", 0, false),
            Some(&address) => {
                let name = format!("{address:#018x}");
                text(&name, &name, 0, false)
            }
            None => text("no-stack", "", 0, false),
        }
    }

    fn reload(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// A broker in a thread of the test.
pub struct Running {
    pub kernel: FakeKernel,
    pub path: PathBuf,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Running {
    pub fn new() -> Self {
        Self::with(Config::default(), FakeKernel::new())
    }

    pub fn with(config: Config, kernel: FakeKernel) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        // For helpers of other user ids.
        std::fs::set_permissions(
            dir.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o711),
        )
        .unwrap();
        let mut listener = Listener::bind(&path, Access::Everybody).unwrap();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let stopped = stop.clone();
        let served = kernel.clone();
        let (ready_tx, ready_rx) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let fd = listener.take_fd().unwrap();
            let held = fd.try_clone().unwrap();
            let mut broker = Broker::new(config, served, FakeResolver, fd).unwrap();
            ready_tx.send(held).unwrap();
            broker.run(stopped.as_fd(), || Control::Stop).unwrap();
        });
        let listener = ready_rx.recv().expect("the broker starts");
        Self {
            kernel,
            path,
            listener,
            stop,
            thread: Some(thread),
            _dir: dir,
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.path)
    }

    /// From now on descriptors reach the broker, as they do before Linux 6.16 and
    /// from whoever connected to a socket before it was handed over. False when
    /// the kernel knows nothing else.
    pub fn let_descriptors_in(&self) -> bool {
        const SO_PASSRIGHTS: libc::c_int = 83;
        let on: libc::c_int = 1;
        // SAFETY: the value is a local of the size that is given.
        let set = unsafe {
            let (fd, value) = (self.listener.as_raw_fd(), (&raw const on).cast());
            libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, value, 4)
        };
        let error = io::Error::last_os_error();
        assert!(
            set == 0 || error.raw_os_error() == Some(libc::ENOPROTOOPT),
            "{error}"
        );
        set == 0
    }

    pub fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).unwrap();
            thread.join().expect("the broker did not panic");
        }
    }

    /// A good client still gets everything: slots, account, join, status.
    pub fn serves_well(&self) {
        let client = self.client();
        let (reply, fds) = client.ask(&debox_request::new(debox_abi::DEBOX_MSG_SLOTS, 0));
        assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
        let (reply, fds) = client.ask(&debox_request::new(debox_abi::DEBOX_MSG_ACCOUNT, 0));
        assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
        let (reply, _) = client.ask(&debox_request::new(debox_abi::DEBOX_MSG_STATUS, 0));
        assert_eq!(reply.status, 0, "{}", reply.text());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
            assert_eq!(self.kernel.held(), (0, 0), "all is given back at the end");
            assert_eq!(
                self.kernel.state().released_twice,
                0,
                "nothing is given back twice"
            );
        }
    }
}

pub enum Answer {
    Reply(Box<debox_reply>, Vec<OwnedFd>),
    Closed,
}

pub struct Client(pub OwnedFd);

impl Client {
    pub fn connect(path: &Path) -> Self {
        Self::try_connect(path).unwrap()
    }

    pub fn try_connect(path: &Path) -> io::Result<Self> {
        let socket = packet::connect(path, true)?;
        packet::patience_set(&socket, Duration::from_secs(10), Duration::from_secs(10));
        Ok(Self(socket))
    }

    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_with(bytes, &[])
    }

    pub fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd]) -> io::Result<()> {
        packet::send(self.0.as_raw_fd(), bytes, fds)
    }

    pub fn receive(&self) -> Answer {
        let mut reply = debox_reply::zeroed();
        let got = match packet::receive(self.0.as_raw_fd(), reply.as_bytes_mut()) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                panic!("a reply was lost to a reset")
            }
            Err(error) => panic!("no answer: {error}"),
        };
        if got.length == 0 {
            return Answer::Closed;
        }
        assert_eq!(got.length, size_of::<debox_reply>());
        assert_eq!(reply.size as usize, size_of::<debox_reply>());
        assert_eq!(reply.version, 1);
        assert_eq!(reply.fds as usize, got.fds.len());
        Answer::Reply(Box::new(reply), got.fds)
    }

    pub fn reply(&self) -> (debox_reply, Vec<OwnedFd>) {
        match self.receive() {
            Answer::Reply(reply, fds) => (*reply, fds),
            Answer::Closed => panic!("closed instead of a reply"),
        }
    }

    pub fn ask(&self, request: &debox_request) -> (debox_reply, Vec<OwnedFd>) {
        self.send(request.as_bytes()).unwrap();
        let (reply, fds) = self.reply();
        assert_eq!(reply.kind, request.kind);
        (reply, fds)
    }

    pub fn closed(&self) -> bool {
        matches!(self.receive(), Answer::Closed)
    }
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
