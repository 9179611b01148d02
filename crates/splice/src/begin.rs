// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has a program begun to count that was let go at its first instruction, and if not, what becomes of it?
//!
//! Nobody traces it any more as it maps what it counts in. One that may not, or cannot open it, waits for a second
//! before it goes on to its first instruction: by then one of our threads has had its calls told otherwise.

use crate::maps;
use crate::proc;
use crate::remote::Sent;
use crate::run::{NOT_BEGUN, Run, Since, Used};
use crate::tracee::{self, Registers, Stopped};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const NO_ROOM: &str = "its limits (of memory, of files), or what it is forbidden, do not let it map what it counts in";
const RAN_OUT: &str = "it did not begin to count in time";

/// It takes a tenth of a millisecond, and more where it waits for a CPU.
const BEGINS_WITHIN: Duration = Duration::from_millis(20);
/// ... where others could not.
const FAILS_WITHIN: Duration = Duration::from_millis(3);
/// One that cannot begin waits so long (splice/runtime.c), and goes on then.
const STANDS: Duration = Duration::from_secs(1);
/// ... for certain.
const WAITS: Duration = Duration::from_millis(1200);
/// How often one of ours is waited for that has it stopped, a millisecond apart.
const SEIZES: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begins,
    /// It is to be looked at,
    Late,
    /// and one of our threads has it stopped.
    Looked,
    /// It goes on without; what is missing has been said.
    Told,
}

/// A program that was let go to map the runtime, until it has, or its area is free again.
#[derive(Clone)]
pub(crate) struct Beginning {
    pub(crate) index: u32,
    pid: i32,
    let_go: Instant,
    /// It was looked at last.
    since: Instant,
    stage: Stage,
    /// As it stood at its first instruction.
    before: Registers,
    /// Where what maps it lies.
    place: u64,
    /// Where code of ours may lie, and what was sent.
    spare: Vec<Range<u64>>,
    sent: Option<Sent>,
}

/// Whether a program whose area nobody has begun in is on its way there.
#[derive(Clone, Copy)]
pub(crate) enum OnItsWay {
    No,
    Yes,
    /// It must have gone on without, unseen.
    RanOut,
}

impl OnItsWay {
    /// Why its calls are missing, if some are: one that was killed on its way has made none.
    pub(crate) fn missing(self) -> Option<&'static str> {
        match self {
            Self::No => Some(NOT_BEGUN),
            Self::Yes => None,
            Self::RanOut => Some(RAN_OUT),
        }
    }
}

impl Beginning {
    fn is(&self, index: u32, let_go: Instant) -> bool {
        self.index == index && self.let_go == let_go
    }

    pub(crate) fn new(
        (index, pid): (u32, i32),
        before: Registers,
        place: u64,
        spare: Vec<Range<u64>>,
        sent: Option<Sent>,
    ) -> Self {
        let now = Instant::now();
        Self {
            index,
            pid,
            let_go: now,
            since: now,
            stage: Stage::Begins,
            before,
            place,
            spare,
            sent,
        }
    }
}

impl Run {
    /// Just before it is let go.
    pub(crate) fn begins_at(&self, one: Beginning) {
        let areas = &mut *self.areas();
        let (index, pid) = (one.index, one.pid);
        areas.beginning.push(one);
        areas.used.push(Used {
            index,
            pid,
            moved: false,
        });
    }

    /// What is known of an area in which nobody has begun, as of before that was seen.
    pub(crate) fn on_its_way(&self, index: u32) -> OnItsWay {
        let areas = self.areas();
        let one = areas.beginning.iter().find(|one| one.index == index);
        match one {
            None => OnItsWay::No,
            Some(one) if one.stage == Stage::Told || one.let_go.elapsed() < STANDS => OnItsWay::Yes,
            Some(_) => OnItsWay::RanOut,
        }
    }

    pub(crate) fn begins_within(&self) -> Duration {
        match self.common.fails.load(Ordering::Relaxed) {
            true => FAILS_WITHIN,
            false => BEGINS_WITHIN,
        }
    }

    /// Those that have begun are forgotten, and those that should have are to be looked at. Whether any may be so soon.
    pub(crate) fn beginnings_look(&self) -> bool {
        let within = self.begins_within();
        let mut late = false;
        let areas = &mut *self.areas();
        areas
            .beginning
            .retain(|one| one.stage == Stage::Looked || !self.has_begun(one.index).unwrap_or(true));
        for one in &mut areas.beginning {
            if one.stage == Stage::Begins && one.since.elapsed() > within {
                one.stage = Stage::Late;
                late = true;
            }
        }
        if late {
            self.ring();
        }
        (areas.beginning.iter()).any(|one| one.stage == Stage::Begins)
    }

    /// One that is to be looked at, by who asks.
    pub(crate) fn late_take(&self) -> Option<Beginning> {
        let mut areas = self.areas();
        let one = (areas.beginning.iter_mut()).find(|one| one.stage == Stage::Late)?;
        one.stage = Stage::Looked;
        Some(one.clone())
    }

    pub(crate) fn late_look(&self, one: Beginning) {
        let (index, let_go) = (one.index, one.let_go);
        let next = self.late_stopped(one);
        let mut areas = self.areas();
        let this = (areas.beginning.iter_mut()).find(|is| is.is(index, let_go));
        if let Some(this) = this {
            (this.stage, this.since) = (next, Instant::now());
        }
    }

    fn late_stopped(&self, one: Beginning) -> Stage {
        let ran_out = one.let_go.elapsed() > WAITS;
        let mut program = match Stopped::of_running(one.pid) {
            Ok(program) => program,
            // It was killed on its way: nothing is missing.
            Err(_) if !proc::lives(one.pid) => return Stage::Told,
            // It may not be traced any more (Yama). A debugger may hold it anywhere.
            Err(_) if ran_out && proc::tracer(one.pid).is_none() && self.is_unbegun(&one) => {
                let name = proc::program(one.pid);
                self.boundary(one.pid, Since::Now);
                self.ended().left(RAN_OUT.into(), name);
                return Stage::Told;
            }
            Err(_) => return Stage::Begins,
        };
        let pid = program.pid;
        // Else another program is there by now.
        let begun = !self.is_unbegun(&one);
        let at = program.registers.rip;
        let place = one.place..one.place + self.common.map_code.len() as u64;
        let inside = place.contains(&at) || self.is_runtime(pid, at);
        let waits = program.registers.orig_rax == libc::SYS_ppoll as u64;
        let (since, why) = match (begun, inside, waits) {
            (true, ..) | (false, true, false) => (None, ""),
            (false, false, _) => (Some(Since::Now), RAN_OUT),
            (false, true, true) => {
                self.common.fails.store(true, Ordering::Relaxed);
                match self.may_find(pid) {
                    true => (Some(Since::Execve), NO_ROOM),
                    false => (Some(Since::Execve), NOT_BEGUN),
                }
            }
        };
        let told = since.is_some_and(|since| self.boundary(pid, since));
        if let Some(Since::Execve) = since {
            program.registers = Registers {
                orig_rax: u64::MAX,
                rax: 0,
                ..one.before
            };
            let by = self.caller_in(pid, one.spare.into_iter());
            if let (Some(sent), Ok(by), true) = (&one.sent, by, place.contains(&at)) {
                sent.close(&mut program, &by);
            }
            let _ = program.set();
        }
        let name = proc::program(pid);
        // It may end at once, and all is added up then.
        let mut ended = self.ended();
        match (program.let_go(), since) {
            // It was killed: nothing is missing.
            (Err(_), _) => {
                drop(ended);
                tracee::reap(pid);
            }
            (Ok(()), None) => {}
            (Ok(()), Some(Since::Execve)) if told => ended.boundary(why.into(), name),
            (Ok(()), Some(_)) => ended.left(why.into(), name),
        }
        match (begun, since) {
            (false, None) => Stage::Begins,
            _ => Stage::Told,
        }
    }

    /// Whether this very program has not begun to count.
    fn is_unbegun(&self, one: &Beginning) -> bool {
        let areas = self.areas();
        let same = |is: &Beginning| is.is(one.index, one.let_go);
        areas.beginning.iter().any(same) && !self.has_begun(one.index).unwrap_or(true)
    }

    /// Where somebody could not begin: whether this one finds the runtime where it would open it, which in another root it
    /// may not.
    pub(crate) fn may_find(&self, pid: i32) -> bool {
        if !self.common.fails.load(Ordering::Relaxed) {
            return true;
        }
        let path = self.runtime().strip_prefix("/").unwrap_or(self.runtime());
        let there = Path::new(&format!("/proc/{pid}/root")).join(path);
        std::fs::metadata(there).is_ok_and(|there| self.runtime_inode() == Some(there.ino()))
    }

    /// Whether the runtime is mapped there.
    fn is_runtime(&self, pid: i32, at: u64) -> bool {
        let all = maps::of(pid).unwrap_or_default();
        let mapped = all.iter().find(|one| one.holds(at));
        mapped.is_some_and(|one| self.runtime_inode() == Some(one.inode))
    }

    /// To come along with an execve. It may be one that began just as it was looked at.
    pub(crate) fn seize(&self, tid: i32) -> io::Result<()> {
        for _ in 0..SEIZES {
            let before = self.is_looked_at(tid);
            match tracee::seize(tid) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EPERM)
                        && (before || self.is_looked_at(tid)) =>
                {
                    thread::sleep(Duration::from_millis(1));
                }
                done => return done,
            }
        }
        tracee::seize(tid)
    }

    fn is_looked_at(&self, tid: i32) -> bool {
        let looked =
            |one: &Beginning| one.stage == Stage::Looked && proc::process(tid) == Some(one.pid);
        self.areas().beginning.iter().any(looked)
    }
}
