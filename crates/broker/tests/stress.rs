// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does the broker stand a storm, and is everybody else still served in it?

mod common;

use common::*;
use debox_abi::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The tests count this process's descriptors: one at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn ten_thousand_connects() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    debox_broker::nofile_raise();
    let broker = Running::new();
    let good = broker.client();
    assert_eq!(
        good.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0)).0.status,
        0
    );
    let before = descriptors();
    let mut slowest = Duration::ZERO;
    for n in 0..10_000 {
        // Some say nothing, some send half a message, some ask and do not wait.
        let client = broker.client();
        match n % 4 {
            0 => {}
            1 => client.send(&[64, 0, 0]).unwrap(),
            2 => client
                .send(debox_request::new(DEBOX_MSG_SLOTS, 0).as_bytes())
                .unwrap(),
            _ => client
                .send(debox_request::new(DEBOX_MSG_ACCOUNT, 0).as_bytes())
                .unwrap(),
        }
        drop(client);
        if n % 100 == 0 {
            let began = Instant::now();
            assert_eq!(
                good.ask(&debox_request::new(DEBOX_MSG_STATUS, 0)).0.status,
                0
            );
            slowest = slowest.max(began.elapsed());
        }
    }
    assert!(
        slowest < Duration::from_secs(2),
        "a good client waited {slowest:?}"
    );
    broker.kernel.wait_held((1, 0));
    wait_for("descriptors to be closed", || descriptors() <= before);
    broker.serves_well();
}

#[test]
fn five_hundred_at_once() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    debox_broker::nofile_raise();
    let broker = Running::new();
    let clients: Vec<Client> = (0..500).map(|_| broker.client()).collect();
    let slots = debox_request::new(DEBOX_MSG_SLOTS, 0);
    for client in &clients {
        client.send(slots.as_bytes()).unwrap();
    }
    // One process: the limit of 128 segments holds over all connections.
    let (mut granted, mut refused) = (0, 0);
    for client in &clients {
        match client.reply().0.status {
            0 => granted += 1,
            status => {
                assert_eq!(status, -libc::ENOSPC);
                refused += 1;
            }
        }
    }
    assert_eq!((granted, refused), (128, 372));
    assert_eq!(broker.kernel.held(), (128, 0));
    drop(clients);
    broker.kernel.wait_held((0, 0));
    broker.serves_well();
}

#[test]
fn a_crowd_of_all_kinds_of_clients() {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    debox_broker::nofile_raise();
    let broker = Running::new();
    let stop = AtomicBool::new(false);
    let flood = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // Never reads; comes again when thrown out.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let client = broker.client();
                    let status = debox_request::new(DEBOX_MSG_STATUS, 0);
                    while !stop.load(Ordering::Relaxed) && client.send(status.as_bytes()).is_ok() {
                        flood.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let silent: Vec<Client> = (0..200).map(|_| broker.client()).collect();
        let mut slowest = Duration::ZERO;
        for _ in 0..300 {
            let began = Instant::now();
            let client = broker.client();
            let (reply, fds) = client.ask(&debox_request::new(DEBOX_MSG_SLOTS, 0));
            assert_eq!((reply.status, fds.len()), (0, 3), "{}", reply.text());
            slowest = slowest.max(began.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        drop(silent);
        assert!(
            slowest < Duration::from_secs(2),
            "a good client waited {slowest:?}"
        );
    });
    assert!(flood.load(Ordering::Relaxed) > 1000, "there was a flood");
    broker.kernel.wait_held((0, 0));
}
