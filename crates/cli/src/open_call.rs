// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which threads are still inside a call, and since when at least?
//!
//! An account holds calls that have returned. For the others /proc tells the
//! call's number; a thread that has not run between two looks (its count of
//! time slices is the same) has been in that call all the while.

use crate::session::call_name;
use debox_report::OpenCall;
use std::collections::HashMap;
use std::time::Instant;

/// A look at one thread is one small read of /proc, and three more if it has run since the look before.
const THREADS_MAX: usize = 4096;
/// The longest are explained.
const CALLS_EXPLAINED: usize = 256;

#[derive(Clone)]
struct Seen {
    slices: u64,
    comm: String,
    call: String,
    since: Instant,
    /// What it waits for, and what that means to the program; empty when not asked for.
    why: String,
    held_up: String,
}

#[derive(Default)]
pub struct OpenCalls {
    seen: HashMap<(u32, u32), Seen>,
    /// When that was so.
    looked: Option<Instant>,
}

/// "0 0x3 0x7ffd... " inside of a call, "running" on a CPU, "-1 ..." asleep
/// elsewhere.
fn call_number(text: &str) -> Option<u32> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// The third number of schedstat: how often the thread got a CPU.
fn time_slices(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// How often it got a CPU so far.
fn time_slices_now(pid: u32, tid: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/task/{tid}/schedstat");
    time_slices(&std::fs::read_to_string(path).ok()?)
}

impl OpenCalls {
    pub fn sample(&mut self, pids: impl Iterator<Item = u32>) {
        let now = Instant::now();
        let mut seen = HashMap::new();
        for pid in pids {
            let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
                continue;
            };
            for task in tasks.flatten().take(THREADS_MAX) {
                let Some(tid) = task
                    .file_name()
                    .to_str()
                    .and_then(|s| s.parse::<u32>().ok())
                else {
                    continue;
                };
                let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
                let Some(slices) = read("schedstat").and_then(|text| time_slices(&text)) else {
                    continue;
                };
                // It was off the CPU in that call, and has not been on one since: another call it has not made.
                // (Where the kernel does not count that, all have 0.)
                let before = self.seen.remove(&(pid, tid));
                if let Some(same) = before.filter(|seen| slices > 0 && seen.slices == slices) {
                    seen.insert((pid, tid), same);
                    continue;
                }
                let Some(nr) = read("syscall").and_then(|text| call_number(&text)) else {
                    continue;
                };
                let comm = std::fs::read(task.path().join("comm")).unwrap_or_default();
                let call = Seen {
                    slices,
                    comm: String::from_utf8_lossy(comm.trim_ascii_end()).into_owned(),
                    call: call_name(nr, is_32_bit(pid)).unwrap_or_else(|| format!("call {nr}")),
                    since: now,
                    why: String::new(),
                    held_up: String::new(),
                };
                seen.insert((pid, tid), call);
            }
        }
        self.seen = seen;
        self.looked = Some(now);
    }

    /// Says of the longest what they wait for. It holds for as long as they stay the same.
    pub fn explain(&mut self) {
        let mut calls = self.list();
        calls.truncate(CALLS_EXPLAINED);
        crate::why::explain(&mut calls);
        for call in calls {
            // What has run meanwhile may wait for something else by now.
            let same = |seen: &&mut Seen| time_slices_now(call.pid, call.tid) == Some(seen.slices);
            let seen = self.seen.get_mut(&(call.pid, call.tid));
            if let Some(seen) = seen.filter(same) {
                seen.why = call.why;
                seen.held_up = call.held_up;
            }
        }
    }

    /// As of the last look, longest first.
    pub fn list(&self) -> Vec<OpenCall> {
        let Some(looked) = self.looked else {
            return Vec::new();
        };
        let mut list: Vec<OpenCall> = self
            .seen
            .iter()
            .map(|((pid, tid), seen)| OpenCall {
                pid: *pid,
                tid: *tid,
                comm: seen.comm.clone(),
                call: seen.call.clone(),
                at_least_ns: crate::session::nanos(looked - seen.since),
                why: seen.why.clone(),
                held_up: seen.held_up.clone(),
            })
            .collect();
        list.sort_by(|a, b| b.at_least_ns.cmp(&a.at_least_ns).then(a.tid.cmp(&b.tid)));
        list
    }
}

/// By the class of its executable: /proc/PID/syscall does not tell the table.
fn is_32_bit(pid: u32) -> bool {
    use std::io::Read;
    let mut head = [0u8; 5];
    std::fs::File::open(format!("/proc/{pid}/exe"))
        .and_then(|mut f| f.read_exact(&mut head))
        .is_ok()
        && head == *b"\x7fELF\x01"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn proc_files_are_read() {
        assert_eq!(call_number("230 0x0 0x0 0x7ffe\n"), Some(230));
        assert_eq!(call_number("running\n"), None);
        assert_eq!(call_number("-1 0x7ffe 0x7f\n"), None);
        assert_eq!(time_slices("123 456 7\n"), Some(7));
    }

    #[test]
    fn a_sleeping_process_is_in_its_call_since_it_was_first_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let pid = child.id();
        let mut calls = OpenCalls::default();
        let mut slept = false;
        for _ in 0..100 {
            calls.sample([pid].into_iter());
            slept = calls.list().iter().any(|c| c.call == "clock_nanosleep");
            if slept {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // It may have got a CPU once more between its count of time slices and its call.
        std::thread::sleep(Duration::from_millis(20));
        calls.sample([pid].into_iter());
        std::thread::sleep(Duration::from_millis(150));
        calls.sample([pid].into_iter());
        let list = calls.list();
        // What was not looked at again is not told to have gone on.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(list, calls.list());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(slept, "sleep was never seen asleep");
        assert_eq!(
            (list.len(), list[0].tid, list[0].comm.as_str()),
            (1, pid, "sleep")
        );
        assert!(list[0].at_least_ns >= 150_000_000, "{list:?}");
    }
}
