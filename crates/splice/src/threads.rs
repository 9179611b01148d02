// SPDX-License-Identifier: MIT OR Apache-2.0
//! How do all threads of a process stand still, and go on?

use crate::tracee::{self, Stop, Stopped};
use crate::{Error, proc};
use std::collections::HashSet;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Who sleeps in the kernel without listening (a disk that does not answer) is not waited for longer;
const LONGEST: Duration = Duration::from_millis(500);
/// and so long for whoever only waits for a CPU.
const LONGEST_BUSY: Duration = Duration::from_secs(2);

/// A thread that stands still.
pub struct Held {
    pub thread: Stopped,
    /// Process and thread, as it knows itself.
    pub ids: (u32, u32),
}

/// Traced by this thread of ours; when this is dropped, they go on, where their registers say.
#[derive(Default)]
pub struct Threads {
    pub all: Vec<Held>,
    /// Those that do not stand still yet.
    running: Vec<i32>,
    /// However long they take, they are waited for: nobody else lets them go while we live.
    all_let_go: bool,
}

fn failed(tid: i32) -> impl Fn(io::Error) -> Error {
    move |e| Error::Run(format!("thread {tid} cannot be traced: {e}"))
}

impl Threads {
    /// # Errors
    /// When one cannot be traced, or does not stop.
    pub fn stop(pid: i32) -> Result<Self, Error> {
        let mut threads = Self::default();
        threads.stop_all(pid)?;
        match threads.all.is_empty() {
            true => Err(Error::Ended),
            false => Ok(threads),
        }
    }

    /// Those that stop in time, of a process that is watched on: when this is dropped, all are let go, which lasts
    /// until the others have stopped.
    pub fn stop_most(pid: i32) -> Self {
        let mut threads = Self::default();
        threads.all_let_go = true;
        let _ = threads.stop_all(pid);
        threads
    }

    fn stop_all(&mut self, pid: i32) -> Result<(), Error> {
        let since = Instant::now();
        let mut known = HashSet::new();
        loop {
            let mut is_new = false;
            for tid in proc::threads(pid) {
                if known.contains(&tid) {
                    continue;
                }
                match self.seize(tid) {
                    // Ended meanwhile, or is about to.
                    Err(e)
                        if !proc::lives_as(pid, tid) || e.raw_os_error() == Some(libc::ESRCH) => {}
                    seized => seized.map_err(failed(tid))?,
                }
                known.insert(tid);
                is_new = true;
            }
            self.look()?;
            // Who stood still made none.
            if self.running.is_empty() && !is_new {
                return Ok(());
            }
            if since.elapsed() > LONGEST {
                let (n, all) = (self.running.len(), known.len());
                let deaf = |tid: &i32| proc::state(pid, *tid) == Some(b'D');
                let why = match self.running.iter().any(deaf) {
                    true => Some("they sleep in the kernel without listening"),
                    false => Some("they wait for a CPU").filter(|_| since.elapsed() > LONGEST_BUSY),
                };
                if let Some(why) = why {
                    let text = format!("{n} of its {all} threads cannot be stopped: {why}");
                    return Err(Error::Run(text));
                }
            }
            if !is_new {
                thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn seize(&mut self, tid: i32) -> io::Result<()> {
        tracee::seize(tid)?;
        self.running.push(tid);
        tracee::interrupt(tid)
    }

    /// Which of them stand still by now.
    fn look(&mut self) -> Result<(), Error> {
        let mut at = 0;
        // Who has not been looked at when this fails, is let go with the others.
        while let Some(&tid) = self.running.get(at) {
            let stop = tracee::look_for(tid).map_err(failed(tid))?;
            if matches!(stop, None | Some(Stop::Interrupted)) {
                at += 1;
                continue;
            }
            self.running.swap_remove(at);
            match stop {
                None | Some(Stop::Interrupted | Stop::Gone(_)) => {}
                Some(Stop::Signal(_, signal)) => self.held(tid, signal)?,
                // (Nobody asked for the begin of a call.)
                Some(Stop::Group(..) | Stop::Call(_)) => {
                    self.held(tid, 0)?;
                    return Err(Error::Run("it is being stopped by a signal".into()));
                }
                // Under another number, of another program.
                Some(Stop::Exec(pid)) => {
                    let _ = tracee::detach(pid, 0);
                    return Err(Error::Run("it has just become another program".into()));
                }
            }
        }
        Ok(())
    }

    fn held(&mut self, tid: i32, signal: i32) -> Result<(), Error> {
        let Ok(mut thread) = Stopped::new(tid) else {
            // Killed.
            return Ok(());
        };
        thread.arrives = signal;
        let ids = proc::own_ids(tid).map_err(failed(tid))?;
        self.all.push(Held { thread, ids });
        Ok(())
    }
}

/// Only who stands still can be let go: false, it does not yet.
fn let_go(tid: i32) -> bool {
    let signal = match tracee::look_for(tid) {
        Ok(None | Some(Stop::Interrupted)) => return false,
        Ok(Some(Stop::Signal(_, signal))) => signal,
        Ok(Some(Stop::Group(..) | Stop::Exec(_) | Stop::Call(_))) => 0,
        Ok(Some(Stop::Gone(_))) | Err(_) => return true,
    };
    let _ = tracee::detach(tid, signal);
    true
}

impl Drop for Threads {
    fn drop(&mut self) {
        for held in self.all.drain(..) {
            // Who was killed meanwhile does not go on.
            let _ = held.thread.go_on();
        }
        let until = Instant::now() + LONGEST;
        loop {
            self.running.retain(|tid| !let_go(*tid));
            // Who does not stop so soon is let go as debox ends.
            if self.running.is_empty() || (!self.all_let_go && Instant::now() >= until) {
                return;
            }
            thread::sleep(Duration::from_micros(200));
        }
    }
}
