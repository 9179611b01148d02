// SPDX-License-Identifier: MIT OR Apache-2.0
//! Has somebody asked us to end?

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

/// SIGINT, SIGTERM and SIGHUP end the measuring; the report is written.
pub fn stop_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic; the action is zeroed
        // but for it, without SA_RESTART so that waits end.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

pub fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Sleeps, but not beyond a signal.
pub fn sleep_until(end: std::time::Instant) {
    while !stopped() {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(std::time::Duration::from_millis(50)));
    }
}
