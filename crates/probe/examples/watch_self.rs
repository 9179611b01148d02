// SPDX-License-Identifier: MIT OR Apache-2.0
//! What does it cost this process to watch itself, call by call?
//!
//! `cargo run --release -p debox-probe --example watch_self` prints ns per
//! getpid() and per pipe round trip: bare, hooks attached for another account,
//! watched. Numbers of one interleaved run; for eyes, the benchmarks proper
//! are in performance/.
use debox_probe::{AccountOptions, Floor, Kernel, Options, Probe, floor_attach};
use std::time::Instant;

fn getpid_ns() -> f64 {
    let mut best = f64::MAX;
    for _ in 0..30 {
        let t = Instant::now();
        for _ in 0..20000 {
            // SAFETY: no arguments, no effects.
            unsafe { libc::syscall(libc::SYS_getpid) };
        }
        best = best.min(t.elapsed().as_nanos() as f64 / 20000.0);
    }
    best
}

fn pin(cpu: usize) {
    // SAFETY: a zeroed cpu_set_t is valid and outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Two processes on one CPU: 2 switches and 2 sleeps a round.
fn pingpong_ns() -> f64 {
    let (mut a, mut b) = ([0; 2], [0; 2]);
    // SAFETY: valid arrays; descriptors closed below; the child only reads,
    // writes and exits.
    unsafe {
        libc::pipe(a.as_mut_ptr());
        libc::pipe(b.as_mut_ptr());
        let child = libc::fork();
        let mut byte = 0u8;
        if child == 0 {
            libc::close(a[1]);
            while libc::read(a[0], (&raw mut byte).cast(), 1) == 1 {
                libc::write(b[1], (&raw const byte).cast(), 1);
            }
            libc::_exit(0);
        }
        libc::close(a[0]);
        let mut best = f64::MAX;
        for _ in 0..20 {
            let t = Instant::now();
            for _ in 0..2000 {
                libc::write(a[1], (&raw const byte).cast(), 1);
                libc::read(b[0], (&raw mut byte).cast(), 1);
            }
            best = best.min(t.elapsed().as_nanos() as f64 / 2000.0);
        }
        libc::close(a[1]);
        libc::close(b[0]);
        libc::close(b[1]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        best
    }
}

fn idle_child() -> u32 {
    // SAFETY: the child only sleeps until killed.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            loop {
                libc::pause();
            }
        }
        child as u32
    }
}

fn main() {
    pin(1);
    let wakers = std::env::args().all(|a| a != "--no-wakers");
    let other = idle_child();
    let mut probe = Probe::load(Options {
        no_wakers: !wakers,
        ..Default::default()
    })
    .expect("load");
    let me = std::process::id();
    for _ in 0..3 {
        println!(
            "bare                     getpid {:6.1}  pingpong {:7.1}",
            getpid_ns(),
            pingpong_ns()
        );
        for floor in [Floor::SyscallEmpty, Floor::SyscallClock, Floor::SwitchEmpty] {
            let _guard = floor_attach(floor).unwrap();
            println!(
                "{:24} getpid {:6.1}  pingpong {:7.1}",
                format!("{floor:?}"),
                getpid_ns(),
                pingpong_ns()
            );
        }
        let wrap = probe
            .account_create(debox_probe::Watcher::root(), AccountOptions::default())
            .unwrap();
        probe.account_join(wrap.id, other, true).unwrap();
        println!(
            "other, events            getpid {:6.1}  pingpong {:7.1}",
            getpid_ns(),
            pingpong_ns()
        );
        probe.account_join(wrap.id, me, true).unwrap();
        let warm = pingpong_ns();
        let stacks = probe.new_stacks();
        println!(
            "self, events             getpid {:6.1}  pingpong {:7.1} (unsigned {warm:.1}, {} stacks) {:?}",
            getpid_ns(),
            pingpong_ns(),
            stacks.len(),
            probe.counters()
        );
        probe.account_release(wrap.id);
        let boundary = probe
            .account_create(
                debox_probe::Watcher::root(),
                AccountOptions {
                    boundary: true,
                    ..AccountOptions::default()
                },
            )
            .unwrap();
        probe.account_join(boundary.id, other, true).unwrap();
        println!(
            "other, boundary          getpid {:6.1}  pingpong {:7.1}",
            getpid_ns(),
            pingpong_ns()
        );
        probe.account_join(boundary.id, me, true).unwrap();
        println!(
            "self, boundary           getpid {:6.1}  pingpong {:7.1}",
            getpid_ns(),
            pingpong_ns()
        );
        probe.account_release(boundary.id);
    }
    // SAFETY: a child of ours.
    unsafe {
        libc::kill(other as i32, libc::SIGKILL);
        libc::waitpid(other as i32, std::ptr::null_mut(), 0);
    }
}
