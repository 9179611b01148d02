// SPDX-License-Identifier: MIT OR Apache-2.0
//! How does Rust reach the one parser of conditions, libdebox/expression.c?
//!
//! build.rs compiles the file into this crate under names of its own.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{NonNull, null};
use std::sync::LazyLock;

use debox_abi::{DEBOX_NR_COMPAT, DEBOX_NR_SLOTS, DEBOX_SLEEPS_MAX};

use crate::error::ExpressionError;
use crate::facts::{Answer, CallFacts, SiteFacts};
use crate::generated as c;

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
        _ => null(),
    }
}

static NAMES: c::expression_names = c::expression_names {
    name: Some(call_name),
    keys: DEBOX_NR_SLOTS as i32,
    observer: 1,
};

fn said(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    // Where its buffer ended, C may have cut a character.
    let text = String::from_utf8_lossy(&field[..end]);
    text.trim_end_matches('\u{fffd}').to_owned()
}

/// Names are text of others: what follows a NUL cannot be compared.
fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).expect("cut at the first NUL")
}

/// A parsed expression, in C's memory.
#[derive(Debug)]
pub(crate) struct Parsed(NonNull<c::expression>);

// SAFETY: nothing writes to an expression between its parsing and its end, and it
// points to its own mapping only.
unsafe impl Send for Parsed {}
// SAFETY: the same; judging reads.
unsafe impl Sync for Parsed {}

impl Drop for Parsed {
    fn drop(&mut self) {
        // SAFETY: parsed below, and given back once.
        unsafe { c::debox_condition_free_(self.0.as_ptr()) }
    }
}

impl Parsed {
    pub(crate) fn parse(text: &str) -> Result<Parsed, ExpressionError> {
        let mut error = c::debox_watch_error::default();
        // SAFETY: `length` bytes of text that outlive the call, which copies them;
        // the structs have C's layout.
        let x = unsafe {
            c::debox_condition_parse_(text.as_ptr().cast(), text.len(), &NAMES, &mut error)
        };
        NonNull::new(x).map(Parsed).ok_or_else(|| ExpressionError {
            at: (error.column as usize).saturating_sub(1),
            length: error.length as usize,
            text: said(&error.text),
            help: said(&error.help),
        })
    }

    fn raw(&self) -> &c::expression {
        // SAFETY: parsed, not yet freed, and written by nobody.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn root(&self) -> u32 {
        self.raw().root
    }

    pub(crate) fn nodes(&self) -> &[c::node] {
        // SAFETY: `nodes` of them follow the head, within the same mapping.
        unsafe {
            std::slice::from_raw_parts(self.0.as_ptr().add(1).cast(), self.raw().nodes as usize)
        }
    }

    pub(crate) fn judge(&self, call: &CallFacts<'_>) -> Answer {
        let optional = |text: Option<&str>| text.map(c_text);
        let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |t| t.as_ptr());
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
        let mut facts = c::facts {
            nr: call.key.map_or(-1, |key| key as i32),
            known: 0,
            number: [0; c::NUMBERS],
            comm: pointer(&comm),
            caller: pointer(&caller),
            sites: sites.len() as u32,
            sites_whole: u32::from(call.sites_whole && call.sites.len() <= DEBOX_SLEEPS_MAX),
            site: [c::site_facts {
                label: null(),
                function: null(),
                holder: null(),
                root: null(),
                chain: null(),
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
        match unsafe { c::debox_condition_judge_(self.0.as_ptr(), &facts) } {
            c::ANSWER_NO => Answer::No,
            c::ANSWER_YES => Answer::Yes,
            _ => Answer::Unknown,
        }
    }
}

/// `*` stands for any characters, `?` for one.
pub(crate) fn glob_fits(pattern: &str, name: &str) -> bool {
    let name = c_text(name);
    // SAFETY: a pattern with its length, a name with its NUL.
    unsafe {
        c::debox_condition_glob_fits_(pattern.as_ptr().cast(), pattern.len(), name.as_ptr()) != 0
    }
}

/// The nearest of the names, if it is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names: Vec<CString> = names.into_iter().map(c_text).collect();
    let pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
    // SAFETY: a word with its length, and so many names with their NULs.
    let best = unsafe {
        c::debox_condition_nearest_(
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
