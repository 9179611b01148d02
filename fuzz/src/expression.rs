// SPDX-License-Identifier: MIT OR Apache-2.0
//! Do both parsers of conditions survive every text, and do they agree?
//!
//! The text, and behind a NUL what is known of a call: a byte of flags, 12
//! numbers, then sleeps.

use crate::{Taker, condition};
use debox_condition::{Answer, CallFacts, EXPRESSION_MAX, Expression, Number, SiteFacts};
use std::ffi::{CStr, CString, c_char};

const NUMBERS: usize = 14;
/// Numbers that are given; faults and errno follow from them.
const GIVEN: usize = 12;

/// struct debox_watch_error of include/debox.h
#[repr(C)]
struct WatchError {
    column: u32,
    length: u32,
    text: [c_char; 160],
    help: [c_char; 256],
}

/// struct facts of libdebox/expression.h
#[repr(C)]
struct Facts {
    nr: i32,
    known: u32,
    number: [i64; NUMBERS],
    comm: *const c_char,
    sites: u32,
    sites_whole: u32,
    site: [[*const c_char; 2]; 16],
}

#[repr(C)]
struct Opaque([u8; 0]);

unsafe extern "C" {
    fn debox_expression_parse_(text: *const c_char, error: *mut WatchError) -> *mut Opaque;
    fn debox_expression_free_(x: *mut Opaque);
    fn debox_expression_judge_(x: *const Opaque, call: *const Facts) -> u32;
    fn debox_expression_wall_ns_(x: *const Opaque) -> u64;
    fn debox_expression_eventful_(x: *const Opaque) -> i32;
    fn debox_expression_asks_comm_(x: *const Opaque) -> i32;
    fn debox_expression_asks_sites_(x: *const Opaque) -> i32;
}

const LABELS: [&CStr; 4] = [c"inode-lock", c"futex", c"pipe-read", c"a"];
const FUNCTIONS: [&CStr; 4] = [c"open_last_lookups", c"do_wait", c"pipe_read", c"b.isra.0"];
const COMMS: [&CStr; 4] = [c"nginx", c"redis-server", c"a b", c""];

fn text(name: &'static CStr) -> &'static str {
    name.to_str().expect("the names above are ASCII")
}

/// The same call for both.
fn call(taker: &mut Taker<'_>) -> (CallFacts<'static>, Facts) {
    let mut rust = CallFacts::default();
    let mut c = Facts {
        nr: -1,
        known: 0,
        number: [0; NUMBERS],
        comm: std::ptr::null(),
        sites: 0,
        sites_whole: 1,
        site: [[std::ptr::null(); 2]; 16],
    };
    let flags = taker.u8();
    if flags & 1 != 0 {
        let nr = taker.u16() % 512;
        (rust.key, c.nr) = (Some(u32::from(nr)), i32::from(nr));
    }
    if flags & 2 != 0 {
        let comm = COMMS[usize::from(flags >> 2 & 3)];
        (rust.comm, c.comm) = (Some(text(comm)), comm.as_ptr());
    }
    if flags & 16 != 0 {
        (rust.sites_whole, c.sites_whole) = (false, 0);
    }
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
        (rust.numbers[at], c.number[at]) = (Some(value), value);
        c.known |= 1 << at;
    }
    for site in &mut c.site[..usize::from(flags >> 5)] {
        let which = taker.u8();
        let pick = |names: &[&'static CStr; 4], bits: u8| {
            (bits & 4 == 0).then(|| names[usize::from(bits & 3)])
        };
        let label = pick(&LABELS, which);
        let function = pick(&FUNCTIONS, which >> 4);
        let pointer = |name: Option<&'static CStr>| name.map_or(std::ptr::null(), CStr::as_ptr);
        *site = [pointer(label), pointer(function)];
        c.sites += 1;
        rust.sites.push(SiteFacts {
            label: label.map(text),
            function: function.map(text),
        });
    }
    (rust, c)
}

fn said(field: &[c_char]) -> Vec<u8> {
    let bytes: Vec<u8> = field.iter().map(|c| *c as u8).collect();
    let end = bytes.iter().position(|b| *b == 0).expect("a NUL ends it");
    bytes[..end].to_vec()
}

/// A text of C's may be cut where its buffer ends.
fn same(c: &[u8], rust: &str, room: usize) {
    let rust = rust.as_bytes();
    let kept = &rust[..rust.len().min(room - 1)];
    assert_eq!(String::from_utf8_lossy(c), String::from_utf8_lossy(kept));
}

pub fn check(data: &[u8]) {
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let rest = data.get(end + 1..).unwrap_or_default();
    let (rust_call, c_call) = call(&mut Taker(rest));
    let c_text = CString::new(&data[..end]).expect("cut at the first NUL");
    let mut error = WatchError {
        column: 0,
        length: 0,
        text: [0; 160],
        help: [0; 256],
    };
    // SAFETY: a text with its NUL and a struct of C's own layout; both live on.
    let x = unsafe { debox_expression_parse_(c_text.as_ptr(), &mut error) };
    let answer = (!x.is_null()).then(|| {
        // SAFETY: parsed above and not yet freed; the facts have C's layout
        // and point to static texts.
        unsafe {
            let answer = debox_expression_judge_(x, &c_call);
            let wall_ns = debox_expression_wall_ns_(x);
            debox_expression_eventful_(x);
            debox_expression_asks_comm_(x);
            debox_expression_asks_sites_(x);
            debox_expression_free_(x);
            // What is left out beforehand must not be what is meant.
            let wall = Number::Wall as usize;
            if answer == 1 && c_call.known >> wall & 1 == 1 {
                assert!(c_call.number[wall] as u64 >= wall_ns);
            }
            answer
        }
    });
    let Ok(text) = std::str::from_utf8(&data[..end]) else {
        return;
    };
    condition::check(text);
    let rust = Expression::parse(text);
    if text.contains("caller") {
        // Not known to libdebox.
        return;
    }
    match (rust, answer) {
        (Ok(expression), Some(answer)) => {
            let expected = match expression.judge(&rust_call) {
                Answer::No => 0,
                Answer::Yes => 1,
                Answer::Unknown => 2,
            };
            assert_eq!(answer, expected, "{text}");
        }
        (Err(mistake), None) => {
            assert_eq!(error.column as usize, mistake.at + 1, "{text}");
            assert_eq!(error.length as usize, mistake.length, "{text}");
            let help = mistake.mistake.help().unwrap_or_default();
            same(&said(&error.text), &mistake.to_string(), error.text.len());
            // The lists of names differ in the one that libdebox lacks.
            if !help.contains("caller") {
                same(&said(&error.help), &help, error.help.len());
            }
        }
        (Ok(_), None) => panic!(
            "libdebox refuses what Rust accepts: {text:?}: {}",
            String::from_utf8_lossy(&said(&error.text))
        ),
        (Err(mistake), Some(_)) => {
            assert!(text.len() <= EXPRESSION_MAX);
            panic!("libdebox accepts what Rust refuses: {text:?}: {mistake}")
        }
    }
}
