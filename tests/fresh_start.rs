// SPDX-License-Identifier: MIT OR Apache-2.0
//! What did whoever started the tests leave to them that must not matter?
//!
//! nohup, a script's background job and some CI runners start what they start
//! with SIGINT ignored; children inherit that, and a test that waits for what
//! SIGINT does to one of them waits for ever. A test binary that names this
//! file as a module gets every signal's default, none blocked, and umask 022,
//! before `main`: no other thread has inherited the old ones by then.
//! fresh_start.py and fresh_start.h are the same for Python and C.

#[used]
#[unsafe(link_section = ".init_array")]
static FRESH_START: extern "C" fn() = fresh_start;

extern "C" fn fresh_start() {
    for signal in 1..=64 {
        // SAFETY: sets a disposition that runs no code of ours; numbers that
        // cannot be set fail and change nothing.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: the set is initialised by sigemptyset; umask touches no memory.
    unsafe {
        let mut none = std::mem::MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        libc::umask(0o022);
    }
}
