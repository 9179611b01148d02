// SPDX-License-Identifier: MIT OR Apache-2.0
//! What do an account's details hold for one command? Prints the raw tables:
//! `cargo run -p debox-probe --example details -- [stacks] CMD ARGS...`.

use debox_abi::*;
use debox_probe::{AccountOptions, Kernel, Options, Probe};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Duration;

fn map<T>(fd: &OwnedFd, write: bool) -> *mut T {
    // SAFETY: a fresh mapping; the descriptor is of a map of at least T's size.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<T>().next_multiple_of(4096),
            if write {
                libc::PROT_READ | libc::PROT_WRITE
            } else {
                libc::PROT_READ
            },
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let whole = args.first().is_some_and(|a| a == "stacks");
    if whole {
        args.remove(0);
    }
    let mut probe = Probe::load(Options::default())?;
    let account = probe.account_create(
        debox_probe::Watcher::root(),
        AccountOptions {
            boundary: true,
            irq: false,
            details: true,
        },
    )?;
    let (ready, tables) = std::sync::mpsc::channel();
    // SAFETY: no conditions.
    let uid = unsafe { libc::getuid() };
    let told = Box::new(move || {
        let _ = ready.send(());
    });
    probe.user_stacks_prepare(uid, std::process::id(), told);
    let _ = tables.recv_timeout(Duration::from_secs(10));
    let fds = account.details.as_ref().ok_or("no details")?;
    let control: *mut debox_account_control = map(&fds.control, true);
    let flags = DEBOX_DETAIL_THREADS
        | DEBOX_DETAIL_EVENTS
        | if whole {
            DEBOX_DETAIL_STACKS
        } else {
            DEBOX_DETAIL_CALL_SITES
        };
    // SAFETY: mapped above, nobody else writes it.
    unsafe {
        (*control).flags = flags;
        (*control).slow_ns = [1_000_000; DEBOX_NR_SLOTS];
    }
    let mut child = Command::new("sh")
        .args(["-c", "read go; exec \"$@\" </dev/null", "sh"])
        .args(&args)
        .stdin(Stdio::piped())
        .spawn()?;
    probe.account_join(account.id, child.id(), true)?;
    child.stdin.take().ok_or("no stdin")?.write_all(b"go\n")?;
    while child.try_wait()?.is_none() {
        probe.wait(Duration::from_millis(5));
        probe.new_stacks();
    }
    let details: *const debox_details = map(&fds.details, false);
    // SAFETY: mapped for the whole struct; nobody writes now.
    let details = unsafe { &*details };
    println!(
        "events {} dropped {}; stacks {} pending {} failed {} dropped {}; files {}; threads {}",
        details.events_sent,
        details.events_dropped,
        details.stacks_used,
        details.stacks_pending,
        details.stacks_failed,
        details.stacks_dropped,
        details.files_used,
        details.threads_used
    );
    for (i, file) in details.files.iter().enumerate().filter(|f| f.1.state == 1) {
        println!(
            "file {i}: {} ({} {:#x})",
            text_get(&file.path),
            file.ino,
            file.dev
        );
    }
    let stack = |index: u32| {
        let s = &details.stacks[index as usize];
        let frames: Vec<String> = s.frames[..s.depth as usize]
            .iter()
            .map(|f| format!("{}:{:#x}", f >> 48, f & 0xffff_ffff_ffff))
            .collect();
        format!(
            "[{} flags {} site {}] {}",
            index,
            s.flags,
            s.site_frame,
            frames.join(" < ")
        )
    };
    for row in details.call_sites.iter().filter(|r| r.key != 0) {
        println!(
            "call {:4} x {:5} {:9} ns {}",
            row.key >> 53 & 1023,
            row.count,
            row.wall_ns,
            stack(row.key as u32)
        );
    }
    for row in details.paths.iter().filter(|r| r.key != 0) {
        println!(
            "slept in {} at site {}: {} x, {} ns, stack {}",
            row.key >> 53 & 1023,
            row.key >> 38 & 0x7fff,
            row.count,
            row.total_ns,
            row.key as u32
        );
    }
    for row in details.culprits.iter().filter(|r| r.key != 0) {
        println!(
            "culprit {}({}) kind {} in call {}: {} waits {} ns, site {}",
            text_get(&row.comm),
            row.key as u32 & DEBOX_CULPRIT_PID_MASK,
            row.key >> 36 & 3,
            (row.key >> 24 & 0x7ff) as i64 - 1,
            row.count,
            row.total_ns,
            row.key >> 38 & 0x7fff,
        );
    }
    for row in details.threads.iter().filter(|r| r.tid != 0) {
        println!(
            "thread {} {} {}: {} calls {} ns, ended {}",
            row.tgid,
            row.tid,
            text_get(&row.comm),
            row.count,
            row.wall_ns,
            row.ended_ns != 0
        );
    }
    Ok(())
}
