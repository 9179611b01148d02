// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--trace learn`: which kernel functions do these calls pass, here, today?
//!
//! Asked of the kernel's own function tracer, in an instance of tracefs made
//! for it: it sees every function, of the watched threads and their children
//! only, for a moment. What it saw then becomes the set of the call trace.
//!
//! A process of its own takes the instance away, so that it also goes when we
//! are killed: nobody else would ever switch it off.

use crate::error::Error;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// From the first call on.
const LONG_ENOUGH: Duration = Duration::from_secs(2);
const CALLS_ENOUGH: u64 = 2000;
const PREFIX: &str = "debox-learn-";
/// Of all CPUs together.
const BUFFER_KB: usize = 16 << 10;

/// Small functions that are everywhere, and what tracing itself uses: they
/// would fill the buffer and tell nothing.
const LEFT_OUT: [&str; 12] = [
    "*rcu*",
    "_raw_*",
    "__raw_*",
    "preempt_*",
    "ktime_*",
    "*bpf*",
    "*ftrace*",
    "trace_*",
    "*_trace_*",
    "__traceiter_*",
    "ring_buffer_*",
    "rb_*",
];

/// The functions that calls passed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// First those that most calls pass, and seldom more than once.
    pub functions: Vec<String>,
    pub calls: u64,
}

impl Learned {
    /// As many names as fit into `room` bytes with commas between them.
    pub fn patterns(&self, room: usize) -> (String, usize) {
        let mut text = String::new();
        let mut taken = 0;
        for name in &self.functions {
            if text.len() + name.len() + 1 > room {
                break;
            }
            if taken > 0 {
                text.push(',');
            }
            text.push_str(name);
            taken += 1;
        }
        (text, taken)
    }
}

/// An instance that is set up, and not yet on.
pub struct Learner {
    instance: Instance,
    calls: Vec<u32>,
}

impl Learner {
    /// Sets everything up that takes time; `calls` are system call numbers,
    /// none: all. `among`: patterns of functions, none: all.
    pub fn prepare(calls: Vec<u32>, among: &str) -> Result<Learner, Error> {
        let instance = Instance::create().map_err(explain)?;
        let cpus = fs::read_dir(instance.path.join("per_cpu"))
            .map_or(1, Iterator::count)
            .max(1);
        let each = (BUFFER_KB / cpus).max(256);
        instance
            .write("buffer_size_kb", &each.to_string())
            .map_err(explain)?;
        // Not in every kernel: without it other options do.
        for (option, value) in [
            ("function-fork", "1"),
            ("event-fork", "1"),
            ("overwrite", "0"),
        ] {
            instance
                .write(&format!("options/{option}"), value)
                .map_err(explain)?;
        }
        // A pattern that matches nothing is an error; all of them are one to us.
        let mut some = among.is_empty();
        for pattern in among.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            some |= instance.append("set_ftrace_filter", pattern).is_ok();
        }
        if !some {
            return Err(Error::Usage(format!(
                "--trace learn:{among} matches no function that this kernel can trace"
            )));
        }
        for pattern in LEFT_OUT {
            let _ = instance.append("set_ftrace_notrace", pattern);
        }
        for event in ["sys_enter", "sys_exit"] {
            instance
                .write(&format!("events/raw_syscalls/{event}/enable"), "1")
                .map_err(explain)?;
        }
        Ok(Learner { instance, calls })
    }

    /// Switches it on for these threads and whom they start.
    pub fn begin(&self, threads: &[u32]) -> Result<(), Error> {
        let list: Vec<String> = threads.iter().map(u32::to_string).collect();
        let list = list.join(" ");
        for (file, text) in [
            ("set_event_pid", list.as_str()),
            ("set_ftrace_pid", list.as_str()),
            ("current_tracer", "function"),
            ("tracing_on", "1"),
        ] {
            self.instance.write(file, text).map_err(explain)?;
        }
        Ok(())
    }

    /// Reads until there is enough, or `over`; at most `longest`, if given.
    pub fn run(self, over: &AtomicBool, longest: Option<Duration>) -> Result<Learned, Error> {
        let mut pipe = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.instance.path.join("trace_pipe"))
            .map_err(explain)?;
        let mut reader = Reader::new(self.calls.clone());
        let begin = Instant::now();
        let mut first: Option<Instant> = None;
        let mut text = vec![0u8; 1 << 16];
        let mut rest = Vec::new();
        loop {
            let got = match pipe.read(&mut text) {
                Ok(n) => n,
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    0
                }
                Err(e) => return Err(explain(e)),
            };
            rest.extend_from_slice(&text[..got]);
            let whole = rest
                .iter()
                .rposition(|&b| b == b'\n')
                .map_or(0, |at| at + 1);
            for line in String::from_utf8_lossy(&rest[..whole]).lines() {
                reader.line(line);
            }
            rest.drain(..whole);
            if reader.begun && first.is_none() {
                first = Some(Instant::now());
            }
            let done = first.is_some_and(|f| f.elapsed() >= LONG_ENOUGH)
                || reader.calls_done >= CALLS_ENOUGH
                || longest.is_some_and(|l| begin.elapsed() >= l);
            if done || got == 0 && over.load(Ordering::Relaxed) {
                break;
            }
            if got == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop(pipe);
        Ok(reader.learned())
    }
}

fn explain(source: io::Error) -> Error {
    Error::CannotWatch {
        why: format!(
            "--trace learn needs the kernel's function tracer, /sys/kernel/tracing/instances: {source}. \
             It is for root; name the functions instead (--trace 'vfs_*,ext4_*')"
        ),
    }
}

// -- the instance -----------------------------------------------------------------

struct Instance {
    path: PathBuf,
    /// Closed when we end, in whatever way: then the other process acts.
    guard: Option<(OwnedFd, libc::pid_t)>,
}

/// Instances whose makers are gone, and whose guards were killed with them.
fn sweep(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::write(entry.path().join("current_tracer"), "nop");
            let _ = fs::remove_dir(entry.path());
        }
    }
}

impl Instance {
    fn create() -> io::Result<Instance> {
        let instances = debox_symbol::tracefs::mounted()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "tracefs is not mounted"))?
            .join("instances");
        sweep(&instances);
        let path = instances.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path)?;
        let mut instance = Instance { path, guard: None };
        instance.guard = Some(match guard_start(&instance.path) {
            Ok(guard) => guard,
            Err(error) => {
                let _ = fs::remove_dir(&instance.path);
                return Err(error);
            }
        });
        // It records from the beginning unless told otherwise.
        instance.write("tracing_on", "0")?;
        Ok(instance)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.path.join(file), text)
            .map_err(|e| io::Error::new(e.kind(), format!("{file}: {e}")))
    }

    fn append(&self, file: &str, text: &str) -> io::Result<()> {
        let mut file = File::options().append(true).open(self.path.join(file))?;
        file.write_all(text.as_bytes())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some((pipe, pid)) = self.guard.take() {
            drop(pipe);
            // SAFETY: reaps our own child, which ends as the pipe is closed.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// Starts the process that removes the instance when the returned end closes.
fn guard_start(instance: &Path) -> io::Result<(OwnedFd, libc::pid_t)> {
    let c = |path: PathBuf| {
        CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput)
    };
    let directory = c(instance.to_owned())?;
    let files = [
        c(instance.join("tracing_on"))?,
        c(instance.join("current_tracer"))?,
    ];
    let texts: [&[u8]; 2] = [b"0", b"nop"];
    let mut ends = [-1; 2];
    // SAFETY: fills a local; both ends are owned at once.
    let (read_end, write_end) = unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    // SAFETY: the child makes system calls only, on what was made before.
    unsafe {
        let pid = libc::fork();
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid > 0 {
            return Ok((write_end, pid));
        }
        // Out of reach of the terminal's signals, and holding nothing of ours:
        // an inherited BPF link would keep its program attached.
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::setsid();
        libc::dup2(read_end.as_raw_fd(), 0);
        libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0);
        let mut byte = 0u8;
        while libc::read(0, (&raw mut byte).cast(), 1) < 0
            && *libc::__errno_location() == libc::EINTR
        {}
        for (file, text) in files.iter().zip(texts) {
            let fd = libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if fd >= 0 {
                libc::write(fd, text.as_ptr().cast(), text.len());
                libc::close(fd);
            }
        }
        // Busy while somebody reads it.
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        for _ in 0..600 {
            if libc::rmdir(directory.as_ptr()) == 0 || *libc::__errno_location() != libc::EBUSY {
                break;
            }
            libc::nanosleep(&pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}

// -- what it says -------------------------------------------------------------------

/// One line: the thread, whether an interrupt runs, and what was passed.
fn parts(line: &str) -> Option<(u32, bool, &str)> {
    // "name-TID   [CPU] FLAGS TIME: WHAT"; the name may hold anything.
    for (at, _) in line.match_indices(" [") {
        let before = line[..at].trim_end();
        let tid = before.rsplit('-').next()?.parse::<u32>().ok();
        let (cpu, rest) = line[at + 2..].split_once("] ")?;
        let (Some(tid), true) = (tid, cpu.bytes().all(|b| b.is_ascii_digit())) else {
            continue;
        };
        let mut words = rest.trim_start().splitn(2, ' ');
        let flags = words.next()?;
        let (_, what) = words.next()?.split_once(": ")?;
        let interrupt = !matches!(flags.as_bytes().get(2), Some(b'.'));
        return Some((tid, interrupt, what));
    }
    None
}

#[derive(Default)]
struct Seen {
    /// By call number: calls that passed it, and how often.
    by_call: HashMap<u32, (u64, u64)>,
    first: usize,
}

/// A call that is open.
struct Open {
    number: u32,
    passed: HashMap<String, u64>,
}

struct Reader {
    wanted: Vec<u32>,
    open: HashMap<u32, Open>,
    seen: HashMap<String, Seen>,
    calls: HashMap<u32, u64>,
    calls_done: u64,
    begun: bool,
}

impl Reader {
    fn new(wanted: Vec<u32>) -> Reader {
        Reader {
            wanted,
            open: HashMap::new(),
            seen: HashMap::new(),
            calls: HashMap::new(),
            calls_done: 0,
            begun: false,
        }
    }

    fn line(&mut self, line: &str) {
        if line.contains("[LOST ") {
            // Nobody knows any more who is in which call.
            self.open.clear();
            return;
        }
        let Some((tid, interrupt, what)) = parts(line) else {
            return;
        };
        if let Some(rest) = what.strip_prefix("sys_enter: NR ") {
            self.end(tid);
            let number = rest.split(' ').next().and_then(|n| n.parse().ok());
            if let Some(number) = number
                && (self.wanted.is_empty() || self.wanted.contains(&number))
            {
                self.begun = true;
                let passed = HashMap::new();
                self.open.insert(tid, Open { number, passed });
            }
        } else if what.starts_with("sys_exit: ") {
            self.end(tid);
        } else if let Some((function, _)) = what.split_once(" <-")
            && !interrupt
            && let Some(open) = self.open.get_mut(&tid)
        {
            // Of a module: "name [module]".
            let function = function.split(' ').next().unwrap_or(function);
            // A part that the compiler cut out of a function has no name that
            // could be asked for.
            if function.contains('.') && !function.contains(".isra") {
                return;
            }
            if let Some(n) = open.passed.get_mut(function) {
                *n += 1;
            } else {
                open.passed.insert(function.to_owned(), 1);
            }
        }
    }

    /// The thread's call is over, or its end was not seen.
    fn end(&mut self, tid: u32) {
        let Some(open) = self.open.remove(&tid) else {
            return;
        };
        *self.calls.entry(open.number).or_default() += 1;
        self.calls_done += 1;
        for (function, n) in open.passed {
            let next = self.seen.len();
            let seen = self.seen.entry(function).or_insert_with(|| Seen {
                first: next,
                ..Seen::default()
            });
            let sums = seen.by_call.entry(open.number).or_default();
            sums.0 += 1;
            sums.1 += n;
        }
    }

    fn learned(mut self) -> Learned {
        // What is open still counts: a call that sleeps, or never returns.
        let open: Vec<u32> = self.open.keys().copied().collect();
        for tid in open {
            self.end(tid);
        }
        let mut ranked: Vec<(String, f64, f64, usize)> = self
            .seen
            .into_iter()
            .map(|(function, seen)| {
                let mut share: f64 = 0.0;
                let mut often: f64 = 0.0;
                for (number, (calls, entries)) in &seen.by_call {
                    let of = self.calls.get(number).copied().unwrap_or(1) as f64;
                    share = share.max(*calls as f64 / of);
                    often = often.max(*entries as f64 / *calls as f64);
                }
                (function, share, often, seen.first)
            })
            .collect();
        ranked.sort_by(|a, b| {
            (b.1.total_cmp(&a.1))
                .then(a.2.total_cmp(&b.2))
                .then_with(|| a.3.cmp(&b.3))
                .then_with(|| a.0.cmp(&b.0))
        });
        Learned {
            functions: ranked.into_iter().map(|r| r.0).collect(),
            calls: self.calls_done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
          <idle>-0       [001] d....   12.000000: rest_init <-start
 my [2] prog-77      [000] .....   12.000001: sys_enter: NR 257 (ffffff9c, 7f, 0, 0, 0, 0)
 my [2] prog-77      [000] .....   12.000002: do_sys_openat2 <-__x64_sys_openat
 my [2] prog-77      [000] ...1.   12.000003: kmem_cache_alloc <-getname
 my [2] prog-77      [000] ...1.   12.000003: kmem_cache_alloc <-getname
 my [2] prog-77      [000] d.h1.   12.000004: tick_sched <-hrtimer
 my [2] prog-77      [000] .....   12.000004: walk.part.0 <-do_open
 my [2] prog-77      [000] .....   12.000005: ext4_open [ext4] <-do_open
 my [2] prog-77      [000] .....   12.000006: sys_exit: NR 257 = 3
 my [2] prog-77      [000] .....   12.000007: exc_page_fault <-asm
 my [2] prog-77      [000] .....   12.000008: sys_enter: NR 3 (3, 0, 0, 0, 0, 0)
 my [2] prog-77      [000] .....   12.000009: fput <-close
 my [2] prog-77      [000] .....   12.000010: sys_exit: NR 3 = 0
CPU:0 [LOST 17 EVENTS]
 my [2] prog-77      [000] .....   12.000011: nobody_knows <-who
";

    fn learn(calls: &[u32]) -> Learned {
        let mut reader = Reader::new(calls.to_vec());
        TEXT.lines().for_each(|line| reader.line(line));
        reader.learned()
    }

    #[test]
    fn functions_of_the_wanted_call_only() {
        let learned = learn(&[257]);
        assert_eq!(learned.calls, 1);
        let mut names = learned.functions.clone();
        // What it passed twice comes last.
        assert_eq!(names.pop().as_deref(), Some("kmem_cache_alloc"));
        names.sort();
        assert_eq!(names, ["do_sys_openat2", "ext4_open"]);
    }

    #[test]
    fn all_calls_and_nothing_between_them() {
        let learned = learn(&[]);
        assert_eq!(learned.calls, 2);
        assert!(learned.functions.contains(&"fput".to_owned()));
        for name in ["exc_page_fault", "tick_sched", "nobody_knows", "rest_init"] {
            assert!(!learned.functions.contains(&name.to_owned()), "{name}");
        }
    }

    #[test]
    fn as_many_as_fit() {
        let learned = Learned {
            functions: vec!["aaa".into(), "bbb".into(), "ccc".into()],
            calls: 1,
        };
        assert_eq!(learned.patterns(8), ("aaa,bbb".into(), 2));
        assert_eq!(learned.patterns(100), ("aaa,bbb,ccc".into(), 3));
    }
}
