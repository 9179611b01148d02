// SPDX-License-Identifier: MIT OR Apache-2.0
//! What may the symboliser say to who started it, and what may that one ask? 0: a
//! request, else a reply; then the message's kind and body. What is accepted
//! means the same when it is said again.

use crate::choice;
use debox_symboliser::{Reply, Request};

pub fn check(data: &[u8]) {
    let (side, rest) = choice(data);
    let (kind, body) = choice(rest);
    if side == 0 {
        if let Ok(request) = Request::decode(kind, body) {
            let again = request.encode();
            assert_eq!(Request::decode(again[4], &again[5..]), Ok(request));
        }
    } else if let Ok(reply) = Reply::decode(kind, body) {
        let again = reply.encode();
        assert_eq!(length(&again), again.len() - 5);
        assert_eq!(Reply::decode(again[4], &again[5..]), Ok(reply));
    }
}

fn length(message: &[u8]) -> usize {
    u32::from_le_bytes([message[0], message[1], message[2], message[3]]) as usize
}
