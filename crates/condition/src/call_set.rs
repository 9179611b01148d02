// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which system calls, of both tables, are meant?

use debox_abi::DEBOX_NR_SLOTS;

/// A set of account keys: bit n is native call n, bit 512 + n 32-bit call n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CallSet(pub [u64; DEBOX_NR_SLOTS / 64]);

impl CallSet {
    pub const ALL: Self = Self([u64::MAX; DEBOX_NR_SLOTS / 64]);

    pub fn has(&self, key: u32) -> bool {
        key < DEBOX_NR_SLOTS as u32 && self.0[key as usize / 64] >> (key % 64) & 1 != 0
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    pub fn complement(&self) -> Self {
        Self(self.0.map(|word| !word))
    }

    pub fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| b & !a == 0)
    }
}
