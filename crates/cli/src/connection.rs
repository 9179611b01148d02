// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does debox talk to a broker, and what does it read out of its maps?

mod look;

use crate::access;
use crate::detail_control::DetailControl;
use crate::error::Error;
use crate::event_ring::EventRing;
use debox_abi::*;
pub use look::Looks;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A broker that has not answered by then is broken, not busy.
const REPLY_SECONDS: i64 = 20;
const FDS_MAX: usize = 8;
/// Tries to find a row at rest.
const ROW_COPIES: usize = 20;

pub struct Connection {
    socket: OwnedFd,
    path: PathBuf,
}

fn remedy(path: &Path, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ECONNREFUSED) => {
            ". No broker listens there: start one (systemctl start deboxd.socket) or run debox as root".into()
        }
        Some(libc::EACCES) => format!(". {}", access::way_in(path)),
        _ => String::new(),
    }
}

/// The address of a socket path; too long paths are an error, not cut.
pub fn socket_address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as libc::socklen_t))
}

impl Connection {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Connect {
            path: path.to_owned(),
            remedy: remedy(path, &source),
            source,
        };
        let (address, length) = socket_address(path).map_err(failed)?;
        // SAFETY: plain system calls on locals; the descriptor is owned at once.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(failed(io::Error::last_os_error()));
            }
            let socket = OwnedFd::from_raw_fd(fd);
            if libc::connect(fd, (&raw const address).cast(), length) != 0 {
                return Err(failed(io::Error::last_os_error()));
            }
            let limit = libc::timeval {
                tv_sec: REPLY_SECONDS,
                tv_usec: 0,
            };
            let size = size_of::<libc::timeval>() as libc::socklen_t;
            for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
                libc::setsockopt(
                    fd,
                    libc::SOL_SOCKET,
                    option,
                    (&raw const limit).cast(),
                    size,
                );
            }
            socket
        };
        Ok(Self {
            socket,
            path: path.to_owned(),
        })
    }

    /// Process and user id of who listens there, as the kernel tells them.
    pub fn server(&self) -> io::Result<(u32, u32)> {
        let mut ucred = libc::ucred {
            pid: 0,
            uid: u32::MAX,
            gid: u32::MAX,
        };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: ucred is writable for the length given.
        let status = unsafe {
            libc::getsockopt(
                self.raw(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut ucred).cast(),
                &raw mut length,
            )
        };
        match status {
            0 => Ok((ucred.pid.max(0) as u32, ucred.uid)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// One request, one reply; a refusal is an error.
    pub fn ask(&self, request: &debox_request) -> Result<(debox_reply, Vec<OwnedFd>), Error> {
        self.ask_bytes(request.kind, request.as_bytes())
    }

    /// The same for a request that is longer than others.
    pub fn ask_bytes(
        &self,
        kind: u32,
        request: &[u8],
    ) -> Result<(debox_reply, Vec<OwnedFd>), Error> {
        bytes_send(self.raw(), request)
            .map_err(|errno| self.lost(io::Error::from_raw_os_error(errno)))?;
        self.answer(kind)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lost(&self, source: io::Error) -> Error {
        Error::Protocol {
            path: self.path.clone(),
            what: match source.raw_os_error() {
                Some(libc::EAGAIN) => format!("no answer within {REPLY_SECONDS} s"),
                _ => source.to_string(),
            },
        }
    }

    /// The reply to a request of this kind that was sent by whoever shares the
    /// connection; a refusal is an error.
    pub fn answer(&self, kind: u32) -> Result<(debox_reply, Vec<OwnedFd>), Error> {
        let mut fds = [-1; FDS_MAX];
        let received = reply_receive(self.raw(), &mut fds);
        // Owned before anything is judged, so that nothing leaks.
        let fds: Vec<OwnedFd> = fds
            .iter()
            .filter(|fd| **fd >= 0)
            // SAFETY: just received, nobody else knows the number.
            .map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) })
            .collect();
        let reply = received.map_err(|e| self.lost(io::Error::from_raw_os_error(e)))?;
        reply_judge(&self.path, kind, &reply, fds.len())?;
        Ok((reply, fds))
    }

    /// Opens the connection's account; flags are DEBOX_REQ_BOUNDARY, _DETAILS
    /// and _USER_STACKS.
    pub fn account(&self, flags: u32) -> Result<AccountView, Error> {
        let (reply, fds) = self.ask(&debox_request::new(DEBOX_MSG_ACCOUNT, flags))?;
        AccountView::map(&reply, fds).map_err(|what| Error::Protocol {
            path: self.path.clone(),
            what,
        })
    }

    /// The kernel functions of the sites, outermost first.
    pub fn site_stacks(&self) -> Result<Vec<(u32, Vec<String>)>, Error> {
        let (_, fds) = self.ask(&debox_request::new(DEBOX_MSG_SITE_STACKS, 0))?;
        let mut text = String::new();
        if let Some(fd) = fds.into_iter().next() {
            std::fs::File::from(fd)
                .read_to_string(&mut text)
                .map_err(|source| self.lost(source))?;
        }
        Ok(site_stacks_parse(&text))
    }
}

/// Is this what was asked for? The broker's bytes are judged here and nowhere
/// else.
pub(crate) fn reply_judge(
    path: &Path,
    kind: u32,
    reply: &debox_reply,
    descriptors: usize,
) -> Result<(), Error> {
    let broken = |what: String| Error::Protocol {
        path: path.to_owned(),
        what,
    };
    if reply.version != DEBOX_PROTOCOL_VERSION {
        return Err(broken(format!(
            "it speaks version {}, this debox version {}: install the same release of both",
            reply.version, DEBOX_PROTOCOL_VERSION
        )));
    }
    if reply.status < 0 {
        // i32::MIN has no counterpart.
        let errno = reply.status.saturating_neg();
        let text = if reply.text().is_empty() {
            io::Error::from_raw_os_error(errno).to_string()
        } else {
            debox_output::printable(reply.text())
        };
        return Err(Error::Refused {
            path: path.to_owned(),
            errno,
            text,
        });
    }
    if reply.kind != kind || reply.fds as usize != descriptors {
        return Err(broken("the reply does not fit the request".into()));
    }
    Ok(())
}

/// Of several lines about one site the last holds.
pub(crate) fn site_stacks_parse(text: &str) -> Vec<(u32, Vec<String>)> {
    let sites: BTreeMap<u32, Vec<String>> = text
        .lines()
        .filter_map(|line| {
            let (site, names) = line.split_once('\t')?;
            let names = names.split(';').filter(|name| !name.is_empty());
            Some((
                site.parse().ok()?,
                names.map(debox_output::printable).collect(),
            ))
        })
        .collect();
    sites.into_iter().collect()
}

/// Sends one request; returns errno. Also used between fork and exec: system
/// calls only.
pub fn request_send(socket: RawFd, request: &debox_request) -> Result<(), i32> {
    bytes_send(socket, request.as_bytes())
}

fn bytes_send(socket: RawFd, bytes: &[u8]) -> Result<(), i32> {
    loop {
        // SAFETY: the buffer is valid for its length.
        let sent = unsafe {
            libc::send(
                socket,
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        if sent == bytes.len() as isize {
            return Ok(());
        }
        // SAFETY: the thread's own errno.
        let errno = unsafe { *libc::__errno_location() };
        match (sent, errno) {
            (-1, libc::EINTR) => {}
            (-1, errno) => return Err(errno),
            _ => return Err(libc::EPROTO),
        }
    }
}

/// Receives one reply; descriptors go to `fds`. Returns errno.
fn reply_receive(socket: RawFd, fds: &mut [RawFd; FDS_MAX]) -> Result<debox_reply, i32> {
    let mut reply = debox_reply::zeroed();
    // Room for the descriptors, and for credentials should they be passed.
    let mut control = [0u64; 16];
    loop {
        let mut part = libc::iovec {
            iov_base: reply.as_bytes_mut().as_mut_ptr().cast(),
            iov_len: size_of::<debox_reply>(),
        };
        // SAFETY: msghdr is valid when zeroed; the pointers are to locals that
        // outlive the call; the control messages are walked by libc's macros
        // within the length that the kernel set.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            let got = libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC);
            if got < 0 {
                match *libc::__errno_location() {
                    libc::EINTR => continue,
                    errno => return Err(errno),
                }
            }
            let mut next = 0;
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                if (*header).cmsg_level == libc::SOL_SOCKET
                    && (*header).cmsg_type == libc::SCM_RIGHTS
                {
                    let data = libc::CMSG_DATA(header).cast::<RawFd>();
                    let bytes = (*header).cmsg_len as usize - (data as usize - header as usize);
                    for i in 0..bytes / size_of::<RawFd>() {
                        let fd = data.add(i).read_unaligned();
                        if next < fds.len() {
                            fds[next] = fd;
                            next += 1;
                        } else {
                            libc::close(fd);
                        }
                    }
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
            if got == 0 {
                return Err(libc::ECONNRESET);
            }
            if (got as usize) < size_of::<debox_reply>()
                || message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0
            {
                return Err(libc::EPROTO);
            }
        }
        return Ok(reply);
    }
}

/// A read-only shared mapping.
pub struct Mapping {
    memory: *const u8,
    length: usize,
}

// SAFETY: only read, through atomics, volatile or the acquire protocol.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn new(fd: &OwnedFd, length: usize) -> io::Result<Self> {
        let length = length.next_multiple_of(DEBOX_PAGE_SIZE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            memory: memory.cast_const().cast(),
            length,
        })
    }

    /// A word that others publish with release order.
    pub fn load_acquire(&self, offset: usize) -> u32 {
        assert!(offset % 4 == 0 && offset + 4 <= self.length);
        // SAFETY: inside the mapping and aligned (assert).
        unsafe { &*self.memory.add(offset).cast::<AtomicU32>() }.load(Ordering::Acquire)
    }

    /// Copies words out while others write them: each is whole, they need not
    /// be of one moment.
    pub fn copy_words(&self, offset: usize, to: &mut [u8]) {
        assert!(offset % 8 == 0 && to.len() % 8 == 0 && offset + to.len() <= self.length);
        for (i, word) in to.chunks_exact_mut(8).enumerate() {
            // SAFETY: inside the mapping (assert) and aligned: the mapping is
            // page-aligned and offset a multiple of 8.
            let from = unsafe { &*self.memory.add(offset + i * 8).cast::<AtomicU64>() };
            word.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone, and nothing borrowed from it outlives self.
        unsafe { libc::munmap(self.memory.cast_mut().cast(), self.length) };
    }
}

/// An account as the broker shares it.
pub struct AccountView {
    account: Mapping,
    cpus: Mapping,
    shared: Mapping,
    cpu_count: usize,
    stride: usize,
    pub features: u64,
    pub details: Option<DetailsView>,
}

/// What the account tells beyond its sums, if that was asked for.
pub struct DetailsView {
    details: Mapping,
    pub control: DetailControl,
    pub events: EventRing,
}

impl DetailsView {
    /// A copy. Rows may be written meanwhile: each number is whole, those of a
    /// row need not be of one moment.
    pub fn copy(&self) -> Box<debox_details> {
        let mut details = debox_details::zeroed_box();
        self.details.copy_words(0, details.as_bytes_mut());
        details
    }

    /// One user stack; None for an index that was never handed out.
    pub fn user_stack(&self, index: u32) -> Option<debox_user_stack> {
        let mut stack = debox_user_stack::zeroed();
        let offset = std::mem::offset_of!(debox_details, stacks);
        self.element(offset, index, DEBOX_USER_STACKS_MAX, &mut stack)?;
        (stack.hash != 0).then_some(stack)
    }

    /// One file of user stacks; None for one whose path is not there (yet).
    pub fn user_file(&self, index: u32) -> Option<debox_user_file> {
        let mut file = debox_user_file::zeroed();
        let offset = std::mem::offset_of!(debox_details, files);
        self.element(offset, index, DEBOX_USER_FILES_MAX, &mut file)?;
        (file.state == 1).then_some(file)
    }

    fn element<T: Pod>(&self, offset: usize, index: u32, count: usize, to: &mut T) -> Option<()> {
        let index = Some(index as usize).filter(|index| *index < count)?;
        let at = offset + index * size_of::<T>();
        self.details.copy_words(at, to.as_bytes_mut());
        Some(())
    }
}

/// A copy of everything, to be reported from.
pub struct Snapshot {
    pub account: Box<debox_account>,
    pub cpus: Box<[debox_account_cpu]>,
    pub sites: Box<[debox_site]>,
    pub features: u64,
    pub stale: bool,
    pub details: Option<Box<debox_details>>,
    /// Kernel functions of sites, outermost first; empty until asked for.
    pub site_stacks: Vec<(u32, Vec<String>)>,
}

impl AccountView {
    fn map(reply: &debox_reply, fds: Vec<OwnedFd>) -> Result<Self, String> {
        let count = fds.len();
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or("too few descriptors".to_owned());
        let (account, cpus) = (next()?, next()?);
        let detail_fds = match count {
            3 => None,
            6 => Some((next()?, next()?, next()?)),
            n => return Err(format!("an account comes with 3 or 6 descriptors, not {n}")),
        };
        let shared = next()?;
        let (account, cpus, shared) = (&account, &cpus, &shared);
        let cpu_count = reply.cpus as usize;
        let stride = reply.cpu_stride as usize;
        if cpu_count == 0
            || cpu_count > 8192
            || stride % 8 != 0
            || stride < size_of::<debox_account_cpu>()
            || stride > 1 << 24
        {
            return Err(format!(
                "an account of {cpu_count} CPUs, {stride} bytes each"
            ));
        }
        let map =
            |fd, length, what| Mapping::new(fd, length).map_err(|e| format!("mapping {what}: {e}"));
        let view = Self {
            account: map(account, size_of::<debox_account>(), "the account")?,
            cpus: map(cpus, cpu_count * stride, "the counters of the CPUs")?,
            shared: map(shared, DEBOX_SHARED_SIZE, "the site table")?,
            cpu_count,
            stride,
            features: reply.features,
            details: None,
        };
        let view = match detail_fds {
            None => view,
            Some((details, events, control)) => Self {
                details: Some(DetailsView {
                    details: map(&details, size_of::<debox_details>(), "the details")?,
                    control: DetailControl::map(&control)
                        .map_err(|e| format!("mapping the control of details: {e}"))?,
                    events: EventRing::map(events)
                        .map_err(|e| format!("mapping the ring of events: {e}"))?,
                }),
                ..view
            },
        };
        let header = view.header();
        if header.magic != DEBOX_SHARED_MAGIC
            || header.abi_version != DEBOX_ABI_VERSION
            || header.site_entry_size as usize != size_of::<debox_site>()
            || header.alive_offset as usize > DEBOX_PAGE_SIZE - 4
            || header.alive_offset % 4 != 0
        {
            return Err(format!(
                "its shared memory is of layout version {}, this debox reads version {DEBOX_ABI_VERSION}: \
                 install the same release of both",
                header.abi_version
            ));
        }
        Ok(view)
    }

    fn header(&self) -> debox_shared {
        let mut header = debox_shared::zeroed();
        self.shared.copy_words(0, header.as_bytes_mut());
        header
    }

    /// Whether the broker is gone.
    pub fn stale(&self) -> bool {
        let offset = self.header().alive_offset as usize;
        if offset > DEBOX_PAGE_SIZE - 4 || offset % 4 != 0 {
            return true;
        }
        // SAFETY: inside the first page and aligned.
        let word = unsafe { &*self.shared.memory.add(offset).cast::<AtomicU32>() };
        let word = word.load(Ordering::Acquire);
        // FUTEX_OWNER_DIED, or no owner: the broker's main thread is gone.
        word & 0x4000_0000 != 0 || word == 0
    }

    /// Sites with a text have numbers below this one.
    pub fn site_count(&self) -> usize {
        (self.header().site_count as usize).min(DEBOX_SITES_MAX)
    }

    /// The text of one site, if there is one yet.
    pub fn site(&self, index: usize) -> Option<debox_site> {
        if index >= DEBOX_SITES_MAX {
            return None;
        }
        let offset = DEBOX_PAGE_SIZE + index * size_of::<debox_site>();
        // SAFETY: the mapping holds DEBOX_SHARED_SIZE bytes, and the broker
        // writes entries only through the publish protocol.
        unsafe { debox_site::load(self.shared.memory.add(offset).cast()) }
    }

    /// Whether every site that the account names has its text.
    pub fn sites_resolved(&self) -> bool {
        let mut account = debox_account::zeroed_box();
        self.account.copy_words(0, account.as_bytes_mut());
        account
            .sites
            .iter()
            .filter(|row| row.count > 0)
            .filter_map(|row| row.key_parts())
            .all(|(_, site)| site == DEBOX_SITE_NONE || self.site(site as usize).is_some())
    }

    /// Copies a row that may be written meanwhile. Two equal copies are one
    /// state of it, not the halves of two; a row that never rests is copied as
    /// it is, and its sums may then differ by the call in between.
    fn row_copy(&self, offset: usize, to: &mut debox_row, copies: usize) {
        self.cpus.copy_words(offset, to.as_bytes_mut());
        for _ in 0..copies {
            // Acquire: pairs with nothing in particular, but keeps this copy
            // behind the one before.
            fence(Ordering::Acquire);
            let before = *to;
            self.cpus.copy_words(offset, to.as_bytes_mut());
            if before.as_bytes() == to.as_bytes() {
                return;
            }
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        // Rows handed out while we copy are simply not in this snapshot: the
        // account is read first, and it names the rows.
        let mut account = debox_account::zeroed_box();
        self.account.copy_words(0, account.as_bytes_mut());
        let mut cpus = debox_account_cpu::zeroed_slice(self.cpu_count);
        let used: Vec<usize> = account
            .row_of
            .iter()
            .map(|index| *index as usize)
            .filter(|index| (1..DEBOX_ROWS_MAX).contains(index))
            .collect();
        for (cpu, counters) in cpus.iter_mut().enumerate() {
            for &row in &used {
                let offset = cpu * self.stride + row * size_of::<debox_row>();
                self.row_copy(offset, &mut counters.rows[row], ROW_COPIES);
            }
        }
        let mut sites = debox_site::zeroed_slice(DEBOX_SITES_MAX);
        let named: Vec<usize> = account
            .sites
            .iter()
            .filter_map(|row| row.key_parts())
            .map(|(_, site)| site as usize)
            .collect();
        for index in named {
            if let Some(site) = self.site(index) {
                // Its text may stand under the number of an equal one.
                if let Some(first) = self.site(site.merged as usize) {
                    sites[site.merged as usize] = first;
                }
                sites[index] = site;
            }
        }
        // What was attached at any time while we watched.
        let features = self.features | self.header().features;
        Snapshot {
            account,
            cpus,
            sites,
            features,
            stale: self.stale(),
            details: self.details.as_ref().map(DetailsView::copy),
            site_stacks: Vec::new(),
        }
    }
}
