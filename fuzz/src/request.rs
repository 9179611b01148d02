// SPDX-License-Identifier: MIT OR Apache-2.0
//! What must hold for every packet whatsoever? Used by the fuzz target and, for
//! a fixed number of packets, by the ordinary tests.

use debox_abi::*;
use debox_broker::{
    Credentials, Packet, REQUEST_SIZE, Request, SELECT_REQUEST_SIZE, TRACE_REQUEST_SIZE,
    parse_request,
};
use debox_probe::Way;

/// The first bytes of `data` say what surrounds the packet, the rest is it.
pub fn check(data: &[u8]) {
    let (head, bytes) = data.split_at(data.len().min(2));
    let control = head.first().copied().unwrap_or(0);
    let extra = head.get(1).copied().unwrap_or(0);
    let packet = Packet {
        bytes,
        // As with MSG_TRUNC: the packet was longer than what is there.
        length: bytes.len()
            + if control & 1 != 0 {
                usize::from(extra)
            } else {
                0
            },
        sender: (control & 2 == 0).then_some(Credentials {
            pid: if control & 4 != 0 { 0 } else { 4711 },
            uid: u32::from(extra),
            gid: u32::from(extra),
        }),
        descriptors: control & 8 != 0,
    };
    let word = |at: usize| {
        bytes
            .get(at..at + 4)
            .map(|b| u32::from_ne_bytes(b.try_into().unwrap()))
    };
    match parse_request(&packet) {
        Ok(request) => {
            let size = match &request {
                Request::Trace { .. } | Request::TraceStop => TRACE_REQUEST_SIZE,
                Request::Select(_) => SELECT_REQUEST_SIZE,
                _ => REQUEST_SIZE,
            };
            assert_eq!(packet.length, size);
            assert_eq!(bytes.len(), size);
            assert!(!packet.descriptors);
            assert!(packet.sender.is_some_and(|sender| sender.pid != 0));
            assert_eq!((word(0), word(4)), (Some(size as u32), Some(1)));
            assert_eq!(word(8), Some(request.kind()));
            let flags = word(12).unwrap();
            let pid = word(16).unwrap();
            assert!(
                bytes[24..REQUEST_SIZE].iter().all(|&b| b == 0),
                "reserved bytes"
            );
            // Nothing of the bytes is lost or made up: the request says the same.
            match request {
                Request::Slots { options } => {
                    let said = u32::from(options.boundary)
                        | u32::from(options.chains) << 4
                        | u32::from(options.irq) << 5;
                    assert_eq!((flags, pid), (said, 0));
                }
                Request::Account {
                    options,
                    user_stacks,
                } => {
                    let said = u32::from(options.boundary)
                        | u32::from(options.details) << 2
                        | u32::from(user_stacks) << 3
                        | u32::from(options.irq) << 5
                        | u32::from(options.on_cpu_hz > 0) << 6
                        | u32::from(options.spliced) << 10
                        | u32::from(options.audit) << 13;
                    assert_eq!((flags, pid), (said, 0));
                    assert_eq!(word(20), Some(options.on_cpu_hz));
                    assert!(options.on_cpu_hz <= debox_abi::DEBOX_ON_CPU_HZ_MAX);
                    assert!(!options.spliced || options.details && !options.boundary);
                    assert!(options.spliced || !options.audit);
                    assert!(options.details || !user_stacks && options.on_cpu_hz == 0);
                }
                Request::Join { follow } => assert_eq!((flags, pid), (u32::from(!follow) << 1, 0)),
                Request::Watch {
                    pid: named,
                    follow,
                    descendants,
                } => {
                    let said = u32::from(!follow) << 1 | u32::from(descendants) << 7;
                    assert_eq!((flags, pid), (said, named));
                    assert!(named as i32 > 0);
                }
                Request::Boundary(whose) => {
                    let said = u32::from(whose.open_counted) << 11
                        | u32::from(whose.renames) << 12
                        | u32::from(whose.executes) << 15;
                    assert_eq!((flags, pid), (said, whose.tid));
                    assert!(whose.tid as i32 > 0);
                }
                Request::Select(whom) => {
                    let said = u32::from(!whom.follow) << 1 | u32::from(whom.owners_first) << 14;
                    assert_eq!((flags, pid), (said, 0));
                    assert!(whom.rank != 0 || !whom.owners_first);
                    assert_eq!(word(64), Some(whom.uids.len() as u32));
                    for (at, uid) in whom.uids.iter().enumerate() {
                        assert_eq!(word(68 + 4 * at), Some(*uid));
                    }
                    assert_eq!(word(132), Some(whom.rank));
                    assert!(whom.rank <= debox_abi::DEBOX_SELECT_RANK_MAX);
                    assert!(whom.rank == 0 || whom.follow);
                    assert!(bytes[136..192].iter().all(|&b| b == 0), "reserved bytes");
                    let words = |bytes: &[u8]| {
                        let parts = bytes.split(|&b| b == 0);
                        parts.filter(|part| !part.is_empty()).count()
                    };
                    assert_eq!(words(&bytes[192..448]), whom.comms.len());
                    assert_eq!(words(&bytes[448..]), whom.cgroups.len());
                    assert_eq!(whom.except, [0; 2], "filled in by the broker");
                }
                Request::Costs { run_time } => {
                    assert_eq!((flags, pid), (u32::from(run_time) << 16, 0));
                }
                Request::Status
                | Request::SiteStacks
                | Request::Chains
                | Request::Labels
                | Request::Away
                | Request::KernelFunctions
                | Request::Yield => {
                    assert_eq!((flags, pid), (0, 0))
                }
                Request::TraceStop => {
                    assert_eq!(
                        (flags & DEBOX_REQ_TRACE_STOP, pid),
                        (DEBOX_REQ_TRACE_STOP, 0)
                    );
                }
                Request::Trace { account, options } => {
                    let said = u32::from(account) * DEBOX_REQ_TRACE_ACCOUNT;
                    assert_eq!((flags, pid), (said, 0));
                    assert_eq!(word(64), Some(options.capacity));
                    assert_eq!(word(68), Some(options.threads));
                    assert_eq!(word(72), Some(options.way.map_or(0, Way::number)));
                    assert_eq!(word(76), Some(options.calls.len() as u32));
                    assert!(options.capacity <= DEBOX_TRACE_MAX);
                    assert!(
                        options
                            .calls
                            .iter()
                            .all(|&key| (key as usize) < DEBOX_NR_SLOTS)
                    );
                    let end = 384 + options.patterns.len();
                    assert_eq!(&bytes[384..end], options.patterns.as_bytes());
                    assert_eq!(bytes[end], 0);
                    assert!(bytes[208..384].iter().all(|&b| b == 0), "reserved bytes");
                }
            }
        }
        Err(refusal) => {
            assert!(refusal.errno > 0 && refusal.errno < 4096);
            assert_eq!(refusal.kind, word(8).unwrap_or(0));
            assert!(!refusal.text.is_empty());
            // The whole text fits into the reply.
            assert_eq!(refusal.reply().text(), refusal.text);
            assert_eq!(refusal.reply().status, -refusal.errno);
        }
    }
}
