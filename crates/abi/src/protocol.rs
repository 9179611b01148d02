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

    pub fn watch(pid: i32, flags: u32) -> Self {
        Self {
            pid,
            ..Self::new(DEBOX_MSG_WATCH, flags)
        }
    }
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
