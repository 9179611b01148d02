// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a call trace get onto the kernel, and off it again?
//!
//! Each trace has a thread and a copy of bpf/trace.bpf.c of its own: attaching
//! to hundreds of functions takes from a tenth of a second to half a minute,
//! depending on the way, and nobody else shall wait for it. Who asked gets the
//! shared memory at once; the table in it says when the trace is on.

use std::collections::HashSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use debox_abi::*;
use debox_labels::glob;
use debox_symbol::{Function, Functions};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{AsRawLibbpf, Link, OpenObject, libbpf_sys as sys};

use crate::error::Error;
use crate::place::Place;
use crate::{BPF_F_MMAPABLE, array_create, iterate, owned};

mod copies;
mod functions;

use copies::{Template, Types};
pub use functions::choose as functions_choose;

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    unreachable_pub,
    missing_docs
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/trace.skel.rs"));
}

/// Functions that get a pair of programs each: attaching one takes tens of
/// milliseconds, detaching it longer.
const FENTRY_MAX: usize = 64;
const TRACEPOINTS_MAX: usize = 192;
/// Bytes of all buffers of one trace.
const BUFFERS_BYTES: usize = 64 << 20;
/// Buffers that hold the slowest call of each kind.
const SLOWEST_BUFFERS: usize = DEBOX_ROWS_MAX;
/// As in bpf/trace.h.
const THREADS_MAX: usize = 4096;

/// How functions are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Session,
    Multi,
    Fentry,
    Tracepoint,
}

impl Way {
    /// Best first.
    pub const ALL: [Way; 4] = [Way::Session, Way::Multi, Way::Fentry, Way::Tracepoint];

    pub const fn number(self) -> u32 {
        match self {
            Way::Session => DEBOX_TRACE_WAY_SESSION,
            Way::Multi => DEBOX_TRACE_WAY_MULTI,
            Way::Fentry => DEBOX_TRACE_WAY_FENTRY,
            Way::Tracepoint => DEBOX_TRACE_WAY_TRACEPOINT,
        }
    }

    pub fn from_number(number: u32) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.number() == number)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Way::Session => "kprobe.session",
            Way::Multi => "kprobe.multi",
            Way::Fentry => "fentry/fexit",
            Way::Tracepoint => "tracepoints",
        }
    }
}

/// Whose calls are traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceTarget {
    /// The calls that a program brackets itself.
    Slots { tgid: u32 },
    /// All calls of an account's threads.
    Account { id: u32 },
}

/// A call trace that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceOptions {
    /// Entries of one call; 0: the default.
    pub capacity: u32,
    /// Threads traced at one time; 0: as many as are sensible.
    pub threads: u32,
    /// None: the best that the kernel allows.
    pub way: Option<Way>,
    /// Keys of the calls to trace (an account's); empty: all.
    pub calls: Vec<u32>,
    /// Patterns of functions; empty: the default.
    pub patterns: String,
}

/// The shared memory of a trace, all read-only for whoever gets it.
#[derive(Debug)]
pub struct Trace {
    pub buffers: OwnedFd,
    pub sums: OwnedFd,
    pub table: OwnedFd,
}

/// Descriptors of the main object's maps, which a trace reads.
pub(crate) struct MainMaps {
    pub threads: OwnedFd,
    pub segment_controls: OwnedFd,
}

enum Command {
    /// The program has new slots.
    Bind,
    /// Record no more; the reply comes when the counters are final.
    Stop(Sender<()>),
}

/// A trace that is on, or being put on. Dropping it takes it off, behind the
/// scenes.
pub(crate) struct Running {
    pub target: TraceTarget,
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    cancelled: Arc<AtomicU32>,
}

impl Running {
    pub fn start(
        target: TraceTarget,
        options: TraceOptions,
        maps: MainMaps,
    ) -> Result<(Running, Trace), Error> {
        let capacity = match options.capacity {
            0 => DEBOX_TRACE_DEFAULT,
            n => n.min(DEBOX_TRACE_MAX),
        };
        let stride = size_of::<debox_trace>() + capacity as usize * size_of::<debox_trace_entry>();
        let (each, spare, wish) = match target {
            TraceTarget::Slots { .. } => (2, 0, 64),
            TraceTarget::Account { .. } => (1, SLOWEST_BUFFERS, 1024),
        };
        let wish = if options.threads == 0 {
            wish
        } else {
            options.threads as usize
        };
        let room = (BUFFERS_BYTES / stride).saturating_sub(spare) / each;
        let for_threads = wish.min(room).clamp(8, THREADS_MAX) * each;
        let all = for_threads + spare;
        let buffers = array_create("trace_buffers", stride, all as u32, BPF_F_MMAPABLE)?;
        let sums = array_create(
            "trace_sums",
            size_of::<debox_trace_sums>(),
            1,
            BPF_F_MMAPABLE,
        )?;
        buffers
            .freeze()
            .map_err(Error::bpf("freezing a trace's buffers"))?;
        sums.freeze()
            .map_err(Error::bpf("freezing a trace's sums"))?;
        let mut head = debox_trace_table::zeroed();
        head.magic = DEBOX_TRACE_MAGIC;
        head.buffers = all as u32;
        head.capacity = capacity;
        head.stride = stride as u64;
        let table = Table::create(&head)?;
        let trace = Trace {
            buffers: owned(&buffers)?,
            sums: owned(&sums)?,
            table: table.read_only()?,
        };
        let cancelled = Arc::new(AtomicU32::new(0));
        let (commands, receiver) = channel();
        let work = Work {
            target,
            options,
            maps,
            buffers: owned(&buffers)?,
            sums: owned(&sums)?,
            table,
            capacity,
            for_threads: for_threads as u32,
            all: all as u32,
            cancelled: cancelled.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("debox-trace".into())
            .spawn(move || work.run(&receiver))
            .map_err(|source| Error::Kernel {
                action: "start a thread",
                source,
            })?;
        Ok((
            Running {
                target,
                commands: Some(commands),
                thread: Some(thread),
                cancelled,
            },
            trace,
        ))
    }

    pub fn bind(&self) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(Command::Bind);
        }
    }

    /// Ends recording; when this returns, sums and counters are final.
    pub fn stop(&self) {
        let (done, wait) = channel();
        self.cancelled.store(1, Ordering::Relaxed);
        if let Some(commands) = &self.commands
            && commands.send(Command::Stop(done)).is_ok()
        {
            // Nothing is waited for that takes long, except a verifier at work.
            let _ = wait.recv_timeout(Duration::from_secs(10));
        }
    }

    /// Starts taking it off; the thread to wait for.
    pub fn end(mut self) -> Option<JoinHandle<()>> {
        self.cancelled.store(1, Ordering::Relaxed);
        self.commands = None;
        self.thread.take()
    }
}

/// What the trace's thread works on.
struct Work {
    target: TraceTarget,
    options: TraceOptions,
    maps: MainMaps,
    buffers: OwnedFd,
    sums: OwnedFd,
    table: Table,
    capacity: u32,
    for_threads: u32,
    all: u32,
    cancelled: Arc<AtomicU32>,
}

/// What is attached. Field order is drop order.
struct Attached {
    /// Functions: closed first, so that nothing runs on what goes next.
    probes: Vec<OwnedFd>,
    hooks: Vec<Link>,
    skel: skel::TraceSkel<'static>,
    _place: Place<OpenObject>,
    names: Vec<String>,
    /// Functions that were wanted and cannot be had.
    refused: usize,
    text: String,
}

impl Work {
    fn run(mut self, commands: &Receiver<Command>) {
        let begin = Instant::now();
        let mut attached = match self.attach() {
            Ok((way, mut attached)) => {
                let bound = self.bind(&mut attached);
                self.table.update(|head| {
                    head.way = way.number();
                    head.refused = attached.refused as u32;
                    head.attach_ns = begin.elapsed().as_nanos() as u64;
                    head.set_text(&attached.text);
                });
                match bound {
                    Ok(()) => {
                        tracing::info!(
                            way = way.name(),
                            functions = attached.names.len(),
                            refused = attached.refused,
                            elapsed = ?begin.elapsed(),
                            "call trace on"
                        );
                        self.table.state(DEBOX_TRACE_STATE_ON);
                        Some(attached)
                    }
                    Err(error) => {
                        self.fail(&error.to_string());
                        None
                    }
                }
            }
            Err(text) => {
                self.fail(&text);
                None
            }
        };
        loop {
            match commands.recv_timeout(Duration::from_secs(3600)) {
                Ok(Command::Bind) => {
                    if let Some(attached) = &mut attached
                        && let Err(error) = self.bind(attached)
                    {
                        tracing::warn!(%error, "threads that have new slots are not traced");
                    }
                }
                Ok(Command::Stop(done)) => {
                    if let Some(attached) = &mut attached {
                        if let Some(bss) = attached.skel.maps.bss_data.as_deref_mut() {
                            bss.trace_stopped = 1;
                        }
                        let missed = attached.missed();
                        self.table.update(|head| head.missed = missed);
                        self.table.state(DEBOX_TRACE_STATE_STOPPED);
                    }
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(attached) = attached {
            let (begin, probes) = (Instant::now(), attached.probes.len());
            drop(attached);
            tracing::debug!(probes, elapsed = ?begin.elapsed(), "call trace off");
        }
    }

    fn fail(&mut self, text: &str) {
        tracing::warn!("no call trace: {text}");
        self.table.update(|head| head.set_text(text));
        self.table.state(DEBOX_TRACE_STATE_FAILED);
    }

    /// Tries the ways, best first. Err is a text for people.
    fn attach(&mut self) -> Result<(Way, Attached), String> {
        let ways: Vec<Way> = match self.options.way {
            Some(way) => vec![way],
            None => Way::ALL.to_vec(),
        };
        let mut reasons = vec![];
        for way in ways {
            if self.cancelled.load(Ordering::Relaxed) != 0 {
                return Err("nobody waits for it any more".into());
            }
            match self.attach_way(way) {
                Ok(attached) => {
                    let names: Vec<_> = attached.names.iter().map(String::as_str).collect();
                    self.table.functions(&names);
                    return Ok((way, attached));
                }
                Err(reason) => {
                    tracing::debug!(way = way.name(), "not this way: {reason}");
                    reasons.push(format!("{}: {reason}", way.name()));
                }
            }
        }
        Err(format!(
            "{}. `debox doctor` shows what this kernel allows.",
            reasons.join("; ")
        ))
    }

    fn attach_way(&mut self, way: Way) -> Result<Attached, String> {
        let mut attached = self.load(way)?;
        match way {
            Way::Session | Way::Multi => self.attach_many(way, &mut attached)?,
            Way::Fentry => self.attach_pairs(&mut attached)?,
            Way::Tracepoint => self.attach_points(&mut attached)?,
        }
        let hook = |link: Result<Link, libbpf_rs::Error>| link.map_err(|e| format!("{e:#}"));
        let p = &attached.skel.progs;
        attached.hooks.push(hook(p.trace_exit.attach_trace())?);
        attached.hooks.push(hook(p.trace_exec.attach_trace())?);
        match self.target {
            TraceTarget::Slots { .. } => {
                attached.hooks.push(hook(p.trace_fork.attach_trace())?);
            }
            TraceTarget::Account { .. } => {
                attached.hooks.push(hook(p.trace_sys_exit.attach_trace())?);
                attached.hooks.push(hook(p.trace_sys_enter.attach_trace())?);
            }
        }
        Ok(attached)
    }

    /// Loads the programs of one way.
    fn load(&self, way: Way) -> Result<Attached, String> {
        let failed = |e: libbpf_rs::Error| format!("{e:#}");
        let place = Place::new();
        // SAFETY: once; `skel` is declared before `_place`, so it is dropped first.
        let object = unsafe { place.lend() };
        let mut open = skel::TraceSkelBuilder::default()
            .open(object)
            .map_err(failed)?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.trace_capacity = self.capacity;
            rodata.trace_buffers_for_threads = self.for_threads;
            rodata.trace_buffers_all = self.all;
            rodata.trace_flags = if way == Way::Tracepoint {
                DEBOX_TRACE_FLAG_COARSE
            } else {
                0
            };
            match self.target {
                TraceTarget::Slots { tgid } => rodata.trace_tgid = tgid,
                TraceTarget::Account { id } => rodata.trace_account = id,
            }
            for &key in &self.options.calls {
                if let Some(chosen) = rodata.trace_calls.get_mut(key as usize) {
                    *chosen = 1;
                }
            }
            rodata.trace_calls_chosen = !self.options.calls.is_empty();
        }
        let wanted: &[&str] = match way {
            Way::Session => &["function_session"],
            Way::Multi => &["function_multi_enter", "function_multi_leave"],
            Way::Fentry => &["function_fentry", "function_fexit"],
            Way::Tracepoint => &["point", "point_begin", "point_end"],
        };
        let calls: &[&str] = match self.target {
            TraceTarget::Slots { .. } => &["trace_fork", "trace_exec", "trace_exit", "trace_bind"],
            TraceTarget::Account { .. } => &[
                "trace_sys_enter",
                "trace_sys_exit",
                "trace_exec",
                "trace_exit",
            ],
        };
        for mut program in open.open_object_mut().progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let load = wanted.contains(&name.as_str()) || calls.contains(&name.as_str());
            program.set_autoload(load);
            // Templates need some target to be loaded for; it is never used.
            let target = match name.as_str() {
                "function_fentry" | "function_fexit" => Some("vfs_read"),
                "point" | "point_begin" | "point_end" => Some("sched_process_exit"),
                _ => None,
            };
            if let (true, Some(target)) = (load, target) {
                program
                    .set_attach_target(0, Some(target.to_owned()))
                    .map_err(failed)?;
            }
        }
        for mut map in open.open_object_mut().maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let shared = match name.as_str() {
                "threads" => Some(&self.maps.threads),
                "segment_controls" => Some(&self.maps.segment_controls),
                "trace_buffers" => Some(&self.buffers),
                "trace_sums" => Some(&self.sums),
                _ => None,
            };
            if let Some(shared) = shared {
                map.reuse_fd(shared.as_fd()).map_err(failed)?;
            } else if name != "trace_threads" && !name.contains('.') {
                // state.h's, which this object does not use.
                map.set_autocreate(false).map_err(failed)?;
            }
        }
        let skel = open.load().map_err(|e| match way {
            Way::Session => format!("{e:#}: Linux 6.10 or later with CONFIG_FPROBE"),
            Way::Multi => format!("{e:#}: Linux 5.18 or later with CONFIG_FPROBE"),
            _ => format!("{e:#}"),
        })?;
        Ok(Attached {
            probes: vec![],
            hooks: vec![],
            skel,
            _place: place,
            names: vec![],
            refused: 0,
            text: String::new(),
        })
    }

    /// The functions of the trace that ftrace can reach, in order of wish.
    fn functions(&self, default: &str, attached: &mut Attached) -> Result<Vec<Function>, String> {
        let symbols = Functions::running().map_err(|e| format!("/proc/kallsyms: {e}"))?;
        if symbols.is_empty() {
            return Err("/proc/kallsyms shows no addresses: needs CAP_SYSLOG, or sysctl kernel.kptr_restrict=1 or 0".into());
        }
        let patterns = if self.options.patterns.is_empty() {
            default
        } else {
            &self.options.patterns
        };
        // Pieces of functions (`.cold`, `.part.0`) are not called.
        let names: HashSet<&str> = symbols
            .names()
            .filter(|name| !name.contains('.') || name.contains(".isra"))
            .collect();
        let chosen = functions::choose(patterns, names.iter().copied());
        if !self.options.patterns.is_empty() {
            let absent: Vec<&str> = functions::split(patterns)
                .into_iter()
                .filter(|p| !names.contains(p) && !names.iter().any(|n| glob(p, n)))
                .collect();
            if !absent.is_empty() {
                attached.say(&format!(
                    "no function of this kernel is called {}: a module that is not loaded, or inlined everywhere",
                    absent.join(", ")
                ));
            }
        }
        let (wanted, unreachable): (Vec<Function>, Vec<Function>) = chosen
            .iter()
            .flat_map(|name| symbols.named(name, None))
            .partition(|function| function.traceable);
        // Who names a function wants to know; a pattern is a net with holes.
        let (named, netted): (Vec<_>, Vec<_>) =
            unreachable.into_iter().map(|f| f.name).partition(|name| {
                !self.options.patterns.is_empty()
                    && functions::split(patterns).contains(&name.as_str())
            });
        attached.refused += netted.len();
        attached.refuse(
            named,
            "the kernel allows no probe there: notrace, or init code",
        );
        if wanted.is_empty() {
            return Err(format!(
                "no function can be traced that matches {patterns:?}"
            ));
        }
        Ok(wanted)
    }

    fn attach_many(&mut self, way: Way, attached: &mut Attached) -> Result<(), String> {
        let begin = Instant::now();
        let functions = self.functions(functions::PATTERNS, attached)?;
        tracing::debug!(elapsed = ?begin.elapsed(), functions = functions.len(), "functions chosen");
        if functions.len() > DEBOX_TRACE_FUNCTIONS_MAX {
            return Err(format!(
                "{} functions match, the limit is {DEBOX_TRACE_FUNCTIONS_MAX}: use narrower patterns",
                functions.len()
            ));
        }
        let addresses: Vec<u64> = functions.iter().map(|f| f.address).collect();
        let cookies: Vec<u64> = (0..functions.len() as u64).collect();
        let p = &attached.skel.progs;
        let programs: &[(i32, sys::bpf_attach_type, u32)] = match way {
            Way::Session => &[(
                p.function_session.as_fd().as_raw_fd(),
                sys::BPF_TRACE_KPROBE_SESSION,
                0,
            )],
            _ => &[
                // Returns first: one without its entry is dropped, an entry
                // without its return would stay open.
                (
                    p.function_multi_leave.as_fd().as_raw_fd(),
                    sys::BPF_TRACE_KPROBE_MULTI,
                    sys::BPF_F_KPROBE_MULTI_RETURN,
                ),
                (
                    p.function_multi_enter.as_fd().as_raw_fd(),
                    sys::BPF_TRACE_KPROBE_MULTI,
                    0,
                ),
            ],
        };
        let mut refused: HashSet<usize> = HashSet::new();
        let mut probes = vec![];
        for &(program, kind, flags) in programs {
            let mut bad = vec![];
            let links = multi_attach(program, kind, flags, &addresses, &cookies, &mut bad);
            if links.is_empty() {
                let (_, error) = bad.pop().ok_or("nothing to attach to")?;
                return Err(error.to_string());
            }
            probes.extend(links);
            refused.extend(bad.into_iter().map(|(i, _)| i));
        }
        attached.probes = probes;
        attached.names = functions.iter().map(|f| f.name.clone()).collect();
        attached.refuse(
            refused
                .into_iter()
                .map(|i| functions[i].name.clone())
                .collect(),
            "the kernel refused the probe",
        );
        Ok(())
    }

    fn attach_pairs(&mut self, attached: &mut Attached) -> Result<(), String> {
        let functions = self.functions(functions::CHOSEN, attached)?;
        let modules: HashSet<String> = functions.iter().filter_map(|f| f.module.clone()).collect();
        let types = Types::load(&modules.into_iter().collect::<Vec<_>>())
            .map_err(|e| format!("reading the kernel's types: {e}"))?;
        let object = attached.skel.object().as_libbpf_object().as_ptr();
        let p = &attached.skel.progs;
        // SAFETY: both programs are loaded and live as long as the skeleton.
        let (enter, leave) = unsafe {
            (
                Template::of(
                    object,
                    p.function_fentry.as_libbpf_object().as_ptr(),
                    sys::BPF_TRACE_FENTRY,
                ),
                Template::of(
                    object,
                    p.function_fexit.as_libbpf_object().as_ptr(),
                    sys::BPF_TRACE_FEXIT,
                ),
            )
        };
        let mut refused = vec![];
        let mut beyond = 0;
        let mut last = None;
        for function in &functions {
            if self.cancelled.load(Ordering::Relaxed) != 0 {
                break;
            }
            if attached.names.len() >= FENTRY_MAX {
                beyond += 1;
                continue;
            }
            if function.ambiguous {
                refused.push(format!(
                    "{} (several functions have this name)",
                    function.name
                ));
                continue;
            }
            if bpf_entry_runs_through(&function.name) {
                refused.push(format!(
                    "{} (entering a BPF program runs through it)",
                    function.name
                ));
                continue;
            }
            // Nobody returns, or the kernel keeps what he would return through.
            let one_way = never_returns(&function.name);
            if threads_end_inside(&function.name) && !one_way {
                refused.push(format!(
                    "{} (threads end inside of it, and the kernel would never free the probe)",
                    function.name
                ));
                continue;
            }
            if threads_stay_inside(&function.name) {
                refused.push(format!(
                    "{} (idle threads stay inside of it for hours, and the kernel would keep the \
                     probe as long)",
                    function.name
                ));
                continue;
            }
            let number = attached.names.len() as u32;
            let pair = types
                .function(&function.name, function.module.as_deref())
                .ok_or_else(|| io::Error::other("the kernel's types do not describe it"))
                .and_then(|target| {
                    let leave = if one_way {
                        None
                    } else {
                        Some(leave.attach(target, number)?)
                    };
                    Ok((leave, enter.attach(target, number)?))
                });
            match pair {
                Ok((leave, enter)) => {
                    attached.probes.extend(enter);
                    attached.probes.extend(leave.into_iter().flatten());
                    attached.names.push(function.name.clone());
                }
                Err(error) => {
                    // Refused as a whole (lockdown): no use in going on.
                    if attached.names.is_empty() && error.raw_os_error() == Some(libc::EPERM) {
                        return Err("Operation not permitted (EPERM): a lockdown or security policy forbids it".into());
                    }
                    refused.push(function.name.clone());
                    last = Some(error);
                }
            }
        }
        if attached.names.is_empty() {
            return Err(last.map_or_else(
                || "no function could be attached to".into(),
                |e| e.to_string(),
            ));
        }
        attached.refuse(refused, "the kernel refused the probe");
        if beyond > 0 {
            attached.refused += beyond;
            attached.say(&format!(
                "this kernel has no kprobe.session (Linux 6.10), and pairs of fentry and fexit are attached to {FENTRY_MAX} \
                 functions at most: {beyond} more that match are not traced; name the ones that matter"
            ));
        }
        Ok(())
    }

    fn attach_points(&mut self, attached: &mut Attached) -> Result<(), String> {
        let modules: Vec<String> = std::fs::read_dir("/sys/kernel/btf")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|n| n != "vmlinux")
            .collect();
        let types =
            Types::load(&modules).map_err(|e| format!("reading the kernel's types: {e}"))?;
        let all = types.tracepoints();
        let patterns = if self.options.patterns.is_empty() {
            functions::TRACEPOINTS
        } else {
            &self.options.patterns
        };
        let mut names = functions::choose(patterns, all.iter().map(|(n, _)| n.as_str()));
        if names.is_empty() && !self.options.patterns.is_empty() {
            attached.say(&format!(
                "no tracepoint matches {:?}, so those that system calls usually pass are taken",
                self.options.patterns
            ));
            names = functions::choose(functions::TRACEPOINTS, all.iter().map(|(n, _)| n.as_str()));
        }
        let object = attached.skel.object().as_libbpf_object().as_ptr();
        let p = &attached.skel.progs;
        // SAFETY: loaded, and live as long as the skeleton.
        let (point, begin, end) = unsafe {
            let of = |program: *mut sys::bpf_program| {
                Template::of(object, program, sys::BPF_TRACE_RAW_TP)
            };
            (
                of(p.point.as_libbpf_object().as_ptr()),
                of(p.point_begin.as_libbpf_object().as_ptr()),
                of(p.point_end.as_libbpf_object().as_ptr()),
            )
        };
        let mut refused = vec![];
        let mut beyond = 0;
        let mut last = None;
        let have: HashSet<&str> = names.iter().map(String::as_str).collect();
        for name in &names {
            // What begins and ends has a duration.
            let partner = pair_of(name).filter(|(_, other)| have.contains(other.as_str()));
            if partner.as_ref().is_some_and(|(half, _)| *half == Half::End) {
                continue;
            }
            if attached.probes.len() / 2 >= TRACEPOINTS_MAX {
                beyond += 1;
                continue;
            }
            let number = attached.names.len() as u32;
            let module = all
                .iter()
                .find(|(n, _)| n == name)
                .and_then(|(_, m)| m.clone());
            let target = |name: &str| {
                types
                    .tracepoint(name, module.as_deref())
                    .ok_or_else(|| io::Error::other("the kernel's types do not describe it"))
            };
            let result = match &partner {
                None => target(name)
                    .and_then(|t| point.attach(t, number))
                    .map(|fds| fds.into_iter().collect::<Vec<_>>()),
                Some((_, other)) => {
                    target(other)
                        .and_then(|t| end.attach(t, number))
                        .and_then(|ends| {
                            let begins = target(name).and_then(|t| begin.attach(t, number))?;
                            Ok(begins.into_iter().chain(ends).collect())
                        })
                }
            };
            match result {
                Ok(fds) => {
                    attached.probes.extend(fds);
                    attached.names.push(match &partner {
                        None => name.clone(),
                        Some(_) => stem_of(name).to_owned(),
                    });
                }
                Err(error) => {
                    refused.push(name.clone());
                    last = Some(error);
                }
            }
        }
        if attached.names.is_empty() {
            return Err(last.map_or_else(
                || "no tracepoint could be attached to".into(),
                |e| e.to_string(),
            ));
        }
        attached.refuse(refused, "the kernel refused these tracepoints");
        if beyond > 0 {
            attached.refused += beyond;
            attached.say(&format!(
                "{beyond} more tracepoints match; at most {TRACEPOINTS_MAX} are attached to"
            ));
        }
        attached.say(
            "this kernel allows no probes on functions: the trace shows the static tracepoints that the calls passed",
        );
        Ok(())
    }

    /// Gives the program's threads their buffers.
    fn bind(&self, attached: &mut Attached) -> Result<(), Error> {
        if !matches!(self.target, TraceTarget::Slots { .. }) {
            return Ok(());
        }
        let link = attached
            .skel
            .progs
            .trace_bind
            .attach()
            .map_err(Error::bpf("attaching the task iterator"))?;
        // Twice, as in Probe::bind: a thread may be cloned behind the iterator.
        for _ in 0..2 {
            iterate(&link)?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Begin,
    End,
}

const HALVES: &[(&str, &str)] = &[
    ("_begin", "_end"),
    ("_enter", "_exit"),
    ("_start", "_end"),
    ("_start", "_complete"),
];

fn stem_of(name: &str) -> &str {
    HALVES
        .iter()
        .flat_map(|(b, e)| [*b, *e])
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name)
}

/// Which half of a pair a tracepoint is, and the name of the other one. Only
/// pairs that one thread passes in this order inside of one call.
fn pair_of(name: &str) -> Option<(Half, String)> {
    // Begun by one call and ended by a later one, or by nobody.
    if name.starts_with("jbd2_") || name.starts_with("sched_") || name.contains("handle") {
        return None;
    }
    // generic_perform_write's: ext4 names both sides after the operation.
    for (begin, end) in HALVES {
        if let Some(stem) = name.strip_suffix(begin) {
            return Some((Half::Begin, format!("{stem}{end}")));
        }
        if let Some(stem) = name.strip_suffix(end) {
            return Some((Half::End, format!("{stem}{begin}")));
        }
    }
    None
}

impl Attached {
    fn say(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push_str("; ");
        }
        self.text.push_str(text);
    }

    fn refuse(&mut self, mut names: Vec<String>, why: &str) {
        if names.is_empty() {
            return;
        }
        names.sort();
        names.dedup();
        self.refused += names.len();
        let shown: Vec<&str> = names.iter().take(6).map(String::as_str).collect();
        let more = names.len() - shown.len();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        self.say(&format!("not traced: {}{more} ({why})", shown.join(", ")));
    }

    /// Entries and returns that the kernel did not deliver: no free return
    /// slot (kprobe.multi before 6.13), or a probe inside of a probe.
    fn missed(&self) -> u64 {
        let mut sum = 0;
        for fd in &self.probes {
            // SAFETY: all-zero is a valid bpf_link_info, filled for its size.
            unsafe {
                let mut info: sys::bpf_link_info = MaybeUninit::zeroed().assume_init();
                let mut size = size_of::<sys::bpf_link_info>() as u32;
                if sys::bpf_link_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut size) == 0
                    && info.type_ == sys::BPF_LINK_TYPE_KPROBE_MULTI
                {
                    sum += info.__bindgen_anon_1.kprobe_multi.missed;
                }
                let mut info: sys::bpf_prog_info = MaybeUninit::zeroed().assume_init();
                let mut size = size_of::<sys::bpf_prog_info>() as u32;
                if sys::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut size) == 0 {
                    sum += info.recursion_misses;
                }
            }
        }
        for program in self.skel.object().progs() {
            let fd = program.as_fd().as_raw_fd();
            // SAFETY: as above.
            unsafe {
                let mut info: sys::bpf_prog_info = MaybeUninit::zeroed().assume_init();
                let mut size = size_of::<sys::bpf_prog_info>() as u32;
                if sys::bpf_prog_get_info_by_fd(fd, &mut info, &mut size) == 0 {
                    sum += info.recursion_misses;
                }
            }
        }
        sum
    }
}

/// Attaches one program to many addresses; those that the kernel refuses are
/// found by halving.
fn multi_attach(
    program: i32,
    kind: sys::bpf_attach_type,
    flags: u32,
    addresses: &[u64],
    cookies: &[u64],
    bad: &mut Vec<(usize, io::Error)>,
) -> Vec<OwnedFd> {
    match multi_attach_once(program, kind, flags, addresses, cookies) {
        Ok(fd) => vec![fd],
        Err(error) if addresses.len() == 1 => {
            bad.push((cookies[0] as usize, error));
            vec![]
        }
        // The way itself is refused, not an address.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EPERM | libc::EACCES | libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOMEM)
            ) =>
        {
            bad.push((cookies[0] as usize, error));
            vec![]
        }
        Err(_) => {
            let half = addresses.len() / 2;
            let mut out = multi_attach(
                program,
                kind,
                flags,
                &addresses[..half],
                &cookies[..half],
                bad,
            );
            // Twelve in a row: it is not the addresses.
            if out.is_empty() && bad.len() >= 12 {
                return out;
            }
            out.extend(multi_attach(
                program,
                kind,
                flags,
                &addresses[half..],
                &cookies[half..],
                bad,
            ));
            out
        }
    }
}

fn multi_attach_once(
    program: i32,
    kind: sys::bpf_attach_type,
    flags: u32,
    addresses: &[u64],
    cookies: &[u64],
) -> io::Result<OwnedFd> {
    let mut options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        // SAFETY: all members of the options are numbers and pointers.
        ..unsafe { MaybeUninit::zeroed().assume_init() }
    };
    options.__bindgen_anon_1.kprobe_multi = sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_2 {
        flags,
        cnt: addresses.len() as u32,
        syms: std::ptr::null_mut(),
        addrs: addresses.as_ptr(),
        cookies: cookies.as_ptr(),
    };
    // SAFETY: both arrays have cnt elements and outlive the call.
    let fd = unsafe { sys::bpf_link_create(program, 0, kind, &options) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The memory that tells clients what the trace is made of.
struct Table {
    fd: OwnedFd,
    base: *mut u8,
}

// SAFETY: the mapping belongs to this value alone, wherever it is.
unsafe impl Send for Table {}

impl Table {
    fn create(head: &debox_trace_table) -> Result<Table, Error> {
        let failed = |source| Error::Kernel {
            action: "make memory for a trace's names",
            source,
        };
        // SAFETY: plain calls; the descriptor is owned at once, the mapping
        // has the file's size, and the size is sealed.
        unsafe {
            let fd = libc::memfd_create(
                c"debox-trace".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            );
            if fd < 0 {
                return Err(failed(io::Error::last_os_error()));
            }
            let fd = OwnedFd::from_raw_fd(fd);
            if libc::ftruncate(fd.as_raw_fd(), DEBOX_TRACE_TABLE_SIZE as i64) != 0 {
                return Err(failed(io::Error::last_os_error()));
            }
            let base = libc::mmap(
                std::ptr::null_mut(),
                DEBOX_TRACE_TABLE_SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(failed(io::Error::last_os_error()));
            }
            // FUTURE_WRITE: our mapping goes on writing, nobody makes another.
            let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | 0x10 | libc::F_SEAL_SEAL;
            if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
                let error = io::Error::last_os_error();
                libc::munmap(base, DEBOX_TRACE_TABLE_SIZE);
                return Err(failed(error));
            }
            let table = Table {
                fd,
                base: base.cast(),
            };
            table.base.cast::<debox_trace_table>().write(*head);
            Ok(table)
        }
    }

    fn read_only(&self) -> Result<OwnedFd, Error> {
        self.fd.try_clone().map_err(|source| Error::Kernel {
            action: "duplicate a descriptor",
            source,
        })
    }

    fn update(&mut self, change: impl FnOnce(&mut debox_trace_table)) {
        // SAFETY: mapped and aligned; clients only read, and look at the rest
        // only after `state` says so.
        change(unsafe { &mut *self.base.cast::<debox_trace_table>() });
    }

    fn state(&mut self, state: u32) {
        // SAFETY: an aligned u32 of the mapped first page.
        let word = unsafe {
            &*self
                .base
                .add(std::mem::offset_of!(debox_trace_table, state))
                .cast::<AtomicU32>()
        };
        // Release: who sees the state sees what was written before.
        word.store(state, Ordering::Release);
    }

    fn functions(&mut self, names: &[&str]) {
        let names = &names[..names.len().min(DEBOX_TRACE_FUNCTIONS_MAX)];
        for (i, name) in names.iter().enumerate() {
            // SAFETY: inside the mapping: i is below DEBOX_TRACE_FUNCTIONS_MAX.
            unsafe {
                self.base
                    .add(DEBOX_PAGE_SIZE)
                    .cast::<debox_trace_function>()
                    .add(i)
                    .write(debox_trace_function::new(name));
            }
        }
        self.update(|head| head.functions = names.len() as u32);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: mapped in create, no reference outlives self.
        unsafe { libc::munmap(self.base.cast(), DEBOX_TRACE_TABLE_SIZE) };
    }
}
