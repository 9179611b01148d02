// SPDX-License-Identifier: MIT OR Apache-2.0
//! From when on does the kernel tell of the calls of a program that splicing had to leave, and how long are there hooks
//! for that?

use std::time::{Duration, Instant};

use crate::{AccountEntry, Boundary, Error, Probe, iterate, skel};

/// How often it is looked whether anybody needs the hooks still, which is a walk over all tasks: at most so often, and at
/// most this part of the time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_COST_TIMES: u32 = 50;

impl Probe {
    /// The hooks are in place before the first thread goes by them.
    pub(crate) fn boundary_take(&mut self, id: u32, whose: Boundary) -> Result<u32, Error> {
        let none = Error::NoProcess { pid: whose.tid };
        let Some(entry) = self.accounts.get_mut(&id) else {
            return Err(none);
        };
        let before = std::mem::replace(&mut entry.boundary, true);
        let threads = self
            .attach_as_needed()
            .and_then(|()| self.boundary_move(id, whose));
        if let (Ok(0) | Err(_), Some(entry)) = (&threads, self.accounts.get_mut(&id)) {
            entry.boundary = before;
            self.detach_as_possible();
        }
        match threads? {
            0 => Err(none),
            threads => {
                let next = Instant::now() + LOOK_EVERY;
                self.boundary_next.get_or_insert(next);
                Ok(threads)
            }
        }
    }

    fn boundary_move(&mut self, account: u32, whose: Boundary) -> Result<u32, Error> {
        let link = self.programs.iterator(&self.skel.progs.boundary_threads)?;
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return Ok(0);
        };
        bss.boundary_wish = skel::types::boundary_wish {
            account,
            tid: whose.tid,
            open_counted: whose.open_counted.into(),
            renames: whose.renames.into(),
            executes: whose.executes.into(),
            ..Default::default()
        };
        // The first pass finds out which memory it is, the last one threads that came meanwhile.
        for _ in 0..3 {
            iterate(&link)?;
        }
        self.generation_raise();
        Ok(self.boundary_moved())
    }

    fn boundary_moved(&self) -> u32 {
        let done = self.skel.maps.bss_data.as_deref();
        done.map_or(0, |bss| bss.boundary_wish.moved)
    }

    /// How long until it is looked who needs hooks that were asked for on the way; None: nobody has asked for any.
    pub(crate) fn boundary_due(&self) -> Option<Duration> {
        let next = self.boundary_next?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// They go when no thread of an account needs them any more: the execve that was told of has failed, the programs
    /// have ended. All processes of the machine pay for them.
    pub(crate) fn boundary_look(&mut self) {
        let begin = Instant::now();
        let on_the_way =
            |(id, entry): (&u32, &AccountEntry)| entry.boundary_on_the_way().then_some(*id);
        let ids: Vec<u32> = self.accounts.iter().filter_map(on_the_way).collect();
        let mut stay = false;
        for id in ids {
            let needed = self.boundary_needed(id).unwrap_or_else(|error| {
                tracing::warn!(%error, "not known who needs the hooks at system calls: they stay");
                true
            });
            stay |= needed;
            if let Some(entry) = self.accounts.get_mut(&id).filter(|_| !needed) {
                entry.boundary = false;
            }
        }
        if !stay {
            self.detach_as_possible();
        }
        let pause = LOOK_EVERY.max(begin.elapsed() * LOOK_COST_TIMES);
        self.boundary_next = stay.then(|| Instant::now() + pause);
    }

    fn boundary_needed(&mut self, account: u32) -> Result<bool, Error> {
        let link = self.programs.iterator(&self.skel.progs.boundary_threads)?;
        let forks = self.hooked_forks();
        let Some(bss) = self.skel.maps.bss_data.as_deref_mut() else {
            return Ok(true);
        };
        bss.boundary_wish = skel::types::boundary_wish {
            account,
            counts: 1,
            ..Default::default()
        };
        // Twice: who executes something takes the number of its process, which the walk may be behind already. Whom else
        // it has missed was made meanwhile.
        for _ in 0..2 {
            iterate(&link)?;
        }
        Ok(self.boundary_moved() > 0 || self.hooked_forks() != forks)
    }

    fn hooked_forks(&self) -> u32 {
        let told = self.skel.maps.bss_data.as_deref();
        told.map_or(0, |bss| bss.hooked_forks)
    }
}
