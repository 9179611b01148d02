// SPDX-License-Identifier: MIT OR Apache-2.0
//! When does a program get into the kernel, and how is it attached?
//!
//! The kernel's verifier takes most of the time that a short run has. So a
//! program is loaded when it is first attached, and what a run will need for
//! certain before that, on all CPUs: libbpf, which loads all of an object's
//! programs one after the other, only prepares them (maps, relocations).

use libbpf_rs::btf::{Btf, types};
use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{AsRawLibbpf, Mut, Object, ProgramImpl};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::reachable::{Code, Constants};

/// Of the object, as it says itself.
const LICENSE: &CStr = c"Dual BSD/GPL";
const LOG_BYTES: usize = 1 << 20;
const BPF_F_RDONLY_PROG: u32 = 1 << 7;

pub(crate) type Program<'p> = ProgramImpl<'p, Mut>;

/// An attached program; dropping it detaches.
pub(crate) struct Link {
    link: OwnedFd,
    /// What it is attached to, where that is ours.
    _event: Option<OwnedFd>,
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// Those of one object, in the kernel or ready to go there.
pub(crate) struct Programs {
    object: NonNull<sys::bpf_object>,
    /// The kernel's types: which one each tracepoint and iterator is.
    kernel: Mutex<Btf<'static>>,
    loaded: Mutex<HashMap<NonNull<sys::bpf_program>, OwnedFd>>,
    constants: Constants,
}

// SAFETY: libbpf's objects are tied to no thread. What is shared between
// threads is only read (`object`, its programs), or behind a lock.
unsafe impl Send for Programs {}
// SAFETY: as above.
unsafe impl Sync for Programs {}

/// One program, for the threads that load.
#[derive(Clone, Copy)]
struct Ready(NonNull<sys::bpf_program>);

// SAFETY: a prepared program is only read.
unsafe impl Send for Ready {}
// SAFETY: as above.
unsafe impl Sync for Ready {}

/// Creates the maps and relocates the programs of an open object, so that
/// loading its skeleton loads none of them.
pub(crate) fn prepare<'obj>(open: &mut impl OpenSkel<'obj>) -> Result<(), Error> {
    let object = open.open_object().as_libbpf_object().as_ptr();
    // SAFETY: an object that is open, and not loaded.
    let ret = unsafe { sys::bpf_object__prepare(object) };
    if ret != 0 {
        return Err(refused("creating the maps")(-ret));
    }
    for mut program in open.open_object_mut().progs_mut() {
        program.set_autoload(false);
    }
    Ok(())
}

/// What a program is made of.
///
/// # Safety
/// It is one of a prepared object.
unsafe fn code_of(program: *const sys::bpf_program) -> Code {
    // SAFETY: by the caller's word there are as many of each as libbpf says, or none.
    unsafe {
        Code {
            instructions: listed(
                sys::bpf_program__insns(program),
                sys::bpf_program__insn_cnt(program) as usize,
            ),
            functions: listed(
                sys::bpf_program__func_info(program),
                sys::bpf_program__func_info_cnt(program) as usize,
            ),
            lines: listed(
                sys::bpf_program__line_info(program),
                sys::bpf_program__line_info_cnt(program) as usize,
            ),
        }
    }
}

/// What nobody writes any more: of maps that programs only read, frozen as they were made.
///
/// # Safety
/// The object is prepared.
unsafe fn constants_of(object: NonNull<sys::bpf_object>) -> Constants {
    let mut constants = Constants::new();
    let mut map = std::ptr::null_mut();
    loop {
        // SAFETY: the object lives, and `map` is one of its maps, or none.
        map = unsafe { sys::bpf_object__next_map(object.as_ptr(), map) };
        if map.is_null() {
            return constants;
        }
        // SAFETY: a map of a prepared object; those of global variables have a value of the
        // length that libbpf says.
        unsafe {
            let read_only = sys::bpf_map__map_flags(map) & BPF_F_RDONLY_PROG != 0;
            if read_only && sys::bpf_map__is_internal(map) {
                let mut length = 0;
                let value = sys::bpf_map__initial_value(map, &raw mut length);
                let value = listed(value.cast::<u8>(), length as usize);
                constants.insert(sys::bpf_map__fd(map), value);
            }
        }
    }
}

/// A copy.
///
/// # Safety
/// So many lie there, or it is null.
unsafe fn listed<T: Copy>(first: *const T, count: usize) -> Vec<T> {
    if first.is_null() {
        return vec![];
    }
    // SAFETY: by the caller's word.
    unsafe { std::slice::from_raw_parts(first, count) }.to_vec()
}

fn refused(action: &'static str) -> impl Fn(i32) -> Error {
    move |errno| Error::bpf(action)(libbpf_rs::Error::from_raw_os_error(errno))
}

impl Programs {
    /// # Safety
    /// The object is prepared, and lives longer.
    pub unsafe fn of(object: &Object) -> Result<Self, Error> {
        Ok(Self {
            object: object.as_libbpf_object(),
            kernel: Mutex::new(
                Btf::from_vmlinux().map_err(Error::bpf("reading the kernel's types"))?,
            ),
            loaded: Mutex::default(),
            // SAFETY: by the caller's word.
            constants: unsafe { constants_of(object.as_libbpf_object()) },
        })
    }

    /// Loads those that are not yet, on all CPUs; the largest first.
    pub fn load(&self, programs: &[&Program<'_>]) -> Result<(), Error> {
        let these = programs.iter().map(|program| program.as_libbpf_object());
        self.load_these(these)
    }

    /// Loads all that there are.
    pub fn load_all(&self) -> Result<(), Error> {
        let mut last = std::ptr::null_mut();
        self.load_these(std::iter::from_fn(move || {
            // SAFETY: the object lives, and `last` is one of its programs, or none.
            last = unsafe { sys::bpf_object__next_program(self.object.as_ptr(), last) };
            NonNull::new(last)
        }))
    }

    fn load_these(
        &self,
        these: impl Iterator<Item = NonNull<sys::bpf_program>>,
    ) -> Result<(), Error> {
        let mut ready: Vec<Ready> = {
            let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            these
                .filter(|program| !loaded.contains_key(program))
                .map(Ready)
                .collect()
        };
        ready.sort_by_key(|p| {
            // SAFETY: a program of a prepared object.
            let instructions = unsafe { sys::bpf_program__insn_cnt(p.0.as_ptr()) };
            std::cmp::Reverse(instructions)
        });
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(&one) = ready.get(next.fetch_add(1, Ordering::Relaxed)) {
                let fd = self.load_one(one)?;
                let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
                loaded.insert(one.0, fd);
            }
            Ok(())
        };
        let cpus = match ready.len() {
            // To ask takes a millisecond where control groups limit it.
            0 | 1 => 1,
            _ => std::thread::available_parallelism().map_or(1, usize::from),
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..cpus.min(ready.len()))
                .filter_map(|_| {
                    std::thread::Builder::new()
                        .name("debox-load".into())
                        .spawn_scoped(scope, work)
                        .ok()
                })
                .collect();
            let ours = work();
            others.into_iter().fold(ours, |result, other| {
                result.and(
                    other
                        .join()
                        .unwrap_or_else(|_| Err(refused("loading the BPF programs")(libc::EIO))),
                )
            })
        })
    }

    /// The number of the kernel's type that stands for what a program is attached to; 0: none does.
    fn attach_type(&self, section: &str) -> u32 {
        let (name, kind) = match section.split_once('/') {
            Some(("tp_btf", name)) => (format!("btf_trace_{name}"), sys::BTF_KIND_TYPEDEF),
            Some(("iter", name)) => (format!("bpf_iter_{name}"), sys::BTF_KIND_FUNC),
            _ => return 0,
        };
        let Ok(name) = CString::new(name) else {
            return 0;
        };
        let kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the kernel's types live as long as `kernel`, the name longer than the call.
        let number = unsafe {
            sys::btf__find_by_name_kind(kernel.as_libbpf_object().as_ptr(), name.as_ptr(), kind)
        };
        number.max(0) as u32
    }

    /// Whether a struct of the kernel's has this member.
    pub fn has(&self, name: &str, member: &str) -> bool {
        let kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        kernel
            .type_by_name::<types::Struct<'_>>(name)
            .is_some_and(|s| s.iter().any(|m| m.name.is_some_and(|n| n == member)))
    }

    fn load_one(&self, ready: Ready) -> Result<OwnedFd, Error> {
        let program = ready.0.as_ptr();
        // SAFETY: a program of a prepared object.
        let code = unsafe { code_of(program) }.reachable(&self.constants);
        // SAFETY: a program of a prepared object has a name and a section, and keeps them as
        // long as the object lives.
        let (name, section, mut opts) = unsafe {
            let opts = sys::bpf_prog_load_opts {
                sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
                expected_attach_type: sys::bpf_program__expected_attach_type(program),
                prog_flags: sys::bpf_program__flags(program),
                prog_btf_fd: sys::bpf_object__btf_fd(self.object.as_ptr()) as u32,
                func_info: code.functions.as_ptr().cast(),
                func_info_cnt: code.functions.len() as u32,
                func_info_rec_size: size_of::<sys::bpf_func_info>() as u32,
                line_info: code.lines.as_ptr().cast(),
                line_info_cnt: code.lines.len() as u32,
                line_info_rec_size: size_of::<sys::bpf_line_info>() as u32,
                ..Default::default()
            };
            (
                CStr::from_ptr(sys::bpf_program__name(program)),
                CStr::from_ptr(sys::bpf_program__section_name(program)),
                opts,
            )
        };
        opts.attach_btf_id = self.attach_type(&section.to_string_lossy());
        let load = |opts: &mut sys::bpf_prog_load_opts| {
            // SAFETY: as above; opts and what it points to outlive the call.
            unsafe {
                sys::bpf_prog_load(
                    sys::bpf_program__type(program),
                    name.as_ptr(),
                    LICENSE.as_ptr(),
                    code.instructions.as_ptr(),
                    code.instructions.len() as sys::size_t,
                    opts,
                )
            }
        };
        let fd = load(&mut opts);
        if fd >= 0 {
            // SAFETY: a fresh descriptor that nobody else owns.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        // Why: the verifier says it only if it is asked.
        let mut log = vec![0u8; LOG_BYTES];
        opts.log_level = 1;
        opts.log_size = LOG_BYTES as u32;
        opts.log_buf = log.as_mut_ptr().cast();
        let again = load(&mut opts);
        if again >= 0 {
            // SAFETY: as above.
            return Ok(unsafe { OwnedFd::from_raw_fd(again) });
        }
        let text = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        tracing::debug!(program = ?name, "{}", text.to_string_lossy());
        Err(refused("loading the BPF programs")(-fd))
    }

    /// The descriptor of a program, which is loaded if it was not yet.
    fn with<T>(
        &self,
        program: &Program<'_>,
        attach: impl FnOnce(i32) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.load(&[program])?;
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = loaded
            .get(&program.as_libbpf_object())
            .map(AsRawFd::as_raw_fd);
        attach(fd.unwrap_or(-1))
    }

    /// To the tracepoint of its section.
    pub fn attach_trace(&self, program: &Program<'_>, action: &'static str) -> Result<Link, Error> {
        self.with(program, |fd| {
            // SAFETY: a program that names its tracepoint by its type.
            link_of(
                unsafe { sys::bpf_raw_tracepoint_open(std::ptr::null(), fd) },
                action,
            )
        })
    }

    pub fn attach_raw_tracepoint(&self, program: &Program<'_>, name: &str) -> Result<Link, Error> {
        const ACTION: &str = "attaching to a tracepoint";
        let name = CString::new(name).map_err(|_| refused(ACTION)(libc::EINVAL))?;
        self.with(program, |fd| {
            // SAFETY: a name that ends in 0 and outlives the call.
            link_of(
                unsafe { sys::bpf_raw_tracepoint_open(name.as_ptr(), fd) },
                ACTION,
            )
        })
    }

    /// To a software event, which counts from now on. `cookie`: what the program is told by.
    pub fn attach_event(
        &self,
        program: &Program<'_>,
        event: OwnedFd,
        cookie: u64,
        action: &'static str,
    ) -> Result<Link, Error> {
        let mut opts = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
            ..Default::default()
        };
        opts.__bindgen_anon_1.perf_event.bpf_cookie = cookie;
        let link = self.with(program, |fd| {
            // SAFETY: opts outlives the call.
            let link = unsafe {
                sys::bpf_link_create(fd, event.as_raw_fd(), sys::BPF_PERF_EVENT, &raw const opts)
            };
            link_of(link, action)
        })?;
        const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
        // SAFETY: an event of ours; the request takes no argument.
        if unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_ENABLE as _, 0) } != 0 {
            let errno = io::Error::last_os_error().raw_os_error();
            return Err(refused(action)(errno.unwrap_or(libc::EIO)));
        }
        Ok(Link {
            _event: Some(event),
            ..link
        })
    }

    /// To be read as often as it is opened, see [`iter_open`].
    pub fn iterator(&self, program: &Program<'_>) -> Result<Link, Error> {
        self.with(program, |fd| {
            // SAFETY: without options.
            let link =
                unsafe { sys::bpf_link_create(fd, 0, sys::BPF_TRACE_ITER, std::ptr::null()) };
            link_of(link, "attaching the iterator")
        })
    }
}

/// One run of an iterator.
pub(crate) fn iter_open(link: &impl AsFd) -> Result<File, Error> {
    // SAFETY: any descriptor may be asked.
    let fd = unsafe { sys::bpf_iter_create(link.as_fd().as_raw_fd()) };
    if fd < 0 {
        return Err(refused("creating the iterator")(-fd));
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn link_of(fd: i32, action: &'static str) -> Result<Link, Error> {
    if fd < 0 {
        return Err(refused(action)(-fd));
    }
    Ok(Link {
        // SAFETY: a fresh descriptor that nobody else owns.
        link: unsafe { OwnedFd::from_raw_fd(fd) },
        _event: None,
    })
}
