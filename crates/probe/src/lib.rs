// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does a process come under watch?
//!
//! [`Probe`] loads the BPF programs of `bpf/`, creates the shared maps that
//! processes map, binds threads to them, learns stack signatures, and keeps
//! programs attached exactly as long as somebody is watched. It decides
//! nothing about who may watch whom: that is the broker's.

use debox_labels::LabelTable;
pub use debox_symbol::SharedFunctions;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, OpenObject, RingBuffer, RingBufferBuilder};

mod asleep;
mod attach;
mod boundary;
mod check;
mod cost;
mod error;
mod floor;
mod follow;
mod kernel;
mod label;
mod on_cpu;
mod place;
mod pool;
mod programs;
mod reachable;
mod ring_fix;
mod signature;
mod text;
mod trace;
mod turns;
mod types;
mod unwind;
mod whom;

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    unreachable_pub,
    missing_docs
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/debox.skel.rs"));
}

pub use check::{Check, State, check};
pub use error::{Error, Refused};
pub use floor::{Floor, FloorGuard, floor_attach};
pub use kernel::{
    Account, AccountOptions, Boundary, Costs, Counters, Details, Join, Kernel, NewStack, RunTime,
    Segment, SegmentOptions, WatchedTest, Watcher,
};
use place::Place;
pub use ring_fix::KernelVersion;
pub(crate) use skel::DeboxProgs;
use skel::{DeboxSkel, DeboxSkelBuilder};
pub use trace::{Trace, TraceOptions, TraceTarget, Way, functions_choose};
pub use turns::Turns;
pub use whom::{Bound, Pattern, Whom, groups, unified};

/// Shared with `bpf/state.h`, `bpf/site.h` and `bpf/object.h`.
/// Who runs one program after the other finds the C library's tables made.
const UNWIND_KEPT: Duration = Duration::from_secs(60);
const SEGMENTS_MAX: u32 = 4096;
const ACCOUNTS_MAX: u32 = 64;
const SIGNATURES_MAX: u32 = 4096;
const HINT_SIGNATURES: usize = 8;
const STACKS_MAX: u32 = 8192;
const STACKS_SECOND_MAX: u32 = 4096;
const SITES_WALKED_MAX: u32 = STACKS_MAX + STACKS_SECOND_MAX;
/// Different stale words make different signatures of one chain; beyond this
/// many the chain is walked when none fits.
const VARIANTS_MAX: usize = 4;
const NONE: u32 = u32::MAX;
/// Shared with `bpf/state.h`: of so many CPUs the kernel side keeps what runs there.
const HOT_CPUS: u32 = 1024;
const REMOVES_MANY: u8 = 8;

const WATCH_ACCOUNT: u32 = 1 << 0;
const WATCH_BOUNDARY: u32 = 1 << 1;
const WATCH_SLOT: u32 = 1 << 2;
const WATCH_SLOT_BOUNDARY: u32 = 1 << 3;
const WATCH_SLOT_CHAINS: u32 = 1 << 9;
const WATCH_FOLLOW: u32 = 1 << 4;
const WATCH_DETAILS: u32 = 1 << 5;
const WATCH_IRQ: u32 = 1 << 10;
const WATCH_SLOT_IRQ: u32 = 1 << 11;
const WATCH_SPLICED: u32 = 1 << 12;
const WATCH_AUDIT: u32 = 1 << 15;

const BPF_F_MMAPABLE: u32 = 1 << 10;

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Walk every recognised stack as well and count differences.
    pub verify_sites: bool,
    /// Leave sched_waking alone: no wakers in records, a little less for each
    /// wake-up of the machine.
    pub no_wakers: bool,
    /// The hooks at system calls are loaded when somebody turns out to need them.
    pub boundary_later: bool,
    /// Load at once whatever may be asked for: for who serves many.
    pub everything: bool,
}

struct SegmentEntry {
    options: SegmentOptions,
    watcher: Watcher,
    /// Its maps' ids and bytes.
    maps: Vec<(u32, u64)>,
}

struct AccountEntry {
    options: AccountOptions,
    watcher: Watcher,
    clock: Option<on_cpu::Clock>,
    /// Of some of its spliced threads the kernel tells of calls.
    boundary: bool,
    /// What threads were in the middle of as other accounts took them.
    taken: Vec<debox_abi::debox_away>,
    /// Its maps' ids and bytes.
    maps: Vec<(u32, u64)>,
}

impl AccountEntry {
    /// Hooks at system calls are there for some of its threads, and need not be for as long as it lasts.
    fn boundary_on_the_way(&self) -> bool {
        self.boundary && !self.options.boundary && !self.options.audit
    }
}

/// A sample as the kernel side sends it.
struct Sample {
    stack: u32,
    hint: u64,
    words: Vec<u64>,
}

pub struct Probe {
    // Field order is drop order: links before the skeleton, the skeleton
    // before the object's storage, which it borrows.
    traces: HashMap<u32, trace::Running>,
    traces_ending: Vec<std::thread::JoinHandle<()>>,
    attached: attach::Attached,
    whom_hooks: whom::Hooks,
    /// Of those who were asked for last.
    whom_last: u64,
    programs: programs::Programs,
    pool: Option<pool::Pool>,
    ring: RingBuffer<'static>,
    skel: DeboxSkel<'static>,
    _place: Place<OpenObject>,
    options: Options,
    segments: HashMap<u32, SegmentEntry>,
    accounts: HashMap<u32, AccountEntry>,
    text: text::KernelText,
    functions: on_cpu::Starts,
    samples: Arc<Mutex<VecDeque<Sample>>>,
    /// Signatures of a stack: index in the map, and what they come from.
    signed: HashMap<u32, Vec<(u32, signature::Variant)>>,
    announced: HashMap<u32, ()>,
    merged: HashMap<u32, u32>,
    signatures_used: u32,
    cpus_possible: u32,
    runqueue_clock: bool,
    unwind: Option<unwind::Unwind>,
    /// When it goes, as nobody asks for stacks any more.
    unwind_until: Option<Instant>,
    requests: Arc<Mutex<VecDeque<unwind::Request>>>,
    follow: follow::Follow,
    asleep: asleep::Asleep,
    /// When it is looked whether hooks at system calls are needed still; None: it need not be.
    boundary_next: Option<Instant>,
    /// Of the account with details made last.
    serial: u64,
    /// Account, segment and process of threads that could not be taken off the watch.
    unbind_missed: Vec<(u32, u32, u32)>,
}

impl Probe {
    /// Loads the programs; nothing is attached yet. `functions`: the kernel's, which the caller
    /// may share.
    ///
    /// # Errors
    /// [`Error::Bpf`] with the remedy in its text: without CAP_BPF and
    /// CAP_PERFMON, or on a kernel that lacks a needed type.
    pub fn load(options: Options, functions: SharedFunctions) -> Result<Probe, Error> {
        // Raising the limit is only needed before 5.11 (maps are charged to
        // the memory cgroup since); where it is refused, that is no error.
        let unlimited = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: a valid rlimit that outlives the call.
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited) };
        // While the programs are loaded.
        let functions = std::thread::Builder::new()
            .name("debox-kallsyms".into())
            .spawn(move || {
                let functions = functions.get().unwrap_or_default();
                (
                    text::KernelText::of(&functions),
                    on_cpu::Starts::of(&functions),
                )
            })
            .map_err(|source| Error::Kernel {
                action: "start a thread",
                source,
            })?;

        let place = Place::new();
        // SAFETY: once; `skel` is declared before `_place`, so it is dropped first.
        let object = unsafe { place.lend() };
        // It puts each message together for whoever asks for it.
        let level = match tracing::enabled!(target: "libbpf", tracing::Level::DEBUG) {
            true => libbpf_rs::PrintLevel::Debug,
            false => libbpf_rs::PrintLevel::Info,
        };
        libbpf_rs::set_print(Some((level, log_libbpf)));
        let types = types::Types::of_kernel(types::DEBOX);
        let mut builder = DeboxSkelBuilder::default();
        if let Some(types) = &types {
            (builder.obj_builder)
                .btf_custom_path(types.path())
                .map_err(Error::bpf("naming the kernel's types"))?;
        }
        let mut open = builder
            .open(object)
            .map_err(Error::bpf("opening the BPF object"))?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.verify_sites = options.verify_sites;
            rodata.pid_translate = !first_pid_namespace();
            for call in debox_symbol::object_arguments() {
                let (first, end) = match call.compat {
                    false => (0, debox_abi::DEBOX_NR_COMPAT),
                    true => (debox_abi::DEBOX_NR_COMPAT, debox_abi::DEBOX_NR_OUTSIDE),
                };
                let key = first + call.nr;
                let Some(entry) = rodata
                    .call_objects
                    .get_mut(key as usize)
                    .filter(|_| key < end)
                else {
                    continue;
                };
                if let Some((by, index)) = call.object {
                    (entry.by, entry.index) = (by as u8, index);
                }
                entry.address = call.address.map_or(0, |at| at + 1);
                entry.removes = match call.removes {
                    None => 0,
                    Some(debox_symbol::Removes::One(at)) => at + 1,
                    Some(debox_symbol::Removes::Many) => REMOVES_MANY,
                };
            }
        }
        let cpus_possible =
            libbpf_rs::num_possible_cpus().map_err(Error::bpf("counting CPUs"))? as u32;
        let template = array_create(
            "debox_cpus",
            size_of::<debox_abi::debox_account_cpu>(),
            cpus_possible,
            BPF_F_MMAPABLE,
        )?;
        open.maps
            .account_cpus
            .set_inner_map_fd(template.as_fd())
            .map_err(Error::bpf("sizing the account map for its CPUs"))?;
        let table = MapHandle::create(
            MapType::Array,
            Some("debox_unwind"),
            4,
            size_of::<unwind::Row>() as u32,
            1,
            &map_options(BPF_F_MMAPABLE | unwind::BPF_F_INNER_MAP),
        )
        .map_err(Error::bpf("creating a template of unwind tables"))?;
        open.maps
            .unwind_tables
            .set_inner_map_fd(table.as_fd())
            .map_err(Error::bpf("choosing the kind of unwind tables"))?;
        programs::prepare(&mut open)?;
        let skel = open
            .load()
            .map_err(Error::bpf("loading the BPF programs"))?;
        // SAFETY: prepared; `programs` is declared before `skel` and `_place`.
        let programs = unsafe { programs::Programs::of(skel.object()) }?;
        match options.everything {
            true => programs.load_all()?,
            false => programs.load(&attach::needed(&skel.progs, &options))?,
        }

        let samples = Arc::new(Mutex::new(VecDeque::new()));
        let sink = samples.clone();
        let mut ring = RingBufferBuilder::new();
        ring.add(&skel.maps.stack_samples, move |bytes| {
            if let Some(sample) = sample_parse(bytes) {
                sink.lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .push_back(sample);
            }
            0
        })
        .map_err(Error::bpf("opening the ring buffer"))?;
        let asked = Arc::new(AtomicBool::new(false));
        let sink = asked.clone();
        ring.add(&skel.maps.follow_requests, move |_| {
            sink.store(true, Ordering::Relaxed);
            0
        })
        .map_err(Error::bpf("opening the ring buffer"))?;
        let requests = Arc::new(Mutex::new(VecDeque::new()));
        let sink = requests.clone();
        ring.add(&skel.maps.unwind_requests, move |bytes| {
            if let Some(request) = unwind::Request::parse(bytes) {
                sink.lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .push_back(request);
            }
            0
        })
        .map_err(Error::bpf("opening the ring buffer"))?;
        let ring = ring
            .build()
            .map_err(Error::bpf("opening the ring buffer"))?;
        let (text, functions) = functions.join().map_err(|_| Error::Kernel {
            action: "read its symbols",
            source: io::Error::other("a thread panicked"),
        })?;
        if !text.known() {
            tracing::warn!(
                "kallsyms hides kernel addresses: every blocking stack is walked, 2-3 us each"
            );
        }
        if !first_pid_namespace() {
            let link = programs.iterator(&skel.progs.pid_look)?;
            iterate(&link)?;
        }
        // CONFIG_FAIR_GROUP_SCHED, as `runqueue_clock_exists()` in `bpf/core_fixes.h` asks.
        // Without it the last wait of a sleep counts as blocked, and run-queue wait is
        // marked not measured.
        let runqueue_clock = programs.has("sched_entity", "cfs_rq") && programs.has("cfs_rq", "rq");
        Ok(Probe {
            traces: HashMap::new(),
            traces_ending: vec![],
            attached: attach::Attached::default(),
            programs,
            pool: None,
            ring,
            skel,
            _place: place,
            options,
            segments: HashMap::new(),
            accounts: HashMap::new(),
            text,
            functions,
            samples,
            signed: HashMap::new(),
            announced: HashMap::new(),
            merged: HashMap::new(),
            // 0 means "none" on the kernel side
            signatures_used: 1,
            cpus_possible,
            runqueue_clock,
            unwind: None,
            unwind_until: None,
            requests,
            follow: follow::Follow::new(asked),
            asleep: asleep::Asleep::default(),
            boundary_next: None,
            whom_hooks: whom::Hooks::default(),
            whom_last: 0,
            serial: 0,
            unbind_missed: vec![],
        })
    }

    /// Gives a new account its maps, and attaches what it asks for. Nobody waits for it to join before: a command's
    /// process spins until it has.
    fn account_fill(&mut self, id: u32, options: AccountOptions) -> Result<Account, Error> {
        if options.details {
            self.unwind_start()?;
            self.serial += 1;
        }
        let (cpus, serial) = (self.cpus_possible, options.details.then_some(self.serial));
        // Each takes as long as the other.
        let (made, attached) = std::thread::scope(|scope| {
            let made = std::thread::Builder::new()
                .name("debox-map".into())
                .spawn_scoped(scope, || AccountMaps::create(cpus, serial));
            let attached = self.attach_as_needed();
            let made = made.map(|thread| match thread.join() {
                Ok(made) => made,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            (made, attached)
        });
        attached?;
        let AccountMaps {
            account,
            cpus,
            details: mut details_maps,
        } = made.map_err(|source| Error::Kernel {
            action: "start a thread",
            source,
        })??;
        let mut functions = None;
        if let Some(details) = details_maps.as_mut().filter(|_| options.on_cpu_hz > 0) {
            let made = self.clock_create(options.on_cpu_hz)?;
            details.on_cpu = Some(owned(made.table())?);
            if let Some(entry) = self.accounts.get_mut(&id) {
                entry.clock = Some(made);
            }
            functions = self.functions_table()?;
        }
        let clock = self
            .accounts
            .get(&id)
            .and_then(|entry| entry.clock.as_ref());
        let maps = &self.skel.maps;
        let mut places = vec![
            (maps.accounts.as_fd(), id, account.as_fd()),
            (maps.account_cpus.as_fd(), id, cpus.as_fd()),
        ];
        if let Some(details) = &details_maps {
            places.extend([
                (maps.account_details.as_fd(), id, details.details.as_fd()),
                (
                    maps.account_detail_controls.as_fd(),
                    id,
                    details.control.as_fd(),
                ),
                (maps.account_rings.as_fd(), id, details.events.as_fd()),
                (maps.account_chains.as_fd(), id, details.chains.as_fd()),
                (maps.account_objects.as_fd(), id, details.objects.as_fd()),
                (maps.account_lives.as_fd(), id, details.lives.as_fd()),
            ]);
        }
        if let Some(clock) = clock {
            places.push((maps.account_on_cpu.as_fd(), id, clock.table().as_fd()));
        }
        if let Some(table) = &functions {
            places.push((
                maps.unwind_tables.as_fd(),
                on_cpu::FUNCTIONS_TABLE,
                table.as_fd(),
            ));
        }
        outers_set(&places)?;
        if functions.is_some() {
            self.functions_placed();
        }
        let mut fds = vec![account.as_fd(), cpus.as_fd()];
        if let Some(details) = &details_maps {
            let maps = [
                &details.details,
                &details.events,
                &details.control,
                &details.chains,
                &details.objects,
                &details.lives,
            ];
            fds.extend(maps.into_iter().chain(&details.on_cpu).map(AsFd::as_fd));
        }
        if let Some(entry) = self.accounts.get_mut(&id) {
            entry.maps = fds.iter().filter_map(cost::map_bytes).collect();
        }
        let memory = fds.iter().map(map_id).collect::<Result<Vec<u32>, _>>()?;
        Ok(Account {
            id,
            memory,
            account: owned(&account)?,
            cpus_map: owned(&cpus)?,
            cpus: self.cpus_possible,
            cpu_stride: ACCOUNT_CPU_BYTES.next_multiple_of(8) as u64,
            details: details_maps,
        })
    }

    /// Ready before the first call is watched: the libraries that most system
    /// calls are made from have their unwind tables by then.
    fn unwind_start(&mut self) -> Result<(), Error> {
        self.unwind_until = None;
        if self.unwind.is_none() {
            self.unwind = Some(unwind::Unwind::start(
                outer_owned(&self.skel.maps.unwind_tables)?,
                outer_owned(&self.skel.maps.unwind_files)?,
                outer_owned(&self.skel.maps.pythons)?,
            )?);
        }
        Ok(())
    }

    /// Lets the tables go when nobody has asked for stacks for a while.
    fn unwind_end(&mut self) {
        if self
            .unwind_until
            .is_some_and(|until| until <= Instant::now())
        {
            (self.unwind, self.unwind_until) = (None, None);
        }
    }

    pub fn attached(&self) -> bool {
        self.attached.anything()
    }

    /// What a verifying walk found in place of what was recognised: return
    /// addresses, innermost first.
    fn mismatch_tell(&self, stacks: u64) {
        let frames = |id: u64| -> Vec<String> {
            let frames = self.stack_read(id as u32).unwrap_or_default();
            let frames = frames.iter().take_while(|&&f| f != 0);
            frames.map(|f| format!("{f:x}")).collect()
        };
        tracing::warn!(
            recognised = frames(stacks >> 32).join(" "),
            walked = frames(stacks & 0xffff_ffff).join(" "),
            "a blocking place was recognised wrongly"
        );
    }

    /// Waits until stacks are waiting, at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut poll = libc::pollfd {
            fd: self.ring.epoll_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        unsafe {
            libc::poll(
                &mut poll,
                1,
                timeout.as_millis().min(i32::MAX as u128) as i32,
            ) > 0
        }
    }

    fn pool_start(&mut self) -> Result<(), Error> {
        if self.pool.is_none() {
            self.pool = Some(pool::Pool::start(
                outer_owned(&self.skel.maps.segment_records)?,
                outer_owned(&self.skel.maps.segment_controls)?,
            )?);
        }
        Ok(())
    }

    fn attach_as_needed(&mut self) -> Result<(), Error> {
        self.attached
            .events_attach(&self.programs, &self.skel.progs)?;
        self.interrupts_attach();
        if !self.segments.is_empty() {
            self.attached
                .records_attach(&self.programs, &self.skel.progs)?;
        }
        if self.boundary_wanted() {
            self.attached
                .boundary_attach(&self.programs, &self.skel.progs)?;
        }
        Ok(())
    }

    fn detach_as_possible(&mut self) {
        if !self.boundary_wanted() {
            self.attached.boundary_detach();
        }
        let wanted = self.interrupts_wanted();
        self.attached.interrupts_detach(wanted);
        if !wanted.irq {
            self.irq_timed_set(false);
        }
        if self.segments.is_empty() {
            self.attached.records_detach();
        }
        if self.segments.is_empty() && self.accounts.is_empty() {
            self.follow_run(true);
            self.attached.events_detach();
        }
    }

    fn wakers_wanted(&self) -> bool {
        !self.options.no_wakers
            && (!self.segments.is_empty() || self.accounts.values().any(|a| a.options.details))
    }

    fn interrupts_wanted(&self) -> attach::Interrupts {
        let irq = self.segments.values().any(|s| s.options.irq)
            || self.accounts.values().any(|a| a.options.irq);
        attach::Interrupts {
            wakers: self.wakers_wanted(),
            irq,
        }
    }

    fn interrupts_attach(&mut self) {
        let wanted = self.interrupts_wanted();
        self.attached.interrupts_attach(
            &self.programs,
            &self.skel.progs,
            wanted,
            self.cpus_possible,
        );
        // All of it or nothing.
        self.irq_timed_set(self.attached.features() & debox_abi::DEBOX_FEATURE_IRQ != 0);
    }

    /// Whether the kernel side takes the time of interrupts.
    fn irq_timed_set(&mut self, timed: bool) {
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return;
        };
        if timed == (bss.irq_timed != 0) {
            return;
        }
        if timed {
            // What began at an earlier time, its end not seen.
            for cpu in &mut bss.cpu_interrupts {
                cpu.hard_begin_ns = 0;
                cpu.soft_begin_ns = 0;
            }
        }
        // Release: whoever sees it set finds no begin of an earlier time.
        std::sync::atomic::fence(Ordering::Release);
        bss.irq_timed = u32::from(timed);
    }

    fn boundary_wanted(&self) -> bool {
        self.segments.values().any(|s| s.options.boundary)
            || self.accounts.values().any(|a| a.boundary)
    }

    /// Threads that are running look at their state again.
    fn generation_raise(&mut self) {
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            // SAFETY: a word of the kernel side's, mapped here; programs that raise it at the same time do so
            // atomically, too.
            let generation = unsafe { AtomicU32::from_ptr(&mut data.watch_generation) };
            // Who looked at a thread's state before reads another generation now.
            generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Runs the iterator over all tasks until no new thread turns up.
    fn bind(&mut self, request: skel::types::bind_request) -> Result<Bound, Error> {
        let link = self.programs.iterator(&self.skel.progs.bind_threads)?;
        let mut bound = Bound::default();
        // Whom nobody named is not missed.
        let named = request.tgid != 0;
        loop {
            if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
                bss.bind = request;
            }
            let taken = asleep::taken_read(&link);
            self.generation_raise();
            for (account, away) in taken? {
                let entry = self.accounts.get_mut(&account);
                if let Some(entry) =
                    entry.filter(|e| e.taken.len() < debox_abi::DEBOX_AWAY_MAX as usize)
                {
                    entry.taken.push(away);
                }
            }
            let done = match self.skel.maps.bss_data.as_deref() {
                Some(bss) => bss.bind,
                None => request,
            };
            if done.failed > 0 && named {
                return Err(Error::NoMemory {
                    pid: request.tgid,
                    failed: done.failed,
                });
            }
            if done.seen == 0 && named {
                return Err(Error::NoProcess { pid: request.tgid });
            }
            bound.threads += done.bound;
            bound.processes += done.processes;
            if let Some(error) = self.refusal(&done).filter(|_| named) {
                // All of the process or nothing.
                self.unbind(done.account, done.segment, done.tgid);
                return Err(error);
            }
            // A thread cloned by one that was not bound yet is found by the
            // second pass; one that is cloned by a bound one is bound in the
            // kernel.
            if done.bound == 0 {
                return Ok(bound);
            }
        }
    }

    /// Of whom is watched for an account; its hooks are in place then.
    fn account_flags(&mut self, id: u32, follow: bool, tgid: u32) -> Result<u32, Error> {
        let Some(entry) = self.accounts.get(&id) else {
            return Err(Error::NoProcess { pid: tgid });
        };
        let options = entry.options;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = WATCH_ACCOUNT
            | flag(options.boundary, WATCH_BOUNDARY)
            | flag(options.spliced, WATCH_SPLICED)
            | flag(options.audit, WATCH_AUDIT)
            | flag(follow, WATCH_FOLLOW)
            | flag(options.details, WATCH_DETAILS)
            | flag(options.irq, WATCH_IRQ);
        if options.details {
            self.follow.report_begins();
        }
        self.attach_as_needed()?;
        if let Some(clock) = self.accounts.get_mut(&id).and_then(|a| a.clock.as_mut()) {
            clock.start(id, &self.programs, &self.skel.progs)?;
        }
        Ok(flags)
    }

    /// Binds threads, and where they sleep already is known.
    fn account_bind(&mut self, request: skel::types::bind_request) -> Result<Bound, Error> {
        self.asleep_tell(request);
        let bound = self.bind(request);
        self.asleep_forget();
        bound
    }

    /// Why threads of a process were not bound, if there were any.
    fn refusal(&self, done: &skel::types::bind_request) -> Option<Error> {
        let pid = done.tgid;
        if let Some(why) = Refused::most(done.refused) {
            let watcher = match self.accounts.get(&done.account) {
                Some(account) => Some(account.watcher),
                None => self.segments.get(&done.segment).map(|s| s.watcher),
            };
            if let Some(watcher) = watcher {
                return Some(Error::Refused { pid, watcher, why });
            }
        }
        (done.busy > 0).then_some(Error::Busy { pid })
    }

    /// `tgid` 0: whatever process.
    fn unbind(&mut self, account: u32, segment: u32, tgid: u32) {
        if let Err(error) = self.unbind_try(account, segment, tgid) {
            tracing::warn!(%error, "taking threads off the watch");
            self.unbind_missed.push((account, segment, tgid));
        }
    }

    fn unbind_try(&mut self, account: u32, segment: u32, tgid: u32) -> Result<(), Error> {
        let link = self.programs.iterator(&self.skel.progs.unbind_threads)?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.unbind = skel::types::unbind_request {
                account,
                segment,
                tgid,
                freed: 0,
            };
        }
        // Twice, like bind(): a thread that is being cloned by one not yet
        // taken off may turn up behind the iterator.
        let first = iterate(&link);
        let walked = first.and(iterate(&link));
        self.generation_raise();
        walked
    }

    /// Before a number is given out again: threads that could not be taken off the watch may have it still.
    fn unbind_missed(&mut self) -> Result<(), Error> {
        while let Some(&(account, segment, tgid)) = self.unbind_missed.last() {
            self.unbind_try(account, segment, tgid)?;
            self.unbind_missed.pop();
            self.segment_give_back(segment);
        }
        Ok(())
    }

    /// `id`: NONE, or one that nobody has any more.
    fn segment_give_back(&self, id: u32) {
        let missed = self
            .unbind_missed
            .iter()
            .any(|&(_, segment, _)| segment == id);
        if let Some(pool) = self.pool.as_ref().filter(|_| id != NONE && !missed) {
            pool.give_back(id);
        }
    }

    /// Those of these maps that user space holds: by a descriptor, a mapping, or
    /// in a socket.
    fn maps_held(&self, memory: &[u32]) -> Result<Vec<u32>, Error> {
        let asked = &self.skel.maps.maps_asked;
        let forget = || {
            for id in memory {
                let _ = asked.delete(&id.to_ne_bytes());
            }
        };
        let walked = memory
            .iter()
            .try_for_each(|id| {
                asked
                    .update(&id.to_ne_bytes(), &0u32.to_ne_bytes(), MapFlags::ANY)
                    .map_err(Error::bpf("asking about a map"))
            })
            .and_then(|()| {
                let link = self.programs.iterator(&self.skel.progs.maps_held)?;
                iterate(&link)
            });
        if let Err(error) = walked {
            forget();
            return Err(error);
        }
        let held = memory
            .iter()
            .copied()
            .filter(|id| {
                asked
                    .lookup(&id.to_ne_bytes(), MapFlags::ANY)
                    .is_ok_and(|value| value.is_some_and(|value| value.iter().any(|b| *b != 0)))
            })
            .collect();
        forget();
        Ok(held)
    }

    fn stack_read(&self, id: u32) -> Option<Vec<u64>> {
        let (table, key): (&dyn MapCore, u32) = match id.checked_sub(STACKS_MAX) {
            None => (&self.skel.maps.stacks, id),
            Some(key) => (&self.skel.maps.stacks_second, key),
        };
        let key = key.to_ne_bytes();
        let bytes = table.lookup(&key, MapFlags::ANY).ok()??;
        Some(
            bytes
                .chunks_exact(8)
                .map(|c| u64::from_ne_bytes(c.try_into().expect("8 bytes")))
                .collect(),
        )
    }

    fn signature_add(&mut self, sample: &Sample, frames: &[u64]) {
        if !self.text.known() {
            return;
        }
        let learned = signature::Variant::learn(
            frames,
            &sample.words,
            |a| self.text.contains(a),
            |a| self.text.is_schedule(a),
            |a| self.text.is_dispatch(a),
        );
        let variant = match learned {
            Ok(variant) => variant,
            Err(reason) => {
                tracing::debug!(stack = sample.stack, ?reason, "no signature");
                return;
            }
        };
        let known = self.signed.entry(sample.stack).or_default();
        let at = match known.iter_mut().position(|(_, have)| have.merge(&variant)) {
            Some(at) => at,
            None if known.len() < VARIANTS_MAX && self.signatures_used < SIGNATURES_MAX => {
                known.push((self.signatures_used, variant));
                self.signatures_used += 1;
                known.len() - 1
            }
            None => return,
        };
        let (index, variant) = &known[at];
        let index = *index;
        let Ok(signature) = variant.signature() else {
            return;
        };
        let site = self
            .merged
            .get(&sample.stack)
            .copied()
            .unwrap_or(sample.stack);
        if let Err(error) =
            self.signature_publish(index, signature_bytes(sample.stack, site, &signature))
        {
            tracing::warn!(%error, "storing a signature");
            return;
        }
        // The kernel side looks candidates up by the word that stands where
        // schedule() returns to. Until that place is known it uses 0.
        let mut hint = sample.hint;
        if let (Some(word), Some(bss)) = (
            signature.schedule_word,
            self.skel.maps.bss_data.as_deref_mut(),
        ) && bss.schedule_word == 0
        {
            bss.schedule_word = word as u64;
            hint ^= sample.words[word as usize];
        }
        self.hint_add(hint, index);
    }

    /// The kernel side may read the entry while it is written, in any order:
    /// it must never see a word count with another signature's words.
    fn signature_publish(&self, index: u32, mut value: Vec<u8>) -> Result<(), libbpf_rs::Error> {
        let key = index.to_ne_bytes();
        let map = &self.skel.maps.signatures;
        if let Some(mut old) = map.lookup(&key, MapFlags::ANY)? {
            old[8..12].fill(0);
            map.update(&key, &old, MapFlags::ANY)?;
        }
        let words: [u8; 4] = value[8..12].try_into().expect("4 bytes");
        value[8..12].fill(0);
        map.update(&key, &value, MapFlags::ANY)?;
        value[8..12].copy_from_slice(&words);
        map.update(&key, &value, MapFlags::ANY)
    }

    fn hint_add(&mut self, hint: u64, index: u32) {
        let key = hint.to_ne_bytes();
        let map = &self.skel.maps.site_hints;
        let mut value = map
            .lookup(&key, MapFlags::ANY)
            .ok()
            .flatten()
            .unwrap_or_else(|| vec![0; 4 + 4 * HINT_SIGNATURES]);
        let used = (u32::from_ne_bytes(value[0..4].try_into().expect("4 bytes")) as usize)
            .min(HINT_SIGNATURES);
        if value[4..4 + 4 * used]
            .chunks_exact(4)
            .any(|have| have == index.to_ne_bytes())
        {
            return;
        }
        // A full list drops its oldest: a signature of another CPU's or
        // another layout's past is likelier stale than the one just seen.
        let at = if used < HINT_SIGNATURES {
            used
        } else {
            index as usize % HINT_SIGNATURES
        };
        value[4 + 4 * at..8 + 4 * at].copy_from_slice(&index.to_ne_bytes());
        value[0..4].copy_from_slice(&((used + 1).min(HINT_SIGNATURES) as u32).to_ne_bytes());
        if let Err(error) = map.update(&key, &value, MapFlags::ANY) {
            tracing::warn!(%error, "storing a signature's hint");
        }
    }
}

impl Kernel for Probe {
    fn segment_create(
        &mut self,
        tgid: u32,
        watcher: Watcher,
        options: SegmentOptions,
    ) -> Result<Segment, Error> {
        self.pool_start()?;
        self.unbind_missed()?;
        let ready = self.pool.as_ref().expect("started above").take()?;
        let id = ready.id;
        let maps = [&ready.record, &ready.control];
        let maps = maps.into_iter().filter_map(cost::map_bytes).collect();
        self.segments.insert(
            id,
            SegmentEntry {
                options,
                watcher,
                maps,
            },
        );
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.segment_watchers[id as usize] = watcher_of(watcher);
        }
        let flags = WATCH_SLOT
            | if options.boundary {
                WATCH_SLOT_BOUNDARY
            } else {
                0
            }
            | if options.chains { WATCH_SLOT_CHAINS } else { 0 }
            | if options.irq { WATCH_SLOT_IRQ } else { 0 };
        let bound = self.attach_as_needed().and_then(|()| {
            self.bind(skel::types::bind_request {
                tgid,
                flags,
                segment: id,
                account: NONE,
                ..Default::default()
            })
        });
        match bound {
            Ok(Bound { threads, .. }) => {
                for running in self.traces.values() {
                    if running.target == (TraceTarget::Slots { tgid }) {
                        running.bind();
                    }
                }
                Ok(Segment {
                    id,
                    record: ready.record,
                    control: ready.control,
                    threads,
                    memory: ready.memory.to_vec(),
                })
            }
            Err(error) => {
                self.segment_release(id);
                Err(error)
            }
        }
    }

    fn segment_release(&mut self, id: u32) {
        if self.segments.remove(&id).is_none() {
            return;
        }
        self.unbind(NONE, id, 0);
        self.segment_give_back(id);
        self.detach_as_possible();
    }

    fn user_stacks_prepare(&mut self, uid: u32, pid: u32, ready: Box<dyn FnOnce() + Send>) {
        let ready = unwind::Ready::new(ready);
        match self.unwind_start() {
            Ok(()) => {
                if let Some(unwind) = &self.unwind {
                    unwind.warm(uid, pid, ready);
                }
            }
            Err(error) => tracing::warn!(%error, "user stacks go by frame pointers"),
        }
    }

    fn account_create(
        &mut self,
        watcher: Watcher,
        options: AccountOptions,
    ) -> Result<Account, Error> {
        self.unbind_missed()?;
        let id = account_id_free(&self.accounts)?;
        if !options.boundary && !options.details {
            // Wrap capture: its processes will ask for slots.
            self.pool_start()?;
        }
        self.accounts.insert(
            id,
            AccountEntry {
                options,
                watcher,
                clock: None,
                boundary: options.boundary || options.audit,
                taken: Vec::new(),
                maps: Vec::new(),
            },
        );
        let made = self
            .account_fill(id, options)
            .inspect_err(|_| self.account_release(id))?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.account_watchers[id as usize] = watcher_of(watcher);
            // Until it says otherwise it is what a person asks for.
            bss.whom[id as usize].rank = 0;
        }
        Ok(made)
    }

    fn account_join(&mut self, id: u32, tgid: u32, join: Join) -> Result<Bound, Error> {
        let flags = self.account_flags(id, join.follow, tgid)?;
        self.account_bind(skel::types::bind_request {
            tgid,
            flags,
            segment: NONE,
            account: id,
            descendants: u32::from(join.descendants),
            except: join.except,
            ..Default::default()
        })
    }

    fn account_select(&mut self, id: u32, whom: &Whom) -> Result<Bound, Error> {
        let flags = self.account_flags(id, whom.follow, 0)?;
        // Who begins from here on comes by itself, the others are bound.
        self.whom_set(id, flags, whom)?;
        self.account_bind(skel::types::bind_request {
            tgid: 0,
            flags,
            segment: NONE,
            account: id,
            ..Default::default()
        })
    }

    fn account_yield(&mut self, id: u32) {
        self.whom_yield(id);
    }

    fn away(&mut self, id: u32) -> Result<Vec<debox_abi::debox_away>, Error> {
        self.away_read(id)
    }

    fn account_boundary(&mut self, id: u32, whose: Boundary) -> Result<u32, Error> {
        self.boundary_take(id, whose)
    }

    fn account_leave(&mut self, id: u32, tgid: u32) {
        self.unbind(id, NONE, tgid);
    }

    fn account_release(&mut self, id: u32) {
        let Some(entry) = self.accounts.remove(&id) else {
            return;
        };
        self.whom_clear(id);
        // Who fits another account goes there, while both have their tables: nothing is missed.
        self.unbind(id, NONE, 0);
        let maps = &self.skel.maps;
        let mut outers = vec![maps.accounts.as_fd(), maps.account_cpus.as_fd()];
        if entry.clock.is_some() {
            outers.push(maps.account_on_cpu.as_fd());
        }
        if entry.options.details {
            outers.extend([
                maps.account_details.as_fd(),
                maps.account_detail_controls.as_fd(),
                maps.account_rings.as_fd(),
                maps.account_chains.as_fd(),
                maps.account_objects.as_fd(),
                maps.account_lives.as_fd(),
            ]);
        }
        outers_clear(id, &outers);
        // Who was being cloned meanwhile.
        self.unbind(id, NONE, 0);
        // A thread that is reading a large program is not waited for: it goes with a later account, or stays for one.
        if !self.accounts.values().any(|a| a.options.details)
            && let Some(unwind) = self.unwind.as_ref().filter(|unwind| unwind.idle())
        {
            match unwind.only_libraries() {
                true => self.unwind_until = Some(Instant::now() + UNWIND_KEPT),
                false => self.unwind = None,
            }
        }
        self.detach_as_possible();
    }

    fn on_cpu_functions(&mut self, id: u32) -> Vec<(u32, u64)> {
        self.functions_sampled(id).unwrap_or_else(|error| {
            tracing::warn!(%error, "functions of the kernel stay without names");
            vec![]
        })
    }

    fn memory_held(&mut self, memory: &[u32]) -> Vec<u32> {
        // Not known is not gone: it is asked for again.
        self.maps_held(memory).unwrap_or_else(|error| {
            tracing::warn!(%error, "memory that was given out stays counted");
            memory.to_vec()
        })
    }

    fn due(&self) -> Option<Duration> {
        if self.asleep.waits() {
            return Some(Duration::ZERO);
        }
        let unwind = self.unwind_until;
        let unwind = unwind.map(|until| until.saturating_duration_since(Instant::now()));
        let dues = [self.follow.due(), self.boundary_due(), unwind];
        dues.into_iter().flatten().min()
    }

    fn chains(&mut self, from: u32) -> Vec<debox_abi::debox_chain> {
        self.chains_read(from)
    }

    fn labels_set(&mut self, table: &LabelTable, numbers: &[u8]) -> Result<(), Error> {
        self.label_table_set(table, numbers)
    }

    fn watched_test(&self) -> WatchedTest {
        let map = &self.skel.maps.threads;
        let size = map.value_size() as usize;
        let map = match outer_owned(map) {
            Ok(map) => map,
            Err(error) => {
                tracing::warn!(%error, "nobody is known to be watched");
                return Box::new(|_| false);
            }
        };
        Box::new(move |pidfd| {
            let key = pidfd.as_raw_fd();
            let mut state = vec![0u8; size];
            // SAFETY: the map's key is a pidfd, and the value has its size.
            let ret = unsafe {
                libbpf_rs::libbpf_sys::bpf_map_lookup_elem(
                    map.as_raw_fd(),
                    (&raw const key).cast(),
                    state.as_mut_ptr().cast(),
                )
            };
            // struct thread_state begins with its flags.
            let flags = state
                .first_chunk()
                .map_or(0, |flags| u32::from_ne_bytes(*flags));
            ret == 0 && flags & (WATCH_ACCOUNT | WATCH_SLOT) != 0
        })
    }

    fn trace_start(
        &mut self,
        id: u32,
        target: TraceTarget,
        options: TraceOptions,
    ) -> Result<Trace, Error> {
        self.traces_ending.retain(|thread| !thread.is_finished());
        if !first_pid_namespace() {
            return Err(Error::Request {
                what: "a call trace",
                text: "not from inside of a PID namespace: run deboxd, or debox, in the host's"
                    .into(),
            });
        }
        let maps = trace::MainMaps {
            threads: outer_owned(&self.skel.maps.threads)?,
            segment_controls: outer_owned(&self.skel.maps.segment_controls)?,
        };
        let (running, trace) = trace::Running::start(target, options, maps)?;
        self.traces.insert(id, running);
        Ok(trace)
    }

    fn trace_stop(&mut self, id: u32) {
        if let Some(running) = self.traces.get(&id) {
            running.stop();
        }
    }

    fn trace_release(&mut self, id: u32) {
        if let Some(running) = self.traces.remove(&id) {
            self.traces_ending.extend(running.end());
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring buffer owns this epoll descriptor and lives as
        // long as self, which the borrow is tied to.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) })
    }

    fn new_stacks(&mut self) -> Vec<NewStack> {
        if let Err(error) = self.ring.consume() {
            tracing::warn!(%error, "reading stack samples");
        }
        if self.follow.due() == Some(Duration::ZERO) {
            self.follow_run(false);
        }
        if self.boundary_due() == Some(Duration::ZERO) {
            self.boundary_look();
        }
        self.unwind_end();
        let requests =
            std::mem::take(&mut *self.requests.lock().unwrap_or_else(|e| e.into_inner()));
        if let Some(unwind) = &self.unwind {
            unwind.serve(requests);
        }
        let samples = std::mem::take(&mut *self.samples.lock().unwrap_or_else(|e| e.into_inner()));
        let mut out = self.asleep.new_stacks();
        for sample in samples {
            let Some(frames) = self.stack_read(sample.stack) else {
                continue;
            };
            self.signature_add(&sample, &frames);
            if self.announced.insert(sample.stack, ()).is_none() {
                let depth = frames.iter().position(|&f| f == 0).unwrap_or(frames.len());
                out.push(NewStack {
                    id: sample.stack,
                    frames: frames[..depth].to_vec(),
                    label: self.label_of(sample.stack),
                });
            }
        }
        out
    }

    fn site_merged(&mut self, id: u32, merged: u32) {
        self.merged.insert(id, merged);
        for (index, _) in self.signed.get(&id).into_iter().flatten() {
            let key = index.to_ne_bytes();
            if let Ok(Some(mut value)) = self.skel.maps.signatures.lookup(&key, MapFlags::ANY) {
                value[4..8].copy_from_slice(&merged.to_ne_bytes());
                if let Err(error) = self
                    .skel
                    .maps
                    .signatures
                    .update(&key, &value, MapFlags::ANY)
                {
                    tracing::warn!(%error, id, "naming a site");
                }
            }
        }
    }

    fn features(&self) -> u64 {
        match self.attached.features() {
            0 => 0,
            features if self.runqueue_clock => features | debox_abi::DEBOX_FEATURE_RUNQ,
            features => features,
        }
    }

    fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        if let Some(bss) = self.skel.maps.bss_data.as_deref() {
            for c in &bss.counters {
                sum.site_walks += c.site_walks;
                sum.site_hits += c.site_hits;
                sum.site_mismatches += c.site_mismatches;
                sum.site_failures += c.site_failures;
                sum.storage_failures += c.storage_failures;
                sum.slots_exhausted += c.slots_exhausted;
                sum.switches_hidden += c.switches_hidden;
            }
            for c in &bss.counters {
                if c.site_mismatches > 0 {
                    self.mismatch_tell(c.site_mismatch_last);
                }
            }
        }
        sum
    }

    fn costs(&self, run_time: bool) -> Costs {
        let segments = self.segments.values().map(|segment| &segment.maps);
        let accounts = self.accounts.values().map(|account| &account.maps);
        let tables_bytes = cost::own_maps().map(|mut maps| {
            maps.extend(segments.chain(accounts).flatten().copied());
            maps.values().sum::<u64>()
        });
        Costs {
            tables_bytes,
            run_time: run_time.then(cost::run_time),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // When the broker ends, nothing of it is left on the kernel.
        for (_, running) in self.traces.drain() {
            self.traces_ending.extend(running.end());
        }
        for thread in self.traces_ending.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether process numbers are the same here as in the kernel: not in a container.
pub fn first_pid_namespace() -> bool {
    // PROC_PID_INIT_INO; where it cannot be asked, it is the ordinary case.
    std::fs::read_link("/proc/self/ns/pid")
        .map_or(true, |link| link.as_os_str() == "pid:[4026531836]")
}

fn log_libbpf(level: libbpf_rs::PrintLevel, message: String) {
    let message = message.trim_end();
    match level {
        libbpf_rs::PrintLevel::Warn => tracing::warn!(target: "libbpf", "{message}"),
        libbpf_rs::PrintLevel::Info => tracing::info!(target: "libbpf", "{message}"),
        libbpf_rs::PrintLevel::Debug => tracing::debug!(target: "libbpf", "{message}"),
    }
}

fn watcher_of(watcher: Watcher) -> skel::types::watcher {
    const WATCHER_PRIVILEGED: u32 = 1 << 0;
    const WATCHER_PTRACE: u32 = 1 << 1;
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    skel::types::watcher {
        cap_permitted: watcher.cap_permitted,
        uid: watcher.uid,
        gid: watcher.gid,
        euid: watcher.euid.unwrap_or(NONE),
        user_ns: watcher.user_ns,
        flags: flag(watcher.privileged, WATCHER_PRIVILEGED)
            | flag(watcher.sys_ptrace, WATCHER_PTRACE),
        ..Default::default()
    }
}

fn sample_parse(bytes: &[u8]) -> Option<Sample> {
    // struct stack_sample in bpf/site.h
    let stack = u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?);
    let used = u32::from_ne_bytes(bytes.get(4..8)?.try_into().ok()?) as usize;
    let hint = u64::from_ne_bytes(bytes.get(8..16)?.try_into().ok()?);
    let words = bytes
        .get(16..16 + used)?
        .chunks_exact(8)
        .map(|c| u64::from_ne_bytes(c.try_into().expect("8 bytes")))
        .collect();
    Some(Sample { stack, hint, words })
}

fn signature_bytes(stack: u32, site: u32, signature: &signature::Signature) -> Vec<u8> {
    // struct signature in bpf/site.h
    const OFFSETS: usize = 16;
    const VALUES: usize = OFFSETS + 2 * signature::SIGNATURE_WORDS;
    let mut out = vec![0u8; VALUES + 8 * signature::SIGNATURE_WORDS];
    out[0..4].copy_from_slice(&stack.to_ne_bytes());
    out[4..8].copy_from_slice(&site.to_ne_bytes());
    out[8..12].copy_from_slice(&(signature.words.len() as u32).to_ne_bytes());
    out[12..16].copy_from_slice(&signature.span.to_ne_bytes());
    for (i, (offset, value)) in signature.words.iter().enumerate() {
        out[OFFSETS + 2 * i..OFFSETS + 2 * i + 2].copy_from_slice(&offset.to_ne_bytes());
        out[VALUES + 8 * i..VALUES + 8 * i + 8].copy_from_slice(&value.to_ne_bytes());
    }
    out
}

fn iterate(link: &impl AsFd) -> Result<(), Error> {
    let mut iter = programs::iter_open(link)?;
    let mut sink = [0u8; 64];
    while iter_read(&mut iter, &mut sink)? > 0 {}
    Ok(())
}

/// Bytes that an iterator wrote; 0 at its end.
fn iter_read(iter: &mut File, to: &mut [u8]) -> Result<usize, Error> {
    loop {
        match iter.read(to) {
            Ok(got) => return Ok(got),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                ) => {}
            Err(source) => {
                return Err(Error::Kernel {
                    action: "iterate over its tasks",
                    source,
                });
            }
        }
    }
}

fn account_id_free(used: &HashMap<u32, AccountEntry>) -> Result<u32, Error> {
    (0..ACCOUNTS_MAX)
        .find(|id| !used.contains_key(id))
        .ok_or(Error::Full {
            what: "accounts",
            limit: ACCOUNTS_MAX,
        })
}

fn pages_create(name: &'static str) -> Result<MapHandle, Error> {
    array_create(
        name,
        debox_abi::DEBOX_PAGE_SIZE,
        debox_abi::DEBOX_SEGMENT_SLOTS as u32,
        BPF_F_MMAPABLE,
    )
}

fn array_create(
    name: &'static str,
    value: usize,
    entries: u32,
    flags: u32,
) -> Result<MapHandle, Error> {
    MapHandle::create(
        MapType::Array,
        Some(name),
        4,
        value as u32,
        entries,
        &map_options(flags),
    )
    .map_err(Error::bpf("creating a shared map"))
}

const ACCOUNT_CPU_BYTES: usize = size_of::<debox_abi::debox_account_cpu>();

/// What an account's sums lie in; nobody has it yet.
struct AccountMaps {
    account: MapHandle,
    cpus: MapHandle,
    details: Option<Details>,
}

impl AccountMaps {
    /// `details`: their serial number.
    fn create(cpus: u32, details: Option<u64>) -> Result<Self, Error> {
        let account = array_create(
            "debox_account",
            size_of::<debox_abi::debox_account>(),
            1,
            BPF_F_MMAPABLE,
        )?;
        let cpus = array_create("debox_cpus", ACCOUNT_CPU_BYTES, cpus, BPF_F_MMAPABLE)?;
        for map in [&account, &cpus] {
            map.freeze()
                .map_err(Error::bpf("freezing an account map"))?;
        }
        Ok(Self {
            account,
            cpus,
            details: details.map(Self::details).transpose()?,
        })
    }

    fn details(serial: u64) -> Result<Details, Error> {
        let details = numbered_create::<debox_abi::debox_details>(
            "debox_details",
            "creating an account's details",
            |details| details.serial = serial,
        )?;
        let control = array_create(
            "debox_details_c",
            size_of::<debox_abi::debox_account_control>(),
            1,
            BPF_F_MMAPABLE,
        )?;
        let chains = array_create(
            "debox_chains",
            size_of::<debox_abi::debox_chain_sums>(),
            1,
            BPF_F_MMAPABLE,
        )?;
        chains
            .freeze()
            .map_err(Error::bpf("freezing an account's chains"))?;
        let objects = numbered_create::<debox_abi::debox_objects>(
            "debox_objects",
            "creating an account's objects",
            |objects| objects.serial = serial,
        )?;
        let lives = numbered_create::<debox_abi::debox_lives>(
            "debox_lives",
            "creating an account's lives",
            |lives| lives.serial = serial,
        )?;
        let events = MapHandle::create(
            MapType::RingBuf,
            Some("debox_events"),
            0,
            0,
            debox_abi::DEBOX_EVENTS_BYTES as u32,
            &map_options(0),
        )
        .map_err(Error::bpf("creating a ring buffer of events"))?;
        Ok(Details {
            details: owned(&details)?,
            events: owned(&events)?,
            control: owned(&control)?,
            chains: owned(&chains)?,
            objects: owned(&objects)?,
            on_cpu: None,
            lives: owned(&lives)?,
        })
    }
}

/// A map of one frozen value, which `first` prepares. In place: the tables are tens of megabytes, of which that
/// is a page, and to write them whole took 27 ms of a start.
fn numbered_create<T: debox_abi::Pod>(
    name: &'static str,
    creating: &'static str,
    first: impl FnOnce(&mut T),
) -> Result<MapHandle, Error> {
    let map = array_create(name, size_of::<T>(), 1, BPF_F_MMAPABLE)?;
    let written = new_map_write(&map, size_of::<T>(), |value| {
        // SAFETY: the place is as large as T, at a page's begin; any bytes are a value of a Pod, and nobody else has
        // the map yet.
        first(unsafe { &mut *value.cast::<T>() });
    });
    written.map_err(|source| Error::Kernel {
        action: "map a new table",
        source,
    })?;
    map.freeze().map_err(Error::bpf(creating))?;
    Ok(map)
}

/// `write` is given where the first `bytes` of an array's values lie, as long as it runs. Of a map that nobody else has yet.
fn new_map_write(map: &MapHandle, bytes: usize, write: impl FnOnce(*mut u8)) -> io::Result<()> {
    let length = bytes.next_multiple_of(debox_abi::DEBOX_PAGE_SIZE);
    // SAFETY: a fresh shared mapping at an address of the kernel's choice, which is larger than no map of so many bytes.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            map.as_fd().as_raw_fd(),
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    write(memory.cast());
    // SAFETY: exactly the mapping made above.
    unsafe { libc::munmap(memory, length) };
    Ok(())
}

fn map_options(flags: u32) -> libbpf_rs::libbpf_sys::bpf_map_create_opts {
    libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>()
            as libbpf_rs::libbpf_sys::size_t,
        map_flags: flags,
        ..Default::default()
    }
}

/// Puts inner maps into outer ones, each under a number that has none. The kernel lets go of who
/// does that only after a grace period (10 to 40 ms), for whoever may still look at what was there
/// before. Nothing was, and the inner map is seen at once: a thread waits, and nobody for it.
fn outers_set(maps: &[(BorrowedFd<'_>, u32, BorrowedFd<'_>)]) -> Result<(), Error> {
    let putting: Vec<_> = maps
        .iter()
        .map(|(outer, id, inner)| Putting::begin(*outer, *id, *inner))
        .collect::<Result<_, _>>()?;
    putting.into_iter().try_for_each(Putting::seen)
}

struct Putting {
    outer: OwnedFd,
    id: u32,
    inner_id: u32,
    done: mpsc::Receiver<Result<(), Error>>,
}

impl Putting {
    /// How long the kernel is given before it is asked.
    const PAUSE: Duration = Duration::from_micros(50);

    fn begin(outer: BorrowedFd<'_>, id: u32, inner: BorrowedFd<'_>) -> Result<Self, Error> {
        let inner_id = map_id(&inner)?;
        let (ours, outer, inner) = (
            outer_owned(&outer)?,
            outer_owned(&outer)?,
            outer_owned(&inner)?,
        );
        let (tell, done) = mpsc::channel();
        std::thread::Builder::new()
            .name("debox-map".into())
            .spawn(move || {
                // Nobody may be there any more who is told.
                let _ = tell.send(outer_set(outer.as_fd(), id, inner.as_fd()));
            })
            .map_err(|source| Error::Kernel {
                action: "start a thread",
                source,
            })?;
        Ok(Self {
            outer: ours,
            id,
            inner_id,
            done,
        })
    }

    /// Waits until the inner map is where it belongs.
    fn seen(self) -> Result<(), Error> {
        loop {
            match self.done.recv_timeout(Self::PAUSE) {
                Ok(result) => return result,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::Kernel {
                        action: "put a shared map in place",
                        source: io::Error::other("a thread panicked"),
                    });
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let mut there = 0u32;
            // SAFETY: one key and one value of 4 bytes each: of an inner map its number is told.
            let ret = unsafe {
                libbpf_rs::libbpf_sys::bpf_map_lookup_elem(
                    self.outer.as_raw_fd(),
                    (&raw const self.id).cast(),
                    (&raw mut there).cast(),
                )
            };
            if ret == 0 && there == self.inner_id {
                return Ok(());
            }
        }
    }
}

/// Takes inner maps out again; all wait for that together.
fn outers_clear(id: u32, outers: &[BorrowedFd<'_>]) {
    std::thread::scope(|scope| {
        for outer in outers {
            scope.spawn(move || {
                // SAFETY: one key of 4 bytes, the outer map's size.
                unsafe {
                    libbpf_rs::libbpf_sys::bpf_map_delete_elem(
                        outer.as_raw_fd(),
                        (&raw const id).cast(),
                    )
                }
            });
        }
    });
}

fn outer_set(outer: BorrowedFd<'_>, id: u32, inner: BorrowedFd<'_>) -> Result<(), Error> {
    let fd = inner.as_raw_fd();
    // SAFETY: one key and one value of 4 bytes each, the outer map's sizes.
    let ret = unsafe {
        libbpf_rs::libbpf_sys::bpf_map_update_elem(
            outer.as_raw_fd(),
            (&raw const id).cast(),
            (&raw const fd).cast(),
            0,
        )
    };
    if ret == 0 {
        return Ok(());
    }
    Err(Error::Kernel {
        action: "put a shared map in place",
        source: io::Error::from_raw_os_error(-ret),
    })
}

fn outer_owned(map: &impl AsFd) -> Result<OwnedFd, Error> {
    map.as_fd()
        .try_clone_to_owned()
        .map_err(|source| Error::Kernel {
            action: "duplicate a map descriptor",
            source,
        })
}

/// The number that the kernel gave a map.
fn map_id(map: &impl AsFd) -> Result<u32, Error> {
    let mut info = libbpf_rs::libbpf_sys::bpf_map_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: info is writable for the length given.
    let ret = unsafe {
        libbpf_rs::libbpf_sys::bpf_obj_get_info_by_fd(
            map.as_fd().as_raw_fd(),
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if ret == 0 {
        return Ok(info.id);
    }
    Err(Error::Kernel {
        action: "tell a map's number",
        source: io::Error::from_raw_os_error(-ret),
    })
}

fn owned(map: &MapHandle) -> Result<OwnedFd, Error> {
    map.as_fd()
        .try_clone_to_owned()
        .map_err(|source| Error::Kernel {
            action: "duplicate a map descriptor",
            source,
        })
}

// The skeleton and ring buffer hold raw pointers into libbpf; nothing in them
// is tied to the thread that made them.
// SAFETY: libbpf objects may be used from any one thread at a time; Probe is
// not Sync and all its methods that change anything take &mut self.
unsafe impl Send for Probe {}
