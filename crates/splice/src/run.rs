// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a command watched from its first instruction, and all that it starts?
//!
//! A thread of the command's that is about to execve asks ([`Asked::Exec`]) by the file that all of
//! the run's programs share; one of our threads comes along by ptrace, and where the new program
//! stands at its first instruction it gets the runtime and patched copies of its own code and of its
//! loader's, before any of it has run. Then it is let go: what it maps later it tells itself.
//! Nobody is traced but between these two points.

use crate::begin::{Beginning, OnItsWay};
use crate::image::Side;
use crate::images::{Images, Known};
use crate::moved::Rights;
use crate::places::Places;
use crate::remote::Sent;
use crate::rows::Rows;
use crate::sample::{Number, Sampling, Stamped, Told, long_ns};
use crate::state::{NRS, area, block, row, row_of, run, sample, sample_of};
use crate::threads::Threads;
use crate::tracee::{self, Caller, Stop, Stopped};
use crate::{Error, clock, maps, proc, remote, spare, state};
use debox_abi::hist_bucket;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// More programs at a time are not spliced, and counted.
const AREAS: u64 = 1024;
/// Threads of ours that are there without being needed.
const IDLE: u32 = 2;

const REQUEST_NONE: u32 = 0;
const REQUEST_ASKED: u32 = 2;
const REQUEST_ANSWERED: u32 = 3;
const REQUEST_LEFT: u32 = 4;

/// An answer: the kernel side tells of its calls.
const TOLD: i32 = 1;
/// `off` of an area: it stopped, and nobody tells.
const OFF: u32 = 1;

enum Asked {
    Exec,
    Image(Side),
    Undo,
    LetGo,
    Cut,
    Sent,
}

impl Asked {
    fn of(kind: u32) -> Option<Self> {
        Some(match kind {
            1 => Self::Exec,
            2 => Self::Image(Side::Below),
            6 => Self::Image(Side::Above),
            3 => Self::Undo,
            4 => Self::LetGo,
            5 => Self::Cut,
            7 => Self::Sent,
            _ => return None,
        })
    }
}

/// Whose execve one of our threads comes along with.
#[derive(Clone, Copy)]
enum Asker {
    /// The command's own, which begins as it is let go.
    Command,
    /// A program's, by its request; `began`: as [`state::since`] has it.
    Program { slot: usize, began: u32, by: By },
}

impl Asker {
    fn slot(self) -> Option<usize> {
        match self {
            Self::Command => None,
            Self::Program { slot, .. } => Some(slot),
        }
    }

    /// Whether a process that has ended (0: not known which) is none that it may be.
    fn is_not(self, pid: i32) -> bool {
        match self {
            Self::Command => false,
            Self::Program { by, .. } => {
                pid != 0 && pid != by.tid && proc::process(by.tid) != Some(pid)
            }
        }
    }
}

/// Who asks: a thread, by our number for it.
#[derive(Clone, Copy)]
struct By {
    tid: i32,
    /// It is in another PID namespace than we are, where it has another number.
    below: bool,
}

/// Sums of one call, over threads and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub count: u64,
    pub wall_ns: u64,
    pub max_ns: u64,
    pub errors: u64,
    /// Of these, ENOENT.
    pub missing: u64,
    /// That returned 1.
    pub ones: u64,
    /// Of `count`: without stamps; neither in `wall_ns`, `max_ns` nor `hist`,
    pub unstamped: u64,
    /// but here, by what the others took.
    pub estimated_ns: u64,
    /// As `debox_bucket_` has them.
    pub hist: Vec<u64>,
}

/// What a run has counted.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// By number of the call; the last one: all numbers beyond.
    pub calls: Vec<Sums>,
    /// Programs that were spliced from their first instruction.
    pub programs: u64,
    /// Programs that were not, and files whose code was not.
    pub programs_left: u64,
    /// Why, of the first ones.
    pub why: Vec<Reason>,
    pub files_left: u64,
    /// Some of these.
    pub files: Vec<String>,
    /// Files with call instructions that have no room for a jump: how many, of how many.
    pub places: BTreeMap<String, (usize, usize)>,
    /// Executable memory that came from no file.
    pub late_code: u64,
    /// Threads that found no block.
    pub threads_lost: u64,
    /// Calls without their times, and those that a handler jumped out of.
    pub untimed: u64,
    /// Execves that have succeeded and have their time: who came along has measured that.
    pub executed: u64,
    /// How many programs that had been executed stood still until they were let go, and for how long in all.
    pub setups: u64,
    pub setup_ns: u64,
    /// How long threads waited for what they asked for besides, in all: an image of a library, their own code.
    pub asked_ns: u64,
    /// Of files that had not been seen yet, copies that were made.
    pub copied: u64,
    pub abandoned: u64,
    /// Programs that stopped it: they do what splicing cannot go with.
    pub undone: u64,
    /// Programs of whose calls the kernel side tells instead, and why.
    pub boundary: u64,
    pub boundary_why: Vec<Reason>,
    /// Where calls came from, if that was asked for.
    pub call_places: Places,
}

/// What puts a program's own code back: its memory, and the files of which it has images mapped.
pub(crate) struct Undo<'a> {
    images: &'a Images,
    tid: i32,
    memory: File,
    files: HashMap<(u64, u64), Arc<Known>>,
}

impl Undo<'_> {
    /// Its jumps away, byte by byte as they were, where they lie now: a library that was closed is gone, and
    /// something else may lie there.
    pub(crate) fn code_back(&self) -> io::Result<()> {
        for mapping in maps::of(self.tid)? {
            let Some((device, inode, _)) = self.images.told_by(&mapping) else {
                continue;
            };
            let known = self.files.get(&(device, inode)).ok_or_else(image_gone)?;
            let Some(bias) = known.bias_of_piece(&mapping) else {
                continue;
            };
            for (address, bytes) in known.table.replaced() {
                let address = bias.wrapping_add(address);
                let end = address.saturating_add(bytes.len() as u64);
                if mapping.start <= address && end <= mapping.end {
                    self.memory.write_all_at(bytes, address)?;
                }
            }
        }
        Ok(())
    }
}

fn image_gone() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "what its code was replaced by is gone",
    )
}

/// From when on the kernel side is to tell of the calls of a program, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Calls that it makes from now on.
    Now,
    /// It has just been executed.
    Execve,
    /// The thread is about to execute it.
    Executes,
    /// Its code is about to be as it was; from when the thread gives itself a name, and of its
    /// other threads from the first call that is not told of.
    Undone,
    /// ... and what is counted of the others is seen by nobody.
    Cut,
}

/// Whether it does: of the program of a thread, by our number for it.
pub type Boundary = Box<dyn Fn(i32, Since) -> bool + Send + Sync>;

impl Counted {
    fn new() -> Self {
        Self {
            calls: vec![
                Sums {
                    hist: vec![0; state::BUCKETS as usize],
                    ..Sums::default()
                };
                NRS as usize
            ],
            ..Self::default()
        }
    }
}

/// Calls behind which memory may be gone, or not be writable any more.
const UNMAPS: [i64; 12] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_brk,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_remap_file_pages,
    libc::SYS_pkey_mprotect,
    libc::SYS_process_madvise,
    libc::SYS_ftruncate,
];

const UNFOLLOWED: &str = "a set-user-id program, one with capabilities, one that gave up rights (another \
                          user, a filter of its calls), or one of too many at once";
const RIGHTS: &str = "it gave up rights (another user, fewer capabilities, a filter of its calls)";
/// Why a program's own code was put back.
pub const UNDONE: &str = "it uses what splicing cannot go with (a filter that looks at where calls are made, the GS \
                          register, a forbidden time stamp counter, code of its own that it changes), or none of its code's copies could be had";
pub(crate) const KNOWS_ITS_CALLS: &str = "it compares its own code with where calls are interrupted (valgrind), or its C library \
                               has no place to tell an unwinder of other code (glibc before 2.35, musl), or none \
                               that is known (a static program without symbols), or nothing says where its functions \
                               are, or a call that may make a thread has no room for a jump";
const NO_IMAGE: &str = "it has mapped a file in the place of whose code nothing could be mapped (no copy of it \
                        could be made or opened, there was no answer in time, or there is no room beside it)";
pub(crate) const SETS_GS: &str = "it sets the GS register itself";
const NOT_OURS: &str = "not known as a process of this run, or one that may not be read";
const BELOW: &str = "it is in a PID namespace of its own";
pub(crate) const OTHER_RIGHTS: &str =
    "it has other rights than those that it would share its counters with";
/// How often it is looked who in another PID namespace asks, a millisecond apart: it is perhaps on its way into its wait.
const LOOKS_BELOW: usize = 50;
const UNTRUE: &str = "what they have counted cannot be true: they wrote into their own counters";
/// As many as there are areas.
const TOO_MANY: &str = "1,024 programs are counted at this time already";
pub(crate) const NOT_BEGUN: &str =
    "another user's, or in another place: it cannot open what is counted in";

/// Of what others than our own user have us copy.
const OTHERS_BYTES: u64 = 4 << 30;

/// Whether a thread's process is of our own user.
fn is_ours(tid: i32) -> bool {
    // SAFETY: no arguments, cannot fail.
    proc::user(tid) == Some(unsafe { libc::geteuid() })
}

/// What a program is answered whose file has none.
fn no_image(error: &Error) -> i32 {
    match error {
        Error::NotElf(_) => -libc::ENOEXEC,
        _ => -libc::EIO,
    }
}

fn more(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}

const WHY_MOST: usize = 16;
const NAMES_MOST: usize = 4;
const PLACES_MOST: usize = 1024;

/// Why programs are not spliced, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason {
    why: String,
    /// The first of them by their files' names, without those of which none is known.
    programs: BTreeSet<String>,
    more: bool,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)?;
        if self.programs.is_empty() {
            return Ok(());
        }
        let programs: Vec<&str> = self.programs.iter().map(String::as_str).collect();
        let more = if self.more { ", ..." } else { "" };
        write!(f, " ({}{more})", programs.join(", "))
    }
}

fn first_add(all: &mut Vec<String>, text: String) {
    if all.len() < WHY_MOST && !all.contains(&text) {
        all.push(text);
    }
}

fn why_add(all: &mut Vec<Reason>, why: String, program: Option<String>) {
    let at = match all.iter().position(|reason| reason.why == why) {
        Some(at) => at,
        None if all.len() == WHY_MOST => return,
        None => {
            all.push(Reason {
                why,
                ..Reason::default()
            });
            all.len() - 1
        }
    };
    let reason = &mut all[at];
    if let Some(program) = program.filter(|name| !reason.programs.contains(name)) {
        match reason.programs.len() < NAMES_MOST {
            true => _ = reason.programs.insert(program),
            false => reason.more = true,
        }
    }
}

impl Counted {
    pub(crate) fn left(&mut self, why: String, program: Option<String>) {
        self.programs_left += 1;
        why_add(&mut self.why, why, program);
    }

    pub(crate) fn boundary(&mut self, why: String, program: Option<String>) {
        self.boundary += 1;
        why_add(&mut self.boundary_why, why, program);
    }
}

/// An area of a program, and the process that it was made for, as we number it.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    pub(crate) index: u32,
    pub(crate) pid: i32,
    /// What goes on in it was counted as a program elsewhere; it comes by itself, or not.
    pub(crate) moved: bool,
}

/// A look at what all processes have mapped.
#[derive(Default)]
struct Seen {
    /// Files by their inodes, and areas of them, that somebody has mapped, as of this sweep; None: it has not been looked.
    mapped: Option<HashSet<(u64, u32)>>,
    began: Option<Instant>,
    cost: Duration,
    /// Hardly any area is free.
    few: bool,
}

/// Of which area a place in a run's file is; u32::MAX: the page that all have.
fn area_at(offset: u64) -> u32 {
    (offset.checked_sub(run::BYTES)).map_or(u32::MAX, |at| (at / area::BYTES) as u32)
}

/// At most so often, and at most this part of the time.
const SCAN_EVERY: Duration = Duration::from_secs(1);
const SCAN_COST_TIMES: u32 = 50;

pub(crate) struct Areas {
    free: Vec<u32>,
    pub(crate) used: Vec<Used>,
    pub(crate) beginning: Vec<Beginning>,
    samples: Samples,
    /// Threads that could not be traced as they were about to execute something.
    refused: HashSet<i32>,
}

/// Of which calls not all are stamped: by area and number.
type Samples = HashMap<u32, Vec<Number>>;

/// What a run's files have in common.
pub(crate) struct Common {
    /// ns of a tick, 32 bits after the point.
    rate: u64,
    images: Images,
    runtime: PathBuf,
    runtime_bytes: u64,
    /// What makes a program map it, and what of it splices one that runs.
    pub(crate) map_code: Vec<u8>,
    call_code: Vec<u8>,
    boundary: OnceLock<Boundary>,
    only: OnceLock<i32>,
    sampling: OnceLock<Sampling>,
    /// It is not looked before what is to be stamped; that is to cost little.
    sampled_next: Mutex<Option<Instant>>,
    pid_namespace: Option<PathBuf>,
    began: Instant,
    /// What a file begins with, but for what is about calls.
    pub(crate) head: Vec<u8>,
    seen: Mutex<Seen>,
    /// Somebody could not begin.
    pub(crate) fails: AtomicBool,
    /// Of programs that have ended, and what is told by others than programs.
    counted: Mutex<Counted>,
    /// Of programs that gave up rights.
    moved: Mutex<Vec<Arc<Run>>>,
}

/// What a program has to be allowed that is executed, to share a run's file.
enum Whose {
    /// As the command, whose ids are ours: capabilities, and the user namespace that they are of.
    Command(Option<([u32; 4], PathBuf)>),
    /// What whoever executes may do, who had that file alone as he gave up rights.
    Anybody,
    /// The same, as of then: he shares with those who may do just that.
    Those(String),
}

/// Programs that share a file with us and with each other, in which they count.
pub struct Run {
    pub(crate) common: Arc<Common>,
    /// It is the one that the command, or whom was attached to, is in.
    first: bool,
    file: File,
    /// Its major and minor number, and inode.
    device: [u32; 2],
    inode: u64,
    page: *mut u8,
    /// When the command was let go, in ticks.
    released: AtomicU64,
    areas: Mutex<Areas>,
    idle: AtomicU32,
    /// Of each request: the thread of ours that came along, 0: nobody; and whether to let go.
    with: [AtomicI32; run::REQUESTS],
    /// Whose requests they are, by our numbers; 0: not known.
    askers: [AtomicI32; run::REQUESTS],
    let_go: [AtomicBool; run::REQUESTS],
    /// It was ended.
    over: AtomicBool,
    /// Of the first process that was attached to: whoever shares the run's memory could make another one
    /// do what it likes.
    rights: OnceLock<String>,
    /// The same of programs that are executed.
    whose: Mutex<Whose>,
    /// Who has been stopped by job control last, on its way into an execve, and, below it, by what.
    stopped: AtomicU64,
}

// SAFETY: `page` is a shared mapping that lives as long as this; it is accessed by atomics, or
// before any thread is there.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Drop for Run {
    fn drop(&mut self) {
        if self.first {
            self.moved().drain(..).for_each(|run| run.end());
        }
        // What goes on does not wait for an answer.
        self.close();
        // SAFETY: it was mapped in `new`, of this size.
        unsafe { libc::munmap(self.page.cast(), run::BYTES as usize) };
    }
}

extern "C" fn nothing(_: libc::c_int) {}

/// What interrupts a wait of a thread of ours: a signal that does nothing.
fn attention() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

impl Run {
    /// `images`: a folder for patched code; `runtime`: `debox-splice.bin`; `rate`: ns of a tick of
    /// the time stamp counter, 32 bits after the point.
    ///
    /// # Errors
    /// When the folder is not ours, or the runtime is not there.
    pub fn new(images: &Path, runtime: &Path, rate: u64) -> Result<Arc<Self>, Error> {
        let failed = |what: &str, error: io::Error| Error::Run(format!("{what}: {error}"));
        let images = Images::new(images)?;
        let code = std::fs::read(runtime).map_err(|e| failed(&runtime.display().to_string(), e))?;
        let part = |at: u64, bytes: u64| {
            let part = code.get(at as usize..(at + bytes) as usize);
            part.map(<[u8]>::to_vec)
                .ok_or(Error::Damaged("the runtime is cut off"))
        };
        let map_code = part(state::MAP, state::MAP_BYTES)?;
        let call_code = part(state::CALL, state::CALL_BYTES)?;
        let mut head = vec![0u8; run::BYTES as usize];
        let folder = std::os::unix::ffi::OsStrExt::as_bytes(images.folder().as_os_str());
        if folder.len() >= run::IMAGES_BYTES as usize {
            return Err(Error::Run(format!(
                "{}: too long a path",
                images.folder().display()
            )));
        }
        // SAFETY: no arguments, cannot fail.
        let user = unsafe { libc::geteuid() };
        let mut put = |at: u64, bytes: &[u8]| {
            head[at as usize..][..bytes.len()].copy_from_slice(bytes);
        };
        put(0, &state::VERSION.to_le_bytes());
        put(run::WATCHER, &std::process::id().to_le_bytes());
        put(run::PRIVILEGED, &u32::from(user == 0).to_le_bytes());
        put(run::RATE, &rate.to_le_bytes());
        put(run::IMAGES, folder);
        put(run::USER, &user.to_le_bytes());
        let none = [state::DOOR_NONE; NRS as usize].map(u16::to_le_bytes);
        put(run::DOORS, &none.concat());
        let action = libc::sigaction {
            sa_sigaction: nothing as extern "C" fn(libc::c_int) as usize,
            // SAFETY: all zeros are an empty mask.
            sa_mask: unsafe { std::mem::zeroed() },
            sa_flags: 0,
            sa_restorer: None,
        };
        // SAFETY: a handler that does nothing, without SA_RESTART.
        unsafe { libc::sigaction(attention(), &action, std::ptr::null_mut()) };
        let common = Common {
            rate,
            images,
            runtime: runtime.to_owned(),
            runtime_bytes: code.len() as u64,
            map_code,
            call_code,
            boundary: OnceLock::new(),
            only: OnceLock::new(),
            sampling: OnceLock::new(),
            sampled_next: Mutex::new(None),
            pid_namespace: proc::pid_namespace(std::process::id() as i32),
            began: Instant::now(),
            head: head.clone(),
            fails: AtomicBool::new(false),
            seen: Mutex::default(),
            counted: Mutex::new(Counted::new()),
            moved: Mutex::default(),
        };
        Self::with(Arc::new(common), true, &head)
    }

    /// `head`: what its file begins with.
    pub(crate) fn with(common: Arc<Common>, first: bool, head: &[u8]) -> Result<Arc<Self>, Error> {
        let failed = |what: &str, error: io::Error| Error::Run(format!("{what}: {error}"));
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with 0.
        let fd = unsafe { libc::memfd_create(c"debox-splice".as_ptr(), flags) };
        if fd < 0 {
            return Err(failed("memfd_create", io::Error::last_os_error()));
        }
        // SAFETY: nobody else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(run::BYTES + AREAS * area::BYTES)
            .map_err(|e| failed("ftruncate", e))?;
        // What its programs cut off would be missing under us, too.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: a file of ours, and numbers.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } < 0 {
            return Err(failed("fcntl", io::Error::last_os_error()));
        }
        // SAFETY: a new mapping of a file of ours.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                run::BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(failed("mmap", io::Error::last_os_error()));
        }
        file.write_all_at(head, 0).map_err(|e| failed("write", e))?;
        let about = file.metadata().map_err(|e| failed("fstat", e))?;
        let (major, minor) = (libc::major(about.dev()), libc::minor(about.dev()));
        let run = Arc::new(Self {
            common,
            first,
            file,
            device: [major, minor],
            inode: about.ino(),
            page: page.cast(),
            released: AtomicU64::new(0),
            areas: Mutex::new(Areas {
                free: (0..AREAS as u32).rev().collect(),
                used: Vec::new(),
                beginning: Vec::new(),
                samples: Samples::new(),
                refused: HashSet::new(),
            }),
            idle: AtomicU32::new(0),
            with: [const { AtomicI32::new(0) }; run::REQUESTS],
            askers: [const { AtomicI32::new(0) }; run::REQUESTS],
            let_go: [const { AtomicBool::new(false) }; run::REQUESTS],
            over: AtomicBool::new(false),
            rights: OnceLock::new(),
            whose: Mutex::new(match first {
                true => Whose::Command(None),
                false => Whose::Anybody,
            }),
            stopped: AtomicU64::new(0),
        });
        for _ in 0..IDLE {
            run.worker();
        }
        Ok(run)
    }

    pub(crate) fn images(&self) -> &Images {
        &self.common.images
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn runtime(&self) -> &Path {
        &self.common.runtime
    }

    pub(crate) fn runtime_inode(&self) -> Option<u64> {
        std::fs::metadata(self.runtime()).map(|is| is.ino()).ok()
    }

    pub(crate) fn runtime_bytes(&self) -> u64 {
        self.common.runtime_bytes
    }

    pub(crate) fn call_code(&self) -> &[u8] {
        &self.common.call_code
    }

    /// Where the run's file is opened, by who may.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    pub(crate) fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: within the page, aligned, and shared memory that is only accessed so.
        unsafe { &*self.page.add(offset as usize).cast::<AtomicU32>() }
    }

    fn request(&self, slot: usize, field: u64) -> &AtomicU32 {
        self.word(run::REQUEST + slot as u64 * run::REQUEST_BYTES + field)
    }

    fn request_long(&self, slot: usize, field: u64) -> u64 {
        let half = |at| u64::from(self.request(slot, at).load(Ordering::Relaxed));
        half(field) | half(field + 4) << 32
    }

    fn futex_wait(word: &AtomicU32, value: u32, most: Duration) {
        let most = libc::timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: a live word and time.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                value,
                &most,
                0,
                0,
            )
        };
    }

    fn futex_wake(word: &AtomicU32) {
        // SAFETY: a live word.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
                0,
                0,
                0,
            )
        };
    }

    /// Whether it is still waited for.
    fn answer(&self, slot: usize, answer: i32) -> bool {
        self.request(slot, run::ANSWER)
            .store(answer as u32, Ordering::Relaxed);
        let state = self.request(slot, 0);
        let waits = state.compare_exchange(
            REQUEST_ASKED,
            REQUEST_ANSWERED,
            Ordering::Release,
            Ordering::Relaxed,
        );
        Self::futex_wake(state);
        waits.is_ok()
    }

    /// A thread of ours has something to do: another one waits for more.
    fn is_busy(self: &Arc<Self>) {
        if self.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.worker();
        }
    }

    /// Whether a thread of ours that has nothing to do is one too many.
    fn is_surplus(&self) -> bool {
        let surplus = self.idle.fetch_add(1, Ordering::SeqCst) >= IDLE * 2;
        if surplus {
            self.idle.fetch_sub(1, Ordering::SeqCst);
            // Who has asked by the place that was just set free was not seen to by others.
            self.ring();
        }
        surplus
    }

    /// A thread that answers requests while the run is there.
    fn worker(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.idle.fetch_add(1, Ordering::Relaxed);
        thread::spawn(move || serve(&weak));
    }

    /// Comes along with the next execve of a child of ours, which waits for something.
    ///
    /// # Errors
    /// When it cannot be traced.
    pub fn follow(self: &Arc<Self>, tid: i32) -> Result<Following, Error> {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let run = Arc::clone(self);
        thread::spawn(move || {
            let seized = tracee::seize(tid);
            let go_on = seized.is_ok();
            let _ = tell.send(seized);
            if go_on {
                run.come_along(Asker::Command, false);
            }
            drop(end);
        });
        let seized = told
            .recv()
            .unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::ESRCH)));
        seized.map_err(|e| Error::Run(format!("process {tid} cannot be traced: {e}")))?;
        Ok(Following { ended })
    }

    /// The command is let go; from now on its execve lasts.
    pub fn release(&self) {
        self.released.store(clock::ticks(), Ordering::Release);
    }

    /// Up to the new program's first instruction, or until the execve has failed. `asked_to_stop`: nobody waits for
    /// us, and it is let go as soon as it stands.
    fn come_along(&self, asker: Asker, mut asked_to_stop: bool) {
        let slot = asker.slot();
        // While it executes, which makes nobody come into another one. (Who changes it in between, by code that nobody
        // knows of, has the file mapped already.)
        let mut users = match asker {
            Asker::Program { by, .. } => proc::user_namespace(by.tid),
            Asker::Command => None,
        };
        loop {
            // What fails here fails since it was killed: then its end is next, and has to be
            // waited for, else nobody else is told of it.
            let mut stop = tracee::wait();
            // Another one of ours, which its parent has not waited for yet.
            if matches!(stop, Ok(Stop::Gone(pid)) if asker.is_not(pid)) {
                thread::sleep(Duration::from_millis(1));
                stop = Ok(Stop::Interrupted);
            }
            let let_go = match stop {
                Err(_) | Ok(Stop::Gone(_)) => true,
                Ok(Stop::Exec(pid)) => self.begin(pid, asker, users.take()),
                Ok(Stop::Signal(pid, 0)) if asked_to_stop => tracee::detach(pid, 0).is_ok(),
                Ok(Stop::Signal(pid, signal)) => {
                    let _ = tracee::go_on(pid, signal);
                    false
                }
                Ok(Stop::Call(pid)) => {
                    let _ = tracee::go_on(pid, 0);
                    false
                }
                Ok(Stop::Group(pid, signal)) => {
                    let _ = tracee::listen(pid);
                    // No wait of ours for a child hears of it.
                    let told = u64::from(pid as u32) << 32 | u64::from(signal as u32);
                    self.stopped.store(told, Ordering::Release);
                    false
                }
                Ok(Stop::Interrupted) => {
                    let asked =
                        slot.filter(|slot| self.let_go[*slot].swap(false, Ordering::SeqCst));
                    if let (Some(_), Asker::Program { by, .. }) = (asked, asker) {
                        asked_to_stop = true;
                        let _ = tracee::interrupt(by.tid);
                    }
                    false
                }
            };
            if let_go {
                break;
            }
        }
        if let Some(slot) = slot {
            self.request_free(slot, REQUEST_LEFT);
            self.request_free(slot, REQUEST_ANSWERED);
            self.with[slot].store(0, Ordering::SeqCst);
        }
    }

    /// The program stands at its first instruction. Whether it goes on by itself.
    fn begin(&self, pid: i32, asker: Asker, users: Option<PathBuf>) -> bool {
        if !self.counts(pid) {
            return tracee::detach(pid, 0).is_ok();
        }
        let stopped = clock::ticks();
        let program = Stopped::new(pid);
        let by = (program.as_ref()).map_or(libc::SYS_execve as u64, |is| is.registers.orig_rax);
        let told = Cell::new(false);
        let executed = || {
            if !told.replace(true) {
                self.executed(by, asker, stopped);
            }
        };
        let same = match self.rights.get() {
            Some(_) => self.has_rights(pid),
            None => self.is_whose(pid, asker.slot(), users),
        };
        let below = matches!(asker, Asker::Program { by, .. } if by.below);
        let prepared = match same {
            // It would have other numbers there than the ones by which its counters are known, and mostly other files.
            true if below => Err(Error::Run(BELOW.into())),
            true => self.prepare(program, &executed),
            false => Err(Error::Run(OTHER_RIGHTS.into())),
        };
        match prepared {
            Ok(()) => true,
            Err(error) => {
                let program = proc::program(pid);
                let told = self.boundary(pid, Since::Execve);
                executed();
                // It may end at once, and all is added up then.
                let mut ended = self.ended();
                let let_go = tracee::detach(pid, 0).is_ok();
                // One that was killed meanwhile has made no call that is missing.
                match (let_go, told) {
                    (false, _) => {}
                    (true, true) => ended.boundary(error.to_string(), program),
                    (true, false) => ended.left(error.to_string(), program),
                }
                let_go
            }
        }
    }

    /// An execve, by this call, has succeeded, and its thread is about to be let go: its program has counted it, and
    /// cannot tell how long it took. `stopped`: since when it has stood still.
    fn executed(&self, by: u64, asker: Asker, stopped: u64) {
        let now = clock::ticks();
        let counted = &mut *self.ended();
        counted.setups += 1;
        more(
            &mut counted.setup_ns,
            clock::ns(now.saturating_sub(stopped), self.common.rate),
        );
        // It knows better.
        if self.word(run::LOOKED_AT).load(Ordering::Relaxed) != 0 {
            return;
        }
        let took = match (asker, self.released.load(Ordering::Acquire)) {
            // Nobody has said when.
            (Asker::Command, 0) => return,
            (Asker::Command, released) => now.saturating_sub(released),
            (Asker::Program { began, .. }, _) => state::since(began, now),
        };
        let ns = clock::ns(took, self.common.rate);
        let nr = by.min(u64::from(NRS) - 1) as usize;
        counted.executed += 1;
        let sums = &mut counted.calls[nr];
        more(&mut sums.wall_ns, ns);
        sums.max_ns = sums.max_ns.max(ns);
        more(&mut sums.hist[hist_bucket(ns)], 1);
    }

    /// Whether that process has been stopped by job control on its way into an execve, where whoever waits for a
    /// child is not told: by which signal. Once.
    pub fn stopped(&self, pid: i32) -> Option<i32> {
        let moved = self.moved().clone();
        self.files(&moved).find_map(|run| run.stopped_last(pid))
    }

    fn stopped_last(&self, pid: i32) -> Option<i32> {
        let told = self.stopped.load(Ordering::Acquire);
        if told >> 32 != u64::from(pid as u32) {
            return None;
        }
        let taken = self
            .stopped
            .compare_exchange(told, 0, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().map(|told| told as u32 as i32)
    }

    /// Of this process alone it is told, and not of those that it makes; before it begins.
    pub fn only(&self, pid: i32) {
        self.word(run::ONLY).store(pid as u32, Ordering::Relaxed);
        let _ = self.common.only.set(pid);
    }

    fn counts(&self, pid: i32) -> bool {
        self.common.only.get().is_none_or(|only| *only == pid)
    }

    /// Who is asked when a program cannot be spliced, or no more.
    pub fn boundary_by(&self, ask: Boundary) {
        let _ = self.common.boundary.set(ask);
    }

    pub(crate) fn boundary(&self, tid: i32, since: Since) -> bool {
        self.common
            .boundary
            .get()
            .is_some_and(|ask| ask(tid, since))
    }

    /// From when it renames itself on.
    fn boundary_soon(&self, tid: i32, since: Since, why: &str) -> i32 {
        if !self.boundary(tid, since) {
            return 0;
        }
        self.ended().boundary(why.to_owned(), proc::program(tid));
        TOLD
    }

    pub(crate) fn ended(&self) -> std::sync::MutexGuard<'_, Counted> {
        (self.common.counted.lock()).unwrap_or_else(|e| e.into_inner())
    }

    /// Those that a run's programs count in; `moved`: as of [`Self::moved`].
    pub(crate) fn files<'a>(&'a self, moved: &'a [Arc<Self>]) -> impl Iterator<Item = &'a Self> {
        moved.iter().map(Arc::as_ref).chain([self])
    }

    pub(crate) fn moved(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Self>>> {
        (self.common.moved.lock()).unwrap_or_else(|e| e.into_inner())
    }

    /// Taken before any other of them: no area ends meanwhile.
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.common.seen.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn areas(&self) -> std::sync::MutexGuard<'_, Areas> {
        self.areas.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// `last`: what is to be done just before it is let go.
    fn prepare(&self, program: io::Result<Stopped>, last: &dyn Fn()) -> Result<(), Error> {
        let io = |what: &'static str| move |e: io::Error| Error::Run(format!("{what}: {e}"));
        let mut program = program.map_err(io("registers"))?;
        let pid = program.pid;
        if !program.is_native() {
            return Err(Error::Run("a 32-bit program".into()));
        }
        let before = program.registers;
        let exe = PathBuf::from(format!("/proc/{pid}/exe"));
        let about = std::fs::metadata(&exe).map_err(io("exe"))?;
        // Who may not is sent them, where it has the rights of all who have them.
        let opens = may_open_ours(pid, &about).map_err(io("its rights"))?;
        let sends = match (&*self.whose(), self.is_attached()) {
            (_, true) => !opens,
            (Whose::Command(_), false) if opens => false,
            (Whose::Command(_), false) => return Err(Error::Run(NOT_BEGUN.into())),
            // Fewer capabilities are enough, whatever its ids.
            (Whose::Those(_), false) => true,
            (Whose::Anybody, false) => return Err(Error::Run(OTHER_RIGHTS.into())),
        };
        // What may be run and not read is not given to who runs it.
        if sends && !proc::is_readable(pid) {
            return Err(Error::Run("its user may not read it".into()));
        }
        if !sends && !self.may_find(pid) {
            return Err(Error::Run(NOT_BEGUN.into()));
        }
        let main = self.images().of_path(&exe, &about, Side::Below)?;
        let mut parts: Vec<(Arc<Known>, u64)> = Vec::new();
        // Whose first instruction it stands at.
        if let Some(path) = &main.interpreter {
            let root = PathBuf::from(format!("/proc/{pid}/root"));
            let loader = match sends {
                false => {
                    let path = root.join(path.strip_prefix("/").unwrap_or(path));
                    let about = std::fs::metadata(&path).map_err(io("the loader"))?;
                    self.images().of_path(&path, &about, Side::Below)?
                }
                // What the kernel has mapped, whatever lies by that name where we are.
                true => {
                    let loader = loader_of(pid, before.rip, &root).map_err(io("the loader"))?;
                    self.images().of(loader, Side::Below)?
                }
            };
            let bias = loader.bias_by_entry(before.rip);
            parts.push((loader, bias));
        }
        // A program that leaves all calls to libraries needs nothing but to be looked at, and room behind its code only
        // where its loader has none.
        let places = self.word(run::PLACES).load(Ordering::Relaxed) != 0;
        let least = Caller::bytes(self.call_code()).max(self.common.map_code.len() as u64) + 16;
        let room = |part: &Known| part.spare.end - part.spare.start >= least;
        let wanted = main.makes_calls() || places || !parts.iter().all(|(part, _)| room(part));
        let bias = match (&main.interpreter, wanted) {
            (None, _) => main.bias_by_entry(before.rip),
            (Some(_), false) => 0,
            (Some(_), true) => {
                let headers = (main.headers).ok_or(Error::Damaged("its headers are not loaded"))?;
                (headers_of(pid).map_err(io("auxv"))?).wrapping_sub(headers)
            }
        };
        let (room_in_main, begins_itself) = (main.spare_at(bias), main.interpreter.is_none());
        parts.push((main, bias));
        if let Some(why) = parts.iter().find_map(|(part, _)| part.table.against()) {
            return Err(Error::Run(why.into()));
        }
        let index = self.area_take()?;
        let mut spare: Vec<Range<u64>> = Vec::new();
        if parts.len() > 1 {
            spare.extend(parts.first().map(|(part, bias)| part.spare_at(*bias)));
        }
        spare.extend((wanted || begins_itself).then_some(room_in_main));
        parts.retain(|(part, _)| places || part.makes_calls());
        let begin = Begin {
            index,
            parts: &parts,
            spare: &spare,
            sends,
        };
        let laid = match self.inject(&mut program, &begin) {
            Ok(laid) => laid,
            Err(error) => {
                self.area_free(index);
                // As it was.
                let _ = tracee::registers_set(pid, &before);
                program.signals_back();
                return Err(error);
            }
        };
        self.begins_at(laid);
        last();
        program.let_go().map_err(io("let go"))
    }

    pub(crate) fn area_take(&self) -> Result<u32, Error> {
        let index = self.areas().free.pop();
        index.ok_or_else(|| Error::Run(TOO_MANY.into()))
    }

    pub(crate) fn area_free(&self, index: u32) {
        self.areas().free.push(index);
    }

    pub(crate) fn area_used(&self, used: Used) {
        self.areas().used.push(used);
    }

    /// The areas that a process has mapped.
    pub(crate) fn areas_of(&self, pid: i32) -> Vec<u32> {
        let mut areas = self.mapped_by(pid);
        areas.retain(|index| u64::from(*index) < AREAS);
        areas.sort_unstable();
        areas.dedup();
        areas
    }

    /// Whom is attached to, has to have the same rights as this one.
    pub fn rights_as(&self, pid: i32) {
        self.has_rights(pid);
    }

    fn whose(&self) -> std::sync::MutexGuard<'_, Whose> {
        self.whose.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Nobody shares the file with who is about to give up rights.
    pub(crate) fn whose_forget(&self) {
        *self.whose() = Whose::Anybody;
    }

    /// It is about to execute something. Anybody may be named who has the file mapped: a service to whom it was given
    /// has not got the runtime.
    fn whose_is(&self, tid: i32) {
        if !matches!(&*self.whose(), Whose::Anybody) {
            return;
        }
        let runtime = self.runtime_inode();
        let is_it = |one: &maps::Mapping| one.is_code() && runtime == Some(one.inode);
        let spliced = maps::of(tid).is_ok_and(|all| all.iter().any(is_it));
        let mut whose = self.whose();
        if let (Whose::Anybody, true, Some(rights)) = (&*whose, spliced, proc::rights(tid)) {
            *whose = Whose::Those(rights);
        }
    }

    /// Whether a program that was executed may share what those have who are there.
    fn is_whose(&self, pid: i32, slot: Option<usize>, users: Option<PathBuf>) -> bool {
        match &mut *self.whose() {
            // Whoever has other ids may not open what is ours: `may_open_ours`. The command's first program, after
            // its execve, is the one to be compared with.
            Whose::Command(first) => {
                let powers = proc::powers(pid, users);
                powers.is_some_and(|is| *first.get_or_insert_with(|| is.clone()) == is)
            }
            Whose::Anybody => false,
            Whose::Those(rights) => {
                let now = proc::rights(pid).unwrap_or_default();
                let less = || proc::gains_nothing(&now, rights) && self.is_sole(pid, slot);
                // What it was before is gone, and with it what it could do.
                if now != *rights && less() {
                    rights.clone_from(&now);
                }
                now == *rights
            }
        }
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.rights.get().is_some()
    }

    /// Whether it may do what the first one may that was attached to.
    pub(crate) fn has_rights(&self, pid: i32) -> bool {
        let rights = proc::rights(pid);
        rights.is_some_and(|rights| *self.rights.get_or_init(|| rights.clone()) == rights)
    }

    /// Nothing could be done: whether the kernel tells of its calls instead.
    pub fn attach_failed(&self, pid: i32, why: &Error) {
        match self.boundary(pid, Since::Now) {
            true => (self.ended()).boundary(why.to_string(), proc::program(pid)),
            false if proc::lives(pid) => (self.ended()).left(why.to_string(), proc::program(pid)),
            false => {}
        }
    }

    fn inject(&self, program: &mut Stopped, told: &Begin<'_>) -> Result<Beginning, Error> {
        let io = |what: &'static str| move |e: io::Error| Error::Run(format!("{what}: {e}"));
        let before = program.registers;
        // Below the arguments; nothing lies there yet.
        let begin_at = (before.rsp - 8192) & !63;
        let spare = || told.spare.iter().cloned();
        let sent = match told.sends {
            true => Some(
                self.begin_send(program, told, begin_at - 8192, spare())
                    .map_err(io("its files"))?,
            ),
            false => None,
        };
        match self.inject_with(program, told, begin_at, sent.as_ref()) {
            Ok(place) => Ok(Beginning::new(
                (told.index, program.pid),
                before,
                place,
                told.spare.to_vec(),
                sent,
            )),
            Err(error) => {
                if let (Some(sent), Ok(by)) = (&sent, self.caller_in(program.pid, spare())) {
                    sent.close(program, &by);
                }
                Err(error)
            }
        }
    }

    /// Where what maps the runtime lies.
    fn inject_with(
        &self,
        program: &Stopped,
        told: &Begin<'_>,
        begin_at: u64,
        sent: Option<&Sent>,
    ) -> Result<u64, Error> {
        let io = |what: &'static str| move |e: io::Error| Error::Run(format!("{what}: {e}"));
        let before = &program.registers;
        let mut begin = self.begin_bytes(before, told, sent)?;
        let path_at = begin_at + begin.len() as u64;
        begin.extend(std::os::unix::ffi::OsStrExt::as_bytes(
            self.common.runtime.as_os_str(),
        ));
        begin.push(0);
        program.write(begin_at, &begin).map_err(io("the stack"))?;
        let spare = told.spare.iter().cloned();
        let place = spare::place(program.pid, self.common.map_code.len() as u64, spare)
            .map_err(io("the runtime"))?;
        // It stays, behind what is somebody's.
        (program.write_code(place, &self.common.map_code)).map_err(io("the runtime"))?;
        let with = tracee::Registers {
            rdi: libc::AT_FDCWD as u64,
            rsi: path_at,
            rdx: (libc::O_RDONLY | libc::O_CLOEXEC) as u64,
            rbx: begin_at,
            r12: self.common.runtime_bytes,
            rsp: begin_at - 1024,
            rip: place,
            ..*before
        };
        // Behind the call that would open the runtime.
        let with = match sent {
            Some(sent) => tracee::Registers {
                rax: sent.files[1] as u64,
                rip: place + state::MAP_OPENED,
                ..with
            },
            None => with,
        };
        // Should we end from here on, it does all this, or begins, by itself.
        program.divert(&with).map_err(io("registers"))?;
        Ok(place)
    }

    /// What makes calls in a process.
    pub(crate) fn caller_in(
        &self,
        pid: i32,
        spare: impl Iterator<Item = Range<u64>>,
    ) -> io::Result<Caller<'_>> {
        let code = self.call_code();
        let place = spare::place(pid, Caller::bytes(code), spare)?;
        Ok(Caller { code, place })
    }

    /// What it may not open by itself: the run's file, the runtime, and images.
    fn begin_send(
        &self,
        program: &mut Stopped,
        told: &Begin<'_>,
        memory: u64,
        spare: impl Iterator<Item = Range<u64>>,
    ) -> io::Result<Sent> {
        let pid = program.pid;
        let by = self.caller_in(pid, spare)?;
        let images = told.parts.iter().map(|(part, _)| File::open(&part.image));
        let images = images.collect::<io::Result<Vec<_>>>()?;
        let runtime = File::open(self.runtime())?;
        let mut files = vec![self.file.as_fd(), runtime.as_fd()];
        files.extend(images.iter().map(AsFd::as_fd));
        // Out of its execve, which returns first.
        program.park()?;
        // Memory that comes as it is touched there.
        program.write(memory, &[0])?;
        remote::files_send(program, &by, pid, memory, &files)
    }

    /// `struct splice_begin`.
    fn begin_bytes(
        &self,
        before: &tracee::Registers,
        told: &Begin<'_>,
        sent: Option<&Sent>,
    ) -> Result<Vec<u8>, Error> {
        let (index, parts) = (told.index, told.parts);
        let mut out = Vec::new();
        out.extend([before.rip, before.rsp].map(u64::to_le_bytes).concat());
        let by_instruction = u32::from(sets_gs_by_instruction());
        // The last one the program itself writes: no file yet.
        out.extend(
            [index, parts.len() as u32, by_instruction, u32::MAX]
                .map(u32::to_le_bytes)
                .concat(),
        );
        // The run's file, images, what is to be closed, and nothing.
        let mut numbers = [0; 6];
        if let Some(Sent { files, pair }) = sent {
            numbers[0] = files[0] + 1;
            for (to, file) in numbers[1..3].iter_mut().zip(&files[2..]) {
                *to = file + 1;
            }
            numbers[3..5].copy_from_slice(&pair.map(|fd| fd + 1));
        }
        out.extend(numbers.map(i32::to_le_bytes).concat());
        let text = |text: &[u8], room: usize| -> Result<Vec<u8>, Error> {
            let mut text = text.to_vec();
            if text.len() >= room {
                return Err(Error::Run("too long a path".into()));
            }
            text.resize(room, 0);
            Ok(text)
        };
        out.extend(text(self.path().as_bytes(), 64)?);
        for (part, bias) in parts {
            out.extend(
                [*bias, part.device, part.inode]
                    .map(u64::to_le_bytes)
                    .concat(),
            );
            let path = std::os::unix::ffi::OsStrExt::as_bytes(part.image.as_os_str());
            // It writes the end of another name behind it.
            let mut path = text(path, 232 - 9)?;
            path.resize(232, 0);
            out.extend(path);
        }
        Ok(out)
    }

    /// The images of a program and of its loader, as they will be mapped; none where there are none.
    pub fn images_of(&self, program: &Path) -> Vec<PathBuf> {
        let of = |path: &Path| self.images().of(File::open(path).ok()?, Side::Below).ok();
        let main = of(program);
        let loader = (main.as_ref())
            .and_then(|main| main.interpreter.as_ref())
            .and_then(|path| of(path));
        (main.into_iter().chain(loader))
            .map(|known| known.image.clone())
            .collect()
    }

    /// From which places in the program calls come is told, too; before the first of them begins.
    pub fn places_tell(&self) {
        self.images().with_callers();
        self.word(run::PLACES).store(1, Ordering::Relaxed);
        for nr in 0..NRS {
            let value = match UNMAPS.contains(&i64::from(nr)) {
                true => state::DOOR_UNMAPS,
                false => state::DOOR_FIRST as u16,
            };
            self.door(nr).store(value, Ordering::Relaxed);
        }
    }

    /// Where a file lay of whose code there is an image.
    pub fn path_of(&self, device: u64, inode: u64) -> Option<PathBuf> {
        let about = self.images().about(device, inode)?;
        (!about.path.as_os_str().is_empty()).then(|| about.path.clone())
    }

    fn door(&self, nr: u32) -> &AtomicU16 {
        let at = run::DOORS + 2 * u64::from(nr.min(NRS - 1));
        // SAFETY: within the page, aligned, and shared memory that is only accessed so.
        unsafe { &*self.page.add(at as usize).cast::<AtomicU16>() }
    }

    /// The kernel side looks at what its threads count, too; before the first of them begins.
    pub fn looked_at(&self) {
        self.word(run::LOOKED_AT).store(1, Ordering::Relaxed);
    }

    /// From which bucket of the histogram on the kernel side looks at the end of a call before the
    /// program goes on; None: never. Of programs that begin; others see it by [`Self::doors_tell`].
    pub fn door_set(&self, nr: u32, bucket: Option<u16>) {
        let value = bucket.map_or(state::DOOR_NONE, |bucket| bucket + state::DOOR_FIRST as u16);
        for run in self.files(&self.moved()) {
            run.door(nr).store(value, Ordering::Relaxed);
        }
    }

    /// Threads that are under way see what was set, too.
    ///
    /// # Errors
    /// When the run's file cannot be written.
    pub fn doors_tell(&self) -> io::Result<()> {
        let moved = self.moved().clone();
        self.files(&moved).try_for_each(Self::blocks_doors)
    }

    fn blocks_doors(&self) -> io::Result<()> {
        let mut doors = [0u8; 2 * NRS as usize];
        self.file.read_exact_at(&mut doors, run::DOORS)?;
        let areas = self.areas();
        for &Used { index, .. } in &areas.used {
            for at in self.blocks_used(index) {
                let mut own = [0u8; 8];
                self.file.read_exact_at(&mut own, at + block::SELF)?;
                if own != [0; 8] {
                    self.file.write_all_at(&doors, at + block::DOORS)?;
                }
            }
        }
        Ok(())
    }

    /// Calls that take little are not all stamped; before the first program begins.
    pub fn sample(&self, rule: Sampling) {
        self.images().with_samples();
        self.word(run::SAMPLE).store(1, Ordering::Relaxed);
        let _ = self.common.sampling.set(rule);
    }

    /// Which ones, by what they took until now; to be done from time to time. `away_ns`: how long stamped calls of
    /// a number were off the CPU, all together.
    ///
    /// # Errors
    /// When the run's file cannot be read or written.
    pub fn samples_look(&self, away_ns: &dyn Fn(u32) -> u64) -> io::Result<()> {
        let Some(rule) = self.common.sampling.get() else {
            return Ok(());
        };
        let mut next = (self.common.sampled_next.lock()).unwrap_or_else(|e| e.into_inner());
        let began = Instant::now();
        if next.is_some_and(|next| began < next) {
            return Ok(());
        }
        let of = |sums: &Sums| long_ns(sums.wall_ns, |k| sums.hist[k]);
        let _seen = self.seen();
        let mut long: Vec<u64> = self.ended().calls.iter().map(of).collect();
        let mut programs = Vec::new();
        let moved = self.moved().clone();
        for run in self.files(&moved) {
            for used in &run.areas().used {
                let stamped = run.stamped(used.index)?;
                for (all, of) in long.iter_mut().zip(&stamped) {
                    more(all, of.long_ns);
                }
                programs.push((run, used.index, stamped));
            }
        }
        // Who sees it does not tell by program: it is of those with long calls.
        let away = |nr: usize| away_ns(nr as u32) as f64 / long[nr].max(1) as f64;
        for (run, index, stamped) in programs {
            let mut areas = run.areas();
            let numbers = areas.samples.entry(index).or_default();
            numbers.resize(NRS as usize, Number::default());
            let reads = run.reads_records(index)?;
            for (nr, (number, all)) in numbers.iter_mut().zip(stamped).enumerate() {
                // Who is asked about single calls is asked about all of them.
                let door = run.door(nr as u32).load(Ordering::Relaxed);
                match reads || door != state::DOOR_NONE {
                    true => number.stop(),
                    false => number.decide(rule, all, || away(nr)),
                };
            }
            run.samples_tell(index, numbers)?;
        }
        *next = Some(Instant::now() + began.elapsed() * SCAN_COST_TIMES);
        Ok(())
    }

    /// Calls of an area that were stamped, by number.
    fn stamped(&self, index: u32) -> io::Result<Vec<Stamped>> {
        let mut all = vec![Stamped::default(); NRS as usize];
        let mut rows = Rows::new();
        for at in self.blocks_used(index) {
            rows.read(self, at)?;
            let long = |at: u64| proc::long_of(&rows.bytes, at as usize);
            for (nr, of) in (0u32..).zip(&mut all) {
                let row = row_of(nr) - block::ROWS;
                let sample = sample_of(nr) - block::ROWS;
                let count = rows.count(nr);
                if count == 0 {
                    continue;
                }
                let wall_ns = long(row + row::WALL_NS);
                more(
                    &mut of.long_ns,
                    long_ns(wall_ns, |k| {
                        let at = (row + row::HIST) as usize + 4 * k;
                        proc::int_of(&rows.bytes, at) as u32 as u64
                    }),
                );
                more(
                    &mut of.calls,
                    count.saturating_sub(long(sample + sample::UNSTAMPED)),
                );
                more(&mut of.wall_ns, wall_ns);
            }
        }
        Ok(all)
    }

    /// Whether its program asks for records of its calls.
    fn reads_records(&self, index: u32) -> io::Result<bool> {
        let mut reads = [0u8; 4];
        let start = run::BYTES + u64::from(index) * area::BYTES;
        self.file.read_exact_at(&mut reads, start + area::READS)?;
        Ok(reads != [0; 4])
    }

    /// Threads of an area that have not been told yet, are.
    fn samples_tell(&self, index: u32, numbers: &[Number]) -> io::Result<()> {
        let mut bytes = vec![0u8; (block::BYTES - block::SAMPLE) as usize];
        for at in self.blocks_used(index) {
            let mut own = [0u8; 8];
            self.file.read_exact_at(&mut own, at + block::SELF)?;
            if own == [0; 8] {
                continue;
            }
            bytes.fill(0);
            self.read_data(&mut bytes, at + block::SAMPLE, |_| {})?;
            for (nr, number) in (0u64..).zip(numbers) {
                let told = Told::parse(&bytes[(nr * sample::BYTES) as usize..]);
                if told != number.told {
                    let place = at + block::SAMPLE + nr * sample::BYTES + sample::SPAN;
                    self.file.write_all_at(&number.told.to_bytes(), place)?;
                }
            }
        }
        Ok(())
    }

    /// What has been counted so far.
    ///
    /// # Errors
    /// When the run's file cannot be read.
    pub fn counted(&self) -> io::Result<Counted> {
        // What is swept meanwhile would be in neither part.
        let _seen = self.seen();
        let mut counted = self.ended().clone();
        counted.copied = self.images().copied();
        let moved = self.moved().clone();
        for run in self.files(&moved) {
            let used = run.areas().used.clone();
            for used in used {
                run.add(used, run.on_its_way(used.index), &mut counted)?;
            }
        }
        Ok(counted)
    }

    /// Adds up an area. What was never touched is not read, and so takes no memory.
    fn add(&self, used: Used, on_its_way: OnItsWay, counted: &mut Counted) -> io::Result<()> {
        let Used { index, pid, moved } = used;
        if !self.counts(pid) {
            return Ok(());
        }
        let start = run::BYTES + u64::from(index) * area::BYTES;
        let mut head = vec![0u8; block::ROWS as usize];
        self.file.read_exact_at(&mut head, start)?;
        let word = |bytes: &[u8], at: u64| {
            u32::from_le_bytes(bytes[at as usize..][..4].try_into().unwrap_or_default())
        };
        let long = |bytes: &[u8], at: u64| {
            u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap_or_default())
        };
        if word(&head, 0) == 0 {
            if let (false, Some(why)) = (moved, on_its_way.missing()) {
                counted.left(why.into(), None);
            }
            return Ok(());
        }
        more(&mut counted.programs, u64::from(!moved));
        more(
            &mut counted.threads_lost,
            u64::from(word(&head, area::BLOCKS_LOST)),
        );
        more(
            &mut counted.late_code,
            u64::from(word(&head, area::LATE_CODE)),
        );
        more(&mut counted.files_left, u64::from(word(&head, area::LEFT)));
        let file = (
            long(&head, area::LEFT_DEVICE),
            long(&head, area::LEFT_INODE),
        );
        if file != (0, 0)
            && let Some(about) = self.images().about(file.0, file.1)
        {
            first_add(&mut counted.files, about.path.display().to_string());
        }
        for at in (0..area::REPLACED_MOST).map(|n| area::REPLACED + n * area::REPLACED_BYTES) {
            let (inode, device) = (long(&head, at), long(&head, at + 8));
            if inode == 0 {
                break;
            }
            let about = self.images().about(device, inode);
            if let Some(about) = about.filter(|about| about.left > 0) {
                let path = about.path.display().to_string();
                if counted.places.len() < PLACES_MOST {
                    counted.places.insert(path, (about.left, about.sites));
                }
            }
        }
        let unfollowed = word(&head, area::UNFOLLOWED);
        if unfollowed > 0 {
            counted.left(UNFOLLOWED.into(), None);
            counted.programs_left += u64::from(unfollowed) - 1;
        }
        more(
            &mut counted.undone,
            u64::from(word(&head, area::OFF) == OFF),
        );
        if self.word(run::PLACES).load(Ordering::Relaxed) != 0 {
            let mut bytes = vec![0u8; state::places::BYTES as usize];
            self.read_data(&mut bytes, start + area::PLACES, |_| {})?;
            counted.call_places.add(&bytes, pid);
        }
        // Written by the programs: it may be anything. What no thread can have done in this time would be all that is seen of
        // the others.
        let most = (self.common.began.elapsed().as_nanos() as u64).saturating_mul(area::BLOCKS);
        let mut untrue = false;
        let mut rows = Rows::new();
        for at in self.blocks_used(index) {
            self.file.read_exact_at(&mut head, at)?;
            if long(&head, block::SELF) == 0 || !self.counts(word(&head, block::PID) as i32) {
                continue;
            }
            let (untimed, abandoned) = (long(&head, block::UNTIMED), long(&head, block::ABANDONED));
            match untimed.max(abandoned) <= most {
                true => {
                    more(&mut counted.untimed, untimed);
                    more(&mut counted.abandoned, abandoned);
                }
                false => untrue = true,
            }
            rows.read(self, at)?;
            for (nr, sums) in (0u32..).zip(counted.calls.iter_mut()) {
                let count = rows.count(nr);
                if count == 0 {
                    continue;
                }
                let row = &rows.bytes[(row_of(nr) - block::ROWS) as usize..][..row::BYTES as usize];
                let times = long(row, row::WALL_NS).max(long(row, row::MAX_NS));
                if count.max(times).max(long(row, row::ERRORS)) > most {
                    untrue = true;
                    continue;
                }
                more(&mut sums.count, count);
                more(&mut sums.wall_ns, long(row, row::WALL_NS));
                sums.max_ns = sums.max_ns.max(long(row, row::MAX_NS));
                more(&mut sums.errors, long(row, row::ERRORS));
                more(&mut sums.missing, long(row, row::MISSING));
                more(&mut sums.ones, long(row, row::ONES));
                let sample = &rows.bytes[(sample_of(nr) - block::ROWS) as usize..];
                let mut stamped = 0;
                for (k, n) in sums.hist.iter_mut().enumerate() {
                    let calls = u64::from(word(row, row::HIST + 4 * k as u64));
                    more(n, calls);
                    more(&mut stamped, calls);
                }
                // That lies behind all rows, and is read some calls later of a program that runs.
                let unstamped = long(sample, sample::UNSTAMPED).min(count.saturating_sub(stamped));
                more(&mut sums.unstamped, unstamped);
                if unstamped > 0 {
                    let estimated_ns = long(sample, sample::ESTIMATED_NS);
                    untrue |= estimated_ns > most;
                    more(&mut sums.estimated_ns, estimated_ns.min(most));
                }
            }
        }
        if untrue {
            counted.left(UNTRUE.into(), None);
        }
        Ok(())
    }

    /// Where something lies in the run's file, in [at, end): the first byte of it.
    fn data_from(&self, at: u64, end: u64) -> Option<u64> {
        // SAFETY: a file of ours.
        let data = unsafe { libc::lseek(self.file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        u64::try_from(data).ok().filter(|data| *data < end)
    }

    /// Where the blocks of an area lie that somebody has had. They are not looked for in memory that
    /// nobody has touched.
    fn blocks_used(&self, index: u32) -> impl Iterator<Item = u64> {
        let first = run::BYTES + u64::from(index) * area::BYTES + state::PAGE;
        let end = first + area::BLOCKS * block::BYTES;
        let mut from = first;
        std::iter::from_fn(move || {
            let data = self.data_from(from, end)?;
            let at = first + (data - first) / block::BYTES * block::BYTES;
            from = at + block::BYTES;
            Some(at)
        })
    }

    /// Reads what lies in the file there; the rest of `into` stays as it is.
    pub(crate) fn read_data(
        &self,
        into: &mut [u8],
        start: u64,
        mut there: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let end = start + into.len() as u64;
        let mut at = start;
        while at < end {
            let Some(data) = self.data_from(at, end) else {
                return Ok(());
            };
            // SAFETY: as above.
            let hole = unsafe { libc::lseek(self.file.as_raw_fd(), data as i64, libc::SEEK_HOLE) };
            let hole = u64::try_from(hole).map_or(end, |hole| hole.min(end));
            let part = (data - start) as usize..(hole - start) as usize;
            there(part.clone());
            self.file.read_exact_at(&mut into[part], data)?;
            at = hole;
        }
        Ok(())
    }

    /// What puts a program's own code back.
    pub(crate) fn undo(&self, tid: i32) -> io::Result<Undo<'_>> {
        let memory = std::fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/{tid}/mem"))?;
        let root = Path::new("/proc").join(tid.to_string()).join("root");
        let mut files = HashMap::new();
        for mapping in maps::of(tid)? {
            let Some((device, inode, kind)) = self.images().told_by(&mapping) else {
                continue;
            };
            let known = self.images().kept(device, inode, &root, kind);
            files.insert((device, inode), known.ok_or_else(image_gone)?);
        }
        Ok(Undo {
            images: self.images(),
            tid,
            memory,
            files,
        })
    }

    /// Its blocks are nobody's.
    pub(crate) fn blocks_forget(&self, index: u32) -> io::Result<()> {
        self.blocks_used(index)
            .try_for_each(|at| self.file.write_all_at(&[0; 8], at + block::TID))
    }

    /// A request that is in this state is anybody's.
    fn request_free(&self, slot: usize, from: u32) {
        let _ = self.request(slot, 0).compare_exchange(
            from,
            REQUEST_NONE,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// Whoever was killed before it read its answer takes nobody's turn. (None of ours has such a request, and nobody
    /// else sets it free, so it is the same one still.)
    fn requests_free(&self) {
        for slot in 0..run::REQUESTS {
            let state = self.request(slot, 0);
            if state.load(Ordering::Acquire) != REQUEST_ANSWERED
                || self.with[slot].load(Ordering::SeqCst) != 0
            {
                continue;
            }
            let tid = self.askers[slot].load(Ordering::Relaxed);
            // SAFETY: signal 0 only asks.
            let gone = tid != 0
                && unsafe { libc::kill(tid, 0) } != 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            if gone {
                self.request_free(slot, REQUEST_ANSWERED);
            }
        }
    }

    /// Areas whose programs have ended are counted, and free again.
    pub fn sweep(&self) -> io::Result<()> {
        let mut seen = self.seen();
        seen.mapped = None;
        seen.few = self.areas().free.len() < AREAS as usize / 4;
        let moved = self.moved().clone();
        (moved.iter()).try_for_each(|run| run.sweep_own(&mut seen))?;
        drop(moved);
        self.moved_sweep();
        self.sweep_own(&mut seen)
    }

    fn sweep_own(&self, seen: &mut Seen) -> io::Result<()> {
        self.requests_free();
        let _ = self.beginnings_look();
        let used = self.areas().used.clone();
        for one in used {
            if self.lives(one, seen).unwrap_or(true) {
                continue;
            }
            let index = one.index;
            // Before the other lock is taken.
            let on_its_way = self.on_its_way(index);
            self.add(one, on_its_way, &mut self.ended())?;
            // Not before: who is about to begin waits for it.
            let mut areas = self.areas();
            areas.beginning.retain(|one| one.index != index);
            areas.samples.remove(&index);
            areas.used.retain(|used| used.index != index);
            let start = run::BYTES + u64::from(index) * area::BYTES;
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: a file of ours.
            unsafe {
                libc::fallocate(
                    self.file.as_raw_fd(),
                    mode,
                    start as i64,
                    area::BYTES as i64,
                )
            };
            areas.free.push(index);
        }
        Ok(())
    }

    /// The areas that a process has mapped, by what the kernel says; u32::MAX: the run's own page, which
    /// all have.
    fn mapped_by(&self, pid: i32) -> Vec<u32> {
        let all = maps::of(pid).unwrap_or_default().into_iter();
        let ours = all.filter(|one| one.device == self.device && one.inode == self.inode);
        ours.map(|one| area_at(one.offset)).collect()
    }

    /// Whether a process has anything of it mapped.
    pub(crate) fn is_mapped_by(&self, pid: i32) -> bool {
        !self.mapped_by(pid).is_empty()
    }

    /// Whether a thread of ours sees to a request, or has come along with who asked; but for this one.
    pub(crate) fn serves(&self, but: Option<usize>) -> bool {
        let mut with = self.with.iter().enumerate();
        with.any(|(slot, with)| Some(slot) != but && with.load(Ordering::SeqCst) != 0)
    }

    /// Whether a program is there in an area.
    pub(crate) fn has_begun(&self, index: u32) -> io::Result<bool> {
        let mut version = [0; 4];
        let start = run::BYTES + u64::from(index) * area::BYTES;
        self.file.read_exact_at(&mut version, start)?;
        Ok(version != [0; 4])
    }

    /// Nobody is there any more who could ask: our threads end.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Our threads look at all requests.
    pub(crate) fn ring(&self) {
        let bell = self.word(run::BELL);
        bell.fetch_add(1, Ordering::SeqCst);
        Self::futex_wake(bell);
    }

    /// Who of this run's asks by this number; `at`: where it says that it has the run's file mapped.
    fn asker(&self, slot: usize, number: i32, at: u64) -> Option<By> {
        let mapped =
            proc::has_mapped(number, at, self.device, self.inode) || self.is_mapped_by(number);
        let is_it = mapped
            && self
                .has_word(slot, number)
                .unwrap_or_else(|| self.is_beside(number));
        match is_it {
            true => Some(By {
                tid: number,
                below: false,
            }),
            false => self.asker_below(slot, number, at),
        }
    }

    /// Whether it is in our PID namespace.
    fn is_beside(&self, number: i32) -> bool {
        let namespace = proc::pid_namespace(number);
        namespace.is_some() && namespace == self.common.pid_namespace
    }

    /// Whether the word of a request lies in the memory of a process, of those who share the file: then it is the one that
    /// asks, and else whoever asks has this number in another PID namespace. None: it is not for us to read.
    fn has_word(&self, slot: usize, number: i32) -> Option<bool> {
        let is = proc::word(number, self.request_long(slot, run::WORD_AT)).ok()?;
        Some(is == self.request_long(slot, run::WORD))
    }

    /// In a PID namespace below ours it asks by another number than it has here: who has that number there, and waits
    /// for this very answer, by the kernel's word?
    fn asker_below(&self, slot: usize, number: i32, at: u64) -> Option<By> {
        let word = at + run::REQUEST + slot as u64 * run::REQUEST_BYTES;
        for _ in 0..LOOKS_BELOW {
            let others = proc::all().filter(|pid| {
                let namespace = proc::pid_namespace(*pid);
                namespace.is_some() && namespace != self.common.pid_namespace
            });
            let others: Vec<i32> = others.filter(|pid| self.is_mapped_by(*pid)).collect();
            let is = |tid: &i32| {
                proc::own_ids(*tid).is_ok_and(|(_, own)| own == number as u32)
                    && proc::waits_for(*tid, word)
            };
            let mut threads = others.iter().flat_map(|pid| proc::threads(*pid));
            if let Some(tid) = threads.find(is) {
                return Some(By { tid, below: true });
            }
            let asked = self.request(slot, 0).load(Ordering::Acquire) == REQUEST_ASKED;
            if others.is_empty() || !asked {
                return None;
            }
            thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// What anybody has mapped: a look at all processes, so not often. None: not now.
    fn mapped_by_anybody<'a>(&self, seen: &'a mut Seen) -> Option<&'a HashSet<(u64, u32)>> {
        let pause = match seen.few {
            true => seen.cost,
            false => (seen.cost * SCAN_COST_TIMES).max(SCAN_EVERY),
        };
        let due = seen.began.is_none_or(|began| began.elapsed() >= pause);
        if seen.mapped.is_none() && due {
            let began = Instant::now();
            let all = proc::all().flat_map(|pid| maps::of(pid).unwrap_or_default());
            let all = all.filter(|one| one.device == self.device);
            seen.mapped = Some(all.map(|one| (one.inode, area_at(one.offset))).collect());
            seen.began = Some(began);
            seen.cost = began.elapsed();
        }
        seen.mapped.as_ref()
    }

    /// Whether a process has it mapped still. What its blocks say is the program's own word, and
    /// none of them is taken while an execve is under way: so nothing is freed for it.
    fn lives(&self, used: Used, seen: &mut Seen) -> io::Result<bool> {
        let Used { index, pid, .. } = used;
        let start = run::BYTES + u64::from(index) * area::BYTES;
        let mut head = [0u8; area::FORKS as usize + 4];
        self.file.read_exact_at(&mut head, start)?;
        // It has not begun yet, or could not.
        if head[..4] == [0; 4] {
            // SAFETY: signal 0 only asks.
            return Ok(unsafe { libc::kill(pid, 0) } == 0);
        }
        if self.has_threads(index)? || self.mapped_by(pid).contains(&index) {
            return Ok(true);
        }
        let forked = head[area::FORKS as usize..] != [0; 4];
        let this = (self.inode, index);
        Ok(forked && (self.mapped_by_anybody(seen)).is_none_or(|mapped| mapped.contains(&this)))
    }

    /// Whether a thread is there that has a block of it.
    fn has_threads(&self, index: u32) -> io::Result<bool> {
        for at in self.blocks_used(index) {
            let mut head = [0u8; block::STATE as usize + 4];
            self.file.read_exact_at(&mut head, at)?;
            let word = |at: u64| {
                i32::from_le_bytes(head[at as usize..][..4].try_into().unwrap_or_default())
            };
            let (tid, state) = (word(block::TID), word(block::STATE));
            // SAFETY: signal 0 only asks.
            let there = tid != 0 && unsafe { libc::kill(tid, 0) } == 0;
            if state != 0 && there {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The file whose code lies at an address.
fn loader_of(pid: i32, base: u64, root: &Path) -> io::Result<File> {
    let all = maps::of(pid)?;
    let gone = || io::Error::from_raw_os_error(libc::ENOENT);
    let mapped = all.iter().find(|one| one.holds(base)).ok_or_else(gone)?;
    mapped.open(pid, root)?.ok_or_else(gone)
}

/// Whether a process that stands at its program's first instruction may open a file of ours, as the kernel judges it:
/// it has our ids. (What it may beyond that, as another user, is not counted on.)
fn may_open_ours(pid: i32, exe: &std::fs::Metadata) -> io::Result<bool> {
    const SET_IDS: u32 = libc::S_ISUID | libc::S_ISGID;
    // SAFETY: no arguments, cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    // Whose a process is that other users may not look at, this does not say.
    let plain = exe.mode() & SET_IDS == 0;
    let about = std::fs::metadata(format!("/proc/{pid}"))?;
    if about.uid() != user || plain {
        return Ok(about.uid() == user);
    }
    let status = proc::text(pid, "status")?;
    let last = |name: &str| proc::numbers_of(&status, name).last().copied();
    Ok(last("Uid:") == Some(user) && last("Gid:") == Some(group))
}

/// Whoever started the thread may have blocked all signals.
fn attention_unblock() {
    // SAFETY: a set that is filled before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, attention());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

fn serve(weak: &Weak<Run>) {
    attention_unblock();
    // Somebody was let go to begin, perhaps.
    let mut begins = false;
    loop {
        let Some(run) = weak.upgrade() else {
            return;
        };
        let bell = run.word(run::BELL);
        let rung = bell.load(Ordering::SeqCst);
        if run.over.load(Ordering::SeqCst) {
            return;
        }
        let mut found = false;
        for slot in 0..run::REQUESTS {
            let state = run.request(slot, 0).load(Ordering::Acquire);
            if state != REQUEST_ASKED && state != REQUEST_LEFT {
                continue;
            }
            // SAFETY: no arguments.
            let me = unsafe { libc::gettid() };
            let mine = run.with[slot].compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst);
            if mine.is_err() {
                continue;
            }
            found = true;
            // Another one of us may have served it since. While it is ours it can only be left.
            let state = run.request(slot, 0).load(Ordering::Acquire);
            if state != REQUEST_ASKED {
                run.request_free(slot, REQUEST_LEFT);
                run.with[slot].store(0, Ordering::SeqCst);
                continue;
            }
            run.is_busy();
            run.serve_one(slot);
            begins = true;
            if run.is_surplus() {
                return;
            }
        }
        if let Some(late) = run.late_take() {
            found = true;
            run.is_busy();
            run.late_look(late);
            begins = true;
            if run.is_surplus() {
                return;
            }
        }
        if !found {
            let soon = mem::take(&mut begins);
            let most = match soon {
                true => run.begins_within(),
                false => Duration::from_secs(1),
            };
            Run::futex_wait(bell, rung, most);
            begins = soon && run.beginnings_look();
        }
    }
}

/// A child of ours on its way to its program's first instruction.
pub struct Following {
    ended: mpsc::Receiver<std::convert::Infallible>,
}

impl Following {
    /// Returns once it has begun, or failed to. Nobody may wait for the child before: it would be
    /// told of stops that are for whoever traces it, in whatever thread of ours.
    pub fn begun(self) {
        let _ = self.ended.recv();
    }
}

impl Run {
    /// A thread that is about to execute something cannot be traced.
    fn refused(&self, tid: i32, error: &io::Error) {
        let counts = |process| proc::lives_as(process, tid) && self.counts(process);
        if !proc::process(tid).is_some_and(counts) {
            return;
        }
        let why = match proc::tracer(tid) {
            Some(name) => format!("it is traced by {name}"),
            None => format!("it may not be traced: {error}"),
        };
        let told = self.boundary(tid, Since::Executes);
        // It tries again where its execve has failed.
        let first = self.areas().refused.insert(tid);
        if first {
            match told {
                true => self.ended().boundary(why, None),
                false => self.ended().left(why, None),
            }
        }
    }

    fn serve_one(&self, slot: usize) {
        let field = |at| self.request(slot, at).load(Ordering::Relaxed);
        let (kind, tid, fd) = (field(run::KIND), field(run::TID) as i32, field(run::FD));
        let error = |e: io::Error| -e.raw_os_error().unwrap_or(libc::EIO);
        let asked = Asked::of(kind);
        // Whoever can write the run's memory can ask in the name of anybody.
        let at = self.request_long(slot, run::AT);
        let asker = match asked {
            None | Some(Asked::LetGo) => None,
            Some(_) => self.asker(slot, tid, at),
        };
        self.askers[slot].store(asker.map_or(0, |by| by.tid), Ordering::Relaxed);
        let mut still = None;
        let since = clock::ticks();
        let answer = match (asked, asker) {
            (None, _) => -libc::EINVAL,
            (Some(Asked::LetGo), _) => {
                self.ask_to_let_go(fd as usize);
                0
            }
            (Some(Asked::Exec), None) => {
                self.ended().left(NOT_OURS.into(), None);
                -libc::EPERM
            }
            (Some(_), None) => -libc::EPERM,
            (Some(Asked::Exec), Some(by)) => match self.seize(by.tid) {
                Ok(()) => {
                    self.whose_is(by.tid);
                    let began = fd;
                    let left = !self.answer(slot, 0);
                    if left {
                        let _ = tracee::interrupt(by.tid);
                    }
                    self.come_along(Asker::Program { slot, began, by }, left);
                    return;
                }
                Err(e) => {
                    self.refused(by.tid, &e);
                    error(e)
                }
            },
            (Some(Asked::Image(side)), Some(By { tid, .. })) => {
                remote::open_by(tid, fd as i32, !is_ours(tid))
                    .map_err(error)
                    .and_then(|file| self.image(tid, file, side))
                    .map_or_else(|e| e, |_| 0)
            }
            (Some(Asked::Sent), Some(by)) => {
                let socket = field(run::SOCKET);
                let sent = match socket >> state::BEHIND_SHIFT {
                    state::BEHIND_RUN => self.send(by.tid, &self.file, socket),
                    behind => self
                        .image_for(by.tid, fd as i32, behind)
                        .and_then(|image| self.send(by.tid, &image, socket)),
                };
                sent.map_or_else(|e| e, |()| 0)
            }
            // Its other threads go on meanwhile: the kernel side looks at their calls before the first
            // of them is not told of.
            (Some(Asked::Undo), Some(by)) => self.undo(by.tid).map_or_else(error, |undo| {
                let why = match fd {
                    state::KNOWS_ITS_CALLS => KNOWS_ITS_CALLS,
                    state::SETS_GS => SETS_GS,
                    state::NO_IMAGE => NO_IMAGE,
                    _ => UNDONE,
                };
                let told = self.boundary_soon(by.tid, Since::Undone, why);
                // Nobody executes what is half written; where somebody cannot be stopped, that is to be hoped.
                still = (!proc::is_alone(by.tid)).then(|| Threads::stop_most(by.tid));
                undo.code_back().map_or_else(error, |()| told)
            }),
            (Some(Asked::Cut), Some(by)) if fd != 0 => {
                match self.gives_up(by.tid, by.below, slot) {
                    Rights::Alone => state::ALONE,
                    Rights::Moves(run) => self
                        .send(by.tid, &run.file, field(run::SOCKET))
                        .map_or_else(|e| e, |()| state::MOVES),
                    Rights::Ends => -libc::EAGAIN,
                }
            }
            (Some(Asked::Cut), Some(by)) => {
                if let Some(pid) = proc::process(by.tid) {
                    self.moved_forget(pid);
                }
                // Else it goes on in the trampolines, which serve nothing any more.
                if proc::is_alone(by.tid) {
                    let _ = self.undo(by.tid).and_then(|undo| undo.code_back());
                }
                self.boundary_soon(by.tid, Since::Cut, RIGHTS)
            }
        };
        if asker.is_some() {
            let took = clock::ns(clock::ticks().saturating_sub(since), self.common.rate);
            more(&mut self.ended().asked_ns, took);
        }
        self.answer(slot, answer);
        self.request_free(slot, REQUEST_LEFT);
        self.with[slot].store(0, Ordering::SeqCst);
        // Who does not listen (in vfork, say) is waited for by nobody but this thread of ours.
        drop(still);
    }

    /// An image of a file that a thread's process has open. Else -errno.
    fn image(&self, tid: i32, file: File, side: Side) -> Result<Arc<Known>, i32> {
        let images = self.images();
        // Our disk is not his.
        if !is_ours(tid) && images.copied_bytes() > OTHERS_BYTES {
            return Err(-libc::EDQUOT);
        }
        images.of(file, side).map_err(|e| no_image(&e))
    }

    /// An image of what it has open, or what lies beside it, for who may read that and not come into our folder.
    fn image_for(&self, tid: i32, fd: i32, behind: u32) -> Result<File, i32> {
        let error = |e: io::Error| -e.raw_os_error().unwrap_or(libc::EIO);
        let file = remote::open_by(tid, fd, true).map_err(error)?;
        let about = file.metadata().map_err(error)?;
        if !proc::may_read(tid, &about) {
            return Err(-libc::EACCES);
        }
        let side = match behind {
            state::BEHIND_ABOVE => Side::Above,
            _ => Side::Below,
        };
        let known = self.image(tid, file, side)?;
        let path = match behind {
            state::BEHIND_CALLERS => self.images().callers_of(&about),
            _ => known.image.clone(),
        };
        File::open(path).map_err(error)
    }

    /// A file, through a socket that a thread's process has made. Else -errno.
    fn send(&self, tid: i32, file: &File, socket: u32) -> Result<(), i32> {
        let pid = proc::process(tid).ok_or(-libc::ESRCH)?;
        let number = socket & ((1 << state::BEHIND_SHIFT) - 1);
        let sent = remote::send_to(pid, number as i32, &[file.as_fd()]);
        sent.map_err(|e| -e.raw_os_error().unwrap_or(libc::EIO))
    }

    fn ask_to_let_go(&self, slot: usize) {
        let Some(with) = self.with.get(slot) else {
            return;
        };
        let thread = with.load(Ordering::SeqCst);
        self.let_go[slot].store(true, Ordering::SeqCst);
        // It may be on its way into the wait, so once more until it has heard.
        while thread != 0
            && self.let_go[slot].load(Ordering::SeqCst)
            && with.load(Ordering::SeqCst) == thread
        {
            // SAFETY: a thread of ours, which has a handler that does nothing.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, attention()) };
            thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

/// A program that is about to begin.
struct Begin<'a> {
    index: u32,
    /// It and its loader, and where they lie.
    parts: &'a [(Arc<Known>, u64)],
    /// Where code of ours may lie.
    spare: &'a [Range<u64>],
    /// It gets our files.
    sends: bool,
}

/// AT_PHDR of a process.
fn headers_of(pid: i32) -> io::Result<u64> {
    let bytes = proc::read(pid, "auxv")?;
    let mut entries = bytes.chunks_exact(16);
    let entry = entries.find(|entry| proc::long_of(entry, 0) == libc::AT_PHDR);
    Ok(entry.map_or(0, |entry| proc::long_of(entry, 8)))
}

/// Whether programs may set GS by an instruction here.
pub(crate) fn sets_gs_by_instruction() -> bool {
    const HWCAP2_FSGSBASE: u64 = 2;
    // SAFETY: no pointers.
    let has = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    has & HWCAP2_FSGSBASE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_left_is_free_once_nobody_serves_it() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = folder.path().join("runtime");
        std::fs::write(&runtime, vec![0; 1 << 16]).unwrap();
        let run = Run::new(&folder.path().join("images"), &runtime, 1).unwrap();
        let comes_free = |slot| {
            let since = Instant::now();
            while run.request(slot, 0).load(Ordering::SeqCst) != REQUEST_NONE {
                assert!(since.elapsed() < Duration::from_secs(30));
                thread::sleep(Duration::from_millis(1));
            }
        };
        run.with[0].store(1, Ordering::SeqCst);
        for slot in 0..2 {
            run.request(slot, 0).store(REQUEST_LEFT, Ordering::SeqCst);
        }
        run.ring();
        comes_free(1);
        let first = run.request(0, 0);
        assert_eq!(first.load(Ordering::SeqCst), REQUEST_LEFT);
        run.with[0].store(0, Ordering::SeqCst);
        run.ring();
        comes_free(0);
    }
}
