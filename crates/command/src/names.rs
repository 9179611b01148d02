// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom does a statically linked program ask for the names of users and hosts?

/// To be called first in `main`. A program that has its C library within it asks the machine's files, and DNS.
///
/// Otherwise glibc would load what /etc/nsswitch.conf names besides these, and with it the machine's own C library
/// of another version, which crashes. Users whom only a service of the network knows have no name then.
pub fn names_settle() {
    #[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
    {
        use std::ffi::{c_char, c_int};

        unsafe extern "C" {
            /// nss.h
            fn __nss_configure_lookup(database: *const c_char, line: *const c_char) -> c_int;
        }
        for (database, line) in [
            (c"passwd", c"files"),
            (c"group", c"files"),
            (c"initgroups", c"files"),
            (c"hosts", c"files dns"),
        ] {
            // SAFETY: two strings that end with 0, before there is a second thread.
            unsafe { __nss_configure_lookup(database.as_ptr(), line.as_ptr()) };
        }
    }
}
