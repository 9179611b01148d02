// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did the interposers in the command's processes count?
//!
//! Each process connects and hands over a sealed memfd that it goes on writing
//! to. It is read once, when the connection closes. Those processes are not
//! trusted: sizes and seals are checked before anything is read, reads are
//! bounded copies, and no value read is used as an index or a length.

use crate::call_site::Modules;
use crate::connection::socket_address;
use crate::error::Error;
use debox_abi::*;
use debox_report::{WrapCounts, WrapProcess};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

const STRIPES_MAX: u32 = 4096;
const PREFIX: &str = "debox-";
const SOCKET: &str = "collect";
/// A younger directory may be about to be listened in.
const SWEEP_AGE: Duration = Duration::from_secs(60);
/// Connections at one time; more wait in the socket's queue.
const LIVE_MAX: usize = 16384;
/// Refusals that are told one by one.
const REFUSALS_MAX: usize = 8;

/// Everything that was collected.
#[derive(Default)]
pub struct Collected {
    pub counts: WrapCounts,
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
    stop: OwnedFd,
    thread: JoinHandle<Collected>,
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

impl Collector {
    pub fn start(call_sites: bool) -> Result<Self, Error> {
        let failed = Error::system("preparing the socket that the interposers report to");
        Self::start_io(call_sites).map_err(failed)
    }

    fn start_io(call_sites: bool) -> io::Result<Self> {
        sweep(&std::env::temp_dir());
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        // Processes that drop privileges after the start must get through to
        // the socket, but need not list the directory.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o711))?;
        let path = directory.path().join(SOCKET);
        let (address, length) = socket_address(&path)?;
        // SAFETY: plain system calls on locals; descriptors are owned at once.
        let (socket, stop) = unsafe {
            let fd = libc::socket(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            );
            if fd < 0 {
                return Err(last());
            }
            let socket = OwnedFd::from_raw_fd(fd);
            if libc::bind(fd, (&raw const address).cast(), length) != 0 {
                return Err(last());
            }
            let stop = libc::eventfd(0, libc::EFD_CLOEXEC);
            if stop < 0 {
                return Err(last());
            }
            (socket, OwnedFd::from_raw_fd(stop))
        };
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666))?;
        // SAFETY: a bound socket of ours.
        if unsafe { libc::listen(socket.as_raw_fd(), 4096) } != 0 {
            return Err(last());
        }
        descriptors_raise();
        let stop_raw = stop.as_raw_fd();
        let thread = std::thread::Builder::new()
            .name("debox-collect".into())
            .spawn(move || collect(&socket, stop_raw, call_sites))?;
        Ok(Self {
            _directory: directory,
            path,
            stop,
            thread,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends collecting: what still lives is read as it is.
    pub fn finish(self) -> Collected {
        let one = 1u64;
        // SAFETY: 8 bytes of a local; the thread only polls this descriptor,
        // which lives until the thread is joined.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        self.thread.join().unwrap_or_else(|_| {
            let mut collected = Collected::default();
            collected
                .counts
                .refused_add("the collecting thread of debox failed; please report this".into());
            collected
        })
    }
}

/// Removes what collectors left behind that were killed: directories of ours
/// with nothing in them but a socket that nobody listens on.
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
        let socket = entry.path().join(SOCKET);
        if ours && is_abandoned(&socket) {
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// A socket on which nobody listens any more.
fn is_abandoned(path: &Path) -> bool {
    if !std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        return false;
    }
    let Ok((address, length)) = socket_address(path) else {
        return false;
    };
    // SAFETY: the descriptor is owned at once; the address is a local.
    unsafe {
        let fd = libc::socket(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        );
        if fd < 0 {
            return false;
        }
        let socket = OwnedFd::from_raw_fd(fd);
        libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) != 0
            && last().raw_os_error() == Some(libc::ECONNREFUSED)
    }
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

fn collect(listener: &OwnedFd, stop: RawFd, call_sites: bool) -> Collected {
    let mut collected = Collected::default();
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
    let mut stopping = false;
    loop {
        let ready = if stopping { Vec::new() } else { poller.wait() };
        stopping |= ready.contains(&stop);
        // First what is queued: a process may have connected, counted and
        // ended before we looked.
        while live.len() < LIVE_MAX {
            match accept(listener) {
                Ok(Some(connection)) => {
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

fn accept(listener: &OwnedFd) -> io::Result<Option<Live>> {
    // SAFETY: the descriptor is owned at once; SO_PEERCRED fills a local.
    unsafe {
        let fd = libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        );
        if fd < 0 {
            let error = last();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ECONNABORTED | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let socket = OwnedFd::from_raw_fd(fd);
        let mut peer: libc::ucred = std::mem::zeroed();
        let mut size = size_of::<libc::ucred>() as libc::socklen_t;
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut size,
        );
        Ok(Some(Live {
            socket,
            pid: peer.pid as u32,
            modules: None,
            memory: None,
        }))
    }
}

impl Live {
    /// Takes what has arrived; false at hang-up.
    fn advance(&mut self, call_sites: bool) -> Result<bool, String> {
        loop {
            let mut packet = debox_collect::zeroed();
            let (got, fds, cut) = match receive(self.socket.as_raw_fd(), packet.as_bytes_mut()) {
                Ok(received) => received,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => return Ok(true),
                    Some(libc::ECONNRESET) => return Ok(false),
                    _ => return Err(e.to_string()),
                },
            };
            if got == 0 {
                return Ok(false);
            }
            if self.memory.is_some() {
                return Err("it sent a second message".into());
            }
            if cut
                || got != size_of::<debox_collect>()
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
            let Ok([memory]) = <[OwnedFd; 1]>::try_from(fds) else {
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
fn memory_check(memory: &File, packet: &debox_collect) -> Result<(), String> {
    if packet.stripes == 0 {
        return Err(
            "its limit of file sizes (RLIMIT_FSIZE, `ulimit -f`) leaves no room for counters; \
             raise it, or leave out --wrap"
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

/// One packet with its descriptors: (length, descriptors, something was cut).
fn receive(socket: RawFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>, bool)> {
    let mut control = [0u64; 16];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut fds = Vec::new();
    // SAFETY: msghdr is valid when zeroed, the pointers are to locals that
    // outlive the call, control messages are walked by libc's macros within
    // the length that the kernel set; received descriptors are owned at once.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let got = libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC);
        if got < 0 {
            return Err(last());
        }
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                let length = (*header).cmsg_len as usize - (data as usize - header as usize);
                for i in 0..length / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        let cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        Ok((got as usize, fds, cut))
    }
}

impl Collected {
    fn refuse(&mut self, why: String) {
        self.refusals += 1;
        match self.refusals {
            n if n < REFUSALS_MAX => self.counts.refused_add(why),
            REFUSALS_MAX => self.counts.refused_add("... and further ones".into()),
            _ => {}
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

    fn fold_memory(
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
        for index in 0..stripes {
            let start =
                DEBOX_PAGE_SIZE as u64 + u64::from(index) * size_of::<debox_wrap_stripe>() as u64;
            let bytes = stripe.as_bytes_mut();
            read(&mut bytes[..head_size], start)?;
            self.counts
                .stripe_add(stripe.dropped, stripe.dropped_ns, stripe.stale);
            if stripe.rows_used == 0 {
                continue;
            }
            read(
                &mut stripe.as_bytes_mut()[head_size..],
                start + head_size as u64,
            )?;
            for row in &stripe.rows {
                self.counts.row_add(process, row);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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
        assert_eq!(
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) },
            0
        );
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
        let (address, length) = socket_address(path).unwrap();
        let mut control = [0u64; 16];
        // SAFETY: as in the functions above, on locals.
        unsafe {
            let socket = OwnedFd::from_raw_fd(libc::socket(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
                0,
            ));
            assert_eq!(
                libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length),
                0
            );
            let mut part = libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            if !files.is_empty() {
                let size = (files.len() * 4) as u32;
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(size) as _;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size) as _;
                for (i, file) in files.iter().enumerate() {
                    libc::CMSG_DATA(header)
                        .cast::<RawFd>()
                        .add(i)
                        .write_unaligned(file.as_raw_fd());
                }
            }
            assert_eq!(
                libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL),
                bytes.len() as isize
            );
            socket
        }
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
            std::fs::create_dir(&directory).unwrap();
            let listener = std::os::unix::net::UnixListener::bind(directory.join(socket)).unwrap();
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
        assert_eq!(collector.finish().counts.processes().len(), 1);
    }
}
