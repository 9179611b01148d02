// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did the interposers in the command's processes count?
//!
//! Each process connects and hands over a sealed memfd that it goes on writing
//! to. It is read once, when the connection closes. Those processes are not
//! trusted: sizes and seals are checked before anything is read, reads are
//! bounded copies, and no value read is used as an index or a length.
//!
//! Nobody else finds the socket: its directory has a secret name, in one that
//! only its owner may list, and /proc/net/unix is not told of either. Only the
//! command's environment is, which the kernel shows to whom ptrace may read. Who
//! connects all the same must be one of the command's (kin.rs).

use crate::call_site::Modules;
use crate::error::Error;
use crate::kin::{Kin, peer_of};
use debox_abi::*;
use debox_client::packet;
use debox_report::{WrapCounts, WrapProcess};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What the interposer asks for at most.
const STRIPES_MAX: u32 = 128;
const PREFIX: &str = "debox-";
const SOCKET: &str = "collect";
/// A younger directory may be about to be listened in.
const SWEEP_AGE: Duration = Duration::from_secs(60);
/// Connections at one time; more wait in the socket's queue.
const LIVE_MAX: usize = 16384;
/// Closing a descriptor that a process sent may take as long as it likes (a
/// socket with SO_LINGER): what was collected is then given up.
const FINISH_MAX: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 60 });
/// Refusals that are told one by one.
const REFUSALS_MAX: usize = 8;

/// Calls that the threads of a stripe may be in the middle of counting.
const UNDER_WAY: u64 = 64;

/// Everything that was collected.
pub struct Collected {
    pub counts: WrapCounts,
    /// Nothing was counted before.
    since: Instant,
    /// Where the code of process n of `counts` lay.
    pub modules: Vec<Option<Modules>>,
    /// Processes that still ran at the end.
    pub live: usize,
    refusals: usize,
}

pub struct Collector {
    /// Removes directory and socket when dropped.
    _directory: tempfile::TempDir,
    path: PathBuf,
    /// Closed to end it.
    stop: UnixStream,
    result: Receiver<Collected>,
}

struct Live {
    socket: OwnedFd,
    pid: u32,
    modules: Option<Modules>,
    memory: Option<(File, u32)>,
}

fn last() -> io::Error {
    io::Error::last_os_error()
}

/// The socket before anybody serves it.
struct Listener {
    directory: tempfile::TempDir,
    path: PathBuf,
    socket: OwnedFd,
}

impl Listener {
    fn open() -> io::Result<Self> {
        sweep(&std::env::temp_dir());
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        // Processes that drop privileges after the start must get through to
        // the socket, but need not list the directory.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o711))?;
        let hidden = directory.path().join(secret()?);
        std::fs::create_dir(&hidden)?;
        std::fs::set_permissions(&hidden, PermissionsExt::from_mode(0o711))?;
        let path = hidden.join(SOCKET);
        // Too long for the environment is too long here.
        packet::path_fits(&path)?;
        // Bound by a name that tells nothing: everybody can read it.
        let hidden = File::open(&hidden)?;
        let name = format!("/proc/self/fd/{}/{SOCKET}", hidden.as_raw_fd());
        let socket = packet::bind(Path::new(&name), false)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
        packet::listen(&socket, 4096)?;
        descriptors_raise();
        Ok(Self {
            directory,
            path,
            socket,
        })
    }
}

impl Collector {
    pub fn start(call_sites: bool) -> Result<Self, Error> {
        let failed = Error::system("preparing the socket that the interposers report to");
        Listener::open()
            .and_then(|listener| Self::over(listener, call_sites))
            .map_err(failed)
    }

    fn over(listener: Listener, call_sites: bool) -> io::Result<Self> {
        let (stop, stopped) = UnixStream::pair()?;
        let Listener {
            directory,
            path,
            socket,
        } = listener;
        let (sender, result) = channel();
        std::thread::Builder::new()
            .name("debox-collect".into())
            .spawn(move || {
                // Nobody listens any more: it was given up.
                let _ = sender.send(collect(&socket, &stopped, call_sites));
            })?;
        Ok(Self {
            _directory: directory,
            path,
            stop,
            result,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends collecting: what still lives is read as it is.
    pub fn finish(self) -> Collected {
        drop(self.stop);
        self.result.recv_timeout(FINISH_MAX).unwrap_or_else(|error| {
            let mut collected = Collected::new();
            collected.refuse(match error {
                RecvTimeoutError::Timeout => format!(
                    "what all of them counted is lost: one sent a descriptor that could not be closed within {} s",
                    FINISH_MAX.as_secs()
                ),
                RecvTimeoutError::Disconnected => {
                    "the collecting thread of debox failed; please report this".into()
                }
            });
            collected
        })
    }
}

/// A name that cannot be guessed.
fn secret() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    // SAFETY: fills a local of that size; so few bytes come whole.
    if unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } != 16 {
        return Err(last());
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Removes what collectors left behind that were killed: directories of ours
/// with nothing in them but a directory with a socket that nobody listens on.
fn sweep(parent: &Path) {
    // SAFETY: no memory involved.
    let own_uid = unsafe { libc::geteuid() };
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        // DirEntry::metadata does not follow a symbolic link.
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|meta| {
                meta.is_dir()
                    && meta.uid() == own_uid
                    && meta
                        .modified()
                        .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > SWEEP_AGE))
            });
        if !ours {
            continue;
        }
        for hidden in std::fs::read_dir(entry.path())
            .into_iter()
            .flatten()
            .flatten()
        {
            let socket = hidden.path().join(SOCKET);
            if is_abandoned(&socket) {
                let _ = std::fs::remove_file(&socket);
                let _ = std::fs::remove_dir(hidden.path());
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

/// A socket on which nobody listens any more.
fn is_abandoned(path: &Path) -> bool {
    if !std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        return false;
    }
    packet::connect(path, false)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Each live process costs two descriptors.
fn descriptors_raise() {
    // SAFETY: fills and reads a local. Refusal costs nothing but room.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max
        {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    fn new() -> io::Result<Self> {
        // SAFETY: owned at once.
        unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(last());
            }
            Ok(Self {
                epoll: OwnedFd::from_raw_fd(fd),
            })
        }
    }

    fn add(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: fd as u64,
        };
        // SAFETY: a valid event; closing the descriptor removes it again.
        if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) }
            != 0
        {
            return Err(last());
        }
        Ok(())
    }

    fn wait(&self) -> Vec<RawFd> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: a valid array of its length.
        let got = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 64, -1) };
        events[..got.max(0) as usize]
            .iter()
            .map(|e| e.u64 as RawFd)
            .collect()
    }
}

fn collect(listener: &OwnedFd, stop: &UnixStream, call_sites: bool) -> Collected {
    let stop = stop.as_raw_fd();
    let mut collected = Collected::new();
    let poller = match Poller::new().and_then(|p| {
        p.add(stop)
            .and_then(|()| p.add(listener.as_raw_fd()))
            .map(|()| p)
    }) {
        Ok(poller) => poller,
        Err(e) => {
            collected.refuse(format!("nothing could be collected: {e}"));
            return collected;
        }
    };
    let mut live: HashMap<RawFd, Live> = HashMap::new();
    let mut kin = Kin::new();
    let mut stopping = false;
    loop {
        let ready = if stopping { Vec::new() } else { poller.wait() };
        stopping |= ready.contains(&stop);
        // First what is queued: a process may have connected, counted and
        // ended before we looked.
        while live.len() < LIVE_MAX {
            match accept(listener, &mut kin) {
                Ok(Some(Err(why))) => collected.refuse(why),
                Ok(Some(Ok(connection))) => {
                    let fd = connection.socket.as_raw_fd();
                    match poller.add(fd) {
                        Ok(()) => {
                            live.insert(fd, connection);
                        }
                        Err(e) => collected.refuse(format!("process {}: {e}", connection.pid)),
                    }
                }
                Ok(None) => break,
                Err(e) => {
                    collected.refuse(e.to_string());
                    break;
                }
            }
        }
        let fds: Vec<RawFd> = if stopping {
            live.keys().copied().collect()
        } else {
            ready
        };
        for fd in fds {
            let Some(connection) = live.get_mut(&fd) else {
                continue;
            };
            match connection.advance(call_sites) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(done) = live.remove(&fd) {
                        collected.fold(done);
                    }
                }
                Err(why) => {
                    let pid = connection.pid;
                    live.remove(&fd);
                    collected.refuse(format!("process {pid}: {why}"));
                }
            }
        }
        if stopping {
            for (_, connection) in live.drain() {
                if connection.memory.is_some() {
                    collected.live += 1;
                }
                collected.fold(connection);
            }
            return collected;
        }
    }
}

/// None: nobody waits. What a refused process has sent is not looked at.
fn accept(listener: &OwnedFd, kin: &mut Kin) -> io::Result<Option<Result<Live, String>>> {
    let socket = match packet::accept(listener, false) {
        Ok(socket) => socket,
        Err(error) => {
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
    };
    let peer = peer_of(&socket)?;
    let pid = peer.pid;
    Ok(Some(kin.admit(peer).map(|()| Live {
        socket,
        pid,
        modules: None,
        memory: None,
    })))
}

impl Live {
    /// Takes what has arrived; false at hang-up.
    fn advance(&mut self, call_sites: bool) -> Result<bool, String> {
        loop {
            let mut packet = debox_collect::zeroed();
            let got = match packet::receive(self.socket.as_raw_fd(), packet.as_bytes_mut()) {
                Ok(received) => received,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(true),
                    Some(libc::ECONNRESET) => return Ok(false),
                    _ => return Err(e.to_string()),
                },
            };
            if got.length == 0 {
                return Ok(false);
            }
            if self.memory.is_some() {
                return Err("it sent a second message".into());
            }
            if got.cut
                || got.length != size_of::<debox_collect>()
                || packet.size as usize != size_of::<debox_collect>()
            {
                return Err("its message has a wrong size".into());
            }
            if packet.version != DEBOX_PROTOCOL_VERSION {
                return Err(format!(
                    "libdebox-wrap.so speaks version {}, this debox version {DEBOX_PROTOCOL_VERSION}: \
                     install the same release of both",
                    packet.version
                ));
            }
            let Ok([memory]) = <[OwnedFd; 1]>::try_from(got.fds) else {
                return Err("exactly one descriptor must come along".into());
            };
            let memory = File::from(memory);
            memory_check(&memory, &packet)?;
            if call_sites {
                self.modules = Modules::of_process(self.pid);
            }
            self.memory = Some((memory, packet.stripes));
        }
    }
}

/// Only a memfd that can neither shrink nor grow is read: then every offset
/// below is inside of it for good.
pub(crate) fn memory_check(memory: &File, packet: &debox_collect) -> Result<(), String> {
    if packet.stripes == 0 {
        return Err(
            "its limit of file sizes (RLIMIT_FSIZE, `ulimit -f`) leaves no room for counters; \
             raise it, or leave out --capture=wrap"
                .into(),
        );
    }
    // SAFETY: no memory involved.
    let seals = unsafe { libc::fcntl(memory.as_raw_fd(), libc::F_GET_SEALS) };
    let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    if seals < 0 || seals & wanted != wanted {
        return Err("its memory is not a memfd sealed against shrinking and growing".into());
    }
    if packet.stripe_size as usize != size_of::<debox_wrap_stripe>() || packet.stripes > STRIPES_MAX
    {
        return Err(format!(
            "it announced {} stripes of {} bytes",
            packet.stripes, packet.stripe_size
        ));
    }
    let needed =
        DEBOX_PAGE_SIZE as u64 + u64::from(packet.stripes) * size_of::<debox_wrap_stripe>() as u64;
    let size = memory.metadata().map_err(|e| e.to_string())?.len();
    if size < needed {
        return Err(format!(
            "its memory holds {size} bytes where {needed} were announced"
        ));
    }
    Ok(())
}

/// Could the threads of a stripe, one after the other, have counted this in that
/// time? A call takes a nanosecond at least; a child of vfork counts into the
/// stripe of its parent, whose call lasts as long.
fn is_believable(stripe: &debox_wrap_stripe, elapsed: Duration) -> bool {
    let calls_max = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    let time_max = calls_max.saturating_mul(4).saturating_add(1_000_000_000);
    let (mut calls, mut time) = (stripe.dropped, stripe.dropped_ns);
    for row in stripe.rows.iter().filter(|row| row.nr().is_some()) {
        let shown = row.hist.iter().fold(0u64, |all, n| all.saturating_add(*n));
        if row.count.abs_diff(shown) > UNDER_WAY || row.errors > row.count.saturating_add(UNDER_WAY)
        {
            return false;
        }
        calls = calls.saturating_add(row.count);
        time = time.saturating_add(row.wall_ns);
        if row.blocked_ns.max(row.runq_ns).max(row.irq_ns) > time_max {
            return false;
        }
    }
    calls <= calls_max && stripe.stale <= calls.saturating_add(UNDER_WAY) && time <= time_max
}

impl Collected {
    fn new() -> Self {
        Self::since(Instant::now())
    }

    pub(crate) fn since(since: Instant) -> Self {
        Self {
            counts: WrapCounts::default(),
            since,
            modules: Vec::new(),
            live: 0,
            refusals: 0,
        }
    }

    fn refuse(&mut self, why: String) {
        self.refusals += 1;
        match self.refusals {
            n if n <= REFUSALS_MAX => self.counts.refused_add(why),
            _ => self.counts.refused_more(),
        }
    }

    fn fold(&mut self, done: Live) {
        let Some((memory, stripes)) = done.memory else {
            return;
        };
        if let Err(why) = self.fold_memory(done.pid, &memory, stripes, done.modules) {
            self.refuse(format!("process {}: {why}", done.pid));
        }
    }

    pub(crate) fn fold_memory(
        &mut self,
        pid: u32,
        memory: &File,
        stripes: u32,
        modules: Option<Modules>,
    ) -> Result<(), String> {
        let read = |bytes: &mut [u8], offset: u64| {
            memory
                .read_exact_at(bytes, offset)
                .map_err(|e| e.to_string())
        };
        let mut header = debox_wrap_header::zeroed();
        read(header.as_bytes_mut(), 0)?;
        if header.magic != DEBOX_COLLECT_MAGIC || header.version != DEBOX_PROTOCOL_VERSION {
            return Err("its counters have a wrong header".into());
        }
        let process = self.counts.process_add(WrapProcess {
            pid,
            measured: header.measured == 1,
            why: header.why().to_owned(),
            threads_lost: u64::from(header.threads_lost),
            restricted: header.restricted != 0,
        });
        self.modules.push(modules);
        let mut stripe = debox_wrap_stripe::zeroed_box();
        let head_size = core::mem::offset_of!(debox_wrap_stripe, rows);
        let elapsed = self.since.elapsed();
        let mut unbelievable = 0u32;
        for index in 0..stripes {
            let start =
                DEBOX_PAGE_SIZE as u64 + u64::from(index) * size_of::<debox_wrap_stripe>() as u64;
            let bytes = stripe.as_bytes_mut();
            read(&mut bytes[..head_size], start)?;
            let used = stripe.rows_used != 0;
            let rows = &mut stripe.as_bytes_mut()[head_size..];
            if used {
                read(rows, start + head_size as u64)?;
            } else {
                rows.fill(0);
            }
            if !is_believable(&stripe, elapsed) {
                unbelievable += 1;
                continue;
            }
            self.counts
                .stripe_add(stripe.dropped, stripe.dropped_ns, stripe.stale);
            for row in &stripe.rows {
                self.counts.row_add(process, row);
            }
        }
        if unbelievable > 0 {
            return Err(format!(
                "{unbelievable} of its {stripes} stripes do not add up, or hold more than there was time for"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn memfd(size: u64, seals: i32) -> File {
        // SAFETY: a fresh descriptor, owned at once.
        let file = unsafe {
            File::from_raw_fd(libc::memfd_create(
                c"test".as_ptr(),
                libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC,
            ))
        };
        file.set_len(size).unwrap();
        // SAFETY: no memory involved.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
        assert_eq!(sealed, 0);
        file
    }

    const BOTH: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    const ONE_STRIPE: u64 = (DEBOX_PAGE_SIZE + size_of::<debox_wrap_stripe>()) as u64;

    fn packet() -> debox_collect {
        debox_collect {
            size: size_of::<debox_collect>() as u32,
            version: DEBOX_PROTOCOL_VERSION,
            stripes: 1,
            stripe_size: size_of::<debox_wrap_stripe>() as u32,
            ..Default::default()
        }
    }

    /// Connects as a process would and sends `bytes` with `files`.
    fn connect(path: &Path, bytes: &[u8], files: &[&File]) -> OwnedFd {
        let socket = packet::connect(path, true).unwrap();
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        match packet::send(socket.as_raw_fd(), bytes, &files) {
            Ok(()) => {}
            // It was refused before it had said anything.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(error) => panic!("{error}"),
        }
        socket
    }

    fn counters(nr: u64, wall_ns: u64) -> File {
        let file = memfd(ONE_STRIPE, BOTH);
        let header = debox_wrap_header {
            magic: DEBOX_COLLECT_MAGIC,
            version: DEBOX_PROTOCOL_VERSION,
            measured: 1,
            ..Default::default()
        };
        file.write_all_at(header.as_bytes(), 0).unwrap();
        let mut stripe = debox_wrap_stripe::zeroed_box();
        stripe.rows_used = 1;
        stripe.rows[200] = debox_wrap_row {
            used: 1 << 63 | nr,
            count: 1,
            wall_ns,
            ..Default::default()
        };
        file.write_all_at(stripe.as_bytes(), DEBOX_PAGE_SIZE as u64)
            .unwrap();
        file
    }

    #[test]
    fn counters_are_read_at_hang_up_and_at_the_end() {
        let collector = Collector::start(true).unwrap();
        drop(connect(
            collector.path(),
            packet().as_bytes(),
            &[&counters(0, 10)],
        ));
        let _still_there = connect(collector.path(), packet().as_bytes(), &[&counters(1, 20)]);
        let collected = collector.finish();
        assert_eq!(collected.counts.processes().len(), 2);
        assert_eq!(collected.live, 1);
        assert!(collected.modules.iter().all(Option::is_some));
    }

    #[test]
    fn bad_memory_and_bad_messages_are_refused() {
        let good = counters(0, 1);
        let mut cases: Vec<(Vec<u8>, Vec<File>)> = Vec::new();
        let good_bytes = packet().as_bytes().to_vec();
        cases.push((good_bytes.clone(), vec![]));
        cases.push((
            good_bytes.clone(),
            vec![good.try_clone().unwrap(), good.try_clone().unwrap()],
        ));
        cases.push((good_bytes.clone(), vec![memfd(ONE_STRIPE, 0)]));
        cases.push((
            good_bytes.clone(),
            vec![memfd(ONE_STRIPE, libc::F_SEAL_GROW)],
        ));
        cases.push((good_bytes.clone(), vec![memfd(ONE_STRIPE - 1, BOTH)]));
        cases.push((good_bytes.clone(), vec![memfd(ONE_STRIPE, BOTH)])); // no header
        cases.push((good_bytes.clone(), vec![File::open("/etc/passwd").unwrap()]));
        cases.push((good_bytes.clone(), vec![File::open("/dev/zero").unwrap()]));
        cases.push((good_bytes[..60].to_vec(), vec![good.try_clone().unwrap()]));
        cases.push((
            [&good_bytes[..], b"more"].concat(),
            vec![good.try_clone().unwrap()],
        ));
        for change in [
            |p: &mut debox_collect| p.stripes = u32::MAX,
            |p: &mut debox_collect| p.stripes = 0,
            |p: &mut debox_collect| p.stripe_size = 8,
            |p: &mut debox_collect| p.version = 9,
            |p: &mut debox_collect| p.size = 0,
        ] {
            let mut bad = packet();
            change(&mut bad);
            cases.push((bad.as_bytes().to_vec(), vec![good.try_clone().unwrap()]));
        }
        for (i, (bytes, files)) in cases.iter().enumerate() {
            let collector = Collector::start(false).unwrap();
            let files: Vec<&File> = files.iter().collect();
            drop(connect(collector.path(), bytes, &files));
            let collected = collector.finish();
            assert_eq!(collected.refusals, 1, "case {i}");
            assert!(collected.counts.processes().is_empty(), "case {i}");
        }
    }

    #[test]
    fn what_killed_collectors_left_is_swept() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, socket: &str, old: bool| {
            let directory = parent.path().join(name);
            let hidden = directory.join("0123");
            std::fs::create_dir_all(&hidden).unwrap();
            let listener = std::os::unix::net::UnixListener::bind(hidden.join(socket)).unwrap();
            if old {
                let then = std::time::SystemTime::now() - 2 * SWEEP_AGE;
                File::open(&directory).unwrap().set_modified(then).unwrap();
            }
            (directory, listener)
        };
        let (abandoned, listener) = make("debox-a", SOCKET, true);
        drop(listener);
        let (young, listener) = make("debox-b", SOCKET, false);
        drop(listener);
        let (other, listener) = make("debox-c", "something", true);
        drop(listener);
        let (foreign, listener) = make("else-d", SOCKET, true);
        drop(listener);
        let (live, _listener) = make("debox-e", SOCKET, true);
        sweep(parent.path());
        assert!(!abandoned.exists());
        for kept in [young, other, foreign, live] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }

    #[test]
    fn garbage_counters_are_survived() {
        let file = counters(0, 1);
        let bytes = vec![0xffu8; size_of::<debox_wrap_stripe>()];
        file.write_all_at(&bytes, DEBOX_PAGE_SIZE as u64).unwrap();
        (&file).flush().unwrap();
        let collector = Collector::start(false).unwrap();
        drop(connect(collector.path(), packet().as_bytes(), &[&file]));
        let collected = collector.finish();
        assert_eq!(collected.refusals, 1);
        assert_eq!(collected.counts.calls(), 0);
    }

    /// A socket whose last close waits for a peer that never reads.
    fn lingering() -> (File, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65536]).is_ok() {}
        let linger = libc::linger {
            l_onoff: 1,
            // So that this fails, rather than hangs, where it is waited for.
            l_linger: 60,
        };
        // SAFETY: reads a local of that size.
        let set = unsafe {
            libc::setsockopt(
                near.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of_val(&linger) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        near.set_nonblocking(false).unwrap();
        (File::from(OwnedFd::from(near)), far)
    }

    #[test]
    fn a_descriptor_that_does_not_close_is_not_waited_for() {
        let listener = Listener::open().unwrap();
        let (file, _far) = lingering();
        let _socket = connect(&listener.path, packet().as_bytes(), &[&file]);
        // The message, which nobody has read, holds it.
        drop(file);
        let collector = Collector::over(listener, false).unwrap();
        let begun = Instant::now();
        let collected = collector.finish();
        assert!(begun.elapsed() < 10 * FINISH_MAX);
        assert_eq!(collected.refusals, 1);
    }

    #[test]
    fn counters_that_nobody_had_time_for_are_refused() {
        let changes = [
            |row: &mut debox_wrap_row| row.count = 307_200_000_000,
            |row: &mut debox_wrap_row| {
                row.count = 307_200_000_000;
                row.hist[1] = row.count;
            },
            |row: &mut debox_wrap_row| row.wall_ns = 1 << 60,
            |row: &mut debox_wrap_row| row.blocked_ns = 1 << 60,
            |row: &mut debox_wrap_row| row.errors = 1 << 40,
            |row: &mut debox_wrap_row| row.hist[3] = u64::MAX,
        ];
        for (i, change) in changes.iter().enumerate() {
            let file = counters(0, 1);
            let at = (DEBOX_PAGE_SIZE + core::mem::offset_of!(debox_wrap_stripe, rows)) as u64;
            let mut row = debox_wrap_row {
                used: 1 << 63,
                count: 1,
                wall_ns: 1,
                ..Default::default()
            };
            change(&mut row);
            file.write_all_at(row.as_bytes(), at).unwrap();
            let collector = Collector::start(false).unwrap();
            drop(connect(collector.path(), packet().as_bytes(), &[&file]));
            let collected = collector.finish();
            assert_eq!(collected.refusals, 1, "case {i}");
            assert_eq!(collected.counts.calls(), 0, "case {i}");
        }
    }

    /// A process of the user 65534 that connects and counts: a child, or one that
    /// has lost its parents. (What it runs after fork only makes system calls.)
    fn another_user_counts(path: &Path, orphan: bool) {
        let (counts, file) = (packet(), counters(0, 10));
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        // SAFETY: the children make system calls on memory made before, and end.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let parent = libc::getpid();
                if orphan && libc::fork() != 0 {
                    libc::_exit(0);
                }
                while orphan && libc::getppid() == parent {
                    libc::usleep(1000);
                }
                if libc::setgroups(0, std::ptr::null()) != 0
                    || libc::setresgid(65534, 65534, 65534) != 0
                    || libc::setresuid(65534, 65534, 65534) != 0
                {
                    libc::_exit(1);
                }
                let socket = packet::connect(path, true).unwrap();
                // A stranger may have been sent away before it says anything.
                let _ = packet::send(socket.as_raw_fd(), counts.as_bytes(), &[file.as_fd()]);
                libc::write(write_end.as_raw_fd(), c"k".as_ptr().cast(), 1);
                libc::usleep(200_000);
                drop(socket);
                libc::_exit(0);
            }
            drop(write_end);
            let mut said = [0u8];
            std::io::Read::read_exact(&mut read_end, &mut said).expect("it connects");
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        // Its end: nobody holds the pipe any more.
        let _ = std::io::Read::read(&mut read_end, &mut [0u8]);
    }

    #[test]
    fn another_user_counts_only_as_a_relative() {
        if !crate::needs::root() {
            return;
        }
        // The stranger is told the way, which it cannot find by itself.
        for (orphan, counted) in [(false, 1), (true, 0)] {
            let collector = Collector::start(false).unwrap();
            another_user_counts(collector.path(), orphan);
            let collected = collector.finish();
            assert_eq!(collected.counts.calls(), counted);
            assert_eq!(collected.refusals as u64, 1 - counted);
        }
    }
}
