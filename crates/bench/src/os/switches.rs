// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does it cost to let another thread run, and hear back from it?
//!
//! A round trip: this thread wakes its partner and sleeps until the partner
//! has woken it. The same calls are also made by one thread that never has to
//! wait (`switch-calls/...`): what is left of half a round trip without them
//! is the estimate of one switch.

use super::{Ctx, unavailable};
use crate::Error;
use crate::clock::Clock;
use crate::raw::{call3, call6, check, os_error};
use crate::sampling::{Case, pin};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A process that answers, ended and reaped when dropped.
struct Partner {
    pid: libc::pid_t,
}

impl Partner {
    /// Forks; the child runs `body` on `cpu` and never returns.
    ///
    /// # Safety
    /// `body` runs in the child of a fork: nothing but system calls and plain
    /// memory.
    unsafe fn fork(cpu: usize, body: impl FnOnce()) -> Result<Self, Error> {
        let parent = std::process::id();
        // SAFETY: the child only does what the caller promises, then _exit.
        unsafe {
            let pid = check(libc::fork(), "fork")?;
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // The parent may have ended before the line above.
                if libc::getppid() as u32 == parent && pin(cpu).is_ok() {
                    body();
                }
                libc::_exit(0);
            }
            Ok(Self { pid })
        }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut fds = [0; 2];
    // SAFETY: room for two; owned at once.
    unsafe {
        check(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC), "pipe")?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

fn event() -> Result<OwnedFd, Error> {
    // SAFETY: owned at once.
    unsafe {
        Ok(OwnedFd::from_raw_fd(check(
            libc::eventfd(0, libc::EFD_CLOEXEC),
            "eventfd",
        )?))
    }
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut fds = [0; 2];
    // SAFETY: room for two; owned at once.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        check(
            libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()),
            "socketpair",
        )?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// Writes one message and reads one; `false` when either fails.
#[inline(always)]
fn exchange(out: i32, from: i32, size: usize) -> bool {
    let mut word = 1u64;
    let at = &raw mut word as usize;
    // SAFETY: `word` has 8 bytes and size is at most that.
    unsafe {
        call3(libc::SYS_write, out as usize, at, size) == size as i64
            && call3(libc::SYS_read, from as usize, at, size) == size as i64
    }
}

#[inline(always)]
fn answer(from: i32, out: i32, size: usize) -> bool {
    let mut word = 1u64;
    let at = &raw mut word as usize;
    // SAFETY: as above.
    unsafe {
        call3(libc::SYS_read, from as usize, at, size) == size as i64
            && call3(libc::SYS_write, out as usize, at, size) == size as i64
    }
}

fn trips(id: String, clock: Clock, mut trip: impl FnMut() -> bool + 'static) -> Case {
    let name = id.clone();
    Case::new(id, move |n| {
        let mut good = true;
        let took = clock.time(|| {
            for _ in 0..n {
                good &= trip();
            }
        });
        if good { Ok(took) } else { Err(os_error(&name)) }
    })
}

/// Both ends' descriptors: (main writes, partner reads), (partner writes, main reads).
struct Channel {
    to: (OwnedFd, OwnedFd),
    back: (OwnedFd, OwnedFd),
    size: usize,
}

fn clone_fd(fd: &OwnedFd) -> Result<OwnedFd, Error> {
    fd.try_clone().map_err(|source| Error::System {
        what: "dup".into(),
        source,
    })
}

#[derive(Clone, Copy)]
enum Means {
    Pipe,
    Event,
    Socket,
}

impl Means {
    fn name(self) -> &'static str {
        match self {
            Self::Pipe => "pipe",
            Self::Event => "eventfd",
            Self::Socket => "socket",
        }
    }

    fn channel(self) -> Result<Channel, Error> {
        Ok(match self {
            Self::Pipe => {
                let (r, w) = pipe()?;
                let (r2, w2) = pipe()?;
                Channel {
                    to: (w, r),
                    back: (w2, r2),
                    size: 1,
                }
            }
            Self::Event => {
                let (a, b) = (event()?, event()?);
                Channel {
                    to: (clone_fd(&a)?, a),
                    back: (clone_fd(&b)?, b),
                    size: 8,
                }
            }
            Self::Socket => {
                let (a, b) = socket_pair()?;
                Channel {
                    to: (clone_fd(&a)?, clone_fd(&b)?),
                    back: (b, a),
                    size: 1,
                }
            }
        })
    }
}

fn by_descriptor(ctx: &Ctx, means: Means, cpu: usize, place: &str) -> Result<Case, Error> {
    let c = means.channel()?;
    let [tw, tr, bw, br] =
        [&c.to.0, &c.to.1, &c.back.0, &c.back.1].map(std::os::fd::AsRawFd::as_raw_fd);
    let size = c.size;
    // SAFETY: the child reads and writes descriptors.
    let partner = unsafe { Partner::fork(cpu, || while answer(tr, bw, size) {})? };
    Ok(trips(
        format!("switch/{}/{place}", means.name()),
        ctx.clock,
        move || {
            let _keep = (&c, &partner);
            exchange(tw, br, size)
        },
    ))
}

/// The same descriptors, one thread that never waits.
fn by_descriptor_calls(ctx: &Ctx, means: Means) -> Result<Case, Error> {
    let c = means.channel()?;
    let (w, r, size) = (c.to.0.as_raw_fd(), c.to.1.as_raw_fd(), c.size);
    Ok(trips(
        format!("switch-calls/{}", means.name()),
        ctx.clock,
        move || {
            let _keep = &c;
            exchange(w, r, size)
        },
    ))
}

/// A thread that answers through a pipe: no other address space is switched to.
fn by_thread_pipe(ctx: &Ctx, cpu: usize, place: &str) -> Result<Case, Error> {
    let (r, w) = pipe()?;
    let (r2, w2) = pipe()?;
    let (to, back) = (w.as_raw_fd(), r2.as_raw_fd());
    // The thread owns its ends and ends when ours are closed.
    std::thread::spawn(move || {
        if pin(cpu).is_ok() {
            while answer(r.as_raw_fd(), w2.as_raw_fd(), 1) {}
        }
    });
    Ok(trips(
        format!("switch/pipe-threads/{place}"),
        ctx.clock,
        move || {
            let _keep = (&w, &r2);
            exchange(to, back, 1)
        },
    ))
}

/// One page that is shared with a forked partner.
struct Shared(*mut libc::c_void);

impl Shared {
    fn new() -> Result<Self, Error> {
        // SAFETY: a new mapping, unmapped in drop.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            Err(os_error("mmap"))
        } else {
            Ok(Self(at))
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: a page that lives as long as self, only used as this word.
        unsafe { &*self.0.cast::<AtomicU32>() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in new().
        unsafe { libc::munmap(self.0, 4096) };
    }
}

#[inline(always)]
fn futex_wait(word: &AtomicU32, value: u32) {
    let at = word.as_ptr() as usize;
    // SAFETY: the word lives; no time limit.
    unsafe {
        call6(
            libc::SYS_futex,
            at,
            libc::FUTEX_WAIT as usize,
            value as usize,
            0,
            0,
            0,
        )
    };
}

#[inline(always)]
fn futex_wake(word: &AtomicU32) {
    let at = word.as_ptr() as usize;
    // SAFETY: the word lives.
    unsafe { call6(libc::SYS_futex, at, libc::FUTEX_WAKE as usize, 1, 0, 0, 0) };
}

/// Hands the word over and waits until it comes back.
#[inline(always)]
fn futex_hand_over(word: &AtomicU32, theirs: u32) {
    word.store(theirs, Ordering::Release);
    futex_wake(word);
    while word.load(Ordering::Acquire) == theirs {
        futex_wait(word, theirs);
    }
}

fn by_futex(ctx: &Ctx, cpu: usize, place: &str) -> Result<Case, Error> {
    let shared = Shared::new()?;
    let word = shared.word();
    // SAFETY: the child uses the shared word and futex calls.
    let partner = unsafe {
        Partner::fork(cpu, || {
            while word.load(Ordering::Acquire) == 0 {
                futex_wait(word, 0);
            }
            loop {
                futex_hand_over(word, 0);
            }
        })?
    };
    Ok(trips(
        format!("switch/futex/{place}"),
        ctx.clock,
        move || {
            let _keep = &partner;
            futex_hand_over(shared.word(), 1);
            true
        },
    ))
}

fn by_futex_calls(ctx: &Ctx) -> Result<Case, Error> {
    let shared = Shared::new()?;
    Ok(trips("switch-calls/futex".into(), ctx.clock, move || {
        let word = shared.word();
        // Nobody waits; and the value is another one already.
        futex_wake(word);
        futex_wait(word, 7);
        true
    }))
}

struct Condition {
    mutex: std::cell::UnsafeCell<libc::pthread_mutex_t>,
    condition: std::cell::UnsafeCell<libc::pthread_cond_t>,
    /// Whose turn it is: 0 main, 1 partner. Under the mutex.
    turn: std::cell::UnsafeCell<u32>,
    over: AtomicBool,
}

// SAFETY: the pthread objects are made for that, and `turn` is only touched
// with the mutex held.
unsafe impl Send for Condition {}
// SAFETY: as above.
unsafe impl Sync for Condition {}

impl Condition {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            mutex: libc::PTHREAD_MUTEX_INITIALIZER.into(),
            condition: libc::PTHREAD_COND_INITIALIZER.into(),
            turn: 0.into(),
            over: AtomicBool::new(false),
        })
    }

    /// Gives the turn to the other one and waits to get it back. The signal
    /// comes after the unlocking: with the mutex held, the woken thread could
    /// run into it and sleep again, and those switches would count as well.
    fn hand_over(&self, theirs: u32) {
        let mine = 1 - theirs;
        // SAFETY: initialised statically; `turn` under the mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
            *self.turn.get() = theirs;
            libc::pthread_mutex_unlock(self.mutex.get());
            libc::pthread_cond_signal(self.condition.get());
            libc::pthread_mutex_lock(self.mutex.get());
            while *self.turn.get() != mine && !self.over.load(Ordering::Relaxed) {
                libc::pthread_cond_wait(self.condition.get(), self.mutex.get());
            }
            libc::pthread_mutex_unlock(self.mutex.get());
        }
    }

    fn finish(&self) {
        // SAFETY: as above.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
            self.over.store(true, Ordering::Relaxed);
            libc::pthread_cond_broadcast(self.condition.get());
            libc::pthread_mutex_unlock(self.mutex.get());
        }
    }
}

/// Ends the partner thread when the case is dropped.
struct ConditionUser(Arc<Condition>);

impl Drop for ConditionUser {
    fn drop(&mut self) {
        self.0.finish();
    }
}

fn by_condition(ctx: &Ctx, cpu: usize, place: &str) -> Result<Case, Error> {
    let condition = Condition::new();
    let theirs = condition.clone();
    std::thread::spawn(move || {
        if pin(cpu).is_ok() {
            // Begins by giving the turn to main, which has it anyway.
            while !theirs.over.load(Ordering::Relaxed) {
                theirs.hand_over(0);
            }
        }
    });
    let user = ConditionUser(condition);
    Ok(trips(
        format!("switch/condvar/{place}"),
        ctx.clock,
        move || {
            let user = &user;
            user.0.hand_over(1);
            true
        },
    ))
}

/// The locking, a signal that nobody waits for, and the two futex calls that a
/// wait and its wake-up make.
fn by_condition_calls(ctx: &Ctx) -> Result<Case, Error> {
    let condition = Condition::new();
    let shared = Shared::new()?;
    Ok(trips("switch-calls/condvar".into(), ctx.clock, move || {
        condition.hand_over_alone();
        futex_wake(shared.word());
        futex_wait(shared.word(), 7);
        true
    }))
}

impl Condition {
    fn hand_over_alone(&self) {
        // SAFETY: as in hand_over.
        unsafe {
            libc::pthread_mutex_lock(self.mutex.get());
            libc::pthread_mutex_unlock(self.mutex.get());
            libc::pthread_cond_signal(self.condition.get());
            libc::pthread_mutex_lock(self.mutex.get());
            libc::pthread_mutex_unlock(self.mutex.get());
        }
    }
}

// ---------------------------------------------------------------- signals

static ARRIVED: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_: libc::c_int) {
    ARRIVED.fetch_add(1, Ordering::Relaxed);
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: emptied before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for s in signals {
            libc::sigaddset(&mut set, *s);
        }
        set
    }
}

/// How the end of a signal is noticed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// A handler runs (the paper's way): SIGUSR1.
    Handler,
    /// sigtimedwait takes it, no handler: SIGUSR2.
    Wait,
}

impl Notice {
    fn signal(self) -> i32 {
        if self == Self::Handler {
            libc::SIGUSR1
        } else {
            libc::SIGUSR2
        }
    }

    fn name(self) -> &'static str {
        if self == Self::Handler {
            "signal"
        } else {
            "signal-wait"
        }
    }

    #[inline(always)]
    fn wait(self, open: &libc::sigset_t, wanted: &libc::sigset_t) -> bool {
        // The kernel's sets have 8 bytes.
        // SAFETY: both sets live; the handler is installed.
        unsafe {
            match self {
                Self::Handler => {
                    let before = ARRIVED.load(Ordering::Relaxed);
                    while ARRIVED.load(Ordering::Relaxed) == before {
                        call3(libc::SYS_rt_sigsuspend, &raw const *open as usize, 8, 0);
                    }
                    true
                }
                Self::Wait => loop {
                    let got = call6(
                        libc::SYS_rt_sigtimedwait,
                        &raw const *wanted as usize,
                        0,
                        0,
                        8,
                        0,
                        0,
                    );
                    if got == i64::from(libc::SIGUSR2) {
                        break true;
                    }
                    if got != -i64::from(libc::EINTR) {
                        break false;
                    }
                },
            }
        }
    }
}

#[inline(always)]
fn send(pid: i32, tid: i32, signal: i32) -> bool {
    // kill() to one thread, so that no other one of this process takes it.
    // SAFETY: no pointers.
    unsafe {
        call3(
            libc::SYS_tgkill,
            pid as usize,
            tid as usize,
            signal as usize,
        ) == 0
    }
}

/// Both signals blocked in this thread but while it waits; the handler installed.
fn signals_prepare() -> Result<(), Error> {
    // SAFETY: a handler that only touches an atomic; zeroed sigaction is valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
        check(
            libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
            "sigaction",
        )?;
        let set = set_of(&[libc::SIGUSR1, libc::SIGUSR2]);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
    Ok(())
}

fn thread_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { call3(libc::SYS_gettid, 0, 0, 0) as i32 }
}

fn by_signal(ctx: &Ctx, notice: Notice, cpu: usize, place: &str) -> Result<Case, Error> {
    signals_prepare()?;
    let (pid, tid) = (std::process::id() as i32, thread_id());
    let (open, wanted) = (set_of(&[]), set_of(&[notice.signal()]));
    // SAFETY: the child waits for signals and sends them; it inherits mask and handler.
    let partner = unsafe {
        Partner::fork(cpu, || {
            while notice.wait(&open, &wanted) && send(pid, tid, notice.signal()) {}
        })?
    };
    Ok(trips(
        format!("switch/{}/{place}", notice.name()),
        ctx.clock,
        move || {
            // The whole partner, not a copy of its number: it ends when dropped.
            let partner = &partner;
            send(partner.pid, partner.pid, notice.signal()) && notice.wait(&open, &wanted)
        },
    ))
}

fn by_signal_calls(ctx: &Ctx, notice: Notice) -> Result<Case, Error> {
    signals_prepare()?;
    let (pid, tid) = (std::process::id() as i32, thread_id());
    let (open, wanted) = (set_of(&[]), set_of(&[notice.signal()]));
    Ok(trips(
        format!("switch-calls/{}", notice.name()),
        ctx.clock,
        move || {
            // Blocked, so it is pending when the wait begins, which returns at once.
            send(pid, tid, notice.signal()) && notice.wait(&open, &wanted)
        },
    ))
}

/// In the order of the table.
pub const MEANS: [&str; 8] = [
    "signal",
    "signal-wait",
    "pipe",
    "pipe-threads",
    "socket",
    "eventfd",
    "futex",
    "condvar",
];

/// Which calls-only case belongs to a means.
pub fn calls_of(means: &str) -> &str {
    if means == "pipe-threads" {
        "pipe"
    } else {
        means
    }
}

pub fn cases(ctx: &Ctx) -> Result<Vec<Case>, Error> {
    let mut found = Vec::new();
    let mut add = |id: String, made: Result<Case, Error>| {
        found.push(made.unwrap_or_else(|e| unavailable(id, &e)));
    };
    for (place, cpu) in [("same", Some(ctx.cpu)), ("other", ctx.other_cpu)] {
        for means in MEANS {
            let id = format!("switch/{means}/{place}");
            let Some(cpu) = cpu else {
                add(
                    id,
                    Err(Error::Unavailable(
                        "this process may use one CPU only: allow it two (taskset, cpuset)".into(),
                    )),
                );
                continue;
            };
            add(
                id,
                match means {
                    "signal" => by_signal(ctx, Notice::Handler, cpu, place),
                    "signal-wait" => by_signal(ctx, Notice::Wait, cpu, place),
                    "pipe" => by_descriptor(ctx, Means::Pipe, cpu, place),
                    "pipe-threads" => by_thread_pipe(ctx, cpu, place),
                    "socket" => by_descriptor(ctx, Means::Socket, cpu, place),
                    "eventfd" => by_descriptor(ctx, Means::Event, cpu, place),
                    "futex" => by_futex(ctx, cpu, place),
                    _ => by_condition(ctx, cpu, place),
                },
            );
        }
    }
    for means in MEANS {
        if calls_of(means) != means {
            continue;
        }
        add(
            format!("switch-calls/{means}"),
            match means {
                "signal" => by_signal_calls(ctx, Notice::Handler),
                "signal-wait" => by_signal_calls(ctx, Notice::Wait),
                "pipe" => by_descriptor_calls(ctx, Means::Pipe),
                "socket" => by_descriptor_calls(ctx, Means::Socket),
                "eventfd" => by_descriptor_calls(ctx, Means::Event),
                "futex" => by_futex_calls(ctx),
                _ => by_condition_calls(ctx),
            },
        );
    }
    Ok(found)
}
