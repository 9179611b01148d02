// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may a packet do, in either direction? To the broker: 0, two bytes about
//! the sender, the request. To the client: 1, the type that was asked for, the
//! number of descriptors, the reply. 2: the text of SITE_STACKS.

use crate::{choice, request};
use debox_cli::fuzz;

pub fn check(data: &[u8]) {
    let (kind, rest) = choice(data);
    match kind {
        0 => request::check(rest),
        1 => {
            let (head, reply) = rest.split_at(rest.len().min(2));
            let asked = u32::from(head.first().copied().unwrap_or(0));
            let descriptors = usize::from(head.get(1).copied().unwrap_or(0));
            reply_check(asked, descriptors, reply);
        }
        _ => {
            if let Ok(text) = std::str::from_utf8(rest) {
                stacks_check(text);
            }
        }
    }
}

fn reply_check(asked: u32, descriptors: usize, bytes: &[u8]) {
    match fuzz::reply(asked, bytes, descriptors) {
        // Taken for what was asked for: then it is that, and whole.
        Ok(reply) => {
            assert!(bytes.len() >= size_of_val(&reply));
            assert!(reply.status >= 0);
            assert_eq!(reply.kind, asked);
            assert_eq!(reply.fds as usize, descriptors);
        }
        Err(text) => assert!(!text.is_empty()),
    }
}

fn stacks_check(text: &str) {
    let stacks = fuzz::site_stacks(text);
    assert!(stacks.len() <= text.lines().count());
    for name in stacks.iter().flat_map(|(_, names)| names) {
        assert!(
            !name.is_empty() && !name.chars().any(char::is_control),
            "{name:?}"
        );
    }
}
