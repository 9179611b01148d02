// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold for every byte string that comes from outside?
//!
//! One module for each target, each with a function `check`, which panics when
//! something does not hold. tests/corpus.rs runs them over the corpus; targets/
//! gives them to libFuzzer, which watches time and memory itself (run.sh).
//! `request.rs`, `condition.rs` and `program.rs` are used by the ordinary tests of
//! the crates, too.

pub mod collected;
pub mod condition;

pub mod expression;
pub mod json;
pub mod labels;
pub mod module;
pub mod policy;
pub mod program;
pub mod protocol;
pub mod recording;
pub mod rendered;
pub mod request;
pub mod sites;
pub mod symbols;
pub mod unwind;
pub mod wire;

/// The first byte says what the rest is.
pub(crate) fn choice(data: &[u8]) -> (u8, &[u8]) {
    data.split_first()
        .map_or((0, data), |(first, rest)| (*first, rest))
}

/// Takes numbers from the front of the input, zeros when it is used up.
pub(crate) struct Taker<'a>(pub &'a [u8]);

impl<'a> Taker<'a> {
    pub fn bytes(&mut self, wanted: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(wanted.min(self.0.len()));
        self.0 = rest;
        front
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let front = self.bytes(N);
        array[..front.len()].copy_from_slice(front);
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
