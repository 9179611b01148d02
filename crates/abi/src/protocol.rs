// SPDX-License-Identifier: MIT OR Apache-2.0
//! How are the messages of a client and the broker made and read?

use crate::generated::*;
use crate::{Pod, text_get, text_put};

impl debox_request {
    pub fn new(kind: u32, flags: u32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            version: DEBOX_PROTOCOL_VERSION,
            kind,
            flags,
            ..Self::zeroed()
        }
    }

    /// `hz` 0: no clock of CPU time.
    pub fn account(flags: u32, hz: u32) -> Self {
        let clock = if hz > 0 { DEBOX_REQ_ON_CPU } else { 0 };
        Self {
            hz,
            ..Self::new(DEBOX_MSG_ACCOUNT, flags | clock)
        }
    }

    pub fn watch(pid: i32, flags: u32) -> Self {
        Self {
            pid,
            ..Self::new(DEBOX_MSG_WATCH, flags)
        }
    }

    /// `flags`: DEBOX_REQ_OPEN_COUNTED, DEBOX_REQ_RENAMES, DEBOX_REQ_EXECUTES.
    pub fn boundary(tid: i32, flags: u32) -> Self {
        Self {
            pid: tid,
            ..Self::new(DEBOX_MSG_BOUNDARY, flags)
        }
    }
}

impl debox_select {
    /// Whoever is one of `uids`, has a name that fits one of `comms` and is in a control
    /// group that fits one of `cgroups`; of what is empty nothing is asked. `rank`: see the header.
    ///
    /// # Errors
    /// What is too much, in words.
    pub fn new(
        flags: u32,
        uids: &[u32],
        comms: &[String],
        cgroups: &[String],
        rank: u32,
    ) -> Result<Self, String> {
        let mut select = Self {
            rank,
            head: debox_request {
                size: size_of::<Self>() as u32,
                ..debox_request::new(DEBOX_MSG_SELECT, flags)
            },
            uids: uids.len() as u32,
            ..Self::zeroed()
        };
        select
            .uid
            .get_mut(..uids.len())
            .ok_or_else(|| format!("{} users; {DEBOX_SELECT_UIDS_MAX} at most", uids.len()))?
            .copy_from_slice(uids);
        patterns_put(&mut select.comms, comms)?;
        patterns_put(&mut select.cgroups, cgroups)?;
        Ok(select)
    }

    /// None: it is not text.
    pub fn comms(&self) -> Option<Vec<String>> {
        patterns_get(&self.comms)
    }

    pub fn cgroups(&self) -> Option<Vec<String>> {
        patterns_get(&self.cgroups)
    }
}

fn patterns_put(to: &mut [u8], patterns: &[String]) -> Result<(), String> {
    let room = to.len();
    let mut rest = to;
    for pattern in patterns {
        let bytes = pattern.as_bytes();
        let next = rest.split_at_mut_checked(bytes.len() + 1);
        let Some((here, behind)) = next else {
            return Err(format!("patterns of more than {room} characters together"));
        };
        here[..bytes.len()].copy_from_slice(bytes);
        rest = behind;
    }
    Ok(())
}

fn patterns_get(bytes: &[u8]) -> Option<Vec<String>> {
    let used = bytes
        .iter()
        .rposition(|b| *b != 0)
        .map_or(0, |last| last + 1);
    if used == bytes.len() {
        return None;
    }
    let words = bytes[..used]
        .split(|b| *b == 0)
        .filter(|word| !word.is_empty());
    words
        .map(|word| std::str::from_utf8(word).ok().map(str::to_owned))
        .collect()
}

impl debox_reply {
    pub fn new(kind: u32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            version: DEBOX_PROTOCOL_VERSION,
            kind,
            ..Self::zeroed()
        }
    }

    /// A refusal: `errno` positive, `text` for people.
    pub fn refusal(kind: u32, errno: i32, text: &str) -> Self {
        let mut reply = Self::new(kind);
        reply.status = -errno;
        reply.set_text(text);
        reply
    }

    pub fn text(&self) -> &str {
        text_get(&self.text)
    }
    pub fn set_text(&mut self, text: &str) {
        text_put(&mut self.text, text);
    }
}

impl debox_wrap_row {
    /// The system call number of a used row.
    pub const fn nr(&self) -> Option<u32> {
        if self.used & (1 << 63) == 0 {
            return None;
        }
        Some(self.used as u32)
    }
}

impl debox_wrap_header {
    pub fn why(&self) -> &str {
        text_get(&self.why)
    }
}
