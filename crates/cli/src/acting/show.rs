// SPDX-License-Identifier: MIT OR Apache-2.0
//! How is one remarkable call told to people?

use crate::session::call_name;
use debox_abi::*;
use debox_output::{duration_text, printable, result_text};
use debox_report::Object;
use std::fmt::Write;

/// The system call of an event.
pub fn event_call(event: &debox_event_call) -> String {
    let (nr, compat) = match event.key {
        key if key < DEBOX_NR_COMPAT => (key, false),
        key => (key - DEBOX_NR_COMPAT, true),
    };
    let name = call_name(nr, compat).unwrap_or_else(|| format!("call {nr}"));
    if compat {
        format!("{name} (32-bit)")
    } else {
        name
    }
}

pub fn comm(bytes: &[u8]) -> String {
    printable(&name_get(bytes))
}

/// The event's sleeps, in order.
pub fn sleeps(event: &debox_event_call) -> &[debox_event_sleep] {
    let count = (event.sleep_count as usize).min(DEBOX_EVENT_SLEEPS_MAX);
    &event.sleeps[..count]
}

/// The label of a site; "?" if it has none (yet).
pub fn label(site: Option<&debox_site>) -> String {
    site.map_or("?".into(), |site| printable(text_get(&site.label)))
}

fn place(site: Option<&debox_site>) -> String {
    let Some(site) = site else {
        return "(not resolved)".into();
    };
    let function = printable(text_get(&site.function));
    let file = printable(text_get(&site.file));
    if site.line != 0 && !file.is_empty() {
        format!("{function} ({file}:{})", site.line)
    } else {
        format!("{function}+{:#x}", site.offset)
    }
}

/// HH:MM:SS.mmm of CLOCK_MONOTONIC's `ns`, in the local time zone.
fn clock_text(ns: u64) -> String {
    let read = |clock| {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: fills a local.
        unsafe { libc::clock_gettime(clock, &mut now) };
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    let wall = read(libc::CLOCK_REALTIME) - read(libc::CLOCK_MONOTONIC) + i128::from(ns);
    let seconds = (wall / 1_000_000_000) as libc::time_t;
    // SAFETY: fills a local; all-zero is a valid tm.
    let time = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut time);
        time
    };
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        time.tm_hour,
        time.tm_min,
        time.tm_sec,
        wall / 1_000_000 % 1000
    )
}

/// What the call worked on.
pub fn object(event: &debox_event_call) -> Option<String> {
    Object::of(&event.object).map(|object| object.text)
}

/// One line: when, who, which call, how long, and where that went.
pub fn line(
    event: &debox_event_call,
    site: &dyn Fn(u32) -> Option<debox_site>,
    late: bool,
    ascii: bool,
) -> String {
    let time = |ns| duration_text(ns, ascii);
    let what = object(event);
    let mut text = format!(
        "{} {} {}/{} {}({})",
        clock_text(event.start_ns + event.wall_ns),
        comm(&event.comm),
        event.pid,
        event.tid,
        event_call(event),
        what.as_deref().map_or(String::new(), printable),
    );
    if let ([sleep], true) = (sleeps(event), event.flags & DEBOX_EVENT_SLEEP != 0) {
        // Its call may go on.
        let label = label(site(sleep.site).as_ref());
        let _ = write!(text, " slept {} at {label}", time(sleep.blocked_ns));
        if event.runq_ns > 0 {
            let _ = write!(text, ", run queue {}", time(event.runq_ns));
        }
        if late {
            text.push_str(" (late)");
        }
        return text;
    }
    let _ = write!(
        text,
        " = {}, {}: on CPU {}",
        match event.retval {
            // Broken off by a signal: the program sees EINTR, or the kernel
            // makes the call anew.
            -514..=-512 | -516 => format!("{} (interrupted)", result_text(event.retval)),
            value => result_text(value),
        },
        time(event.wall_ns),
        time(event.cpu_ns),
    );
    if event.blocked_ns > 0 {
        // Labels with the longest first, those of one label together.
        let mut parts: Vec<(String, u64)> = Vec::new();
        for sleep in sleeps(event) {
            let label = label(site(sleep.site).as_ref());
            match parts.iter_mut().find(|(known, _)| *known == label) {
                Some((_, ns)) => *ns += sleep.blocked_ns,
                None => parts.push((label, sleep.blocked_ns)),
            }
        }
        parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let shown: Vec<String> = match &parts[..] {
            [(label, _)] => vec![label.clone()],
            many => many
                .iter()
                .map(|(label, ns)| format!("{label} {}", time(*ns)))
                .collect(),
        };
        let _ = write!(text, ", blocked {}", time(event.blocked_ns));
        if !shown.is_empty() {
            let _ = write!(text, " ({})", shown.join(", "));
        }
    }
    if event.runq_ns > 0 {
        let _ = write!(text, ", run queue {}", time(event.runq_ns));
    }
    if event.irq_ns > 0 {
        let _ = write!(text, ", interrupts {}", time(event.irq_ns));
    }
    if event.major_faults > 0 {
        let _ = write!(text, ", {} major faults", event.major_faults);
    }
    if late {
        text.push_str(" (late)");
    }
    text
}

/// In some words: who, which call, how long.
pub fn short(event: &debox_event_call) -> String {
    format!(
        "{} {}, {} of {}",
        comm(&event.comm),
        event.pid,
        event_call(event),
        duration_text(event.wall_ns, true)
    )
}

/// The sleeps with places and culprits, and the program's stack, a line each.
pub fn stack(
    event: &debox_event_call,
    site: &dyn Fn(u32) -> Option<debox_site>,
    frames: &[String],
    why_no_frames: &str,
    ascii: bool,
) -> String {
    let time = |ns| duration_text(ns, ascii);
    let mut text = String::new();
    for sleep in sleeps(event) {
        let found = site(sleep.site);
        let _ = write!(
            text,
            "    slept {} at {} in {}",
            time(sleep.blocked_ns),
            label(found.as_ref()),
            place(found.as_ref())
        );
        let party = |pid: u32, name: &[u8], nr: i32| {
            let inside = match u32::try_from(nr).ok().and_then(|nr| call_name(nr, false)) {
                Some(call) => format!(" in {call}"),
                None => String::new(),
            };
            match pid {
                0 => comm(name),
                pid => format!("{} {pid}{inside}", comm(name)),
            }
        };
        if sleep.waiters_entry > 0 {
            let _ = write!(text, ", with {} other waiters", sleep.waiters_entry);
        }
        if sleep.holder_kind != DEBOX_HOLDER_NONE && sleep.holder_pid != 0 {
            let _ = write!(
                text,
                ", held by {}",
                party(sleep.holder_pid, &sleep.holder_comm, sleep.holder_nr)
            );
        }
        if sleep.waker_comm[0] != 0 {
            let _ = write!(
                text,
                ", woken by {}",
                party(sleep.waker_pid, &sleep.waker_comm, sleep.waker_nr)
            );
        }
        text.push('\n');
    }
    if event.sleeps_dropped > 0 {
        let _ = writeln!(
            text,
            "    and {} more sleeps, {}",
            event.sleeps_dropped,
            time(event.sleeps_dropped_ns)
        );
    }
    for (i, frame) in frames.iter().enumerate() {
        let _ = writeln!(text, "    #{i:<2} {}", printable(frame));
    }
    if frames.is_empty() {
        let _ = writeln!(
            text,
            "    (no stack of the program: {})",
            printable(why_no_frames)
        );
    }
    text
}
