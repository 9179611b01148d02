// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--capture=splice`: how is a program counted in its own code?
//!
//! Nobody else pays, and counts and times need neither a broker nor privileges: what its threads
//! count is read from the file that they share with us, when it has ended. Where a broker is,
//! the kernel side looks at it, too, and knows in which call they slept. A process that runs is
//! spliced where it is, and gets its own code back when it has been watched.

use crate::args::{AttachArgs, CaptureArgs, RunArgs, Way};
use crate::capture::{END_WAIT, Process, Target, Want, exit};
use crate::doctor;
use crate::error::Error;
use crate::output::Output;
use crate::patched;
use crate::session::{self, Extra};
use debox_abi::{
    DEBOX_NR_UNKNOWN, DEBOX_REQ_EXECUTES, DEBOX_REQ_OPEN_COUNTED, DEBOX_REQ_RENAMES, Pod,
    debox_account_cpu, debox_row, debox_wrap_row, hist_bucket,
};
use debox_client::{AccountView, Connection, Snapshot};
use debox_command::{Child, Ended, Environment, Hold, Inherited, Library, Signals, Start};
use debox_labels::{Kind, Meaning};
use debox_output::count_text;
use debox_record::monotonic_ns;
use debox_report::{
    CallRow, Capture, ChainKind, ChainLink, LabelMeaning, Note, NoteKind, Object, ObjectKind,
    ObjectRow, PlaceCounts, Report, RunFacts, RunKind, SpliceSetup, WrapCounts, WrapProcess,
};
use debox_splice::{Counted, Following, Place, Reason, Run, Sampling, Since, Sums, UNDONE};
use debox_symbol::{CodeFile, UserCode};
use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the areas of programs that have ended are freed.
pub const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// The C library that this process has mapped.
pub fn own_libc() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own = (maps.lines())
        .filter_map(|line| line.split_once('/'))
        .map(|(_, path)| PathBuf::from(format!("/{path}")))
        .find(|path| path.ends_with("libc.so.6"));
    // A debox that is linked statically has none: the machine's, where distributions have it.
    let usual = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib"];
    own.or_else(|| {
        (usual.iter())
            .map(|folder| Path::new(folder).join("libc.so.6"))
            .find(|path| path.is_file())
    })
}

/// What is put beside programs: the file that somebody names, what lies in this program, or what is installed.
fn runtime(images: &Path) -> Result<PathBuf, Error> {
    match debox_splice::RUNTIME {
        Some(code) if std::env::var_os(Library::SPLICE.variable).is_none() => {
            Ok(debox_splice::runtime_laid(images, code)?)
        }
        _ => Ok(Library::SPLICE.find()?),
    }
}

/// A run whose programs are spliced.
pub struct Splicer {
    run: Arc<Run>,
    rate: u64,
    /// From how long on the ends of calls are shown in any case, by number; u64::MAX: never.
    floors: Vec<u64>,
    /// Children, too.
    follow: bool,
    /// Of calls that take little, one in so many is stamped.
    sample: Option<u32>,
    /// Processes run with its code that will go on without it.
    attached: AtomicBool,
}

impl Drop for Splicer {
    fn drop(&mut self) {
        if self.attached.load(Ordering::Relaxed) {
            for why in self.run.detach() {
                crate::say(&format!(
                    "{} goes on with the code that counts its calls, for nobody",
                    debox_output::printable(&why)
                ));
            }
        }
    }
}

/// Whether it goes without a broker.
pub struct Without {
    /// None: it was not said.
    way: Option<Way>,
    named: bool,
    asks_kernel: bool,
    /// Else a process that runs.
    command: bool,
}

impl Without {
    pub fn of(args: &CaptureArgs, want: &Want, command: bool) -> Self {
        Self {
            way: args.capture_way,
            named: args.broker.is_named(),
            asks_kernel: want.asks_kernel(command),
            command,
        }
    }

    /// Counts and times need nobody. Of a command they are better than nothing, also where they were
    /// not asked for so; whoever runs already is not changed unasked.
    pub fn allows_command(&self, why: &Error) -> bool {
        match (self.way, why) {
            (None, Error::Unprivileged { .. }) if self.named => false,
            (None, Error::Unprivileged { .. } | Error::Taken { .. }) => {
                // What could be had without anybody, and why not.
                let told = |(why, _): &(String, _)| crate::say(why);
                !self.asks_kernel && doctor::spliceable(true).inspect_err(told).is_ok()
            }
            // No broker would have it otherwise, the named one least of all.
            (Some(Way::Splice), Error::Taken { .. }) => !self.asks_kernel,
            _ => self.allows(why),
        }
    }

    pub fn allows(&self, why: &Error) -> bool {
        let splice = self.way == Some(Way::Splice) && !self.named;
        let no_broker = !matches!(
            why,
            Error::Usage(_) | Error::Arguments(_) | Error::Command(_) | Error::Splice(_)
        );
        if splice && self.asks_kernel && no_broker {
            let options = match self.command {
                true => "--stacks",
                false => "--call-site, --stacks",
            };
            crate::say(&format!(
                "{options}, --on, --audit, --irq, --trace and recordings need the kernel side; without them \
                 --capture=splice tells counts, errors and wall times here"
            ));
        }
        splice && !self.asks_kernel
    }
}

/// How many calls of each number had been counted, as of the last look.
#[derive(Default)]
pub struct Looks {
    seen: HashMap<u32, u64>,
}

impl Splicer {
    pub fn open(follow: bool, sample: Option<u32>) -> Result<Self, Error> {
        let images = patched::folder(true)?;
        let runtime = runtime(&images)?;
        // The last: it may have to wait.
        let rate = debox_splice::rate()?;
        let run = Run::new(&images, &runtime, rate)?;
        if let Some(one_in) = sample {
            run.sample(Sampling::one_in(one_in));
        }
        let floors = vec![u64::MAX; debox_splice::NRS as usize];
        // It is looked every SWEEP_EVERY whether the command stands.
        Signals::stops_untold();
        Ok(Self {
            run,
            rate,
            floors,
            follow,
            sample,
            attached: AtomicBool::new(false),
        })
    }

    /// Those that have not ended, and what they have started, if that is followed.
    fn pids_of(&self, list: &[Process]) -> impl Iterator<Item = i32> {
        let live = list.iter().filter(|process| !process.ended);
        let pids = live.flat_map(|process| match self.follow {
            true => process.family(),
            false => vec![process.pid as u32],
        });
        pids.map(|pid| pid as i32)
    }

    /// Makes what takes long, before anybody is watched.
    pub fn attach_prepare(&self, list: &[Process]) {
        self.pids_of(list)
            .for_each(|pid| self.run.attach_prepare(pid));
    }

    /// Splices processes that run, and what they have started, if that is followed. What cannot be, the
    /// kernel side tells of, if there is one. `watch` puts one under its watch. Why not, if none could be.
    pub fn attach(
        &self,
        list: &[Process],
        watch: &mut dyn FnMut(i32),
    ) -> Result<Option<Error>, Error> {
        if !self.follow {
            match list {
                [one] => self.run.only(one.pid),
                _ => {
                    return Err(Error::Usage(
                        "--capture=splice has --no-follow with one process only".into(),
                    ));
                }
            }
        }
        self.attached.store(true, Ordering::Relaxed);
        if let Some(first) = list.first() {
            self.run.rights_as(first.pid);
        }
        let (mut known, mut last) = (HashSet::new(), None);
        let mut any = false;
        loop {
            // Those that were started meanwhile, too; by whom had been spliced, they are. The youngest first:
            // a watch is for who is below, too.
            let mut new: Vec<i32> = (self.pids_of(list))
                .filter(|pid| known.insert(*pid) && !self.run.has_spliced(*pid))
                .collect();
            new.reverse();
            if new.is_empty() {
                break;
            }
            for pid in new {
                match self.run.attach(pid, &mut || watch(pid)) {
                    Ok(()) => any = true,
                    Err(debox_splice::Error::Ended) => {}
                    Err(error) => {
                        watch(pid);
                        self.run.attach_failed(pid, &error);
                        last = Some(error);
                    }
                }
            }
        }
        Ok(last.filter(|_| !any).map(Error::from))
    }

    /// What of a program's code will be mapped in place of it: of its file, its loader, and the C
    /// library that it most likely has, which is ours.
    pub fn images_of(&self, program: &Path) -> Vec<PathBuf> {
        let mut images = self.run.images_of(program);
        images.extend(own_libc().iter().flat_map(|path| self.run.images_of(path)));
        images
    }

    /// The kernel side looks at its calls, too, and tells of those that cannot be spliced.
    pub fn looked_at(&self, view: &mut AccountView, connection: &Arc<Connection>) {
        self.run.looked_at();
        self.clocks_compare(view);
        let connection = Arc::clone(connection);
        self.run.boundary_by(Box::new(move |tid, since| {
            let flags = match since {
                Since::Now => 0,
                Since::Execve => DEBOX_REQ_OPEN_COUNTED,
                Since::Undone => DEBOX_REQ_OPEN_COUNTED | DEBOX_REQ_RENAMES,
                Since::Cut => DEBOX_REQ_RENAMES,
                Since::Executes => DEBOX_REQ_EXECUTES,
            };
            match connection.boundary(tid, flags) {
                Ok(()) => true,
                Err(_) if !debox_splice::lives(tid) => false,
                Err(error) => {
                    crate::say(&format!(
                        "process {tid} goes on without being counted: {error}"
                    ));
                    false
                }
            }
        }));
    }

    fn clocks_compare(&self, view: &mut AccountView) {
        if let Some(details) = &mut view.details {
            let offset_ns = debox_splice::offset_ns(self.rate);
            details.control.ticks_set(self.rate, offset_ns);
        }
    }

    /// Comes along with the execve of a process that is held.
    pub fn follow(&self, pid: i32) -> Result<Following, Error> {
        if !self.follow {
            self.run.only(pid);
        }
        Ok(self.run.follow(pid)?)
    }

    /// Whether job control has stopped it where only we were told.
    pub fn stopped(&self, pid: i32) -> Option<i32> {
        self.run.stopped(pid)
    }

    /// `away_ns`: how long stamped calls were off the CPU, by key, as far as somebody knows.
    fn sweep(&self, away_ns: &dyn Fn(u32) -> u64) -> Result<(), Error> {
        let swept = self.run.sweep();
        let looked = swept.and_then(|()| self.run.samples_look(&|nr| away_ns(key_of(nr))));
        looked.map_err(Error::system("reading what was counted"))
    }

    /// What is to be done every [`SWEEP_EVERY`].
    pub fn look(&self, view: &mut AccountView) -> Result<(), Error> {
        self.clocks_compare(view);
        // Of unstamped ones that is their wall time there.
        self.sweep(&|key| {
            let row = view.row_sum(key);
            (row.blocked_ns.saturating_add(row.runq_ns)).saturating_sub(row.wall_ns)
        })
    }

    /// From how long on the kernel side looks at the end of calls `key`, for the whole run; those of
    /// 32-bit programs are not spliced.
    pub fn ends_show_always(&mut self, key: u32, from_ns: u64) {
        if let Some(floor) = self.floors.get_mut(key as usize) {
            *floor = from_ns.min(*floor);
            self.ends_show(key, u64::MAX);
        }
    }

    /// ... from now on.
    pub fn ends_show(&self, key: u32, from_ns: u64) {
        if let Some(floor) = self.floors.get(key as usize) {
            let from_ns = from_ns.min(*floor);
            let bucket = (from_ns < u64::MAX).then(|| hist_bucket(from_ns) as u16);
            self.run.door_set(key, bucket);
        }
    }

    /// Tells the sums of each call that was counted since the last look, and what the kernel
    /// side knows of it.
    pub fn sums(
        &self,
        view: &AccountView,
        looks: &mut Looks,
        each: &mut dyn FnMut(u32, &debox_row),
    ) {
        let Ok(counted) = self.run.counted() else {
            return;
        };
        for (nr, sums) in by_key(&counted) {
            let first = u64::from(self.began() && nr == libc::SYS_execve as u32);
            // Calls that the kernel side counts are of programs that were left.
            if sums.count | first == 0 && counted.boundary == 0 {
                continue;
            }
            let mut row = view.row_sum(nr);
            // What programs wrote may be anything.
            let add = |to: &mut u64, by: u64| *to = to.saturating_add(by);
            add(&mut row.count, sums.count.saturating_add(first));
            let seen = looks.seen.entry(nr).or_default();
            if *seen == row.count {
                continue;
            }
            *seen = row.count;
            add(&mut row.errors, sums.errors);
            add(&mut row.missing, sums.missing);
            add(&mut row.ones, sums.ones);
            add(&mut row.wall_ns, sums.wall_ns);
            add(&mut row.wall_ns, sums.estimated_ns);
            row.max_ns = row.max_ns.max(sums.max_ns);
            for (to, from) in row.hist.iter_mut().zip(&sums.hist) {
                add(to, *from);
            }
            each(nr, &row);
        }
        // Threads that are under way; those that end meanwhile need not know.
        let _ = self.run.doors_tell();
    }

    /// Whether a command was begun, and is not a process that ran.
    fn began(&self) -> bool {
        !self.attached.load(Ordering::Relaxed)
    }

    /// What we did as programs began.
    fn setup(&self) -> Option<SpliceSetup> {
        let counted = self.run.counted().ok()?;
        Some(SpliceSetup {
            programs: counted.setups,
            total_ns: counted.setup_ns,
            asked_ns: counted.asked_ns,
            files_copied: counted.copied,
        })
    }

    /// What has been counted so far of these processes and of all that came of them.
    pub fn counts(&self, pids: &[u32]) -> WrapCounts {
        self.run
            .counted()
            .map(|counted| counts(&counted, pids, self.began()))
            .unwrap_or_default()
    }

    /// The same at the end, and what was not counted.
    /// `audit`: the kernel side, where that has looked after it.
    pub fn finish(
        &self,
        pids: &[u32],
        audit: Option<&AccountView>,
        notes: &mut Vec<Note>,
    ) -> WrapCounts {
        match self.run.counted() {
            Ok(counted) => {
                let over = self.began();
                let audit = audit.map(|view| self::audit(&counted, view, over));
                notes.extend(audit.into_iter().flatten());
                notes.extend(left(&counted));
                notes.extend(self.sample.map(|one_in| sampled(&counted, one_in)));
                counts(&counted, pids, over)
            }
            Err(error) => {
                let text = format!("calls were not counted: {error}");
                notes.push(Note::new(NoteKind::SpliceLeft, 1, text));
                WrapCounts::default()
            }
        }
    }
}

/// Without a broker; `why`.
pub fn run(
    args: &RunArgs,
    target: Target<'_>,
    output: Output,
    why: Error,
    mut inherited: Inherited,
) -> Result<i32, Error> {
    let words = target.words();
    let Target::Command { program, .. } = target else {
        unreachable!("a command is what is run");
    };
    let signals = Signals::open()?;
    let splicer = Splicer::open(!args.capture.no_follow, args.capture.sample)?;
    if args.capture.details.call_site {
        splicer.run.places_tell();
    }
    let environment = Environment::inherited();
    let start = Start::new(&program, &environment, &inherited);
    let held = start.hold(Hold::Asleep, || Ok(()))?;
    let following = splicer.follow(held.pid())?;
    splicer.run.release();
    let started = held.start();
    // Nobody waits for it before.
    following.begun();
    let mut child = started?;
    let (since, start_ns) = (child.since, monotonic_ns());
    inherited.release_descriptors(output.uses_stdout());
    let until = args.capture.duration.map(|longest| since + longest);
    let ended = wait(&mut child, &signals, &splicer, until)?;

    let mut facts = RunFacts::new(RunKind::Run, Capture::Splice, words);
    facts.pids = vec![child.pid() as u32];
    facts.wall_ns = session::nanos(since.elapsed());
    facts.exit = Some(exit(ended));
    facts.notes = vec![not_measured(&why)];
    facts
        .notes
        .extend(session::not_followed(!args.capture.no_follow));
    let report = report_alone(&splicer, facts, start_ns, args.capture.details.call_site);
    if let Err(error) = output.write(report, &args.capture.report) {
        // The command's own status still matters more than ours.
        crate::complain(&error);
    }
    Ok(ended.end_as())
}

/// The same of processes that run.
pub fn attach(
    args: &AttachArgs,
    target: Target<'_>,
    output: Output,
    why: Error,
) -> Result<i32, Error> {
    let words = target.words();
    let Target::Processes(mut list) = target else {
        unreachable!("processes are named");
    };
    let signals = Signals::open()?;
    let splicer = Splicer::open(!args.capture.no_follow, args.capture.sample)?;
    splicer.attach_prepare(&list);
    let start_ns = monotonic_ns();
    if let Some(error) = splicer.attach(&list, &mut |_| {})? {
        return Err(error);
    }
    let since = Instant::now();
    let until = args.capture.duration.map(|longest| since + longest);
    loop {
        let next = Instant::now() + SWEEP_EVERY;
        let live = list.iter().filter(|process| !process.ended);
        let handles: Vec<_> = live.map(Process::as_fd).collect();
        if handles.is_empty() {
            break;
        }
        signals.wait(&handles, Some(until.map_or(next, |until| until.min(next))));
        let over = until.is_some_and(|until| Instant::now() >= until);
        if over || signals.wants_end().is_some() {
            break;
        }
        list.iter_mut().for_each(Process::look);
        splicer.sweep(&|_| 0)?;
    }
    let mut facts = RunFacts::new(RunKind::Attach, Capture::Splice, words);
    facts.pids = list.iter().map(|process| process.pid as u32).collect();
    facts.wall_ns = session::nanos(since.elapsed());
    facts.notes = vec![not_measured(&why)];
    let report = report_alone(&splicer, facts, start_ns, false);
    drop(splicer);
    output.write(report, &args.capture.report)?;
    Ok(0)
}

/// What programs have counted, and nobody else.
fn report_alone(splicer: &Splicer, mut facts: RunFacts, start_ns: u64, call_sites: bool) -> Report {
    facts.splice_setup = splicer.setup();
    let mut counts = splicer.finish(&facts.pids, None, &mut facts.notes);
    let places = call_sites.then(|| Places::read(&splicer.run, &mut counts, &mut facts.notes));
    let name = |_: usize, place: u64| places.as_ref().map_or_else(String::new, |p| p.name(place));
    session::report(
        &nothing(),
        Some(&counts),
        facts,
        call_sites.then_some(&name as &dyn Fn(usize, u64) -> String),
        &Extra::new(start_ns),
    )
}

/// Places in programs that calls came from, as those say.
struct Places {
    /// By number, from 1 on.
    all: Vec<UserPlace>,
}

struct UserPlace {
    code: UserCode,
    offset: u64,
    /// It is still what the program had mapped.
    same: bool,
}

impl Places {
    /// Adds to `counts`, which has all calls, where these came from.
    fn read(run: &Run, counts: &mut WrapCounts, notes: &mut Vec<Note>) -> Self {
        let mut all = Vec::new();
        // What was counted was read already, and it was told if that failed.
        let told = run.counted().map(|counted| counted.call_places);
        let debox_splice::Places {
            all: told,
            mut lost,
        } = told.unwrap_or_default();
        let mut told: Vec<_> = told.into_iter().collect();
        told.sort_by_key(|((nr, _), sums)| (*nr, std::cmp::Reverse(sums.wall_ns)));
        let mut numbers = HashMap::new();
        for ((nr, place), sums) in told {
            let number = *numbers.entry(place).or_insert_with(|| {
                all.push(UserPlace::of(run, place));
                all.len() as u64
            });
            let of = PlaceCounts {
                count: sums.count,
                errors: sums.errors,
                wall_ns: sums.wall_ns,
                max_ns: sums.max_ns,
            };
            if !counts.place_add(0, key_of(nr), number, &of) {
                lost = lost.saturating_add(sums.count);
            }
        }
        if lost > 0 {
            let text = format!(
                "{} at an unknown place: each program has room for 1024 pairs of call and call site",
                match lost {
                    1 => "1 call is".to_owned(),
                    lost => format!("{lost} calls are"),
                }
            );
            notes.push(Note::new(NoteKind::DetailsDropped, lost, text));
        }
        Self { all }
    }

    fn name(&self, number: u64) -> String {
        let place = (number.checked_sub(1)).and_then(|at| self.all.get(usize::try_from(at).ok()?));
        place.map_or_else(|| "(unknown)".into(), UserPlace::name)
    }
}

impl UserPlace {
    fn of(run: &Run, place: Place) -> Self {
        match place {
            Place::Memory { pid, address } => Self {
                code: UserCode::Memory {
                    pid: pid.unsigned_abs(),
                },
                offset: address,
                same: true,
            },
            Place::File {
                device,
                inode,
                offset,
            } => {
                let path = run.path_of(device, inode);
                let about = path.as_ref().and_then(|path| std::fs::metadata(path).ok());
                let same = about.is_some_and(|is| is.dev() == device && is.ino() == inode);
                let file = CodeFile {
                    path: path.unwrap_or_else(|| PathBuf::from("?")),
                    pid: None,
                    build_id: None,
                };
                Self {
                    code: UserCode::File(file),
                    offset,
                    same,
                }
            }
        }
    }

    /// As of the same place that the kernel side tells.
    fn name(&self) -> String {
        let frames = match self.same {
            true => session::names_of(&self.code, self.offset),
            false => Vec::new(),
        };
        match (frames.first(), &self.code) {
            (Some(frame), _) => frame.to_string(),
            (None, UserCode::File(file)) => {
                let name = file.path.file_name().unwrap_or_default();
                format!("{}+{:#x}", name.to_string_lossy(), self.offset)
            }
            (None, UserCode::Memory { .. }) => format!("[jit]+{:#x}", self.offset),
        }
    }
}

fn wait(
    child: &mut Child,
    signals: &Signals,
    splicer: &Splicer,
    until: Option<Instant>,
) -> Result<Ended, Error> {
    loop {
        let next = Instant::now() + SWEEP_EVERY;
        let at = until.map_or(next, |until| until.min(next));
        if let Some(ended) = child.wait(signals, true, Some(at))? {
            return Ok(ended);
        }
        if let Some(signal) = splicer.stopped(child.pid()) {
            child.stops(true, signal);
        }
        splicer.sweep(&|_| 0)?;
        if until.is_some_and(|until| Instant::now() >= until) {
            child.end(&[(libc::SIGTERM, END_WAIT), (libc::SIGKILL, END_WAIT)]);
        }
    }
}

/// The kernel side, of which nobody asked anything.
fn nothing() -> Snapshot {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Snapshot {
        cpus: debox_account_cpu::zeroed_slice(cpus),
        ..Snapshot::empty()
    }
}

/// As the kernel side numbers calls: the last are all beyond.
fn by_key(counted: &Counted) -> impl Iterator<Item = (u32, &Sums)> {
    (0u32..).map(key_of).zip(&counted.calls)
}

fn key_of(nr: u32) -> u32 {
    match nr + 1 == debox_splice::NRS {
        true => DEBOX_NR_UNKNOWN,
        false => nr,
    }
}

/// Under the first of them; `began`: with the execve that begins it all, which no code of the program's makes.
fn counts(counted: &Counted, pids: &[u32], began: bool) -> WrapCounts {
    let mut counts = WrapCounts::default();
    counts.jumped_out = counted.abandoned;
    let process = counts.process_add(WrapProcess {
        pid: pids.first().copied().unwrap_or_default(),
        measured: false,
        why: String::new(),
        threads_lost: counted.threads_lost,
        restricted: false,
    });
    for (nr, sums) in by_key(counted) {
        let first = u64::from(began && nr == libc::SYS_execve as u32);
        if sums.count | first == 0 {
            continue;
        }
        let mut row = debox_wrap_row::zeroed();
        row.used = 1 << 63 | u64::from(nr);
        row.count = sums.count.saturating_add(first);
        row.errors = sums.errors;
        row.wall_ns = sums.wall_ns.saturating_add(sums.estimated_ns);
        row.max_ns = sums.max_ns;
        row.hist
            .iter_mut()
            .zip(&sums.hist)
            .for_each(|(to, from)| *to = *from);
        counts.row_add(process, &row);
        counts.results_add(nr, sums.missing, sums.ones);
        counts.unstamped_add(nr, sums.unstamped);
    }
    counts
}

/// Of files with calls that are left; of the others is said how many they are.
const PLACES_NAMED: usize = 16;
/// What stops of programs that are being prepared are labelled.
const SETUP: &str = "splice-setup";

/// Whoever waits for a page of a patched copy waits for the file's code.
pub fn images_name(report: &mut Report) {
    let is_image = |object: &Object| {
        let name = object.name.as_deref().unwrap_or_default();
        object.kind == ObjectKind::File && name.contains(patched::FOLDER)
    };
    if report.run.capture != Capture::Splice || !report.objects.iter().any(is_image) {
        return;
    }
    let Ok(folder) = patched::folder(false) else {
        return;
    };
    for at in 0..report.objects.len() {
        let object = &report.objects[at];
        let image = object.name.as_deref().filter(|_| is_image(object));
        let image = image
            .map(Path::new)
            .filter(|path| path.parent() == Some(&folder));
        let Some(source) = image.and_then(debox_splice::image_source) else {
            continue;
        };
        let name = source.to_string_lossy().into_owned();
        let is_it = |object: &Object| {
            object.kind == ObjectKind::File && object.name.as_ref() == Some(&name)
        };
        let known = report.objects.iter().position(is_it);
        let object = &mut report.objects[at];
        object.text.clone_from(&name);
        object.inode = None;
        object.name = Some(name);
        if let Some(known) = known {
            let rows = report.by_object.iter_mut();
            (rows.filter(|row| row.object == Some(at))).for_each(|row| row.object = Some(known));
        }
    }
    let mut rows: Vec<ObjectRow> = Vec::new();
    for row in std::mem::take(&mut report.by_object) {
        let same =
            |of: &&mut ObjectRow| (&of.call, of.abi, of.object) == (&row.call, row.abi, row.object);
        match rows.iter_mut().find(same) {
            Some(of) => {
                of.count = of.count.saturating_add(row.count);
                of.total_ns = of.total_ns.saturating_add(row.total_ns);
                of.max_ns = of.max_ns.max(row.max_ns);
            }
            None => rows.push(row),
        }
    }
    rows.sort_by_key(|row| (std::cmp::Reverse(row.total_ns), row.object));
    report.by_object = rows;
}

/// Time in which programs of the run were stopped is DeBox's own part in it, unless they trace each
/// other, or somebody else came to trace them: then whose a stop was is told by the chains alone. What they
/// asked for and waited for is DeBox's in any case.
pub fn own_part_tell(report: &mut Report) {
    let traces = |row: &CallRow| row.name == "ptrace" && row.count > 0;
    let of_others = |link: &ChainLink| {
        let site = link.site.and_then(|site| report.sites.get(site));
        let by = (link.parent).and_then(|parent| report.chain_links.get(parent));
        // Not what the thread itself waited for then, as a CPU.
        let by_another = |by: &ChainLink| {
            use ChainKind::{Earlier, Ran, RanCall, RanUser, Sleep, Slept, Woken};
            let wakes = matches!(
                by.kind,
                Earlier | Ran | RanCall | RanUser | Sleep | Slept | Woken
            );
            wakes && !["", "debox", &link.comm].contains(&by.comm.as_str())
        };
        site.is_some_and(|site| site.label == "ptrace") && by.is_some_and(by_another)
    };
    if report.run.capture != Capture::Splice {
        return;
    }
    let traced = report.calls.iter().any(traces) || report.chain_links.iter().any(of_others);
    // Who executes waits for a futex only when it asks for somebody to come along. Whom we attach to, we
    // stop while it waits for others.
    let begins = report.run.kind == RunKind::Run;
    let executes = |call: &str| call.starts_with("execve");
    // Who may not map what it counts in stands in one before its first instruction; nobody counts that.
    let polls = |row: &CallRow| row.name == "ppoll" && row.count > 0;
    let stands = begins && !report.calls.iter().any(polls);
    let mut is_there = false;
    for row in &mut report.blocking {
        // Nobody else waits for a futex outside of his calls, or in one that is no futex.
        let asks = row.label == "futex" && row.call.as_deref().map_or(begins, executes);
        let stood = stands && row.label == "poll" && row.call.as_deref() == Some("ppoll");
        if row.label == "ptrace" && !traced || asks || stood {
            SETUP.clone_into(&mut row.label);
            is_there = true;
        }
    }
    // Whoever waits for a futex that we wake has asked for its code to be replaced. A large file's copy takes longer than
    // one such wait, which its time limit ends then: whose these are the rows tell, if none is the program's.
    let all_ask = is_there && !report.blocking.iter().any(|row| row.label == "futex");
    let asked = report.sites.len();
    let links = if begins { report.chain_links.len() } else { 0 };
    for at in 0..links {
        let link = &report.chain_links[at];
        let site = link.site.and_then(|site| report.sites.get(site));
        let by = link
            .parent
            .and_then(|parent| report.chain_links.get(parent));
        // A program may give its threads our name, and those are watched.
        let by_us = !link.by_own && by.is_some_and(|by| by.comm == "debox");
        let ours = match site.map(|site| site.label.as_str()) {
            Some("futex") => by_us || all_ask && link.comm != "debox",
            Some("poll") => by_us && stands,
            _ => false,
        };
        if ours {
            report.chain_links[at].site = Some(asked);
            is_there = true;
        }
    }
    if let Some(site) = report
        .sites
        .iter()
        .find(|site| begins && (site.label == "futex" || stands && site.label == "poll"))
        .cloned()
    {
        report.sites.push(site);
        SETUP.clone_into(&mut report.sites[asked].label);
    }
    for site in report
        .sites
        .iter_mut()
        .filter(|site| site.label == "ptrace" && !traced)
    {
        SETUP.clone_into(&mut site.label);
    }
    if is_there {
        report.labels.push(LabelMeaning {
            label: SETUP.to_owned(),
            meaning: Meaning {
                group: SETUP.to_owned(),
                kind: Kind::Tool,
                what: "DeBox, which replaces the system calls of a program that begins".to_owned(),
                advice: "DeBox's own work is to replace the system calls of each program that begins, and first \
                         to copy a file that it has not seen yet. A second run has less of that, \
                         --capture=boundary none."
                    .to_owned(),
            },
        });
    }
}

/// What calls waited for is not known.
fn not_measured(why: &Error) -> Note {
    let text = format!(
        "splice capture: counts, errors and wall times of all calls; what they waited for is not measured \
         ({})",
        debox_output::printable(&why.to_string())
    );
    Note::new(NoteKind::SpliceNotMeasured, 0, text)
}

/// Whether the kernel saw calls of spliced programs that these did not count; `over`: none is under way.
fn audit(counted: &Counted, view: &AccountView, over: bool) -> Vec<Note> {
    let (mut seen, mut untold, mut missed, mut differ) = (0u64, 0u64, Vec::new(), Vec::new());
    for (nr, sums) in by_key(counted) {
        let row = view.row_sum(nr);
        seen += row.told + row.untold;
        // All numbers beyond are one row.
        let one = nr != DEBOX_NR_UNKNOWN;
        let name = match session::call_name(nr, false) {
            Some(name) => name,
            None if one => format!("call {nr}"),
            None => "(unknown)".to_owned(),
        };
        if row.untold > 0 {
            untold += row.untold;
            missed.push(format!("{name} {}", row.untold));
        }
        // What it became has the first one's block no more; what does not return is not seen here.
        let returns = !name.starts_with("exec") && !name.starts_with("exit");
        // Those that never came back were seen to begin.
        let ended = row.told.saturating_sub(row.unfinished);
        if over && one && returns && (sums.count < ended || sums.count > row.told) {
            differ.push(format!("{name} {} times and not {ended}", sums.count));
        }
    }
    let text = match untold {
        0 => format!(
            "audit: of {seen} calls of spliced programs that the kernel saw, all were told by them"
        ),
        _ => format!(
            "audit: of {seen} calls of spliced programs that the kernel saw, {untold} were not told by them, and \
             are missing: {}",
            missed.join(", ")
        ),
    };
    let mut notes = vec![Note::new(NoteKind::SpliceAudit, untold, text)];
    if !differ.is_empty() {
        let text = format!("audit: counted otherwise than seen: {}", differ.join(", "));
        notes.push(Note::new(NoteKind::SpliceAudit, differ.len() as u64, text));
    }
    notes
}

/// How many calls were stamped.
fn sampled(counted: &Counted, one_in: u32) -> Note {
    let all = |of: fn(&Sums) -> u64| {
        let sums = counted.calls.iter().map(of);
        sums.fold(0, u64::saturating_add)
    };
    let (count, unstamped) = (all(|sums| sums.count), all(|sums| sums.unstamped));
    let text = match unstamped {
        0 => format!(
            "all calls were stamped (--sample {one_in} leaves stamps out of calls that take less than 1 µs, after the first 1,000; recordings, and --on of the calls that it is about, want all of them)"
        ),
        _ => format!(
            "{} of {} calls were stamped (--sample {one_in}): times of rows with ~ are estimates",
            count_text(count.saturating_sub(unstamped)),
            count_text(count)
        ),
    };
    Note::new(NoteKind::SpliceSampled, unstamped, text)
}

/// What is not in it, and why.
fn left(counted: &Counted) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut left = |count: u64, text: String| {
        if count > 0 {
            notes.push(Note::new(NoteKind::SpliceLeft, count, text));
        }
    };
    let n = |count: u64, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    let reasons = |all: &[Reason]| {
        let all: Vec<String> = all.iter().map(Reason::to_string).collect();
        debox_output::printable(&all.join("; "))
    };
    left(
        counted.programs_left,
        format!(
            "calls of {} are missing: {}",
            n(counted.programs_left, "program", "programs"),
            reasons(&counted.why)
        ),
    );
    left(
        counted.files_left,
        format!(
            "calls out of {} may be missing: code could not be replaced{}",
            n(counted.files_left, "mapped file", "mapped files"),
            match &counted.files[..] {
                [] => String::new(),
                files => format!(" ({})", debox_output::printable(&files.join(", "))),
            }
        ),
    );
    left(
        counted.threads_lost,
        format!(
            "calls of {} are not counted: more threads than a program's area holds (1,023)",
            n(counted.threads_lost, "thread", "threads")
        ),
    );
    left(
        counted.late_code,
        format!(
            "{} of code from no file: system calls in it are missing (just-in-time compilers write none, usually)",
            n(counted.late_code, "piece", "pieces")
        ),
    );
    left(
        counted.undone,
        format!(
            "{} went on without: {UNDONE}",
            n(counted.undone, "program", "programs")
        ),
    );
    left(
        counted.untimed,
        format!("{} without a time", n(counted.untimed, "call", "calls")),
    );
    if counted.boundary > 0 {
        let text = format!(
            "calls of {} were taken at the kernel's boundary, where all processes pay for it: {}",
            n(counted.boundary, "program", "programs"),
            reasons(&counted.boundary_why)
        );
        notes.push(Note::new(NoteKind::SpliceBoundary, counted.boundary, text));
    }
    if !counted.places.is_empty() {
        // The most first.
        let mut places: Vec<_> = counted.places.iter().collect();
        places.sort_by_key(|(_, (left, _))| std::cmp::Reverse(*left));
        let more = places.len().saturating_sub(PLACES_NAMED);
        places.truncate(PLACES_NAMED);
        let mut names: Vec<String> = (places.iter())
            .map(|(path, (left, sites))| format!("{left} of {sites} in {path}"))
            .collect();
        names.extend((more > 0).then(|| format!("{more} more files")));
        let text = format!(
            "not counted is what is called from places whose code has no room for a jump: {} (--audit shows whether there is any)",
            debox_output::printable(&names.join(", "))
        );
        notes.push(Note::new(
            NoteKind::SplicePlaces,
            counted.places.len() as u64,
            text,
        ));
    }
    notes
}
