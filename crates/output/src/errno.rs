// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is error number N called?

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

static NAMES: LazyLock<HashMap<i32, &'static str>> = LazyLock::new(|| {
    include_str!("../data/errno.tsv")
        .lines()
        .filter_map(|line| {
            let (number, name) = line.split_once('\t')?;
            Some((number.parse().ok()?, name))
        })
        .collect()
});

/// The name of an error number, e.g. `ENOENT` for 2. The kernel's negative
/// return values are taken too. A number without a name comes back as
/// `errno_N`.
pub fn errno_name(errno: i32) -> Cow<'static, str> {
    match NAMES.get(&errno.saturating_abs()) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("errno_{}", errno.unsigned_abs())),
    }
}

/// What a system call returned, for people: the name of the error, or the value.
/// The kernel's codes for a call that a signal broke off (`ERESTARTSYS` ...) have
/// names as well: the program sees EINTR, or the call made anew.
pub fn result_text(retval: i64) -> String {
    error_name(retval).unwrap_or_else(|| retval.to_string())
}

/// The name of the error that a system call returned, if it returned one.
pub fn error_name(retval: i64) -> Option<String> {
    (-4095..0)
        .contains(&retval)
        .then(|| errno_name(retval as i32).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{errno_name, result_text};

    #[test]
    fn results_are_values_or_names() {
        for (retval, text) in [
            (0, "0"),
            (17, "17"),
            (-2, "ENOENT"),
            (-512, "ERESTARTSYS"),
            (-513, "ERESTARTNOINTR"),
            (-514, "ERESTARTNOHAND"),
            (-515, "ENOIOCTLCMD"),
            (-516, "ERESTART_RESTARTBLOCK"),
            (-517, "EPROBE_DEFER"),
            (-529, "EIOCBQUEUED"),
            (-4095, "errno_4095"),
            // Not an error: an address in the upper half.
            (-4096, "-4096"),
            (i64::MIN, "-9223372036854775808"),
        ] {
            assert_eq!(result_text(retval), text);
        }
    }

    #[test]
    fn names_of_both_signs() {
        assert_eq!(errno_name(libc::ENOENT), "ENOENT");
        assert_eq!(errno_name(-libc::EINTR), "EINTR");
        assert_eq!(errno_name(libc::EWOULDBLOCK), "EAGAIN");
        assert_eq!(errno_name(-512), "ERESTARTSYS");
        assert_eq!(errno_name(4095), "errno_4095");
        assert_eq!(errno_name(i32::MIN), "errno_2147483648");
    }

    #[test]
    fn libc_agrees_on_every_number() {
        // glibc's own table is the independent witness.
        unsafe extern "C" {
            fn strerrorname_np(errno: i32) -> *const libc::c_char;
        }
        let mut seen = 0;
        for errno in 1..200 {
            // SAFETY: takes any number and returns NULL or a static string.
            let name = unsafe { strerrorname_np(errno) };
            if name.is_null() {
                continue;
            }
            // SAFETY: not NULL, so a NUL-terminated string of static life.
            let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_str().unwrap();
            assert_eq!(errno_name(errno), name);
            seen += 1;
        }
        assert!(seen > 120, "glibc names only {seen} errors");
    }
}
