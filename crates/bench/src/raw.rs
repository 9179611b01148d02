// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a system call made with nothing around it?
//!
//! libc's `syscall()` is a function that stores errno and whose return the
//! processor may mispredict after the kernel has run; a benchmark of the kernel
//! must not measure that.

/// A system call with up to six arguments; returns what the kernel did, `-errno` on failure.
///
/// # Safety
/// As for the system call itself.
#[inline(always)]
pub unsafe fn call6(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> i64 {
    let result: i64;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; what
    // memory it touches is the caller's responsibility.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            out("rcx") _, out("r11") _,
            options(nostack),
        );
    }
    result
}

/// The same with up to three arguments.
///
/// # Safety
/// As for the system call itself.
#[inline(always)]
pub unsafe fn call3(nr: i64, a: usize, b: usize, c: usize) -> i64 {
    let result: i64;
    // SAFETY: as in call6.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr => result,
            in("rdi") a, in("rsi") b, in("rdx") c,
            out("rcx") _, out("r11") _,
            options(nostack),
        );
    }
    result
}

/// A failure of the last libc call, with what was tried.
pub fn os_error(what: &str) -> crate::Error {
    crate::Error::System {
        what: what.to_owned(),
        source: std::io::Error::last_os_error(),
    }
}

/// `Err` with errno when `result` is negative.
pub fn check(result: i32, what: &str) -> Result<i32, crate::Error> {
    if result < 0 {
        Err(os_error(what))
    } else {
        Ok(result)
    }
}

/// What a failed call returned, for a message.
pub fn errno_text(result: i64) -> String {
    if result < 0 {
        format!(" ({})", std::io::Error::from_raw_os_error(-result as i32))
    } else {
        String::new()
    }
}
