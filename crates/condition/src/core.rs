// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does Rust reach the one parser of conditions, libdebox/expression.c?
//!
//! The structs are those of libdebox/expression.h and include/debox.h; build.rs
//! compiles the file into this crate under names of its own.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::NonNull;
use std::sync::LazyLock;

use debox_abi::{DEBOX_NR_COMPAT, DEBOX_NR_SLOTS, DEBOX_SLEEPS_MAX};

use crate::error::ExpressionError;
use crate::facts::{Answer, CallFacts, SiteFacts};
use crate::field::NUMBERS;

#[repr(C)]
struct WatchError {
    column: u32,
    length: u32,
    text: [c_char; 160],
    help: [c_char; 256],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Site {
    label: *const c_char,
    function: *const c_char,
    holder: *const c_char,
    root: *const c_char,
    chain: *const c_char,
}

#[repr(C)]
struct Facts {
    nr: i32,
    known: u32,
    number: [i64; NUMBERS],
    comm: *const c_char,
    caller: *const c_char,
    sites: u32,
    sites_whole: u32,
    site: [Site; DEBOX_SLEEPS_MAX],
}

/// enum node_kind
pub(crate) const NODE_AND: u32 = 0;
pub(crate) const NODE_OR: u32 = 1;
pub(crate) const NODE_NOT: u32 = 2;
pub(crate) const NODE_NUMBER: u32 = 3;
pub(crate) const NODE_CALL: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawNode {
    pub(crate) kind: u32,
    pub(crate) left: u32,
    pub(crate) right: u32,
    pub(crate) which: i32,
    pub(crate) glob: u32,
    pub(crate) text: u32,
    pub(crate) length: u32,
    pub(crate) at: u32,
    pub(crate) extent: u32,
    reserved: u32,
    pub(crate) low: i64,
    pub(crate) high: i64,
    pub(crate) calls: [u64; DEBOX_NR_SLOTS / 64],
}

#[repr(C)]
struct RawExpression {
    bytes: u64,
    root: u32,
    nodes: u32,
    capacity: u32,
    length: u32,
    text: *const c_char,
    // The nodes follow.
}

#[repr(C)]
struct Names {
    name: extern "C" fn(c_int) -> *const c_char,
    keys: i32,
    observer: i32,
}

// libdebox/expression.c asserts the same of its own.
const _: () = assert!(size_of::<RawNode>() == 40 + 16 + DEBOX_NR_SLOTS / 8);
const _: () = assert!(size_of::<RawExpression>() == 32);
const _: () = assert!(size_of::<Facts>() == 8 + NUMBERS * 8 + 16 + 8 + DEBOX_SLEEPS_MAX * 40);

unsafe extern "C" {
    fn debox_condition_parse_(
        text: *const c_char,
        length: usize,
        names: *const Names,
        error: *mut WatchError,
    ) -> *mut RawExpression;
    fn debox_condition_free_(x: *mut RawExpression);
    fn debox_condition_judge_(x: *const RawExpression, call: *const Facts) -> u32;
    fn debox_condition_glob_fits_(
        pattern: *const c_char,
        length: usize,
        name: *const c_char,
    ) -> c_int;
    fn debox_condition_nearest_(
        word: *const c_char,
        length: usize,
        names: *const *const c_char,
        count: usize,
    ) -> *const c_char;
}

/// The names of both system call tables, by account key.
static CALLS: LazyLock<Vec<Option<CString>>> = LazyLock::new(|| {
    (0..DEBOX_NR_SLOTS as i32)
        .map(|key| {
            let compat = DEBOX_NR_COMPAT as i32;
            let name = debox_symbol::syscall_name(key % compat, key >= compat);
            (!name.starts_with("syscall_"))
                .then(|| CString::new(name.as_bytes()).ok())
                .flatten()
        })
        .collect()
});

extern "C" fn call_name(key: c_int) -> *const c_char {
    let name = usize::try_from(key).ok().and_then(|key| CALLS.get(key));
    match name {
        Some(Some(name)) => name.as_ptr(),
        _ => std::ptr::null(),
    }
}

static NAMES: Names = Names {
    name: call_name,
    keys: DEBOX_NR_SLOTS as i32,
    observer: 1,
};

fn said(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .take_while(|c| **c != 0)
        .map(|c| *c as u8)
        .collect();
    // Where its buffer ended, C may have cut a character.
    let text = String::from_utf8_lossy(&bytes);
    text.trim_end_matches('\u{fffd}').to_owned()
}

/// Names are text of others: what follows a NUL cannot be compared.
fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).expect("cut at the first NUL")
}

/// A parsed expression, in C's memory.
#[derive(Debug)]
pub(crate) struct Parsed(NonNull<RawExpression>);

// SAFETY: nothing writes to an expression between its parsing and its end, and it
// points to its own mapping only.
unsafe impl Send for Parsed {}
// SAFETY: the same; judging reads.
unsafe impl Sync for Parsed {}

impl Drop for Parsed {
    fn drop(&mut self) {
        // SAFETY: parsed below, and given back once.
        unsafe { debox_condition_free_(self.0.as_ptr()) }
    }
}

impl Parsed {
    pub(crate) fn parse(text: &str) -> Result<Parsed, ExpressionError> {
        let mut error = WatchError {
            column: 0,
            length: 0,
            text: [0; 160],
            help: [0; 256],
        };
        // SAFETY: `length` bytes of text that outlive the call, which copies them;
        // the structs have C's layout.
        let x =
            unsafe { debox_condition_parse_(text.as_ptr().cast(), text.len(), &NAMES, &mut error) };
        NonNull::new(x).map(Parsed).ok_or_else(|| ExpressionError {
            at: (error.column as usize).saturating_sub(1),
            length: error.length as usize,
            text: said(&error.text),
            help: said(&error.help),
        })
    }

    fn raw(&self) -> &RawExpression {
        // SAFETY: parsed, not yet freed, and written by nobody.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn root(&self) -> u32 {
        self.raw().root
    }

    pub(crate) fn nodes(&self) -> &[RawNode] {
        // SAFETY: `nodes` of them follow the head, within the same mapping.
        unsafe {
            std::slice::from_raw_parts(self.0.as_ptr().add(1).cast(), self.raw().nodes as usize)
        }
    }

    pub(crate) fn judge(&self, call: &CallFacts<'_>) -> Answer {
        let optional = |text: Option<&str>| text.map(c_text);
        let pointer =
            |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
        let (comm, caller) = (optional(call.comm), optional(call.caller));
        let texts = |site: &SiteFacts<'_>| {
            let texts = [
                site.label,
                site.function,
                site.holder,
                site.root,
                site.chain,
            ];
            texts.map(optional)
        };
        let sites: Vec<[Option<CString>; 5]> = (call.sites.iter())
            .take(DEBOX_SLEEPS_MAX)
            .map(texts)
            .collect();
        let mut facts = Facts {
            nr: call.key.map_or(-1, |key| key as i32),
            known: 0,
            number: [0; NUMBERS],
            comm: pointer(&comm),
            caller: pointer(&caller),
            sites: sites.len() as u32,
            sites_whole: u32::from(call.sites_whole && call.sites.len() <= DEBOX_SLEEPS_MAX),
            site: [Site {
                label: std::ptr::null(),
                function: std::ptr::null(),
                holder: std::ptr::null(),
                root: std::ptr::null(),
                chain: std::ptr::null(),
            }; DEBOX_SLEEPS_MAX],
        };
        for (number, value) in call.numbers.iter().enumerate() {
            if let Some(value) = value {
                facts.known |= 1 << number;
                facts.number[number] = *value;
            }
        }
        for (site, texts) in facts.site.iter_mut().zip(&sites) {
            let [label, function, holder, root, chain] = texts;
            site.label = pointer(label);
            site.function = pointer(function);
            site.holder = pointer(holder);
            site.root = pointer(root);
            site.chain = pointer(chain);
        }
        // SAFETY: parsed and not yet freed; the facts have C's layout and their
        // texts live in `comm`, `caller` and `sites` until here.
        match unsafe { debox_condition_judge_(self.0.as_ptr(), &facts) } {
            0 => Answer::No,
            1 => Answer::Yes,
            _ => Answer::Unknown,
        }
    }
}

/// `*` stands for any characters, `?` for one.
pub(crate) fn glob_fits(pattern: &str, name: &str) -> bool {
    let name = c_text(name);
    // SAFETY: a pattern with its length, a name with its NUL.
    unsafe {
        debox_condition_glob_fits_(pattern.as_ptr().cast(), pattern.len(), name.as_ptr()) != 0
    }
}

/// The nearest of the names, if it is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: Vec<CString> = names.into_iter().map(c_text).collect();
    let pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
    // SAFETY: a word with its length, and so many names with their NULs.
    let best = unsafe {
        debox_condition_nearest_(
            word.as_ptr().cast(),
            word.len(),
            pointers.as_ptr(),
            pointers.len(),
        )
    };
    if best.is_null() {
        return None;
    }
    // SAFETY: one of `names`, which still live.
    Some(
        unsafe { CStr::from_ptr(best) }
            .to_string_lossy()
            .into_owned(),
    )
}
