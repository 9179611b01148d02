// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does any packet, or any sequence of packets, hurt the broker?

mod common;
#[path = "../../../fuzz/src/request.rs"]
mod property;

use common::*;
use debox_abi::*;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;

/// Packets near the good ones: noise alone would never get past the length.
fn near_request() -> impl Strategy<Value = Vec<u8>> {
    let good = (
        prop_oneof![4 => 1u32..6, 1 => 0u32..8],
        prop_oneof![2 => Just(0u32), 1 => 0u32..5],
        prop_oneof![3 => Just(0i32), 1 => Just(i32::MAX), 1 => any::<i32>()],
    );
    let change = prop_oneof![
        2 => Just(Vec::new()),
        1 => proptest::collection::vec((0usize..64, any::<u8>()), 1..3),
    ];
    let length = prop_oneof![8 => Just(64usize), 1 => 0usize..80];
    (good, change, length).prop_map(|((kind, flags, pid), change, length)| {
        let mut request = debox_request::new(kind, flags);
        request.pid = pid;
        let mut bytes = request.as_bytes().to_vec();
        for (at, value) in change {
            bytes[at] = value;
        }
        bytes.resize(length, 0);
        bytes
    })
}

fn near_trace_request() -> impl Strategy<Value = Vec<u8>> {
    let good = (
        prop_oneof![
            2 => Just(0u32),
            1 => Just(DEBOX_REQ_TRACE_ACCOUNT),
            1 => Just(DEBOX_REQ_TRACE_STOP),
            1 => any::<u32>(),
        ],
        prop_oneof![3 => 0u32..=DEBOX_TRACE_MAX, 1 => any::<u32>()],
        prop_oneof![3 => 0u32..34, 1 => any::<u32>()],
        prop_oneof![3 => "[a-z_*?,]{0,60}", 1 => ".{0,60}"],
    );
    let change = prop_oneof![
        2 => Just(Vec::new()),
        1 => proptest::collection::vec((0usize..400, any::<u8>()), 1..3),
    ];
    let length = prop_oneof![8 => Just(8192usize), 1 => 8000usize..8200];
    (good, change, length).prop_map(|((flags, capacity, calls, patterns), change, length)| {
        let mut request = debox_trace_request::new(flags);
        request.capacity = capacity;
        request.calls_count = calls;
        request.patterns[..patterns.len()].copy_from_slice(patterns.as_bytes());
        let mut bytes = request.as_bytes().to_vec();
        for (at, value) in change {
            bytes[at] = value;
        }
        bytes.resize(length, 0);
        bytes
    })
}

fn near_select() -> impl Strategy<Value = Vec<u8>> {
    let texts = || proptest::collection::vec("[a-z/*?\\[\\]!-]{0,12}", 0..4);
    let good = (
        prop_oneof![4 => Just(0u32), 2 => Just(DEBOX_REQ_NOFOLLOW), 2 => Just(DEBOX_REQ_OWNERS_FIRST), 1 => any::<u32>()],
        proptest::collection::vec(any::<u32>(), 0..16),
        texts(),
        texts(),
        prop_oneof![Just(0u32), any::<u32>()],
    );
    let change = prop_oneof![
        3 => Just(Vec::new()),
        1 => proptest::collection::vec((0usize..size_of::<debox_select>(), any::<u8>()), 1..3),
    ];
    (good, change).prop_map(|((flags, uids, comms, cgroups, rank), change)| {
        let request = debox_select::new(flags, &uids, &comms, &cgroups, rank).expect("few");
        let mut bytes = request.as_bytes().to_vec();
        for (at, value) in change {
            bytes[at] = value;
        }
        bytes
    })
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => near_request(),
        2 => near_trace_request(),
        2 => near_select(),
        1 => proptest::collection::vec(any::<u8>(), 0..200),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_is_judged_right(head in proptest::array::uniform2(prop_oneof![Just(0u8), any::<u8>()]), packet in packet()) {
        property::check(&[&head[..], &packet].concat());
    }
}

/// What a hostile client does next.
#[derive(Debug, Clone)]
enum Step {
    Send(Vec<u8>),
    SendWithDescriptors(Vec<u8>, usize),
    Read,
    ShutdownWrite,
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => packet().prop_map(Step::Send),
        3 => (1u32..6).prop_map(|kind| Step::Send(debox_request::new(kind, 0).as_bytes().to_vec())),
        1 => (packet(), 1usize..4).prop_map(|(bytes, count)| Step::SendWithDescriptors(bytes, count)),
        3 => Just(Step::Read),
        1 => Just(Step::ShutdownWrite),
        2 => Just(Step::Reconnect),
    ]
}

#[test]
fn no_sequence_of_packets_hurts_a_running_broker() {
    let broker = Running::new();
    broker.let_descriptors_in();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let before = descriptors();
    runner
        .run(&proptest::collection::vec(step(), 1..30), |steps| {
            let mut client = broker.client();
            for step in steps {
                match step {
                    // EPIPE: thrown out, rightly.
                    Step::Send(bytes) => {
                        let _ = client.send(&bytes);
                    }
                    Step::SendWithDescriptors(bytes, count) => {
                        let _ = client.send_with(&bytes, &vec![null.as_fd(); count]);
                    }
                    Step::Read => {
                        // Time to answer, but no more: there may be nothing to answer.
                        let mut fds = [PollFd::new(&client.0, PollFlags::IN)];
                        let wait = Timespec {
                            tv_sec: 0,
                            tv_nsec: 5_000_000,
                        };
                        poll(&mut fds, Some(&wait)).unwrap();
                        rustix::io::ioctl_fionbio(&client.0, true).unwrap();
                        let mut buffer = [0u8; 1024];
                        // Descriptors that came along are closed by the kernel.
                        let _ = rustix::net::recv(
                            &client.0,
                            &mut buffer[..],
                            rustix::net::RecvFlags::empty(),
                        );
                        rustix::io::ioctl_fionbio(&client.0, false).unwrap();
                    }
                    Step::ShutdownWrite => {
                        let _ = rustix::net::shutdown(&client.0, rustix::net::Shutdown::Write);
                    }
                    Step::Reconnect => client = broker.client(),
                }
            }
            Ok(())
        })
        .unwrap();
    broker.kernel.wait_held((0, 0));
    let created = broker.kernel.state().created;
    // Drawn at random: 85 to 117 in twelve runs.
    assert!(created > 40, "good requests were among them: {created}");
    wait_for("descriptors to be closed", || descriptors() <= before);
    broker.serves_well();
}
