// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where does a program count that gives up rights?
//!
//! What programs of a run share, each of them can write: whoever may do less than the others gets a file of its own,
//! before the call by which it gives that up, and goes on there, spliced as it was. Who shares with nobody stays.

use crate::run::{Run, Used};
use crate::state::{area, run};
use crate::{Error, proc};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// More at a time are counted by the kernel side.
const MOST: usize = 64;

/// What a thread is answered whose process is about to give up rights.
pub(crate) enum Rights {
    /// Nobody shares the file with it.
    Alone,
    /// Nobody shares this one, which it gets.
    Moves(Arc<Run>),
    /// It cannot go on so.
    Ends,
}

impl Run {
    /// `slot`: by which it asks.
    pub(crate) fn gives_up(&self, tid: i32, below: bool, slot: usize) -> Rights {
        // In a PID namespace of its own it has another number there.
        let Some(pid) = proc::process(tid).filter(|_| !below && proc::is_alone(tid)) else {
            return Rights::Ends;
        };
        // One may have been forked by code that nothing tells of.
        let own = std::process::id() as i32;
        let others = proc::all().filter(|other| *other != pid && *other != own);
        let others: Vec<i32> = others.filter(|other| self.is_mapped_by(*other)).collect();
        if others.is_empty() && self.is_sole(pid, Some(slot)) {
            self.whose_forget();
            return Rights::Alone;
        }
        match self.moves(pid, &others) {
            Ok(run) => Rights::Moves(run),
            Err(_) => Rights::Ends,
        }
    }

    /// Whether nobody else counts in the file of a process, as far as its programs say, or is about to; `slot`: whose
    /// request that is not.
    pub(crate) fn is_sole(&self, pid: i32, slot: Option<usize>) -> bool {
        // Whom else is attached to.
        if self.is_attached() {
            return false;
        }
        if self.serves(slot) {
            return false;
        }
        let areas = self.areas();
        let forked = |used: &Used| {
            let start = run::BYTES + u64::from(used.index) * area::BYTES;
            let mut forks = [0; 4];
            let read = self.file().read_exact_at(&mut forks, start + area::FORKS);
            read.is_err() || forks != [0; 4]
        };
        (areas.used.iter()).any(|used| used.pid == pid)
            && !areas
                .used
                .iter()
                .any(|used| used.pid != pid || forked(used))
    }

    /// A file of its own; `others`: who has the one mapped that it has.
    fn moves(&self, pid: i32, others: &[i32]) -> Result<Arc<Self>, Error> {
        let failed = |e: io::Error| Error::Run(format!("a file of its own: {e}"));
        if self.moved().len() >= MOST {
            // Who has ended since may have had one.
            self.sweep().map_err(failed)?;
        }
        if self.moved().len() >= MOST {
            return Err(Error::Run(format!(
                "{MOST} programs have files of their own"
            )));
        }
        // What a child that has its memory counts in would be gone under it.
        if others
            .iter()
            .any(|other| !proc::has_own_memory(*other, pid))
        {
            return Err(Error::Run("another process has its memory".into()));
        }
        // Of what programs may have written, only what is about calls.
        let mut head = self.common.head.clone();
        for range in [
            run::LOOKED_AT..run::RATE,
            run::DOORS..run::USER,
            run::SAMPLE..run::SAMPLE + 4,
        ] {
            let part = &mut head[range.start as usize..range.end as usize];
            (self.file().read_exact_at(part, range.start)).map_err(failed)?;
        }
        let run = Self::with(Arc::clone(&self.common), false, &head)?;
        // The first, by what the runtime knows.
        let index = run.area_take()?;
        run.area_used(Used {
            index,
            pid,
            moved: true,
        });
        self.moved().push(Arc::clone(&run));
        Ok(run)
    }

    /// A process did not go on in the file that it was to have, where nobody else is or comes.
    pub(crate) fn moved_forget(&self, pid: i32) {
        self.moved().retain(|run| {
            let waits = match run.areas().used[..] {
                [one] => {
                    one.moved && one.pid == pid && run.has_begun(one.index).is_ok_and(|is| !is)
                }
                _ => false,
            };
            let goes = waits && !run.serves(None);
            if goes {
                run.end();
            }
            !goes
        });
    }

    /// Those that nobody has any more, or is about to, go.
    pub(crate) fn moved_sweep(&self) {
        self.moved().retain(|run| {
            // In this order: who comes is served until he is one of those.
            let stays = run.serves(None) || !run.areas().used.is_empty();
            if !stays {
                run.end();
            }
            stays
        });
    }
}
