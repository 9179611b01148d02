// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do the unwind tables of programs get into the kernel?
//!
//! `bpf/user_stack.h` asks for the table of a file when it first walks through
//! it. A thread of its own makes it (it may take long for a large program) and
//! puts it in place. The C library's is made first: nearly every system call
//! comes through it.
//!
//! The files belong to other people. They are opened as the kernel names them
//! (device and inode must agree), regular ones only, and read by the
//! symboliser, a process that can do nothing else; all tables together are
//! bounded.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use debox_symboliser::python::PYTHON_BYTES;
use debox_symboliser::{Symboliser, Unusable, foreign};
use debox_unwind::LibcNames;
pub(crate) use debox_unwind::Row;
use libbpf_rs::libbpf_sys;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::Turns;
use crate::error::Error;

pub(crate) const BPF_F_INNER_MAP: u32 = 1 << 12;
/// Shared with `bpf/user_stack.h`, whose last one is of the kernel's functions.
pub(crate) const TABLES_MAX: u32 = 1023;
const REQUEST_BYTES: usize = 32 + debox_abi::DEBOX_PATH_LEN;
const STATE_READY: u32 = 1;
const STATE_NONE: u32 = 2;
/// All tables together: 64 MiB, and one: 16.
const ROWS_ALL: usize = 8 << 20;
const ROWS_MAX: usize = 2 << 20;
/// Shared with `bpf/user_stack.h`.
const PYTHONS_MAX: u32 = 256;
const PYTHON_VALUE_BYTES: usize = PYTHON_BYTES + 4;
/// No interpreter is smaller, so most files need not be asked.
const PYTHON_ROWS_MIN: u32 = 4096;
/// A large program is parsed for at most this long.
const CPU_PER_FILE: Duration = Duration::from_secs(2);
/// Files of one process whose tables a client may wait for.
const MAPPED_MAX: usize = 128;
/// Requests of the kernel side that wait; what is dropped is asked for again.
const REQUESTS_MAX: usize = 4096;

/// `struct file_id` of `bpf/user_stack.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    ino: u64,
    dev: u32,
}

impl FileId {
    fn of(file: &File) -> Option<FileId> {
        let meta = file.metadata().ok()?;
        // The kernel's own dev_t: 12 bits of major number, 20 of minor.
        let dev = (libc::major(meta.dev()) << 20) | (libc::minor(meta.dev()) & 0xfffff);
        meta.is_file().then_some(FileId {
            ino: meta.ino(),
            dev,
        })
    }

    fn key(&self) -> [u8; 16] {
        let mut key = [0; 16];
        key[0..8].copy_from_slice(&self.ino.to_ne_bytes());
        key[8..12].copy_from_slice(&self.dev.to_ne_bytes());
        key
    }
}

/// `struct unwind_request`.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    id: FileId,
    address: u64,
    pid: u32,
    path: String,
}

impl Request {
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let bytes = bytes.get(..REQUEST_BYTES)?;
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Some(Request {
            id: FileId {
                ino: word(0),
                dev: half(8),
            },
            address: word(16),
            pid: half(24),
            path: debox_abi::text_get(&bytes[32..]).to_owned(),
        })
    }

    /// Opens the very file that was asked for.
    fn open(&self) -> Option<(File, PathBuf)> {
        let mapped = mapping_of(self.pid, self.address, self.id.ino)
            .map(|range| PathBuf::from(format!("/proc/{}/map_files/{range}", self.pid)));
        if let Some(file) = mapped.and_then(|path| foreign::open(&path).ok()) {
            return Some((file, PathBuf::from(&self.path)));
        }
        [
            format!("/proc/{}/root{}", self.pid, self.path),
            self.path.clone(),
        ]
        .iter()
        .filter_map(|path| foreign::open(Path::new(path)).ok())
        .find(|file| FileId::of(file) == Some(self.id))
        .map(|file| (file, PathBuf::from(&self.path)))
    }
}

/// The range "start-end" of the mapping around an address, if it is of this
/// inode.
fn mapping_of(pid: u32, address: u64, ino: u64) -> Option<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let range = words.next()?;
        let (start, end) = range.split_once('-')?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        let inode: u64 = words.nth(3)?.parse().ok()?;
        ((start..end).contains(&address) && inode == ino).then(|| range.to_owned())
    })
}

/// What this process itself has mapped of the C library and the loader: most
/// programs run the same.
fn libraries() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut out: Vec<PathBuf> = vec![];
    for path in maps.lines().filter_map(|line| line.split_once('/')) {
        let path = PathBuf::from(format!("/{}", path.1));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if (name.starts_with("libc.so") || name.starts_with("ld-")) && !out.contains(&path) {
            out.push(path);
        }
    }
    out
}

/// Files that a process has mapped executable, its own program left out; the
/// first MAPPED_MAX.
fn mapped_by(pid: u32) -> VecDeque<Request> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let own = std::fs::metadata(format!("/proc/{pid}/exe")).map(|m| m.ino());
    let mut out: VecDeque<Request> = VecDeque::new();
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(access), Some(_), Some(device), Some(inode)) = (
            words.next(),
            words.next(),
            words.next(),
            words.next(),
            words.next(),
        ) else {
            continue;
        };
        let Some((_, path)) = line.split_once('/') else {
            continue;
        };
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (Some(address), Some((major, minor)), Ok(ino)) = (
            range.split_once('-').and_then(|(start, _)| number(start)),
            device.split_once(':'),
            inode.parse::<u64>(),
        ) else {
            continue;
        };
        if out.len() == MAPPED_MAX {
            tracing::info!(
                pid,
                "only {MAPPED_MAX} of its files are read before they are met"
            );
            break;
        }
        if !access.contains('x') || own.as_ref().is_ok_and(|own| *own == ino) {
            continue;
        }
        let (Some(major), Some(minor)) = (number(major), number(minor)) else {
            continue;
        };
        let id = FileId {
            ino,
            dev: ((major as u32) << 20) | (minor as u32 & 0xfffff),
        };
        if !out.iter().any(|request| request.id == id) {
            out.push_back(Request {
                id,
                address,
                pid,
                path: format!("/{path}"),
            });
        }
    }
    out
}

/// Called when the last copy of it is gone: all that it stands for is done, or
/// will never be.
pub(crate) struct Ready(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Ready {
    pub fn new(ready: Box<dyn FnOnce() + Send>) -> Arc<Ready> {
        Arc::new(Ready(Mutex::new(Some(ready))))
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let ready = self.0.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(ready) = ready {
            ready();
        }
    }
}

enum Item {
    File {
        request: Request,
        /// Of whom waits for it.
        ready: Option<Arc<Ready>>,
    },
    /// All that a process has mapped.
    Process { pid: u32, ready: Arc<Ready> },
}

#[derive(Default)]
struct Queue {
    turns: Turns<Item>,
    /// Requests of the kernel side in it.
    requests: usize,
    working: bool,
    /// Files were read that are none of `libraries()`.
    others: bool,
    stop: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The thread and what it has put in place. Dropping it takes all tables away.
pub(crate) struct Unwind {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Unwind {
    /// `tables`, `files` and `pythons` are the maps of `bpf/user_stack.h`.
    pub fn start(tables: OwnedFd, files: OwnedFd, pythons: OwnedFd) -> Result<Unwind, Error> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                working: true,
                ..Queue::default()
            }),
            changed: Condvar::new(),
        });
        let worker = shared.clone();
        let thread = std::thread::Builder::new()
            .name("debox-unwind".into())
            .spawn(move || work(&worker, Tables::new(tables, files, pythons)))
            .map_err(|source| Error::Kernel {
                action: "start a thread",
                source,
            })?;
        Ok(Unwind {
            shared,
            thread: Some(thread),
        })
    }

    /// What the kernel side asks for, in the turns of who runs the programs.
    pub fn serve(&self, requests: VecDeque<Request>) {
        if requests.is_empty() {
            return;
        }
        let mut queue = self.shared.lock();
        for request in requests {
            if queue.requests >= REQUESTS_MAX {
                tracing::info!("too many files wait for their unwind tables: one is left out");
                continue;
            }
            let lane = std::fs::metadata(format!("/proc/{}", request.pid))
                .map_or(u32::MAX, |process| process.uid());
            queue.requests += 1;
            queue.turns.push(
                lane,
                Item::File {
                    request,
                    ready: None,
                },
            );
        }
        self.shared.changed.notify_all();
    }

    /// The tables of the C library, and of what a process has mapped
    /// executable.
    pub fn warm(&self, lane: u32, pid: u32, ready: Arc<Ready>) {
        let mut queue = self.shared.lock();
        queue.turns.push(lane, Item::Process { pid, ready });
        self.shared.changed.notify_all();
    }

    pub fn idle(&self) -> bool {
        let queue = self.shared.lock();
        queue.turns.is_empty() && !queue.working
    }

    /// Whether it has the C library's tables, and no other file's, which may be another one by the same number soon.
    pub fn only_libraries(&self) -> bool {
        !self.shared.lock().others
    }
}

impl Drop for Unwind {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, mut tables: Tables) {
    for path in libraries() {
        if let Ok(file) = foreign::open(&path)
            && let Some(id) = FileId::of(&file)
        {
            tables.add(id, &file, &path);
        }
    }
    let mut queue = shared.lock();
    loop {
        if queue.stop {
            return;
        }
        let Some((lane, item)) = queue.turns.pop() else {
            queue.working = false;
            queue = shared
                .changed
                .wait(queue)
                .unwrap_or_else(|e| e.into_inner());
            continue;
        };
        queue.working = true;
        match item {
            Item::Process { pid, ready } => {
                drop(queue);
                let files = mapped_by(pid);
                queue = shared.lock();
                for request in files {
                    let ready = Some(ready.clone());
                    queue.turns.push(lane, Item::File { request, ready });
                }
            }
            Item::File { request, ready } => {
                queue.requests -= usize::from(ready.is_none());
                drop(queue);
                let is_other = tables.serve(&request);
                drop(ready);
                queue = shared.lock();
                queue.others |= is_other;
            }
        }
    }
}

struct Tables {
    outer: OwnedFd,
    files: OwnedFd,
    pythons: OwnedFd,
    pythons_used: u32,
    known: Vec<FileId>,
    used: u32,
    rows: usize,
    symboliser: Symboliser,
    /// Its life in which it was told the C library.
    libc_life: u32,
}

impl Tables {
    fn new(outer: OwnedFd, files: OwnedFd, pythons: OwnedFd) -> Tables {
        Tables {
            outer,
            files,
            pythons,
            pythons_used: 0,
            known: vec![],
            used: 0,
            rows: 0,
            symboliser: Symboliser::for_all(),
            libc_life: 0,
        }
    }

    /// Whether it is a file that was not known yet.
    fn serve(&mut self, request: &Request) -> bool {
        if self.known.contains(&request.id) {
            return false;
        }
        match request.open() {
            Some((file, path)) => self.add(request.id, &file, &path),
            None => {
                tracing::debug!(?request, "a program's file cannot be opened");
                self.answer(request.id, [STATE_NONE, 0, 0, 0]);
            }
        }
        true
    }

    fn add(&mut self, id: FileId, file: &File, path: &Path) {
        if self.known.contains(&id) {
            return;
        }
        let made = self
            .table(file, path)
            .map_err(|error| error.to_string())
            .and_then(|rows| self.put(&rows).map_err(|error| error.to_string()));
        match made {
            Ok((table, rows)) => {
                let python = match rows >= PYTHON_ROWS_MIN {
                    true => self.python(file),
                    false => 0,
                };
                self.answer(id, [STATE_READY, table, rows, python]);
            }
            Err(error) => {
                tracing::info!(path = %path.display(), error, "unwinding by frame pointers");
                self.answer(id, [STATE_NONE, 0, 0, 0]);
            }
        }
    }

    /// By the symboliser, which may end in it: once more then, as another file
    /// or nobody may have been the reason.
    fn table(&mut self, file: &File, path: &Path) -> Result<Vec<Row>, Unusable> {
        let rows_max = ROWS_ALL.saturating_sub(self.rows).min(ROWS_MAX) as u32;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut made = self.table_once(file, &name, rows_max);
        if matches!(&made, Err(Unusable::Lost(lost)) if lost.again()) {
            made = self.table_once(file, &name, rows_max);
        }
        if let Err(Unusable::Lost(lost)) = &made {
            tracing::warn!(
                path = %path.display(),
                "no unwind table: the symboliser ended while reading it ({lost})"
            );
        }
        made
    }

    fn table_once(&mut self, file: &File, name: &str, rows_max: u32) -> Result<Vec<Row>, Unusable> {
        if self.libc_life == 0 || self.libc_life != self.symboliser.life() {
            if let Some(libc) = LibcNames::file_of_this_machine() {
                // Without, reserved prefixes still tell much.
                match self.symboliser.libc(&libc) {
                    Ok(()) | Err(Unusable::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            self.libc_life = self.symboliser.life();
        }
        self.symboliser.table(file, name, rows_max, CPU_PER_FILE)
    }

    fn put(&mut self, rows: &[Row]) -> Result<(u32, u32), Error> {
        if self.used >= TABLES_MAX || rows.is_empty() || self.rows + rows.len() > ROWS_ALL {
            return Err(Error::Full {
                what: "unwind tables",
                limit: TABLES_MAX,
            });
        }
        let map = table_of(rows)?;
        let index = self.used;
        let fd = map.as_fd().as_raw_fd();
        // SAFETY: one key and one value of 4 bytes each, the outer map's sizes.
        let ret = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.outer.as_raw_fd(),
                (&raw const index).cast(),
                (&raw const fd).cast(),
                0,
            )
        };
        if ret != 0 {
            return Err(Error::Kernel {
                action: "put an unwind table in place",
                source: std::io::Error::from_raw_os_error(-ret),
            });
        }
        self.used += 1;
        self.rows += rows.len();
        Ok((index, rows.len() as u32))
    }

    /// If it is an interpreter: its number, with which the kernel side finds where it keeps
    /// what it runs; else 0.
    fn python(&mut self, file: &File) -> u32 {
        let Ok(Some(python)) = self.symboliser.python(file) else {
            return 0;
        };
        if self.pythons_used >= PYTHONS_MAX {
            return 0;
        }
        let index = self.pythons_used;
        let mut value = [0u8; PYTHON_VALUE_BYTES];
        value[..PYTHON_BYTES].copy_from_slice(&python.to_bytes());
        // SAFETY: a key of 4 bytes, and a value of `struct python`'s.
        let ret = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.pythons.as_raw_fd(),
                (&raw const index).cast(),
                value.as_ptr().cast(),
                0,
            )
        };
        if ret != 0 {
            tracing::warn!(error = -ret, "announcing a Python interpreter");
            return 0;
        }
        self.pythons_used += 1;
        self.pythons_used
    }

    /// The kernel side may look from now on.
    fn answer(&mut self, id: FileId, value: [u32; 4]) {
        let key = id.key();
        // SAFETY: 16 bytes of key, 16 of value: `struct file_id` and
        // `struct unwind_file`.
        let ret = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.files.as_raw_fd(),
                key.as_ptr().cast(),
                value.as_ptr().cast(),
                0,
            )
        };
        if ret != 0 {
            tracing::warn!(error = -ret, "announcing an unwind table");
        }
        self.known.push(id);
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        for id in &self.known {
            let key = id.key();
            // SAFETY: a key of the map's size; one that is gone is as well.
            unsafe { libbpf_sys::bpf_map_delete_elem(self.files.as_raw_fd(), key.as_ptr().cast()) };
        }
        for index in 0..self.used {
            // SAFETY: as above, 4 bytes.
            unsafe {
                libbpf_sys::bpf_map_delete_elem(self.outer.as_raw_fd(), (&raw const index).cast())
            };
        }
    }
}

/// A map of these rows.
pub(crate) fn table_of(rows: &[Row]) -> Result<MapHandle, Error> {
    let map = MapHandle::create(
        MapType::Array,
        Some("debox_unwind"),
        4,
        size_of::<Row>() as u32,
        rows.len() as u32,
        &crate::map_options(crate::BPF_F_MMAPABLE | BPF_F_INNER_MAP),
    )
    .map_err(Error::bpf("creating an unwind table"))?;
    fill(&map, rows)?;
    Ok(map)
}

fn fill(map: &MapHandle, rows: &[Row]) -> Result<(), Error> {
    let length = size_of_val(rows);
    // SAFETY: the place is as large (the map's element size is 8 bytes, so elements follow each other without gaps),
    // and nobody reads it yet.
    let written = crate::new_map_write(map, length, |memory| unsafe {
        std::ptr::copy_nonoverlapping(rows.as_ptr().cast::<u8>(), memory, length);
    });
    if written.is_err() {
        // Slower, but the same.
        for (index, row) in rows.iter().enumerate() {
            // SAFETY: Row is 8 bytes of plain data without padding.
            let value: [u8; 8] = unsafe { std::mem::transmute(*row) };
            map.update(&(index as u32).to_ne_bytes(), &value, MapFlags::ANY)
                .map_err(Error::bpf("filling an unwind table"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_among_what_we_have_mapped() {
        let libraries = libraries();
        assert!(
            libraries
                .iter()
                .any(|p| p.to_string_lossy().contains("libc.so")),
            "{libraries:?}"
        );
    }

    #[test]
    fn a_request_names_the_file_it_came_from() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|l| l.contains("libc.so")).unwrap();
        let address = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        let path = format!("/{}", line.split_once('/').unwrap().1);
        let id = FileId::of(&foreign::open(Path::new(&path)).unwrap()).unwrap();
        let request = Request {
            id,
            address,
            pid: std::process::id(),
            path: path.clone(),
        };
        let (file, _) = request.open().unwrap();
        assert_eq!(FileId::of(&file), Some(id));
        // Another inode at that address is refused.
        assert!(mapping_of(request.pid, address, id.ino + 1).is_none());
        let wrong = Request {
            id: FileId {
                ino: id.ino + 1,
                ..id
            },
            ..request
        };
        assert!(wrong.open().is_none());
    }

    #[test]
    fn requests_are_parsed() {
        let mut bytes = vec![0u8; REQUEST_BYTES];
        bytes[0..8].copy_from_slice(&77u64.to_ne_bytes());
        bytes[8..12].copy_from_slice(&5u32.to_ne_bytes());
        bytes[16..24].copy_from_slice(&0x1000u64.to_ne_bytes());
        bytes[24..28].copy_from_slice(&42u32.to_ne_bytes());
        bytes[32..36].copy_from_slice(b"/bin");
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(request.id, FileId { ino: 77, dev: 5 });
        assert_eq!((request.address, request.pid), (0x1000, 42));
        assert_eq!(request.path, "/bin");
        assert!(Request::parse(&bytes[1..]).is_none());
    }
}
