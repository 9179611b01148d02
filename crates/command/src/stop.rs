// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has somebody asked debox to end?
//!
//! For what measures in loops of its own: a signal is noted, and whoever waits looks at the
//! note. Where debox waits for a command, [`Signals`](crate::Signals) are read instead.

use crate::inherited::empty_set;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

const ASKS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Longest sleep between two looks at the note: a signal may reach another thread.
const LOOK: Duration = Duration::from_millis(50);

/// By which signal; 0: not.
static ASKED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    ASKED.store(signal, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP are noted instead of ending this process; one that
/// whoever started debox had it ignore (nohup, a script's `&`) stays ignored.
pub fn note_signals() {
    for signal in ASKS {
        // SAFETY: fills a local, and sets a handler that only stores to an atomic; calls that
        // it interrupts go on (SA_RESTART).
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            if action.sa_sigaction != libc::SIG_IGN {
                action = std::mem::zeroed();
                action.sa_sigaction = note as extern "C" fn(libc::c_int) as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
    }
    admit_signals();
}

/// [`Inherited::take`](crate::Inherited::take) blocks every signal; those that ask for the end
/// come through again.
pub fn admit_signals() {
    let mut set = empty_set();
    // SAFETY: a valid local set.
    unsafe {
        for signal in ASKS {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
    }
}

/// The signal that asked for the end.
pub fn asked_by() -> Option<i32> {
    match ASKED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

pub fn asked() -> bool {
    asked_by().is_some()
}

/// Sleeps, but not beyond such a signal.
pub fn sleep_until(end: Instant) {
    while !asked() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(LOOK));
    }
}
