// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where do the threads sleep that a watch begins with, and which sleep now?
//!
//! Iterators over the tasks tell (`bpf/asleep.h`). A stack that was taken from
//! outside has no number of the kernel side's tables; it gets one behind theirs.

use std::collections::HashMap;

use debox_abi::{DEBOX_AWAY_MAX, DEBOX_AWAY_TAKEN, DEBOX_SITES_MAX, Pod, debox_away};
use libbpf_rs::{MapCore, MapFlags};

use crate::programs::{Link, iter_open};
use crate::signature::STACK_DEPTH;
use crate::{Error, NewStack, Probe, SITES_WALKED_MAX, iter_read, skel};

#[derive(Default)]
pub(crate) struct Asleep {
    numbers: HashMap<Vec<u64>, u32>,
    /// Not told yet.
    new: Vec<NewStack>,
}

impl Asleep {
    /// A stack's number; None when there are no more.
    fn number(&mut self, frames: &[u64]) -> Option<u32> {
        if let Some(number) = self.numbers.get(frames) {
            return Some(*number);
        }
        let number = SITES_WALKED_MAX + self.numbers.len() as u32;
        if number as usize >= DEBOX_SITES_MAX {
            return None;
        }
        self.numbers.insert(frames.to_vec(), number);
        self.new.push(NewStack {
            id: number,
            frames: frames.to_vec(),
            label: 0,
        });
        Some(number)
    }

    pub fn waits(&self) -> bool {
        !self.new.is_empty()
    }

    pub fn new_stacks(&mut self) -> Vec<NewStack> {
        std::mem::take(&mut self.new)
    }
}

/// What an iterator wrote, up to `most` bytes.
fn written(link: &Link, most: usize) -> Result<Vec<u8>, Error> {
    let mut iter = iter_open(link)?;
    let mut bytes = Vec::new();
    let mut part = vec![0u8; 1 << 16];
    loop {
        let got = iter_read(&mut iter, &mut part)?;
        if got == 0 || bytes.len() >= most {
            bytes.truncate(most);
            return Ok(bytes);
        }
        bytes.extend_from_slice(&part[..got]);
    }
}

/// struct away_of of asleep.h: what a thread was in the middle of, and the account that it was of.
const TAKEN_BYTES: usize = size_of::<debox_away>() + 8;

/// Binds, and reads of threads that other accounts had. All of it: binding ends with the iterator.
pub(crate) fn taken_read(link: &Link) -> Result<Vec<(u32, debox_away)>, Error> {
    let bytes = written(link, usize::MAX)?;
    let taken = bytes.chunks_exact(TAKEN_BYTES).filter_map(|bytes| {
        let (away, account) = bytes.split_at(size_of::<debox_away>());
        let account = u64::from_ne_bytes(account.try_into().expect("8 bytes"));
        let mut away = debox_away::read_from(away)?;
        away.flags |= DEBOX_AWAY_TAKEN;
        Some((account as u32, away))
    });
    Ok(taken.collect())
}

/// struct asleep_stack: thread, depth, switches, frames.
const STACK_BYTES: usize = 16 + 8 * STACK_DEPTH;
/// As many threads as `asleep_sites` has room for.
const THREADS_MAX: usize = 4096;

impl Probe {
    /// Tells the kernel side where the threads sleep that are about to be
    /// bound. Without it their sleeps are counted, at no place.
    pub(crate) fn asleep_tell(&mut self, request: skel::types::bind_request) {
        if let Err(error) = self.asleep_try(request) {
            tracing::warn!(%error, tgid = request.tgid, "not known where its threads sleep already");
        }
    }

    fn asleep_try(&mut self, request: skel::types::bind_request) -> Result<(), Error> {
        let link = self.programs.iterator(&self.skel.progs.asleep_threads)?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.bind = request;
        }
        let bytes = written(&link, THREADS_MAX * STACK_BYTES)?;
        for stack in bytes.chunks_exact(STACK_BYTES) {
            let words: Vec<u64> = stack
                .chunks_exact(8)
                .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
                .collect();
            let (tid, depth, switches) = (words[0] as u32, words[0] >> 32, words[1]);
            let frames = &words[2..][..(depth as usize).min(STACK_DEPTH)];
            let Some(site) = self.asleep.number(frames) else {
                continue;
            };
            let mut value = switches.to_ne_bytes().to_vec();
            value.extend_from_slice(&u64::from(site).to_ne_bytes());
            self.skel
                .maps
                .asleep_sites
                .update(&tid.to_ne_bytes(), &value, MapFlags::ANY)
                .map_err(Error::bpf("telling where a thread sleeps"))?;
        }
        Ok(())
    }

    /// What was told holds for one binding.
    pub(crate) fn asleep_forget(&mut self) {
        let map = &self.skel.maps.asleep_sites;
        for key in map.keys().collect::<Vec<_>>() {
            let _ = map.delete(&key);
        }
    }

    pub(crate) fn away_read(&mut self, account: u32) -> Result<Vec<debox_away>, Error> {
        let link = self.programs.iterator(&self.skel.progs.away_threads)?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            bss.away_account = account;
        }
        let bytes = written(&link, DEBOX_AWAY_MAX as usize * size_of::<debox_away>())?;
        let taken = self.accounts.get(&account).map(|entry| entry.taken.iter());
        Ok(bytes
            .chunks_exact(size_of::<debox_away>())
            .filter_map(debox_away::read_from)
            .chain(taken.into_iter().flatten().copied())
            .take(DEBOX_AWAY_MAX as usize)
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_keeps_its_number() {
        let mut asleep = Asleep::default();
        assert_eq!(asleep.number(&[1, 2]), Some(SITES_WALKED_MAX));
        assert_eq!(asleep.number(&[1, 3]), Some(SITES_WALKED_MAX + 1));
        assert_eq!(asleep.number(&[1, 2]), Some(SITES_WALKED_MAX));
        assert!(asleep.waits());
        let new = asleep.new_stacks();
        assert_eq!(new.len(), 2);
        assert_eq!(
            (new[1].id, &new[1].frames[..]),
            (SITES_WALKED_MAX + 1, &[1, 3][..])
        );
        assert!(!asleep.waits());
        let room = DEBOX_SITES_MAX as u64 - u64::from(SITES_WALKED_MAX);
        let numbers: Vec<_> = (0..room).map(|n| asleep.number(&[2, n])).collect();
        assert_eq!(numbers[room as usize - 3], Some(DEBOX_SITES_MAX as u32 - 1));
        assert_eq!(numbers[room as usize - 2], None);
    }
}
