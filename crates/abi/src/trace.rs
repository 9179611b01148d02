// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a call's trace asked for, and its table written and read?

use crate::generated::*;
use crate::{Pod, text_get, text_put};

/// The number of the buffer that a word of `slowest` names.
pub const fn debox_trace_slowest_buffer(word: u64) -> Option<usize> {
    match word & 0xf_ffff {
        0 => None,
        n => Some(n as usize - 1),
    }
}

impl debox_trace_function {
    pub fn new(name: &str) -> Self {
        let mut function = Self::zeroed();
        text_put(&mut function.name, name);
        function
    }

    pub fn name(&self) -> &str {
        text_get(&self.name)
    }
}

impl debox_trace_table {
    pub fn text(&self) -> &str {
        text_get(&self.text)
    }
    pub fn set_text(&mut self, text: &str) {
        text_put(&mut self.text, text);
    }
}

impl debox_trace_request {
    pub fn new(flags: u32) -> Self {
        Self {
            head: debox_request {
                size: size_of::<Self>() as u32,
                version: DEBOX_PROTOCOL_VERSION,
                kind: DEBOX_MSG_TRACE,
                flags,
                ..debox_request::zeroed()
            },
            ..Self::zeroed()
        }
    }

    pub fn patterns(&self) -> &str {
        text_get(&self.patterns)
    }
}
