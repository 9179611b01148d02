// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the parser of conditions survive every text, and its judge every call?
//!
//! The text, and behind a NUL what is known of a call: a byte of flags, 12
//! numbers, then sleeps.

use crate::{Taker, condition};
use debox_condition::{Answer, CallFacts, Expression, Number, SiteFacts};

/// Numbers that are given; faults and errno follow from them.
const GIVEN: usize = 12;

const LABELS: [&str; 4] = ["inode-lock", "futex", "pipe-read", "a"];
const FUNCTIONS: [&str; 4] = ["open_last_lookups", "do_wait", "pipe_read", "b.isra.0"];
const COMMS: [&str; 4] = ["nginx", "redis-server", "a b", ""];

fn call(taker: &mut Taker<'_>) -> CallFacts<'static> {
    let mut call = CallFacts::default();
    let flags = taker.u8();
    if flags & 1 != 0 {
        call.key = Some(u32::from(taker.u16() % 1024));
    }
    if flags & 2 != 0 {
        call.comm = Some(COMMS[usize::from(flags >> 2 & 3)]);
    }
    call.sites_whole = flags & 16 == 0;
    let known = taker.u16();
    for number in &Number::ALL[..GIVEN] {
        let at = *number as usize;
        if known >> at & 1 == 0 {
            continue;
        }
        let mut value = taker.u64() as i64;
        if *number != Number::Retval {
            value = value.saturating_abs();
        }
        call.numbers[at] = Some(value);
    }
    for _ in 0..flags >> 5 {
        let which = taker.u8();
        let pick = |names: &[&'static str; 4], bits: u8| {
            (bits & 4 == 0).then(|| names[usize::from(bits & 3)])
        };
        call.sites.push(SiteFacts {
            label: pick(&LABELS, which),
            function: pick(&FUNCTIONS, which >> 4),
            ..SiteFacts::default()
        });
    }
    call
}

pub fn check(data: &[u8]) {
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let call = call(&mut Taker(data.get(end + 1..).unwrap_or_default()));
    let Ok(text) = std::str::from_utf8(&data[..end]) else {
        return;
    };
    condition::check(text);
    let Ok(expression) = Expression::parse(text) else {
        return;
    };
    let answer = expression.judge(&call);
    // The opposite has the opposite answer, also of what is not known.
    let opposite = format!("!({text})");
    if let Ok(opposite) = Expression::parse(&opposite) {
        let expected = match answer {
            Answer::Yes => Answer::No,
            Answer::No => Answer::Yes,
            Answer::Unknown => Answer::Unknown,
        };
        assert_eq!(opposite.judge(&call), expected, "{text}");
    }
}
