// SPDX-License-Identifier: MIT OR Apache-2.0
//! From when on does the kernel tell of the calls of a program that splicing had to leave?

use crate::{Boundary, Error, Probe, iterate, skel};

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
            threads => Ok(threads),
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
        let done = self.skel.maps.bss_data.as_deref();
        Ok(done.map_or(0, |bss| bss.boundary_wish.moved))
    }
}
