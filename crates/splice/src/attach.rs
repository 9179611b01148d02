// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a process spliced that runs already, and how does it get its own code back?
//!
//! All its threads stand still meanwhile (ptrace), for some milliseconds. What takes long, tables and
//! images of its files, is made before. Then it has to be proved that nobody comes back into the midst
//! of a window: threads that stand in one go on in its trampoline (a call that they are in is counted
//! from then on), and of signal handlers that interrupted somebody there, the frames are looked for in
//! all memory that it can write. What cannot be proved stays as it is.

use crate::image::{Kind, Side};
use crate::images::Known;
use crate::maps::{self, Mapping};
use crate::run::{Run, Used};
use crate::site::Left;
use crate::state::{self, PAGE, area, attach, run};
use crate::threads::{Held, Threads};
use crate::tracee::{self, Caller, Registers, Stopped};
use crate::{Error, frames, proc, remote, spare};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Of the stack that the runtime has while it prepares.
const STACK: u64 = 64 << 10;
/// It waits for us for 10 s at each step.
const STEP_LONGEST: Duration = Duration::from_secs(15);

/// Code of a file that the process has mapped.
struct Code {
    mapping: Mapping,
    /// The file, as it is, and what is known of it.
    file: File,
    known: Arc<Known>,
    /// From addresses in the file to those in the process; None: nothing of it is replaced.
    bias: Option<u64>,
    /// It is an image: the process was attached to before.
    again: bool,
}

impl Code {
    /// What of it is nobody's.
    fn spare(&self) -> Option<Range<u64>> {
        let spare = self.known.spare_at(self.bias?);
        let within = self.mapping.start <= spare.start && spare.end <= self.mapping.end;
        within.then_some(spare)
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |e| Error::Run(format!("{what}: {e}"))
}

fn unproved<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::Run(why.into()))
}

impl Run {
    /// Splices a process. The last that is done before it goes on is `watch`.
    ///
    /// # Errors
    /// When it is not for us to trace, or it cannot be proved that it goes on as it would: then
    /// it does so without, and nothing has been done.
    pub fn attach(&self, pid: i32, watch: &mut dyn FnMut()) -> Result<(), Error> {
        let spliced = self.splice(pid, watch);
        match spliced {
            Err(_) if !proc::lives(pid) => Err(Error::Ended),
            spliced => spliced,
        }
    }

    /// Whether it is a process of this run already.
    pub fn has_spliced(&self, pid: i32) -> bool {
        let moved = self.moved().clone();
        self.files(&moved).any(|run| !run.areas_of(pid).is_empty())
    }

    fn splice(&self, pid: i32, watch: &mut dyn FnMut()) -> Result<(), Error> {
        let status = proc::text(pid, "status").map_err(failed("its status"))?;
        let line = |name: &str| {
            let of = status.lines().find_map(|line| line.strip_prefix(name));
            of.unwrap_or_default().trim()
        };
        if !self.has_rights(pid) {
            return unproved(crate::run::OTHER_RIGHTS);
        }
        if line("Seccomp:") != "0" {
            return unproved("its system calls are restricted (seccomp)");
        }
        if line("State:").starts_with(['T', 't']) {
            return unproved("it is stopped, by a signal or by whoever traces it");
        }
        let all = self.codes(pid)?;
        let mut threads = Threads::stop(pid)?;
        let index = self.area_take()?;
        let replaced = self.replace(pid, &mut threads, &all, index);
        let used = Used {
            index,
            pid,
            moved: false,
        };
        match replaced {
            Ok(_) => self.area_used(used),
            // Nobody else's, while it has it mapped.
            Err(_) if self.areas_of(pid).contains(&index) => self.area_used(used),
            Err(_) => self.area_free(index),
        }
        let in_calls = replaced?;
        watch();
        // What it stood still is nobody's time.
        let now = ticks().to_le_bytes();
        for block in in_calls {
            // Else it begins a moment before.
            let _ = threads.all[0]
                .thread
                .write(block + state::block::START, &now);
        }
        drop(threads);
        Ok(())
    }

    /// Makes the images of what a process has mapped, which takes long.
    pub fn attach_prepare(&self, pid: i32) {
        // What fails, fails as it is attached to.
        let _ = self.codes(pid);
    }

    /// What it has mapped to be executed, as far as calls are made there.
    fn codes(&self, pid: i32) -> Result<Vec<Code>, Error> {
        let mappings = maps::of(pid).map_err(failed("its mappings"))?;
        let mut taken: Vec<Range<u64>> = mappings.iter().map(Mapping::room).collect();
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let mut all = Vec::new();
        for mapping in mappings {
            if !mapping.is_code() {
                continue;
            }
            let code = match self.images().told_by(&mapping) {
                Some(told) => self.code_of_before(mapping, told, &root)?,
                None => self.code_of(mapping, pid, &root, &mut taken)?,
            };
            all.extend(code);
        }
        let replaced = all
            .iter()
            .filter(|code: &&Code| code.bias.is_some())
            .count();
        if replaced == 0 {
            return unproved("no code of it can be replaced");
        }
        if replaced > state::FILES {
            return unproved(format!(
                "it has code of more than {} files mapped",
                state::FILES
            ));
        }
        Ok(all)
    }

    /// An image, or its pool, of which nobody makes use any more.
    fn code_of_before(
        &self,
        mapping: Mapping,
        (device, inode, kind): (u64, u64, Kind),
        root: &Path,
    ) -> Result<Option<Code>, Error> {
        let kept = self.images().kept_file(device, inode, root, kind);
        let Some((file, known)) = kept else {
            return unproved("what it was attached to with before is gone");
        };
        Ok(Some(Code {
            bias: known.bias(mapping.start, mapping.offset, mapping.bytes()),
            mapping,
            file,
            known,
            again: true,
        }))
    }

    /// None: nothing of it is replaced.
    fn code_of(
        &self,
        mapping: Mapping,
        pid: i32,
        root: &Path,
        taken: &mut Vec<Range<u64>>,
    ) -> Result<Option<Code>, Error> {
        let name = || mapping.path.display().to_string();
        let opened = mapping.open(pid, root);
        let Some(file) = opened.map_err(failed("a file that it has mapped"))? else {
            return unproved(format!("{} is another file by now", name()));
        };
        for side in [Side::Below, Side::Above] {
            let again = file.try_clone().map_err(failed("dup"))?;
            let known = match self.images().of(again, side) {
                // Data that a compiler has written, or code for others.
                Err(Error::NotElf(_)) => return Ok(None),
                known => known?,
            };
            if let Some(why) = known.table.against() {
                return unproved(why);
            }
            if known.is_in_pieces(mapping.offset, mapping.bytes()) {
                return unproved(format!(
                    "its code of {} was changed: it is mapped in pieces",
                    name()
                ));
            }
            let bias = known.bias(mapping.start, mapping.offset, mapping.bytes());
            let bias = match (bias, side) {
                (Some(bias), _) => bias,
                (None, Side::Below) => return Ok(None),
                (None, Side::Above) => break,
            };
            let pool = known.pool(bias);
            if taken
                .iter()
                .all(|other| other.end <= pool.start || pool.end <= other.start)
            {
                taken.push(pool);
                return Ok(Some(Code {
                    mapping,
                    file,
                    known,
                    bias: Some(bias),
                    again: false,
                }));
            }
        }
        unproved(format!(
            "there is no room for trampolines beside {}",
            name()
        ))
    }

    /// Blocks of threads that are in a call.
    fn replace(
        &self,
        pid: i32,
        threads: &mut Threads,
        all: &[Code],
        index: u32,
    ) -> Result<Vec<u64>, Error> {
        for held in &threads.all {
            let registers = &held.thread.registers;
            if !held.thread.is_native() {
                return unproved("a 32-bit program");
            }
            if registers.gs_base != 0 && !self.left_before(pid, registers.gs_base) {
                return unproved("it uses the GS register, or is spliced already");
            }
        }
        let mappings = maps::of(pid).map_err(failed("its mappings"))?;
        unchanged(pid, all, &mappings)?;
        let windows = Windows::of(all);
        if frames::found(pid, &mappings, &|address| windows.holds(address))? {
            return unproved("a signal handler will return to where a call is to be replaced");
        }
        let places = (threads.all.iter())
            .map(|held| windows.place(pid, &held.thread.registers))
            .collect::<Result<Vec<_>, _>>()?;
        let told = Told {
            index,
            by_instruction: crate::run::sets_gs_by_instruction(),
            all,
            places: &places,
        };
        // Where a thread is taken back to as we end it goes by iretq, whose returns are guarded there.
        if has_shadow_stack(pid)? {
            return unproved("the processor guards its returns (shadow stack)");
        }
        let spare = all.iter().filter_map(Code::spare);
        let code = self.call_code();
        let place = spare::place(pid, Caller::bytes(code), spare).map_err(failed("its code"))?;
        let by = Caller { code, place };
        let mut within = self.prepare_within(pid, &mut threads.all, &by, &told)?;
        let mut in_calls = Vec::new();
        for ((held, place), block) in threads.all.iter_mut().zip(&places).zip(&within.blocks) {
            let registers = &mut held.thread.registers;
            registers.gs_base = *block;
            let place = place.as_ref();
            if let Some(place) = place.filter(|place| within.replaced[place.code]) {
                registers.rip = place.next;
                if let Some((at, address)) = place.returns {
                    // Unwritten, it returns to its own code, and the call is not counted.
                    let _ = held.thread.write(at, &address.to_le_bytes());
                }
            }
            // Whoever watches it sees it where it goes on; unless it has just been killed.
            let _ = held.thread.set();
            let in_call = place.and_then(|place| place.call);
            in_calls.extend(in_call.map(|_| *block));
        }
        let Some(first) = threads.all.first_mut() else {
            return Err(Error::Ended);
        };
        within.end(&mut first.thread, &by)?;
        Ok(in_calls)
    }

    /// Whether a base of GS is of a block that is left from having been attached to before.
    fn left_before(&self, pid: i32, base: u64) -> bool {
        let long = |at: u64| proc::word(pid, at);
        let head = long(base + state::block::SELF)
            .ok()
            .zip(long(base + state::block::AREA).ok());
        let Some((own, area)) = head else {
            return false;
        };
        let off = long(area + area::OFF).map(|off| off as u32);
        own == base && off.is_ok_and(|off| off == state::OFF_LEFT)
    }

    /// The runtime is mapped, and makes blocks and trampolines. Should we end from here on, the
    /// thread that does so goes on where it was; it waits a second or more for us.
    fn prepare_within(
        &self,
        pid: i32,
        threads: &mut [Held],
        by: &Caller<'_>,
        told: &Told<'_>,
    ) -> Result<Within, Error> {
        let images = told.all.iter().map(|code| File::open(&code.known.image));
        let images = images
            .collect::<io::Result<Vec<_>>>()
            .map_err(failed("an image"))?;
        let runtime = File::open(self.runtime()).map_err(failed("the runtime"))?;
        let mut files = vec![self.file().as_fd(), runtime.as_fd()];
        files.extend(images.iter().map(AsFd::as_fd));
        let threads_told = told.threads(threads);
        let Some(first) = threads.first_mut() else {
            return Err(Error::Ended);
        };
        let thread = &mut first.thread;
        let frame = thread.frame();
        let bytes = attach::BYTES
            + threads_told.len() as u64
            + attach::CODE_BYTES * told.all.len() as u64
            + frame.len() as u64;
        let room = (bytes.max(remote::MESSAGE_BYTES) + STACK).next_multiple_of(PAGE);
        let memory = remote::memory(thread, by, room).map_err(failed("mmap"))?;
        let sent =
            remote::files_send(thread, by, pid, memory, &files).map_err(failed("its files"))?;
        let rights = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let (kind, runtime_fd) = (libc::MAP_PRIVATE as u64, sent.files[1] as u64);
        let args = [0, self.runtime_bytes(), rights, kind, runtime_fd, 0];
        let code = thread
            .call(by, libc::SYS_mmap, args)
            .map_err(failed("the runtime"))?;

        let mut begin = told.head(&self.path(), memory, &sent);
        begin.extend(threads_told);
        begin.extend(told.codes(&sent.files[2..]));
        let frame_at = memory + begin.len() as u64;
        begin.extend(frame);
        thread.write(memory, &begin).map_err(failed("its memory"))?;
        let with = Registers {
            rdi: memory,
            rsp: memory + room,
            r12: frame_at,
            rip: code + state::ATTACH,
            ..thread.registers
        };
        thread.divert(&with).map_err(failed("registers"))?;
        if !up_to(thread, memory, attach::STEP_BLOCKS)? {
            return unproved("it waited for DeBox, in vain");
        }
        proc::memory_read(pid, memory, &mut begin).map_err(failed("its memory"))?;
        told.answered(&begin)
            .map_err(failed("the file of the counts"))?;
        Ok(Within {
            there: tracee::registers(thread.pid).map_err(failed("registers"))?,
            memory: memory..memory + room,
            frame_at,
            blocks: told.blocks(&begin),
            replaced: told.replaced(&begin),
        })
    }

    /// Processes that have something of this run mapped get their own code back; those that did not.
    pub fn detach(&self) -> Vec<String> {
        let mut kept = Vec::new();
        self.detach_own(&mut kept);
        // Of these there may be more by then.
        let mut done: Vec<Arc<Self>> = Vec::new();
        loop {
            let is_new = |run: &&Arc<Self>| !done.iter().any(|other| Arc::ptr_eq(run, other));
            let Some(run) = self.moved().iter().find(is_new).cloned() else {
                return kept;
            };
            run.detach_own(&mut kept);
            done.push(run);
        }
    }

    fn detach_own(&self, kept: &mut Vec<String>) {
        for pid in proc::all() {
            let areas = self.areas_of(pid);
            if areas.is_empty() {
                continue;
            }
            if let Err(error) = self.put_back(pid, &areas)
                && proc::lives(pid)
            {
                kept.push(format!("process {pid} ({error})"));
            }
        }
    }

    fn put_back(&self, pid: i32, areas: &[u32]) -> Result<(), Error> {
        let threads = Threads::stop(pid)?;
        for index in areas {
            let at = run::BYTES + u64::from(*index) * area::BYTES + area::OFF;
            let off = state::OFF_LEFT.to_le_bytes();
            self.file()
                .write_all_at(&off, at)
                .map_err(failed("the file of the counts"))?;
            // Whoever watches it next does not take what they say for news.
            self.blocks_forget(*index)
                .map_err(failed("the file of the counts"))?;
        }
        let undo = self.undo(pid);
        undo.and_then(|undo| undo.code_back())
            .map_err(failed("its memory"))?;
        drop(threads);
        Ok(())
    }

    /// Who asks is not answered any more.
    pub(crate) fn close(&self) {
        self.word(run::WATCHER).store(0, Ordering::SeqCst);
    }
}

/// It runs up to a step, and stands still there. `begin`: `struct splice_attach`. False: it has waited for us in
/// vain, and gone on by itself from where it would be.
fn up_to(thread: &mut Stopped, begin: u64, wanted: u32) -> Result<bool, Error> {
    let pid = thread.pid;
    let step = || proc::word(pid, begin + attach::STEP).map(|step| step as u32);
    let since = Instant::now();
    // Whoever shares its memory may write there.
    let never = || since.elapsed() > STEP_LONGEST;
    thread
        .run_until(|| step().map(|step| step >= wanted || never()))
        .map_err(failed("the runtime"))?;
    let reached = step().map_err(failed("its memory"))?;
    // The last one at once, when it has no counters.
    let waited = reached >= wanted && reached != attach::STEP_ALONE;
    if !waited {
        thread.registers = tracee::registers(pid).map_err(failed("registers"))?;
    }
    Ok(waited)
}

/// Whether its return addresses are kept twice (Linux 6.6).
fn has_shadow_stack(pid: i32) -> Result<bool, Error> {
    let status = proc::text(pid, "status").map_err(failed("its status"))?;
    let features = status
        .lines()
        .find_map(|line| line.strip_prefix("x86_Thread_features:"));
    Ok(features.is_some_and(|features| features.split_whitespace().any(|one| one == "shstk")))
}

/// The time stamp counter.
fn ticks() -> u64 {
    // SAFETY: x86-64 has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// What the runtime is told: `struct splice_attach`, its threads, its codes.
struct Told<'a> {
    /// Of the area.
    index: u32,
    by_instruction: bool,
    all: &'a [Code],
    /// Of each thread.
    places: &'a [Option<Place>],
}

/// A thread that is about to replace what is to be replaced.
struct Within {
    there: Registers,
    /// What it was told in.
    memory: Range<u64>,
    /// Where in it stands where the thread goes on, should we end.
    frame_at: u64,
    /// Of each thread.
    blocks: Vec<u64>,
    /// By code: whether it will be.
    replaced: Vec<bool>,
}

impl Within {
    /// All threads go on where their registers say, from here on.
    fn end(&mut self, thread: &mut Stopped, by: &Caller<'_>) -> Result<(), Error> {
        (thread.write(self.frame_at, &thread.frame())).map_err(failed("its memory"))?;
        // Out of the call that it waits in.
        self.there = Registers {
            gs_base: thread.registers.gs_base,
            orig_rax: u64::MAX,
            rax: 0,
            ..self.there
        };
        tracee::registers_set(thread.pid, &self.there).map_err(failed("registers"))?;
        let (begin, step) = (self.memory.start, attach::STEP_BASES.to_le_bytes());
        (thread.write(begin + attach::STEP, &step)).map_err(failed("its memory"))?;
        if up_to(thread, begin, attach::STEP_REPLACED)? {
            let args = [begin, self.memory.end - begin, 0, 0, 0, 0];
            // What it leaves behind is in nobody's way.
            let _ = thread.call(by, libc::SYS_munmap, args);
        }
        Ok(())
    }
}

impl Told<'_> {
    fn head(&self, path: &str, memory: u64, sent: &remote::Sent) -> Vec<u8> {
        let (threads, codes) = (self.places.len() as u64, self.all.len() as u64);
        let mut out = [sent.files[0], 0].map(i32::to_le_bytes).concat();
        let by_instruction = u32::from(self.by_instruction);
        let numbers = [self.index, by_instruction, threads as u32, codes as u32];
        out.extend(numbers.map(u32::to_le_bytes).concat());
        let end = out.len() + attach::RUN_BYTES as usize;
        out.extend(path.as_bytes());
        out.resize(end, 0);
        let thread = memory + attach::BYTES;
        let code = thread + attach::THREAD_BYTES * threads;
        out.extend([thread, code].map(u64::to_le_bytes).concat());
        let close = [sent.files[1], sent.pair[0], sent.pair[1], -1];
        out.extend(close.map(i32::to_le_bytes).concat());
        // No step is done.
        out.resize(attach::BYTES as usize, 0);
        out
    }

    fn threads(&self, threads: &[Held]) -> Vec<u8> {
        let mut out = Vec::new();
        for (held, place) in threads.iter().zip(self.places) {
            let (process, own) = held.ids;
            let call = place.as_ref().and_then(|place| place.call);
            let numbers = [own, process, call.unwrap_or(0), 0];
            out.extend(numbers.map(u32::to_le_bytes).concat());
            let in_call = place.as_ref().filter(|place| place.call.is_some());
            let rsp = in_call.map_or(0, |place| place.rsp);
            out.extend([rsp, 0].map(u64::to_le_bytes).concat());
        }
        out
    }

    fn codes(&self, images: &[i32]) -> Vec<u8> {
        let mut out = Vec::new();
        for (code, image) in self.all.iter().zip(images) {
            let (mapping, known) = (&code.mapping, &code.known);
            let place = [mapping.start, mapping.bytes(), mapping.offset];
            out.extend(place.map(u64::to_le_bytes).concat());
            out.extend([known.device, known.inode].map(u64::to_le_bytes).concat());
            out.extend(image.to_le_bytes());
            out.extend([u16::from(code.again), 0].map(u16::to_le_bytes).concat());
        }
        out
    }

    /// Errors: the runtime's.
    fn answered(&self, told: &[u8]) -> io::Result<()> {
        match -proc::int_of(told, 4) {
            error @ 1.. => Err(io::Error::from_raw_os_error(error)),
            _ => Ok(()),
        }
    }

    fn blocks(&self, told: &[u8]) -> Vec<u64> {
        let threads = told[attach::BYTES as usize..].chunks_exact(attach::THREAD_BYTES as usize);
        (threads.take(self.places.len()))
            .map(|thread| proc::long_of(thread, attach::THREAD_BLOCK as usize))
            .collect()
    }

    fn replaced(&self, told: &[u8]) -> Vec<bool> {
        let begin = attach::BYTES + attach::THREAD_BYTES * self.places.len() as u64;
        let codes = told[begin as usize..].chunks_exact(attach::CODE_BYTES as usize);
        (codes.take(self.all.len()))
            .map(|code| code[attach::CODE_REPLACED as usize] == 1)
            .collect()
    }
}

/// What is to be replaced is what its file says.
fn unchanged(pid: i32, all: &[Code], now: &[Mapping]) -> Result<(), Error> {
    for code in all {
        let Mapping {
            start, end, offset, ..
        } = code.mapping;
        let name = || code.mapping.path.display().to_string();
        if !now.contains(&code.mapping) {
            return unproved(format!("{} was just mapped otherwise", name()));
        }
        let Some(bias) = code.bias else {
            continue;
        };
        let changed = || unproved(format!("its code of {} was changed", name()));
        let own = proc::own_pages(pid, start, end).map_err(failed("its page map"))?;
        for page in own {
            let (mut is, mut was) = ([0; PAGE as usize], [0; PAGE as usize]);
            proc::memory_read(pid, page, &mut is).map_err(failed("its memory"))?;
            let at = page - start + offset;
            // Behind the end of the file there are zeros.
            let bytes = code.file.metadata().map_err(failed("its file"))?.len();
            let there = bytes.saturating_sub(at).min(PAGE) as usize;
            (code.file.read_exact_at(&mut was[..there], at)).map_err(failed("its file"))?;
            // Of an attach that was killed, something may be left.
            let spare = code.known.spare_at(bias);
            let within = |at: u64| at.clamp(page, page + PAGE) - page;
            let spare = within(spare.start) as usize..within(spare.end) as usize;
            is[spare.clone()].copy_from_slice(&was[spare]);
            if is != was {
                return changed();
            }
        }
        for (address, bytes) in code.known.table.replaced() {
            let address = address.wrapping_add(bias);
            let mut is = vec![0; bytes.len()];
            if !(start..end).contains(&address) {
                continue;
            }
            proc::memory_read(pid, address, &mut is).map_err(failed("its memory"))?;
            if is != bytes {
                return changed();
            }
        }
    }
    Ok(())
}

/// Where a thread goes on.
struct Place {
    next: u64,
    /// Where on its stack which address has to stand, to return to.
    returns: Option<(u64, u64)>,
    /// The call that it is in.
    call: Option<u32>,
    /// Its stack pointer in the trampoline.
    rsp: u64,
    /// Which code it is.
    code: usize,
}

/// All windows of a process.
struct Windows<'a> {
    all: &'a [Code],
    /// By address of the second byte: behind the last one, code, site.
    by_begin: std::collections::BTreeMap<u64, (u64, usize, usize)>,
    /// Where a call returns to: code, site.
    back: HashMap<u64, (usize, usize)>,
    /// The same, of functions that make a call in place;
    returns: HashMap<u64, (usize, usize)>,
    /// behind their `syscall`.
    in_place: HashSet<u64>,
}

impl<'a> Windows<'a> {
    fn of(all: &'a [Code]) -> Self {
        let mut windows = Self {
            all,
            by_begin: Default::default(),
            back: HashMap::new(),
            returns: HashMap::new(),
            in_place: HashSet::new(),
        };
        for (n, code) in all.iter().enumerate() {
            let Some(bias) = code.bias else {
                continue;
            };
            for (i, site) in code.known.table.sites.iter().enumerate() {
                if site.window == Err(Left::InPlace) {
                    windows.in_place.insert(site.back().wrapping_add(bias));
                }
                let Ok(window) = &site.window else {
                    continue;
                };
                let start = window.start.wrapping_add(bias);
                if !code.mapping.holds(start) {
                    continue;
                }
                let end = window.end().wrapping_add(bias);
                windows.by_begin.insert(start + 1, (end, n, i));
                let back = match site.callee() {
                    Some(_) => &mut windows.returns,
                    None => &mut windows.back,
                };
                back.insert(site.back().wrapping_add(bias), (n, i));
            }
            // Nobody is in the midst of the begin of a function but who has been interrupted there; of a call, nobody.
            for window in &code.known.table.find_object {
                let start = window.start.wrapping_add(bias);
                let end = window.end().wrapping_add(bias);
                windows.by_begin.insert(start + 1, (end, n, usize::MAX));
            }
        }
        windows
    }

    /// The one that an address is in the midst of.
    fn around(&self, address: u64) -> Option<(usize, usize)> {
        let (_, (end, code, site)) = self.by_begin.range(..=address).next_back()?;
        (address < *end).then_some((*code, *site))
    }

    fn holds(&self, address: u64) -> bool {
        self.around(address).is_some()
    }

    /// The trampolines, left from before, that an address is in.
    fn pool_of_before(&self, at: u64) -> Option<usize> {
        let pool = |code: &Code| code.again && code.bias.is_none() && code.mapping.holds(at);
        self.all.iter().position(pool)
    }

    /// It is in a call that is made in place: its function will return to a trampoline.
    fn place_in_place(&self, pid: i32, registers: &Registers) -> Result<Option<Place>, Error> {
        let nr = registers.orig_rax as u32;
        let back = proc::word(pid, registers.rsp).map_err(failed("its stack"))?;
        let Some(&(n, i)) = self.returns.get(&back) else {
            return match self.pool_of_before(back) {
                Some(code) => Ok(Some(Place {
                    next: registers.rip,
                    returns: None,
                    call: Some(nr),
                    rsp: registers.rsp + 8,
                    code,
                })),
                None => unproved("a thread is in a call that nobody is known to have made"),
            };
        };
        let code = &self.all[n];
        let (Some(bias), Some(site)) = (code.bias, code.known.table.sites.get(i)) else {
            return Ok(None);
        };
        let call = Some((nr, registers.rdx));
        let next = code.known.place(site, site.back(), call);
        match next.map_err(failed("an image"))? {
            Some(next) => Ok(Some(Place {
                next: registers.rip,
                returns: Some((registers.rsp, next.wrapping_add(bias))),
                call: Some(nr),
                rsp: registers.rsp + 8,
                code: n,
            })),
            None => unproved("a thread is in a call that cannot be taken over"),
        }
    }

    /// Where a thread has to go on; None: where it is.
    fn place(&self, pid: i32, registers: &Registers) -> Result<Option<Place>, Error> {
        let ip = registers.rip;
        let in_call = registers.orig_rax as i64 >= 0;
        if in_call && self.in_place.contains(&ip) {
            return self.place_in_place(pid, registers);
        }
        let found = match in_call {
            true => self.back.get(&ip).copied().or_else(|| self.around(ip)),
            false => self.around(ip),
        };
        let Some((n, i)) = found else {
            return match self.pool_of_before(ip) {
                Some(code) if in_call => Ok(Some(Place {
                    next: ip,
                    returns: None,
                    call: Some(registers.orig_rax as u32),
                    rsp: registers.rsp,
                    code,
                })),
                Some(_) => unproved("it counts a call for a watch that is just over"),
                None => Ok(None),
            };
        };
        let code = &self.all[n];
        let (Some(bias), Some(site)) = (code.bias, code.known.table.sites.get(i)) else {
            return unproved("a thread is where the lookup of unwind tables begins");
        };
        let in_call = in_call && ip == site.back().wrapping_add(bias);
        let call = in_call.then_some((registers.orig_rax as u32, registers.rdx));
        let next = code.known.place(site, ip.wrapping_sub(bias), call);
        match next.map_err(failed("an image"))? {
            Some(next) => Ok(Some(Place {
                next: next.wrapping_add(bias),
                returns: None,
                rsp: registers.rsp,
                // One that was made again has another number.
                call: call.map(|(nr, _)| site.nr.unwrap_or(nr)),
                code: n,
            })),
            None => unproved("a thread is in a call that cannot be taken over"),
        }
    }
}
