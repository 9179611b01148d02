// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does the symboliser do for the process that started it?
//!
//! It is started from the same executable, whatever that is, and begins and
//! ends before `main`: neither threads nor memory nor descriptors of the
//! program's own are there yet.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use debox_client::packet;
use debox_unwind::LibcNames;

use crate::module::Module;
use crate::perf_map::PerfMap;
use crate::python;
use crate::sandbox::{Refusal, attempt, confine};
use crate::wire::{
    HEADER_BYTES, Malformed, Part, REQUEST_BYTES_MAX, ROW_BYTES, Reply, Request, header,
};

/// The first and the second word of its command line.
pub(crate) const PROGRAM: &CStr = c"debox-symboliser";
pub(crate) const SERVE: &CStr = c"--serve";
const SERVE_AGAIN: &CStr = c"--serve-again";
/// All files together; then the oldest go. The parent hands them in again.
const HELD_ALL: u64 = 400 << 20;
/// Whatever has to be said.
const SOCKET: c_int = 0;

// No other C library hands the command line to initialisers.
#[cfg(not(target_env = "gnu"))]
compile_error!("the symboliser is started by what glibc passes to .init_array");

/// Among the initialisers of every program that this crate is linked into (Miri
/// passes nothing to them, which is undefined).
#[used]
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
pub(crate) static BEFORE_MAIN: extern "C" fn(c_int, *const *const c_char) = before_main;

extern "C" fn before_main(count: c_int, words: *const *const c_char) {
    if count != 2 || words.is_null() {
        return;
    }
    // SAFETY: glibc hands over as many strings as it says, and they live as long
    // as the process.
    let (name, verb) = unsafe { (CStr::from_ptr(*words), CStr::from_ptr(*words.add(1))) };
    if name != PROGRAM || (verb != SERVE && verb != SERVE_AGAIN) {
        return;
    }
    let status = serve(verb == SERVE_AGAIN);
    // SAFETY: no destructors: nothing was begun that needs them.
    unsafe { libc::_exit(status) };
}

/// Until the socket is closed. Whoever starts it by hand gets a process that
/// can do nothing and ends at once.
fn serve(again: bool) -> c_int {
    // /dev/null is 2.
    match confine(&[2]) {
        Ok(()) => {}
        // A filter that forbids capset: capabilities that are not ambient do
        // not outlive exec, if this is not root.
        Err(Refusal::Again) if !again => {
            let words = [PROGRAM.as_ptr(), SERVE_AGAIN.as_ptr(), std::ptr::null()];
            let none = [std::ptr::null()];
            // SAFETY: lists of strings that end with a null pointer.
            unsafe { libc::execve(c"/proc/self/exe".as_ptr(), words.as_ptr(), none.as_ptr()) };
            say(&Reply::Refused(
                "its capabilities cannot be given up".into(),
            ));
            return 1;
        }
        Err(Refusal::Again) => {
            say(&Reply::Refused(
                "its capabilities cannot be given up".into(),
            ));
            return 1;
        }
        Err(Refusal::Told(why)) => {
            say(&Reply::Refused(why));
            return 1;
        }
    }
    panic::set_hook(Box::new(|info| {
        let place = info
            .location()
            .map_or_else(String::new, |at| short(at.file(), at.line()));
        PANIC.with_borrow_mut(|told| *told = place);
    }));
    say(&Reply::Ready);
    let mut server = Server::default();
    while let Some((request, file)) = hear() {
        let reply = panic::catch_unwind(AssertUnwindSafe(|| server.answer(request, file)));
        match reply {
            Ok(reply) => say(&reply),
            // What parses may be left half done: a fresh process goes on.
            Err(_) => {
                say(&Reply::Panicked(PANIC.with_borrow(Clone::clone)));
                return 101;
            }
        }
    }
    0
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// `gimli-0.32.3/src/read/line.rs:7`, without where it was built.
fn short(file: &str, line: u32) -> String {
    let parts: Vec<&str> = file.split('/').collect();
    let from = parts
        .iter()
        .rposition(|part| *part == "src")
        .map_or(0, |src| src.saturating_sub(1));
    format!("{}:{line}", parts[from..].join("/"))
}

fn say(reply: &Reply) {
    let bytes = reply.encode();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        // SAFETY: a buffer of its length.
        let sent =
            unsafe { libc::send(SOCKET, rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
        if sent <= 0 {
            if sent < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            // SAFETY: nobody listens any more.
            unsafe { libc::_exit(0) };
        }
        rest = &rest[sent as usize..];
    }
}

/// Fills the buffer, and takes the descriptor that came along.
fn receive(into: &mut [u8], descriptor: &mut Option<OwnedFd>) -> bool {
    let mut done = 0;
    while done < into.len() {
        match packet::receive(SOCKET, &mut into[done..]) {
            Ok(got) if got.length > 0 => {
                done += got.length;
                // A second one closes the first.
                got.fds.into_iter().for_each(|fd| *descriptor = Some(fd));
            }
            _ => return false,
        }
    }
    true
}

/// The next request; None ends it.
fn hear() -> Option<(Request, Option<File>)> {
    let mut descriptor = None;
    let mut head = [0; HEADER_BYTES];
    if !receive(&mut head, &mut descriptor) {
        return None;
    }
    let (length, kind) = header(&head);
    if length > REQUEST_BYTES_MAX {
        return None;
    }
    let mut body = vec![0; length];
    if !receive(&mut body, &mut descriptor) {
        return None;
    }
    let request = Request::decode(kind, &body).ok()?;
    Some((request, descriptor.map(File::from)))
}

#[derive(Default)]
struct Server {
    /// In the order in which they came.
    modules: Vec<(u32, Module)>,
    maps: HashMap<u32, PerfMap>,
    libc: Arc<LibcNames>,
}

impl Server {
    fn answer(&mut self, request: Request, file: Option<File>) -> Reply {
        let forgotten = match &request {
            Request::Load {
                part: Part::Main, ..
            } => false,
            Request::Load { file, .. } | Request::Name { file, .. } => {
                !self.modules.iter().any(|(known, _)| known == file)
            }
            Request::MapName { map, .. } => !self.maps.contains_key(map),
            _ => false,
        };
        if forgotten {
            return Reply::Forgotten;
        }
        let done = match request {
            Request::Load { file: number, part } => self.load(number, part, file),
            Request::Name { file, place, lines } => self.name(file, place, lines),
            Request::Map { map } => self.map(map, file),
            Request::MapName { map, address } => {
                let found = self.maps.get(&map).and_then(|map| map.name(address));
                Ok(Reply::MapNamed(
                    found.map(|(start, name)| (start, name.to_owned())),
                ))
            }
            Request::Libc => self.libc(file),
            Request::Table {
                rows_max,
                cpu_ms,
                file_name,
            } => self.table(rows_max, cpu_ms, file_name, file),
            Request::Python => file
                .ok_or(Malformed.to_string())
                .and_then(|file| python::of_file(&file).map(Reply::Python)),
            Request::Attempt { what } => {
                attempt(what);
                Ok(Reply::Done)
            }
        };
        done.unwrap_or_else(Reply::Refused)
    }

    fn load(&mut self, number: u32, part: Part, file: Option<File>) -> Result<Reply, String> {
        let file = file.ok_or(Malformed.to_string())?;
        if part == Part::Main {
            self.modules.retain(|(known, _)| *known != number);
            while !self.modules.is_empty() && self.held() > HELD_ALL {
                self.modules.remove(0);
            }
            self.modules.push((number, Module::open(&file)?));
        } else {
            self.module(number)?.add(part, &file)?;
        }
        Ok(Reply::Loaded(self.module(number)?.loaded()))
    }

    fn held(&self) -> u64 {
        let modules = self.modules.iter().map(|(_, module)| module.held());
        modules.sum::<u64>() + self.maps.values().map(PerfMap::held).sum::<u64>()
    }

    fn module(&mut self, number: u32) -> Result<&mut Module, String> {
        self.modules
            .iter_mut()
            .find(|(known, _)| *known == number)
            .map(|(_, module)| module)
            .ok_or_else(|| Malformed.to_string())
    }

    fn name(&mut self, number: u32, place: u64, lines: bool) -> Result<Reply, String> {
        let named = self.module(number)?.name(place, lines);
        Ok(Reply::Named {
            frames: named.frames,
            incomplete: named.incomplete,
        })
    }

    fn map(&mut self, number: u32, file: Option<File>) -> Result<Reply, String> {
        let file = file.ok_or(Malformed.to_string())?;
        self.maps.remove(&number);
        if self.held() > HELD_ALL {
            self.maps.clear();
        }
        self.maps.insert(number, PerfMap::open(&file)?);
        Ok(Reply::Done)
    }

    fn libc(&mut self, file: Option<File>) -> Result<Reply, String> {
        let file = file.ok_or(Malformed.to_string())?;
        let names =
            LibcNames::exported_by(&Whole::of(&file)?).map_err(|error| error.to_string())?;
        self.libc = Arc::new(names);
        Ok(Reply::Done)
    }

    fn table(
        &mut self,
        rows_max: u32,
        cpu_ms: u32,
        file_name: String,
        file: Option<File>,
    ) -> Result<Reply, String> {
        let file = file.ok_or(Malformed.to_string())?;
        let options = debox_unwind::Options {
            max_rows: rows_max as usize,
            max_cpu: Duration::from_millis(cpu_ms.into()),
            file_name: Some(file_name).filter(|name| !name.is_empty()),
            ..debox_unwind::Options::new(self.libc.clone())
        };
        let table =
            debox_unwind::table(&Whole::of(&file)?, &options).map_err(|error| error.to_string())?;
        let mut bytes = Vec::with_capacity(table.rows.len() * ROW_BYTES);
        for row in &table.rows {
            bytes.extend_from_slice(&row.to_bytes());
        }
        Ok(Reply::Table(bytes))
    }
}

/// A file and its length, which is asked for without a path.
struct Whole<'a> {
    file: BorrowedFd<'a>,
    len: u64,
}

impl<'a> Whole<'a> {
    fn of(file: &'a File) -> Result<Whole<'a>, String> {
        use std::os::fd::AsFd as _;
        Ok(Whole {
            len: crate::memory::file_len(file)?,
            file: file.as_fd(),
        })
    }
}

impl debox_unwind::Source for Whole<'_> {
    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            let rest = &mut into[done..];
            // SAFETY: a buffer of its length.
            let got = unsafe {
                libc::pread(
                    self.file.as_raw_fd(),
                    rest.as_mut_ptr().cast(),
                    rest.len(),
                    (offset + done as u64) as libc::off_t,
                )
            };
            match got {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got if got > 0 => done += got as usize,
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}
