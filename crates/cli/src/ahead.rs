// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is a process attached to that keeps all CPUs busy?
//!
//! Beside 300 threads that compute, each turn on a CPU is waited for for a good part of a
//! second. So while debox attaches, and while it lets go, its threads go before those of
//! ordinary weight, where they may (CAP_SYS_NICE): by their weight, not as real-time, so that who is
//! watched goes on. A second or two of CPU. What was begun meanwhile (a private broker's
//! threads, the process that reads names) is of ordinary weight afterwards, too: its work can
//! take longer than that.

const FIRST: i32 = -20;

/// As long as this lives, the threads of this process, and what they begin.
pub struct Ahead {
    before: i32,
}

fn nice() -> i32 {
    // SAFETY: no memory involved.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

fn nice_set(tid: u32, nice: i32) -> bool {
    // SAFETY: no memory involved.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice) == 0 }
}

fn threads(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    (entries.into_iter().flatten().flatten())
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The threads of a process, and of those that it started.
fn calm(pid: u32, nice: i32) {
    for tid in threads(pid) {
        nice_set(tid, nice);
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
        for child in children.unwrap_or_default().split_ascii_whitespace() {
            if let Ok(child) = child.parse() {
                calm(child, nice);
            }
        }
    }
}

impl Ahead {
    /// Whoever has chosen a weight for debox keeps it.
    pub fn begin() -> Option<Self> {
        let before = nice();
        if before != 0 || !nice_set(0, FIRST) {
            return None;
        }
        for tid in threads(std::process::id()) {
            nice_set(tid, FIRST);
        }
        Some(Self { before })
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        calm(std::process::id(), self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn afterwards_everything_is_as_before() {
        let before = nice();
        let ahead = Ahead::begin();
        assert_eq!(ahead.is_some(), nice() != before);
        let child = std::process::Command::new("sleep").arg("60").spawn();
        let mut child = child.expect("sleep runs");
        drop(ahead);
        // SAFETY: no memory involved.
        let of_child = unsafe { libc::getpriority(libc::PRIO_PROCESS, child.id()) };
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert_eq!((nice(), of_child), (before, before));
    }
}
