// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did a sleep wait for, what did that wait for, down to a root?

use crate::sys;
use core::ffi::c_char;
use debox_abi::{DEBOX_CHAIN_DEPTH_MAX, DEBOX_CHAIN_SLEEP, DEBOX_SITE_NONE, name_get};
use thiserror::Error;

/// A chain of links, from a sleep to its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chain {
    number: u32,
}

/// One link: who slept where until what the next link says had ended; the last one
/// is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The chain from here on.
    pub chain: Chain,
    /// `DEBOX_CHAIN_*`.
    pub kind: u32,
    /// Of the task or the device; `None`: it has none, or it is withheld.
    pub comm: Option<String>,
    /// Another user's task: no name, call or place is told.
    pub withheld: bool,
    /// A thread it was seen of.
    pub tid: Option<u32>,
    /// The task's system call; of a disk what it did (`REQ_OP_*`).
    pub nr: Option<i32>,
    /// `nr` is of the i386 table.
    pub compat32: bool,
    /// Of a sleep: where.
    pub site: Option<u32>,
    /// ... and its label; `None` as long as the broker has not told it.
    pub label: Option<String>,
    /// The next link held what this one waited for.
    pub held: bool,
}

/// Why can a chain not be read?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ChainError {
    #[error("there is no chain of this number")]
    Unknown,
    #[error(
        "debox was not opened with chains (Options::chains), or the broker is too old for them"
    )]
    NotAsked,
    #[error("there is no broker that could tell; see Session::why")]
    NoBroker,
    #[error("the broker did not tell: error {0}")]
    Other(i32),
}

impl ChainError {
    fn from_code(code: i32) -> Self {
        match code {
            -2 => Self::Unknown,
            -95 => Self::NotAsked,
            -107 => Self::NoBroker,
            other => Self::Other(other),
        }
    }
}

impl Chain {
    pub(crate) fn new(number: u32) -> Self {
        Self { number }
    }

    /// As in `debox_sleep.chain`.
    pub fn number(self) -> u32 {
        self.number
    }

    /// First to root.
    pub fn links(self) -> Result<Vec<Link>, ChainError> {
        let mut raw = [sys::debox_link::default(); DEBOX_CHAIN_DEPTH_MAX as usize];
        // SAFETY: there is room for as many as are asked for.
        let n = unsafe { sys::debox_chain_read(self.number, raw.as_mut_ptr(), raw.len() as u32) };
        if n < 0 {
            return Err(ChainError::from_code(n));
        }
        let text = |field: &[u8]| {
            let text = name_get(field);
            (!text.is_empty()).then(|| text.into_owned())
        };
        let link = |raw: &sys::debox_link| Link {
            chain: Chain::new(raw.chain),
            kind: raw.kind,
            comm: text(&raw.comm),
            withheld: raw.flags & sys::DEBOX_LINK_WITHHELD != 0,
            tid: (raw.tid != 0).then_some(raw.tid),
            nr: (raw.nr >= 0).then_some(raw.nr),
            compat32: raw.flags & sys::DEBOX_LINK_COMPAT32 != 0,
            site: (raw.kind == DEBOX_CHAIN_SLEEP && raw.site != DEBOX_SITE_NONE)
                .then_some(raw.site),
            label: text(&raw.label),
            held: raw.flags & sys::DEBOX_LINK_HELD != 0,
        };
        Ok(raw.iter().take(n as usize).map(link).collect())
    }

    /// In words: `waiter in futex: futex, held by ← holder in read: pipe-read ← a timer`.
    pub fn text(self) -> Result<String, ChainError> {
        // 16 links of a name, a call and a label.
        let mut text = [0u8; 2048];
        // SAFETY: the buffer and its length belong together.
        let n = unsafe {
            sys::debox_chain_text(self.number, text.as_mut_ptr().cast::<c_char>(), text.len())
        };
        if n < 0 {
            return Err(ChainError::from_code(n));
        }
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }
}
